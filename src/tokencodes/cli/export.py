"""Commands that export and import models: export, import, push."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tokencodes.cli.common import Json, Out, app, quiet
from tokencodes.cli.printing import Table, emit, note


@contextmanager
def heeding_terminate() -> Iterator[None]:
    """Within this context, SIGTERM ends the command as Ctrl-C does, and no partial result stays."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


Force = Annotated[
    bool, typer.Option("--force", help="Replace a folder that export or import made.")
]


@app.command()
def export(
    checkpoint: Annotated[
        str,
        typer.Argument(help="A run, a checkpoint, a model folder of train or import, or a hub id."),
    ],
    to: Annotated[str, typer.Option(help="llama, gguf, onnx.")],
    out: Out,
    weights: Annotated[
        str, typer.Option("--dtype", help="F32; llama and gguf also F16, BF16; gguf also Q8_0.")
    ] = "F32",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a model for other runtimes, open it there, and certify that it computes the same
    function; exit 1 if it does not.
    """
    from tokencodes.export.export_model import check_export_options
    from tokencodes.export.export_model import export as make
    from tokencodes.hub import fetch

    check_export_options(to, weights, out, force)  # before a model is fetched

    quiet()
    with heeding_terminate():
        exported = make(fetch(checkpoint), to, out, weights, force)
    table = Table(
        "runtime",
        "version",
        "result",
        "logits apart",
        "KL, mean nats",
        "greedy steps equal",
        title=f"{exported.name}, {exported.checkpoint} -> {out}",
    )
    for runtime in exported.runtimes:
        table.add_row(*runtime.cells())
    emit(as_json, exported.as_json(), table)
    absent = [
        f"{runtime.runtime}: not run, {runtime.detail}"
        for runtime in exported.runtimes
        if runtime.status == "not run"
    ]
    for line in absent + (
        []
        if exported.tokenizer
        else ["no tokenizer lies beside the model, so none is in the export"]
    ):
        note(line)


@app.command("import")
def import_model(
    place: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A plain Llama folder, or another program's checkpoint; a hub id."
        ),
    ],
    out: Out,
    interface: Annotated[
        str | None, typer.Option(help="Its interface, where it cannot be found.")
    ] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="JSON of their tensors' names and ours.")
    ] = None,
    logits: Annotated[
        Path | None, typer.Option(help="input_ids and logits of another program's checkpoint.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Convert a plain Llama, or a foreign checkpoint, to a compact model; exit 1 if it does not
    give the original logits.
    """
    from tokencodes.hub import fetch
    from tokencodes.importing.import_model import check_import_options
    from tokencodes.importing.import_model import import_model as make

    check_import_options(out, interface, map_file, logits, force)  # before a model is fetched

    quiet()
    with heeding_terminate():
        imported = make(fetch(place), out, interface, map_file, logits, force)
    table = Table("theirs", "ours", "by", title=f"{place} -> {out}")
    for entry in imported.mapping:
        table.add_row(entry.source_name, ", ".join(entry.ours) or "-", entry.by)
    if not as_json and imported.mapping:
        emit(False, None, table)
    emit(
        as_json,
        imported.as_json(),
        f"{out}: {imported.recognised_by}; compared on {imported.compared}",
    )
    for line in imported.notes:
        note(f"note: {line}")


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="What export or import made.")],
    repository: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="The repository on the hub.")
    ],
    public: Annotated[
        bool, typer.Option("--public", help="Everyone may read it, if it is new.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show every file and its size, and send nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Upload an export to the Hugging Face hub."""
    from tokencodes.hub import push as send

    sent = send(folder, repository, not public, dry_run)
    table = Table(
        "file",
        "bytes",
        title=f"{folder} -> {repository}" + (" (nothing is sent)" if dry_run else ""),
    )
    for file in sent:
        table.add_row(file.name, f"{file.bytes:,}")
    table.add_row("together", f"{sum(file.bytes for file in sent):,}")
    emit(
        as_json,
        {"repository": repository, "sent": not dry_run, "files": [asdict(file) for file in sent]},
        table,
    )
