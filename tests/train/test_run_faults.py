"""What happens to a run's machine: a disk that is full or read-only, a clock that jumps, a folder
that is another run's.
"""

import errno
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import PATIENCE
from tests.conftest import tiny_study
from tokencodes import checkpoint
from tokencodes.cli import run as command
from tokencodes.errors import InputError
from tokencodes.files import read_json, read_json_lines
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train

ROOT = Path(__file__).parent.parent.parent


class Listener(Silent):
    """Keeps what a person is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def assert_same_weights(first: Path, second: Path) -> None:
    """The models that two runs ended in, bit by bit."""
    weights, expected = (
        checkpoint.load_model(folder / "model").state_dict() for folder in (first, second)
    )
    assert weights.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in weights.items())


@pytest.fixture(scope="module")
def undisturbed(study, dataset, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "gf2"
    train(study.run("gf2", 1), dataset, folder, Silent())
    return folder


@pytest.mark.parametrize("background", ["no", "yes"])
def test_a_disk_that_is_full_during_a_save_costs_the_checkpoint_and_not_the_run(
    background, dataset, undisturbed, tmp_path, monkeypatch
):
    """The disk fills at the save of step 4, and there is room again by step 6."""
    saves = {"interval_steps": 2, "keep_latest": 9, "async_save": background}
    run, listener, real = (
        tiny_study(dataset.path, checkpoint=saves).run("gf2", 1),
        Listener(),
        np.save,
    )

    def full(path, array):
        if "step-00000004" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, array)

    monkeypatch.setattr(np, "save", full)
    train(run, dataset, tmp_path / "gf2", listener)
    assert [
        checkpoint.step_of(path)
        for path in checkpoint.checkpoints(tmp_path / "gf2" / "checkpoints")
    ] == [8, 6, 2]
    assert not list((tmp_path / "gf2" / "checkpoints").glob(".tmp-*"))
    warnings = [line for line in listener.lines if "could not be written" in line]
    assert len(warnings) == 1
    assert "the checkpoint of step 4 could not be written (No space left on device)" in warnings[0]
    assert (
        "the last whole one is of step 2, and training goes on: free space on that disk"
        in warnings[0]
    )
    assert_same_weights(tmp_path / "gf2", undisturbed)


def test_a_really_full_disk_is_one_line_and_with_room_the_run_ends_in_the_same_bits(
    dataset, undisturbed, tmp_path, small_disk, capsys
):
    preset = _as_preset(dataset, tmp_path)
    disk = small_disk(1_000_000)  # two checkpoints and the next one do not fit
    arguments = [
        "train",
        str(preset),
        "--arm",
        "gf2",
        "--seed",
        "1",
        "--out",
        str(disk / "run"),
        "--json",
    ]
    assert command(arguments) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("tokencodes: ") and complaint.count("\n") == 1
    assert "No space left on device" in complaint
    kept = checkpoint.checkpoints(disk / "run" / "checkpoints")
    assert kept
    assert all(checkpoint.damage(path) is None for path in kept)
    small_disk(50_000_000)
    assert command(arguments) == 0
    assert_same_weights(disk / "run", undisturbed)


def test_a_read_only_folder_is_one_line_that_names_it(dataset, tmp_path, small_disk, capsys):
    preset, disk = _as_preset(dataset, tmp_path), small_disk(50_000_000)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert command(["train", str(preset), "--out", str(disk / "run"), "--json"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("tokencodes: ") and complaint.count("\n") == 1
    assert str(disk / "run") in complaint and "Read-only file system" in complaint


def _as_preset(dataset, folder: Path) -> Path:
    import tomli_w

    path = folder / "preset.toml"
    path.write_text(
        tomli_w.dumps(tiny_study(dataset.path).model_dump(mode="json", exclude_none=True))
    )
    return path


def test_a_clock_that_jumps_changes_nothing(study, dataset, undisturbed, tmp_path, monkeypatch):
    real, draw = time.time, random.Random(1)
    monkeypatch.setattr(time, "time", lambda: real() + draw.uniform(-1e8, 1e8))
    result = train(study.run("gf2", 1), dataset, tmp_path / "gf2", Silent())
    expected = read_json(undisturbed / "result.json")
    for key in ("held_out_loss", "windows_sha256", "steps", "tokens"):
        assert getattr(result, key) == expected[key]
    assert 0 < result.seconds < 60
    assert all(line["seconds"] > 0 and line["rate"] > 0 for line in _steps(tmp_path / "gf2"))


def _steps(folder: Path) -> list[dict]:
    return [line for line in read_json_lines(folder / "metrics.jsonl") if line["kind"] == "step"]


def test_another_engine_may_go_on_with_a_run_and_another_precision_or_recipe_may_not(
    dataset, undisturbed, tmp_path
):
    shutil.copytree(undisturbed, tmp_path / "gf2")
    (tmp_path / "gf2" / "result.json").unlink()
    shutil.rmtree(tmp_path / "gf2" / "checkpoints" / "step-00000008")
    for section, message in (
        (
            {"engine": {"precision": "bf16-autocast"}},
            "engine.precision is 'float32' there, 'bf16-autocast' asked for",
        ),
        (
            {"optimizer": {"peak_lr": 1e-3, "warmup_steps": 2, "schedule_steps": 8}},
            "optimizer.min_lr is 0.0003 there",
        ),
        (
            {"checkpoint": {"interval_steps": 4, "keep_latest": 2}},
            "checkpoint.interval_steps is 2 there, 4 asked for",
        ),
    ):
        with pytest.raises(InputError, match="made from another configuration") as refused:
            train(
                tiny_study(dataset.path, **section).run("gf2", 1),
                dataset,
                tmp_path / "gf2",
                Silent(),
            )
        assert message in str(refused.value)
    run = tiny_study(
        dataset.path, engine={"activation_checkpoint_every": 1, "loss_kernel": "torch"}
    ).run("gf2", 1)
    result = train(run, dataset, tmp_path / "gf2", Silent())
    assert result.held_out_loss == pytest.approx(
        read_json(undisturbed / "result.json")["held_out_loss"], rel=2e-6
    )
    assert result.environment["activation_checkpoint_every"] == 1
    starts = [
        line
        for line in read_json_lines(tmp_path / "gf2" / "metrics.jsonl")
        if line["kind"] == "start"
    ]
    assert [line["step"] for line in starts] == [0, 6]
    assert [line["environment"]["activation_checkpoint_every"] for line in starts] == [0, 1]


def test_parameters_in_bf16_need_no_launcher(dataset, tmp_path):
    """FSDP2 wants a group of processes, and makes one of this process alone. In a process of its
    own, for it stays.
    """
    preset = _as_preset(dataset, tmp_path)
    arguments = ["-m", "tokencodes", "train", str(preset), "--out", str(tmp_path / "run"), "--json"]
    options = ["--set", "engine.precision=bf16-parameters"]
    done = subprocess.run(
        [sys.executable, *arguments, *options], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["environment"]["dtype"] == "bf16-parameters"
    assert checkpoint.read_replay(checkpoint.find(tmp_path / "run")) is None


def test_the_log_has_rates_memory_and_the_share_of_a_measured_peak(undisturbed):
    start = next(
        line for line in read_json_lines(undisturbed / "metrics.jsonl") if line["kind"] == "start"
    )
    assert start["peak_flops"] > 1e9
    for line in _steps(undisturbed):
        assert line["rate"] == pytest.approx(64 / line["seconds"])
        flops = 6 * (2 * (4 * 36 * 36 + 3 * 36 * 48) + 320 * 36) + 6 * 2 * 36 * 17
        assert line["matmul_utilization"] == pytest.approx(
            line["rate"] * flops / start["peak_flops"]
        )
        assert line["memory_bytes"] > 50_000_000


def test_a_handful_of_kills_on_one_rank_and_on_two_end_in_the_undisturbed_bits():
    """The script does a hundred; see its head."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "tools/soak_train.py", "--kills", "5", "--seed", "3"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("every round bitwise the undisturbed run") == 2
