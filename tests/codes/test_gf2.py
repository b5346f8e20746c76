"""Algebra over GF(2), by its laws and by the conditions of the paper's matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tokencodes.codes import gf2
from tokencodes.errors import InputError

SQUARE = st.integers(1, 12).flatmap(lambda n: arrays(np.uint8, (n, n), elements=st.integers(0, 1)))


@settings(max_examples=150, deadline=None)
@given(SQUARE)
def test_a_matrix_has_an_inverse_exactly_if_its_rank_is_full(matrix):
    size = len(matrix)
    if gf2.rank(matrix) < size:
        with pytest.raises(ValueError, match="has no inverse"):
            gf2.inverse(matrix)
    else:
        inverse = gf2.inverse(matrix)
        assert np.array_equal(gf2.multiply(matrix, inverse), np.eye(size))
        assert np.array_equal(gf2.multiply(inverse, matrix), np.eye(size))


@settings(max_examples=100, deadline=None)
@given(SQUARE)
def test_rank_is_that_of_the_transpose_and_counts_the_distinct_images(matrix):
    rank = gf2.rank(matrix)
    assert rank == gf2.rank(np.ascontiguousarray(matrix.T))
    size = len(matrix)
    numbers = (np.arange(2**size)[:, None] >> np.arange(size) & 1).astype(np.uint8)
    assert len(np.unique(gf2.multiply(numbers, matrix), axis=0)) == 2**rank


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.uint8, st.tuples(st.integers(1, 300), st.integers(1, 8)), elements=st.integers(0, 1))
)
def test_the_rank_of_a_tall_matrix_is_that_of_its_rows(matrix):
    images = {tuple(row) for row in matrix.tolist()}
    span = {(0,) * matrix.shape[1]}
    for row in images:
        span |= {tuple(a ^ b for a, b in zip(row, other, strict=True)) for other in span}
    assert 2 ** gf2.rank(matrix) == len(span)


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 20), st.integers(0, 2**63 - 1))
def test_a_drawn_matrix_meets_the_papers_conditions(size, seed):
    matrix = gf2.draw_matrix(size, seed, 4)
    assert gf2.rank(matrix) == size
    assert matrix.sum(0).min() >= 4
    assert matrix.sum(1).min() >= 4
    assert np.array_equal(matrix, gf2.draw_matrix(size, seed, 4))


def test_wide_codes_take_several_words_a_row():
    matrix = gf2.draw_matrix(70, 1, 4)
    assert matrix.shape == (70, 70)
    assert matrix[:, 64:].any()


def test_impossible_weights_are_refused_with_a_way_out():
    with pytest.raises(InputError, match=r"seed 5; lower min_weight= or widen width="):
        gf2.draw_matrix(3, 5, 4)
