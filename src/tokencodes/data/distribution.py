"""What training text says about each token, for assignments that are informed: counts, and vectors
of its neighbours.

Only the training side is read, so nothing held out reaches a code. Counting is exact; the vectors
depend on floating point.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from tokencodes import philox
from tokencodes.data.dataset import Corpus

CONTEXTS = 512  # the most frequent tokens, counted as left and as right neighbours
DIMENSIONS = 32
SMOOTHING = 0.75  # of context counts, as in Levy, Goldberg and Dagan (2015)


def token_counts(dataset: Corpus) -> NDArray[np.int64]:
    """How often each token stands in the training documents, int64[V]."""
    counts_V = np.zeros(dataset.vocab_size, dtype=np.int64)
    for shard in dataset.shards("train"):
        for document in shard.ids():
            counts_V += np.bincount(document, minlength=dataset.vocab_size)
    return counts_V


def neighbour_vectors(
    dataset: Corpus, counts_V: NDArray[np.int64], seed: int
) -> NDArray[np.float64]:
    """Distributional vectors float64[V, R]: positive pointwise mutual information with the frequent
    neighbours on each side, brought to R dimensions by a randomized singular value decomposition
    (N. Halko et al., 2011) from a seeded start.

    Rows are scaled to unit length; a token without neighbours has the zero vector.
    """
    size = dataset.vocab_size
    contexts = np.argsort(-counts_V, kind="stable")[: min(CONTEXTS, size)]
    column_of = np.full(size, -1, dtype=np.int64)
    column_of[contexts] = np.arange(len(contexts))
    cells_VC = np.zeros((size, 2 * len(contexts)))
    for shard in dataset.shards("train"):
        for document in shard.ids():
            ids = document.astype(np.int64)
            for token, neighbour, side in ((ids[1:], ids[:-1], 0), (ids[:-1], ids[1:], 1)):
                column = column_of[neighbour]
                seen = column >= 0
                np.add.at(cells_VC, (token[seen], column[seen] + side * len(contexts)), 1.0)
    context_C = cells_VC.sum(0) ** SMOOTHING
    expected_VC = cells_VC.sum(1, keepdims=True) * (context_C / max(context_C.sum(), 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        pmi_VC = np.where(cells_VC > 0, np.maximum(np.log(cells_VC / expected_VC), 0.0), 0.0)
    rank = min(DIMENSIONS, *pmi_VC.shape)
    start = (
        philox.stream(seed, "vectors", pmi_VC.shape[1] * rank).reshape(-1, rank).astype(np.float64)
        / 2.0**63
        - 1.0
    )
    basis = np.linalg.qr(pmi_VC @ start)[0]
    for _ in range(2):
        basis = np.linalg.qr(pmi_VC @ (pmi_VC.T @ basis))[0]
    left, singular, _ = np.linalg.svd(basis.T @ pmi_VC, full_matrices=False)
    vectors_VR = basis @ (left * np.sqrt(singular))
    norms_V = np.linalg.norm(vectors_VR, axis=1, keepdims=True)
    unit: NDArray[np.float64] = vectors_VR / np.where(norms_V > 0, norms_V, 1.0)
    return unit


def counts_hash(counts_V: NDArray[np.int64]) -> str:
    """Names the counts in a record: the beginning of the SHA-256 of the int64 bytes."""
    return hashlib.sha256(counts_V.astype("<i8").tobytes()).hexdigest()[:16]
