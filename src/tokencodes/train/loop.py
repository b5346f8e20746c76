"""The steps of one run, from its configuration to its last checkpoint.

Step u takes the windows [u·G, (u+1)·G) of the sampler, so a run is a pure function of its
configuration and dataset: stopped anywhere and repeated, it ends in the same bits (float32, one
machine, one thread count, one number of ranks). What ranks do otherwise than one process is told in
`parallel`.
"""

import math
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from tokencodes import checkpoint
from tokencodes.checkpoint import CheckpointPolicy, Stage, TrainState, Writer
from tokencodes.data.dataset import Corpus
from tokencodes.data.loader import Loader, rank_indices
from tokencodes.data.windows import HeldOut, chained, held_out_windows, read_windows, window_digests
from tokencodes.errors import CheckFailed, InputError
from tokencodes.init import initialise
from tokencodes.loss import IGNORE, inputs_and_targets
from tokencodes.parallel import World, join, reduce_gradients
from tokencodes.train.build import (
    autocast,
    body_sha256,
    build_model,
    matmul_dtype,
    sampler_of,
    shard_and_move,
)
from tokencodes.train.checks import check_memory
from tokencodes.train.config import RunConfig, log_spaced
from tokencodes.train.corpus import check_folder
from tokencodes.train.cost import flops_per_token
from tokencodes.train.diagnostics import (
    clip,
    hidden_scales,
    norms,
    part_norms,
    total_norm,
    update_ratios,
)
from tokencodes.train.environment import environment, memory_bytes
from tokencodes.train.export import write_model
from tokencodes.train.heldout import window_loss
from tokencodes.train.interface import resolve
from tokencodes.train.metrics import (
    HeldOutRecord,
    MetricsFile,
    Observer,
    ScalesRecord,
    Silent,
    StartRecord,
    StepRecord,
    Unwritten,
)
from tokencodes.train.nonfinite import Diverging, HeldOutNotFinite, RefusedStep, find_origin, refuse
from tokencodes.train.optimizer import build_optimizer, learning_rate
from tokencodes.train.peak import matmul_peak
from tokencodes.train.settings import write_run
from tokencodes.train.stop import Stop

REPLAY_TOKENS = 256  # whose losses a checkpoint keeps one by one


def as_tensor(ids_NT1: np.ndarray) -> torch.Tensor:
    """Ids as a tensor, where there is a GPU in memory that it can fetch from by itself."""
    ids = torch.from_numpy(ids_NT1)
    return ids.pin_memory() if torch.cuda.is_available() else ids


class Trainer:
    """One run: model, optimizer, data and counters. `run()` trains it to its budget, or to a stop.

    Where there are several ranks, each has one, and every method is called by all of them together.
    """

    def __init__(
        self,
        run: RunConfig,
        dataset: Corpus,
        out: Path,
        observer: Observer,
        stop: Stop | None = None,
        on_stage: Stage = lambda name: None,
        world: World | None = None,
    ) -> None:
        dataset.require(run.data.vocab_size)
        self.world = world or join(run.engine.device)
        self.config, self.dataset, self.out = run, dataset, out
        self.observer: Observer = observer if self.world.first else Silent()
        self.stop = stop or Stop()
        rank_indices(0, run.batch.global_batch_size, self.world.rank, self.world.ranks)
        self.world.on_first(lambda: check_folder(out, run))
        self.shards = dataset.shards("train")
        self.sampler = sampler_of(run, dataset)
        self.held_out: HeldOut = held_out_windows(
            dataset, run.model.context_length, run.heldout.windows
        )
        check_memory(run, self.world)
        self.model = build_model(run, *resolve(run.interface, dataset)).train()
        self.model.config.tokenizer_sha256 = dataset.tokenizer_sha256
        end = dataset.tokenizer.end_of_text
        for config in (self.model.config, self.model.generation_config):
            config.bos_token_id = config.eos_token_id = end
        initialise(self.model, run.seed)
        start = self._same_everywhere(body_sha256(self.model))
        shard_and_move(self.model, run.engine, self.world)
        self.world.set_timeout(self.model)
        self.optimizer = build_optimizer(self.model, run.optimizer)
        self.state = TrainState(
            dataset_fingerprint=dataset.fingerprint,
            tokenizer_sha256=dataset.tokenizer_sha256,
            start_sha256=start,
        )
        self.last_ids = np.empty((0, run.model.context_length + 1), dtype=np.int64)  # this rank's
        saves = run.checkpoint
        self.policy = CheckpointPolicy(
            out / "checkpoints",
            saves.keep_latest,
            saves.stays,
            on_stage,
            self.observer.say,
            self.world,
        )
        self.writer = Writer(self.policy, saves.aside(self.world.device.type == "cuda"))
        self._measured: tuple[int, float] | None = None  # step and held-out loss
        # FLOP/s of all ranks, measured as the run starts
        self._flops, self._peak = flops_per_token(self.model), 0.0
        self._resume()
        self.world.on_first(self._claim)  # last: what can be refused was refused before

    def _claim(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        write_run(self.out / "config.toml", self.config)

    def _same_everywhere(self, start_sha256: str) -> str:
        digests = self.world.gather(start_sha256)
        if len(set(digests)) > 1:
            raise CheckFailed(
                f"{self.out}: the ranks drew different initial weights"
                f" ({', '.join(digest[:12] for digest in digests)}); use the same PyTorch build on"
                " every node"
            )
        return start_sha256

    def _resume(self) -> None:
        newest = self.world.on_first(self._newest)
        if newest is None:
            if self.world.on_first(lambda: checkpoint.checkpoints(self.policy.folder)):
                raise InputError(
                    f"{self.policy.folder}: none is whole; remove that folder to begin the run"
                    " again"
                )
            return
        saved = checkpoint.read_state(newest)
        if saved.dataset_fingerprint != self.dataset.fingerprint:
            raise InputError(
                f"{newest}: trained on another dataset (fingerprint"
                f" {saved.dataset_fingerprint[:12]}, here {self.dataset.fingerprint[:12]}); give"
                " that dataset, or choose another --out"
            )
        self.go_on_from(newest)

    def _newest(self) -> Path | None:
        folder = self.policy.folder
        checkpoint.remove_leftovers(folder)
        newest = checkpoint.newest_intact(folder, self.observer.say)
        if (
            newest is not None and newest == checkpoint.checkpoints(folder)[0]
        ):  # a damaged later one stays until the next save
            checkpoint.tidy(self.policy, newest)
        return newest

    def go_on_from(self, place: Path) -> None:
        """Takes up the state of one checkpoint."""
        self.state = checkpoint.restore(place, self.model, self.optimizer, self.world)
        size, world = self.config.batch.global_batch_size, self.world
        self.last_ids = checkpoint.read_last_ids(place)[
            rank_indices(0, size, world.rank, world.ranks)
        ]

    def window_ids(self, step: int) -> np.ndarray:
        """The ids int64[G, T + 1] that step 0, 1, ... takes."""
        return read_windows(
            self.shards, self.sampler, rank_indices(step, self.config.batch.global_batch_size)
        )

    def loader(self) -> Loader[torch.Tensor]:
        """The ids of this rank's part of each step."""
        size, world = self.config.batch.global_batch_size, self.world
        return Loader(self.shards, self.sampler, size, as_tensor, world.rank, world.ranks)

    def run(self) -> bool:
        """Trains until the budget or a stop; True if the budget was reached. Every stop leaves a
        checkpoint.
        """
        config, each = self.config, self.sampler.tokens_per_window
        steps = math.ceil(config.budget.tokens / (config.batch.global_batch_size * each))
        name = f"{config.arm} seed {config.seed}"
        if steps != config.steps and self.state.step == 0:
            self.observer.say(
                f"{name}: {each:.0f} of {config.model.context_length} tokens a window on average,"
                f" so the budget takes about {steps:,} steps; the schedule is of"
                f" {config.optimizer.schedule_steps:,}"
            )
        with self.world.together(), ExitStack() as opened:
            file = self.world.own_first(
                lambda: MetricsFile(self.out / "metrics.jsonl", self.state.step)
            )
            metrics = file or Unwritten()
            opened.callback(metrics.close)
            loader = self.loader()
            opened.callback(loader.close)
            self.world.on_first(lambda: self.observer.begin(name, self.state.step, steps))
            if self.state.step:
                self.observer.say(f"{name}: going on after step {self.state.step}")
            try:
                self._steps(metrics, loader)
                self.writer.close()
                self.world.on_first(self.observer.end)
            except BaseException as error:
                # then every rank is still there
                self.writer.close(now=not isinstance(error, Diverging))
                self.observer.end()
                if isinstance(error, InputError) and not self.world.first:
                    # this rank's alone, such as a shard that it cannot read
                    raise CheckFailed(str(error)) from error
                raise
        return self.state.tokens >= config.budget.tokens

    def _steps(self, metrics: MetricsFile | Unwritten, loader: Loader[torch.Tensor]) -> None:
        config, began, start = self.config, self.state.step, self._start()
        metrics.write(start)
        self.observer.record(start)
        if self.state.step == 0:
            self._measure(metrics)
        stopping = self.world.any(self.stop.requested)
        while self.state.tokens < config.budget.tokens and not stopping:
            record = self.train_step(loader)
            metrics.write(record)
            self.observer.record(record)
            if record.step == began + 1:
                self.world.set_timeout(self.model, timedelta(seconds=config.engine.timeout_seconds))
            if log_spaced(record.step):
                self._look(metrics)
            done = self.state.tokens >= config.budget.tokens
            if done or (
                config.heldout.interval_steps and record.step % config.heldout.interval_steps == 0
            ):
                self._measure(metrics)
            stopping = self.world.any(self.stop.requested)
            if done or stopping or config.checkpoint.due(record.step):
                self._save(must=done or stopping)

    def _start(self) -> StartRecord:
        engine, world = self.config.engine, self.world
        self._peak = matmul_peak(world.device, matmul_dtype(engine)) * world.ranks
        return StartRecord(self.state.step, self._peak, environment(world, engine))

    def train_step(self, loader: Loader[torch.Tensor]) -> StepRecord:
        """One step: forward and backward of every micro_batch, clip, step. Nothing non-finite
        reaches the weights.
        """
        config, world, began = self.config, self.world, time.perf_counter()
        windows = loader[self.state.step]
        ids = windows.numpy()
        shared = world.gather((int((windows[:, 1:] != IGNORE).sum()), window_digests(ids)))
        tokens = sum(count for count, _ in shared)
        on_device = windows.to(world.device, non_blocking=True)
        parts = [
            inputs_and_targets(part) for part in on_device.split(config.batch.micro_batch_size)
        ]
        losses = []
        for number, (inputs, wanted) in enumerate(parts, 1):
            reduce_gradients(self.model, now=number == len(parts))
            with autocast(config.engine, world):
                part_loss = self.model.loss(inputs, wanted, num_targets=tokens)
            part_loss.backward()
            losses.append(part_loss.detach())
        loss_of = world.gather(sum(torch.stack(losses).tolist()))
        norm_of = norms(
            {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        )
        total = total_norm(norm_of)
        loss, norm, norm_parts = sum(loss_of), float(total), part_norms(norm_of)
        if not math.isfinite(loss) or not math.isfinite(norm):
            self._refuse(parts, loss_of, norm, norm_of)
        clip(self.model, config.optimizer.max_grad_norm, total)
        lr = learning_rate(self.state.step, config.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - began
        self.state = self.state.after(
            step=self.state.step + 1,
            tokens=self.state.tokens + tokens,
            seconds=self.state.seconds + seconds,
            windows_sha256=chained(
                self.state.windows_sha256, [digest for _, digests in shared for digest in digests]
            ),
            last_loss=loss,
        )
        self.last_ids = ids
        rate = tokens / seconds if seconds > 0 else 0.0
        return StepRecord(
            self.state.step,
            self.state.tokens,
            loss,
            lr,
            norm,
            seconds,
            norm_parts,
            rate,
            rate * self._flops / self._peak if self._peak else None,
            memory_bytes(world.device),
        )

    def _refuse(
        self,
        parts: list[tuple[torch.Tensor, torch.Tensor]],
        losses: list[float],
        norm: float,
        norm_of: dict[str, torch.Tensor],
    ) -> NoReturn:
        """Stops at a step that must not reach the weights, and leaves what there is to look at."""
        number, size, world = self.state.step + 1, self.config.batch.global_batch_size, self.world
        first, last = (number - 1) * size, number * size - 1
        own = first + world.rank * (size // world.ranks)
        with autocast(self.config.engine, world), torch.compiler.set_stance("force_eager"):
            origin = find_origin(self.model, parts, own, world)
        refused = RefusedStep(number, first, last, losses, norm, norm_of)
        raise refuse(refused, origin, self.model, self.out, world)

    def held_out_loss(self) -> float:
        """Held-out loss of the weights as they are, computed once for each step, in the precision
        of training.

        HeldOutNotFinite, on every rank: it is not finite.
        """
        if self._measured is None or self._measured[0] != self.state.step:
            ids = torch.from_numpy(self.held_out.ids_NT1)
            with autocast(self.config.engine, self.world):
                loss = window_loss(self.model, ids, self.config.batch.micro_batch_size, self.world)
            if not math.isfinite(loss):
                raise HeldOutNotFinite(self.out, self.state.step, loss)
            self._measured = self.state.step, loss
        return self._measured[1]

    def _look(self, metrics: MetricsFile | Unwritten) -> None:
        """What is looked at only now and then, on one held-out window: no training window is read
        twice.
        """
        lr = float(self.optimizer.param_groups[0]["lr"])
        ids = torch.from_numpy(self.held_out.ids_NT1[:1]).to(self.world.device)
        ratios = update_ratios(self.model, self.optimizer, lr)
        with autocast(self.config.engine, self.world):
            scales = hidden_scales(self.model, ids)
        record = ScalesRecord(self.state.step, ratios, scales)
        metrics.write(record)
        self.observer.record(record)

    def _measure(self, metrics: MetricsFile | Unwritten) -> None:
        record = HeldOutRecord(self.state.step, self.state.tokens, self.held_out_loss())
        metrics.write(record)
        self.observer.record(record)

    def _save(self, must: bool = True) -> None:
        """Writes a checkpoint, and the model beside it where that is asked for and the checkpoint
        stays.
        """
        config, ids = self.config, self._last_ids()
        replay, tokens = self._replayed(torch.from_numpy(ids))
        self.state = self.state.after(replay_loss=replay, replay_token_losses=tokens)
        self.writer.save(self.model, self.optimizer, self.state, ids, must)
        if config.checkpoint.export_hf and config.checkpoint.stays(self.state.step):
            folder = self.out / "models" / f"step-{self.state.step:08d}"
            try:
                self.export(folder)
            except OSError as error:
                if must:
                    raise
                self.observer.say(
                    f"{folder}: could not be written ({error.strerror or error}), and training"
                    " goes on"
                )

    def _last_ids(self) -> np.ndarray:
        """The ids int64[G, T + 1] of the last step, of all ranks."""
        return np.concatenate(self.world.gather(self.last_ids))

    def export(self, folder: Path) -> None:
        """The model as it is, as a Hugging Face folder."""
        write_model(self.model, self.dataset, self.state, self._last_ids(), folder, self.world)

    def _replayed(self, ids: torch.Tensor) -> tuple[float | None, tuple[float, ...]]:
        """The last step's loss by the weights as they are, and its first tokens' one by one, in
        float32. Nothing where parameters are gathered in BF16, or where a loss is not finite.
        """
        if self.config.engine.precision == "bf16-parameters":
            return None, ()
        self.model.loss_kernel = "auto"  # the asked one may not be for float32
        try:
            loss = window_loss(self.model, ids, self.config.batch.micro_batch_size, self.world)
        finally:
            self.model.loss_kernel = self.config.engine.loss_kernel
        first = inputs_and_targets(ids[:1, : REPLAY_TOKENS + 1].to(self.world.device))
        tokens = tuple(self.model.token_losses(*first)[0].tolist())
        return (loss, tokens) if all(map(math.isfinite, (loss, *tokens))) else (None, ())
