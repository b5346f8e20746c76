"""Words: the K-vectors by number, before any token is given one.

Most are linear over GF(2): bit k is the parity of number & mask_k, so binary, gray, gf2 and ecc
differ in masks alone. Those and `random` are formulas in int64 arithmetic, written once for numpy
and torch (`xp`): a codebook in memory and a code that is computed from ids cannot disagree.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokencodes import philox
from tokencodes.codes import bch
from tokencodes.codes.gf2 import Bits, draw_matrix
from tokencodes.codes.spec import InterfaceSpec, minimal_width
from tokencodes.scatter import mix, round_keys, scatter

WORD_BITS = 62  # bits of an int64 that the formulas use


def linear_masks(
    spec: InterfaceSpec, vocab_size: int, arrays: dict[str, Bits]
) -> NDArray[np.int64]:
    """mask_k of each code bit, int64[K]."""
    width, bits = spec.code_width(vocab_size), minimal_width(vocab_size)
    if spec.kind == "gf2":
        return (arrays["matrix"][:, :bits].astype(np.int64) << np.arange(bits)).sum(1)
    if spec.kind == "ecc":
        return np.array(bch.masks(bits, width), dtype=np.int64)
    # a number has no bit past the vocabulary's
    masks = [1 << k if k < bits else 0 for k in range(width)]
    if spec.kind == "gray":  # n xor n/2: bit k is the parity of the number's bits k and k + 1
        masks = [mask | mask << 1 & (1 << bits) - 1 for mask in masks]
    if spec.kind == "binary" and spec.endian == "big":
        masks.reverse()
    return np.array(masks, dtype=np.int64)


def gf2_arrays(spec: InterfaceSpec, width: int) -> dict[str, Bits]:
    """The seeded matrix A and offset b (0 as in the paper's run, or drawn where the spec is
    affine).
    """
    offset = np.zeros(width, dtype=np.uint8)
    if spec.affine:
        offset = (philox.stream(spec.seed, "gf2-off", width) >> np.uint64(63)).astype(np.uint8)
    return {"matrix": draw_matrix(width, spec.seed, spec.min_weight), "offset": offset}


def parities(numbers: Any, masks_K: Any) -> Any:
    """Parity of numbers & mask_k: int64[...] and int64[K] -> int64[..., K] of 0 and 1, on numpy or
    torch.
    """
    x = numbers[..., None] & masks_K
    for shift in (32, 16, 8, 4, 2, 1):
        x = x ^ (x >> shift)
    return x & 1


def random_keys(width: int, seed: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Keys of `random_bits`: of the permutation behind the first bits, and two for each further
    block of 62.
    """
    blocks = -(-width // WORD_BITS) - 1
    words = philox.stream(seed, "randbits", 2 * blocks).reshape(blocks, 2) >> np.uint64(2)
    return round_keys(1 << min(width, WORD_BITS), seed), [(int(a), int(b)) for a, b in words]


def random_bits(numbers: Any, width: int, keys: Any, shifts_62: Any, xp: Any = np) -> Any:
    """Distinct random words: int64[...] -> int64[..., K]. Word 0 is zero.

    The first 62 bits are the number's image under a permutation of 2^62 (of 2^K where K is less),
    so no two words are equal; further blocks of 62 bits are hashes of the number.
    """
    permutation, blocks = keys
    parts = [scatter(numbers, 1 << min(width, WORD_BITS), permutation, xp)]
    parts += [
        xp.where(numbers == 0, numbers, mix(mix(numbers ^ first) ^ second))
        for first, second in blocks
    ]
    bits = xp.stack([part[..., None] >> shifts_62 & 1 for part in parts], -2)
    return bits.reshape((*numbers.shape, len(parts) * WORD_BITS))[..., :width]


def digits(count: int, base: int, width: int) -> Bits:
    """One-hot digits of the number in some base, lowest digit first: every word has weight K /
    base.
    """
    numbers = np.arange(count, dtype=np.int64)[:, None]
    places = base ** np.arange(width // base, dtype=np.int64)
    return (
        (numbers // places % base)[:, :, None]
        .__eq__(np.arange(base))
        .reshape(count, width)
        .astype(np.uint8)
    )


def floats(spec: InterfaceSpec, vocab_size: int, width: int) -> NDArray[np.float32]:
    """gaussian, sphere or sincos words, float32[V, K]; mean squared norm about K, K and K / 2.

    gaussian  independent N(0, 1) from numpy's Philox generator
    sphere    the same, each brought to norm sqrt(K)
    sincos    pairs sin(w_i n), cos(w_i n), w_i = (pi / V)^(i / (K/2 - 1)): from 1 to pi / V in
              geometric steps. The slowest pair makes half a turn over the vocabulary, so it
              tells all numbers apart (K = 2 has that pair only)
    """
    if spec.kind == "sincos":
        pairs = width // 2
        exponents = np.arange(pairs) / (pairs - 1) if pairs > 1 else np.ones(1)
        angles = np.arange(vocab_size)[:, None] * (np.pi / vocab_size) ** exponents
        return (
            np.stack([np.sin(angles), np.cos(angles)], axis=2)
            .reshape(vocab_size, width)
            .astype(np.float32)
        )
    random = np.random.Generator(
        np.random.Philox(key=np.array(philox.key(spec.seed, "floats"), dtype=np.uint64))
    )
    drawn = random.standard_normal((vocab_size, width), dtype=np.float32)
    if spec.kind == "sphere":
        drawn *= (np.sqrt(width) / np.sqrt(np.einsum("vk,vk->v", drawn, drawn, dtype=np.float64)))[
            :, None
        ].astype(np.float32)
    return drawn
