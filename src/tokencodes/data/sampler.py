"""The paper's sampling as a pure function of (seed, window index). Any range of indices, in any order, on any rank.

Paper, section "Data": within the resident shard a document uniformly, then a valid start uniformly, with replacement; 1,024
microbatches of 8 a rank and shard visit, then the next shard. Left open there, so ours:

  window i  belongs to virtual stream s = i mod S (the paper's ranks: S = 2), as its j = i div S-th window;
  visit     v = j div windows_per_visit; cycle c = v div n over the stream's n shards;
  shard     entry v mod n of permutation(seed, "shards", n, (s, c, 0));
  document  word 0 of Philox key (seed, "windows"), counter (i, 0, 0, 0), scaled to the shard's eligible documents;
  start     word 1 of the same block, scaled to the document's len - T valid starts.

A document is eligible if it has T + 1 tokens. A shard without one is not visited. Ranks, microbatches and accumulation
only cut ranges of i, so they cannot change what is seen; resume needs one integer.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tokencodes import philox
from tokencodes.data.shards import Shard
from tokencodes.errors import InputError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """Where windows lie: three int64[N] arrays; `shard` counts the shards that were given to the sampler."""

    shard: Ints
    document: Ints
    start: Ints


class PaperSampler:
    """Windows of T + 1 tokens inside one document of the resident shard."""

    def __init__(self, shards: list[Shard], context: int, seed: int, streams: int, windows_per_visit: int) -> None:
        self.context = context
        self.seed = seed
        self.streams = streams
        self.windows_per_visit = windows_per_visit
        lengths = [shard.lengths for shard in shards]
        eligible = [np.flatnonzero(length > context) for length in lengths]
        self._visited = np.array([i for i, documents in enumerate(eligible) if len(documents)], dtype=np.int64)
        if not len(self._visited):
            longest = max((int(length.max()) for length in lengths if len(length)), default=0)
            raise InputError(
                f"no document long enough: a window takes {context + 1:,} tokens, the longest document has {longest:,}; "
                "give longer documents or lower the context"
            )
        self._eligible = [eligible[i] for i in self._visited]
        self._starts = [lengths[i][eligible[i]] - context for i in self._visited]
        self._order = lru_cache(maxsize=1024)(self._shard_order)

    def _shard_order(self, stream: int, cycle: int) -> Ints:
        return philox.permutation(self.seed, "shards", len(self._visited), (stream, cycle, 0))

    def draw(self, indices: Ints) -> Windows:
        """The windows of these indices, each 0 <= i < 2^63."""
        counters = np.zeros((len(indices), 4), dtype=np.uint64)
        counters[:, 0] = indices.astype(np.uint64)
        words = philox.philox(philox.key(self.seed, "windows"), counters)
        streams, visits = indices % self.streams, indices // self.streams // self.windows_per_visit
        cycles, places = np.divmod(visits, len(self._visited))
        shard, document, start = (np.empty(len(indices), dtype=np.int64) for _ in range(3))
        for stream, cycle in set(zip(streams.tolist(), cycles.tolist(), strict=True)):
            here = (streams == stream) & (cycles == cycle)
            shard[here] = self._order(stream, cycle)[places[here]]
        for one in np.unique(shard):
            here = shard == one
            chosen = philox.multiply_high(words[here, 0], len(self._eligible[one])).astype(np.int64)
            document[here] = self._eligible[one][chosen]
            start[here] = philox.multiply_high(words[here, 1], self._starts[one][chosen].astype(np.uint64)).astype(np.int64)
        return Windows(self._visited[shard], document, start)
