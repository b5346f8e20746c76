"""The command contract: exit 0, 1, 2; one line for unusable input;
JSON alone on standard output."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

import tokencodes
from tests import PATIENCE
from tokencodes import checkpoint
from tokencodes.cli import run
from tokencodes.data.writer import ShardWriter
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train
from tokencodes.verify import certificate, check


@pytest.fixture
def preset(study, tmp_path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(tomli_w.dumps(study.model_dump(mode="json", exclude_none=True)))
    return str(path)


def bad(capsys, *arguments: str) -> str:
    """The one line of a command that must exit with 2."""
    assert run(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    complaints = [line for line in captured.err.splitlines() if not line.startswith("preparing ")]
    assert len(complaints) == 1
    assert complaints[0].startswith("tokencodes: ")
    return complaints[0]


def test_train_verify_report_and_their_json(preset, capsys, tmp_path):
    out = str(tmp_path / "run")
    assert run(["train", preset, "--out", out, "--arm", "gf2", "--seed", "2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["done"], printed["arm"], printed["seed"]) == (True, "gf2", 2)
    assert run(["verify", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["holds"] is True
    assert run(["verify", out, "--out", str(tmp_path / "certificate")]) == 0
    assert "codebook regenerated" in capsys.readouterr().out
    assert json.loads((tmp_path / "certificate" / "certificate.json").read_text())["holds"] is True
    assert "Every check" in (tmp_path / "certificate" / "certificate.html").read_text()


def test_compare_leaves_a_report_and_report_rebuilds_it(preset, capsys, tmp_path):
    out = tmp_path / "study"
    sets = ["--set", "study.seeds=[1]", "--set", "budget.tokens=128"]
    assert run(["compare", preset, "--out", str(out), *sets, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["arms"]) == {"learned", "binary", "gf2", "permuted"}
    page = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    assert run(["report", str(out), "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["report"]).read_bytes() == page


def test_params_of_the_paper(capsys):
    assert run(["params", "paper", "--json"]) == 0
    arms = json.loads(capsys.readouterr().out)["arms"]
    assert [arms[arm]["total_parameters"] for arm in ("learned", "binary", "gf2")] == [
        1_812_039_680,
        1_711_376_384,
        1_711_376_384,
    ]
    assert [arms[arm]["buffer_entries"] for arm in ("learned", "binary", "gf2")] == [
        0,
        786_432,
        786_704,
    ]


def test_a_small_norm_is_not_shown_as_zero(capsys):
    assert run(["params", "quickstart", "--set", "arms.gf2.interface=gf2:scale=match"]) == 0
    line = next(
        line for line in capsys.readouterr().out.splitlines() if "squared norm mean" in line
    )
    assert "0.0768" in line


def test_codes_certifies_and_draws(dataset, capsys, tmp_path):
    picture = tmp_path / "c.svg"
    command = [
        "codes",
        "binary:ids=ranked",
        "--vocab-size",
        "320",
        "--width",
        "36",
        "--dataset",
        str(dataset.path),
    ]
    assert run([*command, "--picture", str(picture), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["injective"], printed["rank_gf2"], printed["minimum_distance"]) == (
        True,
        9,
        1.0,
    )
    leak = {entry["name"]: entry for entry in printed["leaks"]}["more frequent than the median"]
    assert leak["accuracy"] > 0.9 > leak["control"]
    assert picture.read_text().startswith("<svg")
    assert run(command) == 0
    assert "leak: more frequent" in capsys.readouterr().out
    for arguments, complaint in (
        (["learned", "--vocab-size", "320"], "trained, so it has no certificate"),
        (["binary", "--vocab-size", "0"], "a vocabulary of 0 tokens"),
        (["binary:ids=ranked", "--vocab-size", "320"], "read off training text"),
        (["random:width=40", "--vocab-size", "320", "--width", "36"], "below the code width 40"),
        (["binary", "--vocab-size", "321", "--dataset", str(dataset.path)], "the model has 321"),
        (["gf2:matrix=none.txt", "--vocab-size", "320"], "no such file"),
        (
            ["gf2:width=3", "--vocab-size", "8", "--width", "36"],
            "lower min_weight= or widen width=",
        ),
    ):
        assert complaint in bad(capsys, "codes", *arguments)


def test_tokenizer_prepare_and_config_show(texts, capsys, tmp_path):
    tokenizer = str(tmp_path / "t.json")
    assert run(["tokenizer", str(texts), "--vocab-size", "300", "--out", tokenizer, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocab_size"] == 300
    arguments = [
        "prepare",
        str(texts),
        "--tokenizer",
        tokenizer,
        "--out",
        str(tmp_path / "d"),
        "--validation-fraction",
        "0.2",
        "--json",
    ]
    assert run(arguments) == 0
    fingerprint = json.loads(capsys.readouterr().out)["fingerprint"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == fingerprint
    assert run(["config", "show", "quickstart", "--set", "budget.tokens=1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    budget = printed["budget.tokens"]
    assert (budget["value"], budget["origin"]) == (1, "--set budget.tokens=1")
    assert budget["meaning"].startswith("Training ends at the first step")


def test_a_check_that_does_not_hold_exits_with_1(study, dataset, tmp_path, capsys, monkeypatch):
    train(study.run("gf2", 1), dataset, tmp_path / "run", Silent())
    failed = check.check("L2", "always", "measured on these inputs", False, "no")
    monkeypatch.setattr(certificate, "run_checks", lambda subject: [failed])
    assert run(["verify", str(tmp_path / "run"), "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["holds"] is False
    assert "L2 always: no" in captured.err


def test_bad_input_is_one_line_and_exit_2(preset, texts, dataset, study, capsys, tmp_path):
    out = str(tmp_path / "out")
    train_command = ["train", preset, "--out", out]
    assert "did you mean 'peak_lr'" in bad(capsys, *train_command, "--set", "optimizer.peak_rl=1")
    assert "below the code width 9" in bad(capsys, *train_command, "--set", "model.hidden_size=8")
    assert "over 5 heads" in bad(capsys, *train_command, "--set", "model.num_attention_heads=5")
    assert "set it to false" in bad(
        capsys, *train_command, "--set", "model.tie_word_embeddings=true"
    )
    assert "arm 'gf3' is not in this preset" in bad(capsys, *train_command, "--arm", "gf3")
    assert "did you mean 'quickstart'" in bad(capsys, "compare", "quikstart", "--out", out)
    assert "the model has 321" in bad(capsys, *train_command, "--set", "data.vocab_size=321")
    assert "no such option" in bad(capsys, "train", preset, "--uot", out).lower()
    assert "no document long enough" in bad(
        capsys, *train_command, "--set", "model.context_length=5000"
    )
    assert "neither a run" in bad(capsys, "verify", str(tmp_path))
    assert not Path(out).exists()

    lines = tmp_path / "bad.jsonl"
    lines.write_bytes(b'{"text": "fine"}\n{"text": \n')
    tokenizer = str(dataset.path / "tokenizer.json")
    prepare = ["prepare", "--tokenizer", tokenizer, "--out", str(tmp_path / "d")]
    assert f"{lines}, line 2: not JSON" in bad(capsys, *prepare, str(lines))
    lines.write_bytes(b'{"text": "fine"}\n{"text": "\xe9"}\n')
    assert f"{lines}, line 2: not UTF-8" in bad(capsys, *prepare, str(lines))
    assert "no such file or folder" in bad(capsys, *prepare, str(tmp_path / "none.txt"))

    train(study.run("gf2", 1), dataset, tmp_path / "run", Silent())
    message = bad(
        capsys,
        "train",
        preset,
        "--out",
        str(tmp_path / "run"),
        "--arm",
        "gf2",
        "--set",
        "budget.tokens=64",
    )
    assert "made from another configuration (budget.tokens is 512 there, 64 asked for)" in message


def test_a_dataset_of_another_tokenizer_and_a_corrupt_shard(preset, dataset, capsys, tmp_path):
    other = tmp_path / "other.json"
    assert run(["tokenizer", "embedded:austen", "--vocab-size", "320", "--out", str(other)]) == 0
    capsys.readouterr()
    message = bad(
        capsys, "train", preset, "--out", str(tmp_path / "out"), "--set", f"data.tokenizer={other}"
    )
    assert "made with another tokenizer" in message
    shutil.copytree(dataset.path, tmp_path / "copy")
    for tokens in (tmp_path / "copy").rglob("train-*/tokens.npy"):
        data = bytearray(tokens.read_bytes())
        data[-1000] ^= 1
        tokens.write_bytes(data)
    message = bad(
        capsys,
        "train",
        preset,
        "--out",
        str(tmp_path / "out"),
        "--set",
        f"data.dataset={tmp_path / 'copy'}",
    )
    assert "tokens.npy: damaged in bytes 0 to" in message


def test_ctrl_c_saves_and_says_how_to_go_on(preset, tmp_path):
    out = tmp_path / "run"
    arguments = [
        "-m",
        "tokencodes",
        "train",
        preset,
        "--out",
        str(out),
        "--arm",
        "gf2",
        "--set",
        "budget.tokens=1000000",
    ]
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + PATIENCE
    while (
        not (out / "metrics.jsonl").is_file() or (out / "metrics.jsonl").read_text().count("\n") < 3
    ):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    output, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, complaint
    assert "everything up to here is saved" in output
    assert f"tokencodes train {preset} --out {out}" in output
    state = checkpoint.read_state(checkpoint.find(out))
    assert state.step == len(
        [
            line
            for line in (out / "metrics.jsonl").read_text().splitlines()
            if '"step"' in line and "lr" in line
        ]
    )


def test_ctrl_c_before_training_is_one_line_and_exit_130(texts, tmp_path, monkeypatch, capsys):
    def interrupted(*args):
        raise KeyboardInterrupt

    tokenizer = str(tmp_path / "t.json")
    assert run(["tokenizer", str(texts), "--vocab-size", "300", "--out", tokenizer, "--json"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(ShardWriter, "close", interrupted)
    assert (
        run(
            [
                "prepare",
                str(texts),
                "--tokenizer",
                tokenizer,
                "--out",
                str(tmp_path / "d"),
                "--json",
            ]
        )
        == 130
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tokencodes: interrupted")
    assert captured.err.count("\n") == 1


def test_a_run_in_another_runs_folder_is_refused_before_anything_is_prepared(
    study, dataset, texts, tmp_path, capsys
):
    train(study.run("gf2", 1), dataset, tmp_path / "run", Silent())
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    command = [
        "train",
        "quickstart",
        "--set",
        f'data.inputs=["{texts}"]',
        "--out",
        str(tmp_path / "run"),
    ]
    assert "made from another configuration" in bad(capsys, *command)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_version_and_bare_call(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == tokencodes.__version__
    assert run([]) == 2
    assert "Usage" in "".join(capsys.readouterr())


def test_help_is_there_for_every_command(capsys):
    for command in ("compare", "train", "report", "verify", "params", "tokenizer", "prepare"):
        assert run([command, "--help"]) == 0
        assert "--json" in capsys.readouterr().out
