"""Measures how much of the machine's speed training uses: FLOPs per second of real steps, divided
by those of a 2,048^3 float32 matmul. Both run in turn.

    OMP_WAIT_POLICY=PASSIVE python bench/share.py [--preset nano small] [--dataset FOLDER ...]
    [--rounds 21] [--quick]

The steps are `Trainer.train_step` on prepared text. nano uses the embedded text; small needs a
--dataset of its vocabulary. The FLOPs are those of `cost`, without recomputation and without
everything that is not a matmul. Each round is: matmuls, some steps, matmuls. The share of a round
is relative to the mean rate of its matmuls. The line also has the share that the matrix products of
a step reach alone. The installed command sets OMP_WAIT_POLICY=PASSIVE.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from timing import MATMUL_FLOPS, matmul, seconds, spread

from tokencodes.data.dataset import Dataset
from tokencodes.loss import chunk_rows
from tokencodes.train.config import RunConfig
from tokencodes.train.corpus import open_dataset
from tokencodes.train.cost import cost_of_run
from tokencodes.train.environment import keep_freed_memory
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent
from tokencodes.train.settings import read_study

ROUND = 0.8  # approximate seconds of the steps in a round
MATMULS = 5  # number of matmuls before and after the steps


def products(run: RunConfig) -> tuple[Callable[[], None], int]:
    """Returns a function that does only the matrix products of one step, forward and backward, and
    their FLOPs. The layout of each product is that of training. The outputs go into allocated
    memory.
    """
    shape, tokens = run.model, run.batch.micro_batch_size * run.model.context_length
    d, f, vocab = shape.hidden_size, shape.intermediate_size, run.data.vocab_size
    layers = [(tokens, d, d)] * 4 + [(tokens, d, f)] * 2 + [(tokens, f, d)]
    rows = chunk_rows(torch.empty(tokens, d), torch.empty(vocab, d))
    head = [(min(rows, tokens - start), d, vocab) for start in range(0, tokens, rows)]
    ready = {}
    for product in {*layers, *head}:
        n, k, m = product
        x_NK, w_MK = torch.randn(n, k), torch.randn(m, k)
        y_NM, y = (
            (torch.randn(m, n).T, torch.empty(m, n).T)
            if product in head
            else (torch.randn(n, m), torch.empty(n, m))
        )
        ready[product] = x_NK, w_MK, y_NM, y, torch.empty(n, k), torch.empty(m, k)
    shapes = (layers * shape.num_hidden_layers + head) * (
        run.batch.global_batch_size // run.batch.micro_batch_size
    )

    def work() -> None:
        for product in shapes:
            x_NK, w_MK, y_NM, y, x, w = ready[product]
            torch.mm(x_NK, w_MK.T, out=y)
            torch.mm(y_NM, w_MK, out=x)
            torch.mm(y_NM.T, x_NK, out=w)

    return work, sum(6 * n * k * m for n, k, m in shapes)


def share_of(run: RunConfig, arm: str, rounds: int, folder: Path) -> None:
    """Measures one arm and prints one line."""
    facts, work, (alone, alone_flops) = cost_of_run(run), matmul(), products(run)
    keep_freed_memory()  # as `train` does
    trainer = Trainer(run, open_dataset(run.data, folder, print), folder / f"run-{arm}", Silent())
    loader = trainer.loader()
    flops = facts.flops_per_token * run.tokens_per_step
    once = [seconds(lambda: trainer.train_step(loader)) for _ in range(5)][-1]
    steps = max(1, round(ROUND / once))
    bare, times, peaks = (
        [],
        [],
        [statistics.mean(seconds(work) for _ in range(MATMULS)) for _ in range(2)][1:],
    )
    for _ in range(rounds):
        times.append(seconds(lambda: [trainer.train_step(loader) for _ in range(steps)]) / steps)
        peaks.append(statistics.mean(seconds(work) for _ in range(MATMULS)))
        bare.append(seconds(alone))
    loader.close()
    around = [(before + after) / 2 for before, after in pairwise(peaks)]
    shares = [
        flops / took / (MATMUL_FLOPS / peak) for took, peak in zip(times, around, strict=True)
    ]
    bound = alone_flops / statistics.median(bare) / (MATMUL_FLOPS / statistics.median(peaks))
    share, step, rate = spread(shares), spread(times), MATMUL_FLOPS / statistics.median(peaks)
    best = flops / step[0] / (MATMUL_FLOPS / min(peaks))
    print(
        f"{arm:9} share {share[0]:.3f} ({share[1]:.3f} to {share[2]:.3f}) of {rate / 1e9:,.0f}"
        f" GFLOP/s, of the fastest matmul {best:.3f}; step {1e3 * step[0]:,.1f} ms"
        f" ({1e3 * step[1]:,.1f} to {1e3 * step[2]:,.1f}), {run.tokens_per_step / step[0]:,.0f}"
        f" tokens/s; {rounds} rounds of {steps}; its matrix products alone {bound:.3f}",
        flush=True,
    )


def main() -> None:
    """Prints a line for each preset and arm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", nargs="*", default=["nano", "small"])
    parser.add_argument("--arm", nargs="*", default=["learned", "binary"])
    parser.add_argument("--dataset", type=Path, nargs="*", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    policy = f"OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'not set')}"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {policy}")
    datasets = {Dataset(folder).vocab_size: folder for folder in options.dataset}
    for preset in options.preset:
        data = read_study(preset, options.set)[0].data
        given = [f"data.dataset={datasets[data.vocab_size]}"] if data.vocab_size in datasets else []
        if not given and not data.inputs:
            print(
                f"{preset}: left out; it needs a --dataset with a vocabulary of {data.vocab_size:,}"
            )
            continue
        study, _ = read_study(preset, [*options.set, *given])
        shape, vocab = study.model, study.data.vocab_size
        print(
            f"{preset}: V {vocab:,}, d {shape.hidden_size}, {shape.num_hidden_layers} blocks, T"
            f" {shape.context_length}, {study.batch.global_batch_size} windows a step,"
            f" {study.batch.micro_batch_size} a micro_batch"
        )
        with tempfile.TemporaryDirectory() as folder:
            for arm in options.arm:
                share_of(
                    study.run(arm, 1), arm, 3 if options.quick else options.rounds, Path(folder)
                )


if __name__ == "__main__":
    main()
