"""Writing: temporary folder, files, fsync, manifest, fsync, rename, fsync, `latest`.

A kill at any point leaves the former checkpoint as it was, and at most a `.tmp-` folder that the
next save removes. Every rank writes its own tensors and hashes them; the first rank does the rest.
"""

import errno
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from tokencodes.checkpoint.layout import (
    FORMAT,
    LAST_BATCH,
    LATEST,
    VERSION,
    FileSum,
    Manifest,
    TrainState,
    checkpoints,
    file_sum,
    files_of,
    step_of,
)
from tokencodes.checkpoint.tensors import TensorWriter, file_name, quiet, tensors_of
from tokencodes.errors import first_line, pass_on_interruption
from tokencodes.files import fsync, write_json, write_text
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.parallel import ALONE, World

Stage = Callable[[str], None]

# torch logs a traceback of what it raises as well. Without a handler of ours, a program without
# logging would show it.
logging.getLogger("torch.distributed.checkpoint").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class CheckpointPolicy:
    """Where checkpoints go and which stay: the newest `keep`, and those whose step `stays`.
    `on_stage` is told each stage of a write (tests stop there), `warn` what went wrong and could be
    borne.
    """

    folder: Path
    keep: int = 2
    stays: Callable[[int], bool] = lambda step: False
    on_stage: Stage = lambda name: None
    warn: Callable[[str], None] = lambda line: None
    world: World = ALONE


@dataclass(frozen=True)
class Content:
    """What is written: tensors, the model's configuration, counters, ids int64[G, T + 1] of the
    last step.
    """

    tensors: dict[str, torch.Tensor]
    config: TokenCodeConfig
    state: TrainState
    last_ids: np.ndarray


class Writer:
    """Writes the checkpoints of a run; with `background`, behind the back of training, from a copy
    in the host's memory.
    """

    def __init__(self, policy: CheckpointPolicy, background: bool = False) -> None:
        self._policy = policy
        self._thread = (
            ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if background else None
        )
        self._pending: Future[None] | None = None

    def save(
        self,
        model: TokenCodeForCausalLM,
        optimizer: torch.optim.Optimizer,
        state: TrainState,
        ids: np.ndarray,
        must: bool = False,
    ) -> None:
        """Begins a save, after the one before is done. One that cannot be written is told, and
        training goes on; where it `must`, because training ends here, it is done when this returns,
        or OSError is raised.
        """
        self.wait()
        content = Content(tensors_of(model, optimizer), model.config, state, ids)
        if must:
            write(self._policy, content)
            return
        if self._thread is None:
            self._write(content)
            return
        copies = {
            name: tensor.detach().to("cpu", copy=True) for name, tensor in content.tensors.items()
        }
        own = Content(copies, content.config, state, ids)
        self._pending = self._thread.submit(self._write, own)

    def _write(self, content: Content) -> None:
        try:
            write(self._policy, content)
        except OSError as error:
            whole = checkpoints(self._policy.folder)
            last = (
                f"the last whole one is of step {step_of(whole[0])}"
                if whole
                else "there is none yet"
            )
            if self._policy.world.first:
                self._policy.warn(
                    f"{self._policy.folder}: the checkpoint of step {content.state.step} could not"
                    f" be written ({error.strerror or error}); {last}, and training goes on: free"
                    " space on that disk, or make it writable"
                )

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def close(self, now: bool = False) -> None:
        """Ends the thread; waits for what is being written, but where training failed and other
        ranks may never come to it.
        """
        if self._thread is not None:
            self._thread.shutdown(wait=not now)


def write(policy: CheckpointPolicy, content: Content) -> Path:
    """Writes `folder/step-N`, and removes the older ones that need not stay. Called by all ranks
    together.

    OSError passes through, on every rank, after the half-written folder is removed; what was there
    before is untouched. So does KeyboardInterrupt.
    """
    world, folder = policy.world, policy.folder
    final = folder / f"step-{content.state.step:08d}"
    partial = folder / f".tmp-{final.name}"
    try:
        world.on_first(lambda: _begin(policy, content), world.saving)
        _write_tensors(content.tensors, partial / "tensors", world)
        policy.on_stage("tensors")
        own = _all_sums(partial, world)
        world.on_first(lambda: _commit(policy, content, partial, final, own), world.saving)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    world.on_first(lambda: tidy(policy, final), world.saving)
    policy.on_stage("done")
    return final


def _write_tensors(tensors: dict[str, torch.Tensor], folder: Path, world: World) -> None:
    """Each rank writes its own parts of the tensors. OSError on every rank, if one could not."""
    try:
        with quiet():
            dcp.save(
                tensors,
                storage_writer=TensorWriter(folder),
                process_group=world.saving,
                no_dist=world.ranks == 1,
            )
    except CheckpointException as error:
        cause = cause_of(error)
        raise OSError(
            errno.EIO,
            f"could not write the checkpoint ({first_line(cause)})",
            str(folder.parent.parent),
        ) from error


def cause_of(error: CheckpointException) -> BaseException:
    """What went wrong on the first rank that failed. KeyboardInterrupt where a rank was
    interrupted.
    """
    causes: list[BaseException] = [cause for cause, _ in error.failures.values()]  # one a rank
    for cause in causes:
        pass_on_interruption(cause)
    return causes[0]


def tidy(policy: CheckpointPolicy, final: Path) -> None:
    """What follows once a checkpoint is whole: `latest`, and the removal of older ones. A failure
    here takes nothing from it; a kill before it is made good when the run goes on.
    """
    try:
        write_text(policy.folder / LATEST, final.name + "\n")
        policy.on_stage("latest")
        _remove_old(policy, final)
    except OSError as error:
        policy.warn(
            f"{policy.folder}: {final.name} is whole, but older ones could not be removed"
            f" ({error.strerror or error})"
        )


def _begin(policy: CheckpointPolicy, content: Content) -> None:
    policy.folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(policy.folder)
    policy.on_stage("begin")
    _room_for(content.tensors, policy.folder)


def remove_leftovers(folder: Path) -> None:
    """What a kill left of a checkpoint that was being written, or removed."""
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _all_sums(partial: Path, world: World) -> dict[str, FileSum]:
    """Sums of the tensor files by whoever wrote them. OSError on every rank, if one could not read
    its own.
    """
    own: dict[str, FileSum] = {}
    problem = None
    try:
        own = _own_sums(partial, world)
    except OSError as error:
        problem = f"rank {world.rank}: {error.strerror or error}"
    gathered = world.gather((own, problem), world.saving)
    problems = [problem for _, problem in gathered if problem]
    if problems:
        raise OSError(
            errno.EIO, f"could not read back what was written ({'; '.join(problems)})", str(partial)
        )
    return {name: file_sum for sums, _ in gathered for name, file_sum in sums.items()}


def _own_sums(partial: Path, world: World) -> dict[str, FileSum]:
    """The sum of the file of tensors that this rank wrote, if it wrote one. A single rank leaves
    that to `_commit`.
    """
    file = partial / "tensors" / file_name(world.rank)
    return (
        {str(file.relative_to(partial)): file_sum(file)}
        if world.ranks > 1 and file.is_file()
        else {}
    )


def _commit(
    policy: CheckpointPolicy, content: Content, partial: Path, final: Path, sums: dict[str, FileSum]
) -> None:
    content.config.save_pretrained(partial)
    np.save(partial / LAST_BATCH, content.last_ids)
    write_json(partial / "state.json", content.state.model_dump())
    policy.on_stage("state")
    names = {str(file.relative_to(partial)): file for file in files_of(partial)}
    unseen = sums.keys() - names.keys()
    if unseen:  # a file system that does not yet show here what another node wrote
        raise OSError(
            errno.EIO,
            f"{sorted(unseen)[0]} was written by another rank and is not here",
            str(partial),
        )
    sums = {name: sums[name] if name in sums else file_sum(file) for name, file in names.items()}
    for file in names.values():
        fsync(file)
    manifest = Manifest(format=FORMAT, version=VERSION, files=sums)
    write_json(partial / "manifest.json", manifest.model_dump())
    fsync(partial / "tensors")
    fsync(partial)
    policy.on_stage("manifest")
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    fsync(policy.folder)
    policy.on_stage("renamed")


def _remove_old(policy: CheckpointPolicy, final: Path) -> None:
    """Leaves the newest `keep`, the one just written among them, and those that stay."""
    # A later one was passed over as damaged, or the run would have gone on from it: it must not
    # push out a whole one.
    present = checkpoints(policy.folder)
    later = [path for path in present if path.name > final.name]
    old_ones = [
        path for path in present[len(later) + policy.keep :] if not policy.stays(step_of(path))
    ]
    for old in [*later, *old_ones]:
        gone = old.with_name(f".tmp-{old.name}")
        old.rename(gone)
        policy.on_stage("removing")
        shutil.rmtree(gone)


def _room_for(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """OSError before anything is written, where the tensors alone would not fit."""
    # of all ranks
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    free = shutil.disk_usage(folder).free
    if free < needed:
        message = (
            f"No space left on device ({needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free)"
        )
        raise OSError(errno.ENOSPC, message, str(folder))
