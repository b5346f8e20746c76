"""One record a document: what was right, what it would take to judge it otherwise, and what it has
in common with others.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tokencodes.errors import CheckFailed
from tokencodes.evaluate.requests import ROLLING
from tokencodes.evaluate.suites import Benchmark
from tokencodes.evaluate.tasks import TaskOf

NORMS = ("none", "characters", "bytes", "tokens")
NORM_OF = {"acc": "none", "acc_norm": "characters"}  # what each accuracy compares


def cluster_of(benchmark: Benchmark, task: TaskOf, row: dict[str, Any], number: int) -> str:
    """What a row shares with others that are no independent draws; a name of its own where it
    shares nothing.
    """
    match benchmark.cluster:
        case "subject":
            return task.subject or ""
        case "source":
            return str(row["source_id"])
        case "goal" | "work":
            return str(row[benchmark.cluster])
        case "twins":  # two sentences that differ in a word or two, with the same two options
            return " | ".join(
                [*sorted((row["option1"], row["option2"])), *row["sentence"].split()[:4]]
            )
        case _:
            return str(number)


def document_records(
    task: TaskOf, samples: Sequence[dict[str, Any]], requests: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """From lm-eval's samples of a task and our records of its requests. CheckFailed where accuracy
    by our own log-probabilities is not what lm-eval says.
    """
    by_document: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for record in requests:
        by_document[record["document"]].append(record)
    documents = []
    for sample in sorted(samples, key=lambda entry: int(entry["doc_id"])):
        number, row = int(sample["doc_id"]), sample["doc"]
        records = sorted(by_document[number], key=lambda record: int(record["part"]))
        document: dict[str, Any] = {
            "task": task.name,
            "document": number,
            "cluster": cluster_of(task.benchmark, task, row, number),
            "truncated": any(record["dropped"] for record in records),
            "lost_bytes": (
                _sum(record["lost_bytes"] for record in records)
                if records[0]["kind"] == ROLLING
                else records[0]["lost_bytes"]
            ),
            "metrics": {name: sample[name] for name in sample["metrics"]},
        }
        if records[0]["kind"] == ROLLING:
            nats = -sum(sum(record["log_probs"]) for record in records)
            (_, words), (_, size) = sample["word_perplexity"], sample["byte_perplexity"]
            document |= {
                "nats": nats,
                "words": words,
                "bytes": size,
                "tokens": sum(len(record["scored"]) for record in records),
            }
            document["metrics"] = {"bits_per_byte": None}
        elif len(records) > 1:
            document |= _choices(task, row, records, document["metrics"])
        else:
            document |= {"nats": -sum(records[0]["log_probs"]), "tokens": len(records[0]["scored"])}
            document["metrics"] = {"acc": float(records[0]["greedy"])}
        documents.append(document)
    return documents


def _sum(values: Iterable[int | None]) -> int | None:
    numbers = list(values)
    return None if None in numbers else sum(value or 0 for value in numbers)


def _choices(
    task: TaskOf, row: dict[str, Any], records: list[dict[str, Any]], metrics: dict[str, Any]
) -> dict[str, Any]:
    """Of a multiple-choice document: the right choice; the log-probability of each; by each norm
    the choice that is taken, and how many choices share the best number. Of these the first is
    taken, as lm-eval's argmax does it.
    """
    texts = task.task.doc_to_choice(row)
    gold = task.task.doc_to_text(row) if task.task.multiple_input else task.task.doc_to_target(row)
    gold = texts.index(gold) if isinstance(gold, str) else int(gold)
    totals = [
        float(np.array(record["log_probs"], np.float32).sum(dtype=np.float64)) for record in records
    ]
    lengths = {
        "none": [1] * len(records),
        "characters": [len(text) for text in texts],
        "bytes": [len(text.encode()) for text in texts],
        "tokens": [len(record["scored"]) for record in records],
    }
    if task.task.multiple_input:  # the choices are contexts, and all have the same continuation
        lengths = dict.fromkeys(NORMS, lengths["none"])
    compared = {
        norm: [total / size for total, size in zip(totals, lengths[norm], strict=True)]
        for norm in NORMS
    }
    taken = {norm: values.index(max(values)) for norm, values in compared.items()}
    for name, norm in NORM_OF.items():
        comparable = name in metrics and not (name == "acc_norm" and task.task.multiple_input)
        if comparable and float(metrics[name]) != float(taken[norm] == gold):
            raise CheckFailed(
                f"{task.name}: {name} is {taken[norm] == gold} by our scores, {metrics[name]} by"
                f" lm-eval: {row}"
            )
    equal = {norm: values.count(max(values)) for norm, values in compared.items()}
    return {
        "gold": gold,
        "log_probs": totals,
        "taken": taken,
        "equal_best": equal,
        "choices": len(records),
    }


def ties_of(documents: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """By accuracy: in how many documents several choices share the best number that is compared,
    and in how many all do.
    """
    ties = {}
    for name, norm in NORM_OF.items():
        counts = [
            (document["equal_best"][norm], document["choices"])
            for document in documents
            if name in document["metrics"] and "choices" in document
        ]
        if counts:
            ties[name] = {
                "best": sum(equal > 1 for equal, _ in counts),
                "all": sum(equal == choices for equal, choices in counts),
            }
    return ties
