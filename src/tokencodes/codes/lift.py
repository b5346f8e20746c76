"""Lifts: the fixed linear map R from K code coordinates to d channels, x = R·z. Each has full
column rank for d >= K.

tile        channel i shows coordinate i mod K: the code again and again, 128 times in the paper
interleave  channel i shows coordinate floor(i K / d): each coordinate in one run
            (`repeat_interleave` where K divides d)
pad         the first K channels show the code, the others are 0
orthogonal  sqrt(d / K) times a seeded d×K matrix with orthonormal columns: the norms of
            tile, in no channel's own direction
"""

import numpy as np
from numpy.typing import NDArray

from tokencodes import philox
from tokencodes.memory import require_memory

COPYING = ("tile", "interleave", "pad")


def columns(lift: str, width: int, hidden_size: int) -> NDArray[np.int64]:
    """The coordinate that each channel of a copying lift shows, int64[d]; -1: the channel is 0."""
    channels = np.arange(hidden_size, dtype=np.int64)
    if lift == "tile":
        return channels % width
    if lift == "interleave":
        return channels * width // hidden_size
    if lift == "pad":
        return np.where(channels < width, channels, -1)
    raise ValueError(f"lift {lift!r} does not copy coordinates: it is none of {', '.join(COPYING)}")


def orthogonal(width: int, hidden_size: int, seed: int) -> NDArray[np.float32]:
    """The orthogonal lift, float32[d, K]: Householder QR of a Gaussian matrix, columns signed so
    that R's diagonal is > 0.

    Its bytes depend on the linear algebra library, so it travels with a model and is checked by
    hash.
    """
    needed = 16 * hidden_size * width  # float64, the Gaussian matrix and its columns
    require_memory(
        needed,
        f"lift=orthogonal from {width:,} coordinates to {hidden_size:,} channels",
        "lower width=",
    )
    random = np.random.Generator(
        np.random.Philox(key=np.array(philox.key(seed, "lift"), dtype=np.uint64))
    )
    q, r = np.linalg.qr(random.standard_normal((hidden_size, width)))
    return (q * np.sign(np.diag(r)) * np.sqrt(hidden_size / width)).astype(np.float32)


def matrix(lift: str, width: int, hidden_size: int, seed: int = 0) -> NDArray[np.float64]:
    """The lift R as a d×K matrix."""
    if lift == "orthogonal":
        return orthogonal(width, hidden_size, seed).astype(np.float64)
    shown = columns(lift, width, hidden_size)
    return np.eye(width)[shown] * (shown >= 0)[:, None]


def squared_scale(lift: str, width: int, hidden_size: int) -> NDArray[np.float64]:
    """w_K with ‖R z‖² = sum_k w_k z_k²: the copies of each coordinate, or d / K for the orthogonal
    lift.
    """
    if lift == "orthogonal":
        return np.full(width, hidden_size / width)
    shown = columns(lift, width, hidden_size)
    return np.bincount(shown[shown >= 0], minlength=width).astype(np.float64)
