"""Documents that datatrove tokenized: the ids that their texts give, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from datatrove.data import Document as TroveDocument
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.tokens import DocumentTokenizer

from tests.conftest import VOCAB
from tokencodes.data.dataset import Dataset
from tokencodes.data.inputs import find_inputs
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import Means, prepare
from tokencodes.data.split import split_of
from tokencodes.data.text import Document, read_documents
from tokencodes.data.tokenized import read_tokenized
from tokencodes.data.tokenizer import END_OF_TEXT
from tokencodes.errors import InputError

ALL = PrepareOptions(validation_fraction=0)  # on one side, so that the order of documents stays


def tokenize(texts: Path, tokenizer: Path, out: Path, eos: str | None) -> Path:
    """What datatrove makes of each file."""
    for file in sorted(texts.iterdir()):
        documents = [TroveDocument(text=d.text, id=d.id or "") for d in read_documents(file)]
        step = DocumentTokenizer(
            str(out),
            str(tokenizer),
            eos_token=eos,
            save_filename=file.stem,
            shuffle_documents=False,
            batch_size=7,
        )
        LocalPipelineExecutor(
            [documents, step], tasks=1, workers=1, logging_dir=f"{out}-logs/{file.stem}"
        ).run()
    return out


@pytest.fixture(scope="module")
def tokenized(texts, tokenizer_path, tmp_path_factory) -> dict[str | None, Path]:
    """A folder of two files, with and without a token that ends each document."""
    folder = tmp_path_factory.mktemp("tokenized")
    return {
        eos: tokenize(texts, tokenizer_path, folder / f"eos-{eos is not None}", eos)
        for eos in (None, END_OF_TEXT)
    }


def write(path: Path, ids: list[int], ends: list[int], width: int = 2) -> Path:
    np.array(ids, dtype=f"<u{width}").tofile(path)
    np.array(ends, dtype="<u8").tofile(path.with_name(f"{path.name}.index"))
    return path


def ids_of(dataset: Dataset) -> list[list[int]]:
    return [
        ids.tolist()
        for side in ("train", "validation")
        for shard in dataset.shards(side)
        for ids in shard.ids()
    ]


def read(path: Path, batch_tokens: int = 1000) -> list[list[int]]:
    documents = []
    for ids, sizes in read_tokenized(path, VOCAB, batch_tokens):
        documents += [document.tolist() for document in np.split(ids, np.cumsum(sizes)[:-1])]
    return documents


@pytest.mark.parametrize(
    ("eos", "end_of_text"),
    [(None, "append"), (END_OF_TEXT, "append"), (None, "none")],
    ids=["without", "with", "none"],
)
def test_what_datatrove_tokenized_gives_the_ids_that_the_texts_give(
    eos, end_of_text, tokenized, texts, tokenizer_path, tmp_path
):
    options = PrepareOptions(validation_fraction=0, end_of_text=end_of_text)
    whole = prepare([str(texts)], tokenizer_path, tmp_path / "texts", options)
    dataset = prepare([str(tokenized[eos])], tokenizer_path, tmp_path / "tokenized", options)
    assert ids_of(dataset) == ids_of(whole)
    assert len(dataset.manifest.sources) == len(whole.manifest.sources) == 2
    for here, there in zip(dataset.manifest.sources, whole.manifest.sources, strict=True):
        assert (here.counts.documents, here.counts.kept) == (
            there.counts.documents,
            there.counts.kept,
        )


@pytest.mark.parametrize("eos", [None, END_OF_TEXT])
def test_bytes_of_text_are_counted_from_the_ids_and_what_ends_a_document_is_none(
    eos, tokenized, texts, tokenizer_path, tmp_path
):
    whole = prepare([str(texts)], tokenizer_path, tmp_path / "texts", ALL)
    dataset = prepare([str(tokenized[eos])], tokenizer_path, tmp_path / "tokenized", ALL)
    for here, there in zip(dataset.manifest.sources, whole.manifest.sources, strict=True):
        assert here.counts.text_bytes == there.counts.text_bytes > 0
        assert here.counts.token_bytes == there.counts.token_bytes > 0


def test_batches_of_any_size_give_the_same_bytes(tokenized, tokenizer_path, tmp_path):
    options = PrepareOptions(validation_fraction=0.2)
    made = [
        prepare(
            [str(tokenized[END_OF_TEXT])],
            tokenizer_path,
            tmp_path / str(size),
            options,
            Means(batch_bytes=size),
        )
        for size in (1, 3000, 1 << 20)
    ]
    assert len({dataset.fingerprint for dataset in made}) == 1
    assert ids_of(made[0]) == ids_of(made[1]) == ids_of(made[2])


def test_a_document_is_named_by_file_and_number_and_split_by_that_name(
    tokenized, tokenizer_path, tmp_path
):
    dataset = prepare(
        [str(tokenized[None])],
        tokenizer_path,
        tmp_path / "data",
        PrepareOptions(validation_fraction=0.2, split_seed=3),
    )
    for entry in find_inputs([str(tokenized[None])]):
        file = entry.files[0]
        places = [
            f"{file.name}:{number}"
            for number in range(len(np.fromfile(f"{file}.index", dtype="<u8")))
        ]
        for side in ("train", "validation"):
            shards = [
                shard for shard in dataset.shards(side) if shard.path.parent.name == entry.name
            ]
            names = [name for shard in shards for name in shard.names()["id"].to_pylist()]
            assert names == [
                place for place in places if split_of(Document("", place), 3, 0.2) == side
            ]


def test_a_folder_of_them_is_found_and_what_lies_beside_them_is_no_input(tokenized):
    folder = tokenized[None]
    assert {file.name.split(".ds")[1] for file in folder.iterdir()} == {"", ".index", ".metadata"}
    assert [entry.name for entry in find_inputs([str(folder)])] == [
        "austen_00000_unshuffled",
        "sotu_00000_unshuffled",
    ]
    assert [entry.files[0].suffix for entry in find_inputs([str(folder / "*")])] == [".ds", ".ds"]
    with pytest.raises(InputError, match="unknown kind of file"):
        find_inputs([str(next(folder.glob("*.index")))])


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("batch_tokens", [1, 4, 1000])
def test_ids_of_two_and_of_four_bytes_are_read_with_empty_documents_among_them(
    width, batch_tokens, tmp_path
):
    path = write(tmp_path / "a.ds", [5, 6, 7, 8, 319, 9], [0, 3, 3, 5, 6, 6], width)
    assert read(path, batch_tokens) == [[], [5, 6, 7], [], [8, 319], [9], []]


def test_a_file_without_a_token_has_only_empty_documents(tmp_path):
    assert [
        len(sizes) for _, sizes in read_tokenized(write(tmp_path / "a.ds", [], []), VOCAB, 10)
    ] == [0]
    assert [
        sizes.tolist()
        for _, sizes in read_tokenized(write(tmp_path / "b.ds", [], [0, 0]), VOCAB, 10)
    ] == [[0, 0]]


@pytest.mark.parametrize(
    ("ids", "ends", "width", "complaint"),
    [
        ([1, 2, 3], [2], 2, "6 bytes for 2 tokens of its index are not 2 or 4 a token"),
        ([1, 2, 3], [2, 4], 2, "6 bytes for 4 tokens"),
        ([1, 2, 3], [1, 3], 8, "24 bytes for 3 tokens"),
        ([1, 2, 3], [1, 3], 1, "3 bytes for 3 tokens"),
        ([1, 2, 3], [], 2, "6 bytes for 0 tokens"),
        ([1, 2, 3], [0, 0], 2, "6 bytes for 0 tokens"),
        ([], [3], 2, "0 bytes for 3 tokens"),
        ([1, 2, 3], [2, 1, 3], 2, "the ends of the documents do not ascend"),
        ([1, 2, 3], [2**64 - 1], 2, "the ends of the documents do not ascend"),
        ([1, 2, VOCAB, 3, 999], [2, 2, 4, 5], 2, "document 2: id 320 is not below 320"),
    ],
)
def test_files_that_do_not_fit_are_refused(ids, ends, width, complaint, tmp_path):
    path = write(tmp_path / "a.ds", ids, ends, width)
    for batch_tokens in (1, 100):
        with pytest.raises(InputError) as caught:
            read(path, batch_tokens)
        assert complaint in str(caught.value)
        assert str(path) in str(caught.value)


def test_a_file_without_a_whole_index_stops_the_work_and_leaves_no_dataset(
    tokenizer_path, tmp_path
):
    path = write(tmp_path / "a.ds", [1, 2, 3], [1, 3])
    index = tmp_path / "a.ds.index"
    index.write_bytes(index.read_bytes()[:-7])
    with pytest.raises(InputError, match=r"a\.ds\.index: 9 bytes are not whole 64-bit numbers"):
        prepare([str(path)], tokenizer_path, tmp_path / "data", ALL)
    index.unlink()
    with pytest.raises(
        InputError, match=r"a\.ds\.index: no such file; the ends of the documents of a\.ds"
    ):
        prepare([str(path)], tokenizer_path, tmp_path / "data", ALL)
    assert sorted(entry.name for entry in (tmp_path / "data").iterdir()) == [
        ".lock",
        "tokenizer.json",
    ]


def test_documents_without_text_are_left_out_and_counted_as_those_of_texts_are(
    tokenizer_path, tmp_path
):
    dataset = prepare(
        [str(write(tmp_path / "a.ds", [5, 6, 0, 0, 7], [3, 3, 4, 5]))],
        tokenizer_path,
        tmp_path / "data",
        ALL,
    )
    assert ids_of(dataset) == [[5, 6, 0], [7, 0]]
    counts = dataset.manifest.sources[0].counts
    assert (counts.documents, counts.kept, counts.dropped) == (4, 2, {"empty text": 2})


def test_the_same_ids_with_documents_that_end_elsewhere_are_another_input(tokenizer_path, tmp_path):
    prepare(
        [str(write(tmp_path / "a.ds", [5, 6, 7], [1, 3]))], tokenizer_path, tmp_path / "data", ALL
    )
    write(tmp_path / "a.ds", [5, 6, 7], [2, 3])
    with pytest.raises(InputError, match="a dataset of other inputs is here"):
        prepare([str(tmp_path / "a.ds")], tokenizer_path, tmp_path / "data", ALL)
