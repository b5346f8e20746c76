"""A plain Llama leaves and comes back bit by bit, whatever the input is; and nothing that does not
agree is left behind.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.export.conftest import SHAPE, assert_same_tensors
from tokencodes.cli import run as command
from tokencodes.codes import InterfaceSpec
from tokencodes.codes.assign import order_hash
from tokencodes.codes.codebook import matrix_hash
from tokencodes.errors import CheckFailed, InputError
from tokencodes.export import export_model
from tokencodes.export.export_model import export
from tokencodes.importing.import_model import import_model
from tokencodes.verify.check import ids_drawn

COPIED = [
    "learned",
    "binary",
    "gf2",
    "binary:ids=permuted",
    "binary:values=pm1,lift=interleave",
    "random:width=24,center=true,scale=match",
    "gaussian:lift=pad,width=12",
    "ecc:storage=computed",
    "learned-code",
]


@pytest.mark.parametrize("spec", COPIED)
def test_a_plain_llama_has_the_same_bits_and_comes_back_as_what_it_was(spec, make, tmp_path):
    folder = make(spec)
    exported = export(folder, "llama", tmp_path / "plain")
    (runtime,) = exported.runtimes
    assert (runtime.status, runtime.bitwise_equal, runtime.largest_difference) == (
        "agrees",
        True,
        0.0,
    )
    assert (
        runtime.greedy_steps_equal == (64, 64)
        and exported.reference_difference < exported.reference_bound
    )
    weights = load_file(tmp_path / "plain" / "model.safetensors")
    known = LlamaForCausalLM(LlamaConfig(**SHAPE)).state_dict().keys()
    assert weights.keys() == known  # no buffer that a runtime does not know
    again = import_model(tmp_path / "plain", tmp_path / "again", None, None, None, False)
    assert again.interface["interface"] == str(InterfaceSpec.parse(spec))
    assert_same_tensors(folder, tmp_path / "again")


@pytest.mark.parametrize("kind", ["ranked", "clustered", "matrix"])
def test_what_a_spec_names_by_hash_is_read_off_the_table(kind, make, tmp_path):
    draw = np.random.default_rng(0)
    order = np.concatenate([[0], 1 + draw.permutation(319)]).astype(np.int32)
    matrix = (np.eye(9, dtype=np.uint8) ^ np.eye(9, k=1, dtype=np.uint8)).astype(np.uint8)
    given = (
        {"matrix": matrix, "offset": np.zeros(9, dtype=np.uint8)}
        if kind == "matrix"
        else {"order": order}
    )
    seed = ",ids_seed=3" if kind == "clustered" else ""
    spec = (
        f"gf2:matrix={matrix_hash(given)}"
        if kind == "matrix"
        else f"binary:ids={kind}{seed},order={order_hash(order)}"
    )
    folder = make(spec, given)
    export(folder, "llama", tmp_path / "plain")
    import_model(tmp_path / "plain", tmp_path / "again", None, None, None, False)
    assert_same_tensors(folder, tmp_path / "again")


def test_an_orthogonal_lift_agrees_within_rounding(make, tmp_path):
    exported = export(make("binary:lift=orthogonal"), "llama", tmp_path / "plain")
    assert (
        exported.runtimes[0].status == "agrees" and exported.runtimes[0].largest_difference <= 1e-4
    )
    assert (
        "orthogonal"
        in import_model(
            tmp_path / "plain", tmp_path / "again", None, None, None, False
        ).recognised_by
    )


def test_the_configuration_is_for_readers_of_both_versions_and_says_that_the_input_is_frozen(
    make, tmp_path
):
    export(make("gf2"), "llama", tmp_path / "plain")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert (
        config["torch_dtype"] == config["dtype"] == "float32"
        and config["tie_word_embeddings"] is False
    )
    assert (
        config["frozen_input"] is True
        and config["tokencodes"]["interface"] == "gf2"
        and config["tokencodes"]["codebook_sha256"]
    )
    card = (tmp_path / "plain" / "README.md").read_text()
    assert "Fine-tuning unfreezes it" in card and config["tokencodes"]["codebook_sha256"] in card
    assert "costs ln 320 nats" in card and "No run record lies beside" in card
    assert (
        json.loads((tmp_path / "plain" / "tokenizer_config.json").read_text())["tokenizer_class"]
        == "PreTrainedTokenizerFast"
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "plain").decode([1, 2, 3])


def test_a_learned_table_is_not_called_frozen(make, tmp_path):
    export(make("learned"), "llama", tmp_path / "plain")
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["frozen_input"] is False
    assert "unfreezes" not in (tmp_path / "plain" / "README.md").read_text()


def test_stock_transformers_loads_and_generates_in_ten_lines(make, tmp_path):
    from pathlib import Path

    script = Path(__file__).parents[2] / "docs" / "generate.py"
    assert sum(bool(line.strip()) for line in script.read_text().splitlines()) <= 10
    export(make(), "llama", tmp_path / "plain")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "plain"), "She was"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.startswith("She was")
        and len(done.stdout) > 12
        and "tokencodes" not in script.read_text()
    )


def test_bfloat16_keeps_the_code_and_the_rotary_positions_exact(make, tmp_path):
    exported = export(make(), "llama", tmp_path / "plain", "BF16")
    assert (
        exported.runtimes[0].status == "agrees"
        and exported.runtimes[0].kl_mean < 5e-3
        and not exported.runtimes[0].bitwise_equal
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert model.dtype == torch.bfloat16 and model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert set(model.get_input_embeddings().weight.float().unique().tolist()) == {0.0, 1.0}


def test_a_code_that_a_type_cannot_hold_is_refused(make, tmp_path):
    with pytest.raises(
        InputError, match=r"--dtype BF16: the fixed code 'binary:scale=0\.3' is not exact in it"
    ):
        export(make("binary:scale=0.3"), "llama", tmp_path / "plain", "BF16")
    assert not (tmp_path / "plain").exists()


def _unused():
    """A token that is in none of the texts that an export or an import asks about."""
    drawn = set(ids_drawn(SHAPE["vocab_size"], SHAPE["max_position_embeddings"]).flatten().tolist())
    return next(id for id in range(318, 0, -1) if id not in drawn)


def _set_in_table(folder, row, value):
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][row, 5] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_table_that_is_not_finite_in_a_row_that_no_text_has_neither_leaves_nor_comes_in(
    value, make, tmp_path
):
    folder = make("learned")
    row = _unused()
    export(folder, "llama", tmp_path / "plain")
    _set_in_table(tmp_path / "plain", row, value)
    with pytest.raises(
        InputError, match=rf"model\.embed_tokens\.weight is not finite in row {row};"
    ):
        import_model(tmp_path / "plain", tmp_path / "back", None, None, None, True)
    _set_in_table(folder, row, value)
    with pytest.raises(
        InputError,
        match=rf"model\.embed_tokens\.weight is not finite in row {row}; take an earlier",
    ):
        export(folder, "llama", tmp_path / "again")
    assert not (tmp_path / "back").exists() and not (tmp_path / "again").exists()


@pytest.mark.parametrize("to", ["llama", "gguf"])
def test_a_value_that_a_type_cannot_hold_is_refused_in_a_row_that_no_text_has(to, make, tmp_path):
    folder = make("learned")
    row = _unused()
    _set_in_table(folder, row, 1e5 if to == "llama" else 3e38)
    if to == "gguf":  # its table stays in float32 where float16 does not hold it, its head does not
        weights = load_file(folder / "model.safetensors")
        weights["lm_head.weight"][row, 5] = 1e5
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        InputError,
        match=rf"--dtype F16: .*weight has a value in row {row} that is too large for it",
    ):
        export(folder, to, tmp_path / "out", "F16")
    assert not (tmp_path / "out").exists()


def test_what_does_not_agree_is_deleted_and_reported(make, tmp_path, monkeypatch):
    true = export_model.Source.plain_weights

    def wrong(self):
        for name, tensor in true(self):
            yield name, tensor + 1e-3 if name == "model.layers.1.mlp.up_proj.weight" else tensor

    monkeypatch.setattr(export_model.Source, "plain_weights", wrong)
    folder = make()
    with pytest.raises(
        CheckFailed,
        match=(
            "not made, because transformers does not agree with our model: logits differ by up to"
        ),
    ):
        export(folder, "llama", tmp_path / "plain")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_folder_is_replaced_by_force_alone_and_only_if_it_was_made_here(make, tmp_path, capsys):
    arguments = ["export", str(make()), "--to", "llama", "--out", str(tmp_path / "plain")]
    assert command(arguments) == 0
    before = (tmp_path / "plain" / "certificate.json").stat().st_mtime_ns
    assert command(arguments) == 2
    assert "is there already; name another --out, or --force" in capsys.readouterr().err
    assert (tmp_path / "plain" / "certificate.json").stat().st_mtime_ns == before
    assert command([*arguments, "--force"]) == 0
    assert (tmp_path / "plain" / "certificate.json").stat().st_mtime_ns > before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    assert command([*arguments[:-1], str(tmp_path / "mine"), "--force"]) == 2
    assert (
        "was not made by export" in capsys.readouterr().err
        and (tmp_path / "mine" / "thesis.txt").is_file()
    )


def test_what_was_put_there_since_is_not_replaced_nor_is_the_source(make, tmp_path, capsys):
    folder = make()
    assert command(["export", str(folder), "--to", "llama", "--out", str(tmp_path / "plain")]) == 0
    assert command(["import", str(tmp_path / "plain"), "--out", str(tmp_path / "back")]) == 0
    for arguments in (["export", "back", "--to", "llama"], ["import", "plain"]):
        place = tmp_path / arguments[1]
        assert (
            command([arguments[0], str(place), *arguments[2:], "--out", str(place), "--force"]) == 2
        )
        assert "the model lies there; name another --out" in capsys.readouterr().err
    (tmp_path / "plain" / "notes.txt").write_text("mine")
    assert (
        command(
            ["export", str(folder), "--to", "llama", "--out", str(tmp_path / "plain"), "--force"]
        )
        == 2
    )
    assert "holds notes.txt, which was put there since" in capsys.readouterr().err
    certificate = (tmp_path / "plain" / "certificate.json").read_text()
    assert (
        str(tmp_path) not in certificate and json.loads(certificate)["kind"] == "tokencodes-export"
    )


def test_another_body_is_refused(make, tmp_path):
    with pytest.raises(InputError, match="num_key_value_heads 2; only the paper's body is taken"):
        export(make(num_key_value_heads=2), "llama", tmp_path / "plain")


def test_no_space_and_an_interruption_leave_nothing(make, tmp_path, monkeypatch, capsys):
    folder = make()
    monkeypatch.setattr(
        "tokencodes.files.shutil.disk_usage", lambda place: shutil._ntuple_diskusage(100, 90, 10)
    )
    assert command(["export", str(folder), "--to", "llama", "--out", str(tmp_path / "plain")]) == 2
    assert "GB are free; name another --out" in capsys.readouterr().err
    monkeypatch.undo()

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(export_model, "write_card", interrupted)
    assert (
        command(["export", str(folder), "--to", "llama", "--out", str(tmp_path / "plain")]) == 130
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_tied_configuration_is_not_believed(make, tmp_path):
    export(make(), "llama", tmp_path / "plain")
    file = tmp_path / "plain" / "config.json"
    file.write_text(
        file.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true')
    )
    with pytest.raises(
        InputError,
        match="tie_word_embeddings is true, so loading would overwrite the head by the input table",
    ):
        import_model(tmp_path / "plain", tmp_path / "again", None, None, None, False)
    assert not (tmp_path / "again").exists()


def test_a_table_that_was_trained_since_is_no_code_any_more(make, tmp_path):
    export(make(), "llama", tmp_path / "plain")
    file = tmp_path / "plain" / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][7, 3] += 1e-4
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match="is not that of 'binary'; it was trained since"):
        import_model(tmp_path / "plain", tmp_path / "again", None, None, None, False)
    assert (
        import_model(
            tmp_path / "plain", tmp_path / "again", "learned", None, None, False
        ).interface["interface"]
        == "learned"
    )


@pytest.mark.parametrize(
    ("size", "said"),
    [(280, "320 entries, but the model knows 280 tokens"), (2000, "knows 2,000 tokens")],
)
def test_a_tokenizer_of_another_vocabulary_is_refused(size, said, make, tmp_path):
    with pytest.raises(InputError, match=said):
        export(make(vocab_size=size), "llama", tmp_path / "plain")


def test_another_tokenizer_of_that_size_is_refused(make, tmp_path):
    folder = make()
    file = folder / "tokenizer.json"
    file.write_text(file.read_text() + "\n")
    with pytest.raises(InputError, match="but the model was trained with the tokenizer"):
        export(folder, "llama", tmp_path / "plain")


def test_of_a_run_the_newest_checkpoint_is_taken_and_said(
    dataset, tmp_path, tokenizer_path, capsys
):
    from tests.conftest import tiny_study
    from tokencodes.train.metrics import Silent
    from tokencodes.train.run import train

    train(tiny_study(dataset.path).run("gf2", 1), dataset, tmp_path / "gf2" / "seed-1", Silent())
    assert (
        command(
            [
                "export",
                str(tmp_path / "gf2" / "seed-1"),
                "--to",
                "llama",
                "--out",
                str(tmp_path / "out"),
                "--json",
            ]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert (printed["name"], printed["checkpoint"]) == ("gf2-seed-1", "step-00000008") and printed[
        "runtimes"
    ][0]["texts"] == 8
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Arm `gf2`, run seed 1" in card and "8 steps, 512 tokens (next tokens" in card
    assert card.startswith("---\n") and "# gf2-seed-1" in card


def test_a_card_shows_an_evaluation_of_these_very_weights_alone(dataset, tmp_path):
    from tests.conftest import tiny_study
    from tokencodes.checkpoint import load_model, weights_sha256
    from tokencodes.train.metrics import Silent
    from tokencodes.train.run import train

    run = tmp_path / "gf2" / "seed-1"
    train(tiny_study(dataset.path).run("gf2", 1), dataset, run, Silent())
    evaluation = {
        "identity": {
            "weights_sha256": "",
            "documents": 3,
            "seed": 0,
            "lm_eval_version": "0.4.13",
            "context_length": 96,
            "prefix": 0,
        },
        "audit": [{"name": "piqa", "documents": 3, "requests": 6, "truncated": 0}],
        "results": {"piqa": {"acc": 2 / 3}},
        "second_opinion": {"checked": 6, "largest": 1e-6},
        "requests_sha256": "ab" * 32,
    }
    (run / "evaluation").mkdir()
    cards = []
    for sha256 in (weights_sha256(load_model(run)), "0" * 64):
        evaluation["identity"]["weights_sha256"] = sha256
        (run / "evaluation" / "evaluation.json").write_text(json.dumps(evaluation))
        export(run, "llama", tmp_path / "out", force=True)
        cards.append((tmp_path / "out" / "README.md").read_text())
    assert (
        "| piqa | acc 0.6667 | 3 | 6 | 0 |" in cards[0]
        and "At most 3 documents of each benchmark, drawn by seed 0" in cards[0]
    )
    assert "piqa" not in cards[1] and "No evaluation of these weights lies beside them" in cards[1]
    assert str(tmp_path) not in cards[0] and f"Text: {dataset.path.name} (" in cards[0]
    evaluation["identity"] |= {
        "weights_sha256": weights_sha256(load_model(run)),
        "documents": None,
        "seed": None,
    }
    (run / "evaluation" / "evaluation.json").write_text(json.dumps(evaluation))
    export(run, "llama", tmp_path / "out", force=True)
    assert "All documents of each benchmark." in (tmp_path / "out" / "README.md").read_text()
    # by whatever path it is named
    assert weights_sha256(load_model(run)) == weights_sha256(load_model(run / "model"))


def test_what_a_runtime_of_another_account_or_version_needs(make, tmp_path):
    mask = os.umask(0o022)
    try:
        export(make(), "llama", tmp_path / "plain")
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "plain").iterdir()} == {0o644}
    config = json.loads((tmp_path / "plain" / "tokenizer_config.json").read_text())
    assert (
        config["model_input_names"] == ["input_ids", "attention_mask"]
        and config["padding_side"] == "left"
    )
    assert (
        json.loads((tmp_path / "plain" / "generation_config.json").read_text())["pad_token_id"] == 0
    )
    assert (
        not {"id2label", "label2id", "problem_type"}
        & json.loads((tmp_path / "plain" / "config.json").read_text()).keys()
    )
    tokenizer, model = (
        kind.from_pretrained(tmp_path / "plain") for kind in (AutoTokenizer, AutoModelForCausalLM)
    )
    options = {"max_new_tokens": 6, "do_sample": False}
    several = tokenizer(["She", "She was in the"], return_tensors="pt", padding=True)
    alone = tokenizer("She", return_tensors="pt")
    assert (
        model.generate(**several, **options)[0, -6:].tolist()
        == model.generate(**alone, **options)[0, -6:].tolist()
    )


def test_weights_that_were_trained_since_are_not_replaced(make, tmp_path):
    folder = make()
    export(folder, "llama", tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    torch.nn.init.normal_(model.lm_head.weight)
    model.save_pretrained(tmp_path / "plain")
    with pytest.raises(InputError, match="was changed since it was made"):
        export(folder, "llama", tmp_path / "plain", force=True)


def test_an_import_says_what_is_not_as_certified(make, tmp_path, capsys):
    export(make(), "llama", tmp_path / "plain")
    arguments = ["import", str(tmp_path / "plain"), "--force", "--out", str(tmp_path / "back")]
    assert command(arguments) == 0 and "note" not in capsys.readouterr().err
    config, tokenizer = tmp_path / "plain" / "config.json", tmp_path / "plain" / "tokenizer.json"
    config.write_text(config.read_text().replace("10000", "20000"))
    assert command(arguments) == 0
    assert (
        "note: config.json is not the file that was certified when it was exported"
        in capsys.readouterr().err
    )
    assert json.loads((tmp_path / "back" / "certificate.json").read_text())["notes"]
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert command(arguments) == 2 and "but the model was trained with" in capsys.readouterr().err
    tokenizer.unlink()
    assert command(arguments) == 0 and "note: no tokenizer came with it" in capsys.readouterr().err
    assert "tokencodes.load(FOLDER)" in (tmp_path / "back" / "README.md").read_text()
    config.write_text(config.read_text().replace('"vocab_size": 320', '"vocab_size": 300'))
    assert (
        command(arguments) == 2
        and "vocab_size 300 in config.json, and a table of 320 rows" in capsys.readouterr().err
    )


def test_an_import_of_what_is_no_plain_llama_says_what_it_is(make, tmp_path, capsys):
    folder = make()
    export(folder, "llama", tmp_path / "plain")
    (tmp_path / "empty").mkdir()
    for place, said in (
        (folder, "a model of tokencodes already"),
        (tmp_path / "plain" / "model.safetensors", f"name its folder, {tmp_path / 'plain'}"),
        (tmp_path / "empty", "no .safetensors, .pt, .pth or .bin file"),
    ):
        assert command(["import", str(place), "--out", str(tmp_path / "back")]) == 2
        assert said in capsys.readouterr().err
    assert (
        command(["export", str(tmp_path / "plain"), "--to", "llama", "--out", str(tmp_path / "x")])
        == 2
    )
    assert "`tokencodes import` makes one of ours of it" in capsys.readouterr().err
    assert (
        command(
            ["export", str(tmp_path / "nothing"), "--to", "llama", "--out", str(tmp_path / "x")]
        )
        == 2
    )
    assert "no such file or folder" in capsys.readouterr().err


def test_sigterm_leaves_nothing(make, tmp_path):
    """The command is stopped as soon as its hidden folder is there."""
    arguments = [
        sys.executable,
        "-m",
        "tokencodes",
        "export",
        str(make()),
        "--to",
        "llama",
        "--out",
        str(tmp_path / "plain"),
    ]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (tmp_path / ".tmp-plain").exists():
            time.sleep(0.005)
        process.terminate()
        _, errors = process.communicate()
    assert process.returncode == 130 and "interrupted; nothing was written" in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_an_export_of_other_names_is_refused(make, tmp_path, capsys):
    for more, said in (
        (["--to", "mlx"], "--to 'mlx': known: llama, gguf, onnx"),
        (["--to", "onnx", "--dtype", "Q8_0"], "--dtype 'Q8_0'"),
    ):
        assert command(["export", str(make()), *more, "--out", str(tmp_path / "x")]) == 2
        assert said in capsys.readouterr().err
        shutil.rmtree(tmp_path / "model")


def test_a_card_shows_the_name_of_a_folder_literally(make, tmp_path):
    folder = make().rename(tmp_path / "a|b `c` <d> [e]")
    export(folder, "gguf", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "\n# a\\|b \\`c\\` \\<d\\> \\[e\\]\n" in card
    assert (
        f"llama-cli -m {shlex.quote(next((tmp_path / 'out').glob('*.gguf')).name)} -no-cnv" in card
    )
