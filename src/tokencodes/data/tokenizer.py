"""A tokenizer file: training a byte-level BPE, and reading any `tokenizers` JSON with the facts
that data need.

Ids must be a function of the text, and of the whole text. So a tokenizer that draws lots (BPE
dropout) is refused. Truncation and padding, which a file may set for short prompts, are switched
off. What a tokenizer still loses is counted by `convert`.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel

from tokencodes.errors import InputError, first_line
from tokencodes.files import write_text

END_OF_TEXT = "<|endoftext|>"
# above every tokenizer in use; tables of V entries must fit into memory
LARGEST_VOCABULARY = 1 << 24


def train_tokenizer(texts: Iterable[str], vocab_size: int, out: Path) -> None:
    """Trains a byte-level BPE and writes it whole or not at all. Id 0 is `<|endoftext|>`, ids 1-256
    the bytes.

    Digits are split one by one, as in the SmolLM2 tokenizer. InputError if the text does not give
    `vocab_size` entries.
    """
    least = len(ByteLevel.alphabet()) + 1
    if vocab_size < least:
        raise InputError(
            f"vocab_size {vocab_size}: a byte-level BPE needs at least {least} entries (256 bytes,"
            f" {END_OF_TEXT})"
        )
    if vocab_size > LARGEST_VOCABULARY:
        raise InputError(
            f"vocab_size {vocab_size:,}: at most {LARGEST_VOCABULARY:,} entries are possible; give"
            " a smaller one"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise InputError(
            f"vocab_size {vocab_size:,}: this text gives a BPE of {tokenizer.get_vocab_size():,}"
            " entries only; lower vocab_size or give more text"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, tokenizer.to_str(pretty=True))


@contextmanager
def library(place: str, remedy: str) -> Iterator[None]:
    """Makes InputErrors of the errors of the tokenizers library, and of no others.

    It raises bare Exceptions, ValueErrors where it cannot read a file, and panics, which are no
    Exceptions.
    """
    try:
        yield
    except BaseException as error:
        reading = isinstance(error, ValueError) and str(error).startswith(
            "Cannot instantiate Tokenizer"
        )
        if (
            type(error) is not Exception
            and type(error).__name__ != "PanicException"
            and not reading
        ):
            raise
        raise InputError(f"{place} ({first_line(error, 80)}); {remedy}") from None


class TokenizerFile:
    """A tokenizer with the SHA-256 of its file: what a dataset and a model are bound to."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(
                f"{path}: no such tokenizer file; name a tokenizer.json, or make one by `tokencodes"
                " tokenizer`"
            )
        data = path.read_bytes()
        with library(f"{path}: not a tokenizers file", "take a new copy"):
            tokenizer = Tokenizer.from_buffer(data)
        self._take(tokenizer, data, path)
        end = self.tokenizer.token_to_id(END_OF_TEXT)
        if end is None:
            raise InputError(
                f"{path}: no {END_OF_TEXT} entry, which ends each document; use a tokenizer that"
                " has it"
            )
        self.end_of_text: int = end

    @classmethod
    def of(cls, tokenizer: Tokenizer, path: Path) -> "TokenizerFile":
        """The same for a tokenizer that is already open. It may have no end of text.

        Use it only to encode. Raises InputError if the tokenizer is random (dropout) or has an id
        that is too large.
        """
        file = cls.__new__(cls)
        file._take(tokenizer, tokenizer.to_str().encode(), path)
        return file

    def _take(self, tokenizer: Tokenizer, data: bytes, path: Path) -> None:
        self.tokenizer, self._data = tokenizer, data
        # what a file sets for short prompts would cut or pad documents without a word
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.path = path
        self.sha256 = hashlib.sha256(data).hexdigest()
        # V: every id is below it. A vocabulary with holes has fewer entries than that.
        self.vocab_size: int = max(self.tokenizer.get_vocab().values(), default=-1) + 1
        if self.vocab_size > LARGEST_VOCABULARY:
            raise InputError(
                f"{path}: it has the id {self.vocab_size - 1:,}; ids must be below"
                f" {LARGEST_VOCABULARY:,}"
            )
        self._refuse_chance()

    def _refuse_chance(self) -> None:
        """Switching it off here would not do: the file travels with every model, and would draw
        lots wherever it is read.
        """
        model = self.tokenizer.model
        chances = {
            "dropout": model.dropout if isinstance(model, models.BPE) else None,
            # of subword sampling
            "alpha": model.alpha if isinstance(model, models.Unigram) else None,
        }
        for key, value in chances.items():
            if value:
                raise InputError(
                    f'{self.path}: "{key}" of its model is {value:g}, which gives other ids for the'
                    f' same text each time; set "{key}" to null in a copy of the file, and use that'
                )

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without special tokens around it.

        A literal `<|endoftext|>` in a text becomes its id, as in the library. Raises InputError if
        the tokenizer has no token for a part of a text and no unknown token.
        """
        with self.at_work():
            return [
                encoding.ids
                for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            ]

    def at_work(self) -> AbstractContextManager[None]:
        """Inside it, an error of the library is an InputError that names this file."""
        return library(f"{self.path}: it cannot encode this text", "give another tokenizer")

    @cached_property
    def _rules(self) -> dict[str, Any]:
        rules: dict[str, Any] = json.loads(self._data)
        return rules

    @property
    def rules(self) -> dict[str, Any]:
        """The rules in the file, without `model` (the vocabulary and the merges)."""
        return {key: value for key, value in self._rules.items() if key != "model"}

    @cached_property
    def unknown(self) -> int | None:
        """The id that stands for whatever has no token; None where there is no such id, or where
        each byte has a token.
        """
        model = self._rules["model"]
        name, vocabulary = model.get("unk_token"), self.tokenizer.get_vocab()
        if set(BYTE_CHARACTERS.values()) <= vocabulary.keys():
            return None
        unknown_id: int | None = vocabulary.get(name) if name else model.get("unk_id")
        return unknown_id

    @property
    def adds_space(self) -> bool:
        """Whether a space is put before a text that has none."""
        cuts = self.tokenizer.pre_tokenizer
        with self.at_work():
            return (
                cuts is not None
                and len("".join(piece for piece, _ in cuts.pre_tokenize_str("a"))) > 1
            )

    def normalized(self, texts: list[str]) -> list[str]:
        """The texts as the tokenizer's normalizer hands them on."""
        normalizer = self.tokenizer.normalizer
        with self.at_work():
            return (
                texts if normalizer is None else [normalizer.normalize_str(text) for text in texts]
            )

    @cached_property
    def _texts(self) -> list[str]:
        """What each id stands for, a character a byte; nothing for special tokens. InputError if
        not byte-level.
        """
        model, vocabulary = self._rules["model"], self.tokenizer.get_vocab()
        marks = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        if marks or any(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
            raise InputError(
                f"{self.path}: names of tokens hold more than their bytes ({marks or '<0x..>'})"
            )
        special = {
            id for id, token in self.tokenizer.get_added_tokens_decoder().items() if token.special
        }
        texts = [""] * self.vocab_size
        for token, id in vocabulary.items():
            if id not in special and id != self.unknown:
                texts[id] = token
        if not set("".join(texts)) <= _BYTE_OF.keys():
            wrong = next(token for token in texts if not set(token) <= _BYTE_OF.keys())
            raise InputError(
                f"{self.path}: token {wrong!r} is not byte-level, so its bytes are unknown"
            )
        return texts

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes of text that each token stands for; special tokens stand for none. InputError
        if not byte-level.
        """
        return [bytes(_BYTE_OF[character] for character in token) for token in self._texts]

    @cached_property
    def bytes_per_token(self) -> NDArray[np.int64]:
        """How many bytes of text each token stands for, int64[V].

        Summed over ids, exact where the tokenizer has a token for every byte of the text.
        """
        return np.array([len(token) for token in self._texts], dtype=np.int64)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's one character for each byte: printable ones stand for themselves, the others follow
    from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()
# for str.translate of text read as Latin-1
BYTE_CHARACTERS = {byte: character for character, byte in _BYTE_OF.items()}
