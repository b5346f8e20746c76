"""Texts as they come: bad lines, strange and huge documents, inputs that do not hold still; and
means that decide nothing.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import contents
from tokencodes.data.convert import Job, convert
from tokencodes.data.counts import EMPTY, NOTED, SHORT
from tokencodes.data.dataset import Dataset
from tokencodes.data.encode import ReferenceEncoder, engine_for
from tokencodes.data.inputs import Input, find_inputs
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import Means, prepare
from tokencodes.data.text import BYTE_ORDER_MARK, read_documents
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError

WHOLE_TRAIN = PrepareOptions(validation_fraction=0)


# Lines that are no documents, or strange ones

REFUSED = {
    "not JSON": b'{"text": "never ended',
    "no text": b'{"body": "text under another name"}',
    "null text": b'{"text": null}',
    "text is a number": b'{"text": 7}',
    "text is a list": b'{"text": ["words"]}',
    "the row is a list": b'["words"]',
    "lone surrogate": b'{"text": "half a pair: \\ud83d"}',
    "not UTF-8": '{"text": "café, in Latin-1"}'.encode("latin-1"),
}
STRANGE = {
    BYTE_ORDER_MARK: (b'\xef\xbb\xbf{"id": "mark", "text": "behind a mark"}', "behind a mark"),
    NOTED["\r\n"]: (b'{"id": "crlf", "text": "one\\r\\ntwo"}', "one\r\ntwo"),
    NOTED["\0"]: (b'{"id": "nul", "text": "a\\u0000b"}', "a\0b"),
}
EMPTY_LINE = b'{"id": "empty", "text": ""}'


@pytest.fixture
def faulty(texts, tmp_path) -> Path:
    """Good lines, and among them each refused kind, each kind once more often than the one before,
    and strange ones.
    """
    lines = (texts / "austen.jsonl").read_bytes().splitlines()
    for often, line in enumerate(REFUSED.values(), 1):
        for place in range(often):
            lines.insert(5 * place + often, line)
    lines += [EMPTY_LINE, EMPTY_LINE, *(line for line, _ in STRANGE.values())]
    path = tmp_path / "lines" / "faulty.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def named_texts(dataset: Dataset) -> dict[str, str]:
    """Every document's text by its id, read back out of the shards."""
    decode = dataset.tokenizer.tokenizer.decode
    return {
        name: decode(ids.tolist()[:-1], skip_special_tokens=False)
        for shard in dataset.own_shards
        for name, ids in zip(shard.names()["id"].to_pylist(), shard.ids(), strict=True)
    }


@pytest.mark.parametrize("kind", REFUSED)
def test_a_line_that_is_no_document_stops_the_work_and_is_named(
    kind, texts, tokenizer_path, tmp_path
):
    path = tmp_path / "lines.jsonl"
    good = (texts / "austen.jsonl").read_bytes().splitlines()
    path.write_bytes(b"\n".join([*good[:7], REFUSED[kind], *good[7:]]))
    with pytest.raises(InputError) as caught:
        prepare([str(path)], tokenizer_path, tmp_path / "data", WHOLE_TRAIN)
    assert str(caught.value).startswith(f"{path}, line 8: ")
    assert "--on-error skip" in str(caught.value)
    assert contents(tmp_path / "data").keys() == {"tokenizer.json"}


def test_skipped_lines_are_counted_by_kind_and_every_good_document_is_kept(
    faulty, texts, tokenizer_path, tmp_path
):
    dataset = prepare(
        [str(faulty)],
        tokenizer_path,
        tmp_path / "data",
        PrepareOptions(validation_fraction=0.3, on_error="skip"),
    )
    (source,) = dataset.manifest.sources
    counts = source.counts
    good = {document.id: document.text for document in read_documents(texts / "austen.jsonl")}
    strange = {json.loads(line.decode("utf-8-sig"))["id"]: text for line, text in STRANGE.values()}
    assert named_texts(dataset) == good | strange
    assert counts.dropped == {kind: often for often, kind in enumerate(REFUSED, 1)} | {EMPTY: 2}
    assert counts.noted == dict.fromkeys(STRANGE, 1)
    assert counts.kept == len(good) + len(strange)
    assert counts.documents == counts.kept + sum(counts.dropped.values())
    assert counts.text_bytes == sum(len(text.encode()) for text in (good | strange).values())


def test_the_first_of_each_kind_is_told_by_file_and_line(faulty, tokenizer_path, tmp_path):
    dataset = prepare(
        [str(faulty)],
        tokenizer_path,
        tmp_path / "data",
        PrepareOptions(validation_fraction=0.3, on_error="skip"),
    )
    examples = dataset.manifest.sources[0].counts.examples
    lines = faulty.read_bytes().splitlines()
    assert examples.keys() == {*REFUSED, EMPTY}
    for kind, line in REFUSED.items():
        assert examples[kind].startswith(f"faulty.jsonl, line {lines.index(line) + 1}: ")
    assert examples[EMPTY] == f"faulty.jsonl, document {lines.index(EMPTY_LINE)}"


def test_where_an_input_lies_does_not_reach_the_fingerprint(faulty, tokenizer_path, tmp_path):
    options = PrepareOptions(validation_fraction=0.3, on_error="skip")
    here = prepare([str(faulty)], tokenizer_path, tmp_path / "here", options)
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy2(faulty, tmp_path / "elsewhere")
    assert (
        prepare([str(moved)], tokenizer_path, tmp_path / "there", options).fingerprint
        == here.fingerprint
    )


def test_empty_and_strange_documents_do_not_stop_the_work(texts, tokenizer_path, tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"\n".join([EMPTY_LINE, *(line for line, _ in STRANGE.values())]))
    dataset = prepare([str(path)], tokenizer_path, tmp_path / "data", WHOLE_TRAIN)
    assert list(named_texts(dataset).values()) == [text for _, text in STRANGE.values()]
    counts = dataset.manifest.sources[0].counts
    assert (counts.dropped, counts.noted) == ({EMPTY: 1}, dict.fromkeys(STRANGE, 1))


def test_documents_below_the_least_length_are_dropped_and_counted(texts, tokenizer_path, tmp_path):
    path = texts / "sotu.jsonl"
    documents = list(read_documents(path))
    lengths = [
        len(ids) + 1
        for ids in TokenizerFile(tokenizer_path).encode([document.text for document in documents])
    ]
    least = sorted(lengths)[len(lengths) // 3] + 1
    dataset = prepare(
        [str(path)],
        tokenizer_path,
        tmp_path / "data",
        PrepareOptions(validation_fraction=0, min_document_tokens=least),
    )
    kept = [
        document.id for document, length in zip(documents, lengths, strict=True) if length >= least
    ]
    assert list(named_texts(dataset)) == kept
    counts = dataset.manifest.sources[0].counts
    first = next(number for number, length in enumerate(lengths) if length < least)
    assert counts.dropped == {SHORT: len(documents) - len(kept)}
    assert counts.examples == {SHORT: f"sotu.jsonl:{first}"}


# An input that does not hold still


def swap_case(path: Path) -> None:
    """Other bytes, as many of them."""
    path.write_bytes(path.read_bytes().swapcase())


def test_an_input_that_changes_while_it_is_read_is_refused(texts, tokenizer_path, tmp_path):
    path = Path(shutil.copy2(texts / "sotu.jsonl", tmp_path))
    job = Job(find_inputs([str(path)])[0], tmp_path / "data", WHOLE_TRAIN, batch_bytes=10_000)
    with pytest.raises(
        InputError, match=r"sotu\.jsonl: changed while it was read; repeat the command"
    ):
        convert(job, engine_for(TokenizerFile(tokenizer_path)), lambda progress: os.utime(path))
    assert not contents(tmp_path / "data")


def test_an_input_that_changes_after_it_was_hashed_is_refused(
    texts, tokenizer_path, tmp_path, monkeypatch
):
    path = Path(shutil.copy2(texts / "sotu.jsonl", tmp_path))
    hashed = Input.facts

    def facts(self):
        result = hashed(self)
        path.write_bytes(path.read_bytes().replace(b"Congress", b"congress"))
        return result

    monkeypatch.setattr(Input, "facts", facts)
    with pytest.raises(InputError, match=r"sotu\.jsonl: changed while it was read"):
        prepare([str(path)], tokenizer_path, tmp_path / "data", WHOLE_TRAIN)
    assert contents(tmp_path / "data").keys() == {"tokenizer.json"}


# The means decide nothing

MEANS = {
    "two workers": Means(workers=2),
    "the reference engine": Means(tokenizer_engine="reference"),
    "a document at a time": Means(batch_bytes=1),
    "other batches": Means(batch_bytes=30_000),
    "all of it": Means(workers=2, tokenizer_engine="reference", batch_bytes=7_000),
}


def prepare_mixed(folder: Path, tokenizer: Path, out: Path, means: Means) -> dict[str, bytes]:
    options = PrepareOptions(
        validation_fraction=0.2, shard_tokens=5000, min_document_tokens=6, on_error="skip"
    )
    prepare([str(folder)], tokenizer, out, options, means)
    return contents(out)


@pytest.fixture
def mixed(faulty, texts) -> Path:
    """Inputs of each kind in one folder, faults among them."""
    documents = list(read_documents(texts / "sotu.jsonl"))
    table = {
        "id": [document.id for document in documents[20:]],
        "text": [document.text for document in documents[20:]],
    }
    pq.write_table(pa.table(table), faulty.parent / "rows.parquet")
    for document in documents[:20]:
        (faulty.parent / f"{document.id}.txt").write_text(document.text, encoding="utf-8")
    return faulty.parent


def test_workers_engine_and_batches_do_not_change_a_byte(mixed, tokenizer_path, tmp_path):
    expected = prepare_mixed(mixed, tokenizer_path, tmp_path / "plain", Means())
    assert len(expected) > 40
    for name, means in MEANS.items():
        assert prepare_mixed(mixed, tokenizer_path, tmp_path / name, means) == expected, name


def test_nor_do_they_with_real_text_and_the_real_tokenizer(real_data, tmp_path):
    inputs = [str(real_data / "corpora" / "rust-books.jsonl.gz")]
    tokenizer = real_data / "tokenizer" / "smollm2.json"
    expected = contents(prepare(inputs, tokenizer, tmp_path / "plain", WHOLE_TRAIN).path)
    for name in ("the reference engine", "other batches"):
        assert (
            contents(prepare(inputs, tokenizer, tmp_path / name, WHOLE_TRAIN, MEANS[name]).path)
            == expected
        )


# A huge document

PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
SAFE_CUT = re.compile(r"[A-Za-z](?= [A-Za-z])")  # no pre-token reaches across


def test_a_document_of_50_megabytes_goes_through_in_little_memory(real_data, tmp_path):
    documents = read_documents(real_data / "corpora" / "python3.11-doc-rst.jsonl.gz")
    text = "\n\n".join(document.text for document in documents)
    text = (text * (50_000_000 // len(text) + 1))[:50_000_000]
    (tmp_path / "big.jsonl").write_text(
        json.dumps({"id": "big", "text": text}, ensure_ascii=False), encoding="utf-8"
    )
    tokenizer = real_data / "tokenizer" / "smollm2.json"
    line = (
        f"-m tokencodes prepare {tmp_path / 'big.jsonl'} --tokenizer {tokenizer}"
        f" --validation-fraction 0 --out {tmp_path / 'data'}"
    )
    measured = [sys.executable, "-c", PEAK, sys.executable, *line.split(), "--json"]
    assert int(subprocess.run(measured, capture_output=True, check=True).stdout) < 1_000_000_000

    (shard,) = Dataset(tmp_path / "data").own_shards
    (ids,) = shard.ids()
    encoder = ReferenceEncoder(TokenizerFile(tokenizer))
    head, tail = SAFE_CUT.search(text, 1_000_000), SAFE_CUT.search(text, len(text) - 1_000_000)
    first, last = (encoder.encode([part])[0] for part in (text[: head.end()], text[tail.end() :]))
    assert ids[: len(first)].tolist() == first.tolist()
    assert ids[-len(last) - 1 :].tolist() == [*last.tolist(), encoder.tokenizer.end_of_text]
