"""Kills `tokencodes prepare` at random moments, many times, and compares its result with that of an
undisturbed run.

    python tools/soak_prepare.py INPUT... --tokenizer FILE [--kills 100] [--seed 1] [--workers 2]

A round begins without a folder. Each try is killed (kill -9, only the process, not its workers) at
a random moment within the duration of the undisturbed run. The same command then starts at once.
The round ends when a try is done before its moment. Then each file except the lock must have the
same bytes as in the undisturbed run, and no other file may exist. Exit 1 at the first difference.
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
    """Returns each file of a dataset except its lock."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def difference(folder: Path, expected: dict[str, bytes]) -> str | None:
    """Returns what is wrong with a dataset, in words, or None if it is as expected."""
    actual = contents(folder)
    if actual == expected:
        leftover = next(folder.glob(".tmp-*"), None)
        return f"{leftover.name} was left" if leftover else None
    missing, other = (
        sorted(expected.keys() - actual.keys()),
        sorted(actual.keys() - expected.keys()),
    )
    changed = sorted(
        name for name in expected.keys() & actual.keys() if expected[name] != actual[name]
    )
    return f"missing {missing[:3]}, not expected {other[:3]}, other bytes in {changed[:3]}"


def stage(folder: Path) -> str:
    """Returns the stage that a killed try reached, according to its files."""
    if not (folder / LOCK).is_file():
        return "before the folder was taken"
    if (folder / "manifest.json").is_file():
        return "after the manifest"
    return "in the midst of an input" if any(folder.glob(".tmp-*")) else "before or between inputs"


def attempt(command: list[str], seconds: float | None) -> tuple[int | None, str]:
    """Returns exit status and standard error of one try. The status of a killed try is None."""
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
    """Runs rounds until there were `kills` kills. Returns the exit status."""
    began = time.monotonic()
    status, message = attempt([*command, str(folder / "undisturbed")], None)
    if status != 0:
        print(f"the undisturbed run ended with {status}: {message}")
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
            status, message = attempt(
                [*command, str(out)], moments.uniform(0, duration) if done < kills else None
            )
            if status is None:
                done += 1
                stages[stage(out)] += 1
        wrong = f"exit status {status}: {message.strip()}" if status else difference(out, expected)
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
    options = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "tokencodes",
        "prepare",
        *options.inputs,
        "--tokenizer",
        options.tokenizer,
        "--json",
    ]
    command += ["--workers", str(options.workers), "--out"]
    folder = Path(tempfile.mkdtemp(prefix="soak-prepare-"))
    status = soak(command, folder, options.kills, options.seed)
    if status == 0:
        shutil.rmtree(folder)
    sys.exit(status)


if __name__ == "__main__":
    main()
