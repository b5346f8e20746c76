"""No side of the split is empty: a side that would be gets the documents of one hash, whoever
converts them.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import contents
from tokencodes.cli import run
from tokencodes.data import manifest as manifest_writing
from tokencodes.data.cluster import ConvertStep, SealStep
from tokencodes.data.dataset import Dataset
from tokencodes.data.inputs import find_inputs
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import Means, make_jobs, prepare
from tokencodes.data.split import (
    side_of,
    split_hash,
    split_of,
    threshold_for_both_sides,
    threshold_of,
)
from tokencodes.data.text import Document
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError
from tokencodes.train.corpus import training_texts

RARE, ALMOST_ALL = (
    PrepareOptions(validation_fraction=1e-9),
    PrepareOptions(validation_fraction=1 - 1e-9),
)
COUNT = 40


def reference_hash(name: str, seed: int = 0) -> int:
    """The hash of the docs, written anew."""
    return int.from_bytes(
        hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest(), "little"
    )


def by_hash(names: list[str]) -> list[str]:
    return sorted(names, key=reference_hash)


def write(path: Path, names: list[str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "".join(json.dumps({"id": name, "text": f"the words of {name}"}) + "\n" for name in names)
    )
    return path


@pytest.fixture
def names() -> list[str]:
    return [f"document-{number}" for number in range(COUNT)]


@pytest.fixture
def folder(names, tmp_path) -> Path:
    """Four files of ten documents."""
    for part in range(4):
        write(tmp_path / "inputs" / f"part-{part}.jsonl", names[part::4])
    return tmp_path / "inputs"


def ids(dataset: Dataset, side: str) -> list[str]:
    return [name for shard in dataset.shards(side) for name in shard.names()["id"].to_pylist()]


# The rule alone


def test_the_hash_and_the_threshold_are_the_documented_ones():
    assert split_hash(Document("words", "an id"), 7) == reference_hash("an id", 7)
    assert split_hash(Document("words", None), 7) == reference_hash("words", 7)
    assert [threshold_of(share) for share in (0.0, 0.5, 0.001, 2.0**-64)] == [
        0,
        1 << 63,
        -(-(2**64) // 1000),
        1,
    ]
    assert [side_of(number, 5) for number in (4, 5, 6)] == ["validation", "train", "train"]
    for share in (0.0, 0.1, 0.5, 0.999):
        held = [
            name
            for name in map(str, range(300))
            if split_of(Document("", name), 3, share) == "validation"
        ]
        assert held == [
            name for name in map(str, range(300)) if reference_hash(name, 3) < share * 2**64
        ]


@pytest.mark.parametrize(
    ("numbers", "natural", "expected"),
    [
        ([5, 9], 7, 7),  # both sides have a document
        ([7, 9], 7, 8),  # 7 is not below 7
        ([9, 8, 12], 7, 9),  # the lowest goes to validation
        ([3, 5, 4], 7, 5),  # the highest goes to train
        ([3, 6], 7, 6),
        ([9, 9], 7, 7),  # one hash cannot be on two sides
        ([3], 7, 7),
        ([], 7, 7),
        ([7, 8], 8, 8),
        ([7, 9, 12], 7, 8),
        ([6, 6, 5], 7, 6),
        ([9, 12], 0, 0),  # a share of 0 holds nothing out
    ],
)
def test_the_threshold_moves_only_past_the_nearest_hash(numbers, natural, expected):
    assert threshold_for_both_sides(numbers, natural) == expected
    assert threshold_for_both_sides(numbers[::-1], natural) == expected


def test_no_more_documents_are_read_than_the_rule_needs():
    for first in ([5, 9], [5, 7], [6, 7]):
        numbers = iter([*first, 1])
        assert threshold_for_both_sides(numbers, 7) == 7
        assert list(numbers) == [1]


# A dataset


def test_494_documents_at_the_default_share_have_a_held_out_one(tokenizer_path, tmp_path, capsys):
    names = [f"essay-{number}" for number in range(494)]
    # so that the share holds nothing out
    assert min(map(reference_hash, names)) >= threshold_of(0.001)
    path = write(tmp_path / "a.jsonl", names)
    command = [
        "prepare",
        str(path),
        "--tokenizer",
        str(tokenizer_path),
        "--out",
        str(tmp_path / "data"),
    ]
    assert run(command) == 0
    lowest = by_hash(names)[0]
    assert (
        "the validation side would be empty, so it got the document of the lowest split hash:"
        f" {lowest}" in (capsys.readouterr().out)
    )
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["moved"] == {
        "to": "validation",
        "documents": 1,
        "ids": [lowest],
    }
    assert run(["inspect", str(tmp_path / "data"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["moved"]["documents"] == 1
    dataset = Dataset(tmp_path / "data")
    assert ids(dataset, "validation") == [lowest]
    assert ids(dataset, "train") == [name for name in names if name != lowest]


def test_the_lowest_hash_of_all_inputs_is_held_out(folder, names, tokenizer_path, tmp_path):
    lines: list[str] = []
    dataset = prepare([str(folder)], tokenizer_path, tmp_path / "data", RARE, say=lines.append)
    assert ids(dataset, "validation") == [by_hash(names)[0]]
    assert sorted(ids(dataset, "train")) == sorted(by_hash(names)[1:])
    assert dataset.manifest.moved.model_dump() == {
        "to": "validation",
        "documents": 1,
        "threshold": f"{reference_hash(by_hash(names)[0]) + 1:016x}",
    }
    assert any("no document fell on the validation side" in line for line in lines)
    assert dataset.counts.kept == COUNT


def test_the_highest_hash_is_trained_on_where_nothing_else_would_be(
    folder, names, tokenizer_path, tmp_path
):
    dataset = prepare([str(folder)], tokenizer_path, tmp_path / "data", ALMOST_ALL)
    assert ids(dataset, "train") == [by_hash(names)[-1]]
    assert sorted(ids(dataset, "validation")) == sorted(by_hash(names)[:-1])
    assert (dataset.manifest.moved.to, dataset.manifest.moved.documents) == ("train", 1)


def test_where_both_sides_have_documents_nothing_is_moved(folder, names, tokenizer_path, tmp_path):
    dataset = prepare(
        [str(folder)], tokenizer_path, tmp_path / "data", PrepareOptions(validation_fraction=0.2)
    )
    assert dataset.manifest.moved is None
    assert "moved" not in json.loads((dataset.path / "manifest.json").read_text())
    assert sorted(ids(dataset, "validation")) == sorted(
        name for name in names if reference_hash(name) < 0.2 * 2**64
    )


def test_a_share_of_0_holds_nothing_out(folder, tokenizer_path, tmp_path):
    dataset = prepare(
        [str(folder)], tokenizer_path, tmp_path / "data", PrepareOptions(validation_fraction=0)
    )
    assert dataset.manifest.moved is None
    assert (len(ids(dataset, "train")), ids(dataset, "validation")) == (COUNT, [])


def test_documents_of_one_id_change_sides_together_so_that_no_copy_is_trained_on(
    names, tokenizer_path, tmp_path
):
    lowest = by_hash(names)[0]
    write(tmp_path / "inputs" / "a.jsonl", names)
    write(tmp_path / "inputs" / "b.jsonl", [lowest, "another", lowest])
    assert reference_hash("another") > reference_hash(lowest)
    dataset = prepare([str(tmp_path / "inputs")], tokenizer_path, tmp_path / "data", RARE)
    assert ids(dataset, "validation") == [lowest] * 3
    assert lowest not in ids(dataset, "train")
    assert dataset.manifest.moved.documents == 3


def test_documents_that_are_left_out_cannot_be_held_out(names, tokenizer_path, tmp_path):
    first, second = by_hash(names)[:2]
    lines = [
        {"id": name, "text": "" if name == first else f"the words of {name}"} for name in names
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert ids(
        prepare([str(tmp_path / "a.jsonl")], tokenizer_path, tmp_path / "data", RARE), "validation"
    ) == [second]


@pytest.mark.parametrize("options", [RARE, ALMOST_ALL])
def test_documents_of_a_single_id_cannot_be_on_two_sides(options, tokenizer_path, tmp_path):
    path = write(tmp_path / "a.jsonl", ["one", "one"])
    with pytest.raises(
        InputError,
        match=r"no document fell on the \w+ side \(of 2, .*give documents of at least two ids",
    ):
        prepare([str(path)], tokenizer_path, tmp_path / "data", options)
    assert not (tmp_path / "data" / "manifest.json").exists()


def test_what_was_tokenized_elsewhere_is_split_by_the_same_rule(tokenizer_path, tmp_path):
    np.arange(5, 35, dtype="<u2").tofile(tmp_path / "a.ds")
    np.arange(3, 31, 3, dtype="<u8").tofile(tmp_path / "a.ds.index")
    dataset = prepare([str(tmp_path / "a.ds")], tokenizer_path, tmp_path / "data", RARE)
    assert ids(dataset, "validation") == [by_hash([f"a.ds:{number}" for number in range(10)])[0]]


# The same bytes, whoever made them


@pytest.mark.parametrize("options", [RARE, ALMOST_ALL])
def test_workers_shards_and_clusters_do_not_change_a_byte(
    options, folder, tokenizer_path, tmp_path
):
    expected = contents(prepare([str(folder)], tokenizer_path, tmp_path / "plain", options).path)
    two = prepare(
        [str(folder)], tokenizer_path, tmp_path / "two", options, Means(workers=2, batch_bytes=1)
    )
    assert contents(two.path) == expected
    (tmp_path / "cluster").mkdir()
    jobs = make_jobs(
        find_inputs([str(folder)]),
        TokenizerFile(tokenizer_path),
        tmp_path / "cluster",
        options,
        Means(engine="slurm"),
    )
    for rank in (3, 1, 0, 2):
        ConvertStep(jobs, tmp_path / "cluster" / "tokenizer.json", "cached").run(None, rank, 4)
    SealStep(jobs, tmp_path / "cluster" / "tokenizer.json").run(None)
    assert contents(tmp_path / "cluster") == expected


@pytest.mark.parametrize("moment", ["while the document changes sides", "before the manifest"])
def test_a_preparation_that_was_stopped_ends_in_the_same_bytes(
    moment, folder, tokenizer_path, tmp_path, monkeypatch
):
    expected = contents(prepare([str(folder)], tokenizer_path, tmp_path / "plain", RARE).path)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        manifest_writing,
        "convert" if moment == "while the document changes sides" else "write_json",
        stop,
    )
    with pytest.raises(KeyboardInterrupt):
        prepare([str(folder)], tokenizer_path, tmp_path / "data", RARE)
    monkeypatch.undo()
    assert (
        contents(prepare([str(folder)], tokenizer_path, tmp_path / "data", RARE).path) == expected
    )


def test_an_input_that_comes_later_decides_anew(
    folder, names, tokenizer_path, tmp_path, monkeypatch
):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(manifest_writing, "write_json", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare([str(folder)], tokenizer_path, tmp_path / "data", RARE)
    monkeypatch.undo()
    lower = next(
        name
        for name in map(str, range(10_000))
        if reference_hash(name) < min(map(reference_hash, names))
    )
    write(folder / "part-4.jsonl", [lower])
    dataset = prepare([str(folder)], tokenizer_path, tmp_path / "data", RARE)
    assert ids(dataset, "validation") == [lower]
    assert contents(dataset.path) == contents(
        prepare([str(folder)], tokenizer_path, tmp_path / "plain", RARE).path
    )


def test_the_same_command_again_opens_the_dataset(folder, tokenizer_path, tmp_path):
    first = contents(prepare([str(folder)], tokenizer_path, tmp_path / "data", RARE).path)
    assert contents(prepare([str(folder)], tokenizer_path, tmp_path / "data", RARE).path) == first


# A tokenizer


@pytest.mark.parametrize(("options", "held_out"), [(RARE, slice(0, 1)), (ALMOST_ALL, slice(0, -1))])
def test_a_tokenizer_never_reads_what_is_held_out(options, held_out, folder, names):
    wanted = {f"the words of {name}" for name in names} - {
        f"the words of {name}" for name in by_hash(names)[held_out]
    }
    assert set(training_texts([str(folder)], options)) == wanted


def test_a_tokenizer_reads_everything_where_the_share_is_0(folder, names):
    assert len(list(training_texts([str(folder)], PrepareOptions(validation_fraction=0)))) == COUNT
