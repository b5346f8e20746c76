"""Helper of test_ranks: one scenario after another on forked ranks. Prints one JSON line.

python tests/train_on_ranks.py DATASET DATASET_3071 FOLDER
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from tests import PATIENCE, ranks
from tests.conftest import tiny_study
from tokencodes import checkpoint
from tokencodes.data.dataset import Dataset
from tokencodes.files import read_json, read_json_lines
from tokencodes.parallel import local
from tokencodes.train.config import RunConfig
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent, StepRecord
from tokencodes.train.run import train
from tokencodes.train.stop import Stop

Hook = Callable[[Trainer, int], None]


def config(dataset: Path, arm: str = "learned", **sections: Any) -> RunConfig:
    """Eight steps of four windows, so that one, two and four ranks can share them."""
    settings = {
        "batch": {
            "global_batch_size": 4,
            "micro_batch_size": 1,
            "streams": 2,
            "windows_per_visit": 4,
        },
        **sections,
    }
    vocabulary = Dataset(dataset).vocab_size
    return tiny_study(
        dataset, data={"dataset": str(dataset), "vocab_size": vocabulary}, **settings
    ).run(arm, 1)


def trained(
    run: RunConfig, out: Path, hook: Hook = lambda trainer, rank: None
) -> Callable[[int], object]:
    """What a rank does: the run to its end; its losses and a hash of the whole weights."""

    def work(rank: int) -> object:
        trainer = Trainer(run, Dataset(Path(run.data.dataset)), out, Silent())
        hook(trainer, rank)
        begin = whole_sha256(trainer)
        done = trainer.run()
        return {
            "done": done,
            "step": trainer.state.step,
            "begin": begin,
            "end": whole_sha256(trainer),
        }

    return work


def whole_sha256(trainer: Trainer) -> str:
    """Of every parameter and buffer, gathered."""
    whole = get_model_state_dict(trainer.model, options=StateDictOptions(full_state_dict=True))
    return hashlib.sha256(
        b"".join(value.numpy().tobytes() for _, value in sorted(whole.items()))
    ).hexdigest()


def losses(out: Path, key: str = "loss") -> list[Any]:
    return [line[key] for line in read_json_lines(out / "metrics.jsonl") if line["kind"] == "step"]


def other(out: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in read_json_lines(out / "metrics.jsonl") if line["kind"] == kind]


def engines(dataset: Path, odd: Path, folder: Path) -> dict[str, Any]:
    """The same run on other numbers of ranks and other engines: losses, gradient norms, held-out
    losses, scales.
    """
    outcomes: dict[str, Any] = {}
    cases: dict[str, tuple[int, int | None, dict[str, Any]]] = {
        "one": (1, None, {}),
        "full": (2, None, {}),
        "replicate": (2, None, {"sharding": "replicate"}),
        "hybrid": (4, 2, {"sharding": "hybrid"}),
        "recompute": (1, None, {"activation_checkpoint_every": 1}),
        "recompute, sharded": (2, None, {"activation_checkpoint_every": 2}),
        "compile, sharded": (2, None, {"compile": True}),
        "torch head": (1, None, {"loss_kernel": "torch"}),
        "autocast": (1, None, {"precision": "bf16-autocast"}),
        "autocast, sharded": (
            2,
            None,
            {"precision": "bf16-autocast", "activation_checkpoint_every": 1},
        ),
        "bf16 parameters": (1, None, {"precision": "bf16-parameters"}),
        "bf16 parameters, sharded": (2, None, {"precision": "bf16-parameters"}),
    }
    for arm in ("learned", "gf2"):
        for name, (count, here, engine) in cases.items():
            if arm == "gf2" and name not in ("one", "full", "autocast, sharded", "bf16 parameters"):
                continue
            place = folder / arm / name.replace(" ", "-").replace(",", "")
            results = ranks.run(count, trained(config(odd, arm, engine=engine), place), here)
            outcomes.setdefault(arm, {})[name] = {
                "ranks": results,
                "losses": losses(place),
                "norms": losses(place, "grad_norm_parts"),
                "heldout": [line["loss"] for line in other(place, "heldout")],
                "scales": [
                    (line["update_ratios"], line["hidden_scales"])
                    for line in other(place, "scales")
                ],
            }
    return outcomes


def world_sizes(dataset: Path, odd: Path, folder: Path) -> dict[str, Any]:
    """Saved at two ranks, taken up at one, two and four."""
    run, outcomes = config(odd, "gf2", checkpoint={"interval_steps": 2, "keep_latest": 9}), {}

    def stop(trainer: Trainer, rank: int) -> None:
        # one rank alone is asked
        after(trainer, 4, lambda: setattr(trainer.stop, "requested", rank == 1))

    for count in (2, 1, 4):
        out = folder / str(count)
        saved = ranks.run(2, trained(run, out, stop))
        went_on = ranks.run(count, trained(run, out))
        outcomes[str(count)] = {"saved": saved, "went_on": went_on, "losses": losses(out)}
    return outcomes


def after(trainer: Trainer, step: int, act: Callable[[], object]) -> None:
    """Lets a rank act once it has done a step, before it is asked whether to stop."""
    train_step = trainer.train_step

    def stepped(loader: Any) -> StepRecord:
        record = train_step(loader)
        if record.step == step:
            act()
        return record

    trainer.train_step = stepped  # type: ignore[method-assign]


def not_finite(dataset: Path, odd: Path, folder: Path) -> dict[str, Any]:
    """A NaN on the second rank alone: in what it reads (a batch whose loss is NaN), in a weight, in
    a gradient.
    """

    def spoil(kind: str) -> Hook:
        def hook(trainer: Trainer, rank: int) -> None:
            if rank == 1:
                after(trainer, 3, lambda: _spoil(trainer, kind))

        return hook

    outcomes = {}
    for kind in ("batch", "weight", "gradient"):
        out = folder / kind
        results = ranks.run(2, trained(config(odd, "learned"), out, spoil(kind)))
        whole = checkpoint.checkpoints(out / "checkpoints")
        assert whole, f"{kind}: no checkpoint; the ranks: {results}"
        outcomes[kind] = {
            "ranks": results,
            "file": (
                read_json(out / "nonfinite.json") if (out / "nonfinite.json").is_file() else None
            ),
            "steps": len(losses(out)),
            "newest": checkpoint.step_of(whole[0]),
        }
    return outcomes


def _spoil(trainer: Trainer, kind: str) -> None:
    model, loss = trainer.model, trainer.model.loss
    if kind == "weight":
        with torch.no_grad():
            local(model.model.layers[1].mlp.up_proj.weight).view(-1)[0] = float("nan")
    elif kind == "batch":
        calls = []

        def spoiled(*args: Any, **kwargs: Any) -> torch.Tensor:
            calls.append(1) if torch.is_grad_enabled() else None
            # its second micro batch
            return loss(*args, **kwargs) * (float("nan") if len(calls) % 2 == 0 else 1.0)

        model.loss = spoiled
    else:
        model.model.layers[0].register_forward_hook(
            lambda module, inputs, output: _poisoned(output)
        )


def _poisoned(output: torch.Tensor) -> None:
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient * float("nan"))


def lost(dataset: Path, odd: Path, folder: Path) -> dict[str, Any]:
    """A rank that is killed in the midst, and one that hangs."""
    outcomes = {}
    for name, number in (("killed", signal.SIGKILL), ("hangs", signal.SIGSTOP)):
        run = config(odd, "learned", engine={"timeout_seconds": 8.0}, budget={"tokens": 10**6})
        pids = ranks.start(2, trained(run, folder / name, lambda trainer, rank: None))
        wait_for(folder / name / "metrics.jsonl", '"step": 5')
        pids[1].kill(number)
        outcomes[name] = {"first": ranks.wait(pids[:1])[0]}
        if number == signal.SIGSTOP:
            pids[1].kill()
        ranks.wait(pids[1:])
        outcomes[name]["damage"] = [
            checkpoint.damage(path)
            for path in checkpoint.checkpoints(folder / name / "checkpoints")
        ]
    return outcomes


def wait_for(path: Path, text: str, seconds: float = PATIENCE) -> None:
    """Until a file holds a text."""
    end = time.monotonic() + seconds
    while not (path.is_file() and text in path.read_text()):
        if time.monotonic() > end:
            raise TimeoutError(f"{path} never held {text}")
        time.sleep(0.02)


def signalled(dataset: Path, odd: Path, folder: Path) -> dict[str, Any]:
    """SIGTERM to one rank alone: both save, at the same step, and the run ends as the undisturbed
    one does.
    """
    run = config(odd, "gf2", budget={"tokens": 30 * 64})
    undisturbed = ranks.run(2, trained(run, folder / "undisturbed"))

    def listening(rank: int) -> object:
        with Stop().listen() as stop:
            result = train(run, Dataset(odd), folder / "run", Silent(), stop)
        return {"done": result is not None}

    children = ranks.start(2, listening)
    wait_for(folder / "run" / "metrics.jsonl", '"step": 3')
    children[1].kill(signal.SIGTERM)
    stopped = ranks.wait(children)
    step = checkpoint.step_of(checkpoint.find(folder / "run"))
    went_on = ranks.run(2, trained(run, folder / "run"))
    return {"undisturbed": undisturbed, "stopped": stopped, "step": step, "went_on": went_on}


def in_background(dataset: Path, odd: Path, folder: Path) -> dict[str, Any]:
    """Checkpoints written by a thread, with models beside those that stay; at the end the same
    bits.
    """
    saves = {"interval_steps": 2, "keep_latest": 2, "keep_interval_steps": 4, "export_hf": True}
    outcomes = {}
    for background in ("no", "yes"):
        run = config(odd, "learned", checkpoint={**saves, "async_save": background})
        out = folder / background
        results = ranks.run(2, trained(run, out))
        outcomes[background] = {
            "ranks": results,
            "checkpoints": [path.name for path in checkpoint.checkpoints(out / "checkpoints")],
            "damage": [
                checkpoint.damage(path) for path in checkpoint.checkpoints(out / "checkpoints")
            ],
            "models": sorted(path.name for path in (out / "models").iterdir()),
            "threads": threading.active_count(),
        }
    return outcomes


SCENARIOS = (engines, world_sizes, not_finite, lost, signalled, in_background)


def main(dataset: Path, odd: Path, folder: Path, names: list[str]) -> None:
    outcomes = {}
    for scenario in SCENARIOS:
        if not names or scenario.__name__ in names:
            began = time.monotonic()
            outcomes[scenario.__name__] = scenario(dataset, odd, folder / scenario.__name__)
            print(
                f"{scenario.__name__}: {time.monotonic() - began:.1f} s",
                file=sys.stderr,
                flush=True,
            )
    print(json.dumps(outcomes))


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
