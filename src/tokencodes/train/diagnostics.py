"""What a run observes of itself beyond the loss. Nothing here changes a bit of the training.

Norms are taken apart by part of the model: the `input` (a learned table or coordinates; absent in
fixed arms), the `body`, the `head`. Clipping stays the paper's, over all of them together.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from tokencodes.loss import inputs_and_targets
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.parallel import local, sum_over_shards

PARTS = ("input", "body", "head")
PIECE = 1 << 20  # entries


def part_of(name: str) -> str:
    """Which part of the model a parameter belongs to, by its name."""
    return (
        "input"
        if name.startswith("model.embed_tokens.")
        else "head"
        if name.startswith("lm_head.")
        else "body"
    )


def norms(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Euclidean norm of each tensor, by name, over all its shards; one pass where the device has
    one, one exchange.
    """
    if not tensors:
        return {}
    lengths = torch.stack(torch._foreach_norm([local(tensor) for tensor in tensors.values()]))
    sharded = next(iter(tensors.values()))
    if isinstance(sharded, DTensor):
        lengths = sum_over_shards(lengths.square(), sharded).sqrt()
    return dict(zip(tensors, lengths.unbind(), strict=True))


def total_norm(norm_of: dict[str, Tensor]) -> Tensor:
    """The norm of all tensors together, a scalar on their device."""
    return torch.linalg.vector_norm(torch.stack(list(norm_of.values())))


def part_norms(norm_of: dict[str, Tensor]) -> dict[str, float]:
    """Norms of the parts, from those of their tensors."""
    squares: defaultdict[str, float] = defaultdict(float)
    for name, norm in zip(norm_of, torch.stack(list(norm_of.values())).tolist(), strict=True):
        squares[part_of(name)] += norm**2
    return {part: math.sqrt(squares[part]) for part in PARTS if part in squares}


@torch.no_grad()
def clip(model: TokenCodeForCausalLM, most: float, total: Tensor) -> None:
    """Scales all gradients by most / total where that is below 1, as
    `torch.nn.utils.clip_grad_norm_` does, shard by shard.
    """
    gradients = [
        local(parameter.grad) for parameter in model.parameters() if parameter.grad is not None
    ]
    torch._foreach_mul_(gradients, torch.clamp(most / (total + 1e-6), max=1.0))


@torch.no_grad()
def update_ratios(
    model: TokenCodeForCausalLM, optimizer: torch.optim.AdamW, lr: float
) -> dict[str, float | None]:
    """‖change‖ / ‖weights‖ of each part by the step just done, from AdamW's own state: lr · (m̂ /
    (sqrt(v̂) + eps) + decay).

    Weights are those after the step, so that no copy of those before is needed; and a piece at a
    time, so that no other array as large as a parameter is either.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    squares = []  # of change and weights, a pair a parameter
    parts = []
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            step = float(state["step"])
            pair = torch.zeros(2, dtype=torch.float64, device=parameter.device)
            held = (local(parameter), local(state["exp_avg"]), local(state["exp_avg_sq"]))
            for weight, first, second in zip(
                *(tensor.flatten().split(PIECE) for tensor in held), strict=True
            ):
                scale = (second / (1 - beta2**step)).sqrt_().add_(group["eps"])
                direction = (
                    (first / (1 - beta1**step))
                    .div_(scale)
                    .add_(weight, alpha=group["weight_decay"])
                )
                pair += torch.stack(
                    [
                        torch.linalg.vector_norm(values, dtype=torch.float64)
                        for values in (direction, weight)
                    ]
                ).square()
            squares.append(pair)
            parts.append(part_of(names[id(parameter)]))
    totals = sum_over_shards(torch.stack(squares), parameter).tolist()
    change = {
        part: sum(c for of, (c, _) in zip(parts, totals, strict=True) if of == part)
        for part in PARTS
    }
    weights = {
        part: sum(w for of, (_, w) in zip(parts, totals, strict=True) if of == part)
        for part in PARTS
    }
    return {
        part: _or_none(lr * math.sqrt(change[part] / weights[part]))
        for part in PARTS
        if weights[part]
    }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


@torch.no_grad()
def hidden_scales(model: TokenCodeForCausalLM, ids_NT1: Tensor) -> list[float | None]:
    """Root mean square of the residual stream over windows: as the interface gives it, then after
    each block; L + 1 values.

    None stands for what is not finite, here and in `update_ratios`.
    """
    scales: list[float | None] = []

    def note(module: torch.nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        scale = float(hidden.float().square().mean().sqrt())
        scales.append(_or_none(scale))

    watched = [model.model.embed_tokens, *model.model.layers]
    hooks = [module.register_forward_hook(note) for module in watched]
    try:
        # a compiled block may not see hooks that came later
        with torch.compiler.set_stance("force_eager"):
            # the head has nothing to show here
            model(inputs_and_targets(ids_NT1)[0], use_cache=False, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    return scales
