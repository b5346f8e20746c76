"""Train or validation, by a seeded hash of the document, so that a document's side never depends on the others.

Paper: "seeded hash of the document id, text-hash fallback, validation threshold 0.001". Hash and seed are ours: BLAKE2b-64 of
"seed:" and the id's UTF-8 bytes (the text's, where a document has no id), read as a fraction of 2^64.
"""

import hashlib
from typing import Literal

from tokencodes.data.text import Document

Split = Literal["train", "validation"]


def split_of(document: Document, seed: int, validation: float) -> Split:
    """`validation` is the expected share of documents that are held out."""
    named = document.text if document.id is None else document.id
    digest = hashlib.blake2b(f"{seed}:".encode() + named.encode(), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "little") < validation * 2**64 else "train"
