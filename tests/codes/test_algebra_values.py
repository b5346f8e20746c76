"""GF(2) algebra and BCH codes, against published tables and computations of another kind."""

import numpy as np
import pytest

from tokencodes.codes import bch, gf2
from tokencodes.errors import InputError
from tokencodes.philox import key, philox


def test_a_product_is_taken_modulo_two():
    left = np.array([[1, 1, 1], [1, 0, 1]], dtype=np.uint8)
    right = np.array([[1, 1], [1, 0], [1, 1]], dtype=np.uint8)
    product = gf2.multiply(left, right)
    assert product.tolist() == [[1, 0], [0, 0]] and product.dtype == np.uint8
    wide = np.ones((1, 300), dtype=np.uint8)  # more than a byte counts to
    assert gf2.multiply(wide, wide.T).tolist() == [[0]] and gf2.multiply(
        wide[:, :299], wide.T[:299]
    ).tolist() == [[1]]


def test_the_rank_of_a_tall_matrix_may_lie_in_its_last_rows():
    nothing, identity = np.zeros((150, 5), dtype=np.uint8), np.eye(5, dtype=np.uint8)
    assert gf2.rank(np.vstack([nothing, identity])) == 5 == gf2.rank(np.vstack([identity, nothing]))
    assert gf2.rank(np.vstack([nothing, identity[:2], nothing, identity[1:4]])) == 4
    assert gf2.rank(nothing) == 0
    wide = np.eye(80, 90, dtype=np.uint8)
    assert gf2.rank(np.vstack([np.zeros((170, 90), dtype=np.uint8), wide])) == 80


def test_an_inverse_by_hand_and_one_that_is_none():
    assert gf2.inverse(np.array([[1, 1], [0, 1]], dtype=np.uint8)).tolist() == [[1, 1], [0, 1]]
    assert gf2.inverse(np.array([[0, 1, 0], [0, 0, 1], [1, 1, 0]], dtype=np.uint8)).tolist() == [
        [1, 0, 1],
        [1, 0, 0],
        [0, 1, 0],
    ]
    with pytest.raises(ValueError, match="matrix of rank 1 over GF"):
        gf2.inverse(np.ones((2, 2), dtype=np.uint8))


def candidate(size, seed, draw):
    """The n-th candidate by the written rule, one bit after the other."""
    rows = []
    for row in range(size):
        counters = np.array(
            [[block, row, draw, 0] for block in range(-(-size // 256))], dtype=np.uint64
        )
        stream = philox(key(seed, "gf2-rows"), counters).reshape(-1)
        rows.append([int(stream[bit // 64]) >> (bit % 64) & 1 for bit in range(size)])
    return np.array(rows, dtype=np.uint8)


def full_rank(matrix):
    """By integers: a row that is the xor of others leaves nothing."""
    basis = []
    for row in matrix:
        value = int("".join(map(str, row)), 2)
        for other in basis:
            value = min(value, value ^ other)
        if not value:
            return False
        basis.append(value)
    return True


@pytest.mark.parametrize(
    ("size", "seed", "weight"), [(8, 1, 3), (9, 2, 4), (12, 12345, 4), (12, 3, 0), (6, 5, 2)]
)
def test_the_first_candidate_that_meets_the_conditions_is_drawn(size, seed, weight):
    for draw in range(gf2.MAX_DRAWS):
        expected = candidate(size, seed, draw)
        if min(expected.sum(0).min(), expected.sum(1).min()) >= weight and full_rank(expected):
            break
    assert np.array_equal(gf2.draw_matrix(size, seed, weight), expected)


def test_a_least_weight_may_be_met_exactly():
    weights = [gf2.draw_matrix(8, seed, 3) for seed in range(12)]
    assert min(min(matrix.sum(0).min(), matrix.sum(1).min()) for matrix in weights) == 3


@pytest.mark.parametrize("size", [64, 65, 256, 257])
def test_wide_rows_take_their_bits_from_the_words_in_order(size):
    matrix = gf2._candidate(size, 7, 3)
    assert np.array_equal(matrix, candidate(size, 7, 3)) and matrix.dtype == np.uint8


def test_ten_thousand_candidates_are_tried(monkeypatch):
    assert gf2.MAX_DRAWS == 10_000
    tried = []
    monkeypatch.setattr(gf2, "MAX_DRAWS", 7)
    monkeypatch.setattr(
        gf2,
        "_candidate",
        lambda size, seed, draw: tried.append(draw) or np.zeros((3, 3), dtype=np.uint8),
    )
    with pytest.raises(InputError, match="in 7 draws from seed 5"):
        gf2.draw_matrix(3, 5, 1)
    assert tried == list(range(7))


@pytest.mark.parametrize("m", range(3, 10))
def test_the_polynomials_are_primitive(m):
    polynomial = bch.PRIMITIVE[m]
    assert polynomial.bit_length() == m + 1
    value, seen = 1, []
    for _ in range(2**m - 1):
        seen.append(value)
        value = bch.remainder(value << 1, polynomial)
    assert value == 1 and len(set(seen)) == 2**m - 1 and bch._power_table(m) == seen
    assert [*bch.PRIMITIVE] == [3, 4, 5, 6, 7, 8, 9]


PUBLISHED = {  # n -> (k, t), Lin and Costello, appendix on primitive BCH codes
    7: [(4, 1)],
    15: [(11, 1), (7, 2), (5, 3)],
    31: [(26, 1), (21, 2), (16, 3), (11, 5), (6, 7)],
    63: [
        (57, 1),
        (51, 2),
        (45, 3),
        (39, 4),
        (36, 5),
        (30, 6),
        (24, 7),
        (18, 10),
        (16, 11),
        (10, 13),
        (7, 15),
    ],
    127: [
        (120, 1),
        (113, 2),
        (106, 3),
        (99, 4),
        (92, 5),
        (85, 6),
        (78, 7),
        (71, 9),
        (64, 10),
        (57, 11),
        (50, 13),
        (43, 14),
    ],
    255: [
        (247, 1),
        (239, 2),
        (231, 3),
        (223, 4),
        (215, 5),
        (207, 6),
        (199, 7),
        (191, 8),
        (187, 9),
        (179, 10),
        (171, 11),
    ],
}


@pytest.mark.parametrize(
    ("length", "size", "errors"), [(n, k, t) for n, codes in PUBLISHED.items() for k, t in codes]
)
def test_lengths_and_distances_are_the_published_ones(length, size, errors):
    code = bch.best_code(size, length)
    assert (code.generator.bit_length() - 1, code.distance, code.extended) == (
        length - size,
        2 * errors + 1,
        False,
    )
    assert code.parity_bits == length - size
    longer = bch.best_code(size, length + 1)
    assert (longer.distance, longer.extended, longer.parity_bits) == (
        2 * errors + 2,
        True,
        length - size + 1,
    )
    assert longer.generator == code.generator


@pytest.mark.parametrize(("m", "errors"), [(4, 2), (5, 3), (6, 4)])
def test_a_generator_has_its_roots_and_divides_the_cyclic_polynomial(m, errors):
    length = 2**m - 1
    size = {t: k for k, t in PUBLISHED[length]}[errors]
    generator = bch.best_code(size, length).generator
    assert bch.remainder(1 << length | 1, generator) == 0
    powers = bch._power_table(m)
    for exponent in range(1, 2 * errors + 1):
        value = 0
        for degree in range(generator.bit_length()):
            if generator >> degree & 1:
                value ^= powers[exponent * degree % length]
        assert value == 0


@pytest.mark.parametrize(("message", "width"), [(4, 4), (9, 9), (12, 13), (500, 502)])
def test_there_is_no_code_without_room_for_its_parity(message, width):
    assert bch.best_code(message, width) is None
    assert bch.masks(message, width) == [1 << (place % message) for place in range(width)]


def test_the_hamming_code_by_hand():
    # g = x^3 + x + 1; x^3, x^4, x^5, x^6 mod g are 011, 110, 111, 101
    assert bch.best_code(4, 7).generator == 0b1011
    parities = [0b1101, 0b0111, 0b1110]
    assert bch.masks(4, 7) == [1, 2, 4, 8, *parities]
    assert bch.masks(4, 8) == [1, 2, 4, 8, *parities, 0b1011]
    assert bch.masks(4, 10) == [1, 2, 4, 8, *parities, 0b1011, 1, 2]


@pytest.mark.parametrize(
    ("value", "modulus", "left"),
    [
        (0b1000, 0b1011, 0b011),
        (0b1011, 0b1011, 0),
        (0b11, 0b1011, 0b11),
        (0b1110101, 0b10011, 0b1101),
    ],
)
def test_a_remainder_by_long_division(value, modulus, left):
    quotient_free = value
    while quotient_free.bit_length() >= modulus.bit_length():
        quotient_free ^= modulus << (quotient_free.bit_length() - modulus.bit_length())
    assert bch.remainder(value, modulus) == quotient_free
    if modulus == 0b1011:
        assert bch.remainder(value, modulus) == left


@pytest.mark.parametrize(("message", "width"), [(5, 14), (7, 16), (8, 20), (6, 31)])
def test_every_word_is_as_far_from_the_others_as_is_guaranteed(message, width):
    masks = bch.masks(message, width)
    weights = [
        sum((number & mask).bit_count() & 1 for mask in masks) for number in range(1, 1 << message)
    ]
    assert len(masks) == width and min(weights) >= bch.best_code(message, width).distance > 2
