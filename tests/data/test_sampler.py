"""The sampler as a pure function, and what it samples."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tokencodes.data.sampler import PaperSampler
from tokencodes.errors import InputError

CONTEXT = 16


class Lengths:
    """A shard as the sampler sees it."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = np.array(lengths, dtype=np.int64)
        self.offsets = np.append(0, np.cumsum(self.lengths))
        self.longest = max(lengths)


SHARDS = [Lengths(17, 40, 3, 100), Lengths(5, 16), Lengths(1000), Lengths(30, 30, 30)]  # the second has no window


def sampler(seed: int = 1, streams: int = 2, visit: int = 4, shards=SHARDS) -> PaperSampler:
    return PaperSampler(shards, CONTEXT, seed, streams, visit)


def drawn(found) -> list[tuple[int, int, int, int]]:
    return list(zip(*(array.tolist() for array in astuple(found)), strict=True))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**62), st.lists(st.integers(0, 10**13), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 9))
def test_a_window_depends_on_seed_and_index_alone(seed, indices, streams, visit):
    one = sampler(seed, streams, visit)
    together = drawn(one.draw(np.array(indices, dtype=np.int64)))
    alone = [drawn(sampler(seed, streams, visit).draw(np.array([i], dtype=np.int64)))[0] for i in reversed(indices)]
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
    found = sampler(shards=[Lengths(20, 100, 57, 10)]).draw(np.arange(30_000))
    documents, counts = np.unique(found.document, return_counts=True)
    assert documents.tolist() == [0, 1, 2]
    assert stats.chisquare(counts).pvalue > 1e-3
    starts = np.bincount(found.start[found.document == 1], minlength=84)
    assert len(starts) == 100 - CONTEXT
    assert stats.chisquare(starts).pvalue > 1e-3


def test_seeds_see_different_windows():
    assert drawn(sampler(1).draw(np.arange(50))) != drawn(sampler(2).draw(np.arange(50)))


def test_the_windows_of_a_seed_never_change():
    assert drawn(sampler(12345).draw(np.array([0, 1, 2, 17, 10**12]))) == GOLDEN


def test_no_document_long_enough_is_an_error():
    with pytest.raises(InputError, match="a window takes 17 tokens, the longest document has 16"):
        sampler(shards=[Lengths(5, 16)])


GOLDEN = [(0, 3, 66, 17), (0, 0, 0, 17), (0, 3, 67, 17), (2, 0, 833, 17), (0, 0, 0, 17)]
