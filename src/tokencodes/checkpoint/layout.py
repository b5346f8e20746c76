"""What lies in a checkpoint, and whether it can be believed.

checkpoints/
  latest                    the newest one's name: a convenience, never trusted alone
  step-00000070/
    tensors/                weights, optimizer and generator state: a safetensors file of each rank
    config.json             the model's configuration
    last_batch.npy         ids int64[G, T + 1] of the last step, so that anyone can replay it
    state.json              counters, hashes, losses of the last step before and after it
    manifest.json           size and SHA-256 of each file; written last

No file here is a pickle, so a checkpoint of somebody else cannot run code in the program that loads
it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokencodes.errors import InputError, first_line
from tokencodes.files import file_sha256, json_text, read_json, write_json
from tokencodes.records import Record, checked, read_record

FORMAT: Literal["tokencodes-checkpoint"] = "tokencodes-checkpoint"
VERSION = 2
LATEST = "latest"
LAST_BATCH = "last_batch.npy"
REPLAY = "replay.json"


class FileSum(Record):
    """Size and SHA-256 of one file."""

    bytes: int
    sha256: str


class Manifest(Record):
    """The files of a checkpoint, by their path in its folder."""

    format: Literal["tokencodes-checkpoint"]
    version: int
    files: dict[str, FileSum]


class ReplayRecord(Record):
    """What an exported folder keeps of its last step; loss: None where there is none in float32."""

    loss: float | None
    token_losses: tuple[float, ...]
    ids: list[list[int]]


class TrainState(Record):
    """Counters and identities. The sampler's whole state is `step` times the windows of a step."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # spent in steps so far
    dataset_fingerprint: str
    tokenizer_sha256: str
    start_sha256: str = ""  # of body and head before the first step: equal in every arm of a seed
    # a chain over the ids of all steps so far: equal in every arm of a seed
    windows_sha256: str = ""
    last_loss: float | None = None  # of the last step's windows, before the step
    replay_loss: float | None = None  # of the same windows by these weights, after it
    # of the first tokens of the first of them, one by one
    replay_token_losses: tuple[float, ...] = ()

    def after(self, **changes: Any) -> "TrainState":
        """The same state with some values changed."""
        return TrainState(**{**vars(self), **changes})


def checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a run, newest first."""
    return sorted(
        (path for path in folder.glob("step-*") if (path / "manifest.json").is_file()), reverse=True
    )


def step_of(checkpoint: Path) -> int:
    """The step after which it was written, by its name."""
    return int(checkpoint.name.removeprefix("step-"))


class OtherVersion(InputError):
    """Another version of this program wrote the checkpoint. It is not damaged."""


def check(checkpoint: Path) -> None:
    """InputError names the first file that is not what was written. OtherVersion: the format has
    another version.
    """
    manifest = _read_manifest(checkpoint / "manifest.json")
    for name, written in manifest.files.items():
        file = checkpoint / name
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise InputError(
                f"{checkpoint}/manifest.json: {name!r} is not inside the checkpoint's folder"
            )
        if not file.is_file():
            raise InputError(f"{file}: missing")
        if file_sum(file) != written:
            raise InputError(f"{file}: damaged (its size or SHA-256 is not the manifest's)")
    for file in files_of(checkpoint / "tensors"):  # loading reads all of them
        if file.relative_to(checkpoint).as_posix() not in manifest.files:
            raise InputError(f"{file}: is not in the checkpoint's manifest")


def _read_manifest(file: Path) -> Manifest:
    value = read_json(file)
    manifest = checked(value, Manifest, str(file), "this is no manifest of a checkpoint")
    if manifest.version != VERSION:
        raise OtherVersion(
            f"{file.parent}: a checkpoint of format version {manifest.version}, and this program"
            f" reads version {VERSION}; use the version of tokencodes that wrote it, or train anew"
        )
    if json_text(value) != file.read_text(encoding="utf-8"):
        raise InputError(f"{file}: damaged (not the text that was written)")
    return manifest


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in a line that names the file; None if every byte is what
    was written.
    """
    try:
        check(checkpoint)
    except InputError as error:
        return str(error)
    return None


def newest_intact(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is whole; `warn` gets a line for each damaged one that is passed
    over.

    OtherVersion: the newest one has another version of the format, so nothing may go on without it.
    """
    for checkpoint in checkpoints(folder):
        try:
            check(checkpoint)
            return checkpoint
        except OtherVersion:
            raise
        except InputError as error:
            warn(f"{error}; going back to the checkpoint before it")
    return None


def read_state(checkpoint: Path) -> TrainState:
    """Its counters."""
    return read_record(
        checkpoint / "state.json", TrainState, "take another checkpoint or a new copy"
    )


def read_last_ids(checkpoint: Path) -> NDArray[np.int64]:
    """The ids int64[G, T + 1] of its last step. InputError: the file is damaged."""
    file = checkpoint / LAST_BATCH
    try:
        ids: NDArray[np.int64] = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{file}: damaged ({first_line(error)}); take another checkpoint or a new copy"
        ) from None
    if ids.dtype != np.int64 or ids.ndim != 2:
        raise InputError(
            f"{file}: {ids.dtype}{list(ids.shape)}, not int64 in two dimensions; take another"
            " checkpoint"
        )
    return ids


@dataclass(frozen=True)
class Replay:
    """The ids int64[G, T + 1] of the last step, their mean loss by the saved weights, and those of
    the first tokens one by one.
    """

    ids: np.ndarray
    loss: float
    token_losses: tuple[float, ...]


def write_replay(folder: Path, state: TrainState, ids: np.ndarray) -> None:
    """Leaves in an exported folder what a checkpoint has for `read_replay`."""
    kept = ReplayRecord(
        loss=state.replay_loss, token_losses=state.replay_token_losses, ids=ids.tolist()
    )
    write_json(folder / REPLAY, kept.model_dump())


def read_replay(place: Path) -> Replay | None:
    """The last step that a checkpoint or an exported folder keeps; None if it keeps none, or no
    loss of it in float32.
    """
    if (place / REPLAY).is_file():
        kept = read_record(place / REPLAY, ReplayRecord)
        return (
            None
            if kept.loss is None
            else Replay(np.array(kept.ids, dtype=np.int64), kept.loss, kept.token_losses)
        )
    if not (place / LAST_BATCH).is_file():
        return None
    state = read_state(place)
    return (
        None
        if state.replay_loss is None
        else Replay(read_last_ids(place), state.replay_loss, state.replay_token_losses)
    )


def find(path: Path) -> Path:
    """What a CHECKPOINT names: a run's newest checkpoint (InputError if it is damaged), one
    checkpoint, an exported folder.
    """
    if (path / "checkpoints").is_dir():
        whole = checkpoints(path / "checkpoints")
        if not whole:
            raise InputError(
                f"{path}/checkpoints: there is none yet; repeat the training command to make one"
            )
        try:
            check(whole[0])
        except OtherVersion:
            raise
        except InputError as error:
            raise InputError(
                f"{error}; repeat the training command, or name an older checkpoint"
            ) from None
        return whole[0]
    if (path / "config.json").is_file():
        return path
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    runs = sorted(
        str(folder.parent)
        for depth in ("*", "*/*", "*/*/*")
        for folder in path.glob(f"{depth}/checkpoints")
    )
    if runs:
        raise InputError(
            f"{path}: holds {len(runs)} runs; name one of them:"
            f" {', '.join(runs[:4])}{' ...' * (len(runs) > 4)}"
        )
    raise InputError(
        f"{path}: neither a run, nor a checkpoint, nor an exported model; name a folder that"
        " holds one"
    )


def files_of(folder: Path) -> Iterator[Path]:
    """Every file under a folder, in order."""
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


def file_sum(file: Path) -> FileSum:
    """Its size and SHA-256, as a manifest has them."""
    return FileSum(bytes=file.stat().st_size, sha256=file_sha256(file))
