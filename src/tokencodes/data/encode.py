"""Texts -> ids, exactly as the `tokenizers` library gives them, and several times faster where its rule is known.

Two engines with one method. `reference` is the library. `cached` cuts texts itself (`pretokens`), keeps the ids of each
pre-token (`wordcache`) and leaves only unseen ones to the library's own merges. It serves byte-level BPE with GPT-2's
expression (SmolLM2, GPT-2, those trained here); for any other tokenizer `engine_for` gives the reference.

A literal special token in a text becomes its id, as the library does it; what stands on its two sides is cut apart.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokencodes.data.pretokens import Pretokenizer, supports
from tokencodes.data.tokenizer import BYTE_CHARACTERS, TokenizerFile
from tokencodes.data.wordcache import WordCache

Engine = Literal["cached", "reference"]
Ids = NDArray[np.uint32]
Ints = NDArray[np.int64]

CHUNK = 1 << 19  # bytes of text at a time: arrays of this size stay in the processor's cache
_SAFE_CUT = re.compile(rb"[A-Za-z](?= [A-Za-z])")  # between a word and the space before the next one, no rule looks across


class Encoder(ABC):
    """Ids without special tokens around a text."""

    def __init__(self, tokenizer: TokenizerFile) -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def encode(self, texts: list[str]) -> tuple[Ids, Ints]:
        """Ids of all texts, end to end, uint32; and how many each text has, int64[len(texts)]."""


class ReferenceEncoder(Encoder):
    """The library, as it is."""

    def encode(self, texts: list[str]) -> tuple[Ids, Ints]:
        """See `Encoder`."""
        found = self.tokenizer.encode(texts)
        counts = np.array([len(ids) for ids in found], dtype=np.int64)
        return np.concatenate([np.array(ids, dtype=np.uint32) for ids in found] or [np.empty(0, np.uint32)]), counts


class CachedEncoder(Encoder):
    """Cuts of our own, the library's merges, each pre-token merged once."""

    def __init__(self, tokenizer: TokenizerFile) -> None:
        super().__init__(tokenizer)
        self._cuts = Pretokenizer(tokenizer.tokenizer, tokenizer.told)
        self._model = tokenizer.tokenizer.model
        self._words = WordCache(self._merge)
        self._special = {token.content.encode(): id for id, token in tokenizer.tokenizer.get_added_tokens_decoder().items()}
        longest_first = sorted(self._special, key=lambda literal: (-len(literal), literal))
        self._literals = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None

    @staticmethod
    def supports(tokenizer: TokenizerFile) -> bool:
        """Whether this tokenizer's rules are the ones computed here."""
        model, added = tokenizer.told["model"], tokenizer.told["added_tokens"]
        plain = not any(token[flag] for token in added for flag in ("lstrip", "rstrip", "single_word", "normalized"))
        return supports(tokenizer.told) and model["type"] == "BPE" and not model["dropout"] and plain

    def _merge(self, word: bytes) -> list[int]:
        return [token.id for token in self._model.tokenize(word.decode("latin-1").translate(BYTE_CHARACTERS))]

    def encode(self, texts: list[str]) -> tuple[Ids, Ints]:
        """See `Encoder`."""
        found: list[Ids] = []
        counts = np.zeros(len(texts), dtype=np.int64)
        pieces: list[bytes] = []
        owners: list[int] = []
        waiting = 0
        for number, text in enumerate(texts):
            for piece, special in self._pieces(text.encode()):
                if special is None:
                    pieces.append(piece)
                    owners.append(number)
                    waiting += len(piece)
                if pieces and (special is not None or waiting >= CHUNK):
                    self._flush(pieces, owners, found, counts)
                    waiting = 0
                if special is not None:
                    found.append(np.array([special], dtype=np.uint32))
                    counts[number] += 1
        self._flush(pieces, owners, found, counts)
        return np.concatenate(found or [np.empty(0, np.uint32)]), counts

    def _pieces(self, text: bytes) -> Iterator[tuple[bytes, int | None]]:
        """A text as parts that are cut on their own: what is between special tokens, in chunks; or one special token's id."""
        start = 0
        for match in self._literals.finditer(text) if self._literals else ():
            yield from _chunks(text[start : match.start()])
            yield b"", self._special[match.group()]
            start = match.end()
        yield from _chunks(text[start:])

    def _flush(self, pieces: list[bytes], owners: list[int], found: list[Ids], counts: Ints) -> None:
        if not pieces:
            return
        places = np.cumsum([0, *map(len, pieces)])
        data = b"".join(pieces)
        starts = self._cuts.starts(data, places[:-1])
        ids, size = self._words.ids(data, starts)
        before = np.append(0, np.cumsum(size))[np.searchsorted(starts, places)]
        np.add.at(counts, np.array(owners), np.diff(before))
        found.append(ids)
        pieces.clear()
        owners.clear()


def _chunks(text: bytes) -> Iterator[tuple[bytes, None]]:
    """A long text cut where nothing looks across; not at all where there is no such place."""
    start = 0
    while len(text) - start > 2 * CHUNK:
        cut = _SAFE_CUT.search(text, start + CHUNK)
        if cut is None:
            break
        yield text[start : cut.end()], None
        start = cut.end()
    if start < len(text):
        yield text[start:], None


def engine_for(tokenizer: TokenizerFile, wanted: Engine = "cached") -> Encoder:
    """The wanted engine; the reference where `cached` does not know the tokenizer's rule."""
    if wanted == "cached" and CachedEncoder.supports(tokenizer):
        return CachedEncoder(tokenizer)
    return ReferenceEncoder(tokenizer)
