"""Commands that work on text: tokenizer, prepare, inspect, ledger. They import torch only where
they need it.
"""

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tokencodes.cli.common import Json, Out, Sets, again, app, observer
from tokencodes.cli.printing import Table, emit
from tokencodes.errors import InputError

if TYPE_CHECKING:
    from tokencodes.data.dataset import Dataset
    from tokencodes.data.entries import Moved
    from tokencodes.data.inspect import Inspection

Inputs = Annotated[
    list[str],
    typer.Argument(
        help=(
            "Files, folders, globs, hf:OWNER/NAME/FOLDER, embedded:NAME; for prepare also one"
            " preset."
        )
    ),
]


@app.command()
def tokenizer(
    inputs: Inputs,
    vocab_size: Annotated[int, typer.Option(help="Vocabulary size V.")],
    out: Annotated[Path, typer.Option(help="tokenizer.json to write.")],
    validation_fraction: Annotated[
        float, typer.Option(help="Share of documents that is held out, and not read here.")
    ] = 0.001,
    split_seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    text_column: Annotated[
        str, typer.Option(help="Key or column of the text; dots for what is nested.")
    ] = "text",
    id_column: Annotated[str, typer.Option(help="Key or column of the document's id.")] = "id",
    as_json: Json = False,
) -> None:
    """Train a byte-level BPE on the training documents."""
    from tokencodes.data.options import PrepareOptions
    from tokencodes.data.text import Columns
    from tokencodes.data.tokenizer import TokenizerFile, train_tokenizer
    from tokencodes.train.corpus import resolve_inputs, training_texts

    if out.exists():
        raise InputError(f"{out}: exists; remove it or choose another --out")
    options = PrepareOptions(
        split_seed=split_seed,
        validation_fraction=validation_fraction,
        columns=Columns(text_column, id_column),
    )
    train_tokenizer(training_texts(resolve_inputs(tuple(inputs)), options), vocab_size, out)
    file = TokenizerFile(out)
    emit(
        as_json,
        {"tokenizer": str(out), "sha256": file.sha256, "vocab_size": file.vocab_size},
        f"{out}: {file.vocab_size:,} entries",
    )


@app.command()
def prepare(
    inputs: Inputs,
    out: Out,
    tokenizer_file: Annotated[
        Path | None, typer.Option("--tokenizer", help="A tokenizer.json.")
    ] = None,
    validation_fraction: Annotated[
        float | None, typer.Option(help="Share of documents that is held out; 0.001 if not told.")
    ] = None,
    split_seed: Annotated[
        int | None, typer.Option(help="Seed of the split; 0 if not told.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Key or column of the text; dots for what is nested.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Key or column of the document's id.")
    ] = None,
    source_column: Annotated[
        str | None, typer.Option(help="Key or column that names each document's source.")
    ] = None,
    end_of_text: Annotated[
        Literal["append", "none"] | None, typer.Option(help="The token that ends a document.")
    ] = None,
    min_document_tokens: Annotated[
        int | None, typer.Option(help="Leave out shorter documents, and count them.")
    ] = None,
    shard_tokens: Annotated[
        int | None, typer.Option(help="Size at which a shard is closed.")
    ] = None,
    on_error: Annotated[
        Literal["stop", "skip"] | None,
        typer.Option(help="What cannot be a document: an error, or left out and counted."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=1 << 16, help="Processes, each with one input at a time.")
    ] = 1,
    tokenizer_engine: Annotated[
        Literal["cached", "reference"],
        typer.Option(help="cached: same ids, faster; reference: the tokenizers library alone."),
    ] = "cached",
    batch_mb: Annotated[
        float, typer.Option(help="Megabytes of text that a worker holds at a time.")
    ] = 4.0,
    engine: Annotated[
        Literal["local", "slurm", "ray"],
        typer.Option(help="Where workers run; slurm and ray through datatrove."),
    ] = "local",
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="For slurm (time=, partition=, ...) or ray; repeatable."
        ),
    ] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Convert text into shards. INPUT is text, or a preset that names it. Repeating the command
    continues where it stopped.
    """
    from tokencodes.data.prepare import Means
    from tokencodes.train.corpus import DatasetRequest, prepare_dataset

    if not 0 < batch_mb <= 1 << 20:
        raise InputError(
            f"--batch-mb {batch_mb}: it must be above 0, and at most {1 << 20:,} megabytes"
        )
    say = observer(as_json).say
    given_options = {
        "validation_fraction": validation_fraction,
        "split_seed": split_seed,
        "text_column": text_column,
        "id_column": id_column,
        "source_column": source_column,
        "end_of_text": end_of_text,
        "min_document_tokens": min_document_tokens,
        "shard_tokens": shard_tokens,
        "on_error": on_error,
    }
    request = DatasetRequest(
        tuple(inputs),
        tokenizer_file,
        {key: value for key, value in given_options.items() if value is not None},
        sets or [],
    )
    means = Means(
        workers, tokenizer_engine, max(1, int(batch_mb * (1 << 20))), engine, tuple(cluster or ())
    )
    dataset = prepare_dataset(request, out, means, say)
    if dataset is None:
        emit(
            as_json,
            {"done": False, "out": str(out)},
            ["Submitted. When the jobs are done, this seals it:", f"  {again()}"],
        )
        return
    emit(as_json, {"done": True, **_prepared(dataset)}, _preparation(dataset))


def _prepared(dataset: "Dataset") -> dict[str, object]:
    counts, moved = dataset.counts, dataset.manifest.moved
    return {
        "dataset": str(dataset.path),
        "fingerprint": dataset.fingerprint,
        "tokens": sum(shard.tokens for shard in dataset.own_shards),
        "documents": counts.documents,
        "kept": counts.kept,
        "dropped": counts.dropped,
        "noted": counts.noted,
        "text_bytes": counts.text_bytes,
        "lost_bytes": counts.lost_bytes,
        "moved": (
            None
            if moved is None
            else {"to": moved.to, "documents": moved.documents, "ids": _moved_ids(dataset, moved)}
        ),
    }


def _moved_ids(dataset: "Dataset", moved: "Moved") -> list[str]:
    """Returns the ids of the first few documents that changed sides."""
    names = (name for shard in dataset.shards(moved.to) for name in shard.names()["id"].to_pylist())
    return list(islice(names, 3))


def _preparation(dataset: "Dataset") -> list[str]:
    from tokencodes.train.corpus import lost

    counts, moved = dataset.counts, dataset.manifest.moved
    tokens = sum(shard.tokens for shard in dataset.own_shards)
    lines = [
        f"{dataset.path}: {counts.kept:,} of {counts.documents:,} documents, {tokens:,} tokens, "
        f"fingerprint {dataset.fingerprint[:12]}"
    ]
    if moved is not None:
        extreme = "lowest" if moved.to == "validation" else "highest"
        named = ", ".join(_moved_ids(dataset, moved))
        lines.append(
            f"  the {moved.to} side would be empty, so it got the document of the {extreme} split"
            f" hash: {named}"
        )
    if counts.lost_bytes != 0:
        lines.append(f"  {lost(counts)}")
    for verb, kinds in (("dropped", counts.dropped), ("noted", counts.noted)):
        for kind, count in kinds.items():
            first = f" (first: {counts.examples[kind]})" if kind in counts.examples else ""
            lines.append(f"  {verb} {count:,}: {kind}{first}")
    return lines


@app.command()
def inspect(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    context: Annotated[
        int, typer.Option(min=1, help="Context T, for what is eligible and how often it is seen.")
    ] = 2048,
    full: Annotated[
        bool, typer.Option("--full", help="Read every byte against its checksum.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a dataset: counts, lengths, sources, what the paper's sampling would see, checksums."""
    from tokencodes.data.dataset import Dataset
    from tokencodes.data.inspect import inspect as inspect_dataset

    inspection = inspect_dataset(Dataset(dataset), context, full)
    emit(as_json, inspection.as_json(), _inspection(inspection))


def _inspection(inspection: "Inspection") -> Table:
    table = Table(
        "",
        "",
        "",
        title=f"{inspection.path}, V = {inspection.vocab_size:,}, T = {inspection.context:,}",
    )
    for side, facts in inspection.sides.items():
        share = facts.eligible_tokens / facts.tokens if facts.tokens else 0.0
        table.add_row(
            side,
            f"{facts.documents:,} documents, {facts.tokens:,} tokens, {facts.shards:,} shards",
            f"{facts.eligible_documents:,} documents with T + 1 tokens hold {share:.1%} of the"
            " tokens",
        )
    for verb, kinds in (("dropped", inspection.dropped), ("noted", inspection.noted)):
        for kind, count in kinds.items():
            table.add_row(
                f"{verb}: {kind}",
                f"{count:,}",
                f"{count / max(1, inspection.read):.3%} of {inspection.read:,} documents read",
            )
    lost = (
        "unknown: tokens are not the bytes of the text"
        if inspection.lost_bytes is None
        else f"{inspection.lost_bytes:,}"
    )
    table.add_row(
        "bytes that no token stands for", lost, f"of {inspection.text_bytes:,} bytes of text"
    )
    if inspection.moved is not None:
        table.add_row(
            f"moved to {inspection.moved['to']}",
            f"{inspection.moved['documents']:,} documents",
            "because it would be empty",
        )
    table.add_section()
    total = sum(inspection.sources.values())
    for name, tokens in inspection.sources.items():
        table.add_row(f"source: {name}", f"{tokens:,} tokens", _bar(tokens / max(1, total)))
    table.add_section()
    for interval in inspection.lengths:
        if interval.documents:
            table.add_row(
                f"length {interval.low + 1:,.0f} to {interval.high:,.0f}",
                f"{interval.documents:,} documents, {interval.tokens:,} tokens",
                _bar(interval.share),
            )
    table.add_section()
    if inspection.exposure is None:
        table.add_row("exposure", "nothing is seen", "no training document has T + 1 tokens")
    else:
        seen = inspection.exposure
        table.add_row(
            "exposure: never seen",
            f"{seen.unseen:.1%} of the tokens",
            "in documents shorter than T + 1 tokens",
        )
        table.add_row("exposure: interior of documents", f"{seen.interior:.2f} of the mean", "")
        table.add_row(
            "exposure: towards the ends of documents", f"{seen.edges:.2f} of the mean", ""
        )
        for interval in seen.histogram:
            high = "and more" if interval.high is None else f"to {interval.high:g}"
            table.add_row(
                f"exposure {interval.low:g} {high} of the mean",
                f"{interval.tokens:,} tokens",
                f"{_bar(interval.share)} of what is seen",
            )
    table.add_section()
    table.add_row("fingerprint", inspection.fingerprint[:16], f"checked: {inspection.checked}")
    return table


def _bar(share: float) -> str:
    return f"{'█' * round(20 * share):<20} {share:.1%}"


@app.command()
def ledger(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    step: Annotated[int, typer.Argument(help="A step, counted from 1 as in metrics.jsonl.")],
    as_json: Json = False,
) -> None:
    """Show which windows a step consumed, or will consume: source, document and offset of each."""
    from tokencodes.train.ledger import read_ledger

    entries = read_ledger(run, step)
    several = len({entry.dataset for entry in entries}) > 1
    columns = (
        "window",
        *(["dataset"] if several else []),
        "source",
        "document",
        "shard",
        "no.",
        "start",
        "tokens",
    )
    table = Table(*columns, title=f"{run}, step {step:,}")
    for entry in entries:
        where = (entry.dataset,) if several else ()
        cells = (
            entry.window,
            *where,
            entry.source,
            entry.id,
            entry.shard,
            entry.document,
            entry.start,
            entry.tokens,
        )
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells))
    emit(
        as_json,
        {"run": str(run), "step": step, "windows": [asdict(entry) for entry in entries]},
        table,
    )
