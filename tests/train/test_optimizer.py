"""The decay rule and the schedule."""

import math

import pytest
import torch

from tests.conftest import fresh_model, tiny_study
from tokencodes.train.config import OptimizerConfig
from tokencodes.train.optimizer import build_optimizer, decay_groups, learning_rate

PAPER = OptimizerConfig()


def test_warm_up_is_linear_and_ends_at_the_peak():
    assert learning_rate(0, PAPER) == pytest.approx(1.5e-4 / 2000)
    assert learning_rate(999, PAPER) == pytest.approx(0.75e-4)
    assert learning_rate(1999, PAPER) == pytest.approx(1.5e-4)


def test_then_a_cosine_to_the_minimum_which_stays():
    assert learning_rate(2000, PAPER) == pytest.approx(1.5e-4)
    middle = 2000 + (382_500 - 2000) // 2
    assert learning_rate(middle, PAPER) == pytest.approx((1.5e-4 + 1e-5) / 2)
    quarter = 2000 + (382_500 - 2000) // 4
    assert learning_rate(quarter, PAPER) == pytest.approx(
        1e-5 + 1.4e-4 * 0.5 * (1 + math.cos(math.pi / 4))
    )
    assert learning_rate(382_500, PAPER) == learning_rate(10**7, PAPER) == pytest.approx(1e-5)


def test_no_warm_up_begins_at_the_peak():
    assert learning_rate(0, OptimizerConfig(warmup_steps=0, schedule_steps=10)) == pytest.approx(
        1.5e-4
    )


def test_matrices_decay_and_vectors_do_not_alike_in_every_arm():
    study = tiny_study("unused")
    groups = {arm: decay_groups(fresh_model(study.run(arm, 1))) for arm in study.arms}
    assert "model.embed_tokens.weight" in groups["learned"]["decay"]
    groups["learned"]["decay"].remove("model.embed_tokens.weight")
    assert all(group == groups["learned"] for group in groups.values())
    assert all(name.endswith("norm.weight") for name in groups["gf2"]["no_decay"])
    assert len(groups["gf2"]["no_decay"]) == 5
    assert "lm_head.weight" in groups["gf2"]["decay"]


def test_the_optimizer_holds_every_parameter_once():
    model = fresh_model(tiny_study("unused").run("learned", 1))
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.25))
    decay, rest = optimizer.param_groups
    assert (decay["weight_decay"], rest["weight_decay"]) == (0.25, 0.0)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


def test_the_rates_of_a_short_schedule_one_by_one():
    config = OptimizerConfig(peak_lr=1.0, min_lr=0.2, warmup_steps=2, schedule_steps=6)
    expected = [0.5, 1.0, 1.0]  # warm-up; the cosine begins at the peak
    expected += [0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * quarter / 4)) for quarter in (1, 2, 3)]
    expected += [0.2, 0.2, 0.2]
    assert [learning_rate(step, config) for step in range(9)] == pytest.approx(expected, rel=1e-12)


def test_the_optimizer_begins_with_a_state_that_is_ready_and_empty():
    model = fresh_model(tiny_study("unused").run("learned", 1))
    config = OptimizerConfig(peak_lr=3e-3, beta1=0.8, beta2=0.7, eps=1e-5)
    optimizer = build_optimizer(model, config)
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"], group["fused"]) == (
            3e-3,
            (0.8, 0.7),
            1e-5,
            True,
        )
    assert set(optimizer.state) == set(model.parameters())
    for parameter, state in optimizer.state.items():
        assert (state["step"].dtype, state["step"].shape, float(state["step"])) == (
            torch.float32,
            (),
            0.0,
        )
        for name in ("exp_avg", "exp_avg_sq"):
            assert state[name].shape == parameter.shape
            assert not state[name].requires_grad and not state[name].any()
