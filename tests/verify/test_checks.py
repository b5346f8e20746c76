"""A certificate holds for whole models of every arm, and names what is wrong with mutants."""

import pytest
import torch

from tests.test_model import model_of
from tokencodes.errors import InputError
from tokencodes.train.loop import train
from tokencodes.train.metrics import Silent
from tokencodes.verify import checks
from tokencodes.verify.certificate import certify

NOT_APPLICABLE = {
    "learned": {"codebook regenerated", "injective", "GF(2) rank", "lift rank", "zero code gives zero logits"},
    "binary": set(),
    "gf2": set(),
    "permuted": set(),
}


@pytest.mark.parametrize("arm", NOT_APPLICABLE)
def test_a_trained_arm_has_a_whole_certificate(arm, study, dataset, tmp_path):
    train(study.run(arm, 1), dataset, tmp_path / arm, Silent())
    for place in (tmp_path / arm, tmp_path / arm / "model"):
        found = certify(place)
        assert found.holds
        assert {check.name for check in found.checks if check.status == "not applicable"} == NOT_APPLICABLE[arm]
        assert len(found.checks) == len(checks.CHECKS)


def test_signed_values_have_no_zero_code():
    assert checks.zero_code(model_of("binary:values=pm1")).status == "not applicable"


def failing(model) -> set[str]:
    return {found.name for found in (run(model) for run in checks.CHECKS) if found.status == "fails"}


def rope_base(model):
    model.model.rotary_emb.inv_freq.copy_(model.model.rotary_emb.inv_freq * 0.5)


def swap_codebook(model):
    model.input_interface.codebook.copy_(model_of("gf2:seed=1").input_interface.codebook)


def duplicate_word(model):
    model.input_interface.codebook[9] = model.input_interface.codebook[7]


def singular_matrix(model):
    model.input_interface.matrix[0] = model.input_interface.matrix[1]


def infinite(model):
    with torch.no_grad():
        model.lm_head.weight[3, 3] = torch.inf


def biased(model):
    model.lm_head.register_forward_hook(lambda module, inputs, out: out + 1e-3)


def no_causal_mask(model):
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {**kwargs, "attention_mask": None}), with_kwargs=True
        )


@pytest.mark.parametrize(
    ("mutate", "named"),
    [
        (rope_base, "equals the reference forward"),
        (swap_codebook, "codebook regenerated"),
        (duplicate_word, "injective"),
        (singular_matrix, "GF(2) rank"),
        (infinite, "finite logits"),
        (biased, "zero code gives zero logits"),
        (no_causal_mask, "equals the reference forward"),
    ],
)
def test_mutants_are_caught_and_named(mutate, named):
    model = model_of("gf2")
    assert failing(model) == set()
    with torch.no_grad():
        mutate(model)
    assert named in failing(model)


def test_a_model_that_computes_with_other_weights_than_it_holds_is_caught(monkeypatch):
    model = model_of("learned")
    monkeypatch.setattr(model, "state_dict", model_of("learned").state_dict)
    assert checks.equals_reference(model).status == "holds"
    weight = model.model.layers[1].self_attn.v_proj.weight
    with torch.no_grad():
        weight.copy_(weight.T.clone())
    assert checks.equals_reference(model).status == "fails"


def test_what_cannot_be_loaded_is_an_input_error(tmp_path):
    model_of("gf2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises((InputError, OSError)):
        certify(tmp_path)
