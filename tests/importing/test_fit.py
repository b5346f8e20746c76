"""The code of a table is found to the last bit, or not at all."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencodes.codes import InterfaceSpec, build_codebook
from tokencodes.codes.codebook import matrix_hash
from tokencodes.errors import InputError
from tokencodes.importing.fit import affine, fit, has_words
from tokencodes.importing.plain import interface_of_table
from tokencodes.interfaces import base, build_interface
from tokencodes.verify import check

SPECS = [
    "binary",
    "binary:endian=big",
    "binary:width=12",
    "gray",
    "ecc",
    "gf2",
    "gf2:seed=3",
    "gf2:affine=true",
    "binary:ids=permuted,ids_seed=5",
    "binary:values=pm1",
    "binary:center=true",
    "binary:scale=0.5",
    "binary:values=pm1,center=true,scale=match",
    "gf2:lift=interleave",
    "binary:lift=pad",
    "digits:base=16",
    "digits:base=4",
    "random:width=24",
    "random:width=70,seed=3",
    "gaussian:width=20",
    "sphere:width=12,lift=interleave",
    "sincos:width=10",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("size", "width"), [(320, 96), (512, 100)])
def test_a_code_is_found_in_its_table(spec, size, width):
    made = build_interface(InterfaceSpec.parse(spec), size, width)
    table = made.materialize().numpy()
    fitted = fit(table)
    assert np.array_equal(fitted.materialize().numpy(), table)
    assert fitted.describe().trainable_parameters == 0
    if not {"width", "affine", "center"} & set(
        spec.replace("=", ":").replace(",", ":").split(":")
    ):  # or equal by another name
        assert str(fitted.spec) == str(made.spec)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 9))
def test_any_invertible_matrix_is_found(seed, places):
    draw = np.random.default_rng(seed)
    matrix = np.eye(places, dtype=np.uint8)
    for _ in range(4 * places):  # row operations keep it invertible
        row, other = draw.choice(places, 2, replace=False)
        matrix[row] ^= matrix[other]
    arrays = {"matrix": matrix, "offset": draw.integers(0, 2, places).astype(np.uint8)}
    size = (1 << places) - int(draw.integers(0, 1 << (places - 1)))
    spec = InterfaceSpec.parse(f"gf2:matrix={matrix_hash(arrays)}")
    table = build_interface(spec, size, 48, None, arrays).materialize().numpy()
    assert np.array_equal(fit(table).materialize().numpy(), table)


def test_one_changed_bit_is_no_code_any_more():
    table = build_interface(InterfaceSpec.parse("gf2"), 320, 96).materialize().numpy()
    table[100, 5] = 1 - table[100, 5]
    with pytest.raises(InputError, match="no code that can be found"):
        fit(table)
    for channel in range(5, 96, 9):
        table[100, channel] = table[100, 5]  # the same bit in every copy of its coordinate
    with pytest.raises(
        InputError,
        match=r"tokens 100 and 271 have the same vector in the input table \(1 such pairs\)",
    ):
        fit(table)


@pytest.mark.parametrize("value", [0.0, -0.0, 0.3])
@pytest.mark.parametrize(("size", "width"), [(320, 36), (512, 100), (2, 4)])
def test_a_table_of_one_vector_for_all_tokens_is_no_code(value, size, width):
    table = np.full((size, width), value, dtype=np.float32)
    for requested in (None, "binary", "gf2", "binary:lift=orthogonal", "binary:scale=match,std=0"):
        with pytest.raises(
            InputError, match="tokens 0 and 1 have the same vector in the input table"
        ):
            interface_of_table(table, requested, None, Path("x"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "spec",
    ["binary", "gf2:values=pm1,lift=interleave", "gaussian:width=20", "binary:lift=orthogonal"],
)
def test_a_value_that_is_not_finite_is_found_in_whatever_row(spec, value, monkeypatch):
    monkeypatch.setattr(check, "BLOCK_ENTRIES", 96 * 7)
    made = build_interface(InterfaceSpec.parse(spec), 320, 96).materialize().numpy()
    for row in (0, 299, 319):
        table = made.copy()
        table[row, 95] = value
        for requested in (None, spec):
            with pytest.raises(
                InputError, match=f"the input table is not finite in the row of token {row};"
            ):
                interface_of_table(table, requested, None, Path("x"))


@pytest.mark.parametrize(
    "spec",
    ["binary", "gf2:values=pm1,lift=interleave", "gaussian:width=20", "binary:lift=orthogonal"],
)
def test_every_entry_of_a_table_is_compared_with_the_code_that_it_is_said_to_be(spec, monkeypatch):
    monkeypatch.setattr(base, "BLOCK_ENTRIES", 96 * 7)
    made = build_interface(InterfaceSpec.parse(spec), 320, 96).materialize().numpy()
    assert str(interface_of_table(made, spec, None, Path("x"))[0].spec) == spec
    for row in (0, 6, 7, 319):
        table = made.copy()
        table[row, 40] += 0.01
        with pytest.raises(InputError, match="its input table is not that of"):
            interface_of_table(table, spec, None, Path("x"))


def test_a_table_behind_an_orthogonal_lift_is_taken_up_to_rounding_and_no_further():
    made = (
        build_interface(InterfaceSpec.parse("binary:lift=orthogonal"), 320, 96)
        .materialize()
        .numpy()
    )
    bound = 1e-5 * float(np.abs(made).max())
    for apart, taken in ((0.9 * bound, True), (1.1 * bound, False)):
        table = made.copy()
        table[317, 3] += apart
        if taken:
            assert (
                "every entry within"
                in interface_of_table(table, "binary:lift=orthogonal", None, Path("x"))[1]
            )
        else:
            with pytest.raises(InputError, match="its input table is not that of"):
                interface_of_table(table, "binary:lift=orthogonal", None, Path("x"))


def test_words_that_are_compared_exactly_leave_no_column_out():
    bits = build_codebook(InterfaceSpec.parse("binary"), 320).words_VK.copy()
    assert has_words("binary", {}, bits) and has_words("binary", {}, bits, exact=True)
    bits[:, 2] = 1
    assert has_words("binary", {}, bits) and not has_words("binary", {}, bits, exact=True)
    bits[317, 3] ^= 1
    assert not has_words("binary", {}, bits)


def test_a_trained_table_is_no_code():
    with pytest.raises(InputError, match="--interface learned"):
        fit(np.random.default_rng(0).normal(size=(320, 48)).astype(np.float32))


def test_bits_that_are_not_affine_have_no_matrix():
    bits = np.random.default_rng(0).integers(0, 2, (64, 6)).astype(np.uint8)
    assert affine(bits) is None
