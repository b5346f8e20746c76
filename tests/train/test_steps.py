"""The steps of a run, one by one: what a step computes, and what is measured, looked at, saved and
told, and when.
"""

import copy
import errno
import hashlib
import shutil
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import tiny_study
from tokencodes import checkpoint
from tokencodes.data.windows import IGNORE
from tokencodes.errors import CheckFailed, InputError
from tokencodes.files import read_json_lines
from tokencodes.parallel import World
from tokencodes.train import loop
from tokencodes.train.diagnostics import part_of
from tokencodes.train.loop import REPLAY_TOKENS, Trainer
from tokencodes.train.metrics import HeldOutRecord, ScalesRecord, Silent, StartRecord, StepRecord
from tokencodes.train.nonfinite import NonFinite
from tokencodes.train.optimizer import learning_rate
from tokencodes.train.stop import Stop

EVERY_SECTION = {
    "heldout": {"windows": 8, "interval_steps": 0},
    "checkpoint": {"interval_steps": 0, "keep_latest": 2},
}


class Log(Silent):
    """Keeps all that an observer gets, in order."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, int]] = []
        self.records: list = []
        self.lines: list[str] = []
        self.ends = 0

    def begin(self, name: str, step: int, steps: int) -> None:
        self.begun.append((name, step, steps))

    def record(self, record) -> None:
        self.records.append(record)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def end(self) -> None:
        self.ends += 1

    def steps(self, kind: type) -> list[int]:
        """The steps of the records of one kind."""
        return [record.step for record in self.records if isinstance(record, kind)]


class StopAfter(Log):
    """Asks for a stop once a step is done."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step, self.stop = step, Stop()

    def record(self, record) -> None:
        super().record(record)
        if isinstance(record, StepRecord) and record.step == self.step:
            self.stop.requested = True


def trainer_of(
    dataset, out: Path, observer=None, stop=None, world=None, arm: str = "learned", **sections
) -> Trainer:
    """A trainer of the tiny run; `sections` replace parts of its configuration."""
    run = tiny_study(dataset.path, **{**EVERY_SECTION, **sections}).run(arm, 1)
    return Trainer(run, dataset, out, observer or Silent(), stop, world=world)


def steps(trainer: Trainer, count: int) -> list[StepRecord]:
    """So many steps, without anything else that a run does."""
    loader = trainer.loader()
    try:
        return [trainer.train_step(loader) for _ in range(count)]
    finally:
        loader.close()


def saves_of(trainer: Trainer, monkeypatch) -> list[tuple[int, bool]]:
    """Notes the step of each save, and whether it must succeed."""
    saves: list[tuple[int, bool]] = []
    save = trainer.writer.save

    def noted(model, optimizer, state, ids, must=False):
        saves.append((state.step, must))
        save(model, optimizer, state, ids, must)

    monkeypatch.setattr(trainer.writer, "save", noted)
    return saves


def test_a_run_begins_with_nothing_done(dataset, tmp_path):
    trainer = trainer_of(dataset, tmp_path / "a" / "b", engine={"loss_kernel": "torch"})
    state = trainer.state
    assert (state.step, state.tokens, state.seconds, state.windows_sha256, state.last_loss) == (
        0,
        0,
        0.0,
        "",
        None,
    )
    assert (state.dataset_fingerprint, state.tokenizer_sha256) == (
        dataset.fingerprint,
        dataset.tokenizer_sha256,
    )
    assert len(state.start_sha256) == 64
    assert trainer.last_ids.shape == (0, 17)
    assert trainer.model.loss_kernel == "torch"
    assert trainer.model.config.tokenizer_sha256 == dataset.tokenizer_sha256
    assert (
        trainer.model.config.eos_token_id
        == trainer.model.generation_config.bos_token_id
        == dataset.tokenizer.end_of_text
    )
    assert trainer.policy.folder == tmp_path / "a" / "b" / "checkpoints"
    assert trainer.writer._thread is None  # on a CPU a checkpoint is written in the foreground
    assert (tmp_path / "a" / "b" / "config.toml").is_file()
    assert not (tmp_path / "a" / "b" / "checkpoints").exists()


def test_a_trainer_takes_the_world_the_stop_and_the_observer_that_it_is_given(dataset, tmp_path):
    observer, stop, world = Log(), Stop(), World()
    trainer = trainer_of(dataset, tmp_path / "one", observer, stop, world)
    assert (trainer.observer, trainer.stop, trainer.world) == (observer, stop, world)
    assert trainer.stop is stop
    other = trainer_of(dataset, tmp_path / "two", observer, world=World(rank=1))
    # only the first rank speaks
    assert isinstance(other.observer, Silent) and other.observer is not observer
    assert other.stop.requested is False


def test_windows_that_do_not_divide_among_ranks_are_refused(dataset, tmp_path):
    with pytest.raises(InputError, match="4 windows a step do not divide among 3 ranks"):
        trainer_of(dataset, tmp_path / "run", world=World(0, 3, 3))


def test_a_trainer_refuses_the_folder_of_something_else(dataset, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="neither empty nor a run's folder"):
        trainer_of(dataset, tmp_path)


def test_ranks_that_drew_different_weights_do_not_train(dataset, tmp_path):
    class Two(World):
        def gather(self, value, group=None):
            return [value, "0" * 64] if isinstance(value, str) and len(value) == 64 else [value]

    with pytest.raises(CheckFailed, match="the ranks drew different initial weights"):
        trainer_of(dataset, tmp_path / "run", world=Two())


def reference(
    trainer: Trainer, count: int
) -> tuple[dict[str, torch.Tensor], list[tuple[float, float]]]:
    """The same steps in plain PyTorch, each over its whole batch: the weights, and loss and
    gradient norm of each step.
    """
    config, model = trainer.config.optimizer, copy.deepcopy(trainer.model)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=1.0, betas=(config.beta1, config.beta2), eps=config.eps
    )
    values = []
    for step in range(count):
        ids = torch.from_numpy(trainer.window_ids(step))
        logits = model(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        optimizer.step()
        values.append((loss.item(), norm.item()))
    return model.state_dict(), values


@pytest.mark.parametrize("clip", [0.1, 100.0])
@pytest.mark.parametrize("arm", ["learned", "gf2"])
def test_a_step_is_clipped_adamw_on_the_mean_loss_of_its_windows(arm, clip, dataset, tmp_path):
    rates = {
        "peak_lr": 3e-3,
        "min_lr": 3e-4,
        "warmup_steps": 2,
        "schedule_steps": 4,
        "weight_decay": 0.3,
        "max_grad_norm": clip,
    }
    trainer = trainer_of(dataset, tmp_path, arm=arm, optimizer=rates)
    weights, values = reference(trainer, 5)
    records = steps(trainer, 5)
    assert [record.loss for record in records] == pytest.approx(
        [loss for loss, _ in values], rel=1e-5
    )
    assert [record.grad_norm for record in records] == pytest.approx(
        [norm for _, norm in values], rel=1e-4
    )
    # so clipping acts in one case and not in the other
    assert all((norm > clip) == (clip == 0.1) for _, norm in values)
    for name, weight in trainer.model.state_dict().items():
        assert torch.allclose(weight.double(), weights[name].double(), rtol=1e-4, atol=2e-6), name


def test_a_step_leaves_a_record_and_counters_that_can_be_computed_anew(dataset, tmp_path):
    trainer = trainer_of(dataset, tmp_path)
    chain = ""
    for number, record in enumerate(steps(trainer, 3), 1):
        ids = trainer.window_ids(number - 1)
        digests = b"".join(
            hashlib.sha256(window.astype("<i8").tobytes()).digest() for window in ids
        )
        chain = hashlib.sha256(chain.encode() + digests).hexdigest()
        assert (record.step, record.tokens) == (number, 64 * number)
        assert record.lr == learning_rate(number - 1, trainer.config.optimizer)
        assert record.seconds > 0 and record.rate == pytest.approx(64 / record.seconds)
        assert record.matmul_utilization is None  # no peak was measured
        assert record.memory_bytes > 1 << 20
        assert sum(norm**2 for norm in record.grad_norm_parts.values()) == pytest.approx(
            record.grad_norm**2, rel=1e-5
        )
        assert set(record.grad_norm_parts) == {
            part_of(name) for name, _ in trainer.model.named_parameters()
        }
    assert (trainer.state.step, trainer.state.tokens) == (3, 192)
    assert trainer.state.windows_sha256 == chain
    assert trainer.state.last_loss == record.loss
    assert np.array_equal(trainer.last_ids, trainer.window_ids(2))
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [record.lr] * 2


def test_durations_add_up_and_a_clock_that_stands_still_gives_no_rate(
    dataset, tmp_path, monkeypatch
):
    trainer = trainer_of(dataset, tmp_path)
    clock = iter([10.0, 10.5, 20.0, 22.0])
    monkeypatch.setattr(loop.time, "perf_counter", lambda: next(clock))
    trainer._peak = 1e6
    first, second = steps(trainer, 2)
    assert (first.seconds, second.seconds, trainer.state.seconds) == (0.5, 2.0, 2.5)
    assert (first.rate, second.rate) == (128.0, 32.0)
    assert first.matmul_utilization == pytest.approx(128.0 * trainer._flops / 1e6)
    monkeypatch.setattr(loop.time, "perf_counter", lambda: 30.0)
    (still,) = steps(trainer, 1)
    assert (still.seconds, still.rate, still.matmul_utilization) == (0.0, 0.0, 0.0)


def test_only_tokens_that_count_are_counted(dataset, tmp_path):
    batch = {"global_batch_size": 32, "micro_batch_size": 16, "sampling": "packed"}
    trainer = trainer_of(dataset, tmp_path, batch=batch)
    records = steps(trainer, 6)
    counts = [int((trainer.window_ids(step)[:, 1:] != IGNORE).sum()) for step in range(6)]
    assert min(counts) < 32 * 16  # some windows are short
    assert [record.tokens for record in records] == np.cumsum(counts).tolist()


def test_gradients_are_reduced_with_the_last_microbatch_alone(dataset, tmp_path, monkeypatch):
    reduced: list[bool] = []
    monkeypatch.setattr(loop, "reduce_gradients", lambda model, now: reduced.append(now))
    batch = {"global_batch_size": 6, "micro_batch_size": 2, "streams": 2, "windows_per_visit": 4}
    steps(trainer_of(dataset, tmp_path, batch=batch), 2)
    assert reduced == [False, False, True] * 2


@pytest.mark.parametrize(
    ("every", "expected"),
    [(0, [0, 8]), (1, list(range(9))), (3, [0, 3, 6, 8]), (4, [0, 4, 8]), (100, [0, 8])],
)
def test_held_out_loss_is_measured_at_the_start_every_so_many_steps_and_at_the_end(
    every, expected, dataset, tmp_path
):
    observer = Log()
    trainer = trainer_of(
        dataset, tmp_path, observer, heldout={"windows": 8, "interval_steps": every}
    )
    assert trainer.run() is True
    assert observer.steps(HeldOutRecord) == expected
    assert [record.tokens for record in observer.records if isinstance(record, HeldOutRecord)] == [
        64 * at for at in expected
    ]


def test_every_record_is_written_and_told_in_the_same_order(dataset, tmp_path):
    observer = Log()
    trainer = trainer_of(dataset, tmp_path, observer)
    trainer.run()
    lines = read_json_lines(tmp_path / "metrics.jsonl")
    assert [(line["kind"], line["step"]) for line in lines] == [
        (r.kind, r.step) for r in observer.records
    ]
    assert observer.steps(StartRecord) == [0]
    assert observer.steps(StepRecord) == list(range(1, 9))
    assert observer.steps(ScalesRecord) == [1, 2, 3, 4, 6, 8]  # two an octave
    assert [(record.kind, record.step) for record in observer.records[:4]] == [
        ("start", 0),
        ("heldout", 0),
        ("step", 1),
        ("scales", 1),
    ]
    assert [record.kind for record in observer.records[-3:]] == ["step", "scales", "heldout"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"interval_steps": 0}, [(8, True)]),
        ({"interval_steps": 3}, [(3, False), (6, False), (8, True)]),
        ({"interval_steps": 4}, [(4, False), (8, True)]),
        (
            {"interval_steps": 0, "log_spaced": True},
            [(1, False), (2, False), (3, False), (4, False), (6, False), (8, True)],
        ),
    ],
)
def test_checkpoints_are_saved_when_due_and_the_last_one_must_be(
    policy, expected, dataset, tmp_path, monkeypatch
):
    trainer = trainer_of(dataset, tmp_path, checkpoint=policy)
    saves = saves_of(trainer, monkeypatch)
    trainer.run()
    assert saves == expected


def test_a_stop_ends_after_the_step_with_a_checkpoint_that_must_be(dataset, tmp_path, monkeypatch):
    observer = StopAfter(5)
    trainer = trainer_of(
        dataset, tmp_path, observer, observer.stop, checkpoint={"interval_steps": 3}
    )
    saves = saves_of(trainer, monkeypatch)
    assert trainer.run() is False
    assert saves == [(3, False), (5, True)]
    assert observer.steps(StepRecord) == [1, 2, 3, 4, 5]
    assert observer.steps(HeldOutRecord) == [0]  # a stop is no end
    assert observer.ends == 1


def test_a_stop_that_was_asked_for_before_does_no_step_and_saves_nothing(dataset, tmp_path):
    observer = Log()
    trainer = trainer_of(dataset, tmp_path, observer, Stop(requested=True))
    assert trainer.run() is False
    assert observer.steps(StepRecord) == []
    assert checkpoint.checkpoints(tmp_path / "checkpoints") == []


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_the_budget_ends_at_the_first_boundary_that_has_reached_it(
    tokens, steps, dataset, tmp_path
):
    observer = Log()
    trainer = trainer_of(dataset, tmp_path, observer, budget={"tokens": tokens})
    assert trainer.run() is True
    assert observer.steps(StepRecord)[-1] == steps
    assert observer.steps(HeldOutRecord) == [0, steps]
    assert observer.begun == [("learned seed 1", 0, steps)]
    assert observer.lines == []  # nothing unusual, so nothing is said


def test_a_run_that_goes_on_says_so_and_measures_no_start(dataset, tmp_path):
    first = StopAfter(3)
    assert trainer_of(dataset, tmp_path, first, first.stop).run() is False
    observer = Log()
    trainer = trainer_of(dataset, tmp_path, observer)
    assert trainer.state.step == 3
    assert np.array_equal(trainer.last_ids, trainer.window_ids(2))
    assert trainer.run() is True
    assert observer.begun == [("learned seed 1", 3, 8)]
    assert observer.lines == ["learned seed 1: going on after step 3"]
    assert observer.steps(StartRecord) == [3]
    assert observer.steps(HeldOutRecord) == [8]
    assert observer.steps(StepRecord) == [4, 5, 6, 7, 8]
    finished = Log()
    again = trainer_of(dataset, tmp_path, finished)
    assert again.run() is True  # nothing is left to do
    assert finished.steps(StepRecord) == []


def test_windows_that_are_shorter_on_average_are_told_at_the_start_alone(dataset, tmp_path):
    batch, stop = (
        {"global_batch_size": 4, "micro_batch_size": 2, "sampling": "packed"},
        StopAfter(1),
    )
    trainer = trainer_of(dataset, tmp_path, stop, stop.stop, batch=batch)
    each = trainer.sampler.tokens_per_window
    steps = -(-512 // (4 * each))
    assert each < 16 and steps > 8
    trainer.run()
    assert stop.begun == [("learned seed 1", 0, steps)]
    assert stop.lines == [
        f"learned seed 1: {each:.0f} of 16 tokens a window on average, so the budget takes about"
        f" {steps:,.0f} steps; the schedule is of 8"
    ]
    observer = Log()
    trainer_of(dataset, tmp_path, observer, Stop(requested=True), batch=batch).run()
    assert observer.lines == ["learned seed 1: going on after step 1"]


class Timed(World):
    """Notes the timeouts that are set."""

    times: list[timedelta | None] = []  # noqa: RUF012 (one test sees one list)

    def set_timeout(self, model, time=None):
        self.times.append(time)


def test_ranks_have_time_to_begin_and_the_configured_timeout_from_the_second_step_on(
    dataset, tmp_path, monkeypatch
):
    monkeypatch.setattr(Timed, "times", [])
    observer = StopAfter(3)
    trainer_of(
        dataset, tmp_path, observer, observer.stop, Timed(), engine={"timeout_seconds": 7}
    ).run()
    assert Timed.times == [None, timedelta(seconds=7)]
    monkeypatch.setattr(Timed, "times", [])
    trainer_of(dataset, tmp_path, Log(), None, Timed(), engine={"timeout_seconds": 7}).run()
    # a process that goes on needs time to begin, too
    assert Timed.times == [None, timedelta(seconds=7)]


def test_the_measured_peak_is_that_of_all_ranks(dataset, tmp_path, monkeypatch):
    trainer = trainer_of(dataset, tmp_path)
    monkeypatch.setattr(loop, "matmul_peak", lambda device, dtype: 100.0)
    trainer.world = World(0, 4, 4)
    assert (trainer._start().peak_flops, trainer._peak) == (400.0, 400.0)
    assert trainer._start().environment["ranks"] == 4


def test_held_out_loss_is_computed_once_for_each_step(dataset, tmp_path, monkeypatch):
    trainer, calls = trainer_of(dataset, tmp_path), []
    real = loop.window_loss

    def counted(model, ids, batch, world):
        calls.append(trainer.state.step)
        return real(model, ids, batch, world)

    monkeypatch.setattr(loop, "window_loss", counted)
    first = trainer.held_out_loss()
    assert trainer.held_out_loss() == first
    steps(trainer, 1)
    second = trainer.held_out_loss()
    assert trainer.held_out_loss() == second != first
    assert calls == [0, 1]
    ids = torch.from_numpy(trainer.held_out.ids_NT1)
    with torch.no_grad():
        direct = float(trainer.model.loss(ids[:, :-1], ids[:, 1:]))
    assert second == pytest.approx(direct, rel=1e-6)


def test_what_is_looked_at_now_and_then_is_one_held_out_window_at_the_rate_of_the_step(
    dataset, tmp_path, monkeypatch
):
    trainer, seen = trainer_of(dataset, tmp_path), []
    monkeypatch.setattr(loop, "hidden_scales", lambda model, ids: seen.append(ids.clone()) or [1.0])
    monkeypatch.setattr(
        loop, "update_ratios", lambda model, optimizer, lr: seen.append(lr) or {"body": 0.5}
    )
    (record,) = steps(trainer, 1)
    lines = []

    class Metrics:
        def write(self, record):
            lines.append(record)

    trainer._look(Metrics())
    rate, ids = seen
    assert rate == record.lr
    assert torch.equal(ids, torch.from_numpy(trainer.held_out.ids_NT1[:1]))
    assert lines == [ScalesRecord(1, {"body": 0.5}, [1.0])]


def test_an_error_closes_the_log_the_loader_and_the_writer_and_ends_the_display(
    dataset, tmp_path, monkeypatch
):
    closed: list[object] = []
    for error, now in (
        (RuntimeError("broken"), True),
        (NonFinite(tmp_path, 1, "loss nan", 1.0, 1.0, {}), False),
    ):
        observer = Log()
        trainer = trainer_of(dataset, tmp_path / type(error).__name__, observer)
        loader, close = trainer.loader(), trainer.writer.close
        monkeypatch.setattr(trainer, "loader", lambda loader=loader: loader)
        monkeypatch.setattr(loader, "close", lambda: closed.append("loader"))
        monkeypatch.setattr(
            trainer.writer, "close", lambda now=False, close=close: closed.append(now) or close(now)
        )
        monkeypatch.setattr(
            loop.MetricsFile, "close", lambda self: closed.append("log") or self._file.close()
        )

        def fails(metrics, loader, error=error):
            raise error

        monkeypatch.setattr(trainer, "_steps", fails)
        with pytest.raises(type(error)):
            trainer.run()
        # where all ranks stop alike, a save that has begun is waited for
        assert closed == [now, "loader", "log"]
        assert observer.ends == 1
        closed.clear()
        loader._thread.shutdown()


def test_a_run_that_ends_well_closes_its_writer_and_its_display_once(
    dataset, tmp_path, monkeypatch
):
    observer, closed = Log(), []
    trainer = trainer_of(dataset, tmp_path, observer, budget={"tokens": 64})
    monkeypatch.setattr(trainer.writer, "close", lambda now=False: closed.append(now))
    trainer.run()
    assert (closed, observer.ends) == ([False], 1)


@pytest.mark.parametrize(("rank", "kind"), [(0, InputError), (1, CheckFailed)])
def test_an_input_error_of_one_rank_alone_is_said_by_that_rank(
    rank, kind, dataset, tmp_path, monkeypatch
):
    trainer = trainer_of(dataset, tmp_path, world=World(rank=rank))

    def fails(metrics, loader):
        raise InputError("tokens.npy: damaged")

    monkeypatch.setattr(trainer, "_steps", fails)
    with pytest.raises(kind, match=r"^tokens\.npy: damaged$") as caught:
        trainer.run()
    assert type(caught.value) is kind


@pytest.mark.parametrize(("rank", "first"), [(0, 8), (1, 10)])
def test_an_step_that_is_refused_names_its_windows_and_those_of_this_rank(
    rank, first, dataset, tmp_path, monkeypatch
):
    trainer = trainer_of(dataset, tmp_path)
    steps(trainer, 2)
    seen = {}
    monkeypatch.setattr(
        loop, "find_origin", lambda model, parts, own, world: seen.setdefault("own", own) and []
    )

    def refuse(step, origin, model, out, world):
        seen["step"] = step
        return NonFinite(out, step.number, "loss nan", 1.0, 1.0, {})

    monkeypatch.setattr(loop, "refuse", refuse)
    trainer.world = World(rank, 2, 2)
    with pytest.raises(NonFinite):
        trainer._refuse([], [1.0, 2.0], 3.0, {})
    assert seen["own"] == first
    step = seen["step"]
    assert (step.number, step.first, step.last, step.losses, step.norm) == (
        3,
        8,
        11,
        [1.0, 2.0],
        3.0,
    )


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (1.0, float("inf"))])
def test_a_step_refuses_a_loss_or_a_norm_that_is_not_finite(
    loss, norm, dataset, tmp_path, monkeypatch
):
    trainer, refused = trainer_of(dataset, tmp_path), []

    def refuse(parts, losses, total, norms):
        refused.append((len(parts), losses, total))
        raise NonFinite(tmp_path, 1, "not finite", 1.0, 1.0, {})

    monkeypatch.setattr(trainer, "_refuse", refuse)
    monkeypatch.setattr(loop, "total_norm", lambda norms: torch.tensor(norm))
    real = trainer.model.loss
    monkeypatch.setattr(trainer.model, "loss", lambda *a, **k: real(*a, **k) * loss)
    before = copy.deepcopy(trainer.model.state_dict())
    with pytest.raises(NonFinite):
        steps(trainer, 1)
    assert len(refused) == 1 and refused[0][0] == 2
    assert all(
        torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items()
    )
    assert trainer.state.step == 0


def test_ids_are_pinned_where_there_is_a_gpu(monkeypatch):
    ids = np.arange(4)
    assert torch.equal(loop.as_tensor(ids), torch.arange(4))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    assert torch.equal(loop.as_tensor(ids), torch.arange(1, 5))


def test_a_checkpoint_keeps_the_loss_after_the_step_and_the_first_tokens_of_the_first_window(
    dataset, tmp_path, monkeypatch
):
    assert REPLAY_TOKENS == 256
    trainer = trainer_of(dataset, tmp_path, engine={"loss_kernel": "torch"})
    steps(trainer, 2)
    monkeypatch.setattr(loop, "REPLAY_TOKENS", 5)
    trainer._save()
    state = checkpoint.read_state(checkpoint.find(tmp_path))
    ids = torch.from_numpy(trainer.window_ids(1))
    with torch.no_grad():
        loss = float(trainer.model.loss(ids[:, :-1], ids[:, 1:]))
    expected = trainer.model.token_losses(ids[:1, :5], ids[:1, 1:6])[0]
    assert state.replay_loss == pytest.approx(loss, rel=1e-6)
    assert list(state.replay_token_losses) == pytest.approx(expected.tolist(), rel=1e-6)
    assert trainer.model.loss_kernel == "torch"  # as it was asked for
    assert np.array_equal(
        np.load(checkpoint.find(tmp_path) / "last_batch.npy"), trainer.window_ids(1)
    )


def test_where_parameters_are_gathered_in_bf16_no_loss_is_kept(dataset, tmp_path):
    trainer = trainer_of(dataset, tmp_path)
    steps(trainer, 1)
    ids = torch.from_numpy(trainer.window_ids(0))
    assert trainer._replayed(ids)[0] is not None
    engine = trainer.config.engine.model_copy(update={"precision": "bf16-parameters"})
    trainer.config = trainer.config.model_copy(update={"engine": engine})
    assert trainer._replayed(ids) == (None, ())


def test_models_are_exported_at_the_checkpoints_that_stay_if_they_are_asked_for(dataset, tmp_path):
    for export in (True, False):
        out = tmp_path / str(export)
        trainer_of(
            dataset,
            out,
            checkpoint={
                "interval_steps": 2,
                "keep_latest": 1,
                "keep_interval_steps": 4,
                "export_hf": export,
            },
        ).run()
        models = sorted(path.name for path in out.glob("models/*"))
        assert models == (["step-00000004", "step-00000008"] if export else [])
        assert checkpoint.step_of(checkpoint.find(out)) == 8


def test_a_model_that_cannot_be_exported_costs_a_line_and_at_the_end_the_run(
    dataset, tmp_path, monkeypatch
):
    observer = Log()
    trainer = trainer_of(
        dataset,
        tmp_path,
        observer,
        checkpoint={"interval_steps": 1, "keep_interval_steps": 1, "export_hf": True},
    )
    steps(trainer, 1)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(loop, "write_model", full)
    trainer._save(must=False)
    folder = tmp_path / "models" / "step-00000001"
    assert observer.lines == [
        f"{folder}: could not be written (No space left on device), and training goes on"
    ]
    with pytest.raises(OSError, match="No space left on device"):
        trainer._save()
    assert len(observer.lines) == 1


@pytest.fixture(scope="module")
def saved(dataset, tmp_path_factory) -> Path:
    """A finished run with checkpoints of steps 4, 6 and 8."""
    out = tmp_path_factory.mktemp("saved") / "run"
    trainer_of(dataset, out, checkpoint={"interval_steps": 2, "keep_latest": 3}).run()
    return out


def go_on(dataset, saved: Path, out: Path, observer=None, spoil=lambda folder: None) -> Trainer:
    """A trainer of a copy of that run, which would keep two checkpoints."""
    shutil.copytree(saved, out)
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace("keep_latest = 3", "keep_latest = 2"))
    spoil(out / "checkpoints")
    return trainer_of(dataset, out, observer, checkpoint={"interval_steps": 2, "keep_latest": 2})


def numbers(out: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.checkpoints(out / "checkpoints")]


def test_what_a_kill_left_undone_after_a_checkpoint_is_done_when_the_run_goes_on(
    dataset, saved, tmp_path
):
    def killed(folder: Path) -> None:
        (folder / "latest").unlink()
        (folder / ".tmp-step-00000010").mkdir()

    trainer = go_on(dataset, saved, tmp_path / "run", spoil=killed)
    assert trainer.state.step == 8
    assert numbers(tmp_path / "run") == [8, 6]
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == "step-00000008\n"
    assert not list((tmp_path / "run" / "checkpoints").glob(".tmp-*"))


def test_a_damaged_later_checkpoint_is_told_and_stays_until_the_next_save(dataset, saved, tmp_path):
    observer = Log()
    spoil = lambda folder: (folder / "step-00000008" / "state.json").write_text("{}")  # noqa: E731
    trainer = go_on(dataset, saved, tmp_path / "run", observer, spoil)
    assert trainer.state.step == 6
    assert numbers(tmp_path / "run") == [8, 6, 4]
    assert (
        len(observer.lines) == 1 and "going back to the checkpoint before it" in observer.lines[0]
    )


def test_a_run_without_a_whole_checkpoint_does_not_begin_again(dataset, saved, tmp_path):
    def spoil(folder: Path) -> None:
        for path in folder.glob("step-*"):
            (path / "state.json").write_text("{}")

    with pytest.raises(
        InputError, match="none is whole; remove that folder to begin the run again"
    ):
        go_on(dataset, saved, tmp_path / "run", spoil=spoil)


def test_a_run_that_went_on_has_the_state_of_its_checkpoint(dataset, saved, tmp_path):
    trainer = go_on(dataset, saved, tmp_path / "run")
    state = checkpoint.read_state(checkpoint.find(tmp_path / "run"))
    assert (trainer.state.step, trainer.state.tokens) == (8, 512)
    assert trainer.state.windows_sha256 == state.windows_sha256
    assert np.array_equal(trainer.last_ids, trainer.window_ids(7))
