"""Philox4x64-10 against numpy's own, and the documented layout on top of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import reference_draws as reference
from tokencodes import philox

WORD = st.integers(0, 2**64 - 1)


@settings(max_examples=60, deadline=None)
@given(st.tuples(WORD, WORD), st.tuples(st.integers(0, 2**64 - 2), WORD, WORD, WORD))
def test_a_block_is_numpys_block(key, counter):
    expected = np.random.Philox(
        counter=np.array(counter, np.uint64), key=np.array(key, np.uint64)
    ).random_raw(4)
    # numpy counts up before it draws
    ours = philox.philox(key, np.array([[counter[0] + 1, *counter[1:]]], np.uint64))
    assert ours[0].tolist() == expected.tolist()


@given(WORD, WORD)
def test_multiply_high_is_the_high_half_of_the_product(a, b):
    assert int(philox.multiply_high(np.array([a], np.uint64), np.uint64(b))[0]) == a * b >> 64


# Of Random123, the library of the authors (`kat_vectors`, philox4x64 with 10 rounds): counter, key,
# words.
KNOWN = [
    ("0" * 16, "0" * 16, "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
    ("f" * 16, "f" * 16, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
    (
        "243f6a8885a308d3 13198a2e03707344 a4093822299f31d0 082efa98ec4e6c89",
        "452821e638d01377 be5466cf34e90c6c",
        "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
    ),
]


def numbers(text: str, count: int) -> list[int]:
    """Hexadecimal words; a single one stands for all."""
    words = [int(word, 16) for word in text.split()]
    return words * count if len(words) == 1 else words


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_blocks_come_out(counter, key, expected):
    counters, pair = numbers(counter, 4), tuple(numbers(key, 2))
    assert philox.philox(pair, np.array([counters], np.uint64))[0].tolist() == numbers(expected, 4)
    assert list(reference.philox(pair, tuple(counters))) == numbers(expected, 4)


def test_several_counters_give_a_block_each():
    counters = [[1, 2, 3, 4], [5, 6, 7, 8], [2**64 - 1, 0, 2**63, 9]]
    blocks = philox.philox((11, 12), np.array(counters, np.uint64))
    assert blocks.tolist() == [
        list(reference.philox((11, 12), tuple(counter))) for counter in counters
    ]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 21])
@pytest.mark.parametrize("index", [(), (7, 8, 2**64 - 1)])
def test_a_stream_is_the_words_of_counters_in_a_row(count, index):
    expected = reference.stream(2**64 - 1, "x", count, *index)
    assert (philox.stream(2**64 - 1, "x", count, *([index] if index else []))).tolist() == expected


@pytest.mark.parametrize("size", [0, 1, 2, 13])
@pytest.mark.parametrize("index", [(), (1, 2, 3)])
def test_a_permutation_is_the_order_of_a_stream(size, index):
    expected = reference.permutation(9, "order", size, *index)
    actual = philox.permutation(9, "order", size, *([index] if index else []))
    assert (actual.dtype, actual.tolist()) == (np.int64, expected)


def test_a_key_is_the_seed_and_the_first_eight_letters_of_the_purpose():
    assert philox.key(0, "") == (0, 0)
    assert philox.key(2**64 - 1, "a") == (2**64 - 1, ord("a"))
    assert (
        philox.key(1, "abcdefghi")
        == philox.key(1, "abcdefgh")
        == (1, int.from_bytes(b"abcdefgh", "little"))
    )
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="is not in 0"):
            philox.key(seed, "a")


def test_multiply_high_takes_arrays_and_bounds():
    edge = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
    left, right = (
        np.array([a for a in edge for _ in edge], np.uint64),
        np.array(edge * len(edge), np.uint64),
    )
    assert philox.multiply_high(left, right).tolist() == [a * b >> 64 for a in edge for b in edge]
    assert philox.multiply_high(left, 2**63).tolist() == [a >> 1 for a in edge for _ in edge]


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
