"""Helper of test_swap: trains a swapped Llama on one process and, sharded by FSDP2, on two gloo
ranks. Prints one JSON line.

python tests/fsdp_two_ranks.py FOLDER
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from tokencodes.swap import interface_of, swap_input

SPECS = ("learned", "gf2", "learned-code:values=pm1", "random:width=20,values=pm1,storage=computed")
VOCAB = 319  # two ranks do not divide it
STEPS = 3


def build(spec: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 36,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(**shape, use_cache=False))
    warnings.simplefilter("ignore")
    return swap_input(model, spec)


def train(model: torch.nn.Module, ids: torch.Tensor) -> list[float]:
    """Losses of a few steps; on several ranks each takes its part of the batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    losses = []
    for _ in range(STEPS):
        part = ids[rank::world]
        loss = model(part, labels=part).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if world > 1:
            dist.all_reduce(mean)
        losses.append(float(mean) / world)
    return losses


def rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    ids = torch.randint(0, VOCAB, (4, 8), generator=torch.Generator().manual_seed(1))
    losses_of = {}
    for spec in SPECS:
        model = build(spec)
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        losses = train(model, ids)
        interface_of(model).check()
        losses_of[spec] = losses
    if rank == 0:
        Path(folder, "two.json").write_text(json.dumps(losses_of))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may outlive the group, and then abort the interpreter as it ends


def main(folder: str) -> None:
    torch.set_num_threads(1)
    mp.spawn(rank_main, args=(folder,), nprocs=2)
    two = json.loads(Path(folder, "two.json").read_text())
    ids = torch.randint(0, VOCAB, (4, 8), generator=torch.Generator().manual_seed(1))
    print(json.dumps({spec: {"one": train(build(spec), ids), "two": two[spec]} for spec in SPECS}))


if __name__ == "__main__":
    main(sys.argv[1])
