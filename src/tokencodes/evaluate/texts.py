"""A tokenizer as an evaluation uses it: ids of many texts at once, what it adds to each, and what
it cannot write down.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tokencodes import checkpoint
from tokencodes.data.encode import CachedEncoder
from tokencodes.data.tokenizer import END_OF_TEXT, TokenizerFile
from tokencodes.errors import InputError, first_line, pass_on_interruption

Tokens = NDArray[np.uint32]


class Texts:
    """Ids as `tokenizer.encode` gives them by default, as lm-eval asks for them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        file = TokenizerFile.of(
            tokenizer.backend_tokenizer, Path(tokenizer.name_or_path or "tokenizer")
        )
        self._file = file
        self.begin = self._begin()
        self._cached = CachedEncoder(file) if CachedEncoder.supports(file) else None
        self.sha256 = file.sha256
        self.vocab_size = file.vocab_size

    def _begin(self) -> Tokens:
        """What is put before each text. InputError where something is put behind it: that would be
        scored, or stand between.
        """
        encoded = [
            (self.tokenizer.encode(text), self.tokenizer.encode(text, add_special_tokens=False))
            for text in ("a", "b c")
        ]
        begins = [ids[: len(ids) - len(bare)] for ids, bare in encoded]
        if (
            any(ids != begin + bare for (ids, bare), begin in zip(encoded, begins, strict=True))
            or begins[0] != begins[1]
        ):
            raise InputError(
                f"{self.tokenizer.name_or_path}: this tokenizer puts tokens behind each text"
                f" ({encoded[0][0]} for 'a'); make one that does not (add_eos_token=False)"
            )
        return np.array(begins[0], dtype=np.uint32)

    @property
    def prefix(self) -> int | None:
        """The token that stands for an empty context unless another is asked for: begin of text, or
        else end of text.
        """
        for name in ("bos_token_id", "eos_token_id"):
            token: int | None = getattr(self.tokenizer, name)
            if token is not None:
                return token
        return self._file.tokenizer.token_to_id(END_OF_TEXT)

    def plain(self, text: str) -> Tokens:
        """Ids of one text, nothing added."""
        return self._bare([text])[0]

    def encode(self, texts: list[str]) -> list[Tokens]:
        """Ids of texts, what the tokenizer begins each with included; but not where a text begins
        with it itself.
        """
        return [
            np.concatenate([self.begin, ids]) if self.begun(text) else ids
            for text, ids in zip(texts, self._bare(texts), strict=True)
        ]

    def begun(self, text: str) -> int:
        """How many tokens `encode` puts before a text: what the tokenizer begins each with, unless
        the text has it itself.
        """
        return 0 if not len(self.begin) or text.startswith(self._literal) else len(self.begin)

    @cached_property
    def _literal(self) -> str:
        return str(self.tokenizer.decode(self.begin))

    def _bare(self, texts: list[str]) -> list[Tokens]:
        if self._cached is None:
            return [np.array(ids, dtype=np.uint32) for ids in self._file.encode(texts)]
        ids, counts = self._cached.encode(texts)
        return np.split(ids, np.cumsum(counts)[:-1]) if texts else []

    @cached_property
    def _bytes(self) -> NDArray[np.int64] | None:
        try:
            return self._file.bytes_per_token
        except InputError:  # not byte-level
            return None

    def lost(self, text: str, ids: Tokens) -> int | None:
        """Bytes of a text that none of its tokens stands for, as characters that need a byte
        without a token vanish; None where the tokenizer is not byte-level, so that it cannot be
        told from ids.
        """
        if self._bytes is None:
            return None
        own = ids[self.begun(text) :]
        if self._special[own].any():  # stands for no bytes of text, but was read from some
            return None
        return len(text.encode()) - int(self._bytes[own].sum())

    @cached_property
    def _special(self) -> NDArray[np.bool_]:
        special = np.zeros(self.vocab_size, dtype=bool)
        special[list(self._file.tokenizer.get_added_tokens_decoder())] = True
        return special


def refuse_missing(place: str) -> None:
    """InputError for a path that is no hub id and is not there: the hub would be asked for it, and
    say something else.
    """
    path = Path(place)
    if not path.exists() and (path.is_absolute() or place.startswith(".") or len(path.parts) > 2):
        raise InputError(f"{place}: no such file or folder")


def located(place: str | Path) -> Path | None:
    """The tokenizer at a path: the file itself; of a run or a folder its own, as a folder where
    that says which tokens begin and end a text, as a file otherwise. None where there is none, or
    the path is a hub id.
    """
    path = Path(place)
    if not path.is_dir():
        return path if path.is_file() else None
    file = checkpoint.tokenizer_of(path)
    return file.parent if file and file.with_name("tokenizer_config.json").is_file() else file


def open_texts(place: str | Path) -> Texts:
    """A tokenizer file, or the tokenizer of a run, a model's folder or hub id. InputError if there
    is none.
    """
    refuse_missing(str(place))
    path = place = located(place) or Path(place)
    if path.is_file():
        try:
            return Texts(PreTrainedTokenizerFast(tokenizer_file=str(path), name_or_path=str(path)))
        except InputError:
            raise
        except Exception as error:  # the library raises a bare Exception
            raise InputError(f"{path}: not a tokenizers file ({str(error)[:80]})") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(place), trust_remote_code=False)
    except Exception as error:  # each library has errors of its own for files that are damaged
        pass_on_interruption(error)
        raise InputError(f"{place}: no tokenizer there ({first_line(error, 120)})") from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"{place}: its tokenizer has no tokenizer.json; save it as a fast one")
    return Texts(tokenizer)
