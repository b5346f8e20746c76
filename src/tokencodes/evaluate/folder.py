"""What lies in an evaluation's folder, as records. They are checked when they are written and when
they are read.

evaluation.json      one `EvaluationRecord`
documents.jsonl.gz   one `DocumentRecord` a line
requests.jsonl.gz    one `RequestRecord` a line (see `audit`)
"""

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from tokencodes.errors import InputError
from tokencodes.evaluate.audit import Count, NotNegative, RequestRecord
from tokencodes.evaluate.origin import RunOrigin, Sha256
from tokencodes.evaluate.suites import NOT_METRICS
from tokencodes.files import write_bytes, write_json
from tokencodes.records import AnyRecord, Record, first_complaint, read_record

EVALUATION, DOCUMENTS, REQUESTS = "evaluation.json", "documents.jsonl.gz", "requests.jsonl.gz"
REMEDY = "take a new copy of the folder, or evaluate anew"

Positive = Annotated[int, Field(gt=0)]


class Identity(Record):
    """What makes two evaluations the same one. run: the run that the model comes from; None where
    that is not known.
    """

    model: str
    weights_sha256: Sha256
    step: int | None
    run: RunOrigin | None = None
    interface: str | None
    dtype: str
    tokenizer_fingerprint: str
    benchmarks: Annotated[tuple[str, ...], Field(min_length=1)]
    rows: str
    embedded_held_out: bool | None = None
    context_length: Positive
    prefix: int | None
    documents: int | None
    seed: int | None
    lm_eval_version: str


class ScorerRecord(Record):
    """How the requests were computed."""

    batch_tokens: Positive
    how: str
    computed_tokens: NotNegative


class Environment(Record):
    """Where they were computed: versions of libraries, device, threads."""

    tokencodes: str
    device: str
    threads: int
    torch: str
    transformers: str
    tokenizers: str


class SecondOpinion(Record):
    """How far the second scorer is from the first, in nats a token (see `second.Opinion`)."""

    checked: int
    tokens: int
    largest: float
    mean: float
    flags: int
    allowed: float


class Ties(Record):
    """Documents in which several choices share the best number, and in which all do."""

    best: NotNegative
    all: NotNegative


class BenchmarkResult(Record):
    """The metrics of a benchmark over its documents; those that it has not are absent. ties: by
    accuracy.
    """

    documents: Positive
    acc: float | None = None
    acc_norm: float | None = None
    perplexity: float | None = None
    word_perplexity: float | None = None
    byte_perplexity: float | None = None
    bits_per_byte: float | None = None
    lost_bytes: int | None = None
    ties: dict[str, Ties] | None = None

    @property
    def given(self) -> dict[str, float | None]:
        """The metrics that it has, by name. None: a perplexity that overflows."""
        names = [
            name
            for name in type(self).model_fields
            if name in self.model_fields_set - {*NOT_METRICS}
        ]
        return {name: getattr(self, name) for name in names}


class Truncation(Record):
    """Accuracy and its bounds where prompts were cut (see `sensitivity.of_truncation`)."""

    documents: int
    truncated: int
    as_is: float
    whole_only: float | None
    least: float
    most: float


class Averages(Record):
    """Accuracy over documents and over subjects."""

    micro: float
    macro: float
    subjects: int


class Letters(Record):
    """How often each letter was taken and was right."""

    taken: dict[str, int]
    right: dict[str, int]
    constant: dict[str, float]
    best_constant: float
    accuracy: float


class Norms(Record):
    """Accuracy by each way of comparing choices."""

    none: float
    characters: float
    bytes: float
    tokens: float


class PrefixScores(Record):
    """Nats of the texts of a benchmark after one prefix token."""

    benchmark: str
    which: Literal["default", "none", "other"]
    prefix: int | None
    texts: int
    first_token: float | None
    rest: float


class Sensitivity(Record):
    """What a result may depend on, by benchmark where it occurs."""

    truncation: dict[str, Truncation] | None = None
    norms: dict[str, Norms] | None = None
    averages: dict[str, Averages] | None = None
    letters: dict[str, Letters] | None = None
    prefix: tuple[PrefixScores, ...]


class EvaluationRecord(Record):
    """evaluation.json: what was evaluated, on what, how, and the results. tokenizer_begin: ids that
    the tokenizer puts before each text.
    """

    identity: Identity
    scorer: ScorerRecord
    environment: Environment
    tokenizer_begin: tuple[NotNegative, ...]
    requests_sha256: Sha256
    audit: tuple[Count, ...]
    second_opinion: SecondOpinion
    results: dict[str, BenchmarkResult]
    sensitivity: Sensitivity

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name, given in (
            ("results", [*self.results]),
            ("audit", [count.name for count in self.audit]),
        ):
            if sorted(given) != sorted(self.identity.benchmarks):
                raise ValueError(f"the benchmarks of {name} are not those of identity.benchmarks")
        return self

    def as_json(self) -> dict[str, Any]:
        """What the file holds."""
        return self.model_dump(mode="json", exclude_unset=True)


class DocumentRecord(Record):
    """What became of one document.

    A document with choices has `choices`, `gold`, `log_probs` (nats, one a choice), `taken` (the
    choice by each norm) and `equal_best` (how many choices share the best number, by norm). Every
    other has `nats` and `tokens`. A rolling one has `words` and `bytes` too. metrics: None where
    only the sums over all documents give the metric.
    """

    task: str
    document: NotNegative
    cluster: str
    truncated: bool
    lost_bytes: NotNegative | None
    metrics: dict[str, float | None]
    gold: NotNegative | None = None
    log_probs: tuple[float, ...] | None = None
    taken: dict[str, NotNegative] | None = None
    equal_best: dict[str, Positive] | None = None
    choices: Positive | None = None
    nats: float | None = None
    words: NotNegative | None = None
    bytes: Positive | None = None
    tokens: Positive | None = None

    @model_validator(mode="after")
    def _of_same_kind(self) -> Self:
        kind = self.kind
        needed = {
            "choices": ("gold", "log_probs", "taken", "equal_best"),
            "rolling": ("nats", "words", "tokens"),
            "text": ("nats", "tokens"),
        }
        for name in needed[kind]:
            if getattr(self, name) is None:
                raise ValueError(f"{name} is missing")
        if kind != "rolling":
            for name, value in self.metrics.items():
                if value is None:
                    raise ValueError(f"metrics.{name} is missing")
        return self

    @property
    def kind(self) -> Literal["choices", "rolling", "text"]:
        """Whether it has choices, is scored window by window for bits per byte, or is completed."""
        return (
            "choices"
            if self.choices is not None
            else "rolling"
            if self.bytes is not None
            else "text"
        )

    @property
    def benchmark(self) -> str:
        """The benchmark that its task belongs to."""
        return self.task.partition("/")[0]

    def values(self) -> dict[str, float]:
        """What a contrast compares, by metric. Of bits per byte: bits."""
        if self.kind == "rolling":
            return {"bits_per_byte": (self.nats or 0.0) / math.log(2)}
        values = {name: value or 0.0 for name, value in self.metrics.items()}
        return values if self.kind == "choices" else {**values, "nats": self.nats or 0.0}


def read_evaluation(folder: Path) -> EvaluationRecord:
    """The evaluation in a folder. InputError: there is none, or it is damaged."""
    if not (folder / EVALUATION).is_file():
        raise InputError(f"{folder}: no finished evaluation; `tokencodes evaluate` writes one")
    return read_record(folder / EVALUATION, EvaluationRecord, REMEDY)


def write_evaluation_record(folder: Path, value: dict[str, Any]) -> None:
    """evaluation.json, and nothing that `read_evaluation` would refuse."""
    EvaluationRecord.model_validate(value)
    write_json(folder / EVALUATION, value)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """JSON lines, compressed; the same records give the same bytes."""
    memory = io.BytesIO()
    with gzip.GzipFile(fileobj=memory, mode="wb", mtime=0, compresslevel=6) as file:
        for record in records:
            line = json.dumps(
                record.model_dump(exclude_unset=True), ensure_ascii=False, allow_nan=False
            )
            file.write(line.encode() + b"\n")
    write_bytes(path, memory.getvalue())


def read_records(path: Path, kind: type[AnyRecord]) -> Iterator[AnyRecord]:
    """The records of a file that must be there. InputError: it is not there, or is damaged."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; an evaluation's folder has it once it is done")
    try:
        with gzip.open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield kind.model_validate_json(line)
                except ValidationError as error:
                    raise InputError(
                        f"{path}, line {number}: {first_complaint(error)}; {REMEDY}"
                    ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged ({error}); {REMEDY}") from None


def read_documents(folder: Path, evaluation: EvaluationRecord) -> list[DocumentRecord]:
    """Every document of an evaluation.
    InputError: they are not those that evaluation.json counts."""
    path = folder / DOCUMENTS
    documents = list(read_records(path, DocumentRecord))
    by_benchmark: dict[str, list[DocumentRecord]] = {}
    for document in documents:
        by_benchmark.setdefault(document.benchmark, []).append(document)
    other = by_benchmark.keys() - evaluation.results.keys()
    if other:
        raise InputError(
            f"{path}: documents of {min(other)}, of which evaluation.json has no result; {REMEDY}"
        )
    for name, result in evaluation.results.items():
        own = by_benchmark.get(name, [])
        if len(own) != result.documents:
            raise InputError(
                f"{path}: {len(own):,} documents of {name}; evaluation.json has"
                f" {result.documents:,}; {REMEDY}"
            )
        if len({tuple(document.values()) for document in own}) > 1:
            raise InputError(
                f"{path}: the documents of {name} do not have the same metrics; {REMEDY}"
            )
    return documents


def read_requests(folder: Path) -> Iterator[RequestRecord]:
    """Every request of an evaluation, and its answer."""
    return read_records(folder / REQUESTS, RequestRecord)
