"""L3 to L5: production dtype, cached decoding, and the replay of the last step."""

import copy
import math

import torch
from torch import Tensor

from tokencodes.checkpoint import read_replay
from tokencodes.loss import IGNORE, inputs_and_targets
from tokencodes.measured import significant
from tokencodes.verify.check import MEASURED, Check, Subject, check, drawn_ids, not_applicable
from tokencodes.verify.forward import logit_bound

GENERATED = 16
LARGEST_KL = 0.02  # nats; bfloat16 of a sound model is far below
REPLAY_RELATIVE = 2e-6  # the same sum in another order of batches: observed 2e-7


def divergence(p_logits: Tensor, q_logits: Tensor) -> float:
    """Mean KL(p ‖ q) over positions, nats, in float64."""
    p, q = (logits.double().log_softmax(-1) for logits in (p_logits, q_logits))
    return float((p.exp() * (p - q)).sum(-1).mean())


@torch.no_grad()
def bfloat16(subject: Subject) -> Check:
    """The model in bfloat16 against itself in float32, beside what a mere change of batch shape
    does in bfloat16.
    """
    ids, model = drawn_ids(subject.model), subject.model
    low = copy.deepcopy(model).to(torch.bfloat16)
    exact, rounded = model(ids).logits, low(ids).logits.float()
    alone = torch.cat([low(row[None]).logits for row in ids]).float()
    kl, floor = divergence(exact, rounded), divergence(rounded, alone)
    flips = float((exact.argmax(-1) != rounded.argmax(-1)).float().mean())
    detail = (
        f"KL {kl:.1e} nats (floor {floor:.1e}, bound {LARGEST_KL:g}), another best token in"
        f" {significant(100 * flips)} %"
    )
    return check(
        "L3", "bfloat16", MEASURED, bool(torch.isfinite(rounded).all()) and kl <= LARGEST_KL, detail
    )


@torch.no_grad()
def cached_decoding(subject: Subject) -> Check:
    """One token at a time with a cache gives the logits of the full forward."""
    model, ids = subject.model, drawn_ids(subject.model)[:2]
    whole, cache, steps = model(ids).logits, None, list[Tensor]()
    for position in range(ids.shape[1]):
        out = model(ids[:, position : position + 1], cache=cache, use_cache=True)
        cache = out.cache
        steps.append(out.logits)
    error = float((torch.cat(steps, 1) - whole).abs().max())
    bound = logit_bound(model, float(whole.abs().max()))
    detail = f"largest difference {error:.1e}, bound {bound:.1e}, {ids.numel()} tokens"
    return check("L4", "cached decoding", MEASURED, error <= bound, detail)


@torch.no_grad()
def greedy_generation(subject: Subject) -> Check:
    """`generate` runs, and each of its tokens is the best of a full forward, or within rounding of
    it.
    """
    model = subject.model
    room = model.config.max_position_embeddings
    prompt = drawn_ids(model)[:1, : max(1, min(4, room // 2))]
    # no end token: always all tokens
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": model.config.vocab_size}
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=min(GENERATED, room - prompt.shape[1]),
        **options,
    )
    new = out[0, prompt.shape[1] :]
    logits = model(out[:, :-1]).logits[0, prompt.shape[1] - 1 :]
    short = float((logits.max(-1).values - logits.gather(1, new[:, None])[:, 0]).max())
    holds = short <= 2 * logit_bound(model, float(logits.abs().max())) and len(new) > 0
    return check(
        "L4",
        "greedy generation",
        MEASURED,
        holds,
        f"{len(new)} tokens, each within {short:.1e} of the full forward's best",
    )


@torch.no_grad()
def replay(subject: Subject) -> Check:
    """The losses of the last step's windows, recomputed from the ids that were kept, are the losses
    that were kept.
    """
    name, model, kept = "replay of the last step", subject.model, read_replay(subject.place)
    if kept is None:
        return not_applicable("L5", name, "the folder keeps no last step")
    ids = torch.from_numpy(kept.ids)
    total = sum(
        float(model.loss(*inputs_and_targets(part), num_targets=1)) for part in ids.split(4)
    )
    loss = total / int((ids[:, 1:] != IGNORE).sum())
    first = ids[:1, : len(kept.token_losses) + 1]
    inputs, targets = inputs_and_targets(first)
    losses = model.token_losses(inputs, targets)[0]
    apart = float((losses - torch.tensor(kept.token_losses)).abs().max())
    bound = 2 * logit_bound(model, float(model(inputs).logits.abs().max()))
    detail = (
        f"{loss:.6f} nats per token, kept {kept.loss:.6f}; {len(losses)} one by one within"
        f" {apart:.1e}, bound {bound:.1e}"
    )
    # NaN is close to nothing
    close = math.isfinite(kept.loss) and abs(loss - kept.loss) <= REPLAY_RELATIVE * abs(kept.loss)
    holds = close and apart <= bound
    return check("L5", name, MEASURED, holds, detail)


CHECKS = {"L3": (bfloat16,), "L4": (cached_decoding, greedy_generation), "L5": (replay,)}
