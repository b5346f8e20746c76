"""`compare` runs every arm with every seed. Seeds are the outer loop, so a study that stops early
holds matched pairs.

It writes STUDY/study.toml, tokenizer-KEY.json, data/ and ngram_baselines.json. In ARM/seed-N/ it
writes config.toml, metrics.jsonl, checkpoints/, model/, result.json, sample.json, and evaluation/
if a suite is named. Repeating the command continues where it stopped.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import tomli_w
import torch
from transformers import AutoTokenizer

from tokencodes.data.dataset import Corpus
from tokencodes.data.mixture import Mixture
from tokencodes.data.windows import HeldOut
from tokencodes.errors import InputError
from tokencodes.evaluate.ngram import fit_and_score
from tokencodes.files import locked_folder, read_toml, write_json, write_text
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.parallel import World, join
from tokencodes.records import read_record
from tokencodes.result import ResultRecord, read_result
from tokencodes.study_records import (
    FACTS,
    NGRAM_BASELINES,
    REMOVE_FIRST,
    SAMPLE,
    STUDY,
    NgramBaselines,
)
from tokencodes.train.checks import (
    check_memory,
    check_model,
    check_named_text,
    check_order,
    check_text,
)
from tokencodes.train.config import FREE, RunConfig, StudyConfig
from tokencodes.train.corpus import foreign
from tokencodes.train.cost import cost_of_arms
from tokencodes.train.metrics import Observer
from tokencodes.train.run import open_together, train
from tokencodes.train.settings import flatten
from tokencodes.train.stop import Stop

SAMPLE_TOKENS = 80
SAMPLE_PROMPT_TOKENS = 16


def runs(study: StudyConfig) -> Iterator[tuple[RunConfig, str]]:
    """Yields every run of a study with the name of its folder, in the order of training."""
    for seed in study.study.seeds:
        for arm in study.arms:
            yield study.run(arm, seed), f"{arm}/seed-{seed}"


def compare(
    study: StudyConfig,
    out: Path,
    observer: Observer,
    stop: Stop | None = None,
    world: World | None = None,
) -> bool:
    """Trains the runs that are missing. Returns True if every run is done. Arms and seeds may be
    added to a study, but its recipe may not change. If there are several ranks, all of them call
    it.

    Raises InputError if `out` holds a study of another recipe, or other files.
    """
    text = tomli_w.dumps(_as_table(study))
    world = world or join(study.engine.device)
    with ExitStack() as held:
        world.on_first(lambda: _hold(held, out, study))
        return _compare(study, out, text, observer, stop or Stop(), world)


def _hold(held: ExitStack, out: Path, study: StudyConfig) -> None:
    check_folder(study, out)
    held.enter_context(locked_folder(out))


def _compare(
    study: StudyConfig, out: Path, text: str, observer: Observer, stop: Stop, world: World
) -> bool:
    world.on_first(lambda: _check_evaluation(study))  # before hours of training
    waiting = world.on_first(
        lambda: [name for _, name in runs(study) if read_result(out / name) is None]
    )
    _check_models(study, waiting, world)
    dataset = open_together(study.data, out, observer.say, world)
    if waiting:
        # as soon as there is a tokenizer, before training
        world.on_first(lambda: _check_requests(study, dataset))
    planned, spent = list(runs(study)), list[float]()
    held_out = check_text(planned[0][0], dataset, world.ranks)
    for arm in study.arms:
        check_order(study.run(arm, study.study.seeds[0]), dataset)
    world.on_first(lambda: _describe(study, out, text, dataset, held_out))
    for number, (run, name) in enumerate(planned, 1):
        place = out / name
        result = train(run, dataset, place, observer, stop, world, keep_divergence=True)
        if result is None:
            return False
        if result.held_out_sha256 != held_out.sha256:
            raise InputError(
                f"{place}: measured on other held-out windows; remove the folder and repeat the"
                " command"
            )
        if not result.diverged:
            world.on_first(partial(_sample, place, held_out, run.seed))
            spent.append(result.seconds)
        if name in waiting:
            waiting.remove(name)
            if world.first:
                observer.say(
                    f"run {number} of {len(planned)}"
                    f" {_outcome(result)}{_time_left(spent, len(waiting))}"
                )
    return not study.evaluation.suite or world.on_first(
        partial(_evaluate, study, out, observer, stop)
    )


def _outcome(result: ResultRecord) -> str:
    who = f"{result.arm} seed {result.seed}"
    if result.divergence is not None:
        return (
            f"diverged: {who}: {result.divergence.reason}; it has no score, and the study goes on"
        )
    return f"done: {who}: held-out loss {result.held_out_loss:.3f}"


def _time_left(spent: list[float], waiting: int) -> str:
    """Returns a text with the time that the remaining runs take, from the mean of the finished
    ones, and no text if none is finished.
    """
    if not waiting or not spent:
        return ""
    seconds = sum(spent) / len(spent) * waiting
    return (
        f"; about {seconds:.0f} s left" if seconds < 90 else f"; about {seconds / 60:,.0f} min left"
    )


def _check_models(study: StudyConfig, waiting: list[str], world: World) -> None:
    """Raises InputError, on every rank, if a run that is not yet trained has a code or a model that
    cannot be built here.
    """
    for run in {run.arm: run for run, name in runs(study) if name in waiting}.values():
        check_memory(run, world)
        world.on_first(partial(check_model, run))


class _Stopped(Exception):
    """The user requested a stop during an evaluation."""


def _check_evaluation(study: StudyConfig) -> None:
    """Raises InputError if the study names a suite that cannot be scored."""
    evaluation = study.evaluation
    if not evaluation.suite:
        return
    from tokencodes.evaluate.suites import benchmarks
    from tokencodes.evaluate.tasks import check_rows, lm_eval_folder

    chosen = benchmarks(evaluation.suite)
    lm_eval_folder()
    check_rows(chosen, Path(evaluation.data) if evaluation.data else None)
    if (
        evaluation.context_length is not None
        and evaluation.context_length > study.model.context_length
    ):
        raise InputError(
            f"evaluation.context_length {evaluation.context_length}: the models read"
            f" {study.model.context_length} tokens at most"
        )


def _check_requests(study: StudyConfig, dataset: Corpus) -> None:
    """Raises InputError if a choice in the suite is longer than the context of the models."""
    evaluation = study.evaluation
    if not evaluation.suite:
        return
    from tokencodes.evaluate.evaluation import EvaluationSettings, audit
    from tokencodes.evaluate.suites import benchmarks
    from tokencodes.evaluate.texts import open_texts

    texts = open_texts(dataset.tokenizer.path)
    data, limit = (
        (Path(evaluation.data) if evaluation.data else None),
        evaluation.context_length or study.model.context_length,
    )
    try:
        audit(
            EvaluationSettings(
                benchmarks(evaluation.suite), data, limit, texts.prefix, evaluation.documents
            ),
            texts,
        )
    except InputError as error:
        raise InputError(f"evaluation.suite: {error}") from None


def _evaluate(study: StudyConfig, out: Path, observer: Observer, stop: Stop) -> bool:
    """Scores every run on the suite, except runs that diverged. Returns False if a stop was
    requested; finished scores are kept.
    """
    from tokencodes.evaluate.evaluation import (
        EvaluationSettings,
        evaluate,
        identity,
        kept_evaluation,
        same,
    )
    from tokencodes.evaluate.subject import context_limit, open_evaluated
    from tokencodes.evaluate.suites import benchmarks

    evaluation, chosen = study.evaluation, benchmarks(study.evaluation.suite)

    def progress(done: int, of: int, rate: float, left: float) -> None:
        if stop.requested:
            raise _Stopped

    for _, name in runs(study):
        if _diverged(out / name):
            continue
        subject = open_evaluated(str(out / name / "model"), None, study.engine.device, "float32")
        limit = context_limit(subject.model.config, evaluation.context_length)
        settings = EvaluationSettings(
            chosen,
            Path(evaluation.data) if evaluation.data else None,
            limit,
            subject.texts.prefix,
            evaluation.documents,
        )
        place = out / name / "evaluation"
        kept = kept_evaluation(place)
        if kept is not None and not same(kept.identity, identity(subject, settings)):
            places = (place.with_name(f"evaluation-{number}") for number in count(1))
            aside = next(path for path in places if not path.exists())
            observer.say(f"{place}: another evaluation, now {aside.name}")
            place.rename(aside)
        try:
            evaluate(subject, settings, place, progress=progress, say=observer.say)
        except _Stopped:
            return False
    return True


def _diverged(run_folder: Path) -> bool:
    result = read_result(run_folder)
    return result is not None and result.diverged


def _describe(study: StudyConfig, out: Path, text: str, dataset: Corpus, held_out: HeldOut) -> None:
    """Writes the description of the study and the baselines of its losses. It computes all of them
    before it writes, so that an invalid configuration does not occupy the folder.
    """
    key = {"held_out_sha256": held_out.sha256, "dataset_fingerprint": dataset.fingerprint}
    facts, file = _facts(study, dataset), out / NGRAM_BASELINES
    kept = read_record(file, NgramBaselines, REMOVE_FIRST) if file.is_file() else None
    fresh = kept is None or {name: getattr(kept, name) for name in key} != key
    ngram_baselines = {**asdict(fit_and_score(dataset, held_out.ids_NT1)), **key} if fresh else None
    write_text(out / STUDY, text)
    if ngram_baselines is not None:
        write_json(file, ngram_baselines)
    write_json(out / FACTS, facts)


def _sample(run_folder: Path, held_out: HeldOut, seed: int) -> None:
    if not (run_folder / SAMPLE).is_file():
        prompt = held_out.ids_NT1[len(held_out.ids_NT1) // 2, :SAMPLE_PROMPT_TOKENS].tolist()
        write_json(run_folder / SAMPLE, sample(run_folder / "model", prompt, seed))


def sample(model_folder: Path, prompt: list[int], seed: int) -> dict[str, Any]:
    """Returns the fields of sample.json: a held-out prompt and the text that a model generates
    after it. Tokens are drawn at temperature 0.8 from the 50 most probable ones.
    """
    model = TokenCodeForCausalLM.from_pretrained(model_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder, trust_remote_code=False)
    torch.manual_seed(seed)
    ids = torch.tensor([prompt])
    drawn = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=SAMPLE_TOKENS,
        do_sample=True,
        temperature=0.8,
        top_k=50,
        pad_token_id=0,
    )[0].tolist()
    return {
        "prompt": tokenizer.decode(prompt),
        "continuation": tokenizer.decode(drawn[len(prompt) :], skip_special_tokens=True),
        "temperature": 0.8,
        "top_k": 50,
        "seed": seed,
    }


def _as_table(study: StudyConfig) -> dict[str, Any]:
    """Returns a study in the form of study.toml."""
    return study.model_dump(mode="json", exclude_none=True)


def check_folder(study: StudyConfig, out: Path) -> None:
    """Raises InputError if the folder holds a study of another recipe, or other files. A folder
    keeps one recipe.
    """
    saved = out / STUDY
    if saved.is_file():
        before = flatten(read_toml(saved))
        now = flatten(_as_table(study))
        for key in sorted((before.keys() | now.keys()) - FREE):
            if before.get(key) != now.get(key) and key.split(".")[0] not in (
                "arms",
                "study",
                "evaluation",
            ):
                raise InputError(
                    f"{out}: holds a study of another recipe ({key} is {before.get(key)!r} there,"
                    f" {now.get(key)!r} asked for); choose another --out"
                )
    elif out.is_dir() and foreign(out):
        raise InputError(
            f"{out}: neither empty nor a study's folder (it holds {foreign(out)}); choose another"
            " --out"
        )


def check_study(study: StudyConfig, out: Path) -> None:
    """Checks a study that will be trained on another machine: its folder, codes and models, and its
    text if the text is here.
    """
    check_folder(study, out)
    for arm in study.arms:
        check_model(study.run(arm, study.study.seeds[0]))
    check_named_text(study.run(study.study.baseline, study.study.seeds[0]))


def _facts(study: StudyConfig, dataset: Corpus) -> dict[str, Any]:
    """Returns the facts of the arms and of the dataset that the report needs besides results."""
    sides = {
        side: {
            "documents": sum(shard.documents for shard in dataset.shards(side)),
            "tokens": sum(shard.tokens for shard in dataset.shards(side)),
        }
        for side in ("train", "validation")
    }
    least = 1 if study.batch.sampling == "packed" else study.model.context_length
    sides["train"]["eligible"] = sum(
        int((shard.lengths > least).sum()) for shard in dataset.shards("train")
    )
    return {
        "costs": cost_of_arms(study),
        "dataset": {
            "fingerprint": dataset.fingerprint,
            "tokenizer_sha256": dataset.tokenizer_sha256,
            "vocab_size": dataset.vocab_size,
            "inputs": [
                source.input.file for part in dataset.datasets for source in part.manifest.sources
            ],
            "least_tokens": least + 1,
            "shares": (
                [
                    f"{quota} from {part.path}"
                    for part, quota in zip(dataset.datasets, dataset.quotas, strict=True)
                ]
                if isinstance(dataset, Mixture)
                else []
            ),
            **sides,
        },
    }
