"""A whole evaluation of a tiny trained run, on real rows: folder, second scorer, resumption,
contrast, pages.
"""

import gzip
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.evaluate.conftest import SUITE, tiny
from tokencodes.checkpoint import weights_sha256
from tokencodes.cli import run as command
from tokencodes.errors import CheckFailed, InputError
from tokencodes.evaluate.evaluation import EvaluationSettings, evaluate
from tokencodes.evaluate.folder import read_documents, read_evaluation, read_requests
from tokencodes.evaluate.second_scorer import check, sample
from tokencodes.evaluate.subject import open_evaluated
from tokencodes.evaluate.suites import benchmarks
from tokencodes.report.evaluations import write_evaluation


def test_every_request_is_on_record(evaluated):
    folder = evaluated / "learned" / "seed-1"
    evaluation = json.loads((folder / "evaluation.json").read_text())
    records = list(read_requests(folder))
    assert sum(entry["requests"] for entry in evaluation["audit"]) == len(records)
    assert (
        {entry["documents"] for entry in evaluation["audit"]}
        == {4}
        == {entry["documents"] for entry in evaluation["results"].values()}
    )
    assert all(
        len(request.log_probs) == len(request.scored) and max(request.log_probs) < 0
        for request in records
    )
    truncated = {entry["name"]: entry["truncated"] for entry in evaluation["audit"]}
    assert truncated["mmlu_5"] == 16 and truncated["winogrande"] == 0
    assert evaluation["sensitivity"]["truncation"]["mmlu_5"]["whole_only"] is None
    assert (
        evaluation["second_opinion"]["checked"] >= 6
        and evaluation["second_opinion"]["largest"] < 1e-4
    )
    assert {entry["which"] for entry in evaluation["sensitivity"]["prefix"]} == {
        "default",
        "none",
        "other",
    }
    assert not (folder / "journal").exists()


def test_a_fixed_code_pays_ln_v_for_the_first_token_after_the_zero_code(evaluated):
    of = {}
    for arm in ("learned", "binary"):
        evaluation = json.loads((evaluated / arm / "seed-1" / "evaluation.json").read_text())
        of[arm] = next(
            entry
            for entry in evaluation["sensitivity"]["prefix"]
            if entry["which"] == "default" and entry["benchmark"] == "wikitext"
        )
    # ln 320
    assert of["binary"]["prefix"] == 0 and of["binary"]["first_token"] == pytest.approx(
        5.768, abs=1e-3
    )
    assert of["learned"]["first_token"] != pytest.approx(5.768, abs=1e-3)


def test_the_same_command_keeps_a_finished_evaluation_and_refuses_another(
    evaluated, runs, real_data, tmp_path
):
    folder = tmp_path / "copy"
    shutil.copytree(evaluated / "learned" / "seed-1", folder)
    subject = open_evaluated(str(runs / "learned" / "seed-1"), None, "cpu", "float32")
    settings = EvaluationSettings(
        benchmarks(SUITE), real_data / "eval", 96, subject.texts.prefix, documents=4
    )
    before = (folder / "evaluation.json").stat().st_mtime_ns
    evaluate(subject, settings, folder)
    assert (folder / "evaluation.json").stat().st_mtime_ns == before
    with pytest.raises(InputError, match="holds another evaluation"):
        evaluate(
            subject,
            EvaluationSettings(
                benchmarks("lambada"), real_data / "eval", 96, subject.texts.prefix, documents=4
            ),
            folder,
        )


def test_what_lm_eval_calls_the_accuracy_is_what_the_documents_say(evaluated):
    folder = evaluated / "binary" / "seed-2"
    record = read_evaluation(folder)
    right = [
        document.taken["none"] == document.gold
        for document in read_documents(folder, record)
        if document.task == "arc_easy"
    ]
    assert record.results["arc_easy"].acc == sum(right) / 4
    assert record.sensitivity.norms["arc_easy"].none == sum(right) / 4


def test_the_second_scorer_finds_a_wrong_score(runs, evaluated):
    from tokencodes.evaluate.second_scorer import Claim

    subject = open_evaluated(str(runs / "learned" / "seed-1"), None, "cpu", "float32")
    with torch.no_grad():
        ids = subject.texts.tokenizer.encode("She was happy")
        own = subject.model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    start = len(subject.texts.tokenizer.encode("She was"))
    right = tuple(float(own[place - 1, ids[place]]) for place in range(start, len(ids)))
    greedy = all(int(own[place - 1].argmax()) == ids[place] for place in range(start, len(ids)))

    def claim(log_probs, flag=greedy):
        return Claim("t", 0, 0, "She was", " happy", None, tuple(log_probs), flag)

    model_and_tokenizer = (subject.model, subject.texts.tokenizer)
    assert check(*model_and_tokenizer, [claim(right)], 96, 0).largest < 1e-5
    with pytest.raises(
        CheckFailed, match=r"t, document 0, part 0: a second, independent scorer differs by 0\.001"
    ):
        check(*model_and_tokenizer, [claim([value + 1e-3 for value in right])], 96, 0)
    with pytest.raises(CheckFailed, match=f"says greedy {greedy}"):
        check(*model_and_tokenizer, [claim(right, not greedy)], 96, 0)
    with pytest.raises(CheckFailed, match="tokens were scored, a second scorer finds"):
        check(*model_and_tokenizer, [claim([*right, -1.0])], 96, 0)
    assert (
        sample([claim(right)] * 5, 3, 1) == sample([claim(right)] * 5, 3, 1)
        and len(sample([claim(right)] * 5, 3, 1)) == 3
    )


def test_pages_and_tables_are_written(evaluated):
    folder = evaluated / "learned" / "seed-1"
    page = write_evaluation([folder], folder).read_text()
    for words in (
        "Results beside the paper&#39;s Table 3",
        "Audit",
        "The token before an empty context",
        "Truncated prompts",
        "Letters",
        "44.21" if "HellaSwag" in page else "71.63 ±0.92",
    ):
        assert words in page
    assert "http" not in page
    text = (evaluated / "learned" / "seed-1" / "results.tex").read_text()
    assert text.count(r"\\") > 5 and r"acc\_norm" in text


def test_a_damaged_or_missing_file_of_rows_is_named(real_data, tmp_path, capsys):
    shutil.copytree(real_data / "eval", tmp_path / "eval")
    rows = tmp_path / "eval" / "piqa_validation.jsonl.gz"
    rows.chmod(0o644)
    data = gzip.decompress(rows.read_bytes())
    rows.write_bytes(gzip.compress(data.replace(b"guinea pig", b"guinea fig", 1)))
    arguments = [
        "audit",
        "--suite",
        "piqa",
        "--data",
        str(tmp_path / "eval"),
        "--tokenizer",
        str(real_data / "tokenizer" / "smollm2.json"),
    ]
    assert command(arguments) == 2
    assert "piqa_validation.jsonl.gz: its lines have SHA-256" in capsys.readouterr().err
    broken = bytearray(gzip.compress(data))
    broken[len(broken) // 2] ^= 255
    rows.write_bytes(broken)
    assert command(arguments) == 2
    assert "piqa_validation.jsonl.gz: damaged" in capsys.readouterr().err
    rows.unlink()
    assert command(arguments) == 2
    assert (
        "piqa_validation.jsonl.gz: no such file; its lines have SHA-256 61533005"
        in capsys.readouterr().err
    )
    # uncompressed, it is the same rows
    (tmp_path / "eval" / "piqa_validation.jsonl").write_bytes(data)
    assert command([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["audit"][0]["requests"] == 3676


def test_bad_input_is_one_line(runs, real_data, tmp_path, capsys):
    for name in ("study.toml", "report.html"):
        (tmp_path / "study").mkdir(exist_ok=True)
        (tmp_path / "study" / name).write_text("theirs")
    data, run = (
        ["--data", str(real_data / "eval"), "--documents", "2", "--out", str(tmp_path / "out")],
        str(runs / "learned" / "seed-1"),
    )
    for arguments, said in (
        ([run, "--suite", "hellaswang", *data], "did you mean 'hellaswag'?"),
        (
            [run, "--suite", "lambada", "--context", "4096", *data],
            "--context 4096: this model reads 96 tokens at most",
        ),
        (
            [
                run,
                "--suite",
                "lambada",
                "--tokenizer",
                str(real_data / "tokenizer" / "smollm2.json"),
                *data,
            ],
            "was trained with the tokenizer",
        ),
        (
            [run, "--suite", "lambada", "--prefix-token", "400", *data],
            "--prefix-token 400: the tokenizer's ids are 0 to 319",
        ),
        ([run, "--suite", "lambada", "--context", "0", *data], "--context"),
        (
            [run, "--suite", "lambada", "--dtype", "int8", *data],
            "--dtype 'int8': known: float32, bfloat16, float16",
        ),
        (
            [str(tmp_path / "nothing"), "--suite", "lambada", *data],
            "nothing: no such file or folder",
        ),
        ([str(runs), "--suite", "lambada", *data], "holds 4 runs; name one of them"),
        ([run, "--suite", "lambada", *data[:-1], str(tmp_path / "study")], "(it holds study.toml)"),
        ([run, "--suite", "lambada", *data[:-1], run], "neither empty nor of this command"),
        (
            [run, "--suite", "lambada", *data[2:], "--data", str(real_data / "eval" / "README")],
            "no folder; name the one",
        ),
    ):
        assert command(["evaluate", *arguments]) == 2
        output = capsys.readouterr().err
        assert said in output and output.count("\n") == 1, output
    assert not (tmp_path / "out").exists()


def other_run(folder, run):
    """A run whose tokenizer.json is written otherwise."""
    shutil.copytree(run, folder)
    for file in folder.rglob("tokenizer.json"):
        file.write_text(file.read_text() + " ")
    return folder


def test_a_run_is_the_same_by_whatever_path_and_embedded_text_is_not_taken_for_held_out(
    runs, tmp_path
):
    run = runs / "learned" / "seed-1"
    by_run, by_model = (
        open_evaluated(str(place), None, "cpu", "float32") for place in (run, run / "model")
    )
    assert by_run.weights_sha256 == by_model.weights_sha256 and by_run.step == by_model.step == 8
    # a run's tokenizer is as bound as a file
    with pytest.raises(InputError, match=r"but .* was trained with the tokenizer"):
        open_evaluated(str(run), str(other_run(tmp_path / "other", run)), "cpu", "float32")
    assert by_run.held_out is None  # its text is a prepared folder, of which nothing is known
    shutil.copytree(run, tmp_path / "run")
    config = (tmp_path / "run" / "config.toml").read_text()
    before = next(line for line in config.splitlines() if line.startswith("dataset = "))
    for data, said in (
        ('inputs = ["embedded:austen"]\nvalidation_fraction = 0.02\nsplit_seed = 0', True),
        ('inputs = ["embedded:austen"]\nvalidation_fraction = 0.001\nsplit_seed = 0', False),
        ('inputs = ["embedded:austen"]\nvalidation_fraction = 0.02\nsplit_seed = 1', False),
        (
            (
                'inputs = ["embedded:austen", "more.jsonl"]\nvalidation_fraction ='
                " 0.02\nsplit_seed = 0"
            ),
            None,
        ),
    ):
        kept = "".join(
            line
            for line in config.splitlines(True)
            if not line.startswith(("inputs = ", "validation_fraction = ", "split_seed = "))
        )
        (tmp_path / "run" / "config.toml").write_text(kept.replace(before, data))
        assert open_evaluated(str(tmp_path / "run"), None, "cpu", "float32").held_out is said
    settings = EvaluationSettings(
        benchmarks("embedded"), None, 96, by_run.texts.prefix, documents=2
    )
    identity = evaluate(by_run, settings, tmp_path / "out")["identity"]
    assert identity["rows"] == "embedded" and identity["embedded_held_out"] is None
    page = write_evaluation([tmp_path / "out"], tmp_path / "out").read_text()
    assert (
        "Whether the embedded text was in its training is not known" in page
        and "paper: Learned" not in page
    )
    assert "learned/seed-1" in page


def test_what_a_kill_leaves_is_no_foreign_file(runs, tmp_path):
    (tmp_path / "out" / "journal").mkdir(parents=True)
    (tmp_path / "out" / ".tmp-evaluation.json").touch()
    arguments = [
        "evaluate",
        str(runs / "learned" / "seed-1"),
        "--suite",
        "embedded",
        "--documents",
        "1",
        "--out",
    ]
    assert (
        command([*arguments, str(tmp_path / "out")])
        == 0
        == command([*arguments, str(tmp_path / "out")])
    )


def test_an_audit_reads_no_more_at_once_than_the_model(runs, real_data, capsys):
    arguments = [
        "audit",
        "--suite",
        "lambada",
        "--data",
        str(real_data / "eval"),
        "--documents",
        "3",
        "--json",
    ]
    assert command([*arguments, "--tokenizer", str(runs / "learned" / "seed-1")]) == 0
    assert json.loads(capsys.readouterr().out)["context_length"] == 96
    assert (
        command(
            [
                *arguments,
                "--tokenizer",
                str(runs / "learned" / "seed-1" / "model" / "tokenizer.json"),
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["context_length"] == 96
    assert command([*arguments, "--tokenizer", str(real_data / "no" / "such" / "folder")]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_a_chat_template_is_not_passed_over(runs, real_data, tmp_path, capsys):
    shutil.copytree(runs / "learned" / "seed-1" / "model", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    arguments = [
        "evaluate",
        str(tmp_path / "model"),
        "--suite",
        "lambada",
        "--data",
        str(real_data / "eval"),
        "--documents",
        "2",
    ]
    assert command([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert "has a chat template" in capsys.readouterr().err
    assert command([*arguments, "--out", str(tmp_path / "out"), "--plain-prompts"]) == 0


def test_every_checkpoint_of_a_run_makes_curves(runs, real_data, tmp_path, capsys):
    run = runs / "learned" / "seed-1"
    arguments = [
        "evaluate",
        str(run),
        "--every-checkpoint",
        "--suite",
        "winogrande,lambada",
        "--data",
        str(real_data / "eval"),
    ]
    assert command([*arguments, "--documents", "3", "--out", str(tmp_path)]) == 0
    names = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert (
        len(names) == 2
        and sorted(path.parent.name for path in tmp_path.glob("*/evaluation.json")) == names
    )
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page and "Endpoints over checkpoints of one run" in page
    arguments = [
        "evaluate",
        str(run / "model"),
        "--every-checkpoint",
        "--suite",
        "embedded",
        "--out",
        str(tmp_path / "b"),
    ]
    assert command(arguments) == 2
    assert "--every-checkpoint wants one" in capsys.readouterr().err


def test_an_audit_of_a_draw_needs_no_document_of_every_subject(real_data, capsys):
    arguments = [
        "audit",
        "--suite",
        "mmlu_0",
        "--documents",
        "5",
        "--data",
        str(real_data / "eval"),
        "--json",
    ]
    assert command([*arguments, "--tokenizer", str(real_data / "tokenizer" / "smollm2.json")]) == 0
    assert json.loads(capsys.readouterr().out)["audit"][0]["requests"] == 20


def test_weights_that_a_folder_lacks_are_not_drawn_at_random(tmp_path, tokenizer_path):
    model = tiny("llama")
    model.save_pretrained(tmp_path)
    shutil.copyfile(tokenizer_path, tmp_path / "tokenizer.json")
    weights = load_file(tmp_path / "model.safetensors")
    dropped = {name: value for name, value in weights.items() if "layers.1.mlp" not in name}
    save_file(dropped, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        InputError, match=r"3 weights are not in its files \(model.layers.1.mlp.down_proj.weight"
    ):
        open_evaluated(str(tmp_path), None, "cpu", "float32")
    cut = {
        name: (value[:, :-2] if "layers.1.mlp.gate" in name else value).contiguous()
        for name, value in weights.items()
    }
    save_file(cut, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="cannot be loaded"):
        open_evaluated(str(tmp_path), None, "cpu", "float32")


def test_another_configuration_is_another_model(tmp_path):
    first, second = tiny("llama"), tiny("llama")
    second.config.rms_norm_eps = 1e-3
    assert weights_sha256(first) == weights_sha256(tiny("llama")) != weights_sha256(second)
