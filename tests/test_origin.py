"""Which run a model belongs to: by the names of its folders, and only where the run's files and the
model agree.
"""

import json
import shutil

import pytest
import tomli_w

from tests.conftest import TINY_MODEL, VOCAB, tiny_study
from tokencodes import checkpoint
from tokencodes.checkpoint import origin_of, run_folder, tokenizer_of
from tokencodes.evaluate.subject import _held_out
from tokencodes.export.card import _study
from tokencodes.files import read_toml

HASHES = {"spec_sha256": "aa", "codebook_sha256": "bb"}
STATE = {
    "step": 8,
    "dataset_fingerprint": "ff",
    "tokenizer_sha256": "cc",
    "start_sha256": "dd",
    "replay_loss": 5.5,
}
RESULT = HASHES | {
    "arm": "gf2",
    "seed": 1,
    "steps": 8,
    "tokens": 512,
    "held_out_loss": 5.5,
    "bits_per_byte": 4.5,
    "perplexity": 244.7,
    "interface": "gf2",
    "held_out_tokens": 128,
    "held_out_bytes": 200,
    "held_out_sha256": "ee",
    "windows_sha256": "99",
    "seconds": 1.0,
    "process_peak_rss_bytes": 1,
    "dataset_fingerprint": "ff",
    "start_sha256": "dd",
    "environment": {"dtype": "float32"},
}
SHAPE = {key: value for key, value in TINY_MODEL.items() if key != "context_length"} | {
    "max_position_embeddings": 16
}
MODEL = HASHES | SHAPE | {"interface": "gf2", "tokenizer_sha256": "cc", "vocab_size": VOCAB}


def write(file, value):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(tomli_w.dumps(value) if file.suffix == ".toml" else json.dumps(value))


def change(file, **values):
    write(
        file, (read_toml(file) if file.suffix == ".toml" else json.loads(file.read_text())) | values
    )


@pytest.fixture
def run(tmp_path):
    """The files of a finished run of a study, as far as they are read here."""
    folder = tmp_path / "study" / "gf2" / "seed-1"
    study = tiny_study(
        "texts",
        data={"inputs": ["embedded:austen"], "vocab_size": VOCAB, "validation_fraction": 0.02},
    )
    write(folder / "config.toml", study.run("gf2", 1).model_dump(mode="json", exclude_none=True))
    write(tmp_path / "study" / "study.toml", study.model_dump(mode="json", exclude_none=True))
    write(folder / "result.json", RESULT)
    for name in ("model", "checkpoints/step-00000008", "models/step-00000008"):
        write(folder / name / "config.json", MODEL)
    for name in ("model", "models/step-00000008"):
        write(folder / name / "replay.json", {"loss": 5.5, "token_losses": [], "ids": []})
    write(folder / "checkpoints" / "step-00000008" / "state.json", STATE)
    write(folder / "checkpoints" / "step-00000008" / "manifest.json", {})
    return folder


PLACES = ("model", "checkpoints/step-00000008", "models/step-00000008")


@pytest.mark.parametrize("name", PLACES)
def test_a_model_of_a_run_belongs_to_it(run, name, monkeypatch):
    origin = origin_of(run / name)
    assert (origin.folder, origin.step, origin.config.arm, origin.config.seed) == (run, 8, "gf2", 1)
    assert origin.result.steps == 8 and _held_out(origin) is True
    assert _study(origin) == {"arms": ["learned", "binary", "gf2", "permuted"], "seeds": [1, 2]}
    monkeypatch.chdir(run / name)
    assert origin_of(type(run)(".")) == origin  # whatever it is called


def test_the_folders_of_a_run_have_their_names(run):
    assert {run_folder(run / name) for name in PLACES} == {run}
    for name in (
        "final",
        "checkpoints/best",
        "kept/step-00000008",
        "checkpoints/step-",
        "checkpoints/step-x",
        "models/model2",
    ):
        assert run_folder(run / name) is None, name
    assert run_folder(run) is None and run_folder(run / "model" / "inner") is None


@pytest.mark.parametrize("name", ["final", "a/b", "kept/step-00000008"])
def test_the_configuration_above_a_folder_of_another_name_is_not_its_own(run, name):
    shutil.copytree(run / "model", run / name)
    assert origin_of(run / name) is None and tokenizer_of(run / name) is None


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.toml", {"arm": "binary"}),
        ("config.toml", {"seed": 2}),
        ("config.toml", {"interface": "gf2:seed=7"}),
        ("config.toml", {"interface": "nonsense"}),
        ("config.toml", {"model": TINY_MODEL | {"hidden_size": 40}}),
        ("config.toml", {"model": TINY_MODEL | {"intermediate_size": 40}}),
        ("config.toml", {"model": TINY_MODEL | {"num_hidden_layers": 3}}),
        ("config.toml", {"model": TINY_MODEL | {"num_attention_heads": 3}}),
        ("config.toml", {"model": TINY_MODEL | {"context_length": 32}}),
        ("config.toml", {"data": {"vocab_size": VOCAB + 1}}),
        ("config.toml", {"data": 3}),
        ("result.json", {"arm": "binary"}),
        ("result.json", {"seed": 2}),
        ("result.json", {"spec_sha256": "other"}),
        ("result.json", {"codebook_sha256": None}),
        ("result.json", {"steps": 7}),
        ("result.json", {"steps": "many"}),
        ("result.json", {"dataset_fingerprint": "other"}),
        ("result.json", {"start_sha256": "other"}),
        ("checkpoints/step-00000008/state.json", {"step": 6}),
        ("checkpoints/step-00000008/state.json", {"tokenizer_sha256": "other"}),
    ],
)
def test_files_of_a_run_that_do_not_agree_with_the_model_are_not_believed(run, name, file, values):
    change(run / file, **values)
    assert origin_of(run / name) is None


@pytest.mark.parametrize("text", ["{}", "[]", "null", "{", ""])
@pytest.mark.parametrize(
    "file",
    ["config.toml", "result.json", "model/config.json", "checkpoints/step-00000008/state.json"],
)
def test_a_damaged_file_of_a_run_is_not_believed_and_ends_in_no_traceback(run, file, text):
    (run / file).write_text(text)
    assert origin_of(run / "model") is None


@pytest.mark.parametrize("name", ["model", "models/step-00000008"])
def test_a_model_whose_own_record_is_of_another_training_is_not_the_runs(run, name):
    change(run / name / "replay.json", loss=5.25)
    assert origin_of(run / name) is None
    (run / name / "replay.json").unlink()
    assert origin_of(run / name).step == 8


def test_an_unfinished_run_has_checkpoints_and_no_model(run):
    (run / "result.json").unlink()
    origin = origin_of(run / "checkpoints" / "step-00000008")
    assert origin.step == 8 and origin.result is None
    assert origin_of(run / "model") is None  # of which step is it?


def test_a_later_step_than_the_run_has_is_not_of_it(run):
    for name, wanted in (("step-00000008", 8), ("step-00000007", 7), ("step-00000009", None)):
        shutil.copytree(run / "models" / "step-00000008", run / "models" / "copy")
        shutil.rmtree(run / "models" / name, ignore_errors=True)
        (run / "models" / "copy").rename(run / "models" / name)
        origin = origin_of(run / "models" / name)
        assert (origin.step if origin else None) == wanted
        if name != "step-00000008":
            shutil.copytree(
                run / "models" / name, run / "models" / "step-00000008", dirs_exist_ok=True
            )


@pytest.mark.parametrize(
    ("requested", "settled", "same"),
    [
        ("gf2", "gf2:seed=12345", True),
        ("gf2:seed=7", "gf2", False),
        ("binary:ids=ranked", "binary:ids=ranked,order=sha256-00ff", True),
        ("binary:ids=clustered", "binary:ids=ranked,order=sha256-00ff", False),
        ("gf2:matrix=folder/a.npy", "gf2:matrix=sha256-00ff", True),
        ("gf2", "gf2:matrix=sha256-00ff", False),
    ],
)
def test_an_interface_is_the_same_before_and_after_it_is_settled(run, requested, settled, same):
    change(run / "config.toml", interface=requested)
    for name in ("model", "checkpoints/step-00000008"):
        change(run / name / "config.json", interface=settled)
    assert (origin_of(run / "model") is not None) is same


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ({"inputs": ["embedded:austen"], "validation_fraction": 0.02}, True),
        ({"inputs": ["embedded:austen", "embedded:sotu"], "validation_fraction": 0.3}, True),
        ({"inputs": ["embedded:austen"], "validation_fraction": 0.019}, False),
        ({"inputs": ["embedded:austen"]}, False),
        ({"inputs": ["embedded:austen"], "validation_fraction": 0.02, "split_seed": 1}, False),
        ({"inputs": ["embedded:austen", "mine.txt"], "validation_fraction": 0.02}, None),
        ({"dataset": "texts", "validation_fraction": 0.02}, None),
        ({"mixture": [{"dataset": "texts", "weight": 1.0}]}, None),
    ],
)
def test_whether_the_embedded_text_was_held_out_is_said_by_the_runs_own_data(run, data, wanted):
    change(run / "config.toml", data={"vocab_size": VOCAB} | data)
    assert _held_out(origin_of(run / "model")) is wanted
    assert _held_out(None) is None


@pytest.mark.parametrize(
    "values",
    [
        {"arms": {"binary": {"interface": "binary"}}},
        {"arms": {"gf2": {"interface": "gf2:seed=9"}}},
        {"study": {"seeds": [2]}},
        {"arms": 3},
    ],
)
def test_the_study_of_another_run_is_not_on_the_card(run, values):
    change(run.parent.parent / "study.toml", **values)
    assert _study(origin_of(run / "model")) is None
    (run.parent.parent / "study.toml").unlink()
    assert _study(origin_of(run / "model")) is None


def test_a_tokenizer_is_looked_for_in_the_run_and_in_its_study_alone(run, tmp_path):
    study, place = run.parent.parent, run / "checkpoints" / "step-00000008"
    assert tokenizer_of(place) is None and checkpoint.tokenizer_of(run) is None
    for folder in (
        study / "data",
        run / "data",
        run / "model",
        place,
    ):  # each comes before those before it
        write(folder / "tokenizer.json", {})
        assert tokenizer_of(place).resolve() == folder / "tokenizer.json"
    assert tokenizer_of(run) == run / "model" / "tokenizer.json"
    assert tokenizer_of(study / "data") == study / "data" / "tokenizer.json"
    (study / "study.toml").unlink()
    for folder in (run / "data", run / "model", place):
        (folder / "tokenizer.json").unlink()
    assert tokenizer_of(place) is None  # data two folders above a run that is of no study
