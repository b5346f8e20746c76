"""A step that is not finite: it is stopped before it reaches a weight, and what there is to know of
it is written down.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokencodes.errors import CheckFailed
from tokencodes.files import write_json
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.parallel import World, local, reduce_gradients
from tokencodes.train.diagnostics import part_norms


class Diverging(CheckFailed):
    """Numbers of a run that are not finite: what was seen, in which step. Every rank raises it, in
    the same words.
    """

    everywhere = True

    def __init__(self, out: Path, step: int, reason: str, remedy: str) -> None:
        super().__init__(f"{out}: {reason}{remedy}")
        self.step, self.reason = step, reason


class HeldOutNotFinite(Diverging):
    """A held-out loss that is not finite."""

    def __init__(self, out: Path, step: int, loss: float) -> None:
        reason = f"held-out loss {loss} after step {step}, whose own loss was finite"
        remedy = (
            "; the weights have gone too far. Lower optimizer.peak_lr, or go on from an earlier"
            " checkpoint"
        )
        super().__init__(out, step, reason, remedy)


class NonFinite(Diverging):
    """A loss or a gradient that is not finite, with what was computed."""

    def __init__(
        self,
        out: Path,
        step: int,
        reason: str,
        loss: float,
        grad_norm: float,
        grad_norm_parts: dict[str, float],
    ) -> None:
        remedy = (
            ". They never reached the weights. See nonfinite.json there; the same command with"
            f" --replay {step} computes it again, `tokencodes ledger` names its documents; or lower"
            " optimizer.peak_lr"
        )
        super().__init__(out, step, reason, remedy)
        self.loss, self.grad_norm, self.grad_norm_parts = loss, grad_norm, grad_norm_parts


@dataclass(frozen=True)
class RefusedStep:
    """What was computed: its number from 1, its windows [first, last], losses by rank, the
    gradient's norm and its tensors'.
    """

    number: int
    first: int
    last: int
    losses: list[float]
    norm: float
    norm_of: dict[str, Tensor]


def find_origin(
    model: TokenCodeForCausalLM, parts: list[tuple[Tensor, Tensor]], first: int, world: World
) -> list[dict[str, Any]]:
    """Where it begins, on each rank: the first micro batch (inputs and targets, [B, T] each) in
    whose forward pass something is not finite, or in its loss, or in its backward pass, with the
    windows that it holds. Computes the step's micro batches once more, on every rank, and leaves
    gradients behind.

    An overflow that arises only as gradients are added up has no such place, and the list is empty.
    """
    forward: list[str] = []
    backward: list[str] = []
    blocks = {f"block {n}": block for n, block in enumerate(model.model.layers)}
    watched = {"input": model.model.embed_tokens, **blocks, "final norm": model.model.norm}
    hooks = [
        module.register_forward_hook(_watch(name, forward, backward))
        for name, module in watched.items()
    ]
    own: list[dict[str, Any]] = []
    reduce_gradients(model, now=False)
    try:
        for inputs, targets in parts:
            loss = model.loss(inputs, targets, num_targets=1)
            loss.backward()
            places = [f"what the {name} gives" for name in forward]
            places += [] if math.isfinite(float(loss.detach())) else ["loss"]
            places += [f"gradient of what the {name} gives" for name in backward]
            if places and not own:
                own.append(
                    {
                        "rank": world.rank,
                        "windows": [first, first + len(inputs) - 1],
                        "where": places[0],
                    }
                )
            forward.clear()
            backward.clear()
            first += len(inputs)
    finally:
        for hook in hooks:
            hook.remove()
        model.zero_grad(set_to_none=True)
    return [origin for origins in world.gather(own) for origin in origins]


def _watch(name: str, forward: list[str], backward: list[str]) -> Any:
    """A hook that notes a module's name where its output, or the gradient of that,
    is not finite."""

    def on_output(
        module: torch.nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]
    ) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if not bool(hidden.detach().isfinite().all()):
            forward.append(name)

        def on_gradient(gradient: Tensor) -> None:
            if not bool(gradient.isfinite().all()):
                backward.append(name)

        if hidden.requires_grad:
            hidden.register_hook(on_gradient)

    return on_output


def refuse(
    step: RefusedStep,
    origin: list[dict[str, Any]],
    model: TokenCodeForCausalLM,
    out: Path,
    world: World,
) -> NonFinite:
    """Writes nonfinite.json; the error to raise."""
    bad = [
        name for name, p in model.named_parameters() if not bool(local(p.detach()).isfinite().all())
    ]
    weights = sorted({name for names in world.gather(bad) for name in names})
    loss, parts = sum(step.losses), part_norms(step.norm_of)
    record = {
        "step": step.number,
        "windows": [step.first, step.last],
        "loss": str(loss),  # as text: JSON has no word for what is not finite
        "loss_by_rank": [str(value) for value in step.losses],
        "begins": origin,
        "grad_norm_parts": {part: str(value) for part, value in parts.items()},
        "parameters_without_a_finite_gradient": [
            n for n, value in step.norm_of.items() if not math.isfinite(value)
        ],
        "parameters_not_finite_themselves": weights,
    }
    world.on_first(lambda: write_json(out / "nonfinite.json", record))
    shown = (
        f"windows {place['windows'][0]} to {place['windows'][1]}, {place['where']}"
        for place in origin
    )
    places = [
        f"rank {place['rank']}, {text}" if world.ranks > 1 else text
        for place, text in zip(origin, shown, strict=True)
    ]
    begins = f"it begins at {'; '.join(places) or 'a sum of finite parts'}"
    if weights:
        begins = f"{weights[0]} was not finite before"
    number, first, last = step.number, step.first, step.last
    reason = (
        f"loss {loss} and gradient norm {step.norm} in step {number} (windows {first} to {last});"
        f" {begins}"
    )
    return NonFinite(out, number, reason, loss, step.norm, parts)
