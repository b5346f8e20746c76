"""Kills `tokencodes prepare` at random moments, again and again, and holds what it ends in against
an undisturbed run.

    python tools/soak_prepare.py INPUT... --tokenizer FILE [--kills 100] [--seed 1] [--workers 2]

A round begins with no folder. Each try is killed (kill -9, the process alone, not its workers) at a
moment drawn from the duration of the undisturbed run, and the same command follows at once, until a
try is done before its moment comes. Then every file but the lock must hold the undisturbed run's
bytes, and nothing else may be there. Exit 1 at the first difference.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tokencodes.files import LOCK


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a dataset but its lock."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def difference(folder: Path, expected: dict[str, bytes]) -> str | None:
    """What is wrong with a dataset, in words; None if it is as it should be."""
    found = contents(folder)
    if found == expected:
        leftover = next(folder.glob(".tmp-*"), None)
        return f"{leftover.name} was left" if leftover else None
    missing, other = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    changed = sorted(
        name for name in expected.keys() & found.keys() if expected[name] != found[name]
    )
    return f"missing {missing[:3]}, not expected {other[:3]}, other bytes in {changed[:3]}"


def stage(folder: Path) -> str:
    """How far a killed try had come, from what it left."""
    if not (folder / LOCK).is_file():
        return "before the folder was taken"
    if (folder / "manifest.json").is_file():
        return "after the manifest"
    return "in the midst of an input" if any(folder.glob(".tmp-*")) else "before or between inputs"


def attempt(command: list[str], seconds: float | None) -> tuple[int | None, str]:
    """Exit status and standard error of one try; None if its moment came and it was killed."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            status = process.wait()
        errors.seek(0)
        return (None if status == -signal.SIGKILL else status), errors.read()


def soak(command: list[str], folder: Path, kills: int, seed: int) -> int:
    """Rounds until there were enough kills; returns the exit status."""
    began = time.monotonic()
    status, told = attempt([*command, str(folder / "undisturbed")], None)
    if status != 0:
        print(f"the undisturbed run ended with {status}: {told}")
        return 1
    duration = time.monotonic() - began
    expected = contents(folder / "undisturbed")
    print(
        f"undisturbed: {duration:.2f} s, {len(expected)} files,"
        f" {sum(map(len, expected.values())):,} bytes",
        flush=True,
    )
    moments = random.Random(seed)
    stages, rounds, done = Counter[str](), 0, 0
    while done < kills:
        rounds += 1
        out = folder / f"round-{rounds}"
        status = None
        while status is None:
            status, told = attempt(
                [*command, str(out)], moments.uniform(0, duration) if done < kills else None
            )
            if status is None:
                done += 1
                stages[stage(out)] += 1
        wrong = f"exit status {status}: {told.strip()}" if status else difference(out, expected)
        if wrong:
            print(f"round {rounds}, after {done} kills, in {out}: {wrong}")
            return 1
        shutil.rmtree(out)
    for name, count in stages.most_common():
        print(f"{count:6,} killed {name}")
    print(
        f"{done:,} kills in {rounds:,} rounds: every round ended in the undisturbed run's bytes,"
        " and nothing was left over"
    )
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Kills `tokencodes prepare` at random moments and compares what it ends in."
    )
    parser.add_argument("inputs", nargs="+", help="text, as `tokencodes prepare` takes it")
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    told = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "tokencodes",
        "prepare",
        *told.inputs,
        "--tokenizer",
        told.tokenizer,
        "--json",
    ]
    command += ["--workers", str(told.workers), "--out"]
    folder = Path(tempfile.mkdtemp(prefix="soak-prepare-"))
    status = soak(command, folder, told.kills, told.seed)
    if status == 0:
        shutil.rmtree(folder)
    sys.exit(status)


if __name__ == "__main__":
    main()
