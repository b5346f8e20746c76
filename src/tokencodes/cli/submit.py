"""The command that puts a run or a study on a Slurm cluster: a batch file that a person can read, or submitit.

A job starts one torchrun a node, and each starts a node's ranks. Some minutes before the time is up Slurm sends SIGTERM to all
processes of the step, not to the batch shell: the ranks save at the next update and stop, and the shell requeues the job.

It does so only if the run is not done (torchrun said 0 and the last file is there) and got further than it was when the job
started: a new checkpoint, a new result, a newly prepared input. So a run that cannot go on ends instead of being requeued for
ever. torchrun itself cannot say: it exits with 1 after a signal as after a failure. The shell ignores no signal, so `scancel`
ends it at once, and a cancelled job stays cancelled.
"""

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from tokencodes.cli.common import Json, app, emit
from tokencodes.errors import InputError, nearest
from tokencodes.files import write_text

LAST_FILE = {"train": "result.json", "compare": "report.html"}  # what each command writes last of all
PROGRESS = ("checkpoints/update-*/manifest.json", "result.json", "data/*/source.json")  # files that mean "got further"
REST = 30  # seconds of the notice that are left to Slurm and to torchrun
# What the file sets by itself, by long and short name, so no --extra may.
OURS = {
    "nodes": "N",
    "ntasks": "n",
    "ntasks-per-node": "",
    "cpus-per-task": "c",
    "gpus-per-node": "",
    "time": "t",
    "signal": "",
}
OURS |= {"partition": "p", "account": "A", "output": "o", "error": "e", "open-mode": "", "chdir": "D", "array": "a"}
OURS |= {"requeue": "", "no-requeue": "", "job-name": "J"}


class Shape(NamedTuple):
    """What a job is given: nodes, ranks and GPUs of a node, CPU cores of a rank."""

    nodes: int
    ranks: int
    gpus: int
    cpus: int


@dataclass(frozen=True)
class Job:
    """What is to run, on what, and for how long; `notice` seconds before the time is up it is told to stop."""

    command: tuple[str, ...]
    out: Path
    shape: Shape
    seconds: int
    notice: int
    partition: str | None
    account: str | None
    extra: tuple[str, ...]
    setup: tuple[str, ...]
    folder: Path = field(default_factory=Path.cwd)  # where the command was given
    programs: Path = field(default_factory=lambda: Path(sys.executable).parent)  # where torchrun is

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
        """torchrun and its options, one for a line; `run` and `endpoint` name the meeting of the nodes."""
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
        """How far the work is: what it has finished so far."""
        return sorted(str(path) for pattern in PROGRESS for path in self.out.glob(f"**/{pattern}"))


def batch_file(job: Job) -> str:
    """The file for sbatch. Slurm reads its options as a shell would read words, so both are quoted alike."""
    log = str(job.out).replace("%", "%%") + "/slurm/%j.log"
    told = [f"--job-name={job.name}", f"--nodes={job.shape.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={job.cores}"]
    told += [f"--gpus-per-node={job.shape.gpus}"] if job.shape.gpus else []
    told += [f"--time={_slurm_time(job.seconds)}"]
    told += [f"--{key}={value}" for key, value in (("partition", job.partition), ("account", job.account)) if value]
    told += [f"--chdir={job.folder}", f"--output={log}", "--open-mode=append", "--requeue"]
    quoted = [_quoted_option(option) for option in told]
    out, command = shlex.quote(str(job.out)), shlex.join(job.command)
    found = " -o ".join(f"-path '*/{pattern}'" for pattern in PROGRESS)
    torchrun = " \\\n    ".join(job.launch('"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"', '"$head:$port"'))
    return f"""#!/bin/bash
# Written by `tokencodes submit`. Submit it with sbatch as often as you like: the run goes on where it stopped.
{chr(10).join(f"#SBATCH {option}" for option in [*quoted, *job.extra])}
# {job.notice} seconds before the time is up, SIGTERM to the processes of the step; "B:" would send it to this shell alone.
#SBATCH --signal=TERM@{job.notice}

# The programs of the environment in which the job was submitted; one thread for each core of a rank.
export PATH={shlex.quote(str(job.programs))}:"$PATH"
export OMP_NUM_THREADS={job.shape.cpus}
set -e
{chr(10).join(job.setup) or ": # no --setup"}
set +e

out={out}
# How far the work is: checkpoints, results, prepared inputs.
got() {{ find "$out" \\( {found} \\) | LC_ALL=C sort; }}
before=$(got)

# The first node is where the others meet; the port is the job's own.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))

# One torchrun a node. A node that stops first must not end the others, which may still be saving. torchrun passes SIGTERM on
# and gives its ranks {job.notice - REST} seconds; a rank that fails is not started again here, but with the job.
srun --nodes={job.shape.nodes} --ntasks-per-node=1 --cpus-per-task={job.cores} --kill-on-bad-exit=0 --wait=0 \\
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


class Launch:
    """The same for submitit: what it pickles, and runs on each node. Its signal takes the place of Slurm's SIGTERM."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self) -> str:
        """Runs torchrun to its end, or to submitit's signal; then it saves, stops, and submitit requeues the job."""
        place, job, before = import_module("submitit").JobEnvironment(), self.job, self.job.got()
        number = int(re.sub(r"\D", "", place.raw_job_id) or 0)
        command = [str(job.programs / "torchrun"), *job.launch(place.job_id, f"{place.hostnames[0]}:{20000 + number % 10000}")]
        asked = getattr(signal, f"SIG{place.USR_SIG}")
        requeue: Any = signal.getsignal(asked)
        heard = list[int]()
        signal.signal(asked, lambda number, frame: heard.append(number))
        # Slurm sends the signal to every process of the step; what a program ignores as it starts, its own programs ignore too.
        child = subprocess.Popen(
            [*command, "-m", "tokencodes", *job.command],
            cwd=job.folder,
            preexec_fn=lambda: signal.signal(asked, signal.SIG_IGN),
        )
        told = False
        while child.poll() is None:
            if heard and not told:
                told = True
                child.terminate()
            time.sleep(0.2)
        if child.returncode == 0 and job.last.is_file():
            return str(job.last)
        if job.got() == before:
            raise RuntimeError(f"not done, and no further than before (exit status {child.returncode}): not requeued")
        if not told:
            raise RuntimeError(f"not done (exit status {child.returncode}); submit it again to go on")
        requeue(asked, None)  # on the first node this requeues the job and ends the process
        return "stopped"

    def checkpoint(self) -> Any:
        """What submitit runs when the job starts again: the same; the run knows where it was."""
        return import_module("submitit.helpers").DelayedSubmission(self)


def executor_of(job: Job, cluster: str) -> Any:
    """submitit's executor with this job's options, for `slurm`, or `local` to try it. InputError: it is not installed."""
    try:
        submitit = import_module("submitit")
    except ImportError as error:
        raise InputError(
            f"--through submitit: not installed ({error}); install it by: pip install 'tokencodes[slurm]'"
        ) from None
    more: dict[str, Any] = {"requeue": True}
    for option in job.extra:
        key, equals, value = shlex.split(option)[0].removeprefix("--").partition("=")
        if not option.startswith("--") or (not equals and len(shlex.split(option)) > 1):
            raise InputError(f"--extra {option!r}: with submitit write it as --KEY=VALUE")
        more[key] = value if equals else True
    executor = submitit.AutoExecutor(job.out / "slurm" / "submitit", cluster=cluster, slurm_max_num_timeout=10_000)
    environment = [f"export OMP_NUM_THREADS={job.shape.cpus}", *job.setup]
    executor.update_parameters(
        name=job.name,
        nodes=job.shape.nodes,
        tasks_per_node=1,
        cpus_per_task=job.cores,
        timeout_min=job.seconds // 60,
        **({"gpus_per_node": job.shape.gpus} if job.shape.gpus else {}),
        **({"slurm_partition": job.partition} if job.partition else {}),
        **({"slurm_account": job.account} if job.account else {}),
        slurm_setup=["set -e", f"cd {shlex.quote(str(job.folder))}", *environment, "set +e"],
        slurm_signal_delay_s=job.notice,
        slurm_stderr_to_stdout=True,
        slurm_srun_args=[f"--cpus-per-task={job.cores}", "--kill-on-bad-exit=0", "--wait=0"],
        slurm_additional_parameters=more,
        local_setup=environment,
    )
    return executor


def out_of(command: list[str]) -> Path:
    """The folder of a command, which is checked as it will be when its time has come. InputError where it would be refused."""
    from typer.main import get_command

    from tokencodes.study import check_study
    from tokencodes.train.checks import check_run
    from tokencodes.train.settings import read_study

    name = command[0] if command else ""
    if name not in LAST_FILE:
        raise InputError(f"submit {name!r}: after -- comes train or compare, with its options; {nearest(name, LAST_FILE)}")
    known: Any = get_command(app)
    options: dict[str, Any] = known.commands[name].make_context(name, command[1:]).params
    if options.get("dry_run") or options.get("replay") is not None:
        raise InputError("submit: --dry-run and --replay are answered at once; give the command without submit")
    study, _ = read_study(options["preset"], options["sets"] or [])
    out = Path(options["out"]).absolute()
    check_run(study.chosen_run(options["arm"], options["seed"]), out) if name == "train" else check_study(study, out)
    return out


def seconds_of(text: str) -> int:
    """Seconds of a time as Slurm writes it: MINUTES, MINUTES:SECONDS, H:M:S, DAYS-H, DAYS-H:M, DAYS-H:M:S."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if found is None:
        raise InputError(f"--time {text!r}: write it as Slurm does: MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS")
    days, *parts = found.groups()
    values = [int(part) for part in parts if part is not None]
    units = (3600, 60, 1) if days is not None or len(values) == 3 else (60, 1)
    return int(days or 0) * 86400 + sum(value * unit for value, unit in zip(values, units, strict=False))


def _slurm_time(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def _quoted_option(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else option


def _check(job: Job, told: str) -> None:
    if job.seconds < 2 * job.notice:
        raise InputError(f"--time {told}: less than twice the {job.notice} seconds of --notice; give the job more time")
    if any("\n" in text for text in (*job.command, str(job.out), str(job.folder), *job.extra, *job.setup)):
        raise InputError("submit: a line break in a path or an option; a batch file has no place for one")
    for option in job.extra:
        name = re.match(r"--([\w-]+)|-(\w)", option)
        if name is None:
            raise InputError(f"--extra {option!r}: write it as sbatch takes it: --KEY=VALUE or -K VALUE")
        if name[1] in OURS or name[2] in set(OURS.values()) - {""}:
            raise InputError(f"--extra {option!r}: submit sets this itself; see tokencodes submit --help")
    tried = subprocess.run(["bash", "-n"], input="\n".join(job.setup) + "\n", capture_output=True, text=True)
    if tried.returncode:
        raise InputError(f"--setup: no shell command: {tried.stderr.strip().splitlines()[-1]}")


def _sbatch(file: Path) -> str:
    done = subprocess.run(["sbatch", "--parsable", str(file)], capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"sbatch refused {file}: {' '.join(done.stderr.split()) or f'exit status {done.returncode}'}")
    return done.stdout.strip().partition(";")[0]  # "NUMBER;CLUSTER" where there are several


@app.command()
def submit(
    command: Annotated[list[str], typer.Argument(metavar="-- train|compare PRESET --out OUT ...", help="What is to run.")],
    time_limit: Annotated[str, typer.Option("--time", help="Time of one job, as Slurm writes it; it is requeued until done.")],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a node, each with a rank; 0: ranks on CPUs.")] = 0,
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks of a node without GPUs; 1 if not told.")] = None,
    cpus: Annotated[int, typer.Option(min=1, help="CPU cores, and threads, of a rank.")] = 4,
    partition: Annotated[str | None, typer.Option(help="Partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Account.")] = None,
    notice: Annotated[
        int, typer.Option(min=2 * REST, help="Seconds before the end at which the run is to save and stop.")
    ] = 180,
    extra: Annotated[list[str] | None, typer.Option(metavar="OPTION", help="Another option of sbatch; repeatable.")] = None,
    setup: Annotated[list[str] | None, typer.Option(metavar="LINE", help="Shell line before the run; repeatable.")] = None,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the batch file here, and submit nothing.")] = None,
    through: Annotated[Literal["sbatch", "submitit"], typer.Option(help="Who submits.")] = "sbatch",
    as_json: Json = False,
) -> None:
    """Put a run or a study on a Slurm cluster; the job is requeued until it is done. Folders must be shared by all nodes."""
    out = out_of(command)
    if gpus and ranks is not None:
        raise InputError(f"--ranks {ranks}: each GPU has one rank; leave it out, or give --gpus 0")
    if through == "submitit" and write is not None:
        raise InputError("--write: a batch file is for sbatch; leave out --through submitit")
    seconds, lines, options = seconds_of(time_limit), tuple(setup or ()), tuple(extra or ())
    shape = Shape(nodes, gpus or ranks or 1, gpus, cpus)
    job = Job(tuple(command), out, shape, seconds, notice, partition, account, options, lines)
    _check(job, time_limit)
    if write is not None and write.exists():
        raise InputError(f"{write}: exists; remove it or choose another --write")
    if write is None and shutil.which("sbatch") is None:
        raise InputError("no sbatch here; run the command where Slurm's commands are, or write the file by --write FILE")
    file, number, log = write or out / "slurm" / "job.sh", None, out / "slurm" / "%j.log"
    executor = executor_of(job, "slurm") if through == "submitit" else None
    (out / "slurm").mkdir(parents=True, exist_ok=True)  # Slurm makes no folder for a log, and a job without one dies in silence
    if executor is not None:
        submitted = executor.submit(Launch(job))
        number, log = str(submitted.job_id), Path(submitted.paths.stdout)
    else:
        write_text(file, batch_file(job))
        number = None if write is not None else _sbatch(file)
    shown = str(log).replace("%j", number or "%j")
    told = (
        f"Submitted job {number}; its log: {shown}"
        if number
        else f"{file}: written; submit it by: sbatch {shlex.quote(str(file))}"
    )
    emit(as_json, {"job": number, "file": None if through == "submitit" else str(file), "log": shown, "out": str(out)}, told)
