"""`submit`: the batch file run for real by stand-ins for Slurm's programs; when a job is requeued;
and the same by submitit.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

from tests import PATIENCE
from tokencodes.cli import run
from tokencodes.cli.batch import Job, Shape, batch_file, seconds_of
from tokencodes.cli.submit import Launch, executor_of
from tokencodes.train.corpus import foreign

SBATCH = """#!/bin/bash
[ -z "$FAKE_REFUSAL" ] || { echo "sbatch: error: $FAKE_REFUSAL" >&2; exit 1; }
printf '%s\\n' "$@" >"$FAKE/sbatch"
echo "17;here"
"""
# As the real one, in that it starts a command for each node; the nodes are all this machine.
SRUN = """#!/bin/bash
printf '%s\\n' "$@" >"$FAKE/srun"
while [ "${1#-}" != "$1" ]; do case $1 in --nodes=*) nodes=${1#*=} ;; esac; shift; done
for node in $(seq "${nodes:-1}"); do SLURM_NODEID=$((node - 1)) "$@" & all="$all $!"; done
worst=0
for one in $all; do wait "$one" || worst=$?; done
exit $worst
"""
SCONTROL = """#!/bin/bash
if [ "$1 $2" = "show hostnames" ]; then printf '%s\\n' ${3//,/ }; else echo "$*" >>"$FAKE/scontrol"; fi
"""  # noqa: E501
TORCHRUN = """#!/bin/bash
{ pwd; printf '%s\\n' "$@"; } >"$FAKE/torchrun-${SLURM_NODEID:-0}"
env >"$FAKE/env"
eval "$FAKE_WORK"
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """Stand-ins, first on the path; the folder in which they leave what they were told, each under
    its name.
    """
    folder, records = tmp_path / "fake slurm", tmp_path / "told"
    folder.mkdir()
    records.mkdir()
    for name, script in {
        "sbatch": SBATCH,
        "srun": SRUN,
        "scontrol": SCONTROL,
        "torchrun": TORCHRUN,
    }.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(records))
    monkeypatch.setenv("SLURM_JOB_ID", "12345")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1,n2")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.chdir(tmp_path)
    return records


@pytest.fixture
def preset(study, tmp_path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(tomli_w.dumps(study.model_dump(mode="json", exclude_none=True)))
    return path


def written(
    *options: str, command: tuple[str, ...] = ("train", "quickstart", "--out", "run")
) -> Path:
    """The batch file that a command writes."""
    file = Path("job.sh")
    file.unlink(missing_ok=True)
    assert run(["submit", "--time", "4:00:00", "--write", str(file), *options, "--", *command]) == 0
    return file


def job_of(out: Path, command: tuple[str, ...], programs: Path) -> Job:
    arguments = (*command, "--out", str(out))
    return Job(
        arguments, out, Shape(1, 1, 0, 1), 3600, 180, None, None, (), (), out.parent, programs
    )


def work(
    file: Path, monkeypatch: pytest.MonkeyPatch, work: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Runs a batch file as Slurm would, with what torchrun is to do."""
    monkeypatch.setenv("FAKE_WORK", work)
    return subprocess.run(["bash", str(file)], capture_output=True, text=True, timeout=PATIENCE)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def test_a_job_starts_one_torchrun_a_node_with_a_rank_for_each_gpu(slurm, monkeypatch):
    file = written(
        "--nodes", "2", "--gpus", "8", "--cpus", "6", "--partition", "a100", "--account", "us"
    )
    text = file.read_text()
    for option in (
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--cpus-per-task=48",
        "--time=04:00:00",
        "--partition=a100",
        "--account=us",
        "--signal=TERM@180",
        "--requeue",
        "--open-mode=append",
        f"--output={shlex.quote(str(Path.cwd() / 'run'))}/slurm/%j.log",
    ):
        assert f"\n#SBATCH {option}\n" in text
    assert Path("run/slurm").is_dir()  # or Slurm could not write the log
    assert subprocess.run(["bash", "-n", str(file)]).returncode == 0
    assert work(file, monkeypatch, "touch run/result.json").returncode == 0
    assert {
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=48",
        "--kill-on-bad-exit=0",
    } <= set(lines(slurm / "srun"))
    arguments = lines(slurm / "torchrun-0")
    assert arguments == lines(slurm / "torchrun-1")
    assert arguments == [
        str(Path.cwd()),
        "--nnodes=2",
        "--nproc-per-node=8",
        "--rdzv-id=12345-0",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=n1:22345",
        "--max-restarts=0",
        "--shutdown-timeout=150",
        *("-m", "tokencodes", "train", "quickstart", "--out", "run"),
    ]
    assert "OMP_NUM_THREADS=6" in lines(slurm / "env")


def test_odd_words_arrive_as_they_were_told(slurm, monkeypatch):
    out = Path('it\'s 100% "mine" $HOME `x`; rm #1').absolute()
    command = (
        "train",
        "quickstart",
        "--out",
        str(out),
        "--set",
        "data.inputs=['it is *.jsonl']",
        "--arm",
        "gf2",
    )
    file = written(
        "--setup",
        "export WORDS='a  b'",
        "--setup",
        "export MORE=$HOME",
        "--ranks",
        "3",
        command=command,
    )
    assert work(file, monkeypatch, f"touch {shlex.quote(str(out))}/result.json").returncode == 0
    assert lines(slurm / "torchrun-0")[-len(command) :] == list(command)
    assert {"WORDS=a  b", f"MORE={os.environ['HOME']}"} <= set(lines(slurm / "env"))
    assert "--nproc-per-node=3" in lines(slurm / "torchrun-0")
    (option,) = [line for line in lines(file) if "--output=" in line]
    assert shlex.split(option)[1:] == [f"--output={str(out).replace('%', '%%')}/slurm/%j.log"]
    (name,) = [line for line in lines(file) if "--job-name=" in line]
    assert shlex.split(name)[1:] == ["--job-name=tokencodes-it-s-100-mine-HOME-x-rm-1"]


SAVE = "mkdir -p {0}/checkpoints/step-00000002; touch {0}/checkpoints/step-00000002/manifest.json; "


@pytest.mark.parametrize(
    ("kind", "done", "status", "requeued", "message"),
    [
        ("train", "touch run/result.json", 0, False, "done: "),
        (
            "train",
            SAVE.format("run") + "exit 1",
            0,
            True,
            "requeued, to go on from the last checkpoint",
        ),
        ("train", "exit 1", 1, False, "no further than before (exit status 1): not requeued"),
        ("train", "exit 0", 1, False, "no further than before (exit status 0): not requeued"),
        # the signal came at the very end
        ("train", "touch run/result.json; exit 1", 0, True, "requeued"),
        (
            "train",
            "mkdir -p run/data/austen; touch run/data/austen/source.json; exit 1",
            0,
            True,
            "requeued",
        ),
        ("compare", "touch run/report.html", 0, False, "done: "),
        (
            "compare",
            SAVE.format("run/gf2/seed-1") + "touch run/report.html; exit 1",
            0,
            True,
            "requeued",
        ),
        (
            "compare",
            "mkdir -p run/gf2/seed-1; touch run/gf2/seed-1/result.json; exit 1",
            0,
            True,
            "requeued",
        ),
        # somebody looked, but nothing was trained
        ("compare", "touch run/report.html; exit 1", 1, False, "no further"),
    ],
)
def test_a_job_is_requeued_if_it_is_not_done_and_got_further(
    kind, done, status, requeued, message, slurm, monkeypatch
):
    file = written(command=(kind, "quickstart", "--out", "run"))
    finished = work(file, monkeypatch, done)
    assert finished.returncode == status
    assert message in finished.stdout + finished.stderr
    assert (slurm / "scontrol").exists() == requeued
    if requeued:
        assert lines(slurm / "scontrol") == ["requeue 12345"]


def test_a_cancelled_job_ends_at_once_and_stays_cancelled(slurm, monkeypatch):
    file = written()
    monkeypatch.setenv("FAKE_WORK", SAVE.format("run") + 'echo $$ >"$FAKE/pid"; exec sleep 60')
    shell = subprocess.Popen(["bash", str(file)])
    until(lambda: (slurm / "pid").is_file() and (slurm / "pid").read_text().strip())
    shell.terminate()  # as `scancel` does, which tells the shell too
    assert shell.wait(5) == -signal.SIGTERM
    os.kill(int((slurm / "pid").read_text()), signal.SIGTERM)
    assert not (slurm / "scontrol").exists()


def test_submit_hands_the_file_to_sbatch_and_says_where_its_log_will_be(slurm, capsys, monkeypatch):
    command = [
        "submit",
        "--time",
        "90",
        "--extra",
        "--constraint=h100",
        "--extra",
        "-q long",
        "--json",
    ]
    assert run([*command, "--", "compare", "quickstart", "--out", "my study"]) == 0
    slurm_folder = Path("my study/slurm").absolute()
    assert json.loads(capsys.readouterr().out) == {
        "job": "17",
        "file": str(slurm_folder / "job.sh"),
        "log": str(slurm_folder / "17.log"),
        "out": str(slurm_folder.parent),
    }
    assert lines(slurm / "sbatch") == ["--parsable", str(slurm_folder / "job.sh")]
    assert {"#SBATCH --constraint=h100", "#SBATCH -q long", "#SBATCH --time=01:30:00"} <= set(
        lines(slurm_folder / "job.sh")
    )
    monkeypatch.setenv("FAKE_REFUSAL", "invalid partition: x")
    assert run([*command, "--", "compare", "quickstart", "--out", "my study"]) == 2
    errors = capsys.readouterr().err
    assert "sbatch refused" in errors
    assert errors.count("\n") == 1


def test_what_is_written_into_a_folder_leaves_it_the_runs_own(slurm, capsys):
    assert run(["submit", "--time", "90", "--", "train", "quickstart", "--out", "run"]) == 0
    assert foreign(Path("run")) is None


TRAIN = ("train", "quickstart", "--out", "run")
FIELDS = {
    "partition": lambda text: (("--partition", text), TRAIN),
    "account": lambda text: (("--account", text), TRAIN),
    "extra": lambda text: (("--extra", f"--comment={shlex.quote(text)}"), TRAIN),
    "extra value": lambda text: (("--extra", f"-k {shlex.quote(text)}"), TRAIN),
    "out": lambda text: ((), ("train", "quickstart", "--out", text)),
    "command": lambda text: ((), (*TRAIN, "--set", f"evaluation.data={text}")),
}
SHARP = [
    "it's",
    'a "b" c',
    "$(touch caught)",
    "`touch caught`",
    "x; touch caught",
    "a #b",
    "100%j",
    "Größe 日本",
    "back\\slash",
    "*",
]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", SHARP)
def test_every_field_of_a_batch_file_is_one_word_whatever_it_holds(field, text, slurm, monkeypatch):
    options, command = FIELDS[field](text)
    file = written(*options, command=command)
    plain = written_lines(*FIELDS[field]("plain"))
    file_lines = file.read_text(encoding="utf-8").splitlines()
    assert len(file_lines) == len(plain)
    (before,) = [
        line
        for line in plain
        if line.startswith("#SBATCH") and "plain" in line and "job-name" not in line
    ] or [""]
    if before and field != "out":
        after = file_lines[plain.index(before)]
        assert shlex.split(after) == [word.replace("plain", text) for word in shlex.split(before)]
    work(file, monkeypatch)
    assert lines(slurm / "torchrun-0")[-len(command) :] == list(command)
    assert not Path("caught").exists()


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", ["a\nb", "a\rb", "\x1b[2J", "a\n#SBATCH --uid=0"])
def test_a_control_character_in_any_field_of_a_batch_file_is_refused(field, text, slurm, capsys):
    options, command = FIELDS[field](text)
    assert run(["submit", "--time", "4:00:00", "--write", "job.sh", *options, "--", *command]) == 2
    captured = capsys.readouterr()
    assert "a batch file cannot hold a line break or another control character" in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert not Path("job.sh").exists()


def written_lines(options: tuple[str, ...], command: tuple[str, ...]) -> list[str]:
    """Of the batch file that a command would write beside the one that is there."""
    kept = Path("job.sh").rename("kept.sh")
    file_lines = written(*options, command=command).read_text(encoding="utf-8").splitlines()
    kept.replace("job.sh")
    return file_lines


@pytest.mark.parametrize(
    ("options", "command", "complaint"),
    [
        (
            (),
            ("trian", *TRAIN[1:]),
            (
                "submit 'trian': after -- comes train or compare, with its options; did you mean"
                " 'train'?"
            ),
        ),
        (
            (),
            ("train", "quickstrat", "--out", "run"),
            "'quickstrat' is neither a preset nor a TOML file",
        ),
        ((), ("train", "quickstart"), "Missing option '--out'"),
        ((), (*TRAIN, "--seeds", "3"), "No such option: --seeds"),
        ((), (*TRAIN, "--arm", "nobody"), "nobody"),
        ((), (*TRAIN, "--set", "budget.token=1"), "unknown key 'budget.token'"),
        ((), (*TRAIN, "--dry-run"), "--dry-run and --replay are answered at once"),
        ((), (*TRAIN, "--replay", "3"), "--dry-run and --replay are answered at once"),
        ((), ("train", "quickstart", "--out", "a\nb"), "a batch file cannot hold a line break"),
        (("--gpus", "8", "--ranks", "4"), TRAIN, "--ranks 4: each GPU has one rank"),
        (("--time", "1-"), TRAIN, "--time '1-': write it as Slurm does"),
        (("--time", "soon"), TRAIN, "--time 'soon': write it as Slurm does"),
        (("--time", "5"), TRAIN, "--time 5: less than twice the 180 seconds of --notice"),
        (("--notice", "30"), TRAIN, "--notice"),
        (
            ("--extra", "constraint=h100"),
            TRAIN,
            "--extra 'constraint=h100': write one option as sbatch takes it",
        ),
        (
            ("--extra", "--signal=USR1@60"),
            TRAIN,
            "--extra '--signal=USR1@60': submit sets this itself",
        ),
        (("--extra", "-N 4"), TRAIN, "--extra '-N 4': submit sets this itself"),
        (("--extra", "--comment='a"), TRAIN, "No closing quotation; close the quotes"),
        (("--extra", "--mem=4G --time=9"), TRAIN, "write one option as sbatch takes it"),
        (("--extra", "-q long --uid=0"), TRAIN, "write one option as sbatch takes it"),
        (("--extra", ""), TRAIN, "write one option as sbatch takes it"),
        (("--setup", "if true"), TRAIN, "--setup: no shell command"),
        (("--setup", "cat <<END"), TRAIN, "--setup: no shell command"),
        (("--setup", "echo a \\"), TRAIN, "its last backslash would join it to the next line"),
        (
            ("--through", "submitit", "--write", "x.sh"),
            TRAIN,
            "--write: a batch file is for sbatch",
        ),
        (("--write", "there.sh"), TRAIN, "there.sh: exists; remove it or choose another --write"),
        (("--write", "nowhere/x.sh"), TRAIN, "nowhere"),
        (("--through", "qsub"), TRAIN, "qsub"),
    ],
)
def test_what_cannot_work_is_refused_before_it_waits_in_a_queue(
    options, command, complaint, slurm, capsys
):
    Path("there.sh").write_text("mine")
    assert run(["submit", "--time", "4:00:00", *options, "--", *command]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert Path("there.sh").read_text() == "mine"
    assert not (slurm / "sbatch").exists()


def test_without_slurm_here_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["submit", "--time", "4:00:00", "--", *TRAIN]) == 2
    assert (
        "no sbatch here; run the command where Slurm's commands are, or write the file by --write"
        in capsys.readouterr().err
    )
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("4:00:00", 14400),
        ("2-12", 216000),
        ("1-0:30", 88200),
        ("1-00:00:05", 86405),
    ],
)
def test_times_are_read_as_slurm_reads_them(text, seconds):
    assert seconds_of(text) == seconds


def until(held: "object", seconds: float = PATIENCE) -> None:
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not held():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_a_real_torchrun_trains_a_run_to_its_end(slurm, preset, tmp_path, monkeypatch):
    monkeypatch.undo()
    programs = Path(sys.executable).parent
    if not (programs / "torchrun").is_file():
        pytest.skip(f"no torchrun beside {sys.executable}")
    job = job_of(tmp_path / "run", ("train", str(preset), "--arm", "gf2"), programs)
    job.out.mkdir()
    fake = tmp_path / "fake slurm"
    (fake / "scontrol").write_text("#!/bin/bash\necho localhost\n")
    (tmp_path / "job.sh").write_text(
        batch_file(job).replace(f"export PATH={programs}:", f"export PATH={programs}:'{fake}':")
    )
    here = {**os.environ, "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "x", "FAKE": str(slurm)}
    done = subprocess.run(
        ["bash", str(tmp_path / "job.sh")],
        env=here,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert f"done: {job.last}" in done.stdout
    assert json.loads(job.last.read_text())["arm"] == "gf2"


STUBBORN = """#!/bin/bash
kill -USR2 $$  # Slurm tells every process of the step; who does not ignore it dies
if [ -f run/checkpoints/step-2/manifest.json ]; then printf 'again\\n' >>told; touch run/result.json; exit 0; fi
trap 'mkdir -p run/checkpoints/step-2; touch run/checkpoints/step-2/manifest.json; echo saved >>told; exit 1' TERM
printf '%s\\n' "$@" >told
echo $PPID >asking
for second in $(seq 300); do sleep 0.1; done
"""  # noqa: E501


def test_submitit_saves_at_its_signal_and_starts_again_from_there(tmp_path):
    submitit = pytest.importorskip(
        "submitit", reason="needs the extra `slurm`: pip install 'tokencodes[slurm]'"
    )
    (tmp_path / "torchrun").write_text(STUBBORN)
    (tmp_path / "torchrun").chmod(0o755)
    job = job_of(tmp_path / "run", ("train", "quickstart"), tmp_path)
    job.out.mkdir()
    executor = submitit.LocalExecutor(job.out / "slurm" / "submitit", max_num_timeout=3)
    executor.update_parameters(timeout_min=2)
    submitted = executor.submit(Launch(job))
    until(lambda: (tmp_path / "asking").is_file() and (tmp_path / "asking").read_text().strip())
    # as Slurm does when the time is nearly up
    os.kill(int((tmp_path / "asking").read_text()), signal.SIGUSR2)
    assert submitted.result() == str(job.last)
    recorded = lines(tmp_path / "told")
    assert recorded[:2] == ["--nnodes=1", "--nproc-per-node=1"]
    assert recorded[-8:] == [
        "-m",
        "tokencodes",
        "train",
        "quickstart",
        "--out",
        str(job.out),
        "saved",
        "again",
    ]


def test_submitit_reports_a_run_that_fails(tmp_path):
    submitit = pytest.importorskip(
        "submitit", reason="needs the extra `slurm`: pip install 'tokencodes[slurm]'"
    )
    (tmp_path / "torchrun").write_text("#!/bin/bash\nexit 3\n")
    (tmp_path / "torchrun").chmod(0o755)
    job = job_of(tmp_path / "run", ("train", "quickstart"), tmp_path)
    job.out.mkdir()
    with pytest.raises(
        submitit.core.utils.FailedJobError, match=r"no further than before \(exit status 3\)"
    ):
        executor_of(job, "local").submit(Launch(job)).result()


def test_submitit_gives_slurm_what_the_batch_file_would(slurm, capsys):
    pytest.importorskip(
        "submitit", reason="needs the extra `slurm`: pip install 'tokencodes[slurm]'"
    )
    (slurm.parent / "fake slurm" / "sbatch").write_text(
        SBATCH.replace('echo "17;here"', 'cp "$1" "$FAKE/script"; echo "Submitted batch job 17"')
    )
    command = [
        "submit",
        "--through",
        "submitit",
        "--time",
        "4:00:00",
        "--nodes",
        "2",
        "--gpus",
        "8",
        "--partition",
        "p",
    ]
    assert (
        run(
            [
                *command,
                "--extra",
                "--constraint=h100",
                "--setup",
                "module load x",
                "--json",
                "--",
                *TRAIN,
            ]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert (printed["job"], printed["file"]) == ("17", None)
    text = (slurm / "script").read_text()
    for option in (
        "--nodes=2",
        "--gpus-per-node=8",
        "--cpus-per-task=32",
        "--time=240",
        "--signal=USR2@180",
        "--requeue",
    ):
        assert f"#SBATCH {option}\n" in text
    assert "#SBATCH --constraint=h100\n" in text
    assert "\nmodule load x\n" in text
    assert run([*command, "--extra", "-q long", "--", *TRAIN]) == 2
    assert "with submitit write it as --KEY=VALUE" in capsys.readouterr().err


def test_submitit_is_told_missing_before_anything_is_written(slurm, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert run(["submit", "--through", "submitit", "--time", "4:00:00", "--", *TRAIN]) == 2
    assert "pip install 'tokencodes[slurm]'" in capsys.readouterr().err
