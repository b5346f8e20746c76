"""Assignments: which token gets which word. Each is the word number of each token id, int64[V], id
0 on word 0.

BPE ids follow merge order, so the bits of a natural id carry frequency and length. `permuted` has
the same words without that leak: what `natural` gains over it is knowledge of the tokenizer, not of
the code. `ranked` and `clustered` are fixed too, but informed: they are read off training text
before training begins. Id 0 keeps word 0, so that the zero code stays on BOS/EOS.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from tokencodes import philox
from tokencodes.errors import InputError
from tokencodes.scatter import round_keys, scatter

Order = NDArray[np.int32]
POWER_STEPS = 30


def natural(count: int) -> NDArray[np.int64]:
    """Token t has word t."""
    return np.arange(count, dtype=np.int64)


def permuted(count: int, seed: int) -> NDArray[np.int64]:
    """A seeded permutation of the words 1 ... V-1 over the tokens 1 ... V-1, by the formula of
    `scatter`.
    """
    images: NDArray[np.int64] = scatter(natural(count), count, round_keys(count, seed))
    return images


def ranked(counts_V: NDArray[np.int64]) -> Order:
    """The most frequent token has word 1, and so on; equal counts by id. Token 0 has word 0
    whatever its count.
    """
    by_count = 1 + np.argsort(-counts_V[1:], kind="stable")
    order = np.zeros(len(counts_V), dtype=np.int32)
    order[by_count] = np.arange(1, len(counts_V))
    return order


def clustered(vectors_VR: NDArray[np.float64], seed: int) -> Order:
    """Tokens that are used alike share high bits: recursive bisection of distributional vectors.

    A group that has the words first ... first + n - 1 is ordered along its main direction (power
    iteration from a seeded start) and cut where the words' highest differing bit changes, so each
    cut is one bit of the code and the words used are 0 ... V-1, as in every other assignment. Token
    0 keeps word 0. The result depends on floating point, so it travels.
    """
    count = len(vectors_VR)
    order = np.zeros(count, dtype=np.int32)
    start_R = philox.stream(seed, "bisect", vectors_VR.shape[1]).astype(np.float64) / 2.0**63 - 1.0
    groups = [(np.arange(1, count), 1)]
    while groups:
        members, first = groups.pop()
        if len(members) <= 1:
            order[members] = first
            continue
        last = first + len(members) - 1
        cut = last >> ((first ^ last).bit_length() - 1) << ((first ^ last).bit_length() - 1)
        centred = vectors_VR[members] - vectors_VR[members].mean(0)
        direction = start_R
        for _ in range(POWER_STEPS):
            direction = centred.T @ (centred @ direction)
            direction = direction / (np.linalg.norm(direction) or 1.0)
        left = cut - first
        along = min(
            centred @ direction,
            -centred @ direction,
            key=lambda place: _spread(np.sort(place), left),
        )
        members = members[np.argsort(along, kind="stable")]
        groups += [(members[:left], first), (members[left:], cut)]
    return order


def _spread(sorted_N: NDArray[np.float64], left: int) -> float:
    """The sum of squares within two parts, up to a constant: which end is cut off matters where
    they are unequal.
    """
    return -float(
        sorted_N[:left].sum() ** 2 / left + sorted_N[left:].sum() ** 2 / (len(sorted_N) - left)
    )


def order_hash(order: Order) -> str:
    """The value of `order=` in a spec: 16 hex digits of the SHA-256 of the int32 bytes."""
    return hashlib.sha256(order.astype("<i4").tobytes()).hexdigest()[:16]


def check_order(order: Order, count: int, named: str | None) -> None:
    """Checks an order against the vocabulary and the spec.

    Raises InputError if it is not a permutation of 0 ... V-1 that keeps 0, or if its hash differs
    from the hash in the spec.
    """
    if (
        order.shape != (count,)
        or not np.array_equal(np.sort(order), np.arange(count))
        or order[0] != 0
    ):
        raise InputError(
            f"order: not an assignment of {count:,} words to {count:,} tokens that keeps token 0 on"
            " word 0"
        )
    if named is not None and order_hash(order) != named:
        raise InputError(
            f"order: its hash is {order_hash(order)}, the spec says {named}; give the order it was"
            " made with"
        )
