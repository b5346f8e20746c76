"""Corruption of a dataset is found, and the file named."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from tokencodes.data import shards as module
from tokencodes.data.dataset import Dataset
from tokencodes.data.entries import ShardEntry
from tokencodes.data.shards import Shard
from tokencodes.errors import InputError


@pytest.fixture
def copy(dataset, tmp_path) -> Dataset:
    shutil.copytree(dataset.path, tmp_path / "data")
    return Dataset(tmp_path / "data")


def read_everything(dataset: Dataset) -> None:
    again = Dataset(dataset.path)
    _ = again.tokenizer
    for side in ("train", "validation"):
        for shard in again.shards(side):
            list(shard.ids())
            shard.verify_all()


def entry_of(shard: Shard) -> ShardEntry:
    """The manifest's entry of a shard whose checksums were written anew."""
    return ShardEntry(
        path=shard.path.name,
        split=shard.split,
        documents=shard.documents,
        tokens=shard.tokens,
        longest=shard.longest,
        checksums_sha256=hashlib.sha256((shard.path / module.CHECKSUMS).read_bytes()).hexdigest(),
    )


def in_small_blocks(shard: Shard, monkeypatch) -> ShardEntry:
    """Writes the checksums of a shard for blocks of 256 bytes."""
    monkeypatch.setattr(module, "BLOCK", 256)
    sums = {
        name: module.block_sums(shard.path / name)
        for name in (module.TOKENS, module.OFFSETS, module.DOCUMENTS)
    }
    (shard.path / module.CHECKSUMS).write_text(json.dumps(sums))
    return entry_of(shard)


def test_one_flipped_bit_anywhere_is_found_and_the_file_named(copy):
    read_everything(copy)
    files = sorted(
        file
        for file in copy.path.rglob("*")
        if file.is_file() and file.name not in {".lock", "source.json"}
    )
    random = np.random.default_rng(0)
    assert len(files) >= 10
    for file in files:
        data = file.read_bytes()
        for position in {0, len(data) - 1, *random.integers(0, len(data), 6).tolist()}:
            flipped = bytearray(data)
            flipped[position] ^= 1 << int(random.integers(0, 8))
            file.write_bytes(flipped)
            with pytest.raises(InputError) as caught:
                read_everything(copy)
            assert file.name in str(caught.value)
        file.write_bytes(data)
    read_everything(copy)


@pytest.mark.parametrize(
    "name", ["tokens.npy", "offsets.npy", "documents.parquet", "checksums.json"]
)
def test_a_missing_or_shortened_file_is_named(copy, name):
    file = copy.shards("train")[0].path / name
    data = file.read_bytes()
    for cut in (data[:-3], data + b"\0", b""):
        file.write_bytes(cut)
        with pytest.raises(InputError, match=name):
            read_everything(copy)
    file.unlink()
    with pytest.raises(InputError, match=name):
        read_everything(copy)


def test_blocks_are_verified_when_they_are_first_touched(copy, monkeypatch):
    folder = copy.shards("train")[0].path
    entry = in_small_blocks(copy.shards("train")[0], monkeypatch)
    data = bytearray((folder / module.TOKENS).read_bytes())
    data[256 * 3 + 5] ^= 1
    (folder / module.TOKENS).write_bytes(data)
    shard = Shard(folder, entry)
    shard.span(0, 0, 40)  # ends before the damaged block
    with pytest.raises(InputError, match="damaged in bytes 768 to 1,024"):
        list(shard.ids())


def test_another_format_version_is_refused(copy):
    manifest = json.loads((copy.path / "manifest.json").read_text())
    manifest["version"] = 1
    (copy.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="reads 'tokencodes-dataset' version 2"):
        Dataset(copy.path)


def test_another_vocabulary_or_tokenizer_is_refused(dataset):
    dataset.require(320)
    with pytest.raises(InputError, match="made with a vocabulary of 320, the model has 512"):
        dataset.require(512)
    with pytest.raises(InputError, match="made with another tokenizer"):
        dataset.require(320, "0" * 64)


def test_a_folder_without_manifest_is_no_dataset(tmp_path):
    with pytest.raises(InputError, match="not a finished dataset"):
        Dataset(tmp_path)


def test_a_span_is_refused_exactly_if_it_touches_the_damaged_block(copy, monkeypatch):
    folder = copy.shards("train")[0].path
    entry = in_small_blocks(copy.shards("train")[0], monkeypatch)
    data = bytearray((folder / module.TOKENS).read_bytes())
    data[512 + 100] ^= 1  # the third block
    (folder / module.TOKENS).write_bytes(data)
    header = len(data) - 2 * int(np.load(folder / module.OFFSETS)[-1])
    for start in range(0, 400, 3):
        first, last = header + 2 * start, header + 2 * (start + 5) - 1
        shard = Shard(folder, entry)
        if first < 768 and last >= 512:
            with pytest.raises(InputError, match="damaged in bytes 512 to 768"):
                shard.span(0, start, 5)
        else:
            shard.span(0, start, 5)
