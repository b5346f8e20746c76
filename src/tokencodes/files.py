"""Files that appear whole or not at all."""

import fcntl
import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokencodes.errors import InputError

LOCK = ".lock"


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
