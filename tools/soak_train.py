"""Kills `train` at random moments, on one rank and on two, and compares its result with that of an
undisturbed run.

    python tools/soak_train.py [--kills 100] [--ranks 1 2] [--seed 1] [--folder FOLDER]

A round begins without a folder. Each try is killed (kill -9) at a random moment within the duration
of the undisturbed run. Either all ranks are killed together, or, with two ranks, only one of them
in half of the cases. The other rank must then end by itself within a minute. The same run then
starts at once. The round ends when a try is done before its moment. Then the weights (of the
checkpoint and of the exported model), each logged loss and norm, and the hash of the windows must
be those of the undisturbed run, bit by bit. Exit 1 at the first difference.

Ranks are forked from a process that has only done its imports. So a hundred kills take minutes.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests import ranks
from tokencodes import checkpoint
from tokencodes.data.dataset import Dataset
from tokencodes.files import read_json, read_json_lines
from tokencodes.train.config import RunConfig
from tokencodes.train.corpus import open_dataset
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train
from tokencodes.train.settings import read_study

CLOCK = ("seconds", "rate", "matmul_utilization", "memory_bytes")
SMALL = {
    "model.hidden_size": 48,
    "model.intermediate_size": 64,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 2,
    "model.context_length": 32,
    "data.vocab_size": 512,
    "budget.tokens": 24 * 8 * 32,
    "batch.micro_batch_size": 2,
    "heldout.windows": 16,
    "heldout.interval_steps": 10,
    "checkpoint.interval_steps": 3,
    "checkpoint.keep_latest": 2,
    "checkpoint.log_spaced": "true",
}


def configuration(dataset: Path | None, background: bool) -> RunConfig:
    """Returns the configuration: two dozen steps of a tiny model, a checkpoint at each third step,
    the quickstart's text.
    """
    sets = [f"{key}={value}" for key, value in SMALL.items()] + [
        f'checkpoint.async_save="{"yes" if background else "no"}"'
    ]
    return read_study("quickstart", sets + ([f'data.dataset="{dataset}"'] if dataset else []))[
        0
    ].run("learned", 1)


def work(run: RunConfig, dataset: Path, out: Path) -> Any:
    """Returns the function that each rank runs."""

    def begin(rank: int) -> object:
        return train(run, Dataset(dataset), out, Silent()) is not None

    return begin


def left(out: Path) -> dict[str, Any]:
    """Returns the results of a run without the values that depend on a clock. It reads tensors, so
    it must be called in its own process.
    """
    weights = {}
    for name, place in (("checkpoint", checkpoint.find(out)), ("model", out / "model")):
        state = checkpoint.load_model(place).state_dict()
        weights[name] = hashlib.sha256(
            b"".join(state[key].numpy().tobytes() for key in sorted(state))
        ).hexdigest()
    lines = [line for line in read_json_lines(out / "metrics.jsonl") if line["kind"] != "start"]
    records = [{key: value for key, value in line.items() if key not in CLOCK} for line in lines]
    result = read_json(out / "result.json")
    kept = {
        key: result[key]
        for key in ("steps", "tokens", "held_out_loss", "windows_sha256", "start_sha256")
    }
    damages = [
        damage
        for folder in checkpoint.checkpoints(out / "checkpoints")
        if (damage := checkpoint.damage(folder))
    ]
    names = sorted(path.name for path in (out / "checkpoints").iterdir())
    return {
        "weights": weights,
        "records": records,
        "result": kept,
        "damages": damages,
        "names": names,
    }


def value_from_child(call: Any) -> Any:
    """Returns a call's value from a new process. Raises RuntimeError if the call fails."""
    outcome = ranks.run(1, lambda rank: call())[0]
    if "value" not in outcome:
        raise RuntimeError(str(outcome))
    return outcome["value"]


def stage(out: Path) -> str:
    """Returns the stage that a killed try reached, according to its files."""
    if (out / "result.json").is_file():
        return "after the result"
    if (out / "model").is_dir():
        return "after the export"
    partial = list((out / "checkpoints").glob(".tmp-*")) if (out / "checkpoints").is_dir() else []
    if partial:
        return "in the midst of a save"
    return (
        "between saves" if checkpoint.checkpoints(out / "checkpoints") else "before the first save"
    )


def attempt(
    count: int, run: RunConfig, dataset: Path, out: Path, moment: float, draw: random.Random
) -> str:
    """Runs one try. Returns `done`, `killed`, `left alone` (one rank was killed and the other ended
    by itself), or what was wrong.
    """
    children = ranks.start(count, work(run, dataset, out))
    began = time.monotonic()
    while time.monotonic() - began < moment and any(child.outcome is None for child in children):
        ranks.reap(children)
        time.sleep(0.005)
    if all(child.outcome is not None for child in children):
        outcomes = [child.outcome for child in children]
        return (
            "done"
            if all(outcome == {"value": True} for outcome in outcomes)
            else f"ended by itself: {outcomes}"
        )
    alone = count > 1 and draw.random() < 0.5
    for child in [draw.choice(children)] if alone else children:
        child.kill()
    outcomes = ranks.wait(children, 60.0)
    if any("late" in outcome for outcome in outcomes):
        return "a rank did not end within a minute of the other's death"
    return "left alone" if alone else "killed"


def soak(count: int, kills: int, dataset: Path, folder: Path, draw: random.Random) -> int:
    """Runs rounds with `count` ranks until there were `kills` kills. Returns the exit status."""
    runs = [configuration(dataset, background) for background in (False, True)]
    began = time.monotonic()
    results = ranks.run(count, work(runs[0], dataset, folder / "undisturbed"))
    duration = time.monotonic() - began
    if any(result != {"value": True} for result in results):
        print(f"the undisturbed run failed: {results}")
        return 1
    expected = value_from_child(lambda: left(folder / "undisturbed"))
    print(f"{count} rank{'s' * (count > 1)}: undisturbed {duration:.1f} s", flush=True)
    stages, ways, rounds, done = Counter[str](), Counter[str](), 0, 0
    while done < kills:
        rounds += 1
        out, run = folder / f"round-{rounds}", runs[rounds % 2]
        while (outcome := attempt(count, run, dataset, out, draw.uniform(0, duration), draw)) in (
            "killed",
            "left alone",
        ):
            ways[outcome] += 1
            stages[stage(out)] += 1
            done += 1
        if outcome != "done":
            print(f"round {rounds}, after {done} kills: {outcome}")
            return 1
        actual = value_from_child(lambda out=out: left(out))
        for what in expected:
            if actual[what] != expected[what]:
                print(
                    f"round {rounds}, after {done} kills: {what} differ:"
                    f" {json.dumps(actual[what])[:300]}; see {out}"
                )
                return 1
        shutil.rmtree(out)
    counts = ", ".join(f"{name} {times}" for name, times in ways.most_common())
    print(f"{done} kills ({counts}) in {rounds} rounds, every round bitwise the undisturbed run")
    print(
        "  found " + ", ".join(f"{where}: {times}" for where, times in stages.most_common()),
        flush=True,
    )
    return 0


def main() -> int:
    """Soaks at each number of ranks. Returns 1 if any round differs."""
    parser = argparse.ArgumentParser(description="Kill a training run again and again.")
    parser.add_argument("--kills", type=int, default=100, help="at each number of ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--folder",
        type=Path,
        help="where to work (default: a temporary folder, removed at the end)",
    )
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        value_from_child(
            lambda: (
                open_dataset(configuration(None, False).data, folder, lambda line: None).fingerprint
            )
        )
        draw = random.Random(options.seed)
        return max(
            soak(count, options.kills, folder / "data", folder / str(count), draw)
            for count in options.ranks
        )


if __name__ == "__main__":
    sys.exit(main())
