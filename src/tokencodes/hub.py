"""The Hugging Face hub: an export goes up, a model comes down by its id. HF_ENDPOINT names another hub than huggingface.co."""

import re
from dataclasses import dataclass
from pathlib import Path

from tokencodes.errors import InputError
from tokencodes.files import CERTIFICATE

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
PATTERNS = ["*.json", "*.safetensors", "*.md", "*.jinja"]


@dataclass(frozen=True)
class Sent:
    """A file that goes up, and its size in bytes."""

    name: str
    bytes: int


def fetch(place: str, revision: str | None = None) -> Path:
    """A local path as it is; a hub id OWNER/NAME as the folder that it was downloaded into. InputError where neither is
    there."""
    path = Path(place)
    if path.exists() or not HUB_ID.fullmatch(place):
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(place, revision=revision, allow_patterns=PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        told = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise InputError(f"{place}: no such path here, and as a hub id it could not be had ({told})") from None


def push(folder: Path, repository: str, private: bool = True, dry_run: bool = False) -> list[Sent]:
    """Uploads an export, every file of it, as a repository OWNER/NAME; returns the files. dry_run: only says what it would do.

    InputError: no export, a name that is none, or a hub that refuses.
    """
    if not (folder / CERTIFICATE).is_file():
        raise InputError(
            f"{folder}: no {CERTIFICATE} in it; only what `tokencodes export` or `import` made and checked is pushed"
        )
    if not HUB_ID.fullmatch(repository):
        raise InputError(f"{repository!r}: a repository is OWNER/NAME")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sent = [Sent(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]
    if dry_run:
        return sent
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"{len(sent)} files, exported by tokencodes")
    except (HfHubHTTPError, OSError) as error:
        told = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise InputError(
            f"{repository}: the hub did not take it ({told}); `hf auth login`, or set HF_TOKEN and HF_ENDPOINT"
        ) from None
    return sent
