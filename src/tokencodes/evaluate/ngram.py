"""N-gram baselines: what counting alone reaches on the same held-out tokens, fitted to the training
text.

unigram  add-one: p(t) = (n(t) + 1) / (N + V).
bigram   Witten-Bell, interpolated with the unigram (I. Witten & T. Bell, 1991): p(t | s) =
         (n(s t) + u(s) p(t)) / (n(s) + u(s)), u(s) the number of distinct tokens seen after s. It
         has no free parameter.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokencodes.data.dataset import Corpus
from tokencodes.data.distribution import token_counts


@dataclass(frozen=True)
class NgramLosses:
    """Held-out losses, nats per token."""

    unigram: float
    bigram: float


def fit_and_score(dataset: Corpus, ids_NT1: NDArray[np.int64]) -> NgramLosses:
    """Counts all training documents (end-of-text included), scores the N·T tokens of held-out
    windows int64[N, T + 1].
    """
    size = dataset.vocab_size
    counts_V = token_counts(dataset)
    pairs: list[NDArray[np.int64]] = []
    for shard in dataset.shards("train"):
        for document in shard.ids():
            ids = document.astype(np.int64)
            pairs.append(ids[:-1] * size + ids[1:])
    pair_keys, pair_counts = np.unique(np.concatenate(pairs), return_counts=True)
    first = pair_keys // size
    followed_V = np.bincount(first, weights=pair_counts, minlength=size)
    distinct_V = np.bincount(first, minlength=size)

    unigram_V = (counts_V + 1) / (counts_V.sum() + size)
    before, targets = ids_NT1[:, :-1].ravel(), ids_NT1[:, 1:].ravel()
    keys = before * size + targets
    places = np.minimum(np.searchsorted(pair_keys, keys), len(pair_keys) - 1)
    seen = np.where(pair_keys[places] == keys, pair_counts[places], 0)
    total = followed_V[before] + distinct_V[before]
    # A token that nothing ever followed falls back to the unigram.
    bigram = np.where(
        total > 0,
        (seen + distinct_V[before] * unigram_V[targets]) / np.maximum(total, 1),
        unigram_V[targets],
    )
    return NgramLosses(float(-np.log(unigram_V[targets]).mean()), float(-np.log(bigram).mean()))
