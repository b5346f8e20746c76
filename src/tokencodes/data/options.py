"""What decides a dataset besides its inputs: the options of a preparation, and the record of them
in its files.
"""

from dataclasses import asdict, dataclass, field
from typing import Literal

from tokencodes.data.entries import Settings
from tokencodes.data.text import Columns
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError

MOST_TOKENS = 1 << 40  # of a shard, or of a document's least length: beyond every file


@dataclass(frozen=True)
class PrepareOptions:
    """What, besides text and tokenizer, decides the shards.
    InputError: a value out of its bounds."""

    split_seed: int = 0
    validation_fraction: float = 0.001  # expected share of documents; the paper's threshold
    shard_tokens: int = 100_000_000
    columns: Columns = field(default_factory=Columns)
    # ours: the paper does not say; it counts towards the length
    end_of_text: Literal["append", "none"] = "append"
    min_document_tokens: int = 0  # shorter documents are dropped and counted
    on_error: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise InputError(
                f"validation_fraction {self.validation_fraction}: it must be in 0 ... 1, and"
                " below 1"
            )
        for name, least, most in (
            ("split_seed", 0, (1 << 63) - 1),
            ("shard_tokens", 1, MOST_TOKENS),
            ("min_document_tokens", 0, MOST_TOKENS),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InputError(f"{name} {value:,}: it must be in {least} ... {most:,}")


def settings_of(options: PrepareOptions, tokenizer: TokenizerFile) -> Settings:
    """What a dataset must have in common with what is asked for, as it stands in its files."""
    return Settings.model_validate(
        {
            "tokenizer_sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
            **asdict(options),
        }
    )
