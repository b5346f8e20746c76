"""What a run writes down, reads again and shows: records by kind, and a line that fits its
terminal.
"""

import io
import json
import math
import re

import pytest
from rich.console import Console

from tokencodes.errors import InputError
from tokencodes.train.metrics import (
    HeldOutRecord,
    MetricsFile,
    ScalesRecord,
    StartRecord,
    StepRecord,
    Terminal,
    progress_line,
    read_metrics,
)

RECORDS = [
    StartRecord(0, 1e11, {"torch": "2", "ranks": 1}),
    HeldOutRecord(0, 0, 5.75),
    StepRecord(1, 64, 5.5, 1e-3, 0.039, 0.25, {"body": 0.03, "head": 0.02}, 256.0, None, 10),
    ScalesRecord(1, {"body": 0.5, "head": None}, [1.0, None]),
    StepRecord(2, 128, 5.25, 2e-3, 0.5, 0.25, rate=256.0, matmul_utilization=0.5),
]


def step(step: int, steps_done_seconds: float = 1.0, loss: float = 5.123456) -> StepRecord:
    """A step of 64 tokens at 64 tokens per second."""
    return StepRecord(step, 64 * step, loss, 1e-3, 1.0, steps_done_seconds, rate=64.0)


def test_records_are_read_as_they_were_written(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    for record in RECORDS:
        file.write(record)
    file.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == RECORDS


def test_a_run_that_goes_on_keeps_the_lines_up_to_its_checkpoint_byte_by_byte(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, 0)
    for record in RECORDS:
        file.write(record)
    file.close()
    lines = path.read_text().splitlines(keepends=True)
    for step, kept in ((2, 5), (1, 4), (0, 0)):  # without a checkpoint the run begins anew
        path.write_text("".join(lines))
        MetricsFile(path, step).close()
        assert path.read_text() == "".join(lines[:kept])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_never_written(number, tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.write(HeldOutRecord(1, 64, number))
    file.close()


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        "null",
        "3",
        '{"kind": "step"}',
        '{"kind": "gossip", "step": 1}',
        '{"kind": "heldout", "step": 1, "tokens": 64, "loss": "low"}',
        '{"kind": "heldout", "step": 1, "tokens": 64, "loss": NaN}',
        '{"kind": "heldout", "step": 1, "tokens": 64, "loss": 1.0, "more": 1}',
    ],
)
def test_a_line_with_wrong_contents_is_named(line, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        json.dumps({"kind": "heldout", "step": 0, "tokens": 0, "loss": 5.75}) + "\n" + line + "\n"
    )
    with pytest.raises(InputError, match=re.escape(f"{path}, line 2: ")) as caught:
        MetricsFile(path, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize(
    "name", ["gf2 seed 1", "a-very-long-name-of-an-arm-with-many-words seed 123456"]
)
def test_a_line_fits_and_shows_the_loss_and_the_time_left(width, name):
    line = progress_line(
        width,
        name,
        "1234/100000",
        "loss 5.123",
        "1:02:03 left",
        ("held-out 5.234", "12,345 tokens/s"),
    )
    assert len(line) <= width
    assert "loss 5.123" in line and line.endswith("1:02:03 left")
    assert ("tokens/s" in line) == (width == 120 and name == "gf2 seed 1") or width == 80


def test_what_does_not_fit_is_left_out_in_order():
    parts = ("gf2 seed 1", "3/8", "loss 5.1", "0:09 left", ("held-out 5.2", "64 tokens/s"))
    assert (
        progress_line(66, *parts)
        == "gf2 seed 1  3/8  loss 5.1  held-out 5.2  64 tokens/s  0:09 left"
    )
    assert (
        progress_line(63, *parts)
        == "gf2 seed 1  3/8  loss 5.1  held-out 5.2  64 tokens/s  0:09 left"
    )
    assert progress_line(62, *parts) == "gf2 seed 1  3/8  loss 5.1  held-out 5.2  0:09 left"
    assert progress_line(49, *parts) == "gf2 seed 1  3/8  loss 5.1  0:09 left"
    assert progress_line(30, *parts) == "gf2   3/8  loss 5.1  0:09 left"
    assert progress_line(24, *parts) == "3/8  loss 5.1  0:09 left"
    assert progress_line(23, *parts) == "loss 5.1  0:09 left"


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_display_shows_loss_and_time_left_at_every_width(width):
    output = io.StringIO()
    terminal = Terminal(Console(file=output, force_terminal=True, width=width, color_system=None))
    terminal.begin("permuted seed 1", 0, 4)
    terminal.record(HeldOutRecord(0, 0, 5.75))
    terminal.record(step(1))
    terminal.record(step(2))
    terminal.say("a line above")
    terminal.end()
    last = [
        line
        for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue()).splitlines()
        if "left" in line
    ][-1]
    assert len(last.rstrip()) <= width
    assert "loss 5.123" in last and "0:00:02 left" in last  # two steps of a second
    assert ("held-out 5.75" in last) == (width >= 80)
    assert ("━" in last) == (width == 160)
    assert "a line above" in output.getvalue()


def test_a_log_has_plain_lines_now_and_then(capsys, monkeypatch):
    terminal = Terminal(Console(file=io.StringIO(), force_terminal=False))
    clock = [100.0]
    monkeypatch.setattr("tokencodes.train.metrics.time.monotonic", lambda: clock[0])
    terminal.begin("gf2 seed 1", 0, 10)
    terminal.record(step(1))
    assert capsys.readouterr().err == ""
    clock[0] += 20.0
    terminal.record(step(2))
    assert (
        capsys.readouterr().err
        == "gf2 seed 1: step 2/10  loss 5.123  64 tokens/s  about 0:00:08 left\n"
    )
    terminal.record(step(3))
    assert capsys.readouterr().err == ""
    terminal.end()
