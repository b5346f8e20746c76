"""Every number and sentence of a comparison of two arms over run seeds."""

import numpy as np
import pytest
from scipy import stats

from tokencodes.evaluate.statistics import PairedDifference, paired_difference, sentence, t_interval

LOSSES = {"gf2": {3: 5.5, 1: 5.25, 2: 5.75}, "learned": {1: 5.0, 2: 5.25, 3: 5.0, 4: 9.0}}


def pair(mean=-0.3, low=-0.4, high=-0.2, differences=(-0.35, -0.25)):
    return PairedDifference(
        "gf2", "learned", tuple(range(len(differences))), differences, mean, low, high
    )


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_interval_is_that_of_one_sample_t(count):
    values = np.random.default_rng(count).normal(0.3, 0.2, count)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert t_interval(values) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert t_interval(values[:1]) is None and t_interval(values[:0]) is None


def test_a_pair_is_arm_minus_baseline_in_the_order_of_seeds():
    result = paired_difference("gf2", "learned", LOSSES)
    assert (result.arm, result.baseline, result.seeds, result.differences) == (
        "gf2",
        "learned",
        (1, 2, 3),
        (0.25, 0.5, 0.5),
    )
    expected = stats.ttest_1samp([0.25, 0.5, 0.5], 0.0).confidence_interval(0.95)
    assert result.mean == pytest.approx(1.25 / 3) and (result.low, result.high) == pytest.approx(
        (expected.low, expected.high)
    )


def test_arms_without_a_seed_in_common_are_no_pair():
    assert paired_difference("gf2", "learned", {"gf2": {1: 1.0}}) is None
    assert paired_difference("gf2", "learned", {"learned": {1: 1.0}}) is None
    assert paired_difference("gf2", "learned", {"gf2": {1: 1.0}, "learned": {2: 1.0}}) is None


def test_one_seed_has_no_interval():
    result = paired_difference("gf2", "learned", {"gf2": {1: 5.5}, "learned": {1: 5.0}})
    assert (result.mean, result.low, result.high) == (0.5, None, None) and not result.excludes_zero
    assert (
        sentence(result)
        == "gf2: mean held-out loss 0.500 nats per token above learned in one run each. One seed"
        " shows that these two runs differ, not that the interfaces do."
    )


@pytest.mark.parametrize(
    ("low", "high", "excludes"),
    [
        (0.1, 0.2, True),
        (1.0, 1.5, True),
        (-0.2, -0.1, True),
        (-1.5, -1.0, True),
        (-0.1, 0.2, False),
        (-0.2, 0.5, False),
        (-1.5, 0.5, False),
        (0.0, 0.2, False),
        (-0.2, 0.0, False),
        (None, None, False),
        (0.1, None, False),
        (None, -0.1, False),
    ],
)
def test_an_interval_excludes_zero_only_on_one_side_of_it(low, high, excludes):
    assert pair(low=low, high=high).excludes_zero is excludes


def test_a_clear_difference_in_words():
    assert (
        sentence(pair())
        == "gf2: mean held-out loss 0.300 nats per token below learned (95 % t interval -0.400 to"
        " -0.200, 2 paired run seeds, same sign in 2). Under this recipe, text and code seed the"
        " two interfaces differ by more than run seeds explain."
    )
    assert sentence(pair(0.3, 0.2, 0.4, (0.35, 0.25))).startswith(
        "gf2: mean held-out loss 0.300 nats per token above learned ("
    )
    assert sentence(pair(), unit="bits").startswith(
        "gf2: mean held-out loss 0.300 bits below learned ("
    )


def test_a_clear_difference_of_arms_whose_recipes_differ_in_words():
    assert sentence(pair(), same_recipe=False).endswith(
        "same sign in 2). The two arms differ by more than run seeds explain, in recipe as in"
        " interface: it may be either."
    )


def test_no_difference_in_words():
    for same_recipe in (True, False):
        assert (
            sentence(pair(-0.1, -0.4, 0.2, (-0.3, 0.1, 0.0)), same_recipe)
            == "gf2: mean held-out loss 0.100 nats per token below learned (95 % t interval -0.400"
            " to +0.200, 3 paired run seeds, same sign in 1). The interval contains zero: 3 run"
            " seeds do not tell the two interfaces apart."
        )


def test_a_sentence_needs_both_ends_of_an_interval():
    for low, high in ((None, 0.1), (-0.4, None)):
        assert "in one run each" in sentence(pair(low=low, high=high))
