"""A seeded permutation of 1 ... N-1 that needs no table: any element's image is a short formula, on
any array library.

The swap-or-not shuffle (V. Hoang, B. Morris, P. Rogaway, CRYPTO 2012): in round r, x and its
partner k_r - x (mod n) are swapped or not by one hashed bit of the larger of the two. Each round is
its own inverse, so all of them are a permutation, for every n. Rounds: 4 for each bit of n, which
mixes far beyond what a probe can find; it is no cipher.

The same function serves numpy, where codebooks are made, and torch, where a code without a table is
computed from ids: int64 arithmetic that wraps, and nothing else. 0 stays where it is, so that the
zero code does not move off BOS/EOS.
"""

from typing import Any

import numpy as np

from tokencodes import philox

# The multipliers of MurmurHash3's finaliser (A. Appleby), on 62 bits, so that shifting a signed
# word brings in zeros.
_FACTORS = (0xFF51AFD7ED558CCD - (1 << 64), 0xC4CEB9FE1A85EC53 - (1 << 64))
_MASK = (1 << 62) - 1
ROUNDS_PER_BIT = 4
LARGEST = 1 << 62


def mix(x: Any) -> Any:
    """int64 -> hashed int64 in 0 ... 2^62 - 1, element by element."""
    x = x & _MASK
    x = (x ^ (x >> 33)) * _FACTORS[0] & _MASK
    x = (x ^ (x >> 33)) * _FACTORS[1] & _MASK
    return x ^ (x >> 33)


def round_keys(size: int, seed: int) -> list[tuple[int, int]]:
    """The partner sum and the hash key of each round for a permutation of 1 ... size-1."""
    rounds = ROUNDS_PER_BIT * max(1, (size - 1).bit_length())
    words = philox.stream(seed, "scatter", 2 * rounds).reshape(rounds, 2)
    sums = philox.multiply_high(words[:, 0], max(1, size - 1))
    return [(int(total), int(key) & _MASK) for total, key in zip(sums, words[:, 1], strict=True)]


def scatter(x: Any, size: int, keys: list[tuple[int, int]], xp: Any = np) -> Any:
    """The images of int64 `x` in 0 ... size-1, size <= 2^62. `xp` is the array library: numpy or
    torch.
    """
    count = size - 1
    y = x - 1
    for total, key in keys:
        partner = total - y
        partner = xp.where(partner < 0, partner + count, partner)
        swap = mix(xp.maximum(y, partner) ^ key) & 1
        y = xp.where(swap == 1, partner, y)
    return xp.where(x == 0, x, y + 1)
