"""A run that diverges: it gets a result without a score, its study goes on, and the report shows
it.
"""

import json
import math
import shutil
from pathlib import Path

import pytest
import tomli_w
import torch

from tests.conftest import tiny_study
from tokencodes import checkpoint
from tokencodes.cli import run as command
from tokencodes.errors import InputError
from tokencodes.evaluate.evaluation import results
from tokencodes.evaluate.suites import benchmarks
from tokencodes.files import read_json, write_json
from tokencodes.measured import OVERFLOW, perplexity, significant
from tokencodes.report.evaluations import results_grid
from tokencodes.report.page import write_report
from tokencodes.report.results import read_study_folder
from tokencodes.result import Divergence, ResultRecord, read_result
from tokencodes.study import compare
from tokencodes.train.config import StudyKeys
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent
from tokencodes.train.nonfinite import HeldOutNotFinite, NonFinite
from tokencodes.train.run import train

ARMS = {
    "learned": {"interface": "learned"},
    "wild": {"interface": "binary", "overrides": {"peak_lr": 1e30}},
}


class Listener(Silent):
    """Keeps the lines for a person."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def wild(dataset):
    """A study of two arms. Every run of the arm `wild` is not finite from its second step on."""
    return tiny_study(dataset.path, arms=ARMS)


@pytest.fixture(scope="module")
def diverged(wild, tmp_path_factory) -> tuple[Path, list[str]]:
    """The folder of that study, and what was said."""
    out, listener = tmp_path_factory.mktemp("diverged"), Listener()
    assert compare(wild, out, listener)
    return out, listener.lines


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory) -> Path:
    """A finished study of three arms and two seeds, in which no run diverged."""
    arms = {
        "learned": {"interface": "learned"},
        "binary": {"interface": "binary"},
        "gf2": {"interface": "gf2"},
    }
    keys = {"seeds": [1, 2], "baseline": "learned", "contrasts": [["gf2", "binary"]]}
    out = tmp_path_factory.mktemp("whole") / "study"
    study = tiny_study(dataset.path, arms=arms, budget={"tokens": 128})
    assert compare(
        study.model_copy(update={"study": StudyKeys.model_validate(keys)}), out, Silent()
    )
    return out


def as_preset(study, folder: Path) -> str:
    path = folder / "preset.toml"
    path.write_text(tomli_w.dumps(study.model_dump(mode="json", exclude_none=True)))
    return str(path)


def mark_as_diverged(run: Path) -> None:
    """Changes the result of a run that is done: as if it had diverged in step 5."""
    result = ResultRecord.model_validate(read_json(run / "result.json"))
    scores = dict.fromkeys(("held_out_loss", "bits_per_byte", "perplexity"))
    change = {
        "status": "diverged",
        "divergence": {"reason": "loss nan", "step": 5, "last_loss": 4.5},
        "steps": 4,
        **scores,
    }
    write_json(run / "result.json", {**result.model_dump(mode="json"), **change})


def test_a_run_of_a_study_that_is_not_finite_gets_a_result_marked_diverged_and_the_study_goes_on(
    diverged, wild
):
    out, lines = diverged
    for seed in (1, 2):
        text = (out / "wild" / f"seed-{seed}" / "result.json").read_text()
        assert "NaN" not in text and "Infinity" not in text
        result = read_result(out / "wild" / f"seed-{seed}")
        assert (result.status, result.steps) == ("diverged", 1)
        assert (result.held_out_loss, result.bits_per_byte, result.perplexity) == (None, None, None)
        assert result.divergence.step == 2
        assert result.divergence.reason.startswith(
            "loss nan and gradient norm nan in step 2 (windows 4 to 7); it begins at"
        )
        first = [
            json.loads(line)
            for line in (out / "wild" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        ]
        assert result.divergence.last_loss == next(
            line["loss"] for line in first if line["kind"] == "step"
        )
        assert not (out / "wild" / f"seed-{seed}" / "model").exists()
        assert not (out / "wild" / f"seed-{seed}" / "sample.json").exists()
        assert read_result(out / "learned" / f"seed-{seed}").status == "done"
    said = next(line for line in lines if line.startswith("run 2 of 4"))
    assert said.startswith("run 2 of 4 diverged: wild seed 1: loss nan")
    assert "it has no score, and the study goes on; about" in said


def test_a_diverged_run_is_not_trained_again(diverged, wild):
    out, _ = diverged
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    listener = Listener()
    assert compare(wild, out, listener)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")} == before
    assert listener.lines == []


def test_the_report_of_an_arm_that_always_diverged_has_its_row_and_no_number_for_it(diverged):
    page, summary = write_report(diverged[0])
    text = page.read_text()
    assert (
        "<td>wild</td><td>-</td><td>diverged, diverged</td><td>-</td><td>-</td><td>-</td>" in text
    )
    assert "<b>2 of the 4 runs diverged.</b>" in text
    assert "wild seed 1 diverged in step 2: loss nan and gradient norm nan" in text
    assert "wild and learned cannot be compared: wild seed 1, wild seed 2 diverged." in text
    assert ">2 diverged</text>" in text  # in the figure of final losses
    assert (summary["finished"], summary["planned"], summary["matched"]) == (4, 4, True)
    assert list(summary["arms"]) == ["learned"]
    assert summary["pairs"] == []
    assert [(run["arm"], run["seed"], run["step"]) for run in summary["diverged"]] == [
        ("wild", 1, 2),
        ("wild", 2, 2),
    ]
    assert "NaN" not in (diverged[0] / "summary.json").read_text()


def test_means_and_pairs_stand_on_the_seeds_that_did_not_diverge_and_say_so(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "study")
    mark_as_diverged(tmp_path / "study" / "gf2" / "seed-2")
    page, summary = write_report(tmp_path / "study")
    kept = read_result(tmp_path / "study" / "gf2" / "seed-1").held_out_loss
    gf2 = summary["arms"]["gf2"]
    assert (gf2["seeds"], gf2["held_out_loss"], gf2["mean_held_out_loss"]) == ([1], [kept], kept)
    assert summary["finished"] == 6
    pairs = {(pair["arm"], pair["baseline"]): pair for pair in summary["pairs"]}
    assert pairs["gf2", "learned"]["seeds"] == (1,)
    assert pairs["gf2", "learned"]["sentence"].endswith("It stands on 1 pair: gf2 seed 2 diverged.")
    assert pairs["binary", "learned"]["seeds"] == (1, 2)
    assert "diverged" not in pairs["binary", "learned"]["sentence"]
    assert summary["matched"] is True  # the diverged run saw fewer windows, and is in no pair
    text = page.read_text()
    assert f"<td>{kept:.3f}, diverged</td>" in text
    assert (
        "gf2 seed 2 diverged in step 5: loss nan. The last finite training loss was 4.500 nats per"
        " token." in text
    )
    assert ">1 diverged</text>" in text


def test_a_baseline_that_lost_a_seed_is_named_in_every_pair(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "study")
    mark_as_diverged(tmp_path / "study" / "learned" / "seed-1")
    result = read_study_folder(tmp_path / "study")
    assert {pair.baseline for pair in result.pairs()} == {"learned", "binary"}
    for pair in result.pairs():
        expected = (2,) if pair.baseline == "learned" else (1, 2)
        assert pair.seeds == expected
        assert ("learned seed 1 diverged" in result.sentence_of(pair)) == (
            pair.baseline == "learned"
        )


def test_a_study_in_which_every_run_diverged_has_a_page(dataset, tmp_path):
    study = tiny_study(
        dataset.path, arms={"learned": {"interface": "learned", "overrides": {"peak_lr": 1e38}}}
    )
    assert compare(study, tmp_path, Silent())
    page, summary = write_report(tmp_path)
    assert len(summary["diverged"]) == 2
    assert "<b>2 of the 2 runs diverged.</b>" in page.read_text()


def test_a_single_run_that_is_not_finite_exits_with_1_and_has_no_result(wild, tmp_path, capsys):
    arguments = [
        "train",
        as_preset(wild, tmp_path),
        "--arm",
        "wild",
        "--out",
        str(tmp_path / "run"),
        "--json",
    ]
    assert command(arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "in step 2 (windows 4 to 7)" in said.err
    assert "They never reached the weights" in said.err
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.fixture(scope="module")
def far_away(dataset):
    """One step at a rate that takes the held-out loss to millions of nats: finite, and its
    exponential is not.
    """
    arms = {"wild": {"interface": "binary", "overrides": {"peak_lr": 1e3}}}
    return tiny_study(
        dataset.path, arms=arms, study={"seeds": [1], "baseline": "wild"}, budget={"tokens": 64}
    )


def test_a_held_out_loss_above_709_nats_is_a_result_marked_diverged(
    far_away, dataset, tmp_path, capsys
):
    arguments = ["train", as_preset(far_away, tmp_path), "--out", str(tmp_path / "run"), "--json"]
    assert command(arguments) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "diverged"
    assert "diverged in step 1: held-out loss" in said.err
    assert "nats per token after the last step: its perplexity is over 1e308" in said.err
    result = read_result(tmp_path / "run")
    assert (result.steps, result.held_out_loss, result.perplexity) == (1, None, None)
    assert result.divergence.last_loss == pytest.approx(math.log(320), abs=0.3)
    before = (tmp_path / "run" / "metrics.jsonl").stat().st_mtime_ns
    assert command(arguments) == 1  # shown again, not trained again
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_mtime_ns == before
    assert compare(far_away, tmp_path / "study", Silent())
    assert len(write_report(tmp_path / "study")[1]["diverged"]) == 1


def test_a_held_out_loss_that_is_not_finite_stops_the_run_and_is_named(
    study, dataset, tmp_path, monkeypatch
):
    monkeypatch.setattr("tokencodes.train.loop.window_loss", lambda *arguments: math.inf)
    with pytest.raises(
        HeldOutNotFinite, match="held-out loss inf after step 0, whose own loss was finite"
    ):
        train(study.run("gf2", 1), dataset, tmp_path / "run", Silent())
    result = train(study.run("gf2", 1), dataset, tmp_path / "study", Silent(), keep_divergence=True)
    assert result.divergence == Divergence(
        reason="held-out loss inf after step 0, whose own loss was finite", step=0, last_loss=None
    )


def test_the_error_of_a_run_that_stopped_names_the_step_and_keeps_what_was_computed(
    wild, dataset, tmp_path
):
    with pytest.raises(NonFinite) as caught:
        train(wild.run("wild", 1), dataset, tmp_path, Silent())
    assert caught.value.step == 2
    assert math.isnan(caught.value.loss)
    assert str(caught.value).startswith(f"{tmp_path}: {caught.value.reason}. They never reached")
    assert "--replay 2 computes it again" in str(caught.value)


def test_a_checkpoint_of_weights_that_give_no_finite_loss_can_be_written(study, dataset, tmp_path):
    trainer = Trainer(study.run("learned", 1), dataset, tmp_path, Silent())
    loader = trainer.loader()
    trainer.train_step(loader)
    loader.close()
    with torch.no_grad():
        trainer.model.lm_head.weight.fill_(math.inf)
    trainer._save()
    state = checkpoint.read_state(checkpoint.find(tmp_path))
    assert (state.step, state.replay_loss, tuple(state.replay_token_losses)) == (1, None, ())
    assert checkpoint.read_replay(checkpoint.find(tmp_path)) is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"status": "lost"}, "status = 'lost'"),
        ({"status": "diverged"}, "needs a divergence, and goes with no score"),
        ({"held_out_loss": None}, "status = 'done' needs a held-out loss"),
        ({"held_out_loss": "low"}, "held_out_loss = 'low'"),
        ({"seed": -1}, "seed = -1"),
        ({"environment": []}, "environment = []"),
        ({"more": 1}, "more = 1"),
    ],
)
def test_a_result_with_wrong_contents_is_one_line_that_names_file_and_field(
    change, complaint, study, dataset, tmp_path
):
    result = train(study.run("gf2", 1), dataset, tmp_path, Silent())
    write_json(tmp_path / "result.json", {**result.model_dump(mode="json"), **change})
    with pytest.raises(InputError) as caught:
        train(study.run("gf2", 1), dataset, tmp_path, Silent())
    assert str(tmp_path / "result.json") in str(caught.value) and complaint in str(caught.value)
    assert "remove the run's folder and train it again" in str(caught.value)


@pytest.mark.parametrize("contents", ["{}", "[]", "null", "3", '"text"'])
def test_a_result_that_is_no_record_is_one_line_in_train_and_in_report(
    contents, study, diverged, wild, tmp_path, capsys
):
    shutil.copytree(diverged[0], tmp_path / "study")
    file = tmp_path / "study" / "learned" / "seed-1" / "result.json"
    file.write_text(contents)
    assert command(["report", str(tmp_path / "study")]) == 2
    assert command(["train", as_preset(wild, tmp_path), "--out", str(file.parent)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all(str(file) in line for line in said)


def test_a_perplexity_that_overflows_is_none_and_is_shown_as_over_1e308():
    assert perplexity(709.0) == math.exp(709.0)
    assert [perplexity(nats) for nats in (710.0, 1e6, math.inf, math.nan)] == [None] * 4
    wikitext = benchmarks("wikitext")
    document = {
        "task": "wikitext",
        "nats": 1e6,
        "words": 10,
        "bytes": 60,
        "lost_bytes": 0,
        "metrics": {"bits_per_byte": None},
    }
    values = results(wikitext, [document])
    assert (values["wikitext"]["word_perplexity"], values["wikitext"]["byte_perplexity"]) == (
        None,
        None,
    )
    json.dumps(values, allow_nan=False)
    summary = {
        "identity": {"model": "m", "step": None},
        "results": values,
        "audit": [{"name": "wikitext", "requests": 1}],
    }
    assert f"| {OVERFLOW} |" in results_grid([summary]).markdown()
    lambada = results(
        benchmarks("lambada"), [{"task": "lambada", "nats": 1e4, "metrics": {"acc": 0.0}}]
    )
    assert lambada["lambada"]["perplexity"] is None


def test_lm_evals_own_perplexity_that_overflows_does_not_end_an_evaluation():
    from tokencodes.evaluate.tasks import _without_overflow

    guarded = _without_overflow(lambda items: math.exp(-sum(items)))
    assert guarded([-1.0]) == math.exp(1.0)
    assert guarded([-1000.0]) == math.inf


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.039, "0.0390"), (0.0, "0"), (981.25, "981"), (12.345, "12.3"), (1234.5, "1,234"),
        (0.9996, "1.00"), (-0.039, "-0.0390"), (99.96, "100"), (1e-7, "1.00e-07"),
        (1e20, "1.00e+20"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_a_small_number_is_shown_with_significant_digits(value, shown):
    assert significant(value) == shown
