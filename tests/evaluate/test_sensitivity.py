"""How much a result hangs on truncation, averages, letters, norms and the prefix: on numbers that
are computed by hand.
"""

import math

import numpy as np
import pytest

from tokencodes.evaluate.audit import RequestRecord, counts
from tokencodes.evaluate.evaluation import _other_prefix
from tokencodes.evaluate.requests import CHOICE, ROLLING, Request, RequestSource
from tokencodes.evaluate.scorer import Score
from tokencodes.evaluate.sensitivity import (
    FIRST,
    of_averages,
    of_letters,
    of_norms,
    of_prefix,
    of_truncation,
    other_prefixes,
)


def document(acc, truncated=False, task="t", **more):
    return {
        "task": task,
        "metrics": {} if acc is None else {"acc": acc},
        "truncated": truncated,
    } | more


def test_truncated_documents_are_taken_as_all_wrong_and_as_all_right():
    documents = [
        document(1.0),
        document(0.0),
        document(1.0),
        document(1.0, True),
        document(0.0, True),
    ]
    assert of_truncation(documents) == {
        "documents": 5,
        "truncated": 2,
        "as_is": pytest.approx(3 / 5),
        "whole_only": pytest.approx(2 / 3),
        "least": pytest.approx(2 / 5),  # both truncated ones wrong
        "most": pytest.approx(4 / 5),  # both truncated ones right
    }


def test_one_truncated_document_is_enough_and_none_gives_no_bounds():
    assert of_truncation([document(1.0), document(1.0)]) is None
    result = of_truncation([document(1.0), document(0.0, True)])
    assert (result["truncated"], result["least"], result["most"], result["as_is"]) == (
        1,
        0.5,
        1.0,
        0.5,
    )
    assert of_truncation([document(0.0, True)]) == {
        "documents": 1,
        "truncated": 1,
        "as_is": 0.0,
        "whole_only": None,
        "least": 0.0,
        "most": 1.0,
    }


def test_documents_without_an_accuracy_are_no_part_of_the_bounds():
    result = of_truncation([document(None), document(1.0, True), document(0.0)])
    assert (result["documents"], result["as_is"], result["least"], result["most"]) == (
        2,
        0.5,
        0.0,
        0.5,
    )


@pytest.mark.parametrize(
    ("dropped", "truncated"), [((0, 0), 0), ((1, 0), 1), ((1, 1), 2), ((0, 7), 1)]
)
def test_a_request_that_lost_one_token_counts_as_truncated(dropped, truncated):
    records = [
        RequestRecord(
            task=f"mmlu/{number}",
            document=3,
            part=0,
            kind=CHOICE,
            context_sha256="0" * 64,
            continuation_sha256="0" * 64,
            read_sha256="0" * 64,
            tokens=10,
            scored=(1, 2),
            dropped=lost,
            lost_bytes=number,
            prefix=0 if number else None,
            begin=0,
        )
        for number, lost in enumerate(dropped)
    ]
    (result,) = counts([*records, records[1]])
    assert (result.truncated, result.dropped) == (
        truncated + (dropped[1] > 0),
        sum(dropped) + dropped[1],
    )
    assert (result.name, result.documents, result.requests, result.tokens, result.scored) == (
        "mmlu",
        2,
        3,
        30,
        6,
    )
    assert (result.lost, result.prefixed) == (2, 2)
    (unknown,) = counts([records[0].model_copy(update={"lost_bytes": None}), records[1]])
    assert unknown.lost is None


def test_averages_over_documents_and_over_subjects():
    documents = [
        document(1.0, task="m/a"),
        document(0.0, task="m/b"),
        document(0.0, task="m/b"),
        document(1.0, task="m/b"),
    ]
    assert of_averages(documents) == {
        "micro": 0.5,
        "macro": pytest.approx((1 + 1 / 3) / 2),
        "subjects": 2,
    }
    assert of_averages(documents[:1]) is None and of_averages(documents[1:]) is None
    assert math.isnan(of_averages([document(None, task="m/a"), document(1.0, task="m/b")])["macro"])


def choice(taken, gold, choices=4, **by_norm):
    norms = {"none": taken, "characters": taken, "bytes": taken, "tokens": taken} | by_norm
    return {"choices": choices, "taken": norms, "gold": gold}


def test_letters_taken_and_right_and_the_best_constant_one():
    documents = [choice(0, 0), choice(0, 1), choice(2, 1, 3), choice(0, 0), choice(1, 1)]
    assert of_letters(documents) == {
        "taken": {"A": 3, "B": 1, "C": 1, "D": 0},
        "right": {"A": 2, "B": 3, "C": 0, "D": 0},
        "constant": {"A": 0.4, "B": 0.6, "C": 0.0, "D": 0.0},
        "best_constant": 0.6,
        "accuracy": 0.6,
    }


def test_norms_give_an_accuracy_each():
    documents = [
        choice(0, 0),
        choice(0, 1, characters=1, bytes=1),
        choice(1, 2, bytes=2),
        choice(3, 3, tokens=0),
    ]
    assert of_norms(documents) == {"none": 0.5, "characters": 0.75, "bytes": 1.0, "tokens": 0.25}


def request(ids, context, kind=CHOICE, prefix=None, task="t"):
    ids = np.array(ids, dtype=np.uint32)
    return Request(
        RequestSource(task, 0, 0, kind),
        np.array(context, np.uint32),
        ids,
        0,
        None,
        prefix,
        "",
        "",
        ("", ""),
    )


def parts(requests):
    return [(item.context.tolist(), item.continuation.tolist(), item.prefix) for item in requests]


def test_another_prefix_stands_where_the_prefix_stood_and_nowhere_else():
    requests = [request([5, 6, 7], [0], prefix=0), request([5], [9]), request([8], [0], prefix=0)]
    result = other_prefixes(requests, [4, None])
    assert list(result) == [4, None]
    assert parts(result[4]) == [([4], [5, 6, 7], 4), ([4], [8], 4)]
    # of one token nothing would be left to score
    assert parts(result[None]) == [([5], [6, 7], None)]
    assert parts(other_prefixes([request([5, 6], [0], prefix=0)], [None])[None]) == [
        ([5], [6], None)
    ]


def test_tokens_that_a_tokenizer_added_after_the_prefix_stay_unscored():
    result = other_prefixes([request([5, 6], [0, 3, 2], prefix=0)], [4, None])
    assert parts(result[4]) == [([4, 3, 2], [5, 6], 4)] and parts(result[None]) == [
        ([3, 2], [5, 6], None)
    ]


def test_of_a_rolling_document_the_first_256_tokens_are_scored_anew():
    ids = list(range(300))
    result = other_prefixes(
        [request(ids, [0], ROLLING, 0), request(ids, [0], CHOICE, 0)], [4, None]
    )
    assert FIRST == 256 and [item.scored for item in result[4]] == [256, 300]
    assert [item.scored for item in result[None]] == [255, 299]


def test_the_prefix_costs_its_first_token_and_the_mean_of_the_rest():
    answered = [
        (
            request([5, 6, 7], [0], prefix=0, task="b/x"),
            Score(np.array([-4.0, -1.0, -2.0], np.float32), False),
        ),
        (
            request([5, 6], [0], prefix=0, task="b/y"),
            Score(np.array([-2.0, -3.0], np.float32), False),
        ),
        (request([5], [9], task="b/y"), Score(np.array([-99.0], np.float32), False)),
        (
            request([5, 6], [0], prefix=0, task="a"),
            Score(np.array([-8.0, -1.0], np.float32), False),
        ),
    ]
    arguments = []

    def scores(requests):
        arguments.append(parts(requests))
        return [
            Score(-np.arange(1.0, item.scored + 1, dtype=np.float32), True) for item in requests
        ]

    rows = of_prefix(answered, [None, 4], scores)
    assert rows == [
        {
            "benchmark": "a",
            "which": "default",
            "prefix": 0,
            "texts": 1,
            "first_token": 8.0,
            "rest": 1.0,
        },
        {
            "benchmark": "b",
            "which": "default",
            "prefix": 0,
            "texts": 2,
            "first_token": 3.0,
            "rest": 2.0,
        },
        {
            "benchmark": "a",
            "which": "none",
            "prefix": None,
            "texts": 1,
            "first_token": None,
            "rest": 1.0,
        },
        {
            "benchmark": "b",
            "which": "none",
            "prefix": None,
            "texts": 2,
            "first_token": None,
            "rest": pytest.approx(4 / 3),
        },
        {
            "benchmark": "a",
            "which": "other",
            "prefix": 4,
            "texts": 1,
            "first_token": 1.0,
            "rest": 2.0,
        },
        {
            "benchmark": "b",
            "which": "other",
            "prefix": 4,
            "texts": 2,
            "first_token": 1.0,
            "rest": pytest.approx(7 / 3),
        },
    ]
    assert [len(selected) for selected in arguments] == [3, 3]
    assert of_prefix(answered[2:3], [None, 4], scores) == [] and len(arguments) == 2


def test_only_the_first_256_scores_of_the_default_count_too():
    long = request([1] * 300, [0], ROLLING, 0)
    log_probs = np.array([-1.0] * 256 + [-100.0] * 44, np.float32)
    (row,) = of_prefix([(long, Score(log_probs, False))], [], lambda requests: [])
    assert (row["first_token"], row["rest"]) == (1.0, 1.0)


def test_the_other_prefix_is_a_token_that_is_not_the_default(small_texts):
    from types import SimpleNamespace

    breaks, letter = (int(small_texts.plain(text)[-1]) for text in ("\n", "a"))
    assert _other_prefix(small_texts, SimpleNamespace(prefix=0)) == breaks
    assert _other_prefix(small_texts, SimpleNamespace(prefix=breaks)) == letter
    silent = SimpleNamespace(plain=lambda text: [])
    assert [_other_prefix(silent, SimpleNamespace(prefix=prefix)) for prefix in (0, 1, None)] == [
        1,
        0,
        0,
    ]
