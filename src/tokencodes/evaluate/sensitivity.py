"""How much a result hangs on what nobody looks at: the token before an empty context, truncated
prompts, averages, letters, norms.

Everything here is computed from the records of an evaluation, but for the prefix: that takes other
scores of the same model.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokencodes.evaluate.documents import NORMS
from tokencodes.evaluate.requests import ROLLING, Request
from tokencodes.evaluate.scorer import Score

FIRST = 256  # tokens of a document that are scored after another prefix
Records = Sequence[dict[str, Any]]
Scores = Callable[[Sequence[Request]], list[Score]]


def of_truncation(documents: Records) -> dict[str, Any] | None:
    """Accuracy as it is, of documents that were read whole, and its bounds: every truncated one
    wrong, every one right.
    """
    if not any(document["truncated"] for document in documents):
        return None
    right = [
        (document["metrics"]["acc"], document["truncated"])
        for document in documents
        if "acc" in document["metrics"]
    ]
    whole = [value for value, truncated in right if not truncated]
    cut = len(right) - len(whole)
    return {
        "documents": len(right),
        "truncated": cut,
        "as_is": _mean([value for value, _ in right]),
        "whole_only": _mean(whole) if whole else None,
        "least": sum(whole) / len(right),
        "most": (sum(whole) + cut) / len(right),
    }


def of_averages(documents: Records) -> dict[str, Any] | None:
    """Accuracy over all documents, and the mean over subjects, which lets a small subject count as
    much as a large one.
    """
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for document in documents:
        by_task[document["task"]].append(document["metrics"].get("acc", math.nan))
    if len(by_task) < 2:
        return None
    return {
        "micro": _mean([value for values in by_task.values() for value in values]),
        "macro": _mean([_mean(values) for values in by_task.values()]),
        "subjects": len(by_task),
    }


def of_letters(documents: Records) -> dict[str, Any]:
    """How often each letter was taken and was right, and what always answering with one letter
    would reach.
    """
    size = max(document["choices"] for document in documents)
    taken, gold = (
        Counter(values)
        for values in zip(
            *((document["taken"]["none"], document["gold"]) for document in documents), strict=True
        )
    )
    share = {chr(65 + letter): gold[letter] / len(documents) for letter in range(size)}
    return {
        "taken": {chr(65 + letter): taken[letter] for letter in range(size)},
        "right": {chr(65 + letter): gold[letter] for letter in range(size)},
        "constant": share,
        "best_constant": max(share.values()),
        "accuracy": _mean(
            [float(document["taken"]["none"] == document["gold"]) for document in documents]
        ),
    }


def of_norms(documents: Records) -> dict[str, float]:
    """Accuracy where log-probabilities are compared as they are, or divided by characters, bytes or
    tokens of the choice.
    """
    return {
        norm: _mean([float(document["taken"][norm] == document["gold"]) for document in documents])
        for norm in NORMS
    }


def other_prefixes(
    requests: Iterable[Request], prefixes: Sequence[int | None]
) -> dict[int | None, list[Request]]:
    """Requests whose empty context a prefix token stands for, with another token there, or none: of
    rolling documents the first tokens. Without a prefix, the first token is read and not asked for;
    a request of one token is left out.
    """
    first = [request for request in requests if request.prefix is not None]
    by_prefix: dict[int | None, list[Request]] = {}
    for prefix in prefixes:
        replaced = []
        for request in first:
            scored = (
                request.continuation[:FIRST]
                if request.source.kind == ROLLING
                else request.continuation
            )
            # what the tokenizer added after the prefix is not scored either
            bare = np.concatenate([request.context[1:], scored])
            if prefix is not None:
                context = np.concatenate([np.array([prefix], np.uint32), request.context[1:]])
                replaced.append(
                    replace(request, context=context, continuation=scored, prefix=prefix)
                )
            elif len(bare) > 1:
                read = max(1, len(request.context) - 1)
                replaced.append(
                    replace(request, context=bare[:read], continuation=bare[read:], prefix=None)
                )
        by_prefix[prefix] = replaced
    return by_prefix


def of_prefix(
    answered: Sequence[tuple[Request, Score]], prefixes: Sequence[int | None], scores: Scores
) -> list[dict[str, Any]]:
    """For each benchmark in which a prefix stands for an empty context: nats of the first token
    after it, and the mean over the first tokens of each text, after the default prefix and after
    the others.
    """
    default = [
        (request, score.log_probs[:FIRST])
        for request, score in answered
        if request.prefix is not None
    ]
    if not default:
        return []
    rows = [_prefix_row(name, of, "default") for name, of in _by_benchmark(default)]
    for prefix, requests in other_prefixes([request for request, _ in default], prefixes).items():
        answers = [
            (request, score.log_probs)
            for request, score in zip(requests, scores(requests), strict=True)
        ]
        rows += [
            _prefix_row(name, of, "none" if prefix is None else "other")
            for name, of in _by_benchmark(answers)
        ]
    return rows


def _by_benchmark(
    answers: Sequence[tuple[Request, Any]],
) -> list[tuple[str, list[tuple[Request, Any]]]]:
    by_benchmark: defaultdict[str, list[tuple[Request, Any]]] = defaultdict(list)
    for request, values in answers:
        by_benchmark[request.source.task.partition("/")[0]].append((request, values))
    return sorted(by_benchmark.items())


def _prefix_row(name: str, answers: Sequence[tuple[Request, Any]], which: str) -> dict[str, Any]:
    """first_token: of a text, which without a prefix is not asked for. rest: the second to the last
    of the first tokens.
    """
    prefix = answers[0][0].prefix
    bare = prefix is None
    return {
        "benchmark": name,
        "which": which,
        "prefix": prefix,
        "texts": len(answers),
        "first_token": None if bare else -_mean([float(values[0]) for _, values in answers]),
        "rest": -_mean(
            [float(value) for _, values in answers for value in (values if bare else values[1:])]
        ),
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
