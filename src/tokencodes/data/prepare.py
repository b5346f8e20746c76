"""Text -> shards. Each input yields its own shards, on its own: idempotent, restartable, and in
parallel.

A source's folder appears by one rename, the manifest is written last, and the same command again
goes on where it was stopped. Workers, engine and batch size decide only how fast it goes: the bytes
come out the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokencodes.data.convert import PARTIAL, Job, clean, finished
from tokencodes.data.dataset import Dataset
from tokencodes.data.encode import Engine
from tokencodes.data.entries import as_json
from tokencodes.data.inputs import Input, find_inputs
from tokencodes.data.manifest import write_manifest
from tokencodes.data.options import PrepareOptions, settings_of
from tokencodes.data.progress import PreparationProgress
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.data.workers import run_jobs
from tokencodes.errors import InputError
from tokencodes.files import LOCK, locked_folder, write_bytes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Means:
    """How the work is done; nothing here changes a byte of the result."""

    workers: int = 1
    tokenizer_engine: Engine = "cached"
    # of text, held at a time by each worker; the longest document is the floor
    batch_bytes: int = 4 << 20
    engine: Literal["local", "slurm", "ray"] = "local"
    cluster: tuple[str, ...] = ()  # KEY=VALUE for slurm or ray


def prepare(
    inputs: list[str],
    tokenizer_path: Path,
    out: Path,
    options: PrepareOptions = PrepareOptions(),  # noqa: B008
    means: Means = Means(),
    say: Say = lambda line: None,
) -> Dataset:
    """Prepares files, folders, globs and hub data sets into the dataset `out`. Returns the dataset.

    If the same preparation was done before, the dataset is only opened. Raises InputError if an
    input is unreadable (with file and line), if a side of the split is empty, or if `out` was made
    from other inputs or settings.
    """
    dataset = start(inputs, TokenizerFile(tokenizer_path), out, options, means, say)
    if dataset is None:
        raise InputError(f"{out}: its jobs are submitted; when they are done, open it as a dataset")
    return dataset


def start(
    inputs: list[str],
    tokenizer: TokenizerFile,
    out: Path,
    options: PrepareOptions,
    means: Means,
    say: Say,
) -> Dataset | None:
    """As `prepare`, but returns None if a cluster does the work after this call."""
    input_list = find_inputs(inputs, out)
    if means.cluster and means.engine == "local":
        raise InputError(
            f"--cluster {means.cluster[0]!r}: only engine slurm or ray takes it; give --engine"
        )
    require_ours(out)
    with locked_folder(out):
        clean(out)
        if (out / "manifest.json").is_file():
            return _same_or_error(out, input_list, options, tokenizer)
        jobs = make_jobs(input_list, tokenizer, out, options, means)
        progress = PreparationProgress(len(jobs), sum(job.input.bytes for job in jobs), say)
        todo = [job for job in jobs if finished(job, tokenizer) is None]
        for job in set(jobs) - set(todo):
            progress.input_done(job.input.bytes)
        if todo and means.engine == "slurm":
            from tokencodes.data.cluster import submit_to_slurm

            submit_to_slurm(
                jobs,
                out.resolve() / "tokenizer.json",
                means.tokenizer_engine,
                means.workers,
                means.cluster,
            )
            return None
        _convert(todo, tokenizer, means, progress)
        if todo:
            say(progress.line())
        write_manifest(jobs, tokenizer, means.tokenizer_engine, say)
    return Dataset(out)


def _convert(
    jobs: list[Job], tokenizer: TokenizerFile, means: Means, progress: PreparationProgress
) -> None:
    if jobs and means.engine == "ray":
        from tokencodes.data.cluster import run_on_ray

        run_on_ray(
            jobs,
            jobs[0].out / "tokenizer.json",
            means.tokenizer_engine,
            means.workers,
            means.cluster,
        )
        return
    try:
        run_jobs(
            jobs,
            tokenizer,
            means.tokenizer_engine,
            means.workers,
            progress.add,
            progress.input_done,
        )
    except BaseException:
        clean(jobs[0].out)
        raise


def require_ours(out: Path) -> None:
    """Raises InputError if a folder holds files that no preparation wrote.

    A dataset's folder has a lock and a tokenizer from the beginning. The folder of a run or a study
    has a lock, but no tokenizer.
    """
    there = {entry.name for entry in out.iterdir()} if out.is_dir() else set()
    begun = {name for name in there if name == LOCK or name.startswith((PARTIAL, "tokenizer-"))}
    if there - begun and not {LOCK, "tokenizer.json"} <= there:
        raise InputError(
            f"{out}: neither empty nor a dataset's folder, and nothing in it is touched; choose"
            " another --out"
        )


def make_jobs(
    inputs: list[Input], tokenizer: TokenizerFile, out: Path, options: PrepareOptions, means: Means
) -> list[Job]:
    """Returns one job per input.

    The tokenizer is copied into the dataset first, so that every worker reads the same file.
    """
    if tokenizer.path.resolve() != (out / "tokenizer.json").resolve():
        write_bytes(out / "tokenizer.json", tokenizer.path.read_bytes())
    if means.engine != "local":  # other machines have other working directories
        inputs, out = [unit.resolved() for unit in inputs], out.resolve()
    return [Job(unit, out, options, means.batch_bytes) for unit in inputs]


def _same_or_error(
    out: Path, inputs: list[Input], options: PrepareOptions, tokenizer: TokenizerFile
) -> Dataset:
    dataset = Dataset(out)
    _ = dataset.tokenizer
    there = as_json(dataset.manifest)
    for key, value in as_json(settings_of(options, tokenizer)).items():
        if there[key] != value:
            raise InputError(
                f"{out}: a dataset with {key} {there[key]!r} is here, asked for {value!r}; choose"
                " another --out"
            )
    here = {source.name for source in dataset.manifest.sources}
    changed = sorted(here ^ {unit.name for unit in inputs})
    changed += [
        unit.name
        for unit in inputs
        if not changed and finished(Job(unit, out, options), tokenizer) is None
    ]
    if changed:
        raise InputError(
            f"{out}: a dataset of other inputs is here (they differ in {changed[0]}); choose"
            " another --out"
        )
    return dataset
