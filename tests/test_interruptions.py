"""Ctrl-C is an interruption everywhere: exit 130 and one line, also where a library makes another
error of it.
"""

import shutil
from pathlib import Path

import pytest
import tomli_w
from torch.distributed.checkpoint.api import CheckpointException
from transformers import GPT2Config

from tests.conftest import VOCAB
from tokencodes import checkpoint
from tokencodes.checkpoint import tensors
from tokencodes.checkpoint.write import cause_of
from tokencodes.cli import INTERRUPTED, NOTHING_WRITTEN, run
from tokencodes.errors import InputError, loading, pass_on_interruption
from tokencodes.evaluate import subject
from tokencodes.export import agreement, export_model
from tokencodes.model import TokenCodeConfig
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train
from tokencodes.verify import certificate, identity


def wrapped(*args, **options):
    """What a library does in which Ctrl-C arrives: another error, whose cause it is."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        raise RuntimeError("Error calling __set_name__") from error


@pytest.fixture(scope="module")
def trained(study, dataset, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "gf2"
    train(study.run("gf2", 1), dataset, folder, Silent())
    return folder


def assert_interrupted(status: int, line: str, capsys) -> None:
    assert status == 130
    assert capsys.readouterr().err.splitlines() == [f"tokencodes: {line}"]


@pytest.mark.parametrize("background", ["no", "yes"])
def test_ctrl_c_during_a_save_is_an_interruption_and_the_save_before_is_intact(
    background, study, tmp_path, capsys, monkeypatch
):
    """torch turns whatever happens while it writes into an error of its own."""
    preset, out = tmp_path / "tiny.toml", tmp_path / "run"
    values = study.model_dump(mode="json", exclude_none=True)
    values["checkpoint"]["async_save"] = background
    preset.write_text(tomli_w.dumps(values))
    arguments = ["train", str(preset), "--out", str(out), "--arm", "gf2", "--json"]
    real, saves = tensors._write, []

    def interrupted(*args, **given):
        saves.append(1)
        if len(saves) == 2:
            raise KeyboardInterrupt
        return real(*args, **given)

    monkeypatch.setattr(tensors, "_write", interrupted)
    assert_interrupted(run(arguments), INTERRUPTED, capsys)
    assert [path.name for path in checkpoint.checkpoints(out / "checkpoints")] == ["step-00000002"]
    assert checkpoint.damage(out / "checkpoints" / "step-00000002") is None
    assert not list((out / "checkpoints").glob(".tmp-*"))
    assert run(arguments) == 0


def test_ctrl_c_on_any_rank_is_an_interruption_on_all():
    failures = {0: (OSError("disk"), None), 1: (KeyboardInterrupt(), None)}
    with pytest.raises(KeyboardInterrupt):
        cause_of(CheckpointException("write", failures))
    assert str(cause_of(CheckpointException("write", {0: failures[0]}))) == "disk"


def test_an_error_that_an_interruption_caused_is_passed_on_as_one():
    with pytest.raises(KeyboardInterrupt):
        try:
            wrapped()
        except RuntimeError as error:
            pass_on_interruption(error)
    with pytest.raises(KeyboardInterrupt), loading(Path("model")):
        wrapped()
    with pytest.raises(InputError, match="model: cannot be loaded"), loading(Path("model")):
        raise RuntimeError("other")


@pytest.mark.parametrize("command", ["verify", "export", "evaluate"])
def test_a_command_that_is_interrupted_inside_of_a_library_exits_with_130(
    command, trained, tmp_path, capsys, monkeypatch
):
    out, line = str(tmp_path / "out"), INTERRUPTED
    monkeypatch.setattr(TokenCodeConfig, "from_pretrained", wrapped)
    arguments = {
        "verify": ["verify", str(trained)],
        "export": ["export", str(trained), "--to", "llama", "--out", out],
        "evaluate": ["evaluate", str(trained), "--suite", "embedded", "--out", out],
    }[command]
    if command == "export":
        line = NOTHING_WRITTEN
    assert_interrupted(run(arguments), line, capsys)
    assert not Path(out).exists()


def test_an_interrupted_import_exits_with_130_and_writes_nothing(tmp_path, capsys, monkeypatch):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr("tokencodes.importing.readers.read_folder", wrapped)
    status = run(["import", str(tmp_path / "plain"), "--out", str(tmp_path / "out")])
    assert_interrupted(status, NOTHING_WRITTEN, capsys)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_foreign_model_is_not_called_unreadable(
    tokenizer_path, tmp_path, monkeypatch
):
    GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=1, n_head=2).save_pretrained(tmp_path)
    shutil.copyfile(tokenizer_path, tmp_path / "tokenizer.json")
    monkeypatch.setattr(subject.AutoModelForCausalLM, "from_pretrained", wrapped)
    with pytest.raises(KeyboardInterrupt):
        subject.open_evaluated(str(tmp_path), None, "cpu", "float32")


def test_an_interrupted_check_has_not_failed(trained, monkeypatch):
    monkeypatch.setattr(identity, "CHECKS", (wrapped,))
    with pytest.raises(KeyboardInterrupt):
        certificate.certify(trained)


def test_an_interrupted_runtime_does_not_differ(trained, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        agreement.compare(None, wrapped, "runtime", "F32", False)
    monkeypatch.setattr(export_model, "compare", wrapped)
    shutil.copytree(trained / "model", tmp_path / "model")
    assert (
        run(["export", str(tmp_path / "model"), "--to", "llama", "--out", str(tmp_path / "out")])
        == 130
    )
    assert not (tmp_path / "out").exists()
