"""The last step of a preparation: no side of the split is empty, and the manifest is written. No
manifest, no dataset.

Each input was converted on its own, with the threshold of the validation share. If that left a side
empty, the inputs that hold the documents nearest to the threshold are converted again with another
one (see `split`). So the bytes depend on the inputs alone, and not on who converted them, nor on
where an earlier run was stopped.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tokencodes.data.convert import Job, clean, convert, finished
from tokencodes.data.dataset import fingerprint, total_counts
from tokencodes.data.encode import Engine, engine_for
from tokencodes.data.entries import FORMAT, VERSION, SourceEntry, SourceFile, SplitEntry, as_json
from tokencodes.data.options import settings_of
from tokencodes.data.split import Split, threshold_for_both_sides, threshold_of
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError
from tokencodes.files import write_json

Say = Callable[[str], None]


def write_manifest(
    jobs: list[Job], tokenizer: TokenizerFile, engine: Engine, say: Say = lambda line: None
) -> None:
    """Writes the manifest of inputs that are all converted, the last step of all.

    InputError: an input is not converted, or one side of the split is empty and cannot be filled.
    """
    options, out = jobs[0].options, jobs[0].out
    natural = threshold_of(options.validation_fraction)
    splits = [
        _split_of(job, file) for job, file in zip(jobs, collect(jobs, tokenizer), strict=True)
    ]
    hashes = [
        int(text, 16)
        for split in splits
        for text in (split.lowest, split.highest)
        if text is not None
    ]
    threshold = threshold_for_both_sides(hashes, natural)
    to: Split = "validation" if threshold > natural else "train"
    if threshold != natural:
        say(
            f"no document fell on the {to} side (validation share {options.validation_fraction:g}):"
            " it gets the nearest one"
        )
    for job, split in zip(jobs, splits, strict=True):
        own = threshold if _crosses(split, natural, threshold) else natural
        if int(split.threshold, 16) != own:
            convert(replace(job, threshold=own), engine_for(tokenizer, engine))
    sources = [
        file.entry(job.input.name) for job, file in zip(jobs, collect(jobs, tokenizer), strict=True)
    ]
    documents = _documents(sources)
    _both_sides(documents, sources, options.validation_fraction)
    clean(out)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        **as_json(settings_of(options, tokenizer)),
    }
    manifest["sources"] = [as_json(source) for source in sources]
    if threshold != natural:
        manifest["moved"] = {"to": to, "documents": documents[to], "threshold": f"{threshold:016x}"}
    write_json(out / "manifest.json", {**manifest, "fingerprint": fingerprint(manifest)})


def collect(jobs: list[Job], tokenizer: TokenizerFile) -> list[SourceFile]:
    """What is written of inputs that are all converted; InputError names the first that is not."""
    files = []
    for job in jobs:
        file = finished(job, tokenizer)
        if file is None:
            raise InputError(f"{job.input.title}: not converted yet; repeat the command")
        files.append(file)
    return files


def _split_of(job: Job, file: SourceFile) -> SplitEntry:
    if file.split is None:
        raise InputError(
            f"{job.out / job.input.name}: an older version began it; remove it and repeat the"
            " command"
        )
    return file.split


def _crosses(split: SplitEntry, natural: int, threshold: int) -> bool:
    """Whether a document of an input changes sides. Such a document has the lowest hash of all, or
    the highest.
    """
    low, high = sorted((natural, threshold))
    return any(
        text is not None and low <= int(text, 16) < high for text in (split.lowest, split.highest)
    )


def _documents(sources: list[SourceEntry]) -> dict[Split, int]:
    counts: dict[Split, int] = {"train": 0, "validation": 0}
    for source in sources:
        for shard in source.shards:
            counts[shard.split] += shard.documents
    return counts


def _both_sides(documents: dict[Split, int], sources: list[SourceEntry], validation: float) -> None:
    for side, count in documents.items():
        if count == 0 and not (side == "validation" and validation == 0):
            left_out = "".join(
                f"; {number:,} left out: {kind}"
                for kind, number in total_counts(sources).dropped.items()
            )
            raise InputError(
                f"no document fell on the {side} side (of {sum(documents.values()):,}, "
                f"validation share {validation:g}{left_out}); "
                "give documents of at least two ids, or change the validation share"
            )
