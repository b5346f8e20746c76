"""What is evaluated: a model, its tokenizer, and what tells it from any other.

`find_subject` reads all but the weights, so that what does not fit is said before they are read.
`load` reads them.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tokencodes import checkpoint
from tokencodes.checkpoint import Origin
from tokencodes.errors import InputError, loading
from tokencodes.evaluate.options import check_options
from tokencodes.evaluate.origin import RunOrigin, run_of
from tokencodes.evaluate.suites import EMBEDDED_SEED, EMBEDDED_SHARE, PAPER_CONTEXT
from tokencodes.evaluate.texts import Texts, located, open_texts, refuse_missing
from tokencodes.files import file_sha256, read_json
from tokencodes.model import TokenCodeConfig

NAME_A_MODEL = "name a run, a checkpoint, a folder or a hub id"
PADDED = 1024  # rows of a head that stand for no token, at most


@dataclass(frozen=True, eq=False)
class Subject:
    """What is known of a model before its weights are read. place: what was named. folder: its
    folder, of a run that of its newest checkpoint; None for a hub id.
    """

    place: str
    folder: Path | None
    config: PretrainedConfig
    texts: Texts


@dataclass(eq=False)
class Evaluated:
    """A model on its device, its tokenizer, and the SHA-256 of its weights; the step after which a
    checkpoint was made, None for other models. held_out: whether its run's configuration says that
    it was not trained on the suite `embedded`; None where nothing is known.
    """

    name: str
    model: PreTrainedModel
    texts: Texts
    weights_sha256: str
    step: int | None = None
    held_out: bool | None = None
    run: RunOrigin | None = None  # None where no run is known


def open_evaluated(place: str, tokenizer: str | None, device: str, dtype: str) -> Evaluated:
    """place: a run (its newest checkpoint), a checkpoint, a folder of any transformers causal LM,
    or a hub id. InputError where there is no model or tokenizer, or they do not belong together.
    """
    check_options(device, dtype)
    return load(find_subject(place, tokenizer), device, dtype)


def find_subject(place: str, tokenizer: str | None) -> Subject:
    """Configuration and tokenizer of a model. InputError as `open_evaluated`."""
    folder = _folder(place)
    config = _config(place, folder)
    wanted = getattr(config, "tokenizer_sha256", None)
    named = place if tokenizer is None else tokenizer
    there = located(named)
    if tokenizer is None and folder is not None and there is None:
        raise InputError(f"{place}: no tokenizer.json there; name one by --tokenizer")
    texts = open_texts(named)
    file = there / "tokenizer.json" if there is not None and there.is_dir() else there
    actual = file_sha256(file) if file is not None else wanted
    if wanted is not None and actual != wanted:
        raise InputError(
            f"{file}: SHA-256 {str(actual)[:12]}, but {place} was trained with the tokenizer"
            f" {wanted[:12]}"
        )
    check_vocabulary(texts, config)
    return Subject(place, folder, config, texts)


def load(subject: Subject, device: str, dtype: str) -> Evaluated:
    """Reads the weights. InputError where they are damaged or not complete, or the device is not
    there.
    """
    on, as_type = _device(device), getattr(torch, dtype)
    ours = isinstance(subject.config, TokenCodeConfig) and subject.folder is not None
    model = checkpoint.load_model(Path(subject.place)) if ours else _foreign(subject.place)
    model = model.to(device=on, dtype=as_type).eval()
    origin = checkpoint.origin_of(subject.folder) if ours and subject.folder else None
    step = origin.step if origin else _step(subject.folder)
    weights = checkpoint.weights_sha256(model)
    return Evaluated(
        subject.place, model, subject.texts, weights, step, _held_out(origin), run_of(origin)
    )


def context_limit(config: PretrainedConfig, requested: int | None) -> int:
    """Tokens that a model may read at once: what was asked for, else what its configuration says,
    but no more than the paper's 2,048. InputError if neither does, or if more is asked for than the
    model was made for.
    """
    limit = getattr(config.get_text_config(), "max_position_embeddings", None) or getattr(
        config, "n_positions", None
    )
    if requested is None and limit is None:
        raise InputError(
            "the model's configuration does not say how many tokens it reads; give --context"
        )
    if requested is not None and limit is not None and requested > limit:
        raise InputError(f"--context {requested}: this model reads {limit} tokens at most")
    return requested if requested is not None else min(int(limit or 0), PAPER_CONTEXT)


def model_context_length(tokenizer: str) -> int:
    """Tokens that the model of a tokenizer reads at once, 2,048 at most as in the paper. It is the
    model in the same folder, or that of the same run. 2,048 where there is none, or its
    configuration does not say.
    """
    path = Path(tokenizer)
    folder = path.parent if path.is_file() else path
    for place in (folder, folder / "model"):
        if (place / "config.json").is_file():
            try:
                return context_limit(_config(str(place), place), None)
            except InputError:  # a config.json of something else
                continue
    return PAPER_CONTEXT


def _folder(place: str) -> Path | None:
    """Where the configuration lies. InputError where nothing of a model is there."""
    refuse_missing(place)
    path = Path(place)
    if not path.exists():
        return None
    kept = checkpoint.checkpoints(path / "checkpoints")
    if kept:
        return kept[0]
    return checkpoint.find(path)  # where no model is, it says what is there


def _config(place: str, folder: Path | None) -> PretrainedConfig:
    """Of any causal LM; the code that a repository may hold is never run."""
    if folder is not None and not isinstance(read_json(folder / "config.json"), dict):
        raise InputError(f"{folder}/config.json: no configuration of a model; take a complete copy")
    with loading(place, NAME_A_MODEL):
        config = AutoConfig.from_pretrained(str(folder or place), trust_remote_code=False)
    return config


def _step(folder: Path | None) -> int | None:
    """Of a checkpoint that lies apart from its run."""
    apart = folder is not None and (folder / "manifest.json").is_file()
    return checkpoint.read_state(folder).step if folder and apart else None


def _held_out(origin: Origin | None) -> bool | None:
    """Whether the run of a model keeps the embedded texts that the suite asks for out of training:
    they are held out of `embedded:` inputs by a share of validation of 0.02 or more and split seed
    0. Other text may hold them.
    """
    if origin is None:
        return None
    data = origin.config.data
    if not data.inputs or not all(source.startswith("embedded:") for source in data.inputs):
        return None
    return data.validation_fraction >= EMBEDDED_SHARE and data.split_seed == EMBEDDED_SEED


def check_vocabulary(texts: Texts, config: PretrainedConfig) -> None:
    """InputError where a tokenizer cannot be a model's: more entries than it has, or far fewer."""
    size = int(config.get_text_config().vocab_size)
    if not size - PADDED <= texts.vocab_size <= size:
        raise InputError(
            f"the tokenizer has {texts.vocab_size:,} entries and the model {size:,}: not this"
            " model's tokenizer; name it by --tokenizer"
        )


def _foreign(place: str) -> PreTrainedModel:
    model: PreTrainedModel
    with loading(place, NAME_A_MODEL):
        model, info = AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
    absent = sorted([*info["missing_keys"], *(str(key) for key in info["mismatched_keys"])])
    if absent:  # transformers would draw them at random, and say so in a log
        raise InputError(
            f"{place}: {len(absent)} weights are not in its files ({', '.join(absent[:3])}); take a"
            " complete copy"
        )
    return model


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch sees no GPU here; take cpu")
    return torch.device(name)
