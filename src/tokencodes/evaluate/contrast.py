"""Two evaluations against each other, document by document, and in words no more than that design allows.

One evaluation a side: documents are drawn, so a difference is of *these checkpoints*. Several a side, paired by run seed: seeds
are drawn, so a difference is of *these interfaces, over n seeds*, under one recipe, text and code seed. Both refuse evaluations
that did not ask the same requests.
"""

import math
from collections.abc import Collection, Sequence
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
from tokencodes.evaluate.suites import BENCHMARKS
from tokencodes.evaluate.verdicts import verdict
from tokencodes.files import read_json

MARGIN, MARGIN_BITS = 0.01, 0.005  # declared margins of equivalence: accuracy, bits per byte


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
    """One metric of one benchmark, other - base: over documents, or over seeds (`differences`, one each).

    endpoint: whether it was declared before. equivalence: p of the difference's not being less than the margin. Both p values
    are adjusted: by Holm among the endpoints, by Benjamini and Hochberg among the rest. detectable: see `paired.Difference`,
    among as many tests.
    """

    benchmark: str
    metric: str
    endpoint: bool
    base: float
    other: float
    difference: Difference
    differences: tuple[float, ...]
    mcnemar: McNemar | None
    margin: float
    equivalence: float
    adjusted: float = math.nan
    detectable: float = math.nan


def open_evaluation(folder: Path) -> Evaluation:
    """InputError if it is not done."""
    if not (folder / "evaluation.json").is_file():
        raise InputError(f"{folder}: no finished evaluation; `tokencodes evaluate` writes one")
    return Evaluation(folder, read_json(folder / "evaluation.json"), list(read_records(folder / "documents.jsonl.gz")))


def require_same(base: Evaluation, other: Evaluation) -> None:
    """InputError unless both asked the same requests, each as often, in the same dtype, of two models."""
    if base.told["requests_sha256"] != other.told["requests_sha256"]:
        asked = [multiset(read_records(one.folder / "requests.jsonl.gz")) for one in (base, other)]
        raise InputError(
            f"{base.folder} and {other.folder} did not ask the same: {difference(*asked)}; evaluate both with the same suite, "
            "data, tokenizer, context, prefix and documents"
        )
    mine, theirs = base.told["identity"], other.told["identity"]
    if mine["dtype"] != theirs["dtype"]:
        raise InputError(
            f"{base.folder} was computed in {mine['dtype']}, {other.folder} in {theirs['dtype']}: rounding would pass for a "
            "difference; evaluate both in the same --dtype"
        )
    if mine["weights_sha256"] == theirs["weights_sha256"]:
        raise InputError(f"{base.folder} and {other.folder} are evaluations of the same weights; name two models")


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
        some = [[one for one in side.documents if one["task"].partition("/")[0] == benchmark] for side in (base, other)]
        if [(one["task"], one["document"]) for one in some[0]] != [(one["task"], one["document"]) for one in some[1]]:
            raise InputError(
                f"{other.folder}/documents.jsonl.gz: its documents of {benchmark} are not {base.folder}'s, in order"
            )
        clusters = [f"{one['cluster']}" for one in some[0]]
        for metric, before in mine.items():
            after = theirs[metric]
            if metric == "bits_per_byte":
                size = np.array([float(one["bytes"]) for one in some[0]])
                told = ratio_difference(after - before, size, clusters)
                means = (float(before.sum() / size.sum()), float(after.sum() / size.sum()))
            else:
                told = mean_difference(after - before, clusters)
                means = (float(before.mean()), float(after.mean()))
            if told is not None:
                pair = mcnemar(before > 0, after > 0) if metric.startswith("acc") else None
                found.append(_contrast(benchmark, metric, means, told, (), pair, (margin, margin_bits)))
    return adjusted(found)


def _contrast(
    benchmark: str,
    metric: str,
    means: tuple[float, float],
    told: Difference,
    each: tuple[float, ...],
    pair: McNemar | None,
    margins: tuple[float, float],
) -> Contrast:
    endpoint = benchmark in BENCHMARKS and BENCHMARKS[benchmark].endpoint == metric
    margin = margins[metric == "bits_per_byte"]
    equivalence = math.nan if metric == "nats" else told.equivalence_p(margin)
    return Contrast(benchmark, metric, endpoint, *means, told, each, pair, margin, equivalence)


def adjusted(found: Sequence[Contrast]) -> list[Contrast]:
    """The same with adjusted p values and what could have been found among so many tests; endpoints first."""
    done = []
    for family, adjust in (
        ([one for one in found if one.endpoint], holm),
        ([one for one in found if not one.endpoint], benjamini_hochberg),
    ):
        p = adjust([one.difference.p for one in family])
        told = [one.equivalence for one in family if not math.isnan(one.equivalence)]
        equivalences = iter(adjust(told))
        for one, value in zip(family, p, strict=True):
            equal = one.equivalence if math.isnan(one.equivalence) else next(equivalences)
            detectable = one.difference.detectable(len(family))
            done.append(replace(one, adjusted=value, equivalence=equal, detectable=detectable))
    return done


def over_seeds(
    pairs: Sequence[tuple[Evaluation, Evaluation]], margin: float = MARGIN, margin_bits: float = MARGIN_BITS
) -> list[Contrast]:
    """Evaluations paired by seed, base first: t statistics of the seeds' differences. InputError for fewer than two pairs,
    other requests, or pairs that are no seeds of two interfaces."""
    if len(pairs) < 2:
        raise InputError("one seed a side shows checkpoints, not interfaces; give two evaluations, or folders of several seeds")
    for side in zip(*pairs, strict=True):
        _require_seeds(side)
    found: dict[tuple[str, str], list[Contrast]] = {}
    for base, other in pairs:
        require_same(pairs[0][0], other)
        for one in contrast(base, other):
            found.setdefault((one.benchmark, one.metric), []).append(one)
    told = []
    for (benchmark, metric), some in found.items():
        each = tuple(one.difference.estimate for one in some)
        means = (float(np.mean([one.base for one in some])), float(np.mean([one.other for one in some])))
        spread = mean_difference(np.array(each), [str(number) for number in range(len(each))])
        if spread is not None:
            told.append(_contrast(benchmark, metric, means, spread, each, None, (margin, margin_bits)))
    return adjusted(told)


def _require_seeds(side: Sequence[Evaluation]) -> None:
    """InputError where evaluations cannot be of one interface's run seeds."""
    first = side[0].told["identity"]
    seen: dict[str, Path] = {}
    for one in side:
        told = one.told["identity"]
        if told["weights_sha256"] in seen:
            raise InputError(f"{one.folder}: the same weights as {seen[told['weights_sha256']]}, so no seed of its own")
        if told["interface"] != first["interface"] or told["update"] != first["update"]:
            raise InputError(
                f"{one.folder}: interface {told['interface']}, update {told['update']}; {side[0].folder}: "
                f"{first['interface']}, {first['update']}. A side has run seeds of one interface, "
                "not checkpoints of a run"
            )
        seen[told["weights_sha256"]] = one.folder


def sides(base: Path, other: Path, only: Collection[str] | None = None) -> list[tuple[Evaluation, Evaluation]]:
    """Two evaluations, or two folders whose subfolders, one a seed, have the same names and hold one each (SEED/ itself, or
    SEED/evaluation/, as a study has it). only: the names that count; by default all."""
    if (base / "evaluation.json").is_file() or (other / "evaluation.json").is_file():
        return [(open_evaluation(base), open_evaluation(other))]
    found = []
    for side in (base, other):
        places = {path.relative_to(side).parts[0]: path.parent for path in _evaluations_in(side)}
        found.append({name: place for name, place in places.items() if only is None or name in only})
    if not found[0].keys() & found[1].keys():
        raise InputError(f"{base}, {other}: neither evaluations, nor folders of evaluations with names in common")
    odd = sorted(found[0].keys() ^ found[1].keys())
    if odd:
        raise InputError(f"{', '.join(odd)}: evaluated on one side only; evaluate it on the other, or take it away")
    return [(open_evaluation(found[0][name]), open_evaluation(found[1][name])) for name in sorted(found[0])]


def _evaluations_in(side: Path) -> list[Path]:
    return [*side.glob("*/evaluation.json"), *side.glob("*/evaluation/evaluation.json")]


def compared(
    pairs: Sequence[tuple[Evaluation, Evaluation]],
    margin: float = MARGIN,
    margin_bits: float = MARGIN_BITS,
    same_recipe: bool = True,
) -> dict[str, Any]:
    """What is known of base and other, for results on disk and pages: level of the claims, names, one entry a metric.
    same_recipe: whether nothing but the interface differs, as far as is known."""
    base, other = pairs[0]
    names = _names(base, other, len(pairs) > 1)
    several = len(pairs) > 1
    what = f"interfaces, over {len(pairs)} run seeds" if several else "checkpoints"
    what += "" if same_recipe else ", of which recipes differ too"
    found = over_seeds(pairs, margin, margin_bits) if several else contrast(base, other, margin, margin_bits)
    return {
        "base": names[0],
        "other": names[1],
        "title": f"{names[1]} - {names[0]}",
        "pairs": len(pairs),
        "requests_sha256": base.told["requests_sha256"],
        "context": base.told["identity"]["context"],
        "level": f"these {what}",
        "models": [one.told["identity"]["model"] for one in pairs[0]],
        "dtype": base.told["identity"]["dtype"],
        "margins": {"accuracy": margin, "bits_per_byte": margin_bits},
        "not_told": _not_told(base, found),
        "held_out": all(one.told["identity"].get("embedded_held_out") is True for pair in pairs for one in pair),
        "contrasts": [_finite({**asdict(one), "says": verdict(one, names[0], names[1], what)}) for one in found],
    }


def _not_told(base: Evaluation, found: Sequence[Contrast]) -> list[str]:
    """Metrics of which one cluster of documents, or one seed, gives no error. InputError where that is all of them."""
    told = {(one.benchmark, one.metric) for one in found}
    asked = [(name, metric) for name in base.told["identity"]["benchmarks"] for metric in metrics_of(base.documents, name)]
    if asked and not told:
        raise InputError(f"{base.folder}: one cluster of documents in each benchmark, so no error can be told; evaluate more")
    return [f"{name}, {metric}" for name, metric in asked if (name, metric) not in told]


def _names(base: Evaluation, other: Evaluation, many: bool) -> list[str]:
    """What stands for the sides: the folder of its seeds, or the evaluation's own, with as much of its path as tells them
    apart."""
    places = []
    for one in (base, other):
        folder = one.folder.resolve()
        place = folder.parent if folder.name == "evaluation" else folder
        places.append((place.parent if many else place).parts)
    size = 1 if many else 2
    while size < max(map(len, places)) and places[0][-size:] == places[1][-size:]:
        size += 1
    return ["/".join(parts[-size:]) for parts in places]


def _finite(told: Any) -> Any:
    if isinstance(told, dict):
        return {key: _finite(value) for key, value in told.items()}
    return None if isinstance(told, float) and not math.isfinite(told) else told
