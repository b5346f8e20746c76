"""Held-out loss on the frozen windows, and the losses that a checkpoint keeps for whoever replays
it.
"""

import torch

from tokencodes.loss import IGNORE, inputs_and_targets
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.parallel import ALONE, World


@torch.no_grad()
def window_loss(
    model: TokenCodeForCausalLM, ids_NT1: torch.Tensor, batch: int, world: World = ALONE
) -> float:
    """Mean cross entropy (nats per token) of all tokens of windows int64[N, T + 1], `batch` windows
    at a time; every rank is given all windows, and computes its share of them.
    """
    total = 0.0
    tokens = int((ids_NT1[:, 1:] != IGNORE).sum())
    for part in world.share(ids_NT1, IGNORE).split(batch):
        total += float(model.loss(*inputs_and_targets(part.to(world.device)), num_targets=1))
    return sum(world.gather(total)) / tokens
