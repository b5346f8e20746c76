"""The permutation by formula: one image each, the same on numpy and torch, and no trace of the
order.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import reference_draws as reference
from tokencodes.scatter import LARGEST, mix, round_keys, scatter


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**63 - 1))
def test_it_is_a_permutation_that_keeps_0(size, seed):
    images = scatter(np.arange(size), size, round_keys(size, seed))
    assert images[0] == 0
    assert sorted(images.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 33, 3072, 2**40 + 1, LARGEST])
@pytest.mark.parametrize("seed", [0, 12345, 2**64 - 1])
def test_images_are_those_of_the_documented_shuffle(size, seed):
    numbers = sorted({0, *range(min(size, 12)), size // 2, size - 1})
    images = scatter(np.array(numbers), size, round_keys(size, seed))
    assert images.tolist() == [reference.scattered(number, size, seed) for number in numbers]


def test_the_hash_is_murmurs_finaliser_on_62_bits():
    assert LARGEST == 2**62
    numbers = [0, 1, 2, 2**33, 2**61 + 12345, 2**62 - 1, 2**62, 2**63 - 1, -1]
    assert mix(np.array(numbers)).tolist() == [reference.hashed(number) for number in numbers]


def test_round_keys_are_four_a_bit():
    assert [len(round_keys(size, 1)) for size in (1, 2, 3, 4, 5, 8, 9, 2**20, 2**20 + 1)] == [
        4,
        4,
        8,
        8,
        12,
        12,
        16,
        80,
        84,
    ]
    for total, key in round_keys(1000, 3):
        assert 0 <= total < 999
        assert 0 <= key < 2**62


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
