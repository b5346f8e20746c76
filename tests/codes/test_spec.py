"""The written form: canonical, typed, refused with a hint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokencodes.codes import InterfaceSpec, minimal_width
from tokencodes.errors import InputError


@pytest.mark.parametrize(
    ("vocab", "width"),
    [(1, 1), (2, 1), (3, 2), (3072, 12), (49152, 16), (50257, 16), (65536, 16), (65537, 17)],
)
def test_minimal_width_is_the_ceiling_of_log2(vocab, width):
    assert minimal_width(vocab) == width


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("binary", "binary"),
        ("gf2:seed=12345", "gf2"),
        ("gf2:seed=7,min_weight=3", "gf2:seed=7,min_weight=3"),
        (" binary : ids = permuted , ids_seed = 1 ", "binary:ids=permuted,ids_seed=1"),
        ("binary:lift=interleave,values=pm1", "binary:values=pm1,lift=interleave"),
        ("learned:std=1.0", "learned:std=1"),
        ("learned:std=0.02", "learned"),
        ("learned-code:init=gaussian,width=12", "learned-code:init=gaussian,width=12"),
        ("binary:scale=match,std=0.5,center=true", "binary:center=true,scale=match,std=0.5"),
        ("random:width=2048,values=pm1,seed=3", "random:width=2048,seed=3,values=pm1"),
        ("digits:base=16", "digits"),
    ],
)
def test_a_spec_has_one_canonical_form(text, canonical):
    spec = InterfaceSpec.parse(text)
    assert str(spec) == canonical
    assert InterfaceSpec.parse(canonical) == spec


@given(
    st.sampled_from(["binary", "gf2"]),
    st.sampled_from(["natural", "permuted"]),
    st.integers(0, 2**62),
    st.sampled_from(["01", "pm1"]),
    st.sampled_from(["tile", "interleave"]),
)
def test_every_product_of_keys_survives_the_round_trip(words, ids, seed, values, lift):
    text = f"{words}:ids={ids},values={values},lift={lift}" + (
        f",ids_seed={seed}" if ids == "permuted" else ""
    )
    spec = InterfaceSpec.parse(text)
    again = InterfaceSpec.parse(str(spec))
    assert again == spec
    assert again.sha256(3072, 192) == spec.sha256(3072, 192)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("binray", "unknown words 'binray'; did you mean 'binary'"),
        ("binary:ids=permutated", "ids=permutated is not one of natural, permuted"),
        ("binary:lfit=tile", "did you mean 'lift'"),
        ("binary:seed=3", "seed= does not go with these words"),
        ("gaussian:values=pm1", "only bits can be shown"),
        ("digits:width=9", "width= does not go"),
        ("digits:storage=computed", "can be computed"),
        ("binary:ids=ranked,storage=computed", "not with an informed assignment"),
        ("binary:lift_seed=1", "it goes with lift=orthogonal"),
        ("binary:std=1", "it goes with learned, and with scale=match"),
        ("binary:scale=0", "scale=0 is not in"),
        ("binary:scale=big", "scale=big is not a number"),
        ("binary:center=yes", "center=yes is neither true nor false"),
        ("gf2:matrix=a.txt,seed=3", "seed= does not go"),
        ("learned-code:init=learned", "init=learned is not one of"),
        ("learned-code:storage=computed", "storage= does not go"),
        ("learned:lift=tile", "lift= does not go"),
        ("binary:ids_seed=3", "it goes with ids=permuted"),
        ("binary:width", "'width' is not key=value"),
        ("binary:width=x", "width=x is not a number"),
        ("binary:width=0", "width=0 is not in 1"),
        ("gf2:seed=-1", "seed=-1 is not in 0"),
        ("learned:std=nan", "std=nan is not in"),
        ("binary:width=12,width=13", "width= is given twice"),
    ],
)
def test_what_does_not_fit_is_named(text, complaint):
    with pytest.raises(InputError) as caught:
        InterfaceSpec.parse(text)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_width_that_cannot_tell_the_tokens_apart_is_refused():
    with pytest.raises(
        InputError, match=r"width=11 cannot tell 3,072 tokens apart; it must be >= 12"
    ):
        InterfaceSpec.parse("binary:width=11").code_width(3072)


def test_the_hash_sees_vocabulary_width_and_every_key():
    base = InterfaceSpec.parse("gf2")
    hashes = {
        base.sha256(3072, 192),
        base.sha256(3071, 192),
        base.sha256(3072, 204),
        InterfaceSpec.parse("gf2:seed=1").sha256(3072, 192),
        InterfaceSpec.parse("gf2:values=pm1").sha256(3072, 192),
        InterfaceSpec.parse("gf2:lift=interleave").sha256(3072, 192),
        InterfaceSpec.parse("gf2:ids=permuted").sha256(3072, 192),
        InterfaceSpec.parse("gf2:ids=permuted,ids_seed=1").sha256(3072, 192),
    }
    assert len(hashes) == 8
    assert InterfaceSpec.parse("gf2:width=12").sha256(3072, 192) == base.sha256(3072, 192)
