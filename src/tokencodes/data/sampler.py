"""Which windows a run sees, as pure functions of (seed, window index): any range of indices, in any
order, on any rank.

Three samplers, one method. All draw from Philox by a layout that is fixed for good, all keep to one
resident shard for a while, and none holds more than the tables of the shards in use. Ranks, micro
batches and accumulation only cut ranges of indices, so they cannot change what is seen; resume
needs one integer.

`paper` (section "Data"): within the resident shard a document uniformly, then a valid start
uniformly, with replacement; 1,024 micro batches of 8 a rank and shard visit, then the next shard.
Left open there, so ours:

  window i  belongs to virtual stream s = i mod S (the paper's ranks: S = 2), as its
            window number j = i div S;
  visit     v = j div windows_per_visit; cycle c = v div n over the stream's n shards;
  shard     entry v mod n of permutation(seed, "shards", n, (s, c, part));
  document  word 0 of Philox key (seed, "windows"), counter (i, part, 0, 0), scaled to the
            shard's eligible documents;
  start     word 1 of the same block, scaled to the document's len - T valid starts.

A document is eligible if it has T + 1 tokens. A shard without one is not visited. `part` numbers
the datasets of a mixture.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tokencodes import philox, scatter
from tokencodes.data.shards import Shard
from tokencodes.errors import InputError

Ints = NDArray[np.int64]
RESIDENT = 16  # shards whose tables are kept: more than streams that run at a time


@dataclass(frozen=True)
class Windows:
    """Where windows lie: int64[N] each; `shard` counts the sampler's shards, `length` is in tokens,
    at most T + 1.
    """

    shard: Ints
    document: Ints
    start: Ints
    length: Ints


class Sampler(ABC):
    """Windows of at most `context` + 1 tokens, each inside one document."""

    def __init__(self, context: int) -> None:
        self.context = context

    @property
    def tokens_per_window(self) -> float:
        """How many tokens a window has, on average."""
        return float(self.context)

    @abstractmethod
    def draw(self, indices: Ints) -> Windows:
        """The windows of these indices, each 0 <= i < 2^63."""


class _OverShards(Sampler):
    """What the samplers of one dataset share. `part` numbers the datasets of a mixture, and ends
    every counter.
    """

    def __init__(self, shards: Sequence[Shard], context: int, seed: int, part: int) -> None:
        super().__init__(context)
        self._shards, self._seed, self._part = shards, seed, part

    def _words(self, domain: str, *counter: Ints) -> NDArray[np.uint64]:
        """Philox words uint64[N, 4] of key (seed, domain) and the counters (*counter, part,
        0 ...)."""
        counters = np.zeros((len(counter[0]), 4), dtype=np.uint64)
        for place, values in enumerate(counter):
            counters[:, place] = values
        counters[:, len(counter)] = self._part
        return philox.philox(philox.key(self._seed, domain), counters)

    def _nothing(self, least: int) -> InputError:
        longest = max((shard.longest for shard in self._shards), default=0)
        return InputError(
            f"no document long enough: a window takes {least:,} tokens, the longest document has"
            f" {longest:,}; give longer documents or lower the context"
        )


class _InVisits(_OverShards):
    """Those whose streams stay in a resident shard for a visit. Every window has T + 1 tokens."""

    def __init__(
        self,
        shards: Sequence[Shard],
        context: int,
        seed: int,
        streams: int,
        windows_per_visit: int,
        part: int,
    ) -> None:
        super().__init__(shards, context, seed, part)
        self._streams, self._windows_per_visit = streams, windows_per_visit

    def _visits(self, indices: Ints) -> tuple[Ints, Ints]:
        """Stream and visit of each window."""
        return indices % self._streams, indices // self._streams // self._windows_per_visit

    def _windows(self, shard: Ints, document: Ints, start: Ints) -> Windows:
        return Windows(
            shard, document, start, np.full(len(shard), self.context + 1, dtype=np.int64)
        )


class PaperSampler(_InVisits):
    """A document uniformly, then a start uniformly, in the resident shard."""

    def __init__(
        self,
        shards: Sequence[Shard],
        context: int,
        seed: int,
        streams: int,
        windows_per_visit: int,
        part: int = 0,
    ) -> None:
        super().__init__(shards, context, seed, streams, windows_per_visit, part)
        self._visited = np.array(
            [i for i, shard in enumerate(shards) if shard.longest > context], dtype=np.int64
        )
        if not len(self._visited):
            raise self._nothing(context + 1)
        self._order = lru_cache(maxsize=1024)(self._shard_order)
        self._eligible = lru_cache(maxsize=RESIDENT)(self._find_eligible)

    def _shard_order(self, stream: int, cycle: int) -> Ints:
        return self._visited[
            philox.permutation(
                self._seed, "shards", len(self._visited), (stream, cycle, self._part)
            )
        ]

    def _find_eligible(self, shard: int) -> NDArray[np.int32]:
        return np.flatnonzero(self._shards[shard].lengths > self.context).astype(np.int32)

    def draw(self, indices: Ints) -> Windows:
        """See `Sampler`."""
        words = self._words("windows", indices)
        streams, visits = self._visits(indices)
        cycles, places = np.divmod(visits, len(self._visited))
        shard, document, start = (np.empty(len(indices), dtype=np.int64) for _ in range(3))
        for stream, cycle in set(zip(streams.tolist(), cycles.tolist(), strict=True)):
            here = (streams == stream) & (cycles == cycle)
            shard[here] = self._order(stream, cycle)[places[here]]
        for shard_number, here in _groups(shard):
            eligible, offsets = self._eligible(shard_number), self._shards[shard_number].offsets
            chosen = eligible[
                philox.multiply_high(words[here, 0], len(eligible)).astype(np.int64)
            ].astype(np.int64)
            starts = offsets[chosen + 1] - offsets[chosen] - self.context
            document[here] = chosen
            start[here] = philox.multiply_high(words[here, 1], starts.astype(np.uint64)).astype(
                np.int64
            )
        return self._windows(shard, document, start)


class TokenUniformSampler(_InVisits):
    """Every valid start of every document alike: long documents weigh by their starts, not one
    each.

    Streams and visits are as in `paper`; the shard of visit v of stream s is drawn in proportion to
    its valid starts, by word 0 of key (seed, "tvisits"), counter (v, s, part, 0); the start by word
    0 of key (seed, "tstarts"), counter (i, part, 0, 0).
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        context: int,
        seed: int,
        streams: int,
        windows_per_visit: int,
        part: int = 0,
    ) -> None:
        super().__init__(shards, context, seed, streams, windows_per_visit, part)
        self._ends = np.cumsum(
            [int(self._starts_of(shard).sum()) for shard in shards], dtype=np.int64
        )
        if not len(shards) or not self._ends[-1]:
            raise self._nothing(context + 1)
        self._table = lru_cache(maxsize=RESIDENT)(
            lambda shard: np.cumsum(self._starts_of(shards[shard]))
        )

    def _starts_of(self, shard: Shard) -> Ints:
        return (
            np.maximum(shard.lengths - self.context, 0)
            if shard.longest > self.context
            else np.zeros(0, dtype=np.int64)
        )

    def draw(self, indices: Ints) -> Windows:
        """See `Sampler`."""
        streams, visits = self._visits(indices)
        chosen = philox.multiply_high(
            self._words("tvisits", visits, streams)[:, 0], int(self._ends[-1])
        ).astype(np.int64)
        shard = np.searchsorted(self._ends, chosen, side="right")
        words = self._words("tstarts", indices)[:, 0]
        document, start = np.empty_like(shard), np.empty_like(shard)
        for shard_number, here in _groups(shard):
            ends = self._table(shard_number)
            document[here], start[here] = _position(
                ends, philox.multiply_high(words[here], int(ends[-1])).astype(np.int64)
            )
        return self._windows(shard, document, start)


class PackedSampler(_OverShards):
    """Every document cut at 0, T, 2T, ...; each window once an epoch, the last of a document short:
    every token that has one before it in its document is predicted exactly once an epoch.

    Epoch e = i div (windows of all shards). Its shards come in the order of permutation(seed,
    "pshards", n, (e, part, 0)), the windows of a shard in the order of a permutation by formula
    (`scatter`) with word 0 of key (seed, "packed"), counter (e, shard, part, 0) as its seed.
    """

    def __init__(self, shards: Sequence[Shard], context: int, seed: int, part: int = 0) -> None:
        super().__init__(shards, context, seed, part)
        self._sizes = np.array(
            [int(self._windows_of(shard).sum()) for shard in shards], dtype=np.int64
        )
        if not self._sizes.sum():
            raise self._nothing(2)
        self._table = lru_cache(maxsize=RESIDENT)(
            lambda shard: np.cumsum(self._windows_of(shards[shard]))
        )
        self._order = lru_cache(maxsize=64)(self._epoch_order)
        self._keys = lru_cache(maxsize=1024)(self._round_keys)

    @property
    def windows_per_epoch(self) -> int:
        """How many windows there are."""
        return int(self._sizes.sum())

    @property
    def tokens_per_window(self) -> float:
        """Fewer than T, because the last window of a document is short."""
        return (
            sum(int(shard.lengths.sum()) - len(shard.lengths) for shard in self._shards)
            / self.windows_per_epoch
        )

    def _windows_of(self, shard: Shard) -> Ints:
        return -(-(shard.lengths - 1) // self.context)

    def _epoch_order(self, epoch: int) -> tuple[Ints, Ints]:
        order = philox.permutation(self._seed, "pshards", len(self._sizes), (epoch, self._part, 0))
        return order, np.cumsum(self._sizes[order])

    def _round_keys(self, epoch: int, shard: int) -> list[tuple[int, int]]:
        word = self._words("packed", np.array([epoch]), np.array([shard]))[0, 0]
        return scatter.round_keys(int(self._sizes[shard]) + 1, int(word))

    def draw(self, indices: Ints) -> Windows:
        """See `Sampler`."""
        epochs, rest = np.divmod(indices, self.windows_per_epoch)
        shard, within = np.empty_like(rest), np.empty_like(rest)
        for epoch, here in _groups(epochs):
            order, ends = self._order(epoch)
            place = np.searchsorted(ends, rest[here], side="right")
            shard[here] = order[place]
            within[here] = rest[here] - ends[place] + self._sizes[order[place]]
        document, start, length = np.empty_like(rest), np.empty_like(rest), np.empty_like(rest)
        for shard_number, in_shard in _groups(shard):
            ends, offsets = self._table(shard_number), self._shards[shard_number].offsets
            for epoch, in_epoch in _groups(epochs[in_shard]):
                here = in_shard[in_epoch]
                size = int(self._sizes[shard_number])
                window = (
                    scatter.scatter(within[here] + 1, size + 1, self._keys(epoch, shard_number)) - 1
                )
                document[here], number = _position(ends, window)
                start[here] = number * self.context
                left = offsets[document[here] + 1] - offsets[document[here]] - start[here]
                length[here] = np.minimum(left, self.context + 1)
        return Windows(shard, document, start, length)


def _groups(values: Ints) -> list[tuple[int, Ints]]:
    """Each value with the places where it stands."""
    return [(int(value), np.flatnonzero(values == value)) for value in np.unique(values)]


def _position(ends: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Of things counted through all documents: the document, and the number in it. `ends`: running
    totals.
    """
    document = np.searchsorted(ends, number, side="right")
    return document, number - np.where(document > 0, ends[document - 1], 0)
