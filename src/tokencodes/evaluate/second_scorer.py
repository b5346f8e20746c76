"""A second opinion: a scorer that shares nothing with the first but the model, and is too simple to
be wrong in the same way.

One request at a time, from its texts, with the tokenizer's own calls; batch 1, no cache, nothing
shared, the model's own forward in float32, PyTorch's own log-softmax. A seeded sample of every
evaluation goes through it. It is written after lm-eval's description of a request, not after
`requests`.
"""

import copy
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tokencodes.errors import CheckFailed

A_TOKEN = 1e-4  # nats that a token may differ by in float32
# Where the evaluation computed in less: a token, and their mean. bfloat16 has 8 bits, so a logit of
# 20 is a multiple of 1/8.
A_TOKEN_REDUCED, MEAN_REDUCED = 1.0, 0.1
NEAR = 1e-4  # two best logits so near may be told apart either way


@dataclass(frozen=True)
class Claim:
    """What is to be checked: one request's texts, and its score. window: of a rolling document,
    else None.
    """

    task: str
    document: int
    part: int
    context: str
    continuation: str
    window: int | None
    log_probs: tuple[float, ...]
    greedy: bool


@dataclass(frozen=True)
class Opinion:
    """How far the claims were off."""

    checked: int
    tokens: int
    largest: float  # nats a token
    mean: float
    flags: int  # greedy flags that differ where the two best logits are nearer than NEAR
    allowed: float


def sample(claims: Sequence[Claim], size: int, seed: int) -> list[Claim]:
    """A seeded sample, the same number from each task as far as it has so many; at least one of
    each.
    """
    by_task: defaultdict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        by_task[claim.task].append(claim)
    draw = random.Random(seed)
    each = max(1, size // len(by_task)) if by_task else 0
    return [
        claim
        for task in sorted(by_task)
        for claim in draw.sample(by_task[task], min(each, len(by_task[task])))
    ]


@torch.no_grad()
def check(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    claims: Sequence[Claim],
    limit: int,
    prefix: int | None,
) -> Opinion:
    """Scores claims anew. CheckFailed at the first that does not agree."""
    allowed = A_TOKEN if model.dtype == torch.float32 else A_TOKEN_REDUCED
    exact = model if model.dtype == torch.float32 else copy.deepcopy(model).float()
    largest, tokens, near, total = 0.0, 0, 0, 0.0
    for claim in claims:
        ids, scored = _ids(tokenizer, claim, limit, prefix)
        where = f"{claim.task}, document {claim.document}, part {claim.part}"
        if scored != len(claim.log_probs) or scored < 1:
            raise CheckFailed(
                f"{where}: {len(claim.log_probs)} tokens were scored, a second scorer finds"
                f" {scored}"
            )
        logits = (
            exact(input_ids=torch.tensor([ids[:-1]], device=model.device))
            .logits[0, -scored:]
            .float()
        )
        wanted = torch.tensor(ids[-scored:], device=model.device)
        own = torch.log_softmax(logits, -1)[torch.arange(scored), wanted].cpu().tolist()
        differences = [
            abs(value - claimed) for value, claimed in zip(own, claim.log_probs, strict=True)
        ]
        apart = max(differences)
        if not all(difference <= allowed for difference in differences):  # NaN is not
            apart = next(
                (difference for difference in differences if math.isnan(difference)), apart
            )
            raise CheckFailed(
                f"{where}: a second, independent scorer differs by {apart:.3g} nats at a token"
                f" (allowed: {allowed:g}); no score of this evaluation can be believed"
            )
        best, second = logits.topk(2, -1).values.T
        if bool((logits.argmax(-1) == wanted).all()) != claim.greedy:
            if float((best - second).min()) > (NEAR if allowed == A_TOKEN else A_TOKEN_REDUCED):
                raise CheckFailed(
                    f"{where}: a second scorer says greedy {not claim.greedy}, and no two logits"
                    " are near"
                )
            near += 1
        largest, tokens, total = max(largest, apart), tokens + scored, total + sum(differences)
    mean = total / max(tokens, 1)
    if allowed == A_TOKEN_REDUCED and mean > MEAN_REDUCED:
        raise CheckFailed(
            f"a second scorer in float32 differs by {mean:.3g} nats a token in the mean of"
            f" {tokens:,} (allowed: {MEAN_REDUCED:g}); evaluate in --dtype float32"
        )
    return Opinion(len(claims), tokens, largest, mean, near, allowed)


def _ids(
    tokenizer: PreTrainedTokenizerBase, claim: Claim, limit: int, prefix: int | None
) -> tuple[list[int], int]:
    """All ids of a claim, and how many at the end are scored."""
    if claim.window is not None:
        return _window(tokenizer, claim.continuation, claim.window, limit, prefix)
    context, continuation = claim.context, claim.continuation
    while context and context[-1].isspace():
        context, continuation = context[:-1], context[-1] + continuation
    before, added = _encoded(tokenizer, context)
    if len(before) > added:  # at least one token is the context's own
        ids = before + _encoded(tokenizer, context + continuation)[0][len(before) :]
        scored = len(ids) - len(before)
    else:
        ids = tokenizer.encode(context + continuation, add_special_tokens=False)
        if prefix is not None and ids[:1] != [prefix]:
            ids = [prefix, *ids]
        scored = len(ids) - 1
    return ids[-(limit + 1) :], scored


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], int]:
    """Ids of a text, and how many of them the tokenizer added before it: none where the text begins
    with them itself.
    """
    whole, bare = tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)
    added = len(whole) - len(bare)
    if added and text.startswith(tokenizer.decode(whole[:added])):
        return bare, 0
    return whole, added


def _window(
    tokenizer: PreTrainedTokenizerBase, text: str, number: int, limit: int, prefix: int | None
) -> tuple[list[int], int]:
    """Tokens are predicted in runs of `limit`; each run but the first has what fits before it, and
    one token at least.
    """
    ids, added = _encoded(tokenizer, text)
    if prefix is not None and ids[:1] != [prefix]:
        ids, added = [prefix, *ids], added + 1
    # The token at place p is predicted from those before it. The prefix and what the tokenizer
    # added are not predicted, and neither is the first of all. Window 0 ends before place 1 +
    # limit, each later one `limit` places further on.
    begin = max(added, 1, 1 + number * limit)
    end = min(1 + (number + 1) * limit, len(ids))
    return ids[max(0, end - limit - 1) : end], end - begin
