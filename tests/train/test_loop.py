"""One run: matched arms, exact resume, honest counters, loud failures."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import tiny_study
from tokencodes import checkpoint
from tokencodes.errors import CheckFailed, InputError
from tokencodes.files import locked_folder, read_json, read_json_lines
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train
from tokencodes.train.stop import Stop

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "losses.json").read_text())


def records(folder: Path) -> list[dict]:
    """Metrics without what a clock decides, and without the lines that a process writes as it
    starts.
    """
    clock = ("seconds", "rate", "matmul_utilization", "memory_bytes")
    lines = (line for line in read_json_lines(folder / "metrics.jsonl") if line["kind"] != "start")
    return [{key: value for key, value in line.items() if key not in clock} for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load_model(folder).state_dict()


class StopAfter(Silent):
    """Asks for a stop once a step is done, as a signal would."""

    def __init__(self, step: int, stop: Stop) -> None:
        self.step, self.stop = step, stop

    def record(self, record) -> None:
        if record.step == self.step:
            self.stop.requested = True


@pytest.fixture(scope="module")
def undisturbed(study, dataset, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    for arm in study.arms:
        train(study.run(arm, 1), dataset, folder / arm, Silent())
    return {arm: folder / arm for arm in study.arms}


@pytest.mark.parametrize("arm", ["learned", "gf2"])
@pytest.mark.parametrize("halfway", [3, 4])
def test_stopped_and_resumed_is_bitwise_the_undisturbed_run(
    arm, halfway, study, dataset, undisturbed, tmp_path
):
    run, stop = study.run(arm, 1), Stop()
    assert train(run, dataset, tmp_path / arm, StopAfter(halfway, stop), stop) is None
    assert checkpoint.read_state(checkpoint.find(tmp_path / arm)).step == halfway
    result = train(run, dataset, tmp_path / arm, Silent())
    assert result.steps == 8
    old, new = weights(undisturbed[arm]), weights(tmp_path / arm)
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert records(tmp_path / arm) == records(undisturbed[arm])
    assert result.windows_sha256 == read_json(undisturbed[arm] / "result.json")["windows_sha256"]


def test_every_arm_saw_the_same_windows(undisturbed):
    results = [read_json(folder / "result.json") for folder in undisturbed.values()]
    for key in ("start_sha256", "windows_sha256", "held_out_sha256"):
        assert len({result[key] for result in results}) == 1, key


def test_work_after_the_last_checkpoint_is_done_again_not_counted_twice(
    study, dataset, undisturbed, tmp_path
):
    shutil.copytree(undisturbed["gf2"], tmp_path / "gf2")
    (tmp_path / "gf2" / "result.json").unlink()
    shutil.rmtree(checkpoint.checkpoints(tmp_path / "gf2" / "checkpoints")[0])  # step 8; 6 is left
    with (tmp_path / "gf2" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "ki')  # as a kill would leave it
    train(study.run("gf2", 1), dataset, tmp_path / "gf2", Silent())
    assert records(tmp_path / "gf2") == records(undisturbed["gf2"])


def test_the_arms_of_a_seed_start_from_the_same_bits_and_see_the_same_windows(
    study, dataset, tmp_path
):
    trainers = {
        arm: Trainer(study.run(arm, 2), dataset, tmp_path / arm, Silent()) for arm in study.arms
    }
    base = trainers.pop("learned")
    shared = {
        name: value for name, value in base.model.named_parameters() if "embed_tokens" not in name
    }
    for trainer in trainers.values():
        parameters = dict(trainer.model.named_parameters())
        assert parameters.keys() == shared.keys()
        assert all(torch.equal(parameters[name], shared[name]) for name in shared)
        assert all(
            np.array_equal(trainer.window_ids(step), base.window_ids(step)) for step in range(8)
        )
        assert trainer.held_out.sha256 == base.held_out.sha256
        assert trainer.state.start_sha256 == base.state.start_sha256 != ""


def test_the_losses_of_20_steps_are_the_golden_ones(dataset, tmp_path):
    study = tiny_study(dataset.path, budget={"tokens": 20 * 4 * 16})
    for arm in study.arms:
        train(study.run(arm, 1), dataset, tmp_path / arm, Silent())
        losses = [line["loss"] for line in records(tmp_path / arm) if line["kind"] == "step"]
        assert losses == pytest.approx(GOLDEN[arm], rel=1e-5)


def test_training_learns(dataset, tmp_path):
    study = tiny_study(
        dataset.path, budget={"tokens": 60 * 4 * 16}, heldout={"windows": 64, "interval_steps": 0}
    )
    train(study.run("learned", 1), dataset, tmp_path, Silent())
    first, *_, last = (line["loss"] for line in records(tmp_path) if line["kind"] == "heldout")
    assert last < first - 0.3


def test_microbatches_only_cut_the_work(dataset, tmp_path):
    losses = {}
    for cut in (1, 4):
        batch = {
            "global_batch_size": 4,
            "micro_batch_size": cut,
            "streams": 2,
            "windows_per_visit": 4,
        }
        train(
            tiny_study(dataset.path, batch=batch).run("gf2", 1),
            dataset,
            tmp_path / str(cut),
            Silent(),
        )
        losses[cut] = [line["loss"] for line in records(tmp_path / str(cut)) if "loss" in line]
    assert losses[1] == pytest.approx(losses[4], rel=1e-5)


def test_the_budget_ends_at_the_first_boundary_that_reaches_it(dataset, tmp_path):
    result = train(
        tiny_study(dataset.path, budget={"tokens": 65}).run("gf2", 1), dataset, tmp_path, Silent()
    )
    assert (result.steps, result.tokens) == (2, 128)


def test_the_last_step_can_be_replayed(undisturbed, study):
    place = checkpoint.find(undisturbed["gf2"])
    state, ids = checkpoint.read_state(place), torch.from_numpy(np.load(place / "last_batch.npy"))
    model = checkpoint.load_model(place)
    with torch.no_grad():
        assert float(model.loss(ids[:, :-1], ids[:, 1:])) == pytest.approx(
            state.replay_loss, rel=1e-6
        )
    assert state.replay_loss < state.last_loss  # the step lowered the loss of its own windows


def test_a_non_finite_loss_never_reaches_the_weights(study, dataset, tmp_path, monkeypatch):
    trainer = Trainer(study.run("gf2", 1), dataset, tmp_path, Silent())
    trainer.run()
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.config = trainer.config.model_copy(
        update={"budget": trainer.config.budget.model_copy(update={"tokens": 10**6})}
    )
    loss = trainer.model.loss
    monkeypatch.setattr(trainer.model, "loss", lambda *a, **k: loss(*a, **k) * float("nan"))
    with pytest.raises(
        CheckFailed, match=r"in step 9 \(windows 32 to 35\); it begins at windows 32 to 33, loss\."
    ):
        trainer.run()
    assert all(
        torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items()
    )


def test_the_block_whose_output_is_the_first_that_is_not_finite_is_named(study, dataset, tmp_path):
    trainer = Trainer(study.run("learned", 1), dataset, tmp_path, Silent())
    with torch.no_grad():
        for name in ("up_proj", "down_proj"):
            getattr(trainer.model.model.layers[1].mlp, name).weight.mul_(1e25)
    loader = trainer.loader()
    with pytest.raises(CheckFailed, match="it begins at windows 0 to 1, what the block 1 gives"):
        trainer.train_step(loader)
    loader.close()


def test_a_finished_run_is_not_run_again(study, dataset, undisturbed):
    before = (undisturbed["gf2"] / "metrics.jsonl").stat().st_mtime_ns
    result = train(study.run("gf2", 1), dataset, undisturbed["gf2"], Silent())
    assert result.steps == 8
    assert (undisturbed["gf2"] / "metrics.jsonl").stat().st_mtime_ns == before


def test_another_configuration_or_dataset_in_the_same_folder_is_refused(
    study, dataset, undisturbed, tmp_path
):
    with pytest.raises(
        InputError, match=r"made from another configuration \(seed is 1 there, 2 asked for\)"
    ):
        train(study.run("gf2", 2), dataset, undisturbed["gf2"], Silent())
    shutil.copytree(undisturbed["gf2"], tmp_path / "gf2")
    (tmp_path / "gf2" / "result.json").unlink()
    monkey = type(dataset)(dataset.path)
    monkey.manifest = monkey.manifest.model_copy(update={"fingerprint": "0" * 64})
    with pytest.raises(InputError, match="trained on another dataset"):
        train(study.run("gf2", 1), monkey, tmp_path / "gf2", Silent())


def test_a_folder_of_something_else_is_refused(study, dataset, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="neither empty nor a run's folder"):
        train(study.run("gf2", 1), dataset, tmp_path, Silent())


def test_another_vocabulary_is_refused(dataset, tmp_path):
    study = tiny_study(dataset.path, data={"dataset": str(dataset.path), "vocab_size": 321})
    with pytest.raises(InputError, match="made with a vocabulary of 320, the model has 321"):
        train(study.run("gf2", 1), dataset, tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


def test_a_non_finite_gradient_stops_the_run_even_if_the_loss_is_finite(study, dataset, tmp_path):
    trainer = Trainer(study.run("gf2", 1), dataset, tmp_path, Silent())
    before = trainer.model.lm_head.weight.detach().clone()
    trainer.model.model.norm.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(CheckFailed, match="gradient norm"):
        trainer.run()
    assert torch.equal(trainer.model.lm_head.weight, before)


def test_two_programs_cannot_train_in_one_folder(study, dataset, tmp_path):
    with (
        locked_folder(tmp_path),
        pytest.raises(InputError, match="another program is writing here"),
    ):
        train(study.run("gf2", 1), dataset, tmp_path, Silent())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_ask_for_a_stop_at_the_next_boundary(number, capsys):
    before = signal.getsignal(number)
    with Stop().listen() as stop:
        os.kill(os.getpid(), number)
        assert stop.requested
    assert signal.getsignal(number) == before
    assert "stopping at the next step" in capsys.readouterr().err


def test_the_result_holds_what_its_loss_means(undisturbed, dataset):
    result = read_json(undisturbed["gf2"] / "result.json")
    loss, tokens, size = (
        result[key] for key in ("held_out_loss", "held_out_tokens", "held_out_bytes")
    )
    assert result["perplexity"] == pytest.approx(np.exp(loss))
    assert result["bits_per_byte"] == pytest.approx(loss / np.log(2) * tokens / size)
    assert (
        loss
        == [line["loss"] for line in records(undisturbed["gf2"]) if line["kind"] == "heldout"][-1]
    )


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ({"interval_steps": 1, "keep_latest": 1}, [8]),
        ({"interval_steps": 1, "keep_latest": 2, "keep_interval_steps": 3}, [3, 6, 7, 8]),
        ({"keep_latest": 1, "log_spaced": True}, [1, 2, 3, 4, 6, 8]),
        ({"interval_steps": 5, "keep_latest": 1, "log_spaced": True}, [1, 2, 3, 4, 6, 8]),
    ],
)
def test_checkpoints_that_a_study_wants_later_stay(policy, left, dataset, tmp_path):
    train(tiny_study(dataset.path, checkpoint=policy).run("gf2", 1), dataset, tmp_path, Silent())
    steps = [
        int(path.name.removeprefix("step-"))
        for path in checkpoint.checkpoints(tmp_path / "checkpoints")
    ]
    assert steps[::-1] == left


def test_keeping_what_is_never_saved_is_refused(dataset):
    with pytest.raises(
        ValueError,
        match="keep_interval_steps 3 is no multiple of interval_steps 2, so nothing is saved there",
    ):
        tiny_study(dataset.path, checkpoint={"interval_steps": 2, "keep_interval_steps": 3})
