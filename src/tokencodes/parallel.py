"""All that a run on several ranks does otherwise than on one; on one rank, everything here does
nothing.

The rules:

1. `torchrun` starts the ranks and says in the environment who is who; without it there is one, and
   it is not wrapped.
2. Ranks share the windows of a step in equal parts (data parallel), so their number changes sums
   only by rounding.
3. Parameters, gradients and optimizer state are sharded by FSDP2, a block at a time and the rest
   together: over all ranks
   (`full`), over those of a node with a copy on each node (`hybrid`), or not at all (`replicate`:
   one shard, R copies).
4. Gradients are summed, never averaged: the loss is already divided by the tokens of all ranks.
   They are reduced once an
   step, with its last micro batch.
5. What is decided on a number or on a signal is decided by all ranks on the same gathered values,
   so none goes on alone.
6. Files are the first rank's; what it finds, or the error that it meets, it tells the others.
   Folders must be shared by nodes.
7. A rank that is gone closes its connections, which ends the others at their next exchange; one
   that hangs, the timeout.
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
# until a run's first step is done: ranks compile, and read, at their own pace
STARTING = timedelta(minutes=10)
SAVING = timedelta(minutes=30)  # for a rank to write and hash its part of a checkpoint
WAITING = timedelta(days=2)  # for work that only the first rank does, such as preparing text


@dataclass(frozen=True)
class World:
    """Who takes part: this rank, how many there are in all and on this node, and the device that is
    this rank's.
    """

    rank: int = 0
    ranks: int = 1
    ranks_here: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this rank writes the files and speaks."""
        return self.rank == 0

    @cached_property
    def waiting(self) -> dist.ProcessGroup | None:
        """The group in which ranks wait for the first one's work."""
        return dist.new_group(backend="gloo", timeout=WAITING) if self.ranks > 1 else None

    @cached_property
    def saving(self) -> dist.ProcessGroup | None:
        """The group of checkpoints, which may be written by a thread of their own."""
        return dist.new_group(backend="gloo", timeout=SAVING) if self.ranks > 1 else None

    def gather(self, value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
        """Every rank's value, by rank."""
        if self.ranks == 1:
            return [value]
        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, value, group=group)
        return found

    def on_first(
        self, work: Callable[[], Result], group: dist.ProcessGroup | None = None
    ) -> Result:
        """Does the work on the first rank alone; its result everywhere, or its error: there as it
        is, elsewhere `Elsewhere`.
        """
        if self.ranks == 1:
            return work()
        result, error = None, None
        if self.first:
            try:
                result = work()
            except Exception as caught:
                error = caught
        told: list[Any] = [(error is None, result if error is None else _plain(error))]
        dist.broadcast_object_list(told, src=0, group=group or self.waiting)
        if error is not None:
            raise error
        done, value = told[0]
        if not done:
            raise value
        found: Result = value  # the first rank's own, by way of pickle
        return found

    def own_first(self, work: Callable[[], Result]) -> Result | None:
        """`on_first` for what stays there, such as an open file: its result on the first rank, None
        elsewhere.
        """
        mine: list[Result] = []
        self.on_first(lambda: mine.append(work()))
        return mine[0] if mine else None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Turns the error of an exchange that another rank did not come to into one that says
        so."""
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
        """Whether it is set on any rank."""
        return any(self.gather(flag))

    def set_timeout(self, model: nn.Module, time: timedelta = STARTING) -> None:
        """From now on an exchange of a step, between ranks or of shards of this model, may take
        this long.
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
        """This rank's equal part of rows, filled up with rows of `fill` so that every rank makes as
        many passes.
        """
        missing = -len(rows) % self.ranks
        padded = (
            torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), fill)]) if missing else rows
        )
        return padded.chunk(self.ranks)[self.rank] if self.ranks > 1 else padded


ALONE = World()


def _lost(error: BaseException) -> str | None:
    """What torch says of an exchange that failed, in short; None if the error is another."""
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
    """What the other ranks are told: an OSError as it is, so that all handle it alike, the rest as
    said elsewhere.
    """
    if isinstance(error, OSError):
        try:
            pickle.dumps(error)
            return error
        except Exception:
            return OSError(error.errno, error.strerror, str(error.filename))
    return Elsewhere(str(error))


def join(device: str = "auto") -> World:
    """This process's place, by torchrun's environment. InputError: a device that is not there."""
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
    _ = world.waiting, world.saving  # groups are made by all ranks together, so here
    return world


def mesh_of(world: World, sharding: str) -> DeviceMesh:
    """Copies × shards, for `full`, `hybrid` or `replicate`; of this process alone where there is no
    other.
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
    `bf16`: parameters are gathered, and computed with, in BF16; kept, reduced and updated in
    float32.
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
    """Whether the next backward pass reduces gradients, or only adds to them."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sum_over_shards(values: Tensor, like: Tensor) -> Tensor:
    """The sum of every shard's values, where `like` is sharded;
    copies of a shard are counted once."""
    if isinstance(like, DTensor):
        dist.all_reduce(values, group=like.device_mesh.get_group(like.device_mesh.ndim - 1))
    return values
