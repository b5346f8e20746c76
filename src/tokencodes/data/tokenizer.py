"""A tokenizer file: training a byte-level BPE, and reading any `tokenizers` JSON with the facts that data need."""

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel

from tokencodes.errors import InputError
from tokencodes.files import write_text

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int, out: Path) -> None:
    """Trains a byte-level BPE and writes it whole or not at all. Id 0 is `<|endoftext|>`, ids 1-256 the bytes.

    Digits are split one by one, as in the SmolLM2 tokenizer. InputError if the text does not give `vocab_size` entries.
    """
    least = len(ByteLevel.alphabet()) + 1
    if vocab_size < least:
        raise InputError(f"vocab_size {vocab_size}: a byte-level BPE needs at least {least} entries (256 bytes, {END_OF_TEXT})")
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
            f"vocab_size {vocab_size:,}: this text gives a BPE of {tokenizer.get_vocab_size():,} entries only; "
            "lower vocab_size or give more text"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, tokenizer.to_str(pretty=True))


class TokenizerFile:
    """A tokenizer with the SHA-256 of its file: what a dataset and a model are bound to."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(f"{path}: no such tokenizer file; name a tokenizer.json, or make one by `tokencodes tokenizer`")
        data = path.read_bytes()
        try:
            tokenizer = Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises a bare Exception
            raise InputError(f"{path}: not a tokenizers file ({str(error)[:80]})") from None
        self._take(tokenizer, data, path)
        end = self.tokenizer.token_to_id(END_OF_TEXT)
        if end is None:
            raise InputError(f"{path}: no {END_OF_TEXT} entry, which ends each document; use a tokenizer that has it")
        self.end_of_text: int = end

    @classmethod
    def of(cls, tokenizer: Tokenizer, path: Path) -> "TokenizerFile":
        """The same of a tokenizer that is open already, for those who only encode: it need have no end of text."""
        found = cls.__new__(cls)
        found._take(tokenizer, tokenizer.to_str().encode(), path)
        return found

    def _take(self, tokenizer: Tokenizer, data: bytes, path: Path) -> None:
        self.tokenizer, self._data = tokenizer, data
        self.tokenizer.no_truncation()  # what a file sets for short prompts would cut or pad documents without a word
        self.tokenizer.no_padding()
        self.path = path
        self.sha256 = hashlib.sha256(data).hexdigest()
        # V: every id is below it. A vocabulary with holes has fewer entries than that.
        self.vocab_size: int = max(self.tokenizer.get_vocab().values(), default=-1) + 1

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids without special tokens; a literal `<|endoftext|>` in a text becomes its id, as the library does it."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    @cached_property
    def told(self) -> dict[str, Any]:
        """The file's rules, as it tells them; without the vocabulary and the merges, which are most of it."""
        told: dict[str, Any] = json.loads(self._data)
        return {key: value for key, value in told.items() if key != "model"}

    @cached_property
    def _texts(self) -> list[str]:
        """What each id stands for, a character a byte; nothing for special tokens. InputError if not byte-level."""
        special = {id for id, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        found = [""] * self.vocab_size
        for token, id in self.tokenizer.get_vocab().items():
            if id not in special:
                found[id] = token
        if not set("".join(found)) <= _BYTE_OF.keys():
            wrong = next(token for token in found if not set(token) <= _BYTE_OF.keys())
            raise InputError(f"{self.path}: token {wrong!r} is not byte-level, so its bytes are unknown")
        return found

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes of text that each token stands for; special tokens stand for none. InputError if not byte-level."""
        return [bytes(_BYTE_OF[character] for character in token) for token in self._texts]

    @cached_property
    def bytes_per_token(self) -> NDArray[np.int64]:
        """How many bytes of text each token stands for, int64[V].

        Summed over ids, exact where the tokenizer has a token for every byte of the text.
        """
        return np.array([len(token) for token in self._texts], dtype=np.int64)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's one character for each byte: printable ones stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
BYTE_CHARACTERS = {byte: character for character, byte in _BYTE_OF.items()}  # for str.translate of text read as Latin-1
