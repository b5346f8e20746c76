"""Words: the K-vectors by number, before any token is given one."""

import numpy as np

from tokencodes.codes.gf2 import Bits, draw_matrix, multiply


def binary(count: int, width: int) -> Bits:
    """c(n)_j = floor(n / 2^j) mod 2, little-endian: uint8[count, width]. Word 0 is zero."""
    numbers = np.arange(count, dtype=np.int64)[:, None]
    return (numbers >> np.arange(width, dtype=np.int64) & 1).astype(np.uint8)


def gf2(count: int, width: int, seed: int, min_weight: int) -> tuple[Bits, dict[str, Bits]]:
    """A·c(n) + b mod 2 with b = 0, as in the paper's run; returns the words and the arrays {matrix, offset}."""
    matrix = draw_matrix(width, seed, min_weight)
    offset = np.zeros(width, dtype=np.uint8)
    words = multiply(binary(count, width), np.ascontiguousarray(matrix.T)) ^ offset
    return words, {"matrix": matrix, "offset": offset}
