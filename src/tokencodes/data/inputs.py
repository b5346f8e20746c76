"""What there is to prepare: files, folders, globs and data sets of the Hugging Face hub, as a list
of inputs in a fixed order.

An input is one file, or all the `.txt` files of one folder. Each yields its own shards in a folder
named after it.
"""

import glob
import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokencodes.data.text import SUFFIXES, printable
from tokencodes.data.tokenized import TOKENIZED, index_of
from tokencodes.errors import InputError

HUB = "hf:"
KINDS = (*SUFFIXES, TOKENIZED)


@dataclass(frozen=True)
class Input:
    """One unit of work. `files` are local, and of one kind; `remote` tells which file of the hub is
    fetched first.
    """

    name: str
    files: tuple[Path, ...]
    remote: tuple[str, str, str] | None = None  # repository, revision (a commit), path in it

    def fetch(self) -> "Input":
        """Itself with its files on this machine."""
        if self.remote is None:
            return self
        from huggingface_hub import hf_hub_download

        repository, revision, path = self.remote
        try:
            file = Path(hf_hub_download(repository, path, repo_type="dataset", revision=revision))
        except Exception as error:  # whatever a network, a proxy or a server can do
            raise InputError(
                f"{self.title}: cannot be fetched ({_first_line(error)}); repeat the command to"
                " go on"
            ) from None
        return replace(self, files=(file,))

    def resolved(self) -> "Input":
        """Itself with absolute paths."""
        return replace(self, files=tuple(file.resolve() for file in self.files))

    @property
    def title(self) -> str:
        """How messages call it."""
        if self.remote is not None:
            return f"{HUB}{self.remote[0]}/{self.remote[2]}"
        return (
            str(self.files[0])
            if len(self.files) == 1
            else f"{self.files[0].parent} ({len(self.files)} texts)"
        )

    @property
    def origin(self) -> str | None:
        """A file of the hub with its commit, which fixes its bytes; None for local files."""
        if self.remote is None:
            return None
        repository, revision, path = self.remote
        return f"{repository}@{revision}/{path}"

    @property
    def bytes(self) -> int:
        """Size of its local files."""
        return sum(file.stat().st_size for file in self.files)

    def facts(self) -> dict[str, Any]:
        """Name, size in bytes and SHA-256. For several files it is the hash of their list."""
        facts = [_file_facts(file) for file in self.files]
        if self.remote is not None:
            return {**facts[0], "from": self.origin}
        if len(facts) == 1:
            return facts[0]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        return {
            "file": f"{len(facts)} texts",
            "bytes": sum(entry["bytes"] for entry in facts),
            "sha256": digest,
        }

    def seen(self) -> list[list[int]]:
        """Size and time of the last change of each file: if they are as they were, the bytes need
        not be hashed again.
        """
        read = [part for file in self.files for part in _read_of(file)]
        return [[stat.st_size, stat.st_mtime_ns] for stat in (file.stat() for file in read)]


def _read_of(file: Path) -> list[Path]:
    """All that is read for one file: itself, and the index beside it where it is ids."""
    return [
        file,
        *(index for index in [index_of(file)] if file.name.endswith(TOKENIZED) and index.is_file()),
    ]


def _file_facts(file: Path) -> dict[str, Any]:
    digests = []
    for part in _read_of(file):
        with part.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    facts = {"file": _clean(file.name), "bytes": file.stat().st_size, "sha256": digests[0]}
    return {**facts, "index_sha256": digests[1]} if len(digests) > 1 else facts


def find_inputs(named: list[str], outside: Path | None = None) -> list[Input]:
    """The inputs of paths, folders (searched recursively), globs and
    `hf:OWNER/NAME[@REVISION][/FOLDER]`.

    Files in the folder `outside` are not inputs, even if it lies in a named folder. Raises
    InputError if a file is missing, has an unknown kind, or is named twice.
    """
    files: list[Path] = []
    remote: list[tuple[str, str, str]] = []
    for name in named:
        if name.startswith(HUB):
            remote += _hub_files(name)
        else:
            ours = outside.resolve() if outside else None
            files += [
                file
                for file in _local_files(name)
                if ours is None or ours not in file.resolve().parents
            ]
    seen: set[Path] = set()
    for path in files:
        if path.resolve() in seen:
            raise InputError(f"{path}: named twice among the inputs; name it once")
        seen.add(path.resolve())
    groups: dict[Path, list[Path]] = {}  # a folder's texts; any other file stands for itself
    for path in files:
        groups.setdefault(path.parent / "*.txt" if path.name.endswith(".txt") else path, []).append(
            path
        )
    units = [tuple(group) for group in groups.values()]
    paths = [unit[0] if len(unit) == 1 else unit[0].parent for unit in units] + [
        Path(path) for _, _, path in remote
    ]
    names = _names(paths)
    local = [Input(name, unit) for name, unit in zip(names, units, strict=False)]
    return local + [
        Input(name, (), location)
        for name, location in zip(names[len(local) :], remote, strict=True)
    ]


def _local_files(name: str) -> list[Path]:
    path = Path(name)
    if not name:
        raise InputError("an input with an empty name; name a file, a folder or a glob")
    if path.is_dir():
        files = sorted(
            file for file in path.rglob("*") if file.is_file() and file.name.endswith(KINDS)
        )
        if not files:
            raise InputError(f"{path}: no file that ends in {', '.join(KINDS)}")
        return files
    if path.is_file():
        if not path.name.endswith(KINDS):
            raise InputError(f"{path}: unknown kind of file; it must end in {', '.join(KINDS)}")
        return [path]
    if glob.has_magic(name):
        matches = (Path(file) for file in glob.glob(name, recursive=True))  # noqa: PTH207 (pathlib's knows no absolute pattern)
        files = sorted(file for file in matches if file.is_file() and file.name.endswith(KINDS))
        if not files:
            raise InputError(f"{name}: the pattern matches no file that ends in {', '.join(KINDS)}")
        return files
    raise InputError(f"{path}: no such file or folder")


def _hub_files(name: str) -> list[tuple[str, str, str]]:
    from huggingface_hub import HfApi

    match = re.fullmatch(r"hf:([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?", name)
    if not match:
        raise InputError(
            f"{name!r}: write it as hf:OWNER/NAME, hf:OWNER/NAME/FOLDER or"
            " hf:OWNER/NAME@REVISION/FOLDER"
        )
    repository, revision, folder = match.groups()
    try:
        info = HfApi().dataset_info(repository, revision=revision)
    except Exception as error:  # whatever a network, a proxy or a server can do
        raise InputError(
            f"{name}: the hub does not give it ({_first_line(error)}); check name and network"
        ) from None
    paths = sorted(entry.rfilename for entry in info.siblings or [])
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    chosen = [
        path
        for path in paths
        if (path.startswith(prefix) or path == folder) and path.endswith(SUFFIXES)
    ]
    if not chosen:
        raise InputError(f"{name}: no file there that ends in {', '.join(SUFFIXES)}")
    return [(repository, str(info.sha), path) for path in chosen]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _names(paths: list[Path]) -> list[str]:
    """A folder name for each input: what its file is called, with its kind or the folders above it
    where that is not enough.
    """
    kinds = [
        next(
            (kind for kind in sorted(KINDS, key=len, reverse=True) if path.name.endswith(kind)), ""
        )
        for path in paths
    ]
    short = [
        _clean(path.name.removesuffix(kind)) or "input"
        for path, kind in zip(paths, kinds, strict=True)
    ]
    folder_counts = Counter((path.parent, name) for path, name in zip(paths, short, strict=True))
    for place, (path, kind) in enumerate(zip(paths, kinds, strict=True)):
        if folder_counts[path.parent, short[place]] > 1:
            short[place] += kind.replace(".", "-")
    names = list(short)
    for depth in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        twice = {name for name, count in Counter(names).items() if count > 1}
        if not twice:
            break
        longer = [
            "-".join([*map(_clean, path.parts[:-1][-depth:]), own])
            for path, own in zip(paths, short, strict=True)
        ]
        names = [long if name in twice else name for name, long in zip(names, longer, strict=True)]
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        same = [str(path) for path, other in zip(paths, names, strict=True) if other == name]
        raise InputError(
            f"{same[0]} and {same[1]}: both would be called {name!r}; rename one of them"
        )
    return names


def _clean(name: str) -> str:
    """A name that every file system and every JSON reader takes."""
    return re.sub(r"[^\w.-]", "_", printable(name).strip("/")).lstrip(".")
