"""The code of a table is found to the last bit, or not at all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencodes.codes import InterfaceSpec
from tokencodes.codes.codebook import matrix_hash
from tokencodes.errors import InputError
from tokencodes.importing.fit import affine, fit
from tokencodes.interfaces import build_interface

FOUND = [
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


@pytest.mark.parametrize("spec", FOUND)
@pytest.mark.parametrize(("size", "width"), [(320, 96), (512, 100)])
def test_a_code_is_found_in_its_table(spec, size, width):
    made = build_interface(InterfaceSpec.parse(spec), size, width)
    table = made.materialize().numpy()
    found = fit(table)
    assert np.array_equal(found.materialize().numpy(), table)
    assert found.describe().trainable_parameters == 0
    if not {"width", "affine", "center"} & set(spec.replace("=", ":").replace(",", ":").split(":")):  # or equal by another name
        assert str(found.spec) == str(made.spec)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 9))
def test_any_invertible_matrix_is_found(seed, places):
    draw = np.random.default_rng(seed)
    matrix = np.eye(places, dtype=np.uint8)
    for _ in range(4 * places):  # row operations keep it invertible
        one, other = draw.choice(places, 2, replace=False)
        matrix[one] ^= matrix[other]
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
    with pytest.raises(InputError, match="no code that can be found"):
        fit(table)


def test_a_trained_table_is_no_code():
    with pytest.raises(InputError, match="--interface learned"):
        fit(np.random.default_rng(0).normal(size=(320, 48)).astype(np.float32))


def test_bits_that_are_not_affine_have_no_matrix():
    bits = np.random.default_rng(0).integers(0, 2, (64, 6)).astype(np.uint8)
    assert affine(bits) is None
