"""The journal of an evaluation: passes that are done, so that a killed evaluation goes on.

journal/
  batch.json              tokens of a pass, as the evaluation was begun
  passes-NAME.jsonl       one line a pass: its number, log-probabilities, greedy flags,
                          and a SHA-256 over all of these

NAME is for one model and one plan. It is part of what is hashed, so a line of another journal is
not believed either.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tokencodes.errors import InputError
from tokencodes.files import read_json_lines, write_json
from tokencodes.records import Record, checked_lines, read_record

BATCH_FILE = "batch.json"
REMEDY = "remove this file and repeat the command: what it holds is computed again"

Answer = tuple[NDArray[np.float32], NDArray[np.bool_]]


class Batch(Record):
    """batch.json."""

    batch_tokens: Annotated[int, Field(ge=1)]


class Line(Record):
    """One pass: log-probabilities in nats and whether each token was the most likely one, for all
    that is asked for there.
    """

    number: Annotated[int, Field(ge=0, alias="pass")]
    log_probs: tuple[float, ...]
    best: tuple[bool, ...]
    sha256: str


def noted_batch(folder: Path | None) -> int | None:
    """The batch size with which an evaluation was begun; None where none was. InputError if the
    file is damaged.
    """
    place = folder / BATCH_FILE if folder else None
    return read_record(place, Batch, REMEDY).batch_tokens if place and place.is_file() else None


class Journal:
    """The passes of one model and one plan that are done. Without a folder nothing is kept.

    sizes: how many log-probabilities each pass of the plan has. InputError names the file and the
    line that is damaged.
    """

    def __init__(
        self, folder: Path | None, name: str, batch_tokens: int, sizes: Sequence[int]
    ) -> None:
        self.batch_tokens, self.name = batch_tokens, name
        self.path = folder / f"passes-{name}.jsonl" if folder else None
        self.done: dict[int, Answer] = {}
        self._file: Any = None
        if self.path:
            self._read(self.path, sizes)

    def _read(self, path: Path, sizes: Sequence[int]) -> None:
        for at, line in enumerate(checked_lines(read_json_lines(path), Line, path, REMEDY), 1):
            # too large a number becomes infinite, and another hash
            with np.errstate(over="ignore"):
                log_probs, best = (
                    np.array(line.log_probs).astype(np.float32),
                    np.array(line.best, dtype=bool),
                )
            if self._sha256(line.number, log_probs, best) != line.sha256:
                raise InputError(
                    f"{path}, line {at}: its SHA-256 is not that of its values in this journal;"
                    f" {REMEDY}"
                )
            if line.number >= len(sizes) or {len(log_probs), len(best)} != {sizes[line.number]}:
                raise InputError(f"{path}, line {at}: no pass of this evaluation; {REMEDY}")
            self.done[line.number] = log_probs, best

    def _sha256(self, number: int, log_probs: NDArray[np.float32], best: NDArray[np.bool_]) -> str:
        values = json.dumps([self.name, number, log_probs.tolist(), best.tolist()])
        return hashlib.sha256(values.encode()).hexdigest()

    def __enter__(self) -> "Journal":
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path.parent / BATCH_FILE, {"batch_tokens": self.batch_tokens})
            self._file = self.path.open("ab")
            self._file.truncate(_whole_lines(self.path))  # a line that a kill cut short goes
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            self._file.close()

    def note(self, number: int, answer: Answer) -> None:
        """Writes down one pass."""
        if self._file:
            log_probs, best = answer
            line = {
                "pass": number,
                "log_probs": log_probs.tolist(),
                "best": best.astype(int).tolist(),
            }
            line["sha256"] = self._sha256(number, log_probs, best)
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()


def _whole_lines(path: Path) -> int:
    """Bytes up to the end of the last line that was finished."""
    return path.read_bytes().rfind(b"\n") + 1
