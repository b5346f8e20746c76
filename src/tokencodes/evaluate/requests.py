"""What a model is asked: the tokens it reads, and those of them whose log-probability is wanted.

Texts become tokens by lm-eval's own rules, so that scores can be compared: white space at the end
of a context moves to its continuation, both are encoded together and cut where the context alone
ends; a context without tokens becomes the prefix token; what is longer than the model's context
loses tokens on the left.

Three things differ from lm-eval. What was lost is counted and kept with the request. A context
whose characters give no token counts as an empty one; lm-eval stops there. A begin token that the
tokenizer adds, or that the text itself has, is read before a rolling document and is not scored;
lm-eval puts the prefix token before it and scores the begin token as well.
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
class RequestSource:
    """Where a request comes from: `part` is the number of the choice, or of the window of a rolling
    document.
    """

    task: str
    document: int
    part: int
    kind: str = CHOICE


@dataclass(frozen=True, eq=False)
class Request:
    """The last `scored` tokens are asked for, each given all before it; the very last one is not
    read.

    dropped: tokens that the context limit cut from the left. lost: bytes of the text that no token
    stands for (None where that cannot be told). prefix: the token that stands for an empty context,
    None where there is a context. begin: how many of the context's tokens the tokenizer added by
    itself before the text. InputError if the context or the continuation has no token: such a
    request has no answer.
    """

    source: RequestSource
    context: Tokens  # shared between requests that have the same one
    continuation: Tokens
    dropped: int
    lost: int | None
    prefix: int | None
    context_sha256: str
    continuation_sha256: str
    texts: tuple[str, str]  # as the task gave them
    begin: int = 0

    def __post_init__(self) -> None:
        for tokens, purpose in (
            (self.context, "to read before the scored ones"),
            (self.continuation, "to score"),
        ):
            if not len(tokens):
                source = self.source
                raise InputError(
                    f"{source.task}, document {source.document}, part {source.part}: no token"
                    f" {purpose}; leave it out"
                )

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
        """Hash of what is read and asked for:
        two requests with this in common have the same score."""
        digest = hashlib.sha256(f"{self.scored}:".encode())
        digest.update(self.context.astype("<u4").tobytes())
        digest.update(self.continuation.astype("<u4").tobytes())
        return digest.hexdigest()


def sha256(text: str) -> str:
    """Of UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def pair_requests(
    pairs: Sequence[tuple[str, str]],
    sources: Sequence[RequestSource],
    texts: Texts,
    limit: int,
    prefix: int | None,
) -> list[Request]:
    """Requests for continuations of contexts, in their order. limit: tokens that the model can
    read.
    """
    split = [_moved(context, continuation) for context, continuation in pairs]
    distinct = list(dict.fromkeys(context for context, _ in split))
    ids = dict(zip(distinct, texts.encode(distinct), strict=True))
    hashes = {context: sha256(context) for context in distinct}
    whole = texts.encode([context + continuation for context, continuation in split])
    requests: list[Request] = []
    empty: dict[str, list[str]] = {}  # by benchmark: continuations that give no token
    too_long: dict[str, list[tuple[int, str]]] = {}
    for (context, continuation), (before, after), all_ids, source in zip(
        pairs, split, whole, sources, strict=True
    ):
        first, used, begin = ids[before], None, texts.begun(before)
        scored = all_ids[len(first) :]
        if len(first) == begin:  # the context has no token of its own
            first, scored, used = _prefixed(all_ids[texts.begun(before + after) :], prefix, source)
            begin = 0
        benchmark, where = (
            source.task.partition("/")[0],
            f"{source.task}, document {source.document}",
        )
        if not len(scored):
            empty.setdefault(benchmark, []).append(
                f"{where}, choice {source.part}: {continuation!r}"
            )
            continue
        if len(scored) > limit:
            too_long.setdefault(benchmark, []).append((len(scored), where))
            continue
        dropped = max(0, len(first) + len(scored) - (limit + 1))
        requests.append(
            Request(
                source,
                first[dropped:] if dropped else first,
                scored,
                dropped,
                texts.lost(before + after, all_ids),
                used,
                hashes[before],
                sha256(after),
                (context, continuation),
                max(0, begin - dropped),
            )
        )
    if empty:
        counts = [f"{name}: {len(places)} (such as {places[0]})" for name, places in empty.items()]
        raise InputError(
            f"continuations that give no token to score, {'; '.join(counts)}; leave out"
            f" {', '.join(empty)}"
        )
    if too_long:
        longest = [
            f"{name}: {len(lengths)} of up to {max(lengths)[0]} tokens ({max(lengths)[1]})"
            for name, lengths in too_long.items()
        ]
        raise InputError(
            f"continuations longer than the {limit} tokens that the model reads,"
            f" {'; '.join(longest)}; leave out {', '.join(too_long)}"
        )
    return requests


def _moved(context: str, continuation: str) -> tuple[str, str]:
    bare = context.rstrip()
    return bare, context[len(bare) :] + continuation


def _prefixed(
    scored: Tokens, prefix: int | None, source: RequestSource
) -> tuple[Tokens, Tokens, int | None]:
    """Context, scored tokens, and the prefix token where it was put before them. It stands for a
    context without tokens, unless the text begins with that very token.
    """
    if prefix is None:
        raise InputError(
            f"{source.task}, document {source.document}: an empty context, and no prefix token;"
            " give --prefix-token"
        )
    if len(scored) and scored[0] == prefix:
        return scored[:1], scored[1:], None
    return np.array([prefix], dtype=np.uint32), scored, prefix


def rolling_requests(
    documents: Sequence[str],
    sources: Sequence[RequestSource],
    texts: Texts,
    limit: int,
    prefix: int | None,
) -> list[Request]:
    """Windows in which each token of a document is asked for once, with as much of it before as
    fits. The first window begins with the prefix token, later ones with one token of the window
    before, the last one reaches back to be full.

    Tokens that the tokenizer adds before the text are read after the prefix token and not asked
    for. Where they begin with the prefix token, or the text itself does, no other one is put before
    it. Without a prefix (None) and without added tokens the first token of a document is read and
    not asked for.
    """
    requests = []
    for text, whole, source in zip(documents, texts.encode(list(documents)), sources, strict=True):
        begin = texts.begun(text)
        opening, scored, used = _opened(whole, begin, prefix)
        if not len(scored):
            raise InputError(
                f"{source.task}, document {source.document}: {text[:40]!r} gives no token to score;"
                " leave it out"
            )
        lost, first = texts.lost(text, whole), hashlib.sha256(b"").hexdigest()
        for number, (context, part) in enumerate(windows(opening, scored, limit)):
            window_source = RequestSource(source.task, source.document, number, ROLLING)
            hashed = hashlib.sha256(part.astype("<u4").tobytes()).hexdigest()
            here = (lost, used) if number == 0 else (0, None)
            requests.append(
                Request(
                    window_source,
                    context,
                    part,
                    0,
                    *here,
                    first,
                    hashed,
                    ("", text),
                    begin if number == 0 else 0,
                )
            )
    return requests


def _opened(whole: Tokens, begin: int, prefix: int | None) -> tuple[Tokens, Tokens, int | None]:
    """What is read before the first scored token of a document, the scored tokens, and the prefix
    token if it opens the text.

    whole: the document's tokens, of which the tokenizer added the first `begin`.
    """
    if prefix is None or (not begin and len(whole) and whole[0] == prefix):
        first = max(begin, 1)
        return whole[:first], whole[first:], None
    if begin and whole[0] == prefix:
        return whole[:begin], whole[begin:], prefix
    return (
        np.concatenate([np.array([prefix], dtype=np.uint32), whole[:begin]]),
        whole[begin:],
        prefix,
    )


def windows(opening: Tokens, ids: Tokens, limit: int) -> list[tuple[Tokens, Tokens]]:
    """(context, scored) pairs for the tokens `ids` after `opening`. A context and its scored tokens
    but the last are at most `limit` together.
    """
    whole = np.concatenate([opening[-limit:], ids])
    start, end = len(whole) - len(ids), min(len(whole), limit + 1)
    pairs = [(whole[:start], whole[start:end])]
    while end < len(whole):
        start, end = end, min(len(whole), end + limit)
        # A full window: as many tokens before the scored ones as fit, at least one.
        pairs.append((whole[end - limit - 1 : start], whole[start:end]))
    return pairs
