"""Informed assignments: permutations that keep 0, and that put what is alike together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencodes.codes import assign


def test_ranked_gives_low_words_to_frequent_tokens():
    counts = np.array([7, 3, 9, 3, 0, 12])
    assert assign.ranked(counts).tolist() == [0, 3, 2, 4, 5, 1]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.integers(0, 5))
def test_clustered_is_a_permutation_for_any_vocabulary(size, seed):
    vectors = np.random.default_rng(seed).normal(size=(size, 4))
    assign.check_order(assign.clustered(vectors, seed), size, None)


@pytest.mark.parametrize("size", [64, 96])
def test_clustered_gives_one_high_bit_to_tokens_that_are_used_alike(size):
    random = np.random.default_rng(1)
    kind = random.permutation(np.arange(size) >= size // 2 if size == 64 else np.arange(size) >= 64)
    vectors = np.where(kind[:, None], 1.0, -1.0) * np.array([3.0, 0, 0]) + 0.1 * random.normal(
        size=(size, 3)
    )
    order = assign.clustered(vectors, 0)
    top = order[1:] >> ((size - 1).bit_length() - 1) & 1
    share = (top == kind[1:]).mean()
    assert max(share, 1 - share) > 0.95


def test_vectors_without_any_difference_are_no_problem():
    assign.check_order(assign.clustered(np.zeros((33, 3)), 0), 33, None)
