"""What is evaluated: a model, its tokenizer, and what tells it from any other."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel

from tokencodes import checkpoint
from tokencodes.errors import InputError
from tokencodes.evaluate.texts import Texts, open_texts
from tokencodes.files import read_json
from tokencodes.model import TokenCodeConfig

PADDED = 1024  # rows of a head that stand for no token, at most
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(eq=False)
class Evaluated:
    """A model on its device, its tokenizer, and the SHA-256 of its weights; the update after which a checkpoint was made, None
    for other models."""

    name: str
    model: PreTrainedModel
    texts: Texts
    weights_sha256: str
    update: int | None = None


def open_evaluated(place: str, tokenizer: str | None, device: str, dtype: str) -> Evaluated:
    """place: a run (its newest checkpoint), a checkpoint, a folder of any transformers causal LM, or a hub id. InputError where
    there is no model or tokenizer, or they do not belong together."""
    path = Path(place)
    model = _ours(path) if _is_ours(path) else _foreign(place)
    model = model.to(device=_device(device), dtype=_dtype(dtype)).eval()
    wanted = getattr(model.config, "tokenizer_sha256", None)
    if tokenizer is None:
        beside = _beside(path)
        if path.exists() and beside is None:
            raise InputError(f"{place}: no tokenizer.json there; name one by --tokenizer")
        tokenizer = place if beside is None else str(beside)
    texts = open_texts(tokenizer)
    file = Path(tokenizer) / "tokenizer.json" if Path(tokenizer).is_dir() else Path(tokenizer)
    found = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else wanted
    if wanted is not None and found != wanted:
        raise InputError(f"{tokenizer}: SHA-256 {str(found)[:12]}, but {place} was trained with the tokenizer {wanted[:12]}")
    check_vocabulary(texts, model)
    made = checkpoint.find(path) if (path / "checkpoints").is_dir() or (path / "manifest.json").is_file() else None
    update = checkpoint.read_state(made).update if made is not None else None
    return Evaluated(place, model, texts, checkpoint.weights_sha256(model), update)


def check_vocabulary(texts: Texts, model: PreTrainedModel) -> None:
    """InputError where a tokenizer cannot be a model's: more entries than it has, or far fewer."""
    size = int(model.config.get_text_config().vocab_size)
    if not size - PADDED <= texts.vocab_size <= size:
        raise InputError(
            f"the tokenizer has {texts.vocab_size:,} entries and the model {size:,}: not this model's tokenizer; name it by "
            "--tokenizer"
        )


def _is_ours(path: Path) -> bool:
    if (path / "checkpoints").is_dir() or (path / "manifest.json").is_file():
        return True
    return (path / "config.json").is_file() and read_json(path / "config.json").get("model_type") == TokenCodeConfig.model_type


def _ours(path: Path) -> PreTrainedModel:
    return checkpoint.load_model(path)


def _foreign(place: str) -> PreTrainedModel:
    try:
        found: PreTrainedModel
        found, info = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        told = str(error).strip().splitlines()[0][:160]
        raise InputError(
            f"{place}: no model that can be read ({told}); name a run, a checkpoint, a folder or a hub id"
        ) from None
    absent = sorted([*info["missing_keys"], *(str(key) for key in info["mismatched_keys"])])
    if absent:  # transformers would draw them at random, and say so in a log
        raise InputError(f"{place}: {len(absent)} weights are not in its files ({', '.join(absent[:3])}); take a complete copy")
    return found


def _beside(path: Path) -> Path | None:
    """The tokenizer of a local model: a folder, where that says which tokens begin and end a text; a file otherwise."""
    found = checkpoint.tokenizer_of(path)
    return found.parent if found and found.with_name("tokenizer_config.json").is_file() else found


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise InputError(f"--device {name!r}: known: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch sees no GPU here; take cpu")
    return torch.device(name)


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise InputError(f"--dtype {name!r}: known: {', '.join(DTYPES)}")
    return DTYPES[name]
