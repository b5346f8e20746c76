"""Texts -> ids, exactly as the `tokenizers` library gives them, and several times faster where its
rule is known.

Two engines with one method. `reference` is the library. `cached` cuts texts itself (`pretokens`),
keeps the ids of each pre-token (`wordcache`) and leaves only unseen ones to the library's own
merges. It serves byte-level BPE with GPT-2's expression (SmolLM2, GPT-2, those trained here); for
any other tokenizer `engine_for` gives the reference.

A literal special token in a text becomes its id, as the library does it; what stands on its two
sides is cut apart.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers.models import BPE

from tokencodes.data.pretokens import Pretokenizer, supports
from tokencodes.data.tokenizer import BYTE_CHARACTERS, TokenizerFile
from tokencodes.data.wordcache import WordCache

Engine = Literal["cached", "reference"]
Ids = NDArray[np.uint32]
Ints = NDArray[np.int64]

CHUNK = 1 << 19  # bytes of text at a time: arrays of this size stay in the processor's cache
_LOOKAHEAD = 16  # bytes: more than the longest contraction and the longest character take
# white space after anything else begins a pre-token, whatever comes before or after
_SAFE_CUT = re.compile(rb"[!-~](?=[ \n])")


class Encoder(ABC):
    """Ids without special tokens around a text."""

    def __init__(self, tokenizer: TokenizerFile) -> None:
        self.tokenizer = tokenizer

    def encode(self, texts: list[str]) -> tuple[Ids, Ints]:
        """Encodes texts.

        Returns the ids of all texts, end to end, uint32, and the number of ids of each text,
        int64[len(texts)]. Raises InputError if the tokenizer cannot encode a text.
        """
        with self.tokenizer.at_work():
            return self._encode(texts)

    @abstractmethod
    def _encode(self, texts: list[str]) -> tuple[Ids, Ints]:
        """See `encode`."""


class ReferenceEncoder(Encoder):
    """The library, as it is."""

    def _encode(self, texts: list[str]) -> tuple[Ids, Ints]:
        encoded = self.tokenizer.encode(texts)
        counts = np.array([len(ids) for ids in encoded], dtype=np.int64)
        return (
            np.concatenate(
                [np.array(ids, dtype=np.uint32) for ids in encoded] or [np.empty(0, np.uint32)]
            ),
            counts,
        )


class CachedEncoder(Encoder):
    """Cuts of our own, the library's merges, each pre-token merged once."""

    def __init__(self, tokenizer: TokenizerFile) -> None:
        super().__init__(tokenizer)
        self._cuts = Pretokenizer(tokenizer.tokenizer, tokenizer.rules)
        self._model = tokenizer.tokenizer.model
        self._words = WordCache(self._merge)
        self._special = {
            token.content.encode(): id
            for id, token in tokenizer.tokenizer.get_added_tokens_decoder().items()
        }
        longest_first = sorted(self._special, key=lambda literal: (-len(literal), literal))
        self._literals = (
            re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None
        )

    @staticmethod
    def supports(tokenizer: TokenizerFile) -> bool:
        """Whether this tokenizer's rules are the ones computed here."""
        model, added = tokenizer.tokenizer.model, tokenizer.rules.get("added_tokens", [])
        plain = not any(
            token[flag]
            for token in added
            for flag in ("lstrip", "rstrip", "single_word", "normalized")
        )
        # Where two literals get one id, as beside a vocabulary with holes, library versions differ
        # in which they look for.
        literals = {token["content"] for token in added} - {""}
        known = {token.content for token in tokenizer.tokenizer.get_added_tokens_decoder().values()}
        return supports(tokenizer.rules) and isinstance(model, BPE) and plain and literals == known

    def _merge(self, word: bytes) -> list[int]:
        return [
            token.id
            for token in self._model.tokenize(word.decode("latin-1").translate(BYTE_CHARACTERS))
        ]

    def _encode(self, texts: list[str]) -> tuple[Ids, Ints]:
        blocks: list[Ids] = []
        counts = np.zeros(len(texts), dtype=np.int64)
        pieces: list[bytes] = []
        owners: list[int] = []
        special: dict[int, int] = {}  # piece, an empty one -> id
        waiting = 0
        for number, text in enumerate(texts):
            for piece, id in self._pieces(text.encode()):
                if id is not None:
                    special[len(pieces)] = id
                pieces.append(piece)
                owners.append(number)
                waiting += len(piece) or 1
                if waiting >= CHUNK:
                    blocks.append(self._ids(pieces, owners, special, counts))
                    pieces, owners, special, waiting = [], [], {}, 0
        if pieces:
            blocks.append(self._ids(pieces, owners, special, counts))
        return np.concatenate(blocks or [np.empty(0, np.uint32)]), counts

    def _pieces(self, text: bytes) -> Iterator[tuple[bytes, int | None]]:
        """A text as parts that are cut on their own: what is between special tokens, in chunks; or
        one special token's id.
        """
        start = 0
        for match in self._literals.finditer(text) if self._literals else ():
            yield from self._chunks(text[start : match.start()])
            yield b"", self._special[match.group()]
            start = match.end()
        yield from self._chunks(text[start:])

    def _chunks(self, text: bytes) -> Iterator[tuple[bytes, None]]:
        """A long text cut where nothing looks across, so that memory does not grow with it."""
        start = 0
        while len(text) - start > 2 * CHUNK:
            match = _SAFE_CUT.search(text, start + CHUNK, start + 2 * CHUNK)
            cut = match.end() if match else self._rare_cut(text, start)
            if cut is None:
                # after a word of more than a megabyte
                match = _SAFE_CUT.search(text, start + 2 * CHUNK)
                if match is None:
                    break
                cut = match.end()
            yield text[start:cut], None
            start = cut
        if start < len(text):
            yield text[start:], None

    def _rare_cut(self, text: bytes, start: int) -> int | None:
        """The same for scripts and data without such spaces: a pre-token's begin after what is no
        white space, far enough from the end of the part that is looked at. None where there is
        none, as in a megabyte of one word.
        """
        end = start + 2 * CHUNK
        while text[end] & 0xC0 == 0x80:  # in the midst of a character
            end -= 1
        if end <= start + _LOOKAHEAD:
            return None
        begins = self._cuts.starts(text[start:end], np.zeros(1, dtype=np.int64)) + start
        for cut in begins[(begins > start) & (begins < end - _LOOKAHEAD)][::-1].tolist():
            last = text[max(start, cut - 4) : cut].decode(errors="ignore")[-1:]
            if last and not self._cuts.is_blank(last):
                return int(cut)
        return None

    def _ids(
        self, pieces: list[bytes], owners: list[int], special: dict[int, int], counts: Ints
    ) -> Ids:
        """The ids of all pieces, end to end; adds to the counts of the texts that own them."""
        places = np.cumsum([0, *map(len, pieces)])
        data = b"".join(pieces)
        starts = self._cuts.starts(data, places[:-1][places[:-1] < places[1:]])
        ids, size = self._words.ids(data, starts)
        before = np.append(0, np.cumsum(size))[np.searchsorted(starts, places)]
        lengths = np.diff(before)
        if special:
            where = np.array(list(special))
            ids = np.insert(ids, before[where], list(special.values()))
            lengths[where] = 1
        np.add.at(counts, np.array(owners), lengths)
        return ids


def engine_for(tokenizer: TokenizerFile, wanted: Engine = "cached") -> Encoder:
    """Returns the wanted engine, or the reference if `cached` does not support the tokenizer."""
    if wanted == "cached" and CachedEncoder.supports(tokenizer):
        return CachedEncoder(tokenizer)
    return ReferenceEncoder(tokenizer)
