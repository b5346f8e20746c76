"""The ids of each step, read ahead by a thread while the model works on the ones before.

Step u takes the windows [u·G, (u+1)·G) of the sampler, and rank r of R the r-th of R equal parts of
that range. How a rank cuts its part into micro batches is its own affair. So every number of ranks
and every accumulation sees the same global batches.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokencodes.data.sampler import Sampler
from tokencodes.data.shards import Shard
from tokencodes.data.windows import read_windows
from tokencodes.errors import InputError

Batch = TypeVar("Batch")


def rank_indices(
    step: int, global_batch_size: int, rank: int = 0, ranks: int = 1
) -> NDArray[np.int64]:
    """The window indices of one rank in one step (0, 1, ...), int64[G / R].

    Raises InputError if the ranks do not divide the global batch size.
    """
    if global_batch_size % ranks:
        raise InputError(
            f"{global_batch_size} windows a step do not divide among {ranks} ranks; make it a"
            " multiple"
        )
    part = global_batch_size // ranks
    first = step * global_batch_size + rank * part
    return np.arange(first, first + part, dtype=np.int64)


class Loader(Generic[Batch]):
    """Reads `ahead` steps in advance. `prepare` makes of the ids int64[G / R, T + 1] what the
    trainer wants, also in the thread: a tensor, in pinned memory where there is a GPU.
    """

    def __init__(
        self,
        shards: list[Shard],
        sampler: Sampler,
        global_batch_size: int,
        prepare: Callable[[NDArray[np.int64]], Batch],
        rank: int = 0,
        ranks: int = 1,
        ahead: int = 2,
    ) -> None:
        rank_indices(0, global_batch_size, rank, ranks)
        self._shards, self._sampler, self._size = shards, sampler, global_batch_size
        self._rank, self._ranks, self._ahead, self._prepare = rank, ranks, ahead, prepare
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._coming: dict[int, Future[Batch]] = {}

    def _read(self, step: int) -> Batch:
        indices = rank_indices(step, self._size, self._rank, self._ranks)
        return self._prepare(read_windows(self._shards, self._sampler, indices))

    def __getitem__(self, step: int) -> Batch:
        """The batch of one step. The thread reads the next batches meanwhile.

        An error of reading is raised at the step to which it belongs.
        """
        for coming in range(step, step + 1 + self._ahead):
            if coming not in self._coming:
                self._coming[coming] = self._thread.submit(self._read, coming)
        batch = self._coming.pop(step).result()
        for other in [number for number in self._coming if not step < number <= step + self._ahead]:
            self._coming.pop(other).cancel()
        return batch

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(cancel_futures=True)
