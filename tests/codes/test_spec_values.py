"""Specs: every default, every bound, which keys go together,
and the width and hash of each kind."""

import hashlib
import json
from dataclasses import fields

import pytest

from tokencodes.codes import InterfaceSpec, minimal_width
from tokencodes.errors import InputError

SEEDED = 2**63 - 1


def test_the_defaults_are_the_papers_and_the_plain_ones():
    assert {
        field.name: field.default for field in fields(InterfaceSpec) if field.name != "words"
    } == {
        "init": "binary",
        "width": None,
        "endian": "little",
        "seed": 12345,
        "min_weight": 4,
        "affine": False,
        "matrix": None,
        "base": 16,
        "ids": "natural",
        "ids_seed": 0,
        "order": None,
        "values": "01",
        "center": False,
        "scale": 1.0,
        "std": 0.02,
        "lift": "tile",
        "lift_seed": 0,
        "storage": "lookup",
    }


@pytest.mark.parametrize(
    ("words", "key", "low", "high", "below", "above"),
    [
        ("binary", "width", "1", "1048576", "0", "1048577"),
        ("gf2", "min_weight", "0", "1048576", "-1", "1048577"),
        ("digits", "base", "2", "65536", "1", "65537"),
        ("gf2", "seed", "0", str(SEEDED), "-1", str(SEEDED + 1)),
        ("binary:ids=permuted", "ids_seed", "0", str(SEEDED), "-1", str(SEEDED + 1)),
        ("binary:lift=orthogonal", "lift_seed", "0", str(SEEDED), "-1", str(SEEDED + 1)),
        ("learned", "std", "0", "1e6", "-1e-9", "1000001"),
        ("binary", "scale", "1e-9", "1e9", "0.9e-9", "1.1e9"),
    ],
)
def test_numbers_lie_between_their_bounds(words, key, low, high, below, above):
    start = f"{words}{',' if ':' in words else ':'}{key}="
    for value in (low, high):
        assert getattr(InterfaceSpec.parse(start + value), key) == (
            int(value) if value.isdigit() else float(value)
        )
    for value in (below, above):
        with pytest.raises(InputError, match=f"{key}={value} is not in"):
            InterfaceSpec.parse(start + value)


@pytest.mark.parametrize("text", ["1.0", "1e3", "x", "1_000", "", "0x10", "nan", "1 2"])
def test_a_whole_number_is_written_as_one(text):
    with pytest.raises(InputError):
        InterfaceSpec.parse(f"gf2:seed={text}")
    assert InterfaceSpec.parse("gf2:seed=+7").seed == 7


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", 2.0), ("2.", 2.0), (".5", 0.5), ("1.5e3", 1500.0), ("+2e-3", 0.002), ("match", "match")],
)
def test_a_decimal_number_may_be_written_in_any_usual_form(text, value):
    assert InterfaceSpec.parse(f"binary:scale={text}").scale == value


@pytest.mark.parametrize("text", ["nan", "inf", "big", "1e", "--1", "match2"])
def test_what_is_no_decimal_number_is_refused(text):
    with pytest.raises(InputError):
        InterfaceSpec.parse(f"binary:scale={text}")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("learned", "std"),
        ("binary", "width endian ids center scale lift values storage"),
        ("gray", "width ids center scale lift values storage"),
        ("ecc", "width ids center scale lift values storage"),
        ("random", "width seed ids center scale lift values storage"),
        ("digits", "base ids center scale lift values"),
        ("gf2", "width seed min_weight affine matrix ids center scale lift values storage"),
        ("gf2:matrix=a.txt", "width matrix ids center scale lift values storage"),
        ("gaussian", "width seed ids center scale lift"),
        ("sphere", "width seed ids center scale lift"),
        ("sincos", "width ids center scale lift"),
        ("binary:ids=permuted", "width endian ids center scale lift values ids_seed storage"),
        ("binary:ids=clustered", "width endian ids center scale lift values ids_seed order"),
        ("binary:ids=ranked", "width endian ids center scale lift values order"),
        ("binary:scale=match", "width endian ids center scale lift values std storage"),
        ("binary:lift=orthogonal", "width endian ids center scale lift values lift_seed storage"),
        ("learned-code", "init width endian ids center scale lift values"),
        ("learned-code:init=gaussian", "init width seed ids center scale lift"),
        ("learned-code:init=digits", "init base ids center scale lift values"),
    ],
)
def test_the_keys_that_go_together(text, keys):
    spec = InterfaceSpec.parse(text)
    assert spec.allowed() == tuple(keys.split())
    assert spec.keys().keys() == {"words", *keys.split()}


@pytest.mark.parametrize(
    ("text", "learned", "fixed", "kind", "bits", "informed", "given"),
    [
        ("learned", True, False, "learned", False, False, ()),
        ("learned-code", False, False, "binary", True, False, ()),
        ("learned-code:init=sphere", False, False, "sphere", False, False, ()),
        ("binary", False, True, "binary", True, False, ()),
        ("digits:ids=ranked", False, True, "digits", True, True, ("order",)),
        ("gaussian:ids=clustered", False, True, "gaussian", False, True, ("order",)),
        ("gf2:matrix=a,ids=ranked", False, True, "gf2", True, True, ("order", "matrix", "offset")),
        ("gf2:matrix=a", False, True, "gf2", True, False, ("matrix", "offset")),
        ("sincos", False, True, "sincos", False, False, ()),
    ],
)
def test_what_a_spec_is(text, learned, fixed, kind, bits, informed, given):
    spec = InterfaceSpec.parse(text)
    assert (spec.learned, spec.fixed, spec.kind) == (learned, fixed, kind)
    assert (spec.binary_valued, spec.informed, spec.given) == (bits, informed, given)


@pytest.mark.parametrize(
    ("text", "vocab", "width"),
    [
        ("binary", 1, 1),
        ("binary", 3072, 12),
        ("binary:width=20", 3072, 20),
        ("gray", 3073, 12),
        ("random", 4097, 13),
        ("ecc", 3072, 24),
        ("ecc:width=13", 3072, 13),
        ("digits", 1, 16),
        ("digits", 16, 16),
        ("digits", 17, 32),
        ("digits:base=10", 1000, 30),
        ("digits:base=10", 1001, 40),
        ("digits:base=3", 320, 18),
        ("gaussian", 3072, 12),
        ("gaussian:width=1", 3072, 1),
        ("sphere", 100, 7),
        ("sincos", 3072, 12),
        ("sincos", 300, 10),
        ("sincos:width=2", 3072, 2),
        ("sincos", 1, 2),
        ("learned-code:init=ecc", 3072, 24),
    ],
)
def test_the_width_of_each_kind(text, vocab, width):
    assert InterfaceSpec.parse(text).code_width(vocab) == width


@pytest.mark.parametrize(
    ("text", "vocab", "said"),
    [
        ("binary:width=11", 3072, "cannot tell 3,072 tokens apart; it must be >= 12"),
        ("ecc:width=11", 3072, "it must be >= 12"),
        ("random:width=3", 9, "it must be >= 4"),
        ("sincos:width=1", 9, "it must be >= 2"),
        ("sincos:width=7", 9, "sines and cosines come in pairs; make it even"),
    ],
)
def test_a_width_that_is_too_small_or_odd_is_refused(text, vocab, said):
    with pytest.raises(InputError, match=said):
        InterfaceSpec.parse(text).code_width(vocab)


@pytest.mark.parametrize(
    "text",
    [
        "gf2:affine=true",
        "binary:width=20,endian=big,ids=permuted,ids_seed=3,values=pm1,center=true,scale=0.5,lift=pad,storage=computed",
        "binary:scale=2",
        "binary:scale=1e-05",
        "learned:std=0",
        "binary:ids=ranked,order=abc",
        "gf2:matrix=some/file.txt",
        "binary:scale=match,std=1",
        "digits:base=3,lift=orthogonal,lift_seed=2",
    ],
)
def test_a_canonical_form_is_written_as_it_was_read(text):
    assert str(InterfaceSpec.parse(text)) == text
    assert InterfaceSpec.parse(f"{text.replace(',', ' , ')} ,") == InterfaceSpec.parse(text)


def hashed(**content):
    return hashlib.sha256(
        json.dumps({"version": 1, **content}, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def test_the_hash_is_that_of_the_canonical_json():
    assert InterfaceSpec.parse("learned").sha256(320, 36) == hashed(
        words="learned", std=0.02, vocab_size=320, hidden_size=36
    )
    keys = {
        "words": "gray",
        "width": 9,
        "ids": "natural",
        "center": False,
        "scale": 1.0,
        "lift": "tile",
        "values": "01",
    }
    assert InterfaceSpec.parse("gray").sha256(320, 36) == hashed(
        **keys, storage="lookup", vocab_size=320, hidden_size=36
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("binary:ids_seed=1", "it goes with ids=permuted or ids=clustered"),
        ("binary:lift_seed=1", "it goes with lift=orthogonal"),
        ("binary:std=1", "it goes with learned, and with scale=match"),
        ("gaussian:values=pm1", "only bits can be shown as 01 or pm1"),
        ("gaussian:storage=computed", "only binary, gf2, gray, ecc and random can be computed"),
        ("binary:order=abc", "it goes with ids=ranked or ids=clustered"),
        ("learned:words=5", "words= does not go with these words and keys"),
        ("binary:=3", "unknown|does not go|not key=value"),
        ("binary:width=", "'width=' is not key=value"),
        ("gf2:affine=1", "affine=1 is neither true nor false"),
        ("binary:endian=middle", "endian=middle is not one of little, big"),
    ],
)
def test_a_key_that_does_not_go_is_explained(text, said):
    with pytest.raises(InputError, match=said):
        InterfaceSpec.parse(text)


def test_bits_that_tell_a_vocabulary_apart():
    assert [minimal_width(size) for size in (1, 2, 3, 4, 5, 8, 9)] == [1, 1, 2, 2, 3, 3, 4]
