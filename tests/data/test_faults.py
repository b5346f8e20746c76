"""What goes wrong while a dataset is made: killed, stopped, out of room, twice at once.

The rule for all of it: what is there afterwards is either the undisturbed run's bytes, or one line
says what is the matter.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import PATIENCE
from tests.conftest import contents
from tokencodes.cli import run
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import prepare
from tokencodes.data.text import read_documents
from tokencodes.files import LOCK
from tokencodes.train.corpus import resolve_inputs

WHOLE_TRAIN = PrepareOptions(validation_fraction=0)
KILLS = 4


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".tmp-*")]


# Disturbed processes


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """Half of the embedded documents, whole, dealt to five files:
    enough work to be disturbed in."""
    folder = tmp_path_factory.mktemp("library")
    lines = [
        json.dumps({"id": document.id, "text": document.text})
        for path in resolve_inputs(("embedded:austen", "embedded:sotu"))
        for document in list(read_documents(Path(path)))[::2]
    ]
    for number in range(5):
        (folder / f"part-{number}.jsonl").write_text(
            "\n".join(lines[number::5]) + "\n", encoding="utf-8"
        )
    return folder


@pytest.fixture(scope="module")
def command(library, tokenizer_path) -> list[str]:
    """All but --workers and --out."""
    return [
        *f"{sys.executable} -m tokencodes prepare {library} --tokenizer {tokenizer_path} --json"
        " --validation-fraction 0.2".split()
    ]


def heed_ctrl_c() -> None:
    """A shell starts a program in the background with SIGINT ignored, and then its children ignore
    it too.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Process:
    """A real `tokencodes prepare`, in a process group of its own."""

    def __init__(self, command: list[str], out: Path, workers: int) -> None:
        self.out = out
        arguments = [*command, "--workers", str(workers), "--out", str(out)]
        self._process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed_ctrl_c,
        )
        self.pid = self._process.pid

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline and self._process.poll() is None, (
                self._process.communicate()
            )
            time.sleep(0.002)

    def workers(self) -> list[int]:
        return [
            int(pid)
            for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        ]

    def taken(self) -> bool:
        return (self.out / LOCK).is_file()

    def converting(self) -> bool:
        return any(self.out.glob(".tmp-*/*"))

    def end(self) -> tuple[int, list[str]]:
        """Waits; gives exit status and the lines on standard error."""
        _, errors = self._process.communicate(timeout=PATIENCE)
        return self._process.returncode, errors.splitlines()


@pytest.fixture(scope="module")
def undisturbed(command, tmp_path_factory) -> dict[int, tuple[dict[str, bytes], float]]:
    """By number of workers: the bytes, and the seconds from the taking of the folder to the end."""
    outcomes = {}
    for workers in (1, 2):
        process = Process(command, tmp_path_factory.mktemp("undisturbed") / "data", workers)
        process.wait_for(process.taken)
        began = time.monotonic()
        assert process.end() == (0, [])
        outcomes[workers] = contents(process.out), time.monotonic() - began
    return outcomes


def the_same_command_ends_well(
    process: Process, command: list[str], workers: int, expected: dict[str, bytes]
) -> None:
    assert Process(command, process.out, workers).end() == (0, [])
    assert contents(process.out) == expected
    assert not leftovers(process.out)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: list[int], within: float = PATIENCE) -> bool:
    deadline = time.monotonic() + within
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, pids))


def test_one_worker_and_two_give_the_same_bytes(undisturbed):
    assert undisturbed[1][0] == undisturbed[2][0]


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_random_moments_and_repeated_it_ends_in_the_undisturbed_bytes(
    workers, command, undisturbed, tmp_path
):
    expected, seconds = undisturbed[workers]
    moments = random.Random(workers)
    for number in range(KILLS):
        process = Process(command, tmp_path / str(number), workers)
        process.wait_for(process.taken)
        time.sleep(moments.uniform(0, seconds))
        os.kill(process.pid, signal.SIGKILL)
        the_same_command_ends_well(process, command, workers, expected)


def test_workers_end_with_their_parent_even_before_they_have_begun(command, tmp_path):
    process = Process(command, tmp_path / "data", 2)
    process.wait_for(lambda: len(process.workers()) == 2)
    workers = process.workers()
    os.kill(process.pid, signal.SIGKILL)
    assert process.end() == (-signal.SIGKILL, [])
    assert gone(workers)
    assert not list(process.out.glob("*/source.json"))


def test_a_killed_worker_is_one_line_and_the_same_command_goes_on(command, undisturbed, tmp_path):
    process = Process(command, tmp_path / "data", 2)
    process.wait_for(process.converting)
    workers = process.workers()
    os.kill(workers[0], signal.SIGKILL)
    status, lines = process.end()
    assert (status, len(lines)) == (2, 1), lines
    assert re.match(
        r"tokencodes: .*part-\d\.jsonl: its worker ended \(exit status -9\); .* repeat the command",
        lines[0],
    )
    assert gone(workers)
    assert not leftovers(process.out)
    the_same_command_ends_well(process, command, 2, undisturbed[2][0])


@pytest.mark.parametrize(
    ("workers", "moment"), [(1, "converting"), (2, "workers"), (2, "converting")]
)
def test_ctrl_c_is_one_line_and_exit_130_and_leaves_nobody_alive(
    workers, moment, command, undisturbed, tmp_path
):
    process = Process(command, tmp_path / "data", workers)
    process.wait_for(getattr(process, moment))
    pids = process.workers()
    os.killpg(process.pid, signal.SIGINT)
    status, lines = process.end()
    assert (status, len(lines)) == (130, 1), lines
    assert lines[0].startswith("tokencodes: interrupted; what was finished is intact")
    assert gone(pids)
    assert not leftovers(process.out)
    the_same_command_ends_well(process, command, workers, undisturbed[workers][0])


def test_of_two_at_once_into_one_folder_one_is_refused_or_both_end_in_the_same_bytes(
    command, undisturbed, tmp_path
):
    pair = [Process(command, tmp_path / "data", 1) for _ in range(2)]
    ends = sorted(process.end() for process in pair)
    assert ends[0] == (0, [])
    status, lines = ends[1]
    assert (status, lines) == (0, []) or (
        status == 2 and len(lines) == 1 and "another program is writing here" in lines[0]
    )
    assert contents(tmp_path / "data") == undisturbed[1][0]
    assert not leftovers(tmp_path / "data")


# No room


@pytest.mark.parametrize(("share", "workers"), [(0.05, 1), (0.3, 1), (0.6, 1), (0.9, 1), (0.5, 2)])
def test_a_full_disk_is_one_line_and_with_room_the_bytes_are_the_same(
    share, workers, texts, tokenizer_path, tmp_path, small_disk, capsys
):
    options = PrepareOptions(validation_fraction=0.2, shard_tokens=5000)
    expected = contents(prepare([str(texts)], tokenizer_path, tmp_path / "whole", options).path)
    disk = small_disk(int(share * sum(map(len, expected.values()))))
    line = (
        f"prepare {texts} --tokenizer {tokenizer_path} --out {disk / 'data'} --validation-fraction"
        " 0.2 --shard-tokens 5000 --json"
    )
    command = [*line.split(), "--workers", str(workers)]
    assert run(command) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("tokencodes: ") and complaint.count("\n") == 1
    assert "No space left on device" in complaint
    assert not leftovers(disk)
    small_disk(64 << 20)
    assert run(command) == 0
    assert contents(disk / "data") == expected
    assert not leftovers(disk)
