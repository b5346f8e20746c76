"""Puts small faults into the source, one at a time, and counts how many the tests notice.

    python tools/mutate.py [--mutants 400] [--seed 1] [--jobs 2] [--folder FOLDER] [--only PART]
    [--report FILE]

1. The whole suite runs once under `coverage`. This records which tests enter each function, and how
   long each test takes.
2. Mutants are drawn by the seed, an equal share for each part of the source (see `mutants.py`).
3. Each mutant is put into a copy of the project. The tests that enter its function run there, until
   one fails. The tests of its own part run first, and of these the quick ones first. A mutant that
   no test notices survives.

The folder keeps the map of step 1 and the outcomes of step 3. If the command is repeated, a mutant
that was killed stays killed, as long as its file is the same. Survivors are tried again. A new
folder has no earlier outcomes.

survivors.toml lists survivors that change no result, each with a reason. They still count as
survivors. Exit 1: the score is below --least. Each test process is forked from a process that has
already imported the libraries.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mutants import Mutant, mutants, mutated

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("src/tokencodes")
PARTS = (
    "codes",
    "evaluate",
    "data/sampler.py",
    "loss.py",
    "train/optimizer.py",
    "train/loop.py",
    "verify",
    "checkpoint",
)
MOST_SECONDS = 90.0  # limit of the test time for a mutant, by the recorded durations
MOST_BYTES = 12 << 30  # memory limit for a mutant: some mutants allocate absurd sizes


@dataclass(frozen=True)
class Target:
    """A mutant in its file, and the part of the source that it was drawn for."""

    part: str
    file: str
    mutant: Mutant

    @property
    def key(self) -> str:
        """Returns a key that is stable while the file's faults and this line do not change."""
        mutant = self.mutant
        return f"{self.file} {mutant.function} {mutant.number}: {mutant.before} => {mutant.after}"


@dataclass
class Trial:
    """A mutant whose tests run in a copy of the project."""

    target: Target
    copy: Path
    pid: int
    deadline: float
    tests: list[str] = field(default_factory=list)


def all_targets(parts: tuple[str, ...]) -> dict[str, list[Target]]:
    """Returns each mutant of each part."""
    targets: dict[str, list[Target]] = {}
    for part in parts:
        place = ROOT / SOURCE / part
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        targets[part] = [
            Target(part, str(file.relative_to(ROOT)), mutant)
            for file in files
            for mutant in mutants(file.read_text())
        ]
    return targets


def drawn(by_part: dict[str, list[Target]], number: int, seed: int) -> list[Target]:
    """Returns `number` mutants, an equal share of each part. If a part has fewer, the other parts
    supply the rest.
    """
    generator = random.Random(seed)
    shuffled = {part: generator.sample(targets, len(targets)) for part, targets in by_part.items()}
    chosen: list[Target] = []
    while len(chosen) < number and any(shuffled.values()):
        for targets in shuffled.values():
            if targets and len(chosen) < number:
                chosen.append(targets.pop())
    return chosen


def functions_by_line(file: Path) -> dict[int, str]:
    """Returns the dotted name of the innermost function or class of each line of a file, as in
    `mutants`.
    """
    names: dict[int, str] = {}

    def walk(node: ast.AST, path: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = path
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = (*path, child.name)
                for line in range(child.lineno, (child.end_lineno or child.lineno) + 1):
                    names[line] = ".".join(inner)
            walk(child, inner)

    walk(ast.parse(file.read_text()), ())
    return names


class _Contexts:
    """A pytest plugin: coverage's context is the test that runs.
    Durations and failures are noted."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


def make_map(folder: Path, jobs: int) -> dict[str, Any]:
    """Runs the suite under coverage, in `jobs` processes, and writes which tests enter which
    function, and how long each takes. Tests that fail without any fault are named and left out.
    """
    files = sorted(str(file) for file in (ROOT / "tests").rglob("test_*.py"))
    children = []
    for job in range(jobs):
        pid = os.fork()
        if pid == 0:
            _map_a_part(files[job::jobs], folder / f"map-{job}")
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    entered: defaultdict[str, set[str]] = defaultdict(set)
    seconds: dict[str, float] = {}
    failed: set[str] = set()
    for job in range(jobs):
        part = json.loads((folder / f"map-{job}.json").read_text())
        seconds |= part["seconds"]
        failed |= set(part["failed"])
        for key, tests in part["entered"].items():
            entered[key] |= set(tests)
    for test in sorted(failed):
        print(f"left out, because it fails without any fault: {test}", file=sys.stderr)
    known = {
        "entered": {key: sorted(tests - failed) for key, tests in entered.items()},
        "seconds": seconds,
    }
    (folder / "map.json").write_text(json.dumps(known))
    return known


def _map_a_part(files: list[str], place: Path) -> None:
    status = 1
    try:
        import coverage
        import pytest

        os.setsid()
        measured = coverage.Coverage(
            data_file=str(place.with_suffix(".db")), source=[str(ROOT / SOURCE)]
        )
        plugin = _Contexts(measured)
        measured.start()
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files], plugins=[plugin])
        measured.stop()
        part = {
            "entered": _entered(measured.get_data()),
            "seconds": plugin.seconds,
            "failed": sorted(plugin.failed),
        }
        place.with_suffix(".json").write_text(json.dumps(part))
        status = 0
    finally:
        os._exit(status)


def _entered(data: Any) -> dict[str, list[str]]:
    """Returns the tests that enter each function of each file."""
    entered: defaultdict[str, set[str]] = defaultdict(set)
    for name in data.measured_files():
        if not name.endswith(".py"):  # templates
            continue
        functions = functions_by_line(Path(name))
        for line, tests in data.contexts_by_lineno(name).items():
            entered[f"{Path(name).relative_to(ROOT)} {functions.get(line, '')}"] |= {
                test for test in tests if test
            }
    return {key: sorted(tests) for key, tests in entered.items()}


def tests_for(target: Target, known: dict[str, Any]) -> list[str]:
    """The tests that enter a mutant's function, and those of the file named after its module. The
    module's own come first, then those of its part, the quick ones first, within MOST_SECONDS.
    """
    entered, seconds = known["entered"], known["seconds"]
    names = target.mutant.function.split(".") if target.mutant.function else []
    tests: set[str] = set()
    # Code of a module or a class runs at import, so any test that enters the file is suitable.
    while not tests:
        key = f"{target.file} {'.'.join(names)}"
        tests = set(entered.get(key, ()))
        if not names:
            tests |= {
                test
                for other, more in entered.items()
                if other.split(" ")[0] == target.file
                for test in more
            }
            break
        names.pop()
    stem, part = Path(target.file).stem, target.part.removesuffix(".py").split("/")[0]
    tests |= {test for test in seconds if Path(test.split("::")[0]).name.startswith(f"test_{stem}")}

    def order(test: str) -> tuple[bool, bool, float]:
        file = test.split("::")[0]
        return (
            f"test_{stem}" not in file,
            f"/{part}" not in file and f"test_{part}" not in file,
            seconds.get(test, 1.0),
        )

    chosen, total = [], 0.0
    for test in sorted(tests, key=order):
        total += seconds.get(test, 1.0)
        if total > MOST_SECONDS and chosen:
            break
        chosen.append(test)
    return chosen


def project_copy(folder: Path, number: int) -> Path:
    """Makes a copy of the project's files."""
    copy = folder / f"copy-{number}"
    shutil.rmtree(copy, ignore_errors=True)
    listed = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "-z",
    ]
    for name in subprocess.run(listed, capture_output=True, check=True).stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    return copy


def preload() -> None:
    """Imports the libraries that each test process needs. It imports nothing of this project."""
    import hypothesis  # noqa: F401
    import lm_eval.tasks  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import statsmodels.stats.multitest  # noqa: F401
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401


def start(target: Target, copy: Path, known: dict[str, Any]) -> Trial:
    """Writes a mutant into its copy and starts its tests."""
    tests = tests_for(target, known)
    (copy / target.file).write_text(mutated((ROOT / target.file).read_text(), target.mutant.number))
    limit = 60 + 4 * sum(known["seconds"].get(test, 1.0) for test in tests)
    pid = os.fork()
    if pid == 0:
        _be_a_test_process(copy, tests)
    return Trial(target, copy, pid, time.monotonic() + limit, tests)


def _be_a_test_process(copy: Path, tests: list[str]) -> None:
    status = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        log = os.open(copy / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy / "src")
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        sys.path[:] = [
            str(copy / "src"),
            str(copy),
            *(path for path in sys.path if not path.startswith(str(ROOT / "src"))),
        ]
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(copy)]
        status = int(pytest.main([*options, *tests]))
    finally:
        os._exit(status)


def ended(trials: list[Trial]) -> Iterator[tuple[Trial, str]]:
    """Yields the finished trials with their outcome. Each trial is stopped at its deadline."""
    for trial in list(trials):
        pid, status = os.waitpid(trial.pid, os.WNOHANG)
        outcome = "survived" if pid and os.waitstatus_to_exitcode(status) == 0 else "killed"
        if not pid:
            if time.monotonic() < trial.deadline:
                continue
            outcome = "timeout"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(trial.pid, signal.SIGKILL)
        if not pid:
            os.waitpid(trial.pid, 0)
        shutil.copyfile(ROOT / trial.target.file, trial.copy / trial.target.file)
        trials.remove(trial)
        yield trial, outcome


def try_all(
    targets: list[Target], known: dict[str, Any], folder: Path, jobs: int
) -> dict[str, str]:
    """Returns the outcome of each mutant, by key. Each outcome is written to the log at once."""
    preload()
    outcomes: dict[str, str] = {}
    free = [project_copy(folder, number) for number in range(jobs)]
    waiting, trials = list(reversed(targets)), list[Trial]()
    with (folder / "outcomes.jsonl").open("a") as log:
        while waiting or trials:
            while waiting and free:
                target = waiting.pop()
                if tests_for(target, known):
                    trials.append(start(target, free.pop(), known))
                else:
                    outcomes[target.key] = "no test"
            for trial, outcome in ended(trials):
                free.append(trial.copy)
                outcomes[trial.target.key] = outcome
                log.write(
                    json.dumps(
                        {"key": trial.target.key, "file": digest(trial.target), "outcome": outcome}
                    )
                    + "\n"
                )
                log.flush()
                count = f"{len(outcomes)}/{len(targets)}"
                print(f"{count} {outcome:8} {trial.target.key}", flush=True)
            time.sleep(0.05)
    return outcomes


def digest(target: Target) -> str:
    """Returns the hash of a mutant's file."""
    return hashlib.sha256((ROOT / target.file).read_bytes()).hexdigest()[:16]


def killed_before(folder: Path) -> set[str]:
    """Returns files and keys of mutants that an earlier run in this folder killed."""
    log = folder / "outcomes.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    return {
        f"{line['file']} {line['key']}"
        for line in lines
        if line["outcome"] in ("killed", "timeout")
    }


def summary(targets: list[Target], outcomes: dict[str, str], seed: int) -> str:
    """Returns a table of parts and the list of survivors. The survivors of survivors.toml have
    their reasons.
    """
    listed = {entry["mutant"]: entry["reason"] for entry in _survivors()}
    lines = [
        f"# {len(targets)} mutants, seed {seed}",
        "",
        "| part | mutants | killed | score |",
        "|---|---|---|---|",
    ]
    for part in [*dict.fromkeys(target.part for target in targets), "all"]:
        of = [outcomes[target.key] for target in targets if part in (target.part, "all")]
        killed = sum(outcome in ("killed", "timeout") for outcome in of)
        lines.append(f"| {part} | {len(of)} | {killed} | {killed / len(of):.3f} |")
    alive = [target for target in targets if outcomes[target.key] in ("survived", "no test")]
    for title, chosen in (
        ("Survivors that matter not", [target for target in alive if short(target) in listed]),
        ("Other survivors", [target for target in alive if short(target) not in listed]),
    ):
        lines += ["", f"## {title}: {len(chosen)}", ""]
        lines += [
            f"- `{short(target)}` {listed.get(short(target), outcomes[target.key])}"
            for target in chosen
        ]
    return "\n".join(lines) + "\n"


def short(target: Target) -> str:
    """Returns the name of a mutant in survivors.toml. It has no number, which could change."""
    mutant = target.mutant
    return (
        f"{target.file.removeprefix(f'{SOURCE}/')} {mutant.function}: {mutant.before} =>"
        f" {mutant.after}"
    )


def _survivors() -> list[dict[str, str]]:
    place = Path(__file__).with_name("survivors.toml")
    return list(tomllib.loads(place.read_text()).get("survivor", [])) if place.is_file() else []


def main() -> int:
    """Runs the mutants. Returns 1 if the score is below --least, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.9)
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants")
    parser.add_argument("--only", help="one part of the source, such as loss.py or verify")
    parser.add_argument(
        "--report", type=Path, help="write the table and the survivors to this file"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    kept = options.folder / "map.json"
    known = (
        json.loads(kept.read_text()) if kept.is_file() else make_map(options.folder, options.jobs)
    )
    targets = drawn(all_targets(PARTS), options.mutants, options.seed)
    targets = [target for target in targets if options.only in (None, target.part)]
    before = killed_before(options.folder)
    again = [target for target in targets if f"{digest(target)} {target.key}" not in before]
    outcomes = {target.key: "killed" for target in targets} | try_all(
        again, known, options.folder, options.jobs
    )
    text = summary(targets, outcomes, options.seed)
    print(text)
    if options.report:
        options.report.write_text(text)
    killed = sum(outcome in ("killed", "timeout") for outcome in outcomes.values())
    return int(killed / len(outcomes) < options.least)


if __name__ == "__main__":
    sys.exit(main())
