"""Intervals that cover what they say, and sentences that say no more."""

import numpy as np
import pytest
from scipy import stats

from tokencodes.evaluate.statistics import paired_difference, sentence, t_interval


def pair(*differences: float, base: float = 5.0):
    losses = {
        "learned": {seed: base + seed for seed in range(len(differences))},
        "gf2": {seed: base + seed + difference for seed, difference in enumerate(differences)},
    }
    return paired_difference("gf2", "learned", losses)


def test_the_interval_is_scipys_paired_one():
    result = pair(0.3, 0.1, 0.25)
    expected = stats.ttest_rel([5.3, 6.1, 7.25], [5, 6, 7]).confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high))
    assert result.mean == pytest.approx(0.65 / 3)


@pytest.mark.parametrize("count", [3, 5])
def test_the_interval_covers_its_mean_95_times_in_100(count):
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        low, high = t_interval(random.normal(0.2, 0.1, count))
        covered += low <= 0.2 <= high
    assert 0.935 < covered / 2000 < 0.965


def test_only_seeds_that_both_have_are_paired():
    result = paired_difference(
        "a", "b", {"a": {1: 2.0, 2: 3.0, 4: 9.0}, "b": {2: 1.0, 1: 1.5, 3: 0.0}}
    )
    assert result.seeds == (1, 2)
    assert result.differences == (0.5, 2.0)
    assert paired_difference("a", "b", {"a": {1: 2.0}, "b": {2: 1.0}}) is None


def test_one_seed_says_only_that_two_runs_differ():
    text = sentence(pair(0.3))
    assert "in one run each" in text
    assert "not that the interfaces do" in text
    assert pair(0.3).low is None


def test_an_interval_with_zero_in_it_claims_nothing():
    text = sentence(pair(0.3, -0.1, 0.05))
    assert "The interval contains zero: 3 run seeds do not tell the two interfaces apart" in text
    assert "same sign in 2" in text


def test_a_clear_difference_is_bound_to_recipe_text_and_code_seed():
    text = sentence(pair(-0.30, -0.31, -0.29))
    assert "0.300 nats per token below learned" in text
    assert "3 paired run seeds, same sign in 3" in text
    assert "Under this recipe, text and code seed" in text


def test_arms_with_other_recipes_are_not_blamed_on_the_interface():
    text = sentence(pair(-0.30, -0.31, -0.29), same_recipe=False)
    assert "in recipe as in interface: it may be either" in text
    assert "two interfaces differ" not in text
