"""result.json: the result of a run. Training writes it last of all, so its presence means that the
run has ended.

A run has ended in one of two states. `done`: it reached its budget and has a score. `diverged`: its
numbers stopped being finite, or the exponential of its held-out loss is; it has no score, so that
nothing can be taken for one.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from tokencodes.records import Record, read_record

RESULT = "result.json"


class Divergence(Record):
    """How a run diverged: the reason, the step at which it stopped, and the last finite training
    loss (nats per token).
    """

    reason: str
    step: NonNegativeInt
    last_loss: float | None


class ResultRecord(Record):
    """The result of one run. Losses in nats per token; times in seconds; None: there is no such
    number.
    """

    status: Literal["done", "diverged"] = "done"
    divergence: Divergence | None = None
    arm: str
    seed: NonNegativeInt
    interface: str
    spec_sha256: str
    codebook_sha256: str | None
    steps: NonNegativeInt
    tokens: NonNegativeInt
    held_out_loss: float | None
    bits_per_byte: float | None
    perplexity: float | None
    held_out_tokens: PositiveInt
    held_out_bytes: NonNegativeInt
    held_out_sha256: str
    start_sha256: str  # of body and head before the first step
    windows_sha256: str  # a chain over the ids of all steps
    dataset_fingerprint: str
    seconds: float  # spent in steps
    process_peak_rss_bytes: NonNegativeInt
    environment: dict[str, str | int]

    @model_validator(mode="after")
    def _status_fits(self) -> Self:
        scores = (self.held_out_loss, self.bits_per_byte, self.perplexity)
        if self.diverged and (self.divergence is None or scores != (None, None, None)):
            raise ValueError("status = 'diverged' needs a divergence, and goes with no score")
        if not self.diverged and (self.divergence is not None or None in scores):
            raise ValueError(
                "status = 'done' needs a held-out loss, bits a byte and a perplexity, and goes with"
                " no divergence"
            )
        return self

    @property
    def diverged(self) -> bool:
        """Whether the run diverged."""
        return self.status == "diverged"


def read_result(run: Path) -> ResultRecord | None:
    """The result of the run in a folder; None if there is none yet. InputError: the file is
    damaged.
    """
    file = run / RESULT
    if not file.is_file():
        return None
    return read_record(file, ResultRecord, "remove the run's folder and train it again")
