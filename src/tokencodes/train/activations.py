"""Memory that a micro_batch's forward pass keeps for its backward pass, counted without computing
or allocating anything.

One block, the final norm and the chunked head run on fake tensors (shapes without data), and what
autograd saves of each is added up by storage; blocks are alike, so the model's sum is L times the
block's. Eager execution on a CPU; a real forward pass keeps about one hundredth less, because
neighbours share a tensor or two.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tokencodes.codes import InterfaceSpec
from tokencodes.codes.codebook import Given
from tokencodes.loss import head_cross_entropy
from tokencodes.train.build import build_model
from tokencodes.train.config import RunConfig


@dataclass(frozen=True)
class Activations:
    """Bytes kept for one micro_batch: by a block, by its input alone, by final norm and head."""

    block: int
    block_input: int
    rest: int
    blocks: int

    def bytes(self, every: int) -> int:
        """Of the whole model, with every `every`-th block computed again in the backward pass (0:
        none). Such a block keeps its input, and one at a time is whole while it is computed again.
        """
        again = -(-self.blocks // every) if every else 0
        return (
            (self.blocks - again) * self.block
            + again * self.block_input
            + self.block * bool(again)
            + self.rest
        )


def count_activations(run: RunConfig, spec: InterfaceSpec, given: Given) -> Activations:
    """Of one micro batch of a run, in its precision."""
    batch, time, width = run.micro_batch, run.model.context_length, run.model.hidden_size
    low = run.engine.precision == "bf16-autocast"
    dtype = torch.bfloat16 if run.engine.precision == "bf16-parameters" else torch.float32
    with FakeTensorMode(allow_non_fake_inputs=True):
        with _default(dtype):
            model = build_model(run, spec, given)
        hidden_BTD = torch.zeros(batch, time, width, requires_grad=True, dtype=dtype)
        positions = torch.arange(time)[None]
        with torch.autocast("cpu", dtype=torch.bfloat16) if low else nullcontext():
            rotary = model.model.rotary_emb(hidden_BTD, positions)
            arguments = {
                "attention_mask": None,
                "position_ids": positions,
                "position_embeddings": rotary,
            }
            block = saved_bytes(model, lambda: model.model.layers[0](hidden_BTD, **arguments))
            norm = saved_bytes(model, lambda: model.model.norm(hidden_BTD))
            targets_N = torch.zeros(batch * time, dtype=torch.long)
            head = saved_bytes(
                model,
                lambda: head_cross_entropy(
                    hidden_BTD.flatten(0, 1), model.lm_head.weight, targets_N
                ),
            )
    input_bytes = hidden_BTD.numel() * hidden_BTD.element_size()
    return Activations(block, input_bytes, norm + head, run.model.num_hidden_layers)


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def saved_bytes(model: torch.nn.Module, work: Callable[[], object]) -> int:
    """Bytes of the distinct storages that autograd saves while `work` runs, the model's own tensors
    left out.
    """
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    # held, so that no storage's address is given away again meanwhile
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = work()
    del result
    return sum(storage.nbytes() for storage in kept.values())
