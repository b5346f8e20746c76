"""Statistics of paired differences: two models on the same documents.

Documents that share a passage, a subject or a page are no independent draws, so variances are of
clusters: with residual sums s_g of G clusters, Var = G / (G - 1) · Σ s_g² / n² (Liang & Zeger,
1986, with the usual small-sample factor), and t has G - 1 degrees of freedom. Ratios of sums over
clusters of uneven size, such as bits per byte over 62 pages, get a BCa bootstrap of clusters
(Efron, 1987); over fewer than 30, where that covers too little, the t interval of the linearised
ratio.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE, POWER = 0.95, 0.8
RESAMPLES = 9999
ENOUGH = 30  # clusters to draw from
VANISHING = 1e-12  # an error so small beside its estimate is rounding
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """other - base: estimate, standard error, interval, two-sided p of no difference; n documents
    in G clusters; whether every single difference is 0. Where clusters do not vary no error can be
    told: interval NaN, p 1.
    """

    estimate: float
    error: float
    low: float
    high: float
    p: float
    documents: int
    clusters: int
    identical: bool

    def detectable(self, tests: int = 1) -> float:
        """The smallest difference that would be found with a power of 0.8 among so many tests, each
        at α / tests: what Holm's procedure asks of the first. NaN where no error can be told.
        """
        if self.error == 0:
            return math.nan
        alpha, freedom = (1 - CONFIDENCE) / tests, self.clusters - 1
        return float(stats.t.ppf(1 - alpha / 2, freedom) + stats.t.ppf(POWER, freedom)) * self.error

    def equivalence_p(self, margin: float) -> float:
        """Of two one-sided t tests against -margin and +margin (Schuirmann, 1987): small where the
        difference is surely less. NaN where no error can be told.
        """
        if self.error == 0:
            return math.nan
        freedom = self.clusters - 1
        lower = stats.t.sf((self.estimate + margin) / self.error, freedom)
        upper = stats.t.cdf((self.estimate - margin) / self.error, freedom)
        return float(max(lower, upper))


def mean_difference(values_N: Floats, clusters_N: Sequence[str]) -> Difference | None:
    """Of the mean of paired differences; None for fewer than two clusters, from which no error can
    be told.
    """
    _, of = np.unique(np.array(clusters_N, dtype=object).astype(str), return_inverse=True)
    count, size = int(of.max()) + 1, len(values_N)
    if count < 2:
        return None
    mean = float(values_N.mean())
    sums = np.bincount(of, weights=values_N - mean, minlength=count)
    error = math.sqrt(count / (count - 1) * float((sums**2).sum())) / size
    return _with_t(mean, error, size, count, not values_N.any())


def ratio_difference(
    over_N: Floats, under_N: Floats, clusters_N: Sequence[str], seed: int = 0
) -> Difference | None:
    """Of sum(over) / sum(under), such as a difference in bits over bytes: BCa interval over
    clusters, if they are enough; p by the t of the linearised ratio.
    """
    _, of = np.unique(np.array(clusters_N, dtype=object).astype(str), return_inverse=True)
    count, size = int(of.max()) + 1, len(over_N)
    if count < 2:
        return None
    over, under = (np.bincount(of, weights=values, minlength=count) for values in (over_N, under_N))
    ratio = float(over.sum() / under.sum())
    residual = over - ratio * under
    error = math.sqrt(count / (count - 1) * float((residual**2).sum())) / float(under.sum())
    difference = _with_t(ratio, error, size, count, not over_N.any())
    if difference.error == 0 or count < ENOUGH:
        return difference
    interval = stats.bootstrap(
        (over, under),
        lambda a, b, axis=-1: a.sum(axis=axis) / b.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return replace(difference, low=float(interval.low), high=float(interval.high))


def _with_t(estimate: float, error: float, size: int, count: int, identical: bool) -> Difference:
    if error <= abs(estimate) * VANISHING:  # equal differences, up to rounding
        return Difference(estimate, 0.0, math.nan, math.nan, 1.0, size, count, identical)
    freedom = count - 1
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom)) * error
    p = float(2 * stats.t.sf(abs(estimate) / error, freedom))
    return Difference(
        estimate, error, estimate - reach, estimate + reach, p, size, count, identical
    )


@dataclass(frozen=True)
class McNemar:
    """Documents that only one of two models has right, and the exact p of their being equally many
    (McNemar, 1947); it takes documents for independent draws.
    """

    only_base: int
    only_other: int
    p: float


def mcnemar(base_N: NDArray[np.bool_], other_N: NDArray[np.bool_]) -> McNemar:
    """Of what is right by either model."""
    first, second = int((base_N & ~other_N).sum()), int((other_N & ~base_N).sum())
    p = float(stats.binomtest(first, first + second, 0.5).pvalue) if first + second else 1.0
    return McNemar(first, second, p)


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p values of pre-declared endpoints: each below α is shown at the family-wise level α
    (Holm, 1979).
    """
    values = np.array(p, dtype=np.float64)
    order = np.argsort(values)
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Adjusted p values of everything else: of those below α a share of at most α is expected to be
    false (1995).
    """
    return [float(value) for value in stats.false_discovery_control(p, method="bh")] if p else []
