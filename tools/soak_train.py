"""Kills `train` at random moments, on one rank and on two, and holds what it ends in against an
undisturbed run.

    python tools/soak_train.py [--kills 100] [--ranks 1 2] [--seed 1] [--folder FOLDER]

A round begins with no folder. Each try is killed (kill -9) at a moment drawn from the duration of
the undisturbed run: all ranks together, or, where there are two, as often one of them alone,
whereupon the other must end by itself within a minute. The same run follows at once, until a try is
done before its moment comes. Then the weights (of the checkpoint and of the exported model), every
logged loss and norm, and the hash of the windows must be the undisturbed run's, bit by bit. Exit 1
at the first difference.

Ranks are forked from a process that has done its imports and nothing else, so that a hundred kills
take minutes.
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
    """Two dozen steps of a tiny model, a checkpoint at every third; the quickstart's text."""
    sets = [f"{key}={value}" for key, value in SMALL.items()] + [
        f'checkpoint.async_save="{"yes" if background else "no"}"'
    ]
    return read_study("quickstart", sets + ([f'data.dataset="{dataset}"'] if dataset else []))[
        0
    ].run("learned", 1)


def work(run: RunConfig, dataset: Path, out: Path) -> Any:
    """What one rank does."""

    def begin(rank: int) -> object:
        return train(run, Dataset(dataset), out, Silent()) is not None

    return begin


def left(out: Path) -> dict[str, Any]:
    """What a run ends in, without what a clock decides. Called in a process of its own: tensors are
    read.
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
        told
        for one in checkpoint.checkpoints(out / "checkpoints")
        if (told := checkpoint.damage(one))
    ]
    names = sorted(path.name for path in (out / "checkpoints").iterdir())
    return {
        "weights": weights,
        "records": records,
        "result": kept,
        "damages": damages,
        "names": names,
    }


def asked(call: Any) -> Any:
    """A call's value from a process of its own."""
    told = ranks.run(1, lambda rank: call())[0]
    if "value" not in told:
        raise RuntimeError(str(told))
    return told["value"]


def stage(out: Path) -> str:
    """How far a killed try had come, from what it left."""
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
    """One try: `done`, `killed`, `left alone` where one rank was killed and the other ended by
    itself, or what was wrong.
    """
    children = ranks.start(count, work(run, dataset, out))
    began = time.monotonic()
    while time.monotonic() - began < moment and any(child.told is None for child in children):
        ranks.reap(children)
        time.sleep(0.005)
    if all(child.told is not None for child in children):
        told = [child.told for child in children]
        return "done" if all(one == {"value": True} for one in told) else f"ended by itself: {told}"
    alone = count > 1 and draw.random() < 0.5
    for child in [draw.choice(children)] if alone else children:
        child.kill()
    told = ranks.wait(children, 60.0)
    if any("late" in one for one in told):
        return "a rank did not end within a minute of the other's death"
    return "left alone" if alone else "killed"


def soak(count: int, kills: int, dataset: Path, folder: Path, draw: random.Random) -> int:
    """Rounds at one number of ranks until there were enough kills; the exit status."""
    runs = [configuration(dataset, background) for background in (False, True)]
    began = time.monotonic()
    told = ranks.run(count, work(runs[0], dataset, folder / "undisturbed"))
    duration = time.monotonic() - began
    if any(one != {"value": True} for one in told):
        print(f"the undisturbed run failed: {told}")
        return 1
    expected = asked(lambda: left(folder / "undisturbed"))
    print(f"{count} rank{'s' * (count > 1)}: undisturbed {duration:.1f} s", flush=True)
    stages, ways, rounds, done = Counter[str](), Counter[str](), 0, 0
    while done < kills:
        rounds += 1
        out, run = folder / f"round-{rounds}", runs[rounds % 2]
        while (way := attempt(count, run, dataset, out, draw.uniform(0, duration), draw)) in (
            "killed",
            "left alone",
        ):
            ways[way] += 1
            stages[stage(out)] += 1
            done += 1
        if way != "done":
            print(f"round {rounds}, after {done} kills: {way}")
            return 1
        found = asked(lambda out=out: left(out))
        for what in expected:
            if found[what] != expected[what]:
                print(
                    f"round {rounds}, after {done} kills: {what} differ:"
                    f" {json.dumps(found[what])[:300]}; see {out}"
                )
                return 1
        shutil.rmtree(out)
    told_ways = ", ".join(f"{way} {times}" for way, times in ways.most_common())
    print(f"{done} kills ({told_ways}) in {rounds} rounds, every round bitwise the undisturbed run")
    print(
        "  found " + ", ".join(f"{where}: {times}" for where, times in stages.most_common()),
        flush=True,
    )
    return 0


def main() -> int:
    """Soaks at each number of ranks; exit 1 if any round differs."""
    parser = argparse.ArgumentParser(description="Kill a training run again and again.")
    parser.add_argument("--kills", type=int, default=100, help="at each number of ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--folder",
        type=Path,
        help="where to work (default: a temporary folder, removed at the end)",
    )
    told = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as temporary:
        folder = told.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        asked(
            lambda: (
                open_dataset(configuration(None, False).data, folder, lambda line: None).fingerprint
            )
        )
        draw = random.Random(told.seed)
        return max(
            soak(count, told.kills, folder / "data", folder / str(count), draw)
            for count in told.ranks
        )


if __name__ == "__main__":
    sys.exit(main())
