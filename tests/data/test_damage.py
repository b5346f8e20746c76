"""A dataset that is damaged: the file is named, and nothing of it is believed."""

import json
import random
import shutil
from pathlib import Path

import pytest

from tokencodes.data.dataset import Dataset, fingerprint
from tokencodes.data.inspect import inspect
from tokencodes.data.tokenizer import train_tokenizer
from tokencodes.errors import InputError
from tokencodes.files import LOCK, write_json

FLIPS = 100
SHARD_FILES = ("tokens.npy", "offsets.npy", "documents.parquet", "checksums.json")


@pytest.fixture
def copied(dataset, tmp_path) -> Path:
    return Path(shutil.copytree(dataset.path, tmp_path / "copy"))


def covered(folder: Path) -> list[Path]:
    """The files that a checksum reaches: all but the lock and what `prepare` alone reads."""
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in (LOCK, "source.json")
    ]


def complaint_about(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        inspect(Dataset(folder), 16, full=True)
    return str(caught.value)


def test_one_flipped_bit_anywhere_is_detected_and_its_file_named(copied):
    places = random.Random(1)
    for _ in range(FLIPS):
        file = places.choice(covered(copied))
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[places.randrange(len(whole))] ^= 1 << places.randrange(8)
        file.write_bytes(damaged)
        assert str(file) in complaint_about(copied)
        file.write_bytes(whole)
    assert inspect(Dataset(copied), 16, full=True).checked == "every byte"


@pytest.mark.parametrize("change", ["cut by a byte", "cut in half", "emptied", "longer by a byte"])
def test_a_file_of_another_length_is_detected_and_named(change, copied):
    for file in covered(copied):
        if (
            file.name == "manifest.json" and change == "cut by a byte"
        ):  # a line break at the end of JSON says nothing
            continue
        whole = file.read_bytes()
        cut = {
            "cut by a byte": whole[:-1],
            "cut in half": whole[: len(whole) // 2],
            "emptied": b"",
            "longer by a byte": whole,
        }
        file.write_bytes(cut[change] + (b"x" if change == "longer by a byte" else b""))
        assert str(file) in complaint_about(copied)
        file.write_bytes(whole)


@pytest.mark.parametrize("name", [*SHARD_FILES, "tokenizer.json"])
def test_a_missing_file_is_named(name, copied):
    file = next(file for file in covered(copied) if file.name == name)
    file.unlink()
    message = complaint_about(copied)
    assert str(file) in message and ("missing" in message or "no such" in message)


def test_a_missing_shard_or_manifest_is_named(copied):
    shard = Dataset(copied).own_shards[-1].path
    shutil.rmtree(shard)
    assert complaint_about(copied) == f"{shard / 'tokens.npy'}: missing; prepare the dataset anew"
    (copied / "manifest.json").unlink()
    assert f"{copied}: no manifest.json, so not a finished dataset" in complaint_about(copied)


def test_another_tokenizer_in_the_dataset_is_named(copied, tmp_path):
    train_tokenizer(["some other words " * 50], 262, tmp_path / "other.json")
    shutil.copyfile(tmp_path / "other.json", copied / "tokenizer.json")
    assert complaint_about(copied).startswith(
        f"{copied / 'tokenizer.json'}: not the tokenizer that made these ids"
    )


def test_a_manifest_of_another_version_is_refused_even_if_it_is_sound(copied):
    manifest = json.loads((copied / "manifest.json").read_text())
    other = {**manifest, "version": manifest["version"] + 1}
    write_json(copied / "manifest.json", {**other, "fingerprint": fingerprint(other)})
    message = complaint_about(copied)
    assert (
        f"version {manifest['version'] + 1}" in message
        and f"reads 'tokencodes-dataset' version {manifest['version']}" in message
    )


@pytest.mark.parametrize("text", ["[]", "null", '"manifest"', "{}", "", "{"])
def test_a_manifest_that_is_none_is_refused(text, copied):
    (copied / "manifest.json").write_text(text)
    assert complaint_about(copied).startswith(f"{copied}/manifest.json: ")
