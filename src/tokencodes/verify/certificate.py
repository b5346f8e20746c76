"""The certificate of one checkpoint: every check, and what was not shown."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokencodes.checkpoint import find, load_model
from tokencodes.verify.checks import CHECKS, Check

NOT_SHOWN = (
    "that training and inference are equivalent beyond the ids tried",
    "behaviour in another dtype, on another device or past the drawn lengths",
    "that the codebook belongs to the tokenizer used with it",
)


@dataclass(frozen=True)
class Certificate:
    """What `verify` found."""

    checkpoint: str
    interface: str
    vocab_size: int
    hidden_size: int
    checks: tuple[Check, ...]
    not_shown: tuple[str, ...] = NOT_SHOWN

    @property
    def holds(self) -> bool:
        """Whether no check failed."""
        return all(check.status != "fails" for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {**asdict(self), "holds": self.holds}


def certify(path: Path) -> Certificate:
    """Runs every check on a run, a checkpoint or an exported folder; InputError if it cannot be loaded at all."""
    place = find(path)
    model = load_model(place)
    config = model.config
    return Certificate(
        checkpoint=str(place),
        interface=config.interface,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        checks=tuple(run(model) for run in CHECKS),
    )
