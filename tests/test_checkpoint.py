"""A checkpoint appears at once and is believed only whole: kills at every stage, damage in every
file, a full disk.
"""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests import PATIENCE
from tokencodes import checkpoint
from tokencodes.errors import CodeMismatch, InputError
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train

STAGES = ["begin", "tensors", "state", "manifest", "renamed", "latest", "removing", "done"]


@pytest.fixture
def copy(run_folder, tmp_path) -> Path:
    shutil.copytree(run_folder, tmp_path / "gf2")
    return tmp_path / "gf2"


def test_kill_9_at_each_stage_of_a_write_loses_at_most_the_work_since_the_last_one(
    dataset, tmp_path
):
    """The script forks a child a stage, kills it at that stage of its third save, and lets another
    go on to the end.
    """
    script = Path(__file__).parent / "kill_at_stages.py"
    done = subprocess.run(
        [sys.executable, str(script), str(dataset.path), str(tmp_path), *STAGES],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert list(outcomes["stages"]) == STAGES
    for stage, outcome in outcomes["stages"].items():
        assert outcome["killed"], stage
        # Saves are at steps 2, 4, 6; the third is whole once it was renamed.
        assert outcome["step"] == (6 if stage in STAGES[STAGES.index("renamed") :] else 4), stage
        assert outcome["damage"] is None, stage
        assert outcome["weights"] == outcomes["undisturbed"], stage
        assert outcome["leftovers"] == [], stage


def test_the_newest_stay_and_latest_names_the_newest(run_folder):
    folder = run_folder / "checkpoints"
    assert [path.name for path in checkpoint.checkpoints(folder)] == [
        "step-00000008",
        "step-00000006",
    ]
    assert (folder / "latest").read_text() == "step-00000008\n"


def test_damage_in_any_file_is_named_and_the_one_before_is_taken(copy, study, dataset):
    newest = checkpoint.find(copy)
    files = sorted(file for file in newest.rglob("*") if file.is_file())
    assert len(files) >= 5
    for file in files:
        data = file.read_bytes()
        for changed in (
            data[:-1],
            bytes([data[0] ^ 1]) + data[1:],
            data[:-1] + bytes([data[-1] ^ 4]),
        ):
            file.write_bytes(changed)
            lines: list[str] = []
            assert (
                checkpoint.newest_intact(copy / "checkpoints", lines.append).name == "step-00000006"
            )
            assert file.name in lines[0]
            with pytest.raises(InputError, match=file.name):
                checkpoint.load_model(newest)
        file.write_bytes(data)
    (newest / "state.json").unlink()
    (copy / "result.json").unlink()
    result = train(study.run("gf2", 1), dataset, copy, Silent())
    assert result.steps == 8


def test_where_every_checkpoint_is_damaged_the_file_is_named_and_nothing_begins_anew(
    copy, study, dataset
):
    for path in checkpoint.checkpoints(copy / "checkpoints"):
        (path / "state.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"step-00000008/state\.json: damaged .*name an older checkpoint"
    ):
        checkpoint.load_model(copy)
    (copy / "result.json").unlink()
    with pytest.raises(
        InputError, match="none is whole; remove that folder to begin the run again"
    ):
        train(study.run("gf2", 1), dataset, copy, Silent())


def test_a_full_disk_during_a_save_leaves_what_was_there(copy, study, dataset, monkeypatch):
    before = sorted(path.name for path in (copy / "checkpoints").iterdir())
    trainer = Trainer(study.run("gf2", 1), dataset, copy, Silent())

    def full(path, array):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(np, "save", full)
    trainer.state = type(trainer.state)(**{**vars(trainer.state), "step": 9})
    with pytest.raises(OSError, match="No space left"):
        trainer._save()
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == before
    assert checkpoint.damage(checkpoint.find(copy)) is None


def test_what_a_rank_wrote_and_cannot_read_back_is_no_checkpoint(copy, study, dataset, monkeypatch):
    before = sorted(path.name for path in (copy / "checkpoints").iterdir())
    trainer = Trainer(study.run("gf2", 1), dataset, copy, Silent())

    def unreadable(partial, world):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys.modules["tokencodes.checkpoint.write"], "_own_sums", unreadable)
    with pytest.raises(
        OSError, match=r"could not read back what was written \(rank 0: Input/output error\)"
    ):
        trainer._save()
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == before


def test_a_generator_state_of_another_size_is_refused(copy, study, dataset, monkeypatch):
    monkeypatch.setattr(
        torch, "set_rng_state", lambda state: torch.Generator().set_state(state[:8])
    )
    with pytest.raises(InputError, match="the generator's state is not valid"):
        Trainer(study.run("gf2", 1), dataset, copy, Silent())


def test_a_run_a_checkpoint_and_an_exported_folder_hold_the_same_model(run_folder):
    models = [
        checkpoint.load_model(place)
        for place in (
            run_folder,
            run_folder / "checkpoints" / "step-00000008",
            run_folder / "model",
        )
    ]
    first = models[0].state_dict()
    for model in models[1:]:
        assert all(torch.equal(value, first[name]) for name, value in model.state_dict().items())
        assert not model.training


def test_the_tensors_of_a_checkpoint_are_a_safetensors_file_that_any_program_reads(
    run_folder, study, dataset
):
    place = checkpoint.find(run_folder)
    assert [file.name for file in (place / "tensors").iterdir()] == ["rank-00000.safetensors"]
    stored = load_file(place / "tensors" / "rank-00000.safetensors")
    trainer = Trainer(study.run("gf2", 1), dataset, run_folder, Silent())
    expected = checkpoint.tensors_of(trainer.model, trainer.optimizer)
    assert stored.keys() == expected.keys()
    for name, tensor in expected.items():
        assert stored[name].dtype == tensor.dtype and torch.equal(stored[name], tensor), name
    optimizer = {name.rpartition(".")[2] for name in stored if name.startswith("optimizer.")}
    assert optimizer == {"step", "exp_avg", "exp_avg_sq"}


def test_the_room_that_a_save_asks_for_is_what_it_writes(
    run_folder, study, dataset, tmp_path, monkeypatch
):
    trainer = Trainer(study.run("gf2", 1), dataset, tmp_path / "gf2", Silent())
    written = sum(
        file.stat().st_size for file in (checkpoint.find(run_folder) / "tensors").iterdir()
    )
    tensors = checkpoint.tensors_of(trainer.model, trainer.optimizer)
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert needed < written < needed + 20_000  # the header
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(needed, 1, needed - 1)
    )
    with pytest.raises(OSError, match="No space left on device"):
        trainer.writer.save(
            trainer.model, trainer.optimizer, trainer.state, trainer.last_ids, must=True
        )
    assert not list((tmp_path / "gf2" / "checkpoints").iterdir())


def test_a_kill_before_older_ones_were_removed_is_made_good_when_the_run_goes_on(
    copy, study, dataset
):
    folder = copy / "checkpoints"
    shutil.copytree(folder / "step-00000006", folder / "step-00000004")
    (folder / "latest").write_text("step-00000006\n")
    Trainer(study.run("gf2", 1), dataset, copy, Silent())
    assert [path.name for path in checkpoint.checkpoints(folder)] == [
        "step-00000008",
        "step-00000006",
    ]
    assert (folder / "latest").read_text() == "step-00000008\n"


def test_what_a_kill_left_behind_is_removed_when_the_run_goes_on(copy, study, dataset):
    (copy / "checkpoints" / ".tmp-step-00000004" / "tensors").mkdir(parents=True)
    Trainer(study.run("gf2", 1), dataset, copy, Silent())
    assert not list((copy / "checkpoints").glob(".tmp-*"))


def test_a_rank_writes_one_file_named_after_its_number(run_folder):
    files = list((checkpoint.find(run_folder) / "tensors").iterdir())
    assert [file.name for file in files] == ["rank-00000.safetensors"]
    header = int.from_bytes(files[0].read_bytes()[:8], "little")
    assert header % 8 == 0  # so the first tensor begins where its elements may


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere: no such file or folder"):
        checkpoint.load_model(tmp_path / "nowhere")
    with pytest.raises(InputError, match="neither a run, nor a checkpoint, nor an exported model"):
        checkpoint.load_model(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="there is none yet"):
        checkpoint.load_model(tmp_path)


def test_a_checkpoint_with_a_wrong_code_is_refused_however_whole_its_files_are(
    study, dataset, tmp_path
):
    trainer = Trainer(study.run("gf2", 1), dataset, tmp_path, Silent())
    trainer.run()
    trainer.model.input_interface.codebook[7, 1] ^= 1
    trainer.state = type(trainer.state)(**{**vars(trainer.state), "step": 9})
    trainer._save()
    assert checkpoint.damage(checkpoint.find(tmp_path)) is None
    with pytest.raises(CodeMismatch, match="codebook differs"):
        checkpoint.load_model(tmp_path)
    with pytest.raises(CodeMismatch, match="codebook differs"):
        Trainer(study.run("gf2", 1), dataset, tmp_path, Silent())


def test_a_damaged_later_checkpoint_does_not_push_out_whole_ones(copy, study, dataset):
    newest = checkpoint.find(copy)
    (newest / "state.json").write_text("{}")
    shutil.rmtree(copy / "checkpoints" / "step-00000006")
    # damaged too, and later than all that will be written
    shutil.copytree(newest, copy / "checkpoints" / "step-00000099")
    shutil.rmtree(newest)
    (copy / "checkpoints" / "step-00000002").mkdir()  # not a checkpoint: it has no manifest
    trainer = Trainer.__new__(Trainer)
    with pytest.raises(InputError, match="none is whole"):
        trainer.__init__(study.run("gf2", 1), dataset, copy, Silent())
    fresh = copy.parent / "fresh"
    trainer = Trainer(study.run("gf2", 1), dataset, fresh, Silent())
    shutil.copytree(copy / "checkpoints" / "step-00000099", fresh / "checkpoints" / "step-00000099")
    trainer.run()
    assert [path.name for path in checkpoint.checkpoints(fresh / "checkpoints")] == [
        "step-00000008",
        "step-00000006",
    ]
