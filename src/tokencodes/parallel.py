"""Runs on several ranks. On one rank, everything here does nothing.

The rules:

1. `torchrun` starts the ranks and sets their numbers in the environment. Without it there is one
   rank, and its model is not wrapped.
2. Ranks share the windows of a step in equal parts (data parallel), so the number of ranks changes
   sums only by rounding.
3. FSDP2 shards parameters, gradients and optimizer state, one shard group for each block and one
   for the rest: over all ranks (`full`), over the ranks of a node with a copy on each node
   (`hybrid`), or not at all (`replicate`: one shard, R copies).
4. Gradients are summed, never averaged: the loss is already divided by the tokens of all ranks.
   They are reduced once in each step, with its last micro batch.
5. All ranks make each decision on a number or a signal from the same gathered values, so no rank
   continues alone.
6. The first rank writes the files. It sends its results, or its error, to the other ranks. All
   nodes must share the folders.
7. A rank that exits closes its connections, which ends the others at their next exchange. The
   timeout ends them if a rank hangs.
"""

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from tokencodes.errors import CheckFailed, Elsewhere, InputError

Result = TypeVar("Result")
# for a run's first step: ranks compile and read at different speeds
STARTING = timedelta(minutes=10)
SAVING = timedelta(minutes=30)  # for a rank to write and hash its part of a checkpoint
WAITING = timedelta(days=2)  # for work that only the first rank does, such as preparing text


@dataclass(frozen=True)
class World:
    """The processes of a run: the number of this rank, the number of ranks in all and on this node,
    and the device of this rank.
    """

    rank: int = 0
    ranks: int = 1
    ranks_here: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this rank writes the files and prints."""
        return self.rank == 0

    @cached_property
    def waiting(self) -> dist.ProcessGroup | None:
        """The group in which ranks wait for the work of the first rank."""
        return dist.new_group(backend="gloo", timeout=WAITING) if self.ranks > 1 else None

    @cached_property
    def saving(self) -> dist.ProcessGroup | None:
        """The group of checkpoints. A separate thread may write them."""
        return dist.new_group(backend="gloo", timeout=SAVING) if self.ranks > 1 else None

    def gather(self, value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
        """Returns the value of every rank, in the order of ranks."""
        if self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value, group=group)
        return values

    def on_first(
        self, work: Callable[[], Result], group: dist.ProcessGroup | None = None
    ) -> Result:
        """Runs the work on the first rank only. Returns its result on all ranks. Its error is
        raised on all ranks: unchanged on the first one, `Elsewhere` (or an OSError) on the
        others.
        """
        if self.ranks == 1:
            return work()
        result, error = None, None
        if self.first:
            try:
                result = work()
            except Exception as caught:
                error = caught
        outcome: list[Any] = [(error is None, result if error is None else _plain(error))]
        dist.broadcast_object_list(outcome, src=0, group=group or self.waiting)
        if error is not None:
            raise error
        done, value = outcome[0]
        if not done:
            raise value
        shared: Result = value  # the value of the first rank, after pickling
        return shared

    def own_first(self, work: Callable[[], Result]) -> Result | None:
        """`on_first` for a result that stays on the first rank, such as an open file. Returns the
        result there, and None on the others.
        """
        results: list[Result] = []
        self.on_first(lambda: results.append(work()))
        return results[0] if results else None

    @contextmanager
    def together(self) -> Iterator[None]:
        """If another rank missed an exchange, raises an error that states this."""
        try:
            yield
        except RuntimeError as error:
            if self.ranks == 1 or isinstance(error, CheckFailed) or not _lost(error):
                raise
            raise CheckFailed(
                f"rank {self.rank} of {self.ranks}: another rank is gone or hangs ({_lost(error)});"
                " what was saved is intact: repeat the command to go on from there"
            ) from error

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank."""
        return any(self.gather(flag))

    def set_timeout(self, model: nn.Module, time: timedelta = STARTING) -> None:
        """Sets the time limit of later exchanges of a step, between ranks or between the shards of
        this model.
        """
        if self.ranks == 1:
            return
        meshes = {
            parameter.device_mesh
            for parameter in model.parameters()
            if isinstance(parameter, DTensor)
        }
        for group in [None, *(group for mesh in meshes for group in mesh.get_all_groups())]:
            dist.distributed_c10d._set_pg_timeout(time, group)

    def share(self, rows: Tensor, fill: int) -> Tensor:
        """Returns an equal part of the rows for this rank. Rows of `fill` are added so that every
        rank makes the same number of passes.
        """
        missing = -len(rows) % self.ranks
        padded = (
            torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), fill)]) if missing else rows
        )
        return padded.chunk(self.ranks)[self.rank] if self.ranks > 1 else padded


ALONE = World()


def _lost(error: BaseException) -> str | None:
    """Returns a short form of torch's message about a failed exchange, and None for any other
    error.
    """
    text = " ".join(str(error).split())
    signs = (
        "Connection closed by peer",
        "Connection reset",
        "Broken pipe",
        "Timed out",
        "timed out",
        "NCCL",
        "Gloo",
        "gloo",
    )
    sign = next((sign for sign in signs if sign in text), None)
    return text[max(0, text.index(sign) - 40) :][:120] if sign else None


def _plain(error: Exception) -> Exception:
    """Returns the error that the other ranks receive. An OSError stays as it is, so that all ranks
    handle it in the same way. Any other error becomes `Elsewhere`.
    """
    if isinstance(error, OSError):
        try:
            pickle.dumps(error)
            return error
        except Exception:
            return OSError(error.errno, error.strerror, str(error.filename))
    return Elsewhere(str(error))


def join(device: str = "auto") -> World:
    """Returns the place of this process in the environment of torchrun. Raises InputError if the
    device does not exist.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "engine.device 'cuda': PyTorch sees no GPU here; set engine.device to cpu or auto"
        )
    here = (
        torch.device(device, int(os.environ.get("LOCAL_RANK", 0)))
        if device == "cuda"
        else torch.device("cpu")
    )
    if device == "cuda":
        if here.index >= torch.cuda.device_count():
            raise InputError(
                f"{torch.cuda.device_count()} GPUs here for local rank {here.index}; start fewer"
                " ranks a node"
            )
        torch.cuda.set_device(here)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks == 1:
        return World(device=here)
    if not dist.is_initialized():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=STARTING
        )
    world = World(dist.get_rank(), ranks, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)), here)
    _ = world.waiting, world.saving  # all ranks must create the groups together
    return world


def mesh_of(world: World, sharding: str) -> DeviceMesh:
    """Returns the mesh copies × shards for `full`, `hybrid` or `replicate`, and a mesh of this
    process alone if there is no other.
    """
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    shards = {"full": world.ranks, "hybrid": world.ranks_here, "replicate": 1}[sharding]
    if world.ranks % shards:
        raise InputError(
            f"engine.sharding hybrid: {world.ranks} ranks in nodes of {shards} are no whole number"
            " of nodes"
        )
    if shards == world.ranks:
        return init_device_mesh(world.device.type, (shards,), mesh_dim_names=("shard",))
    shape = (world.ranks // shards, shards)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("copy", "shard"))


def shard(
    model: nn.Module, blocks: nn.ModuleList, methods: tuple[str, ...], mesh: DeviceMesh, bf16: bool
) -> None:
    """Shards a model in place: each block, and the rest. `methods` are called instead of `forward`.
    `bf16`: parameters are gathered and used in BF16, and stored, reduced and updated in float32.
    """
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    for name in methods:
        register_fsdp_forward_method(model, name)


def reduce_gradients(model: nn.Module, now: bool) -> None:
    """Sets whether the next backward pass reduces gradients, or only accumulates them."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)


def local(tensor: Tensor) -> Tensor:
    """Returns the part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sum_over_shards(values: Tensor, like: Tensor) -> Tensor:
    """Returns the sum of the values of all shards if `like` is sharded. Copies of a shard are
    counted once.
    """
    if isinstance(like, DTensor):
        dist.all_reduce(values, group=like.device_mesh.get_group(like.device_mesh.ndim - 1))
    return values
