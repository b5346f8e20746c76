"""Train or validation, by a seeded hash of the document, so that a document's side never depends on
the others.

Paper: "seeded hash of the document id, text-hash fallback, validation threshold 0.001". Hash and
seed are ours: BLAKE2b-64 of "seed:" and the id's UTF-8 bytes (the text's, where a document has no
id). A document is held out if its hash, a number below 2^64, is below the threshold, which is the
validation share of 2^64.

One exception, also ours: a side that would be empty gets the documents of one hash. If nothing is
held out though the share is above 0, the threshold rises just above the lowest hash. If nothing is
left to train on, it falls to the highest hash. Documents of one hash (the same id, or the same
text) always stay together.
"""

import hashlib
import math
from collections.abc import Iterable
from typing import Literal

from tokencodes.data.text import Document

Split = Literal["train", "validation"]


def split_hash(document: Document, seed: int) -> int:
    """The number below 2^64 that decides the side of a document."""
    name = document.text if document.id is None else document.id
    digest = hashlib.blake2b(f"{seed}:".encode() + name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def threshold_of(validation: float) -> int:
    """The threshold of an expected share of held-out documents."""
    return math.ceil(validation * 2**64)


def side_of(number: int, threshold: int) -> Split:
    """The side of a document with this hash."""
    return "validation" if number < threshold else "train"


def split_of(document: Document, seed: int, validation: float) -> Split:
    """The side of a document where neither side is empty. `validation` is the expected share of
    documents that are held out.
    """
    return side_of(split_hash(document, seed), threshold_of(validation))


def threshold_for_both_sides(numbers: Iterable[int], natural: int) -> int:
    """The threshold nearest to `natural`, a share's, that leaves no side empty. `numbers`: the
    documents' hashes.

    `natural` itself where the share is 0, and where all documents have one hash, so that one side
    must be empty. Reads only as far as to the first document of the second side.
    """
    lowest = highest = None
    for number in numbers:
        lowest = number if lowest is None else min(lowest, number)
        highest = number if highest is None else max(highest, number)
        if lowest < natural <= highest:
            return natural
    if not natural or lowest is None or highest is None or lowest == highest:
        return natural
    return lowest + 1 if lowest >= natural else highest
