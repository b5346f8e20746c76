"""Documents out of files: JSON lines (plain or gzip), Parquet, plain text (one document a file)."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokencodes.errors import InputError

SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".parquet")
PARQUET_ROWS = 4096


@dataclass(frozen=True)
class Document:
    """One text; `id` is None where the file gives none."""

    text: str
    id: str | None


def find_files(inputs: list[str]) -> list[Path]:
    """The files named by paths and folders (searched through), sorted; InputError for what is missing or of no known kind."""
    files: list[Path] = []
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            found = sorted(f for f in path.rglob("*") if f.is_file() and f.name.endswith(SUFFIXES))
            if not found:
                raise InputError(f"{path}: no file that ends in {', '.join(SUFFIXES)}")
            files += found
        elif not path.is_file():
            raise InputError(f"{path}: no such file or folder")
        elif not path.name.endswith(SUFFIXES):
            raise InputError(f"{path}: unknown kind of file; it must end in {', '.join(SUFFIXES)}")
        else:
            files.append(path)
    twice = {path.resolve() for path in files if sum(other.resolve() == path.resolve() for other in files) > 1}
    if twice:
        raise InputError(f"{min(twice)}: named twice among the inputs; name it once")
    return files


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of one file, in order. InputError names the file, and the line where it has lines."""
    if path.name.endswith(".parquet"):
        yield from _parquet(path)
    elif path.name.endswith(".txt"):
        yield Document(_decode(path.read_bytes(), str(path)), path.stem)
    else:
        opener = gzip.open if path.name.endswith(".gz") else open
        with opener(path, "rb") as file:
            yield from _json_lines(path, file)


def _json_lines(path: Path, file: Iterable[bytes]) -> Iterator[Document]:
    number = 0
    try:
        for number, line in enumerate(file, 1):
            place = f"{path}, line {number}"
            if not line.strip():
                continue
            try:
                row = json.loads(_decode(line, place))
            except json.JSONDecodeError as error:
                raise InputError(f"{place}: not JSON ({error.msg} at column {error.colno}); mend or remove the line") from None
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                raise InputError(f'{place}: no "text" that is a string; each line must be {{"text": ..., "id": ...}}')
            yield Document(_encodable(row["text"], place), None if row.get("id") is None else str(row["id"]))
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"{path}, after line {number}: damaged gzip ({error}); take a new copy") from None


def _parquet(path: Path) -> Iterator[Document]:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if "text" not in names:
                raise InputError(f"{path}: no column 'text' among {', '.join(names)}")
            row = 0
            for batch in file.iter_batches(PARQUET_ROWS, columns=[n for n in ("text", "id") if n in names]):
                for record in batch.to_pylist():
                    row += 1
                    if not isinstance(record["text"], str):
                        raise InputError(f"{path}, row {row}: the text is not a string; mend or remove the row")
                    yield Document(record["text"], None if record.get("id") is None else str(record["id"]))
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: not readable as Parquet ({str(error).splitlines()[0]}); take a new copy") from None


def _decode(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place}: not UTF-8 (byte 0x{data[error.start]:02x} at {error.start}); convert it, for example with iconv"
        ) from None


def _encodable(text: str, place: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: a lone surrogate at character {error.start} of the text; mend or remove the line") from None
    return text
