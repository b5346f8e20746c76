"""A certificate holds for whole models of every arm, and names what is wrong with each mutant."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.test_model import model_of
from tokencodes.checkpoint import load_model
from tokencodes.errors import InputError
from tokencodes.files import read_json
from tokencodes.loss import IGNORE
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train
from tokencodes.verify import certificate
from tokencodes.verify.certificate import certify, page, run_checks
from tokencodes.verify.check import Subject

CODE = {"codebook regenerated", "injective", "GF(2) inverse", "lift rank"}
NOT_APPLICABLE = {
    "learned": {*CODE, "zero code gives zero logits", "buffer types"},
    "binary": set(),
    "gf2": set(),
    "permuted": set(),
}
EVERY_CHECK = 25


@pytest.fixture(scope="module")
def trained(study, dataset, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("trained")
    for arm in NOT_APPLICABLE:
        train(study.run(arm, 1), dataset, folder / arm, Silent())
    return {arm: folder / arm for arm in NOT_APPLICABLE}


def failing(result: certificate.Certificate) -> set[str]:
    return {check.name for check in result.failed}


@pytest.mark.parametrize("arm", NOT_APPLICABLE)
def test_a_trained_arm_has_a_whole_certificate(arm, trained):
    for place in (trained[arm], trained[arm] / "model"):
        result = certify(place)
        assert result.holds, result.failed
        missing = NOT_APPLICABLE[arm] | (
            {"export equals checkpoint"} if place.name == "model" else set()
        )
        assert {
            check.name for check in result.checks if check.status == "not applicable"
        } == missing
        assert len(result.checks) == EVERY_CHECK + len(certificate.NOT_SHOWN)
        assert {check.level for check in result.checks} == {"L0", "L1", "L2", "L3", "L4", "L5"}


@pytest.mark.parametrize(
    "spec",
    [
        "learned-code:init=gaussian,width=12",
        "binary:values=pm1,scale=match,lift=orthogonal",
        "random:width=33,values=pm1",
        "gaussian:width=36,scale=0.02",
        "sincos:center=true",
        "gf2:affine=true,ids=permuted,storage=computed",
        "random:width=30,storage=computed,lift=pad",
    ],
)
def test_every_kind_of_interface_holds(spec, tmp_path):
    model_of(spec).save_pretrained(tmp_path)
    assert certify(tmp_path).holds


def test_the_page_shows_every_line_and_escapes(trained):
    result = certify(trained["gf2"])
    text = page(result)
    for check in result.checks:
        assert check.name in text
    assert "Every check that was made holds." in text
    assert text.count("<tr") == text.count("</tr>") == len(result.checks) + 6
    assert "http" not in text


# Mutants of a model in memory: it computes other things than its configuration says.


def rope_base(model):
    frequency = model.model.rotary_emb.inv_freq
    frequency.copy_(frequency ** (np.log(50_000.0) / np.log(10_000.0)))


def epsilon(model):
    for module in model.modules():
        if "RMSNorm" in type(module).__name__:
            module.variance_epsilon = 1e-6


def transposed(model):
    weight = model.model.layers[1].self_attn.v_proj.weight
    weight.copy_(weight.T.clone())


def swapped_code(model):
    model.input_interface.codebook.copy_(model_of("gf2:seed=1").input_interface.codebook)


def flipped_bit(model):
    model.input_interface.codebook[300, 2] ^= 1


def duplicate_word(model):
    model.input_interface.codebook[9] = model.input_interface.codebook[7]


def singular_matrix(model):
    model.input_interface.matrix[0] = model.input_interface.matrix[1]


def cast_codebook(model):
    model.input_interface.codebook = model.input_interface.codebook.to(torch.bfloat16).to(
        torch.int32
    )


def big_endian(model):
    model.input_interface.codebook.copy_(model.input_interface.codebook.flip(1).clone())


def interleaved(model):
    width, hidden = model.input_interface.code_width, model.input_interface.hidden_size
    model.input_interface._lifted = lambda z: z.repeat_interleave(hidden // width, dim=-1)


def infinite(model):
    model.lm_head.weight[3, 3] = torch.inf


def biased(model):
    model.lm_head.register_forward_hook(lambda module, inputs, out: out + 1e-3)


def shifted_twice(model):
    loss = model.loss

    def again(ids, tokens, num_targets=None):
        moved = torch.full_like(tokens, IGNORE)
        moved[:, :-1] = tokens[:, 1:]
        return loss(ids, moved, num_targets)

    model.loss = again


def frozen(model):
    model.lm_head.weight.requires_grad_(False)


def no_causal_mask(model):
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {**kwargs, "attention_mask": None}),
            with_kwargs=True,
        )


def stale_cache(model):
    forward = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: forward(
        x, position_ids=position_ids - position_ids[:, :1]
    )


@pytest.mark.parametrize(
    ("mutate", "named"),
    [
        (rope_base, "attention"),
        (epsilon, "norms"),
        (transposed, "replay of the last step"),
        (swapped_code, "codebook regenerated"),
        (flipped_bit, "codebook regenerated"),
        (duplicate_word, "injective"),
        (singular_matrix, "GF(2) inverse"),
        (cast_codebook, "buffer types"),
        (big_endian, "codebook regenerated"),
        (interleaved, "input vectors"),
        (infinite, "whole logits"),
        (biased, "zero code gives zero logits"),
        (shifted_twice, "replay of the last step"),
        (frozen, "parameter counts"),
        (no_causal_mask, "attention"),
        (stale_cache, "cached decoding"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_mutant_in_memory_is_caught_and_named(mutate, named, trained):
    place = trained["gf2"] / "model"
    model = load_model(place)
    with torch.no_grad():
        mutate(model)
    assert named in {
        check.name for check in run_checks(Subject(model, place)) if check.status == "fails"
    }


def test_a_tied_head_is_caught(trained):
    place = trained["learned"] / "model"
    model = load_model(place)
    model.lm_head.weight = model.input_interface.weight
    assert "head untied" in {
        check.name for check in run_checks(Subject(model, place)) if check.status == "fails"
    }


# Mutants of a folder: the file says other things than what was trained.


def in_weights(change):
    def mutate(folder):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return mutate


def in_config(**changes):
    def mutate(folder):
        config = {**read_json(folder / "config.json"), **changes}
        (folder / "config.json").write_text(json.dumps(config))

    return mutate


BOOK, VALUE = "model.embed_tokens.codebook", "model.layers.0.self_attn.v_proj.weight"


@pytest.mark.parametrize(
    ("mutate", "named"),
    [
        (
            in_weights(lambda w: w.update({VALUE: w[VALUE].T.contiguous()})),
            "replay of the last step",
        ),
        (in_weights(lambda w: w[BOOK][300, 0].bitwise_xor_(1)), "codebook regenerated"),
        (in_weights(lambda w: w.update({BOOK: w[BOOK].to(torch.bfloat16)})), "buffer types"),
        (
            in_weights(lambda w: w.update({BOOK: w[BOOK].flip(1).contiguous()})),
            "codebook regenerated",
        ),
        (
            in_weights(lambda w: w.update({BOOK: model_of("gf2:seed=1").input_interface.codebook})),
            "codebook regenerated",
        ),
        (
            in_config(rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
            "replay of the last step",
        ),
        (in_config(rms_norm_eps=1e-2), "replay of the last step"),
        (
            lambda folder: (folder / "tokenizer.json").write_text(
                (folder / "tokenizer.json").read_text() + " "
            ),
            "tokenizer",
        ),
    ],
    ids=[
        "transposed",
        "flipped",
        "bfloat16",
        "big-endian",
        "other-seed",
        "rope",
        "eps",
        "stale-tokenizer",
    ],
)
def test_a_mutant_on_disk_is_caught_and_named(mutate, named, trained, tmp_path):
    shutil.copytree(trained["gf2"] / "model", tmp_path / "model")
    mutate(tmp_path / "model")
    assert named in failing(certify(tmp_path / "model"))


def test_an_exported_copy_that_is_not_the_checkpoint_is_caught(trained, tmp_path):
    shutil.copytree(trained["gf2"], tmp_path / "run")
    in_weights(lambda w: w["lm_head.weight"][3, 3].mul_(1.001))(tmp_path / "run" / "model")
    assert failing(certify(tmp_path / "run")) == {"export equals checkpoint"}


def test_zeroed_weights_are_caught_by_the_replay(trained, tmp_path):
    shutil.copytree(trained["gf2"] / "model", tmp_path / "model")
    in_weights(lambda w: w["model.layers.1.mlp.down_proj.weight"].zero_())(tmp_path / "model")
    assert failing(certify(tmp_path / "model")) == {"replay of the last step"}


@pytest.mark.parametrize("spec", ["gf2:lift=interleave", "gf2:values=pm1"])
def test_a_changed_spec_is_refused_even_if_its_words_are_the_same(spec, trained, tmp_path):
    shutil.copytree(trained["gf2"] / "model", tmp_path / "model")
    in_config(interface=spec)(tmp_path / "model")
    with pytest.raises(InputError, match="the configuration was changed by hand"):
        certify(tmp_path / "model")


def test_what_cannot_be_loaded_is_an_input_error(tmp_path):
    model_of("gf2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="cannot be loaded"):
        certify(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match="cannot be loaded"):
        certify(tmp_path)
