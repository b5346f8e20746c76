"""What one contrast allows to be said: each sentence, and exactly where it begins to hold."""

import math

import pytest

from tokencodes.evaluate.contrast import Contrast
from tokencodes.evaluate.paired import Difference
from tokencodes.evaluate.verdicts import shown, verdict

CHECKPOINTS, SEEDS = "checkpoints", "interfaces, over 3 run seeds"


def of(
    metric="acc",
    estimate=0.02,
    low=0.01,
    high=0.03,
    error=0.005,
    adjusted=0.01,
    equivalence=0.9,
    **changes,
):
    given = {
        "endpoint": True,
        "each": (),
        "identical": False,
        "margin": 0.01,
        "detectable": 0.04,
    } | changes
    difference = Difference(estimate, error, low, high, 0.001, 90, 80, given["identical"])
    return Contrast(
        "piqa",
        metric,
        given["endpoint"],
        0.5,
        0.5 + estimate,
        difference,
        given["each"],
        None,
        given["margin"],
        equivalence,
        adjusted,
        given["detectable"],
    )


def said(contrast, what=CHECKPOINTS):
    return verdict(contrast, "A", "B", what)


@pytest.mark.parametrize(
    ("metric", "estimate", "better", "number"),
    [
        ("acc", 0.02, "B", "+2.00 points"),
        ("acc", -0.02, "A", "-2.00 points"),
        ("acc_norm", 0.02, "B", "+2.00 points"),
        ("acc_norm", -0.02, "A", "-2.00 points"),
        ("bits_per_byte", 0.02, "A", "+0.0200"),
        ("bits_per_byte", -0.02, "B", "-0.0200"),
        ("nats", 0.02, "A", "+0.0200"),
        ("nats", -0.02, "B", "-0.0200"),
    ],
)
def test_the_better_side_has_more_accuracy_or_fewer_nats(metric, estimate, better, number):
    low, high = sorted((estimate / 2, 1.5 * estimate))
    text = said(of(metric, estimate, low, high))
    assert text == f"these checkpoints differ: {better} is better ({number})"


@pytest.mark.parametrize(
    ("changes", "differ"),
    [
        ({}, True),
        ({"adjusted": 0.05}, False),
        ({"adjusted": 0.0499}, True),
        ({"low": 0.0}, False),
        ({"low": -0.001}, False),
        ({"estimate": -0.02, "low": -0.03, "high": -0.01}, True),
        ({"estimate": -0.02, "low": -0.03, "high": 0.0}, False),
        ({"low": 0.2, "high": 0.9}, True),
        ({"estimate": -0.2, "low": -1.9, "high": -0.5}, True),
    ],
)
def test_a_difference_needs_both_a_small_p_and_an_interval_without_zero(changes, differ):
    assert ("differ: " in said(of(**changes))) is differ


@pytest.mark.parametrize(
    ("equivalence", "equal"), [(0.0499, True), (0.05, False), (math.nan, False)]
)
def test_equivalence_is_said_below_one_in_twenty(equivalence, equal):
    text = said(of(adjusted=0.9, equivalence=equivalence))
    assert (
        text == "these checkpoints differ by less than the margin of 1.00 points (+2.00 points)"
    ) is equal


def test_the_margin_is_that_of_the_metric():
    text = said(of("bits_per_byte", adjusted=0.9, equivalence=0.01, margin=0.005))
    assert text == "these checkpoints differ by less than the margin of 0.0050 (+0.0200)"


def test_a_clear_difference_comes_before_equivalence():
    assert said(of(equivalence=0.001)) == "these checkpoints differ: B is better (+2.00 points)"


def test_what_could_have_been_detected_is_said_where_nothing_was():
    text = said(of(adjusted=0.9))
    assert (
        text
        == "these documents do not tell these checkpoints apart (+2.00 points; a difference of 4.00"
        " points would be detected with a power of 80 %)"
    )
    bits = said(of("bits_per_byte", adjusted=0.9, detectable=1.5))
    assert bits.endswith("(+0.0200; a difference of 1.5000 would be detected with a power of 80 %)")


@pytest.mark.parametrize(
    ("detectable", "possible"), [(0.999, True), (1.0, False), (1.2, False), (math.nan, False)]
)
def test_no_accuracy_can_differ_by_100_points(detectable, possible):
    text = said(of(adjusted=0.9, detectable=detectable))
    assert ("no difference could have been detected" in text) is not possible
    assert ("would be detected with a power of 80 %" in text) is possible


def test_over_seeds_the_things_are_interfaces():
    several = of(each=(0.01, 0.02, 0.03))
    assert (
        said(several, SEEDS)
        == "these interfaces, over 3 run seeds, differ: B is better (+2.00 points)"
    )
    equal = of(each=(0.01, 0.02, 0.03), adjusted=0.9, equivalence=0.01)
    assert said(equal, SEEDS).startswith(
        "these interfaces, over 3 run seeds, differ by less than the margin of 1.00 points"
    )
    none = said(of(each=(0.01, 0.02, 0.03), adjusted=0.9), SEEDS)
    assert none.startswith("3 run seeds do not tell these interfaces apart (+2.00 points;")


def test_equal_differences_are_no_finding():
    assert (
        said(of(error=0.0))
        == "all differences are equal (+2.00 points), so no error can be told, and nothing is"
        " claimed"
    )
    assert said(of(error=0.0, identical=True)) == "the same value on every document"
    assert said(of(error=0.0, identical=True, each=(0.0, 0.0))) == "a difference of 0 in every seed"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"adjusted": 0.9},
        {"adjusted": 0.9, "equivalence": 0.01},
        {"error": 0.0},
        {"error": 0.0, "identical": True},
    ],
)
def test_what_was_not_declared_before_is_marked(changes):
    assert said(of(endpoint=False, **changes)) == "not declared before: " + said(of(**changes))


def test_numbers_as_people_read_them():
    assert [shown("acc", 0.0123), shown("acc_norm", 0.5, sign=True)] == [
        "1.23 points",
        "+50.00 points",
    ]
    assert [shown("nats", 0.0123), shown("bits_per_byte", 0.5, sign=True)] == ["0.0123", "+0.5000"]
