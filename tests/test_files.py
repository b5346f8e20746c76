"""Files that appear whole or not at all."""

import os

import pytest

from tokencodes.errors import InputError
from tokencodes.files import locked_folder, read_json, read_toml, write_json, write_text


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write_text(tmp_path / "a.txt", "old")

    def full(descriptor):
        # not touched before the new bytes are safe
        assert (tmp_path / "a.txt").read_text() == "old"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(tmp_path / "a.txt", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_nan_is_not_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not list(tmp_path.iterdir())


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "a.toml").write_text("[")
    for read, name in ((read_json, "a.json"), (read_toml, "a.toml")):
        with pytest.raises(InputError, match=name):
            read(tmp_path / name)
        with pytest.raises(InputError, match="no such file"):
            read(tmp_path / "none")


def test_one_program_a_folder(tmp_path):
    with (
        locked_folder(tmp_path / "x"),
        pytest.raises(InputError, match="another program"),
        locked_folder(tmp_path / "x"),
    ):
        pass
    with locked_folder(tmp_path / "x"):
        pass
