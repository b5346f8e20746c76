"""How a runtime's greedy continuation is held against ours: ties end nothing, and hide nothing
after them.
"""

import numpy as np
import pytest

from tokencodes.export.agreement import Followed, compare, followed
from tokencodes.export.expected import Expected
from tokencodes.export.runtimes import Runtime

OURS = [3, 1, 4, 1, 5, 2]
LEADS = [1.0, 1.0, 0.001, 1.0, 1.0, 0.002]


class Scripted(Runtime):
    """Continues by what it was given: `turns` says where its token is another than ours."""

    name, version = "scripted", "1"

    def __init__(self, turns, logits=None):
        self.turns, self.said, self.requests = turns, logits, []

    def logits(self, ids_T):
        return self.said

    def greedy(self, ids_T, steps):
        """Once it has left ours it says 0, as another text would."""
        at, lost = len(ids_T) - 2, False
        self.requests.append((ids_T.tolist(), steps))
        tokens = []
        for step in range(at, at + steps):
            tokens.append(0 if lost else self.turns.get(step, OURS[step]))
            lost = lost or tokens[-1] != OURS[step]
        return tokens


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ({}, Followed(6, (), None)),
        ({2: 0}, Followed(5, (0.001,), None)),  # one tie, and all after it is compared
        ({2: 0, 5: 0}, Followed(4, (0.001, 0.002), None)),
        ({2: 0, 4: 0}, Followed(3, (0.001,), 4)),  # what comes after a tie is held to it too
        ({0: 0}, Followed(0, (), 0)),
    ],
)
def test_after_a_tie_the_runtime_goes_on_from_our_token(turns, expected):
    runtime = Scripted(turns)
    assert followed(runtime, np.array([7, 8]), OURS, LEADS, tie=0.01) == expected
    assert all(
        ids[2:] == OURS[: len(ids) - 2] and len(ids) - 2 + steps == 6
        for ids, steps in runtime.requests
    )


def test_a_lead_that_is_no_number_is_no_tie():
    assert followed(
        Scripted({1: 0}), np.array([7, 8]), OURS, [float("nan")] * 6, tie=float("inf")
    ) == Followed(1, (), 1)


@pytest.mark.parametrize(("turns", "status"), [({2: 0}, "agrees"), ({2: 0, 3: 0}, "differs")])
def test_the_verdict_counts_every_step(turns, status):
    logits = np.random.default_rng(0).normal(size=(1, 4, 9)).astype(np.float32)
    expected = Expected(
        np.zeros((1, 4), np.int64),
        logits,
        0.0,
        1e-3,
        np.array([[7, 8]]),
        tokens=[OURS],
        leads=[LEADS],
    )
    other = logits + np.float32(1e-3) * np.sign(logits)
    agreement = compare(expected, lambda: Scripted(turns, other[0]), "scripted", "F16", False)
    assert agreement.status == status and agreement.kl_mean < 1e-4
    if status == "differs":
        assert (
            agreement.detail
            == "greedy continuation 1 leaves ours at step 4, which leads by 1.0e+00"
        )
    else:
        assert (
            agreement.greedy_steps_equal == (5,)
            and agreement.tie_leads == (0.001,)
            and agreement.greedy_steps == 6
        )
