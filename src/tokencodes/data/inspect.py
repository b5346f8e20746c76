"""What is in a dataset, and how the paper's sampling would use it.

Exposure: how often a token is a target, expected over the sampler's windows. In a document of n
tokens a window has m = n - T starts, and the token at position p = 1 ... n-1 is a target of min(p,
T, m, n - p) of them: it rises over the first T tokens, stays, and falls over the last T. A document
too short for a window is never seen, and each shard is visited as often as any other. `relative` is
in units of what every target would have if all were alike.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokencodes.data.dataset import Dataset
from tokencodes.data.entries import as_json
from tokencodes.data.shards import Shard

Ints = NDArray[np.int64]
# of the bins of relative exposure; the last bin is open
EDGES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
SOURCES = 20  # that are listed by name


@dataclass(frozen=True)
class Side:
    """One side of the split."""

    shards: int
    documents: int
    tokens: int
    eligible_documents: int  # those with T + 1 tokens
    eligible_tokens: int


@dataclass(frozen=True)
class Bin:
    """A bin of a histogram: of document lengths (tokens), or of relative exposure. `low` is
    excluded, `high` included.
    """

    low: float
    high: float | None
    documents: int | None
    tokens: int
    share: float  # of the tokens; for exposure: of all that is seen


@dataclass(frozen=True)
class Exposure:
    """Relative exposure of the training side's targets under the paper's sampling."""

    unseen: float  # share of targets in documents too short for a window
    interior: float  # mean over the plateau of each eligible document
    edges: float  # mean over the two slopes
    histogram: tuple[Bin, ...]


@dataclass(frozen=True)
class Inspection:
    """Everything that `inspect` tells."""

    path: str
    fingerprint: str
    vocab_size: int
    context: int
    sides: dict[str, Side]
    read: int
    dropped: dict[str, int]
    noted: dict[str, int]
    text_bytes: int
    lost_bytes: int | None  # of the text that no id stands for; None where it cannot be known
    # documents that changed sides, because a side would have been empty
    moved: dict[str, Any] | None
    sources: dict[str, int]
    lengths: tuple[Bin, ...]
    exposure: Exposure | None
    checked: str

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def inspect(dataset: Dataset, context: int, full: bool) -> Inspection:
    """Reads the tables of every shard, and with `full` every byte. InputError names what is
    damaged.
    """
    if full:
        _ = dataset.tokenizer
        for shard in dataset.own_shards:
            shard.verify_all()
    counts = dataset.counts
    return Inspection(
        path=str(dataset.path),
        fingerprint=dataset.fingerprint,
        vocab_size=dataset.vocab_size,
        context=context,
        sides={side: _side(dataset.shards(side), context) for side in ("train", "validation")},
        read=counts.documents,
        dropped=counts.dropped,
        noted=counts.noted,
        text_bytes=counts.text_bytes,
        lost_bytes=counts.lost_bytes,
        moved=as_json(dataset.manifest.moved) if dataset.manifest.moved else None,
        sources=_sources(dataset.own_shards),
        lengths=_lengths(dataset.own_shards),
        exposure=_exposure(dataset.shards("train"), context),
        checked=(
            "every byte"
            if full
            else "manifest, offsets and document tables; tokens are checked as they are read"
        ),
    )


def _side(shards: list[Shard], context: int) -> Side:
    eligible = [shard.lengths[shard.lengths > context] for shard in shards]
    return Side(
        shards=len(shards),
        documents=sum(shard.documents for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        eligible_documents=sum(len(lengths) for lengths in eligible),
        eligible_tokens=sum(int(lengths.sum()) for lengths in eligible),
    )


def _sources(shards: list[Shard]) -> dict[str, int]:
    """Tokens by source, the largest first, what is beyond the first few added up."""
    totals = Counter[str]()
    for shard in shards:
        encoded = pc.dictionary_encode(shard.names()["source"].combine_chunks())
        sums = np.bincount(
            encoded.indices.to_numpy(), weights=shard.lengths, minlength=len(encoded.dictionary)
        )
        for name, tokens in zip(encoded.dictionary.to_pylist(), sums.tolist(), strict=True):
            totals[name] += int(tokens)
    listed = dict(totals.most_common(SOURCES))
    rest = totals.total() - sum(listed.values())
    return {**listed, f"({len(totals) - SOURCES} others)": rest} if rest else listed


def _lengths(shards: list[Shard]) -> tuple[Bin, ...]:
    """Documents and tokens by powers of two."""
    longest = max((shard.longest for shard in shards), default=1)
    powers = max(1, (longest - 1).bit_length())
    documents, tokens = np.zeros(powers + 1, dtype=np.int64), np.zeros(powers + 1, dtype=np.int64)
    for shard in shards:
        power = np.ceil(np.log2(np.maximum(shard.lengths, 1))).astype(np.int64)
        documents += np.bincount(power, minlength=powers + 1)
        tokens += np.bincount(power, weights=shard.lengths, minlength=powers + 1).astype(np.int64)
    total = max(1, int(tokens.sum()))
    return tuple(
        Bin(
            2 ** (power - 1) if power else 0,
            2**power,
            int(documents[power]),
            int(tokens[power]),
            int(tokens[power]) / total,
        )
        for power in range(powers + 1)
    )


def _exposure(shards: list[Shard], context: int) -> Exposure | None:
    """None if no document is long enough. Per window there are T targets; `alike` is each target's
    share of them.
    """
    targets = sum(shard.tokens - shard.documents for shard in shards)
    visited = [shard for shard in shards if shard.longest > context]
    if not visited:
        return None
    alike = context / targets
    counted, seen = np.zeros(len(EDGES) + 1), np.zeros(len(EDGES) + 1)
    interior, edges, eligible = np.zeros(2), np.zeros(2), 0
    for shard in visited:
        length = shard.lengths[shard.lengths > context]
        starts = length - context
        top = np.minimum(context, starts)
        # of a target that one start of its document covers
        each = 1.0 / (starts * len(length) * len(visited) * alike)
        eligible += int((length - 1).sum())
        plateau = length - 1 - 2 * (top - 1)
        interior += [plateau.sum(), (plateau * top * each).sum()]
        edges += [2 * (top - 1).sum(), ((top - 1) * top * each).sum()]
        below, sums = np.zeros(len(length)), np.zeros(len(length))
        for place, edge in enumerate((*EDGES, np.inf)):
            # starts that give at most this
            most = np.minimum(np.floor(np.minimum(edge / each, 2.0**62)), top).astype(np.int64)
            whole = most >= top
            now = np.where(whole, length - 1, 2 * most)
            sum_now = np.where(whole, plateau * top + (top - 1) * top, most * (most + 1)) * each
            counted[place] += (now - below).sum()
            seen[place] += (sum_now - sums).sum()
            below, sums = now, sum_now
    bounds = [0.0, *EDGES, None]
    bins = [
        Bin(
            bounds[place] or 0.0,
            bounds[place + 1],
            None,
            int(counted[place]),
            float(seen[place] / max(seen.sum(), 1e-300)),
        )
        for place in range(len(EDGES) + 1)
    ]
    mean = [float(total / count) if count else 0.0 for count, total in (interior, edges)]
    return Exposure(1.0 - eligible / targets, mean[0], mean[1], tuple(bins))
