"""Every number and name of a contrast, over documents that a test chose."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.made_evaluations import choices, completion, page, request, write_made, write_run
from tokencodes.cli import run as command
from tokencodes.errors import InputError
from tokencodes.evaluate.contrast import (
    Contrast,
    adjusted,
    compared,
    contrast,
    metrics_of,
    over_seeds,
    require_same,
)
from tokencodes.evaluate.paired import Difference, holm, mcnemar, mean_difference, ratio_difference
from tokencodes.evaluate.pairs import open_evaluation, sides
from tokencodes.files import read_json

GOALS = ["a", "a", "b", "b", "c", "c", "d", "d", "e", "e"]  # clusters of ten documents


def piqa(right, norm=()):
    return [choices("piqa", n, n in right, GOALS[n], acc_norm=float(n in norm)) for n in range(10)]


def pages(nats):
    return [page("wikitext", n, value, 50 + 10 * n) for n, value in enumerate(nats)]


def lambada(right, nats):
    return [completion("lambada", n, n in right, value) for n, value in enumerate(nats)]


BASE = [*piqa((0, 1, 2), (0, 1)), *pages([60.0, 70.0, 81.0]), *lambada((1,), [3.0, 2.0, 4.0, 2.5])]
OTHER = [
    *piqa((0, 3, 4, 5, 6, 8), (4, 5, 6)),
    *pages([50.0, 59.5, 70.0]),
    *lambada((1, 2, 3), [2.0, 2.5, 3.0, 2.0]),
]


@pytest.fixture
def pair(tmp_path):
    return tuple(
        open_evaluation(write_made(tmp_path / name, documents))
        for name, documents in (("base", BASE), ("other", OTHER))
    )


def by_metric(contrasts):
    return {(result.benchmark, result.metric): result for result in contrasts}


def test_metrics_are_the_values_of_the_documents(pair):
    results = metrics_of(pair[0], "piqa")
    assert (
        results["acc"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0] and results["acc_norm"].sum() == 2
    )
    assert metrics_of(pair[0], "wikitext")["bits_per_byte"] == pytest.approx(
        np.array([60.0, 70.0, 81.0]) / math.log(2)
    )
    assert metrics_of(pair[0], "lambada")["nats"].tolist() == [3.0, 2.0, 4.0, 2.5]


def test_a_contrast_is_other_minus_base_over_the_same_clusters(pair):
    results = by_metric(contrast(*pair))
    assert [*results] == [
        ("piqa", "acc"),
        ("wikitext", "bits_per_byte"),
        ("lambada", "acc"),
        ("piqa", "acc_norm"),
        ("lambada", "nats"),
    ]  # endpoints first
    assert [result.endpoint for result in results.values()] == [True, True, True, False, False]
    own = [str(n) for n in range(4)]
    for key, values, clusters in (
        (("piqa", "acc"), [0, -1, -1, 1, 1, 1, 1, 0, 1, 0], GOALS),
        (("piqa", "acc_norm"), [-1, -1, 0, 0, 1, 1, 1, 0, 0, 0], GOALS),
        (("lambada", "acc"), [0, 0, 1, 1], own),
        (("lambada", "nats"), [-1.0, 0.5, -1.0, -0.5], own),
    ):
        assert results[key].difference == mean_difference(np.array(values, dtype=float), clusters)
    bits = (np.array([50.0, 59.5, 70.0]) / math.log(2)) - (
        np.array([60.0, 70.0, 81.0]) / math.log(2)
    )
    assert results["wikitext", "bits_per_byte"].difference == ratio_difference(
        bits, np.array([50.0, 60.0, 70.0]), own[:3]
    )


def test_a_contrast_has_the_means_of_both_sides(pair):
    results = by_metric(contrast(*pair))
    assert (results["piqa", "acc"].base, results["piqa", "acc"].other) == (0.3, 0.6)
    assert (results["piqa", "acc_norm"].base, results["piqa", "acc_norm"].other) == (
        0.2,
        pytest.approx(0.3),
    )
    assert (results["lambada", "nats"].base, results["lambada", "nats"].other) == (2.875, 2.375)
    bits = results["wikitext", "bits_per_byte"]
    assert (bits.base, bits.other) == pytest.approx(
        (211 / 180 / math.log(2), 179.5 / 180 / math.log(2))
    )


def test_accuracies_alone_have_mcnemars_test(pair):
    results = by_metric(contrast(*pair))
    right = [np.isin(np.arange(10), selected) for selected in ((0, 1, 2), (0, 3, 4, 5, 6, 8))]
    assert (
        results["piqa", "acc"].mcnemar == mcnemar(*right)
        and results["piqa", "acc"].mcnemar.only_other == 5
    )
    assert (
        results["piqa", "acc_norm"].mcnemar is not None
        and results["lambada", "acc"].mcnemar is not None
    )
    assert (
        results["lambada", "nats"].mcnemar is None is results["wikitext", "bits_per_byte"].mcnemar
    )
    assert all(result.differences == () for result in results.values())


@pytest.mark.parametrize(("margin", "margin_bits"), [(0.1, 0.3), (0.2, 0.05)])
def test_accuracies_have_one_margin_and_bits_per_byte_another(pair, margin, margin_bits):
    results = by_metric(contrast(*pair, margin, margin_bits))
    margins = {
        ("piqa", "acc"): margin,
        ("wikitext", "bits_per_byte"): margin_bits,
        ("lambada", "acc"): margin,
    }
    assert {key: results[key].margin for key in margins} == margins
    raw = [results[key].difference.equivalence_p(value) for key, value in margins.items()]
    assert [results[key].equivalence for key in margins] == pytest.approx(holm(raw), rel=1e-12)
    assert results["piqa", "acc_norm"].equivalence == results[
        "piqa", "acc_norm"
    ].difference.equivalence_p(margin)
    assert math.isnan(results["lambada", "nats"].equivalence)


def test_margins_are_one_point_and_five_thousandths_of_a_bit_unless_declared_otherwise(pair):
    results = by_metric(contrast(*pair))
    assert (
        results["piqa", "acc"].margin == 0.01
        and results["wikitext", "bits_per_byte"].margin == 0.005
    )
    assert compared([pair])["margins"] == {"accuracy": 0.01, "bits_per_byte": 0.005}


def test_a_margin_in_bits_decides_over_equivalence_in_bits_per_byte(tmp_path, capsys):
    nats = [60.0 + n for n in range(12)]
    write_made(tmp_path / "a", pages(nats))
    write_made(
        tmp_path / "b", pages([value + 0.1 + 0.01 * (n % 3) for n, value in enumerate(nats)])
    )
    for documents, equal in (
        (["--margin-bits", "0.01"], True),
        (["--margin-bits", "0.0005"], False),
        (["--margin", "0.4"], True),
    ):
        assert (
            command(["contrast", str(tmp_path / "b"), str(tmp_path / "a"), *documents, "--json"])
            == 0
        )
        said = capsys.readouterr().out
        assert ('"equivalence": 1.0' in said or '"equivalence": 0.9' in said) is not equal


def made(p, endpoint=True, equivalence=0.5, error=0.1, clusters=9, metric="acc"):
    difference = Difference(0.1, error, 0.0, 0.2, p, 20, clusters, False)
    return Contrast("piqa", metric, endpoint, 0.4, 0.5, difference, (), None, 0.01, equivalence)


def test_endpoints_are_adjusted_by_holm_and_the_rest_by_benjamini_and_hochberg():
    p = (0.01, 0.04, 0.03)
    results = adjusted([made(value, endpoint, value) for endpoint in (False, True) for value in p])
    assert [result.endpoint for result in results] == [True, True, True, False, False, False]
    assert [result.adjusted for result in results[:3]] == pytest.approx([0.03, 0.06, 0.06])
    assert [result.adjusted for result in results[3:]] == pytest.approx([0.03, 0.04, 0.04])
    assert [result.equivalence for result in results[:3]] == pytest.approx([0.03, 0.06, 0.06])
    assert [result.equivalence for result in results[3:]] == pytest.approx([0.03, 0.04, 0.04])


def test_a_metric_without_a_margin_takes_no_part_in_the_adjustment_of_equivalence():
    results = adjusted(
        [
            made(0.01, equivalence=0.01),
            made(0.2, equivalence=math.nan, metric="nats"),
            made(0.5, equivalence=0.03),
        ]
    )
    assert [results[0].equivalence, results[2].equivalence] == pytest.approx(
        [0.02, 0.03]
    ) and math.isnan(results[1].equivalence)
    assert [result.adjusted for result in results] == pytest.approx([0.03, 0.4, 0.5])


def test_what_is_detectable_counts_the_tests_of_its_own_family():
    results = adjusted([made(0.5), made(0.5), made(0.5, endpoint=False)])
    two, result = (
        (stats.t.ppf(1 - 0.025 / tests, 8) + stats.t.ppf(0.8, 8)) * 0.1 for tests in (2, 1)
    )
    assert [each.detectable for each in results] == pytest.approx([two, two, result])
    assert adjusted([]) == []


@pytest.fixture
def seeds(tmp_path):
    """Three seeds. In `binary` one, two and three documents more are right than in `learned`."""
    for arm, more in (("learned", 0), ("binary", 1)):
        for seed in (1, 2, 3):
            right = range(2 + seed * more)
            documents = [*piqa(right, right), *pages([60.0 - more * seed * n for n in (1, 2, 3)])]
            write_run(tmp_path / arm / f"seed-{seed}", documents, arm, seed)
    return sides(tmp_path / "learned", tmp_path / "binary")


def test_over_seeds_the_differences_are_the_draws(seeds):
    results = by_metric(over_seeds(seeds))
    accuracy = results["piqa", "acc"]
    assert accuracy.differences == pytest.approx((0.1, 0.2, 0.3))
    assert (accuracy.base, accuracy.other) == pytest.approx((0.2, 0.4))
    expected = stats.ttest_1samp([0.1, 0.2, 0.3], 0.0)
    assert (
        accuracy.difference.p == pytest.approx(expected.pvalue)
        and accuracy.difference.documents == 3
    )
    interval = expected.confidence_interval(0.95)
    assert (accuracy.difference.low, accuracy.difference.high) == pytest.approx(
        (interval.low, interval.high)
    )
    assert (
        accuracy.mcnemar is None
        and accuracy.margin == 0.01
        and results["wikitext", "bits_per_byte"].margin == 0.005
    )
    assert [result.adjusted for result in results.values() if result.endpoint] == pytest.approx(
        holm([result.difference.p for result in results.values() if result.endpoint])
    )


@pytest.mark.parametrize(("margin", "margin_bits"), [(0.1, 0.3), (0.2, 0.05)])
def test_over_seeds_each_metric_has_its_own_margin(seeds, margin, margin_bits):
    results = by_metric(over_seeds(seeds, margin, margin_bits))
    assert results["piqa", "acc"].margin == margin == results["piqa", "acc_norm"].margin
    assert results["wikitext", "bits_per_byte"].margin == margin_bits
    documents = compared(seeds, margin, margin_bits)
    assert [result["margin"] for result in documents["contrasts"]] == [margin, margin_bits, margin]
    assert documents["margins"] == {"accuracy": margin, "bits_per_byte": margin_bits}


def test_one_seed_shows_no_interfaces(seeds):
    with pytest.raises(InputError, match="one seed a side shows checkpoints, not interfaces"):
        over_seeds(seeds[:1])
    assert len(over_seeds(seeds[:2])) == 3


def test_seeds_that_asked_other_requests_are_refused(seeds, tmp_path):
    documents = seeds[2][0].documents
    for arm in ("learned", "binary"):
        write_run(tmp_path / "other" / arm, documents, arm, 3)
        folder = tmp_path / "other" / arm
        record = read_json(folder / "evaluation.json")
        assert record["requests_sha256"] == seeds[0][0].record.requests_sha256
    third = []
    for arm in ("learned", "binary"):
        requests = [request(document, text="new ") for document in documents]
        run = seeds[2][arm == "binary"].identity.run.model_dump()
        folder = write_made(tmp_path / "new" / arm, documents, requests, run=run, interface=arm)
        third.append(open_evaluation(folder))
    with pytest.raises(InputError, match="did not ask the same"):
        over_seeds([*seeds[:2], tuple(third)])


def test_what_a_contrast_says_of_itself(pair, tmp_path):
    documents = compared([pair])
    assert (documents["base"], documents["other"]) == (
        f"{tmp_path.name}/base",
        f"{tmp_path.name}/other",
    )
    assert documents["title"] == f"{tmp_path.name}/other - {tmp_path.name}/base"
    assert (documents["pairs"], documents["paired_by"], documents["level"]) == (
        1,
        None,
        "these checkpoints",
    )
    assert documents["paired"] == [[str(tmp_path / "base"), str(tmp_path / "other")]]
    assert documents["models"] == [str(tmp_path / "base"), str(tmp_path / "other")]
    assert (
        documents["context_length"],
        documents["dtype"],
        documents["held_out"],
        documents["not_told"],
    ) == (
        96,
        "float32",
        False,
        [],
    )
    assert documents["requests_sha256"] == pair[0].record.requests_sha256
    nats = next(result for result in documents["contrasts"] if result["metric"] == "nats")
    assert (
        nats["equivalence"] is None
        and nats["difference"]["p"] > 0
        and "these documents do not tell" in nats["says"]
    )
    assert (
        f"{tmp_path.name}/other is better"
        in next(result for result in documents["contrasts"] if result["metric"] == "bits_per_byte")[
            "says"
        ]
    )


def test_sides_of_several_seeds_are_named_by_their_arms(seeds):
    documents = compared(seeds)
    assert (documents["base"], documents["other"], documents["pairs"]) == ("learned", "binary", 3)
    assert (
        documents["level"] == "these interfaces, over 3 run seeds"
        and documents["paired_by"] == "run seeds"
    )


def test_sides_of_one_name_are_told_apart_by_more_of_their_paths(tmp_path):
    for name, documents in (("x", BASE), ("y", OTHER)):
        write_made(tmp_path / name / "learned" / "seed-1" / "evaluation", documents)
    results = compared(
        sides(*(tmp_path / name / "learned" / "seed-1" / "evaluation" for name in "xy"))
    )
    assert (results["base"], results["other"]) == ("x/learned/seed-1", "y/learned/seed-1")


@pytest.mark.parametrize(
    ("base", "other", "both"),
    [(True, True, True), (True, False, False), (False, True, False), (None, True, False)],
)
def test_embedded_text_is_held_out_only_if_it_is_on_both_sides(tmp_path, base, other, both):
    for name, held_out, documents in (("a", base, BASE), ("b", other, OTHER)):
        write_made(tmp_path / name, documents, embedded_held_out=held_out)
    assert compared(sides(tmp_path / "a", tmp_path / "b"))["held_out"] is both


def test_metrics_without_an_error_are_named(tmp_path):
    result = [choices("winogrande", 0, True, "same"), choices("winogrande", 1, False, "same")]
    for name, documents in (("a", BASE), ("b", OTHER)):
        write_made(tmp_path / name, [*documents, *result])
        write_made(tmp_path / "alone" / name, result)
    results = compared(sides(tmp_path / "a", tmp_path / "b"))
    assert results["not_told"] == ["winogrande, acc"] and len(results["contrasts"]) == 5
    with pytest.raises(InputError, match=r"alone/a: one cluster of documents in each benchmark"):
        compared([tuple(open_evaluation(tmp_path / "alone" / name) for name in "ab")])


def test_over_seeds_equal_differences_are_left_without_a_claim(tmp_path):
    for arm, right in (("learned", (0, 1)), ("binary", (0, 1, 2))):
        for seed in (1, 2):
            write_run(tmp_path / arm / f"seed-{seed}", piqa(right), arm, seed)
    results = compared(sides(tmp_path / "learned", tmp_path / "binary"))
    assert (
        "so no error can be told" in results["contrasts"][0]["says"]
        and results["contrasts"][0]["detectable"] is None
    )


def test_what_is_not_the_same_is_not_contrasted(pair, tmp_path):
    require_same(*pair)
    with pytest.raises(
        InputError, match=r"base and .*base are evaluations of the same weights; name two models"
    ):
        require_same(pair[0], pair[0])
    half = open_evaluation(write_made(tmp_path / "half", OTHER, dtype="bfloat16"))
    with pytest.raises(
        InputError, match=r"base was computed in float32, .*half in bfloat16: rounding would"
    ):
        require_same(pair[0], half)
    fewer = open_evaluation(write_made(tmp_path / "fewer", OTHER[1:]))
    with pytest.raises(
        InputError,
        match=(
            r"did not ask the same: 1 only in the first \(piqa 1; such as piqa, document 0,"
            r" part 0\)"
        ),
    ):
        require_same(pair[0], fewer)


def test_a_contrast_of_no_benchmark_that_is_known_has_no_endpoint(tmp_path):
    for name, right in (("a", (0, 1)), ("b", (1, 2, 3))):
        write_made(tmp_path / name, [choices("strange", n, n in right) for n in range(6)])
    (results,) = contrast(*sides(tmp_path / "a", tmp_path / "b")[0])
    assert not results.endpoint and results.adjusted == results.difference.p
