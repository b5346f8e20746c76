"""The seam: what every interface emits, holds and refuses."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tokencodes import (
    FixedCode,
    InputError,
    InterfaceSpec,
    LearnedTable,
    build_codebook,
    build_interface,
)
from tokencodes.codes import lift
from tokencodes.codes.codebook import matrix_hash
from tokencodes.interfaces import base
from tokencodes.swap import ScaledInput

FIXED = [
    "binary",
    "binary:endian=big,width=11",
    "gray",
    "gf2",
    "gf2:affine=true,ids=permuted",
    "ecc",
    "random:width=33",
    "random:width=20,values=pm1,ids=permuted",
    "digits:base=3",
    "gaussian",
    "gaussian:width=36,scale=0.02",
    "sphere:center=true",
    "sincos",
    "binary:ids=permuted",
    "binary:values=pm1",
    "gf2:lift=interleave,values=pm1",
    "binary:scale=match",
    "gf2:values=pm1,center=true,lift=interleave",
    "binary:lift=pad",
    "binary:lift=orthogonal",
]
CODES = [*FIXED, "learned-code", "learned-code:init=gaussian,width=12,lift=interleave"]
COMPUTED = [
    "binary",
    "gray",
    "gf2",
    "gf2:affine=true",
    "ecc",
    "random:width=33",
    "random:width=200",
    "binary:scale=match",
    "gf2:values=pm1",
]


def interface(spec: str, vocab: int = 320, hidden: int = 36):
    return build_interface(InterfaceSpec.parse(spec), vocab, hidden)


@pytest.mark.parametrize("spec", ["learned", *CODES])
def test_a_token_has_one_vector_wherever_it_stands(spec):
    module = interface(spec)
    ids = torch.tensor([[0, 7, 319], [7, 7, 0]])
    assert torch.equal(module(ids), module.materialize()[ids])


WORDS = [
    "binary",
    "gf2",
    "gray",
    "ecc",
    "random:width=20",
    "digits:base=3",
    "gaussian:width=12",
    "sphere:width=12",
    "sincos",
]
SHAPED = [
    "learned",
    *WORDS,
    *(f"gf2:lift={name}" for name in ("interleave", "orthogonal", "pad")),
    *(f"binary:width=12,lift={name}" for name in ("tile", "interleave")),  # 12 divides 36
    *(
        f"{words}{',' if ':' in words else ':'}storage=computed"
        for words in ("binary", "gf2", "gray", "ecc", "random:width=20")
    ),
    "binary:values=pm1,ids=permuted,storage=computed",
    "binary:scale=match,center=true",
    "learned-code",
    *(f"learned-code:width=10,lift={name}" for name in ("interleave", "orthogonal", "pad")),
]
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@pytest.mark.parametrize("spec", SHAPED)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shape=SHAPES,
    seed=st.integers(0, 99),
    ids_dtype=st.sampled_from([torch.int64, torch.int32]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_ids_of_every_shape_that_an_embedding_takes_give_its_vectors(
    spec, shape, seed, ids_dtype, dtype
):
    module = interface(spec).to(dtype)
    plain = nn.Embedding.from_pretrained(module.materialize())
    ids = torch.randint(0, 320, shape, generator=torch.Generator().manual_seed(seed)).to(ids_dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=bool(seed % 2)):
        vectors, expected = module(ids), plain(ids)
        scaled = ScaledInput(module, 6.0)(ids)
    assert (
        (vectors.shape, vectors.dtype) == (expected.shape, expected.dtype) == ((*shape, 36), dtype)
    )
    if (
        "orthogonal" in spec
    ):  # a matrix product may add up in another order for another number of ids
        torch.testing.assert_close(vectors, expected)
    else:
        assert torch.equal(vectors, expected)
    assert torch.equal(scaled, vectors * torch.tensor(6.0, dtype=dtype))


@pytest.mark.parametrize(
    "spec",
    [*SHAPED[:4], *(spec for spec in SHAPED if "lift" in spec or spec == "gf2:storage=computed")],
)
def test_ids_of_every_shape_compile_to_one_graph(spec):
    module = interface(spec)
    table = module.materialize()
    for shape in ((), (5,), (2, 3, 2), (2, 0)):
        torch._dynamo.reset()
        ids = torch.randint(0, 320, shape, generator=torch.Generator().manual_seed(1))
        vectors = torch.compile(module, backend="eager", fullgraph=True)(ids)
        torch.testing.assert_close(vectors, table[ids])


@pytest.mark.parametrize(
    "spec", ["learned", "binary", "learned-code", "gaussian:width=12", "gf2:storage=computed"]
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 2, 2)])
@pytest.mark.parametrize("id", [-1, 320])
def test_an_id_outside_the_vocabulary_is_named_in_every_shape(spec, shape, id):
    ids = torch.full(shape, 7)
    ids.view(-1)[-1] = id
    for module in (interface(spec), ScaledInput(interface(spec), 6.0)):
        with pytest.raises(InputError, match=rf"^token id {id} is outside 0 \.\.\. 319$"):
            module(ids)


@pytest.mark.parametrize("spec", CODES)
def test_an_input_is_the_lifted_coordinates(spec):
    module, parsed = interface(spec), InterfaceSpec.parse(spec)
    z = build_codebook(parsed, 320).coordinates(36).astype(np.float64)
    expected = z @ lift.matrix(parsed.lift, z.shape[1], 36, parsed.lift_seed).T
    np.testing.assert_allclose(
        module.materialize().double().numpy(), expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("spec", FIXED)
def test_a_fixed_code_trains_nothing(spec):
    module = interface(spec)
    assert list(module.parameters()) == []
    assert not module(torch.zeros(1, 1, dtype=torch.int64)).requires_grad


@pytest.mark.parametrize("ids", ["natural", "permuted"])
@pytest.mark.parametrize("spec", COMPUTED)
def test_a_computed_code_is_bitwise_the_looked_up_one_and_stores_no_table(spec, ids):
    text = f"{spec}{',' if ':' in spec else ':'}ids={ids}"
    computed, looked_up = (
        interface(f"{text},storage=computed", 3071, 204),
        interface(text, 3071, 204),
    )
    assert torch.equal(computed.materialize(), looked_up.materialize())
    assert computed.sha256 == looked_up.sha256
    assert max((buffer.numel() for buffer in computed.buffers()), default=0) <= 204 * 12
    computed.check()


def test_wide_bits_are_stored_packed():
    facts = interface("random:width=33", 320, 36).describe()
    assert (facts.buffer_entries, facts.buffer_bytes) == (320 * 33, 320 * 5)


def test_a_learned_code_trains_its_coordinates_only():
    module = interface("learned-code:init=gf2,values=pm1")
    assert [tuple(p.shape) for p in module.parameters()] == [(320, 9)]
    module(torch.tensor([[3, 3, 5]])).sum().backward()
    gradient = module.coordinates.grad
    assert torch.equal(gradient.abs().sum(1).nonzero()[:, 0], torch.tensor([3, 5]))
    # two places, four channels a coordinate
    assert torch.equal(gradient[3], torch.full((9,), 2.0 * 4))


def test_scale_match_gives_the_norm_of_a_learned_table():
    for spec in (
        "binary:scale=match",
        "gaussian:width=20,scale=match,lift=interleave",
        "gf2:scale=match,lift=pad,center=true",
    ):
        assert interface(spec).describe().squared_norm_mean == pytest.approx(36 * 0.02**2, rel=1e-5)
    assert interface("binary:scale=match,std=1").describe().squared_norm_mean == pytest.approx(
        36, rel=1e-5
    )


def test_center_takes_away_the_mean_of_the_vocabulary():
    for spec in ("binary:center=true", "gf2:values=pm1,center=true", "gaussian:center=true"):
        assert interface(spec).materialize().double().mean(0).abs().max() < 1e-6


def test_an_orthogonal_lift_keeps_the_norms_of_tile():
    tiled, turned = (
        interface("binary").materialize(),
        interface("binary:lift=orthogonal").materialize(),
    )
    torch.testing.assert_close((tiled**2).sum(1), (turned**2).sum(1))


def test_tile_and_interleave_differ():
    assert not torch.equal(
        interface("binary").materialize(), interface("binary:lift=interleave").materialize()
    )


@pytest.mark.parametrize("spec", ["learned", *CODES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_it_emits_the_parameters_dtype_also_under_autocast(spec, dtype):
    module = interface(spec).to(dtype)
    ids = torch.tensor([[1, 2]])
    assert module(ids).dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(ids).dtype == dtype


@pytest.mark.parametrize("spec", FIXED)
def test_a_cast_model_keeps_its_codebook_in_whole_bits(spec):
    module = interface(spec).to(torch.bfloat16)
    assert all(not b.dtype.is_floating_point for name, b in module.state_dict().items())
    module.check()


@pytest.mark.parametrize("id", [-1, 320])
@pytest.mark.parametrize("spec", ["learned", "binary", "learned-code", "gf2:storage=computed"])
def test_an_id_outside_the_vocabulary_is_an_error(spec, id):
    with pytest.raises(InputError, match=rf"token id {id} is outside 0 ... 319"):
        interface(spec)(torch.tensor([[id]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
def test_ids_of_another_type_are_an_error(dtype):
    with pytest.raises(InputError, match="they must be int64 or int32"):
        interface("gf2:storage=computed")(torch.zeros(1, 2, dtype=dtype))


@pytest.mark.parametrize("buffer", ["codebook", "matrix", "offset"])
def test_one_flipped_bit_is_found_and_placed(buffer):
    module = interface("gf2")
    module.get_buffer(buffer).view(-1)[-1] ^= 1
    with pytest.raises(InputError, match=f"{buffer} differs from 'gf2' in 1 of"):
        module.check()
    module.reset_buffers()
    module.check()


@pytest.mark.parametrize(
    ("spec", "buffer"),
    [
        ("gaussian", "codebook"),
        ("binary:lift=orthogonal", "lift"),
        ("binary:scale=match", "levels"),
    ],
)
def test_one_flipped_bit_of_a_float_table_is_found(spec, buffer):
    module = interface(spec)
    module.get_buffer(buffer).view(-1)[-1] ^= 1
    with pytest.raises(InputError, match=f"{buffer} (of|differs from)"):
        module.check()


def test_another_seeds_codebook_is_found():
    module = interface("gf2")
    module.load_state_dict(interface("gf2:seed=1").state_dict())
    with pytest.raises(InputError, match="was made with another code"):
        module.check()


def test_to_empty_is_mended_by_reset_buffers():
    with torch.device("meta"):
        module = interface("gf2")
    with pytest.raises(InputError, match="call reset_buffers"):
        module.check()
    module = module.to_empty(device="cpu")
    module.reset_buffers()
    module.check()


def test_the_papers_entries_bytes_and_norms():
    facts = interface("binary", 49152, 2048).describe()
    assert (facts.trainable_parameters, facts.buffer_entries, facts.rank) == (0, 786_432, 16)
    assert round(facts.squared_norm_mean) == 981
    assert facts.squared_norm_min == 0.0
    assert interface("gf2", 49152, 2048).describe().buffer_entries == 786_704
    with torch.device("meta"):
        learned = interface("learned", 49152, 2048).describe()
    assert (learned.trainable_parameters, learned.buffer_entries) == (100_663_296, 0)


def test_described_norms_and_rank_are_those_of_the_table():
    for spec in FIXED:
        module = interface(spec)
        table = module.materialize().double()
        norms, facts = (table**2).sum(1), module.describe()
        norm_facts = facts.squared_norm_mean, facts.squared_norm_min, facts.squared_norm_max
        assert norm_facts == pytest.approx(
            (float(norms.mean()), float(norms.min()), float(norms.max())), rel=1e-5
        ), spec
        assert facts.rank == int(torch.linalg.matrix_rank(table, rtol=1e-5)), spec


def test_a_model_narrower_than_the_code_is_refused():
    with pytest.raises(
        InputError, match=r"a model width of 8 is below the code width 9; set hidden_size >= 9"
    ):
        interface("binary", 320, 8)


@pytest.mark.parametrize(
    "spec", ["learned", "gf2", "binary:lift=orthogonal", "random:width=33,storage=computed"]
)
def test_blocks_are_the_whole_table_once(spec, monkeypatch):
    module = interface(spec)
    for entries, rows in ((1, 1), (36 * 7, 7), (36 * 320, 320), (36 * 400, 400)):
        monkeypatch.setattr(base, "BLOCK_ENTRIES", entries)
        blocks = list(module.blocks())
        assert [start for start, _ in blocks] == list(range(0, 320, rows))
        torch.testing.assert_close(torch.cat([block for _, block in blocks]), module.materialize())


def test_a_given_matrix_that_gives_two_tokens_one_word_is_refused():
    for columns, refused in (
        ([0, 1, 2, 3, 4, 5, 6, 7, 7], True),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], False),
    ):
        arrays = {
            "matrix": np.eye(9, dtype=np.uint8)[:, columns],
            "offset": np.zeros(9, dtype=np.uint8),
        }
        spec = InterfaceSpec.parse(f"gf2:matrix={matrix_hash(arrays)}")
        if refused:
            with pytest.raises(
                InputError,
                match="its matrix gives two of 320 tokens one word; take an invertible one",
            ):
                build_interface(spec, 320, 36, None, arrays)
        else:
            build_interface(spec, 320, 36, None, arrays).check()
    wide = np.eye(12, dtype=np.uint8)
    wide[:, 11] = wide[:, 10]  # columns that no id of nine bits reaches
    arrays = {"matrix": wide, "offset": np.zeros(12, dtype=np.uint8)}
    build_interface(
        InterfaceSpec.parse(f"gf2:width=12,matrix={matrix_hash(arrays)}"), 320, 36, None, arrays
    ).check()


def test_a_scale_that_makes_every_vector_zero_is_refused():
    with pytest.raises(InputError, match="std=0 makes every vector zero; take a larger one"):
        interface("binary:scale=match,std=0")
    assert interface("binary:scale=match,std=1e-30").materialize().any()


def test_kinds():
    assert isinstance(interface("learned:std=1"), LearnedTable)
    assert isinstance(interface("gf2"), FixedCode)
    assert interface("learned:std=1").weight.detach().std() == pytest.approx(1.0, rel=0.05)
