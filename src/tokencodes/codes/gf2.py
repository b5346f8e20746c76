"""Linear algebra over GF(2): matrices of 0 and 1 with addition modulo 2.

An invertible A recodes binary words without losing identity (A·c = A·c' only if c = c'), but moves
Hamming distances, norms and therefore optimisation. Paper: section "Interfaces", GF2.
"""

import numpy as np
from numpy.typing import NDArray

from tokencodes.errors import InputError
from tokencodes.philox import key, philox

Bits = NDArray[np.uint8]

MAX_DRAWS = 10_000


def multiply(left: Bits, right: Bits) -> Bits:
    """Matrix product modulo 2, for inner dimensions below 2^31."""
    return (left.astype(np.int32) @ right.astype(np.int32) & 1).astype(np.uint8)


def _eliminate(matrix: Bits, columns: int) -> tuple[Bits, int]:
    """Gauss-Jordan on the first `columns` columns; returns the reduced matrix and the number of
    pivots.
    """
    work = matrix.copy()
    rank = 0
    for column in range(columns):
        pivots = np.flatnonzero(work[rank:, column])
        if not len(pivots):
            continue
        work[[rank, rank + pivots[0]]] = work[[rank + pivots[0], rank]]
        others = np.flatnonzero(work[:, column])
        work[others[others != rank]] ^= work[rank]
        rank += 1
        if rank == len(work):
            break
    return work, rank


def rank(matrix: Bits) -> int:
    """Rank over GF(2). It can be below the rank over the reals, never above it."""
    columns = matrix.shape[1]
    basis = np.zeros((0, columns), dtype=np.uint8)
    for start in range(
        0, len(matrix), max(2 * columns, 64)
    ):  # a tall matrix is done as soon as its rank is full
        rows = np.asarray(matrix[start : start + max(2 * columns, 64)], dtype=np.uint8)
        reduced, pivots = _eliminate(np.vstack([basis, rows]), columns)
        basis = reduced[:pivots]
        if pivots == columns:
            break
    return len(basis)


def inverse(matrix: Bits) -> Bits:
    """The inverse modulo 2 of a K×K matrix; ValueError if it is singular."""
    size = len(matrix)
    work, pivots = _eliminate(
        np.hstack([matrix, np.eye(size, dtype=np.uint8)]).astype(np.uint8), size
    )
    if pivots < size:
        raise ValueError(f"matrix of rank {pivots} over GF(2) has no inverse: it must be {size}")
    return work[:, size:]


def _candidate(size: int, seed: int, draw: int) -> Bits:
    blocks = -(-size // (4 * 64))
    counters = np.zeros((size, blocks, 4), dtype=np.uint64)
    counters[..., 0] = np.arange(blocks)
    counters[..., 1] = np.arange(size)[:, None]
    counters[..., 2] = draw
    rows = philox(key(seed, "gf2-rows"), counters.reshape(-1, 4)).reshape(size, -1)
    bits = np.unpackbits(rows.astype("<u8").view(np.uint8), axis=1, bitorder="little")
    return np.ascontiguousarray(bits[:, :size])


def draw_matrix(size: int, seed: int, min_weight: int) -> Bits:
    """A seeded K×K matrix A of full rank over GF(2), every row and column of Hamming weight >=
    `min_weight`.

    The paper gives the conditions and the seed (12345), not the generator. Ours: candidate n = 0,
    1, 2, ... takes row r from the words of Philox key (seed, "gf2-rows"), counters (0, r, n, 0),
    (1, r, n, 0), ..., bit j of the row being bit j mod 64 of word j div 64. The first candidate
    that meets the weights, then the rank, is A: uniform over what is allowed.

    Raises InputError if 10,000 candidates fail.
    """
    for draw in range(MAX_DRAWS):
        bits = _candidate(size, seed, draw)
        if min(bits.sum(0).min(), bits.sum(1).min()) >= min_weight and rank(bits) == size:
            return bits
    raise InputError(
        f"gf2: no {size}x{size} matrix of full rank with rows and columns of weight >= {min_weight}"
        f" in {MAX_DRAWS:,} draws from seed {seed}; lower min_weight= or widen width="
    )
