"""L3 to L5: each check fails just above its bound and holds just below it; and replays what was
kept, no more.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.test_model import model_of
from tokencodes.checkpoint.layout import Replay
from tokencodes.loss import IGNORE
from tokencodes.verify import runtime
from tokencodes.verify.check import MEASURED, Subject, drawn_ids, not_applicable

DELTA = 2.0**-10


def of(spec: str) -> Subject:
    return Subject(model_of(spec), Path("nowhere"))


@pytest.fixture
def bound(monkeypatch):
    """Every bound of logits is DELTA; what it was asked for is kept."""
    arguments = []
    monkeypatch.setattr(
        runtime, "logit_bound", lambda model, largest: arguments.append(largest) or DELTA
    )
    return arguments


# bfloat16.


def test_a_divergence_is_the_mean_over_positions_in_nats():
    p, q = (
        torch.tensor([[[0.0, math.log(3.0)], [1.0, 1.0]]], dtype=torch.float64),
        torch.zeros(1, 2, 2),
    )
    total = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert runtime.divergence(p, q) == pytest.approx(total / 2, rel=1e-12)
    reverse = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert runtime.divergence(q, p) == pytest.approx(reverse / 2, rel=1e-12)
    assert runtime.divergence(p, p + 5.0) == pytest.approx(0.0, abs=1e-12)


def logits_by_type(subject: Subject, exact, low) -> None:
    """Logits of a stand-in: two tokens matter, `exact` apart in float32 and `low` apart in
    bfloat16, at every position.
    """

    def give(module, args, out):
        out[..., 2:] = -1000.0
        out[..., 0], out[..., 1] = 0.0, low if out.dtype == torch.bfloat16 else exact

    subject.model.lm_head.register_forward_hook(give)


def bernoulli_divergence(exact: float, low: float) -> float:
    p, q = 1 / (1 + math.exp(-exact)), 1 / (1 + math.exp(-low))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


@pytest.mark.parametrize(("low", "status"), [(0.3945, "holds"), (0.4063, "fails")])
def test_bfloat16_holds_up_to_a_divergence_of_a_fiftieth_nat(low, status):
    low = float(torch.tensor(low, dtype=torch.bfloat16))
    kl = bernoulli_divergence(0.0, low)
    assert (kl < 0.02) == (status == "holds") and abs(kl - 0.02) < 0.001
    subject = of("gf2")
    logits_by_type(subject, 0.0, low)
    made = runtime.bfloat16(subject)
    assert (made.level, made.name, made.status, made.scope) == ("L3", "bfloat16", status, MEASURED)
    assert (
        made.detail == f"KL {kl:.1e} nats (floor 0.0e+00, bound 0.02), another best token in 100 %"
    )
    assert subject.model.lm_head.weight.dtype == torch.float32, "the model itself is not cast"


def test_bfloat16_at_the_bound_holds(monkeypatch):
    subject = of("gf2")
    logits_by_type(subject, 0.0, 0.5)
    kls = iter([0.02, 0.5])
    monkeypatch.setattr(runtime, "divergence", lambda p, q: next(kls))
    assert runtime.bfloat16(subject).status == "holds"


def test_bfloat16_that_overflows_does_not_hold():
    subject = of("gf2")
    logits_by_type(subject, 0.0, float("inf"))
    assert runtime.bfloat16(subject).status == "fails"
    subject = of("gf2")

    def spoil(module, args, out):
        if out.dtype == torch.bfloat16:
            # as a probability it is 0, so the divergence may say little of it
            out[-1, -1, -1] = -float("inf")

    subject.model.lm_head.register_forward_hook(spoil)
    assert runtime.bfloat16(subject).status == "fails"


def test_best_tokens_that_stay_are_counted_as_such():
    subject = of("gf2")
    logits_by_type(subject, 1.0, 1.0)
    assert "another best token in 0 %" in runtime.bfloat16(subject).detail


def test_the_floor_is_what_another_shape_of_the_batch_does():
    subject, shapes = of("gf2"), []

    def give(module, args, out):
        out[..., 2:], out[..., 0] = -1000.0, 0.0
        out[..., 1] = 1.0 if len(out) == 1 else 0.0
        shapes.append((out.dtype, tuple(out.shape[:2])))

    subject.model.lm_head.register_forward_hook(give)
    floor = bernoulli_divergence(0.0, 1.0)
    assert f"KL 0.0e+00 nats (floor {floor:.1e}, bound 0.02)" in runtime.bfloat16(subject).detail
    low = torch.bfloat16
    assert shapes == [(torch.float32, (6, 16)), (low, (6, 16)), *[(low, (1, 16))] * 6]


# Decoding.


@pytest.mark.parametrize("position", [0, 7, 15])
@pytest.mark.parametrize(
    ("size", "status"), [(DELTA, "holds"), (2 * DELTA, "fails"), (float("nan"), "fails")]
)
def test_every_position_of_cached_decoding_is_looked_at(position, size, status, bound):
    subject, lengths = of("gf2"), []

    def give(module, args, out):
        out.zero_()
        lengths.append(out.shape[1])
        if lengths.count(1) == position + 1 and out.shape[1] == 1:
            out[-1, -1, -1] = size

    subject.model.lm_head.register_forward_hook(give)
    made = runtime.cached_decoding(subject)
    assert (made.level, made.name, made.status, made.scope) == (
        "L4",
        "cached decoding",
        status,
        MEASURED,
    )
    assert made.detail == f"largest difference {size:.1e}, bound {DELTA:.1e}, 32 tokens"
    assert lengths == [16, *[1] * 16] and bound == [0.0]


def test_cached_decoding_uses_its_cache():
    subject, seen = of("gf2"), []
    subject.model.model.layers[0].self_attn.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["hidden_states"].shape[1]), with_kwargs=True
    )
    made = runtime.cached_decoding(subject)
    assert made.status == "holds" and "bound" in made.detail
    assert seen == [16, *[1] * 16]


def generating(subject: Subject, lead: float, wrong_at: int | None = None) -> list[int]:
    """A stand-in whose best token is 3 with a logit of 1, while `generate` sees token 5 ahead by
    `lead` at one step.
    """
    lengths = []

    def give(module, args, out):
        lengths.append(out.shape[1])
        out.zero_()
        out[..., 3] = 1.0
        out[..., 5] = 1.0 - lead
        steps = len(lengths) - 1
        if steps == wrong_at:
            out[..., 5] = 2.0

    subject.model.lm_head.register_forward_hook(give)
    return lengths


def test_greedy_generation_makes_all_tokens_that_fit():
    for context, prompt, new in (
        (16, 4, 12),
        (64, 4, 16),
        (3, 1, 2),
        (6, 3, 3),
        (20, 4, 16),
        (2, 1, 1),
    ):
        model = model_of("gf2")
        model.config.max_position_embeddings = context
        given = []
        generate = model.generate
        model.generate = lambda ids, given=given, generate=generate, **options: (
            given.append((ids, options)) or generate(ids, **options)
        )
        made = runtime.greedy_generation(Subject(model, Path("nowhere")))
        ids, options = given[0]
        assert torch.equal(ids, drawn_ids(model)[:1, :prompt])
        assert (
            options["max_new_tokens"] == new
            and options["do_sample"] is False
            and options["eos_token_id"] == 320
        )
        assert torch.equal(options["attention_mask"], torch.ones_like(ids))
        assert made.status == "holds" and made.detail.startswith(f"{new} tokens, each within ")


@pytest.mark.parametrize(
    ("lead", "status"), [(2 * DELTA, "holds"), (2.5 * DELTA, "fails"), (3 * DELTA, "fails")]
)
@pytest.mark.parametrize("step", [0, 11])
def test_a_generated_token_must_be_the_best_within_twice_the_bound(step, lead, status, bound):
    subject = of("gf2")
    lengths = generating(subject, lead, step)
    made = runtime.greedy_generation(subject)
    assert (made.level, made.name, made.status, made.scope) == (
        "L4",
        "greedy generation",
        status,
        MEASURED,
    )
    assert made.detail == f"12 tokens, each within {lead:.1e} of the full forward's best"
    assert lengths == [*[1] * 12, 15] and bound == [1.0]


def test_a_generation_that_makes_nothing_or_no_numbers_does_not_hold(bound):
    subject = of("gf2")
    subject.model.lm_head.register_forward_hook(lambda module, args, out: out * float("nan"))
    assert runtime.greedy_generation(subject).status == "fails"
    subject = of("gf2")
    subject.model.generate = lambda ids, **options: torch.cat([ids, ids[:, :1]], 1)[
        :, : ids.shape[1]
    ]
    # no token, so nothing to be best; the certificate says that it breaks
    with pytest.raises((RuntimeError, IndexError)):
        runtime.greedy_generation(subject)


# Replay.


def kept_by(model, tokens: int = 3, short: bool = True) -> Replay:
    """What a run would have kept of six windows, one of which ends early."""
    ids = drawn_ids(model).clone()
    if short:
        ids[4, 9:] = IGNORE
    inputs, wanted = ids[:, :-1].clamp(min=0), ids[:, 1:]
    with torch.no_grad():
        logits = model(inputs).logits.double()
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), reduction="none", ignore_index=IGNORE
    )
    counted = (wanted != IGNORE).flatten()
    return Replay(ids.numpy(), float(losses[counted].mean()), tuple(losses[:tokens].tolist()))


@pytest.fixture
def keep(monkeypatch):
    """A function that makes a model's folder keep this."""
    return lambda replay: monkeypatch.setattr(runtime, "read_replay", lambda place: replay)


def test_a_folder_that_keeps_no_step_has_nothing_to_replay():
    name = "replay of the last step"
    assert runtime.replay(of("gf2")) == not_applicable("L5", name, "the folder keeps no last step")


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 15])
def test_a_kept_step_is_replayed_by_its_mean_and_by_its_first_tokens(tokens, short, keep):
    subject = of("gf2")
    kept = kept_by(subject.model, tokens, short)
    keep(kept)
    made = runtime.replay(subject)
    assert (made.level, made.name, made.status, made.scope) == (
        "L5",
        "replay of the last step",
        "holds",
        MEASURED,
    )
    detail = f"{kept.loss:.6f} nats per token, kept {kept.loss:.6f}; {tokens} one by one within "
    assert made.detail.startswith(detail)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("relative", "status"), [(1.6e-6, "holds"), (2.4e-6, "fails"), (1.0, "fails")]
)
def test_a_mean_loss_may_be_apart_by_two_parts_in_a_million(relative, sign, status, keep):
    subject = of("gf2")
    kept = kept_by(subject.model)
    keep(Replay(kept.ids, kept.loss * (1 + sign * relative), kept.token_losses))
    assert runtime.replay(subject).status == status


@pytest.mark.parametrize("token", [0, 2])
@pytest.mark.parametrize(
    ("apart", "status"), [(2 * DELTA, "holds"), (2.5 * DELTA, "fails"), (float("nan"), "fails")]
)
def test_a_token_may_be_apart_by_twice_the_bound_of_logits(
    token, apart, status, bound, keep, monkeypatch
):
    subject = of("gf2")
    kept = kept_by(subject.model)
    keep(Replay(kept.ids, kept.loss, (1.0, 1.0, 1.0)))
    losses = torch.ones(1, 3)
    losses[0, token] += apart
    monkeypatch.setattr(type(subject.model), "token_losses", lambda self, inputs, targets: losses)
    made = runtime.replay(subject)
    assert made.status == status
    assert made.detail.endswith(f"3 one by one within {apart:.1e}, bound {2 * DELTA:.1e}")
    with torch.no_grad():
        whole = subject.model(torch.from_numpy(kept.ids[:1, :3])).logits.abs().max()
    assert bound == [float(whole)]


def test_a_loss_that_is_no_number_is_never_the_kept_one(keep):
    subject = of("gf2")
    kept = kept_by(subject.model)
    for loss in (float("nan"), float("inf")):
        keep(Replay(kept.ids, loss, kept.token_losses))
        assert runtime.replay(subject).status == "fails"
    keep(kept)
    subject.model.lm_head.register_forward_hook(lambda module, args, out: out)
    with torch.no_grad():
        subject.model.model.norm.weight[0] = float("nan")
    assert runtime.replay(subject).status == "fails"


def test_the_kept_ids_are_the_ones_that_are_replayed(keep):
    subject = of("gf2")
    kept = kept_by(subject.model)
    ids = kept.ids.copy()
    ids[5, 3] = (ids[5, 3] + 1) % 320
    keep(Replay(ids, kept.loss, kept.token_losses))
    assert runtime.replay(subject).status == "fails"
    assert np.array_equal(ids[0], kept.ids[0])
