"""Comparison of an exported model with our own model: whether a runtime still computes the same
function.

In float32, every logit must lie within the rounding bound of our model's logit and of the float64
reference's logit. If the runtime is transformers itself, the bits must be equal. In lower precision
no bound holds for a single logit, so the Kullback-Leibler divergence of the next token's
distribution, ours from the runtime's, must stay below a declared value. Greedy continuations must
be equal except at ties. A tie is a step at which our two best logits are closer than twice the
largest difference of the runtime's logits, and closer than a declared width. After a tie the
runtime continues from our token, so every step is compared.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokencodes.errors import pass_on_interruption
from tokencodes.export.expected import Expected
from tokencodes.export.runtimes import Ids, Logits, NotInstalled, Runtime

Status = Literal["agrees", "differs", "not run"]
# Mean KL divergence, nats a token, up to which a model in that type counts as the same. Measured
# where docs/export.md says.
KL_BOUND = {"F16": 1e-4, "BF16": 5e-3, "Q8_0": 5e-3}
# How far apart our two best logits may be at a greedy step that goes the other way. A quantised
# model's largest difference of a logit says nothing of these two, so it widens this no further.
TIE = {"F16": 0.02, "BF16": 0.2, "Q8_0": 0.2}
LOOSE = 1e-4  # float32 logits in another runtime: the bound, or this where the bound is narrower


@dataclass(frozen=True)
class Agreement:
    """The comparison with one runtime. Numbers are None if the runtime was not run."""

    runtime: str
    version: str | None
    status: Status
    detail: str  # why it differs, or was not run
    weights: str  # F32, F16, BF16, Q8_0
    bitwise_equal: bool | None = None
    largest_difference: float | None = None  # of a logit, from our float32 model's
    logit_bound: float | None = None  # of that; in float32 alone
    kl_mean: float | None = None  # nats a token
    kl_bound: float | None = None  # of that; in lower precision alone
    kl_max: float | None = None
    greedy_steps_equal: tuple[int, ...] | None = None  # of each continuation; the others are ties
    # at those, our likeliest token's logit less the next one's
    tie_leads: tuple[float, ...] | None = None
    greedy_steps: int | None = None
    texts: int | None = None
    tokens: int | None = None

    def cells(self) -> list[str]:
        """Returns a row: runtime, version, result, logits apart, mean KL, greedy steps equal."""
        if self.status != "agrees":
            return [self.runtime, "-", self.status, "-", "-", "-"]
        steps = ", ".join(
            f"{equal} of {self.greedy_steps}" for equal in self.greedy_steps_equal or ()
        )
        apart = "0 (same bits)" if self.bitwise_equal else f"{self.largest_difference:.1e}"
        return [self.runtime, str(self.version), self.status, apart, f"{self.kl_mean:.1e}", steps]


def compare(
    expected: Expected, opened: Callable[[], Runtime], name: str, weights: str, bitwise: bool
) -> Agreement:
    """Opens a runtime, runs it on the expected texts and returns the comparison. bitwise: whether
    its logits must equal ours bit by bit.
    """
    try:
        runtime = opened()
    except NotInstalled as error:
        return Agreement(name, None, "not run", str(error), weights)
    except Exception as error:
        pass_on_interruption(error)
        reason = (
            f"does not open it ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        )
        return Agreement(name, None, "differs", reason, weights)
    try:
        logits = np.stack([runtime.logits(ids) for ids in expected.texts])
        if logits.shape != expected.logits.shape:
            raise ValueError(f"logits {list(logits.shape)}, not {list(expected.logits.shape)}")
        judged = _Judged(expected, logits, weights, bitwise)
        continuations = zip(expected.prompts, expected.tokens, expected.leads, strict=True)
        greedy = (
            [followed(runtime, *continuation, judged.tie) for continuation in continuations]
            if judged.finite
            else []
        )
    except Exception as error:
        pass_on_interruption(error)
        reason = f"fails on it ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        return Agreement(name, runtime.version, "differs", reason, weights)
    return judged.agreement((name, runtime.version), greedy)


@dataclass(frozen=True)
class Followed:
    """Result of a greedy comparison. equal: number of steps at which the runtime's most probable
    token is ours, after our previous tokens. ties: our lead at each step that is a tie. left: the
    first step at which the token differs and our lead is larger than a tie; the comparison ends
    there. None: there is no such step.
    """

    equal: int
    ties: tuple[float, ...]
    left: int | None


class _Judged:
    """The comparison of a runtime's logits with ours."""

    def __init__(self, expected: Expected, logits: Logits, weights: str, bitwise: bool) -> None:
        self.expected, self.weights, self.full = expected, weights, weights == "F32"
        self.finite = bool(np.isfinite(logits).all())
        self.same = bool(np.array_equal(logits, expected.logits))
        self.apart = float(np.abs(logits - expected.logits).max()) if self.finite else float("inf")
        self.kl = divergence(expected.logits, logits) if self.finite else np.array([np.inf])
        self.bound = (
            KL_BOUND[weights] if not self.full else 0.0 if bitwise else max(expected.bound, LOOSE)
        )
        self.tie = min(2 * self.apart, TIE.get(weights, 2 * self.bound))

    def _wrong(self, greedy: list[Followed]) -> Iterator[str]:
        mean = float(self.kl.mean())
        if not self.finite:
            yield "a logit is not finite"
        elif self.full and not self.apart <= self.bound:
            yield f"logits differ by up to {self.apart:.1e}, bound {self.bound:.1e}"
        elif not self.full and not mean <= self.bound:
            yield f"the mean KL divergence is {mean:.1e} nats a token, bound {self.bound:.1e}"
        for number, continuation in enumerate(greedy):
            if continuation.left is not None:
                lead = self.expected.leads[number][continuation.left]
                yield (
                    f"greedy continuation {number + 1} leaves ours at step"
                    f" {continuation.left + 1}, which leads by {lead:.1e}"
                )

    def agreement(self, who: tuple[str, str], greedy: list[Followed]) -> Agreement:
        """Returns the result. greedy: the result of `followed` for each continuation."""
        wrong = list(self._wrong(greedy))
        return Agreement(
            *who,
            "differs" if wrong else "agrees",
            "; ".join(wrong),
            self.weights,
            self.same,
            self.apart if self.finite else None,
            self.bound if self.full else None,
            float(self.kl.mean()) if self.finite else None,
            None if self.full else self.bound,
            float(self.kl.max()) if self.finite else None,
            tuple(continuation.equal for continuation in greedy),
            tuple(lead for continuation in greedy for lead in continuation.ties),
            self.expected.steps,
            len(self.expected.texts),
            self.expected.texts.size,
        )


def followed(
    runtime: Runtime, prompt_T: Ids, ours: list[int], leads: list[float], tie: float
) -> Followed:
    """Compares a runtime's greedy continuation with ours, step by step."""
    equal, step, ties = 0, 0, list[float]()
    while step < len(ours):
        rest = runtime.greedy(
            np.append(prompt_T, np.array(ours[:step], dtype=np.int64)), len(ours) - step
        )
        same = steps_equal(ours[step:], rest)
        equal, step = equal + same, step + same
        if step < len(ours):
            if not leads[step] <= tie:
                return Followed(equal, tuple(ties), step)
            ties.append(leads[step])
            step += 1
    return Followed(equal, tuple(ties), None)


def divergence(reference: Logits, logits: Logits) -> np.ndarray:
    """Returns KL(reference || logits) of each position in nats, float64[N, T]. It processes one
    text at a time.
    """
    divergences = []
    for reference_T, logits_T in zip(reference, logits, strict=True):
        p, q = _log_softmax(reference_T), _log_softmax(logits_T)
        divergences.append((np.exp(p) * (p - q)).sum(-1))
    return np.maximum(np.stack(divergences), 0.0)  # rounding may leave -1e-17


def _log_softmax(logits: Logits) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def steps_equal(ours: list[int], other: list[int]) -> int:
    """Returns the number of equal steps at the start of two continuations."""
    return next(
        (step for step, pair in enumerate(zip(ours, other, strict=True)) if pair[0] != pair[1]),
        len(ours),
    )
