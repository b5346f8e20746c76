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


def verdict(contrast: "Contrast", base: str, other: str, what: str) -> str:
    """what: the things that are told apart, `checkpoints` or `interfaces, over 3 run seeds`. That
    two differ is said where the adjusted p is below 0.05 and the interval does not contain zero;
    both, because a bootstrap's interval and a t test may disagree.
    """
    d = contrast.difference
    estimate = shown(contrast.metric, d.estimate, sign=True)
    before = "" if contrast.endpoint else "not declared before: "
    these = f"these {what}," if "," in what else f"these {what}"
    if d.identical:
        same = (
            "a difference of 0 in every seed"
            if contrast.differences
            else "the same value on every document"
        )
        return f"{before}{same}"
    if d.error == 0:
        return (
            f"{before}all differences are equal ({estimate}), so no error can be told, and nothing"
            " is claimed"
        )
    if contrast.adjusted < ALPHA and (d.low > 0 or d.high < 0):
        better = (d.estimate > 0) == HIGHER_IS_BETTER[contrast.metric]
        return f"{before}{these} differ: {other if better else base} is better ({estimate})"
    if contrast.equivalence < ALPHA:
        margin = shown(contrast.metric, contrast.margin)
        return f"{before}{these} differ by less than the margin of {margin} ({estimate})"
    many = f"{len(contrast.differences)} run seeds" if contrast.differences else "these documents"
    detectable = (
        f"a difference of {shown(contrast.metric, contrast.detectable)} would be detected with a"
        " power of 80 %"
    )
    if contrast.metric in ACCURACIES and not contrast.detectable < 1:
        detectable = "no difference could have been detected"
    return (
        f"{before}{many} do not tell these {what.partition(',')[0]} apart"
        f" ({estimate}; {detectable})"
    )
