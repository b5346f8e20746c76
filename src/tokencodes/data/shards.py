"""One shard of a dataset on disk, and its reader.

    train-00000/           one shard: what is resident at a time
      tokens.npy           uint16 or uint32[tokens], documents end to end
      offsets.npy          int64[documents + 1]: document i is tokens[offsets[i] : offsets[i + 1]]
      documents.parquet    id and source of each document
      checksums.json       BLAKE2b-64 of each 1 MiB block of the three files

The manifest holds the SHA-256 of each `checksums.json` (see `dataset`). So one chain reaches every
byte; a block of tokens is verified when it is first touched, which keeps opening fast.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokencodes.data.entries import Checksums, ShardEntry, as_json
from tokencodes.data.split import Split
from tokencodes.errors import InputError, first_line
from tokencodes.files import map_array
from tokencodes.records import checked

BLOCK = 1 << 20
ANEW = "take a new copy or prepare the dataset anew"
TOKENS, OFFSETS, DOCUMENTS, CHECKSUMS = (
    "tokens.npy",
    "offsets.npy",
    "documents.parquet",
    "checksums.json",
)


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    """The smallest type that holds every id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def block_sums(path: Path) -> list[str]:
    """BLAKE2b-64 of each block of a file, in hexadecimal."""
    with path.open("rb") as file:
        return [block_sum(block) for block in iter(lambda: file.read(BLOCK), b"")]


def block_sum(block: bytes | memoryview) -> str:
    """BLAKE2b-64, in hexadecimal."""
    return hashlib.blake2b(block, digest_size=8).hexdigest()


class Shard:
    """One shard, memory-mapped. Nothing is opened before it is used: its offsets are verified then,
    as a whole, its tokens block by block as they are read. What the manifest tells (`documents`,
    `tokens`, `longest`) costs nothing.
    """

    def __init__(self, path: Path, entry: ShardEntry) -> None:
        self.path = path
        self.split: Split = entry.split
        self.documents, self.tokens, self.longest = entry.documents, entry.tokens, entry.longest
        self._checksums_sha256 = entry.checksums_sha256
        self._verified: set[int] = set()

    @cached_property
    def _sums(self) -> dict[str, list[str]]:
        file = self.path / CHECKSUMS
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            raise InputError(f"{file}: missing; prepare the dataset anew") from None
        if hashlib.sha256(text.encode()).hexdigest() != self._checksums_sha256:
            raise InputError(
                f"{file}: damaged (its hash is not the manifest's); prepare the dataset anew"
            )
        try:
            return as_json(
                checked(json.loads(text), Checksums, str(file), "prepare the dataset anew")
            )
        except (
            json.JSONDecodeError
        ) as error:  # as its hash holds, nobody damaged it: it never was what it should be
            raise InputError(f"{file}: not JSON ({error}); prepare the dataset anew") from None

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where each document begins, and where the last ends, int64[documents + 1]; mapped, so
        that it takes no memory.
        """
        self.verify(OFFSETS)
        offsets = map_array(self.path / OFFSETS)
        if (
            offsets.dtype != np.int64
            or offsets.shape != (self.documents + 1,)
            or (offsets[0], offsets[-1]) != (0, self.tokens)
        ):
            raise self._other(OFFSETS)
        if (offsets[1:] < offsets[:-1]).any():
            raise InputError(
                f"{self.path / OFFSETS}: the ends of the documents do not ascend; prepare the"
                " dataset anew"
            )
        return offsets

    @cached_property
    def _mapped(self) -> tuple[NDArray[np.uint8], NDArray[Any], int]:
        """The file's bytes, its tokens, and where in the file the tokens begin."""
        file = self.path / TOKENS
        try:
            size = file.stat().st_size
        except FileNotFoundError:
            raise InputError(f"{file}: missing; prepare the dataset anew") from None
        if -(-size // BLOCK) != len(self._sums[TOKENS]):
            raise InputError(
                f"{file}: {size:,} bytes, not the length it was written with; prepare the dataset"
                " anew"
            )
        if not size:
            raise self._other(TOKENS)
        raw = np.memmap(file, dtype=np.uint8, mode="r")
        self._verify_blocks(raw, range(1))  # the header, before anything trusts it
        tokens = map_array(file)
        if tokens.dtype not in (np.uint16, np.uint32) or tokens.shape != (self.tokens,):
            raise self._other(TOKENS)
        return raw, tokens, size - tokens.nbytes

    def _other(self, name: str) -> InputError:
        return InputError(
            f"{self.path / name}: does not hold the {self.documents:,} documents of {self.tokens:,}"
            " tokens that the manifest says; prepare the dataset anew"
        )

    def _verify_blocks(self, raw: NDArray[np.uint8], blocks: range) -> None:
        for block in blocks:
            if (
                block_sum(raw[block * BLOCK : (block + 1) * BLOCK].data)
                != self._sums[TOKENS][block]
            ):
                raise InputError(
                    f"{self.path / TOKENS}: damaged in bytes {block * BLOCK:,} to"
                    f" {(block + 1) * BLOCK:,}; {ANEW}"
                )

    def verify(self, name: str) -> None:
        """Reads one whole file of the shard against its checksums; InputError names it."""
        file = self.path / name
        if not file.is_file():
            raise InputError(f"{file}: missing; prepare the dataset anew")
        if block_sums(file) != self._sums[name]:
            raise InputError(f"{file}: damaged (its checksums do not hold); {ANEW}")

    def verify_all(self) -> None:
        """Every byte of every file of the shard."""
        for name in (TOKENS, OFFSETS, DOCUMENTS):
            self.verify(name)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, the end-of-text token included."""
        return np.diff(self.offsets)

    def span(self, document: int, start: int, length: int) -> NDArray[Any]:
        """`length` ids of one document from position `start`, verified at first touch; a read-only
        view.
        """
        raw, tokens, header = self._mapped
        first = int(self.offsets[document]) + start
        size = tokens.itemsize
        last = header + (first + length) * size - 1
        blocks = range((header + first * size) // BLOCK, last // BLOCK + 1)
        missing = [block for block in blocks if block not in self._verified]
        if missing:
            self._verify_blocks(raw, range(missing[0], missing[-1] + 1))
            self._verified.update(missing)
        view: NDArray[Any] = tokens[first : first + length]
        return view

    def ids(self) -> Iterator[NDArray[Any]]:
        """The ids of each document of the shard, in order."""
        return (self.span(i, 0, int(n)) for i, n in enumerate(self.lengths))

    def names(self) -> pa.Table:
        """Columns `id` and `source`, a row a document; verified."""
        self.verify(DOCUMENTS)
        try:
            table = pq.read_table(self.path / DOCUMENTS)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{self.path / DOCUMENTS}: not readable as Parquet ({first_line(error)}); {ANEW}"
            ) from None
        if table.column_names != ["id", "source"] or len(table) != self.documents:
            raise self._other(DOCUMENTS)
        return table
