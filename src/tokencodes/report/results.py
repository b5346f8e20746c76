"""A study's folder as values: what was asked, what is finished, and the statistics of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokencodes.errors import InputError
from tokencodes.evaluate.statistics import PairedDifference, paired_difference, sentence
from tokencodes.files import read_json
from tokencodes.records import read_record
from tokencodes.study_records import (
    FACTS,
    METRICS,
    REMOVE_FIRST,
    SAMPLE,
    STUDY,
    TRAIN_AGAIN,
    YARDSTICKS,
    Facts,
    HeldOut,
    Sample,
    Study,
    Yardsticks,
    read_facts,
    read_held_out,
    read_study,
)


@dataclass(frozen=True)
class RunResult:
    """One finished run: result.json, its held-out losses, its sample (None if none was drawn)."""

    result: dict[str, Any]
    held_out: list[HeldOut]
    sample: Sample | None


@dataclass(frozen=True)
class StudyResult:
    """A study: configuration as told, facts, yardsticks, and finished runs by arm and seed, in the study's order."""

    folder: Path
    config: Study
    facts: Facts
    yardsticks: Yardsticks
    runs: dict[str, dict[int, RunResult]]

    @property
    def arms(self) -> list[str]:
        """Arms with at least one finished run."""
        return [arm for arm, seeds in self.runs.items() if seeds]

    @property
    def asked(self) -> int:
        """How many runs the study has."""
        return len(self.config.arms) * len(self.config.study.seeds)

    @property
    def finished(self) -> int:
        """How many of them are done."""
        return sum(len(seeds) for seeds in self.runs.values())

    @property
    def baseline(self) -> str:
        """The arm that the others are compared with."""
        return self.config.study.baseline

    def evaluation_folder(self, arm: str, seed: int) -> Path:
        """Where the evaluation of a run lies."""
        return self.folder / arm / f"seed-{seed}" / "evaluation"

    def values(self, arm: str, key: str) -> np.ndarray:
        """One number of each finished run of an arm, in seed order."""
        return np.array([run.result[key] for run in self.runs[arm].values()], dtype=np.float64)

    def pairs(self) -> list[PairedDifference]:
        """Held-out loss of each other arm against the baseline, paired by seed."""
        losses = {
            arm: {seed: float(run.result["held_out_loss"]) for seed, run in seeds.items()} for arm, seeds in self.runs.items()
        }
        wanted = [(arm, self.baseline) for arm in self.arms if arm != self.baseline]
        wanted += [(arm, base) for arm, base in self.config.study.contrasts if (arm, base) not in wanted]
        found = (paired_difference(arm, base, losses) for arm, base in wanted)
        return [pair for pair in found if pair is not None]

    def told(self, pair: PairedDifference) -> str:
        """The sentence of a pair."""
        return sentence(pair, same_recipe=self.same_recipe(pair.arm, pair.baseline))

    def same_recipe(self, one: str, other: str) -> bool:
        """Whether two arms differ in nothing but their interface."""
        return self.config.arms[one].overrides == self.config.arms[other].overrides

    def matched(self) -> bool:
        """Whether in each seed every finished arm began from the same body and head and saw the same windows, by hash."""
        for seed in self.config.study.seeds:
            here = [seeds[seed].result for seeds in self.runs.values() if seed in seeds]
            if len({(one["start_sha256"], one["windows_sha256"], one["held_out_sha256"]) for one in here}) > 1:
                return False
        return True


def read_study_folder(folder: Path) -> StudyResult:
    """Reads a study; InputError if it is none, or has no finished run."""
    saved = folder / STUDY
    if not saved.is_file():
        raise InputError(f"{folder}: no study.toml, so not a study's folder; make one by `tokencodes compare`")
    config = read_study(saved)
    runs: dict[str, dict[int, RunResult]] = {arm: {} for arm in config.arms}
    for arm, seeds in runs.items():
        for seed in config.study.seeds:
            run = folder / arm / f"seed-{seed}"
            if (run / "result.json").is_file():
                seeds[seed] = _read_run(run)
                named = seeds[seed].result["arm"], seeds[seed].result["seed"]
                if named != (arm, seed):
                    raise InputError(
                        f"{run}/result.json: of arm {named[0]}, seed {named[1]}, and not of the run that this folder is named "
                        "after; give each run its own folder back"
                    )
    if not any(runs.values()):
        raise InputError(f"{folder}: no run is finished; repeat the `tokencodes compare` command that made it")
    facts = read_facts(folder / FACTS, (arm for arm, seeds in runs.items() if seeds))
    return StudyResult(folder, config, facts, read_record(folder / YARDSTICKS, Yardsticks, REMOVE_FIRST), runs)


def _read_run(folder: Path) -> RunResult:
    held_out, sample = read_held_out(folder / METRICS), folder / SAMPLE
    if not held_out:
        raise InputError(f"{folder / METRICS}: no held-out loss in it (a line of kind 'heldout'); {TRAIN_AGAIN}")
    return RunResult(
        read_json(folder / "result.json"),
        held_out,
        read_record(sample, Sample, REMOVE_FIRST) if sample.is_file() else None,
    )
