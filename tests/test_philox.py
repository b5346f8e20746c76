"""Philox4x64-10 against numpy's own, and the documented layout on top of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencodes import philox

WORD = st.integers(0, 2**64 - 1)


@settings(max_examples=60, deadline=None)
@given(st.tuples(WORD, WORD), st.tuples(st.integers(0, 2**64 - 2), WORD, WORD, WORD))
def test_a_block_is_numpys_block(key, counter):
    theirs = np.random.Philox(counter=np.array(counter, np.uint64), key=np.array(key, np.uint64)).random_raw(4)
    ours = philox.philox(key, np.array([[counter[0] + 1, *counter[1:]]], np.uint64))  # numpy counts up before it draws
    assert ours[0].tolist() == theirs.tolist()


@given(WORD, WORD)
def test_multiply_high_is_the_high_half_of_the_product(a, b):
    assert int(philox.multiply_high(np.array([a], np.uint64), np.uint64(b))[0]) == a * b >> 64


def test_streams_of_different_purposes_seeds_and_indices_differ():
    drawn = [
        philox.stream(1, "windows", 8),
        philox.stream(2, "windows", 8),
        philox.stream(1, "shards", 8),
        philox.stream(1, "windows", 8, (1, 0, 0)),
    ]
    assert len({array.tobytes() for array in drawn}) == 4


def test_a_longer_stream_begins_with_the_shorter_one():
    assert philox.stream(7, "x", 5).tolist() == philox.stream(7, "x", 11)[:5].tolist()


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_permutation_holds_each_number_once(size):
    assert sorted(philox.permutation(3, "p", size).tolist()) == list(range(size))


def test_the_layout_is_fixed_for_good():
    assert philox.key(5, "windows") == (5, int.from_bytes(b"windows\0", "little"))
    assert philox.permutation(0, "id-order", 8).tolist() == GOLDEN_PERMUTATION


GOLDEN_PERMUTATION = [6, 0, 3, 5, 1, 2, 4, 7]
