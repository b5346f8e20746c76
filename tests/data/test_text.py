"""Reading documents: what is read, and how each kind of unusable input is named."""

import gzip
import json
import shutil
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokencodes.data.text import (
    BYTE_ORDER_MARK,
    Columns,
    Document,
    Position,
    Refusal,
    read_documents,
    read_rows,
)
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
    assert list(read_documents(tmp_path / "a.parquet")) == [
        Document("a b", "x"),
        Document("c", None),
    ]


def test_a_text_file_is_one_document_and_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert list(read_documents(tmp_path / "a.txt")) == [
        Document("one\r\ntwo", "a", None, (BYTE_ORDER_MARK,))
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"text": "x"', "line 3: not JSON"),
        (b'{"text": "\xff"}', "line 3: not UTF-8 (byte 0xff at 10)"),
        (b'{"body": "x"}', 'line 3: no "text" that is a string (no text)'),
        (b'{"text": null}', 'line 3: no "text" that is a string (null text)'),
        (b'["x"]', 'line 3: no "text" that is a string (the row is a list)'),
        (b"null", 'line 3: no "text" that is a string (the row is null)'),
        (b'{"text": 7}', 'line 3: no "text" that is a string (text is a number)'),
        (b'{"text": 0.5}', 'line 3: no "text" that is a string (text is a number)'),
        (b'{"text": true}', 'line 3: no "text" that is a string (text is true or false)'),
        (b'{"text": ["x"]}', 'line 3: no "text" that is a string (text is a list)'),
        (b'{"text": {"x": 1}}', 'line 3: no "text" that is a string (text is an object)'),
        (b'{"text": "\\ud800"}', "line 3: a lone surrogate at character 0 of the text"),
        (b'{"text": "x", "id": "\\udfff"}', "line 3: a lone surrogate at character 0 of the id"),
        (b'{"text": "x", "id": ' + b"9" * 5000 + b"}", "line 3: not JSON that can be read"),
        (
            b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "line 3: not JSON that can be read",
        ),
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
    with pytest.raises(InputError, match=r"a.jsonl.gz, after line \d+: damaged archive"):
        list(read_documents(cut))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="not readable as Parquet"):
        list(read_documents(tmp_path / "a.parquet"))
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="no column 'text' among body"):
        list(read_documents(tmp_path / "b.parquet"))


def test_zstd_also_in_several_frames(tmp_path):
    data = write_lines(tmp_path / "a.jsonl", ROWS).read_bytes()
    codec = pa.Codec("zstd")
    (tmp_path / "a.jsonl.zst").write_bytes(
        codec.compress(data[:20], asbytes=True) + codec.compress(data[20:], asbytes=True)
    )
    assert list(read_documents(tmp_path / "a.jsonl.zst")) == EXPECTED
    cut = codec.compress(data * 100, asbytes=True)
    (tmp_path / "b.jsonl.zst").write_bytes(cut[:-7])
    with pytest.raises(InputError, match=r"b\.jsonl\.zst, .*(damaged archive|not JSON)"):
        list(read_documents(tmp_path / "b.jsonl.zst"))


def test_columns_may_have_other_names_and_be_nested(tmp_path):
    rows = [
        {"content": "a b", "meta": {"url": "u1", "site": {"name": "s"}}},
        {"content": "c", "meta": {}},
    ]
    columns = Columns("content", "meta.url", "meta.site.name")
    expected = [Document("a b", "u1", "s"), Document("c", None, None)]
    assert list(read_documents(write_lines(tmp_path / "a.jsonl", rows), columns)) == expected
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert list(read_documents(tmp_path / "a.parquet", columns)) == expected


def test_an_empty_id_is_no_id(tmp_path):
    assert list(read_documents(write_lines(tmp_path / "a.jsonl", [{"text": "x", "id": ""}]))) == [
        Document("x", None)
    ]


def test_refusals_stand_in_order_among_the_documents_with_their_kinds(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        b'{"text": "one"}',
        b"{",
        b'{"text": "\xe9"}',
        b'{"text": null}',
        b'{"x": 1}',
        b'{"text": "\\ud83d"}',
        b'{"text": "two"}',
    ]
    path.write_bytes(b"\r\n".join(lines))
    position = Position()
    contents = [
        row.kind if isinstance(row, Refusal) else row.text
        for row in read_rows(path, Columns(), position)
    ]
    assert contents == [
        "one",
        "not JSON",
        "not UTF-8",
        "null text",
        "no text",
        "lone surrogate",
        "two",
    ]
    assert position.at == path.stat().st_size
    assert [document.text for document in read_documents(path, skip=True)] == ["one", "two"]


def test_parquet_rows_that_are_no_text_are_named(tmp_path):
    text = pa.array([b"fine", b"caf\xe9", None, b"ok"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    rows = list(read_rows(tmp_path / "a.parquet", Columns(), Position()))
    assert [row.kind if isinstance(row, Refusal) else row.text for row in rows] == [
        "fine",
        "not UTF-8",
        "null text",
        "ok",
    ]
    assert "a.parquet, row 2: not UTF-8" in rows[1].message


def test_a_damaged_page_of_parquet_names_the_file(tmp_path):
    pq.write_table(
        pa.table({"text": ["some words here " * 50] * 200}),
        tmp_path / "a.parquet",
        compression="snappy",
    )
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[30:60] = bytes(30)
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(InputError, match=r"a.parquet: not readable as Parquet"):
        list(read_documents(tmp_path / "a.parquet"))


def altered_page(path, checksums: bool):
    """One letter of an uncompressed page is another letter, so that only a checksum can tell."""
    table = pa.table({"text": [f"document {number} of this file" for number in range(200)]})
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(table, path, write_page_checksum=checksums, **options)
    data = bytearray(path.read_bytes())
    data[data.find(b"document 150")] = ord("D")
    path.write_bytes(data)
    return path


def test_a_parquet_page_with_a_wrong_checksum_names_the_file(tmp_path):
    path = altered_page(tmp_path / "a.parquet", checksums=True)
    with pytest.raises(InputError) as caught:
        list(read_documents(path))
    assert str(caught.value).startswith(
        f"{path}: not readable as Parquet (could not verify page integrity"
    )
    assert "\n" not in str(caught.value)


def test_a_parquet_page_without_a_checksum_can_be_altered_without_notice_as_the_docs_say(tmp_path):
    documents = list(read_documents(altered_page(tmp_path / "a.parquet", checksums=False)))
    assert documents[150].text == "Document 150 of this file"


def test_a_parquet_value_that_python_cannot_hold_is_a_row_that_is_named(tmp_path):
    dates = pa.array([1, 2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"text": ["fine", "not"], "id": dates}), tmp_path / "a.parquet")
    rows = list(read_rows(tmp_path / "a.parquet", Columns(), Position()))
    assert rows[0].text == "fine"
    assert rows[1].kind == "odd value"
    assert "a.parquet, row 2: a value that cannot be read" in rows[1].message


def zstd(data: bytes) -> bytes:
    """A frame with a checksum of its contents, as the program `zstd` writes it."""
    if shutil.which("zstd") is None:
        pytest.skip("needs the program zstd")
    return subprocess.run(
        ["zstd", "-q", "--check", "-c"], input=data, capture_output=True, check=True
    ).stdout


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_an_archive_is_believed_only_whole(compress, tmp_path):
    rows = b"".join(
        json.dumps({"text": f"document {number}"}).encode() + b"\n" for number in range(300)
    )
    whole = compress(rows)
    path = tmp_path / ("a.jsonl.gz" if compress is gzip.compress else "a.jsonl.zst")
    in_checksum = -6 if compress is gzip.compress else -1
    for damaged in (
        whole[:-1],
        whole[:-4],
        whole[: len(whole) // 2],
        b"",
        flipped(whole, in_checksum),
        whole + b"more",
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=rf"{path.name}.*take a new copy"):
            list(read_documents(path))
    path.write_bytes(whole + whole)
    assert len(list(read_documents(path))) == 600


def test_a_line_that_ends_in_the_midst_is_not_json(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ROWS)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match="line 3: not JSON"):
        list(read_documents(path))


def test_a_file_in_latin_1_is_refused_as_such(tmp_path):
    (tmp_path / "a.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(InputError, match=r"a.txt: not UTF-8 \(byte 0xe9 at 3\); convert it"):
        list(read_documents(tmp_path / "a.txt"))
