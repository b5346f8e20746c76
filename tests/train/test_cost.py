"""The paper's counts, exactly, without allocating a weight."""

import json

import pytest
import torch

from tests.conftest import fresh_model, tiny_study
from tokencodes.cli import run as command
from tokencodes.init import initialise
from tokencodes.train.activations import saved_bytes
from tokencodes.train.cost import cost_of_arms, cost_of_run
from tokencodes.train.settings import read_study

PAPER = {
    "learned": (100_663_296, 1_610_713_088, 100_663_296, 1_812_039_680, 0),
    "binary": (0, 1_610_713_088, 100_663_296, 1_711_376_384, 786_432),
    "gf2": (0, 1_610_713_088, 100_663_296, 1_711_376_384, 786_704),
}


def test_the_papers_table_of_parameters():
    arms = cost_of_arms(read_study("paper", [])[0])
    keys = (
        "input_parameters",
        "body_parameters",
        "head_parameters",
        "total_parameters",
        "buffer_entries",
    )
    assert {arm: tuple(facts[key] for key in keys) for arm, facts in arms.items()} == PAPER
    assert {facts["steps"] for facts in arms.values()} == {381_470}
    assert round(arms["binary"]["squared_norm_mean"]) == 981
    for facts in arms.values():
        assert facts["optimizer_bytes"] == 8 * facts["total_parameters"]
        assert facts["weight_bytes"] == facts["gradient_bytes"] == 4 * facts["total_parameters"]
        assert facts["buffer_bytes"] == facts["buffer_entries"]  # one byte an entry up to 16 bits


def test_counts_are_those_of_a_real_model():
    study = tiny_study("unused")
    for arm, facts in cost_of_arms(study).items():
        model = fresh_model(study.run(arm, 1))
        assert facts["total_parameters"] == sum(p.numel() for p in model.parameters())
        stored = [b for name, b in model.state_dict().items() if b.dtype.is_floating_point is False]
        assert facts["buffer_entries"] == sum(b.numel() for b in stored)


def test_flops_follow_the_written_formula():
    study = tiny_study("unused")
    facts = cost_of_arms(study)["binary"]
    matrices = 2 * (4 * 36 * 36 + 3 * 36 * 48) + 320 * 36
    assert facts["flops_per_token"] == pytest.approx(6 * matrices + 6 * 2 * 36 * 17)


@pytest.mark.parametrize("preset", ["quickstart", "nano"])
def test_activation_memory_is_what_a_real_forward_pass_keeps(preset):
    run = read_study(preset, [])[0].run("binary", 1)
    model = fresh_model(run)
    initialise(model, 1)
    ids = torch.zeros((run.batch.micro_batch_size, run.model.context_length), dtype=torch.long)
    real = saved_bytes(model, lambda: model.loss(ids, ids, num_targets=1))
    counted = cost_of_run(run)
    assert real == pytest.approx(counted.activation_bytes, rel=0.03)
    assert counted.activation_bytes_recomputed < 0.6 * counted.activation_bytes


def test_a_dry_run_of_the_papers_recipe_says_what_it_would_take_and_leaves_nothing(
    tmp_path, capsys
):
    arguments = [
        "train",
        "paper",
        "--arm",
        "learned",
        "--out",
        str(tmp_path / "run"),
        "--dry-run",
        "--peak-tflops",
        "400",
    ]
    assert command([*arguments, "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)
    assert (cost["total_parameters"], cost["steps"], cost["tokens"]) == (
        1_812_039_680,
        381_470,
        381_470 * 262_144,
    )
    assert cost["hours_at_peak"] == pytest.approx(10_871_930_880 * 381_470 * 262_144 / 4e14 / 3600)
    assert cost["memory_bytes"] == 16 * 1_812_039_680 + cost["activation_bytes"]
    assert command(arguments) == 0
    assert "time at 400 TFLOP/s" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
