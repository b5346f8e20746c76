"""Paired statistics that say no more than the design allows.

Run seeds are the random factor here: a pair is two arms that saw the same windows and began from
the same body and head. So an interval over seeds is about these interfaces under this recipe and
text; it says nothing about other code seeds.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class PairedDifference:
    """Differences arm - baseline, one a seed, with the t interval of their mean (None below two
    seeds).
    """

    arm: str
    baseline: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def t_interval(values: np.ndarray) -> tuple[float, float] | None:
    """The 95 % t interval of a mean; None for fewer than two values."""
    count = len(values)
    if count < 2:
        return None
    half = (
        float(stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1))
        * float(values.std(ddof=1))
        / math.sqrt(count)
    )
    mean = float(values.mean())
    return mean - half, mean + half


def paired_difference(
    arm: str, baseline: str, losses: dict[str, dict[int, float]]
) -> PairedDifference | None:
    """The pair of two arms over the seeds that both have; None if they share none. losses: arm ->
    seed -> value.
    """
    seeds = tuple(sorted(losses.get(arm, {}).keys() & losses.get(baseline, {}).keys()))
    if not seeds:
        return None
    values = np.array([losses[arm][seed] - losses[baseline][seed] for seed in seeds])
    low, high = t_interval(values) or (None, None)
    return PairedDifference(
        arm, baseline, seeds, tuple(values.tolist()), float(values.mean()), low, high
    )


def sentence(pair: PairedDifference, same_recipe: bool = True, unit: str = "nats per token") -> str:
    """What this many seeds allow to be said of one pair, and no more."""
    count = len(pair.seeds)
    direction = "above" if pair.mean > 0 else "below"
    text = f"{pair.arm}: mean held-out loss {abs(pair.mean):.3f} {unit} {direction} {pair.baseline}"
    if pair.low is None or pair.high is None:
        return (
            f"{text} in one run each. One seed shows that these two runs differ, not that the"
            " interfaces do."
        )
    same = sum(difference * pair.mean > 0 for difference in pair.differences)
    text += (
        f" (95 % t interval {pair.low:+.3f} to {pair.high:+.3f}, {count} paired run seeds, same"
        f" sign in {same})"
    )
    if pair.excludes_zero:
        if not same_recipe:
            return (
                f"{text}. The two arms differ by more than run seeds explain, in recipe as in"
                " interface: it may be either."
            )
        return (
            f"{text}. Under this recipe, text and code seed the two interfaces differ by more than"
            " run seeds explain."
        )
    return (
        f"{text}. The interval contains zero: {count} run seeds do not tell the two interfaces"
        " apart."
    )
