"""What paths, folders, globs and hub names mean, and how inputs are called."""

import http.server
import json
import shutil
import threading
from pathlib import Path

import pytest

from tests.data.test_text import ROWS, write_lines
from tokencodes.data.inputs import find_inputs
from tokencodes.errors import InputError


def names(*named: object) -> list[str]:
    return [entry.name for entry in find_inputs([str(name) for name in named])]


def test_files_folders_and_globs_are_found_in_a_fixed_order(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl.gz", "deep/d.jsonl"):
        write_lines(tmp_path / name, ROWS)
    (tmp_path / "notes.md").write_text("not a text to learn from")
    assert names(tmp_path) == ["a", "b", "c", "d"]
    assert names(tmp_path / "*.jsonl") == ["a", "b"]
    assert names(tmp_path / "**" / "*.jsonl") == ["a", "b", "d"]
    assert names(tmp_path / "b.jsonl", tmp_path / "deep") == ["b", "c", "d"]


def test_inputs_of_one_name_take_their_folders_into_it(tmp_path):
    for name in ("x/part-0.jsonl", "y/part-0.jsonl", "y/other.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_lines(tmp_path / name, ROWS)
    assert names(tmp_path) == ["x-part-0", "other", "y-part-0"]
    write_lines(tmp_path / "x" / "part-0.jsonl.gz", ROWS)
    assert names(tmp_path) == ["part-0-jsonl", "part-0-jsonl-gz", "other", "part-0"]


def test_names_with_dots_stay_apart(tmp_path):
    for part in range(2):
        write_lines(tmp_path / f"c4-train.{part:05d}-of-01024.jsonl", ROWS)
    assert names(tmp_path) == ["c4-train.00000-of-01024", "c4-train.00001-of-01024"]


def test_what_a_preparation_writes_is_none_of_its_inputs(tmp_path):
    write_lines(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "out").mkdir()
    write_lines(tmp_path / "out" / "b.jsonl", ROWS)
    assert [entry.name for entry in find_inputs([str(tmp_path)], tmp_path / "out")] == ["a"]


def test_the_texts_of_a_folder_are_one_input(tmp_path):
    for place in ("poems/one.txt", "poems/two.txt", "alone/three.txt"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(place)
    inputs = find_inputs([str(tmp_path)])
    assert [(entry.name, [file.name for file in entry.files]) for entry in inputs] == [
        ("three", ["three.txt"]),
        ("poems", ["one.txt", "two.txt"]),
    ]
    facts = inputs[1].facts()
    (tmp_path / "poems" / "two.txt").write_text("other words")
    assert inputs[1].facts()["sha256"] != facts["sha256"]


def test_odd_file_names_become_names_that_every_reader_takes(tmp_path):
    write_lines(tmp_path / "a b%c.jsonl", ROWS)
    write_lines(tmp_path / ".jsonl", ROWS)
    (tmp_path / "sub").mkdir()
    shutil.copy(tmp_path / ".jsonl", bytes(tmp_path / "sub") + b"/\xff.jsonl")
    inputs = find_inputs(
        [str(tmp_path / "a b%c.jsonl"), str(tmp_path / ".jsonl"), str(tmp_path / "sub")]
    )
    assert [entry.name for entry in inputs][:2] == ["a_b_c", "input"]
    assert json.dumps(inputs[2].facts()).encode("ascii")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("none.txt", "no such file or folder"),
        ("x.csv", "unknown kind of file"),
        ("empty", "no file that ends in"),
        ("*.parquet", "the pattern matches no file"),
    ],
)
def test_what_is_not_there_is_named(name, complaint, tmp_path):
    (tmp_path / "x.csv").write_text("a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=complaint):
        find_inputs([str(tmp_path / name)])


def test_a_file_that_is_named_twice_is_refused(tmp_path):
    write_lines(tmp_path / "one.jsonl", ROWS)
    with pytest.raises(InputError, match="named twice"):
        find_inputs([str(tmp_path / "one.jsonl"), str(tmp_path)])


def test_hub_names_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="write it as hf:OWNER/NAME"):
        find_inputs(["hf:just-a-name"])


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as listing and fetching take: one data set with two folders."""

    COMMIT = "0123456789abcdef0123456789abcdef01234567"
    FILES: dict[str, bytes] = {}  # noqa: RUF012

    def do_GET(self, head=False):
        """Data set info, or a file."""
        path = self.path.split("?")[0]
        if path.startswith("/api/datasets/some/texts"):
            siblings = [{"rfilename": name} for name in self.FILES]
            body = json.dumps(
                {"id": "some/texts", "sha": self.COMMIT, "siblings": siblings}
            ).encode()
        else:
            body = self.FILES.get(path.partition(f"/resolve/{self.COMMIT}/")[2])
        self.send_response(200 if body is not None else 404)
        body = body or b""
        for key, value in {
            "ETag": '"x"',
            "X-Repo-Commit": self.COMMIT,
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def do_HEAD(self):
        """The headers alone."""
        self.do_GET(head=True)

    def log_message(self, *arguments):
        """Nothing."""


@pytest.fixture
def hub(monkeypatch, tmp_path):
    import huggingface_hub
    from huggingface_hub import constants, file_download, hf_api

    Hub.FILES = {
        "wanted/part-0.jsonl": write_lines(tmp_path / "x.jsonl", ROWS).read_bytes(),
        "wanted/README.md": b"words",
        "other/part-0.jsonl": b"",
    }
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for module in (constants, hf_api, file_download, huggingface_hub):
        for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_TEMPLATE"):
            if hasattr(module, name):
                value = (
                    address
                    if name == "ENDPOINT"
                    else address + "/{repo_id}/resolve/{revision}/{filename}"
                )
                monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        huggingface_hub.HfApi, "__init__", _with_endpoint(huggingface_hub.HfApi.__init__, address)
    )
    yield address
    server.shutdown()


def _with_endpoint(init, address):
    return lambda self, *arguments, **named: init(
        self, *arguments, **{"endpoint": address, **named}
    )


def test_a_data_set_of_the_hub_is_listed_at_a_commit_and_fetched_file_by_file(hub):
    (entry,) = find_inputs(["hf:some/texts/wanted"])
    assert (entry.name, entry.remote) == (
        "part-0",
        ("some/texts", Hub.COMMIT, "wanted/part-0.jsonl"),
    )
    here = entry.fetch()
    assert Path(here.files[0]).read_bytes() == Hub.FILES["wanted/part-0.jsonl"]
    assert here.facts()["from"] == f"some/texts@{Hub.COMMIT}/wanted/part-0.jsonl"
    with pytest.raises(InputError, match="no file there that ends in"):
        find_inputs(["hf:some/texts/nothing"])
    with pytest.raises(InputError, match="the hub does not give it"):
        find_inputs(["hf:no/such"])
