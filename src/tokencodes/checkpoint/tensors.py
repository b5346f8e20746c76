"""The tensors of a checkpoint: which there are, and the files of a rank's parts of them.

torch.distributed.checkpoint plans who writes and who reads which part. The files are safetensors
files. Their headers say which parts they hold, in torch's own way, so `HuggingFaceStorageReader`
reads them at any number of ranks. Nothing is pickled.
"""

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from tokencodes.model import TokenCodeForCausalLM

MODEL = "model."  # before the names of a model's weights
NAMES = {  # of element types, in the header of a safetensors file
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def file_name(rank: int) -> str:
    """Of a rank's file."""
    return f"rank-{rank:05d}.safetensors"


def tensors_of(
    model: TokenCodeForCausalLM, optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """What is stored in `tensors/`, by name: saving writes it."""
    with quiet():
        model_state, optimizer_state = get_state_dict(model, optimizer)
    return named(model_state, optimizer_state["state"])


def named(model_state: dict[str, Any], optimizer_state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of both states and of the generator, under the names that they have in a
    checkpoint.

    The settings of the optimizer's groups are not among them: they come from the run's
    configuration.
    """
    return {
        **{f"{MODEL}{name}": tensor for name, tensor in model_state.items()},
        **{
            f"optimizer.{name}.{key}": value
            for name, state in optimizer_state.items()
            for key, value in state.items()
        },
        "generator": torch.get_rng_state(),
    }


class TensorWriter(HuggingFaceStorageWriter):
    """Writes a rank's parts of all tensors into one file, a tensor after the other. torch's own
    would put the file together in memory first, which takes the memory of the tensors once more.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Called by `dcp.save` on each rank. OSError: the disk is full, or worse."""
        parts = {item.index.fqn: planner.resolve_data(item).detach() for item in plan.items}
        offsets = {
            item.index.fqn: {"saved_offsets": list(item.tensor_data.chunk.offsets)}
            for item in plan.items
        }
        if parts:
            rank = plan.storage_data["shard_index"] - 1
            _write(Path(self.path) / file_name(rank), parts, offsets)
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done


def _write(file: Path, parts: dict[str, torch.Tensor], offsets: dict[str, Any]) -> None:
    """A safetensors file. offsets: where each part begins in its whole tensor."""
    # so each begins at a multiple of its element's size
    names = sorted(parts, key=lambda name: -parts[name].element_size())
    notes = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
    header: dict[str, Any] = {"__metadata__": notes}
    end = 0
    for name in names:
        part = parts[name]
        begin, end = end, end + part.numel() * part.element_size()
        header[name] = {
            "dtype": NAMES[part.dtype],
            "shape": list(part.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            stream.write(parts[name].cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's warnings that a single process is no process group."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
