"""Parameters, buffers, memory and arithmetic of every arm, counted on the meta device: no weight is
allocated.

Counts are asserted to sum. FLOPs per token, forward and backward: 6 × parameters of the matrices
that are multiplied (body and head; a table look-up multiplies nothing) + causal attention, 6 L d (T
+ 1): scores and values, each 2 d multiply-adds a visible position, (T + 1) / 2 of them on average,
times 3 for forward and backward. Recomputation is not counted.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from tokencodes.model import TokenCodeForCausalLM
from tokencodes.train.activations import count_activations
from tokencodes.train.build import build_model
from tokencodes.train.config import RunConfig, StudyConfig
from tokencodes.train.interface import settle_without_text

FLOAT32 = 4


@dataclass(frozen=True)
class Cost:
    """One arm. Parameters and buffers in entries, memory in bytes (float32 training state), FLOPs
    per token.
    """

    interface: str
    input_parameters: int
    body_parameters: int
    head_parameters: int
    total_parameters: int
    buffer_entries: int
    buffer_bytes: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int  # of one micro_batch, as the run's engine keeps them; see `activations`
    activation_bytes_recomputed: int  # the same if every block were recomputed in the backward pass
    flops_per_token: int
    steps: int
    tokens: int
    rank: int | None
    squared_norm_mean: float | None

    @property
    def state_bytes(self) -> int:
        """What stays in memory from step to step: weights, gradients, optimizer, buffers."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.buffer_bytes

    def state_bytes_of_a_rank(self, run: RunConfig, ranks: int, ranks_a_node: int) -> int:
        """The same on each of several ranks: its shard; and, where parameters are sharded, the
        largest two groups gathered with their gradients, and all gradients if a step has several
        micro batches, since they are reduced once.
        """
        shards = {"full": ranks, "hybrid": min(ranks, ranks_a_node), "replicate": 1}[
            run.engine.sharding
        ]
        own = -(-(self.state_bytes - self.buffer_bytes) // shards) + self.buffer_bytes
        low = run.engine.precision == "bf16-parameters"
        if ranks == 1 and not low:
            return own
        block = (self.body_parameters - run.model.hidden_size) // run.model.num_hidden_layers
        # the rest, and a block ahead
        gathered = self.total_parameters - block * run.model.num_hidden_layers + 2 * block
        entry = 2 if low else FLOAT32
        several = run.batch.global_batch_size // ranks > run.micro_batch
        return (
            own
            + entry * gathered
            + (FLOAT32 * self.total_parameters if several else entry * gathered)
        )

    @property
    def flops(self) -> int:
        """Of the whole run."""
        return self.flops_per_token * self.tokens


def cost_of_run(run: RunConfig) -> Cost:
    """The cost of one run. An assignment changes no number here, so an informed one is counted
    as the natural order.
    """
    settled, given = settle_without_text(run.interface)
    with torch.device("meta"):
        model = build_model(run, settled, given)
    facts = model.input_interface.describe()
    kept = count_activations(run, settled, given)
    head = model.lm_head.weight.numel()
    total = sum(parameter.numel() for parameter in model.parameters())
    body = sum(
        p.numel() for layer in (*model.model.layers, model.model.norm) for p in layer.parameters()
    )
    if facts.trainable_parameters + body + head != total:
        raise AssertionError(
            f"{facts.trainable_parameters} + {body} + {head} parameters are not {total}"
        )
    return Cost(
        interface=run.interface,
        input_parameters=facts.trainable_parameters,
        body_parameters=body,
        head_parameters=head,
        total_parameters=total,
        buffer_entries=facts.buffer_entries,
        buffer_bytes=facts.buffer_bytes,
        weight_bytes=FLOAT32 * total,
        gradient_bytes=FLOAT32 * total,
        optimizer_bytes=2 * FLOAT32 * total,
        activation_bytes=kept.bytes(run.engine.activation_checkpoint_every),
        activation_bytes_recomputed=kept.bytes(1),
        flops_per_token=flops_per_token(model),
        steps=run.steps,
        tokens=run.steps * run.tokens_per_step,
        rank=facts.rank,
        squared_norm_mean=facts.squared_norm_mean,
    )


def flops_per_token(model: TokenCodeForCausalLM) -> int:
    """FLOPs of a token, forward and backward, by the formula above; T is the model's
    `max_position_embeddings`.
    """
    config = model.config
    matrices = (
        sum(p.numel() for p in model.model.layers.parameters() if p.dim() == 2)
        + model.lm_head.weight.numel()
    )
    return int(
        6 * matrices
        + 6 * config.num_hidden_layers * config.hidden_size * (config.max_position_embeddings + 1)
    )


def cost_of_arms(study: StudyConfig) -> dict[str, dict[str, Any]]:
    """The cost of each arm, by name."""
    return {arm: asdict(cost_of_run(study.run(arm, study.study.seeds[0]))) for arm in study.arms}
