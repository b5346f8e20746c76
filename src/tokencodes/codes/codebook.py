"""The codebook of a spec: V×K integer words, with the arrays that define them and a hash of their bytes.

Integer codes are regenerated and compared bit by bit wherever they are loaded; nothing is trusted because it was saved.
"""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tokencodes.codes import assign, words
from tokencodes.codes.gf2 import Bits
from tokencodes.codes.spec import InterfaceSpec
from tokencodes.errors import InputError


@dataclass(frozen=True)
class Codebook:
    """words_VK: uint8 of 0 and 1, by token id; arrays: what defines them beyond the spec's numbers (matrix, offset)."""

    words_VK: Bits
    arrays: dict[str, Bits] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """The codebook hash: SHA-256 of a header "V,K,uint8;" and the bytes, row by row."""
        return bits_sha256(self.words_VK)

    @property
    def width(self) -> int:
        """K."""
        return int(self.words_VK.shape[1])

    def collisions(self) -> list[tuple[int, int]]:
        """Pairs of token ids that share a word (each with the first that has it): empty if injective."""
        return collisions(self.words_VK)


def bits_sha256(words_VK: Bits) -> str:
    """Hash of any V×K matrix of bits, as `Codebook.sha256`."""
    count, width = words_VK.shape
    return hashlib.sha256(f"{count},{width},uint8;".encode() + np.ascontiguousarray(words_VK).tobytes()).hexdigest()


def collisions(words_VK: Bits) -> list[tuple[int, int]]:
    """Pairs (first token with this word, another with the same)."""
    packed = np.ascontiguousarray(np.packbits(words_VK, axis=1))
    keys = packed.view(np.dtype((np.void, packed.shape[1]))).reshape(-1)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    others = np.flatnonzero(first[group] != np.arange(len(keys)))
    return [(int(first[group[i]]), int(i)) for i in others]


@lru_cache(maxsize=4)
def build_codebook(spec: InterfaceSpec, vocab_size: int) -> Codebook:
    """The codebook of a fixed spec for V tokens; InputError where the spec cannot tell them apart."""
    if spec.learned:
        raise ValueError("a learned table has no codebook")
    if vocab_size < 1:
        raise InputError(f"interface {str(spec)!r}: a vocabulary of {vocab_size} tokens has no codes")
    width = spec.code_width(vocab_size)
    arrays: dict[str, Bits] = {}
    if spec.words == "binary":
        book = words.binary(vocab_size, width)
    else:
        book, arrays = words.gf2(vocab_size, width, spec.seed, spec.min_weight)
    order = assign.permuted(vocab_size, spec.ids_seed) if spec.ids == "permuted" else assign.natural(vocab_size)
    codebook = Codebook(book[order], arrays)
    for array in (codebook.words_VK, *arrays.values()):
        array.setflags(write=False)  # the cache hands the same arrays to everyone
    return codebook
