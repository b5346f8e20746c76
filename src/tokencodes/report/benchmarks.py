"""The benchmarks of a study: every arm's results, and each arm against the baseline, as far as runs
were evaluated.
"""

from dataclasses import dataclass

from tokencodes.errors import InputError
from tokencodes.evaluate.audit import title_of
from tokencodes.evaluate.contrast import compared
from tokencodes.evaluate.folder import EVALUATION, EvaluationRecord, read_evaluation
from tokencodes.evaluate.pairs import Evaluation, open_evaluation, paired
from tokencodes.measured import OVERFLOW
from tokencodes.report.contrasts import forest, grid_of, pairing_note, scaled, sentences
from tokencodes.report.evaluations import audit_grid
from tokencodes.report.results import StudyResult
from tokencodes.report.tables import Grid
from tokencodes.result import ResultRecord

LEFT_OUT = ("byte_perplexity",)
Evaluations = dict[str, dict[int, EvaluationRecord]]  # by arm and run seed


@dataclass(frozen=True)
class ArmContrast:
    """An arm against the baseline: table, picture, sentences, and by what the runs were paired
    where there are several.
    """

    grid: Grid
    picture: str
    sentences: list[str]
    note: str


@dataclass(frozen=True)
class Benchmarks:
    """What a study's page shows of them. missing: arms of which not every run with a score was
    evaluated. refused: arms that could not be contrasted with the baseline, and the reason of each.
    """

    results: Grid
    audit: Grid
    contrasts: list[ArmContrast]
    missing: list[str]
    refused: dict[str, str]


def benchmarks_of(study: StudyResult) -> Benchmarks | None:
    """None where no run was evaluated. InputError: an evaluation is damaged, or is not of the run
    in whose folder it lies.
    """
    evaluations: Evaluations = {}
    for arm in study.arms:
        for seed, result in study.scores(arm).items():
            if (study.evaluation_folder(arm, seed) / EVALUATION).is_file():
                evaluations.setdefault(arm, {})[seed] = _evaluation(study, arm, seed, result)
    if not evaluations:
        return None
    missing = [arm for arm in study.arms if len(evaluations.get(arm, {})) < len(study.scores(arm))]
    contrasts, refused = [], dict[str, str]()
    for arm in evaluations:
        if arm != study.baseline and study.baseline in evaluations:
            try:
                contrasts.append(_contrast(study, evaluations, arm))
            except InputError as error:
                refused[arm] = str(error)
    first = next(iter(next(iter(evaluations.values())).values()))
    return Benchmarks(
        _results(evaluations), audit_grid(first.as_json()), contrasts, missing, refused
    )


def _evaluation(study: StudyResult, arm: str, seed: int, result: ResultRecord) -> EvaluationRecord:
    """The evaluation of a run. InputError: the run that it names is another."""
    folder = study.evaluation_folder(arm, seed)
    record = read_evaluation(folder)
    named = record.identity.run
    if named is not None:
        here = (arm, seed, result.start_sha256, result.windows_sha256)
        if (named.arm, named.seed, named.start_sha256, named.windows_sha256) != here:
            raise InputError(
                f"{folder}: an evaluation of arm {named.arm}, seed {named.seed}, and not of the run"
                f" in {folder.parent}; take it away, and repeat `tokencodes compare`"
            )
    return record


def _contrast(study: StudyResult, evaluations: Evaluations, arm: str) -> ArmContrast:
    """An arm against the baseline, over the seeds of which both runs have a score. InputError: they
    cannot be contrasted.
    """
    seeds = study.scores(study.baseline).keys() & study.scores(arm).keys()

    def opened(side: str) -> list[Evaluation]:
        return [
            open_evaluation(study.evaluation_folder(side, seed))
            for seed in evaluations[side]
            if seed in seeds
        ]

    pairs = paired(opened(study.baseline), opened(arm))
    if not pairs:
        raise InputError(f"no seed of {arm} and of {study.baseline} is both finished and evaluated")
    contrast = compared(pairs, same_recipe=study.same_recipe(study.baseline, arm))
    note = pairing_note(contrast) if len(pairs) > 1 else ""
    return ArmContrast(grid_of(contrast), forest(contrast), sentences(contrast), note)


def _mean(metric: str, values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _cell(metric, sum(known) / len(known) if len(known) == len(values) else None)


def _cell(metric: str, value: float | None) -> str:
    """Perplexities run into thousands, and have no digits then."""
    if value is None:
        return OVERFLOW
    return (
        f"{value:,.0f}"
        if metric.endswith("perplexity") and value >= 1000
        else scaled(metric, value)
    )


def _results(evaluations: Evaluations) -> Grid:
    """A column an arm: the mean over its seeds, and the single values where there are several."""
    every = [record.results for records in evaluations.values() for record in records.values()]
    columns = dict.fromkeys(
        (name, metric)
        for results in every
        for name, result in results.items()
        for metric in result.given
    )
    rows = []
    for name, metric in columns:
        if metric in LEFT_OUT:
            continue
        cells = []
        for records in evaluations.values():
            results = [
                record.results[name] for record in records.values() if name in record.results
            ]
            values = [result.given[metric] for result in results if metric in result.given]
            mean = _mean(metric, values) if values else "-"
            each = (
                f" ({', '.join(_cell(metric, value) for value in values)})"
                if len(values) > 1
                else ""
            )
            cells.append(mean + each)
        sizes = sorted({results[name].documents for results in every if name in results})
        rows.append([title_of(name), metric, " or ".join(f"{size:,}" for size in sizes), *cells])
    note = (
        "Means over seeds, each seed in brackets; accuracies in percent. Chance is 1 in the number"
        " of choices: 25 % with four."
    )
    return Grid("Benchmarks", ["benchmark", "metric", "documents", *evaluations], rows, 2, note)
