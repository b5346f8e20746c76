"""The permutation by formula: one image each, the same on numpy and torch, and no trace of the order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencodes.scatter import LARGEST, round_keys, scatter


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**63 - 1))
def test_it_is_a_permutation_that_keeps_0(size, seed):
    images = scatter(np.arange(size), size, round_keys(size, seed))
    assert images[0] == 0
    assert sorted(images.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [2, 3072, 49152, 151_936, LARGEST])
def test_torch_and_numpy_give_the_same_images(size):
    x = np.unique(np.concatenate([np.arange(min(size, 2000)), [size - 1]]).astype(np.int64))
    keys = round_keys(size, 7)
    images = scatter(x, size, keys)
    assert np.array_equal(images, scatter(torch.from_numpy(x), size, keys, torch).numpy())
    assert len(np.unique(images)) == len(x)
    assert images.min() >= 0
    assert images.max() < size


def test_every_place_is_about_equally_likely():
    places = np.array([scatter(np.array([5]), 33, round_keys(33, seed))[0] for seed in range(4000)])
    counts = np.bincount(places, minlength=33)[1:]
    assert ((counts - 125) ** 2 / 125).sum() < 61.1  # chi-square, 31 degrees of freedom, p = 0.001


def test_no_order_is_left():
    images = scatter(np.arange(49152), 49152, round_keys(49152, 1))
    assert abs(np.corrcoef(np.arange(49152), images)[0, 1]) < 0.02
    assert len(np.unique(np.diff(images))) > 30_000
    for bit in range(14):  # the two high bits are not balanced at three quarters of 2^16
        for other in range(14):
            both = (np.arange(49152) >> bit & 1) == (images >> other & 1)
            assert abs(both.mean() - 0.5) < 0.02
