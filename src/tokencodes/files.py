"""Files that appear whole or not at all."""

import fcntl
import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokencodes.errors import InputError

LOCK = ".lock"
CERTIFICATE = "certificate.json"  # in what `export` and `import` have made


def fsync(path: Path) -> None:
    """Makes a file's bytes, or a folder's entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Temporary file, fsync, replace: a reader sees the old bytes or the new, never a part."""
    partial = path.with_name(f".tmp-{path.name}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_text` of readable JSON; NaN is refused, because it is not JSON."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """The one way in which this project writes a JSON file, so that a changed byte can be told from the value alone."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """The JSON of a file that must be there; InputError names it if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: damaged ({error}); take a new copy or make it anew") from None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; none if it is not there. A last line that a kill cut short is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines[:-1], 1):  # what follows the last line break was not finished
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}, line {number}: damaged ({error.msg}); take a copy, or remove it and make it anew"
            ) from None
    return records


def read_toml(path: Path) -> dict[str, Any]:
    """The TOML of a file that must be there; InputError names it if it is missing or damaged."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not TOML ({error})") from None


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Makes `folder` and holds it: two programs that write into one folder would undo each other's work."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another program is writing here; wait for it, or choose another --out") from None
        yield


@contextmanager
def appearing(folder: Path, force: bool, needed_bytes: int) -> Iterator[Path]:
    """A hidden folder beside `folder`: it takes that name when the block ends, and is deleted if the block raises.

    InputError: `folder` is there and `force` is not given, or it holds no certificate of ours; the disk has not `needed_bytes`.
    """
    _refuse(folder, force)
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < needed_bytes:
        raise InputError(
            f"{folder}: the export needs about {needed_bytes / 1e9:,.2f} GB and {free / 1e9:,.2f} GB are free; name another "
            f"--out"
        )
    partial, old = folder.with_name(f".tmp-{folder.name}"), folder.with_name(f".old-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        yield partial
        for place in (*partial.rglob("*"), partial):
            fsync(place)
        _refuse(folder, force)  # someone may have made it meanwhile
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        fsync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _refuse(folder: Path, force: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not force:
        raise InputError(f"{folder}: is there already; name another --out, or --force to replace it")
    if not (folder / CERTIFICATE).is_file():
        raise InputError(
            f"{folder}: no {CERTIFICATE} in it, so it was not made by export or import and --force does not replace it; name "
            f"another --out"
        )
