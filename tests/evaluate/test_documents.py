"""A record of each document: what was right, by which comparison, and what hangs on a tie. All
numbers by hand.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.evaluate.conftest import tiny
from tokencodes.errors import CheckFailed
from tokencodes.evaluate.documents import cluster_of, document_records, ties_of
from tokencodes.evaluate.evaluation import results
from tokencodes.evaluate.requests import CHOICE, ROLLING
from tokencodes.evaluate.suites import (
    ARC_EASY,
    EMBEDDED,
    HELLASWAG,
    LAMBADA,
    MMLU_0,
    PIQA,
    WIKITEXT,
    WINOGRANDE,
)
from tokencodes.evaluate.tasks import TaskOf

CHOICES = ["é", "ab", "abcd"]  # 1, 2, 4 characters; 2, 2, 4 bytes


def task_of(benchmark, choices=CHOICES, gold=0, multiple_input=False, text=None):
    task = SimpleNamespace(
        multiple_input=multiple_input,
        doc_to_choice=lambda row: choices,
        doc_to_target=lambda row: gold,
        doc_to_text=lambda row: text,
    )
    return TaskOf(benchmark, benchmark.name, None, task)


def record(part, log_probs, document=0, **changes):
    fields = {
        "document": document,
        "part": part,
        "kind": CHOICE,
        "dropped": 0,
        "lost_bytes": 0,
        "greedy": False,
    }
    return fields | {"log_probs": log_probs, "scored": [1] * len(log_probs)} | changes


def sample(document=0, **metrics):
    return {"doc_id": document, "doc": {"row": document}, "metrics": list(metrics), **metrics}


def choice_record(*log_probs, task=None, **metrics):
    """The record of one document whose choices have these log-probabilities."""
    requests = [record(part, values) for part, values in enumerate(log_probs)]
    (document,) = document_records(
        task or task_of(ARC_EASY), [sample(**metrics)], reversed(requests)
    )
    return document


def test_choices_are_compared_as_they_are_and_by_characters_bytes_and_tokens():
    document = choice_record([-2.0], [-3.0], [-1.25, -3.75], acc=1.0, acc_norm=0.0)
    assert document["log_probs"] == [-2.0, -3.0, -5.0] and (
        document["gold"],
        document["choices"],
    ) == (0, 3)
    # by characters -2, -1.5, -1.25; by bytes -1, -1.5, -1.25; by tokens -2, -3, -2.5
    assert document["taken"] == {"none": 0, "characters": 2, "bytes": 0, "tokens": 0}
    assert document["equal_best"] == {"none": 1, "characters": 1, "bytes": 1, "tokens": 1}
    assert document["metrics"] == {"acc": 1.0, "acc_norm": 0.0}


def test_of_equal_choices_the_first_is_taken_and_the_tie_is_counted():
    document = choice_record([-5.0], [-2.0], [-2.0], acc=0.0)
    assert document["taken"]["none"] == 1 and document["equal_best"]["none"] == 2
    document = choice_record([-2.0], [-2.0], [-2.0], acc=1.0)
    assert document["taken"]["none"] == 0 and document["equal_best"] == {
        "none": 3,
        "characters": 1,
        "bytes": 1,
        "tokens": 3,
    }
    # two equal ones that are not the best
    assert choice_record([-1.0], [-2.0], [-2.0], acc=1.0)["equal_best"]["none"] == 1


def test_ties_are_counted_by_accuracy():
    documents = [
        choice_record([-2.0], [-2.0], [-2.0], acc=1.0, acc_norm=0.0),
        choice_record([-2.0], [-2.0], [-9.0], acc=1.0, acc_norm=0.0),
        choice_record([-1.0], [-2.0], [-9.0], acc=1.0, acc_norm=1.0),
        choice_record([-1.0], [-2.0], [-4.0], acc=1.0, acc_norm=1.0),
    ]
    assert ties_of(documents) == {"acc": {"best": 2, "all": 1}, "acc_norm": {"best": 2, "all": 1}}
    assert ties_of([choice_record([-2.0], [-2.0], [-2.0], acc=1.0)]) == {
        "acc": {"best": 1, "all": 1}
    }
    assert ties_of([]) == {}
    metrics = results((ARC_EASY,), [document | {"task": "arc_easy"} for document in documents])[
        "arc_easy"
    ]
    assert (
        metrics["ties"] == ties_of(documents)
        and metrics["documents"] == 4
        and metrics["acc"] == 1.0
    )


@pytest.mark.parametrize(
    ("right", "wrong"), [({"acc": 1.0}, {"acc": 0.0}), ({"acc_norm": 0.0}, {"acc_norm": 1.0})]
)
def test_an_accuracy_that_is_not_lm_evals_stops(right, wrong):
    log_probs = ([-2.0], [-3.0], [-5.0])
    assert choice_record(*log_probs, **right)["metrics"] == right
    with pytest.raises(
        CheckFailed,
        match=f"arc_easy: {next(iter(wrong))} is (True|False) by our scores, {wrong.popitem()[1]}",
    ):
        choice_record(*log_probs, **({"acc": 0.0} if "acc" in right else {"acc_norm": 1.0}))


def test_the_right_choice_may_be_named_by_its_text():
    assert (
        choice_record([-2.0], [-3.0], [-5.0], task=task_of(ARC_EASY, gold="ab"), acc=0.0)["gold"]
        == 1
    )


def test_choices_that_are_contexts_have_no_lengths():
    task = task_of(ARC_EASY, gold=None, multiple_input=True, text=1)
    document = choice_record([-2.0], [-1.5, -0.25], [-4.0], task=task, acc=1.0, acc_norm=0.0)
    assert document["gold"] == 1 and set(document["taken"].values()) == {
        1
    }  # by characters it would be 2


def test_a_document_of_one_continuation_is_right_if_it_is_greedy():
    requests = [
        record(0, [-1.5, -0.5], 0, greedy=True, lost_bytes=2),
        record(0, [-3.0], 1, dropped=1, lost_bytes=None),
    ]
    samples = [sample(1, acc=0, perplexity=-3.0), sample(0, acc=1, perplexity=-2.0)]
    first, second = document_records(task_of(LAMBADA), samples, requests)
    assert (first["document"], first["nats"], first["tokens"], first["metrics"]) == (
        0,
        2.0,
        2,
        {"acc": 1.0},
    )
    assert (second["document"], second["nats"], second["tokens"], second["metrics"]) == (
        1,
        3.0,
        1,
        {"acc": 0.0},
    )
    assert (first["truncated"], first["lost_bytes"], second["truncated"], second["lost_bytes"]) == (
        False,
        2,
        True,
        None,
    )
    assert [document["cluster"] for document in (first, second)] == ["0", "1"]
    metrics = results((LAMBADA,), [first, second])["lambada"]
    assert metrics == {"documents": 2, "acc": 0.5, "perplexity": pytest.approx(np.exp(2.5))}


@pytest.mark.parametrize("dropped", [0, 1])
def test_one_dropped_token_of_one_choice_makes_a_document_truncated(dropped):
    requests = [record(0, [-1.0]), record(1, [-2.0], dropped=dropped)]
    (document,) = document_records(task_of(ARC_EASY, CHOICES[:2]), [sample(acc=1.0)], requests)
    assert document["truncated"] is bool(dropped)


@pytest.mark.parametrize(
    ("lost", "together"), [((3, 0, 4), 7), ((3, None, 4), None), ((0, 0, 0), 0)]
)
def test_a_rolling_document_is_the_sum_of_its_windows(lost, together):
    requests = [
        record(part, [-1.0, -0.5], kind=ROLLING, lost_bytes=of, dropped=0)
        for part, of in zip((2, 0, 1), lost, strict=True)
    ]
    row = sample(word_perplexity=(-4.5, 6), byte_perplexity=(-4.5, 30), bits_per_byte=(-4.5, 30))
    (document,) = document_records(task_of(WIKITEXT), [row], requests)
    assert (document["nats"], document["words"], document["bytes"], document["tokens"]) == (
        4.5,
        6,
        30,
        6,
    )
    assert (
        document["lost_bytes"] == together
        and document["metrics"] == {"bits_per_byte": None}
        and document["truncated"] is False
    )
    metrics = results((WIKITEXT,), [document, document | {"nats": 9.0}])["wikitext"]
    assert metrics == {
        "documents": 2,
        "word_perplexity": pytest.approx(np.exp(13.5 / 12)),
        "byte_perplexity": pytest.approx(np.exp(13.5 / 60)),
        "bits_per_byte": pytest.approx(13.5 / 60 / np.log(2)),
        "lost_bytes": None if together is None else 2 * together,
    }


def test_choices_have_the_lost_bytes_of_the_first_and_stand_in_the_order_of_their_parts():
    requests = [record(1, [-2.0], lost_bytes=5), record(0, [-1.0], lost_bytes=3)]
    (document,) = document_records(task_of(ARC_EASY, CHOICES[:2]), [sample(acc=1.0)], requests)
    assert (
        document["lost_bytes"] == 3
        and document["log_probs"] == [-1.0, -2.0]
        and document["task"] == "arc_easy"
    )


def test_rows_that_share_something_are_one_cluster():
    subject = TaskOf(MMLU_0, "mmlu_0/anatomy", "anatomy", None)
    assert cluster_of(MMLU_0, subject, {}, 3) == "anatomy"
    assert cluster_of(MMLU_0, TaskOf(MMLU_0, "mmlu_0", None, None), {}, 3) == ""
    assert cluster_of(HELLASWAG, subject, {"source_id": 17}, 3) == "17"
    assert cluster_of(PIQA, subject, {"goal": "cut wood"}, 3) == "cut wood"
    assert cluster_of(EMBEDDED, subject, {"work": "Emma"}, 3) == "Emma"
    assert cluster_of(ARC_EASY, subject, {}, 3) == "3"
    twins = [
        {
            "option1": first,
            "option2": second,
            "sentence": f"The trophy did not fit because _ was {word}.",
        }
        for first, second, word in (("trophy", "case", "large"), ("case", "trophy", "small"))
    ]
    assert {cluster_of(WINOGRANDE, subject, row, 3) for row in twins} == {
        "case | trophy | The | trophy | did | not"
    }


def test_a_model_with_constant_logits_is_reported_as_ties(
    real_data, tmp_path, tokenizer_path, capsys
):
    import json

    import torch

    from tokencodes.cli import run as command

    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    arguments = [
        "evaluate",
        str(tmp_path / "model"),
        "--suite",
        "commonsense_qa",
        "--documents",
        "12",
    ]
    arguments += ["--data", str(real_data / "eval"), "--out", str(tmp_path / "out")]
    assert command([*arguments, "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["results"]["commonsense_qa"]
    assert metrics["ties"]["acc"] == {"best": 12, "all": 12}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "12 (12)" in page and "CommonsenseQA: 12 of 12 documents are ties in acc." in page
    assert "12 (12)" in (tmp_path / "out" / "results.md").read_text()
    assert command(arguments) == 0 and "ties" in capsys.readouterr().out
