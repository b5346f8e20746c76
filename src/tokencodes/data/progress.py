"""How far a preparation is, as lines that read well in a terminal and in a log file."""

import threading
import time
from collections.abc import Callable

from tokencodes.data.convert import Progress
from tokencodes.measured import significant

EVERY = 5.0  # seconds between lines


class PreparationProgress:
    """Adds up the reports of all workers; says a line every few seconds, and one at the end."""

    def __init__(self, inputs: int, total_bytes: int, say: Callable[[str], None]) -> None:
        self._inputs, self._total, self._say = inputs, total_bytes, say
        self._lock = threading.Lock()
        self._began = self._said = time.monotonic()
        self._done_inputs = self._read = self._text = self._tokens = self._skipped = 0

    def add(self, progress: Progress) -> None:
        """One report of a worker."""
        with self._lock:
            self._read += progress.input_bytes
            self._text += progress.text_bytes
            self._tokens += progress.tokens
            if time.monotonic() - self._said >= EVERY:
                self._said = time.monotonic()
                self._say(self.line())

    def input_done(self, skipped_bytes: int = 0) -> None:
        """An input is converted; `skipped_bytes` of its file were not read now, because an earlier
        run had done so.
        """
        with self._lock:
            self._done_inputs += 1
            self._skipped += skipped_bytes

    def line(self) -> str:
        """Inputs, share, MB and tokens a second since the beginning of this run, time left."""
        seconds = max(1e-9, time.monotonic() - self._began)
        left = (
            (self._total - self._skipped - self._read) * seconds / self._read if self._read else 0.0
        )
        # Of what is fetched from the hub no size is known beforehand.
        share = (
            (self._read + self._skipped) / self._total
            if self._total
            else self._done_inputs / max(1, self._inputs)
        )
        return (
            f"prepared {self._done_inputs:,} of {self._inputs:,} inputs, {share:.0%}:"
            f" {self._tokens:,} tokens, {significant(self._text / seconds / 1e6)} MB/s of text,"
            f" {significant(self._tokens / seconds / 1e6)} M tokens/s, {_clock(max(0.0, left))}"
            " left"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
