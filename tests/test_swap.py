"""The drop-in: one call on the models that people have, and everything they do with them still
works.
"""

import copy
import inspect
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from tests import PATIENCE
from tests.test_model import model_of
from tokencodes.errors import InputError
from tokencodes.swap import (
    Boundary,
    boundary_of,
    interface_of,
    load_swapped,
    mount,
    save_swapped,
    swap_input,
)

VOCAB, WIDTH = 320, 36
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
GROUPED = {"num_key_value_heads": 1, "head_dim": 18}
MODELS = {
    "GPT2": {
        "vocab_size": VOCAB,
        "n_embd": WIDTH,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 32,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "GPTNeoX": SHAPE,
    "Llama": {**SHAPE, "tie_word_embeddings": True},
    "Qwen2": {**SHAPE, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "Qwen3": {**SHAPE, **GROUPED, "tie_word_embeddings": True},
    "Gemma": {**SHAPE, **GROUPED},
    "Gemma2": {**SHAPE, **GROUPED},
    "Gemma3": {**SHAPE, **GROUPED},
}
SPEC = "gf2:width=10,values=pm1"


def build(name: str) -> nn.Module:
    """A small random model of one of transformers' classes."""
    torch.manual_seed(0)
    head = {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    config = {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config")
    return getattr(transformers, head)(getattr(transformers, config)(**MODELS[name])).eval()


def swapped(name: str, spec: str = SPEC) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return swap_input(build(name), spec)


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, VOCAB, (2, 8), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", MODELS)
class TestEveryModel:
    def test_the_body_sees_what_a_plain_table_of_the_same_vectors_would_give(self, name, ids):
        model, plain = swapped(name), build(name)
        with torch.no_grad():
            plain.get_output_embeddings().weight = nn.Parameter(
                plain.get_output_embeddings().weight.clone()
            )
            plain.get_input_embeddings().weight = nn.Parameter(interface_of(model).materialize())
        assert torch.equal(model(ids).logits, plain(ids).logits)

    def test_a_tied_head_is_untied_aloud_and_keeps_its_weights(self, name):
        plain = build(name)
        tied = plain.get_output_embeddings().weight is plain.get_input_embeddings().weight
        before = plain.get_output_embeddings().weight.detach().clone()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            swap_input(plain, SPEC)
        assert (
            any("was tied to the input table" in str(warning.message) for warning in caught) == tied
        )
        assert torch.equal(plain.get_output_embeddings().weight, before)
        assert plain.get_output_embeddings().weight.requires_grad
        assert plain.config.tie_word_embeddings is False
        plain.tie_weights()  # what transformers calls on its own
        assert "weight" not in dict(interface_of(plain).named_parameters())

    def test_saved_and_loaded_it_computes_the_same_bits(self, name, ids, tmp_path):
        model = swapped(name)
        save_swapped(model, tmp_path)
        assert torch.equal(load_swapped(tmp_path).eval()(ids).logits, model(ids).logits)

    def test_copy_generation_and_compile(self, name, ids):
        model = swapped(name)
        logits = model(ids).logits
        assert torch.equal(copy.deepcopy(model)(ids).logits, logits)
        options = {
            "max_new_tokens": 3,
            "do_sample": False,
            "pad_token_id": 0,
            "attention_mask": torch.ones_like(ids),
        }
        assert torch.equal(
            model.generate(ids, use_cache=True, **options),
            model.generate(ids, use_cache=False, **options),
        )
        compiled = torch.compile(model, backend="eager", fullgraph=True)(
            ids, use_cache=False
        ).logits
        torch.testing.assert_close(compiled, logits)

    def test_casts_leave_the_code_whole(self, name, ids):
        model = swapped(name).to(torch.bfloat16)
        interface_of(model).check()
        assert model.get_input_embeddings()(ids).dtype == torch.bfloat16
        assert torch.isfinite(model(ids).logits).all()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert swapped(name).get_input_embeddings()(ids).dtype == torch.float32

    def test_gradient_checkpointing_gives_the_same_gradients(self, name, ids):
        gradients = []
        for checkpointing in (False, True):
            model = swapped(name).train()
            if checkpointing:
                model.gradient_checkpointing_enable()
            model(ids, labels=ids, use_cache=False).loss.backward()
            gradients.append({n: p.grad for n, p in model.named_parameters()})
        assert gradients[0].keys() == gradients[1].keys()
        torch.testing.assert_close(gradients[0], gradients[1])
        assert all(gradient is not None for gradient in gradients[0].values())

    def test_resizing_says_what_to_do_instead(self, name):
        with pytest.raises(
            InputError, match="build the interface for the new vocabulary with swap_input"
        ):
            swapped(name).resize_token_embeddings(400)


@pytest.mark.parametrize("name", ["GPT2", "Llama", "Gemma3"])
def test_tie_word_embeddings_of_a_swapped_model_is_refused_when_it_is_tied_or_saved(name, tmp_path):
    # a copy guards itself, not the model that it was copied from
    model = copy.deepcopy(swapped(name))
    model.config.tie_word_embeddings = True
    doors = (
        model.tie_weights,
        lambda: model.save_pretrained(tmp_path / "a"),
        lambda: save_swapped(model, tmp_path / "b"),
    )
    for door in doors:
        with pytest.raises(
            InputError, match="tie_word_embeddings=True: a tied head would make the input trainable"
        ):
            door()
    assert list(tmp_path.iterdir()) == []
    model.config.tie_word_embeddings = False
    save_swapped(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(InputError, match=r"config\.json: tie_word_embeddings=True"):
        load_swapped(tmp_path)


def test_ten_lines_on_a_gpt2():
    # docs/codes.md shows these lines.
    from transformers import GPT2Config, GPT2LMHeadModel

    from tokencodes.swap import swap_input

    model = GPT2LMHeadModel(GPT2Config(vocab_size=3072, n_embd=192, n_layer=2, n_head=3))
    swap_input(model, "gf2:values=pm1")  # warns that the tied head was untied
    ids = torch.randint(0, 3072, (2, 16))
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert model.transformer.wte.materialize().shape == (3072, 192)


def test_the_documentation_shows_the_lines_that_are_tested():
    shown = (Path(__file__).parent.parent / "docs" / "codes.md").read_text(encoding="utf-8")
    block = shown.split("```python\n")[1].split("```")[0]
    tested = [line.strip() for line in inspect.getsource(test_ten_lines_on_a_gpt2).splitlines()]
    assert [line for line in block.splitlines() if line and line not in tested] == []


def test_our_own_model_refuses_to_be_resized():
    with pytest.raises(InputError, match="a fixed code cannot be resized"):
        model_of("gf2").resize_token_embeddings(400)


def test_gemmas_scale_stays(ids):
    model = swapped("Gemma")
    x, bare = model.get_input_embeddings()(ids), interface_of(model)(ids)
    assert torch.equal(x, bare * torch.tensor(WIDTH**0.5))


def test_a_plain_torch_module(ids):
    class Tiny(nn.Module):
        def __init__(self, tables=1):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(VOCAB, WIDTH) for _ in range(tables))
            self.out = nn.Linear(WIDTH, VOCAB)
            self.out.weight = self.tables[0].weight

        def forward(self, ids):
            return self.out(sum(table(ids) for table in self.tables))

    model = Tiny()
    with pytest.warns(UserWarning, match=r"out.weight was tied"):
        swap_input(model, "binary")
    assert model(ids).shape == (2, 8, VOCAB)
    with pytest.raises(
        InputError,
        match=r"2 candidates for the token embedding \(tables.0, tables.1\); name it by module=",
    ):
        swap_input(Tiny(2), "binary")
    with pytest.raises(InputError, match=r"'out' is not an nn\.Embedding"):
        swap_input(Tiny(), "binary", module="out")
    with pytest.warns(UserWarning):
        assert interface_of(swap_input(Tiny(2), "binary", module="tables.0")).vocab_size == VOCAB
    with pytest.raises(InputError, match="below the code width 40"):
        swap_input(Tiny(), "binary:width=40")


def test_meta_construction(ids):
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = swap_input(build("Llama"), SPEC)
    whole = swapped("Llama")
    model = model.to_empty(device="cpu")
    model.load_state_dict(whole.state_dict())
    model.model.rotary_emb = whole.model.rotary_emb
    interface_of(model).check()
    assert torch.equal(model(ids).logits, whole(ids).logits)


def test_lora_trains_beside_a_fixed_input(ids):
    peft = pytest.importorskip("peft")
    model = swapped("Llama")
    before = interface_of(model).materialize()
    tuned = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    loss = tuned(ids, labels=ids).loss
    loss.backward()
    torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=1.0).step()
    assert {name.split(".")[-3] for name, p in tuned.named_parameters() if p.requires_grad} <= {
        "lora_A",
        "lora_B",
    }
    assert tuned(ids, labels=ids).loss < loss
    assert torch.equal(interface_of(tuned).materialize(), before)


def test_fsdp2_on_two_ranks_computes_what_one_does(tmp_path):
    script = Path(__file__).parent / "fsdp_two_ranks.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    printed = json.loads(done.stdout.splitlines()[-1])
    for spec, losses in printed.items():
        assert losses["two"] == pytest.approx(losses["one"], rel=1e-5), spec
        assert losses["one"][-1] < losses["one"][0]


def test_a_boundary_is_declared_shared_and_enforced(tmp_path, ids):
    first = swapped("GPT2")
    boundary_of(first, tokenizer_sha256="t" * 64).write(tmp_path / "interface.json")
    declared = Boundary.read(tmp_path / "interface.json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        second = mount(build("Llama"), declared)  # another body behind the same input
    assert torch.equal(interface_of(first)(ids), interface_of(second)(ids))
    assert mount(second, declared) is second
    with pytest.raises(
        InputError, match="its interface is 'binary', declared is 'gf2:width=10,values=pm1'"
    ):
        mount(swapped("Llama", "binary"), declared)
    with pytest.raises(InputError, match="its tokenizer_sha256 is 'u"):
        mount(second, declared, tokenizer_sha256="u" * 64)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 2}, "version 2; this program reads version 1"),
        ({"interface": "binary"}, "spec_sha256 is not that of 'binary'"),
        ({"colour": "red"}, "not an interface file"),
    ],
)
def test_a_changed_boundary_file_is_refused(change, complaint, tmp_path):
    boundary_of(swapped("GPT2")).write(tmp_path / "i.json")
    values = {**json.loads((tmp_path / "i.json").read_text()), **change}
    (tmp_path / "i.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=complaint):
        Boundary.read(tmp_path / "i.json")


def test_a_damaged_saved_model_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    save_swapped(swapped("GPT2"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["transformer.wte.codebook"][3, 3] ^= 1
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="codebook differs"):
        load_swapped(tmp_path)
    del weights["transformer.wte.codebook"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="1 tensors are missing"):
        load_swapped(tmp_path)
