"""The commands. Each command parses its options, calls one function and prints the result. No logic
is here.

Every command takes --json: it then prints one JSON object on standard output and nothing else
there. Exit status 0: done. 1: a check did not hold. 2: unusable input; one line names the value,
the place and the remedy.
"""

import os
import sys

import typer
from safetensors import SafetensorError
from typer.exceptions import TyperException

# The import of each module adds its commands.
from tokencodes.cli import data, evaluate, export, models, runs, submit  # noqa: F401
from tokencodes.cli.common import app
from tokencodes.cli.printing import note, speaks
from tokencodes.errors import CheckFailed, Elsewhere, InputError, first_line, pass_on_interruption

INTERRUPTED = "interrupted; what was finished is intact, and the same command goes on from there"
NOTHING_WRITTEN = "interrupted; nothing was written, and the same command begins anew"


def main() -> None:
    """Entry point. It turns errors that a user can act on into one line and an exit status."""
    status = run(sys.argv[1:])
    if "torch.distributed" in sys.modules and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        # A rank exits without a shutdown of the interpreter: threads of a finished exchange may
        # abort it during a shutdown.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Runs one command; returns its exit status."""
    interrupted = NOTHING_WRITTEN if arguments[:1] in (["export"], ["import"]) else INTERRUPTED
    try:
        status = _called(arguments)
        sys.stdout.flush()  # a full disk raises its error here, not at exit
        return _complain(interrupted, 130) if status == 130 else int(status or 0)
    except CheckFailed as error:
        if isinstance(error, Elsewhere) or (error.everywhere and not speaks()):
            return 1
        return _complain(str(error), 1)
    except InputError as error:
        return (
            _complain(str(error), 2) if speaks() else 2
        )  # every rank raises it, and one prints it
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _complain(interrupted, 130)
    except MemoryError as error:
        return _no_memory(error)
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(
            error
        ):  # of torch, on a GPU or a CPU
            return _no_memory(error)
        raise
    except TyperException as error:
        message = error.format_message()
        command = [arguments[0]] if arguments and not arguments[0].startswith("-") else []
        see = " ".join(["tokencodes", *command, "--help"])
        # without arguments, typer has shown the help
        return _complain(f"{message} (see {see})", 2) if message else 2
    except UnicodeEncodeError as error:
        # the name of a file or folder, with lone surrogates for bytes that are not UTF-8
        name = str(error.object)[:160]
        return _complain(
            f"{name!r}: holds bytes that are not UTF-8, so no file can record it; choose another"
            " name",
            2,
        )
    except SafetensorError as error:
        return _complain(
            f"could not write or read tensors ({error}); is the disk full? What was finished before"
            " is intact",
            2,
        )
    except OSError as error:
        if error.errno is None:  # numpy raises it after an incomplete write
            return _complain(f"{error}; is the disk full? What was finished before is intact", 2)
        place = f"{error.filename}: " if error.filename else ""
        return _complain(
            f"{place}{error.strerror}; what was finished before is intact: mend this and repeat the"
            " command",
            2,
        )


def _called(arguments: list[str]) -> int | None:
    """Runs one command and returns its status. Raises KeyboardInterrupt after Ctrl-C, even where a
    library turned it into another error.
    """
    try:
        status: int | None = app(arguments, standalone_mode=False)
    except Exception as error:
        pass_on_interruption(error)
        raise
    return status


def _no_memory(error: Exception) -> int:
    return _complain(
        f"not enough memory ({first_line(error)}); lower the sizes that were asked for. What was"
        " finished is intact",
        2,
    )


def _complain(line: str, status: int) -> int:
    rank = f" (rank {os.environ['RANK']})" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""
    note(f"tokencodes{rank}: " + " ".join(line.split()))
    return status
