"""The command that submits a run or a study to a Slurm cluster, by a readable batch file or by
submitit.

A job starts one torchrun on each node, and each torchrun starts the ranks of its node. Some minutes
before the time is up, Slurm sends SIGTERM to all processes of the step, but not to the batch shell.
The ranks save at the next step and stop, and the shell requeues the job.

The shell requeues the job only if two conditions hold. The run is not done: it is done if torchrun
exits with 0 and the last file exists. The run made progress since the job started: a new
checkpoint, a new result or a newly prepared input. So a run that cannot make progress ends and is
not requeued for ever. The exit status of torchrun is not enough: it is 1 after a signal and after a
failure. The shell ignores no signal, so `scancel` ends it at once, and a cancelled job stays
cancelled.
"""

import re
import shlex
import shutil
import signal
import subprocess
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tokencodes.cli.batch import (
    LAST_FILE,
    REST,
    Job,
    Shape,
    batch_file,
    check_job,
    seconds_of,
    words_of,
)
from tokencodes.cli.common import Json, app
from tokencodes.cli.printing import emit
from tokencodes.errors import InputError, nearest
from tokencodes.files import write_text


class Launch:
    """The callable that submitit pickles and runs on each node. It does what the batch file does.
    submitit's signal replaces Slurm's SIGTERM.
    """

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self) -> str:
        """Runs torchrun until it ends or submitit's signal arrives. After the signal the run saves
        and stops, and submitit requeues the job.
        """
        place, job, before = import_module("submitit").JobEnvironment(), self.job, self.job.got()
        number = int(re.sub(r"\D", "", place.raw_job_id) or 0)
        command = [
            str(job.programs / "torchrun"),
            *job.launch(place.job_id, f"{place.hostnames[0]}:{20000 + number % 10000}"),
        ]
        stop_signal = getattr(signal, f"SIG{place.USR_SIG}")
        requeue: Any = signal.getsignal(stop_signal)
        heard = list[int]()
        signal.signal(stop_signal, lambda number, frame: heard.append(number))
        # Slurm sends the signal to every process of the step. A program that starts with an ignored
        # signal passes this on to its own child processes.
        child = subprocess.Popen(
            [*command, "-m", "tokencodes", *job.command],
            cwd=job.folder,
            preexec_fn=lambda: signal.signal(stop_signal, signal.SIG_IGN),
        )
        terminated = False
        while child.poll() is None:
            if heard and not terminated:
                terminated = True
                child.terminate()
            time.sleep(0.2)
        if child.returncode == 0 and job.last.is_file():
            return str(job.last)
        if job.got() == before:
            raise RuntimeError(
                f"not done, and no further than before (exit status {child.returncode}): not"
                " requeued"
            )
        if not terminated:
            raise RuntimeError(
                f"not done (exit status {child.returncode}); submit it again to go on"
            )
        requeue(stop_signal, None)  # on the first node this requeues the job and ends the process
        return "stopped"

    def checkpoint(self) -> Any:
        """Returns what submitit runs when the job starts again: the same command. The run continues
        from its own checkpoint.
        """
        return import_module("submitit.helpers").DelayedSubmission(self)


def executor_of(job: Job, cluster: str) -> Any:
    """Returns submitit's executor with the options of this job, for `slurm`, or for `local` as a
    trial. Raises InputError if submitit is not installed.
    """
    try:
        submitit = import_module("submitit")
    except ImportError as error:
        raise InputError(
            f"--through submitit: not installed ({error}); install it by: pip install"
            " 'tokencodes[slurm]'"
        ) from None
    more: dict[str, Any] = {"requeue": True}
    for option in job.extra:
        words = words_of(option)
        key, equals, value = words[0].removeprefix("--").partition("=")
        if not words[0].startswith("--") or len(words) > 1:
            raise InputError(f"--extra {option!r}: with submitit write it as --KEY=VALUE")
        more[key] = value if equals else True
    executor = submitit.AutoExecutor(
        job.out / "slurm" / "submitit", cluster=cluster, slurm_max_num_timeout=10_000
    )
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
    """Returns the folder of a command. The command is checked now as it will be checked when the
    job starts. Raises InputError if it would be refused.
    """
    from typer.main import get_command

    from tokencodes.study import check_study
    from tokencodes.train.checks import check_run
    from tokencodes.train.settings import read_study

    name = command[0] if command else ""
    if name not in LAST_FILE:
        raise InputError(
            f"submit {name!r}: after -- comes train or compare, with its options;"
            f" {nearest(name, LAST_FILE)}"
        )
    known: Any = get_command(app)
    options: dict[str, Any] = known.commands[name].make_context(name, command[1:]).params
    if options.get("dry_run") or options.get("replay") is not None:
        raise InputError(
            "submit: --dry-run and --replay are answered at once; give the command without submit"
        )
    study, _ = read_study(options["preset"], options["sets"] or [])
    out = Path(options["out"]).absolute()
    (
        check_run(study.chosen_run(options["arm"], options["seed"]), out)
        if name == "train"
        else check_study(study, out)
    )
    return out


def _sbatch(file: Path) -> str:
    done = subprocess.run(
        ["sbatch", "--parsable", str(file)], capture_output=True, encoding="utf-8", errors="replace"
    )
    if done.returncode:
        raise InputError(
            f"sbatch refused {file}:"
            f" {' '.join(done.stderr.split()) or f'exit status {done.returncode}'}"
        )
    return done.stdout.strip().partition(";")[0]  # "NUMBER;CLUSTER" if there are several clusters


@app.command()
def submit(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- train|compare PRESET --out OUT ...", help="What is to run."),
    ],
    time_limit: Annotated[
        str,
        typer.Option(
            "--time", help="Time of one job, as Slurm writes it; it is requeued until done."
        ),
    ],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 1,
    gpus: Annotated[
        int, typer.Option(min=0, help="GPUs of a node, each with a rank; 0: ranks on CPUs.")
    ] = 0,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Ranks of a node without GPUs; 1 if not told.")
    ] = None,
    cpus: Annotated[int, typer.Option(min=1, help="CPU cores, and threads, of a rank.")] = 4,
    partition: Annotated[str | None, typer.Option(help="Partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Account.")] = None,
    notice: Annotated[
        int,
        typer.Option(
            min=2 * REST, help="Seconds before the end at which the run is to save and stop."
        ),
    ] = 180,
    extra: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Another option of sbatch; repeatable."),
    ] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option(metavar="LINE", help="Shell line before the run; repeatable."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the batch file here, and submit nothing."),
    ] = None,
    through: Annotated[Literal["sbatch", "submitit"], typer.Option(help="Who submits.")] = "sbatch",
    as_json: Json = False,
) -> None:
    """Submit a run or a study to a Slurm cluster; the job is requeued until it is done. All nodes
    must share the folders.
    """
    out = out_of(command)
    if gpus and ranks is not None:
        raise InputError(f"--ranks {ranks}: each GPU has one rank; leave it out, or give --gpus 0")
    if through == "submitit" and write is not None:
        raise InputError("--write: a batch file is for sbatch; leave out --through submitit")
    seconds, lines, options = seconds_of(time_limit), tuple(setup or ()), tuple(extra or ())
    shape = Shape(nodes, gpus or ranks or 1, gpus, cpus)
    job = Job(tuple(command), out, shape, seconds, notice, partition, account, options, lines)
    check_job(job, time_limit)
    if write is not None and write.exists():
        raise InputError(f"{write}: exists; remove it or choose another --write")
    if write is None and shutil.which("sbatch") is None:
        raise InputError(
            "no sbatch here; run the command where Slurm's commands are, or write the file by"
            " --write FILE"
        )
    file, number, log = write or out / "slurm" / "job.sh", None, out / "slurm" / "%j.log"
    executor = executor_of(job, "slurm") if through == "submitit" else None
    # Slurm does not create the folder of a log, and a job without it fails without a message
    (out / "slurm").mkdir(parents=True, exist_ok=True)
    if executor is not None:
        submitted = executor.submit(Launch(job))
        number, log = str(submitted.job_id), Path(submitted.paths.stdout)
    else:
        write_text(file, batch_file(job))
        number = None if write is not None else _sbatch(file)
    shown = str(log).replace("%j", number or "%j")
    message = (
        f"Submitted job {number}; its log: {shown}"
        if number
        else f"{file}: written; submit it by: sbatch {shlex.quote(str(file.absolute()))}"
    )
    emit(
        as_json,
        {
            "job": number,
            "file": None if through == "submitit" else str(file),
            "log": shown,
            "out": str(out),
        },
        message,
    )
