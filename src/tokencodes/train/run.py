"""One run from the first update to its result: the folder that belongs to it, its training, and what it leaves."""

import math
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tokencodes.data.dataset import Corpus, Dataset
from tokencodes.data.prepare import Say
from tokencodes.errors import InputError
from tokencodes.files import LOCK, only_one, read_json, write_json
from tokencodes.parallel import World, join
from tokencodes.train.config import DataConfig, RunConfig
from tokencodes.train.corpus import check_folder, open_dataset, open_prepared
from tokencodes.train.environment import keep_freed_memory, memory_bytes, surroundings
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Observer
from tokencodes.train.stop import Stop


def finish(trainer: Trainer) -> dict[str, Any]:
    """After the last update: the model as a Hugging Face folder, and result.json, whose presence means "done"."""
    config, state, held_out, world = trainer.config, trainer.state, trainer.held_out, trainer.world
    trainer.export(trainer.out / "model")
    loss = trainer.held_out_loss()
    result = {
        "arm": config.arm,
        "seed": config.seed,
        "interface": trainer.model.config.interface,
        "spec_sha256": trainer.model.config.spec_sha256,
        "codebook_sha256": trainer.model.config.codebook_sha256,
        "updates": state.update,
        "targets": state.targets,
        "held_out_loss": loss,
        "bits_per_byte": held_out.bits_per_byte(loss),
        "perplexity": math.exp(loss),
        "held_out_targets": held_out.targets,
        "held_out_bytes": held_out.target_bytes,
        "held_out_sha256": held_out.sha256,
        "start_sha256": state.start_sha256,
        "windows_sha256": state.windows_sha256,
        "dataset_fingerprint": trainer.dataset.fingerprint,
        "seconds": state.seconds,
        "process_peak_rss_bytes": max(world.gather(memory_bytes(world.device))),
        "environment": surroundings(world, config.engine),
    }
    world.on_first(lambda: write_json(trainer.out / "result.json", result))
    return result


def open_together(config: DataConfig, folder: Path, say: Say, world: World) -> Corpus:
    """`open_dataset` by the first rank, which prepares what must be; the others open what it found."""
    mine = world.own_first(lambda: open_dataset(config, folder, say))
    if mine is not None:
        return mine
    return open_prepared(config) if config.dataset is not None or config.mixture else Dataset(folder / "data")


def train(
    run: RunConfig, dataset: Corpus, out: Path, observer: Observer, stop: Stop | None = None, world: World | None = None
) -> dict[str, Any] | None:
    """One run to its end: its result, or None if it was stopped (repeating the call goes on). Where there are several ranks,
    all of them call it."""
    world = world or join(run.engine.device)
    if world.device.type == "cpu":
        keep_freed_memory()
    with ExitStack() as held:
        world.on_first(lambda: _hold(held, out, run))
        kept = world.on_first(lambda: _kept_result(out, run, dataset))
        if kept is not None:
            return kept
        try:
            trainer = Trainer(run, dataset, out, observer, stop, world=world)
        except InputError:
            if world.first and [path.name for path in out.iterdir()] == [LOCK]:
                shutil.rmtree(out)  # nothing was begun, so nothing is left
            raise
        with world.together():
            return finish(trainer) if trainer.run() else None


def _hold(held: ExitStack, out: Path, run: RunConfig) -> None:
    check_folder(out, run)
    held.enter_context(only_one(out))
    check_folder(out, run)  # again: another program may have been here before the lock was ours


def _kept_result(out: Path, run: RunConfig, dataset: Corpus) -> dict[str, Any] | None:
    """The result of a finished run, if it is this run's on this dataset; None if there is none yet."""
    if not (out / "result.json").is_file():
        return None
    result = read_json(out / "result.json")
    expected = {"arm": run.arm, "seed": run.seed, "dataset_fingerprint": dataset.fingerprint}
    for key, wanted in expected.items():
        found = result.get(key) if isinstance(result, dict) else None
        if found != wanted:
            raise InputError(f"{out}/result.json: its {key} is {found!r}, not {wanted!r}; remove the folder and train it again")
    kept: dict[str, Any] = result
    return kept
