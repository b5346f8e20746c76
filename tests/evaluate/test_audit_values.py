"""Records, counts and comparisons of requests, over requests that a test chose."""

import hashlib
import json

import numpy as np
import pytest

from tests.made_evaluations import choices, request
from tokencodes.evaluate.audit import (
    Count,
    RequestRecord,
    counts,
    difference,
    multiple_choice,
    multiset,
    multiset_sha256,
    record_of,
    title_of,
)
from tokencodes.evaluate.requests import Request, RequestSource
from tokencodes.evaluate.scorer import Score
from tokencodes.evaluate.suites import MULTIPLE_CHOICE


def arguments(dropped=0, lost=0, prefix=None, begin=0):
    ids = np.array([5, 6, 7, 8], dtype=np.uint32)
    return Request(
        RequestSource("mmlu_0/law", 3, 1),
        ids[:1],
        ids[1:],
        dropped,
        lost,
        prefix,
        "a" * 64,
        "b" * 64,
        ("one", "two"),
        begin,
    )


def test_a_record_has_what_was_read_and_what_was_answered():
    score = Score(np.array([-0.1, -2.5, -1e-9], dtype=np.float32), True)
    result = record_of(arguments(dropped=2, lost=1, prefix=0, begin=1), score, "torch.float32")
    assert (result.task, result.document, result.part, result.kind) == (
        "mmlu_0/law",
        3,
        1,
        "loglikelihood",
    )
    assert (result.tokens, result.scored, result.dropped, result.lost_bytes, result.prefix) == (
        4,
        (6, 7, 8),
        2,
        1,
        0,
    )
    assert result.begin == 1
    assert (result.context_sha256, result.continuation_sha256) == ("a" * 64, "b" * 64)
    assert result.read_sha256 == arguments().read_sha256 and result.benchmark == "mmlu_0"
    assert (result.log_probs, result.greedy, result.dtype) == (
        (-0.1, -2.5, -1e-9),
        True,
        "torch.float32",
    )
    assert np.array_equal(np.array(result.log_probs, dtype=np.float32), score.log_probs)


def test_an_audit_has_no_answers_on_record():
    result = record_of(arguments())
    assert (
        result.log_probs is None
        and not {"log_probs", "greedy", "dtype"} & result.model_dump(exclude_unset=True).keys()
    )


def records():
    """Two documents of a benchmark with two choices each; one document of another."""
    law = [
        request(choices("mmlu_0/law", number, True), part) for number in (0, 1) for part in (0, 1)
    ]
    art = [request(choices("mmlu_0/art", 0, True), part) for part in (0, 1)]
    return [*law, *art, request(choices("piqa", 4, True))]


def test_counts_are_sums_over_the_requests_of_a_benchmark():
    request_records = records()
    changes = [
        {"dropped": 3},
        {"dropped": 1, "lost_bytes": 2},
        {"prefix": 0},
        {"lost_bytes": 5, "scored": (1,)},
        {"tokens": 11},
    ]
    request_records[:5] = [
        record.model_copy(update=change)
        for record, change in zip(request_records[:5], changes, strict=True)
    ]
    mmlu, piqa = counts(request_records)
    expected = {
        "name": "mmlu_0",
        "documents": 3,
        "requests": 6,
        "truncated": 2,
        "dropped": 4,
        "tokens": 56,
        "scored": 11,
    }
    assert mmlu.model_dump() == {**expected, "lost": 7, "prefixed": 1}
    assert (piqa.name, piqa.documents, piqa.requests, piqa.truncated, piqa.lost, piqa.prefixed) == (
        "piqa",
        1,
        1,
        0,
        0,
        0,
    )


def test_bytes_that_cannot_be_told_of_one_request_are_not_told_of_the_benchmark():
    request_records = records()
    request_records[1] = request_records[1].model_copy(update={"lost_bytes": None})
    request_records[0] = request_records[0].model_copy(update={"lost_bytes": 4})
    mmlu, piqa = counts(request_records)
    assert mmlu.lost is None and piqa.lost == 0


def test_a_context_that_lost_one_token_is_truncated():
    (result,) = counts([records()[0].model_copy(update={"dropped": 1})])
    assert (result.truncated, result.dropped) == (1, 1)


def every_choice(**changes):
    numbers = {
        "documents": 1,
        "requests": 2,
        "truncated": 3,
        "dropped": 4,
        "tokens": 5,
        "scored": 6,
        "lost": 7,
        "prefixed": 8,
    }
    return [
        Count(name=first.name, **{**numbers, **changes.get(first.name, {})})
        for first in MULTIPLE_CHOICE
    ]


def test_the_papers_line_is_the_sum_of_its_seven_benchmarks():
    extra = Count(
        name="lambada",
        documents=9,
        requests=9,
        truncated=9,
        dropped=9,
        tokens=9,
        scored=9,
        lost=9,
        prefixed=9,
    )
    result = multiple_choice([extra, *every_choice()])
    assert result.name == "multiple choice without MMLU" and len(MULTIPLE_CHOICE) == 7
    assert [*result.model_dump().values()][1:] == [7 * value for value in range(1, 9)]
    unknown = multiple_choice(every_choice(piqa={"lost": None}))
    assert unknown.lost is None and unknown.requests == 14
    assert multiple_choice(every_choice()[1:]) is None and multiple_choice([]) is None


def test_the_order_of_requests_does_not_matter_but_their_number_does():
    request_records = records()
    first, other = multiset(request_records), multiset([*request_records[::-1], request_records[0]])
    assert difference(first, multiset(request_records[::-1])) is None and multiset_sha256(
        first
    ) == multiset_sha256(multiset(request_records[::-1]))
    assert multiset_sha256(first) != multiset_sha256(other) and max(other.values()) == 2
    assert (
        difference(first, other)
        == "1 only in the second (mmlu_0 1; such as mmlu_0/law, document 0, part 0)"
    )
    assert (
        difference(other, first)
        == "1 only in the first (mmlu_0 1; such as mmlu_0/law, document 0, part 0)"
    )


@pytest.mark.parametrize(
    "change",
    [{"task": "piqa"}, {"document": 9}, {"part": 9}]
    + [{f"{name}_sha256": "c" * 64} for name in ("context", "continuation", "read")],
)
def test_what_makes_two_requests_the_same(change):
    request_records = records()
    other = [request_records[0].model_copy(update=change), *request_records[1:]]
    assert multiset(request_records) != multiset(other) and multiset_sha256(
        multiset(request_records)
    ) != multiset_sha256(multiset(other))
    answered = [
        request_records[0].model_copy(
            update={"log_probs": (-9.0, -9.0), "dtype": "torch.bfloat16"}
        ),
        *request_records[1:],
    ]
    assert multiset(request_records) == multiset(answered)


def test_the_hash_is_over_the_sorted_requests_and_how_often_each_stands():
    request_records = records()[:1] * 2
    key = [
        "mmlu_0/law",
        0,
        0,
        request_records[0].context_sha256,
        request_records[0].continuation_sha256,
        request_records[0].read_sha256,
        2,
    ]
    assert (
        multiset_sha256(multiset(request_records))
        == hashlib.sha256(json.dumps(key).encode()).hexdigest()
    )


def test_a_difference_names_the_four_benchmarks_with_most_and_the_first_request():
    request_records = [
        request(choices(name, number, True))
        for name, size in zip("abcde", (1, 5, 4, 3, 2), strict=True)
        for number in range(size)
    ]
    result = difference(multiset(request_records), multiset([request(choices("f", 7, True), 2)]))
    assert (
        result == "15 only in the first (b 5, c 4, d 3, e 2; such as a, document 0, part 0); "
        "1 only in the second (f 1; such as f, document 7, part 2)"
    )


def test_a_benchmark_has_a_title_or_its_own_name():
    assert (title_of("arc_easy"), title_of("strange")) == ("ARC-e", "strange")


@pytest.mark.parametrize(
    "change",
    [{"document": -1}, {"tokens": -1}, {"dropped": -1}, {"scored": (-1,)}, {"read_sha256": "ab"}],
)
def test_a_record_refuses_what_cannot_be(change):
    whole = records()[0].model_dump()
    assert RequestRecord(**whole) == records()[0]
    with pytest.raises(ValueError, match=next(iter(change))):
        RequestRecord(**{**whole, **change})
