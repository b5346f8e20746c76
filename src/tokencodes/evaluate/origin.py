"""The run that an evaluated model comes from: its arm, its seed, its study.

Two runs are a matched pair if they began from the same body and head and saw the same windows. The
name of a folder shows nothing of that. So a contrast pairs evaluations by what the runs themselves
have on record.
"""

import hashlib
import json
from typing import Annotated, Any

from pydantic import StringConstraints

from tokencodes.checkpoint import Origin, TrainState, read_state
from tokencodes.files import read_toml
from tokencodes.records import Known, Record, checked
from tokencodes.result import RESULT, ResultRecord

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
REMEDY = "take the whole run's folder as it was trained"


class RunOrigin(Record):
    """What identifies a run.

    study_sha256: of its dataset and of the recipe that all arms of a study share. optimizer_sha256:
    of its optimizer settings, which an arm may change. start_sha256: of body and head before the
    first step. windows_sha256: of the windows of all steps so far. The last two are the same in
    every arm of a seed.
    """

    arm: str
    seed: int
    study_sha256: Sha256
    optimizer_sha256: Sha256
    start_sha256: Sha256
    windows_sha256: Sha256

    @property
    def recipe(self) -> tuple[str, str]:
        """What two runs have in common if they differ in nothing but interface and seed."""
        return self.study_sha256, self.optimizer_sha256


class _Engine(Known):
    precision: str


class _Recipe(Known):
    """The recipe in a run's config.toml."""

    model: dict[str, Any]
    optimizer: dict[str, Any]
    batch: dict[str, Any]
    budget: dict[str, Any]
    engine: _Engine


def run_of(origin: Origin | None) -> RunOrigin | None:
    """What identifies the run of a checkpoint or a model; None where no run is known, or where it
    no longer has the checkpoint of that step. InputError: its records are damaged.
    """
    if origin is None:
        return None
    config = checked(
        read_toml(origin.folder / "config.toml"), _Recipe, f"{origin.folder}/config.toml", REMEDY
    )
    ended: ResultRecord | TrainState
    kept = origin.folder / "checkpoints" / f"step-{origin.step:08d}"
    if origin.result is not None and origin.step == origin.result.steps:
        file, ended = origin.folder / RESULT, origin.result
    elif (kept / "state.json").is_file():
        file, ended = kept / "state.json", read_state(kept)
    else:
        return None
    shared = [
        config.model,
        config.batch,
        config.budget,
        config.engine.precision,
        ended.dataset_fingerprint,
    ]
    value = {
        "arm": origin.config.arm,
        "seed": origin.config.seed,
        "study_sha256": _sha256(shared),
        "optimizer_sha256": _sha256(config.optimizer),
        "start_sha256": ended.start_sha256,
        "windows_sha256": ended.windows_sha256,
    }
    return checked(value, RunOrigin, str(file), REMEDY)


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
