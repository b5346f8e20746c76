"""What a run writes down and shows: metrics.jsonl is the truth; a person sees a progress bar, or plain lines in a log."""

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tokencodes.escape import encodable, printable
from tokencodes.files import read_json_lines, write_text


@dataclass(frozen=True)
class StepRecord:
    """One update. Loss in nats a target before the update; gradient norm before clipping; seconds of the update alone."""

    update: int  # updates done, this one included
    targets: int  # targets processed, this update's included
    loss: float
    lr: float
    grad_norm: float
    seconds: float
    grad_norm_parts: dict[str, float] = field(default_factory=dict)  # of input, body and head apart; see `observe`
    rate: float = 0.0  # targets a second
    peak_share: float | None = None  # FLOP/s by `account`'s formula over the measured peak of a matrix product, on all ranks
    memory_bytes: int = 0  # most that the first rank has held: resident memory, or a GPU's allocated
    kind: str = "update"


@dataclass(frozen=True)
class HeldOutRecord:
    """Held-out loss (nats a target) after `update` updates."""

    update: int
    targets: int
    loss: float
    kind: str = "heldout"


@dataclass(frozen=True)
class ScalesRecord:
    """At log-spaced updates: what is too much to look at each time."""

    update: int
    update_ratios: dict[str, float | None]  # ‖change‖ / ‖weights‖ of input, body and head
    hidden_scales: list[float | None]  # root mean square of the residual stream, at the input and after each block
    kind: str = "scales"


@dataclass(frozen=True)
class StartRecord:
    """A process began, or went on after `update`: what the figures that follow were computed with."""

    update: int
    peak_flops: float  # FLOP/s of a 2,048-wide matrix product, all ranks together
    surroundings: dict[str, str | int]
    kind: str = "start"


Record = StartRecord | StepRecord | HeldOutRecord | ScalesRecord


class Unwritten:
    """What the other ranks write to."""

    def write(self, record: Record) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class MetricsFile:
    """metrics.jsonl: one record a line, appended and flushed; on resume, lines after the checkpoint are dropped first.

    Without a checkpoint (`resume_update` 0) the run begins anew, and so does the file.
    """

    def __init__(self, path: Path, resume_update: int) -> None:
        kept = [line for line in read_json_lines(path) if resume_update > 0 and line["update"] <= resume_update]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
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

    def begin(self, name: str, update: int, updates: int) -> None:
        """A run starts, or goes on from `update`."""

    def record(self, record: Record) -> None:
        """A record was written."""

    def say(self, line: str) -> None:
        """A line for a person."""

    def end(self) -> None:
        """The run has stopped."""


class Silent:
    """Shows nothing: for --json and for tests."""

    def begin(self, name: str, update: int, updates: int) -> None:
        """Nothing."""

    def record(self, record: Record) -> None:
        """Nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Terminal:
    """A progress bar where someone is looking, a plain line every 20 seconds where not. Writes to standard error."""

    PLAIN_SECONDS = 20.0

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._name, self._updates, self._last_line = "", 0, 0.0
        self._rate, self._seen, self._held_out = 0.0, 0, ""

    def begin(self, name: str, update: int, updates: int) -> None:
        """Starts a bar."""
        self._name, self._updates, self._rate, self._seen, self._held_out = name, updates, 0.0, 0, ""
        self._last_line = time.monotonic()
        if not self._console.is_terminal:
            return
        columns = (
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}  {task.fields[told]}", markup=False),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console)
        self._task = self._progress.add_task(name, total=updates, completed=update, told="")
        self._progress.start()

    def record(self, record: Record) -> None:
        """Moves the bar, or prints a line now and then."""
        if isinstance(record, HeldOutRecord):
            self._held_out = f"  held-out {record.loss:.3f}"
        if not isinstance(record, StepRecord):
            return
        self._seen += 1  # the first update warms up, or compiles: it counts only until there is another
        self._rate = record.rate if self._seen <= 2 else 0.9 * self._rate + 0.1 * record.rate
        speed = f"  {self._rate:,.0f} targets/s" if self._rate else ""
        told = f"loss {record.loss:.3f}{self._held_out}{speed}"
        if self._progress is not None:
            self._progress.update(self._task, completed=record.update, told=told)
        elif time.monotonic() - self._last_line >= self.PLAIN_SECONDS:
            self._last_line = time.monotonic()
            left = (self._updates - record.update) * record.targets / record.update
            told += f"  about {left / self._rate:,.0f} s left" if self._rate else ""
            self.say(f"{self._name}: update {record.update}/{self._updates}  {told}")

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
