"""Documents out of files: JSON lines (plain, gzip, zstd), Parquet, plain text (one document a
file).

What cannot be a document is not skipped in silence: it comes out as a `Refusal`, with its kind and
its place, among the documents, and the caller stops or counts. Damage of a whole file (a cut
archive, a bad Parquet footer) is always an error, because nobody can say what was lost.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tokencodes.errors import InputError, first_line

LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".json.zst")
SUFFIXES = (*LINES, ".txt", ".parquet")
PARQUET_ROWS = 256
BYTE_ORDER_MARK = "byte-order mark"


@dataclass(frozen=True)
class Document:
    """One text; `id` is None where the file gives none,
    `source` where no column for it is named."""

    text: str
    id: str | None
    source: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """What stands where a document should: its kind, and one line with file, place and way out."""

    kind: str
    message: str


@dataclass(frozen=True)
class Columns:
    """Where a document's parts are: names of JSON keys or Parquet columns, with dots for what is
    nested.
    """

    text: str = "text"
    id: str = "id"
    source: str | None = None


@dataclass
class Position:
    """How far a file is read, in its own (compressed) bytes."""

    at: int = 0


def read_documents(
    path: Path, columns: Columns = Columns(), *, skip: bool = False
) -> Iterator[Document]:
    """The documents of one file, in order. InputError at the first refusal, unless refusals are to
    be skipped.
    """
    for row in read_rows(path, columns, Position()):
        if isinstance(row, Document):
            yield row
        elif not skip:
            raise InputError(row.message)


def read_rows(path: Path, columns: Columns, position: Position) -> Iterator[Document | Refusal]:
    """Everything in one file, in order. InputError names a file that is damaged as a whole."""
    if path.name.endswith(".parquet"):
        yield from _parquet(path, columns, position)
    elif path.name.endswith(".txt"):
        decoded = _decode(path.read_bytes(), str(path))
        yield (
            decoded
            if isinstance(decoded, Refusal)
            else Document(decoded[0], printable(path.stem), None, decoded[1])
        )
        position.at = path.stat().st_size
    elif not path.name.endswith(LINES):
        raise InputError(f"{path}: holds no text; it must end in {', '.join(SUFFIXES)}")
    else:
        with path.open("rb") as raw:
            yield from _json_lines(path, _unpacked(path, raw), raw, columns, position)


def _unpacked(path: Path, raw: BinaryIO) -> Iterable[bytes]:
    """The lines of a file. Each reader checks what its archive has: gzip its CRC-32 and length,
    zstd its frames' checksums.
    """
    if path.name.endswith((".gz", ".zst")) and not path.stat().st_size:
        raise InputError(
            f"{path}: empty, and even an archive of nothing has a header; take a new copy"
        )
    if path.name.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    if path.name.endswith(".zst"):
        return io.BufferedReader(cast(io.RawIOBase, pa.CompressedInputStream(raw, "zstd")), 1 << 20)
    return raw


def _json_lines(
    path: Path, lines: Iterable[bytes], raw: BinaryIO, columns: Columns, position: Position
) -> Iterator[Document | Refusal]:
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _row(line, f"{path}, line {number}", columns)
            position.at = raw.tell()
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(
            f"{path}, after line {number}: damaged archive ({error}); take a new copy"
        ) from None


def _row(line: bytes, place: str, columns: Columns) -> Document | Refusal:
    decoded = _decode(line, place)
    if isinstance(decoded, Refusal):
        return decoded
    text, notes = decoded
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        return Refusal(
            "not JSON",
            f"{place}: not JSON ({error.msg} at column {error.colno}); mend or remove the line",
        )
    except (
        RecursionError,
        ValueError,
    ) as error:  # nested too deep, or a number of thousands of digits
        return Refusal(
            "not JSON",
            f"{place}: not JSON that can be read ({str(error)[:60]}); mend or remove the line",
        )
    return _document(row, place, columns, notes)


def _document(
    row: Any, place: str, columns: Columns, notes: tuple[str, ...] = ()
) -> Document | Refusal:
    text = _pick(row, columns.text)
    if not isinstance(text, str):
        kind = _why_no_text(row, text, columns.text)
        return Refusal(
            kind,
            f'{place}: no "{columns.text}" that is a string ({kind}); mend or remove it, or name'
            " another text column",
        )
    id, source = _pick(row, columns.id), _pick(row, columns.source) if columns.source else None
    for part, dotted, value in (("id", columns.id, id), ("source", columns.source, source)):
        if isinstance(value, dict | list):
            return Refusal(
                f"odd {part}",
                f"{place}: {dotted!r} holds no single {part} but {type(value).__name__}; name what"
                " is in it",
            )
    parts = {"text": text, "id": _name(id), "source": _name(source)}
    for part, value in parts.items():
        lone = _lone_surrogate(value) if value else None
        if lone is not None:
            return Refusal(
                "lone surrogate",
                f"{place}: a lone surrogate at character {lone} of the {part}; mend or remove the"
                " line",
            )
    return Document(text, parts["id"], parts["source"], notes)


def _why_no_text(row: Any, text: Any, dotted: str) -> str:
    """The kind of a row whose text is no string: its text is missing, is null, or is a value of
    another type.
    """
    if not isinstance(row, dict):
        return f"the row is {_type_name(row)}"
    if text is None:
        return "null text" if _has(row, dotted) else "no text"
    return f"text is {_type_name(text)}"


def _type_name(value: Any) -> str:
    """What JSON calls the type of a value; for other values, such as dates in Parquet, what Python
    calls it.
    """
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        str: "a string",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def printable(name: str) -> str:
    """A file's name as text; what is not UTF-8 in it is replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _name(value: Any) -> str | None:
    """An id or a source as text; nothing for null and for empty text, which tells no document from
    another.
    """
    return None if value is None or value == "" else value if isinstance(value, str) else str(value)


def _has(row: Any, dotted: str) -> bool:
    *path, last = dotted.split(".")
    for part in path:
        row = row.get(part) if isinstance(row, dict) else None
    return isinstance(row, dict) and last in row


def _pick(row: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row


def _parquet(path: Path, columns: Columns, position: Position) -> Iterator[Document | Refusal]:
    size = path.stat().st_size
    try:
        # Without pre-buffering, pages are read as they are needed, so that a row group may be of
        # any size. pyarrow compares a page with its checksum only where that is asked for.
        with pq.ParquetFile(
            path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
        ) as file:
            wanted = {
                dotted.split(".")[0]
                for dotted in (columns.text, columns.id, columns.source)
                if dotted
            }
            names = file.schema_arrow.names
            if columns.text.split(".")[0] not in names:
                raise InputError(
                    f"{path}: no column {columns.text!r} among {', '.join(names)}; name the text"
                    " column"
                )
            for dotted in (columns.source, columns.id if columns.id != Columns.id else None):
                if dotted and dotted.split(".")[0] not in names:
                    raise InputError(
                        f"{path}: no column {dotted!r} among {', '.join(names)}; name one that is"
                        " there"
                    )
            row, rows = 0, file.metadata.num_rows
            for batch in file.iter_batches(
                PARQUET_ROWS, columns=[name for name in names if name in wanted]
            ):
                for record in _records(batch):
                    row += 1
                    place = f"{path}, row {row}"
                    if isinstance(record, ValueError | OverflowError):
                        yield _unreadable(record, place)
                    else:
                        yield _document(record, place, columns)
                position.at = size * row // max(1, rows)
            if row != rows:
                raise InputError(
                    f"{path}: its footer promises {rows:,} rows and {row:,} are there; take a new"
                    " copy"
                )
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(
            f"{path}: not readable as Parquet ({str(error).splitlines()[0]}); take a new copy"
        ) from None


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | ValueError | OverflowError]:
    """The rows of a batch as Python values; the error of a row that has none, as text that is not
    UTF-8.
    """
    try:
        yield from batch.to_pylist()
    except (
        ValueError,
        OverflowError,
    ):  # of a value somewhere in the batch, before any row came out
        for number in range(batch.num_rows):
            try:
                record = batch.slice(number, 1).to_pylist()[0]
            except (ValueError, OverflowError) as error:
                record = error
            yield record


def _unreadable(error: ValueError | OverflowError, place: str) -> Refusal:
    if isinstance(error, UnicodeDecodeError):
        return Refusal("not UTF-8", f"{place}: not UTF-8; mend or remove the row")
    return Refusal(
        "odd value",
        f"{place}: a value that cannot be read ({first_line(error)}); mend or remove the row",
    )


def _decode(data: bytes, place: str) -> tuple[str, tuple[str, ...]] | Refusal:
    """UTF-8 without the mark that some editors put at its beginning, which is no text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return Refusal(
            "not UTF-8",
            f"{place}: not UTF-8 (byte 0x{data[error.start]:02x} at {error.start}); convert it, for"
            " example with iconv",
        )
    return (text[1:], (BYTE_ORDER_MARK,)) if text.startswith("\ufeff") else (text, ())


def _lone_surrogate(text: str) -> int | None:
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
