"""What the machine can do, by a measure anyone can repeat: a matrix product of 2,048 × 2,048 ×
2,048.
"""

import time
from functools import cache

import torch

SIDE = 2048
REPEATS = 2


@cache
def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of the best of a few products, measured once a process; on a GPU of many in a row, one
    being too short to time.
    """
    a, b = (
        torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(n)).to(device, dtype)
        for n in (0, 1)
    )
    many = 50 if device.type == "cuda" else 1
    seconds = []
    for _ in range(REPEATS + 1):  # the first one warms up
        synchronize(device)
        began = time.perf_counter()
        for _ in range(many):
            a @ b
        synchronize(device)
        seconds.append((time.perf_counter() - began) / many)
    return 2 * SIDE**3 / min(seconds[1:])


def synchronize(device: torch.device) -> None:
    """Waits for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
