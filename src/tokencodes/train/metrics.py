"""What a run writes down and shows: metrics.jsonl is the truth; a person sees a progress bar, or
plain lines in a log.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID
from rich.text import Text

from tokencodes.errors import InputError
from tokencodes.escape import encodable, printable
from tokencodes.files import read_json_lines, write_text
from tokencodes.measured import significant
from tokencodes.records import first_complaint

LONGEST = 1e10  # seconds: 300 years, the most that is shown


CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)  # of records as they are read


@dataclass(frozen=True)
class StepRecord:
    """One step. Loss in nats per token before the step; gradient norm before clipping; seconds of
    the step alone.
    """

    step: int  # steps done, this one included
    tokens: int  # tokens processed, this step's included
    loss: float
    lr: float
    grad_norm: float
    seconds: float
    # of input, body and head apart; see `diagnostics`
    grad_norm_parts: dict[str, float] = field(default_factory=dict)
    rate: float = 0.0  # tokens per second
    matmul_utilization: float | None = (
        # FLOP/s by `cost`'s formula over the measured peak of a matrix product, on all ranks
        None
    )
    # most that the first rank has held: resident memory, or a GPU's allocated
    memory_bytes: int = 0
    kind: Literal["step"] = "step"
    __pydantic_config__ = CHECKED


@dataclass(frozen=True)
class HeldOutRecord:
    """Held-out loss (nats per token) after `step` steps."""

    step: int
    tokens: int
    loss: float
    kind: Literal["heldout"] = "heldout"
    __pydantic_config__ = CHECKED


@dataclass(frozen=True)
class ScalesRecord:
    """At log-spaced steps: what is too much to look at each time."""

    step: int
    update_ratios: dict[str, float | None]  # ‖change‖ / ‖weights‖ of input, body and head
    # root mean square of the residual stream, at the input and after each block
    hidden_scales: list[float | None]
    kind: Literal["scales"] = "scales"
    __pydantic_config__ = CHECKED


@dataclass(frozen=True)
class StartRecord:
    """A process began, or went on after `step`: what the figures that follow were computed with."""

    step: int
    peak_flops: float  # FLOP/s of a 2,048-wide matrix product, all ranks together
    environment: dict[str, str | int]
    kind: Literal["start"] = "start"
    __pydantic_config__ = CHECKED


Record = StartRecord | StepRecord | HeldOutRecord | ScalesRecord
ANY = TypeAdapter[Record](Annotated[Record, Field(discriminator="kind")])


def read_metrics(path: Path) -> list[Record]:
    """The records of metrics.jsonl; none if it is not there. InputError names the line that is no
    record.
    """
    records = []
    for number, line in enumerate(read_json_lines(path), 1):
        try:
            records.append(ANY.validate_python(line))
        except ValidationError as error:
            raise InputError(
                f"{path}, line {number}: {first_complaint(error)}; remove the file, and the run"
                " goes on without what it shows"
            ) from None
    return records


class Unwritten:
    """What the other ranks write to."""

    def write(self, record: Record) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class MetricsFile:
    """metrics.jsonl: one record a line, appended and flushed; on resume, lines after the checkpoint
    are dropped first.

    Without a checkpoint (`resume_step` 0) the run begins anew, and so does the file.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        before = read_metrics(path) if resume_step > 0 else []
        kept = [record for record in before if record.step <= resume_step]
        write_text(
            path, "".join(json.dumps(asdict(record), allow_nan=False) + "\n" for record in kept)
        )
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Appends one record."""
        self._file.write(json.dumps(asdict(record), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


class Observer(Protocol):
    """Who is told what happens. It must not change anything."""

    def begin(self, name: str, step: int, steps: int) -> None:
        """A run starts, or goes on from `step`."""

    def record(self, record: Record) -> None:
        """A record was written."""

    def say(self, line: str) -> None:
        """A line for a person."""

    def end(self) -> None:
        """The run has stopped."""


class Silent:
    """Shows nothing: for --json and for tests."""

    def begin(self, name: str, step: int, steps: int) -> None:
        """Nothing."""

    def record(self, record: Record) -> None:
        """Nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


def progress_line(
    width: int, name: str, count: str, loss: str, left: str, more: tuple[str, ...] = ()
) -> str:
    """One line of at most `width` characters. The loss and the time left are always in it; then the
    count, as much of the name as there is room for, and those of `more` that fit.
    """
    for shown in range(len(more), -1, -1):
        line = "  ".join(part for part in (name, count, loss, *more[:shown], left) if part)
        if len(line) <= width:
            return line
    shorter = name[: max(0, len(name) - (len(line) - width))]
    line = "  ".join(part for part in (shorter, count, loss, left) if part)
    return line if len(line) <= width else "  ".join(part for part in (loss, left) if part)[:width]


class _Line(ProgressColumn):
    """`progress_line` of a task, in what the bar leaves of the terminal's width."""

    def __init__(self, console: Console, taken: int) -> None:
        super().__init__()
        self._console, self._taken = console, taken

    def render(self, task: Task) -> Text:
        """The line now."""
        parts, count = task.fields, f"{task.completed:.0f}/{task.total:.0f}"
        room = self._console.width - self._taken - 1
        return Text(progress_line(room, task.description, count, **parts), no_wrap=True)


class Terminal:
    """A progress bar where someone is looking, a plain line every 20 seconds where not. Writes to
    standard error.
    """

    PLAIN_SECONDS = 20.0
    BAR, WIDE = 20, 100  # characters of the bar, and of a terminal that has room for one

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._name, self._steps, self._last_line = "", 0, 0.0
        self._rate, self._seen, self._held_out = 0.0, 0, ""

    def begin(self, name: str, step: int, steps: int) -> None:
        """Starts a bar."""
        self._name, self._steps, self._rate, self._seen, self._held_out = name, steps, 0.0, 0, ""
        self._last_line = time.monotonic()
        if not self._console.is_terminal:
            return
        bar = [BarColumn(bar_width=self.BAR)] if self._console.width >= self.WIDE else []
        self._progress = Progress(
            *bar, _Line(self._console, (self.BAR + 1) * len(bar)), console=self._console
        )
        self._task = self._progress.add_task(
            name, total=steps, completed=step, loss="", left="", more=()
        )
        self._progress.start()

    def record(self, record: Record) -> None:
        """Moves the bar, or prints a line now and then."""
        if isinstance(record, HeldOutRecord):
            self._held_out = f"held-out {significant(record.loss, 4)}"
        if not isinstance(record, StepRecord):
            return
        # the first step warms up, or compiles: it counts only until there is another
        self._seen += 1
        self._rate = record.rate if self._seen <= 2 else 0.9 * self._rate + 0.1 * record.rate
        loss, left, more = (
            f"loss {significant(record.loss, 4)}",
            "",
            [self._held_out] if self._held_out else [],
        )
        if self._rate:
            seconds = (self._steps - record.step) * record.tokens / record.step / self._rate
            left = f"{timedelta(seconds=round(min(seconds, LONGEST)))} left"
            more.append(f"{self._rate:,.0f} tokens/s")
        if self._progress is not None:
            self._progress.update(
                self._task, completed=record.step, loss=loss, left=left, more=tuple(more)
            )
        elif time.monotonic() - self._last_line >= self.PLAIN_SECONDS:
            self._last_line = time.monotonic()
            parts = (
                f"step {record.step}/{self._steps}",
                loss,
                *more,
                f"about {left}" if left else "",
            )
            self.say(f"{self._name}: {'  '.join(part for part in parts if part)}")

    def say(self, line: str) -> None:
        """A line above the bar."""
        literal = encodable(printable(line), sys.stderr.encoding)
        if self._progress is not None:
            self._progress.console.print(literal, highlight=False, markup=False, emoji=False)
        else:
            print(literal, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Stops the bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        self._before = 0
