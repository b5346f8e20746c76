"""Codebooks by the paper's facts, by property, and against golden hashes that must never move."""

import io
import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencodes.cli import run
from tokencodes.codes import InterfaceSpec, assign, build_codebook, gf2
from tokencodes.codes.codebook import array_sha256, collisions, matrix_hash, read_matrix
from tokencodes.errors import InputError

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "codebooks.json").read_text())
SPECS = [
    "binary",
    "gf2",
    "binary:ids=permuted",
    "gf2:ids=permuted,ids_seed=3",
    "binary:width=20",
    "gf2:width=18,seed=1",
    "gray",
    "ecc",
    "random",
    "random:width=90",
    "binary:endian=big",
]
EVERY = [
    *SPECS,
    "gf2:affine=true",
    "digits",
    "digits:base=3",
    "gaussian",
    "sphere:width=40",
    "sincos",
    "sincos:width=2",
]


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


@pytest.mark.parametrize("vocab", [1, 2, 3, 50_257, 151_936])
@pytest.mark.parametrize("ids", ["natural", "permuted"])
@pytest.mark.parametrize("spec", EVERY)
def test_every_code_is_injective_at_odd_vocabularies(spec, ids, vocab):
    if spec.startswith("gf2") and vocab < 256:
        spec = "gf2:width=8"  # a matrix of weight 4 needs room
    text = spec if "ids=" in spec else f"{spec}{',' if ':' in spec else ':'}ids={ids}"
    book = build_codebook(InterfaceSpec.parse(text), vocab)
    assert book.words_VK.shape == (vocab, InterfaceSpec.parse(text).code_width(vocab))
    assert book.collisions() == []


def test_gray_neighbours_differ_in_one_bit():
    assert (np.diff(book("gray", 3072).astype(int), axis=0) != 0).sum(1).tolist() == [1] * 3071


def test_big_endian_is_little_endian_backwards():
    assert np.array_equal(book("binary:endian=big", 3072), book("binary", 3072)[:, ::-1])


def test_digits_are_one_hot_in_their_base():
    words_VK = book("digits:base=10", 1000)
    assert words_VK.shape == (1000, 30)
    assert np.flatnonzero(words_VK[273]).tolist() == [3, 17, 22]


def test_random_words_are_balanced_and_differ_by_seed():
    words_VK = book("random:width=200", 3072)
    assert abs(words_VK[1:].mean() - 0.5) < 0.005
    assert abs(words_VK.mean(0) - 0.5).max() < 0.05
    correlation = np.corrcoef(words_VK.T)
    assert abs(correlation - np.eye(200)).max() < 0.1
    assert not np.array_equal(words_VK, book("random:width=200,seed=1", 3072))


def test_a_given_order_is_checked_and_used():
    spec = InterfaceSpec.parse("gf2:ids=ranked")
    order = np.array([0, 3, 1, 2, 4], dtype=np.int32)
    named = replace(spec, order=assign.order_hash(order), width=8)
    natural = build_codebook(InterfaceSpec.parse("gf2:width=8"), 5).words_VK
    assert np.array_equal(build_codebook(named, 5, {"order": order}).words_VK, natural[order])
    for wrong, complaint in (
        (order[::-1].copy(), "keeps token 0 on word 0"),
        (np.array([0, 1, 1, 2, 4], dtype=np.int32), "not an assignment"),
        (np.arange(5, dtype=np.int32), "the spec says"),
    ):
        with pytest.raises(InputError, match=complaint):
            build_codebook(named, 5, {"order": wrong})
    with pytest.raises(InputError, match="its order comes with a model or a dataset"):
        build_codebook(named, 5)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("1 0\n1 0", "rows 1 and 2 are equal"),
        ("1 1 0\n0 1 1\n1 0 1", "its rank over GF(2) is 2"),
        ("1 2\n0 1", "2.0 in row 1, column 2; only 0 and 1 are possible"),
        ("1 0\n0 nan", "nan in row 2, column 2; only 0 and 1 are possible"),
        ("1 0\n0 1\n0 0.5", "0.5 in row 3, column 2"),
        ("1 0 1\n0 1 1", "2 rows of 3"),
        ("1 x\n0 1", "not a table of numbers"),
        ("1 0\n0 1 1", "not a table of numbers"),
        ("", "0 bytes; a matrix has at least 1"),
        ("\n\n# 1 0\n", "no numbers in it"),
        ("caf\u00e9", "not text (byte 0xc3 at 3)"),
        ("1 " * 5000, "1 rows of 5,000; a square matrix of at most 4,096 rows"),
    ],
)
def test_a_matrix_file_that_does_not_fit_is_refused(rows, complaint, tmp_path):
    (tmp_path / "m.txt").write_text(rows)
    with pytest.raises(InputError) as caught:
        read_matrix(tmp_path / "m.txt")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


class Bomb:
    """What would run when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("bomb-went-off"),))


def npy(shape: str, descr: str = "'<i8'") -> bytes:
    """An .npy file with this header, and room for one number."""
    header = (
        f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117)
        + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)


def saved(array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def zipped(array) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, array)
    return buffer.getvalue()


ODD_FILES = {
    "empty": (b"", "0 bytes"),
    "garbage": (bytes(range(256)) * 9, "not an .npy array"),
    "a pickle": (pickle.dumps(Bomb()), "not an .npy array"),
    "an .npz archive": (zipped(np.eye(3)), "not an .npy array"),
    "objects": (saved(np.array([[Bomb()]], dtype=object)), "damaged (Array can't be memory-mapped"),
    "cut in the header": (saved(np.eye(3))[:40], "damaged ("),
    "cut in the numbers": (saved(np.eye(3))[:-8], "damaged ("),
    "longer than its header says": (
        saved(np.eye(3)) + b"more",
        "not those that its header promises",
    ),
    "a header that does not end": (npy("(")[:100] + bytes(60), "damaged ("),
    "a header with a name": (npy("(1, 1)", "open"), "damaged ("),
    "a huge shape": (npy("(3000000000, 3000000000)"), "damaged ("),
    "a shape beyond numbers": (npy(f"({'9' * 30}, 1)"), "damaged ("),
    "a negative shape": (npy("(-1, -1)"), "damaged ("),
    "one dimension": (saved(np.ones(9)), "1 dimensions of type float64"),
    "three dimensions": (saved(np.ones((2, 2, 2))), "3 dimensions of type float64"),
    "complex numbers": (saved(np.eye(3, dtype=complex)), "2 dimensions of type complex128"),
    "words": (saved(np.array([["1"]])), "2 dimensions of type <U1"),
    "no rows": (saved(np.ones((0, 0))), "0 rows of 0"),
    "not a number": (saved(np.full((2, 2), np.nan)), "nan in row 1, column 1"),
    "negative numbers": (saved(-np.eye(2)), "-1.0 in row 1, column 1"),
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_a_damaged_matrix_file_is_one_line_and_runs_nothing(kind, tmp_path, monkeypatch):
    data, complaint = ODD_FILES[kind]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.npy"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_matrix(path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "bomb-went-off").exists()


@pytest.mark.parametrize("name", ["m.npy", "m.txt"])
def test_a_matrix_that_is_no_file_is_one_line(name, tmp_path, capsys):
    command = ["codes", f"gf2:matrix={tmp_path / name}", "--vocab-size", "300"]
    assert run(command) == 2
    assert capsys.readouterr().err == f"tokencodes: matrix={tmp_path / name}: no such file\n"
    (tmp_path / name).mkdir()
    assert run(command) == 2
    assert (
        capsys.readouterr().err
        == f"tokencodes: matrix={tmp_path / name}: not a file; name a text file or an .npy array\n"
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.bool_])
def test_a_matrix_of_any_type_of_number_is_the_same_matrix(dtype, tmp_path):
    drawn = gf2.draw_matrix(9, 7, 4)
    for order in ("C", "F"):
        np.save(tmp_path / "m.npy", np.asarray(drawn, dtype=dtype, order=order))
        given = read_matrix(tmp_path / "m.npy")
        assert given["matrix"].tolist() == drawn.tolist()
        assert given["offset"].tolist() == [0] * 9


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("offset", np.zeros(8, dtype=np.uint8)),
        ("offset", np.full(9, 2, dtype=np.uint8)),
        ("offset", np.zeros((9, 1), dtype=np.uint8)),
        ("offset", np.zeros(9, dtype=np.float64)),
        ("matrix", np.full((9, 9), 3, dtype=np.uint8)),
        ("matrix", np.eye(9)),
        ("matrix", np.zeros(81, dtype=np.uint8)),
    ],
)
def test_a_given_matrix_or_offset_of_something_else_is_refused(name, array):
    given = {"matrix": gf2.draw_matrix(9, 7, 4), "offset": np.zeros(9, dtype=np.uint8), name: array}
    with pytest.raises(InputError, match=rf"{name}: .* numbers 0 and 1 of type uint8 are needed"):
        build_codebook(InterfaceSpec("gf2", matrix=matrix_hash(given)), 320, given)


def test_a_matrix_from_a_file_is_used_with_its_offset(tmp_path):
    drawn = gf2.draw_matrix(9, 7, 4)
    np.savetxt(tmp_path / "m.txt", np.vstack([drawn, np.ones(9)]), fmt="%d")
    given = read_matrix(tmp_path / "m.txt")
    spec = InterfaceSpec("gf2", matrix=matrix_hash(given))
    recoded = build_codebook(spec, 320, given).words_VK
    assert np.array_equal(
        recoded, build_codebook(InterfaceSpec.parse("gf2:seed=7"), 320).words_VK ^ 1
    )
    with pytest.raises(InputError, match=r"9x9, but the code width is 10; say width=9"):
        build_codebook(InterfaceSpec("gf2", matrix=matrix_hash(given), width=10), 320, given)


def test_gf2_is_the_binary_word_times_the_stored_matrix():
    codebook = build_codebook(InterfaceSpec.parse("gf2"), 3072)
    matrix, offset = codebook.arrays["matrix"], codebook.arrays["offset"]
    assert np.array_equal(codebook.words_VK, book("binary", 3072).astype(int) @ matrix.T % 2)
    assert not offset.any()
    back = gf2.multiply(codebook.words_VK, np.ascontiguousarray(gf2.inverse(matrix).T))
    assert np.array_equal(back, book("binary", 3072))


def test_permuted_has_the_same_words_in_another_order():
    natural, permuted = book("binary", 3072), book("binary:ids=permuted", 3072)
    assert not np.array_equal(natural, permuted)
    assert sorted(map(bytes, natural)) == sorted(map(bytes, permuted))


def test_collisions_name_the_first_token_and_each_other():
    words_VK = book("binary", 6).copy()
    words_VK[4] = words_VK[5] = words_VK[1]
    assert collisions(words_VK) == [(1, 4), (1, 5)]


def test_the_hash_sees_shape_and_bits():
    words_VK = book("binary:width=4", 8).copy()
    flipped = words_VK.copy()
    flipped[3, 2] ^= 1
    assert (
        len({array_sha256(words_VK), array_sha256(flipped), array_sha256(words_VK.reshape(4, 8))})
        == 3
    )


def test_a_shared_codebook_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        book("binary", 64)[0, 0] = 1


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(InputError, match="vocabulary of 0 tokens"):
        build_codebook(InterfaceSpec.parse("binary"), 0)
