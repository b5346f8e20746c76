"""The run that an evaluated model comes from: its arm, its seed, its study.

Two runs are a matched pair if they began from the same body and head and saw the same windows. The name of a folder shows
nothing of that. So a contrast pairs evaluations by what the runs themselves have on record.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, StringConstraints

from tokencodes import checkpoint
from tokencodes.errors import InputError
from tokencodes.files import read_toml
from tokencodes.records import Record, checked, read_record

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
WAY_OUT = "take the whole run's folder as it was trained"


class RunOrigin(Record):
    """What identifies a run.

    study_sha256: of its dataset and of the recipe that all arms of a study share. optimizer_sha256: of its optimizer settings,
    which an arm may change. start_sha256: of body and head before the first update. windows_sha256: of the windows of all
    updates so far. The last two are the same in every arm of a seed.
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


class _Engine(Record):
    model_config = ConfigDict(extra="ignore")

    precision: str


class _Config(Record):
    """The part of a run's config.toml that identifies it."""

    model_config = ConfigDict(extra="ignore")

    arm: str
    seed: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    batch: dict[str, Any]
    budget: dict[str, Any]
    engine: _Engine


class _Result(Record):
    """The part of a run's result.json that identifies it."""

    model_config = ConfigDict(extra="ignore")

    arm: str
    seed: int
    dataset_fingerprint: str
    start_sha256: Sha256
    windows_sha256: Sha256


def origin_of(place: Path) -> RunOrigin | None:
    """The run of a model: `place` is the run's folder, one of its checkpoints, or one of the models that it has left. None for
    every other model.

    InputError: the run's records are damaged, or are of two runs.
    """
    place = place.resolve()
    run = _run_folder(place)
    if run is None:
        return None
    config = checked(read_toml(run / "config.toml"), _Config, f"{run}/config.toml", WAY_OUT)
    if place.name == "model":
        result = read_record(run / "result.json", _Result, WAY_OUT)
        if (result.arm, result.seed) != (config.arm, config.seed):
            raise InputError(
                f"{run}: result.json is of arm {result.arm}, seed {result.seed}; config.toml is of arm {config.arm}, "
                f"seed {config.seed}; {WAY_OUT}"
            )
        return _origin(run, config, result.dataset_fingerprint, result.start_sha256, result.windows_sha256)
    kept = run / "checkpoints" / place.name if place != run else checkpoint.checkpoints(run / "checkpoints")[0]
    state = checkpoint.read_state(kept)
    return _origin(run, config, state.dataset_fingerprint, state.start_sha256, state.windows_sha256)


def _run_folder(place: Path) -> Path | None:
    """The folder of a model's run; None where the model lies in no run."""
    if checkpoint.checkpoints(place / "checkpoints"):
        run = place
    elif place.name == "model" and (place.parent / "result.json").is_file():
        run = place.parent
    elif place.parent.name in ("checkpoints", "models") and (place.parents[1] / "checkpoints" / place.name).is_dir():
        run = place.parents[1]
    else:
        return None
    return run if (run / "config.toml").is_file() else None


def _origin(run: Path, config: _Config, dataset_fingerprint: str, start_sha256: str, windows_sha256: str) -> RunOrigin:
    study = [config.model, config.batch, config.budget, config.engine.precision, dataset_fingerprint]
    origin = {
        "arm": config.arm,
        "seed": config.seed,
        "study_sha256": _sha256(study),
        "optimizer_sha256": _sha256(config.optimizer),
        "start_sha256": start_sha256,
        "windows_sha256": windows_sha256,
    }
    return checked(origin, RunOrigin, str(run), WAY_OUT)


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
