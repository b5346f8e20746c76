"""AdamW with the paper's decay rule, and its schedule."""

import math

import torch

from tokencodes.model import TokenCodeForCausalLM
from tokencodes.train.config import OptimizerConfig


def decay_groups(model: TokenCodeForCausalLM) -> dict[str, list[str]]:
    """Names of the parameters that decay (matrices, a learned table among them) and that do not
    (one-dimensional).
    """
    groups: dict[str, list[str]] = {"decay": [], "no_decay": []}
    for name, parameter in model.named_parameters():
        groups["decay" if parameter.dim() >= 2 else "no_decay"].append(name)
    return groups


def build_optimizer(model: TokenCodeForCausalLM, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the two groups; the learning rate is set before each step.

    Its state is made here and not, as AdamW would, after the first backward pass: there it would be
    laid into the room that activations have just left, and the next step's would find no such room.
    """
    parameters = dict(model.named_parameters())
    groups = decay_groups(model)
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [parameters[name] for name in groups["decay"]],
                "weight_decay": config.weight_decay,
            },
            {"params": [parameters[name] for name in groups["no_decay"]], "weight_decay": 0.0},
        ],
        lr=config.peak_lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
    for parameter in parameters.values():
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        optimizer.state[parameter] = {
            "step": step,
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimizer


def learning_rate(step: int, config: OptimizerConfig) -> float:
    """Learning rate of step 0, 1, ...: linear from peak / warm-up to peak, cosine to the minimum,
    then the minimum.
    """
    if step < config.warmup_steps:
        return config.peak_lr * (step + 1) / config.warmup_steps
    span = config.schedule_steps - config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / span)
    return config.min_lr + (config.peak_lr - config.min_lr) * 0.5 * (
        1 + math.cos(math.pi * progress)
    )
