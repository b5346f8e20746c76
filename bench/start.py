"""Measures how long `tokencodes train nano` takes from the command to its first step: fresh, with
prepared text, and resumed.

    python bench/start.py [--runs 5] [--quick]

There are three cases. Each is a whole command in its own process, killed after the last mark:
    embedded   a fresh folder; the tokenizer is trained and the text prepared first
    prepared   a fresh folder, text prepared beforehand
    resumed    killed after the checkpoint of step 5; the same command again, to the record
               of a step after it

The marks are read from the folder each 2 ms. config.toml is written after imports and text.
metrics.jsonl has the held-out loss of the untrained weights, then the first step. Reading the
checkpoint (its hashes, then its tensors) is timed in this process on the same folder. The time of a
resume without reading is therefore a difference.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tokencodes import checkpoint
from tokencodes.init import initialise
from tokencodes.train.build import build_model
from tokencodes.train.corpus import open_dataset
from tokencodes.train.interface import resolve
from tokencodes.train.optimizer import build_optimizer
from tokencodes.train.settings import read_run, read_study

EVERY = 5  # steps between checkpoints
FRESH, RESUME = 15.0, 5.0  # goals in seconds
PATIENCE = 600.0


def command(out: Path, arm: str, dataset: Path | None) -> list[str]:
    """Returns the command line of a run."""
    program = str(Path(sys.executable).with_name("tokencodes"))
    given = ["--set", f"data.dataset={dataset}"] if dataset else []
    return [
        program,
        "train",
        "nano",
        "--arm",
        arm,
        "--out",
        str(out),
        "--set",
        f"checkpoint.interval_steps={EVERY}",
        *given,
    ]


def kinds(out: Path) -> list[dict]:
    """Returns the records of the complete lines of metrics.jsonl."""
    file = out / "metrics.jsonl"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def watch(arguments: list[str], marks: dict[str, Callable[[], bool]]) -> dict[str, float]:
    """Runs a command until each mark is true, then kills it. Returns the seconds from its start to
    each mark. Raises RuntimeError if the command ends early or exceeds PATIENCE.
    """
    times: dict[str, float] = {}
    began = time.perf_counter()
    with subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            while len(times) < len(marks):
                for name in [name for name in marks if name not in times]:
                    if marks[name]():
                        times[name] = time.perf_counter() - began
                if process.poll() is not None and len(times) < len(marks):
                    raise RuntimeError(f"{arguments} ended early: {process.stderr.read().decode()}")
                if time.perf_counter() - began > PATIENCE:
                    raise RuntimeError(f"{arguments} has not come to {marks.keys() - times.keys()}")
                time.sleep(0.002)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return times


def fresh(out: Path, arm: str, dataset: Path | None) -> dict[str, float]:
    """Returns the seconds to each mark in a new folder."""
    marks = {
        "config": (out / "config.toml").is_file,
        "held-out": lambda: any(line["kind"] == "heldout" for line in kinds(out)),
        "step": lambda: any(line["kind"] == "step" for line in kinds(out)),
    }
    if dataset is None:
        marks = {
            "tokenizer": lambda: any(out.glob("tokenizer-*.json")),
            "text": (out / "data" / "manifest.json").is_file,
            **marks,
        }
    return watch(command(out, arm, dataset), marks)


def resumed(out: Path, arm: str, dataset: Path) -> dict[str, float]:
    """Kills a run after its first checkpoint. Returns the seconds to the first new step of the same
    command.
    """
    saved = out / "checkpoints" / "latest"
    watch(
        command(out, arm, dataset),
        {"after": lambda: saved.is_file() and kinds(out)[-1]["step"] > EVERY},
    )
    newest = checkpoint.step_of(checkpoint.checkpoints(out / "checkpoints")[0])
    # A resume replaces the file by one without the lines after the checkpoint.
    before = (out / "metrics.jsonl").stat().st_ino

    def gone_on() -> bool:
        return (out / "metrics.jsonl").stat().st_ino != before

    def updated() -> bool:
        return gone_on() and any(
            line["kind"] == "step" and line["step"] > newest for line in kinds(out)
        )

    times = watch(command(out, arm, dataset), {"restored": gone_on, "step": updated})
    return {**times, "reading": reading(out)}


def reading(out: Path) -> float:
    """Returns the seconds to check the newest checkpoint's hashes and to load it."""
    run = read_run(out / "config.toml")
    model = build_model(run, *resolve(run.interface, None))
    initialise(model, run.seed)
    optimizer = build_optimizer(model, run.optimizer)
    began = time.perf_counter()
    newest = checkpoint.newest_intact(out / "checkpoints", print)
    assert newest is not None
    checkpoint.restore(newest, model, optimizer)
    return time.perf_counter() - began


def tell(
    name: str,
    runs: list[dict[str, float]],
    value: Callable[[dict[str, float]], float],
    limit: float,
) -> None:
    """Prints one case: the value against its goal, and each mark."""
    values = [value(run) for run in runs]
    median = statistics.median(values)
    marks = ", ".join(
        f"{mark} {statistics.median(run[mark] for run in runs):.2f}" for mark in runs[0]
    )
    word = "within" if median <= limit else "ABOVE"
    print(
        f"{name:9} {median:6.2f} s ({min(values):.2f} to {max(values):.2f}), {word} {limit:g} s;"
        f" medians: {marks}",
        flush=True,
    )


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arm", default="learned")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    runs = 1 if options.quick else options.runs
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        open_dataset(read_study("nano", [])[0].data, place, print)
        text = place / "data"
        results: dict[str, list[dict[str, float]]] = {"embedded": [], "prepared": [], "resumed": []}
        for number in range(runs):  # in turn, so that all see the same machine
            results["embedded"].append(fresh(place / f"embedded-{number}", options.arm, None))
            results["prepared"].append(fresh(place / f"prepared-{number}", options.arm, text))
            results["resumed"].append(resumed(place / f"resumed-{number}", options.arm, text))
        tell("embedded", results["embedded"], lambda times: times["step"], FRESH)
        tell("prepared", results["prepared"], lambda times: times["step"], FRESH)
        tell("resumed", results["resumed"], lambda times: times["step"] - times["reading"], RESUME)


if __name__ == "__main__":
    main()
