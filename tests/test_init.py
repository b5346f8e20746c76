"""Initialisation by name: what makes the arms matched at step 0."""

import math

import pytest
import torch

from tests.test_model import SHAPE, SPECS
from tokencodes import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.init import generator, initialise


def drawn(spec: str, seed: int, **changes) -> dict[str, torch.Tensor]:
    model = TokenCodeForCausalLM(TokenCodeConfig(**{**SHAPE, **changes}, interface=spec))
    initialise(model, seed)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_body_and_head_are_bitwise_equal_in_every_arm():
    arms = {spec: drawn(spec, 3) for spec in SPECS}
    shared = [name for name in arms["learned"] if name != "model.embed_tokens.weight"]
    assert len(shared) == 9 * 2 + 2
    for spec, parameters in arms.items():
        assert [name for name in parameters if name != "model.embed_tokens.weight"] == shared
        assert all(torch.equal(parameters[name], arms["learned"][name]) for name in shared), spec


def test_seeds_and_names_draw_apart():
    first, second = drawn("learned", 1), drawn("learned", 2)
    assert not torch.equal(first["lm_head.weight"], second["lm_head.weight"])
    assert not torch.equal(first["lm_head.weight"], first["model.embed_tokens.weight"])
    assert generator(1, "a").initial_seed() != generator(1, "b").initial_seed()


def test_a_deeper_model_keeps_the_draw_of_the_blocks_it_has():
    shallow, deep = drawn("binary", 1), drawn("binary", 1, num_hidden_layers=4)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(shallow[name], deep[name])


@pytest.mark.parametrize("base", [0.02, 0.07])
def test_the_table_of_inits(base):
    parameters = drawn(
        "learned:std=0.5", 1, hidden_size=64, intermediate_size=256, initializer_range=base
    )
    for name, value in parameters.items():
        if value.dim() == 1:
            assert torch.equal(value, torch.ones_like(value)), name
            continue
        if name == "model.embed_tokens.weight":
            std = 0.5
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            std = base / math.sqrt(2 * 2)
        else:
            std = base
        assert float(value.std()) == pytest.approx(std, rel=0.05), name
        assert abs(float(value.mean())) < 4 * std / math.sqrt(value.numel()), name


def test_each_parameter_is_drawn_from_the_generator_of_its_full_name():
    parameters = drawn("learned:std=0.5", 7)
    for name, std in (
        ("model.embed_tokens.weight", 0.5),
        ("lm_head.weight", 0.02),
        ("model.layers.1.mlp.down_proj.weight", 0.02 / 2),  # 2 blocks: the square root of 4
        ("model.layers.0.self_attn.q_proj.weight", 0.02),
    ):
        wanted = torch.empty(parameters[name].shape).normal_(0.0, std, generator=generator(7, name))
        assert torch.equal(parameters[name], wanted), name


def test_the_generator_of_a_name_never_changes():
    # A run that is repeated by another version must begin at the same weights.
    assert generator(1, "lm_head.weight").initial_seed() == 9087032531346398207
    assert 0 <= generator(2, "lm_head.weight").initial_seed() < 1 << 63


def test_the_buffers_of_a_code_are_written_anew():
    model = TokenCodeForCausalLM(TokenCodeConfig(**SHAPE, interface="gf2"))
    model.input_interface.codebook.zero_()
    initialise(model, 1)
    model.input_interface.check()


def test_learned_coordinates_begin_as_their_words():
    assert torch.equal(
        drawn("learned-code", 3)["model.embed_tokens.coordinates"],
        drawn("learned-code", 4)["model.embed_tokens.coordinates"],
    )
    assert drawn("learned-code", 3)["model.embed_tokens.coordinates"].unique().tolist() == [
        0.0,
        1.0,
    ]
