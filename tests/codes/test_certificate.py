"""Certificates against brute force, and the leak against codes whose answer is known."""

import json
from pathlib import Path

import numpy as np
import pytest

from tokencodes.codes import InterfaceSpec, build_codebook, lift
from tokencodes.codes.certificate import certify_code, to_bfloat16
from tokencodes.codes.codebook import Codebook
from tokencodes.codes.leak import order_leak, probe, token_properties
from tokencodes.errors import InputError

SPECS = [
    "binary",
    "binary:values=pm1,center=true",
    "gf2",
    "gf2:ids=permuted",
    "gray",
    "ecc",
    "ecc:width=20",
    "random",
    "random:width=30",
    "random:width=80",
    "random:width=300",
    "digits",
    "gaussian",
    "gaussian:width=40,scale=0.1",
    "sphere:width=20,center=true",
    "sincos",
    "binary:lift=orthogonal",
    "binary:lift=pad,scale=match",
]
GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("vocab", [97, 320])
@pytest.mark.parametrize("spec", SPECS)
def test_every_fact_is_the_brute_force_one(spec, vocab):
    parsed, hidden = InterfaceSpec.parse(spec), 300
    book = build_codebook(parsed, vocab)
    certificate = certify_code(book, hidden)
    z = book.coordinates(hidden).astype(np.float64)
    x = z @ lift.matrix(parsed.lift, book.width, hidden, parsed.lift_seed).T
    near = book.words_VK.astype(np.float64) if parsed.binary_valued else z
    squared = ((near[:, None] - near[None]) ** 2).sum(-1)
    pairs = squared[np.triu_indices(vocab, 1)]
    least = pairs.min() if parsed.binary_valued else np.sqrt(pairs.min())
    assert certificate.minimum_distance == pytest.approx(least, rel=1e-6)
    assert certificate.mean_squared_distance == pytest.approx(pairs.mean(), rel=1e-6)
    norms = (x**2).sum(1)
    assert certificate.squared_norm_mean == pytest.approx(norms.mean(), rel=1e-5)
    assert certificate.squared_norm_max == pytest.approx(norms.max(), rel=1e-5)
    assert certificate.mean_vector_squared_norm == pytest.approx(
        (x.mean(0) ** 2).sum(), rel=1e-4, abs=1e-9
    )
    singular = np.zeros(book.width)
    largest = np.linalg.svd(x, compute_uv=False)[: book.width]
    singular[: len(largest)] = largest
    assert certificate.singular_values == pytest.approx(
        tuple(singular), rel=1e-3, abs=1e-3 * singular[0]
    )
    assert certificate.rank_real == np.linalg.matrix_rank(x, rtol=1e-6)
    rounded = to_bfloat16(np.ascontiguousarray(x.astype(np.float32)))
    assert certificate.injective_bfloat16 == (len(np.unique(rounded, axis=0)) == vocab)
    with np.errstate(over="ignore"):
        assert certificate.injective_float16 == (
            len(np.unique(x.astype(np.float32).astype(np.float16), axis=0)) == vocab
        )


def test_rounding_that_merges_tokens_is_seen():
    assert not certify_code(
        build_codebook(InterfaceSpec.parse("sincos:width=2"), 3072), 8
    ).injective_bfloat16
    assert not certify_code(
        build_codebook(InterfaceSpec.parse("gaussian:scale=1e6"), 320), 36
    ).injective_float16


def test_bfloat16_rounds_as_torch_does():
    import torch

    size = 10.0 ** np.arange(-20, 20).repeat(250)
    values = (np.random.default_rng(0).normal(size=10_000) * size).astype(np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(to_bfloat16(values), expected)


def test_a_collision_is_an_error_that_names_the_tokens():
    words = build_codebook(InterfaceSpec.parse("binary"), 40).words_VK.copy()
    words[31] = words[7]
    with pytest.raises(
        InputError, match=r"tokens 7 and 31 share a code \(1 collisions among 40 tokens\)"
    ):
        certify_code(Codebook(InterfaceSpec.parse("binary"), words, {}), 36)


@pytest.mark.parametrize("spec", ["binary", "gf2"])
def test_the_papers_shape_has_the_golden_certificate(spec):
    certificate = certify_code(build_codebook(InterfaceSpec.parse(spec), 49152), 2048)
    expected = json.loads((GOLDEN / f"certificate-{spec}.json").read_text())
    for key, value in expected.items():
        here = getattr(certificate, key)
        if isinstance(value, list):
            assert here == pytest.approx(tuple(value), rel=1e-9), key
        else:
            assert here == (
                pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
            ), key


def test_a_probe_finds_what_is_linear_and_answers_with_the_majority_elsewhere():
    book = build_codebook(InterfaceSpec.parse("binary"), 3072)
    ids = np.arange(3072)
    z = book.coordinates(36).astype(np.float64)
    assert probe(z, ids >= 2048) > 0.99
    unknown = np.random.default_rng(0).random(3072) < 0.2
    assert probe(z, unknown) == pytest.approx(1 - unknown.mean(), abs=0.01)


def test_the_leak_is_in_the_order_not_in_the_words():
    properties = {"early": np.arange(3072) < 1024, "rare": np.arange(3072) < 5}
    natural, permuted = (
        build_codebook(InterfaceSpec.parse(spec), 3072)
        for spec in ("binary", "binary:ids=permuted")
    )
    (leak,) = order_leak(natural, properties, 36)  # five tokens are too few to judge
    assert leak.accuracy > 0.95
    assert leak.control == pytest.approx(leak.majority, abs=0.03)
    assert order_leak(permuted, properties, 36)[0].accuracy == pytest.approx(
        leak.majority, abs=0.03
    )


def test_token_properties_read_bytes():
    tokens = [b"", b" The", b"the", b"12", b" a", "É".encode()]
    properties = token_properties(tokens, np.array([9, 5, 4, 1, 0, 0]))
    assert properties["leading space"].tolist() == [False, True, False, False, True, False]
    assert properties["begins with a capital"].tolist() == [False, True, False, False, False, False]
    assert properties["contains a digit"].tolist() == [False, False, False, True, False, False]
    assert properties["more frequent than the median"].tolist() == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_code_whose_vectors_collide_in_float32_is_refused():
    book = build_codebook(InterfaceSpec.parse("gaussian:width=2"), 97)
    certify_code(book, 8)
    words = book.words_VK.copy()
    words[96] = words[3]
    for changed in (words, np.full_like(words, 1e-3)):
        with pytest.raises(
            InputError, match=r"tokens 3 and 96 share a code|tokens 0 and 1 share a code"
        ):
            certify_code(Codebook(book.spec, changed, {}), 8)
    scaled = InterfaceSpec.parse("gaussian:width=2,scale=1e-9")
    tiny = book.words_VK * np.float32(1e-37)  # distinct words; times 1e-9 they are all 0 in float32
    with pytest.raises(
        InputError, match="two tokens share a vector in float32; change scale= or the words"
    ):
        certify_code(Codebook(scaled, tiny, {}), 8)
