"""Codebooks by the paper's facts, by property, and against golden hashes that must never move."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencodes.codes import InterfaceSpec, build_codebook, gf2, words
from tokencodes.codes.codebook import bits_sha256, collisions
from tokencodes.errors import InputError

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "codebooks.json").read_text())
SPECS = ["binary", "gf2", "binary:ids=permuted", "gf2:ids=permuted,ids_seed=3", "binary:width=20", "gf2:width=14,seed=1"]


def book(spec: str, vocab: int) -> np.ndarray:
    return build_codebook(InterfaceSpec.parse(spec), vocab).words_VK


@pytest.mark.parametrize(("key", "sha256"), GOLDEN.items())
def test_integer_codes_never_change(key, sha256):
    spec, vocab = key.split(" ")
    assert build_codebook(InterfaceSpec.parse(spec), int(vocab)).sha256 == sha256


def test_binary_is_little_endian():
    words_VK = book("binary", 49152)
    assert words_VK.shape == (49152, 16)
    assert words_VK[5].tolist() == [1, 0, 1] + [0] * 13
    assert np.array_equal(words_VK @ (1 << np.arange(16)), np.arange(49152))


def test_the_papers_facts_of_the_instantiated_vocabulary():
    words_VK = book("binary", 49152)
    assert round(words_VK.sum(1).mean(), 3) == 7.667
    assert not (words_VK[:, 14] & words_VK[:, 15]).any()  # a quarter of the codes is unused


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SPECS), st.integers(200, 5000))
def test_every_token_has_a_code_of_its_own_and_token_0_the_zero_code(spec, vocab):
    words_VK = book(spec, vocab)
    assert collisions(words_VK) == []
    assert not words_VK[0].any()


@pytest.mark.parametrize("vocab", [1, 2, 3, 17])
def test_small_vocabularies_work(vocab):
    assert len(np.unique(book("binary:ids=permuted", vocab), axis=0)) == vocab


def test_gf2_is_the_binary_word_times_the_stored_matrix():
    codebook = build_codebook(InterfaceSpec.parse("gf2"), 3072)
    matrix, offset = codebook.arrays["matrix"], codebook.arrays["offset"]
    assert np.array_equal(codebook.words_VK, words.binary(3072, 12).astype(int) @ matrix.T % 2)
    assert not offset.any()
    back = gf2.multiply(codebook.words_VK, np.ascontiguousarray(gf2.inverse(matrix).T))
    assert np.array_equal(back, words.binary(3072, 12))


def test_permuted_has_the_same_words_in_another_order():
    natural, permuted = book("binary", 3072), book("binary:ids=permuted", 3072)
    assert not np.array_equal(natural, permuted)
    assert sorted(map(bytes, natural)) == sorted(map(bytes, permuted))


def test_collisions_name_the_first_token_and_each_other():
    words_VK = words.binary(6, 3)
    words_VK[4] = words_VK[5] = words_VK[1]
    assert collisions(words_VK) == [(1, 4), (1, 5)]


def test_the_hash_sees_shape_and_bits():
    words_VK = words.binary(8, 4)
    flipped = words_VK.copy()
    flipped[3, 2] ^= 1
    assert len({bits_sha256(words_VK), bits_sha256(flipped), bits_sha256(words_VK.reshape(4, 8))}) == 3


def test_a_shared_codebook_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        book("binary", 64)[0, 0] = 1


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(InputError, match="vocabulary of 0 tokens"):
        build_codebook(InterfaceSpec.parse("binary"), 0)
