"""Checkpoints and models' folders that would run code, if anything unpickled, imported or rendered
them. Nothing does.

Each test puts a payload into one kind of file that people share. The payload creates a file, `ran`,
when its code runs. Loading ends in a model that works, or in one line; `ran` is never there.
"""

import ast
import json
import pickle
import shutil
import warnings
from pathlib import Path

import jinja2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import tokencodes
from tests.conftest import TINY_MODEL, VOCAB, tiny_study
from tests.traps import Trap
from tokencodes import checkpoint
from tokencodes.checkpoint import layout
from tokencodes.cli import run as command
from tokencodes.evaluate.subject import open_evaluated
from tokencodes.evaluate.texts import open_texts
from tokencodes.files import json_text, read_json, write_json
from tokencodes.importing.import_model import import_model
from tokencodes.swap import load_swapped, save_swapped, swap_input
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent
from tokencodes.verify.certificate import certify

SOURCE = Path(__file__).parent.parent / "src" / "tokencodes"


@pytest.fixture
def trap(tmp_path) -> Trap:
    return Trap(tmp_path)


@pytest.fixture
def saved(run_folder, tmp_path) -> Path:
    """A run with one checkpoint, to be changed."""
    shutil.copytree(run_folder, tmp_path / "gf2")
    shutil.rmtree(tmp_path / "gf2" / "checkpoints" / "step-00000006")
    (tmp_path / "gf2" / "result.json").unlink()
    return tmp_path / "gf2"


@pytest.fixture
def exported(run_folder, tmp_path) -> Path:
    """The model of the run as a folder, to be changed."""
    shutil.copytree(run_folder / "model", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(params=["gpt2", "llama"])
def foreign(request, tokenizer_path, tmp_path) -> Path:
    """Another program's model with its tokenizer, to be changed."""
    if request.param == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=1, n_head=2, n_positions=32)
        )
    else:
        shape = {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
        model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, max_position_embeddings=32, **shape))
    folder = tmp_path / "foreign"
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_path)).save_pretrained(folder)
    return folder


def sealed(folder: Path) -> None:
    """Gives a changed checkpoint a manifest that names what is there now."""
    files = [file for file in layout.files_of(folder) if file.name != "manifest.json"]
    sums = {str(file.relative_to(folder)): layout.file_sum(file).model_dump() for file in files}
    write_json(folder / "manifest.json", {**read_json(folder / "manifest.json"), "files": sums})


def changed_config(folder: Path, **changes) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_the_payloads_would_run(trap):
    """The control: without it, the other tests would show nothing."""
    runs = (
        lambda: pickle.loads(trap.pickled),
        lambda: exec(trap.source),
        lambda: jinja2.Environment().from_string(trap.template).render(),
    )
    for run in runs:
        run()
        assert trap.mark.exists()
        trap.mark.unlink() if trap.mark.is_file() else trap.mark.rmdir()


def test_every_automatic_class_of_transformers_refuses_code_out_of_a_folder():
    """Without the argument, transformers asks at a terminal whether to run it."""
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr.startswith("from_")
            ):
                owner = call.func.value
                if isinstance(owner, ast.Name) and owner.id.startswith("Auto"):
                    given = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
                    assert given.get("trust_remote_code") is False, f"{path}:{call.lineno}"


def test_nothing_reads_a_pickle_but_what_this_program_writes_to_itself():
    """A worker process and its parent exchange pickles through a pipe; ranks through a socket. No
    file is one.
    """
    readers = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for name in ("pickle.load", "allow_pickle=True", "weights_only=False", "eval(", "exec("):
            matches = [line for line in text.splitlines() if name in line and ".eval(" not in line]
            if matches:
                readers.setdefault(str(path.relative_to(SOURCE)), []).extend(matches)
    assert set(readers) == {"data/workers.py"}, readers


# A checkpoint


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("tensors/.metadata", False),
        ("tensors/__0_0.distcp", False),
        ("tensors/rank-00001.safetensors", True),
        ("tensors/rank-00000.safetensors", True),
        ("config.json", True),
        ("generation_config.json", False),
        ("pytorch_model.bin", False),
    ],
)
def test_a_pickle_in_a_checkpoint_is_never_opened(name, refused, saved, study, dataset, trap):
    """Whoever crafts a checkpoint can also make the hashes of its manifest right."""
    place = checkpoint.find(saved)
    (place / name).write_bytes(trap.pickled)
    sealed(place)
    loads = [
        lambda: checkpoint.load_model(saved),
        lambda: certify(place),
        lambda: open_evaluated(str(saved), None, "cpu", "float32"),
    ]
    if name != "config.json":  # the run's configuration makes the model that goes on
        loads.append(lambda: Trainer(study.run("gf2", 1), dataset, saved, Silent()))
    for load in loads:
        assert (trap.ends(load) is not None) == refused


@pytest.mark.parametrize("name", ["state.json", "last_batch.npy"])
def test_a_pickle_among_the_counters_of_a_checkpoint_ends_a_resume_in_one_line(
    name, saved, study, dataset, trap
):
    place = checkpoint.find(saved)
    if name.endswith(".npy"):
        np.save(place / name, np.array([trap.payload], dtype=object), allow_pickle=True)
    else:
        (place / name).write_bytes(trap.pickled)
    sealed(place)
    assert name in trap.ends(lambda: Trainer(study.run("gf2", 1), dataset, saved, Silent()))
    trap.ends(lambda: certify(saved))


def test_a_checkpoint_in_the_format_with_pickled_metadata_is_refused_in_one_line(
    saved, study, dataset, trap, capsys
):
    place = checkpoint.find(saved)
    (place / "tensors" / ".metadata").write_bytes(trap.pickled)
    sealed(place)
    (place / "manifest.json").write_text(
        json_text({**read_json(place / "manifest.json"), "version": 1})
    )
    for load in (
        lambda: checkpoint.load_model(saved),
        lambda: Trainer(study.run("gf2", 1), dataset, saved, Silent()),
    ):
        assert "a checkpoint of format version 1, and this program reads version 2" in trap.ends(
            load
        )
    assert command(["verify", str(saved)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_file_of_tensors_that_the_manifest_does_not_list_is_damage(saved):
    place = checkpoint.find(saved)
    save_file({"model.lm_head.weight": torch.zeros(1, 1)}, place / "tensors" / "more.safetensors")
    assert "more.safetensors: is not in the checkpoint's manifest" in checkpoint.damage(place)


def test_a_manifest_that_names_a_file_outside_of_its_folder_is_damage(saved):
    place = checkpoint.find(saved)
    manifest = read_json(place / "manifest.json")
    outside = saved / "config.toml"
    manifest["files"]["../../config.toml"] = layout.file_sum(outside).model_dump()
    write_json(place / "manifest.json", manifest)
    assert "is not inside the checkpoint's folder" in checkpoint.damage(place)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"intermediate_size": 96}, "Size mismatch"),
        ({"num_hidden_layers": 1}, "holds 'model.layers.1."),
        ({"num_hidden_layers": 3}, "Missing key"),
        ({"hidden_size": "wide"}, "cannot be loaded"),
        ({"num_attention_heads": 0}, "cannot be loaded"),
    ],
)
def test_a_checkpoint_whose_configuration_is_of_another_model_is_refused_in_one_line(
    changes, says, saved, trap, capsys
):
    place = checkpoint.find(saved)
    changed_config(place, **changes)
    sealed(place)
    assert says in trap.ends(lambda: checkpoint.load_model(saved))
    assert command(["verify", str(saved)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arm", "shape", "says"),
    [
        ("learned", {}, "which its model does not have"),
        ("gf2", {"intermediate_size": 96}, "does not fit this model (Size mismatch"),
        ("gf2", {"num_hidden_layers": 3}, "does not fit this model (Missing key"),
    ],
)
def test_a_checkpoint_of_another_model_ends_a_resume_in_one_line(
    arm, shape, says, saved, dataset, trap, tmp_path
):
    other = tiny_study(dataset.path, model={**TINY_MODEL, **shape}).run(arm, 1)
    trainer = Trainer(other, dataset, tmp_path / "other", Silent())
    assert says in trap.ends(lambda: trainer.go_on_from(checkpoint.find(saved)))


# A folder with a model


def weights_are_a_pickle(folder: Path, trap: Trap) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(trap.pickled)


def weights_are_a_torch_file(folder: Path, trap: Trap) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": trap.payload}, folder / "pytorch_model.bin")


def safetensors_is_a_pickle(folder: Path, trap: Trap) -> None:
    (folder / "model.safetensors").write_bytes(trap.pickled)


def an_index_names_a_pickle(folder: Path, trap: Trap) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": trap.payload}, folder / "part.bin")
    write_json(
        folder / "pytorch_model.bin.index.json",
        {"metadata": {}, "weight_map": {"lm_head.weight": "part.bin"}},
    )


def a_pickle_is_added(folder: Path, trap: Trap) -> None:
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin", "rng_state.pth"):
        (folder / name).write_bytes(trap.pickled)


def classes_come_with_the_folder(folder: Path, trap: Trap) -> None:
    (folder / "crafted.py").write_text(trap.source)
    classes = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    changed_config(folder, auto_map={name: f"crafted.{name}" for name in classes})


def an_unknown_model_brings_its_class(folder: Path, trap: Trap) -> None:
    classes_come_with_the_folder(folder, trap)
    changed_config(folder, model_type="crafted", architectures=["Crafted"])


def the_tokenizer_brings_its_class(folder: Path, trap: Trap) -> None:
    (folder / "crafted.py").write_text(trap.source)
    file = folder / "tokenizer_config.json"
    values = {
        "tokenizer_class": "Crafted",
        "auto_map": {"AutoTokenizer": ["crafted.Crafted", "crafted.Crafted"]},
    }
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def generation_comes_with_the_folder(folder: Path, trap: Trap) -> None:
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(trap.source)


def a_chat_template_has_code(folder: Path, trap: Trap) -> None:
    (folder / "chat_template.jinja").write_text(trap.template)


def an_adapter_is_a_pickle(folder: Path, trap: Trap) -> None:
    (folder / "crafted_core.py").write_text(trap.source)
    adapter = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "target_modules": ["lm_head"], "r": 2}
    megatron = {
        "megatron_config": {"tensor_model_parallel_size": 1},
        "megatron_core": "crafted_core",
    }
    write_json(
        folder / "adapter_config.json",
        {**adapter, **megatron, "base_model_name_or_path": str(folder)},
    )
    torch.save(
        {"base_model.model.lm_head.lora_A.weight": trap.payload}, folder / "adapter_model.bin"
    )


def attention_is_a_kernel_of_somebody(folder: Path, trap: Trap) -> None:
    changed_config(folder, attn_implementation="somebody/crafted")


def weights_are_said_to_be_quantised(folder: Path, trap: Trap) -> None:
    changed_config(
        folder, quantization_config={"quant_method": "gptq", "bits": 4, "backend": "crafted"}
    )


FOLDERS = [
    weights_are_a_pickle,
    weights_are_a_torch_file,
    safetensors_is_a_pickle,
    an_index_names_a_pickle,
    a_pickle_is_added,
    classes_come_with_the_folder,
    an_unknown_model_brings_its_class,
    the_tokenizer_brings_its_class,
    generation_comes_with_the_folder,
    a_chat_template_has_code,
    an_adapter_is_a_pickle,
    attention_is_a_kernel_of_somebody,
    weights_are_said_to_be_quantised,
]


@pytest.mark.parametrize("craft", FOLDERS, ids=lambda craft: craft.__name__)
def test_no_code_of_an_exported_folder_runs(craft, exported, trap, tmp_path, monkeypatch):
    craft(exported, trap)
    monkeypatch.chdir(exported)  # where a module beside the weights could be imported by its name
    monkeypatch.syspath_prepend(str(exported))
    trap.ends(lambda: checkpoint.load_model(exported))
    trap.ends(lambda: tokencodes.load(str(exported)))
    trap.ends(lambda: certify(exported))
    trap.ends(lambda: open_evaluated(str(exported), None, "cpu", "float32"))
    trap.ends(lambda: import_model(exported, tmp_path / "imported", None, None, None, False))


@pytest.mark.parametrize("craft", FOLDERS, ids=lambda craft: craft.__name__)
def test_no_code_of_another_programs_folder_runs(craft, foreign, trap, tmp_path, monkeypatch):
    craft(foreign, trap)
    monkeypatch.chdir(foreign)
    monkeypatch.syspath_prepend(str(foreign))
    trap.ends(lambda: open_evaluated(str(foreign), None, "cpu", "float32"))
    trap.ends(lambda: tokencodes.load(str(foreign)))
    trap.ends(lambda: open_texts(str(foreign)))
    trap.ends(lambda: import_model(foreign, tmp_path / "imported", None, None, None, False))


def test_a_folder_with_weights_as_a_torch_file_alone_still_loads(foreign, trap):
    weights = AutoModelForCausalLM.from_pretrained(foreign).state_dict()
    (foreign / "model.safetensors").unlink()
    torch.save(weights, foreign / "pytorch_model.bin")
    assert trap.ends(lambda: open_evaluated(str(foreign), None, "cpu", "float32")) is None


@pytest.mark.parametrize("craft", FOLDERS, ids=lambda craft: craft.__name__)
def test_no_code_of_a_swapped_models_folder_runs(craft, foreign, trap, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(foreign)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of GPT-2's head, which was tied
        swap_input(model, "binary")
    save_swapped(model, foreign)
    craft(foreign, trap)
    monkeypatch.chdir(foreign)
    monkeypatch.syspath_prepend(str(foreign))
    trap.ends(lambda: load_swapped(foreign))
