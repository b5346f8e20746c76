"""Evaluation folders made of values that a test chooses. No model is computed."""

import hashlib
import math
from collections import Counter
from pathlib import Path
from typing import Any

from tokencodes.evaluate.audit import RequestRecord, counts, multiset, multiset_sha256
from tokencodes.evaluate.folder import (
    DOCUMENTS,
    REQUESTS,
    DocumentRecord,
    write_evaluation_record,
    write_records,
)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def run_origin(arm: str, seed: int, **changes: str) -> dict[str, Any]:
    """A run of a study in which arms of one seed are matched."""
    hashes = {
        "study_sha256": sha256("study"),
        "optimizer_sha256": sha256("optimizer"),
        "start_sha256": sha256(f"start {seed}"),
        "windows_sha256": sha256(f"windows {seed}"),
    }
    return {"arm": arm, "seed": seed, **hashes, **changes}


def choices(
    task: str, document: int, right: bool, cluster: str | None = None, **metrics: float
) -> DocumentRecord:
    """A document with two choices, of which the first is right."""
    taken = dict.fromkeys(("none", "characters", "bytes", "tokens"), int(not right))
    return DocumentRecord(
        task=task,
        document=document,
        cluster=cluster or str(document),
        truncated=False,
        lost_bytes=0,
        metrics={"acc": float(right), **metrics},
        gold=0,
        log_probs=(-1.0, -2.0) if right else (-2.0, -1.0),
        taken=taken,
        equal_best=dict.fromkeys(taken, 1),
        choices=2,
    )


def page(
    task: str, document: int, nats: float, size: int, cluster: str | None = None
) -> DocumentRecord:
    """A rolling document of `size` bytes."""
    return DocumentRecord(
        task=task,
        document=document,
        cluster=cluster or str(document),
        truncated=False,
        lost_bytes=0,
        metrics={"bits_per_byte": None},
        nats=nats,
        words=size,
        bytes=size,
        tokens=size,
    )


def completion(task: str, document: int, right: bool, nats: float) -> DocumentRecord:
    """A document whose end is guessed."""
    return DocumentRecord(
        task=task,
        document=document,
        cluster=str(document),
        truncated=False,
        lost_bytes=0,
        metrics={"acc": float(right)},
        nats=nats,
        tokens=3,
    )


def request(document: DocumentRecord, part: int = 0, text: str = "") -> RequestRecord:
    """A request of a document. text: what tells it from the same request of another suite."""
    name = f"{text}{document.task} {document.document} {part}"
    return RequestRecord(
        task=document.task,
        document=document.document,
        part=part,
        kind="loglikelihood",
        context_sha256=sha256(f"context {name}"),
        continuation_sha256=sha256(f"continuation {name}"),
        read_sha256=sha256(f"read {name}"),
        tokens=9,
        scored=(4, 5),
        dropped=0,
        lost_bytes=0,
        prefix=None,
        begin=0,
        log_probs=(-1.0, -0.5),
        greedy=False,
        dtype="torch.float32",
    )


def _metrics(documents: list[DocumentRecord], name: str) -> dict[str, float]:
    own = [document for document in documents if document.benchmark == name]
    if own[0].bytes is not None:
        return {
            "bits_per_byte": (
                sum(entry.nats for entry in own) / sum(entry.bytes for entry in own) / math.log(2)
            )
        }
    return {
        metric: sum(entry.metrics[metric] for entry in own) / len(own) for metric in own[0].metrics
    }


def evaluation_json(
    documents: list[DocumentRecord], requests: list[RequestRecord] | None = None, /, **identity: Any
) -> dict[str, Any]:
    """What evaluation.json holds. identity: keys of it that matter to the test."""
    requests = [request(document) for document in documents] if requests is None else requests
    sizes = Counter(document.benchmark for document in documents)
    values = {
        "model": "model",
        "weights_sha256": sha256("weights"),
        "step": 8,
        "run": None,
        "interface": "learned",
        "dtype": "float32",
        "tokenizer_fingerprint": sha256("tokenizer"),
        "benchmarks": list(sizes),
        "rows": "local, by SHA-256",
        "embedded_held_out": None,
        "context_length": 96,
        "prefix": 0,
        "documents": None,
        "seed": None,
        "lm_eval_version": "0.4.13",
    }
    return {
        "identity": {**values, **identity},
        "scorer": {"batch_tokens": 1024, "how": "packed", "computed_tokens": 99},
        "environment": (
            dict.fromkeys(("tokencodes", "device", "torch", "transformers", "tokenizers"), "1")
            | {"threads": 1}
        ),
        "tokenizer_begin": [],
        "requests_sha256": multiset_sha256(multiset(requests)),
        "audit": [count.model_dump() for count in counts(requests)],
        "second_opinion": {
            "checked": 6,
            "tokens": 12,
            "largest": 1e-6,
            "mean": 1e-7,
            "flags": 0,
            "allowed": 1e-4,
        },
        "results": {
            name: {"documents": size, **_metrics(documents, name)} for name, size in sizes.items()
        },
        "sensitivity": {"prefix": []},
    }


def write_made(
    folder: Path,
    documents: list[DocumentRecord],
    requests: list[RequestRecord] | None = None,
    /,
    **identity: Any,
) -> Path:
    """A finished evaluation's folder. Its weights are those of its path, unless `identity` says
    otherwise.
    """
    folder.mkdir(parents=True)
    requests = [request(document) for document in documents] if requests is None else requests
    write_records(folder / REQUESTS, requests)
    write_records(folder / DOCUMENTS, documents)
    identity = {"model": str(folder), "weights_sha256": sha256(str(folder)), **identity}
    write_evaluation_record(folder, evaluation_json(documents, requests, **identity))
    return folder


def write_run(
    folder: Path, documents: list[DocumentRecord], arm: str, seed: int, **changes: Any
) -> Path:
    """The same for a run of a study. changes: hashes of the run, or keys of the identity."""
    run = run_origin(
        arm, seed, **{key: changes.pop(key) for key in [*changes] if key.endswith("_sha256")}
    )
    return write_made(folder, documents, **{"run": run, "interface": arm, **changes})
