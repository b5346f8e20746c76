"""Paired timing: functions run in turn, so that a drift of the machine's speed affects all of them.

The module also has the parts that several benchmarks share: a training step on real ids, and the
machine's rates.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tokencodes.data.dataset import Dataset
from tokencodes.data.sampler import PaperSampler
from tokencodes.data.windows import read_windows
from tokencodes.init import initialise
from tokencodes.loss import inputs_and_targets
from tokencodes.parallel import ALONE
from tokencodes.train.build import build_model, shard_and_move
from tokencodes.train.config import EngineConfig, RunConfig
from tokencodes.train.corpus import open_dataset
from tokencodes.train.diagnostics import clip, norms, total_norm
from tokencodes.train.environment import environment
from tokencodes.train.interface import resolve
from tokencodes.train.optimizer import build_optimizer, learning_rate
from tokencodes.train.settings import read_study

MATMUL = 2048
MATMUL_FLOPS = 2 * MATMUL**3


@dataclass(frozen=True)
class Paired:
    """Holds the medians in seconds, and the ratio a / b of each pair (median, least, largest)."""

    a: float
    b: float
    ratio: float
    low: float
    high: float


def seconds(work: Callable[[], object]) -> float:
    """Returns the seconds of one run."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def paired(a: Callable[[], object], b: Callable[[], object], runs: int) -> Paired:
    """Runs a, b, b, a, a, b, ... after one warm-up of each. Returns the medians and the ratios."""
    a(), b()
    times_a, times_b = [], []
    for run in range(runs):
        for which in ("ab", "ba")[run % 2]:
            (times_a if which == "a" else times_b).append(seconds(a if which == "a" else b))
    ratios = [x / y for x, y in zip(times_a, times_b, strict=True)]
    return Paired(
        statistics.median(times_a),
        statistics.median(times_b),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
    )


def in_turn(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each round by name, after one warm-up of each. Each second round runs
    in reverse order.
    """
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name in (list(works), list(reversed(works)))[number % 2]:
            times[name].append(seconds(works[name]))
    return times


def spread(values: list[float]) -> tuple[float, float, float]:
    """Returns median, least and largest."""
    return statistics.median(values), min(values), max(values)


def matmul() -> Callable[[], object]:
    """Returns a function that does a square float32 matmul."""
    a, b, out = (torch.randn(MATMUL, MATMUL) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


class RealIds:
    """Gives windows of prepared text, folded or spread into the requested vocabulary."""

    def __init__(self, folders: list[Path], workplace: Path) -> None:
        embedded = read_study("nano", [])[0].data
        self.datasets = [Dataset(folder) for folder in folders] or [
            open_dataset(embedded, workplace, print)
        ]

    def windows(self, vocab: int, tokens: int, context: int) -> torch.Tensor:
        """Returns int64[tokens / context, context + 1] from the text with this vocabulary. If there
        is none, the text with the largest vocabulary is used.
        """
        own = [dataset for dataset in self.datasets if dataset.vocab_size == vocab]
        source = (own or sorted(self.datasets, key=lambda dataset: dataset.vocab_size))[-1]
        shards = source.shards("train")
        ids = read_windows(
            shards,
            PaperSampler(shards, context, 1, 2, 64),
            np.arange(tokens // context, dtype=np.int64),
        )
        known = source.vocab_size
        return torch.from_numpy(ids % vocab if vocab <= known else ids * vocab // known)


class Step:
    """Holds one arm's model and optimizer. A call does one training step of the trainer."""

    def __init__(self, run: RunConfig) -> None:
        self.config = run.optimizer
        self.model = build_model(run, *resolve(run.interface, None)).train()
        initialise(self.model, run.seed)
        shard_and_move(self.model, run.engine, ALONE)
        self.optimizer = build_optimizer(self.model, run.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(0, run.optimizer)

    def __call__(self, windows: torch.Tensor) -> None:
        ids, tokens = inputs_and_targets(windows)
        loss = self.model.loss(ids, tokens, num_targets=tokens.numel())
        loss.backward()
        norm_of = norms(
            {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        )
        total = total_norm(norm_of)
        if not math.isfinite(float(total)):
            raise RuntimeError("a step that is not finite is no measurement")
        clip(self.model, self.config.max_grad_norm, total)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def high_water() -> int:
    """Returns the peak resident bytes of this process. The value of getrusage could be that of the
    parent process.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


@dataclass(frozen=True)
class Rates:
    """Holds the rates of this machine per second: FLOPs of a matmul, bytes streamed, bytes of fresh
    memory.
    """

    matmul: float
    stream: float
    fresh: float


def measure_rates(rounds: int) -> Rates:
    """Returns the rates as medians. The three measurements run in turn."""
    x, y, z = torch.randn(1 << 25), torch.randn(1 << 25), torch.empty(1 << 25)
    works = {
        "matmul": matmul(),
        "stream": lambda: torch.add(x, y, out=z),
        "fresh": lambda: torch.zeros(1 << 25),
    }
    done = {"matmul": MATMUL_FLOPS, "stream": 12 << 25, "fresh": 4 << 25}
    return Rates(
        **{name: done[name] / spread(times)[0] for name, times in in_turn(works, rounds).items()}
    )


def machine(rates: Rates) -> str:
    """Returns a line about the machine for the head of a table."""
    facts = environment(ALONE, EngineConfig())
    return (
        f"{facts['processor']}, {facts['threads']} threads, torch {facts['torch']}, float32."
        f" Rates in the same run: matmul {rates.matmul / 1e9:,.0f} GFLOP/s,"
        f" stream {rates.stream / 1e9:.1f} GB/s, fresh memory {rates.fresh / 1e9:.1f} GB/s."
    )


def markdown(columns: str, lines: list[list[str]]) -> str:
    """Returns a Markdown table. `columns` holds the headings, separated by |."""
    head = columns.split("|")
    return (
        "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---:"] * len(head), *lines])
        + "\n"
    )
