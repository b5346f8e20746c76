"""Words, assignments, lifts and stored tables, each by a computation of another kind."""

import hashlib
import math

import numpy as np
import pytest

from tokencodes import philox
from tokencodes.codes import InterfaceSpec, assign, build_codebook, gf2, lift, tables, words
from tokencodes.codes.codebook import array_sha256
from tokencodes.errors import InputError
from tokencodes.scatter import mix, scatter


def book(spec, vocab):
    return build_codebook(InterfaceSpec.parse(spec), vocab)


def bits_of(number, width):
    return [number >> bit & 1 for bit in range(width)]


def test_parities_count_the_bits_that_number_and_mask_have_in_common():
    numbers = np.array([0, 1, 5, 2**40 + 1, 2**61 - 1, 2**62 - 7], dtype=np.int64)
    masks = np.array([1, 4, 2**40, 2**61 - 1, 2**62 - 1, 3 << 31], dtype=np.int64)
    expected = [[(int(n) & int(m)).bit_count() & 1 for m in masks] for n in numbers]
    assert words.parities(numbers, masks).tolist() == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("binary", [1, 2, 4, 8]),
        ("binary:width=6", [1, 2, 4, 8, 0, 0]),
        ("binary:endian=big", [8, 4, 2, 1]),
        ("binary:width=5,endian=big", [0, 8, 4, 2, 1]),
        ("gray", [3, 6, 12, 8]),
        ("gray:width=6", [3, 6, 12, 8, 0, 0]),
        ("ecc:width=7", [1, 2, 4, 8, 13, 7, 14]),
    ],
)
def test_the_masks_of_linear_words(spec, expected):
    masks = words.linear_masks(InterfaceSpec.parse(spec), 13, {})
    assert masks.tolist() == expected and masks.dtype == np.int64


def test_gf2_masks_are_the_rows_of_the_matrix():
    spec = InterfaceSpec.parse("gf2:width=8,seed=3")
    arrays = words.gf2_arrays(spec, 8)
    assert np.array_equal(arrays["matrix"], gf2.draw_matrix(8, 3, 4)) and not arrays["offset"].any()
    masks = words.linear_masks(spec, 13, arrays)  # a number has 4 bits
    assert masks.tolist() == [
        sum(int(bit) << place for place, bit in enumerate(row[:4])) for row in arrays["matrix"]
    ]


def test_an_affine_offset_is_the_top_bit_of_each_drawn_word():
    arrays = words.gf2_arrays(InterfaceSpec.parse("gf2:width=8,seed=3,affine=true,min_weight=2"), 8)
    assert arrays["offset"].tolist() == [int(word) >> 63 for word in philox.stream(3, "gf2-off", 8)]
    assert arrays["offset"].dtype == np.uint8 and np.array_equal(
        arrays["matrix"], gf2.draw_matrix(8, 3, 2)
    )
    plain, affine = (
        book("gf2:width=8,min_weight=2", 20),
        book("gf2:width=8,min_weight=2,affine=true", 20),
    )
    assert (
        np.array_equal(plain.words_VK ^ affine.arrays["offset"], affine.words_VK)
        and affine.arrays["offset"].any()
    )


def test_gray_words_are_those_of_n_xor_half_n():
    assert book("gray", 13).words_VK.tolist() == [bits_of(n ^ n >> 1, 4) for n in range(13)]


@pytest.mark.parametrize("width", [5, 62, 63, 124, 125, 150])
def test_random_words_are_a_permutation_then_hashes_of_the_number(width):
    drawn_words = book(f"random:width={width},seed=4", 20).words_VK
    permutation, blocks = words.random_keys(width, 4)
    assert len(blocks) == -(-width // 62) - 1
    drawn = philox.stream(4, "randbits", 2 * len(blocks)) >> np.uint64(2)
    assert [value for pair in blocks for value in pair] == [int(value) for value in drawn]
    numbers = np.arange(20, dtype=np.int64)
    parts = [scatter(numbers, 1 << min(width, 62), permutation)]
    parts += [
        np.where(numbers == 0, 0, mix(mix(numbers ^ first) ^ second)) for first, second in blocks
    ]
    expected = [
        [bit for part in parts for bit in bits_of(int(part[n]), 62)][:width] for n in range(20)
    ]
    assert (
        drawn_words.tolist() == expected
        and not drawn_words[0].any()
        and drawn_words[1:].any(0).all()
    )


@pytest.mark.parametrize(
    ("count", "base", "width"), [(1000, 10, 30), (17, 16, 32), (9, 3, 6), (5, 2, 6)]
)
def test_digits_are_one_hot_places_of_the_number(count, base, width):
    shown_digits = words.digits(count, base, width)
    for number in range(count):
        places = [number // base**place % base for place in range(width // base)]
        assert np.flatnonzero(shown_digits[number]).tolist() == [
            place * base + digit for place, digit in enumerate(places)
        ]
    assert shown_digits.dtype == np.uint8


def test_gaussian_words_are_numpys_philox_normals():
    key = np.array([9, int.from_bytes(b"floats\0\0", "little")], dtype=np.uint64)
    drawn = np.random.Generator(np.random.Philox(key=key)).standard_normal(
        (50, 6), dtype=np.float32
    )
    assert np.array_equal(book("gaussian:width=6,seed=9", 50).words_VK, drawn)
    sphere = book("sphere:width=6,seed=9", 50).words_VK
    expected = (
        drawn / np.linalg.norm(drawn.astype(np.float64), axis=1, keepdims=True) * math.sqrt(6)
    )
    np.testing.assert_allclose(sphere, expected, rtol=1e-6)
    assert sphere.dtype == np.float32


@pytest.mark.parametrize(("vocab", "width"), [(50, 8), (7, 4), (9, 2)])
def test_sines_and_cosines_go_from_one_radian_to_half_a_turn_over_the_vocabulary(vocab, width):
    shown_words = book(f"sincos:width={width}", vocab).words_VK
    pairs = width // 2
    for number in (0, 1, vocab // 2, vocab - 1):
        for pair in range(pairs):
            rate = (math.pi / vocab) ** (pair / (pairs - 1) if pairs > 1 else 1.0)
            expected = [math.sin(rate * number), math.cos(rate * number)]
            assert shown_words[number, 2 * pair : 2 * pair + 2].tolist() == pytest.approx(
                expected, abs=1e-6
            )


def test_an_assignment_gives_each_token_its_word():
    natural = book("binary", 13).words_VK
    assert assign.natural(5).tolist() == [0, 1, 2, 3, 4] and assign.natural(5).dtype == np.int64
    permuted = book("binary:ids=permuted,ids_seed=3", 13)
    assert np.array_equal(permuted.words_VK, natural[assign.permuted(13, 3)])
    floats = book("gaussian:ids=permuted,ids_seed=3", 13).words_VK
    assert np.array_equal(floats, book("gaussian", 13).words_VK[assign.permuted(13, 3)])
    assert np.array_equal(
        book("digits:ids=permuted,ids_seed=3", 13).words_VK,
        book("digits", 13).words_VK[assign.permuted(13, 3)],
    )
    assert (
        sorted(assign.permuted(13, 3)) == list(range(13))
        and assign.permuted(13, 3).tolist() != assign.permuted(13, 4).tolist()
    )


def spread(values, left):
    """The sum of squares within two parts."""
    return sum(((part - part.mean()) ** 2).sum() for part in (values[:left], values[left:]))


def bisected(vectors, seed):
    """The written rule once more: main direction by eigenvectors, groups by recursion."""
    order = np.zeros(len(vectors), dtype=int)
    start = philox.stream(seed, "bisect", vectors.shape[1]).astype(np.float64) / 2.0**63 - 1.0

    def split(members, first):
        if len(members) == 1:
            order[members] = first
            return
        last = first + len(members) - 1
        top = max(bit for bit in range(20) if (first >> bit & 1) != (last >> bit & 1))
        left = (last >> top << top) - first
        centred = vectors[members] - vectors[members].mean(0)
        direction = np.linalg.eigh(centred.T @ centred)[1][:, -1]
        along = centred @ (direction if direction @ start > 0 else -direction)
        if spread(np.sort(-along), left) < spread(np.sort(along), left) - 1e-9:
            along = -along
        members = members[np.argsort(along, kind="stable")]
        split(members[:left], first)
        split(members[left:], first + left)

    split(np.arange(1, len(vectors)), 1)
    return order


@pytest.mark.parametrize(
    ("count", "seed"),
    [(2, 0), (3, 0), (4, 1), (7, 2), (12, 3), (33, 4), (50, 5), (64, 6), (100, 7)],
)
def test_clusters_are_cut_along_the_main_direction_where_a_bit_changes(count, seed):
    scales = np.array([9.0, 1.0, 0.1])  # far apart, so that the main direction is clear
    vectors = np.random.default_rng(seed).normal(size=(count, 3)) * scales
    order = assign.clustered(vectors, seed)
    assert order.dtype == np.int32
    if count <= 12:
        assert order.tolist() == bisected(vectors, seed).tolist()
    else:  # deep in the tree a main direction may be unclear; the first cut is not
        top = (count - 1).bit_length() - 1
        assert ((order >> top & 1) == (bisected(vectors, seed) >> top & 1)).all()


def test_an_order_is_named_by_its_bytes_and_checked():
    order = np.array([0, 2, 1], dtype=np.int32)
    expected = hashlib.sha256(b"\0\0\0\0\2\0\0\0\1\0\0\0").hexdigest()[:16]
    assert assign.order_hash(order) == expected and len(expected) == 16
    assign.check_order(order, 3, None)
    assign.check_order(order, 3, expected)
    for wrong, count, named in (
        (order, 4, None),
        (np.array([0, 1, 1], dtype=np.int32), 3, None),
        (np.array([1, 0, 2], dtype=np.int32), 3, None),
        (np.array([0, 1, 3], dtype=np.int32), 3, None),
        (order, 3, "another"),
    ):
        with pytest.raises(InputError, match="order: "):
            assign.check_order(wrong, count, named)


@pytest.mark.parametrize(
    ("name", "width", "hidden", "shown"),
    [
        ("tile", 3, 7, [0, 1, 2, 0, 1, 2, 0]),
        ("interleave", 3, 7, [0, 0, 0, 1, 1, 2, 2]),
        ("interleave", 2, 5, [0, 0, 0, 1, 1]),
        ("pad", 3, 5, [0, 1, 2, -1, -1]),
        ("pad", 3, 3, [0, 1, 2]),
    ],
)
def test_each_channel_shows_a_coordinate_or_nothing(name, width, hidden, shown):
    columns = lift.columns(name, width, hidden)
    assert columns.tolist() == shown and columns.dtype == np.int64
    expected = np.array(
        [[float(column == channel) for column in range(width)] for channel in shown]
    )
    assert np.array_equal(lift.matrix(name, width, hidden), expected)
    assert lift.squared_scale(name, width, hidden).tolist() == expected.sum(0).tolist()


def test_the_orthogonal_lift_is_the_signed_qr_of_seeded_normals():
    key = np.array([5, int.from_bytes(b"lift\0\0\0\0", "little")], dtype=np.uint64)
    normals = np.random.Generator(np.random.Philox(key=key)).standard_normal((12, 4))
    lifted = lift.orthogonal(4, 12, 5)
    assert lifted.dtype == np.float32 and lifted.shape == (12, 4)
    unit = lifted / math.sqrt(12 / 4)
    np.testing.assert_allclose(unit.T @ unit, np.eye(4), atol=1e-6)
    upper = unit.T @ normals
    np.testing.assert_allclose(np.tril(upper, -1), 0, atol=1e-5)
    assert (np.diag(upper) > 0).all() and np.array_equal(
        lift.matrix("orthogonal", 4, 12, 5), lifted.astype(np.float64)
    )
    assert lift.squared_scale("orthogonal", 4, 12).tolist() == [3.0] * 4
    assert not np.array_equal(lift.orthogonal(4, 12, 6), lifted)
    assert np.array_equal(
        lift.matrix("orthogonal", 4, 12), lift.orthogonal(4, 12, 0).astype(np.float64)
    )


TABLES = {
    "binary": {"codebook"},
    "binary:width=16": {"codebook"},
    "binary:width=17": {"codebook"},
    "random:width=80": {"codebook"},
    "binary:values=pm1": {"codebook"},
    "binary:values=pm1,scale=2": {"codebook", "levels"},
    "binary:center=true": {"codebook", "levels"},
    "binary:scale=match": {"codebook", "levels"},
    "gf2:width=10": {"codebook", "matrix", "offset"},
    "gf2:width=10,storage=computed": {"masks", "matrix", "offset"},
    "gray:storage=computed": {"masks"},
    "random:storage=computed": set(),
    "random:storage=computed,scale=2": {"levels"},
    "gaussian": {"codebook"},
    "gaussian:scale=2": {"codebook"},
    "sincos:lift=orthogonal": {"codebook", "lift"},
    "binary:lift=orthogonal,lift_seed=4": {"codebook", "lift"},
}


@pytest.mark.parametrize(("text", "names"), TABLES.items())
def test_a_model_stores_these_tables_in_these_shapes(text, names):
    codes = book(text, 40)
    stored = tables.make_tables(codes, 90)
    assert stored.keys() == names
    assert {
        name: (table.shape, table.dtype.name) for name, table in stored.items()
    } == tables.shapes(codes.spec, 40, 90)


def test_tables_hold_what_they_are_named_after():
    wide = book("binary:width=17,values=pm1,scale=2", 40)
    stored = tables.make_tables(wide, 90)
    assert np.array_equal(
        np.unpackbits(stored["codebook"], axis=1, bitorder="little")[:, :17], wide.words_VK
    )
    assert stored["levels"].view(np.float32).tolist() == [[-2.0] * 17, [2.0] * 17]
    assert tables.shapes(wide.spec, 40, 90)["codebook"] == ((40, 3), "uint8")
    narrow = book("binary:width=16", 40)
    assert tables.make_tables(narrow, 90)["codebook"] is narrow.words_VK and narrow.width == 16
    floats = book("gaussian:scale=2", 40)
    assert np.array_equal(
        tables.make_tables(floats, 90)["codebook"].view(np.float32),
        2 * book("gaussian", 40).words_VK,
    )
    turned = tables.make_tables(book("binary:lift=orthogonal,lift_seed=4", 40), 90)["lift"].view(
        np.float32
    )
    assert np.array_equal(turned, lift.orthogonal(6, 90, 4))
    masks = tables.make_tables(book("gray:storage=computed", 40), 90)["masks"]
    assert masks.tolist() == words.linear_masks(InterfaceSpec.parse("gray"), 40, {}).tolist()


def test_an_informed_order_is_stored_unless_the_code_is_learned():
    for text, names in (
        ("binary:ids=ranked", {"order", "codebook"}),
        ("gf2:ids=ranked,width=8", {"order", "codebook", "matrix", "offset"}),
        ("learned-code:ids=ranked", set()),
        ("learned-code:init=gf2,width=8", set()),
        ("learned-code:lift=orthogonal", {"lift"}),
    ):
        assert tables.shapes(InterfaceSpec.parse(text), 40, 90).keys() == names
    assert tables.shapes(InterfaceSpec.parse("binary:ids=ranked"), 40, 90)["order"] == (
        (40,),
        "int32",
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("binary", ()),
        ("gaussian", ("codebook",)),
        ("gaussian:lift=orthogonal", ("codebook", "lift")),
        ("binary:lift=orthogonal", ("lift",)),
        ("learned-code:init=gaussian", ()),
        ("learned-code:lift=orthogonal", ("lift",)),
        ("learned", ()),
    ],
)
def test_float_tables_travel(text, names):
    assert tables.hashed_tables(InterfaceSpec.parse(text)) == names


def test_the_hash_of_a_model_covers_what_travels_and_the_bits():
    def hashed(text):
        codes = book(text, 40)
        return tables.tables_sha256(codes.spec, tables.make_tables(codes, 90), codes.sha256), codes

    digest, codes = hashed("binary")
    assert digest == codes.sha256
    digest, codes = hashed("gaussian")
    stored = tables.make_tables(codes, 90)["codebook"]
    assert digest == hashlib.sha256(f"codebook:{array_sha256(stored)}".encode()).hexdigest()
    digest, codes = hashed("binary:lift=orthogonal")
    turned = tables.make_tables(codes, 90)["lift"]
    assert (
        digest == hashlib.sha256(f"{codes.sha256};lift:{array_sha256(turned)}".encode()).hexdigest()
    )
    learned = InterfaceSpec.parse("learned-code:lift=orthogonal")
    assert (
        tables.tables_sha256(learned, {"lift": turned}, None)
        == hashlib.sha256(f"lift:{array_sha256(turned)}".encode()).hexdigest()
    )
    none = tables.tables_sha256(
        InterfaceSpec.parse("binary:lift=orthogonal"), {"lift": turned}, None
    )
    assert none == hashlib.sha256(f";lift:{array_sha256(turned)}".encode()).hexdigest()
