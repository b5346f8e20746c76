"""Commands that examine one code or one model: codes, verify."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tokencodes.cli.common import Json, app, quiet
from tokencodes.cli.printing import Table, emit, short
from tokencodes.errors import CheckFailed
from tokencodes.files import write_json, write_text


@app.command()
def verify(
    checkpoint: Annotated[
        str, typer.Argument(help="A run, a checkpoint, an exported folder or a hub id.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for certificate.json and certificate.html.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a model from its code to its last step; exit 1 if a check does not hold."""
    from tokencodes.hub import fetch
    from tokencodes.verify.certificate import certify, page

    quiet()

    certificate = certify(fetch(checkpoint))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "certificate.json", certificate.as_json())
        write_text(out / "certificate.html", page(certificate))
    table = Table(
        "",
        "check",
        "status",
        "scope",
        "found",
        title=f"{certificate.checkpoint}: {certificate.interface}",
    )
    for check in certificate.checks:
        table.add_row(check.level, check.name, check.status, check.scope, check.detail)
    emit(as_json, certificate.as_json(), table)
    if not certificate.holds:
        first = certificate.failed[0]
        raise CheckFailed(f"{certificate.checkpoint}: {first.level} {first.name}: {first.detail}")


@app.command()
def codes(
    spec: Annotated[str, typer.Argument(help="An interface, WORDS[:key=value,...].")],
    vocab_size: Annotated[int, typer.Option(help="Vocabulary size V.")],
    width: Annotated[int, typer.Option(help="Model width d.")] = 2048,
    tokenizer_file: Annotated[
        Path | None, typer.Option("--tokenizer", help="A tokenizer.json: adds the order leak.")
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(help="A prepared dataset: its tokenizer and token counts, and informed ids."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="An .svg file to draw the code into.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Certify one code: identity, geometry, and what the order of its ids reveals."""
    from tokencodes.data.dataset import Dataset
    from tokencodes.report.figures import draw_codebook
    from tokencodes.train.interface import certificate_of

    code = certificate_of(
        spec, vocab_size, width, tokenizer_file, Dataset(dataset) if dataset else None
    )
    if picture is not None:
        write_text(picture, draw_codebook(code.book, width, "code"))
    facts = Table(
        "fact", "value", title=f"{code.certificate.spec}, V = {vocab_size:,}, d = {width:,}"
    )
    for key, value in asdict(code.certificate).items():
        facts.add_row(key.replace("_", " "), short(value))
    for leak in code.leaks:
        facts.add_row(
            f"leak: {leak.name}",
            f"{leak.accuracy:.3f} (majority {leak.majority:.3f}, permuted ids {leak.control:.3f})",
        )
    emit(
        as_json,
        {**asdict(code.certificate), "leaks": [asdict(leak) for leak in code.leaks]},
        facts,
    )
