"""Trackers: observers that show runs in TensorBoard, trackio or Weights & Biases. metrics.jsonl
stays the truth.

A record goes there by its fields: numbers as scalars named KIND/FIELD, nested ones KIND/FIELD.KEY
or KIND/FIELD.3, at the step `step`; text as description. All of it lies in OUT/track/TRACKER, one
tracker run for each run of a study. A run that is resumed at step U computes the steps after U
again, to the same bits, so whatever a killed try had told about them is true: TensorBoard hides it
and takes it anew, the others, which cannot take back, are not told it twice.

A tracker never stops a run: one that is not installed is an error before training; one that fails
later is dropped with a line. Only one process may track a run: the first rank.
"""

import io
import json
import os
import re
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from tokencodes.errors import InputError, nearest, pass_on_interruption
from tokencodes.files import read_toml
from tokencodes.train.metrics import Observer, Record

FOLDER = "track"
FLUSH_SECONDS = 30


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values inside nested tables and lists, with dotted names: `grad_norm_parts.body`,
    `hidden_scales.3`.
    """
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list | tuple):
        inside = {str(index): item for index, item in enumerate(value)}.items()
    else:
        yield name, value
        return
    for key, inner in inside:
        yield from leaves(inner, f"{name}.{key}" if name else str(key))


def split(record: Record) -> tuple[dict[str, float], dict[str, str]]:
    """A record's numbers and its texts, named KIND/FIELD; its kind and its step are no values, and
    None is nothing.
    """
    fields = asdict(record)
    kind = fields.pop("kind")
    fields.pop("step", None)
    named = [(f"{kind}/{name}", value) for name, value in leaves(fields)]
    numbers = {name: float(value) for name, value in named if isinstance(value, int | float)}
    return numbers, {name: value for name, value in named if isinstance(value, str)}


def configuration(out: Path, name: str) -> dict[str, Any]:
    """What a run was made with, as its folder has it: `out` itself, or for a study OUT/ARM/seed-N
    of the run `ARM seed N`.
    """
    arm, _, seed = name.rpartition(" seed ")
    files = (out / "config.toml", out / arm / f"seed-{seed}" / "config.toml")
    return next((read_toml(file) for file in files if file.is_file()), {})


class SentSteps:
    """What a tracker that cannot take back was told: the last step of each kind of record, in a
    file beside its data.

    `id` is the tracker's run. A run that begins anew, or was not tracked before, gets a new one.
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        before = self._read() if step > 0 else None
        self.resumed = before is not None
        self.id: str = before["id"] if before else secrets.token_hex(8)
        self._last: dict[str, int] = before["last"] if before else {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write()

    def new(self, kind: str, step: int) -> bool:
        """Whether a record is news, and not older than what was told last;
        from now on it is none."""
        if step <= self._last.get(kind, -1) or step < max(self._last.values(), default=0):
            return False
        self._last[kind] = step
        self._write()
        return True

    def _read(self) -> dict[str, Any] | None:
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                "id": str(values["id"]),
                "last": {str(kind): int(step) for kind, step in values["last"].items()},
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # a tracker's own bookkeeping is no reason to stop: a new run there shows what is to
            # come
            return None

    def _write(self) -> None:
        partial = self._path.with_name(f".tmp-{self._path.name}")
        partial.write_text(json.dumps({"id": self.id, "last": self._last}) + "\n", encoding="utf-8")
        # without fsync: it is written at every step, and a loss costs a picture
        partial.replace(self._path)


class Tracker(ABC):
    """One tracker as an observer. A subclass opens, logs and closes; InputError if its package is
    not installed.
    """

    name: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, out: Path) -> None:
        self.out, self.folder = out, out.absolute() / FOLDER / self.name
        self.prepare()
        try:
            self.module = import_module(self.package)
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"tracker {self.name!r}: not installed ({reason}); install it by: pip install"
                " 'tokencodes[track]'"
            ) from None

    def begin(self, name: str, step: int, steps: int) -> None:
        """A run starts, or goes on from `step`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with redirect_stdout(io.StringIO()):  # standard output is the result's
            self.open(re.sub(r"[^\w.+-]+", "-", name), configuration(self.out, name), step)

    def record(self, record: Record) -> None:
        """A record was written."""
        numbers, texts = split(record)
        self.log(record.kind, numbers, texts, int(asdict(record).get("step", 0)))

    def say(self, line: str) -> None:
        """Nothing: lines are for a person."""
        return

    def end(self) -> None:
        """The run has stopped."""
        with redirect_stdout(io.StringIO()):
            self.close()

    @property
    def project(self) -> str:
        """What the runs of this folder are called together."""
        return re.sub(r"[^\w.+-]+", "-", self.out.absolute().name).strip("-.") or "tokencodes"

    @abstractmethod
    def prepare(self) -> None:
        """What must be settled before the package is imported."""

    @abstractmethod
    def open(self, run: str, config: dict[str, Any], step: int) -> None:
        """The tracker's run of this name: a new one at update 0, else the one that was, to go on
        after `step`.
        """

    @abstractmethod
    def log(self, kind: str, numbers: dict[str, float], texts: dict[str, str], step: int) -> None:
        """The values of one record."""

    @abstractmethod
    def close(self) -> None:
        """The end of the tracker's run; it may never have been opened."""


class TensorBoard(Tracker):
    """Event files in OUT/track/tensorboard/RUN: `tensorboard --logdir OUT/track/tensorboard`."""

    name, package = "tensorboard", "torch.utils.tensorboard"

    def prepare(self) -> None:
        """Nothing."""
        self._writer: Any = None

    def open(self, run: str, config: dict[str, Any], step: int) -> None:
        """`purge_step` hides what a killed try had told beyond the checkpoint."""
        purge = step + 1 if step else 0
        self._writer = self.module.SummaryWriter(
            str(self.folder / run), purge_step=purge, flush_secs=FLUSH_SECONDS
        )
        text = json.dumps(config, indent=2, ensure_ascii=False, default=str)
        self._writer.add_text(
            "configuration", "".join(f"    {line}\n" for line in text.splitlines()), step
        )

    def log(self, kind: str, numbers: dict[str, float], texts: dict[str, str], step: int) -> None:
        """One scalar or text a value."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)
        for name, text in texts.items():
            self._writer.add_text(name, text, step)

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()


class Trackio(Tracker):
    """A local trackio project in OUT/track/trackio:
    `TRACKIO_DIR=OUT/track/trackio trackio show`."""

    name, package = "trackio", "trackio"

    def prepare(self) -> None:
        """trackio reads where it writes from the environment, once, when it is imported."""
        self._run: Any = None
        if self.package in sys.modules and os.environ.get("TRACKIO_DIR") != str(self.folder):
            raise InputError(
                "tracker 'trackio': this program uses it for another folder already, so not for"
                f" {self.folder}"
            )
        os.environ["TRACKIO_DIR"] = str(self.folder)

    def open(self, run: str, config: dict[str, Any], step: int) -> None:
        """A run of this name goes on if it is known."""
        self._sent = SentSteps(self.folder / f"{run}.json", step)
        resume = "allow" if self._sent.resumed else "never"
        # names such as NAME_system are trackio's own
        project = f"tokencodes-{self.project}".replace("_", "-")
        self._run = self.module.init(
            project=project, name=run, config=config, resume=resume, embed=False
        )

    def log(self, kind: str, numbers: dict[str, float], texts: dict[str, str], step: int) -> None:
        """Numbers alone; a configuration cannot be added to."""
        if numbers and self._sent.new(kind, step):
            self._run.log(numbers, step=step)

    def close(self) -> None:
        """Writes what is left."""
        if self._run is not None:
            self.module.finish()
            self._run = None


class Wandb(Tracker):
    """Weights & Biases, with a copy in OUT/track/wandb. WANDB_MODE=offline: only that; `wandb sync`
    uploads it later.
    """

    name, package = "wandb", "wandb"

    def prepare(self) -> None:
        """Nothing."""
        self._run: Any = None

    def open(self, run: str, config: dict[str, Any], step: int) -> None:
        """A run goes on by its id."""
        self._sent = SentSteps(self.folder / f"{run}.json", step)
        settings = self.module.Settings(
            console="off", silent=True, disable_git=True, save_code=False
        )
        self._run = self.module.init(
            project=f"tokencodes-{self.project}",
            name=run,
            id=self._sent.id,
            resume="allow" if self._sent.resumed else None,
            dir=str(self.folder.parent),  # it adds a folder `wandb` by itself
            config=config,
            settings=settings,
        )

    def log(self, kind: str, numbers: dict[str, float], texts: dict[str, str], step: int) -> None:
        """Records of one step become one row; texts belong to the configuration."""
        if numbers and self._sent.new(kind, step):
            self._run.log(numbers, step=step)
        if texts:
            self._run.config.update(texts, allow_val_change=True)

    def close(self) -> None:
        """Writes, and where there is a network uploads, what is left."""
        if self._run is not None:
            self._run.finish()
            self._run = None


TRACKERS: dict[str, type[Tracker]] = {
    tracker.name: tracker for tracker in (TensorBoard, Trackio, Wandb)
}


def trackers(names: list[str], out: Path) -> list[Observer]:
    """The trackers of these names for a run's or a study's folder. InputError: no such tracker, or
    not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise InputError(f"tracker {name!r}: no such tracker; {nearest(name, TRACKERS)}")
    return [TRACKERS[name](out) for name in dict.fromkeys(names)]


class Several:
    """Tells all observers. A tracker that fails is dropped, with one line to the others; training
    goes on.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.observers = list(observers)

    def begin(self, name: str, step: int, steps: int) -> None:
        """To all."""
        self._each(lambda observer: observer.begin(name, step, steps))

    def record(self, record: Record) -> None:
        """To all."""
        self._each(lambda observer: observer.record(record))

    def say(self, line: str) -> None:
        """To all."""
        self._each(lambda observer: observer.say(line))

    def end(self) -> None:
        """To all."""
        self._each(lambda observer: observer.end())

    def _each(self, tell: Callable[[Observer], None]) -> None:
        for observer in tuple(self.observers):
            try:
                tell(observer)
            except Exception as error:
                pass_on_interruption(error)
                if not isinstance(observer, Tracker):
                    raise
                self._drop(observer, error)

    def _drop(self, tracker: Tracker, error: Exception) -> None:
        self.observers.remove(tracker)
        with suppress(Exception):
            tracker.end()
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        self.say(
            f"tracker {tracker.name!r} failed and is dropped ({why}); training goes on,"
            " metrics.jsonl has everything"
        )
