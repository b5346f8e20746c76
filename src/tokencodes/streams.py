"""Standard output and error of a command that no reader can break.

- A terminal without UTF-8: characters that it lacks are replaced, as `escape` has it.
- A reader that stops reading (`tokencodes inspect data | head`): the rest is dropped. The work goes
  on, and the exit status
  is that of the work.
- A closed stream (`>&-`): it leads nowhere, and no file that is opened later takes its number.
- A full disk behind the stream: one error, as of any other file.
"""

import errno
import io
import os
import sys
from typing import Any, TextIO

from tokencodes.escape import ENCODE_ERRORS

STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = range(3)


class _Patient(io.FileIO):
    """A descriptor that fails at most once, and never because its reader has gone. That standard
    error fails cannot be said.
    """

    failed = False

    def write(self, data: Any, /) -> int:
        """As FileIO's; what can no longer be written counts as written."""
        if self.failed:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self.failed = True
            if error.errno == errno.EPIPE or self.fileno() == STANDARD_ERROR:
                return len(data)
            raise OSError(error.errno, error.strerror, "standard output") from None


def settle_streams() -> None:
    """Replaces sys.stdout and sys.stderr. A program calls it once, before it opens a file."""
    for descriptor in (STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout, sys.stderr = (
        _settled(sys.stdout, STANDARD_OUTPUT),
        _settled(sys.stderr, STANDARD_ERROR),
    )


def _settled(stream: TextIO | None, descriptor: int) -> TextIO:
    raw = _Patient(descriptor, "w", closefd=False)
    if not isinstance(stream, io.TextIOWrapper):  # it was closed
        return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", ENCODE_ERRORS)
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        stream.encoding,
        ENCODE_ERRORS,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
