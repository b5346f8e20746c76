"""Files of a dataset with valid JSON, or a valid array, and wrong contents: one line with the file,
and nothing is believed.

All hashes are made to fit, so that only the contents are wrong: as a program with a fault, or an
attacker, would write them.
"""

import hashlib
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokencodes.cli import run
from tokencodes.data import shards
from tokencodes.data.dataset import Dataset, fingerprint
from tokencodes.data.inspect import inspect
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import prepare
from tokencodes.errors import InputError
from tokencodes.files import json_text, write_json

ABSENT = object()


@pytest.fixture
def copied(dataset, tmp_path) -> Path:
    return Path(shutil.copytree(dataset.path, tmp_path / "copy"))


def change(value: Any, dotted: str, new: Any) -> None:
    """Puts another value at a place such as `sources.0.name`; takes it away if the new one is
    ABSENT.
    """
    *path, last = [int(part) if part.isdigit() else part for part in dotted.split(".")]
    for part in path:
        value = value[part]
    if new is ABSENT:
        del value[last]
    else:
        value[last] = new


def seal_again(folder: Path, manifest: dict[str, Any]) -> None:
    write_json(folder / "manifest.json", {**manifest, "fingerprint": fingerprint(manifest)})


def complaint_about(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        dataset = Dataset(folder)
        inspect(dataset, 16, full=True)
        for shard in dataset.own_shards:
            list(shard.ids())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("dotted", "new"),
    [
        ("vocab_size", ABSENT),
        ("vocab_size", "many"),
        ("vocab_size", 0),
        ("vocab_size", 10**9),
        ("tokenizer_sha256", None),
        ("tokenizer_sha256", "abc"),
        ("sources", ABSENT),
        ("sources", {}),
        ("sources", [None]),
        ("sources", [{}]),
        ("sources.0.name", "../../elsewhere"),
        ("sources.0.name", "."),
        ("sources.0.counts", ABSENT),
        ("sources.0.counts", {}),
        ("sources.0.counts.kept", None),
        ("sources.0.counts.dropped", []),
        ("sources.0.shards.0", "train-00000"),
        ("sources.0.shards.0.path", "/etc"),
        ("sources.0.shards.0.split", "test"),
        ("sources.0.shards.0.tokens", -1),
        ("sources.0.shards.0.documents", float("1e300")),
        ("sources.0.shards.0.checksums_sha256", ABSENT),
        ("sources.0.shards.0.more", 1),
        ("moved", {}),
    ],
)
def test_a_manifest_with_a_wrong_field_names_the_field(dotted, new, copied):
    manifest = json.loads((copied / "manifest.json").read_text())
    change(manifest, dotted, new)
    seal_again(copied, manifest)
    complaint = complaint_about(copied)
    assert complaint.startswith(
        f"{copied}/manifest.json: {dotted if new is not None and new not in ([None], [{}]) else ''}"
    )
    assert complaint.endswith("prepare the dataset anew")


@pytest.mark.parametrize(
    "text", ["{}", "[]", "null", "7", '{"format": "tokencodes-dataset", "version": 2}', "not JSON"]
)
def test_a_manifest_of_something_else_is_one_line_of_the_command(text, copied, capsys):
    (copied / "manifest.json").write_text(text)
    assert run(["inspect", str(copied)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"tokencodes: {copied}/manifest.json: ")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("dotted", "new"),
    [
        ("input", ABSENT),
        ("input", None),
        ("settings", {}),
        ("seen", 7),
        ("counts.kept", "many"),
        ("split", {"lowest": "x"}),
    ],
)
def test_a_source_file_with_a_wrong_field_names_file_and_field(
    dotted, new, texts, tokenizer_path, copied
):
    file = copied / "austen" / "source.json"
    value = json.loads(file.read_text())
    change(value, dotted, new)
    file.write_text(json_text(value))
    with pytest.raises(InputError) as caught:
        prepare([str(texts)], tokenizer_path, copied, PrepareOptions(validation_fraction=0.2))
    assert str(caught.value).startswith(f"{file}: {dotted.partition('.')[0]}")
    assert "choose another --out" in str(caught.value)


@pytest.mark.parametrize("text", ["{}", "[]", "null", "not JSON"])
def test_a_source_file_of_something_else_names_the_file(text, texts, tokenizer_path, copied):
    (copied / "austen" / "source.json").write_text(text)
    with pytest.raises(InputError, match=r"austen/source\.json: "):
        prepare([str(texts)], tokenizer_path, copied, PrepareOptions(validation_fraction=0.2))


def replace_in_shard(folder: Path, name: str, write) -> Path:
    """Writes a file of the first shard anew, and makes all hashes fit: checksums, manifest,
    fingerprint.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    source = manifest["sources"][0]
    entry = source["shards"][0]
    shard = folder / source["name"] / entry["path"]
    write(shard / name)
    if name != shards.CHECKSUMS:
        sums = {
            part: shards.block_sums(shard / part)
            for part in (shards.TOKENS, shards.OFFSETS, shards.DOCUMENTS)
        }
        (shard / shards.CHECKSUMS).write_text(json.dumps(sums))
    entry["checksums_sha256"] = hashlib.sha256((shard / shards.CHECKSUMS).read_bytes()).hexdigest()
    seal_again(folder, manifest)
    return shard / name


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "null",
        "not JSON",
        '{"tokens.npy": [], "offsets.npy": [], "documents.parquet": [1]}',
        '{"tokens.npy": null}',
    ],
)
def test_checksums_of_something_else_name_the_file(text, copied):
    file = replace_in_shard(copied, shards.CHECKSUMS, lambda path: path.write_text(text))
    complaint = complaint_about(copied)
    assert complaint.startswith(f"{file}: ") and complaint.endswith("prepare the dataset anew")


def saved(array):
    return lambda path: np.save(path, array, allow_pickle=True)


class Bomb:
    """What would run when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("bomb-went-off"),))


def npy_header(text: str):
    """An .npy file with this header and eight bytes after it."""
    header = text.encode().ljust(117) + b"\n"
    return lambda path: path.write_bytes(
        b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
    )


ODD_ARRAYS = {
    "floating point": saved(np.zeros(5)),
    "two dimensions": saved(np.zeros((2, 2), dtype=np.int64)),
    "no dimension": saved(np.int64(3)),
    "empty": saved(np.zeros(0, dtype=np.int64)),
    "no bytes at all": lambda path: path.write_bytes(b""),
    "objects": saved(np.array([Bomb()], dtype=object)),
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Bomb())),
    "a header that is no header": npy_header("{'descr': '<i8', 'fortran_order': False, 'shape': "),
    "a header of names": npy_header("{'descr': open, 'fortran_order': False, 'shape': (1,)}"),
    "a shape beyond memory": npy_header(
        "{'descr': '<i8', 'fortran_order': False, 'shape': (9000000000000000000,)}"
    ),
    "a shape beyond numbers": npy_header(
        "{'descr': '<i8', 'fortran_order': False, 'shape': (10**40,)}".replace("10**40", "9" * 40)
    ),
    "a shape that wraps around": npy_header(
        "{'descr': '<i8', 'fortran_order': False, 'shape': (2305843009213693952,)}"
    ),
    "a negative shape": npy_header("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}"),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 4),
}


@pytest.mark.parametrize("name", [shards.TOKENS, shards.OFFSETS])
@pytest.mark.parametrize("kind", ODD_ARRAYS)
def test_an_array_of_something_else_names_the_file_and_runs_nothing(
    name, kind, copied, monkeypatch
):
    monkeypatch.chdir(copied)
    file = replace_in_shard(copied, name, ODD_ARRAYS[kind])
    assert complaint_about(copied).startswith(f"{file}: ")
    assert not (copied / "bomb-went-off").exists()


def test_offsets_that_do_not_ascend_name_the_file(copied):
    shard = Dataset(copied).own_shards[0]
    offsets = np.array(shard.offsets)
    offsets[1:3] = offsets[[2, 1]]
    file = replace_in_shard(copied, shards.OFFSETS, saved(offsets))
    assert (
        complaint_about(copied)
        == f"{file}: the ends of the documents do not ascend; prepare the dataset anew"
    )


@pytest.mark.parametrize("table", [{"id": ["a"], "source": ["b"]}, {"id": ["a"]}, None])
def test_names_of_other_documents_name_the_file(table, copied):
    def write(path: Path) -> None:
        path.write_bytes(b"PAR1") if table is None else pq.write_table(pa.table(table), path)

    file = replace_in_shard(copied, shards.DOCUMENTS, write)
    assert complaint_about(copied).startswith(f"{file}: ")


def test_a_damaged_block_is_told_once(copied):
    shard = Dataset(copied).own_shards[0]
    file = shard.path / shards.TOKENS
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError) as caught:
        list(Dataset(copied).own_shards[0].ids())
    assert (
        str(caught.value)
        == f"{file}: damaged in bytes 0 to 1,048,576; take a new copy or prepare the dataset anew"
    )
