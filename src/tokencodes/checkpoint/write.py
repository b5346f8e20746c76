"""Writing: temporary folder, files, fsync, manifest, fsync, rename, fsync, `latest`.

A kill at any point leaves the former checkpoint as it was, and at most a `.tmp-` folder that the next save removes. Every rank
writes its own tensors and hashes them; the first rank does the rest.
"""

import errno
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.utils._pytree import tree_leaves, tree_map

from tokencodes.checkpoint.layout import (
    FORMAT,
    LATEST,
    VERSION,
    TrainState,
    checkpoints,
    file_sum,
    files_of,
    update_of,
)
from tokencodes.files import fsync, write_json, write_text
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.parallel import ALONE, World

Stage = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where checkpoints go and which stay: the newest `keep`, and those whose update `stays`. `on_stage` is told each stage of
    a write (tests stop there), `warn` what went wrong and could be borne."""

    folder: Path
    keep: int = 2
    stays: Callable[[int], bool] = lambda update: False
    on_stage: Stage = lambda name: None
    warn: Callable[[str], None] = lambda line: None
    world: World = ALONE


@dataclass(frozen=True)
class Content:
    """What is written: tensors, the model's configuration, counters, ids int64[G, T + 1] of the last update."""

    tensors: dict[str, Any]
    config: TokenCodeConfig
    state: TrainState
    last_ids: np.ndarray


def tensors_of(model: TokenCodeForCausalLM, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What is stored in `tensors/`: saving writes it, restoring reads into it."""
    with quiet():
        model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "generator": torch.get_rng_state()}


class Writer:
    """Writes the checkpoints of a run; with `background`, behind the back of training, from a copy in the host's memory."""

    def __init__(self, place: Place, background: bool = False) -> None:
        self._place = place
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if background else None
        self._pending: Future[None] | None = None

    def save(
        self,
        model: TokenCodeForCausalLM,
        optimizer: torch.optim.Optimizer,
        state: TrainState,
        ids: np.ndarray,
        must: bool = False,
    ) -> None:
        """Begins a save, after the one before is done. One that cannot be written is told, and training goes on; where it
        `must`, because training ends here, it is done when this returns, or OSError is raised."""
        self.wait()
        content = Content(tensors_of(model, optimizer), model.config, state, ids)
        if must:
            write(self._place, content)
            return
        if self._thread is None:
            self._write(content)
            return
        own = Content(tree_map(_copied, content.tensors), content.config, state, ids)
        self._pending = self._thread.submit(self._write, own)

    def _write(self, content: Content) -> None:
        try:
            write(self._place, content)
        except OSError as error:
            whole = checkpoints(self._place.folder)
            last = f"the last whole one is of update {update_of(whole[0])}" if whole else "there is none yet"
            if self._place.world.first:
                self._place.warn(
                    f"{self._place.folder}: the checkpoint of update {content.state.update} could not be written "
                    f"({error.strerror or error}); {last}, and training goes on: free space on that disk, or make it writable"
                )

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def close(self, now: bool = False) -> None:
        """Ends the thread; waits for what is being written, but where training failed and other ranks may never come to it."""
        if self._thread is not None:
            self._thread.shutdown(wait=not now)


def _copied(leaf: Any) -> Any:
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf


def write(place: Place, content: Content) -> Path:
    """Writes `folder/update-N`, and removes the older ones that need not stay. Called by all ranks together.

    OSError passes through, on every rank, after the half-written folder is removed; what was there before is untouched.
    """
    world, folder = place.world, place.folder
    final = folder / f"update-{content.state.update:08d}"
    partial = folder / f".tmp-{final.name}"
    try:
        world.on_first(lambda: _begin(place, content), world.saving)
        with quiet():
            dcp.save(content.tensors, checkpoint_id=partial / "tensors", process_group=world.saving, no_dist=world.ranks == 1)
        place.on_stage("tensors")
        own = _all_sums(partial, world)
        world.on_first(lambda: _commit(place, content, partial, final, own), world.saving)
    except (CheckpointException, Exception) as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, CheckpointException):
            raise OSError(errno.EIO, f"could not write the checkpoint ({cause_of(error)})", str(folder)) from error
        raise
    world.on_first(lambda: tidy(place, final), world.saving)
    place.on_stage("done")
    return final


def cause_of(error: CheckpointException) -> BaseException:
    """What went wrong on the first rank that failed. torch's own error, which is no Exception, holds one a rank."""
    cause: BaseException = next(iter(error.failures.values()))[0]
    return cause


def tidy(place: Place, final: Path) -> None:
    """What follows once a checkpoint is whole: `latest`, and the removal of older ones. A failure here takes nothing from it; a
    kill before it is made good when the run goes on."""
    try:
        write_text(place.folder / LATEST, final.name + "\n")
        place.on_stage("latest")
        _remove_old(place, final)
    except OSError as error:
        place.warn(f"{place.folder}: {final.name} is whole, but older ones could not be removed ({error.strerror or error})")


def _begin(place: Place, content: Content) -> None:
    place.folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(place.folder)
    place.on_stage("begin")
    _room_for(content.tensors, place.folder)


def remove_leftovers(folder: Path) -> None:
    """What a kill left of a checkpoint that was being written, or removed."""
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _all_sums(partial: Path, world: World) -> dict[str, Any]:
    """Sums of the tensor files by whoever wrote them. OSError on every rank, if one could not read its own."""
    own: dict[str, Any] = {}
    problem = None
    try:
        own = _own_sums(partial, world)
    except OSError as error:
        problem = f"rank {world.rank}: {error.strerror or error}"
    told = world.gather((own, problem), world.saving)
    problems = [problem for _, problem in told if problem]
    if problems:
        raise OSError(errno.EIO, f"could not read back what was written ({'; '.join(problems)})", str(partial))
    return {name: found for sums, _ in told for name, found in sums.items()}


def _own_sums(partial: Path, world: World) -> dict[str, Any]:
    """Sums of the tensor files that this rank wrote, `__RANK_NUMBER.distcp`."""
    files = (partial / "tensors").glob("__*") if world.ranks > 1 else ()
    mine = [file for file in files if re.match(rf"__{world.rank}_", file.name)]
    return {str(file.relative_to(partial)): file_sum(file) for file in mine}


def _commit(place: Place, content: Content, partial: Path, final: Path, sums: dict[str, Any]) -> None:
    content.config.save_pretrained(partial)
    np.save(partial / "last_update.npy", content.last_ids)
    write_json(partial / "state.json", asdict(content.state))
    place.on_stage("state")
    names = {str(file.relative_to(partial)): file for file in files_of(partial)}
    unseen = sums.keys() - names.keys()
    if unseen:  # a file system that does not yet show here what another node wrote
        raise OSError(errno.EIO, f"{sorted(unseen)[0]} was written by another rank and is not here", str(partial))
    sums = {name: sums[name] if name in sums else file_sum(file) for name, file in names.items()}
    for file in names.values():
        fsync(file)
    write_json(partial / "manifest.json", {"format": FORMAT, "version": VERSION, "files": sums})
    fsync(partial / "tensors")
    fsync(partial)
    place.on_stage("manifest")
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    fsync(place.folder)
    place.on_stage("renamed")


def _remove_old(place: Place, final: Path) -> None:
    """Leaves the newest `keep`, the one just written among them, and those that stay."""
    # A later one was passed over as damaged, or the run would have gone on from it: it must not push out a whole one.
    found = checkpoints(place.folder)
    later = [path for path in found if path.name > final.name]
    old_ones = [path for path in found[len(later) + place.keep :] if not place.stays(update_of(path))]
    for old in [*later, *old_ones]:
        gone = old.with_name(f".tmp-{old.name}")
        old.rename(gone)
        place.on_stage("removing")
        shutil.rmtree(gone)


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's warnings that a single process is no process group."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _room_for(tensors: dict[str, Any], folder: Path) -> None:
    """OSError before anything is written, where the tensors alone would not fit."""
    needed = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor))
    free = shutil.disk_usage(folder).free
    if free < needed:
        told = f"No space left on device ({needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free)"
        raise OSError(errno.ENOSPC, told, str(folder))
