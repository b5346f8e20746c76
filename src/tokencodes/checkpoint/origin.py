"""Which run a checkpoint or a model belongs to. What lies in the folders above it is believed only
if it agrees with it.

RUN/
  config.toml             what was trained; result.json: what came of it, once the run is finished
  checkpoints/step-N/   checkpoints
  model/                  the model after the last step
  models/step-N/        models of checkpoints that stay for good

A folder of another name has no run. A folder above it may hold a config.toml of anything.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tokencodes.checkpoint.layout import REPLAY, ReplayRecord, checkpoints, read_state, step_of
from tokencodes.codes import InterfaceSpec
from tokencodes.files import read_toml
from tokencodes.records import Known, checked, read_record
from tokencodes.result import ResultRecord, read_result


class Part(Known):
    """One dataset of a mixture."""

    dataset: str


class DataKeys(Known):
    """[data] of config.toml."""

    vocab_size: int
    dataset: str | None = None
    mixture: tuple[Part, ...] = ()
    inputs: tuple[str, ...] = ()
    validation_fraction: float = 0.001
    split_seed: int = 0


class BodyKeys(Known):
    """[model] of config.toml."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    context_length: int


class OptimizerKeys(Known):
    """[optimizer] of config.toml."""

    beta1: float
    beta2: float
    peak_lr: float
    min_lr: float
    schedule_steps: int
    warmup_steps: int
    weight_decay: float
    max_grad_norm: float


class BatchKeys(Known):
    """[batch] of config.toml."""

    global_batch_size: int
    sampling: Literal["paper", "token-uniform", "packed"]


class RunKeys(Known):
    """config.toml of a run."""

    arm: str
    interface: str
    seed: int
    data: DataKeys
    model: BodyKeys
    optimizer: OptimizerKeys
    batch: BatchKeys


class ModelKeys(Known):
    """config.json of a model of ours."""

    interface: str
    spec_sha256: str
    codebook_sha256: str | None
    tokenizer_sha256: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int


@dataclass(frozen=True)
class Origin:
    """The run that a checkpoint or a model belongs to, and the step after which it was made.
    result: None while the run is not finished.
    """

    folder: Path
    config: RunKeys
    result: ResultRecord | None
    step: int


def run_folder(place: Path) -> Path | None:
    """The run of a checkpoint or a model by the names of the folders alone; None where they are
    other names.
    """
    place = place.resolve()
    if place.name == "model":
        return place.parent
    is_step = place.name.startswith("step-") and place.name.removeprefix("step-").isdecimal()
    return (
        place.parent.parent if is_step and place.parent.name in ("checkpoints", "models") else None
    )


def tokenizer_of(path: Path) -> Path | None:
    """The tokenizer.json of a run, a checkpoint or a folder: in it, in the model of its run, or
    with the text of its run or study. Where that also says which tokens begin and end a text,
    tokenizer_config.json lies beside it.
    """
    run = run_folder(path) or path
    folders = [path, path / "model", path / "data", run / "model", run / "data"]
    study = run.resolve().parent.parent
    if (study / "study.toml").is_file():
        folders.append(study / "data")
    return next(
        (folder / "tokenizer.json" for folder in folders if (folder / "tokenizer.json").is_file()),
        None,
    )


def origin_of(place: Path) -> Origin | None:
    """The run of a checkpoint or of a model's folder. None where there is none, or where its files
    and the model do not agree: then nothing is known of how the model was trained.
    """
    folder = run_folder(place)
    if (
        folder is None
        or not (folder / "config.toml").is_file()
        or not (place / "config.json").is_file()
    ):
        return None
    try:
        config = checked(read_toml(folder / "config.toml"), RunKeys, "config.toml", "")
        model = read_record(place / "config.json", ModelKeys)
        result = read_result(folder)
        step = _step(place, folder, model, result)
        return (
            Origin(folder, config, result, step)
            if step is not None and _agree(config, model, result)
            else None
        )
    except ValueError:  # InputError among them: files of another program, or damaged ones
        return None


def _agree(config: RunKeys, model: ModelKeys, result: ResultRecord | None) -> bool:
    """Whether a run's configuration and result are those of a model."""
    body = config.model
    pairs: list[tuple[object, object]] = [
        (_settled_alike(config.interface, model.interface), True),
        (config.data.vocab_size, model.vocab_size),
        (body.context_length, model.max_position_embeddings),
        (body.hidden_size, model.hidden_size),
        (body.intermediate_size, model.intermediate_size),
        (body.num_hidden_layers, model.num_hidden_layers),
        (body.num_attention_heads, model.num_attention_heads),
    ]
    if result is not None:
        pairs += [
            (result.arm, config.arm),
            (result.seed, config.seed),
            (result.spec_sha256, model.spec_sha256),
            (result.codebook_sha256, model.codebook_sha256),
        ]
    return all(actual == expected for actual, expected in pairs)


def _settled_alike(requested: str, settled: str) -> bool:
    """Whether the interface of a model is the one that a configuration names. The model's has
    hashes where the configuration names a file, or leaves the order to the text.
    """
    first, second = (InterfaceSpec.parse(text) for text in (requested, settled))
    same = replace(first, matrix=None, order=None) == replace(second, matrix=None, order=None)
    return same and (first.matrix is None) == (second.matrix is None)


def _step(place: Path, folder: Path, model: ModelKeys, result: ResultRecord | None) -> int | None:
    """After which step a checkpoint or a model of a run was made; None where the files of the run
    say otherwise.
    """
    place = place.resolve()
    number = (
        int(place.name.removeprefix("step-"))
        if place.name != "model"
        else result.steps
        if result
        else None
    )
    all_kept = checkpoints(folder / "checkpoints")
    if number is None or (
        result is not None and max([number, *map(step_of, all_kept)]) > result.steps
    ):
        return None
    kept = next((path for path in all_kept if path.name == f"step-{number:08d}"), None)
    if kept is None:  # a run keeps the newest ones only
        return number
    state = read_state(kept)
    agree = state.step == number and model.tokenizer_sha256 == state.tokenizer_sha256
    if result is not None:
        of_result = (result.dataset_fingerprint, result.start_sha256)
        agree = agree and (state.dataset_fingerprint, state.start_sha256) == of_result
    if kept != place and (place / REPLAY).is_file():  # a model's own record of its last step
        agree = agree and read_record(place / REPLAY, ReplayRecord).loss == state.replay_loss
    return number if agree else None
