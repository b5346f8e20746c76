"""Reading and writing of files. A written file appears whole or not at all."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tokencodes.errors import InputError, first_line
from tokencodes.measured import significant

if TYPE_CHECKING:
    import numpy as np

LOCK = ".lock"
CERTIFICATE, CARD = "certificate.json", "README.md"
# of certificates whose folders may be replaced and pushed
KINDS = ("tokencodes-export", "tokencodes-import")


def fsync(path: Path) -> None:
    """Makes a file's bytes, or a folder's entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Writes text in UTF-8 by `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a temporary file, calls fsync and replaces the old file. A reader sees the old bytes
    or the new bytes, never a part. A file that already has these bytes is left alone, so that work
    can be repeated in a read-only folder.
    """
    if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return
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
    """Writes readable JSON by `write_text`. NaN is refused, because it is not JSON."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Returns a value as JSON text. All JSON files of this project have this form, so the value
    alone determines the bytes of its file, and a changed byte can be detected.
    """
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """Returns the JSON value of a file. Raises InputError, which names the file, if it is missing
    or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # a very long number and deeply nested lists raise no JSONDecodeError
        raise InputError(f"{path}: damaged ({error}); take a new copy or make it anew") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object of a file by `read_json`. Raises InputError if the file holds another
    value.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: no JSON object; take a new copy or make it anew")
    return value


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a file of JSON lines, and none if the file does not exist. A last line
    that is incomplete, because the program was killed, is left out.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(
        lines[:-1], 1
    ):  # the text after the last line break is incomplete
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            said = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise InputError(
                f"{path}, line {number}: damaged ({said}); take a copy, or remove it and make it"
                " anew"
            ) from None
    return records


def map_array(path: Path) -> "np.memmap[Any, Any]":
    """Returns the array of an .npy file, mapped read-only. It unpickles nothing, and it allocates
    no memory of the size in the header.

    Raises InputError if the file is not such an array, or if its size is not the size in its
    header.
    """
    import numpy as np

    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise InputError(f"{path}: not an .npy array; take a new copy, or make it anew")
    try:
        with np.errstate(over="ignore"):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy, Python's tokenizer and the system raise different errors
        raise InputError(
            f"{path}: damaged ({first_line(error)}); take a new copy, or make it anew"
        ) from None
    size = path.stat().st_size
    if array.offset + array.nbytes != size:
        raise InputError(
            f"{path}: {size:,} bytes, not those that its header promises; take a new copy, or make"
            " it anew"
        )
    return array  # type: ignore[no-any-return]


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the TOML values of a file. Raises InputError, which names the file, if it is missing
    or damaged.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not TOML ({error})") from None


@contextmanager
def locked_folder(folder: Path, named: Path | None = None) -> Iterator[None]:
    """Creates `folder` and locks it: two programs that write into one folder would destroy each
    other's work. named: the user's name for the folder. A folder that was created here is removed
    at the end if nothing was written into it.

    A read-only folder needs no lock: its contents can be read, and every write into it fails by
    itself.
    """
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _lock_file(folder) as lock:
            try:
                if lock is not None:
                    fcntl.flock(
                        lock, (fcntl.LOCK_EX if lock.writable() else fcntl.LOCK_SH) | fcntl.LOCK_NB
                    )
            except BlockingIOError:
                raise InputError(
                    f"{named or folder}: another program is writing here; wait for it, or choose"
                    " another --out"
                ) from None
            yield
    finally:
        if made and folder.is_dir() and [entry.name for entry in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
        for parent in made:
            with suppress(OSError):  # the folder is not empty
                parent.rmdir()


@contextmanager
def _lock_file(folder: Path) -> Iterator[TextIO | None]:
    """Returns the folder's lock file, open for writing, or for reading if it cannot be written.
    Returns None if there can be no lock file.
    """
    file = folder / LOCK
    try:
        opened: TextIO | None = file.open("w")
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM) or (
            not file.exists() and os.access(folder, os.W_OK)
        ):
            raise
        opened = file.open() if file.exists() else None
    with nullcontext() if opened is None else opened:
        yield opened


@contextmanager
def appearing(folder: Path, force: bool, needed_bytes: int) -> Iterator[Path]:
    """Creates a hidden folder beside `folder`. It takes that name when the block ends. It is
    deleted if the block raises an error.

    Raises InputError if `folder` exists and `force` is not set, if it holds files that its
    certificate does not list, if another program is making it, or if the disk has less than
    `needed_bytes` free.
    """
    folder = folder.resolve()
    refuse_taken(folder, force)
    free = shutil.disk_usage(next(parent for parent in folder.parents if parent.exists())).free
    if free < needed_bytes:
        needed, here = significant(needed_bytes / 1e9), significant(free / 1e9)
        raise InputError(
            f"{folder}: it needs about {needed} GB and {here} GB are free; name another --out"
        )
    partial = folder.with_name(f".tmp-{folder.name}")
    with locked_folder(partial, folder):
        try:
            for left in partial.iterdir():  # a killed program left it
                if left.name != LOCK:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield partial
            (partial / LOCK).unlink()
            readable(partial)
            for place in (*partial.rglob("*"), partial):
                fsync(place)
            refuse_taken(folder, force)  # another program may have made it meanwhile
            _take_place(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def readable(folder: Path) -> None:
    """Gives the files of a folder the permissions of the umask: safetensors writes its files for
    their owner alone.
    """
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~mask)


def _take_place(partial: Path, folder: Path) -> None:
    """Renames a folder to its final name. The old folder of that name is deleted, or restored after
    an error.
    """
    old = folder.with_name(f".old-{folder.name}")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    try:
        partial.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise
    fsync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def certified(folder: Path) -> dict[str, Any] | None:
    """Returns the certificate that `export` or `import` wrote into a folder, and None if there is
    none.
    """
    place = folder / CERTIFICATE
    certificate = read_json(place) if place.is_file() else None
    ours = (
        isinstance(certificate, dict)
        and certificate.get("kind") in KINDS
        and isinstance(certificate.get("files"), dict)
    )
    return certificate if ours else None


def changed_since(folder: Path, certificate: dict[str, Any]) -> list[str]:
    """Returns the names of the files that a certificate lists and that are missing or have other
    bytes.
    """
    return [name for name, sha256 in certificate["files"].items() if not _is(folder / name, sha256)]


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and file_sha256(path) == sha256


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of the bytes of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_certificate(folder: Path, kind: str, facts: dict[str, Any]) -> None:
    """Writes the last file of a folder: its kind, its facts, and the SHA-256 of every other file in
    it.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != LOCK:
            files[path.relative_to(folder).as_posix()] = file_sha256(path)
    write_json(folder / CERTIFICATE, {"kind": kind, "version": 1, **facts, "files": files})


def refuse_taken(folder: Path, force: bool) -> None:
    """Raises InputError if a folder exists and `force` is not set, or if `force` does not allow to
    replace it (see `appearing`).
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not force:
        raise InputError(
            f"{folder}: is there already; name another --out, or --force to replace it"
        )
    certificate = certified(folder) if folder.is_dir() else None
    if certificate is None:
        raise InputError(
            f"{folder}: was not made by export or import, so --force does not replace it; name"
            " another --out"
        )
    known = {*certificate["files"], CERTIFICATE}
    more = [
        name
        for path in folder.rglob("*")
        if path.is_file() and (name := path.relative_to(folder).as_posix()) not in known
    ]
    if more:
        raise InputError(
            f"{folder}: holds {more[0]}, which was put there since; take it away, or name another"
            " --out"
        )
    changed = [name for name in changed_since(folder, certificate) if (folder / name).exists()]
    if changed:
        raise InputError(
            f"{folder}: {changed[0]} was changed since it was made; take it away, or name another"
            " --out"
        )
