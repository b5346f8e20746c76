"""Lifts: the fixed map from K code coordinates to d channels, by naming each channel's coordinate.

A lift that copies coordinates is a d×K matrix with one 1 a row. Its columns are orthogonal with squared norms h_k, the
number of copies; each coordinate has at least one copy (d >= K), so the rank over the reals is K.
"""

import numpy as np
from numpy.typing import NDArray


def columns(lift: str, width: int, hidden_size: int) -> NDArray[np.int64]:
    """The code coordinate that each channel shows: int64[d].

    tile        channel i shows i mod K: the code again and again, 128 times in the paper
    interleave  channel i shows floor(i K / d): each coordinate in one run, as `repeat_interleave` where K divides d
    """
    channels = np.arange(hidden_size, dtype=np.int64)
    if lift == "tile":
        return channels % width
    if lift == "interleave":
        return channels * width // hidden_size
    raise ValueError(f"lift {lift!r} is neither 'tile' nor 'interleave'")


def matrix(lift: str, width: int, hidden_size: int) -> NDArray[np.float64]:
    """The lift R as a d×K matrix, x = R·c."""
    return np.eye(width)[columns(lift, width, hidden_size)]
