"""Who claims a folder, and when: what can be refused is refused before anything is written; what
has ended is only shown.
"""

import fcntl
import json
import subprocess
from pathlib import Path

import pytest
import tomli_w

from tests.conftest import tiny_study
from tokencodes import files
from tokencodes.cli import run as command
from tokencodes.errors import InputError
from tokencodes.files import LOCK, locked_folder, write_bytes
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train

NOT_POSSIBLE = {"interface": "gf2:min_weight=9"}  # no matrix of 9 rows has that weight in each
ARMS = {"learned": {"interface": "learned"}, "gf2": NOT_POSSIBLE}


@pytest.fixture
def preset(dataset, tmp_path) -> str:
    """A preset whose arm `gf2` cannot be built."""
    return as_preset(tiny_study(dataset.path, arms=ARMS, budget={"tokens": 64}), tmp_path)


def as_preset(study, folder: Path) -> str:
    path = folder / "preset.toml"
    path.write_text(tomli_w.dumps(study.model_dump(mode="json", exclude_none=True)))
    return str(path)


def refused(capsys, *arguments: str) -> str:
    """The one line of a command that must exit with 2."""
    capsys.readouterr()
    assert command(list(arguments)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


def test_train_does_not_claim_its_folder_for_a_code_that_cannot_be_built(preset, tmp_path, capsys):
    arguments = ["train", preset, "--arm", "gf2", "--out", str(tmp_path / "a" / "run"), "--json"]
    assert "lower min_weight=" in refused(capsys, *arguments)
    assert not (tmp_path / "a").exists()
    assert command([*arguments, "--set", "arms.gf2.interface=gf2"]) == 0


def test_compare_does_not_claim_its_folder_for_an_arm_that_cannot_be_built(
    preset, tmp_path, capsys
):
    arguments = ["compare", preset, "--out", str(tmp_path / "a" / "study"), "--json"]
    assert "lower min_weight=" in refused(capsys, *arguments)
    assert not (tmp_path / "a").exists()
    assert command([*arguments, "--set", "arms.gf2.interface=gf2", "--set", "study.seeds=[1]"]) == 0


@pytest.mark.parametrize("name", ["train", "compare"])
def test_no_text_is_prepared_for_a_code_that_cannot_be_built(name, texts, tmp_path, capsys):
    sets = [
        f'data.inputs=["{texts}"]',
        "arms.gf2.interface=gf2:min_weight=12",
        "study.baseline=gf2",
    ]
    options = [word for assignment in sets for word in ("--set", assignment)]
    assert "lower min_weight=" in refused(
        capsys, name, "quickstart", *options, "--out", str(tmp_path / "out"), "--json"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sets", "complaint"),
    [
        (["arms.gf2.interface=gf2:matrix=none.txt"], "no such file"),
        (["arms.gf2.interface=gf2", "model.context_length=5000"], "no document long enough"),
        (["arms.gf2.interface=gf2", "data.vocab_size=321"], "the model has 321"),
    ],
)
@pytest.mark.parametrize("name", ["train", "compare", "submit"])
def test_a_run_that_cannot_be_trained_leaves_no_folder(
    name, sets, complaint, preset, tmp_path, capsys
):
    options = [word for assignment in sets for word in ("--set", assignment)]
    out = ["--out", str(tmp_path / "out")]
    arguments = {
        "train": ["train", preset, "--arm", "gf2", *out, *options],
        "compare": ["compare", preset, *out, *options],
        "submit": [
            "submit",
            "--time",
            "4:00:00",
            "--write",
            str(tmp_path / "job.sh"),
            "--",
            "compare",
            preset,
            *out,
            *options,
        ],
    }
    assert complaint in refused(capsys, *arguments[name])
    assert not (tmp_path / "out").exists() and not (tmp_path / "job.sh").exists()


def test_submit_refuses_what_its_command_would_refuse(preset, dataset, tmp_path, capsys):
    submit = ["submit", "--time", "4:00:00", "--write", str(tmp_path / "job.sh"), "--"]
    out = ["--out", str(tmp_path / "out")]
    assert "lower min_weight=" in refused(capsys, *submit, "train", preset, "--arm", "gf2", *out)
    assert "seed = -1" in refused(capsys, *submit, "train", preset, "--seed=-1", *out)
    assert not (tmp_path / "out").exists() and not (tmp_path / "job.sh").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    for name in ("train", "compare"):
        options = ["--set", "arms.gf2.interface=gf2"]
        assert "it holds letter.txt" in refused(capsys, *submit, name, preset, *out, *options)


def test_an_assignment_of_another_text_is_refused_before_the_study_claims_its_folder(
    dataset, tmp_path, capsys
):
    arms = {
        "learned": {"interface": "learned"},
        "ranked": {"interface": "binary:ids=ranked,order=0123456789abcdef"},
    }
    preset = as_preset(tiny_study(dataset.path, arms=arms), tmp_path)
    assert "leave order= out" in refused(capsys, "compare", preset, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_run_whose_model_cannot_be_made_does_not_claim_its_folder(
    study, dataset, tmp_path, monkeypatch
):
    """Whatever fails as the model is made, the folder is as it was."""

    def fails(*arguments):
        raise InputError("engine.sharding: not here")

    with monkeypatch.context() as patched:
        patched.setattr("tokencodes.train.loop.shard_and_move", fails)
        with pytest.raises(InputError, match="not here"):
            train(study.run("gf2", 1), dataset, tmp_path / "a" / "run", Silent())
    assert not (tmp_path / "a").exists()
    with monkeypatch.context() as patched:
        patched.setattr("tokencodes.train.loop.build_optimizer", fails)
        with pytest.raises(InputError, match="not here"):
            Trainer(study.run("gf2", 1), dataset, tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


def test_a_lock_leaves_nothing_of_a_folder_into_which_nothing_was_written(tmp_path):
    with locked_folder(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / LOCK).is_file()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    with locked_folder(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "kept").touch()
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {"kept", LOCK}
    (tmp_path / "empty").mkdir()
    with locked_folder(tmp_path / "empty"):
        pass
    assert [path.name for path in (tmp_path / "empty").iterdir()] == [LOCK]  # it was there before


def test_a_file_that_has_its_bytes_already_is_left_alone(tmp_path):
    file = tmp_path / "file"
    write_bytes(file, b"one")
    before = file.stat().st_ino
    write_bytes(file, b"one")
    assert file.stat().st_ino == before
    write_bytes(file, b"two")
    assert (file.read_bytes(), file.stat().st_ino != before) == (b"two", True)


@pytest.fixture
def read_only(small_disk):
    """A function that makes the small file system read-only, and one of 100 MB until then."""
    disk = small_disk(100_000_000)

    def seal() -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

    return disk, seal


def test_a_finished_run_in_a_read_only_folder_is_shown(preset, read_only, capsys):
    disk, seal = read_only
    arguments = ["train", preset, "--arm", "learned", "--out", str(disk / "run"), "--json"]
    assert command(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    seal()
    assert command(arguments) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert command(["verify", str(disk / "run"), "--json"]) == 0
    capsys.readouterr()
    out = ["--to", "llama", "--out", str(disk / "export")]
    assert "Read-only file system" in refused(capsys, "export", str(disk / "run"), *out)
    other = [*arguments[:3], "learned", "--seed", "2", "--out", str(disk / "other")]
    assert "Read-only file system" in refused(capsys, *other)


def test_a_finished_run_that_brought_its_own_text_is_shown_from_a_read_only_folder(
    texts, read_only, capsys
):
    disk, seal = read_only
    small = [
        "data.vocab_size=320",
        "data.validation_fraction=0.2",
        "model.context_length=16",
        "budget.tokens=256",
        f'data.inputs=["{texts}"]',
    ]
    options = [word for assignment in small for word in ("--set", assignment)]
    arguments = [
        "train",
        "quickstart",
        *options,
        "--arm",
        "gf2",
        "--out",
        str(disk / "run"),
        "--json",
    ]
    assert command(arguments) == 0
    first = capsys.readouterr().out
    seal()
    assert command(arguments) == 0
    assert capsys.readouterr().out == first


def test_a_finished_study_in_a_read_only_folder_is_shown_with_its_report(preset, read_only, capsys):
    disk, seal = read_only
    arguments = [
        "compare",
        preset,
        "--set",
        "arms.gf2.interface=gf2",
        "--out",
        str(disk / "study"),
        "--json",
    ]
    assert command(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    seal()
    assert command(arguments) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert command(["report", str(disk / "study"), "--json"]) == 0
    # there is work to do, and it cannot be done
    assert command([*arguments, "--set", "study.seeds=[1, 2, 3]"]) == 2
    assert "Read-only file system" in capsys.readouterr().err


def test_a_finished_evaluation_in_a_read_only_folder_is_shown(preset, read_only, capsys, tmp_path):
    disk, seal = read_only
    assert (
        command(["train", preset, "--arm", "learned", "--out", str(tmp_path / "run"), "--json"])
        == 0
    )
    evaluate = [
        "evaluate",
        str(tmp_path / "run"),
        "--suite",
        "embedded",
        "--documents",
        "1",
        "--context",
        "16",
        "--json",
    ]
    capsys.readouterr()
    assert command([*evaluate, "--out", str(disk / "evaluation")]) == 0
    first = json.loads(capsys.readouterr().out)
    seal()
    assert command([*evaluate, "--out", str(disk / "evaluation")]) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_a_folder_that_cannot_be_written_is_read_beside_a_program_that_writes_there(
    tmp_path, monkeypatch
):
    """Another user's folder: its lock can be read, and is respected."""
    real = Path.open

    def denied(path: Path, mode: str = "r", *more, **options):
        if path.name == LOCK and mode == "w":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, mode, *more, **options)

    (tmp_path / LOCK).touch()
    with real(tmp_path / LOCK, "w") as writer, monkeypatch.context() as patched:
        patched.setattr(Path, "open", denied)
        with locked_folder(tmp_path), locked_folder(tmp_path):  # readers do not exclude each other
            pass
        fcntl.flock(writer, fcntl.LOCK_EX)
        with (
            pytest.raises(InputError, match="another program is writing here"),
            locked_folder(tmp_path),
        ):
            pass
        (tmp_path / LOCK).unlink()
        # the folder can be written, so it must be locked
        with pytest.raises(PermissionError), locked_folder(tmp_path):
            pass
        patched.setattr(files.os, "access", lambda *arguments: False)
        with locked_folder(tmp_path):
            pass
