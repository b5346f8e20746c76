"""Paired timing: two pieces of work in turn, so that a machine whose speed drifts drifts under both."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Paired:
    """Medians in seconds, and the ratio a / b pair by pair (median, least, largest)."""

    a: float
    b: float
    ratio: float
    low: float
    high: float


def seconds(work: Callable[[], object]) -> float:
    """One run."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def paired(a: Callable[[], object], b: Callable[[], object], runs: int) -> Paired:
    """Runs a, b, b, a, a, b, ... after one warm-up of each."""
    a(), b()
    times_a, times_b = [], []
    for run in range(runs):
        for which in ("ab", "ba")[run % 2]:
            (times_a if which == "a" else times_b).append(seconds(a if which == "a" else b))
    ratios = [x / y for x, y in zip(times_a, times_b, strict=True)]
    return Paired(statistics.median(times_a), statistics.median(times_b), statistics.median(ratios), min(ratios), max(ratios))
