"""L0: each check fails on a code with exactly its fault, and says what was found."""

from pathlib import Path

import numpy as np
import pytest

from tests.test_model import model_of
from tokencodes.codes.codebook import Codebook
from tokencodes.interfaces import base
from tokencodes.verify import identity
from tokencodes.verify.check import PROVEN, Subject, check, not_applicable

MOVES = "the vectors of a trained input may move"


def of(spec: str) -> Subject:
    return Subject(model_of(spec), Path("nowhere"))


def by_check(subject: Subject) -> dict[str, str]:
    """The status of each check of this level."""
    return {made.name: made.status for made in (run(subject) for run in identity.CHECKS)}


def failing(subject: Subject) -> set[str]:
    return {name for name, status in by_check(subject).items() if status == "fails"}


@pytest.mark.parametrize(
    "spec", ["gf2", "gf2:affine=true,storage=computed", "binary:lift=orthogonal", "random:width=33"]
)
def test_a_sound_code_of_bits_holds_in_every_check(spec):
    names = ["codebook regenerated", "injective", "GF(2) inverse", "lift rank"]
    assert by_check(of(spec)) == dict.fromkeys(names, "holds")


def test_what_a_trained_input_cannot_be_asked_is_not_applicable():
    learned, coordinates = of("learned"), of("learned-code:lift=orthogonal")
    assert identity.codebook_regenerated(learned) == not_applicable(
        "L0", "codebook regenerated", MOVES
    )
    for subject in (learned, coordinates):
        assert identity.injective(subject) == not_applicable("L0", "injective", MOVES)
        words = "no words of bits in this interface"
        assert identity.gf2_inverse(subject) == not_applicable("L0", "GF(2) inverse", words)
        assert identity.lift_rank(subject) == not_applicable(
            "L0", "lift rank", "no lift of a fixed code in this interface"
        )
    assert identity.codebook_regenerated(coordinates).status == "holds"  # its lift is fixed
    assert identity.gf2_inverse(of("gaussian")).status == "not applicable"
    assert failing(of("gaussian")) == set()


def test_a_flipped_bit_is_a_codebook_that_is_not_regenerated():
    subject = of("gf2")
    interface = subject.model.input_interface
    detail = f"{320 * 9 + 81 + 9:,} stored entries are those of 'gf2' ({interface.sha256[:12]})"
    assert identity.codebook_regenerated(subject) == check(
        "L0", "codebook regenerated", PROVEN, True, detail
    )
    interface.matrix[8, 8] ^= 1
    made = identity.codebook_regenerated(subject)
    assert (made.status, made.scope) == ("fails", PROVEN) and made.detail.startswith(
        "matrix differs from 'gf2' in 1 of 81"
    )


@pytest.mark.parametrize("entries", [1, 36 * 7, 36 * 320])
def test_two_tokens_with_one_vector_are_named_wherever_they_are(entries, monkeypatch):
    monkeypatch.setattr(base, "BLOCK_ENTRIES", entries)
    subject = of("gf2")
    detail = "320 distinct vectors of 320 tokens"
    assert identity.injective(subject) == check("L0", "injective", PROVEN, True, detail)
    book = subject.model.input_interface.codebook
    book[319] = book[5]
    detail = "319 distinct vectors of 320 tokens; tokens 5 and 319 share one"
    assert identity.injective(subject) == check("L0", "injective", PROVEN, False, detail)
    book[6] = book[5]
    assert (
        identity.injective(subject).detail
        == "318 distinct vectors of 320 tokens; tokens 5 and 6 share one"
    )


def test_vectors_that_differ_in_the_sign_of_zero_alone_are_one(monkeypatch):
    subject = of("gaussian:width=9")
    book = subject.model.input_interface.codebook
    book[7], book[9] = 0, -(2**31)  # the bit patterns of 0 and -0
    assert "tokens 7 and 9 share one" in identity.injective(subject).detail


def test_a_singular_matrix_has_no_inverse():
    subject = of("gf2:affine=true")
    interface = subject.model.input_interface
    detail = f"rank 9 of 9, offset of weight {int(interface.offset.sum())}"
    assert interface.offset.any()
    assert identity.gf2_inverse(subject) == check("L0", "GF(2) inverse", PROVEN, True, detail)
    interface.matrix[0] = interface.matrix[1]
    made = identity.gf2_inverse(subject)
    assert made.status == "fails" and made.detail.startswith("rank 8 of 9")


def test_an_inverse_that_is_none_is_caught(monkeypatch):
    monkeypatch.setattr(identity.gf2, "inverse", lambda matrix: np.eye(len(matrix), dtype=np.uint8))
    assert identity.gf2_inverse(of("gf2")).status == "fails"


@pytest.mark.parametrize(("lost", "rank"), [(0, 9), (1, 8), (2, 7)])
def test_words_without_a_matrix_need_the_rank_of_the_vocabulary(lost, rank, monkeypatch):
    subject = of("binary")
    book = identity.stored_book(subject.model.input_interface)
    words = book.words_VK.copy()
    words[:, :lost] = 0
    monkeypatch.setattr(identity, "stored_book", lambda interface: Codebook(book.spec, words, {}))
    detail = f"no matrix; words of rank {rank}, and 9 tell the tokens apart"
    assert identity.gf2_inverse(subject) == check("L0", "GF(2) inverse", PROVEN, lost == 0, detail)


def test_words_of_more_bits_than_are_needed_may_have_any_rank_from_there_on():
    assert (
        identity.gf2_inverse(of("random:width=33")).detail
        == "no matrix; words of rank 33, and 9 tell the tokens apart"
    )


@pytest.mark.parametrize("lift", ["tile", "interleave", "pad", "orthogonal"])
def test_a_lift_that_loses_a_coordinate_is_caught(lift, monkeypatch):
    subject = of(f"gf2:lift={lift}")
    detail = f"rank 9 of 9 ({lift} to 36 channels)"
    assert identity.lift_rank(subject) == check("L0", "lift rank", PROVEN, True, detail)
    matrix = identity.lift.matrix

    def lossy(*args):
        result = matrix(*args)
        result[:, 4] = result[:, 3]
        return result

    monkeypatch.setattr(identity.lift, "matrix", lossy)
    assert identity.lift_rank(subject).status == "fails"
    assert identity.lift_rank(subject).detail.startswith("rank 8 of 9")


def test_the_lift_is_that_of_its_own_seed(monkeypatch):
    calls = []
    matrix = identity.lift.matrix
    monkeypatch.setattr(identity.lift, "matrix", lambda *args: calls.append(args) or matrix(*args))
    identity.lift_rank(of("gf2:lift=orthogonal,lift_seed=3"))
    assert calls == [("orthogonal", 9, 36, 3)]
