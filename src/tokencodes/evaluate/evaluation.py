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


def chosen_documents(tasks: Sequence[TaskOf], asking: EvaluationSettings) -> dict[str, list[int]]:
    """The numbers of the scored documents of each task:
    all, or a seeded draw from each benchmark."""
    by_benchmark: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for task in tasks:
        by_benchmark[task.benchmark.name] += [
            (task.name, number) for number in range(len(task.task.eval_docs))
        ]
    found: dict[str, list[int]] = {}
    for name, places in by_benchmark.items():
        some = places
        if asking.documents is not None and asking.documents < len(places):
            some = sorted(random.Random(f"{asking.seed} {name}").sample(places, asking.documents))
        for task_name, number in some:
            found.setdefault(task_name, []).append(number)
    return found


def _tasks(asking: EvaluationSettings) -> tuple[list[TaskOf], dict[str, list[int]]]:
    """The tasks of which documents are scored, and which."""
    tasks = make_tasks(asking.benchmarks, asking.data)
    chosen = chosen_documents(tasks, asking)
    return [task for task in tasks if task.name in chosen], chosen


def instances(
    tasks: Sequence[TaskOf], chosen: dict[str, list[int]]
) -> list[tuple[RequestSource, tuple[str, ...]]]:
    """Every request of tasks as lm-eval words it."""
    found = []
    for task in tasks:
        numbers = chosen[task.name]
        task.task.build_all_requests(samples=numbers, rank=0, world_size=1)
        for one in task.task.instances:
            kind = ROLLING if one.request_type == ROLLING else CHOICE
            part = 0 if kind == ROLLING else one.idx
            found.append((RequestSource(task.name, numbers[one.doc_id], part, kind), one.args))
    return found


def requests_of(
    asked: Sequence[tuple[RequestSource, tuple[str, ...]]],
    texts: Texts,
    limit: int,
    prefix: int | None,
) -> list[Request]:
    """The same as tokens."""
    pairs = [(who, args) for who, args in asked if who.kind == CHOICE]
    rolling = [(who, args) for who, args in asked if who.kind == ROLLING]
    found = pair_requests(
        [(args[0], args[1]) for _, args in pairs], [who for who, _ in pairs], texts, limit, prefix
    )
    return found + rolling_requests(
        [args[0] for _, args in rolling], [who for who, _ in rolling], texts, limit, prefix
    )


def audit(asking: EvaluationSettings, texts: Texts) -> tuple[list[Count], str]:
    """Counts of the requests that an evaluation would make, and the hash of their multiset; no
    model is needed.
    """
    tasks, chosen = _tasks(asking)
    records = [
        record_of(one)
        for one in requests_of(instances(tasks, chosen), texts, asking.limit, asking.prefix)
    ]
    return counts(records), multiset_sha256(multiset(records))


def evaluate(
    evaluated: Evaluated,
    asking: EvaluationSettings,
    out: Path,
    batch_tokens: int | None = None,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Scores everything, writes the folder, returns what evaluation.json holds."""
    with locked_folder(out):
        told = identity(evaluated, asking)
        kept = kept_evaluation(out)
        if kept is not None:
            if not same(kept.identity, told):
                raise InputError(
                    f"{out}: holds another evaluation ({_apart(kept.identity, told)}); choose"
                    " another --out"
                )
            return kept.as_json()
        tasks, chosen = _tasks(asking)
        scorer = Scorer(
            evaluated.model, batch_tokens, out / "journal", evaluated.weights_sha256, progress
        )
        say(
            f"{evaluated.name}: {scorer.how}; {scorer.batch_tokens:,} tokens a pass, or one request"
            " that is longer"
        )
        answered, samples = _run_lm_eval(evaluated, asking, tasks, chosen, scorer)
        say("a second scorer reads a sample of the requests again, one at a time")
        opinion = _second_opinion(evaluated, asking, answered)
        say(
            f"a second scorer agrees on {opinion['checked']} requests: {opinion['largest']:.1e}"
            " nats a token at most"
        )
        records = [record_of(one, score, str(evaluated.model.dtype)) for one, score in answered]
        documents = _documents(tasks, samples, [record.model_dump() for record in records])
        result = {
            "identity": told.model_dump(mode="json"),
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
            "results": results(asking.benchmarks, documents),
            "sensitivity": _sensitivity(evaluated, asking, documents, answered, scorer),
        }
        write_records(out / REQUESTS, records)
        write_records(out / DOCUMENTS, [DocumentRecord(**document) for document in documents])
        write_evaluation_record(out, result)
        shutil.rmtree(out / "journal", ignore_errors=True)
    return result


def kept_evaluation(out: Path) -> EvaluationRecord | None:
    """The finished evaluation in a folder; None where there is none."""
    return read_evaluation(out) if (out / EVALUATION).is_file() else None


def same(one: Identity, other: Identity) -> bool:
    """Whether two identities are of one evaluation, by whatever path its model was named."""
    return one.model_copy(update={"model": other.model}) == other


def _apart(one: Identity, other: Identity) -> str:
    """In which values two identities differ."""
    pairs = [
        (name, getattr(one, name), getattr(other, name))
        for name in Identity.model_fields
        if name != "model"
    ]
    return "; ".join(
        f"{name} {kept!r} there, {asked!r} asked for"
        for name, kept, asked in pairs
        if kept != asked
    )


def identity(evaluated: Evaluated, asking: EvaluationSettings) -> Identity:
    """What makes two evaluations the same one."""
    return Identity(
        model=evaluated.name,
        weights_sha256=evaluated.weights_sha256,
        step=evaluated.step,
        run=evaluated.run,
        interface=getattr(evaluated.model.config, "interface", None),
        dtype=str(evaluated.model.dtype).removeprefix("torch."),
        tokenizer_fingerprint=evaluated.texts.sha256,
        benchmarks=tuple(one.name for one in asking.benchmarks),
        rows=_rows(asking),
        embedded_held_out=evaluated.held_out if EMBEDDED in asking.benchmarks else None,
        context_length=asking.limit,
        prefix=asking.prefix,
        documents=asking.documents,
        seed=asking.seed if asking.documents else None,
        lm_eval_version=version("lm-eval"),
    )


def _rows(asking: EvaluationSettings) -> str:
    if asking.benchmarks == (EMBEDDED,):
        return "embedded"
    return "local, by SHA-256" if asking.data else "Hugging Face hub"


def _run_lm_eval(
    evaluated: Evaluated,
    asking: EvaluationSettings,
    tasks: Sequence[TaskOf],
    chosen: dict[str, list[int]],
    scorer: Scorer,
) -> tuple[list[tuple[Request, Score]], dict[str, list[dict[str, Any]]]]:
    """Requests with their scores, and lm-eval's own samples by task."""
    from lm_eval.evaluator import evaluate as run

    from tokencodes.evaluate.language_model import LanguageModel

    model = LanguageModel(scorer, evaluated.texts, asking.limit, asking.prefix, chosen)
    named = {"tasks": {task.name: task.task for task in tasks}, "groups": {}}
    found = run(lm=model, task_dict=named, samples=chosen, bootstrap_iters=0, log_samples=True)
    return model.answered, found["samples"]


def _second_opinion(
    evaluated: Evaluated, asking: EvaluationSettings, answered: Sequence[tuple[Request, Score]]
) -> dict[str, Any]:
    claims = [
        Claim(
            one.source.task.partition("/")[0],
            one.source.document,
            one.source.part,
            *one.texts,
            one.source.part if one.source.kind == ROLLING else None,
            tuple(score.log_probs.tolist()),
            score.greedy,
        )
        for one, score in answered
    ]
    drawn = sample(claims, CHECKED, asking.seed)
    return asdict(
        check(evaluated.model, evaluated.texts.tokenizer, drawn, asking.limit, asking.prefix)
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
        one
        for task in tasks
        for one in document_records(task, samples[task.name], by_task[task.name])
    ]


def results(
    benchmarks: Sequence[Benchmark], documents: Sequence[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """By benchmark: its metrics over documents, as fractions. Perplexities and bits per byte where
    they are what is meant; a perplexity that overflows is None. Of multiple choice also the ties
    (`ties_of`).
    """
    found = {}
    for one in benchmarks:
        some = [record for record in documents if record["task"].partition("/")[0] == one.name]
        told: dict[str, Any] = {"documents": len(some)}
        if one.endpoint == "bits_per_byte":
            nats, words, size = (
                math.fsum(record[key] for record in some) for key in ("nats", "words", "bytes")
            )
            lost = [record["lost_bytes"] for record in some]
            told |= {
                "word_perplexity": perplexity(nats / words),
                "byte_perplexity": perplexity(nats / size),
            }
            told |= {
                "bits_per_byte": nats / size / math.log(2),
                "lost_bytes": None if None in lost else sum(lost),
            }
        else:
            for name in ("acc", "acc_norm"):
                values = [record["metrics"][name] for record in some if name in record["metrics"]]
                if values:
                    told[name] = math.fsum(values) / len(values)
            if some and "choices" in some[0]:
                told["ties"] = ties_of(some)
            elif some:
                told["perplexity"] = perplexity(
                    math.fsum(record["nats"] for record in some) / len(some)
                )
        found[one.name] = told
    return found


def _sensitivity(
    evaluated: Evaluated,
    asking: EvaluationSettings,
    documents: Sequence[dict[str, Any]],
    answered: Sequence[tuple[Request, Score]],
    scorer: Scorer,
) -> dict[str, Any]:
    found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for one in asking.benchmarks:
        some = [record for record in documents if record["task"].partition("/")[0] == one.name]
        for name, value in (
            ("truncation", sensitivity.of_truncation(some)),
            ("averages", sensitivity.of_averages(some)),
        ):
            if value is not None:
                found[name][one.name] = value
        if some and "choices" in some[0]:
            found["norms"][one.name] = sensitivity.of_norms(some)
            if one.letters:
                found["letters"][one.name] = sensitivity.of_letters(some)
    return {
        **found,
        "prefix": sensitivity.of_prefix(
            answered, [None, _other_prefix(evaluated.texts, asking)], scorer.score
        ),
    }


def _other_prefix(texts: Texts, asking: EvaluationSettings) -> int:
    """A token to try before an empty context: a line break's, or the first that a text of one
    letter has.
    """
    some = (int(ids[-1]) for ids in (texts.plain(text) for text in ("\n", "a", "e")) if len(ids))
    return next((token for token in some if token != asking.prefix), int(asking.prefix == 0))


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
