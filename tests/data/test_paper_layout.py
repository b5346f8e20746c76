"""The paper's preset prepares a folder in the layout of its corpus: Parquet files with text, id and
metadata.
"""

import gzip
import json
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from tokencodes.cli import run
from tokencodes.data.dataset import Dataset
from tokencodes.data.mixture import build_sampler
from tokencodes.data.split import split_of
from tokencodes.data.text import Document
from tokencodes.train.corpus import open_dataset
from tokencodes.train.settings import read_study

FILES = {"train-00000-of-00234.parquet": "brown", "train-00001-of-00234.parquet": "rust-books"}


@pytest.fixture(scope="module")
def folder(real_data, tmp_path_factory):
    """Two files of real documents with ids and metadata as the corpus has them."""
    place = tmp_path_factory.mktemp("fineweb-edu-dedup")
    for name, corpus in FILES.items():
        with gzip.open(real_data / "corpora" / f"{corpus}.jsonl.gz") as lines:
            texts = [json.loads(line)["text"] for line in lines]
        ids = [
            f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{corpus}/{number}')}>"
            for number in range(len(texts))
        ]
        metadata = [
            {
                "dump": "CC-MAIN-2024-10",
                "url": f"https://example.org/{corpus}/{number}",
                "language_score": 0.97,
            }
            for number in range(len(texts))
        ]
        pq.write_table(pa.table({"text": texts, "id": ids, "metadata": metadata}), place / name)
    return place


def test_prepare_paper_takes_the_folder_and_nothing_else_changes(
    folder, real_data, tmp_path, capsys
):
    tokenizer, out = real_data / "tokenizer" / "smollm2.json", tmp_path / "data"
    command = [
        "prepare",
        "paper",
        "--tokenizer",
        str(tokenizer),
        "--out",
        str(out),
        "--set",
        f'data.inputs=["{folder}"]',
    ]
    assert run([*command, "--workers", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["done"], result["documents"], result["kept"], result["dropped"]) == (
        True,
        1510,
        1510,
        {},
    )
    study, _ = read_study("paper", [f'data.dataset="{out}"'])
    corpus = open_dataset(study.data, tmp_path, print)
    assert corpus.fingerprint == result["fingerprint"] == Dataset(out).fingerprint
    library = Tokenizer.from_file(str(tokenizer))
    for name in FILES:
        rows = pq.read_table(folder / name).to_pylist()
        for side in ("train", "validation"):
            wanted = [
                row for row in rows if split_of(Document(row["text"], row["id"]), 0, 0.001) == side
            ]
            shards = [
                shard
                for shard in corpus.shards(side)
                if shard.path.parent.name == name.split(".")[0]
            ]
            assert [id for shard in shards for id in shard.names()["id"].to_pylist()] == [
                row["id"] for row in wanted
            ]
            expected = library.encode_batch_fast(
                [row["text"] for row in wanted], add_special_tokens=False
            )
            assert [ids.tolist() for shard in shards for ids in shard.ids()] == [
                [*encoding.ids, 0] for encoding in expected
            ]
    batch = study.batch
    windows = build_sampler(
        corpus,
        batch.sampling,
        study.model.context_length,
        1,
        batch.streams,
        batch.windows_per_visit,
    )
    assert len(windows.draw(np.arange(128)).document) == 128


def test_the_papers_preset_takes_no_other_tokenizer(folder, tokenizer_path, tmp_path, capsys):
    command = [
        "prepare",
        "paper",
        "--out",
        str(tmp_path / "data"),
        "--set",
        f'data.inputs=["{folder}"]',
    ]
    assert run([*command, "--tokenizer", str(tokenizer_path)]) == 2
    assert "its SHA-256 is" in capsys.readouterr().err
    assert run(command) == 2
    assert (
        "the recipe is bound to the tokenizer with SHA-256 9ca9acddb652" in capsys.readouterr().err
    )
    assert not (tmp_path / "data").exists()
