"""Text to shards: what comes out, that it can be repeated and interrupted, and what is refused."""

import fcntl
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from tokencodes.data import manifest as manifest_writing
from tokencodes.data.dataset import Dataset
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import prepare
from tokencodes.data.split import split_of
from tokencodes.data.text import Document, read_documents
from tokencodes.data.tokenizer import train_tokenizer
from tokencodes.data.writer import ShardWriter
from tokencodes.errors import InputError


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_the_shards_hold_every_document_whole_in_order_and_ended(dataset, texts):
    encode = dataset.tokenizer.encode
    for source in sorted(texts.iterdir()):
        for side in ("train", "validation"):
            documents = [d for d in read_documents(source) if split_of(d, 0, 0.2) == side]
            shards = [
                shard
                for shard in dataset.shards(side)
                if shard.path.parent.name == source.name.split(".")[0]
            ]
            ids_of_documents = [ids.tolist() for shard in shards for ids in shard.ids()]
            assert ids_of_documents == [[*ids, 0] for ids in encode([d.text for d in documents])]
            names = [
                name
                for shard in shards
                for name in pq.read_table(shard.path / "documents.parquet")["id"].to_pylist()
            ]
            assert names == [d.id for d in documents]


def test_the_split_is_a_function_of_seed_and_id_alone():
    documents = [Document(f"text {i}", str(i)) for i in range(4000)]
    held = [d for d in documents if split_of(d, 1, 0.1) == "validation"]
    assert 300 < len(held) < 500
    assert held != [d for d in documents if split_of(d, 2, 0.1) == "validation"]
    assert split_of(Document("other text", held[0].id), 1, 0.1) == "validation"
    assert {split_of(Document(f"text {i}", None), 1, 0.5) for i in range(50)} == {
        "train",
        "validation",
    }


def test_preparing_again_changes_nothing_and_small_shards_hold_the_same_documents(
    texts, tokenizer_path, dataset, tmp_path
):
    out = tmp_path / "data"
    first = prepare(
        [str(texts)],
        tokenizer_path,
        out,
        PrepareOptions(validation_fraction=0.2, shard_tokens=2000),
    )
    before = contents(out)
    assert (
        prepare(
            [str(texts)],
            tokenizer_path,
            out,
            PrepareOptions(validation_fraction=0.2, shard_tokens=2000),
        ).fingerprint
        == first.fingerprint
    )
    assert contents(out) == before
    assert len(first.shards("train")) > len(dataset.shards("train"))
    for side in ("train", "validation"):
        small, large = (
            [ids.tolist() for s in d.shards(side) for ids in s.ids()] for d in (first, dataset)
        )
        assert small == large


def test_an_interrupted_run_leaves_no_dataset_and_the_next_one_ends_in_the_same_bytes(
    texts, tokenizer_path, tmp_path, monkeypatch
):
    whole = tmp_path / "whole"
    prepare([str(texts)], tokenizer_path, whole, PrepareOptions(validation_fraction=0.2))
    out = tmp_path / "data"
    close = ShardWriter.close

    def interrupted(self):
        if "sotu" in str(self._folder):
            raise KeyboardInterrupt
        return close(self)

    monkeypatch.setattr(ShardWriter, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare([str(texts)], tokenizer_path, out, PrepareOptions(validation_fraction=0.2))
    assert not list(out.glob(".tmp-*"))
    with pytest.raises(InputError, match="not a finished dataset"):
        Dataset(out)
    monkeypatch.undo()
    (out / ".tmp-sotu-0123").mkdir()  # as a kill would leave it
    prepare([str(texts)], tokenizer_path, out, PrepareOptions(validation_fraction=0.2))
    assert contents(out) == contents(whole)


def test_a_folder_made_from_something_else_is_refused(texts, tokenizer_path, tmp_path):
    out = tmp_path / "data"
    prepare([str(texts)], tokenizer_path, out, PrepareOptions(validation_fraction=0.2))
    other = tmp_path / "other.json"
    train_tokenizer(["some other words " * 50], 262, other)
    with pytest.raises(InputError, match="tokenizer_sha256"):
        prepare([str(texts)], other, out, PrepareOptions(validation_fraction=0.2))
    with pytest.raises(InputError, match=r"validation_fraction 0\.2 is here, asked for 0\.3"):
        prepare([str(texts)], tokenizer_path, out, PrepareOptions(validation_fraction=0.3))
    with pytest.raises(InputError, match="a dataset of other inputs is here"):
        prepare(
            [str(sorted(texts.iterdir())[0])],
            tokenizer_path,
            out,
            PrepareOptions(validation_fraction=0.2),
        )


def test_what_an_unfinished_run_with_other_settings_left_is_made_anew(
    texts, tokenizer_path, dataset, tmp_path, monkeypatch
):
    out = tmp_path / "data"

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(manifest_writing, "write_json", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare([str(texts)], tokenizer_path, out, PrepareOptions(validation_fraction=0.3))
    monkeypatch.undo()
    assert (
        prepare(
            [str(texts)], tokenizer_path, out, PrepareOptions(validation_fraction=0.2)
        ).fingerprint
        == dataset.fingerprint
    )


def test_two_runs_into_one_folder_are_kept_apart(texts, tokenizer_path, tmp_path):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another program is writing here"):
            prepare([str(texts)], tokenizer_path, tmp_path, PrepareOptions(validation_fraction=0.2))


def test_ids_take_two_bytes_where_they_fit(dataset):
    assert dataset.shards("train")[0].span(0, 0, 3).dtype == np.uint16


def test_real_text_with_the_real_tokenizer(real_data, tmp_path):
    dataset = prepare(
        [str(real_data / "corpora" / "rust-books.jsonl.gz")],
        real_data / "tokenizer" / "smollm2.json",
        tmp_path / "data",
        PrepareOptions(validation_fraction=0.05),
    )
    documents = list(read_documents(real_data / "corpora" / "rust-books.jsonl.gz"))
    counts = {
        side: sum(len(shard.lengths) for shard in dataset.shards(side))
        for side in ("train", "validation")
    }
    assert sum(counts.values()) == len(documents) == 1010
    tokens = sum(int(shard.lengths.sum()) for side in counts for shard in dataset.shards(side))
    assert 860_000 < tokens < 900_000


def test_the_split_seed_reaches_the_shards(texts, tokenizer_path, tmp_path):
    dataset = prepare(
        [str(texts)],
        tokenizer_path,
        tmp_path / "data",
        PrepareOptions(validation_fraction=0.2, split_seed=5),
    )
    for side in ("train", "validation"):
        names = {
            name
            for shard in dataset.shards(side)
            for name in pq.read_table(shard.path / "documents.parquet")["id"].to_pylist()
        }
        documents = [d for file in texts.iterdir() for d in read_documents(file)]
        assert names == {d.id for d in documents if split_of(d, 5, 0.2) == side}


def test_a_folder_of_somebody_elses_files_is_not_touched(texts, tokenizer_path, tmp_path):
    (tmp_path / "austen").mkdir()
    (tmp_path / "austen" / "source.json").write_text("{}")
    (tmp_path / "austen" / "thesis.tex").write_text("years of work")
    before = contents(tmp_path)
    with pytest.raises(InputError, match="nothing in it is touched"):
        prepare([str(texts)], tokenizer_path, tmp_path, PrepareOptions(validation_fraction=0.2))
    assert contents(tmp_path) == before


def test_what_a_tokenizer_file_sets_for_short_prompts_does_not_reach_documents(
    texts, tokenizer_path, dataset, tmp_path
):
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "t.json"))
    prepared = prepare(
        [str(texts)],
        tmp_path / "t.json",
        tmp_path / "data",
        PrepareOptions(validation_fraction=0.2),
    )
    whole, here = (
        [ids.tolist() for s in d.shards("train") for ids in s.ids()] for d in (dataset, prepared)
    )
    assert here == whole


@pytest.mark.parametrize("name", ["checkpoints", "gf2"])
def test_a_runs_folder_is_not_touched_though_it_has_a_lock_too(
    name, texts, tokenizer_path, tmp_path
):
    (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / name / "weights").write_text("weeks of work")
    (tmp_path / f"{name}.jsonl").write_bytes((texts / "sotu.jsonl").read_bytes())
    with pytest.raises(InputError, match="nothing in it is touched"):
        prepare(
            [str(tmp_path / f"{name}.jsonl")],
            tokenizer_path,
            tmp_path / "run",
            PrepareOptions(validation_fraction=0.2),
        )
    shutil.copy(tokenizer_path, tmp_path / "run" / "tokenizer.json")
    with pytest.raises(InputError, match="not made by prepare"):
        prepare(
            [str(tmp_path / f"{name}.jsonl")],
            tokenizer_path,
            tmp_path / "run",
            PrepareOptions(validation_fraction=0.2),
        )
    assert (tmp_path / "run" / name / "weights").read_text() == "weeks of work"


def test_a_dataset_with_another_tokenizer_in_it_is_not_taken_for_finished(
    texts, tokenizer_path, tmp_path
):
    prepare(
        [str(texts)], tokenizer_path, tmp_path / "data", PrepareOptions(validation_fraction=0.2)
    )
    (tmp_path / "data" / "tokenizer.json").write_text(tokenizer_path.read_text() + " ")
    with pytest.raises(InputError, match="not the tokenizer that made these ids"):
        prepare(
            [str(texts)], tokenizer_path, tmp_path / "data", PrepareOptions(validation_fraction=0.2)
        )
