"""Which evaluations belong together: by the run seeds that they have on record, not by the names of
their folders.

Two runs of one seed are a matched pair if they began from the same body and head and saw the same
windows. Models that come from no run have no seed on record. Several of them are paired by the
names of their folders, and the contrast says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from tokencodes.errors import InputError
from tokencodes.evaluate.folder import (
    EVALUATION,
    DocumentRecord,
    EvaluationRecord,
    Identity,
    read_documents,
    read_evaluation,
)
from tokencodes.evaluate.origin import RunOrigin


@dataclass(eq=False)
class Evaluation:
    """A folder that `evaluate` wrote."""

    folder: Path
    record: EvaluationRecord
    documents: list[DocumentRecord]

    @property
    def identity(self) -> Identity:
        """What was evaluated, and on what."""
        return self.record.identity

    @cached_property
    def _by_benchmark(self) -> dict[str, list[DocumentRecord]]:
        documents: dict[str, list[DocumentRecord]] = {name: [] for name in self.identity.benchmarks}
        for document in self.documents:
            documents[document.benchmark].append(document)
        return documents

    def documents_of(self, benchmark: str) -> list[DocumentRecord]:
        """The documents of one benchmark, in their order; at least one."""
        return self._by_benchmark[benchmark]


Pair = tuple[Evaluation, Evaluation]  # base, other
Pairing = Literal["run seeds", "folder names"]
Key = tuple[int, str]  # a run seed; or 0 and the name of a folder


def open_evaluation(folder: Path) -> Evaluation:
    """InputError: it is not finished, or is damaged."""
    record = read_evaluation(folder)
    return Evaluation(folder, record, read_documents(folder, record))


def sides(base: Path, other: Path) -> list[Pair]:
    """Two evaluations; or the pairs of two folders that hold several, SUBFOLDER/ itself or
    SUBFOLDER/evaluation/ each.
    """
    if (base / EVALUATION).is_file() or (other / EVALUATION).is_file():
        return [(open_evaluation(base), open_evaluation(other))]
    folders = [_evaluations_in(side) for side in (base, other)]
    for side, within in zip((base, other), folders, strict=True):
        if not within:
            raise InputError(
                f"{side}: neither an evaluation nor a folder of evaluations; `tokencodes evaluate`"
                " writes one"
            )
    return paired(*([open_evaluation(folder) for folder in within] for within in folders))


def _evaluations_in(side: Path) -> list[Path]:
    return sorted(
        file.parent
        for pattern in ("*", "*/evaluation")
        for file in side.glob(f"{pattern}/{EVALUATION}")
    )


def paired(base: Sequence[Evaluation], other: Sequence[Evaluation]) -> list[Pair]:
    """The pairs of two sides, by run seed. If no model comes from a run: by the names of the
    folders.

    InputError: a seed stands twice on a side, or on one side only; some evaluations name their runs
    and others do not.
    """
    known = [side for side in (*base, *other) if side.identity.run is not None]
    unknown = [side for side in (*base, *other) if side.identity.run is None]
    if known and unknown:
        raise InputError(
            f"{known[0].folder} names the run that it comes from, {unknown[0].folder} does not, so"
            " seeds cannot be paired; evaluate the run of the second anew, or contrast two"
            " evaluations at a time"
        )
    of_base, of_other = _by_key(base), _by_key(other)
    for key in sorted(of_base.keys() ^ of_other.keys()):
        lone = (of_base | of_other)[key].folder
        raise InputError(
            f"{lone}: {_shown(key)} is evaluated on one side only; evaluate it on the other, or"
            " take it away"
        )
    return [(of_base[key], of_other[key]) for key in sorted(of_base)]


def _by_key(side: Iterable[Evaluation]) -> dict[Key, Evaluation]:
    by_key: dict[Key, Evaluation] = {}
    for evaluation in side:
        run, folder = evaluation.identity.run, evaluation.folder
        name = folder.parent.name if folder.name == "evaluation" else folder.name
        key = (0, name) if run is None else (run.seed, "")
        if key in by_key:
            raise InputError(
                f"{by_key[key].folder} and {folder}: both are {_shown(key)} of this side; take one"
                " of them away"
            )
        by_key[key] = evaluation
    return by_key


def _shown(key: Key) -> str:
    seed, name = key
    return f"{name!r}" if name else f"run seed {seed}"


def pairing(pairs: Sequence[Pair]) -> Pairing | None:
    """By what several pairs were made; None for one pair, which needs nothing in common but its
    requests.
    """
    if len(pairs) < 2:
        return None
    return "folder names" if pairs[0][0].identity.run is None else "run seeds"


def require_matched(pairs: Sequence[Pair]) -> None:
    """InputError unless each side has run seeds of one interface, and both models of a pair began
    alike and saw the same windows, as far as their runs are known.
    """
    for side in zip(*pairs, strict=True):
        _require_seeds(side)
    for base, other in pairs:
        base_run, other_run = base.identity.run, other.identity.run
        if base_run is None or other_run is None:
            continue
        for name, wanted, given in (
            ("run seed", base_run.seed, other_run.seed),
            ("start of body and head", base_run.start_sha256[:12], other_run.start_sha256[:12]),
            ("windows seen", base_run.windows_sha256[:12], other_run.windows_sha256[:12]),
        ):
            if wanted != given:
                raise InputError(
                    f"{base.folder} and {other.folder} are no matched pair ({name}: {wanted} and"
                    f" {given}); name runs of one study, or contrast two evaluations at a time"
                )


def _require_seeds(side: Sequence[Evaluation]) -> None:
    """InputError where evaluations cannot be of one interface's run seeds."""
    first = side[0]
    seen: dict[str, Path] = {}
    for evaluation in side:
        identity, run = evaluation.identity, evaluation.identity.run
        if identity.weights_sha256 in seen:
            raise InputError(
                f"{evaluation.folder}: the same weights as {seen[identity.weights_sha256]}, so no"
                " seed of its own; name another run"
            )
        seen[identity.weights_sha256] = evaluation.folder
        if (identity.interface, identity.step) != (first.identity.interface, first.identity.step):
            raise InputError(
                f"{evaluation.folder}: interface {identity.interface}, step {identity.step};"
                f" {first.folder}: {first.identity.interface}, {first.identity.step}. A side has"
                " run seeds of one interface, not checkpoints of a run"
            )
        known = first.identity.run
        if (
            run is not None
            and known is not None
            and (run.arm, run.recipe) != (known.arm, known.recipe)
        ):
            raise InputError(
                f"{first.folder} and {evaluation.folder} are no seeds of one arm of one study"
                f" ({_recipe(known)}; {_recipe(run)}); name the runs of one arm"
            )


def _recipe(run: RunOrigin) -> str:
    return f"arm {run.arm}, study {run.study_sha256[:12]}, optimizer {run.optimizer_sha256[:12]}"
