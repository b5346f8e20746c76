"""Head and cross entropy in chunks of targets, so that the logits (targets × V) never exist whole.

The gradient of cross entropy is known as soon as its logits are, so each chunk's gradients are computed in the forward pass
and its logits are dropped. Nothing is recomputed; what is kept is one gradient of the hidden states and one of the head.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORE = -100
CHUNK_ENTRIES = 1 << 21  # logits that exist at a time: 8 MiB in float32, about a processor's cache


def inputs_and_targets(ids_NT1: Tensor) -> tuple[Tensor, Tensor]:
    """Windows int64[N, T + 1] -> inputs and targets, int64[N, T] each.

    Where a window ends early it is filled with IGNORE: a target that counts for nothing, and no id, so that as an input it
    becomes 0; no position before it sees that.
    """
    return ids_NT1[:, :-1].clamp(min=0), ids_NT1[:, 1:]


class _HeadCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h_ND: Tensor, head_VD: Tensor, targets_N: Tensor, rows: int, wants_gradient: bool) -> Tensor:
        total = torch.zeros((), dtype=torch.float32 if h_ND.dtype != torch.float64 else h_ND.dtype, device=h_ND.device)
        grad_h_ND = torch.empty_like(h_ND) if wants_gradient else None
        # Summed over chunks, so in float32 at least, whatever the weights are.
        grad_head_VD = torch.zeros_like(head_VD, dtype=total.dtype) if wants_gradient else None
        for start in range(0, len(h_ND), rows):
            h, targets = h_ND[start : start + rows], targets_N[start : start + rows]
            valid = targets != IGNORE
            picked = targets.masked_fill(~valid, 0)[:, None]
            logits = (h @ head_VD.T).to(total.dtype)
            log_z = logits.logsumexp(-1, keepdim=True)
            total += (log_z - logits.gather(1, picked))[:, 0].masked_fill(~valid, 0.0).sum()
            if grad_h_ND is None or grad_head_VD is None:
                continue
            softmax = (logits - log_z).exp_()
            softmax.scatter_add_(1, picked, -torch.ones_like(log_z))
            softmax.masked_fill_(~valid[:, None], 0.0)
            gradient = softmax.to(h.dtype)
            grad_h_ND[start : start + rows] = gradient @ head_VD
            grad_head_VD += gradient.T @ h
        if wants_gradient:
            ctx.save_for_backward(grad_h_ND, grad_head_VD)
            ctx.head_dtype = head_VD.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_h_ND, grad_head_VD = ctx.saved_tensors
        return grad_h_ND * grads[0], (grad_head_VD * grads[0]).to(ctx.head_dtype), None, None, None


def head_cross_entropy(h_ND: Tensor, head_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Sum of the cross entropies (nats) of already shifted targets; targets of -100 do not count.

    h_ND: hidden states, head_VD: head weight, targets_N: int64. Scalar, float32 or wider; divide by the global number of
    targets, not by the microbatch's.
    """
    rows = max(1, CHUNK_ENTRIES // head_VD.shape[0])
    wants_gradient = torch.is_grad_enabled() and (h_ND.requires_grad or head_VD.requires_grad)
    total: Tensor = _HeadCrossEntropy.apply(h_ND, head_VD, targets_N, rows, wants_gradient)
    return total
