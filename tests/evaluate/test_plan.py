"""The plan computes each token once, gives every scored token its whole past, and depends on
nothing but what is asked.
"""

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
    drawn = []
    for _ in range(draw(st.integers(1, 10))):
        ids = trunk[: draw(st.integers(0, len(trunk)))] + draw(
            st.lists(st.integers(0, 2), min_size=2, max_size=6)
        )
        drawn.append((np.array(ids, dtype=np.uint32), draw(st.integers(1, len(ids) - 1))))
    return drawn


def pasts(plan_pass):
    """What each row of a pass has before it, itself included, by the masks that attention uses."""
    read_before = []
    for piece in plan_pass.pieces:
        before, above = [], piece.continues
        assert above is None or above.room >= len(piece.tokens)
        while above is not None:
            assert above.kept and above.chain and above.number < piece.number
            before, above = above.tokens.tolist() + before, above.continues
        assert len(before) == piece.start
        for row in range(len(piece.tokens)):
            own = [int(piece.tokens[other]) for other in range(row + 1) if piece.last[other] >= row]
            assert len(own) == piece.depth[row] + 1
            read_before.append(before + own)
    return read_before


def answers(plan):
    """(past, target) of every scored token, by item and place."""
    answer_of = {}
    for plan_pass in plan.passes:
        past = pasts(plan_pass)
        for row, target, item, place in zip(
            plan_pass.rows, plan_pass.targets, plan_pass.items, plan_pass.places, strict=True
        ):
            assert (item, place) not in answer_of
            answer_of[int(item), int(place)] = (past[row], int(target))
    return answer_of


@settings(max_examples=300, deadline=None)
@given(requests(), st.sampled_from([3, 8, 16, 64]), st.sampled_from([1, 8, 128]), st.booleans())
def test_every_scored_token_is_asked_for_once_after_its_whole_past(sequences, batch, saved, shared):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "SAVED", saved)
        patch.setattr(planning, "KEYS_A_TOKEN", saved)
        plan, items = make_plan(sequences, batch, shared)
    answer_of = answers(plan)
    assert len(answer_of) == sum(scored for _, scored in plan.items)
    for (ids, scored), item in zip(sequences, items, strict=True):
        for place in range(scored):
            end = len(ids) - scored + place
            assert answer_of[item, place] == (ids[:end].tolist(), int(ids[end]))


@settings(max_examples=100, deadline=None)
@given(requests(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_requests(sequences, draw):
    other = sequences + sequences[:1]  # nor on how often one is asked
    draw.shuffle(other)
    first, second = make_plan(sequences, 16)[0], make_plan(other, 16)[0]
    assert first.sha256 == second.sha256
    for first_pass, second_pass in zip(first.passes, second.passes, strict=True):
        assert all(
            np.array_equal(getattr(first_pass, name), getattr(second_pass, name))
            for name in ("rows", "targets", "items", "places")
        )
        for a, b in zip(first_pass.pieces, second_pass.pieces, strict=True):
            assert (
                np.array_equal(a.tokens, b.tokens)
                and np.array_equal(a.last, b.last)
                and a.start == b.start
            )


def test_a_common_beginning_is_computed_once_and_kept_where_what_follows_does_not_fit():
    trunk = list(range(100, 164))
    sequences = [
        (np.array([*trunk, *range(tail, tail + 20)], dtype=np.uint32), 20)
        for tail in range(0, 400, 40)
    ]
    plan, _ = make_plan(sequences, 64)
    assert plan.size == 64 + 10 * 19
    assert plan.passes[0].pieces[0].kept and all(
        piece.start == 64 for plan_pass in plan.passes[1:] for piece in plan_pass.pieces
    )
    assert make_plan(sequences, 64, shared=False)[0].size == 10 * 83


def test_what_is_asked_for_changes_the_plans_hash():
    ids = np.arange(10, dtype=np.uint32)
    hashes = [
        make_plan(sequences, batch)[0].sha256
        for sequences, batch in (([(ids, 2)], 8), ([(ids, 3)], 8), ([(ids, 2)], 16))
    ]
    assert len(set(hashes)) == 3


def test_a_large_beginning_is_kept_in_a_large_pass_too():
    draw = np.random.default_rng(0)
    trunk = draw.integers(0, 1000, 600, dtype=np.uint32)
    sequences = [
        (np.concatenate([trunk, draw.integers(0, 1000, 90, dtype=np.uint32)]), 1)
        for _ in range(200)
    ]
    assert 600 + 190 * 89 < make_plan(sequences, 32768)[0].size <= 600 + 200 * 89


def test_rows_of_a_pass_are_no_more_than_the_batch_when_padded():
    draw = np.random.default_rng(0)
    sizes = [90 if number % 30 else 700 for number in range(300)]
    sequences = [(draw.integers(0, 1000, size, dtype=np.uint32), 1) for size in sizes]
    for plan_pass in make_plan(sequences, 1024, shared=False)[0].passes:
        assert len(plan_pass.pieces) * max(len(piece.tokens) for piece in plan_pass.pieces) <= 1024


def sequences_of(*sequences, scored=1):
    return [(np.array(ids, dtype=np.uint32), scored) for ids in sequences]


def test_a_tree_is_one_piece_in_the_order_of_a_walk():
    plan, items = make_plan(
        [*sequences_of([1, 2, 5, 9], [1, 2, 3, 4, 8]), *sequences_of([1, 2, 3, 4, 7], scored=2)], 64
    )
    (plan_pass,), (piece,) = plan.passes, plan.passes[0].pieces
    assert piece.tokens.tolist() == [1, 2, 3, 4, 5] and piece.depth.tolist() == [0, 1, 2, 3, 2]
    assert piece.last.tolist() == [4, 4, 3, 3, 4]  # each token is seen by those up to here
    assert (piece.start, piece.continues, piece.kept, piece.room, piece.number, piece.chain) == (
        0,
        None,
        False,
        0,
        0,
        False,
    )
    assert (plan.size, plan_pass.size, plan.batch, plan.shared) == (5, 5, 64, True)
    assert [(ids.tolist(), scored) for ids, scored in plan.items] == [
        ([1, 2, 3, 4, 7], 2),
        ([1, 2, 3, 4, 8], 1),
        ([1, 2, 5, 9], 1),
    ]
    assert items.tolist() == [2, 1, 0]
    # After row 2 token 4 is asked for, after row 3 tokens 7 and 8, after row 4 token 9.
    assert plan_pass.rows.tolist() == [2, 3, 3, 4] and plan_pass.targets.tolist() == [4, 7, 8, 9]
    assert plan_pass.items.tolist() == [0, 0, 1, 2] and plan_pass.places.tolist() == [0, 1, 0, 0]


@pytest.fixture
def costs(monkeypatch):
    """Sets what a plan counts with."""

    def cost(saved, keys):
        monkeypatch.setattr(planning, "SAVED", saved)
        monkeypatch.setattr(planning, "KEYS_A_TOKEN", keys)

    return cost


# Three tokens, then two tails of three: nine tokens as one tree, twelve as two rows. And one token
# that has nothing in common.
FORK = sequences_of([1, 2, 3, 4, 5, 6, 0], [1, 2, 3, 7, 8, 9, 0], [50, 0])


@pytest.mark.parametrize(
    ("saved", "keys", "batch", "size", "kept"),
    [
        (128, 3, 9, 9, 0),  # (9² - 2·6²) = 9 pairs in vain are worth 3 tokens at 3 keys a token
        (128, 2, 9, 12, 0),  # and are not at 2
        (128, 3, 8, 12, 0),  # nine tokens are too many for a pass
        (3, 3, 8, 9, 1),  # then the beginning is kept if that saves enough
        (4, 3, 8, 12, 0),
        (3, 2, 9, 12, 0),  # in a large pass it must save as much as the pass is large
        (3, 2, 3, 9, 1),
        (1, 2, 3, 9, 1),
    ],
)
def test_a_beginning_is_shared_kept_or_computed_again(costs, saved, keys, batch, size, kept):
    costs(saved, keys)
    plan, _ = make_plan(FORK, batch)
    pieces = [piece for plan_pass in plan.passes for piece in plan_pass.pieces]
    assert plan.size == size + 1 and sum(piece.kept for piece in pieces) == kept
    if kept:
        first, *others, alone = pieces
        assert (alone.start, alone.continues, alone.tokens.tolist()) == (0, None, [50])
        assert (first.tokens.tolist(), first.depth.tolist(), first.last.tolist()) == (
            [1, 2, 3],
            [0, 1, 2],
            [2, 2, 2],
        )
        assert (first.start, first.room, first.number, first.chain) == (0, 3, 0, True)
        assert [(piece.start, piece.continues, piece.depth.tolist()) for piece in others] == [
            (3, first, [0, 1, 2])
        ] * 2


def test_what_continues_a_kept_piece_comes_in_a_later_pass(costs):
    costs(3, 2)
    for batch, numbers in ((8, [0, 1, 1, 1]), (5, [0, 1, 2, 2])):
        plan, _ = make_plan(FORK, batch)
        assert [piece.number for plan_pass in plan.passes for piece in plan_pass.pieces] == numbers
        assert [
            number for number, plan_pass in enumerate(plan.passes) for _ in plan_pass.pieces
        ] == numbers


def test_a_kept_piece_has_room_for_the_longest_that_continues_it(costs):
    costs(2, 0)
    fork = sequences_of([1, 2, 3, 4, 5, 6, 0], [1, 2, 7, 0], [1, 2, 8, 9, 0])
    plan, _ = make_plan(fork, 4)
    first, *others = (piece for plan_pass in plan.passes for piece in plan_pass.pieces)
    assert (
        first.tokens.tolist() == [1, 2]
        and sorted(len(piece.tokens) for piece in others) == [1, 2, 4]
        and first.room == 4
    )


@pytest.mark.parametrize(
    ("sizes", "batch", "padded", "shared"),
    [
        ([3, 3, 2], 6, [[3, 3], [2]], [[3, 3], [2]]),
        ([3, 3, 2], 8, [[3, 3], [2]], [[3, 3, 2]]),
        ([3, 3, 2], 9, [[3, 3, 2]], [[3, 3, 2]]),
        ([1, 4, 1, 1], 4, [[1], [4], [1, 1]], [[1], [4], [1, 1]]),
        ([1, 2, 2], 4, [[1, 2], [2]], [[1, 2], [2]]),
        ([9, 1], 4, [[9], [1]], [[9], [1]]),
    ],
)
def test_pieces_go_into_passes_in_their_order_as_many_as_fit(sizes, batch, padded, shared):
    sequences = sequences_of(
        *(
            [number * 100 + place for place in range(size)] + [0]
            for number, size in enumerate(sizes, 1)
        )
    )
    for share, wanted in ((False, padded), (True, shared)):
        plan, _ = make_plan(sequences, batch, share)
        assert [
            [len(piece.tokens) for piece in plan_pass.pieces] for plan_pass in plan.passes
        ] == wanted


def test_the_plans_hash_is_over_all_that_it_depends_on():
    import hashlib

    sequences = sequences_of([5, 6, 7], [1, 2], scored=1)
    digest = hashlib.sha256(b"1 16 128 1000 True")
    for ids, scored in (([1, 2], 1), ([5, 6, 7], 1)):
        digest.update(f" {len(ids)} {scored} ".encode() + np.array(ids, "<u4").tobytes())
    assert (
        make_plan(sequences, 16)[0].sha256
        == digest.hexdigest()
        != make_plan(sequences, 16, False)[0].sha256
    )
    assert (planning.VERSION, planning.SAVED, planning.KEYS_A_TOKEN) == (1, 128, 1000)


def test_scored_tokens_that_a_piece_carries_and_those_of_the_piece_before_it_are_found(costs):
    costs(3, 0)
    sequences = sequences_of(
        [1, 2, 3, 4, 5, 6, 7, 0], [1, 2, 3, 4, 8, 9, 10, 0], [1, 2, 3, 50, 51, 52, 0], scored=6
    )
    plan, items = make_plan(sequences, 4)
    pieces = [piece.tokens.tolist() for plan_pass in plan.passes for piece in plan_pass.pieces]
    # token 4 is carried twice
    assert pieces == [[1, 2, 3], [4, 5, 6, 7], [4, 8, 9, 10], [50, 51, 52]]
    answer_of = answers(plan)
    for (ids, scored), item in zip(sequences, items, strict=True):
        for place in range(scored):
            end = len(ids) - scored + place
            assert answer_of[item, place] == (ids[:end].tolist(), int(ids[end]))
