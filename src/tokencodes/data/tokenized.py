"""Documents that datatrove has tokenized: `NAME.ds` with `NAME.ds.index` beside it.

The first file is token ids of 2 or 4 bytes, little-endian, documents end to end; the second the end
of each document, in tokens, as uint64 (datatrove's `TokenizedFile`). Neither names its tokenizer
surely, so ids are checked against the vocabulary only: that they were made with the given tokenizer
is the caller's word.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokencodes.data.text import Position
from tokencodes.errors import InputError

TOKENIZED = ".ds"


def index_of(path: Path) -> Path:
    """The file that says where the documents of a file of ids end."""
    return path.with_name(f"{path.name}.index")


def read_tokenized(
    path: Path, vocab_size: int, batch_tokens: int, position: Position | None = None
) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
    """Batches of whole documents: their ids end to end, uint32, and how many each has. InputError
    names what is wrong.
    """
    position = position or Position()
    index = index_of(path)
    if not index.is_file():
        raise InputError(
            f"{index}: no such file; the ends of the documents of {path.name} are read from it"
        )
    if index.stat().st_size % 8:
        raise InputError(
            f"{index}: {index.stat().st_size:,} bytes are not whole 64-bit numbers; take a new copy"
        )
    ends = np.fromfile(index, dtype="<u8").astype(np.int64)
    starts = np.append(0, ends)[:-1]
    if (ends < starts).any():
        raise InputError(f"{index}: the ends of the documents do not ascend; take a new copy")
    size, total = path.stat().st_size, int(ends[-1]) if len(ends) else 0
    if size not in (2 * total, 4 * total):
        raise InputError(
            f"{path}: {size:,} bytes for {total:,} tokens of its index are not 2 or 4 a token; take"
            " a new copy"
        )
    if not total:
        yield np.empty(0, dtype=np.uint32), ends
        return
    tokens = np.memmap(path, dtype=f"<u{size // total}", mode="r")
    first = 0
    while first < len(ends):
        last = max(
            first + 1, int(np.searchsorted(ends, starts[first] + batch_tokens, side="right"))
        )
        ids = tokens[starts[first] : ends[last - 1]].astype(np.uint32)
        if len(ids) and int(ids.max()) >= vocab_size:
            wrong = int((ids >= vocab_size).argmax())
            document = int(np.searchsorted(ends, starts[first] + wrong, side="right"))
            raise InputError(
                f"{path}, document {document}: id {ids[wrong]:,} is not below {vocab_size:,}; "
                "give the tokenizer it was made with"
            )
        position.at = int(ends[last - 1]) * tokens.itemsize
        yield ids, (ends - starts)[first:last]
        first = last
