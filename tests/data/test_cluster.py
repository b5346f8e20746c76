"""The same conversion on Slurm and Ray: the same bytes as on one machine, and what is refused
before anything is submitted.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import contents
from tokencodes.cli import run
from tokencodes.data import convert as converting
from tokencodes.data.cluster import ConvertStep, SealStep, submit_to_slurm
from tokencodes.data.convert import Job, clean, convert
from tokencodes.data.dataset import Dataset
from tokencodes.data.encode import engine_for
from tokencodes.data.inputs import find_inputs
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import Means, make_jobs, prepare, start
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError

OPTIONS = PrepareOptions(validation_fraction=0.2)
SBATCH = """#!/bin/bash
set -e
[ -z "$FAKE_REFUSAL" ] || { echo "sbatch: error: $FAKE_REFUSAL" >&2; exit 1; }
number=$(($(ls "$FAKE_QUEUE" | wc -l) + 1))
mkdir "$FAKE_QUEUE/$number"
cp "${@: -1}" "$FAKE_QUEUE/$number/script"
echo "$*" >"$FAKE_QUEUE/$number/command"
echo "Submitted batch job $number"
"""
SRUN = """#!/bin/bash
while [ "${1#-}" != "$1" ]; do [ "$1" = -n ] && shift; shift; done
exec "$@"
"""
SCONTROL = """#!/bin/bash
[ "$1 $2" = "show hostnames" ] && echo "$3"
"""


class Slurm:
    """As much of Slurm as datatrove uses, on this machine: jobs wait until `work`, which keeps to
    their dependencies.
    """

    def __init__(self, folder: Path) -> None:
        self.queue, self.ended = folder / "queue", dict[int, bool]()
        self.queue.mkdir()
        for name, script in {"sbatch": SBATCH, "srun": SRUN, "scontrol": SCONTROL}.items():
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)

    def options(self, number: int) -> dict[str, str]:
        """The options of a job, out of its script and its command line."""
        lines = (self.queue / str(number) / "script").read_text() + (
            self.queue / str(number) / "command"
        ).read_text()
        return {key: value or "" for key, value in re.findall(r"--([\w-]+)(?:=(\S+))?", lines)}

    def jobs(self) -> list[int]:
        """Their numbers, in the order in which they were submitted."""
        return sorted(int(folder.name) for folder in self.queue.iterdir())

    def work(self) -> None:
        """Runs what waits: all tasks of an array at once; nothing whose dependency failed."""
        for number in self.jobs():
            options = self.options(number)
            kind, _, needed = options.get("dependency", "").partition(":")
            if number not in self.ended and (kind != "afterok" or self.ended.get(int(needed))):
                first, last = map(int, options["array"].partition("%")[0].split("-"))
                tasks = [self._task(number, index) for index in range(first, last + 1)]
                self.ended[number] = [task.wait() for task in tasks] == [0] * len(tasks)

    def _task(self, number: int, index: int) -> "subprocess.Popen[bytes]":
        here = {
            "SLURM_JOB_ID": str(number),
            "SLURM_ARRAY_TASK_ID": str(index),
            "SLURM_NODELIST": "here",
            "RUN_OFFSET": "0",
        }
        script = self.queue / str(number) / "script"
        with (script.parent / f"log-{index}").open("wb") as log:
            return subprocess.Popen(
                ["bash", str(script)], env={**os.environ, **here}, stdout=log, stderr=log
            )


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Slurm:
    (tmp_path / "bin").mkdir()
    scheduler = Slurm(tmp_path / "bin")
    monkeypatch.setenv("FAKE_QUEUE", str(scheduler.queue))
    monkeypatch.setenv(
        "PATH", f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    return scheduler


@pytest.fixture
def four(texts, tokenizer_path, tmp_path) -> SimpleNamespace:
    """Four small inputs, their jobs for a cluster,
    and the dataset that one machine makes of them."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    for file in texts.iterdir():
        lines = file.read_text().splitlines(keepends=True)
        for half, part in (("a", lines[::2]), ("b", lines[1::2])):
            (inputs / f"{half}-{file.name}").write_text("".join(part))
    local = prepare([str(inputs)], tokenizer_path, tmp_path / "local", OPTIONS)
    out = tmp_path / "out"
    out.mkdir()
    jobs = make_jobs(
        find_inputs([str(inputs)]),
        TokenizerFile(tokenizer_path),
        out,
        OPTIONS,
        Means(engine="slurm"),
    )
    return SimpleNamespace(local=local, out=out, jobs=jobs, tokenizer=out / "tokenizer.json")


def folders(out: Path) -> list[str]:
    return sorted(file.parent.name for file in out.glob("*/source.json"))


def test_slurm_makes_the_bytes_that_one_machine_makes(
    slurm, texts, tokenizer_path, dataset, tmp_path
):
    means = Means(engine="slurm", cluster=("time=1:00:00", "partition=cpu"), workers=2)
    out = tmp_path / "data"
    assert (
        start([str(texts)], TokenizerFile(tokenizer_path), out, OPTIONS, means, lambda line: None)
        is None
    )
    first, last = (
        n
        for n in slurm.jobs()
        if "launch_pickled_pipeline" in (slurm.queue / str(n) / "script").read_text()
    )
    options = slurm.options(first)
    assert (options["partition"], options["time"], options["array"]) == ("cpu", "1:00:00", "0-1%2")
    assert (slurm.options(last)["dependency"], slurm.options(last)["array"]) == (
        f"afterok:{first}",
        "0-0",
    )
    assert folders(out) == []
    slurm.work()
    assert slurm.ended == dict.fromkeys(slurm.jobs(), True)
    assert contents(out) == contents(dataset.path)
    stats = json.loads((tmp_path / "data-logs" / "convert" / "stats.json").read_text())[0]["stats"]
    assert stats["tokens"]["total"] == sum(shard.tokens for shard in dataset.own_shards)


def test_a_failed_task_leaves_no_dataset_and_one_machine_can_go_on_from_there(
    slurm, texts, tokenizer_path, dataset, tmp_path, capsys
):
    out, inputs = tmp_path / "data", tmp_path / "inputs"
    inputs.mkdir()
    for file in texts.iterdir():
        os.link(file, inputs / file.name)
    sotu = next(inputs.glob("sotu*"))
    command = [
        "prepare",
        str(inputs),
        "--out",
        str(out),
        "--tokenizer",
        str(tokenizer_path),
        "--validation-fraction",
        "0.2",
        "--json",
    ]
    assert (
        run([*command, "--engine", "slurm", "--cluster", "time=10", "--cluster", "partition=cpu"])
        == 0
    )
    assert json.loads(capsys.readouterr().out) == {"done": False, "out": str(out)}
    sotu.rename(tmp_path / "away")
    slurm.work()
    assert list(slurm.ended.values()) == [False]  # and what depends on it is never started
    assert folders(out) == ["austen"]
    (tmp_path / "away").rename(sotu)
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == dataset.fingerprint
    assert contents(out) == contents(dataset.path)


@pytest.mark.parametrize(
    ("engine", "cluster", "complaint"),
    [
        ("slurm", ("time=1:00:00",), "needs partition; give --cluster partition=VALUE"),
        ("slurm", (), "needs time and partition; give --cluster time=VALUE"),
        (
            "slurm",
            ("time=1", "partition=cpu", "queue=x"),
            "'queue=x': write KEY=VALUE, with a key of datatrove's Slurm",
        ),
        ("slurm", ("time=1", "partition"), "'partition': write KEY=VALUE"),
        ("slurm", ("time=1", "partition=cpu", "tasks=3"), "'tasks=3': write KEY=VALUE"),
        ("slurm", ("time=1", "partition=cpu", "workers=3"), "'workers=3': write KEY=VALUE"),
        (
            "ray",
            ("partition=cpu",),
            "'partition=cpu': write KEY=VALUE, with a key of datatrove's Ray",
        ),
        ("ray", ("skip_completed=1",), "'skip_completed=1': write KEY=VALUE"),
    ],
)
def test_what_a_cluster_cannot_be_told_is_refused(
    engine, cluster, complaint, slurm, texts, tokenizer_path, tmp_path
):
    with pytest.raises(InputError, match=re.escape(complaint)):
        prepare(
            [str(texts)],
            tokenizer_path,
            tmp_path / "data",
            OPTIONS,
            Means(engine=engine, cluster=cluster),
        )
    assert slurm.jobs() == []


def test_values_for_a_cluster_are_numbers_truths_and_tables_where_they_look_like_it(slurm, four):
    cluster = (
        "time=08:00:00",
        "partition=cpu",
        'sbatch_args={"account": "us"}',
        "requeue=false",
        "cpus_per_task=2",
        "qos=null",
    )
    submit_to_slurm(four.jobs, four.tokenizer, "cached", 1, cluster)
    options = slurm.options(1)
    assert (options["account"], options["cpus-per-task"], options["time"], options["array"]) == (
        "us",
        "2",
        "08:00:00",
        "0-3",
    )
    assert "requeue" not in options
    assert "qos" not in options


SHARP = 'it\'s $(touch caught) `touch caught` "x" 100%A'


def test_a_folder_and_values_of_any_characters_are_words_of_the_batch_file(
    slurm, texts, tokenizer_path, dataset, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    args = json.dumps({"comment": SHARP, "account": "us"})
    cluster = (
        "time=1:00:00",
        f"partition={SHARP}",
        f"qos={SHARP}",
        f"sbatch_args={args}",
        f"mail_user={SHARP}",
    )
    out = tmp_path / SHARP / "data"
    means = Means(engine="slurm", cluster=cluster)
    assert (
        start([str(texts)], TokenizerFile(tokenizer_path), out, OPTIONS, means, lambda line: None)
        is None
    )
    script = (slurm.queue / "1" / "script").read_text().splitlines()
    options = dict(
        shlex.split(line)[1].removeprefix("--").partition("=")[::2]
        for line in script
        if line.startswith("#SBATCH")
    )
    assert [options[key] for key in ("partition", "qos", "comment", "mail-user")] == [SHARP] * 4
    assert options["output"] == f"{out}-logs/convert/slurm_logs/".replace("%", "%%") + "%A_%a.out"
    slurm.work()
    assert contents(out) == contents(dataset.path)
    assert not (tmp_path / "caught").exists()


@pytest.mark.parametrize(
    "setting",
    [
        "partition=a\nb",
        "qos=a\rb",
        r'sbatch_args={"comment": "a\nb"}',
        r'sbatch_args={"a\nb": 1}',
        "venv_path=\x1b[2J",
    ],
)
def test_a_control_character_for_a_cluster_is_refused(setting, slurm, four):
    with pytest.raises(
        InputError, match="a batch file cannot hold a line break or another control character"
    ):
        submit_to_slurm(
            four.jobs, four.tokenizer, "cached", 1, ("time=1", "partition=cpu", setting)
        )
    assert slurm.jobs() == []


@pytest.mark.parametrize(
    "setting", ["job_name=$(id)", 'sbatch_args={"a b": 1}', 'srun_args={"x;id": 1}']
)
def test_a_name_of_a_job_or_an_option_is_letters_and_digits(setting, slurm, four):
    with pytest.raises(InputError, match="is no name of a job or an option"):
        submit_to_slurm(
            four.jobs, four.tokenizer, "cached", 1, ("time=1", "partition=cpu", setting)
        )
    assert slurm.jobs() == []


def test_without_slurm_here_one_line_says_so_and_nothing_is_left_beside_the_dataset(
    texts, tokenizer_path, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [
        "prepare",
        str(texts),
        "--out",
        str(tmp_path / "data"),
        "--tokenizer",
        str(tokenizer_path),
    ]
    assert (
        run([*command, "--engine", "slurm", "--cluster", "time=1", "--cluster", "partition=cpu"])
        == 2
    )
    output = capfd.readouterr()
    assert (output.out, output.err) == (
        "",
        "tokencodes: engine slurm: no sbatch here; run the command where Slurm's commands are\n",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_refusal_of_slurm_is_handed_on(
    slurm, texts, tokenizer_path, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("FAKE_REFUSAL", "invalid partition specified: cpu")
    means = Means(engine="slurm", cluster=("time=1", "partition=cpu"))
    with pytest.raises(InputError, match=r"sbatch refused \(exit status 1\)"):
        start(
            [str(texts)],
            TokenizerFile(tokenizer_path),
            tmp_path / "data",
            OPTIONS,
            means,
            lambda line: None,
        )
    assert "sbatch: error: invalid partition specified: cpu" in capfd.readouterr().err


def test_each_rank_converts_every_third_input_and_the_seal_makes_the_dataset(four):
    names = [job.input.name for job in four.jobs]
    tokens = 0
    for rank in (1, 2, 0):
        step = ConvertStep(four.jobs, four.tokenizer, "cached")
        assert step.run(None, rank, 3) is None
        tokens += step.stats["tokens"].total
        expected = [
            name
            for index, name in enumerate(names)
            if index % 3 in {1: (1,), 2: (1, 2), 0: (0, 1, 2)}[rank]
        ]
        assert folders(four.out) == sorted(expected)
    assert tokens == sum(shard.tokens for shard in four.local.own_shards)
    SealStep(four.jobs, four.tokenizer).run(None)
    assert Dataset(four.out).fingerprint == four.local.fingerprint
    assert contents(four.out) == contents(four.local.path)


def test_the_seal_names_the_input_of_a_dead_task_and_that_task_again_completes_the_dataset(four):
    steps = ConvertStep(four.jobs, four.tokenizer, "cached"), SealStep(four.jobs, four.tokenizer)
    for rank in (0, 1, 2):
        steps[0].run(None, rank, 4)
    missing: Job = four.jobs[3]
    with pytest.raises(
        InputError, match=rf"{re.escape(str(missing.input.files[0]))}: not converted yet"
    ):
        steps[1].run(None)
    assert not (four.out / "manifest.json").exists()
    before = {file: file.stat().st_mtime_ns for file in four.out.rglob("*") if file.is_file()}
    for rank in (0, 3):
        steps[0].run(None, rank, 4)
    steps[1].run(None)
    steps[1].run(None)  # a requeued seal finds its work done
    assert contents(four.out) == contents(four.local.path)
    assert {
        file: file.stat().st_mtime_ns for file in before if file.name != ".lock"
    }.items() <= before.items()


@pytest.mark.parametrize("meanwhile", ["the same task again", "a program that cleans"])
def test_at_the_very_end_of_a_task_nobody_stands_in_its_way(meanwhile, four, monkeypatch):
    job, encoder = four.jobs[0], engine_for(TokenizerFile(four.tokenizer))
    fsync = converting.fsync

    def late(path: Path) -> None:
        fsync(path)
        if path.name.startswith(".tmp-"):
            monkeypatch.setattr(converting, "fsync", fsync)
            clean(four.out) if meanwhile == "a program that cleans" else convert(job, encoder)

    monkeypatch.setattr(converting, "fsync", late)
    entry = convert(job, encoder)
    assert entry == convert(job, encoder)
    assert not list(four.out.glob(".tmp-*"))
    assert contents(four.out / job.input.name) == contents(four.local.path / job.input.name)


def test_ray_makes_the_bytes_that_one_machine_makes(
    texts, tokenizer_path, dataset, tmp_path, monkeypatch
):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    try:
        prepare(
            [str(texts)],
            tokenizer_path,
            tmp_path / "data",
            OPTIONS,
            Means(engine="ray", cluster=("mem_per_cpu_gb=0.5",)),
        )
    finally:
        ray.shutdown()
    assert contents(tmp_path / "data") == contents(dataset.path)
