"""The seam: what every interface emits, holds and refuses."""

import numpy as np
import pytest
import torch

from tokencodes import FixedCode, InputError, InterfaceSpec, LearnedTable, build_interface
from tokencodes.codes import lift

FIXED = ["binary", "gf2", "binary:ids=permuted", "binary:values=pm1", "gf2:lift=interleave,values=pm1", "binary:width=11"]


def interface(spec: str, vocab: int = 320, hidden: int = 36):
    return build_interface(InterfaceSpec.parse(spec), vocab, hidden)


@pytest.mark.parametrize("spec", ["learned", *FIXED])
def test_a_token_has_one_vector_wherever_it_stands(spec):
    module = interface(spec)
    ids = torch.tensor([[0, 7, 319], [7, 7, 0]])
    assert torch.equal(module(ids), module.materialize()[ids])


@pytest.mark.parametrize("spec", FIXED)
def test_a_fixed_input_is_the_lifted_word_and_trains_nothing(spec):
    module = interface(spec)
    parsed = InterfaceSpec.parse(spec)
    bits = module.codebook.double().numpy()
    values = bits * 2 - 1 if parsed.values == "pm1" else bits
    expected = values @ lift.matrix(parsed.lift, module.code_width, 36).T
    assert np.array_equal(module.materialize().double().numpy(), expected)
    assert list(module.parameters()) == []
    assert not module(torch.zeros(1, 1, dtype=torch.int64)).requires_grad


def test_tile_and_interleave_differ():
    assert not torch.equal(interface("binary").materialize(), interface("binary:lift=interleave").materialize())


@pytest.mark.parametrize("spec", ["learned", *FIXED])
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
    assert module.codebook.dtype == torch.uint8
    module.check()


@pytest.mark.parametrize("id", [-1, 320])
@pytest.mark.parametrize("spec", ["learned", "binary"])
def test_an_id_outside_the_vocabulary_is_an_error(spec, id):
    with pytest.raises(IndexError):
        interface(spec)(torch.tensor([[id]]))


@pytest.mark.parametrize("buffer", ["codebook", "matrix", "offset"])
def test_one_flipped_bit_is_found_and_placed(buffer):
    module = interface("gf2")
    module.get_buffer(buffer).view(-1)[-1] ^= 1
    with pytest.raises(InputError, match=f"{buffer} differs from 'gf2' in 1 of"):
        module.check()
    module.reset_buffers()
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
        assert facts.squared_norm_mean == pytest.approx(float(norms.mean()))
        assert (facts.squared_norm_min, facts.squared_norm_max) == (float(norms.min()), float(norms.max()))
        assert facts.rank == int(torch.linalg.matrix_rank(table))


def test_a_model_narrower_than_the_code_is_refused():
    with pytest.raises(InputError, match=r"a model width of 8 is below the code width 9; set hidden_size >= 9"):
        interface("binary", 320, 8)


def test_kinds():
    assert isinstance(interface("learned:std=1"), LearnedTable)
    assert isinstance(interface("gf2"), FixedCode)
    assert interface("learned:std=1").weight.detach().std() == pytest.approx(1.0, rel=0.05)
