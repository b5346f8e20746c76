"""Tiny models of several families, and texts over their tokenizer."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tests.conftest import VOCAB
from tokencodes.evaluate.texts import open_texts

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}


def tiny(kind, **told):
    """A random model of a family; weights large enough that tokens before matter."""
    torch.manual_seed(0)
    if kind == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=128, initializer_range=0.2)
        )
    elif kind == "mistral":
        config = MistralConfig(
            vocab_size=VOCAB,
            num_key_value_heads=2,
            sliding_window=4,
            max_position_embeddings=128,
            initializer_range=0.2,
            **SHAPE,
        )
        model = MistralForCausalLM(config)
    else:
        config = LlamaConfig(
            vocab_size=VOCAB, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2, **SHAPE, **told
        )
        model = LlamaForCausalLM(config)
    return model.eval()


@pytest.fixture(scope="session")
def small_texts(tokenizer_path):
    return open_texts(tokenizer_path)
