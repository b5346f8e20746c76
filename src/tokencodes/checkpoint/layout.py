"""What lies in a checkpoint, and whether it can be believed.

checkpoints/
  latest                    the newest one's name: a convenience, never trusted alone
  update-00000070/
    tensors/                model, optimizer and generator state (torch.distributed.checkpoint), one file or more a rank
    config.json             the model's configuration
    last_update.npy         ids int64[G, T + 1] of the last update, so that anyone can replay it
    state.json              counters, hashes, losses of the last update before and after it
    manifest.json           size and SHA-256 of each file; written last
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokencodes.errors import InputError
from tokencodes.files import file_sha256, json_text, read_json, write_json

FORMAT, VERSION = "tokencodes-checkpoint", 1
LATEST = "latest"
REPLAY = "replay.json"


@dataclass(frozen=True)
class TrainState:
    """Counters and identities. The sampler's whole state is `update` times the windows of an update."""

    update: int
    targets: int
    seconds: float  # spent in updates so far
    dataset_fingerprint: str
    tokenizer_sha256: str
    start_sha256: str = ""  # of body and head before the first update: equal in every arm of a seed
    windows_sha256: str = ""  # a chain over the ids of all updates so far: equal in every arm of a seed
    last_loss: float | None = None  # of the last update's windows, before the update
    replay_loss: float | None = None  # of the same windows by these weights, after it
    replay_targets: tuple[float, ...] = ()  # of the first targets of the first of them, one by one


def checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a run, newest first."""
    return sorted((path for path in folder.glob("update-*") if (path / "manifest.json").is_file()), reverse=True)


def update_of(checkpoint: Path) -> int:
    """The update after which it was written, by its name."""
    return int(checkpoint.name.removeprefix("update-"))


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in a line that names the file; None if every byte is what was written."""
    try:
        manifest = read_json(checkpoint / "manifest.json")
    except InputError as error:
        return str(error)
    if json_text(manifest) != (checkpoint / "manifest.json").read_text(encoding="utf-8"):
        return f"{checkpoint}/manifest.json: damaged (not the text that was written)"
    if manifest.get("format") != FORMAT or manifest.get("version") != VERSION or not isinstance(manifest.get("files"), dict):
        return f"{checkpoint}/manifest.json: not a checkpoint that this version reads"
    for name, told in manifest["files"].items():
        file = checkpoint / name
        if not file.is_file():
            return f"{file}: missing"
        if file_sum(file) != told:
            return f"{file}: damaged (its size or SHA-256 is not the manifest's)"
    return None


def newest_intact(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is whole; each damaged one is told to `warn` and passed over."""
    for checkpoint in checkpoints(folder):
        problem = damage(checkpoint)
        if problem is None:
            return checkpoint
        warn(f"{problem}; going back to the checkpoint before it")
    return None


def read_state(checkpoint: Path) -> TrainState:
    """Its counters."""
    return TrainState(**read_json(checkpoint / "state.json"))


@dataclass(frozen=True)
class Replay:
    """The ids int64[G, T + 1] of the last update, their mean loss by the saved weights, and the first targets' one by one."""

    ids: np.ndarray
    loss: float
    targets: tuple[float, ...]


def write_replay(folder: Path, state: TrainState, ids: np.ndarray) -> None:
    """Leaves in an exported folder what a checkpoint has for `read_replay`."""
    write_json(folder / REPLAY, {"loss": state.replay_loss, "targets": state.replay_targets, "ids": ids.tolist()})


def read_replay(place: Path) -> Replay | None:
    """The last update that a checkpoint or an exported folder keeps; None if it keeps none, or no loss of it in float32."""
    if (place / REPLAY).is_file():
        told = read_json(place / REPLAY)
        if told["loss"] is None:
            return None
        return Replay(np.array(told["ids"], dtype=np.int64), told["loss"], tuple(told["targets"]))
    if not (place / "last_update.npy").is_file():
        return None
    state = read_state(place)
    if state.replay_loss is None:
        return None
    return Replay(np.load(place / "last_update.npy"), state.replay_loss, tuple(state.replay_targets))


def find(path: Path) -> Path:
    """What a CHECKPOINT names: a run's newest checkpoint (InputError if it is damaged), one checkpoint, an exported folder."""
    if (path / "checkpoints").is_dir():
        found = checkpoints(path / "checkpoints")
        if not found:
            raise InputError(f"{path}/checkpoints: there is none yet; repeat the training command to make one")
        problem = damage(found[0])
        if problem:
            raise InputError(f"{problem}; repeat the training command, or name an older checkpoint")
        return found[0]
    if (path / "config.json").is_file():
        return path
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    runs = sorted(str(one.parent) for depth in ("*", "*/*", "*/*/*") for one in path.glob(f"{depth}/checkpoints"))
    if runs:
        raise InputError(f"{path}: holds {len(runs)} runs; name one of them: {', '.join(runs[:4])}{' ...' * (len(runs) > 4)}")
    raise InputError(f"{path}: neither a run, nor a checkpoint, nor an exported model; name a folder that holds one")


def files_of(folder: Path) -> Iterator[Path]:
    """Every file under a folder, in order."""
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


def file_sum(file: Path) -> dict[str, Any]:
    """Its size and SHA-256, as a manifest has them."""
    return {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
