"""The sampler as a pure function, and what it samples."""

from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests import reference_draws as reference
from tokencodes.data.sampler import PackedSampler, PaperSampler, TokenUniformSampler
from tokencodes.errors import InputError

CONTEXT = 16


class Lengths:
    """A shard as the sampler sees it."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = np.array(lengths, dtype=np.int64)
        self.offsets = np.append(0, np.cumsum(self.lengths))
        self.longest = max(lengths)


# the second has no window
SHARDS = [Lengths(17, 40, 3, 100), Lengths(5, 16), Lengths(1000), Lengths(30, 30, 30)]


def sampler(seed: int = 1, streams: int = 2, visit: int = 4, shards=SHARDS) -> PaperSampler:
    return PaperSampler(shards, CONTEXT, seed, streams, visit)


def drawn(windows) -> list[tuple[int, int, int, int]]:
    return list(zip(*(array.tolist() for array in astuple(windows)), strict=True))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**62),
    st.lists(st.integers(0, 10**13), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_a_window_depends_on_seed_and_index_alone(seed, indices, streams, visit):
    shared_sampler = sampler(seed, streams, visit)
    together = drawn(shared_sampler.draw(np.array(indices, dtype=np.int64)))
    alone = [
        drawn(sampler(seed, streams, visit).draw(np.array([i], dtype=np.int64)))[0]
        for i in reversed(indices)
    ]
    assert together == alone[::-1]


def test_every_window_lies_inside_an_eligible_document():
    for shard, document, start, _ in drawn(sampler().draw(np.arange(3000))):
        assert start >= 0
        assert start + CONTEXT + 1 <= SHARDS[shard].lengths[document]


def test_a_stream_stays_in_a_shard_for_a_visit_and_sees_each_shard_once_a_cycle():
    shard = sampler(streams=2, visit=4).draw(np.arange(2 * 4 * 3 * 5)).shard
    for stream in (0, 1):
        visits = shard[stream::2].reshape(-1, 4)
        assert (visits == visits[:, :1]).all()
        cycles = visits[:, 0].reshape(-1, 3)
        assert all(sorted(cycle) == [0, 2, 3] for cycle in cycles.tolist())
        assert len({tuple(cycle) for cycle in cycles.tolist()}) > 1


def test_documents_are_drawn_uniformly_then_starts_uniformly():
    windows = sampler(shards=[Lengths(20, 100, 57, 10)]).draw(np.arange(30_000))
    documents, counts = np.unique(windows.document, return_counts=True)
    assert documents.tolist() == [0, 1, 2]
    assert stats.chisquare(counts).pvalue > 1e-3
    starts = np.bincount(windows.start[windows.document == 1], minlength=84)
    assert len(starts) == 100 - CONTEXT
    assert stats.chisquare(starts).pvalue > 1e-3


def test_seeds_see_different_windows():
    assert drawn(sampler(1).draw(np.arange(50))) != drawn(sampler(2).draw(np.arange(50)))


def test_the_windows_of_a_seed_never_change():
    assert drawn(sampler(12345).draw(np.array([0, 1, 2, 17, 10**12]))) == GOLDEN


def test_no_document_long_enough_is_an_error():
    with pytest.raises(InputError, match="a window takes 17 tokens, the longest document has 16"):
        sampler(shards=[Lengths(5, 16)])


def uniform(seed: int = 1, streams: int = 2, visit: int = 4, shards=SHARDS) -> TokenUniformSampler:
    return TokenUniformSampler(shards, CONTEXT, seed, streams, visit)


def packed(seed: int = 1, shards=SHARDS) -> PackedSampler:
    return PackedSampler(shards, CONTEXT, seed)


@pytest.mark.parametrize("make", [uniform, packed])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**62), indices=st.lists(st.integers(0, 10**13), min_size=1, max_size=30)
)
def test_every_sampler_is_a_function_of_seed_and_index(make, seed, indices):
    together = drawn(make(seed).draw(np.array(indices, dtype=np.int64)))
    alone = [drawn(make(seed).draw(np.array([i], dtype=np.int64)))[0] for i in reversed(indices)]
    assert together == alone[::-1]


def test_token_uniform_draws_every_valid_start_alike():
    shards = [Lengths(20, 57, 10), Lengths(16), Lengths(18, 30)]
    windows = uniform(visit=1, shards=shards).draw(np.arange(40_000))
    starts = [
        (s, d, k)
        for s, shard in enumerate(shards)
        for d, n in enumerate(shard.lengths)
        for k in range(max(0, n - CONTEXT))
    ]
    seen = dict.fromkeys(starts, 0)
    for shard, document, start, length in drawn(windows):
        assert length == CONTEXT + 1
        seen[shard, document, start] += 1
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_token_uniform_stays_in_a_shard_for_a_visit():
    shard = uniform(streams=2, visit=8).draw(np.arange(2 * 8 * 50)).shard
    for stream in (0, 1):
        visits = shard[stream::2].reshape(-1, 8)
        assert (visits == visits[:, :1]).all()


def test_packed_makes_every_token_with_a_predecessor_a_target_once_an_epoch():
    sampler = packed()
    for epoch in range(3):
        first = epoch * sampler.windows_per_epoch
        tokens = [
            (shard, document, position)
            for shard, document, start, length in drawn(
                sampler.draw(np.arange(first, first + sampler.windows_per_epoch))
            )
            for position in range(start + 1, start + length)
        ]
        every = [
            (s, d, p)
            for s, shard in enumerate(SHARDS)
            for d, n in enumerate(shard.lengths)
            for p in range(1, n)
        ]
        assert sorted(tokens) == every


def test_packed_goes_shard_by_shard_in_another_order_each_epoch():
    sampler = packed()
    size = sampler.windows_per_epoch
    orders = set()
    for epoch in range(6):
        windows = sampler.draw(np.arange(epoch * size, (epoch + 1) * size))
        shard = windows.shard.tolist()
        orders.add(tuple(dict.fromkeys(shard)))
        assert sum(a != b for a, b in pairwise(shard)) == len(SHARDS) - 1
        starts = windows.start[windows.shard == 2].tolist()
        assert sorted(starts) == list(range(0, 999, CONTEXT))
        assert starts != sorted(starts)
    assert len(orders) > 2


def test_the_windows_of_the_other_samplers_never_change_either():
    indices = np.array([0, 1, 2, 17, 10**12])
    assert drawn(uniform(12345).draw(indices)) == GOLDEN_UNIFORM
    assert drawn(packed(12345).draw(indices)) == GOLDEN_PACKED


@pytest.mark.parametrize("make", [uniform, packed])
def test_nothing_to_draw_is_an_error(make):
    with pytest.raises(InputError, match="no document long enough"):
        make(shards=[Lengths(1, 1)])


# Every window against the documented layout, written anew

LAYOUTS = {
    "one document of one window": [[17]],
    "the first shards have no window": [[3, 16], [1], [40, 17, 16, 18], [5], [17, 100]],
    "many shapes": [[17, 40, 3, 100], [5, 16], [1000], [30, 30, 30], [2], [33, 16, 34]],
}
FAR = [0, 1, 2, 3, 7, 8, 9, 63, 64, 1023, 10**6 + 1, 10**12, 2**62 + 12345]


def shards_of(layout: str) -> tuple[list[list[int]], list[Lengths]]:
    return LAYOUTS[layout], [Lengths(*lengths) for lengths in LAYOUTS[layout]]


def indices_of(layout: str) -> list[int]:
    """The first windows, in an order of their own, and some that are far away."""
    return [*FAR, *range(150, -1, -1)] if layout != "one document of one window" else FAR


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("streams", "visit", "part"), [(2, 4, 0), (1, 1, 3), (3, 2, 1)])
@pytest.mark.parametrize("seed", [0, 12345])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [(PaperSampler, reference.paper_window), (TokenUniformSampler, reference.uniform_window)],
)
def test_windows_of_visits_are_those_of_the_documented_layout(
    kind, expected, seed, streams, visit, part, layout
):
    lengths, shards = shards_of(layout)
    indices = indices_of(layout)
    windows = drawn(kind(shards, CONTEXT, seed, streams, visit, part).draw(np.array(indices)))
    assert windows == [
        expected(lengths, CONTEXT, seed, streams, visit, part, index) for index in indices
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("seed", "part", "context"), [(0, 0, 16), (12345, 2, 16), (7, 0, 1), (7, 1, 5)]
)
def test_packed_windows_are_those_of_the_documented_layout(seed, part, context, layout):
    lengths, shards = shards_of(layout)
    indices = indices_of(layout)
    windows = drawn(PackedSampler(shards, context, seed, part).draw(np.array(indices)))
    assert windows == [
        reference.packed_window(lengths, context, seed, part, index) for index in indices
    ]


def test_a_dataset_alone_has_part_0():
    lengths, shards = shards_of("many shapes")
    indices = np.arange(40)
    for kind, expected in (
        (PaperSampler, reference.paper_window),
        (TokenUniformSampler, reference.uniform_window),
    ):
        windows = drawn(kind(shards, CONTEXT, 5, 2, 4).draw(indices))
        assert windows == [expected(lengths, CONTEXT, 5, 2, 4, 0, index) for index in range(40)]
    windows = drawn(PackedSampler(shards, CONTEXT, 5).draw(indices))
    assert windows == [
        reference.packed_window(lengths, CONTEXT, 5, 0, index) for index in range(40)
    ]


def test_no_index_gives_no_window():
    for each_sampler in (sampler(), uniform(), packed()):
        assert drawn(each_sampler.draw(np.empty(0, dtype=np.int64))) == []


def test_tokens_of_a_window_are_counted_on_average():
    assert (sampler().tokens_per_window, uniform().tokens_per_window) == (16.0, 16.0)
    # Of 40 tokens: windows of 17, 17 and 8 tokens. Of 16: one window. Of 1: none. Tokens: 16 + 16 +
    # 7 + 15.
    packed_sampler = packed(shards=[Lengths(40, 16), Lengths(1)])
    assert (packed_sampler.windows_per_epoch, packed_sampler.tokens_per_window) == (4, 54 / 4)


@pytest.mark.parametrize(("make", "least"), [(sampler, 17), (uniform, 17), (packed, 2)])
def test_an_error_tells_the_least_and_the_longest_length(make, least):
    with pytest.raises(
        InputError, match=f"a window takes {least} tokens, the longest document has 1;"
    ):
        make(shards=[Lengths(0), Lengths(1), Lengths(1, 0)])
    with pytest.raises(
        InputError, match=f"a window takes {least} tokens, the longest document has 0;"
    ):
        make(shards=[])


GOLDEN = [(0, 3, 66, 17), (0, 0, 0, 17), (0, 3, 67, 17), (2, 0, 833, 17), (0, 0, 0, 17)]
GOLDEN_UNIFORM = [
    (2, 0, 176, 17),
    (0, 1, 11, 17),
    (2, 0, 699, 17),
    (2, 0, 312, 17),
    (2, 0, 415, 17),
]
GOLDEN_PACKED = [(1, 1, 0, 16), (1, 0, 0, 5), (3, 1, 0, 17), (2, 0, 736, 17), (2, 0, 416, 17)]
