"""What all commands share: the app, the options, and who is told what happens.

Modules of commands import little at their top: what a command needs is imported inside it, so that
help, and commands that work on text alone, do not wait for torch.
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
    """Who is told what happens: a person, but where a program reads the output; and trackers, which
    write into `out`.
    """
    from tokencodes.train.metrics import Silent, Terminal

    someone = Silent() if as_json else Terminal()
    if not track:
        return someone
    from tokencodes.train.track import Several, trackers

    found = trackers(track, out)  # by every rank, so that all of them refuse a name
    return Several([someone, *found]) if speaks() else someone


def again() -> str:
    """The command that was given, as it can be given again from here."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        here, ranks = (int(os.environ[name]) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
        told = shlex.join(["--nproc-per-node", str(here), "-m", "tokencodes", *sys.argv[1:]])
        nodes = (
            f"--nnodes {ranks // here} --rdzv-endpoint HOST:PORT --rdzv-backend c10d "
            if ranks > here
            else ""
        )
        return f"torchrun {nodes}{told}"
    program = Path(sys.argv[0]) if Path(sys.argv[0]).name == "tokencodes" else Path("tokencodes")
    if program.is_absolute():
        found = shutil.which("tokencodes")
        program = (
            Path("tokencodes")
            if found and Path(found) == program
            else Path(os.path.relpath(program))
        )
    return shlex.join([str(program), *sys.argv[1:]])


def stopped(as_json: bool, where: Path) -> None:
    """Says that the work was stopped at a safe place, and how it goes on."""
    emit(
        as_json,
        {"done": False, "out": str(where)},
        ["Stopped; everything up to here is saved. To go on:", f"  {again()}"],
    )


def show_version(asked: bool) -> None:
    """For --version."""
    if asked:
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
    """No progress bars of transformers' among our lines."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
