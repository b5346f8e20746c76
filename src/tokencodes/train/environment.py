"""What the numbers of a run were computed with, and how much memory that took."""

import ctypes
import platform
import resource
import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch
import transformers

from tokencodes.loss import choose_kernel
from tokencodes.parallel import World
from tokencodes.train.build import matmul_dtype
from tokencodes.train.config import EngineConfig

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of getrusage, in bytes


def environment(world: World, engine: EngineConfig) -> dict[str, str | int]:
    """Versions, machine, device and engine."""
    gpu = world.device.type == "cuda"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processor": torch.cuda.get_device_name(world.device) if gpu else _processor(),
        "threads": torch.get_num_threads(),
        "device": world.device.type,
        "dtype": engine.precision,
        "ranks": world.ranks,
        "sharding": engine.sharding if world.ranks > 1 else "none",
        "activation_checkpoint_every": engine.activation_checkpoint_every,
        "compile": int(engine.compile),
        "loss_kernel": choose_kernel(engine.loss_kernel, world.device.type, matmul_dtype(engine)),
    }


def memory_bytes(device: torch.device) -> int:
    """The most that this process has held so far: a GPU's allocated memory, or else resident
    memory.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


@cache
def keep_freed_memory() -> None:
    """Lets glibc keep what a step frees for the next one, instead of giving it back to the system
    and asking for it anew.

    Fresh memory comes page by page and zeroed, at about 2 GB/s: for the activations of a step that
    is several hundredths of its time. With nothing mapped apart, less is lost between blocks too.
    Elsewhere than on glibc, nothing is done.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
