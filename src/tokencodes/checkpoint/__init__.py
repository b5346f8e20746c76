"""A checkpoint is a directory that appears at once, and is believed only if every byte of it is
what was written.

`layout` says what lies in one, `tensors` which tensors, `write` makes it, `read` takes it up again,
`origin` says which run it belongs to. It stands outside `train` because `verify`, `evaluate` and
`export` read checkpoints and must not know the trainer.
"""

from tokencodes.checkpoint.layout import (
    TrainState,
    checkpoints,
    damage,
    find,
    newest_intact,
    read_last_ids,
    read_replay,
    read_state,
    step_of,
    write_replay,
)
from tokencodes.checkpoint.origin import Origin, origin_of, run_folder, tokenizer_of
from tokencodes.checkpoint.read import load_model, restore, weights_sha256
from tokencodes.checkpoint.tensors import tensors_of
from tokencodes.checkpoint.write import (
    CheckpointPolicy,
    Content,
    Stage,
    Writer,
    remove_leftovers,
    tidy,
    write,
)

__all__ = [
    "CheckpointPolicy",
    "Content",
    "Origin",
    "Stage",
    "TrainState",
    "Writer",
    "checkpoints",
    "damage",
    "find",
    "load_model",
    "newest_intact",
    "origin_of",
    "read_last_ids",
    "read_replay",
    "read_state",
    "remove_leftovers",
    "restore",
    "run_folder",
    "step_of",
    "tensors_of",
    "tidy",
    "tokenizer_of",
    "weights_sha256",
    "write",
    "write_replay",
]
