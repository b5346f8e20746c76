"""What a run observes of itself beyond the loss. Nothing here changes a bit of the training.

Norms are taken apart by part of the model: the `input` (a learned table or coordinates; absent in fixed arms), the `body`, the
`head`. Clipping stays the paper's, over all of them together.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor

from tokencodes.model import TokenCodeForCausalLM

PARTS = ("input", "body", "head")


def part_of(name: str) -> str:
    """Which part of the model a parameter belongs to, by its name."""
    return "input" if name.startswith("model.embed_tokens.") else "head" if name.startswith("lm_head.") else "body"


def norms(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Euclidean norm of each tensor, by name; one pass where the device has one."""
    return dict(zip(tensors, torch._foreach_norm(list(tensors.values())), strict=True))


def part_norms(norm_of: dict[str, Tensor]) -> dict[str, float]:
    """Norms of the parts, from those of their tensors."""
    squares: defaultdict[str, float] = defaultdict(float)
    for name, norm in norm_of.items():
        squares[part_of(name)] += float(norm) ** 2
    return {part: math.sqrt(squares[part]) for part in PARTS if part in squares}


@torch.no_grad()
def update_ratios(model: TokenCodeForCausalLM, optimizer: torch.optim.AdamW, lr: float) -> dict[str, float | None]:
    """‖change‖ / ‖weights‖ of each part by the update just done, from AdamW's own state: lr · (m̂ / (sqrt(v̂) + eps) + decay).

    Weights are those after the update, so that no copy of those before is needed.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    change: defaultdict[str, float] = defaultdict(float)
    weight: defaultdict[str, float] = defaultdict(float)
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            step = float(state["step"])
            scale = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt_().add_(group["eps"])
            direction = (state["exp_avg"] / (1 - beta1**step)).div_(scale).add_(parameter, alpha=group["weight_decay"])
            part = part_of(names[id(parameter)])
            change[part] += (lr * float(torch.linalg.vector_norm(direction, dtype=torch.float64))) ** 2
            weight[part] += float(torch.linalg.vector_norm(parameter, dtype=torch.float64)) ** 2
    return {part: _or_none(math.sqrt(change[part] / weight[part])) for part in PARTS if weight[part]}


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


@torch.no_grad()
def hidden_scales(model: TokenCodeForCausalLM, ids_BT: Tensor) -> list[float | None]:
    """Root mean square of the residual stream over `ids_BT`: as the interface gives it, then after each block; L + 1 values.

    None stands for what is not finite, here and in `update_ratios`.
    """
    found: list[float | None] = []

    def note(module: torch.nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        scale = float(hidden.float().square().mean().sqrt())
        found.append(_or_none(scale))

    watched = [model.model.embed_tokens, *model.model.layers]
    hooks = [module.register_forward_hook(note) for module in watched]
    try:
        model.model(input_ids=ids_BT, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found
