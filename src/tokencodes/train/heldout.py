"""Held-out loss on the frozen windows."""

import torch

from tokencodes.data.windows import HeldOut
from tokencodes.loss import IGNORE, inputs_and_targets
from tokencodes.model import TokenCodeForCausalLM


@torch.no_grad()
def window_loss(model: TokenCodeForCausalLM, ids_NT1: torch.Tensor, batch: int) -> float:
    """Mean cross entropy (nats a target) of all targets of windows int64[N, T + 1], `batch` windows at a time."""
    total = 0.0
    targets = int((ids_NT1[:, 1:] != IGNORE).sum())
    for part in ids_NT1.split(batch):
        total += float(model.loss(*inputs_and_targets(part), num_targets=1))
    return total / targets


def held_out_loss(model: TokenCodeForCausalLM, held_out: HeldOut, batch: int) -> float:
    """`window_loss` of the frozen set."""
    return window_loss(model, torch.from_numpy(held_out.ids_NT1), batch)
