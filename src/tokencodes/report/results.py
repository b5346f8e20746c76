"""A study's folder as values: what was asked, what is finished, and the statistics of it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokencodes.errors import InputError
from tokencodes.evaluate.statistics import PairedDifference, paired_difference, sentence
from tokencodes.records import read_record
from tokencodes.result import ResultRecord, read_result
from tokencodes.study_records import (
    FACTS,
    METRICS,
    NGRAM_BASELINES,
    REMOVE_FIRST,
    SAMPLE,
    STUDY,
    TRAIN_AGAIN,
    Facts,
    HeldOut,
    NgramBaselines,
    Sample,
    Study,
    read_facts,
    read_held_out,
    read_study,
)


@dataclass(frozen=True)
class RunResult:
    """One run that has ended: result.json, its held-out losses, its sample (None if none was
    drawn).
    """

    result: ResultRecord
    held_out: list[HeldOut]
    sample: Sample | None


@dataclass(frozen=True)
class StudyResult:
    """A study: configuration as told, facts, n-gram baselines, and runs that have ended, by arm and
    seed, in the study's order.

    A run that diverged has ended and has no score. It is in no mean and in no pair.
    """

    folder: Path
    config: Study
    facts: Facts
    ngram_baselines: NgramBaselines
    runs: dict[str, dict[int, RunResult]]

    @property
    def arms(self) -> list[str]:
        """Arms with at least one run that has ended."""
        return [arm for arm, seeds in self.runs.items() if seeds]

    @property
    def scored(self) -> list[str]:
        """Arms with at least one score."""
        return [arm for arm in self.arms if self.scores(arm)]

    @property
    def planned(self) -> int:
        """How many runs the study has."""
        return len(self.config.arms) * len(self.config.study.seeds)

    @property
    def finished(self) -> int:
        """How many of them have ended, those that diverged among them."""
        return sum(len(seeds) for seeds in self.runs.values())

    @property
    def diverged(self) -> list[ResultRecord]:
        """The results of the runs that diverged."""
        return [
            run.result
            for seeds in self.runs.values()
            for run in seeds.values()
            if run.result.diverged
        ]

    @property
    def baseline(self) -> str:
        """The arm that the others are compared with."""
        return self.config.study.baseline

    def evaluation_folder(self, arm: str, seed: int) -> Path:
        """Where the evaluation of a run lies."""
        return self.folder / arm / f"seed-{seed}" / "evaluation"

    def scores(self, arm: str) -> dict[int, ResultRecord]:
        """The results of an arm's runs that have a score, by seed."""
        return {
            seed: run.result
            for seed, run in self.runs.get(arm, {}).items()
            if not run.result.diverged
        }

    def values(self, arm: str, key: str) -> np.ndarray:
        """One number of each run of an arm that has a score, in seed order."""
        return np.array(
            [getattr(result, key) for result in self.scores(arm).values()], dtype=np.float64
        )

    def wanted(self) -> list[tuple[str, str]]:
        """The pairs of arms that are compared: each other arm with the baseline, and the study's
        own contrasts.
        """
        wanted = [(arm, self.baseline) for arm in self.arms if arm != self.baseline]
        return wanted + [
            (arm, base) for arm, base in self.config.study.contrasts if (arm, base) not in wanted
        ]

    def pairs(self) -> list[PairedDifference]:
        """Held-out loss of the pairs that are compared, paired by seed. A pair needs a seed in
        which both arms have a score.
        """
        losses = {
            arm: {
                seed: run.held_out_loss
                for seed, run in self.scores(arm).items()
                if run.held_out_loss is not None
            }
            for arm in self.arms
        }
        pairs = (paired_difference(arm, base, losses) for arm, base in self.wanted())
        return [pair for pair in pairs if pair is not None]

    def sentence_of(self, pair: PairedDifference) -> str:
        """The sentence of a pair, with the seeds that are missing because a run diverged."""
        text = sentence(pair, same_recipe=self.same_recipe(pair.arm, pair.baseline))
        missing, count = self._diverged_in(pair.arm, pair.baseline), len(pair.seeds)
        return (
            f"{text} It stands on {count} pair{'' if count == 1 else 's'}: {missing} diverged."
            if missing
            else text
        )

    def without_pair(self) -> list[str]:
        """A sentence for each two arms that no seed is left to compare, because runs diverged."""
        paired = {(pair.arm, pair.baseline) for pair in self.pairs()}
        lost = [(pair, self._diverged_in(*pair)) for pair in self.wanted() if pair not in paired]
        return [
            f"{arm} and {base} cannot be compared: {missing} diverged."
            for (arm, base), missing in lost
            if missing
        ]

    def _diverged_in(self, *arms: str) -> str:
        return ", ".join(f"{run.arm} seed {run.seed}" for run in self.diverged if run.arm in arms)

    def same_recipe(self, first: str, second: str) -> bool:
        """Whether two arms differ in nothing but their interface."""
        return self.config.arms[first].overrides == self.config.arms[second].overrides

    def matched(self) -> bool:
        """Whether in each seed every arm with a score began from the same body and head and saw the
        same windows, by hash.
        """
        for seed in self.config.study.seeds:
            here = [scores[seed] for scores in map(self.scores, self.arms) if seed in scores]
            if (
                len(
                    {
                        (score.start_sha256, score.windows_sha256, score.held_out_sha256)
                        for score in here
                    }
                )
                > 1
            ):
                return False
        return True


def read_study_folder(folder: Path) -> StudyResult:
    """Reads a study; InputError if it is none, or has no finished run."""
    saved = folder / STUDY
    if not saved.is_file():
        raise InputError(
            f"{folder}: no study.toml, so not a study's folder; make one by `tokencodes compare`"
        )
    config = read_study(saved)
    runs: dict[str, dict[int, RunResult]] = {arm: {} for arm in config.arms}
    for arm, seeds in runs.items():
        for seed in config.study.seeds:
            run = folder / arm / f"seed-{seed}"
            result = read_result(run)
            if result is None:
                continue
            if (result.arm, result.seed) != (arm, seed):
                raise InputError(
                    f"{run}/result.json: of arm {result.arm}, seed {result.seed}, and not of the"
                    " run that this folder is named after; give each run its own folder back"
                )
            seeds[seed] = _read_run(run, result)
    if not any(runs.values()):
        raise InputError(
            f"{folder}: no run is finished; repeat the `tokencodes compare` command that made it"
        )
    facts = read_facts(folder / FACTS, (arm for arm, seeds in runs.items() if seeds))
    return StudyResult(
        folder,
        config,
        facts,
        read_record(folder / NGRAM_BASELINES, NgramBaselines, REMOVE_FIRST),
        runs,
    )


def _read_run(folder: Path, result: ResultRecord) -> RunResult:
    held_out, sample = read_held_out(folder / METRICS), folder / SAMPLE
    if not held_out and not result.diverged:
        raise InputError(
            f"{folder / METRICS}: no held-out loss in it (a line of kind 'heldout'); {TRAIN_AGAIN}"
        )
    return RunResult(
        result,
        held_out,
        read_record(sample, Sample, REMOVE_FIRST) if sample.is_file() else None,
    )
