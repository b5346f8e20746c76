"""Every number of a paired difference, against scipy, statsmodels and sums done by hand."""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from tokencodes.evaluate import paired
from tokencodes.evaluate.paired import (
    Difference,
    benjamini_hochberg,
    holm,
    mcnemar,
    mean_difference,
    ratio_difference,
)

RANDOM = np.random.default_rng(8)
VALUES = RANDOM.normal(0.1, 1.0, 12)
SIZES = RANDOM.integers(5, 50, 12).astype(float)
# 6 clusters of 12 documents
CLUSTERS = ["a", "a", "b", "b", "b", "c", "d", "d", "e", "e", "e", "f"]


def clustered_fit(y, x, weights, groups):
    """Least squares through the origin with errors by cluster, and t of clusters - 1 degrees of
    freedom.
    """
    codes = np.unique(groups, return_inverse=True)[1]
    return sm.WLS(y, x, weights=weights).fit(
        cov_type="cluster", cov_kwds={"groups": codes}, use_t=True
    )


def is_the_fit(result, fit):
    assert result.estimate == pytest.approx(fit.params[0], rel=1e-12)
    assert result.error == pytest.approx(fit.bse[0], rel=1e-9)
    assert result.p == pytest.approx(fit.pvalues[0], rel=1e-9)
    assert (result.low, result.high) == pytest.approx(tuple(fit.conf_int(0.05)[0]), rel=1e-9)


def test_a_mean_over_clusters_is_the_cluster_robust_regression_on_a_constant():
    result = mean_difference(VALUES, CLUSTERS)
    is_the_fit(result, clustered_fit(VALUES, np.ones(12), np.ones(12), CLUSTERS))
    assert (result.documents, result.clusters, result.identical) == (12, 6, False)


def test_a_mean_over_documents_is_the_paired_t_test():
    result = mean_difference(VALUES, [str(number) for number in range(12)])
    expected = stats.ttest_1samp(VALUES, 0.0)
    interval = expected.confidence_interval(0.95)
    assert (result.p, result.low, result.high) == pytest.approx(
        (expected.pvalue, interval.low, interval.high), rel=1e-9
    )
    assert result.error == pytest.approx(VALUES.std(ddof=1) / math.sqrt(12), rel=1e-12)


def test_two_clusters_by_hand():
    result = mean_difference(np.array([1.0, 2.0, 4.0, 5.0]), ["a", "a", "b", "b"])
    # mean 3; sums of residuals -3 and 3; variance 2 / 1 * (9 + 9) / 16
    assert (result.estimate, result.error, result.clusters, result.documents) == (3.0, 1.5, 2, 4)
    assert result.p == pytest.approx(2 * stats.t.sf(2.0, 1)) and result.low == pytest.approx(
        3 - stats.t.ppf(0.975, 1) * 1.5
    )


def test_a_ratio_over_few_clusters_is_the_cluster_robust_weighted_regression():
    result = ratio_difference(VALUES, SIZES, CLUSTERS)
    is_the_fit(result, clustered_fit(VALUES / SIZES, np.ones(12), SIZES, CLUSTERS))
    assert (result.documents, result.clusters, result.identical) == (12, 6, False)


def of_pages(count):
    random = np.random.default_rng(count)
    size = random.lognormal(5, 0.5, count)
    return size * random.normal(0.02, 0.03, count), size, [str(number) for number in range(count)]


def test_a_ratio_over_30_clusters_has_the_bootstrap_interval_and_keeps_the_t_tests_p():
    over, size, clusters = of_pages(30)
    order = np.argsort(np.array(clusters))  # clusters are taken in the order of their names
    expected = stats.bootstrap(
        (over[order], size[order]),
        lambda a, b, axis=-1: a.sum(axis=axis) / b.sum(axis=axis),
        paired=True,
        n_resamples=9999,
        confidence_level=0.95,
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    result = ratio_difference(over, size, clusters)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    fit = clustered_fit(over / size, np.ones(30), size, clusters)
    assert result.p == pytest.approx(fit.pvalues[0], rel=1e-9) and result.error == pytest.approx(
        fit.bse[0], rel=1e-9
    )
    assert result.low != pytest.approx(fit.conf_int(0.05)[0][0], rel=1e-6)
    other = ratio_difference(over, size, clusters, seed=1)
    assert other.low != result.low and other.low == pytest.approx(result.low, rel=0.1)


def test_a_ratio_over_29_clusters_has_the_t_interval():
    over, size, clusters = of_pages(29)
    is_the_fit(
        ratio_difference(over, size, clusters),
        clustered_fit(over / size, np.ones(29), size, clusters),
    )


def test_documents_of_a_cluster_are_summed_before_pages_are_drawn():
    over, size, clusters = of_pages(30)
    halves = ratio_difference(
        np.repeat(over / 2, 2), np.repeat(size / 2, 2), np.repeat(clusters, 2).tolist()
    )
    whole = ratio_difference(over, size, clusters)
    assert (halves.low, halves.high, halves.p) == pytest.approx(
        (whole.low, whole.high, whole.p), rel=1e-9
    )
    assert (halves.documents, halves.clusters) == (60, 30)


def test_a_ratio_that_is_the_same_in_every_page_has_no_error():
    size = np.arange(1.0, 41.0)
    result = ratio_difference(0.5 * size, size, [str(number) for number in range(40)])
    assert (result.estimate, result.error, result.p, result.identical) == (
        0.5,
        0.0,
        1.0,
        False,
    ) and math.isnan(result.high)
    none = ratio_difference(np.zeros(40), size, [str(number) for number in range(40)])
    assert (none.estimate, none.identical) == (0.0, True)


@pytest.mark.parametrize(("spread", "vanishes"), [(0.6e-12, True), (1.5e-12, False)])
def test_an_error_that_is_rounding_is_none(spread, vanishes):
    # their standard error is `spread`
    result = mean_difference(np.array([1 - spread, 1 + spread]), ["a", "b"])
    assert (result.error == 0.0) is vanishes and math.isnan(result.low) is vanishes
    negative = mean_difference(np.array([spread - 1, -spread - 1]), ["a", "b"])
    assert (negative.error == 0.0) is vanishes


def test_fewer_than_two_clusters_tell_no_error():
    assert (
        mean_difference(VALUES, ["a"] * 12) is None
        and ratio_difference(VALUES, SIZES, ["a"] * 12) is None
    )
    assert mean_difference(VALUES, [*["a"] * 11, "b"]) is not None
    assert ratio_difference(VALUES, SIZES, [*["a"] * 11, "b"]) is not None


def difference(error=0.25, clusters=9, estimate=0.1):
    return Difference(estimate, error, 0.0, 0.0, 0.5, 20, clusters, False)


@pytest.mark.parametrize("tests", [1, 2, 10])
def test_what_is_detectable_is_the_sum_of_two_quantiles(tests):
    expected = 0.25 * (stats.t.ppf(1 - 0.05 / tests / 2, 8) + stats.t.ppf(0.8, 8))
    assert difference().detectable(tests) == pytest.approx(expected, rel=1e-12)
    if tests == 1:
        assert difference().detectable() == difference().detectable(1)


def test_equivalence_is_the_larger_of_two_one_sided_tests():
    other = RANDOM.normal(0.0, 0.3, 15)
    for shift in (-0.1, 0.05):
        base = other - RANDOM.normal(shift, 0.2, 15)
        result = mean_difference(other - base, [str(number) for number in range(15)])
        expected = ttost_paired(other, base, -0.2, 0.2)[0]
        assert result.equivalence_p(0.2) == pytest.approx(expected, rel=1e-9)


def test_without_an_error_nothing_is_detectable_and_nothing_equivalent():
    assert math.isnan(difference(error=0.0).detectable()) and math.isnan(
        difference(error=0.0).equivalence_p(0.1)
    )


def test_mcnemar_is_the_exact_test_of_the_two_by_two_table():
    base, other = RANDOM.random(40) < 0.4, RANDOM.random(40) < 0.7
    table = [[int((a & b).sum()) for b in (other, ~other)] for a in (base, ~base)]
    result = mcnemar(base, other)
    assert (result.only_base, result.only_other) == (
        table[0][1],
        table[1][0],
    ) and result.only_base != result.only_other
    assert result.p == pytest.approx(reference_mcnemar(table, exact=True).pvalue, rel=1e-12)
    assert (
        mcnemar(base, base).p == 1.0
        and mcnemar(np.array([True, False]), np.array([False, False])).p == 1.0
    )


@pytest.mark.parametrize("size", [1, 2, 7, 20])
def test_adjusted_p_values_are_those_of_statsmodels(size):
    for p in (RANDOM.random(size) ** 3, np.round(RANDOM.random(size), 1), np.ones(size)):
        assert holm(p.tolist()) == pytest.approx(
            multipletests(p, method="holm")[1].tolist(), rel=1e-12
        )
        assert benjamini_hochberg(p.tolist()) == pytest.approx(
            multipletests(p, method="fdr_bh")[1].tolist(), rel=1e-12
        )


def test_adjusted_p_values_stand_in_the_order_of_their_tests():
    assert holm([0.04, 0.01, 0.03, 0.5]) == pytest.approx([0.09, 0.04, 0.09, 0.5])
    assert benjamini_hochberg([0.04, 0.01, 0.03, 0.5]) == pytest.approx(
        [0.16 / 3, 0.04, 0.16 / 3, 0.5]
    )


def test_the_constants_are_the_declared_ones():
    assert (paired.CONFIDENCE, paired.POWER, paired.RESAMPLES, paired.ENOUGH) == (
        0.95,
        0.8,
        9999,
        30,
    )
