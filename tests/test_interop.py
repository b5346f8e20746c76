"""Contracts with the tools of people who look inside models: `pip install tokencodes[interop]`,
else skipped.
"""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.test_model import SHAPE, model_of

END = "<|endoftext|>"


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 320, (2, 8), generator=torch.Generator().manual_seed(0))


def plain_llama(model) -> LlamaForCausalLM:
    """The same function as a plain Llama: the fixed input written out as a table."""
    plain = LlamaForCausalLM(
        LlamaConfig(**SHAPE, rms_norm_eps=1e-5, tie_word_embeddings=False)
    ).eval()
    weights = {
        name: value
        for name, value in model.state_dict().items()
        if not name.startswith("model.embed_tokens")
    }
    plain.load_state_dict(
        {**weights, "model.embed_tokens.weight": model.input_interface.materialize()}
    )
    return plain


def test_nnsight_reads_and_patches_the_model_as_it_is(ids):
    nnsight = pytest.importorskip("nnsight")
    model = model_of("gf2")
    expected = model(ids).logits
    looked_at = nnsight.NNsight(model)
    with looked_at.trace(ids):
        x = looked_at.model.embed_tokens.output.save()
        logits = looked_at.output.logits.save()
    assert torch.equal(x, model.input_interface(ids))
    torch.testing.assert_close(logits, expected)
    with looked_at.trace(ids):
        looked_at.model.embed_tokens.output[:] = 0
        silent = looked_at.output.logits.save()
    assert not silent.any()


def test_transformer_lens_bridges_the_materialised_llama(ids, tokenizer_path, tmp_path):
    bridge = pytest.importorskip("transformer_lens.model_bridge")
    model = model_of("gf2")
    plain = plain_llama(model)
    plain.save_pretrained(tmp_path)
    PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_path), bos_token=END, eos_token=END, pad_token=END
    ).save_pretrained(tmp_path)
    bridged = bridge.TransformerBridge.boot_transformers(str(tmp_path), hf_model=plain)
    torch.testing.assert_close(bridged(ids), model(ids).logits, rtol=1e-4, atol=1e-5)
    _, cache = bridged.run_with_cache(ids)
    torch.testing.assert_close(cache["hook_embed"], model.input_interface(ids))
