"""A step computed again is the step that was."""

import json
import shutil
from dataclasses import replace

import pytest

from tests.conftest import tiny_study
from tests.train.test_loop import records
from tokencodes.cli import run as command
from tokencodes.errors import CheckFailed, InputError
from tokencodes.files import read_json
from tokencodes.train.metrics import Silent
from tokencodes.train.replay import replay
from tokencodes.train.run import train


@pytest.fixture(scope="module")
def finished(dataset, tmp_path_factory):
    """A run with checkpoints at steps 2, 4, 6 and 8."""
    out = tmp_path_factory.mktemp("run")
    run = tiny_study(dataset.path, checkpoint={"interval_steps": 2, "keep_latest": 9}).run("gf2", 1)
    train(run, dataset, out, Silent())
    return run, out


@pytest.mark.parametrize(("step", "began"), [(1, 0), (2, 0), (3, 2), (6, 4), (8, 6)])
def test_any_step_comes_out_as_it_was_logged_and_nothing_is_touched(step, began, finished, dataset):
    run, out = finished
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    replayed = replay(run, dataset, out, step)
    logged = next(line for line in records(out) if (line["kind"], line["step"]) == ("step", step))
    assert (replayed.loss, replayed.grad_norm, replayed.grad_norm_parts) == (
        logged["loss"],
        logged["grad_norm"],
        logged["grad_norm_parts"],
    )
    assert (replayed.agrees, replayed.finite, replayed.began_after) == (True, True, began)
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_on_another_engine_it_agrees_to_rounding_and_says_so(finished, dataset):
    run, out = finished
    other = run.model_copy(
        update={
            "engine": run.engine.model_copy(
                update={"activation_checkpoint_every": 1, "loss_kernel": "torch"}
            )
        }
    )
    replayed = replay(other, dataset, out, 8)
    assert (replayed.otherwise, replayed.agrees) == ("activation_checkpoint_every", True)
    logged = next(line for line in records(out) if (line["kind"], line["step"]) == ("step", 8))
    assert replayed.loss == pytest.approx(logged["loss"], rel=1e-5)
    assert not replace(replayed, loss=replayed.loss + 0.02).agrees


def test_an_step_to_come_has_nothing_to_agree_with(finished, dataset):
    assert replay(*(finished[0], dataset, finished[1]), 10).agrees is None


def test_a_damaged_checkpoint_is_named_and_an_step_before_the_first_is_refused(
    finished, dataset, tmp_path
):
    run, out = finished
    shutil.copytree(out, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-00000006" / "state.json").write_text("{}")
    with pytest.raises(InputError, match=r"step-00000006/state.json"):
        replay(run, dataset, tmp_path / "run", 8)
    with pytest.raises(InputError, match="steps count from 1"):
        replay(run, dataset, out, 0)


@pytest.fixture
def exploded(dataset, tmp_path):
    """A run whose learning rate takes it beyond what float32 holds."""
    optimizer = {"peak_lr": 1e30, "min_lr": 0, "warmup_steps": 0, "schedule_steps": 100}
    run = tiny_study(
        dataset.path, optimizer=optimizer, checkpoint={"interval_steps": 1, "keep_latest": 1}
    ).run("learned", 1)
    with pytest.raises(CheckFailed, match="They never reached the weights") as caught:
        train(run, dataset, tmp_path / "run", Silent())
    return run, tmp_path / "run", str(caught.value)


def test_what_stopped_a_run_is_written_down_and_can_be_computed_again(exploded, dataset):
    run, out, message = exploded
    refused = read_json(out / "nonfinite.json")
    assert refused["windows"] == [(refused["step"] - 1) * 4, refused["step"] * 4 - 1]
    assert f"--replay {refused['step']}" in message
    replayed = replay(run, dataset, out, refused["step"])
    assert (replayed.finite, replayed.agrees, str(replayed.loss)) == (False, None, refused["loss"])
    with pytest.raises(
        CheckFailed,
        match=f"step {refused['step']} is not finite, so step {refused['step'] + 1} is never",
    ):
        replay(run, dataset, out, refused["step"] + 1)


def test_the_command_says_it_in_json_and_in_a_line(finished, exploded, capsys, tmp_path):
    import tomli_w

    for (run, out), step in (
        (finished, 3),
        (exploded[:2], read_json(exploded[1] / "nonfinite.json")["step"]),
    ):
        study = {
            "study": {"seeds": [1], "baseline": run.arm},
            "arms": {run.arm: {"interface": run.interface}},
        }
        sections = run.model_dump(
            mode="json", exclude_none=True, exclude={"arm", "interface", "seed"}
        )
        (tmp_path / "study.toml").write_text(tomli_w.dumps({**study, **sections}))
        arguments = [
            "train",
            str(tmp_path / "study.toml"),
            "--out",
            str(out),
            "--replay",
            str(step),
        ]
        assert command([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == step
        assert command(arguments) == 0
        assert f"step {step}, computed from" in capsys.readouterr().out
    assert command([*arguments[:3], str(tmp_path / "nowhere"), *arguments[4:]]) == 2
    assert "no run is here to replay" in capsys.readouterr().err


def test_a_run_of_a_study_finds_its_text_and_nothing_is_prepared_anew(texts, tmp_path, capsys):
    data = f'data.inputs=["{texts}"]'
    small = [
        "data.vocab_size=320",
        "data.validation_fraction=0.2",
        "model.context_length=16",
        "budget.tokens=256",
        "study.seeds=[1]",
    ]
    sets = [word for assignment in (data, *small) for word in ("--set", assignment)]
    assert (
        command(["compare", "quickstart", "--out", str(tmp_path / "study"), *sets, "--json"]) == 0
    )
    run = tmp_path / "study" / "gf2" / "seed-1"
    before = sorted(run.rglob("*"))
    assert (
        command(
            [
                "train",
                "quickstart",
                *sets,
                "--arm",
                "gf2",
                "--out",
                str(run),
                "--replay",
                "2",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["agrees"] is True
    assert sorted(run.rglob("*")) == before
