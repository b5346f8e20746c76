"""Two evaluations against each other, document by document, and in words no more than that design
allows.

One evaluation a side: documents are drawn, so a difference is of *these checkpoints*. Several a
side, paired by run seed (see `pairs`): seeds are drawn, so a difference is of *these interfaces,
over n seeds*, under one recipe, text and code seed. Both refuse evaluations that did not ask the
same requests.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokencodes.errors import InputError
from tokencodes.evaluate.audit import difference, multiset, multiset_sha256
from tokencodes.evaluate.folder import REMEDY, REQUESTS, read_requests
from tokencodes.evaluate.paired import (
    Difference,
    McNemar,
    benjamini_hochberg,
    holm,
    mcnemar,
    mean_difference,
    ratio_difference,
)
from tokencodes.evaluate.pairs import Evaluation, Pair, pairing, require_matched
from tokencodes.evaluate.suites import BENCHMARKS
from tokencodes.evaluate.verdicts import verdict

MARGIN, MARGIN_BITS = 0.01, 0.005  # declared margins of equivalence: accuracy, bits per byte


@dataclass(frozen=True)
class Contrast:
    """One metric of one benchmark, other - base: over documents, or over seeds (`differences`, one
    each).

    endpoint: whether it was declared before. equivalence: p of the difference's not being less than
    the margin. Both p values are adjusted: by Holm among the endpoints, by Benjamini and Hochberg
    among the rest. detectable: see `paired.Difference`, among as many tests.
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


def require_same(base: Evaluation, other: Evaluation) -> None:
    """InputError unless both asked the same requests, each as often, in the same dtype, of two
    models.
    """
    if base.record.requests_sha256 != other.record.requests_sha256:
        multisets = [multiset(read_requests(side.folder)) for side in (base, other)]
        for side, requests in zip((base, other), multisets, strict=True):
            if multiset_sha256(requests) != side.record.requests_sha256:
                raise InputError(
                    f"{side.folder / REQUESTS}: not the requests that evaluation.json was made of;"
                    f" {REMEDY}"
                )
        raise InputError(
            f"{base.folder} and {other.folder} did not ask the same: {difference(*multisets)};"
            " evaluate both with the same suite, data, tokenizer, context, prefix and documents"
        )
    if base.identity.dtype != other.identity.dtype:
        raise InputError(
            f"{base.folder} was computed in {base.identity.dtype}, {other.folder} in"
            f" {other.identity.dtype}: rounding would pass for a difference; evaluate both in the"
            " same --dtype"
        )
    if base.identity.weights_sha256 == other.identity.weights_sha256:
        raise InputError(
            f"{base.folder} and {other.folder} are evaluations of the same weights; name two models"
        )


def metrics_of(evaluation: Evaluation, benchmark: str) -> dict[str, NDArray[np.float64]]:
    """Values of a benchmark's documents by metric; of bits per byte, bits."""
    values = [document.values() for document in evaluation.documents_of(benchmark)]
    return {name: np.array([each[name] for each in values]) for name in values[0]}


def contrast(
    base: Evaluation, other: Evaluation, margin: float = MARGIN, margin_bits: float = MARGIN_BITS
) -> list[Contrast]:
    """Every metric of every benchmark, on the same documents.
    InputError if they are not the same."""
    return adjusted(_differences(base, other, (margin, margin_bits)))


def _differences(
    base: Evaluation, other: Evaluation, margins: tuple[float, float]
) -> list[Contrast]:
    """The same before p values are adjusted."""
    require_same(base, other)
    contrasts = []
    for benchmark in base.identity.benchmarks:
        before_of, after_of = metrics_of(base, benchmark), metrics_of(other, benchmark)
        documents = [side.documents_of(benchmark) for side in (base, other)]
        numbers = [[(document.task, document.document) for document in side] for side in documents]
        if numbers[0] != numbers[1] or before_of.keys() != after_of.keys():
            raise InputError(
                f"{other.folder}/documents.jsonl.gz: its documents of {benchmark}, or their"
                f" metrics, are not those of {base.folder}; evaluate both with the same release"
            )
        clusters = [document.cluster for document in documents[0]]
        for metric, before in before_of.items():
            after = after_of[metric]
            if metric == "bits_per_byte":
                size = np.array([float(document.bytes or 0) for document in documents[0]])
                effect = ratio_difference(after - before, size, clusters)
                means = (float(before.sum() / size.sum()), float(after.sum() / size.sum()))
            else:
                effect = mean_difference(after - before, clusters)
                means = (float(before.mean()), float(after.mean()))
            if effect is not None:
                pair = mcnemar(before > 0, after > 0) if metric.startswith("acc") else None
                contrasts.append(_contrast(benchmark, metric, means, effect, (), pair, margins))
    return contrasts


def _contrast(
    benchmark: str,
    metric: str,
    means: tuple[float, float],
    effect: Difference,
    each: tuple[float, ...],
    pair: McNemar | None,
    margins: tuple[float, float],
) -> Contrast:
    endpoint = benchmark in BENCHMARKS and BENCHMARKS[benchmark].endpoint == metric
    margin = margins[metric == "bits_per_byte"]
    equivalence = math.nan if metric == "nats" else effect.equivalence_p(margin)
    return Contrast(benchmark, metric, endpoint, *means, effect, each, pair, margin, equivalence)


def adjusted(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """The same with adjusted p values and what could have been found among so many tests; endpoints
    first.
    """
    done = []
    for family, adjust in (
        ([result for result in contrasts if result.endpoint], holm),
        ([result for result in contrasts if not result.endpoint], benjamini_hochberg),
    ):
        p = adjust([result.difference.p for result in family])
        p_values = [result.equivalence for result in family if not math.isnan(result.equivalence)]
        equivalences = iter(adjust(p_values))
        for result, value in zip(family, p, strict=True):
            equal = result.equivalence if math.isnan(result.equivalence) else next(equivalences)
            detectable = result.difference.detectable(len(family))
            done.append(replace(result, adjusted=value, equivalence=equal, detectable=detectable))
    return done


def over_seeds(
    pairs: Sequence[Pair], margin: float = MARGIN, margin_bits: float = MARGIN_BITS
) -> list[Contrast]:
    """Evaluations paired by seed, base first: t statistics of the seeds' differences. InputError
    for fewer than two pairs, other requests, or pairs that are no matched seeds of two interfaces.
    """
    if len(pairs) < 2:
        raise InputError(
            "one seed a side shows checkpoints, not interfaces; give two evaluations, or folders of"
            " several seeds"
        )
    require_matched(pairs)
    by_metric: dict[tuple[str, str], list[Contrast]] = {}
    for base, other in pairs:
        require_same(pairs[0][0], other)
        for result in _differences(base, other, (margin, margin_bits)):
            by_metric.setdefault((result.benchmark, result.metric), []).append(result)
    contrasts = []
    for (benchmark, metric), results in by_metric.items():
        each = tuple(result.difference.estimate for result in results)
        means = (
            float(np.mean([result.base for result in results])),
            float(np.mean([result.other for result in results])),
        )
        spread = mean_difference(np.array(each), [str(number) for number in range(len(each))])
        if spread is not None:
            contrasts.append(
                _contrast(benchmark, metric, means, spread, each, None, (margin, margin_bits))
            )
    return adjusted(contrasts)


def compared(
    pairs: Sequence[Pair],
    margin: float = MARGIN,
    margin_bits: float = MARGIN_BITS,
    same_recipe: bool = True,
) -> dict[str, Any]:
    """What is known of base and other, for results on disk and pages: level of the claims, names,
    one entry a metric. same_recipe: False where the caller knows that the recipes differ; the runs'
    own records are compared in any case.
    """
    base, other = pairs[0]
    several = len(pairs) > 1
    names = _names(base, other, several)
    paired_by = pairing(pairs)
    what = f"interfaces, over {len(pairs)} run seeds" if several else "checkpoints"
    what += " by the names of their folders" if paired_by == "folder names" else ""
    what += "" if same_recipe and not _recipes_differ(pairs) else ", of which recipes differ too"
    contrasts = (
        over_seeds(pairs, margin, margin_bits)
        if several
        else contrast(base, other, margin, margin_bits)
    )
    return {
        "base": names[0],
        "other": names[1],
        "title": f"{names[1]} - {names[0]}",
        "pairs": len(pairs),
        "paired_by": paired_by,
        "paired": [[str(side.folder) for side in pair] for pair in pairs],
        "requests_sha256": base.record.requests_sha256,
        "context_length": base.identity.context_length,
        "level": f"these {what}",
        "models": [side.identity.model for side in pairs[0]],
        "dtype": base.identity.dtype,
        "margins": {"accuracy": margin, "bits_per_byte": margin_bits},
        "not_told": _metrics_without_error(base, contrasts),
        "held_out": all(side.identity.embedded_held_out is True for pair in pairs for side in pair),
        "contrasts": [
            _finite({**asdict(result), "says": verdict(result, names[0], names[1], what)})
            for result in contrasts
        ],
    }


def _recipes_differ(pairs: Sequence[Pair]) -> bool:
    """Whether the runs' own records show two recipes."""
    runs = [(base.identity.run, other.identity.run) for base, other in pairs]
    return any(
        base_run is not None and other_run is not None and base_run.recipe != other_run.recipe
        for base_run, other_run in runs
    )


def _metrics_without_error(base: Evaluation, contrasts: Sequence[Contrast]) -> list[str]:
    """Metrics of which one cluster of documents, or one seed, gives no error. InputError where that
    is all of them.
    """
    measured = {(result.benchmark, result.metric) for result in contrasts}
    metrics = [
        (name, metric) for name in base.identity.benchmarks for metric in metrics_of(base, name)
    ]
    if metrics and not measured:
        raise InputError(
            f"{base.folder}: one cluster of documents in each benchmark, so no error can be told;"
            " evaluate more"
        )
    return [f"{name}, {metric}" for name, metric in metrics if (name, metric) not in measured]


def _names(base: Evaluation, other: Evaluation, many: bool) -> list[str]:
    """What stands for the sides: the folder of its seeds, or the evaluation's own, with as much of
    its path as tells them apart.
    """
    places = []
    for evaluation in (base, other):
        folder = evaluation.folder.resolve()
        place = folder.parent if folder.name == "evaluation" else folder
        places.append((place.parent if many else place).parts)
    size = 1 if many else 2
    while size < max(map(len, places)) and places[0][-size:] == places[1][-size:]:
        size += 1
    return ["/".join(parts[-size:]) for parts in places]


def _finite(json_value: Any) -> Any:
    if isinstance(json_value, dict):
        return {key: _finite(value) for key, value in json_value.items()}
    return None if isinstance(json_value, float) and not math.isfinite(json_value) else json_value
