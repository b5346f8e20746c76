"""Lifts as matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokencodes.codes import lift


def test_tile_repeats_the_code_and_interleave_each_coordinate():
    assert lift.columns("tile", 3, 6).tolist() == [0, 1, 2, 0, 1, 2]
    assert lift.columns("interleave", 3, 6).tolist() == [0, 0, 1, 1, 2, 2]


@given(
    st.sampled_from(["tile", "interleave", "pad", "orthogonal"]),
    st.integers(1, 24),
    st.integers(0, 100),
)
def test_every_coordinate_is_shown_so_nothing_is_lost(name, width, extra):
    hidden = width + extra
    matrix = lift.matrix(name, width, hidden)
    assert matrix.shape == (hidden, width)
    assert np.linalg.matrix_rank(matrix) == width
    gram = matrix.T @ matrix
    np.testing.assert_allclose(gram, np.diag(lift.squared_scale(name, width, hidden)), atol=1e-4)
    if name in ("tile", "interleave"):
        copies = matrix.sum(0)
        assert copies.max() - copies.min() <= 1


def test_an_unknown_lift_is_refused():
    with pytest.raises(ValueError, match="does not copy coordinates"):
        lift.columns("fold", 2, 4)
