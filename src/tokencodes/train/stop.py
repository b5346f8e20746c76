"""A stop that is asked for by a signal, and done at a step's boundary."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Stop:
    """Set by Ctrl-C or SIGTERM, read at step boundaries."""

    requested: bool = False

    @contextmanager
    def listen(self) -> Iterator["Stop"]:
        """The first signal asks for a stop at the next boundary; a second Ctrl-C ends the program
        as usual.

        Not under torchrun: there a terminal's Ctrl-C comes twice, once from the terminal and once
        from torchrun.
        """
        launched = "TORCHELASTIC_RUN_ID" in os.environ

        def ask(number: int, frame: FrameType | None) -> None:
            first, self.requested = not self.requested, True
            if not launched:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                print(
                    "stopping at the next step; Ctrl-C again ends at once",
                    file=sys.stderr,
                    flush=True,
                )
            elif first and os.environ.get("RANK") == "0":
                print("stopping at the next step", file=sys.stderr, flush=True)

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
