"""The one error a user can act on. `cli` prints it as one line and exits with 2."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class InputError(ValueError):
    """Unusable input. The message is one line: the value, the place, the way out."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: `did you mean 'lr'?`, or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def first_line(error: BaseException, most: int = 160) -> str:
    """What another library's error says, cut to fit into one line of ours; its kind where it says
    nothing.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:most]


def pass_on_interruption(error: BaseException) -> None:
    """Raises KeyboardInterrupt where Ctrl-C is at the root of an error: some libraries make an
    error of their own of it.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        cause = cause.__cause__ or cause.__context__


@contextmanager
def loading(place: Path | str, remedy: str = "take a complete copy") -> Iterator[None]:
    """Within it, whatever another library raises about a model's files becomes an InputError of one
    line.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # each library has errors of its own for files that are damaged
        pass_on_interruption(error)
        raise InputError(f"{place}: cannot be loaded ({first_line(error)}); {remedy}") from error


class CodeMismatch(InputError):
    """A stored code is not the one that its spec names."""


class CheckFailed(RuntimeError):
    """Something that was checked does not hold, and no input is to blame. `cli` prints it as one
    line and exits with 1.
    """

    everywhere = False  # whether every rank raises it in the same words, so that one need say it


class Elsewhere(CheckFailed):
    """Another rank met the error and says it; this one only ends with it. `cli` prints nothing."""
