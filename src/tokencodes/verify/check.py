"""One line of a certificate, and the token ids that measurements are made on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from tokencodes.interfaces.base import BLOCK_ENTRIES
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.philox import multiply_high, stream

Status = Literal["holds", "fails", "not applicable", "not shown"]
Scope = Literal["proven for all inputs", "measured on these inputs", "not applicable", "not shown"]
PROVEN: Scope = "proven for all inputs"
MEASURED: Scope = "measured on these inputs"

SEQUENCES = 6
LONGEST = 64
ROUNDOFF = 2.0**-24  # of float32


@dataclass(frozen=True)
class Check:
    """What was looked at, whether it holds, for which inputs, and what was found."""

    level: str  # L0 code, L1 structure, L2 reference, L3 production dtype, L4 decoding, L5 replay
    name: str
    status: Status
    scope: Scope
    detail: str


@dataclass(frozen=True)
class Subject:
    """A model and the folder that it came from."""

    model: TokenCodeForCausalLM
    place: Path


def row_not_finite(tensor: torch.Tensor) -> int | None:
    """The first row of a tensor with NaN or infinity in it; None: every entry is finite. A block of
    entries at a time.
    """
    if not tensor.numel():
        return None
    table = tensor.reshape(len(tensor), -1)
    rows = max(1, BLOCK_ENTRIES // table.shape[1])
    for start in range(0, len(table), rows):
        wrong = ~torch.isfinite(table[start : start + rows]).all(1)
        if wrong.any():
            return start + int(wrong.nonzero()[0])
    return None


def check(level: str, name: str, scope: Scope, holds: bool, detail: str) -> Check:
    """A check that was made."""
    return Check(level, name, "holds" if holds else "fails", scope, detail)


def not_applicable(level: str, name: str, why: str) -> Check:
    """A check that has no meaning for this model."""
    return Check(level, name, "not applicable", "not applicable", why)


def not_shown(level: str, name: str, why: str) -> Check:
    """Something a reader might expect, and that this certificate does not say."""
    return Check(level, name, "not shown", "not shown", why)


def drawn_ids(model: TokenCodeForCausalLM) -> torch.Tensor:
    """The token ids that measurements of a model are made on."""
    return ids_drawn(model.config.vocab_size, model.config.max_position_embeddings)


def ids_drawn(size: int, context: int) -> torch.Tensor:
    """Token ids int64[N, T], uniform over the vocabulary by a fixed seed; the first row begins with
    ids 0 and V-1.
    """
    length = min(LONGEST, context)
    ids = (
        multiply_high(stream(0, "verify", SEQUENCES * length), size)
        .astype(np.int64)
        .reshape(SEQUENCES, length)
    )
    ids[0, :2] = (0, size - 1)[: len(ids[0, :2])]
    return torch.from_numpy(ids)
