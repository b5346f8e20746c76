"""The written form of an input interface: `WORDS[:key=value,...]`, typed, canonical and hashed.

Four axes that do not know of each other, so that a factor study is a product of keys: words (`binary`, `gf2`, `learned`),
assignment (`ids=`), values (`values=`), lift (`lift=`). Examples: `binary`, `gf2:seed=12345`,
`binary:ids=permuted,ids_seed=1`, `binary:values=pm1,lift=interleave`, `learned:std=1`.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

from tokencodes.errors import InputError, nearest

SPEC_VERSION = 1
PAPER_SEED = 12345  # the paper's code seed
PAPER_MIN_WEIGHT = 4

_CODE_KEYS = ("width", "ids", "values", "lift")
_KEYS: dict[str, tuple[str, ...]] = {
    "binary": _CODE_KEYS,
    "gf2": (*_CODE_KEYS, "seed", "min_weight"),
    "learned": ("std",),
}
_CHOICES = {"ids": ("natural", "permuted"), "values": ("01", "pm1"), "lift": ("tile", "interleave")}


def minimal_width(vocab_size: int) -> int:
    """K = ceil(log2 V) bits tell V tokens apart (at least 1)."""
    return max(1, (vocab_size - 1).bit_length())


@dataclass(frozen=True)
class InterfaceSpec:
    """One input interface, without the model's vocabulary and width. Build it by `InterfaceSpec.parse`."""

    words: str
    width: int | None = None  # K; None: the minimal width of the vocabulary
    seed: int = PAPER_SEED  # of the gf2 matrix
    min_weight: int = PAPER_MIN_WEIGHT  # of its rows and columns
    ids: str = "natural"
    ids_seed: int = 0
    values: str = "01"
    lift: str = "tile"
    std: float = 0.02  # of the learned table at initialisation

    @staticmethod
    def parse(text: str) -> "InterfaceSpec":
        """Reads a SPEC; InputError names the word, key or value that does not fit and what does."""
        words, _, tail = (piece.strip() for piece in text.partition(":"))
        if words not in _KEYS:
            raise InputError(f"interface {text!r}: unknown words {words!r}; {nearest(words, _KEYS)}")
        given: dict[str, str] = {}
        for part in filter(None, (piece.strip() for piece in tail.split(","))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value:
                raise InputError(f"interface {text!r}: {part!r} is not key=value")
            if key in given:
                raise InputError(f"interface {text!r}: {key}= is given twice")
            given[key] = value
        allowed = _allowed(words, given.get("ids", "natural"))
        for key in given:
            if key not in allowed:
                hint = "it goes with ids=permuted" if key == "ids_seed" else nearest(key, allowed)
                raise InputError(f"interface {text!r}: {key}= does not go with these words and keys; {hint}")
        typed: dict[str, Any] = {key: _value(text, key, value) for key, value in given.items()}
        return InterfaceSpec(words, **typed)

    @property
    def learned(self) -> bool:
        """Whether the input is a trainable table."""
        return self.words == "learned"

    def keys(self) -> dict[str, int | float | str | None]:
        """Every key that has a meaning here, defaults filled in."""
        return {key: getattr(self, key) for key in ("words", *_allowed(self.words, self.ids))}

    def __str__(self) -> str:
        defaults = {field.name: field.default for field in fields(self)}
        told = [
            f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in self.keys().items()
            if key != "words" and value != defaults[key]
        ]
        return f"{self.words}:{','.join(told)}" if told else self.words

    def code_width(self, vocab_size: int) -> int:
        """K for a vocabulary of V tokens; InputError if `width=` is too small to tell them apart."""
        least = minimal_width(vocab_size)
        if self.width is not None and self.width < least:
            raise InputError(
                f"interface {str(self)!r}: width={self.width} cannot tell {vocab_size:,} tokens apart; it must be >= {least}"
            )
        return self.width or least

    def sha256(self, vocab_size: int, hidden_size: int) -> str:
        """The spec hash: SHA-256 of the canonical JSON of version, keys, V and d (K resolved)."""
        keys = self.keys()
        if not self.learned:
            keys["width"] = self.code_width(vocab_size)
        told = {"version": SPEC_VERSION, **keys, "vocab_size": vocab_size, "hidden_size": hidden_size}
        return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _allowed(words: str, ids: str) -> tuple[str, ...]:
    keys = _KEYS[words]
    return (*keys, "ids_seed") if "ids" in keys and ids == "permuted" else keys


def _value(text: str, key: str, value: str) -> int | float | str:
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise InputError(f"interface {text!r}: {key}={value} is not one of {', '.join(_CHOICES[key])}")
        return value
    try:
        number = float(value) if key == "std" else int(value)
    except ValueError:
        raise InputError(f"interface {text!r}: {key}={value} is not a number") from None
    low, high = {"std": (0.0, 1e6), "width": (1, 1 << 20), "min_weight": (0, 1 << 20)}.get(key, (0, (1 << 63) - 1))
    if not low <= number <= high:
        raise InputError(f"interface {text!r}: {key}={value} is not in {low} ... {high}")
    return number
