"""Small models of every kind of interface, with the tokenizer that they belong to, as folders that
can leave.
"""

import hashlib
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from tests.conftest import VOCAB
from tokencodes.init import initialise
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM

END = "<|endoftext|>"
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "initializer_range": 0.1,
}


def trained(spec, given=None, **options):
    """A model whose logits are not all alike, its norms moved from 1, as training does."""
    model = TokenCodeForCausalLM(TokenCodeConfig(**{**SHAPE, **options}, interface=spec), given)
    initialise(model, 1)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    return model.eval()


def saved(model, folder, tokenizer_path):
    """As a run leaves its model."""
    model.config.tokenizer_sha256 = hashlib.sha256(tokenizer_path.read_bytes()).hexdigest()
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_path), bos_token=END, eos_token=END, pad_token=END
    )
    tokenizer.save_pretrained(folder)
    shutil.copyfile(tokenizer_path, folder / "tokenizer.json")
    return folder


def assert_same_tensors(*folders):
    """Two models' weights, bit by bit."""
    old, new = (load_file(folder / "model.safetensors") for folder in folders)
    assert old.keys() == new.keys() and all(torch.equal(old[name], new[name]) for name in old)


@pytest.fixture
def make(tmp_path, tokenizer_path):
    """spec -> folder of such a model."""
    return lambda spec="binary", given=None, **options: saved(
        trained(spec, given, **options), tmp_path / "model", tokenizer_path
    )
