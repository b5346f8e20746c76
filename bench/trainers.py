"""Compares our trainer with transformers' Trainer and litgpt's pretraining loop: the same work on
the same cores. Whole processes run in turn.

    python bench/trainers.py --dataset FOLDER --peer PYTHON [--steps 20] [--rounds 3]

FOLDER holds text prepared with SmolLM2's tokenizer. PYTHON is the interpreter of an environment
with litgpt and the versions of torch, transformers and accelerate that are installed here. litgpt
requires an older huggingface-hub, but works with this one:

    pip install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 lightning torchmetrics
    "jsonargparse[signatures]<=4.41"
    pip install --no-deps litgpt==0.5.13

All train preset small's learned arm in float32, from our initial weights, on the windows that our
sampler draws, by our recipe (AdamW, clipping, decay groups, learning rates). They write no logs and
no intermediate checkpoints, and save the model at the end. Ours is the whole `train`: it also reads
the prepared text, writes metrics.jsonl, measures held-out loss at both ends, records scales at some
steps, and saves a checkpoint. If the losses of the first steps disagree, the exit code is 1.

A step lasts from the end of one optimizer step to the end of the next, with all work in between.
The speed of a run is that of its median step. The mean includes our records of scales: there are
two per octave, so a short run has many of them and a long run has few.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from timing import MATMUL_FLOPS, matmul, seconds
from trainer_peers import Watch

from tokencodes.data.dataset import Dataset
from tokencodes.train.config import RunConfig
from tokencodes.train.cost import cost_of_run
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent
from tokencodes.train.optimizer import learning_rate
from tokencodes.train.run import train
from tokencodes.train.settings import read_run, read_study

HERE = Path(__file__)
OURS = "tokencodes"
SKIP = 4  # steps of warm-up: caches, allocator, and the compilation of the peers
CHECKED = 6  # steps whose losses must agree
TOLERANCE = 1e-3  # nats per token
# CPU seconds (one thread) of forward and backward of one step. All variants ran in turn in one
# process, for two rounds after one round of warm-up:
#   transformers: sdpa 3.75, eager attention 3.88, sdpa compiled 3.55
#   litgpt by chunk of its loss: 128 (its default) 3.67, 512 3.86, none 3.83; compiled: 128 3.45,
#   none 3.62
#   litgpt with its head in chunks of 128: 3.79, of 512: 3.68, of 128 compiled: 3.69; it saves 0.7
#   GB (in fine-tuning only)
# CPU seconds of AdamW's step: fused 0.016, foreach 0.111, one by one 0.140. Liger's kernels need a
# GPU. Accumulation only adds work. A worker process has no work, because the windows are an array
# in memory. With wait=ACTIVE, waiting threads spin.
SETTINGS: dict[str, dict[str, Any]] = {
    OURS: {"wait": "PASSIVE", "compile": True},  # the installed command also sets PASSIVE
    "transformers": {
        "wait": "PASSIVE",
        "attention": "sdpa",
        "optimizer": "adamw_torch_fused",
        "compile": True,
        "workers": 0,
    },
    "litgpt": {
        "wait": "PASSIVE",
        "optimizer": "fused",
        "compile": True,
        "loss_chunk": 128,
        "head_chunk": 0,
        "workers": 0,
    },
}


@dataclass(frozen=True)
class Measured:
    """Holds the results of one process: tokens per second by its median step and by the mean, MB,
    and FLOP/s of the matmul if it was timed.
    """

    speed: float
    mean_speed: float
    trained_mb: float
    peak_mb: float
    losses: list[float]
    matmul: float | None
    versions: dict[str, str]


def run_of(dataset: Path, steps: int, compiled: bool) -> RunConfig:
    """Returns the configuration of the preset's learned arm, without checkpoints."""
    overrides = [
        f'data.dataset="{dataset}"',
        "heldout.windows=4",
        "heldout.interval_steps=0",
        "checkpoint.interval_steps=0",
    ]
    overrides += ["checkpoint.log_spaced=false", f"engine.compile={str(compiled).lower()}"]
    each = read_study("small", overrides)[0].tokens_per_step
    return read_study("small", [*overrides, f"budget.tokens={steps * each}"])[0].run("learned", 1)


def share_out(run: RunConfig, folder: Path, settings: dict[str, dict[str, Any]]) -> None:
    """Writes the files from which all trainers start: our configuration, windows, initial weights,
    learning rates, shape.
    """
    trainer = Trainer(run, Dataset(Path(run.data.dataset or "")), folder / "first", Silent())
    shutil.copyfile(folder / "first" / "config.toml", folder / "config.toml")
    np.save(
        folder / "windows.npy", np.stack([trainer.window_ids(step) for step in range(run.steps)])
    )
    weights = {
        name: value.detach().contiguous() for name, value in trainer.model.state_dict().items()
    }
    save_file(weights, folder / "weights.safetensors")
    config, recipe = trainer.model.config, run.optimizer
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
    )
    shape = {
        name: getattr(config, name)
        for name in (*names, "max_position_embeddings", "rope_parameters")
    }
    plan = {
        "shape": {**shape, "tie_word_embeddings": False},
        "rates": [learning_rate(step, recipe) for step in range(run.steps + 1)],
        "betas": [recipe.beta1, recipe.beta2],
        **{
            name: getattr(recipe, name)
            for name in ("peak_lr", "eps", "weight_decay", "max_grad_norm")
        },
        "settings": settings,
    }
    (folder / "plan.json").write_text(json.dumps(plan))


def matmul_flops(runs: int = 10) -> float:
    """Returns the FLOP/s of the fastest of several float32 products."""
    work = matmul()
    return MATMUL_FLOPS / min(seconds(work) for _ in range(runs))


def ours(folder: Path, out: Path) -> None:
    """Trains by `train` in this process, and times the matmul before and after."""
    run, watch, before = read_run(folder / "config.toml"), Watch(), matmul_flops()
    train(run, Dataset(Path(run.data.dataset or "")), out / "run", Silent())
    lines = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    watch.write(out, losses=losses, matmul=max(before, matmul_flops()))


def measure(
    command: list[str], out: Path, settings: dict[str, Any], threads: int, tokens: int
) -> Measured:
    """Runs one process from start to end. Returns its measurements. Exits if the process fails or
    uses a different number of threads.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": settings["wait"],
    }
    with (out / "log.txt").open("w") as log:
        process = subprocess.run(
            [*command, str(out)], env={**os.environ, **environment}, stdout=log, stderr=log
        )
    if process.returncode:
        sys.exit(f"failed: {command}\n{(out / 'log.txt').read_text()[-3000:]}")
    watched = json.loads((out / "watched.json").read_text())
    if watched["threads"] != threads:
        sys.exit(f"{command}: {watched['threads']} threads, not {threads}")
    steps = np.diff(watched["stamps"])[SKIP - 1 :]
    return Measured(
        speed=tokens / float(np.median(steps)),
        mean_speed=tokens / float(steps.mean()),
        matmul=watched.get("matmul"),
        **{name: watched[name] for name in ("trained_mb", "peak_mb", "losses", "versions")},
    )


def rounds(
    options: argparse.Namespace, settings: dict[str, dict[str, Any]], run: RunConfig, folder: Path
) -> dict[str, list[Measured]]:
    """Runs each trainer in turn, in each round. Returns the measurements by trainer."""
    commands = {OURS: [sys.executable, str(HERE), "--ours", str(folder)]}
    for name in list(SETTINGS)[1:]:
        commands[name] = [options.peer, str(HERE.with_name("trainer_peers.py")), name, str(folder)]
    results: dict[str, list[Measured]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            results[name].append(
                measure(
                    command, folder / "out", settings[name], options.threads, run.tokens_per_step
                )
            )
    return results


def spread(values: list[float], form: str = ",.0f") -> str:
    """Returns median, least and largest as text."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def compared(results: dict[str, list[Measured]], flops: int) -> bool:
    """Prints the table and the ratios of each round. Returns whether the losses agree."""
    print(
        f"{'':14}{'tokens/s, median step':>30}{'mean':>8}{'peak RSS MB':>26}{'before saving':>16}"
    )
    for name, runs in results.items():
        mean, trained = (
            statistics.median(getattr(run, key) for run in runs)
            for key in ("mean_speed", "trained_mb")
        )
        speeds, peaks = spread([run.speed for run in runs]), spread([run.peak_mb for run in runs])
        print(f"{name:14}{speeds:>30}{mean:8,.0f}{peaks:>26}{trained:16,.0f}")
    our_runs, agree = results.pop(OURS), True
    for name, runs in results.items():
        speed = spread([a.speed / b.speed for a, b in zip(our_runs, runs, strict=True)], ".2f")
        mean = spread(
            [a.mean_speed / b.mean_speed for a, b in zip(our_runs, runs, strict=True)], ".2f"
        )
        memory = spread([a.peak_mb / b.peak_mb for a, b in zip(our_runs, runs, strict=True)], ".2f")
        print(f"ours / {name}: speed {speed}, by the mean {mean}, peak memory {memory}")
    shares = [run.speed * flops / run.matmul for run in our_runs if run.matmul]
    print(
        f"ours: {spread(shares, '.1%')} of the"
        f" {spread([(run.matmul or 0) / 1e9 for run in our_runs])} GFLOP/s of a matmul"
    )
    for name, runs in results.items():
        apart = max(
            abs(a - b)
            for run in runs
            for a, b in zip(our_runs[0].losses[:CHECKED], run.losses[:CHECKED], strict=True)
        )
        agree = agree and apart <= TOLERANCE
        print(
            f"losses of the first {CHECKED} steps, ours and {name}: {apart:.1e} apart at most"
            f" (allowed: {TOLERANCE:g})"
        )
    return agree


def main() -> None:
    """Prints medians, ranges and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--settings",
        default="{}",
        help='JSON over SETTINGS, such as {"litgpt": {"compile": false}}',
    )
    options = parser.parse_args()
    if options.steps < max(SKIP + 2, CHECKED):
        parser.error(
            f"--steps {options.steps}: the first {SKIP} are left out, {CHECKED} are compared"
        )
    # Each child process inherits the affinity.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    overrides = json.loads(options.settings)
    settings = {name: {**chosen, **overrides.get(name, {})} for name, chosen in SETTINGS.items()}
    run = run_of(options.dataset.resolve(), options.steps, settings[OURS]["compile"])
    with tempfile.TemporaryDirectory() as folder:
        share_out(run, Path(folder), settings)
        results = rounds(options, settings, run, Path(folder))
    each = f"{options.steps} steps of {run.tokens_per_step:,} tokens, the first {SKIP} left out"
    print(f"preset small, learned: {each}; {options.rounds} rounds, {options.threads} threads")
    for name, runs in results.items():
        print(
            f"{name}:"
            f" {', '.join(f'{k} {v}' for k, v in {**runs[0].versions, **settings[name]}.items())}"
        )
    if not compared(results, cost_of_run(run).flops_per_token):
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ours"]:
        ours(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
