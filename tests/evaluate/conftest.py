"""Tiny models of several families, texts over their tokenizer, and tiny trained runs with an
evaluation each.
"""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from tests.conftest import VOCAB, tiny_study
from tokencodes.evaluate.evaluation import EvaluationSettings, evaluate
from tokencodes.evaluate.subject import open_evaluated
from tokencodes.evaluate.suites import benchmarks
from tokencodes.evaluate.texts import open_texts
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train

SUITE = "arc_easy,winogrande,mmlu_5,commonsense_qa,lambada,wikitext"
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


def tiny(kind, **changes):
    """A random model of a family; weights large enough that tokens before matter."""
    torch.manual_seed(0)
    if kind == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCAB,
                n_embd=32,
                n_layer=3,
                n_head=4,
                n_positions=128,
                initializer_range=0.2,
            )
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
            vocab_size=VOCAB,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.2,
            **SHAPE,
            **changes,
        )
        model = LlamaForCausalLM(config)
    return model.eval()


@pytest.fixture(scope="session")
def small_texts(tokenizer_path):
    return open_texts(tokenizer_path)


@pytest.fixture(scope="session")
def holey_path(tokenizer_path, tmp_path_factory):
    """A tokenizer that has no token for U+0004: it vanishes from every text, as with SmolLM2's."""
    content = json.loads(tokenizer_path.read_text())
    vocab = content["model"]["vocab"]
    vocab["NeverWritten"] = vocab.pop(chr(256 + 4))  # byte-level BPE writes byte 4 as U+0104
    path = tmp_path_factory.mktemp("holey") / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def with_begin(tokenizer_path, folder, template="<|endoftext|> $A"):
    """The same tokenizer with a template that adds token 0 (or other tokens) to each text."""
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    special = [("<|endoftext|>", 0), ("Z", tokenizer.token_to_id("Z"))]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.fixture(scope="session")
def beginning_path(holey_path, tmp_path_factory):
    """The same, and it adds token 0 before each text."""
    return with_begin(holey_path, tmp_path_factory.mktemp("beginning"))


@pytest.fixture(scope="session")
def runs(dataset, tmp_path_factory):
    """Two arms with a context that some prompts do not fit."""
    folder = tmp_path_factory.mktemp("runs")
    shape = {
        "hidden_size": 36,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "context_length": 96,
    }
    study = tiny_study(dataset.path, model=shape, budget={"tokens": 8 * 4 * 96})
    for arm in ("learned", "binary"):
        for seed in (1, 2):
            train(study.run(arm, seed), dataset, folder / arm / f"seed-{seed}", Silent())
    return folder


@pytest.fixture(scope="session")
def evaluated(runs, real_data, tmp_path_factory):
    """Four documents of six benchmarks of each."""
    folder = tmp_path_factory.mktemp("evaluated")
    for path in sorted(runs.glob("*/*")):
        subject = open_evaluated(str(path), None, "cpu", "float32")
        settings = EvaluationSettings(
            benchmarks(SUITE), real_data / "eval", 96, subject.texts.prefix, documents=4
        )
        evaluate(subject, settings, folder / path.parent.name / path.name)
    return folder
