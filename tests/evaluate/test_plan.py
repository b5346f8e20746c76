"""The plan computes each token once, gives every scored token its whole past, and depends on nothing but what is asked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencodes.evaluate import plan as planning
from tokencodes.evaluate.plan import make_plan

tokens = st.lists(st.integers(0, 2), min_size=2, max_size=40)


@st.composite
def requests(draw):
    """Sequences of which many begin alike."""
    trunk = draw(tokens)
    found = []
    for _ in range(draw(st.integers(1, 10))):
        ids = trunk[: draw(st.integers(0, len(trunk)))] + draw(st.lists(st.integers(0, 2), min_size=2, max_size=6))
        found.append((np.array(ids, dtype=np.uint32), draw(st.integers(1, len(ids) - 1))))
    return found


def pasts(one):
    """What each row of a pass has before it, itself included, by the masks that attention uses."""
    found = []
    for piece in one.pieces:
        before, above = [], piece.continues
        assert above is None or above.room >= len(piece.tokens)
        while above is not None:
            assert above.kept and above.chain and above.number < piece.number
            before, above = above.tokens.tolist() + before, above.continues
        assert len(before) == piece.start
        for row in range(len(piece.tokens)):
            own = [int(piece.tokens[other]) for other in range(row + 1) if piece.last[other] >= row]
            assert len(own) == piece.depth[row] + 1
            found.append(before + own)
    return found


def answers(plan):
    """(past, target) of every scored token, by item and place."""
    found = {}
    for one in plan.passes:
        past = pasts(one)
        for row, target, item, place in zip(one.rows, one.targets, one.items, one.places, strict=True):
            assert (item, place) not in found
            found[int(item), int(place)] = (past[row], int(target))
    return found


@settings(max_examples=300, deadline=None)
@given(requests(), st.sampled_from([3, 8, 16, 64]), st.sampled_from([1, 8, 128]), st.booleans())
def test_every_scored_token_is_asked_for_once_after_its_whole_past(asked, batch, saved, shared):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "SAVED", saved)
        patch.setattr(planning, "KEYS_A_TOKEN", saved)
        plan, items = make_plan(asked, batch, shared)
    found = answers(plan)
    assert len(found) == sum(scored for _, scored in plan.items)
    for (ids, scored), item in zip(asked, items, strict=True):
        for place in range(scored):
            end = len(ids) - scored + place
            assert found[item, place] == (ids[:end].tolist(), int(ids[end]))


@settings(max_examples=100, deadline=None)
@given(requests(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_requests(asked, draw):
    other = asked + asked[:1]  # nor on how often one is asked
    draw.shuffle(other)
    one, another = make_plan(asked, 16)[0], make_plan(other, 16)[0]
    assert one.sha256 == another.sha256
    for mine, theirs in zip(one.passes, another.passes, strict=True):
        assert all(
            np.array_equal(getattr(mine, name), getattr(theirs, name)) for name in ("rows", "targets", "items", "places")
        )
        for a, b in zip(mine.pieces, theirs.pieces, strict=True):
            assert np.array_equal(a.tokens, b.tokens) and np.array_equal(a.last, b.last) and a.start == b.start


def test_a_common_beginning_is_computed_once_and_kept_where_what_follows_does_not_fit():
    trunk = list(range(100, 164))
    asked = [(np.array([*trunk, *range(tail, tail + 20)], dtype=np.uint32), 20) for tail in range(0, 400, 40)]
    plan, _ = make_plan(asked, 64)
    assert plan.size == 64 + 10 * 19
    assert plan.passes[0].pieces[0].kept and all(piece.start == 64 for one in plan.passes[1:] for piece in one.pieces)
    assert make_plan(asked, 64, shared=False)[0].size == 10 * 83


def test_what_is_asked_for_changes_the_plans_hash():
    ids = np.arange(10, dtype=np.uint32)
    hashes = [make_plan(asked, batch)[0].sha256 for asked, batch in (([(ids, 2)], 8), ([(ids, 3)], 8), ([(ids, 2)], 16))]
    assert len(set(hashes)) == 3


def test_a_large_beginning_is_kept_in_a_large_pass_too():
    draw = np.random.default_rng(0)
    trunk = draw.integers(0, 1000, 600, dtype=np.uint32)
    asked = [(np.concatenate([trunk, draw.integers(0, 1000, 90, dtype=np.uint32)]), 1) for _ in range(200)]
    assert 600 + 190 * 89 < make_plan(asked, 32768)[0].size <= 600 + 200 * 89


def test_rows_of_a_pass_are_no_more_than_the_batch_when_padded():
    draw = np.random.default_rng(0)
    sizes = [90 if number % 30 else 700 for number in range(300)]
    asked = [(draw.integers(0, 1000, size, dtype=np.uint32), 1) for size in sizes]
    for one in make_plan(asked, 1024, shared=False)[0].passes:
        assert len(one.pieces) * max(len(piece.tokens) for piece in one.pieces) <= 1024
