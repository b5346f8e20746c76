"""Assignments: which token gets which word. Each returns word numbers by token id, int64[V], id 0 on word 0.

BPE ids follow merge order, so the bits of a natural id carry frequency and length. `permuted` has the same words without
that leak: what `natural` gains over it is knowledge of the tokenizer, not of the code. Id 0 keeps word 0, so that the zero
code does not move off BOS/EOS.
"""

import numpy as np
from numpy.typing import NDArray

from tokencodes.codes.scatter import round_keys, scatter


def natural(count: int) -> NDArray[np.int64]:
    """Token t has word t."""
    return np.arange(count, dtype=np.int64)


def permuted(count: int, seed: int) -> NDArray[np.int64]:
    """A seeded permutation of the words 1 ... V-1 over the tokens 1 ... V-1, by the formula of `scatter`."""
    images: NDArray[np.int64] = scatter(natural(count), count, round_keys(count, seed))
    return images
