"""Two evaluations against each other, document by document, and in words no more than that design allows.

One evaluation a side: documents are drawn, so a difference is of *these checkpoints*. Several a side, paired by run seed: seeds
are drawn, so a difference is of *these interfaces, over n seeds*, under one recipe, text and code seed. Both refuse evaluations
that did not ask the same requests.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokencodes.errors import InputError
from tokencodes.evaluate.audit import difference, multiset, read_records
from tokencodes.evaluate.paired import (
    Difference,
    McNemar,
    benjamini_hochberg,
    holm,
    mcnemar,
    mean_difference,
    ratio_difference,
)
from tokencodes.evaluate.statistics import t_interval
from tokencodes.evaluate.suites import BENCHMARKS
from tokencodes.files import read_json

ALPHA = 0.05
MARGIN, MARGIN_BITS = 0.01, 0.005  # declared margins of equivalence: accuracy, bits per byte
HIGHER_IS_BETTER = {"acc": True, "acc_norm": True, "nats": False, "bits_per_byte": False}


@dataclass(eq=False)
class Evaluation:
    """A folder that `evaluate` wrote."""

    folder: Path
    told: dict[str, Any]
    documents: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """The model's."""
        return str(self.told["identity"]["model"])


@dataclass(frozen=True)
class Contrast:
    """One metric of one benchmark, other - base. endpoint: whether it was declared before. adjusted: its p by Holm among the
    endpoints, by Benjamini and Hochberg among the rest. equivalence: p of the difference's being less than the margin."""

    benchmark: str
    metric: str
    endpoint: bool
    base: float
    other: float
    difference: Difference
    mcnemar: McNemar | None
    margin: float
    equivalence: float
    adjusted: float = math.nan


def open_evaluation(folder: Path) -> Evaluation:
    """InputError if it is not done."""
    if not (folder / "evaluation.json").is_file():
        raise InputError(f"{folder}: no finished evaluation; `tokencodes evaluate` writes one")
    return Evaluation(folder, read_json(folder / "evaluation.json"), list(read_records(folder / "documents.jsonl.gz")))


def require_same(base: Evaluation, other: Evaluation) -> None:
    """InputError unless both asked the same requests, each as often."""
    if base.told["requests_sha256"] == other.told["requests_sha256"]:
        return
    asked = [multiset(read_records(one.folder / "requests.jsonl.gz")) for one in (base, other)]
    raise InputError(
        f"{base.folder} and {other.folder} did not ask the same: {difference(*asked)}; evaluate both with the same suite, "
        "data, tokenizer, context, prefix and documents"
    )


def metrics_of(documents: Sequence[dict[str, Any]], benchmark: str) -> dict[str, NDArray[np.float64]]:
    """Values of a benchmark's documents by metric; of bits per byte, bits."""
    some = [one for one in documents if one["task"].partition("/")[0] == benchmark]
    if "bytes" in some[0]:
        return {"bits_per_byte": np.array([one["nats"] / math.log(2) for one in some])}
    found = {name: np.array([float(one["metrics"][name]) for one in some]) for name in some[0]["metrics"]}
    if "choices" not in some[0]:
        found["nats"] = np.array([one["nats"] for one in some])
    return found


def contrast(base: Evaluation, other: Evaluation, margin: float = MARGIN, margin_bits: float = MARGIN_BITS) -> list[Contrast]:
    """Every metric of every benchmark, on the same documents. InputError if they are not the same."""
    require_same(base, other)
    found = []
    for benchmark in base.told["identity"]["benchmarks"]:
        mine, theirs = metrics_of(base.documents, benchmark), metrics_of(other.documents, benchmark)
        some = [one for one in base.documents if one["task"].partition("/")[0] == benchmark]
        clusters = [f"{one['cluster']}" for one in some]
        for metric, before in mine.items():
            after, told, allowed = theirs[metric], None, margin
            if metric == "bits_per_byte":
                size = np.array([float(one["bytes"]) for one in some])
                told, allowed = ratio_difference(after - before, size, clusters), margin_bits
                means = (float(before.sum() / size.sum()), float(after.sum() / size.sum()))
            else:
                told = mean_difference(after - before, clusters)
                means = (float(before.mean()), float(after.mean()))
            if told is None:
                continue
            pair = mcnemar(before > 0, after > 0) if metric.startswith("acc") else None
            endpoint = benchmark in BENCHMARKS and BENCHMARKS[benchmark].endpoint == metric
            equivalence = math.nan if metric == "nats" else told.equivalence_p(allowed)
            found.append(Contrast(benchmark, metric, endpoint, *means, told, pair, allowed, equivalence))
    return adjusted(found)


def adjusted(found: Sequence[Contrast]) -> list[Contrast]:
    """The same with adjusted p values, endpoints first."""
    endpoints, rest = [one for one in found if one.endpoint], [one for one in found if not one.endpoint]
    p = [*holm([one.difference.p for one in endpoints]), *benjamini_hochberg([one.difference.p for one in rest])]
    return [replace(one, adjusted=value) for one, value in zip([*endpoints, *rest], p, strict=True)]


def verdict(one: Contrast, base: str, other: str) -> str:
    """What one contrast of two checkpoints says, in words."""
    d = one.difference
    better = (d.estimate > 0) == HIGHER_IS_BETTER[one.metric]
    unit = 100 if one.metric.startswith("acc") else 1
    told = f"{d.estimate * unit:+.2f} points" if unit == 100 else f"{d.estimate:+.4f}"
    if d.error == 0 and d.estimate == 0:
        return "the same on every one of these documents"
    if one.adjusted < ALPHA:
        return f"these checkpoints differ: {other if better else base} is better ({told})"
    if one.equivalence < ALPHA:
        return f"these checkpoints differ by less than the margin of {one.margin * unit:g} ({told})"
    return f"these documents do not tell the two checkpoints apart ({told}; {d.detectable * unit:.2f} would be found with 80 %)"


@dataclass(frozen=True)
class OverSeeds:
    """One metric of one benchmark over run seeds: a difference each, their mean, its t interval."""

    benchmark: str
    metric: str
    endpoint: bool
    differences: tuple[float, ...]
    mean: float
    low: float
    high: float

    def sentence(self, base: str, other: str) -> str:
        """What so many seeds allow to be said."""
        count, told = len(self.differences), f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f})"
        if self.low > 0 or self.high < 0:
            better = (self.mean > 0) == HIGHER_IS_BETTER[self.metric]
            return f"these interfaces, over {count} seeds: {other if better else base} is better, {told}"
        return f"{count} seeds do not tell these interfaces apart, {told}"


def over_seeds(pairs: Sequence[tuple[Evaluation, Evaluation]]) -> list[OverSeeds]:
    """Evaluations paired by seed, base first. InputError for fewer than two pairs, or other requests."""
    if len(pairs) < 2:
        raise InputError("one seed a side shows checkpoints, not interfaces; give two evaluations, or folders of several seeds")
    found: dict[tuple[str, str], list[float]] = {}
    for base, other in pairs:
        require_same(base, other)
        require_same(pairs[0][0], base)
        for one in contrast(base, other):
            found.setdefault((one.benchmark, one.metric), []).append(one.difference.estimate)
    told = []
    for (benchmark, metric), values in found.items():
        low, high = t_interval(np.array(values)) or (math.nan, math.nan)
        endpoint = benchmark in BENCHMARKS and BENCHMARKS[benchmark].endpoint == metric
        told.append(OverSeeds(benchmark, metric, endpoint, tuple(values), float(np.mean(values)), low, high))
    return told


def sides(base: Path, other: Path) -> list[tuple[Evaluation, Evaluation]]:
    """Two evaluations, or two folders whose subfolders, one a seed, have the same names and hold one each (SEED/ itself, or
    SEED/evaluation/, as a study has it)."""
    if (base / "evaluation.json").is_file() or (other / "evaluation.json").is_file():
        return [(open_evaluation(base), open_evaluation(other))]
    found = [{path.relative_to(side).parts[0]: path.parent for path in _evaluations_in(side)} for side in (base, other)]
    if not found[0].keys() & found[1].keys():
        raise InputError(f"{base}, {other}: neither evaluations, nor folders of evaluations with names in common")
    only = sorted(found[0].keys() ^ found[1].keys())
    if only:
        raise InputError(f"{', '.join(only)}: evaluated on one side only; evaluate it on the other, or take it away")
    return [(open_evaluation(found[0][name]), open_evaluation(found[1][name])) for name in sorted(found[0])]


def _evaluations_in(side: Path) -> list[Path]:
    return [*side.glob("*/evaluation.json"), *side.glob("*/evaluation/evaluation.json")]


def compared(pairs: Sequence[tuple[Evaluation, Evaluation]], margin: float, margin_bits: float) -> dict[str, Any]:
    """What is known of base and other, for results on disk and pages: level of the claims, names, one entry a metric."""
    base, other = pairs[0]
    names = [_name(one, len(pairs) > 1) for one in (base, other)]
    told: dict[str, Any] = {"base": names[0], "other": names[1], "title": f"{names[1]} - {names[0]}", "pairs": len(pairs)}
    told |= {"requests_sha256": base.told["requests_sha256"], "context": base.told["identity"]["context"]}
    if len(pairs) > 1:
        found = over_seeds(pairs)
        entries = [{**asdict(one), "says": one.sentence(*names)} for one in found]
        return {
            **told,
            "level": f"these interfaces, over {len(pairs)} run seeds",
            "contrasts": [_finite(one) for one in entries],
        }
    singles = contrast(base, other, margin, margin_bits)
    entries = [{**asdict(one), "says": verdict(one, *names)} for one in singles]
    return {**told, "level": "these checkpoints", "contrasts": [_finite(one) for one in entries]}


def _name(one: Evaluation, many: bool) -> str:
    """What stands for a side: the folder of its seeds, or the evaluation's own."""
    folder = one.folder.resolve()
    place = folder.parent if folder.name == "evaluation" else folder
    return place.parent.name if many else f"{place.parent.name}/{place.name}"


def _finite(told: Any) -> Any:
    if isinstance(told, dict):
        return {key: _finite(value) for key, value in told.items()}
    return None if isinstance(told, float) and not math.isfinite(told) else told
