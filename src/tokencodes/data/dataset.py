"""A prepared dataset, opened by its manifest; and what everything that reads token ids needs of
one, or of a mixture.

DATASET/
  manifest.json            written last: no manifest, no dataset
  tokenizer.json           the tokenizer that made the ids
  SOURCE/                  one input's share; appears by one rename
    source.json            what it was made from, what was counted, and its shards
    train-00000/ ...       see `shards`
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokencodes.data.entries import FORMAT, VERSION, CountsEntry, Manifest, SourceEntry
from tokencodes.data.shards import Shard
from tokencodes.data.split import Split
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError
from tokencodes.files import json_text, read_json
from tokencodes.records import checked

REMEDY = "prepare the dataset anew"


def fingerprint(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest's canonical JSON, without the field `fingerprint`."""
    values = {key: value for key, value in manifest.items() if key != "fingerprint"}
    return hashlib.sha256(
        json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def total_counts(sources: Sequence[SourceEntry]) -> CountsEntry:
    """The sums of the counts of several sources.

    `token_bytes` is None if it is None for any source. `examples` keeps the example of the first
    source for each kind.
    """
    counts = [source.counts for source in sources]
    known = [entry.token_bytes for entry in counts if entry.token_bytes is not None]
    return CountsEntry(
        documents=sum(entry.documents for entry in counts),
        kept=sum(entry.kept for entry in counts),
        text_bytes=sum(entry.text_bytes for entry in counts),
        token_bytes=sum(known) if len(known) == len(counts) else None,
        dropped=dict(sum((Counter(entry.dropped) for entry in counts), Counter[str]())),
        noted=dict(sum((Counter(entry.noted) for entry in counts), Counter[str]())),
        examples={
            kind: example for entry in reversed(counts) for kind, example in entry.examples.items()
        },
    )


class Corpus(ABC):
    """Token ids to learn from, in two sides: one dataset, or several of one tokenizer."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The path of its folder, for messages."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that identifies all its token ids."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """V."""

    @property
    @abstractmethod
    def tokenizer_sha256(self) -> str:
        """The hash of the tokenizer file. The file is not read."""

    @property
    @abstractmethod
    def tokenizer(self) -> TokenizerFile:
        """The tokenizer that made the ids. Raises InputError if the file is another tokenizer."""

    @property
    @abstractmethod
    def datasets(self) -> "list[Dataset]":
        """The datasets that it is made of."""

    def shards(self, split: Split) -> list[Shard]:
        """The shards of one side, dataset by dataset, in the manifests' order."""
        return [
            shard
            for dataset in self.datasets
            for shard in dataset.own_shards
            if shard.split == split
        ]

    def require(self, vocab_size: int, tokenizer_sha256: str | None = None) -> None:
        """Raises InputError if the ids were made with another vocabulary or tokenizer."""
        if self.vocab_size != vocab_size:
            raise InputError(
                f"{self.path}: made with a vocabulary of {self.vocab_size:,}, the model has"
                f" {vocab_size:,}; prepare the text anew with this model's tokenizer"
            )
        if tokenizer_sha256 not in (None, self.tokenizer_sha256):
            raise InputError(
                f"{self.path}: made with another tokenizer (sha256 {self.tokenizer_sha256[:12]},"
                f" wanted {str(tokenizer_sha256)[:12]}); prepare the text anew"
            )


class Dataset(Corpus):
    """A prepared dataset, opened by its manifest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_dir():
            raise InputError(
                f"{path}: no such folder; make a dataset by `tokencodes prepare`, or name where"
                " it is"
            )
        if not (path / "manifest.json").is_file():
            raise InputError(
                f"{path}: no manifest.json, so not a finished dataset; run `tokencodes prepare` to"
                " its end"
            )
        manifest = read_json(path / "manifest.json")
        if not isinstance(manifest, dict):
            raise InputError(
                f"{path}/manifest.json: damaged (not a table of keys); prepare the dataset anew"
            )
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise InputError(
                f"{path}/manifest.json: format {manifest.get('format')!r} version"
                f" {manifest.get('version')!r}; this program reads {FORMAT!r} version {VERSION}:"
                " prepare the dataset anew"
            )
        exact = (path / "manifest.json").read_bytes() == json_text(manifest).encode()
        if manifest.get("fingerprint") != fingerprint(manifest) or not exact:
            raise InputError(
                f"{path}/manifest.json: damaged (its fingerprint does not hold); prepare the"
                " dataset anew"
            )
        self.manifest = checked(manifest, Manifest, f"{path}/manifest.json", REMEDY)

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._path

    @property
    def fingerprint(self) -> str:
        """SHA-256 over its manifest, and by it over every byte."""
        return self.manifest.fingerprint

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.manifest.vocab_size

    @property
    def tokenizer_sha256(self) -> str:
        """The hash of the tokenizer file. The file is not read."""
        return self.manifest.tokenizer_sha256

    @cached_property
    def tokenizer(self) -> TokenizerFile:
        """The tokenizer in the dataset; InputError if it is not the one that made the ids."""
        file = TokenizerFile(self.path / "tokenizer.json")
        if file.sha256 != self.manifest.tokenizer_sha256:
            raise InputError(
                f"{file.path}: not the tokenizer that made these ids (its hash differs); take it"
                " from a copy"
            )
        return file

    @property
    def datasets(self) -> list["Dataset"]:
        """Itself."""
        return [self]

    @cached_property
    def counts(self) -> CountsEntry:
        """What was read, kept, dropped and noted in all; see `total_counts`."""
        return total_counts(self.manifest.sources)

    @cached_property
    def own_shards(self) -> list[Shard]:
        """The shards of both sides, in the manifest's order."""
        return [
            Shard(self.path / source.name / entry.path, entry)
            for source in self.manifest.sources
            for entry in source.shards
        ]
