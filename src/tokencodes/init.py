"""Initialisation by name: each parameter draws from a generator of its own, seeded by BLAKE2b(seed,
parameter name).

Therefore an arm cannot shift another parameter's draw: body and head are bitwise equal in all arms
of a seed. A parameter is drawn whole, in float32 on the CPU, so the same holds for every dtype,
device and number of ranks.

| parameter                             | drawn from                                             |
|---------------------------------------|--------------------------------------------------------|
| RMSNorm weights                       | 1                                                      |
| o_proj, down_proj (residual outputs)  | N(0, (s / sqrt(2 L))^2), L the number of blocks, s the |
|                                       | configuration's initializer_range (0.02 unless told)   |
| every other matrix, the head included | N(0, s^2)                                              |
| learned input table                   | N(0, std^2), std of its spec (0.02 unless told)        |
| learned coordinates                   | the words of its spec's `init`                         |
| buffers of a fixed code               | its spec                                               |

Paper: section "Body and recipe". The paper gives no training seeds; these are ours.
"""

import hashlib
import math

import torch
from torch import Tensor

from tokencodes.model import TokenCodeForCausalLM

RESIDUAL_OUTPUTS = ("o_proj.weight", "down_proj.weight")


def generator(seed: int, name: str) -> torch.Generator:
    """The generator of one parameter."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def standard_deviation(name: str, model: TokenCodeForCausalLM) -> float:
    """The std of a matrix, by its name."""
    std = float(model.config.initializer_range)
    return (
        std / math.sqrt(2 * model.config.num_hidden_layers)
        if name.endswith(RESIDUAL_OUTPUTS)
        else std
    )


@torch.no_grad()
def initialise(model: TokenCodeForCausalLM, seed: int) -> None:
    """Draws every parameter and rebuilds every code buffer, in place."""
    interface, prefix = model.input_interface, "model.embed_tokens."
    interface.draw(lambda name: generator(seed, prefix + name))
    for name, parameter in model.named_parameters():
        if name.startswith(prefix):
            continue
        if parameter.dim() == 1:
            parameter.fill_(1.0)
            continue
        value: Tensor = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        value.normal_(0.0, standard_deviation(name, model), generator=generator(seed, name))
        parameter.copy_(value)
    interface.reset_buffers()
