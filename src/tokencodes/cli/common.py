"""What all commands share: the app, the options and the observer.

Modules of commands import little at the top. A command imports what it needs inside its function,
so that help, and commands that work on text alone, do not wait for torch.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import tokencodes
from tokencodes.cli.printing import emit, say, speaks

if TYPE_CHECKING:
    from tokencodes.train.metrics import Observer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train, verify and study decoder language models whose token inputs are fixed codes.",
)

Json = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output, nothing else there.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one value; repeatable."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Show runs in tensorboard, trackio or wandb too; repeatable."
    ),
]
Preset = Annotated[str, typer.Argument(help="A preset's name, or a TOML file.")]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to.")]


def observer(as_json: bool, track: list[str] | None = None, out: Path = Path()) -> "Observer":
    """Returns the observer of a command: a terminal, or a silent one with --json, and the trackers,
    which write into `out`.
    """
    from tokencodes.train.metrics import Silent, Terminal

    console = Silent() if as_json else Terminal()
    if not track:
        return console
    from tokencodes.train.track import Several, trackers

    tracker_observers = trackers(
        track, out
    )  # on every rank, so that all of them refuse an invalid name
    return Several([console, *tracker_observers]) if speaks() else console


def again() -> str:
    """Returns the command line that repeats this command from the current folder."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        here, ranks = (int(os.environ[name]) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
        arguments = shlex.join(["--nproc-per-node", str(here), "-m", "tokencodes", *sys.argv[1:]])
        nodes = (
            f"--nnodes {ranks // here} --rdzv-endpoint HOST:PORT --rdzv-backend c10d "
            if ranks > here
            else ""
        )
        return f"torchrun {nodes}{arguments}"
    program = Path(sys.argv[0]) if Path(sys.argv[0]).name == "tokencodes" else Path("tokencodes")
    if program.is_absolute():
        installed = shutil.which("tokencodes")
        program = (
            Path("tokencodes")
            if installed and Path(installed) == program
            else Path(os.path.relpath(program))
        )
    return shlex.join([str(program), *sys.argv[1:]])


def stopped(as_json: bool, where: Path) -> None:
    """Prints that the work was stopped at a safe place, and how to continue it."""
    emit(
        as_json,
        {"done": False, "out": str(where)},
        ["Stopped; everything up to here is saved. To go on:", f"  {again()}"],
    )


def show_version(requested: bool) -> None:
    """The callback of --version."""
    if requested:
        say(tokencodes.__version__)
        raise typer.Exit()


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """Train, verify and study decoder language models whose token inputs are fixed codes."""


def quiet() -> None:
    """Turns off the progress bars of transformers."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
