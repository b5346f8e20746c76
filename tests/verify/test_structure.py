"""L1: each check fails on a model or a folder with exactly its fault, and says what was found."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.test_model import model_of
from tokencodes.errors import InputError
from tokencodes.verify import structure
from tokencodes.verify.check import MEASURED, PROVEN, Subject, check, not_applicable

SPECS = [
    "learned",
    "gf2",
    "binary:scale=match",
    "gaussian",
    "random:width=33",
    "random:storage=computed",
]
SPECS += [
    "binary:lift=orthogonal",
    "learned-code:lift=orthogonal",
    "learned-code:init=gf2,width=12",
]
BODY = 2 * (4 * 36 * 36 + 3 * 36 * 48 + 2 * 36) + 36
HEAD = 320 * 36


def of(spec: str, place: Path = Path("nowhere")) -> Subject:
    return Subject(model_of(spec), place)


def failing(subject: Subject) -> set[str]:
    return {
        made.name for made in (run(subject) for run in structure.CHECKS) if made.status == "fails"
    }


@pytest.mark.parametrize("spec", SPECS)
def test_a_sound_model_of_every_kind_fails_in_nothing(spec):
    assert failing(of(spec)) == set()


# Tensors by name and shape.


def extra_tensor(model):
    model.register_buffer("more", torch.zeros(1))


def missing_tensor(model):
    del model.model.layers[1].mlp.down_proj.weight


def another_shape(model):
    model.model.layers[0].self_attn.q_proj.weight = nn.Parameter(torch.zeros(36, 35))


def another_width_of_coordinates(model):
    model.input_interface.coordinates = nn.Parameter(torch.zeros(320, 8))


@pytest.mark.parametrize(
    ("spec", "fault", "first"),
    [
        ("gf2", extra_tensor, "more"),
        ("gf2", missing_tensor, "model.layers.1.mlp.down_proj.weight"),
        ("learned", another_shape, "model.layers.0.self_attn.q_proj.weight"),
        ("learned-code", another_width_of_coordinates, "model.embed_tokens.coordinates"),
    ],
)
def test_a_tensor_too_many_too_few_or_of_another_shape_is_named(spec, fault, first):
    subject = of(spec)
    count = len(subject.model.state_dict())
    sound = check("L1", "state-dict bijection", PROVEN, True, f"{count} tensors by name and shape")
    assert structure.state_dict_bijection(subject) == sound
    fault(subject.model)
    wrong = check("L1", "state-dict bijection", PROVEN, False, f"1 differ, first {first}")
    assert structure.state_dict_bijection(subject) == wrong


# Parameters.


@pytest.mark.parametrize(
    ("spec", "inputs"),
    [
        ("learned", HEAD),
        ("gf2", 0),
        ("learned-code", 320 * 9),
        ("learned-code:init=gf2,width=12", 320 * 12),
    ],
)
def test_parameters_are_counted_by_part(spec, inputs):
    total = inputs + BODY + HEAD
    detail = f"{inputs:,} input + {BODY:,} body + {HEAD:,} head = {total:,}"
    assert structure.parameter_counts(of(spec)) == check(
        "L1", "parameter counts", PROVEN, True, detail
    )


@pytest.mark.parametrize("more", [1, 36])
def test_a_parameter_too_many_is_counted(more):
    subject = of("gf2")
    subject.model.model.norm.more = nn.Parameter(torch.zeros(more))
    made = structure.parameter_counts(subject)
    assert made.status == "fails" and made.detail.endswith(f"= {BODY + HEAD + more:,}")


def test_a_frozen_parameter_is_caught_though_the_count_is_right():
    subject = of("gf2")
    subject.model.model.layers[1].mlp.up_proj.weight.requires_grad_(False)
    assert structure.parameter_counts(subject).status == "fails"
    assert failing(subject) == {"parameter counts"}


# The head.


def test_a_head_that_shares_storage_is_caught_and_so_is_a_wish_for_it():
    subject = of("learned")
    sound = check("L1", "head untied", PROVEN, True, "storage of its own")
    assert structure.head_untied(subject) == sound
    subject.model.config.__dict__["tie_word_embeddings"] = True
    assert structure.head_untied(subject) == check(
        "L1", "head untied", PROVEN, False, "storage of its own"
    )
    subject.model.config.__dict__["tie_word_embeddings"] = False
    subject.model.lm_head.weight = subject.model.input_interface.weight
    shares = check(
        "L1", "head untied", PROVEN, False, "shares storage with model.embed_tokens.weight"
    )
    assert structure.head_untied(subject) == shares


# Finite values.


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("spec", "name", "row"),
    [
        ("learned", "model.embed_tokens.weight", 317),
        ("gf2", "lm_head.weight", 0),
        ("gf2", "model.norm.weight", 35),
        ("learned-code", "model.embed_tokens.coordinates", 319),
        ("gaussian", "model.embed_tokens.codebook", 5),
        ("binary:lift=orthogonal", "model.embed_tokens.lift", 35),
        ("binary:scale=match", "model.embed_tokens.levels", 1),
    ],
)
def test_a_value_that_is_not_finite_is_found_in_every_tensor(spec, name, row, value):
    subject = of(spec)
    tensors = subject.model.state_dict()
    count = sum(tensor.numel() for tensor in tensors.values())
    sound = check(
        "L1", "finite values", PROVEN, True, f"{count:,} entries of {len(tensors)} tensors"
    )
    assert structure.finite_values(subject) == sound
    values = (
        tensors[name].view(torch.float32) if tensors[name].dtype == torch.int32 else tensors[name]
    )
    values[row].view(-1)[-1] = value
    wrong = check("L1", "finite values", PROVEN, False, f"{name} is not finite in row {row}")
    assert structure.finite_values(subject) == wrong


def test_an_order_of_ids_is_no_float():
    subject = of("gf2")
    subject.model.input_interface.register_buffer(
        "order", torch.full((3,), 0x7F800000, dtype=torch.int32)
    )
    assert structure.finite_values(subject).status == "holds"


# Types.


def test_a_table_that_was_cast_is_named_in_memory_and_in_the_file(tmp_path):
    subject = of("gf2", tmp_path)
    kinds = "matrix uint8, offset uint8, codebook uint8"
    for _ in range(2):  # without a file, and with one
        assert structure.buffer_types(subject) == check("L1", "buffer types", PROVEN, True, kinds)
        subject.model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.matrix"] = weights["model.embed_tokens.matrix"].to(torch.int32)
    save_file(weights, tmp_path / "model.safetensors")
    wrong = check("L1", "buffer types", PROVEN, False, "matrix is I32 in the file")
    assert structure.buffer_types(subject) == wrong
    interface = subject.model.input_interface
    interface.offset = interface.offset.to(torch.int64)
    wrong = check("L1", "buffer types", PROVEN, False, "offset is torch.int64")
    assert structure.buffer_types(subject) == wrong


def test_a_table_that_the_file_lacks_is_no_matter_of_types(tmp_path):
    subject = of("gf2", tmp_path)
    subject.model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.embed_tokens.matrix"]
    save_file(weights, tmp_path / "model.safetensors")
    assert structure.stored_types(tmp_path / "model.safetensors", ["matrix", "codebook"]) == {
        "codebook": "U8"
    }
    assert structure.stored_types(tmp_path / "none.safetensors", ["matrix"]) == {}
    assert structure.buffer_types(subject).status == "holds"


@pytest.mark.parametrize("spec", ["learned", "learned-code", "random:storage=computed"])
def test_an_input_without_tables_has_no_types(spec):
    assert structure.buffer_types(of(spec)) == not_applicable(
        "L1", "buffer types", "no stored tables"
    )


@pytest.mark.parametrize(
    ("spec", "kinds"),
    [
        ("gaussian", "codebook int32"),
        ("binary:storage=computed", "masks int64"),
        ("learned-code:lift=orthogonal", "lift int32"),
        ("binary:scale=match,lift=orthogonal", "codebook uint8, levels int32, lift int32"),
    ],
)
def test_the_types_of_every_table_are_said(spec, kinds):
    assert structure.buffer_types(of(spec)) == check("L1", "buffer types", PROVEN, True, kinds)


# The tokenizer.


def test_the_tokenizer_is_looked_for_beside_the_model_then_in_its_run(tmp_path):
    place = tmp_path / "checkpoints" / "step-00000008"
    place.mkdir(parents=True)
    subject = of("gf2", place)
    assert structure.tokenizer(subject) == not_applicable(
        "L1", "tokenizer", "the model names no tokenizer"
    )
    good, bad = b"{}", b"{} "
    sha256 = hashlib.sha256(good).hexdigest()
    subject.model.config.tokenizer_sha256 = sha256
    assert structure.tokenizer(subject) == not_applicable(
        "L1", "tokenizer", "no tokenizer file here"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_bytes(good)
    sound = check("L1", "tokenizer", PROVEN, True, f"tokenizer.json {sha256[:12]}")
    assert structure.tokenizer(subject) == sound
    (place / "tokenizer.json").write_bytes(bad)
    other = hashlib.sha256(bad).hexdigest()[:12]
    detail = f"tokenizer.json {other}, but the model was trained with {sha256[:12]}"
    assert structure.tokenizer(subject) == check("L1", "tokenizer", PROVEN, False, detail)
    subject.model.config.tokenizer_sha256 = None
    assert structure.tokenizer(subject).status == "not applicable"


# Saved and read again.


def test_a_model_that_comes_back_as_another_is_caught(monkeypatch):
    subject = of("gf2")
    count = len(subject.model.state_dict())
    detail = f"{count} tensors and 96 positions bitwise equal"
    assert structure.reload_equals(subject) == check("L1", "reload equals", MEASURED, True, detail)
    whole = type(subject.model).from_pretrained

    def changed(folder):
        again = whole(folder)
        with torch.no_grad():
            for name in ("lm_head.weight", "model.layers.0.mlp.up_proj.weight"):
                again.get_parameter(name)[0, 0] += 1
        return again

    monkeypatch.setattr(structure.TokenCodeForCausalLM, "from_pretrained", changed)
    detail = "differ: lm_head.weight, model.layers.0.mlp.up_proj.weight"
    assert structure.reload_equals(subject) == check("L1", "reload equals", MEASURED, False, detail)


def test_equal_tensors_that_give_other_logits_are_caught():
    subject = of("gf2")

    def last(module, args, out):
        out[-1, -1, -1] = -out[-1, -1, -1]

    subject.model.lm_head.register_forward_hook(last)
    assert structure.reload_equals(subject) == check(
        "L1", "reload equals", MEASURED, False, "differ: logits"
    )


@pytest.mark.parametrize(
    "error", [InputError("a tied head\nand more"), RuntimeError("\na tied head")]
)
def test_a_model_of_which_no_copy_can_be_made_does_not_hold(error, monkeypatch):
    def refuse(self, folder):
        raise error

    monkeypatch.setattr(structure.TokenCodeForCausalLM, "save_pretrained", refuse)
    made = structure.reload_equals(of("gf2"))
    assert made == check("L1", "reload equals", MEASURED, False, "no copy can be made: a tied head")


# A checkpoint and the copy that was exported.


@pytest.fixture
def run(tmp_path) -> Subject:
    """A checkpoint in a run that has exported it, as far as this check looks."""
    place = tmp_path / "checkpoints" / "step-00000008"
    place.mkdir(parents=True)
    (tmp_path / "checkpoints" / "latest").write_text("step-00000008\n")
    subject = of("gf2", place)
    subject.model.save_pretrained(tmp_path / "model")
    return subject


def test_an_exported_copy_is_the_checkpoint(run, tmp_path):
    name, count = "export equals checkpoint", len(run.model.state_dict())
    assert structure.export_equals(run) == check(
        "L1", name, PROVEN, True, f"{count} tensors bitwise equal"
    )
    with torch.no_grad():
        run.model.lm_head.weight[319, 35] += 1e-3
        run.model.model.norm.weight[0] += 1e-3
    detail = f"{tmp_path / 'model'}: 2 differ, first lm_head.weight"
    assert structure.export_equals(run) == check("L1", name, PROVEN, False, detail)


def test_a_copy_of_another_checkpoint_or_none_is_not_compared(run, tmp_path):
    name = "export equals checkpoint"
    (tmp_path / "checkpoints" / "latest").write_text("step-00000009")
    assert structure.export_equals(run) == not_applicable(
        "L1", name, "the exported copy is of a later checkpoint"
    )
    (tmp_path / "checkpoints" / "latest").write_text("step-00000008")
    absent = not_applicable("L1", name, "no exported copy beside this checkpoint")
    elsewhere = Subject(run.model, tmp_path / "other" / "step-00000008")
    assert structure.export_equals(elsewhere) == absent
    (tmp_path / "model" / "model.safetensors").unlink()
    assert structure.export_equals(run) == absent


# Bits.

NAN, OTHER_NAN = (
    torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32).split(1)
)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), True),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]), False),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (NAN, NAN.clone(), True),
        (NAN, OTHER_NAN, False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.zeros(4, dtype=torch.int32), torch.zeros(4), False),
        (torch.zeros(2, 3), torch.zeros(3, 2), False),
        (torch.zeros(2, 3), torch.zeros(6), False),
        (torch.arange(6.0).reshape(2, 3).T, torch.tensor([[0.0, 3], [1, 4], [2, 5]]), True),
    ],
)
def test_tensors_are_the_same_where_type_shape_and_bytes_are(first, second, same):
    assert structure.same_bits(first, second) is same
    assert structure.differing({"a": first}, {"a": second}) == ([] if same else ["a"])


def test_tensors_that_one_side_lacks_differ():
    first, second = (
        {"b": torch.zeros(1), "a": torch.zeros(1), "c": torch.ones(1)},
        {
            "b": torch.zeros(1),
            "d": torch.zeros(1),
        },
    )
    assert structure.differing(first, second) == ["a", "c", "d"]
    assert structure.differing(first, first) == []
