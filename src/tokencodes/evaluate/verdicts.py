"""What one contrast allows to be said, in words, and no more."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokencodes.evaluate.contrast import Contrast

ALPHA = 0.05
ACCURACIES = ("acc", "acc_norm")
HIGHER_IS_BETTER = {"acc": True, "acc_norm": True, "nats": False, "bits_per_byte": False}


def shown(metric: str, value: float, sign: bool = False) -> str:
    """A number as people read it: accuracies in points."""
    mark = "+" if sign else ""
    return f"{value * 100:{mark}.2f} points" if metric in ACCURACIES else f"{value:{mark}.4f}"


def verdict(one: "Contrast", base: str, other: str, what: str) -> str:
    """what: the things that are told apart, `checkpoints` or `interfaces, over 3 run seeds`. That
    two differ is said where the adjusted p is below 0.05 and the interval does not contain zero;
    both, because a bootstrap's interval and a t test may disagree.
    """
    d, told = one.difference, shown(one.metric, one.difference.estimate, sign=True)
    before = "" if one.endpoint else "not declared before: "
    these = f"these {what}," if "," in what else f"these {what}"
    if d.identical:
        same = (
            "a difference of 0 in every seed"
            if one.differences
            else "the same value on every document"
        )
        return f"{before}{same}"
    if d.error == 0:
        return (
            f"{before}all differences are equal ({told}), so no error can be told, and nothing is"
            " claimed"
        )
    if one.adjusted < ALPHA and (d.low > 0 or d.high < 0):
        better = (d.estimate > 0) == HIGHER_IS_BETTER[one.metric]
        return f"{before}{these} differ: {other if better else base} is better ({told})"
    if one.equivalence < ALPHA:
        margin = shown(one.metric, one.margin)
        return f"{before}{these} differ by less than the margin of {margin} ({told})"
    many = f"{len(one.differences)} run seeds" if one.differences else "these documents"
    found = (
        f"a difference of {shown(one.metric, one.detectable)} would be detected with a power of"
        " 80 %"
    )
    if one.metric in ACCURACIES and not one.detectable < 1:
        found = "no difference could have been detected"
    return f"{before}{many} do not tell these {what.partition(',')[0]} apart ({told}; {found})"
