"""The commands. Each parses, calls one function, prints; no logic lives here.

Every command takes --json: one JSON object on standard output and nothing else there. Exit 0: done; 1: a check did not hold;
2: unusable input, one line that names the value, the place and the way out.
"""

import json
import os
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError
from transformers.utils.logging import disable_progress_bar
from typer.exceptions import TyperException

import tokencodes
from tokencodes.data.prepare import prepare as prepare_dataset
from tokencodes.data.shards import Dataset
from tokencodes.data.tokenizer import TokenizerFile, train_tokenizer
from tokencodes.errors import CheckFailed, InputError
from tokencodes.files import write_json, write_text
from tokencodes.report.figures import draw_codebook
from tokencodes.report.page import write_report
from tokencodes.study import compare as compare_arms
from tokencodes.train.account import account
from tokencodes.train.corpus import open_dataset, resolve_inputs, training_texts
from tokencodes.train.interface import certificate_of
from tokencodes.train.loop import Stop, check_folder
from tokencodes.train.loop import train as train_run
from tokencodes.train.metrics import Observer, Silent, Terminal
from tokencodes.train.settings import flatten, preset_names, read_study
from tokencodes.verify.certificate import certify, page

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train, verify and study decoder language models whose token inputs are fixed codes.",
)
config_app = typer.Typer(no_args_is_help=True, help="Look at configurations.")
app.add_typer(config_app, name="config")
INTERRUPTED = "interrupted; what was finished is intact, and the same command goes on from there"

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else there.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one value; repeatable.")]
Preset = Annotated[str, typer.Argument(help="A preset's name, or a TOML file.")]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to.")]


def emit(as_json: bool, value: Any, text: str | Table) -> None:
    """The result: JSON for a program, text or a table for a person."""
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


def _observer(as_json: bool) -> Observer:
    return Silent() if as_json else Terminal()


def _again() -> str:
    """The command that was given, as it can be given again from here."""
    program = Path(sys.argv[0]) if Path(sys.argv[0]).name == "tokencodes" else Path("tokencodes")
    if program.is_absolute():
        found = shutil.which("tokencodes")
        program = Path("tokencodes") if found and Path(found) == program else Path(os.path.relpath(program))
    return shlex.join([str(program), *sys.argv[1:]])


def _stopped(as_json: bool, where: Path) -> None:
    emit(as_json, {"done": False, "out": str(where)}, f"Stopped; everything up to here is saved. To go on:\n  {_again()}")


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


@app.command()
def compare(preset: Preset, out: Out, sets: Sets = None, as_json: Json = False) -> None:
    """Train every arm with every seed, then write the report. Repeating the command goes on where it stopped."""
    study, _ = read_study(preset, sets or [])
    with Stop().listen() as stop:
        done = compare_arms(study, out, _observer(as_json), stop)
    if not done:
        _stopped(as_json, out)
        return
    report_file, told = write_report(out)
    emit(as_json, {"done": True, "out": str(out), "report": str(report_file), **told}, f"Report: {report_file}")


@app.command()
def train(
    preset: Preset,
    out: Out,
    arm: Annotated[str | None, typer.Option(help="Arm of the preset; the baseline if not told.")] = None,
    seed: Annotated[int | None, typer.Option(help="Run seed; the preset's first if not told.")] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Train one run. Repeating the command goes on where it stopped."""
    study, _ = read_study(preset, sets or [])
    run = study.run(arm or study.study.baseline, study.study.seeds[0] if seed is None else seed)
    observer = _observer(as_json)
    check_folder(out, run)
    with Stop().listen() as stop:
        result = train_run(run, open_dataset(run.data, out, observer.say), out, observer, stop)
    if result is None:
        _stopped(as_json, out)
        return
    told = (
        f"held-out loss {result['held_out_loss']:.4f} nats a target, {result['bits_per_byte']:.4f} bits a byte; see {out}/model"
    )
    emit(as_json, {"done": True, "out": str(out), **result}, told)


@app.command()
def report(study: Annotated[Path, typer.Argument(help="A study's folder.")], as_json: Json = False) -> None:
    """Rebuild report.html from the results on disk."""
    report_file, _ = write_report(study)
    emit(as_json, {"report": str(report_file)}, f"Report: {report_file}")


@app.command()
def verify(
    checkpoint: Annotated[Path, typer.Argument(help="A run, a checkpoint or an exported folder.")],
    out: Annotated[Path | None, typer.Option(help="Folder for certificate.json and certificate.html.")] = None,
    as_json: Json = False,
) -> None:
    """Check a model from its code to its last update; exit 1 if a check does not hold."""
    certificate = certify(checkpoint)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "certificate.json", certificate.as_json())
        write_text(out / "certificate.html", page(certificate))
    table = Table("", "check", "status", "scope", "found", title=f"{certificate.checkpoint}: {certificate.interface}")
    for check in certificate.checks:
        table.add_row(check.level, check.name, check.status, check.scope, check.detail)
    emit(as_json, certificate.as_json(), table)
    if not certificate.holds:
        first = certificate.failed[0]
        raise CheckFailed(f"{certificate.checkpoint}: {first.level} {first.name}: {first.detail}")


@app.command()
def params(preset: Preset, sets: Sets = None, as_json: Json = False) -> None:
    """Parameters, buffers, memory, updates and FLOPs of every arm, without training."""
    study, _ = read_study(preset, sets or [])
    arms = account(study)
    table = Table("", *arms, title=f"{preset}: float32 training state, counted on the meta device")
    for key in next(iter(arms.values())):
        cells = [facts[key] for facts in arms.values()]
        told = [f"{c:,}" if isinstance(c, int) else f"{c:,.3f}" if isinstance(c, float) else str(c or "-")[:24] for c in cells]
        table.add_row(key.replace("_", " "), *told)
    emit(as_json, {"preset": preset, "arms": arms}, table)


@app.command()
def codes(
    spec: Annotated[str, typer.Argument(help="An interface, WORDS[:key=value,...].")],
    vocab: Annotated[int, typer.Option(help="Vocabulary size V.")],
    width: Annotated[int, typer.Option(help="Model width d.")] = 2048,
    tokenizer_file: Annotated[Path | None, typer.Option("--tokenizer", help="A tokenizer.json: adds the order leak.")] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="A prepared dataset: its tokenizer and token counts, and informed ids.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="An .svg file to draw the code into.")] = None,
    as_json: Json = False,
) -> None:
    """Certificate of one code: identity, geometry, and what the order of its ids gives away."""
    found = certificate_of(spec, vocab, width, tokenizer_file, Dataset(dataset) if dataset else None)
    if picture is not None:
        write_text(picture, draw_codebook(found.book, width, "code"))
    facts = Table("fact", "value", title=f"{found.certificate.spec}, V = {vocab:,}, d = {width:,}")
    for key, value in asdict(found.certificate).items():
        facts.add_row(key.replace("_", " "), short(value))
    for leak in found.leaks:
        facts.add_row(
            f"leak: {leak.name}", f"{leak.accuracy:.3f} (majority {leak.majority:.3f}, permuted ids {leak.control:.3f})"
        )
    emit(as_json, {**asdict(found.certificate), "leaks": [asdict(leak) for leak in found.leaks]}, facts)


@app.command()
def tokenizer(
    inputs: Annotated[list[str], typer.Argument(help="Text files, folders, or embedded:NAME.")],
    vocab: Annotated[int, typer.Option(help="Vocabulary size V.")],
    out: Annotated[Path, typer.Option(help="tokenizer.json to write.")],
    validation: Annotated[float, typer.Option(help="Share of documents that is held out, and not read here.")] = 0.0,
    split_seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    as_json: Json = False,
) -> None:
    """Train a byte-level BPE on the training documents."""
    if out.exists():
        raise InputError(f"{out}: exists; remove it or choose another --out")
    train_tokenizer(training_texts(resolve_inputs(tuple(inputs)), split_seed, validation), vocab, out)
    file = TokenizerFile(out)
    emit(
        as_json,
        {"tokenizer": str(out), "sha256": file.sha256, "vocab_size": file.vocab_size},
        f"{out}: {file.vocab_size:,} entries",
    )


@app.command()
def prepare(
    inputs: Annotated[list[str], typer.Argument(help="Text files, folders, or embedded:NAME.")],
    tokenizer_file: Annotated[Path, typer.Option("--tokenizer", help="A tokenizer.json.")],
    out: Out,
    validation: Annotated[float, typer.Option(help="Share of documents that is held out.")] = 0.001,
    split_seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    as_json: Json = False,
) -> None:
    """Text into shards. Repeating the command goes on where it stopped."""
    say = _observer(as_json).say
    dataset = prepare_dataset(
        resolve_inputs(tuple(inputs)), tokenizer_file, out, split_seed=split_seed, validation=validation, progress=say
    )
    emit(
        as_json,
        {"dataset": str(out), "fingerprint": dataset.fingerprint},
        f"{out}: fingerprint {dataset.fingerprint[:12]}",
    )


@config_app.command("show")
def config_show(preset: Preset, sets: Sets = None, as_json: Json = False) -> None:
    """Every value of a configuration, and where it comes from."""
    study, origins = read_study(preset, sets or [])
    values = flatten(study.model_dump(mode="json"))
    table = Table("key", "value", "origin", title=preset)
    for key, value in values.items():
        table.add_row(key, "not set" if value is None else str(value), origins[key])
    emit(as_json, {key: {"value": value, "origin": origins[key]} for key, value in values.items()}, table)


@config_app.command("presets")
def config_presets(as_json: Json = False) -> None:
    """The presets in the package."""
    emit(as_json, {"presets": preset_names()}, "\n".join(preset_names()))


def main() -> None:
    """Entry point: turns errors that a user can act on into one line and an exit status."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command; returns its exit status."""
    disable_progress_bar()
    try:
        status = app(arguments, standalone_mode=False)
        return _complain(INTERRUPTED, 130) if status == 130 else int(status or 0)
    except CheckFailed as error:
        return _complain(str(error), 1)
    except InputError as error:
        return _complain(str(error), 2)
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _complain(INTERRUPTED, 130)
    except TyperException as error:
        told = error.format_message()
        return _complain(f"{told} (see tokencodes --help)", 2) if told else 2  # without arguments the help was shown
    except SafetensorError as error:
        return _complain(f"could not write or read tensors ({error}); is the disk full? What was finished before is intact", 2)
    except OSError as error:
        if error.errno is None:  # numpy's, of a write that ended early
            return _complain(f"{error}; is the disk full? What was finished before is intact", 2)
        place = f"{error.filename}: " if error.filename else ""
        return _complain(f"{place}{error.strerror}; what was finished before is intact: mend this and repeat the command", 2)


def _complain(line: str, status: int) -> int:
    print("tokencodes: " + " ".join(line.split()), file=sys.stderr)
    return status
