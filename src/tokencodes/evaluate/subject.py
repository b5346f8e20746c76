"""What is evaluated: a model, its tokenizer, and what tells it from any other."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel

from tokencodes import checkpoint
from tokencodes.errors import InputError
from tokencodes.evaluate.suites import EMBEDDED_SEED, EMBEDDED_SHARE
from tokencodes.evaluate.texts import Texts, located, open_texts, refuse_missing
from tokencodes.files import file_sha256, read_json, read_toml
from tokencodes.model import TokenCodeConfig
from tokencodes.result import read_result

PADDED = 1024  # rows of a head that stand for no token, at most
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(eq=False)
class Evaluated:
    """A model on its device, its tokenizer, and the SHA-256 of its weights; the update after which a checkpoint was made, None
    for other models. held_out: whether its run's configuration says that it was not trained on the suite `embedded`; None where
    nothing is known."""

    name: str
    model: PreTrainedModel
    texts: Texts
    weights_sha256: str
    update: int | None = None
    held_out: bool | None = None


def open_evaluated(place: str, tokenizer: str | None, device: str, dtype: str) -> Evaluated:
    """place: a run (its newest checkpoint), a checkpoint, a folder of any transformers causal LM, or a hub id. InputError where
    there is no model or tokenizer, or they do not belong together."""
    path = Path(place)
    model = _ours(path) if _is_ours(path) else _foreign(place)
    model = model.to(device=_device(device), dtype=_dtype(dtype)).eval()
    wanted = getattr(model.config, "tokenizer_sha256", None)
    named = place if tokenizer is None else tokenizer
    there = located(named)
    if tokenizer is None and path.exists() and there is None:
        raise InputError(f"{place}: no tokenizer.json there; name one by --tokenizer")
    texts = open_texts(named)
    file = there / "tokenizer.json" if there is not None and there.is_dir() else there
    found = file_sha256(file) if file is not None else wanted
    if wanted is not None and found != wanted:
        raise InputError(f"{file}: SHA-256 {str(found)[:12]}, but {place} was trained with the tokenizer {wanted[:12]}")
    check_vocabulary(texts, model)
    return Evaluated(place, model, texts, checkpoint.weights_sha256(model), _update(path), _held_out(path))


def _update(path: Path) -> int | None:
    """Of a run, a checkpoint, or the model that a run has left."""
    if _of_a_run(path):
        return checkpoint.read_state(checkpoint.find(path)).update
    result = read_result(path.parent) if path.name == "model" else None
    return None if result is None else result.updates


def _held_out(path: Path) -> bool | None:
    """Whether the run at a place, or of a checkpoint, keeps the embedded texts that the suite asks for out of training: they
    are held out of `embedded:` inputs by a share of validation of 0.02 or more and split seed 0. Other text may hold them."""
    places = (path, path.parent, path.parent.parent)
    config = next((place / "config.toml" for place in places if (place / "config.toml").is_file()), None)
    if config is None:
        return None
    data = read_toml(config).get("data", {})
    if not data.get("inputs") or not all(str(one).startswith("embedded:") for one in data["inputs"]):
        return None
    return bool(data.get("validation", 0) >= EMBEDDED_SHARE and data.get("split_seed", 0) == EMBEDDED_SEED)


def check_vocabulary(texts: Texts, model: PreTrainedModel) -> None:
    """InputError where a tokenizer cannot be a model's: more entries than it has, or far fewer."""
    size = int(model.config.get_text_config().vocab_size)
    if not size - PADDED <= texts.vocab_size <= size:
        raise InputError(
            f"the tokenizer has {texts.vocab_size:,} entries and the model {size:,}: not this model's tokenizer; name it by "
            "--tokenizer"
        )


def _of_a_run(path: Path) -> bool:
    """A run, or one of its checkpoints."""
    return (path / "checkpoints").is_dir() or (path / "manifest.json").is_file()


def _is_ours(path: Path) -> bool:
    if _of_a_run(path):
        return True
    return (path / "config.json").is_file() and read_json(path / "config.json").get("model_type") == TokenCodeConfig.model_type


def _ours(path: Path) -> PreTrainedModel:
    return checkpoint.load_model(path)


def _foreign(place: str) -> PreTrainedModel:
    refuse_missing(place)
    path = Path(place)
    if path.is_dir() and not (path / "config.json").is_file():
        checkpoint.find(path)  # says what is there
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
