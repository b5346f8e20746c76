"""What stands in the JSON files of a dataset: `manifest.json`, each input's `source.json`, each
shard's `checksums.json`.

They are read as records, so that a file with valid JSON and wrong contents is an error that names
its field.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from tokencodes.data.split import Split
from tokencodes.data.tokenizer import LARGEST_VOCABULARY
from tokencodes.records import Record

FORMAT = "tokencodes-dataset"
VERSION = 2

# of a folder in the dataset; it leads nowhere else
Name = Annotated[str, Field(pattern=r"^[\w-][\w.-]*$")]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Hash64 = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Threshold = Annotated[str, Field(pattern=r"^1?[0-9a-f]{16}$")]  # up to 2^64 itself


class ShardEntry(Record):
    """One shard of an input."""

    path: Name
    split: Split
    documents: Count
    tokens: Count
    longest: Count
    checksums_sha256: Sha256


class CountsEntry(Record):
    """See `counts.Counts`."""

    documents: Count
    kept: Count
    text_bytes: Count
    token_bytes: Count | None
    dropped: dict[str, Count]
    noted: dict[str, Count]
    examples: dict[str, str]

    @property
    def lost_bytes(self) -> int | None:
        """Bytes of text that no token stands for; None where it cannot be known."""
        return None if self.token_bytes is None else self.text_bytes - self.token_bytes


class InputEntry(Record):
    """What an input was: a file, or the texts of a folder, with the hash of its bytes."""

    file: str
    bytes: Count
    sha256: Sha256
    index_sha256: Sha256 | None = None
    origin: str | None = Field(default=None, alias="from")


class SourceEntry(Record):
    """One input, as the manifest lists it."""

    name: Name
    input: InputEntry
    counts: CountsEntry
    shards: list[ShardEntry]


class ColumnsEntry(Record):
    """See `text.Columns`."""

    text: str
    id: str
    source: str | None


class Settings(Record):
    """What decides the shards, besides the inputs; see `convert.PrepareOptions`."""

    tokenizer_sha256: Sha256
    vocab_size: Annotated[int, Field(ge=1, le=LARGEST_VOCABULARY)]
    split_seed: int
    validation_fraction: float
    shard_tokens: int
    columns: ColumnsEntry
    end_of_text: Literal["append", "none"]
    min_document_tokens: int
    on_error: Literal["stop", "skip"]


class SplitEntry(Record):
    """How the documents of one input were split. Hashes are hexadecimal; they are None where no
    document was kept.
    """

    threshold: Threshold
    lowest: Hash64 | None
    highest: Hash64 | None


class SourceFile(Record):
    """One input's `source.json`. `seen`: size and time of the last change of each file that was
    read.
    """

    input: InputEntry
    settings: Settings
    seen: list[list[int]]
    counts: CountsEntry
    shards: list[ShardEntry]
    # absent from datasets that an older version of this program made
    split: SplitEntry | None = None

    def entry(self, name: str) -> SourceEntry:
        """What the manifest says of this input."""
        return SourceEntry(name=name, input=self.input, counts=self.counts, shards=self.shards)


class Moved(Record):
    """Documents that changed sides, because the side that they came to would have been empty; see
    `split`.
    """

    to: Split
    documents: Count
    threshold: Threshold


class Manifest(Settings):
    """`manifest.json`."""

    format: Literal["tokencodes-dataset"]
    version: Literal[2]
    sources: list[SourceEntry]
    moved: Moved | None = None
    fingerprint: Sha256


class Checksums(Record):
    """A shard's `checksums.json`: BLAKE2b-64 of each block of its files."""

    tokens: list[Hash64] = Field(alias="tokens.npy")
    offsets: list[Hash64] = Field(alias="offsets.npy")
    documents: list[Hash64] = Field(alias="documents.parquet")


def as_json(record: Record) -> dict[str, Any]:
    """A record as it is written: the fields that it was given, under their names in the file."""
    return record.model_dump(mode="json", by_alias=True, exclude_unset=True)
