"""What is cheap to check is checked before anything slow: no weights are read, no model is fetched,
no library is loaded.
"""

import pytest

from tests.evaluate.conftest import tiny
from tokencodes.cli import run as command
from tokencodes.evaluate import pairs, subject, tasks


@pytest.fixture
def folder(tmp_path, tokenizer_path):
    """A model's folder."""
    tiny("llama").save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    return tmp_path / "model"


def refuse(name):
    def slow(*args, **more):
        raise AssertionError(f"{name} comes after the cheap checks")

    return slow


def said(arguments, capsys):
    """The one line that a command says of unusable input."""
    assert command([str(argument) for argument in arguments]) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1, output
    return output


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--suite", "embeded"], "did you mean 'embedded'?"),
        (["--suite", "embedded", "--device", "gpu"], "--device 'gpu': known: auto, cpu, cuda"),
        (
            ["--suite", "embedded", "--dtype", "int8"],
            "--dtype 'int8': known: float32, bfloat16, float16",
        ),
        (["--suite", "piqa", "--data", "nowhere"], "--data nowhere: no folder"),
        (["--suite", "embedded", "--documents", "0"], "--documents"),
        (["--suite", "embedded", "--batch-tokens", "0"], "--batch-tokens"),
    ],
)
def test_options_of_evaluate_are_checked_before_lm_eval_is_loaded(
    folder, tmp_path, monkeypatch, capsys, arguments, line
):
    monkeypatch.setattr(tasks, "lm_eval_folder", refuse("lm-eval"))
    assert line in said(["evaluate", folder, "--out", tmp_path / "out", *arguments], capsys)
    assert not (tmp_path / "out").exists()


def test_the_folder_of_evaluate_is_checked_before_lm_eval_is_loaded(folder, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "lm_eval_folder", refuse("lm-eval"))
    assert "neither empty nor of this command" in said(
        ["evaluate", folder, "--suite", "embedded", "--out", folder], capsys
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--context", "129"], "--context 129: this model reads 128 tokens at most"),
        (["--prefix-token", "320"], "--prefix-token 320: the tokenizer's ids are 0 to 319"),
        (["--tokenizer", "no/such/tokenizer.json"], "no such file or folder"),
        (["--every-checkpoint"], "--every-checkpoint wants one"),
    ],
)
def test_tokenizer_context_and_prefix_are_checked_before_weights_are_read(
    folder, tmp_path, monkeypatch, capsys, arguments, line
):
    monkeypatch.setattr(subject, "_foreign", refuse("reading weights"))
    common = [
        "evaluate",
        folder,
        "--suite",
        "embedded",
        "--documents",
        "1",
        "--out",
        tmp_path / "out",
    ]
    assert line in said([*common, *arguments], capsys)


def test_a_changed_file_of_rows_is_found_before_weights_are_read(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(subject, "_foreign", refuse("reading weights"))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "piqa_validation.jsonl").write_text("{}\n")
    common = [
        "evaluate",
        folder,
        "--suite",
        "piqa",
        "--data",
        tmp_path / "rows",
        "--out",
        tmp_path / "out",
    ]
    assert "piqa_validation.jsonl: its lines have SHA-256" in said(common, capsys)


def test_an_audit_checks_the_suite_before_the_tokenizer(monkeypatch, capsys):
    from tokencodes.evaluate import texts

    monkeypatch.setattr(texts, "open_texts", refuse("the tokenizer"))
    assert "did you mean 'piqa'?" in said(
        ["audit", "--suite", "pica", "--tokenizer", "owner/name"], capsys
    )
    assert "--data nowhere" in said(
        ["audit", "--suite", "piqa", "--data", "nowhere", "--tokenizer", "owner/name"], capsys
    )


def test_a_contrast_checks_margins_and_folders_before_evaluations_are_read(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(pairs, "sides", refuse("evaluations"))
    (tmp_path / "a").mkdir()
    assert "--margin 0.5: between" in said(
        ["contrast", tmp_path, tmp_path, "--margin", "0.5"], capsys
    )
    assert "--margin-bits 0.0: a number above 0" in said(
        ["contrast", tmp_path, tmp_path, "--margin-bits", "0"], capsys
    )
    assert "b: no such folder" in said(["contrast", tmp_path / "a", tmp_path / "b"], capsys)
    assert "neither empty" in said(
        ["contrast", tmp_path / "a", tmp_path / "a", "--out", tmp_path], capsys
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--to", "pickle"], "--to 'pickle': known: llama, gguf, onnx"),
        (
            ["--to", "llama", "--dtype", "Q8_0"],
            "--dtype 'Q8_0': llama is written in F32, BF16, F16",
        ),
        (["--to", "llama"], "taken: is there already"),
        (["--to", "llama", "--force"], "was not made by export or import"),
    ],
)
def test_options_of_export_are_checked_before_a_model_is_fetched(
    tmp_path, monkeypatch, capsys, arguments, line
):
    from tokencodes import hub

    monkeypatch.setattr(hub, "fetch", refuse("the hub"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    assert line in said(["export", "owner/name", *arguments, "--out", tmp_path / "taken"], capsys)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--interface", "binaray"], "did you mean 'binary'?"),
        (["--map", "no.json"], "--map no.json: no such file"),
        (["--logits", "no.npz"], "--logits no.npz: no such file"),
        ([], "taken: is there already"),
    ],
)
def test_options_of_import_are_checked_before_a_model_is_fetched(
    tmp_path, monkeypatch, capsys, arguments, line
):
    from tokencodes import hub

    monkeypatch.setattr(hub, "fetch", refuse("the hub"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    assert line in said(["import", "owner/name", *arguments, "--out", tmp_path / "taken"], capsys)


def test_an_export_checks_the_tokenizer_before_weights_are_read(
    tmp_path, tokenizer_path, monkeypatch, capsys
):
    from tests.export.conftest import saved, trained
    from tokencodes import checkpoint

    place = saved(trained("binary"), tmp_path / "model", tokenizer_path)
    (place / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(checkpoint, "load_model", refuse("reading weights"))
    common = ["export", place, "--to", "llama", "--out", tmp_path / "plain"]
    assert "but the model was trained with the tokenizer" in said(common, capsys)


@pytest.mark.parametrize(
    "text",
    ["[]", "null", "{}", '{"max_position_embeddings": "many"}', '{"model_type": "unknown"}', "{"],
)
def test_an_audit_believes_no_config_that_is_not_a_models(tmp_path, tokenizer_path, text):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    (tmp_path / "config.json").write_text(text)
    assert (
        subject.model_context_length(str(tmp_path))
        == subject.model_context_length(str(tmp_path / "tokenizer.json"))
        == 2048
    )


def test_an_audit_reads_as_many_tokens_as_the_model_beside_the_tokenizer(folder, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "gpt2")
    assert (
        subject.model_context_length(str(folder))
        == 128
        == subject.model_context_length(str(folder / "tokenizer.json"))
    )
    assert subject.model_context_length(str(tmp_path / "gpt2")) == 128  # which calls it n_positions
    assert subject.model_context_length(str(tmp_path)) == 128  # as of a run: its model
    assert subject.model_context_length("owner/name") == 2048


@pytest.mark.parametrize(
    "text", ["[]", "null", "{}", "{", '{"model_type": "llama", "hidden_size": "wide"}']
)
def test_a_configuration_with_wrong_contents_is_one_line(folder, tmp_path, capsys, text):
    (folder / "config.json").write_text(text)
    line = said(["evaluate", folder, "--suite", "embedded", "--out", tmp_path / "out"], capsys)
    assert str(folder) in line


def test_the_code_of_a_model_is_not_run(folder, tmp_path, capsys):
    import json

    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "cannot be loaded" in said(
        ["evaluate", folder, "--suite", "embedded", "--out", tmp_path / "out"], capsys
    )
    assert not (tmp_path / "ran").exists()
