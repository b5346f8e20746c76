"""The last step of a preparation: the manifest, written when every input is converted. No manifest, no dataset."""

from pathlib import Path
from typing import Any

from tokencodes.data.convert import Job, PrepareOptions, clean, finished, settings_of
from tokencodes.data.dataset import FORMAT, VERSION, fingerprint, total_counts
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError
from tokencodes.files import write_json


def collect(jobs: list[Job], tokenizer: TokenizerFile) -> list[dict[str, Any]]:
    """The manifest's entries of inputs that are all converted; InputError names the first that is not."""
    sources = []
    for job in jobs:
        entry = finished(job, tokenizer)
        if entry is None:
            raise InputError(f"{job.input.title}: not converted yet; repeat the command")
        sources.append(entry)
    return sources


def seal(sources: list[dict[str, Any]], options: PrepareOptions, tokenizer: TokenizerFile, out: Path) -> None:
    """Writes the manifest of these entries, the last step of all."""
    _both_sides(sources, options.validation)
    clean(out)
    manifest = {"format": FORMAT, "version": VERSION, **settings_of(options, tokenizer), "sources": sources}
    write_json(out / "manifest.json", {**manifest, "fingerprint": fingerprint(manifest)})


def _both_sides(sources: list[dict[str, Any]], validation: float) -> None:
    counts = dict.fromkeys(("train", "validation"), 0)
    for source in sources:
        for shard in source["shards"]:
            counts[shard["split"]] += shard["documents"]
    for side, count in counts.items():
        if count == 0 and not (side == "validation" and validation == 0):
            left_out = total_counts(sources)["dropped"]
            told = "".join(f"; {number:,} left out: {kind}" for kind, number in left_out.items())
            raise InputError(
                f"no document fell on the {side} side (of {sum(counts.values()):,}, validation share {validation:g}{told}); "
                "give more documents, or change the validation share or the split seed"
            )
