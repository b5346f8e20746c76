"""Writing a shard as its documents come: what is held in memory does not grow with the shard."""

import hashlib
import io
import json
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokencodes.data.entries import ShardEntry
from tokencodes.data.shards import BLOCK, CHECKSUMS, DOCUMENTS, OFFSETS, TOKENS, block_sums
from tokencodes.data.split import Split
from tokencodes.files import fsync

ROW_GROUP = 1 << 16
_NAMES = pa.schema([("id", pa.string()), ("source", pa.dictionary(pa.int32(), pa.string()))])


class ShardWriter:
    """One shard of one side. `add` documents, then `close`,
    which gives its entry for the manifest."""

    def __init__(self, folder: Path, split: Split, dtype: type[np.unsignedinteger]) -> None:
        folder.mkdir(parents=True)
        self._folder, self._split, self._dtype = folder, split, np.dtype(dtype)
        self._tokens = (folder / TOKENS).open("w+b", buffering=BLOCK)
        # its length does not depend on the number, which is put in at the end
        self._tokens.write(self._header(0))
        self._names = pq.ParquetWriter(folder / DOCUMENTS, _NAMES)
        self._waiting: tuple[list[str], list[str]] = ([], [])
        self._offsets = array("q", [0])
        self._longest = 0

    @property
    def tokens(self) -> int:
        """Tokens that were added so far."""
        return self._offsets[-1]

    def _header(self, tokens: int) -> bytes:
        header = io.BytesIO()
        description = {"descr": self._dtype.str, "fortran_order": False, "shape": (tokens,)}
        np.lib.format.write_array_header_1_0(header, description)
        return header.getvalue()

    def add(self, ids: NDArray[Any], id: str, source: str) -> None:
        """One document."""
        self._tokens.write(ids.astype(self._dtype).tobytes())
        self._offsets.append(self._offsets[-1] + len(ids))
        self._longest = max(self._longest, len(ids))
        ids_, sources = self._waiting
        ids_.append(id)
        sources.append(source)
        if len(ids_) == ROW_GROUP:
            self._write_names()

    def _write_names(self) -> None:
        ids, sources = self._waiting
        if ids:
            self._names.write_table(
                pa.table([ids, pa.array(sources).dictionary_encode()], schema=_NAMES),
                row_group_size=ROW_GROUP,
            )
            ids.clear()
            sources.clear()

    def abort(self) -> None:
        """Lets go of the files; what they hold is of no use."""
        self._tokens.close()
        self._names.close()

    def close(self) -> ShardEntry:
        """Finishes and fsyncs the files."""
        self._write_names()
        self._names.close()
        self._tokens.seek(0)
        self._tokens.write(self._header(self.tokens))
        self._tokens.close()
        np.save(self._folder / OFFSETS, np.frombuffer(self._offsets, dtype=np.int64))
        sums = {name: block_sums(self._folder / name) for name in (TOKENS, OFFSETS, DOCUMENTS)}
        text = json.dumps(sums)
        (self._folder / CHECKSUMS).write_text(text, encoding="utf-8")
        for name in (TOKENS, OFFSETS, DOCUMENTS, CHECKSUMS):
            fsync(self._folder / name)
        fsync(self._folder)
        return ShardEntry(
            path=self._folder.name,
            split=self._split,
            documents=len(self._offsets) - 1,
            tokens=self.tokens,
            longest=self._longest,
            checksums_sha256=hashlib.sha256(text.encode()).hexdigest(),
        )
