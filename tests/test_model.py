"""The contract with transformers: everything that must hold on each of its minor versions that we
allow.
"""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tokencodes import FixedCode, InputError, TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.init import initialise

SPECS = ["learned", "binary", "gf2", "binary:ids=permuted", "binary:values=pm1,lift=interleave"]
SHAPE = {
    "vocab_size": 320,
    "hidden_size": 36,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}


def model_of(spec: str) -> TokenCodeForCausalLM:
    model = TokenCodeForCausalLM(TokenCodeConfig(**SHAPE, interface=spec))
    initialise(model, 1)
    return model.eval()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 320, (3, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("spec", SPECS)
def test_a_saved_model_comes_back_bit_by_bit_through_the_auto_classes(spec, ids, tmp_path):
    model = model_of(spec)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is TokenCodeForCausalLM
    assert type(AutoConfig.from_pretrained(tmp_path)) is TokenCodeConfig
    old, new = model.state_dict(), again.state_dict()
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert torch.equal(model(ids).logits, again(ids).logits)


@pytest.mark.parametrize("spec", SPECS)
def test_loading_in_another_dtype_casts_what_is_emitted_but_not_the_code(spec, ids, tmp_path):
    model_of(spec).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert model.input_interface(ids).dtype == torch.bfloat16
    model.input_interface.check()


@pytest.mark.parametrize("spec", SPECS)
def test_a_plain_llama_with_the_materialised_table_computes_the_same_bits(spec, ids):
    model = model_of(spec)
    plain = LlamaForCausalLM(
        LlamaConfig(**SHAPE, rms_norm_eps=1e-5, tie_word_embeddings=False)
    ).eval()
    weights = {
        name: value
        for name, value in model.state_dict().items()
        if not name.startswith("model.embed_tokens")
    }
    weights["model.embed_tokens.weight"] = model.input_interface.materialize()
    plain.load_state_dict(weights)
    assert torch.equal(plain(ids).logits, model(ids).logits)


def test_the_learned_arm_is_a_plain_llama_by_its_names():
    plain = LlamaForCausalLM(LlamaConfig(**SHAPE))
    assert plain.state_dict().keys() == model_of("learned").state_dict().keys()


@pytest.mark.parametrize("spec", ["learned", "gf2"])
def test_generation_with_a_cache_is_that_without(spec, ids):
    model = model_of(spec)
    options = {
        "max_new_tokens": 4,
        "do_sample": False,
        "pad_token_id": 0,
        "attention_mask": torch.ones_like(ids),
    }
    assert torch.equal(
        model.generate(ids, use_cache=True, **options),
        model.generate(ids, use_cache=False, **options),
    )


def test_zero_codes_give_zero_logits():
    assert not model_of("gf2")(torch.zeros(1, 8, dtype=torch.int64)).logits.any()
    assert model_of("binary:values=pm1")(torch.zeros(1, 8, dtype=torch.int64)).logits.any()


def test_meta_construction_then_to_empty_is_mended(ids):
    with torch.device("meta"):
        model = TokenCodeForCausalLM(TokenCodeConfig(**SHAPE, interface="gf2"))
    model = model.to_empty(device="cpu")
    initialise(model, 1)
    # its buffer is transformers' own to rebuild
    model.model.rotary_emb = model_of("gf2").model.rotary_emb
    assert torch.equal(model(ids).logits, model_of("gf2")(ids).logits)


@pytest.mark.parametrize("spec", ["learned", "gf2", "binary:lift=interleave"])
def test_the_graph_has_no_break(spec, ids):
    model = model_of(spec)
    compiled = torch.compile(model.model, backend="eager", fullgraph=True)
    assert torch.equal(
        compiled(input_ids=ids).last_hidden_state, model.model(input_ids=ids).last_hidden_state
    )


@pytest.mark.parametrize("spec", SPECS)
def test_shifted_targets_and_transformers_labels_are_one_loss(spec, ids):
    model = model_of(spec)
    our_loss, transformers_loss = model.loss(ids[:, :-1], ids[:, 1:]), model(ids, labels=ids).loss
    assert our_loss.item() == pytest.approx(transformers_loss.item(), rel=1e-6)


def _set_in_the_configuration(model, folder):
    model.config.tie_word_embeddings = True


def _update_the_configuration(model, folder):
    model.config.update({"tie_word_embeddings": True})


def _write_past_the_configuration(model, folder):
    model.config.__dict__["tie_word_embeddings"] = True
    model.save_pretrained(folder / "out")


def _tie_past_the_configuration(model, folder):
    model.config.__dict__["tie_word_embeddings"] = True
    model.tie_weights()


@pytest.mark.parametrize(
    "door",
    [
        lambda model, folder: TokenCodeConfig(**SHAPE, tie_word_embeddings=True),
        lambda model, folder: TokenCodeConfig.from_dict({**SHAPE, "tie_word_embeddings": True}),
        lambda model, folder: TokenCodeConfig.from_pretrained(folder, tie_word_embeddings=True),
        lambda model, folder: AutoConfig.from_pretrained(folder, tie_word_embeddings=True),
        lambda model, folder: TokenCodeForCausalLM.from_pretrained(
            folder, tie_word_embeddings=True
        ),
        lambda model, folder: AutoModelForCausalLM.from_pretrained(
            folder, tie_word_embeddings=True
        ),
        _set_in_the_configuration,
        _update_the_configuration,
        _write_past_the_configuration,
        _tie_past_the_configuration,
    ],
)
def test_tie_word_embeddings_is_refused_at_every_door(door, tmp_path):
    model = model_of("gf2")
    model.save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=r"tie_word_embeddings=True: a tied head would make the input trainable"
    ):
        door(model, tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_head_that_was_tied_by_hand_is_neither_tied_again_nor_saved(tmp_path):
    for tie in (
        lambda model: setattr(model.lm_head, "weight", model.input_interface.weight),
        lambda model: setattr(
            model.lm_head, "weight", torch.nn.Parameter(model.input_interface.weight.data)
        ),
        lambda model: model.set_output_embeddings(model.input_interface),
    ):
        model = model_of("learned")
        model.tie_weights()  # nothing is tied yet
        tie(model)
        for refused in (
            model.tie_weights,
            lambda model=model: model.save_pretrained(tmp_path / "out"),
        ):
            with pytest.raises(InputError, match="the head holds the input table's own weight"):
                refused()
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("hidden", "heads"), [(37, 2), (36, 4)])
def test_heads_that_rotary_positions_cannot_turn_are_refused(hidden, heads):
    with pytest.raises(InputError, match="rotary positions need an even whole number"):
        TokenCodeConfig(**{**SHAPE, "hidden_size": hidden, "num_attention_heads": heads})


def _resave(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_flipped_codebook_bit_is_refused_at_load(tmp_path):
    model_of("gf2").save_pretrained(tmp_path)
    _resave(tmp_path, lambda weights: weights["model.embed_tokens.codebook"][300].bitwise_xor_(1))
    with pytest.raises(InputError, match="codebook differs from 'gf2'"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.codebook"]
)
def test_a_missing_tensor_is_refused_at_load(name, tmp_path):
    model_of("gf2").save_pretrained(tmp_path)
    _resave(tmp_path, lambda weights: weights.pop(name))
    with pytest.raises(InputError, match=name):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_superfluous_tensor_is_refused_at_load(tmp_path):
    model_of("gf2").save_pretrained(tmp_path)
    _resave(tmp_path, lambda weights: weights.update({"model.layers.7.extra": torch.zeros(2)}))
    with pytest.raises(InputError, match=r"model\.layers\.7\.extra"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_configuration_with_another_codebooks_hash_is_refused(tmp_path):
    model_of("gf2").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace('"gf2"', '"gf2:seed=1"'))
    with pytest.raises(InputError, match="the configuration was changed by hand"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_residual_stream_has_one_dtype_in_every_arm_and_block(dtype, ids):
    seen = {}
    for spec in SPECS:
        model = model_of(spec)
        kinds = seen.setdefault(spec, [])
        for layer in model.model.layers:
            layer.register_forward_hook(
                lambda module, inputs, out, kinds=kinds: kinds.append((inputs[0].dtype, out.dtype))
            )
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            kinds.append(model(ids).logits.dtype)
    assert all(kinds == seen["learned"] for kinds in seen.values())
    assert len(seen["learned"]) == SHAPE["num_hidden_layers"] + 1


def test_the_head_never_shares_storage_with_the_input():
    model = model_of("learned")
    assert model.lm_head.weight.data_ptr() != model.input_interface.weight.data_ptr()
    assert isinstance(model_of("binary").input_interface, FixedCode)
