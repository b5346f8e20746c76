r"""Where GPT-2's pre-tokenizer cuts a text, for a megabyte of UTF-8 at a time.

A byte-level BPE first cuts a text into pre-tokens and then merges inside each, so a pre-token's ids
never depend on its neighbours: that is what makes a cache of them exact. The cuts are one regular
expression (A. Radford et al., 2019):

    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

Which character is a letter, a number or white space is asked of the installed library, for every
code point, because Unicode versions differ between libraries. From there on each cut follows from
the classes of two neighbours, but for two things: white space before a word gives its last
character away, and a contraction has a length. So it takes a few array operations.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

# SPACE is U+0020, which joins what follows it; BLANK other white space
OTHER, LETTER, NUMBER, SPACE, BLANK = range(5)
CODE_POINTS = 0x110000
ASCII = 0x80
# What a pair of neighbours says of the second: it begins a pre-token; it is a word after blanks.
_START, _AFTER_BLANK = 1, 2
_APOSTROPHE = ord("'")
_ENDINGS = [b"s", b"t", b"m", b"d", b"re", b"ve", b"ll"]


def supports(rules: dict[str, Any]) -> bool:
    """Whether a tokenizer file's rules cut texts by the expression above, with or without digits
    split one by one first.
    """
    return rules.get("normalizer") is None and _steps(rules.get("pre_tokenizer")) in (
        ["ByteLevel"],
        ["Digits", "ByteLevel"],
    )


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[str]:
    """The kinds of a pre-tokenizer's steps; a step with options that we do not compute has the kind
    `unknown`.
    """
    if pre_tokenizer is None:
        return []
    if pre_tokenizer["type"] == "Sequence":
        return [kind for step in pre_tokenizer["pretokenizers"] for kind in _steps(step)]
    if (
        pre_tokenizer["type"] == "ByteLevel"
    ):  # `use_regex` is absent from older files, GPT-2's among them
        known = not pre_tokenizer["add_prefix_space"] and pre_tokenizer.get("use_regex", True)
    else:
        known = pre_tokenizer["type"] == "Digits" and pre_tokenizer["individual_digits"]
    return [str(pre_tokenizer["type"]) if known else "unknown"]


class Pretokenizer:
    """The cuts of one tokenizer, one that `supports` accepts."""

    def __init__(self, tokenizer: Tokenizer, rules: dict[str, Any]) -> None:
        self._library = tokenizer.pre_tokenizer
        lone_digits = "Digits" in _steps(rules.get("pre_tokenizer"))
        self.classes = self._classes()
        self._class_of_byte = bytes(self.classes[:ASCII]) + bytes([OTHER]) * (256 - ASCII)
        self._pairs = _pair_table(lone_digits)

    def _classes(self) -> Bytes:
        """The class of each code point, uint8[0x110000], as the library has it.

        Above ASCII nothing joins what follows, so one long text of all characters is cut into runs
        of one class each. Planes without a single assigned character are asked by every 64th, and
        whole if one of those is a letter, number or blank.
        """
        classes = np.full(CODE_POINTS, OTHER, dtype=np.uint8)
        blocks = [np.r_[ASCII:0xD800, 0xE000:0x40000], np.r_[0xE0000:0xF0000]]
        for code_points in (np.r_[0x40000:0xE0000], np.r_[0xF0000:CODE_POINTS]):
            if len(self._cut("".join(map(chr, code_points[::64].tolist())))) > 1:
                blocks.append(code_points)
        for code_points in blocks:
            for start, end in self._cut(code_points.astype("<u4").tobytes().decode("utf-32-le")):
                classes[code_points[start:end]] = self._class_of(chr(code_points[start]))
        classes[:ASCII] = [self._class_of(chr(c)) for c in range(ASCII)]
        classes[ord(" ")] = SPACE
        return classes

    def _cut(self, text: str) -> list[tuple[int, int]]:
        return [span for _, span in self._library.pre_tokenize_str(text)]

    def _class_of(self, character: str) -> int:
        """A letter goes on after `a`, any other sign after `!`,
        and white space after a line break."""
        for before, kind in (("a", LETTER), ("!", OTHER), ("\n", BLANK)):
            if len(self._cut(before + character)) == 1:
                return kind
        return NUMBER

    def is_blank(self, character: str) -> bool:
        """Whether a character is white space."""
        return bool(self.classes[ord(character)] >= SPACE)

    def starts(self, data: bytes, pieces: Ints) -> Ints:
        """Where in the UTF-8 `data` a pre-token begins, ascending: int64.

        `pieces`: where a text of its own begins, ascending, all below len(data) and the first 0;
        nothing joins across.
        """
        text = np.frombuffer(data, dtype=np.uint8)
        kinds = np.frombuffer(bytearray(data.translate(self._class_of_byte)), dtype=np.uint8)
        inner = None if data.isascii() else self._high(text, kinds)
        flags = np.empty(len(text), dtype=np.uint8)
        flags[1:] = np.frombuffer(
            ((kinds[:-1] << 3) | kinds[1:]).tobytes().translate(self._pairs), dtype=np.uint8
        )
        flags[pieces] = _START
        begins = (flags & _START).astype(np.bool_)
        after_blank = (flags & _AFTER_BLANK).astype(np.bool_)
        begins[:-1] |= after_blank[1:]
        if inner is not None:
            begins &= ~inner
            _last_blanks(begins, after_blank, inner)
        self._contractions(data, text, begins, pieces)
        return np.flatnonzero(begins)

    def _high(self, text: Bytes, kinds: Bytes) -> NDArray[np.bool_]:
        """Puts the classes of characters above ASCII on all their bytes; returns which bytes are
        not a character's first.
        """
        lead = np.flatnonzero(text >= 0xC0)
        first = text[lead].astype(np.int64)
        size = 2 + (first >= 0xE0) + (first >= 0xF0)
        code = first & np.array([0, 0, 0x1F, 0x0F, 0x07])[size]
        for place in (1, 2, 3):
            has = size > place
            code[has] = (code[has] << 6) | (text[lead[has] + place] & 0x3F)
        kind = self.classes[code]
        kinds[lead] = kind
        for place in (1, 2, 3):
            has = size > place
            kinds[lead[has] + place] = kind[has]
        return (text & 0xC0) == 0x80

    @staticmethod
    def _contractions(data: bytes, text: Bytes, begins: NDArray[np.bool_], pieces: Ints) -> None:
        """`'s` and its like, where a pre-token begins with the apostrophe and the letters are of
        the same piece.
        """
        if _APOSTROPHE not in data:
            return
        at = np.flatnonzero(begins & (text == _APOSTROPHE))
        limit = np.append(pieces, len(text))[np.searchsorted(pieces, at, side="right")]
        letters = np.zeros((2, len(at)), dtype=np.uint8)
        for place in (1, 2):
            has = at + place < limit
            letters[place - 1, has] = text[at[has] + place]
        for ending in _ENDINGS:
            match = letters[0] == ending[0]
            if len(ending) == 2:
                match &= letters[1] == ending[1]
            matched = at[match]
            begins[matched + 1] = False
            after = matched + 1 + len(ending)
            begins[after[after < len(text)]] = True


def _last_blanks(
    begins: NDArray[np.bool_], after_blank: NDArray[np.bool_], inner: NDArray[np.bool_]
) -> None:
    """The last white space before a word begins a pre-token: where it has several bytes, at the
    first of them.
    """
    last = np.flatnonzero(after_blank[1:] & inner[:-1])
    while len(last):
        last = last - 1
        begins[last[~inner[last]]] = True
        last = last[inner[last]]


def _pair_table(lone_digits: bool) -> bytes:
    """What 8 · (class before) + class says of the second of two neighbours in one piece."""
    words = {OTHER, LETTER} if lone_digits else {OTHER, LETTER, NUMBER}
    blanks = {SPACE, BLANK}
    table = bytearray(256)
    for before in range(5):
        for kind in range(5):
            goes_on = (kind in words and before == kind) or (kind in blanks and before in blanks)
            joins = kind in words and before == SPACE
            flags = 0 if goes_on or joins else _START
            table[8 * before + kind] = flags | (
                _AFTER_BLANK if kind in words and before in blanks else 0
            )
    return bytes(table)
