"""Reading documents: what is read, and how each kind of unusable input is named."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokencodes.data.text import Document, find_files, read_documents
from tokencodes.errors import InputError

ROWS = [{"text": "Héllo 𝛼\nworld", "id": "a"}, {"text": ""}, {"text": "x", "id": 7, "other": None}]
EXPECTED = [Document("Héllo 𝛼\nworld", "a"), Document("", None), Document("x", "7")]


def write_lines(path, rows, opener=open):
    with opener(path, "wb") as file:
        file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    return path


def test_json_lines_plain_and_gzip(tmp_path):
    assert list(read_documents(write_lines(tmp_path / "a.jsonl", ROWS))) == EXPECTED
    assert list(read_documents(write_lines(tmp_path / "a.jsonl.gz", ROWS, gzip.open))) == EXPECTED


def test_parquet_in_the_layout_of_the_papers_corpus(tmp_path):
    table = pa.table({"text": ["a b", "c"], "id": ["x", None], "metadata": [{"k": 1}, {"k": 2}]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert list(read_documents(tmp_path / "a.parquet")) == [Document("a b", "x"), Document("c", None)]


def test_a_text_file_is_one_document_and_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert list(read_documents(tmp_path / "a.txt")) == [Document("one\r\ntwo", "a")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"text": "x"', "line 3: not JSON"),
        (b'{"text": "\xff"}', "line 3: not UTF-8 (byte 0xff at 10)"),
        (b'{"body": "x"}', 'line 3: no "text" that is a string'),
        (b'{"text": null}', 'line 3: no "text" that is a string'),
        (b'["x"]', 'line 3: no "text" that is a string'),
        (b'{"text": "\\ud800"}', "line 3: a lone surrogate at character 0"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(line, complaint, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + line + b"\n")
    with pytest.raises(InputError) as caught:
        list(read_documents(path))
    assert str(caught.value).startswith(f"{path}, {complaint}")


def test_damaged_containers_are_named(tmp_path):
    cut = write_lines(tmp_path / "a.jsonl.gz", ROWS * 50, gzip.open)
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"a.jsonl.gz, after line \d+: damaged gzip"):
        list(read_documents(cut))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="not readable as Parquet"):
        list(read_documents(tmp_path / "a.parquet"))
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="no column 'text' among body"):
        list(read_documents(tmp_path / "b.parquet"))


def test_inputs_are_found_and_wrong_ones_named(tmp_path):
    one = write_lines(tmp_path / "one.jsonl", ROWS)
    (tmp_path / "deep").mkdir()
    two = write_lines(tmp_path / "deep" / "two.jsonl", ROWS)
    assert set(find_files([str(tmp_path)])) == {one, two}
    (tmp_path / "x.csv").write_text("a")
    (tmp_path / "empty").mkdir()
    for name, complaint in [("none.txt", "no such file"), ("x.csv", "unknown kind of file"), ("empty", "no file that ends in")]:
        with pytest.raises(InputError, match=complaint):
            find_files([str(tmp_path / name)])
    with pytest.raises(InputError, match="named twice"):
        find_files([str(one), str(tmp_path)])
