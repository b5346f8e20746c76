"""A job for Slurm, and the batch file that a person can read. All text in that file is checked and
quoted here.

Slurm splits its options into words as a shell does, so both are quoted in the same way. No text may
hold a line break: it would end its line and begin an option or a command of its own.
"""

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tokencodes.errors import InputError
from tokencodes.escape import CONTROL

# the file that each command writes last
LAST_FILE = {"train": "result.json", "compare": "report.html"}
# files that show progress
PROGRESS = ("checkpoints/step-*/manifest.json", "result.json", "data/*/source.json")
REST = 30  # seconds of the notice that remain for Slurm and torchrun
# Options that the file sets itself, by long and short name. No --extra may set them.
OURS = {
    "nodes": "N",
    "ntasks": "n",
    "ntasks-per-node": "",
    "cpus-per-task": "c",
    "gpus-per-node": "",
    "time": "t",
    "signal": "",
}
OURS |= {
    "partition": "p",
    "account": "A",
    "output": "o",
    "error": "e",
    "open-mode": "",
    "chdir": "D",
    "array": "a",
}
OURS |= {"requeue": "", "no-requeue": "", "job-name": "J"}


class Shape(NamedTuple):
    """The size of a job: nodes, ranks and GPUs of a node, CPU cores of a rank."""

    nodes: int
    ranks: int
    gpus: int
    cpus: int


@dataclass(frozen=True)
class Job:
    """A command, its resources and its time. The job receives a signal to stop `notice` seconds
    before its time is up.
    """

    command: tuple[str, ...]
    out: Path
    shape: Shape
    seconds: int
    notice: int
    partition: str | None
    account: str | None
    extra: tuple[str, ...]
    setup: tuple[str, ...]
    folder: Path = field(default_factory=Path.cwd)  # the current folder of the command
    programs: Path = field(
        default_factory=lambda: Path(sys.executable).parent
    )  # the folder of torchrun

    @property
    def name(self) -> str:
        """The job's name in the queue."""
        return re.sub(r"[^\w.-]+", "-", f"tokencodes-{self.out.name}")

    @property
    def last(self) -> Path:
        """The file that the command writes last."""
        return self.out / LAST_FILE[self.command[0]]

    @property
    def cores(self) -> int:
        """CPU cores of a node."""
        return self.shape.ranks * self.shape.cpus

    def launch(self, run: str, endpoint: str) -> list[str]:
        """Returns the options of torchrun, one for each line. `run` and `endpoint` name the
        rendezvous of the nodes.
        """
        return [
            f"--nnodes={self.shape.nodes}",
            f"--nproc-per-node={self.shape.ranks}",
            f"--rdzv-id={run}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint}",
            "--max-restarts=0",
            f"--shutdown-timeout={self.notice - REST}",
        ]

    def got(self) -> list[str]:
        """Returns the files that show how much of the work is finished."""
        return sorted(str(path) for pattern in PROGRESS for path in self.out.glob(f"**/{pattern}"))


def batch_file(job: Job) -> str:
    """Returns the text of the file for sbatch. Slurm splits its options into words as a shell does,
    so both are quoted in the same way.
    """
    log = str(job.out).replace("%", "%%") + "/slurm/%j.log"
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.shape.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={job.cores}",
    ]
    options += [f"--gpus-per-node={job.shape.gpus}"] if job.shape.gpus else []
    options += [f"--time={_slurm_time(job.seconds)}"]
    options += [
        f"--{key}={value}"
        for key, value in (("partition", job.partition), ("account", job.account))
        if value
    ]
    options += [f"--chdir={job.folder}", f"--output={log}", "--open-mode=append", "--requeue"]
    quoted = [_quoted_option(option) for option in options]
    out, command = shlex.quote(str(job.out)), shlex.join(job.command)
    patterns = " -o ".join(f"-path '*/{pattern}'" for pattern in PROGRESS)
    torchrun = " \\\n    ".join(
        job.launch('"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"', '"$head:$port"')
    )
    return f"""#!/bin/bash
# Written by `tokencodes submit`. Submit it with sbatch as often as you like: the run goes on where
# it stopped.
{chr(10).join(f"#SBATCH {option}" for option in [*quoted, *map(_quoted_extra, job.extra)])}
# {job.notice} seconds before the time is up, SIGTERM to the processes of the step; "B:" would send
# it to this shell alone.
#SBATCH --signal=TERM@{job.notice}

# The programs of the environment in which the job was submitted; one thread for each core of a
# rank.
export PATH={shlex.quote(str(job.programs))}:"$PATH"
export OMP_NUM_THREADS={job.shape.cpus}
set -e
{chr(10).join(job.setup) or ": # no --setup"}
set +e

out={out}
# How far the work is: checkpoints, results, prepared inputs.
got() {{ find "$out" \\( {patterns} \\) | LC_ALL=C sort; }}
before=$(got)

# The first node is where the others meet; the port is the job's own.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))

# One torchrun a node. A node that stops first must not end the others, which may still be saving.
# torchrun passes SIGTERM on and gives its ranks {job.notice - REST} seconds. A rank that fails is
# not started again here, but with the job.
srun --nodes={job.shape.nodes} --ntasks-per-node=1 --cpus-per-task={job.cores} \\
  --kill-on-bad-exit=0 --wait=0 \\
  torchrun \\
    {torchrun} \\
    -m tokencodes {command}
status=$?

if [ "$status" -eq 0 ] && [ -f "$out"/{job.last.name} ]; then
  echo "done: $out/{job.last.name}"
elif [ "$(got)" = "$before" ]; then
  echo "not done, and no further than before (exit status $status): not requeued" >&2
  exit $((status ? status : 1))
else
  echo "not done (exit status $status): requeued, to go on from the last checkpoint" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
"""


def seconds_of(text: str) -> int:
    """Returns the seconds of a time in Slurm's notation: MINUTES, MINUTES:SECONDS, H:M:S, DAYS-H,
    DAYS-H:M, DAYS-H:M:S. Raises InputError for any other text.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise InputError(
            f"--time {text!r}: write it as Slurm does: MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS"
        )
    days, *parts = match.groups()
    values = [int(part) for part in parts if part is not None]
    units = (3600, 60, 1) if days is not None or len(values) == 3 else (60, 1)
    return int(days or 0) * 86400 + sum(
        value * unit for value, unit in zip(values, units, strict=False)
    )


def _slurm_time(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def _quoted_option(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else option


def words_of(option: str) -> list[str]:
    """Returns the one or two words of an --extra, split as a shell does. Raises InputError if it is
    not exactly one option.
    """
    try:
        words = shlex.split(option)
    except ValueError as error:
        raise InputError(f"--extra {option!r}: {error}; close the quotes") from None
    first, rest = (words or [""])[0], words[1:]
    value_apart = len(rest) == 1 and "=" not in first and not rest[0].startswith("-")
    if not re.match(r"--\w|-\w", first) or (rest and not value_apart):
        raise InputError(
            f"--extra {option!r}: write one option as sbatch takes it: --KEY=VALUE or -K VALUE"
        )
    return words


def _quoted_extra(option: str) -> str:
    first, *rest = words_of(option)
    return " ".join([_quoted_option(first), *map(shlex.quote, rest)])


def check_job(job: Job, time_limit: str) -> None:
    """Raises InputError if a batch file cannot hold the job, or if Slurm would run it in another
    way. time_limit: the job's time as the user wrote it.
    """
    if job.seconds < 2 * job.notice:
        raise InputError(
            f"--time {time_limit}: less than twice the {job.notice} seconds of --notice; give the"
            " job more time"
        )
    _refuse_control(job)
    for option in job.extra:
        name = re.match(r"--([\w-]+)|-(\w)", words_of(option)[0])
        if name is not None and (name[1] in OURS or name[2] in set(OURS.values()) - {""}):
            raise InputError(
                f"--extra {option!r}: submit sets this itself; see tokencodes submit --help"
            )
    _check_setup(job.setup)


def _refuse_control(job: Job) -> None:
    """Raises InputError if a text holds a control character. A line break would end its line of the
    batch file and begin another one.
    """
    texts = {
        "--partition": [job.partition or ""],
        "--account": [job.account or ""],
        "--extra": job.extra,
    }
    texts |= {"--out": [str(job.out)], "this folder": [str(job.folder)], "the command": job.command}
    texts |= {"--setup": [line.replace("\t", " ") for line in job.setup]}
    for name, given in texts.items():
        for text in given:
            if CONTROL.search(text):
                raise InputError(
                    f"{name} {text!r}: a batch file cannot hold a line break or another control"
                    " character"
                )


def _check_setup(lines: tuple[str, ...]) -> None:
    """Raises InputError if the lines together are not whole commands. They must not take in the
    lines that follow them in the batch file.
    """
    script = "\n".join(lines) + "\n"
    tried = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, encoding="utf-8", errors="replace"
    )
    if tried.stderr.strip():  # an unfinished here-document is only a warning
        raise InputError(f"--setup: no shell command: {tried.stderr.strip().splitlines()[-1]}")
    if lines and re.search(r"(?<!\\)(\\\\)*\\$", lines[-1]):
        raise InputError(
            f"--setup {lines[-1]!r}: its last backslash would join it to the next line; leave"
            " it out"
        )
