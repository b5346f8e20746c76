"""What share of the machine training uses: FLOPs a second of real steps over those of a 2,048^3
float32 matmul, in turn.

    OMP_WAIT_POLICY=PASSIVE python bench/share.py [--preset nano small] [--dataset FOLDER ...]
    [--rounds 21] [--quick]

Steps are `Trainer.train_step` on prepared text: the embedded text for nano; small needs a --dataset
of its vocabulary. FLOPs are those of `cost`, recomputation and everything that is no matmul left
out. Each round is: matmuls, some steps, matmuls; the round's share is against the mean rate of the
matmuls around it. Beside it stands the share that the products of a step reach when nothing else is
done. OMP_WAIT_POLICY=PASSIVE is what the installed command sets.
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

ROUND = 0.8  # seconds of steps, about
MATMULS = 5  # on either side of them


def products(run: RunConfig) -> tuple[Callable[[], None], int]:
    """The matrix products of one step and nothing else, forward and backward, each laid out as
    training has it and into memory that is there already; and their FLOPs.
    """
    shape, tokens = run.model, run.batch.micro_batch_size * run.model.context_length
    d, f, vocab = shape.hidden_size, shape.intermediate_size, run.data.vocab_size
    layers = [(tokens, d, d)] * 4 + [(tokens, d, f)] * 2 + [(tokens, f, d)]
    rows = chunk_rows(torch.empty(tokens, d), torch.empty(vocab, d))
    head = [(min(rows, tokens - start), d, vocab) for start in range(0, tokens, rows)]
    ready = {}
    for one in {*layers, *head}:
        n, k, m = one
        x_NK, w_MK = torch.randn(n, k), torch.randn(m, k)
        y_NM, y = (
            (torch.randn(m, n).T, torch.empty(m, n).T)
            if one in head
            else (torch.randn(n, m), torch.empty(n, m))
        )
        ready[one] = x_NK, w_MK, y_NM, y, torch.empty(n, k), torch.empty(m, k)
    shapes = (layers * shape.num_hidden_layers + head) * (
        run.batch.global_batch_size // run.batch.micro_batch_size
    )

    def work() -> None:
        for one in shapes:
            x_NK, w_MK, y_NM, y, x, w = ready[one]
            torch.mm(x_NK, w_MK.T, out=y)
            torch.mm(y_NM, w_MK, out=x)
            torch.mm(y_NM.T, x_NK, out=w)

    return work, sum(6 * n * k * m for n, k, m in shapes)


def share_of(run: RunConfig, arm: str, rounds: int, folder: Path) -> None:
    """Prints one line."""
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
    asked = parser.parse_args()
    told = f"OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'not set')}"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {told}")
    datasets = {Dataset(folder).vocab_size: folder for folder in asked.dataset}
    for preset in asked.preset:
        data = read_study(preset, asked.set)[0].data
        given = [f"data.dataset={datasets[data.vocab_size]}"] if data.vocab_size in datasets else []
        if not given and not data.inputs:
            print(
                f"{preset}: left out; it needs a --dataset with a vocabulary of {data.vocab_size:,}"
            )
            continue
        study, _ = read_study(preset, [*asked.set, *given])
        shape, vocab = study.model, study.data.vocab_size
        print(
            f"{preset}: V {vocab:,}, d {shape.hidden_size}, {shape.num_hidden_layers} blocks, T"
            f" {shape.context_length}, {study.batch.global_batch_size} windows a step,"
            f" {study.batch.micro_batch_size} a micro_batch"
        )
        with tempfile.TemporaryDirectory() as folder:
            for arm in asked.arm:
                share_of(study.run(arm, 1), arm, 3 if asked.quick else asked.rounds, Path(folder))


if __name__ == "__main__":
    main()
