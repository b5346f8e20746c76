"""The written form of an input interface: `WORDS[:key=value,...]`, typed, canonical and hashed.

Axes that do not know of each other, so that a factor study is a product of keys:
  words       the K-vectors by number       binary gf2 gray ecc random digits
                                            gaussian sphere sincos
  assignment  which token gets which word   ids=natural|permuted|ranked|clustered
  values      how a bit is shown            values=01|pm1  center=true  scale=NUMBER|match
  lift        from K coordinates to d       lift=tile|interleave|orthogonal|pad
`learned` is a trainable table; `learned-code:init=WORDS,...` trains the coordinates and keeps the
lift.

Examples: `binary`, `gf2:seed=12345`, `binary:ids=permuted,ids_seed=1`,
`random:width=2048,values=pm1,seed=3`, `learned:std=1`.
"""

import hashlib
import json
import re
from dataclasses import dataclass, fields
from typing import Any

from tokencodes.errors import InputError, nearest

SPEC_VERSION = 1
PAPER_SEED = 12345  # the paper's code seed
PAPER_MIN_WEIGHT = 4
# the most tokens of a vocabulary, and channels of a model
VOCABULARY_BOUND, WIDTH_BOUND = 1 << 24, 1 << 20

LINEAR = ("binary", "gf2", "gray", "ecc")  # each bit is a parity of bits of the word's number
BITS = (*LINEAR, "random", "digits")
FLOATS = ("gaussian", "sphere", "sincos")
INFORMED = ("ranked", "clustered")  # assignments that are read off training text

_OWN_KEYS: dict[str, tuple[str, ...]] = {
    "binary": ("width", "endian"),
    "gf2": ("width", "seed", "min_weight", "affine", "matrix"),
    "gray": ("width",),
    "ecc": ("width",),
    "random": ("width", "seed"),
    "digits": ("base",),
    "gaussian": ("width", "seed"),
    "sphere": ("width", "seed"),
    "sincos": ("width",),
}
_CHOICES = {
    "ids": ("natural", "permuted", *INFORMED),
    "values": ("01", "pm1"),
    "lift": ("tile", "interleave", "orthogonal", "pad"),
    "endian": ("little", "big"),
    "storage": ("lookup", "computed"),
    "init": (*BITS, *FLOATS),
}
_SWITCHES = ("affine", "center")
_TEXTS = ("matrix", "order")
_FLOAT_RANGE = {"std": (0.0, 1e6), "scale": (1e-9, 1e9)}
_INT_RANGE = {"width": (1, 1 << 20), "min_weight": (0, 1 << 20), "base": (2, 1 << 16)}
_ANY_SEED = (0, (1 << 63) - 1)


def minimal_width(vocab_size: int) -> int:
    """K = ceil(log2 V) bits tell V tokens apart (at least 1)."""
    return max(1, (vocab_size - 1).bit_length())


@dataclass(frozen=True)
class InterfaceSpec:
    """One input interface, without the model's vocabulary and width. Build it by
    `InterfaceSpec.parse`.
    """

    words: str
    init: str = "binary"  # of learned-code: the words its coordinates begin as
    width: int | None = None  # K; None: the least that the words need (twice that for ecc)
    endian: str = "little"
    seed: int = PAPER_SEED  # of gf2, random, gaussian, sphere
    min_weight: int = PAPER_MIN_WEIGHT  # of gf2's rows and columns
    affine: bool = False  # gf2: A·c + b with a seeded b, not 0
    matrix: str | None = None  # gf2: a file with A, or the hash that stands for it once it was read
    base: int = 16  # of digits
    ids: str = "natural"
    ids_seed: int = 0
    order: str | None = None  # of an informed assignment: the hash of its order, once it is known
    values: str = "01"
    center: bool = False  # subtract the mean of the instantiated vocabulary
    # a factor, or "match": the mean squared norm of a learned table of std `std`
    scale: float | str = 1.0
    std: float = 0.02  # of the learned table at initialisation
    lift: str = "tile"
    lift_seed: int = 0  # of the orthogonal lift
    storage: str = "lookup"

    @staticmethod
    def parse(text: str) -> "InterfaceSpec":
        """Reads a SPEC; InputError names the word, key or value that does not fit and what does."""
        words, _, tail = (piece.strip() for piece in text.partition(":"))
        known = ("learned", "learned-code", *_OWN_KEYS)
        if words not in known:
            raise InputError(
                f"interface {text!r}: unknown words {words!r}; {nearest(words, known)}"
            )
        given: dict[str, str] = {}
        for part in filter(None, (piece.strip() for piece in tail.split(","))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value:
                raise InputError(f"interface {text!r}: {part!r} is not key=value")
            if key in given:
                raise InputError(f"interface {text!r}: {key}= is given twice")
            given[key] = value
        typed: dict[str, Any] = {
            key: _value(text, key, value)
            for key, value in given.items()
            if key in InterfaceSpec.__dataclass_fields__
        }
        spec = InterfaceSpec(
            words, **{key: value for key, value in typed.items() if key != "words"}
        )
        allowed = spec.allowed()
        for key in given:
            if key not in allowed:
                raise InputError(f"interface {text!r}: {key}= {_why_not(key, allowed)}")
        return spec

    @property
    def learned(self) -> bool:
        """Whether the input is a trainable table."""
        return self.words == "learned"

    @property
    def fixed(self) -> bool:
        """Whether nothing of the input is trained."""
        return self.words not in ("learned", "learned-code")

    @property
    def kind(self) -> str:
        """The words of the codebook: `words`, or what a learned-code begins as."""
        return self.init if self.words == "learned-code" else self.words

    @property
    def binary_valued(self) -> bool:
        """Whether the codebook's words are bits."""
        return self.kind in BITS

    @property
    def informed(self) -> bool:
        """Whether the assignment is read off training text."""
        return self.ids in INFORMED

    @property
    def given(self) -> tuple[str, ...]:
        """The arrays that a spec names by hash because no seed gives them: `order`, `matrix` (with
        its `offset`).
        """
        return (("order",) if self.informed else ()) + (("matrix", "offset") if self.matrix else ())

    def allowed(self) -> tuple[str, ...]:
        """The keys that have a meaning together with these words and keys."""
        if self.learned:
            return ("std",)
        keys: tuple[str, ...] = ("init",) if self.words == "learned-code" else ()
        own = _OWN_KEYS[self.kind]
        if self.kind == "gf2" and self.matrix:
            own = ("width", "matrix")
        keys += (*own, "ids", "center", "scale", "lift")
        keys += ("values",) if self.binary_valued else ()
        keys += ("ids_seed",) if self.ids in ("permuted", "clustered") else ()
        keys += ("order",) if self.informed else ()
        keys += ("std",) if self.scale == "match" else ()
        keys += ("lift_seed",) if self.lift == "orthogonal" else ()
        computable = self.fixed and self.kind in (*LINEAR, "random") and not self.informed
        return (*keys, "storage") if computable else keys

    def keys(self) -> dict[str, Any]:
        """Every key that has a meaning here, defaults filled in."""
        allowed = self.allowed()
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name in ("words", *allowed)
        }

    def __str__(self) -> str:
        defaults = {field.name: field.default for field in fields(self)}
        parts = [
            f"{key}={_text(v)}"
            for key, v in self.keys().items()
            if key != "words" and v != defaults[key]
        ]
        return f"{self.words}:{','.join(parts)}" if parts else self.words

    def code_width(self, vocab_size: int) -> int:
        """K for a vocabulary of V tokens;
        InputError if `width=` is too small to tell them apart."""
        least = minimal_width(vocab_size)
        if self.kind == "digits":
            places = 1
            while self.base**places < vocab_size:
                places += 1
            return places * self.base
        if self.kind in FLOATS:
            least = 2 if self.kind == "sincos" else 1
        if self.width is not None and self.width < least:
            raise InputError(
                f"interface {str(self)!r}: width={self.width} cannot tell {vocab_size:,} tokens"
                f" apart; it must be >= {least}"
            )
        if self.kind == "sincos" and self.width is not None and self.width % 2:
            raise InputError(
                f"interface {str(self)!r}: width={self.width}: sines and cosines come in pairs;"
                " make it even"
            )
        default = {
            "ecc": 2 * least,
            "gaussian": minimal_width(vocab_size),
            "sphere": minimal_width(vocab_size),
        }
        if self.kind == "sincos":
            default["sincos"] = minimal_width(vocab_size) + minimal_width(vocab_size) % 2
        return self.width or default.get(self.kind, least)

    def sha256(self, vocab_size: int, hidden_size: int) -> str:
        """The spec hash: SHA-256 of the canonical JSON of version, keys, V and d (K resolved)."""
        keys = self.keys()
        if not self.learned:
            keys["width"] = self.code_width(vocab_size)
        content = {
            "version": SPEC_VERSION,
            **keys,
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
        }
        return hashlib.sha256(
            json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _why_not(key: str, allowed: tuple[str, ...]) -> str:
    hints = {
        "ids_seed": "it goes with ids=permuted or ids=clustered",
        "lift_seed": "it goes with lift=orthogonal",
        "std": "it goes with learned, and with scale=match",
        "values": "only bits can be shown as 01 or pm1",
        "storage": (
            "only binary, gf2, gray, ecc and random can be computed, and not with an informed"
            " assignment"
        ),
        "order": "it goes with ids=ranked or ids=clustered",
    }
    return f"does not go with these words and keys; {hints.get(key) or nearest(key, allowed)}"


def _value(text: str, key: str, value: str) -> Any:
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise InputError(
                f"interface {text!r}: {key}={value} is not one of {', '.join(_CHOICES[key])}"
            )
        return value
    if key in _SWITCHES:
        if value not in ("true", "false"):
            raise InputError(f"interface {text!r}: {key}={value} is neither true nor false")
        return value == "true"
    if key in _TEXTS:
        return value
    if key == "scale" and value == "match":
        return value
    decimal = key in _FLOAT_RANGE
    if not re.fullmatch(
        r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|nan|inf" if decimal else r"[+-]?\d+", value
    ):
        raise InputError(f"interface {text!r}: {key}={value} is not a number")
    number = float(value) if decimal else int(value)
    low, high = _FLOAT_RANGE[key] if decimal else _INT_RANGE.get(key, _ANY_SEED)
    if not low <= number <= high:
        raise InputError(f"interface {text!r}: {key}={value} is not in {low} ... {high}")
    return number
