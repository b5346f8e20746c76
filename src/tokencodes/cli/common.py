"""What all commands share: the app, the options, and how a result is shown.

Modules of commands import little at their top: what a command needs is imported inside it, so that help, and commands that work
on text alone, do not wait for torch.
"""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import tokencodes

if TYPE_CHECKING:
    from tokencodes.train.metrics import Observer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train, verify and study decoder language models whose token inputs are fixed codes.",
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else there.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one value; repeatable.")]
Track = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Show runs in tensorboard, trackio or wandb too; repeatable.")
]
Preset = Annotated[str, typer.Argument(help="A preset's name, or a TOML file.")]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to.")]


def speaks() -> bool:
    """Whether this process is the first rank, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def emit(as_json: bool, value: Any, text: str | Table) -> None:
    """The result: JSON for a program, text or a table for a person. Of several ranks, the first one speaks."""
    if not speaks():
        return
    if as_json:
        print(json.dumps(value, ensure_ascii=False, allow_nan=False))
    elif isinstance(text, Table):
        Console(width=None if sys.stdout.isatty() else 140).print(text)
    else:
        print(text)


def short(value: Any) -> str:
    """A value in a table's cell."""
    if isinstance(value, tuple):
        shown = [f"{one:.4g}" for one in value[:8]]
        return ", ".join(shown) + (f", ... ({len(value)} in all, last {value[-1]:.4g})" if len(value) > 8 else "")
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not applicable"}[value]
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)


def observer(as_json: bool, track: list[str] | None = None, out: Path = Path()) -> "Observer":
    """Who is told what happens: a person, but where a program reads the output; and trackers, which write into `out`."""
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
        nodes = f"--nnodes {ranks // here} --rdzv-endpoint HOST:PORT --rdzv-backend c10d " if ranks > here else ""
        return f"torchrun {nodes}{told}"
    program = Path(sys.argv[0]) if Path(sys.argv[0]).name == "tokencodes" else Path("tokencodes")
    if program.is_absolute():
        found = shutil.which("tokencodes")
        program = Path("tokencodes") if found and Path(found) == program else Path(os.path.relpath(program))
    return shlex.join([str(program), *sys.argv[1:]])


def stopped(as_json: bool, where: Path) -> None:
    """Says that the work was stopped at a safe place, and how it goes on."""
    emit(as_json, {"done": False, "out": str(where)}, f"Stopped; everything up to here is saved. To go on:\n  {again()}")


def show_version(asked: bool) -> None:
    """For --version."""
    if asked:
        print(tokencodes.__version__)
        raise typer.Exit()


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=show_version, is_eager=True)] = False,
) -> None:
    """Train, verify and study decoder language models whose token inputs are fixed codes."""


def quiet() -> None:
    """No progress bars of transformers' among our lines."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
