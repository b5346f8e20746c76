"""Intervals cover what they promise, and p values of no difference are spread evenly: by
simulation, seeded.
"""

import math

import numpy as np
import pytest
from scipy import stats

from tokencodes.evaluate.paired import (
    benjamini_hochberg,
    holm,
    mcnemar,
    mean_difference,
    ratio_difference,
)

TRIES = 2000
# three standard errors of a coverage of 95 % over so many tries
SLACK = 3 * math.sqrt(0.05 * 0.95 / TRIES)


def own(count):
    return [str(number) for number in range(count)]


def test_the_interval_of_a_paired_accuracy_covers_the_truth():
    rng, covered, false = np.random.default_rng(1), 0, 0
    for _ in range(TRIES):  # two models that are right on 0.40 and 0.43, half of the time together
        both = rng.random(400)
        base, other = (
            both < 0.4,
            np.where(rng.random(400) < 0.5, both < 0.43, rng.random(400) < 0.43),
        )
        result = mean_difference(other.astype(float) - base, own(400))
        covered += result.low <= 0.03 <= result.high
        null = mean_difference(
            np.where(rng.random(400) < 0.5, both < 0.4, rng.random(400) < 0.4) - base.astype(float),
            own(400),
        )
        false += null.p < 0.05
    assert abs(covered / TRIES - 0.95) < SLACK and abs(false / TRIES - 0.05) < SLACK


def test_clusters_are_counted_as_clusters():
    rng, covered, naive = np.random.default_rng(2), 0, 0
    clusters = [str(number // 25) for number in range(1000)]
    for _ in range(TRIES):  # 40 subjects whose differences have a part in common
        values = 0.02 + np.repeat(rng.normal(0, 0.1, 40), 25) + rng.normal(0, 0.3, 1000)
        result, blind = mean_difference(values, clusters), mean_difference(values, own(1000))
        covered += result.low <= 0.02 <= result.high
        naive += blind.low <= 0.02 <= blind.high
    assert abs(covered / TRIES - 0.95) < SLACK + 0.01
    # what an interval that takes documents for independent would promise
    assert naive / TRIES < 0.80


def test_the_bootstrap_of_a_ratio_over_62_pages_covers_the_truth():
    rng, covered, tries = np.random.default_rng(3), 0, 400
    for seed in range(tries):
        size = rng.lognormal(9, 0.6, 62)
        bits = size * (0.02 + rng.normal(0, 0.03, 62))
        result = ratio_difference(bits, size, own(62), seed)
        covered += result.low <= 0.02 <= result.high
    # 62 skewed clusters: a little below
    assert covered / tries > 0.95 - 3 * math.sqrt(0.05 * 0.95 / tries) - 0.015


def test_a_difference_of_the_detectable_size_is_found_four_times_in_five():
    rng, result = np.random.default_rng(4), 0
    detectable = mean_difference(rng.normal(0, 1, 500), own(500)).detectable()
    for _ in range(TRIES):
        result += mean_difference(rng.normal(detectable, 1, 500), own(500)).p < 0.05
    assert abs(result / TRIES - 0.8) < 0.06  # the error that it rests on is itself an estimate


def test_what_is_detectable_among_ten_tests_is_found_four_times_in_five_by_the_first_step_of_holm():
    rng, result = np.random.default_rng(6), 0
    detectable = mean_difference(rng.normal(0, 1, 500), own(500)).detectable(10)
    for _ in range(TRIES):
        result += mean_difference(rng.normal(detectable, 1, 500), own(500)).p < 0.05 / 10
    assert abs(result / TRIES - 0.8) < 0.06


def test_a_ratio_over_eight_clusters_of_uneven_size_covers_the_truth():
    rng, covered, size = (
        np.random.default_rng(7),
        0,
        np.array([35, 42, 8, 20, 16, 22, 37, 25], dtype=float),
    )
    for _ in range(TRIES):
        result = ratio_difference(size * (0.02 + rng.normal(0, 0.03, 8)), size, own(8))
        covered += result.low <= 0.02 <= result.high
    assert abs(covered / TRIES - 0.95) < SLACK + 0.02


def test_equivalence_is_claimed_falsely_at_most_as_often_as_promised():
    rng, claimed, right = np.random.default_rng(5), 0, 0
    for _ in range(TRIES):
        # just at the margin
        claimed += mean_difference(rng.normal(0.05, 0.5, 600), own(600)).equivalence_p(0.05) < 0.05
        right += mean_difference(rng.normal(0.0, 0.5, 600), own(600)).equivalence_p(0.08) < 0.05
    assert claimed / TRIES < 0.05 + SLACK and right / TRIES > 0.9


def test_mcnemar_is_the_exact_binomial_of_what_only_one_has_right():
    base, other = np.array([1, 1, 1, 1, 0, 0], bool), np.array([1, 0, 0, 0, 1, 0], bool)
    result = mcnemar(base, other)
    assert (result.only_base, result.only_other) == (3, 1) and result.p == pytest.approx(
        stats.binomtest(3, 4).pvalue
    )
    assert mcnemar(base, base).p == 1.0


def test_adjusted_p_values_are_those_of_the_books():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert benjamini_hochberg([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm([]) == [] and benjamini_hochberg([]) == []


def test_where_clusters_do_not_vary_nothing_is_claimed():
    same = mean_difference(np.zeros(10), own(10))
    assert (same.estimate, same.p, same.identical) == (0.0, 1.0, True) and math.isnan(same.low)
    assert math.isnan(same.equivalence_p(0.01)) and math.isnan(same.detectable())
    for values, clusters in (
        (np.full(3, 0.005), own(3)),
        (np.array([1.0, -1.0, 0.0, 0.0]), ["a", "a", "b", "b"]),
    ):
        result = mean_difference(values, clusters)
        assert (result.error, result.p, result.identical) == (0.0, 1.0, False) and math.isnan(
            result.low
        )
    assert mean_difference(np.ones(5), ["a"] * 5) is None
    assert ratio_difference(np.ones(5), np.ones(5), ["a"] * 5) is None
