"""Files that appear whole or not at all."""

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
# of the certificates that say what may be replaced, and pushed
KINDS = ("tokencodes-export", "tokencodes-import")


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
    """Temporary file, fsync, replace: a reader sees the old bytes or the new, never a part. A file
    that has these bytes already is left alone, so that repeated work can be shown where nothing can
    be written.
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
    """`write_text` of readable JSON; NaN is refused, because it is not JSON."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """The one way in which this project writes a JSON file, so that a changed byte can be told from
    the value alone.
    """
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """The JSON of a file that must be there; InputError names it if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number of thousands of digits, and lists in lists, are no JSONDecodeError
        raise InputError(f"{path}: damaged ({error}); take a new copy or make it anew") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """`read_json` of a file that must hold a JSON object; InputError if it holds another value."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: no JSON object; take a new copy or make it anew")
    return value


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; none if it is not there. A last line that a kill cut
    short is left out.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(
        lines[:-1], 1
    ):  # what follows the last line break was not finished
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
    """The array of an .npy file, mapped read-only. Nothing is unpickled, and nothing of the size in
    its header is allocated.

    InputError: the file is no such array, or has other bytes than its header promises.
    """
    import numpy as np

    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise InputError(f"{path}: not an .npy array; take a new copy, or make it anew")
    try:
        with np.errstate(over="ignore"):
            found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (
        Exception
    ) as error:  # whatever numpy, Python's tokenizer or the system make of a damaged header
        raise InputError(
            f"{path}: damaged ({first_line(error)}); take a new copy, or make it anew"
        ) from None
    size = path.stat().st_size
    if found.offset + found.nbytes != size:
        raise InputError(
            f"{path}: {size:,} bytes, not those that its header promises; take a new copy, or make"
            " it anew"
        )
    return found  # type: ignore[no-any-return]


def read_toml(path: Path) -> dict[str, Any]:
    """The TOML of a file that must be there; InputError names it if it is missing or damaged."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not TOML ({error})") from None


@contextmanager
def locked_folder(folder: Path, named: Path | None = None) -> Iterator[None]:
    """Makes `folder` and holds it: two programs that write into one folder would undo each other's
    work. named: what its user calls it. A folder that was made here, and into which nothing was
    written, is removed at the end.

    A folder that cannot be written needs no lock: its contents can be read, and every write into it
    fails by itself.
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
            with suppress(OSError):  # something is in it
                parent.rmdir()


@contextmanager
def _lock_file(folder: Path) -> Iterator[TextIO | None]:
    """The folder's lock file, open: to be written, or to be read where it cannot be written; None
    where there can be none.
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
    """A hidden folder beside `folder`: it takes that name when the block ends, and is deleted if
    the block raises.

    InputError: `folder` is there and `force` is not given, or holds what its certificate does not
    list; another program is making it; the disk has not `needed_bytes`.
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
            for left in partial.iterdir():  # by a program that was killed
                if left.name != LOCK:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield partial
            (partial / LOCK).unlink()
            readable(partial)
            for place in (*partial.rglob("*"), partial):
                fsync(place)
            refuse_taken(folder, force)  # someone may have made it meanwhile
            _take_place(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def readable(folder: Path) -> None:
    """Files of a folder to be read by whom the umask allows: safetensors writes its own for their
    owner alone.
    """
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~mask)


def _take_place(partial: Path, folder: Path) -> None:
    """Gives a folder its name; what had it goes, or comes back."""
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
    """The certificate that `export` or `import` left in a folder; None where there is none of
    theirs.
    """
    place = folder / CERTIFICATE
    told = read_json(place) if place.is_file() else None
    ours = (
        isinstance(told, dict) and told.get("kind") in KINDS and isinstance(told.get("files"), dict)
    )
    return told if ours else None


def changed_since(folder: Path, told: dict[str, Any]) -> list[str]:
    """The files of a folder's certificate that are not there, or are not what it certifies."""
    return [name for name, sha256 in told["files"].items() if not _is(folder / name, sha256)]


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and file_sha256(path) == sha256


def file_sha256(path: Path) -> str:
    """Of its bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_certificate(folder: Path, kind: str, told: dict[str, Any]) -> None:
    """The last file of a folder: what it is, and the SHA-256 of every other file in it."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != LOCK:
            files[path.relative_to(folder).as_posix()] = file_sha256(path)
    write_json(folder / CERTIFICATE, {"kind": kind, "version": 1, **told, "files": files})


def refuse_taken(folder: Path, force: bool) -> None:
    """InputError where a folder is there, and `force` is not given or does not allow that it is
    replaced (see `appearing`).
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not force:
        raise InputError(
            f"{folder}: is there already; name another --out, or --force to replace it"
        )
    told = certified(folder) if folder.is_dir() else None
    if told is None:
        raise InputError(
            f"{folder}: was not made by export or import, so --force does not replace it; name"
            " another --out"
        )
    known = {*told["files"], CERTIFICATE}
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
    changed = [name for name in changed_since(folder, told) if (folder / name).exists()]
    if changed:
        raise InputError(
            f"{folder}: {changed[0]} was changed since it was made; take it away, or name another"
            " --out"
        )
