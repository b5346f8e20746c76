"""What is observed is what a direct computation gives, and observing changes nothing."""

import copy

import pytest
import torch

from tests.conftest import fresh_model, tiny_study
from tokencodes.init import initialise
from tokencodes.train.config import log_spaced
from tokencodes.train.diagnostics import hidden_scales, norms, part_norms, part_of, update_ratios
from tokencodes.train.optimizer import build_optimizer


@pytest.fixture(params=["learned", "gf2"])
def model(request):
    run = tiny_study("unused").run(request.param, 1)
    model = fresh_model(run)
    initialise(model, 1)
    return model


def stepped(model):
    """One step by AdamW; the weights before it, and the optimizer."""
    config = tiny_study("unused").optimizer
    optimizer = build_optimizer(model, config)
    ids = torch.arange(32).view(2, 16)
    for _ in range(3):
        before = copy.deepcopy(model.state_dict())
        optimizer.zero_grad()
        model.loss(ids, ids.roll(-1, 1)).backward()
        optimizer.step()
    return before, optimizer, config.peak_lr


def test_log_spaced_steps_are_two_an_octave():
    assert [step for step in range(1, 130) if log_spaced(step)] == [
        1,
        2,
        3,
        4,
        6,
        8,
        12,
        16,
        24,
        32,
        48,
        64,
        96,
        128,
    ]
    assert not log_spaced(0)


def test_norms_of_the_parts_make_up_the_whole(model):
    stepped(model)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    parts = part_norms(norms(gradients))
    assert set(parts) == {part_of(name) for name in gradients}
    assert ("input" in parts) == any(name.startswith("model.embed_tokens") for name in gradients)
    whole = torch.nn.utils.get_total_norm(gradients.values())
    assert sum(norm**2 for norm in parts.values()) ** 0.5 == pytest.approx(float(whole), rel=1e-5)


def test_update_ratios_are_those_of_the_weights_before_and_after(model):
    before, optimizer, lr = stepped(model)
    ratios = update_ratios(model, optimizer, lr)
    for part, ratio in ratios.items():
        names = [name for name, _ in model.named_parameters() if part_of(name) == part]
        after = model.state_dict()
        change = sum(float((after[name] - before[name]).norm()) ** 2 for name in names) ** 0.5
        assert ratio == pytest.approx(
            change / sum(float(after[name].norm()) ** 2 for name in names) ** 0.5, rel=1e-3
        )


def test_hidden_scales_are_those_of_the_hidden_states(model):
    ids = torch.arange(34).view(2, 17)
    states = model.model(
        input_ids=ids[:, :-1], output_hidden_states=True, use_cache=False
    ).hidden_states
    scales = hidden_scales(model, ids)
    assert len(scales) == model.config.num_hidden_layers + 1
    for scale, hidden in zip(
        scales[:-1], states[:-1], strict=True
    ):  # the last state has the final norm on it
        assert scale == pytest.approx(float(hidden.detach().square().mean().sqrt()), rel=1e-5)
