"""Text -> shards. Each input file yields its own shards, on its own: idempotent and restartable.

A source's folder appears by one rename, the manifest is written last, and the same command again goes on where it was
stopped. `<|endoftext|>` is appended to every document and counts towards its length (our choice; the paper does not say).
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokencodes.data.shards import FORMAT, VERSION, Dataset, fingerprint, token_dtype, write_shard
from tokencodes.data.split import Split, split_of
from tokencodes.data.text import Document, find_files, read_documents
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError
from tokencodes.files import LOCK, fsync, only_one, read_json, write_json

BATCH_DOCUMENTS = 256
Progress = Callable[[str], None]


@dataclass(frozen=True)
class PrepareSettings:
    """What, besides the text, decides the shards."""

    tokenizer_sha256: str
    vocab_size: int
    split_seed: int = 0
    validation: float = 0.001  # expected share of documents; the paper's threshold
    shard_tokens: int = 100_000_000


def prepare(
    inputs: list[str],
    tokenizer_path: Path,
    out: Path,
    *,
    split_seed: int = 0,
    validation: float = 0.001,
    shard_tokens: int = 100_000_000,
    progress: Progress = lambda line: None,
) -> Dataset:
    """Prepares files and folders into the dataset `out`, or opens it if exactly this was done before.

    InputError: unreadable input (file and line), an empty side of the split, or an `out` made from something else.
    """
    files = find_files(inputs)
    tokenizer = TokenizerFile(tokenizer_path)
    settings = PrepareSettings(tokenizer.sha256, tokenizer.vocab_size, split_seed, validation, shard_tokens)
    names = _source_names(files)
    if not 0 <= validation < 1:
        raise InputError(f"validation share {validation}: it must be in 0 ... 1, and below 1")
    if out.is_dir() and any(out.iterdir()) and not (out / LOCK).is_file():
        raise InputError(f"{out}: neither empty nor a dataset's folder, and nothing in it is touched; choose another --out")
    with only_one(out):
        for leftover in out.glob(".tmp-*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        if (out / "manifest.json").is_file():
            return _same_or_error(out, files, names, settings)
        if tokenizer_path.resolve() != (out / "tokenizer.json").resolve():
            shutil.copyfile(tokenizer_path, out / "tokenizer.json")
        sources = []
        for number, (file, name) in enumerate(zip(files, names, strict=True)):
            if number % max(1, len(files) // 10) == 0:
                progress(f"preparing {file} ({number + 1} of {len(files)})")
            sources.append(_prepare_source(file, out / name, tokenizer, settings))
        _both_sides(sources, validation)
        manifest = {"format": FORMAT, "version": VERSION, **asdict(settings), "sources": sources}
        write_json(out / "manifest.json", {**manifest, "fingerprint": fingerprint(manifest)})
    return Dataset(out)


def _source_names(files: list[Path]) -> list[str]:
    names = [file.name.split(".")[0] for file in files]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError(f"two inputs are called {min(twice)!r}, which names their shards; rename one of the files")
    return names


def file_facts(file: Path) -> dict[str, Any]:
    """Name, size and SHA-256 of an input file."""
    with file.open("rb") as stream:
        return {
            "file": file.name,
            "bytes": file.stat().st_size,
            "sha256": hashlib.file_digest(stream, "sha256").hexdigest(),
        }


def _prepare_source(file: Path, folder: Path, tokenizer: TokenizerFile, settings: PrepareSettings) -> dict[str, Any]:
    """One input file's shards, in a folder that appears at once; what was finished before is kept."""
    facts = file_facts(file)
    expected = {"input": facts, "settings": asdict(settings)}
    if (folder / "source.json").is_file():
        told = read_json(folder / "source.json")
        if {key: told.get(key) for key in expected} == expected:
            return {"name": folder.name, "input": facts, "shards": told["shards"]}
        if set(told) != {"input", "settings", "shards"}:
            raise InputError(f"{folder}: not made by prepare; choose another --out")
        shutil.rmtree(folder)  # left by an unfinished run with other settings; no manifest ever named it
    partial = folder.with_name(f".tmp-{folder.name}")
    try:
        shards = _write_shards(file, partial, tokenizer, settings)
        write_json(partial / "source.json", {**expected, "shards": shards})
        fsync(partial)
        partial.replace(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    fsync(folder.parent)
    return {"name": folder.name, "input": facts, "shards": shards}


def _write_shards(file: Path, partial: Path, tokenizer: TokenizerFile, settings: PrepareSettings) -> list[dict[str, Any]]:
    partial.mkdir(parents=True)
    shards: list[dict[str, Any]] = []
    ids: dict[Split, list[NDArray[Any]]] = {"train": [], "validation": []}
    dtype = token_dtype(settings.vocab_size)
    names: dict[Split, list[str]] = {"train": [], "validation": []}
    sizes: dict[Split, int] = {"train": 0, "validation": 0}

    def flush(split: Split) -> None:
        if ids[split]:
            number = sum(entry["split"] == split for entry in shards)
            folder = partial / f"{split}-{number:05d}"
            shards.append(write_shard(folder, split, ids[split], names[split], file.name))
            ids[split], names[split], sizes[split] = [], [], 0

    for first, batch in _batches(read_documents(file)):
        for number, (document, encoded) in enumerate(zip(batch, tokenizer.encode([d.text for d in batch]), strict=True)):
            split = split_of(document, settings.split_seed, settings.validation)
            ids[split].append(np.array([*encoded, tokenizer.end_of_text], dtype=dtype))
            names[split].append(document.id if document.id is not None else f"{file.name}:{first + number}")
            sizes[split] += len(encoded) + 1
            if sizes[split] >= settings.shard_tokens:
                flush(split)
    flush("train")
    flush("validation")
    return shards


def _batches(documents: Iterator[Document]) -> Iterator[tuple[int, list[Document]]]:
    batch: list[Document] = []
    first = 0
    for document in documents:
        batch.append(document)
        if len(batch) == BATCH_DOCUMENTS:
            yield first, batch
            first, batch = first + len(batch), []
    if batch:
        yield first, batch


def _both_sides(sources: list[dict[str, Any]], validation: float) -> None:
    counts = dict.fromkeys(("train", "validation"), 0)
    for source in sources:
        for shard in source["shards"]:
            counts[shard["split"]] += shard["documents"]
    for side, count in counts.items():
        if count == 0 and not (side == "validation" and validation == 0):
            raise InputError(
                f"no document fell on the {side} side (of {sum(counts.values()):,}, validation share {validation:g}); "
                "give more documents, or change the validation share or the split seed"
            )


def _same_or_error(out: Path, files: list[Path], names: list[str], settings: PrepareSettings) -> Dataset:
    dataset = Dataset(out)
    for key, value in asdict(settings).items():
        if dataset.manifest[key] != value:
            raise InputError(
                f"{out}: a dataset with {key} {dataset.manifest[key]!r} is here, asked for {value!r}; choose another --out"
            )
    here = {source["name"]: source["input"]["sha256"] for source in dataset.manifest["sources"]}
    wanted = {name: file_facts(file)["sha256"] for file, name in zip(files, names, strict=True)}
    if here != wanted:
        changed = sorted(name for name in here.keys() | wanted.keys() if here.get(name) != wanted.get(name))
        raise InputError(f"{out}: a dataset of other inputs is here (they differ in {changed[0]}); choose another --out")
    return dataset
