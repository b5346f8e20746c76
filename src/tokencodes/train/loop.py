"""The updates of one run, from its configuration to its last checkpoint.

Update u takes the windows [u·G, (u+1)·G) of the sampler, so a run is a pure function of its configuration and dataset:
stopped anywhere and repeated, it ends in the same bits (float32, one machine, one thread count).
"""

import hashlib
import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import numpy as np
import torch

from tokencodes import checkpoint
from tokencodes.checkpoint import Stage, TrainState
from tokencodes.data.dataset import Corpus
from tokencodes.data.loader import Loader, rank_indices
from tokencodes.data.windows import HeldOut, held_out_windows, read_windows
from tokencodes.errors import CheckFailed, InputError
from tokencodes.files import write_json
from tokencodes.init import initialise
from tokencodes.loss import IGNORE, inputs_and_targets
from tokencodes.train.build import body_sha256, build_model, sampler_of
from tokencodes.train.config import RunConfig, log_spaced
from tokencodes.train.corpus import foreign
from tokencodes.train.heldout import held_out_loss, window_loss
from tokencodes.train.interface import settle
from tokencodes.train.metrics import HeldOutRecord, MetricsFile, Observer, ScalesRecord, StepRecord
from tokencodes.train.observe import hidden_scales, norms, part_norms, update_ratios
from tokencodes.train.optimizer import build_optimizer, learning_rate
from tokencodes.train.settings import difference, read_run, write_run

REPLAY_TARGETS = 256  # whose losses a checkpoint keeps one by one


@dataclass
class Stop:
    """Set by Ctrl-C or SIGTERM, read at update boundaries."""

    asked: bool = False

    @contextmanager
    def listen(self) -> Iterator["Stop"]:
        """The first signal asks for a stop at the next boundary; a second Ctrl-C ends the program as usual."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.asked = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
            print("stopping at the next update; Ctrl-C again ends at once", file=sys.stderr, flush=True)

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class NonFinite(CheckFailed):
    """A loss or a gradient that is not finite, with what was computed."""

    def __init__(self, message: str, loss: float, grad_norm: float, grad_norm_parts: dict[str, float]) -> None:
        super().__init__(message)
        self.loss, self.grad_norm, self.grad_norm_parts = loss, grad_norm, grad_norm_parts


def check_folder(out: Path, run: RunConfig) -> None:
    """A folder belongs to one configuration for good; InputError if it holds another run, or something else."""
    saved = out / "config.toml"
    if saved.is_file():
        differs = difference(read_run(saved), run)
        if differs:
            raise InputError(f"{out}: made from another configuration ({differs}); choose another --out")
    elif out.is_dir() and foreign(out):
        raise InputError(f"{out}: neither empty nor a run's folder (it holds {foreign(out)}); choose another --out")


def as_tensor(ids_NT1: np.ndarray) -> torch.Tensor:
    """Ids as a tensor, where there is a GPU in memory that it can fetch from by itself."""
    ids = torch.from_numpy(ids_NT1)
    return ids.pin_memory() if torch.cuda.is_available() else ids


class Trainer:
    """One run: model, optimizer, data and counters. `run()` trains it to its budget, or to a stop."""

    def __init__(
        self,
        run: RunConfig,
        dataset: Corpus,
        out: Path,
        observer: Observer,
        stop: Stop | None = None,
        on_stage: Stage = lambda name: None,
    ) -> None:
        dataset.require(run.data.vocab_size)
        self.config, self.dataset, self.out, self.observer = run, dataset, out, observer
        self.stop, self.on_stage = stop or Stop(), on_stage
        check_folder(out, run)
        self.shards = dataset.shards("train")
        self.sampler = sampler_of(run, dataset)
        self.held_out: HeldOut = held_out_windows(dataset, run.model.context, run.heldout.windows)
        out.mkdir(parents=True, exist_ok=True)
        write_run(out / "config.toml", run)
        self.model = build_model(run, *settle(run.interface, dataset)).train()
        self.model.config.tokenizer_sha256 = dataset.tokenizer_sha256
        end = dataset.tokenizer.end_of_text
        for config in (self.model.config, self.model.generation_config):
            config.bos_token_id = config.eos_token_id = end
        initialise(self.model, run.seed)
        self.optimizer = build_optimizer(self.model, run.optimizer)
        self.state = TrainState(0, 0, 0.0, dataset.fingerprint, dataset.tokenizer_sha256, start_sha256=body_sha256(self.model))
        self.last_ids = np.empty((0, run.model.context + 1), dtype=np.int64)
        self._measured: tuple[int, float] | None = None  # update and held-out loss
        self._resume()

    def _resume(self) -> None:
        newest = checkpoint.newest_intact(self.out / "checkpoints", self.observer.say)
        if newest is None:
            if checkpoint.checkpoints(self.out / "checkpoints"):
                raise InputError(f"{self.out}/checkpoints: none is whole; remove that folder to begin the run again")
            return
        told = checkpoint.read_state(newest)
        if told.dataset_fingerprint != self.dataset.fingerprint:
            raise InputError(
                f"{newest}: trained on another dataset (fingerprint {told.dataset_fingerprint[:12]}, here "
                f"{self.dataset.fingerprint[:12]}); give that dataset, or choose another --out"
            )
        self.state = checkpoint.restore(newest, self.model, self.optimizer)
        self.last_ids = np.load(newest / "last_update.npy")

    def window_ids(self, update: int) -> np.ndarray:
        """The ids int64[G, T + 1] that update 0, 1, ... takes."""
        return read_windows(self.shards, self.sampler, rank_indices(update, self.config.batch.windows_per_update))

    def run(self) -> bool:
        """Trains until the budget or a stop; True if the budget was reached. Every stop leaves a checkpoint."""
        config, each = self.config, self.sampler.targets_per_window
        updates = math.ceil(config.budget.targets / (config.batch.windows_per_update * each))
        if updates != config.updates and self.state.update == 0:
            self.observer.say(
                f"{config.arm} seed {config.seed}: {each:.0f} of {config.model.context} targets a window on average, so the "
                f"budget takes about {updates:,} updates; the schedule is of {config.optimizer.schedule_updates:,}"
            )
        metrics = MetricsFile(self.out / "metrics.jsonl", self.state.update)
        self.observer.begin(f"{config.arm} seed {config.seed}", self.state.update, updates)
        if self.state.update:
            self.observer.say(f"{config.arm} seed {config.seed}: going on after update {self.state.update}")
        loader = Loader(self.shards, self.sampler, config.batch.windows_per_update, as_tensor)
        try:
            if self.state.update == 0:
                self._measure(metrics)
            while self.state.targets < config.budget.targets and not self.stop.asked:
                record = self.step(loader)
                metrics.write(record)
                self.observer.record(record)
                if log_spaced(record.update):
                    self._look(metrics)
                done = self.state.targets >= config.budget.targets
                if done or (config.heldout.every and record.update % config.heldout.every == 0):
                    self._measure(metrics)
                if done or self.stop.asked or config.checkpoint.due(record.update):
                    self._save()
        finally:
            loader.close()
            metrics.close()
            self.observer.end()
        return self.state.targets >= config.budget.targets

    def step(self, loader: Loader[torch.Tensor]) -> StepRecord:
        """One update: forward and backward of every microbatch, clip, step. Nothing non-finite reaches the weights."""
        config, began = self.config, time.perf_counter()
        windows = loader[self.state.update]
        ids = windows.numpy()
        targets = int((windows[:, 1:] != IGNORE).sum())
        loss = 0.0
        for part in windows.split(config.batch.microbatch_windows):
            part_loss = self.model.loss(*inputs_and_targets(part), num_targets=targets)
            part_loss.backward()
            loss += float(part_loss.detach())
        norm_of = norms({name: p.grad for name, p in self.model.named_parameters() if p.grad is not None})
        total = torch.linalg.vector_norm(torch.stack(list(norm_of.values())))
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), config.optimizer.clip, total)
        norm = float(total)
        if not math.isfinite(loss) or not math.isfinite(norm):
            self._refuse(loss, norm, norm_of)
        lr = learning_rate(self.state.update, config.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - began
        self.state = replace(
            self.state,
            update=self.state.update + 1,
            targets=self.state.targets + targets,
            seconds=self.state.seconds + seconds,
            windows_sha256=hashlib.sha256(self.state.windows_sha256.encode() + ids.astype("<i8").tobytes()).hexdigest(),
            last_loss=loss,
        )
        self.last_ids = ids
        return StepRecord(self.state.update, self.state.targets, loss, lr, norm, seconds, part_norms(norm_of))

    def _refuse(self, loss: float, norm: float, norm_of: dict[str, torch.Tensor]) -> NoReturn:
        """Stops at an update that must not reach the weights, and leaves what there is to look at."""
        update, size = self.state.update + 1, self.config.batch.windows_per_update
        parts = part_norms(norm_of)
        wrong = [name for name, value in norm_of.items() if not math.isfinite(value)]
        first, last = (update - 1) * size, update * size - 1
        told = {
            "update": update,
            "loss": str(loss),  # as text: JSON has no word for what is not finite
            "grad_norm_parts": {part: str(value) for part, value in parts.items()},
            "windows": [first, last],
            "parameters_without_a_finite_gradient": wrong,
        }
        write_json(self.out / "nonfinite.json", told)
        raise NonFinite(
            f"{self.out}: loss {loss} and gradient norm {norm} in update {update} (windows {first} to "
            f"{last}); they never reached the weights. See nonfinite.json there; the same command with "
            f"--replay {update} computes it again, `tokencodes ledger` names its documents; or lower optimizer.peak_lr",
            loss,
            norm,
            parts,
        )

    def held_out_loss(self) -> float:
        """Held-out loss of the weights as they are, computed once for each update."""
        if self._measured is None or self._measured[0] != self.state.update:
            loss = held_out_loss(self.model, self.held_out, self.config.batch.microbatch_windows)
            self._measured = self.state.update, loss
        return self._measured[1]

    def _look(self, metrics: MetricsFile) -> None:
        """What is looked at only now and then, on held-out windows, so that no training window is read twice."""
        lr = float(self.optimizer.param_groups[0]["lr"])
        ids = inputs_and_targets(torch.from_numpy(self.held_out.ids_NT1[: self.config.batch.microbatch_windows]))[0]
        ratios = update_ratios(self.model, self.optimizer, lr)
        metrics.write(ScalesRecord(self.state.update, ratios, hidden_scales(self.model, ids)))

    def _measure(self, metrics: MetricsFile) -> None:
        record = HeldOutRecord(self.state.update, self.state.targets, self.held_out_loss())
        if not math.isfinite(record.loss):
            raise CheckFailed(
                f"{self.out}: held-out loss {record.loss} after update {record.update}, whose own loss was finite; the weights "
                "have gone too far. Lower optimizer.peak_lr, or go on from an earlier checkpoint"
            )
        metrics.write(record)
        self.observer.record(record)

    def _save(self) -> None:
        ids = torch.from_numpy(self.last_ids)
        replay = window_loss(self.model, ids, self.config.batch.microbatch_windows)
        first = ids[:1, : REPLAY_TARGETS + 1]
        targets = tuple(self.model.target_losses(*inputs_and_targets(first))[0].tolist())
        self.state = replace(self.state, replay_loss=replay, replay_targets=targets)
        folder, told = self.out / "checkpoints", self.config.checkpoint
        checkpoint.save(folder, self.model, self.optimizer, self.state, self.last_ids, told.keep, self.on_stage, told.stays)
