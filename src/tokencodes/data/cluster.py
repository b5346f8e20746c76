"""The same conversion on several machines: a datatrove pipeline step, on Slurm or Ray.

The tasks share only the file system. Each task converts whole inputs into folders that appear by
one rename, so a task may fail, be requeued, or run twice. A last step writes the manifest.
This module needs the extra `scale` (datatrove); ray is installed separately.
"""

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokencodes.data.convert import Job, convert, finished
from tokencodes.data.encode import Engine, engine_for
from tokencodes.data.manifest import write_manifest
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError
from tokencodes.escape import CONTROL
from tokencodes.files import locked_folder

try:
    from datatrove.executor.base import PipelineExecutor
    from datatrove.executor.ray import RayPipelineExecutor
    from datatrove.executor.slurm import SlurmPipelineExecutor
    from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise InputError(
        f"engine slurm and ray need datatrove ({error}); install it by: pip install"
        " 'tokencodes[scale]'"
    ) from None


NAME = re.compile(r"[\w.+-]+")  # of a job, and of an option
# names of parameters that a user cannot set by `--cluster`
OURS = {
    "pipeline",
    "tasks",
    "workers",
    "logging_dir",
    "skip_completed",
    "depends",
    "job_id_retriever",
}


class ConvertStep(PipelineStep):  # type: ignore[misc]
    """Converts the inputs of one rank: every world_size-th, from the rank-th on."""

    name = "tokencodes"
    type = "TOKENIZER"

    def __init__(self, jobs: list[Job], tokenizer: Path, engine: Engine) -> None:
        super().__init__()
        self.jobs, self.tokenizer, self.engine = jobs, tokenizer, engine

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Any:
        """Converts the inputs. datatrove calls it and receives counts of documents and tokens."""
        encoder = engine_for(TokenizerFile(self.tokenizer), self.engine)
        for job in self.jobs[rank::world_size]:
            entry = convert(job, encoder)
            self.stat_update("documents", value=entry.counts.kept)
            self.stat_update("tokens", value=sum(shard.tokens for shard in entry.shards))
        return data


class SealStep(PipelineStep):  # type: ignore[misc]
    """Writes the manifest when every input is converted."""

    name = "tokencodes manifest"
    type = "TOKENIZER"

    def __init__(self, jobs: list[Job], tokenizer: Path, engine: Engine = "cached") -> None:
        super().__init__()
        self.jobs, self.tokenizer, self.engine = jobs, tokenizer, engine

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Any:
        """Writes the manifest if there is none yet. datatrove calls it."""
        out = self.jobs[0].out
        with locked_folder(out):
            if not (out / "manifest.json").is_file():
                write_manifest(self.jobs, TokenizerFile(self.tokenizer), self.engine)
        return data


class _Slurm(SlurmPipelineExecutor):  # type: ignore[misc]
    """datatrove's executor. It writes values into the batch file as they are; here they are words
    of the shell first.
    """

    def get_sbatch_args(self, max_array: int = 1) -> dict[str, Any]:
        """Slurm reads its options as a shell reads words, and `%` in a log's path as the start of a
        pattern.
        """
        options, logs = super().get_sbatch_args(max_array), str(self.slurm_logs_folder)
        for key in ("output", "error"):
            options[key] = options[key].replace(logs, logs.replace("%", "%%"), 1)
        return {
            key: shlex.quote(str(value)) if value not in ("", None) else value
            for key, value in options.items()
        }

    def get_launch_file_contents(self, sbatch_args: dict[str, Any], run_script: str) -> str:
        """`run_script` names files in the folder of logs."""
        folder = self.logging_dir.path
        return str(
            super().get_launch_file_contents(
                sbatch_args, run_script.replace(folder, shlex.quote(folder))
            )
        )


def submit_to_slurm(
    jobs: list[Job], tokenizer: Path, engine: Engine, workers: int, requested: tuple[str, ...]
) -> None:
    """Submits an array with one task per input, and a task after it that writes the manifest.

    Returns when the tasks are submitted. `requested` holds KEY=VALUE options for datatrove's
    SlurmPipelineExecutor; `time` and `partition` are required. Raises InputError if a key is
    unknown or missing.
    """
    options = _options(SlurmPipelineExecutor, requested)
    missing = [key for key in ("time", "partition") if key not in options]
    if missing:
        raise InputError(
            f"engine slurm needs {' and '.join(missing)}; give --cluster {missing[0]}=VALUE"
        )
    if shutil.which("sbatch") is None:
        raise InputError("engine slurm: no sbatch here; run the command where Slurm's commands are")
    if sys.prefix != sys.base_prefix:
        options.setdefault("venv_path", f"{sys.prefix}/bin/activate")
    _quote(options)
    logs = _logs(jobs)
    shared = {"job_name": "tokencodes-prepare", **options}
    first = _Slurm(
        [ConvertStep(jobs, tokenizer, engine)],
        tasks=len(jobs),
        workers=workers if workers > 1 else -1,
        logging_dir=f"{logs}/convert",
        skip_completed=False,  # a finished input is found by its folder, whatever a log says
        **shared,
    )
    last = _Slurm(
        [SealStep(jobs, tokenizer, engine)],
        tasks=1,
        depends=first,
        logging_dir=f"{logs}/manifest",
        skip_completed=False,
        **shared,
    )
    try:
        last.run()
    except subprocess.CalledProcessError as error:
        raise InputError(
            f"engine slurm: sbatch refused (exit status {error.returncode}), and said why above"
        ) from None


def run_on_ray(
    jobs: list[Job], tokenizer: Path, engine: Engine, workers: int, requested: tuple[str, ...]
) -> None:
    """Runs every job on the Ray cluster that RAY_ADDRESS names, or on this machine.

    Returns when all jobs have ended. `requested` holds KEY=VALUE options for datatrove's
    RayPipelineExecutor. Raises InputError if a key is unknown or a job failed.
    """
    options = _options(RayPipelineExecutor, requested)
    try:
        import ray
    except ImportError:
        raise InputError("engine ray needs ray; install it by: pip install ray") from None
    if not ray.is_initialized():
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False)
    executor: PipelineExecutor = RayPipelineExecutor(
        [ConvertStep(jobs, tokenizer, engine)],
        tasks=len(jobs),
        workers=workers if workers > 1 else -1,
        logging_dir=f"{_logs(jobs)}/convert",
        skip_completed=False,
        **options,
    )
    executor.run()
    tokenizer_file = TokenizerFile(tokenizer)
    left = [job for job in jobs if finished(job, tokenizer_file) is None]
    if left:
        title = f"{left[0].input.title}: its task failed ({len(left)} of {len(jobs)} did)"
        raise InputError(f"{title}; the reason is in {_logs(jobs)}/convert/logs")


def _logs(jobs: list[Job]) -> Path:
    """The folder of logs. It lies next to the dataset, not in it."""
    return jobs[0].out.with_name(f"{jobs[0].out.name}-logs")


def _options(executor: type, requested: tuple[str, ...]) -> dict[str, Any]:
    """Returns the KEY=VALUE options of an executor as a mapping.

    A value that is JSON (a number, `false`, a table of `sbatch_args`) is parsed as JSON.
    """
    known = set(inspect.signature(executor).parameters) - OURS
    options: dict[str, Any] = {}
    for pair in requested:
        key, equals, value = pair.partition("=")
        if not equals or key not in known:
            raise InputError(
                f"--cluster {pair!r}: write KEY=VALUE, with a key of datatrove's"
                f" {executor.__name__}"
            )
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
        if any(CONTROL.search(text) for text in _texts(options[key])):
            raise InputError(
                f"--cluster {pair!r}: a batch file cannot hold a line break or another control"
                " character"
            )
    return options


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value of JSON, keys of tables too."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    else:
        yield str(value)


def _quote(options: dict[str, Any]) -> None:
    """What datatrove puts into lines of the shell becomes words; `env_command` is such a line by
    itself.
    """
    names = [str(options.get("job_name", "tokencodes"))]
    for key in ("sbatch_args", "srun_args"):
        if not isinstance(options.get(key, {}), dict):
            raise InputError(f"--cluster {key}={options[key]!r}: write it as a table of JSON")
        names += options.get(key, {})
    for name in names:
        if NAME.fullmatch(name) is None:
            raise InputError(
                f"--cluster: {name!r} is no name of a job or an option; use letters, digits, `.`,"
                " `-`, `_`"
            )
    if "srun_args" in options:
        options["srun_args"] = {
            key: shlex.quote(str(value)) for key, value in options["srun_args"].items()
        }
    for key in ("venv_path", "condaenv"):
        if key in options:
            options[key] = shlex.quote(str(Path(str(options[key])).expanduser()))
