"""Upload of exports to the Hugging Face hub, and download of models by their id. HF_ENDPOINT names
a hub other than huggingface.co.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokencodes.errors import InputError, first_line, loading
from tokencodes.files import CARD, CERTIFICATE, certified, changed_since, read_json_object

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
PATTERNS = [
    "*.json",
    "*.safetensors",
    "*.md",
    "*.jinja",
    "*.gguf",
    "*.onnx",
    "*.onnx_data",
    "*.pt",
    "*.pth",
    "*.bin",
]


@dataclass(frozen=True)
class Sent:
    """A file of an upload, and its size in bytes."""

    name: str
    bytes: int


def fetch(place: str, revision: str | None = None) -> Path:
    """Returns a local path unchanged, and for a hub id OWNER/NAME the folder of its download.
    Raises InputError if neither exists.
    """
    path = Path(place)
    if path.exists() or not HUB_ID.fullmatch(place):
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(place, revision=revision, allow_patterns=PATTERNS))
    except Exception as error:  # errors of the hub, of the network library, of invalid names
        raise InputError(
            f"{place}: no such path here, and as a hub id it could not be had ({first_line(error)})"
        ) from None


def load(place: str) -> "PreTrainedModel":
    """Returns the model of a run, a checkpoint, a folder or a hub id, in float32 on the CPU. It is
    a model of this package with a checked code, or a plain Llama that was exported. Raises
    InputError if there is no model, or if it cannot be loaded.
    """
    folder = fetch(place)
    config = folder / "config.json"
    values = read_json_object(config) if config.is_file() else {}
    if values.get("model_type") == "llama":
        return _plain(folder, bool(values.get("tie_word_embeddings")))
    if folder.suffix in (".gguf", ".onnx") or (folder.is_dir() and list(folder.glob("*.gguf"))):
        raise InputError(
            f"{folder}: of another program; `tokencodes import` makes a model of ours of it, which"
            " can be loaded"
        )
    from tokencodes.checkpoint import load_model

    return load_model(folder)


def _plain(folder: Path, tied: bool) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM

    if tied and any("lm_head.weight" in _names(file) for file in folder.glob("*.safetensors")):
        raise InputError(
            f"{folder}/config.json: tie_word_embeddings is true, so loading would overwrite the"
            " head in its files"
        )
    if (folder / "onnx").is_dir() and not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        raise InputError(
            f"{folder}: an ONNX graph; `tokencodes import` makes a model of ours of it, which can"
            " be loaded"
        )
    with loading(folder):
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype="float32", trust_remote_code=False
        )
    return model.eval()


def _names(file: Path) -> set[str]:
    """Returns the names of the tensors in a safetensors file, and none if it cannot be read:
    loading it then raises the error.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            return set(opened.keys())
    except SafetensorError:
        return set()


def push(folder: Path, repository: str, private: bool = True, dry_run: bool = False) -> list[Sent]:
    """Uploads an export, with every file that its certificate lists, to a repository OWNER/NAME.
    Returns the files. README.md may differ from its certificate, because its owner may add a
    licence, a language and a contact. dry_run: upload nothing, and only return the files.

    Raises InputError if the folder is not an export, if the name is invalid, or if the hub refuses.
    """
    certificate = certified(folder)
    if certificate is None:
        raise InputError(
            f"{folder}: only what `tokencodes export` or `import` made and checked is pushed"
        )
    _check_name(repository)
    for name in changed_since(folder, certificate):
        if name != CARD or not (folder / CARD).is_file():
            raise InputError(
                f"{folder / name}: not the file that was certified; make the export anew"
            )
    names = [*certificate["files"], CERTIFICATE]
    sent = [Sent(name, (folder / name).stat().st_size) for name in sorted(names)]
    if dry_run:
        return sent
    from huggingface_hub import HfApi

    api, message = HfApi(), f"{len(sent)} files, exported by tokencodes"
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=names, commit_message=message
        )
    except (
        Exception
    ) as error:  # errors of the hub, of the network library, of a card that the hub refuses
        raise InputError(
            f"{repository}: the hub did not take it ({first_line(error)}); `hf auth login`, or set"
            " HF_TOKEN and HF_ENDPOINT"
        ) from None
    return sent


def _check_name(repository: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if not HUB_ID.fullmatch(repository):
        raise InputError(f"{repository!r}: a repository is OWNER/NAME")
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise InputError(
            f"{repository!r}: no name for a repository ({first_line(error)})"
        ) from None
