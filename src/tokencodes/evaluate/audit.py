"""What was asked, request by request: one record each, counts of them, and whether two evaluations
asked the same.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Annotated, Any

from pydantic import Field

from tokencodes.evaluate.origin import Sha256
from tokencodes.evaluate.requests import Request
from tokencodes.evaluate.scorer import Score
from tokencodes.evaluate.suites import BENCHMARKS, MULTIPLE_CHOICE
from tokencodes.records import Record

# what makes two requests one
SAME = ("task", "document", "part", "context_sha256", "continuation_sha256", "read_sha256")


NotNegative = Annotated[int, Field(ge=0)]


class Count(Record):
    """Of one benchmark: requests; those whose context lost tokens, and how many; tokens in all, and
    those scored; bytes of text that no token stands for (None: cannot be told); requests whose
    empty context a prefix token stands for; documents.
    """

    name: str
    documents: int
    requests: int
    truncated: int
    dropped: int
    tokens: int
    scored: int
    lost: int | None
    prefixed: int


class RequestRecord(Record):
    """One line of requests.jsonl.gz: hashes of the texts and of the token ids, the scored ids
    themselves, and the answer in nats.

    tokens: how many ids the request has. dropped: ids that the context limit cut from the left.
    prefix: the id that stands for an empty context. begin: ids that the tokenizer put before the
    text. An audit has no answers.
    """

    task: str
    document: NotNegative
    part: NotNegative
    kind: str
    context_sha256: Sha256
    continuation_sha256: Sha256
    read_sha256: Sha256
    tokens: NotNegative
    scored: tuple[NotNegative, ...]
    dropped: NotNegative
    lost_bytes: NotNegative | None
    prefix: NotNegative | None
    begin: NotNegative
    log_probs: tuple[float, ...] | None = None
    greedy: bool | None = None
    dtype: str | None = None

    @property
    def benchmark(self) -> str:
        """The benchmark that its task belongs to."""
        return self.task.partition("/")[0]


def record_of(
    request: Request, score: Score | None = None, dtype: str | None = None
) -> RequestRecord:
    """The record of a request, and of its answer if it has one."""
    fields: dict[str, Any] = {
        **asdict(request.source),
        "context_sha256": request.context_sha256,
        "continuation_sha256": request.continuation_sha256,
        "read_sha256": request.read_sha256,
        "tokens": len(request.context) + request.scored,
        "scored": request.continuation.tolist(),
        "dropped": request.dropped,
        "lost_bytes": request.lost,
        "prefix": request.prefix,
        "begin": request.begin,
    }
    if score is not None:
        # The shortest decimals that give the same float32 again.
        fields |= {
            "log_probs": [float(str(value)) for value in score.log_probs],
            "greedy": score.greedy,
            "dtype": dtype,
        }
    return RequestRecord(**fields)


def counts(records: Iterable[RequestRecord]) -> list[Count]:
    """By benchmark, in the order of their first records."""
    by_benchmark: dict[str, Counter[str]] = {}
    documents: dict[str, set[tuple[str, int]]] = {}
    for record in records:
        of = by_benchmark.setdefault(record.benchmark, Counter())
        documents.setdefault(record.benchmark, set()).add((record.task, record.document))
        of["requests"] += 1
        of["truncated"] += record.dropped > 0
        of["dropped"] += record.dropped
        of["tokens"] += record.tokens
        of["scored"] += len(record.scored)
        of["unknown"] += record.lost_bytes is None
        of["lost"] += record.lost_bytes or 0
        of["prefixed"] += record.prefix is not None
    keys = ("requests", "truncated", "dropped", "tokens", "scored")
    return [
        Count(
            name=name,
            documents=len(documents[name]),
            **{key: of[key] for key in keys},
            lost=None if of["unknown"] else of["lost"],
            prefixed=of["prefixed"],
        )
        for name, of in by_benchmark.items()
    ]


def multiple_choice(benchmark_counts: Sequence[Count]) -> Count | None:
    """The paper's line of that name: its seven benchmarks together."""
    names = {benchmark.name for benchmark in MULTIPLE_CHOICE}
    selected = [count for count in benchmark_counts if count.name in names]
    if {count.name for count in selected} != names:
        return None
    totals = {
        key: sum(getattr(count, key) for count in selected)
        for key in Count.model_fields
        if key not in ("name", "lost")
    }
    lost = (
        None
        if any(count.lost is None for count in selected)
        else sum(count.lost or 0 for count in selected)
    )
    return Count(name="multiple choice without MMLU", **totals, lost=lost)


def title_of(name: str) -> str:
    """A benchmark's name as people write it."""
    return BENCHMARKS[name].title if name in BENCHMARKS else name


def multiset(records: Iterable[RequestRecord]) -> Counter[tuple[Any, ...]]:
    """What was asked, however often."""
    return Counter(map(attrgetter(*SAME), records))


def multiset_sha256(requests: Counter[tuple[Any, ...]]) -> str:
    """One hash of it."""
    digest = hashlib.sha256()
    for key, times in sorted(requests.items()):
        digest.update(json.dumps([*key, times]).encode())
    return digest.hexdigest()


def difference(first: Counter[tuple[Any, ...]], other: Counter[tuple[Any, ...]]) -> str | None:
    """Where two evaluations did not ask the same, in words; None where they did."""
    only = [sorted((a - b).keys()) for a, b in ((first, other), (other, first))]
    if not any(only):
        return None
    parts = []
    for which, keys in zip(("first", "second"), only, strict=True):
        if keys:
            tasks = Counter(key[0].partition("/")[0] for key in keys)
            most = ", ".join(f"{name} {count:,}" for name, count in tasks.most_common(4))
            parts.append(
                f"{len(keys):,} only in the {which} ({most}; such as {keys[0][0]}, document"
                f" {keys[0][1]}, part {keys[0][2]})"
            )
    return "; ".join(parts)
