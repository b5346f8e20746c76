"""The benchmarks of a study: every arm's results, and each arm against the baseline, as far as runs were evaluated."""

from dataclasses import dataclass
from typing import Any

from tokencodes.errors import InputError
from tokencodes.evaluate.audit import title_of
from tokencodes.evaluate.contrast import compared, sides
from tokencodes.files import read_json
from tokencodes.measured import OVERFLOW
from tokencodes.report.contrasts import forest, grid_of, scaled, sentences
from tokencodes.report.evaluations import audit_grid
from tokencodes.report.results import StudyResult
from tokencodes.report.tables import Grid

LEFT_OUT = ("documents", "lost_bytes", "byte_perplexity")


@dataclass(frozen=True)
class Benchmarks:
    """What a study's page shows of them. missing: arms of which not every run with a score was evaluated."""

    results: Grid
    audit: Grid
    contrasts: list[tuple[Grid, str, list[str]]]  # table, picture, sentences
    missing: list[str]


def benchmarks_of(study: StudyResult) -> Benchmarks | None:
    """None where no run was evaluated."""
    told: dict[str, dict[int, dict[str, Any]]] = {}
    for arm in study.arms:
        places = {seed: study.folder / arm / f"seed-{seed}" / "evaluation" / "evaluation.json" for seed in study.scores(arm)}
        found = {seed: read_json(place) for seed, place in places.items() if place.is_file()}
        if found:
            told[arm] = found
    if not told:
        return None
    missing = [arm for arm in study.arms if len(told.get(arm, {})) < len(study.scores(arm))]
    first = next(iter(next(iter(told.values())).values()))
    contrasts = []
    for arm in told:
        if arm != study.baseline and study.baseline in told:
            pair = _contrast(study, study.baseline, arm)
            if pair is not None:
                contrasts.append((grid_of(pair), forest(pair), sentences(pair)))
    return Benchmarks(_results(told), audit_grid(first), contrasts, missing)


def _contrast(study: StudyResult, base: str, other: str) -> dict[str, Any] | None:
    """None where the two sides were not evaluated alike; `tokencodes contrast` says in which way."""
    seeds = {f"seed-{seed}" for seed in study.scores(base).keys() & study.scores(other).keys()}
    try:
        pairs = sides(study.folder / base, study.folder / other, seeds)
        return compared(pairs, same_recipe=study.same_recipe(base, other))
    except InputError:
        return None


def _mean(metric: str, values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _cell(metric, sum(known) / len(known) if len(known) == len(values) else None)


def _cell(metric: str, value: float | None) -> str:
    """Perplexities run into thousands, and have no digits then."""
    if value is None:
        return OVERFLOW
    return f"{value:,.0f}" if metric.endswith("perplexity") and value >= 1000 else scaled(metric, value)


def _results(told: dict[str, dict[int, dict[str, Any]]]) -> Grid:
    """A column an arm: the mean over its seeds, and the single values where there are several."""
    first = next(iter(next(iter(told.values())).values()))["results"]
    rows = []
    for name, metrics in first.items():
        for metric in metrics:
            if metric in LEFT_OUT:
                continue
            cells = []
            for seeds in told.values():
                values = [one["results"][name][metric] for one in seeds.values() if name in one["results"]]
                mean = _mean(metric, values) if values else "-"
                each = f" ({', '.join(_cell(metric, value) for value in values)})" if len(values) > 1 else ""
                cells.append(mean + each)
            rows.append([title_of(name), metric, f"{metrics['documents']:,}", *cells])
    note = (
        "Means over seeds, each seed in brackets; accuracies in percent. Chance is 1 in the number of choices: 25 % with four."
    )
    return Grid("Benchmarks", ["benchmark", "metric", "documents", *told], rows, 2, note)
