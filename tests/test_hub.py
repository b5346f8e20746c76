"""The hub, at a local stand-in that speaks as much of its protocol as huggingface_hub asks for."""

import base64
import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests.export.conftest import saved, trained
from tokencodes.cli import run as command
from tokencodes.errors import InputError
from tokencodes.export.export_model import export
from tokencodes.hub import fetch, load, push

LLAMA = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
COMMIT = "a" * 40


class StandIn(BaseHTTPRequestHandler):
    """One repository in memory: files by name."""

    files: ClassVar[dict[str, bytes]] = {}
    objects: ClassVar[dict[str, bytes]] = {}

    def log_message(self, *arguments):
        pass

    def answer(self, value, status=200, **headers):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, content in {
            "Content-Length": str(len(data)),
            "X-Repo-Commit": COMMIT,
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), content)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_POST(self):
        address, data = f"http://{self.headers['Host']}", self.body()
        if self.path == "/api/repos/create":
            request = json.loads(data)
            self.answer(
                {
                    "url": f"{address}/{request.get('organization', 'me')}/{request['name']}",
                    "name": request["name"],
                }
            )
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = json.loads(data)["files"]
            self.answer(
                {
                    "files": [
                        {"path": file["path"], "uploadMode": self.mode(file), "shouldIgnore": False}
                        for file in files
                    ]
                }
            )
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(data)["objects"]
            done = [
                {**entry, "actions": {"upload": {"href": f"{address}/objects/{entry['oid']}"}}}
                for entry in objects
            ]
            self.answer(
                {"transfer": "basic", "objects": done}, Content_Type="application/vnd.git-lfs+json"
            )
        elif "/commit/" in self.path:
            for line in data.splitlines():
                operation = json.loads(line)
                if operation["key"] == "file":
                    self.files[operation["value"]["path"]] = base64.b64decode(
                        operation["value"]["content"]
                    )
                elif operation["key"] == "lfsFile":
                    self.files[operation["value"]["path"]] = self.objects[operation["value"]["oid"]]
            self.answer({"commitUrl": f"{address}/me/model/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.answer({}, 404)

    def mode(self, file):
        return "lfs" if file["path"].endswith(".safetensors") else "regular"

    def do_PUT(self):
        self.objects[self.path.rpartition("/")[2]] = self.body()
        self.answer({})

    def do_GET(self):
        if self.path.startswith("/api/models/me/model/tree/"):
            kind = {"type": "file", "oid": COMMIT}
            self.answer(
                [{**kind, "path": name, "size": len(data)} for name, data in self.files.items()]
            )
        elif self.path.startswith("/api/models/me/model"):
            model = {
                "id": "me/model",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in self.files],
            }
            self.answer({**model, "private": True, "tags": [], "downloads": 0, "likes": 0})
        elif "/resolve/" in self.path and self.path.startswith("/me/model/"):
            name = self.path.partition("/resolve/")[2].partition("/")[2]
            data = self.files.get(name)
            if data is None:
                self.answer({}, 404, X_Error_Code="EntryNotFound")
            else:
                self.answer(data, ETag=f'"{hashlib.sha256(data).hexdigest()}"')
        else:
            self.answer({}, 404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A stand-in that is asked instead of huggingface.co."""
    import huggingface_hub.constants as constants

    StandIn.files, StandIn.objects = {}, {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    yield StandIn
    server.shutdown()


def test_a_dry_run_shows_every_file_and_sends_nothing(hub, tmp_path, tokenizer_path, capsys):
    export(saved(trained("gf2"), tmp_path / "model", tokenizer_path), "llama", tmp_path / "out")
    assert command(["push", str(tmp_path / "out"), "me/model", "--dry-run", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["sent"] is False and {file["name"] for file in printed["files"]} >= {
        "model.safetensors",
        "README.md",
        "certificate.json",
    }
    assert (
        all(
            file["bytes"] == (tmp_path / "out" / file["name"]).stat().st_size
            for file in printed["files"]
        )
        and not hub.files
    )


def test_what_goes_up_comes_down_and_is_the_same_model(hub, tmp_path, tokenizer_path, capsys):
    export(saved(trained("gf2"), tmp_path / "model", tokenizer_path), "llama", tmp_path / "out")
    sent = push(tmp_path / "out", "me/model")
    assert {file.name: file.bytes for file in sent} == {
        name: len(data) for name, data in hub.files.items() if name != ".gitattributes"
    }
    folder = fetch("me/model")
    assert (folder / "model.safetensors").read_bytes() == (
        tmp_path / "out" / "model.safetensors"
    ).read_bytes()
    assert command(["import", "me/model", "--out", str(tmp_path / "again")]) == 0
    assert "gf2, as its file says" in capsys.readouterr().out
    assert type(load("me/model")).__name__ == "LlamaForCausalLM"
    push(tmp_path / "again", "me/model")
    shutil.rmtree(tmp_path / "cache")  # the stand-in has one commit only
    assert load("me/model").config.interface == "gf2"


def test_what_is_not_there_or_not_certified_is_one_line(hub, tmp_path):
    with pytest.raises(
        InputError, match="me/other: no such path here, and as a hub id it could not be had"
    ):
        fetch("me/other")
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        InputError, match=r"only what `tokencodes export` or `import` made and checked is pushed"
    ):
        push(tmp_path / "folder", "me/model")
    (tmp_path / "folder" / "certificate.json").write_text("{}")
    with pytest.raises(InputError, match="only what"):
        push(tmp_path / "folder", "me/model")


def test_only_what_was_certified_is_pushed(hub, tmp_path, tokenizer_path):
    export(saved(trained("gf2"), tmp_path / "model", tokenizer_path), "llama", tmp_path / "out")
    (tmp_path / "out" / ".env").write_text("SECRET=1")
    assert (
        ".env" not in {file.name for file in push(tmp_path / "out", "me/model")}
        and ".env" not in hub.files
    )
    with pytest.raises(InputError, match="a repository is OWNER/NAME"):
        push(tmp_path / "out", "model")
    for name in ("me/..", "me/a--b"):
        with pytest.raises(
            InputError, match=r"no name for a repository|a repository is OWNER/NAME"
        ):
            push(tmp_path / "out", name, dry_run=True)
    card = tmp_path / "out" / "README.md"
    # it is its owner's to complete
    card.write_text(card.read_text().replace("---\n", "---\nlicense: mit\n", 1))
    push(tmp_path / "out", "me/model")
    assert b"license: mit" in hub.files["README.md"]
    (tmp_path / "out" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"config\.json: not the file that was certified"):
        push(tmp_path / "out", "me/model")


def test_what_cannot_be_loaded_is_one_line(tmp_path, tokenizer_path):
    export(saved(trained("gf2"), tmp_path / "model", tokenizer_path), "llama", tmp_path / "out")
    file, config = tmp_path / "out" / "model.safetensors", tmp_path / "out" / "config.json"
    config.write_text(
        config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true')
    )
    with pytest.raises(InputError, match="tie_word_embeddings is true"):
        load(tmp_path / "out")
    config.write_text(
        config.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false')
    )
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"out: cannot be loaded \("):
        load(tmp_path / "out")
    file.unlink()
    with pytest.raises(InputError, match=r"out: cannot be loaded \("):
        load(tmp_path / "out")
    LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=True)).save_pretrained(
        tmp_path / "tied"
    )
    assert load(str(tmp_path / "tied")).config.tie_word_embeddings  # it has no head to overwrite
    (tmp_path / "x.gguf").touch()
    with pytest.raises(InputError, match="`tokencodes import` makes a model of ours of it"):
        load(tmp_path / "x.gguf")
