"""What a model is asked: the tokens it reads, and those of them whose log-probability is wanted.

Texts become tokens by lm-eval's own rules, so that scores can be compared: white space at the end of a context moves to its
continuation, both are encoded together and cut where the context alone ends; an empty context becomes the prefix token; what is
longer than the model's context loses tokens on the left. Unlike there, what was lost is counted and kept with the request.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokencodes.errors import InputError
from tokencodes.evaluate.texts import Texts

Tokens = NDArray[np.uint32]
CHOICE, ROLLING = "loglikelihood", "loglikelihood_rolling"


@dataclass(frozen=True)
class Asked:
    """Where a request comes from: `part` is the number of the choice, or of the window of a rolling document."""

    task: str
    document: int
    part: int
    kind: str = CHOICE


@dataclass(frozen=True, eq=False)
class Request:
    """The last `scored` tokens are asked for, each given all before it; the very last one is not read.

    dropped: tokens that the context limit cut from the left. lost: bytes of the scored text that no token stands for (None
    where that cannot be told). prefix: the token that stands for an empty context, None where there is one.
    """

    asked: Asked
    context: Tokens  # shared between requests that have the same one
    continuation: Tokens
    dropped: int
    lost: int | None
    prefix: int | None
    context_sha256: str
    continuation_sha256: str
    texts: tuple[str, str]  # as the task gave them

    @property
    def scored(self) -> int:
        """How many tokens are asked for."""
        return len(self.continuation)

    @property
    def tokens(self) -> Tokens:
        """Everything: T tokens, of which the first T - 1 are read."""
        return np.concatenate([self.context, self.continuation])

    @property
    def read_sha256(self) -> str:
        """Hash of what is read and asked for: two requests with this in common have the same score."""
        digest = hashlib.sha256(f"{self.scored}:".encode())
        digest.update(self.context.astype("<u4").tobytes())
        digest.update(self.continuation.astype("<u4").tobytes())
        return digest.hexdigest()


def sha256(text: str) -> str:
    """Of UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def pair_requests(
    pairs: Sequence[tuple[str, str]], asked: Sequence[Asked], texts: Texts, limit: int, prefix: int | None
) -> list[Request]:
    """Requests for continuations of contexts, in their order. limit: tokens that the model can read."""
    split = [_moved(context, continuation) for context, continuation in pairs]
    distinct = list(dict.fromkeys(context for context, _ in split))
    ids = dict(zip(distinct, texts.encode(distinct), strict=True))
    hashes = {context: sha256(context) for context in distinct}
    whole = texts.encode([context + continuation for context, continuation in split])
    found, too_long = [], dict[str, list[tuple[int, str]]]()
    for (context, continuation), (before, after), all_ids, who in zip(pairs, split, whole, asked, strict=True):
        first, used = ids[before], None
        scored = all_ids[len(first) :]
        if not before:
            first, scored, used = _prefixed(texts.plain(after), prefix, who)
        if not len(scored):
            raise InputError(
                f"{who.task}, document {who.document}, choice {who.part}: {continuation!r} gives no token to score"
            )
        if len(scored) > limit:
            too_long.setdefault(who.task.partition("/")[0], []).append((len(scored), f"{who.task}, document {who.document}"))
            continue
        dropped = max(0, len(first) + len(scored) - (limit + 1))
        found.append(
            Request(
                who,
                first[dropped:] if dropped else first,
                scored,
                dropped,
                texts.lost(after, scored) if used is not None else texts.lost(before + after, all_ids),
                used,
                hashes[before],
                sha256(after),
                (context, continuation),
            )
        )
    if too_long:
        longest = [f"{name}: {len(some)} of up to {max(some)[0]} tokens ({max(some)[1]})" for name, some in too_long.items()]
        raise InputError(
            f"continuations longer than the {limit} tokens that the model reads, {'; '.join(longest)}; leave out "
            f"{', '.join(too_long)}"
        )
    return found


def _moved(context: str, continuation: str) -> tuple[str, str]:
    bare = context.rstrip()
    return bare, context[len(bare) :] + continuation


def _prefixed(scored: Tokens, prefix: int | None, who: Asked) -> tuple[Tokens, Tokens, int | None]:
    """An empty context: the prefix token stands for it, unless the text begins with that token itself."""
    if prefix is None:
        raise InputError(f"{who.task}, document {who.document}: an empty context, and no prefix token; give --prefix-token")
    if len(scored) and scored[0] == prefix:
        return scored[:1], scored[1:], None
    return np.array([prefix], dtype=np.uint32), scored, prefix


def rolling_requests(
    documents: Sequence[str], asked: Sequence[Asked], texts: Texts, limit: int, prefix: int | None
) -> list[Request]:
    """Windows in which each token of a document is asked for once, with as much of it before as fits: the first window begins
    with the prefix token, later ones with one token of the window before, the last one reaches back to be full.

    Without a prefix (None) the first token of a document is read and not asked for.
    """
    found = []
    for text, whole, who in zip(documents, texts.encode(list(documents)), asked, strict=True):
        if len(whole) < 1 + (prefix is None):
            raise InputError(f"{who.task}, document {who.document}: {text[:40]!r} gives no token to score")
        lost, first = texts.lost(text, whole), hashlib.sha256(b"").hexdigest()
        for number, (context, scored) in enumerate(windows(whole, limit, prefix)):
            used = prefix if number == 0 else None
            who_here = Asked(who.task, who.document, number, ROLLING)
            hashed = hashlib.sha256(scored.astype("<u4").tobytes()).hexdigest()
            found.append(Request(who_here, context, scored, 0, lost if number == 0 else 0, used, first, hashed, ("", text)))
    return found


def windows(ids: Tokens, limit: int, prefix: int | None) -> list[tuple[Tokens, Tokens]]:
    """(context, scored) pairs; a context and its scored tokens but the last are at most `limit`."""
    if prefix is None:
        before, start = ids[:1], 1
    else:
        before, start = np.array([prefix], dtype=np.uint32), 0
    end = min(len(ids), start + limit + 1 - len(before))
    found = [(before, ids[start:end])]
    while end < len(ids):
        start, end = end, min(len(ids), end + limit)
        # A full window: as many tokens before the scored ones as fit, at least one.
        found.append((ids[end - limit - 1 : start], ids[start:end]))
    return found
