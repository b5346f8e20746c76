"""Helper of test_checkpoint: trains in forked children that kill themselves at one stage of a save.
Prints one JSON line.

    python tests/kill_at_stages.py DATASET FOLDER STAGE...

Forking after the imports makes each child cheap; no tensor is computed before the forks.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from tests.conftest import tiny_study
from tokencodes import checkpoint
from tokencodes.data.dataset import Dataset
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent

KILLED_SAVE = 3


def child(work: Callable[[], object]) -> tuple[bool, object]:
    """Runs `work` in a forked process: (whether it was killed, what it returned)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        torch.set_num_threads(1)
        result = json.dumps(work())
        os.write(writer, result.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status), json.loads(text) if text else None


def run(dataset: Path, out: Path, on_stage: Callable[[str], None] = lambda name: None) -> str:
    """Trains to the end; returns a hash of every weight."""
    trainer = Trainer(
        tiny_study(dataset).run("gf2", 1), Dataset(dataset), out, Silent(), on_stage=on_stage
    )
    trainer.run()
    digest = hashlib.sha256()
    for name, value in sorted(trainer.model.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


def killer(stage: str) -> Callable[[str], None]:
    """Kills this process the KILLED_SAVE-th time that the stage comes up (the first `removing` is
    already in that save).
    """
    seen = 0

    def on_stage(name: str) -> None:
        nonlocal seen
        seen += name == stage
        if name == stage and seen == (1 if stage == "removing" else KILLED_SAVE):
            os.kill(os.getpid(), signal.SIGKILL)

    return on_stage


def state_after_kill(out: Path) -> dict[str, object]:
    """What a kill left: the newest whole checkpoint, and whether any that looks finished is
    damaged.
    """
    folder = out / "checkpoints"
    damages = [checkpoint.damage(path) for path in checkpoint.checkpoints(folder)]
    newest = checkpoint.newest_intact(folder, lambda line: None)
    step = checkpoint.read_state(newest).step if newest else None
    return {"step": step, "damage": next((d for d in damages if d), None)}


def main(dataset: Path, folder: Path, stages: list[str]) -> None:
    _, undisturbed = child(lambda: run(dataset, folder / "undisturbed"))
    outcomes: dict[str, object] = {}
    for stage in stages:
        out = folder / stage
        killed, _ = child(lambda out=out, stage=stage: run(dataset, out, killer(stage)))
        left = state_after_kill(out)
        _, weights = child(lambda out=out: run(dataset, out))
        leftovers = [path.name for path in (out / "checkpoints").glob(".tmp-*")]
        outcomes[stage] = {"killed": killed, **left, "weights": weights, "leftovers": leftovers}
    print(json.dumps({"undisturbed": undisturbed, "stages": outcomes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
