"""The dataset on disk, and its reader.

    DATASET/
      manifest.json            written last: no manifest, no dataset
      tokenizer.json           the tokenizer that made the ids
      SOURCE/                  one input file's share; appears by one rename
        source.json            what it was made from, and its shards
        train-00000/           one shard: what is resident at a time
          tokens.npy           uint16 or uint32[tokens], documents end to end
          offsets.npy          int64[documents + 1]: document i is tokens[offsets[i] : offsets[i + 1]]
          documents.parquet    id and source of each document
          checksums.json       BLAKE2b-64 of each 1 MiB block of the three files

The manifest holds the SHA-256 of each `checksums.json`, and its own fingerprint. So one chain reaches every byte; a block of
tokens is verified when it is first touched, which keeps opening fast.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokencodes.data.split import Split
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError
from tokencodes.files import fsync, read_json

FORMAT = "tokencodes-dataset"
VERSION = 1
BLOCK = 1 << 20
TOKENS, OFFSETS, DOCUMENTS, CHECKSUMS = "tokens.npy", "offsets.npy", "documents.parquet", "checksums.json"


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    """The smallest type that holds every id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def block_sums(path: Path) -> list[str]:
    """BLAKE2b-64 of each block of a file, in hexadecimal."""
    with path.open("rb") as file:
        return [_block_sum(block) for block in iter(lambda: file.read(BLOCK), b"")]


def _block_sum(block: bytes | memoryview) -> str:
    return hashlib.blake2b(block, digest_size=8).hexdigest()


def fingerprint(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest's canonical JSON, its own fingerprint left out."""
    told = {key: value for key, value in manifest.items() if key != "fingerprint"}
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_shard(folder: Path, split: Split, ids: list[NDArray[Any]], names: list[str], source: str) -> dict[str, Any]:
    """Writes and fsyncs one shard of at least one document; returns its entry for the manifest."""
    folder.mkdir(parents=True)
    offsets = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum([len(document) for document in ids], out=offsets[1:])
    tokens = np.concatenate(ids)
    np.save(folder / TOKENS, tokens)
    np.save(folder / OFFSETS, offsets)
    pq.write_table(pa.table({"id": names, "source": [source] * len(names)}), folder / DOCUMENTS)
    sums = {name: block_sums(folder / name) for name in (TOKENS, OFFSETS, DOCUMENTS)}
    text = json.dumps(sums)
    (folder / CHECKSUMS).write_text(text, encoding="utf-8")
    for name in (TOKENS, OFFSETS, DOCUMENTS, CHECKSUMS):
        fsync(folder / name)
    fsync(folder)
    return {
        "path": folder.name,
        "split": split,
        "documents": len(ids),
        "tokens": int(offsets[-1]),
        "checksums_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


class Shard:
    """One shard, memory-mapped; its offsets are verified at opening, its tokens block by block as they are read."""

    def __init__(self, path: Path, entry: dict[str, Any]) -> None:
        self.path = path
        self.split: Split = entry["split"]
        try:
            text = (path / CHECKSUMS).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            raise InputError(f"{path / CHECKSUMS}: missing; prepare the dataset anew") from None
        if hashlib.sha256(text.encode()).hexdigest() != entry["checksums_sha256"]:
            raise InputError(f"{path / CHECKSUMS}: damaged (its hash is not the manifest's); prepare the dataset anew")
        self._sums: dict[str, list[str]] = json.loads(text)
        self.verify(OFFSETS)
        self.offsets: NDArray[np.int64] = np.load(path / OFFSETS)
        self._verified: set[int] = set()

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
            if _block_sum(raw[block * BLOCK : (block + 1) * BLOCK].data) != self._sums[TOKENS][block]:
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

    def documents(self) -> list[NDArray[Any]]:
        """All documents of the shard, in order."""
        return [self.span(i, 0, int(n)) for i, n in enumerate(self.lengths)]


class Dataset:
    """A prepared dataset, opened by its manifest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "manifest.json").is_file():
            raise InputError(f"{path}: no manifest.json, so not a finished dataset; run `tokencodes prepare` to its end")
        manifest = read_json(path / "manifest.json")
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise InputError(
                f"{path}/manifest.json: format {manifest.get('format')!r} version {manifest.get('version')!r}; "
                f"this program reads {FORMAT!r} version {VERSION}: prepare the dataset anew"
            )
        if manifest.get("fingerprint") != fingerprint(manifest):
            raise InputError(f"{path}/manifest.json: damaged (its fingerprint does not hold); prepare the dataset anew")
        self.manifest: dict[str, Any] = manifest
        self.fingerprint: str = manifest["fingerprint"]
        self.vocab_size: int = manifest["vocab_size"]

    @cached_property
    def tokenizer(self) -> TokenizerFile:
        """The tokenizer in the dataset; InputError if it is not the one that made the ids."""
        file = TokenizerFile(self.path / "tokenizer.json")
        if file.sha256 != self.manifest["tokenizer_sha256"]:
            raise InputError(f"{file.path}: not the tokenizer that made these ids (its hash differs); take it from a copy")
        return file

    def require(self, vocab_size: int, tokenizer_sha256: str | None = None) -> None:
        """InputError if the ids were made with another vocabulary or tokenizer."""
        if self.vocab_size != vocab_size:
            raise InputError(
                f"{self.path}: made with a vocabulary of {self.vocab_size:,}, the model has {vocab_size:,}; "
                "prepare the text anew with this model's tokenizer"
            )
        if tokenizer_sha256 not in (None, self.manifest["tokenizer_sha256"]):
            raise InputError(
                f"{self.path}: made with another tokenizer (sha256 {self.manifest['tokenizer_sha256'][:12]}, wanted "
                f"{str(tokenizer_sha256)[:12]}); prepare the text anew"
            )

    @cached_property
    def _shards(self) -> list[Shard]:
        return [
            Shard(self.path / source["name"] / entry["path"], entry)
            for source in self.manifest["sources"]
            for entry in source["shards"]
        ]

    def shards(self, split: Split) -> list[Shard]:
        """The shards of one side, in the manifest's order."""
        return [shard for shard in self._shards if shard.split == split]
