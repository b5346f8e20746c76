"""Random words as a pure function of a key and a counter: Philox4x64-10.

Everything that must come out the same on every machine, in every numpy and in any order (GF(2)
matrices, permutations, the sampler's windows) is drawn from here. Library generators promise no
such thing: numpy keeps the *raw* stream of its bit generators, but not what `Generator.integers`
makes of it.

Source: J. Salmon et al., *Parallel Random Numbers: As Easy as 1, 2, 3* (SC 2011). Constants are
Random123's; a test holds this function against `numpy.random.Philox`.

Layout, fixed for good:
  key     = (seed, domain), where the domain is the first 8 ASCII bytes of what is drawn,
            little-endian;
  counter = (i0, i1, i2, i3), each meaning what the caller says;
  bounded = high 64 bits of word x bound ("multiply-high"), so every draw costs exactly one word.
  Its bias is
            at most bound / 2^64: nothing at the sizes used here.
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_MASK64 = (1 << 64) - 1
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


def multiply_high(words: Words, factor: Words | np.uint64 | int) -> Words:
    """High 64 bits of the 128-bit products, element by element."""
    other = np.asarray(factor, dtype=np.uint64)
    low, high = words & _LOW, words >> _SHIFT
    other_low, other_high = other & _LOW, other >> _SHIFT
    carry = (low * other_low >> _SHIFT) + (high * other_low & _LOW) + (low * other_high & _LOW)
    product: Words = (
        high * other_high
        + (high * other_low >> _SHIFT)
        + (low * other_high >> _SHIFT)
        + (carry >> _SHIFT)
    )
    return product


def philox(key: tuple[int, int], counters_N4: Words) -> Words:
    """Four 64-bit words for each counter: uint64[N, 4] -> uint64[N, 4]."""
    c0, c1, c2, c3 = (np.ascontiguousarray(counters_N4[:, i], dtype=np.uint64) for i in range(4))
    key0, key1 = key
    multiplier0, multiplier1 = (np.uint64(m) for m in _MULTIPLIERS)
    for _ in range(_ROUNDS):
        high0, low0 = multiply_high(c0, multiplier0), c0 * multiplier0
        high1, low1 = multiply_high(c2, multiplier1), c2 * multiplier1
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint64(key0), low1, high0 ^ c3 ^ np.uint64(key1), low0
        key0, key1 = (key0 + _WEYL[0]) & _MASK64, (key1 + _WEYL[1]) & _MASK64
    return np.stack([c0, c1, c2, c3], axis=1)


def key(seed: int, domain: str) -> tuple[int, int]:
    """The key of one seed and one purpose, so that no two purposes share a stream."""
    if not 0 <= seed <= _MASK64:
        raise ValueError(f"seed {seed} is not in 0 ... 2^64 - 1")
    return seed, int.from_bytes(domain.encode("ascii")[:8].ljust(8, b"\0"), "little")


def stream(seed: int, domain: str, count: int, index: tuple[int, int, int] = (0, 0, 0)) -> Words:
    """`count` words of one stream: counters (0, *index), (1, *index), ... -> uint64[count]."""
    blocks = -(-count // 4)
    counters = np.empty((blocks, 4), dtype=np.uint64)
    counters[:, 0] = np.arange(blocks, dtype=np.uint64)
    counters[:, 1:] = np.asarray(index, dtype=np.uint64)
    return philox(key(seed, domain), counters).reshape(-1)[:count]


def permutation(
    seed: int, domain: str, size: int, index: tuple[int, int, int] = (0, 0, 0)
) -> NDArray[np.int64]:
    """A uniform permutation of 0 ... size-1: the order of `size` random words (ties, one in 2^64,
    by position).
    """
    return np.argsort(stream(seed, domain, size, index), kind="stable").astype(np.int64)
