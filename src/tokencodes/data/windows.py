"""Windows as ids: those that a sampler names, and one frozen set for held-out loss."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokencodes.data.dataset import Corpus
from tokencodes.data.sampler import Sampler
from tokencodes.data.shards import Shard
from tokencodes.errors import InputError

Ids = NDArray[np.int64]
IGNORE = -100  # as in torch's and transformers' losses


def read_windows(shards: list[Shard], sampler: Sampler, indices: Ids) -> Ids:
    """The T + 1 ids of each of these windows: int64[N, T + 1]; inputs are the first T, targets the
    last T.

    A window that its document ends early is filled with IGNORE, which as a target counts for
    nothing.
    """
    windows = sampler.draw(indices)
    out = np.full((len(indices), sampler.context + 1), IGNORE, dtype=np.int64)
    places = zip(
        *(
            array.tolist()
            for array in (windows.shard, windows.document, windows.start, windows.length)
        ),
        strict=True,
    )
    for row, (shard, document, start, length) in enumerate(places):
        out[row, :length] = shards[shard].span(document, start, length)
    return out


@dataclass(frozen=True)
class HeldOut:
    """The frozen windows. ids_NT1: int64[N, T + 1]; text_bytes: bytes of text that the N·T tokens
    stand for.
    """

    ids_NT1: Ids
    text_bytes: int

    @property
    def tokens(self) -> int:
        """The number of predicted tokens: N·T."""
        return int(self.ids_NT1[:, 1:].size)

    @property
    def sha256(self) -> str:
        """Names the set in results, so that two results can be known to be about the same
        windows."""
        return hashlib.sha256(self.ids_NT1.astype("<i8").tobytes()).hexdigest()

    def bits_per_byte(self, loss: float) -> float:
        """Nats per token -> bits a byte of text."""
        return loss * self.tokens / (self.text_bytes * float(np.log(2.0)))


def held_out_windows(corpus: Corpus, context: int, count: int) -> HeldOut:
    """At most `count` windows of the validation side: no predicted token is in two of them, and no
    seed is involved.

    Every document is cut at 0, T, 2T, ...; of all the cuts, `count` evenly spaced ones are taken,
    so every document weighs by its length.
    """
    shards = corpus.shards("validation")
    cuts = [
        (shard, document, start)
        for shard in shards
        for document, length in enumerate(shard.lengths)
        for start in range(0, int(length) - context, context)
    ]
    if not cuts:
        raise InputError(
            f"{corpus.path}: no held-out document has the {context + 1:,} tokens of a window; "
            "raise the validation share, give longer documents or lower the context"
        )
    chosen = [cuts[i * len(cuts) // min(count, len(cuts))] for i in range(min(count, len(cuts)))]
    ids = np.stack(
        [shard.span(document, start, context + 1) for shard, document, start in chosen]
    ).astype(np.int64)
    return HeldOut(ids, int(corpus.tokenizer.bytes_per_token[ids[:, 1:]].sum()))


def window_digests(ids_NT1: np.ndarray) -> list[bytes]:
    """SHA-256 of each window, so that the chain over them does not depend on who read which."""
    return [hashlib.sha256(window.astype("<i8").tobytes()).digest() for window in ids_NT1]


def chained(before: str, digests: list[bytes]) -> str:
    """The hash of all windows so far, from the hash before and the digests of these, in order."""
    return hashlib.sha256(before.encode() + b"".join(digests)).hexdigest()
