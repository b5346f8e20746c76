"""What was read, kept and left out of one input; nothing is dropped without a count."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

EMPTY, SHORT, SPECIAL = "empty text", "too short", "special token in the text"
UNKNOWN, CHANGED = (
    "text that the tokenizer has no token for",
    "text that the tokenizer's normalizer changes",
)
NO_ID, NO_SOURCE = "no id, so split by the text", "no source where one was named"
NOTED = {"\r\n": "CRLF line ends", "\0": "NUL byte"}  # kept as they are, and counted


@dataclass
class Counts:
    """What was read, kept and left out.

    `text_bytes` are of UTF-8 text. `token_bytes` are those of them that tokens stand for; None
    where that cannot be known.
    """

    documents: int = 0
    kept: int = 0
    text_bytes: int = 0
    token_bytes: int | None = 0
    dropped: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    # the first of each kind that was dropped
    examples: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As plain values, kinds in the order of their names."""
        values = {
            name: getattr(self, name) for name in ("documents", "kept", "text_bytes", "token_bytes")
        }
        return values | {
            name: _sorted(getattr(self, name)) for name in ("dropped", "noted", "examples")
        }

    def keep(self, text_bytes: int, lost_bytes: int) -> None:
        """Counts one document of the dataset; `lost_bytes` of its text have no token."""
        self.kept += 1
        self.text_bytes += text_bytes
        if self.token_bytes is not None:
            self.token_bytes += text_bytes - lost_bytes

    def drop(self, kind: str, place: str) -> None:
        """Counts one document that is left out of the dataset."""
        self.dropped[kind] += 1
        self.examples.setdefault(kind, place)


def _sorted(kinds: dict[str, Any]) -> dict[str, Any]:
    """In the order of their names, without those that never occurred."""
    return {kind: value for kind, value in sorted(kinds.items()) if value != 0}
