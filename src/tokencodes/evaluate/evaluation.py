"""An evaluation from a model to its folder:

requests.jsonl.gz   every request and its answer (`audit`)
documents.jsonl.gz  every document and whether it was right (`documents`)
evaluation.json     what was evaluated, on what, how, and the results; written last, so its
                    presence means "done"

A killed evaluation goes on where it was: passes that are done lie in `journal/`, for this model and
these requests alone.
"""

import math
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import tokencodes
from tokencodes.errors import InputError
from tokencodes.evaluate import sensitivity
from tokencodes.evaluate.audit import Count, counts, multiset, multiset_sha256, record_of
from tokencodes.evaluate.documents import document_records, ties_of
from tokencodes.evaluate.folder import (
    DOCUMENTS,
    EVALUATION,
    REQUESTS,
    DocumentRecord,
    EvaluationRecord,
    Identity,
    read_evaluation,
    write_evaluation_record,
    write_records,
)
from tokencodes.evaluate.requests import (
    CHOICE,
    ROLLING,
    Request,
    RequestSource,
    pair_requests,
    rolling_requests,
)
from tokencodes.evaluate.scorer import Progress, Score, Scorer, no_progress
from tokencodes.evaluate.second_scorer import Claim, check, sample
from tokencodes.evaluate.subject import Evaluated
from tokencodes.evaluate.suites import EMBEDDED, Benchmark
from tokencodes.evaluate.tasks import TaskOf, make_tasks
from tokencodes.evaluate.texts import Texts
from tokencodes.files import locked_folder
from tokencodes.measured import perplexity

CHECKED = 64  # requests that go through the second scorer, shared among benchmarks


@dataclass(frozen=True)
class EvaluationSettings:
    """What is asked of a model. documents: so many of each benchmark, drawn by `seed`; None for
    all. limit: tokens that are read at once. prefix: the token that stands for an empty context.
    """

    benchmarks: tuple[Benchmark, ...]
    data: Path | None
    limit: int
    prefix: int | None
    documents: int | None = None
    seed: int = 0


def chosen_documents(tasks: Sequence[TaskOf], settings: EvaluationSettings) -> dict[str, list[int]]:
    """The numbers of the scored documents of each task:
    all, or a seeded draw from each benchmark."""
    by_benchmark: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for task in tasks:
        by_benchmark[task.benchmark.name] += [
            (task.name, number) for number in range(len(task.task.eval_docs))
        ]
    numbers: dict[str, list[int]] = {}
    for name, places in by_benchmark.items():
        drawn = places
        if settings.documents is not None and settings.documents < len(places):
            drawn = sorted(
                random.Random(f"{settings.seed} {name}").sample(places, settings.documents)
            )
        for task_name, number in drawn:
            numbers.setdefault(task_name, []).append(number)
    return numbers


def _tasks(settings: EvaluationSettings) -> tuple[list[TaskOf], dict[str, list[int]]]:
    """The tasks of which documents are scored, and which."""
    tasks = make_tasks(settings.benchmarks, settings.data)
    chosen = chosen_documents(tasks, settings)
    return [task for task in tasks if task.name in chosen], chosen


def instances(
    tasks: Sequence[TaskOf], chosen: dict[str, list[int]]
) -> list[tuple[RequestSource, tuple[str, ...]]]:
    """Every request of tasks as lm-eval words it."""
    sourced_args = []
    for task in tasks:
        numbers = chosen[task.name]
        task.task.build_all_requests(samples=numbers, rank=0, world_size=1)
        for instance in task.task.instances:
            kind = ROLLING if instance.request_type == ROLLING else CHOICE
            part = 0 if kind == ROLLING else instance.idx
            sourced_args.append(
                (RequestSource(task.name, numbers[instance.doc_id], part, kind), instance.args)
            )
    return sourced_args


def requests_of(
    sourced_args: Sequence[tuple[RequestSource, tuple[str, ...]]],
    texts: Texts,
    limit: int,
    prefix: int | None,
) -> list[Request]:
    """The same as tokens."""
    pairs = [(source, args) for source, args in sourced_args if source.kind == CHOICE]
    rolling = [(source, args) for source, args in sourced_args if source.kind == ROLLING]
    choices = pair_requests(
        [(args[0], args[1]) for _, args in pairs],
        [source for source, _ in pairs],
        texts,
        limit,
        prefix,
    )
    return choices + rolling_requests(
        [args[0] for _, args in rolling], [source for source, _ in rolling], texts, limit, prefix
    )


def audit(settings: EvaluationSettings, texts: Texts) -> tuple[list[Count], str]:
    """Counts of the requests that an evaluation would make, and the hash of their multiset; no
    model is needed.
    """
    tasks, chosen = _tasks(settings)
    records = [
        record_of(request)
        for request in requests_of(instances(tasks, chosen), texts, settings.limit, settings.prefix)
    ]
    return counts(records), multiset_sha256(multiset(records))


def evaluate(
    evaluated: Evaluated,
    settings: EvaluationSettings,
    out: Path,
    batch_tokens: int | None = None,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Scores everything, writes the folder, returns what evaluation.json holds."""
    with locked_folder(out):
        requested = identity(evaluated, settings)
        kept = kept_evaluation(out)
        if kept is not None:
            if not same(kept.identity, requested):
                raise InputError(
                    f"{out}: holds another evaluation ({_apart(kept.identity, requested)}); choose"
                    " another --out"
                )
            return kept.as_json()
        tasks, chosen = _tasks(settings)
        scorer = Scorer(
            evaluated.model, batch_tokens, out / "journal", evaluated.weights_sha256, progress
        )
        say(
            f"{evaluated.name}: {scorer.how}; {scorer.batch_tokens:,} tokens a pass, or one request"
            " that is longer"
        )
        answered, samples = _run_lm_eval_tasks(evaluated, settings, tasks, chosen, scorer)
        say("a second scorer reads a sample of the requests again, one at a time")
        opinion = _second_opinion(evaluated, settings, answered)
        say(
            f"a second scorer agrees on {opinion['checked']} requests: {opinion['largest']:.1e}"
            " nats a token at most"
        )
        records = [
            record_of(request, score, str(evaluated.model.dtype)) for request, score in answered
        ]
        documents = _documents(tasks, samples, [record.model_dump() for record in records])
        result = {
            "identity": requested.model_dump(mode="json"),
            "scorer": {
                "batch_tokens": scorer.batch_tokens,
                "how": scorer.how,
                "computed_tokens": scorer.computed,
            },
            "environment": _environment(evaluated),
            # ids that the tokenizer puts before each text
            "tokenizer_begin": evaluated.texts.begin.tolist(),
            "requests_sha256": multiset_sha256(multiset(records)),
            "audit": [count.model_dump() for count in counts(records)],
            "second_opinion": opinion,
            "results": results(settings.benchmarks, documents),
            "sensitivity": _sensitivity(evaluated, settings, documents, answered, scorer),
        }
        write_records(out / REQUESTS, records)
        write_records(out / DOCUMENTS, [DocumentRecord(**document) for document in documents])
        write_evaluation_record(out, result)
        shutil.rmtree(out / "journal", ignore_errors=True)
    return result


def kept_evaluation(out: Path) -> EvaluationRecord | None:
    """The finished evaluation in a folder; None where there is none."""
    return read_evaluation(out) if (out / EVALUATION).is_file() else None


def same(first: Identity, second: Identity) -> bool:
    """Whether two identities are of one evaluation, by whatever path its model was named."""
    return first.model_copy(update={"model": second.model}) == second


def _apart(first: Identity, second: Identity) -> str:
    """In which values two identities differ."""
    pairs = [
        (name, getattr(first, name), getattr(second, name))
        for name in Identity.model_fields
        if name != "model"
    ]
    return "; ".join(
        f"{name} {kept!r} there, {requested!r} asked for"
        for name, kept, requested in pairs
        if kept != requested
    )


def identity(evaluated: Evaluated, settings: EvaluationSettings) -> Identity:
    """What makes two evaluations the same one."""
    return Identity(
        model=evaluated.name,
        weights_sha256=evaluated.weights_sha256,
        step=evaluated.step,
        run=evaluated.run,
        interface=getattr(evaluated.model.config, "interface", None),
        dtype=str(evaluated.model.dtype).removeprefix("torch."),
        tokenizer_fingerprint=evaluated.texts.sha256,
        benchmarks=tuple(benchmark.name for benchmark in settings.benchmarks),
        rows=_rows(settings),
        embedded_held_out=evaluated.held_out if EMBEDDED in settings.benchmarks else None,
        context_length=settings.limit,
        prefix=settings.prefix,
        documents=settings.documents,
        seed=settings.seed if settings.documents else None,
        lm_eval_version=version("lm-eval"),
    )


def _rows(settings: EvaluationSettings) -> str:
    if settings.benchmarks == (EMBEDDED,):
        return "embedded"
    return "local, by SHA-256" if settings.data else "Hugging Face hub"


def _run_lm_eval_tasks(
    evaluated: Evaluated,
    settings: EvaluationSettings,
    tasks: Sequence[TaskOf],
    chosen: dict[str, list[int]],
    scorer: Scorer,
) -> tuple[list[tuple[Request, Score]], dict[str, list[dict[str, Any]]]]:
    """Requests with their scores, and lm-eval's own samples by task."""
    from lm_eval.evaluator import evaluate as run

    from tokencodes.evaluate.language_model import LanguageModel

    model = LanguageModel(scorer, evaluated.texts, settings.limit, settings.prefix, chosen)
    named = {"tasks": {task.name: task.task for task in tasks}, "groups": {}}
    output = run(lm=model, task_dict=named, samples=chosen, bootstrap_iters=0, log_samples=True)
    return model.answered, output["samples"]


def _second_opinion(
    evaluated: Evaluated, settings: EvaluationSettings, answered: Sequence[tuple[Request, Score]]
) -> dict[str, Any]:
    claims = [
        Claim(
            request.source.task.partition("/")[0],
            request.source.document,
            request.source.part,
            *request.texts,
            request.source.part if request.source.kind == ROLLING else None,
            tuple(score.log_probs.tolist()),
            score.greedy,
        )
        for request, score in answered
    ]
    drawn = sample(claims, CHECKED, settings.seed)
    return asdict(
        check(evaluated.model, evaluated.texts.tokenizer, drawn, settings.limit, settings.prefix)
    )


def _documents(
    tasks: Sequence[TaskOf],
    samples: dict[str, list[dict[str, Any]]],
    records: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    by_task: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        by_task[record["task"]].append(record)
    return [
        document
        for task in tasks
        for document in document_records(task, samples[task.name], by_task[task.name])
    ]


def results(
    benchmarks: Sequence[Benchmark], documents: Sequence[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """By benchmark: its metrics over documents, as fractions. Perplexities and bits per byte where
    they are what is meant; a perplexity that overflows is None. Of multiple choice also the ties
    (`ties_of`).
    """
    by_benchmark = {}
    for benchmark in benchmarks:
        records = [
            record for record in documents if record["task"].partition("/")[0] == benchmark.name
        ]
        metrics: dict[str, Any] = {"documents": len(records)}
        if benchmark.endpoint == "bits_per_byte":
            nats, words, size = (
                math.fsum(record[key] for record in records) for key in ("nats", "words", "bytes")
            )
            lost = [record["lost_bytes"] for record in records]
            metrics |= {
                "word_perplexity": perplexity(nats / words),
                "byte_perplexity": perplexity(nats / size),
            }
            metrics |= {
                "bits_per_byte": nats / size / math.log(2),
                "lost_bytes": None if None in lost else sum(lost),
            }
        else:
            for name in ("acc", "acc_norm"):
                values = [
                    record["metrics"][name] for record in records if name in record["metrics"]
                ]
                if values:
                    metrics[name] = math.fsum(values) / len(values)
            if records and "choices" in records[0]:
                metrics["ties"] = ties_of(records)
            elif records:
                metrics["perplexity"] = perplexity(
                    math.fsum(record["nats"] for record in records) / len(records)
                )
        by_benchmark[benchmark.name] = metrics
    return by_benchmark


def _sensitivity(
    evaluated: Evaluated,
    settings: EvaluationSettings,
    documents: Sequence[dict[str, Any]],
    answered: Sequence[tuple[Request, Score]],
    scorer: Scorer,
) -> dict[str, Any]:
    analyses: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for benchmark in settings.benchmarks:
        records = [
            record for record in documents if record["task"].partition("/")[0] == benchmark.name
        ]
        for name, value in (
            ("truncation", sensitivity.of_truncation(records)),
            ("averages", sensitivity.of_averages(records)),
        ):
            if value is not None:
                analyses[name][benchmark.name] = value
        if records and "choices" in records[0]:
            analyses["norms"][benchmark.name] = sensitivity.of_norms(records)
            if benchmark.letters:
                analyses["letters"][benchmark.name] = sensitivity.of_letters(records)
    return {
        **analyses,
        "prefix": sensitivity.of_prefix(
            answered, [None, _other_prefix(evaluated.texts, settings)], scorer.score
        ),
    }


def _other_prefix(texts: Texts, settings: EvaluationSettings) -> int:
    """A token to try before an empty context: a line break's, or the first that a text of one
    letter has.
    """
    tokens = (int(ids[-1]) for ids in (texts.plain(text) for text in ("\n", "a", "e")) if len(ids))
    return next((token for token in tokens if token != settings.prefix), int(settings.prefix == 0))


def _environment(evaluated: Evaluated) -> dict[str, Any]:
    device = evaluated.model.device.type
    return {
        "tokencodes": tokencodes.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "tokenizers": version("tokenizers"),
    }
