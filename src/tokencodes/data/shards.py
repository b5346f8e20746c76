"""One shard of a dataset on disk, and its reader.

    train-00000/           one shard: what is resident at a time
      tokens.npy           uint16 or uint32[tokens], documents end to end
      offsets.npy          int64[documents + 1]: document i is tokens[offsets[i] : offsets[i + 1]]
      documents.parquet    id and source of each document
      checksums.json       BLAKE2b-64 of each 1 MiB block of the three files

The manifest holds the SHA-256 of each `checksums.json` (see `dataset`). So one chain reaches every byte; a block of tokens is
verified when it is first touched, which keeps opening fast.
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

from tokencodes.data.split import Split
from tokencodes.errors import InputError

BLOCK = 1 << 20
TOKENS, OFFSETS, DOCUMENTS, CHECKSUMS = "tokens.npy", "offsets.npy", "documents.parquet", "checksums.json"


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
    """One shard, memory-mapped. Nothing is opened before it is used: its offsets are verified then, as a whole, its tokens
    block by block as they are read. What the manifest tells (`documents`, `tokens`, `longest`) costs nothing."""

    def __init__(self, path: Path, entry: dict[str, Any]) -> None:
        self.path = path
        self.split: Split = entry["split"]
        self.documents, self.tokens, self.longest = (int(entry[key]) for key in ("documents", "tokens", "longest"))
        self._checksums_sha256: str = entry["checksums_sha256"]
        self._verified: set[int] = set()

    @cached_property
    def _sums(self) -> dict[str, list[str]]:
        try:
            text = (self.path / CHECKSUMS).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            raise InputError(f"{self.path / CHECKSUMS}: missing; prepare the dataset anew") from None
        if hashlib.sha256(text.encode()).hexdigest() != self._checksums_sha256:
            raise InputError(f"{self.path / CHECKSUMS}: damaged (its hash is not the manifest's); prepare the dataset anew")
        sums: dict[str, list[str]] = json.loads(text)
        return sums

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where each document begins, and where the last ends, int64[documents + 1]; mapped, so that it takes no memory."""
        self.verify(OFFSETS)
        offsets: NDArray[np.int64] = np.load(self.path / OFFSETS, mmap_mode="r")
        return offsets

    @cached_property
    def _mapped(self) -> tuple[NDArray[np.uint8], NDArray[Any], int]:
        """The file's bytes, its tokens, and where in the file the tokens begin."""
        file = self.path / TOKENS
        try:
            size = file.stat().st_size
            if -(-size // BLOCK) != len(self._sums[TOKENS]):
                raise InputError(f"{file}: {size:,} bytes, not the length it was written with; prepare the dataset anew")
            raw = np.memmap(file, dtype=np.uint8, mode="r")
            self._verify_blocks(raw, range(1))  # the header, before anything trusts it
            tokens = np.load(file, mmap_mode="r")
        except FileNotFoundError:
            raise InputError(f"{file}: missing; prepare the dataset anew") from None
        except ValueError as error:
            raise InputError(f"{file}: damaged ({error}); take a new copy or prepare the dataset anew") from None
        return raw, tokens, size - tokens.nbytes

    def _verify_blocks(self, raw: NDArray[np.uint8], blocks: range) -> None:
        for block in blocks:
            if block_sum(raw[block * BLOCK : (block + 1) * BLOCK].data) != self._sums[TOKENS][block]:
                raise InputError(
                    f"{self.path / TOKENS}: damaged in bytes {block * BLOCK:,} to {(block + 1) * BLOCK:,}; "
                    "take a new copy or prepare the dataset anew"
                )

    def verify(self, name: str) -> None:
        """Reads one whole file of the shard against its checksums; InputError names it."""
        file = self.path / name
        if not file.is_file():
            raise InputError(f"{file}: missing; prepare the dataset anew")
        if block_sums(file) != self._sums[name]:
            raise InputError(f"{file}: damaged (its checksums do not hold); take a new copy or prepare the dataset anew")

    def verify_all(self) -> None:
        """Every byte of every file of the shard."""
        for name in (TOKENS, OFFSETS, DOCUMENTS):
            self.verify(name)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, the end-of-text token included."""
        return np.diff(self.offsets)

    def span(self, document: int, start: int, length: int) -> NDArray[Any]:
        """`length` ids of one document from position `start`, verified at first touch; a read-only view."""
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
        return pq.read_table(self.path / DOCUMENTS)
