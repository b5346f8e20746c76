"""Codebooks, their certificates and their leak, each number by a computation of another kind."""

import hashlib
import math

import numpy as np
import pytest

from tokencodes import philox
from tokencodes.codes import InterfaceSpec, build_codebook, certificate, codebook, gf2, leak, lift
from tokencodes.codes.certificate import certify_code
from tokencodes.codes.codebook import (
    Codebook,
    array_sha256,
    by_rows,
    collisions,
    matrix_hash,
    read_matrix,
)
from tokencodes.errors import InputError

SHOWN = [
    "binary",
    "binary:values=pm1",
    "binary:scale=3",
    "binary:values=pm1,scale=0.5",
    "binary:center=true",
    "binary:values=pm1,center=true,scale=2",
    "binary:scale=match,std=0.1",
    "random:values=pm1,center=true,scale=match,lift=pad",
    "binary:scale=match,lift=interleave",
    "gaussian",
    "gaussian:scale=3",
    "gaussian:center=true",
    "gaussian:center=true,scale=match,lift=orthogonal",
    "sincos:scale=match,std=1,lift=interleave",
]
VOCAB, HIDDEN = 41, 15


def book(spec, vocab=VOCAB):
    return build_codebook(InterfaceSpec.parse(spec), vocab)


def made(words, spec="binary"):
    return Codebook(InterfaceSpec.parse(spec), np.array(words, dtype=np.uint8), {})


def shown_by_hand(codes):
    """Values, then centring, then scale, one after the other."""
    spec = codes.spec
    z = codes.words_VK.astype(np.float64)
    if spec.values == "pm1":
        z = 2 * z - 1
    if spec.center:
        z = z - z.mean(0)
    if spec.scale == "match":
        x = z @ lift.matrix(spec.lift, codes.width, HIDDEN, spec.lift_seed).T
        return z * math.sqrt(HIDDEN * spec.std**2 / (x**2).sum(1).mean())
    return z * spec.scale


@pytest.mark.parametrize("text", SHOWN)
@pytest.mark.parametrize("rows", [codebook.BLOCK_ROWS, 10])
def test_coordinates_norms_and_products_are_those_of_the_shown_words(text, rows, monkeypatch):
    monkeypatch.setattr(codebook, "BLOCK_ROWS", rows)
    codes = book(text)
    z = shown_by_hand(codes)
    coordinates = codes.coordinates(HIDDEN)
    np.testing.assert_allclose(coordinates, z, rtol=1e-5, atol=1e-6)
    assert coordinates.dtype == np.float32
    blocks = [*codes.blocks(HIDDEN)]
    assert len(blocks) == -(-VOCAB // rows) and blocks[0].dtype == np.float64
    np.testing.assert_allclose(np.concatenate(blocks), z, rtol=1e-5, atol=1e-6)
    x = z @ lift.matrix(codes.spec.lift, codes.width, HIDDEN, codes.spec.lift_seed).T
    np.testing.assert_allclose(codes.squared_norms(HIDDEN), (x**2).sum(1), rtol=1e-4)
    np.testing.assert_allclose(codes.gram(HIDDEN), z.T @ z, rtol=1e-4, atol=1e-4)
    assert codes.rank(HIDDEN) == np.linalg.matrix_rank(x, rtol=1e-5)
    levels = codes.levels(HIDDEN)
    if codes.spec.binary_valued and (codes.spec.center or codes.spec.scale != 1):
        assert np.array_equal(np.where(codes.words_VK == 1, levels[1], levels[0]), coordinates)
    else:
        assert levels is None


def test_a_code_of_zeros_has_no_norm_to_match():
    with pytest.raises(InputError, match="every vector is zero, so no scale can match a norm"):
        made(np.zeros((3, 4)), "binary:scale=match").coordinates(HIDDEN)


def test_the_hash_is_over_shape_type_and_rows():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    expected = hashlib.sha256(b"2,3,int32;" + array.tobytes()).hexdigest()
    assert array_sha256(array) == expected == array_sha256(np.asfortranarray(array))
    assert book("binary").sha256 == array_sha256(book("binary").words_VK)


@pytest.mark.parametrize("width", [3, 8, 9, 512, 513, 700])
def test_collisions_of_bits_at_any_width(width):
    words = np.random.default_rng(width).integers(0, 2, (12, width)).astype(np.uint8)
    words[:, : 4 if width > 3 else 3] = (
        np.arange(12)[:, None] >> np.arange(4 if width > 3 else 3) & 1
    )
    if width == 3:
        words = words[:8]
    assert collisions(words) == []
    words[5], words[7] = words[2], words[2]
    assert collisions(words) == [(2, 5), (2, 7)]


@pytest.mark.parametrize("width", [1, 20])
def test_collisions_of_floats_are_by_value(width):
    words = np.random.default_rng(width).normal(size=(6, width)).astype(np.float32)
    words[1], words[4] = 0.0, -0.0
    assert collisions(words) == [(1, 4)]
    words[4, -1] = 1e-30
    assert collisions(words) == []


def test_words_of_no_coordinate_are_all_equal():
    assert (
        collisions(np.zeros((3, 0), dtype=np.uint8))
        == [(0, 1), (0, 2)]
        == collisions(np.zeros((3, 0), dtype=np.float32))
    )


def test_a_formula_is_computed_a_block_of_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(codebook, "BLOCK_ROWS", 3)
    sizes = []
    rows = by_rows(
        lambda n: sizes.append(len(n)) or (n[:, None] >> np.arange(4) & 1), np.arange(8), 4
    )
    assert sizes == [3, 3, 2] and rows.dtype == np.uint8
    assert rows.tolist() == [[number >> bit & 1 for bit in range(4)] for number in range(8)]


def test_a_matrix_is_read_from_numpys_files_and_from_text(tmp_path):
    matrix, offset = np.array([[1, 1], [0, 1]]), np.array([0, 1])
    np.save(tmp_path / "m.npy", np.vstack([matrix, offset]))
    np.savetxt(tmp_path / "m.txt", matrix, fmt="%d")
    stored, plain = read_matrix(tmp_path / "m.npy"), read_matrix(tmp_path / "m.txt")
    assert (stored["matrix"].tolist(), stored["offset"].tolist()) == ([[1, 1], [0, 1]], [0, 1])
    assert (plain["matrix"].tolist(), plain["offset"].tolist()) == ([[1, 1], [0, 1]], [0, 0])
    assert {value.dtype.name for given in (stored, plain) for value in given.values()} == {"uint8"}
    expected = hashlib.sha256(bytes([1, 1, 0, 1]) + bytes([0, 1])).hexdigest()
    assert matrix_hash(stored) == f"sha256-{expected[:16]}" != matrix_hash(plain)
    np.savetxt(tmp_path / "one.txt", np.array([[1]]), fmt="%d")
    assert read_matrix(tmp_path / "one.txt")["matrix"].tolist() == [[1]]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (np.ones((2, 2, 2)), "3 dimensions of type float64"),
        (np.array([[0, 2], [1, 0]]), "2 in row 1, column 2"),
        (np.ones((4, 2)), "4 rows of 2"),
        (np.ones((1, 2)), "1 rows of 2"),
        (np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1]]), "its rank over GF(2) is 2"),
        (np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]]), "rows 2 and 3 are equal"),
    ],
)
def test_a_table_that_is_no_invertible_matrix_is_refused(table, said, tmp_path):
    np.save(tmp_path / "m.npy", table)
    with pytest.raises(InputError) as refused:
        read_matrix(tmp_path / "m.npy")
    assert said in str(refused.value)
    with pytest.raises(InputError, match="no such file"):
        read_matrix(tmp_path / "none.txt")


def test_a_matrix_must_be_the_one_that_the_spec_names():
    given = {"matrix": gf2.draw_matrix(9, 7, 4), "offset": np.zeros(9, dtype=np.uint8)}
    named = InterfaceSpec("gf2", matrix=matrix_hash(given))
    codes = build_codebook(named, 320, given)
    assert np.array_equal(
        codes.words_VK, book("gf2:seed=7", 320).words_VK
    ) and codes.arrays.keys() == {"matrix", "offset"}
    with pytest.raises(InputError, match=r"matrix: its hash is .*, the spec says sha256-0"):
        build_codebook(InterfaceSpec("gf2", matrix="sha256-0"), 320, given)
    with pytest.raises(InputError, match="its matrix comes with a model or a dataset"):
        build_codebook(named, 320)
    with pytest.raises(InputError, match="its offset comes with"):
        build_codebook(named, 320, {"matrix": given["matrix"]})


def test_a_learned_table_has_no_codebook_and_one_token_is_enough():
    with pytest.raises(ValueError, match="has no codebook"):
        book("learned")
    assert book("binary", 1).words_VK.tolist() == [[0]]
    with pytest.raises(InputError, match="a vocabulary of 0 tokens has no codes"):
        book("binary", 0)


def test_small_codebooks_are_made_once_and_large_ones_anew(monkeypatch):
    assert (
        book("binary") is book("binary")
        and not book("gf2:width=8").arrays["matrix"].flags.writeable
    )
    monkeypatch.setattr(codebook, "CACHED_ENTRIES", VOCAB * 6)
    assert book("binary") is book("binary")
    monkeypatch.setattr(codebook, "CACHED_ENTRIES", VOCAB * 6 - 1)
    assert book("binary") is not book("binary")
    order = {"order": np.arange(VOCAB, dtype=np.int32)}
    spec = InterfaceSpec.parse("binary:ids=ranked")
    assert build_codebook(spec, VOCAB, order) is not build_codebook(spec, VOCAB, order)
    assert (codebook.PACK_ABOVE, codebook.CACHED_ENTRIES, codebook.BLOCK_ROWS) == (
        16,
        VOCAB * 6 - 1,
        4096,
    )


def distances(words):
    wide = words.astype(np.int64)
    every = ((wide[:, None] - wide[None]) ** 2).sum(-1)
    return every[np.triu_indices(len(words), 1)]


@pytest.mark.parametrize("width", [3, 20, 64, 65, 130])
@pytest.mark.parametrize("block", [7, 64])
def test_every_way_to_the_least_distance_looks_at_every_pair(width, block, monkeypatch):
    monkeypatch.setattr(certificate, "PAIR_BLOCK", block)
    monkeypatch.setattr(certificate, "COUNT_BLOCK", 5)
    count = 8 if width == 3 else 40
    random = np.random.default_rng(width)
    for _ in range(5):
        words = random.integers(0, 2, (count, width)).astype(np.uint8)
        least = int(distances(words).min())
        assert certificate._least_by_counting(words) == least
        assert certificate._least_by_products(words.astype(np.float32)) == least
        if width <= 20 and least:
            near = certificate._near_by_flipping(words)
            assert near == (least if least <= 2 else None)


@pytest.mark.parametrize(
    ("first", "second"), [(0, 1), (0, 39), (38, 39), (3, 21), (6, 7), (13, 14)]
)
def test_a_near_pair_is_found_wherever_it_stands(first, second, monkeypatch):
    monkeypatch.setattr(certificate, "PAIR_BLOCK", 7)
    monkeypatch.setattr(certificate, "COUNT_BLOCK", 3)
    words = np.random.default_rng(0).integers(0, 2, (40, 100)).astype(np.uint8)
    words[second] = words[first]
    words[second, :3] ^= 1
    assert (
        certificate._least_by_counting(words)
        == 3
        == certificate._least_by_products(words.astype(np.float32))
    )
    floats = np.random.default_rng(1).normal(size=(40, 6)).astype(np.float32)
    floats[second] = floats[first] + np.float32(1e-3)
    expected = ((floats[first].astype(np.float64) - floats[second]) ** 2).sum()
    assert certificate._least_by_products(floats) == pytest.approx(expected, rel=1e-12)


def test_near_words_are_found_by_flipping_one_bit_or_two():
    flip = certificate._near_by_flipping
    assert flip(np.array([[0, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]], dtype=np.uint8)) == 1
    assert flip(np.array([[0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 0]], dtype=np.uint8)) == 2
    assert flip(np.array([[0, 0, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]], dtype=np.uint8)) == 2
    assert flip(np.array([[0, 0, 0, 0], [1, 1, 1, 0]], dtype=np.uint8)) is None
    assert flip(np.array([[1, 0], [0, 1]], dtype=np.uint8)) == 2


@pytest.mark.parametrize("width", [26, 27, 256, 257])
def test_the_least_distance_is_exact_whichever_method_the_width_takes(width):
    words = np.random.default_rng(width).integers(0, 2, (30, width)).astype(np.uint8)
    spec = f"random:width={width}"
    assert certificate.minimum_distance(made(words, spec), 300) == distances(words).min()
    words[9] = words[3]
    words[9, :4] ^= 1
    assert certificate.minimum_distance(made(words, spec), 300) == 4.0


@pytest.mark.parametrize(
    "text",
    ["binary", "gf2:width=10", "gray", "ecc:width=14", "digits", "gaussian:scale=2", "sincos"],
)
@pytest.mark.parametrize("vocab", [2, 41])
def test_least_and_mean_distances_by_brute_force(text, vocab):
    codes = book(text, vocab)
    bits = codes.spec.binary_valued
    z = codes.words_VK.astype(np.float64) if bits else codes.coordinates(HIDDEN).astype(np.float64)
    squared = ((z[:, None] - z[None]) ** 2).sum(-1)[np.triu_indices(vocab, 1)]
    assert certificate.minimum_distance(codes, HIDDEN) == pytest.approx(
        squared.min() if bits else math.sqrt(squared.min()), rel=1e-6
    )
    assert certificate.mean_squared_distance(codes, HIDDEN) == pytest.approx(
        squared.mean(), rel=1e-6
    )


def test_a_single_token_is_infinitely_far_from_all_others():
    for text in ("binary", "gaussian:width=3"):
        assert certificate.minimum_distance(book(text, 1), 6) == math.inf
        assert certificate.mean_squared_distance(book(text, 1), 6) == 0.0


@pytest.mark.parametrize(
    "text", ["binary", "binary:values=pm1", "random:width=9", "gaussian:width=5"]
)
def test_every_number_of_a_certificate(text):
    codes = book(text)
    certificate = certify_code(codes, HIDDEN)
    x = shown_by_hand(codes) @ lift.matrix("tile", codes.width, HIDDEN).T
    norms = (x**2).sum(1)
    assert (
        certificate.spec,
        certificate.vocab_size,
        certificate.hidden_size,
        certificate.code_width,
    ) == (
        text,
        VOCAB,
        HIDDEN,
        codes.width,
    )
    assert (
        certificate.spec_sha256 == codes.spec.sha256(VOCAB, HIDDEN)
        and certificate.codebook_sha256 == codes.sha256
    )
    assert (
        certificate.injective,
        certificate.injective_bfloat16,
        certificate.injective_float16,
    ) == (
        True,
        True,
        True,
    )
    assert certificate.squared_norm_mean == pytest.approx(norms.mean(), rel=1e-6)
    assert certificate.squared_norm_std == pytest.approx(norms.std(), rel=1e-5, abs=1e-9)
    assert certificate.squared_norm_min == pytest.approx(norms.min(), rel=1e-6)
    assert certificate.squared_norm_median == pytest.approx(np.median(norms), rel=1e-6)
    assert certificate.squared_norm_max == pytest.approx(norms.max(), rel=1e-6)
    assert certificate.mean_vector_squared_norm == pytest.approx((x.mean(0) ** 2).sum(), rel=1e-6)
    singular = np.linalg.svd(x, compute_uv=False)[: codes.width]
    assert certificate.singular_values == pytest.approx(tuple(singular), rel=1e-5, abs=1e-5)
    assert (
        certificate.rank_real == np.linalg.matrix_rank(x)
        and len(certificate.singular_values) == codes.width
    )
    if codes.spec.binary_valued:
        assert certificate.bit_balance == pytest.approx(tuple(codes.words_VK.mean(0)))
        assert (certificate.unused_words, certificate.rank_gf2) == (
            2**codes.width - VOCAB,
            gf2.rank(codes.words_VK),
        )
    else:
        assert (certificate.bit_balance, certificate.unused_words, certificate.rank_gf2) == (
            None,
            None,
            None,
        )


def test_the_rank_over_the_reals_may_be_above_that_over_two_elements():
    certificate = certify_code(
        made([[0, 0, 0], [1, 1, 0], [0, 1, 1], [1, 0, 1]], "random:width=3"), 6
    )
    assert (certificate.rank_gf2, certificate.rank_real) == (2, 3)
    flat = certify_code(made([[0, 0, 0], [1, 1, 0], [0, 0, 1]], "random:width=3"), 6)
    assert flat.rank_real == 2 and flat.singular_values[2] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        (0.0, 0x0000),
        (-0.0, 0x0000),
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1.00390625, 0x3F80),  # half way: to the even one below
        (1.01171875, 0x3F82),  # half way: to the even one above
        (1.00390637, 0x3F81),  # a little above half way
        (1.0039061, 0x3F80),  # a little below
    ],
)
def test_bfloat16_by_hand(value, pattern):
    assert certificate.to_bfloat16(np.array([value], dtype=np.float32)).tolist() == [pattern]


def test_float16_by_hand():
    values = np.array([0.0, -0.0, 1.0, -2.0, 1e6, 65504.0], dtype=np.float32)
    assert certificate.to_float16(values).tolist() == [0, 0, 0x3C00, 0xC000, 0x7C00, 0x7BFF]


@pytest.mark.parametrize(
    ("text", "bfloat16", "float16"),
    [
        ("binary", True, True),
        ("binary:scale=1e5", True, True),  # 0 and infinity
        ("binary:values=pm1,scale=1e-9", True, False),  # both become 0
        ("gaussian:scale=1e-9", True, False),
        ("gaussian:scale=1e6", True, False),
        ("sincos:width=2", True, True),
        ("binary:lift=orthogonal", True, True),
        ("binary:lift=orthogonal,scale=1e-9", True, False),
    ],
)
def test_whether_rounding_keeps_tokens_apart(text, bfloat16, float16):
    certificate = certify_code(book(text), HIDDEN)
    assert (certificate.injective_bfloat16, certificate.injective_float16) == (bfloat16, float16)


def test_a_bit_whose_two_levels_round_alike_is_lost():
    words = (np.arange(1024)[:, None] >> np.arange(10) & 1).astype(np.uint8)
    rare = np.zeros((1024, 1), dtype=np.uint8)
    rare[700] = 1
    with_rare = made(np.hstack([words, rare]), "binary:center=true,width=11")
    assert certify_code(with_rare, 22).injective_bfloat16
    alone = words.copy()
    alone[1] = alone[0]  # only the rare bit tells these two apart
    single = np.zeros((1024, 1), dtype=np.uint8)
    single[1] = 1
    codes = made(np.hstack([alone, single]), "binary:center=true,width=11")
    assert certify_code(codes, 22).injective and certificate._injective_rounded(
        codes, 22, certificate.to_float16
    )
    merged = certificate._injective_rounded(codes, 22, lambda values: np.zeros_like(values))
    kept = certificate._injective_rounded(codes, 22, lambda values: values)
    assert (merged, kept) == (False, True)


def ridge_accuracy(z, label):
    """The probe once more: augmented least squares, fold by fold."""
    fold = philox.permutation(0, "folds", len(z)) % 5
    right = 0
    for number in range(5):
        fit, held = fold != number, fold == number
        target = np.where(label[fit], 1.0, -1.0)
        centred = z[fit] - z[fit].mean(0)
        penalty = 1e-3 * np.trace(centred.T @ centred) / z.shape[1]
        rows = np.vstack([centred, math.sqrt(penalty) * np.eye(z.shape[1])])
        weights = np.linalg.lstsq(
            rows, np.concatenate([target - target.mean(), np.zeros(z.shape[1])]), rcond=None
        )[0]
        right += (((z[held] - z[fit].mean(0)) @ weights + target.mean() > 0) == label[held]).sum()
    return right / len(z)


@pytest.mark.parametrize("share", [0.5, 0.3, 0.8])
def test_a_probe_is_ridge_regression_over_five_folds(share):
    random = np.random.default_rng(3)
    z = random.normal(size=(203, 6))
    label = z @ random.normal(size=6) + random.normal(size=203) > np.quantile(
        z @ np.ones(6), 1 - share
    )
    assert leak.probe(z, label) == ridge_accuracy(z, label)
    assert leak.probe(np.zeros((50, 3)), np.arange(50) < 15) == pytest.approx(0.7)


def test_a_leak_has_its_control_with_permuted_ids_and_its_majority():
    codes = book("binary", 200)
    labels = {"early": np.arange(200) < 60, "late": np.arange(200) >= 100}
    leaks = leak.order_leak(codes, labels, 16)
    z = codes.coordinates(16).astype(np.float64)
    control = z[[0, *(1 + philox.permutation(1, "control", 199))]]
    assert [result.name for result in leaks] == ["early", "late"] and [
        result.tokens for result in leaks
    ] == [
        200,
        200,
    ]
    assert [result.majority for result in leaks] == pytest.approx([0.7, 0.5])
    for result, label in zip(leaks, labels.values(), strict=True):
        assert result.accuracy == ridge_accuracy(z, label) and result.control == ridge_accuracy(
            control, label
        )


@pytest.mark.parametrize(("have", "judged"), [(19, False), (20, True), (180, True), (181, False)])
def test_a_property_is_judged_if_twenty_tokens_have_it_and_twenty_lack_it(have, judged):
    assert bool(leak.order_leak(book("binary", 200), {"some": np.arange(200) < have}, 16)) is judged


def test_properties_at_their_borders():
    tokens = [b"/", b"0", b"9", b":", b"a1b", b"  Ab", b"A", b"a", b"ab", b"\xc3\x89a"]
    properties = leak.token_properties(tokens, None)
    assert [*properties] == [
        "longer than the median",
        "begins with a capital",
        "leading space",
        "contains a digit",
    ]
    assert properties["contains a digit"].tolist() == [
        False,
        True,
        True,
        False,
        True,
        False,
        False,
        False,
        False,
        False,
    ]
    assert properties["begins with a capital"].tolist() == [False] * 5 + [True, True] + [False] * 3
    assert properties["leading space"].tolist() == [False] * 5 + [True] + [False] * 4
    assert properties["longer than the median"].tolist() == [False] * 4 + [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    counted = leak.token_properties([b"a", b"b", b"c"], np.array([3, 1, 2]))
    assert next(iter(counted)) == "more frequent than the median" and len(counted) == 5
    assert counted["more frequent than the median"].tolist() == [True, False, False]
