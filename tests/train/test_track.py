"""Trackers: what a record becomes, what a resumed run tells, that a broken one stops nothing; and
the real ones, if here.
"""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import PATIENCE
from tests.conftest import tiny_study
from tokencodes.errors import InputError
from tokencodes.train import track
from tokencodes.train.metrics import HeldOutRecord, Observer, ScalesRecord, Silent, StepRecord
from tokencodes.train.run import train
from tokencodes.train.track import SentSteps, Several, Tracker, configuration, split, trackers

NEEDS = "needs the extra `track`: pip install 'tokencodes[track]'"


@dataclass(frozen=True)
class Began:
    """A record of a kind that the trackers do not know."""

    step: int
    ranks: int
    made: dict[str, str | int] = field(default_factory=lambda: {"device": "cpu", "threads": 2})
    kind: str = "began"


class Fake(Tracker):
    """Keeps what it is told, as one that cannot take back; `broken` names a method that fails."""

    name, package = "fake", "json"

    def prepare(self) -> None:
        self.broken = ""
        self.rows: list[tuple[str, int, dict[str, float]]] = []
        self.opened: list[tuple[str, dict, int, bool]] = []
        self.closed = 0

    def open(self, run, config, step):
        self._fail("open")
        self._steps = SentSteps(self.folder / f"{run}.json", step)
        self.opened.append((run, config, step, self._steps.resumed))

    def log(self, kind, numbers, texts, step):
        self._fail("log")
        if self._steps.new(kind, step):
            self.rows.append((kind, step, numbers))

    def close(self):
        self.closed += 1
        self._fail("close")

    def _fail(self, method: str) -> None:
        if self.broken == method:
            raise OSError(f"{method}: no space\nleft")


class Person(Silent):
    """Hears lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def go(observer: Observer, run: str, first: int, last: int, end: bool = True) -> None:
    """What a run from step `first` to `last` tells, a held-out loss after every fourth step; a kill
    tells no end.
    """
    observer.begin(run, first, last)
    observer.record(Began(first, 2))
    for step in range(first + 1, last + 1):
        observer.record(
            StepRecord(step, 64 * step, 5 - step / 10, 1e-3, 1.0, 0.1, {"body": 0.5, "head": 0.25})
        )
        if step % 4 == 0:
            observer.record(HeldOutRecord(step, 64 * step, 4.0))
    if end:
        observer.end()


def test_numbers_become_scalars_by_kind_and_dotted_name_and_texts_stay_apart():
    numbers, texts = split(StepRecord(7, 448, 4.5, 1e-3, 2.0, 0.5, {"body": 1.5, "head": 0.5}))
    wanted = {
        "step/tokens": 448.0,
        "step/loss": 4.5,
        "step/grad_norm_parts.body": 1.5,
        "step/grad_norm_parts.head": 0.5,
    }
    assert wanted.items() <= numbers.items()
    assert not {"step/step", "step/kind"} & numbers.keys()
    assert texts == {}
    numbers, _ = split(ScalesRecord(7, {"input": None, "body": 0.25}, [1.0, None, 3.0]))
    assert numbers == {
        "scales/update_ratios.body": 0.25,
        "scales/hidden_scales.0": 1.0,
        "scales/hidden_scales.2": 3.0,
    }
    assert split(Began(0, 2)) == (
        {"began/ranks": 2.0, "began/made.threads": 2.0},
        {"began/made.device": "cpu"},
    )


def test_each_run_of_a_study_is_a_run_of_the_tracker_with_its_own_configuration(dataset, tmp_path):
    study, fake = tiny_study(dataset.path, budget={"tokens": 64}), Fake(tmp_path)
    for arm in ("gf2", "binary"):
        train(study.run(arm, 1), dataset, tmp_path / arm / "seed-1", Several([Silent(), fake]))
    assert [(run, config["arm"], step) for run, config, step, _ in fake.opened] == [
        ("gf2-seed-1", "gf2", 0),
        ("binary-seed-1", "binary", 0),
    ]
    assert fake.closed == 2
    assert {path.name for path in tmp_path.iterdir()} == {"track", "gf2", "binary"}
    assert configuration(tmp_path / "gf2" / "seed-1", "gf2 seed 1") == fake.opened[0][1]
    assert configuration(tmp_path, "gf2 seed 2") == {}


def test_what_a_killed_try_told_is_not_told_again_and_steps_never_go_back(tmp_path):
    first, second, third = Fake(tmp_path), Fake(tmp_path), Fake(tmp_path)
    go(first, "gf2 seed 1", 0, 7, end=False)
    go(second, "gf2 seed 1", 4, 6, end=False)  # killed again, before it came as far
    go(third, "gf2 seed 1", 4, 12)
    assert [fake.opened[0][3] for fake in (first, second, third)] == [False, True, True]
    assert second.rows == []
    rows = first.rows + third.rows
    steps = [step for _, step, _ in rows]
    assert steps == sorted(steps)
    assert [step for kind, step, _ in rows if kind == "step"] == list(range(1, 13))
    assert [step for kind, step, _ in rows if kind == "heldout"] == [4, 8, 12]


def test_a_kill_between_two_records_of_an_step_loses_neither(tmp_path):
    first, second = Fake(tmp_path), Fake(tmp_path)
    go(first, "a seed 1", 0, 7)
    first.record(StepRecord(8, 512, 4.0, 1e-3, 1.0, 0.1))
    go(second, "a seed 1", 4, 8)
    assert [row[:2] for row in second.rows] == [("heldout", 8)]


@pytest.mark.parametrize("state", ["begun anew", "no state", "damaged state"])
def test_a_run_without_a_past_is_a_new_run_of_the_tracker(state, tmp_path):
    go(Fake(tmp_path), "a seed 1", 0, 3)
    file = tmp_path / "track" / "fake" / "a-seed-1.json"
    before = json.loads(file.read_text())["id"]
    if state != "begun anew":
        file.unlink() if state == "no state" else file.write_text('{"id": "x", "last"')
    fake = Fake(tmp_path)
    go(fake, "a seed 1", 0 if state == "begun anew" else 2, 4)
    assert not fake.opened[0][3]
    assert json.loads(file.read_text())["id"] != before
    assert max(step for _, step, _ in fake.rows) == 4


@pytest.mark.parametrize("method", ["open", "log", "close"])
def test_a_tracker_that_fails_is_dropped_with_one_line_and_the_rest_goes_on(method, tmp_path):
    person, bad, good = Person(), Fake(tmp_path / "bad"), Fake(tmp_path / "good")
    bad.broken = method
    several = Several([person, bad, good])
    for run in ("a seed 1", "b seed 1"):
        go(several, run, 0, 2)
    assert several.observers == [person, good]
    message = f"tracker 'fake' failed and is dropped (OSError: {method}: no space left)"
    assert person.lines == [f"{message}; training goes on, metrics.jsonl has everything"]
    assert len(good.rows) == 6
    assert (len(bad.opened), bad.closed) == {"open": (0, 1), "log": (1, 1), "close": (1, 2)}[method]


def test_a_run_ends_in_the_same_bits_with_a_tracker_that_fails_in_the_midst(
    study, dataset, tmp_path
):
    fake = Fake(tmp_path / "tracked")
    fake.broken = "log"
    results = [
        train(study.run("gf2", 1), dataset, tmp_path / name, observer)
        for name, observer in (("plain", Silent()), ("tracked", Several([Silent(), fake])))
    ]
    assert len({(run.held_out_loss, run.windows_sha256) for run in results if run}) == 1


def test_an_error_of_another_observer_is_no_trackers():
    class Wrong(Silent):
        def begin(self, name: str, step: int, steps: int) -> None:
            raise RuntimeError("not a tracker")

    with pytest.raises(RuntimeError, match="not a tracker"):
        Several([Wrong()]).begin("a seed 1", 0, 1)


def test_unknown_and_missing_trackers_are_told_before_training(tmp_path, monkeypatch):
    with pytest.raises(
        InputError, match=r"tracker 'tensorbord': no such tracker; did you mean 'tensorboard'\?"
    ):
        trackers(["tensorbord"], tmp_path)

    class Missing(Fake):
        name, package = "missing", "a_package_that_nobody_has"

    monkeypatch.setitem(track.TRACKERS, "missing", Missing)
    monkeypatch.setitem(track.TRACKERS, "fake", Fake)
    with pytest.raises(
        InputError, match=r"tracker 'missing': not installed .*pip install 'tokencodes\[track\]'"
    ):
        trackers(["fake", "missing"], tmp_path)
    assert len(trackers(["fake", "fake"], tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []


def twice(name: str, out: Path) -> Callable[[], list[Tracker]]:
    """A run that is killed after step 7 and goes on after 4 to 10, as the real tracker of this name
    sees it.
    """

    def run_twice() -> list[Tracker]:
        first = trackers([name], out)[0]
        go(first, "gf2 seed 1", 0, 7)
        second = trackers([name], out)[0]
        go(second, "gf2 seed 1", 4, 10)
        return [first, second]

    out.mkdir(parents=True)
    (out / "config.toml").write_text('arm = "gf2"\n[model]\nwidth = 36\n')
    return run_twice


def test_tensorboard_shows_each_step_once(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason=NEEDS)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    twice("tensorboard", tmp_path / "run")()
    events = EventAccumulator(str(tmp_path / "run" / "track" / "tensorboard" / "gf2-seed-1"))
    events.Reload()
    assert [event.step for event in events.Scalars("step/loss")] == list(range(1, 11))
    assert [event.step for event in events.Scalars("heldout/loss")] == [4, 8]
    assert events.Scalars("step/grad_norm_parts.head")[0].value == 0.25
    assert {"configuration/text_summary", "began/made.device/text_summary"} <= set(
        events.Tags()["tensors"]
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def wandb_records(file: Path) -> list[bytes]:
    """The records of an offline run: a header, then LevelDB's log format (crc, length, type; blocks
    of 32 KiB).
    """
    data, at, records, part = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            records.append(part)
            part = b""
    return records


def test_wandb_offline_keeps_one_run_over_a_resume_and_tells_each_step_once(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason=NEEDS)
    from wandb.proto import wandb_internal_pb2 as proto

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    twice("wandb", tmp_path / "run")()
    wandb.teardown()  # its service has then written everything
    rows, runs = [], []
    files = (tmp_path / "run" / "track" / "wandb").glob("offline-run-*/*.wandb")
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        for line in wandb_records(file):
            record = proto.Record()
            record.ParseFromString(line)
            if record.HasField("history"):
                items = {
                    item.key or ".".join(item.nested_key): item.value_json
                    for item in record.history.item
                }
                rows.append((int(items["_step"]), items))
            elif record.HasField("run"):
                config = {entry.key: entry.value_json for entry in record.run.config.update}
                runs.append((record.run.run_id, record.run.display_name, config.get("arm")))
    assert [step for step, _ in rows] == list(range(11))
    assert [step for step, items in rows if "heldout/loss" in items] == [4, 8]
    assert float(rows[1][1]["step/loss"]) == 4.9
    assert len({run for run, _, _ in runs}) == 1
    assert {run[1:] for run in runs} == {("gf2-seed-1", '"gf2"')}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_trackio_goes_on_in_the_same_run(tmp_path):
    pytest.importorskip("trackio", reason=NEEDS)
    # In a program of its own: trackio's folder is settled when it is imported.
    script = """
import json
from pathlib import Path
from tests.train.test_track import twice
twice("trackio", Path("my_system"))()
from trackio.sqlite_storage import SQLiteStorage
runs = SQLiteStorage.get_run_records("tokencodes-my-system")
logs = SQLiteStorage.get_logs("tokencodes-my-system", "gf2-seed-1")
print(json.dumps([len(runs), [[log["step"], "step/loss" in log, "heldout/loss" in log] for log in logs]]))
"""  # noqa: E501
    path = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HOME": str(tmp_path / "home"),
        "PATH": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    runs, logs = json.loads(done.stdout)  # and nothing of trackio's own lines there
    assert runs == 1
    assert [step for step, loss, _ in logs if loss] == list(range(1, 11))
    assert [step for step, _, held_out in logs if held_out] == [4, 8]
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["my_system"]
