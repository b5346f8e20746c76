"""Whether an exported model is still the same function: a runtime's answers against our own model's.

In float32 every logit must lie within the bound that rounding allows, of our model's and of the float64 reference's; where the
runtime is transformers itself, bits must be equal. In lower precision nothing bounds a single logit, so the Kullback-Leibler
divergence of the next token's distribution, ours from the runtime's, must stay below a declared one. Greedy continuations must
be equal up to a tie: a step at which our two best logits are closer than twice what the runtime's logits were seen to differ
by, and than a declared width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokencodes.export.expected import Expected
from tokencodes.export.runtimes import Logits, NotInstalled, Runtime

Status = Literal["agrees", "differs", "not run"]
# Mean KL divergence, nats a token, up to which a model in that type counts as the same. Measured where docs/export.md says.
KL_BOUND = {"F16": 1e-4, "BF16": 5e-3, "Q8_0": 5e-3}
# How far apart our two best logits may be at a greedy step that goes the other way. A quantised model's largest difference of a
# logit says nothing of these two, so it widens this no further.
TIE = {"F16": 0.02, "BF16": 0.2, "Q8_0": 0.2}
LOOSE = 1e-4  # float32 logits in another runtime: the bound, or this where the bound is narrower


@dataclass(frozen=True)
class Agreement:
    """What was found with one runtime. Numbers are None where it was not run."""

    runtime: str
    version: str | None
    status: Status
    detail: str  # why it differs, or was not run
    weights: str  # F32, F16, BF16, Q8_0
    bitwise_equal: bool | None = None
    largest_difference: float | None = None  # of a logit, from our float32 model's
    bound: float | None = None  # of that, in float32; of `kl_mean` otherwise
    kl_mean: float | None = None  # nats a token
    kl_max: float | None = None
    greedy_steps_equal: tuple[int, ...] | None = None  # of each continuation
    greedy_steps: int | None = None
    texts: int | None = None
    tokens: int | None = None

    def cells(self) -> list[str]:
        """A row for people: runtime, version, result, logits apart, mean KL, greedy steps equal."""
        if self.status != "agrees":
            return [self.runtime, "-", f"{self.status}: {self.detail}", "-", "-", "-"]
        steps = ", ".join(f"{equal} of {self.greedy_steps}" for equal in self.greedy_steps_equal or ())
        apart = "0 (same bits)" if self.bitwise_equal else f"{self.largest_difference:.1e}"
        return [self.runtime, str(self.version), self.status, apart, f"{self.kl_mean:.1e}", steps]


def compare(expected: Expected, opened: Callable[[], Runtime], name: str, weights: str, bitwise: bool) -> Agreement:
    """Opens a runtime and asks it. bitwise: whether its logits must be ours bit by bit."""
    try:
        runtime = opened()
    except NotInstalled as error:
        return Agreement(name, None, "not run", str(error), weights)
    except Exception as error:
        told = f"does not open it ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        return Agreement(name, None, "differs", told, weights)
    try:
        found = np.stack([runtime.logits(ids) for ids in expected.texts])
        greedy = [runtime.greedy(prompt, expected.steps) for prompt in expected.prompts]
        if found.shape != expected.logits.shape or {len(one) for one in greedy} != {expected.steps}:
            raise ValueError(f"logits {list(found.shape)}, tokens {[len(one) for one in greedy]}")
    except Exception as error:
        told = f"fails on it ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        return Agreement(name, runtime.version, "differs", told, weights)
    return _judged(expected, found, greedy, (name, runtime.version), weights, bitwise)


def _judged(
    expected: Expected, found: Logits, greedy: list[list[int]], who: tuple[str, str], weights: str, bitwise: bool
) -> Agreement:
    finite = bool(np.isfinite(found).all())
    apart = float(np.abs(found - expected.logits).max()) if finite else float("inf")
    kl = divergence(expected.logits, found) if finite else np.array([np.inf])
    equal = tuple(steps_equal(*pair) for pair in zip(expected.tokens, greedy, strict=True))
    full = weights == "F32"
    bound = 0.0 if full and bitwise else max(expected.bound, LOOSE) if full else KL_BOUND[weights]
    tie = min(2 * apart, TIE.get(weights, 2 * bound))
    wrong = []
    if not finite:
        wrong.append("a logit is not finite")
    elif full and apart > bound:
        wrong.append(f"logits differ by up to {apart:.1e}, bound {bound:.1e}")
    elif not full and float(kl.mean()) > bound:
        wrong.append(f"the mean KL divergence is {kl.mean():.1e} nats a token, bound {bound:.1e}")
    for number, steps in enumerate(equal):
        if steps < expected.steps and not expected.leads[number][steps] <= tie:
            lead = expected.leads[number][steps]
            wrong.append(f"greedy continuation {number + 1} leaves ours at step {steps + 1}, which leads by {lead:.1e}")
    return Agreement(
        *who,
        "differs" if wrong else "agrees",
        "; ".join(wrong),
        weights,
        bool(np.array_equal(found, expected.logits)),
        apart if finite else None,
        bound,
        float(kl.mean()) if finite else None,
        float(kl.max()) if finite else None,
        equal,
        expected.steps,
        len(expected.texts),
        expected.texts.size,
    )


def divergence(ours: Logits, theirs: Logits) -> np.ndarray:
    """KL(ours || theirs) of each position, nats, float64[N, T]; one text at a time."""
    found = []
    for one, other in zip(ours, theirs, strict=True):
        p, q = _log_softmax(one), _log_softmax(other)
        found.append((np.exp(p) * (p - q)).sum(-1))
    return np.maximum(np.stack(found), 0.0)  # rounding may leave -1e-17


def _log_softmax(logits: Logits) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def steps_equal(ours: list[int], theirs: list[int]) -> int:
    """How many steps two continuations share from their start."""
    return next((step for step, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), len(ours))
