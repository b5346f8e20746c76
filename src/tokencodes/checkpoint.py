"""A checkpoint is a directory that appears at once, and is believed only if every byte of it is what was written.

    checkpoints/
      latest                    the newest one's name: a convenience, never trusted alone
      update-00000070/
        tensors/                model, optimizer and generator state (torch.distributed.checkpoint)
        config.json             the model's configuration
        last_update.npy         ids int64[G, T + 1] of the last update, so that anyone can replay it
        state.json              counters, hashes, losses of the last update before and after it
        manifest.json           size and SHA-256 of each file; written last

Write: temporary folder, files, fsync, manifest, fsync, rename, fsync, `latest`. A kill at any point leaves the former one as it
was, and at most a `.tmp-` folder that the next save removes.

It stands outside `train` because `verify`, `evaluate` and `export` read checkpoints and must not know the trainer.
"""

import errno
import hashlib
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.utils._pytree import tree_leaves

from tokencodes.errors import InputError
from tokencodes.files import fsync, json_text, read_json, write_json, write_text
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM

FORMAT, VERSION = "tokencodes-checkpoint", 1
LATEST = "latest"
REPLAY = "replay.json"
Stage = Callable[[str], None]


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


def save(
    folder: Path,
    model: TokenCodeForCausalLM,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    last_ids: np.ndarray,
    keep: int,
    on_stage: Stage = lambda name: None,
    stays: Callable[[int], bool] = lambda update: False,
) -> Path:
    """Writes `folder/update-N`, and removes all but the newest `keep` and those whose update `stays`. `on_stage` is told each
    stage (tests stop there).

    OSError passes through after the half-written folder is removed; what was there before is untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    final = folder / f"update-{state.update:08d}"
    partial = folder / f".tmp-{final.name}"
    try:
        on_stage("begin")
        with _quiet():
            tensors = _tensors(model, optimizer)
            _room_for(tensors, folder)
            dcp.save(tensors, checkpoint_id=partial / "tensors", no_dist=True)
        on_stage("tensors")
        model.config.save_pretrained(partial)
        np.save(partial / "last_update.npy", last_ids)
        write_json(partial / "state.json", asdict(state))
        on_stage("state")
        sums = {str(file.relative_to(partial)): _file_sum(file) for file in _files(partial)}
        for file in _files(partial):
            fsync(file)
        write_json(partial / "manifest.json", {"format": FORMAT, "version": VERSION, "files": sums})
        fsync(partial / "tensors")
        fsync(partial)
        on_stage("manifest")
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        fsync(folder)
        on_stage("renamed")
        write_text(folder / LATEST, final.name + "\n")
        on_stage("latest")
    except CheckpointException as error:  # what torch makes of a failed write, and not an Exception
        shutil.rmtree(partial, ignore_errors=True)
        cause = next(iter(error.failures.values()))[0]
        raise OSError(errno.EIO, f"could not write the checkpoint ({cause})", str(folder)) from error
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _remove_old(folder, final, keep, stays, on_stage)
    on_stage("done")
    return final


def _remove_old(folder: Path, final: Path, keep: int, stays: Callable[[int], bool], on_stage: Stage) -> None:
    """Leaves the newest `keep`, the one just written among them, and those that stay."""
    # A later one was passed over as damaged, or the run would have gone on from it: it must not push out a whole one.
    later = [path for path in checkpoints(folder) if path.name > final.name]
    old_ones = [path for path in checkpoints(folder)[len(later) + keep :] if not stays(update_of(path))]
    for old in [*later, *old_ones]:
        gone = old.with_name(f".tmp-{old.name}")
        old.rename(gone)
        on_stage("removing")
        shutil.rmtree(gone)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings that a single process is no process group."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _tensors(model: TokenCodeForCausalLM, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What is stored in `tensors/`: saving writes it, restoring reads into it."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "generator": torch.get_rng_state()}


def _room_for(tensors: dict[str, Any], folder: Path) -> None:
    """OSError before anything is written, where the tensors alone would not fit."""
    needed = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor))
    free = shutil.disk_usage(folder).free
    if free < needed:
        told = f"No space left on device ({needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free)"
        raise OSError(errno.ENOSPC, told, str(folder))


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
        if _file_sum(file) != told:
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


def restore(checkpoint: Path, model: TokenCodeForCausalLM, optimizer: torch.optim.Optimizer) -> TrainState:
    """Loads model, optimizer and generator in place, checks the codebook, returns the counters."""
    with _quiet():
        tensors = _tensors(model, optimizer)
        dcp.load(tensors, checkpoint_id=checkpoint / "tensors", no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"])
    torch.set_rng_state(tensors["generator"])
    model.input_interface.check()
    return read_state(checkpoint)


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
    """The last update that a checkpoint or an exported folder keeps; None if it keeps none."""
    if (place / REPLAY).is_file():
        told = read_json(place / REPLAY)
        return Replay(np.array(told["ids"], dtype=np.int64), told["loss"], tuple(told["targets"]))
    if not (place / "last_update.npy").is_file():
        return None
    state = read_state(place)
    return Replay(np.load(place / "last_update.npy"), state.replay_loss or 0.0, tuple(state.replay_targets))


def load_model(path: Path) -> TokenCodeForCausalLM:
    """The model of a run (its newest checkpoint), of one checkpoint or of an exported folder; its codebook is checked."""
    place = find(path)
    if not (place / "manifest.json").is_file():
        return _load_exported(place)
    problem = damage(place)
    if problem:
        raise InputError(f"{problem}; take another checkpoint or a new copy")
    model = TokenCodeForCausalLM(TokenCodeConfig.from_pretrained(place))
    with _quiet():
        tensors = {"model": get_model_state_dict(model)}
        dcp.load(tensors, checkpoint_id=place / "tensors", no_dist=True)
        set_model_state_dict(model, tensors["model"])
    model.input_interface.check()
    return model.eval()


def _load_exported(folder: Path) -> TokenCodeForCausalLM:
    kind = read_json(folder / "config.json").get("model_type")
    if kind != TokenCodeConfig.model_type:
        raise InputError(f"{folder}: a model of type {kind!r}, not {TokenCodeConfig.model_type!r}; name one made by tokencodes")
    try:
        model: TokenCodeForCausalLM = TokenCodeForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder}: cannot be loaded ({str(error).splitlines()[0]}); take a complete copy") from None
    return model.eval()


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
    raise InputError(f"{path}: neither a run, nor a checkpoint, nor an exported model; name a folder that holds one")


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


def _file_sum(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
