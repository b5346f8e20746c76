"""Absurd sizes: each is one line, before memory is taken; and sizes that are possible are not
refused.
"""

import pytest
import torch

from tests.conftest import fresh_model, tiny_study
from tokencodes import memory
from tokencodes.cli import run as command
from tokencodes.codes import InterfaceSpec, build_codebook
from tokencodes.codes.codebook import codebook_bytes
from tokencodes.codes.lift import orthogonal
from tokencodes.data.loader import rank_indices
from tokencodes.errors import InputError
from tokencodes.files import read_json, read_json_lines
from tokencodes.memory import free_bytes, require_memory, total_bytes
from tokencodes.parallel import World
from tokencodes.train.build import sampler_of
from tokencodes.train.checks import check_memory, check_model, parameter_count
from tokencodes.train.config import MOST
from tokencodes.train.cost import cost_of_run
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train
from tokencodes.train.settings import read_study

HUGE = "1" + 400 * "0"


def refused(capsys, *arguments: str) -> str:
    """The one line of a command that must exit with 2."""
    assert command(list(arguments)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    "assignment",
    [
        "batch.global_batch_size=1000000000000",
        "batch.global_batch_size=100000000000000000000000",
        "batch.micro_batch_size=1000000000000",
        "batch.streams=100000000000000000000",
        "batch.windows_per_visit=100000000000000000000",
        "data.vocab_size=1000000000",
        "data.shard_tokens=100000000000000000000",
        "model.num_hidden_layers=1000000",
        "model.hidden_size=1000000002",
        "model.intermediate_size=1000000000",
        "model.num_attention_heads=10000000",
        "model.context_length=1000000000",
        f"budget.tokens={HUGE}",
        f"optimizer.schedule_steps={HUGE}",
        f"optimizer.warmup_steps={HUGE}",
        f"heldout.windows={HUGE}",
        f"heldout.interval_steps={HUGE}",
        f"checkpoint.keep_latest={HUGE}",
        f"checkpoint.interval_steps={HUGE}",
        "engine.timeout_seconds=1e300",
        f"engine.activation_checkpoint_every={HUGE}",
        f"study.seeds=[{1 << 63}]",
        f"study.seeds=[{HUGE}]",
    ],
    ids=lambda assignment: assignment[:40],
)
def test_an_absurd_size_is_one_line_that_names_the_key_and_the_bound(assignment, capsys, tmp_path):
    key = assignment.partition("=")[0]
    for name in (["train"], ["params"]):
        out = ["--out", str(tmp_path / "run"), "--dry-run"] if name == ["train"] else []
        said = refused(capsys, *name, "quickstart", *out, "--set", assignment)
        assert key in said and "less than" in said
    assert not (tmp_path / "run").exists()


def test_an_absurd_seed_peak_or_rank_count_is_one_line(capsys, tmp_path):
    dry_run = ["train", "quickstart", "--out", str(tmp_path), "--dry-run"]
    assert "seed" in refused(capsys, *dry_run, "--seed", HUGE)
    assert "'--peak-tflops'" in refused(capsys, *dry_run, "--peak-tflops", "nan")
    assert "--peak-tflops inf" in refused(capsys, *dry_run, "--peak-tflops", "inf")
    assert "do not divide among" in refused(capsys, *dry_run, "--ranks", "1000000000000")


@pytest.mark.parametrize("sampling", ["paper", "token-uniform", "packed"])
def test_the_largest_counts_and_seeds_that_are_taken_can_be_trained(sampling, dataset, tmp_path):
    batch = {
        "global_batch_size": 4,
        "micro_batch_size": 4,
        "streams": MOST,
        "windows_per_visit": MOST,
    }
    study = tiny_study(
        dataset.path, batch={**batch, "sampling": sampling}, study={"seeds": [(1 << 63) - 1]}
    )
    assert train(study.run("gf2", (1 << 63) - 1), dataset, tmp_path, Silent()).status == "done"
    for step in ((1 << 60) - 1, 0):  # the last step of the largest budget, at one token a step
        indices = rank_indices(step, 4)
        assert (sampler_of(study.run("gf2", 1), dataset).draw(indices).start >= 0).all()


@pytest.mark.parametrize("text", [5000 * "1", 100_000 * "["], ids=["digits", "lists"])
def test_a_number_of_thousands_of_digits_and_deep_lists_are_one_line(text, capsys, tmp_path):
    assert "budget.tokens" in refused(
        capsys, "params", "quickstart", "--set", f"budget.tokens={text}"
    )
    (tmp_path / "preset.toml").write_text(f"[budget]\ntargets = {text}\n")
    assert "preset.toml: not TOML" in refused(capsys, "params", str(tmp_path / "preset.toml"))
    for name, read in (("file.json", read_json), ("file.jsonl", read_json_lines)):
        (tmp_path / name).write_text(text + "\n")
        with pytest.raises(InputError, match=f"{name}.*damaged"):
            read(tmp_path / name)


def test_a_microbatch_beyond_every_memory_is_refused_with_its_size(capsys):
    sets = ["--set", "batch.micro_batch_size=1048576", "--set", "batch.global_batch_size=1048576"]
    said = refused(capsys, "params", "quickstart", *sets, "--set", "model.context_length=16777216")
    assert "lower batch.micro_batch_size or model.context_length" in said and "TB" in said


def test_a_microbatch_is_at_most_an_step():
    study = tiny_study("unused", batch={"global_batch_size": 4, "micro_batch_size": 1 << 20})
    assert study.micro_batch == 4
    whole = tiny_study("unused", batch={"global_batch_size": 4, "micro_batch_size": 4})
    assert (
        cost_of_run(study.run("gf2", 1)).activation_bytes
        == cost_of_run(whole.run("gf2", 1)).activation_bytes
    )


@pytest.mark.parametrize(
    "interface",
    ["learned", "gf2", "learned-code", "learned-code:init=random,width=20", "digits:base=4"],
)
def test_the_formula_of_parameters_counts_what_a_model_has(interface):
    run = tiny_study(
        "unused", arms={"one": {"interface": interface}}, study={"baseline": "one"}
    ).run("one", 1)
    assert parameter_count(run) == sum(
        parameter.numel() for parameter in fresh_model(run).parameters()
    )


@pytest.mark.parametrize("name", ["quickstart", "nano", "small"])
def test_the_formula_of_parameters_agrees_with_the_account_of_a_preset(name):
    study, _ = read_study(name, [])
    run = study.run(study.study.baseline, 1)
    assert parameter_count(run) == cost_of_run(run).total_parameters


def test_a_run_is_refused_only_if_its_training_state_exceeds_the_memory(
    study, dataset, tmp_path, monkeypatch
):
    run = study.run("learned", 1)
    needed = 16 * parameter_count(run)
    monkeypatch.setattr(memory, "total_bytes", lambda: needed)
    check_memory(run, World())
    monkeypatch.setattr(memory, "total_bytes", lambda: needed - 1)
    with pytest.raises(
        InputError, match=r"gradients and optimizer states of [\d,]+ parameters: about 0\.000703 GB"
    ) as caught:
        check_memory(run, World())
    assert (
        "lower data.vocab_size, model.hidden_size, model.intermediate_size or"
        " model.num_hidden_layers" in str(caught.value)
    )
    with pytest.raises(InputError, match=r"lower data\.vocab_size"):
        train(run, dataset, tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


def test_memory_is_that_of_all_ranks_of_a_machine(study, monkeypatch):
    run = study.run("learned", 1)
    parameters = parameter_count(run)
    monkeypatch.setattr(memory, "total_bytes", lambda: 16 * parameters)

    class Four(World):
        def gather(self, value, group=None):
            return [value]

    check_memory(run, Four(0, 4, 4))  # full sharding: the four parts are one whole
    replicated = run.model_copy(
        update={"engine": run.engine.model_copy(update={"sharding": "replicate"})}
    )
    with pytest.raises(InputError, match="weights, gradients and optimizer states"):
        check_memory(replicated, Four(0, 4, 4))
    monkeypatch.setattr(memory, "total_bytes", lambda: 4 * parameters * 8 - 1)
    with pytest.raises(InputError, match="weights, gradients and optimizer states"):
        check_memory(run, Four(0, 64, 8))  # eight ranks here draw the whole model each


def test_a_gpu_is_asked_for_its_own_memory(study, monkeypatch):
    run = study.run("learned", 1)
    state = 16 * parameter_count(run)
    gpu = World(0, 1, 1, torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, state))
    check_memory(run, gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, state - 1))
    with pytest.raises(InputError, match="on cuda:0: about"):
        check_memory(run, gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, state))
    monkeypatch.setattr(memory, "total_bytes", lambda: state // 4 - 1)
    with pytest.raises(InputError, match="weights, drawn by each of 1 ranks"):
        check_memory(run, gpu)


def test_every_rank_refuses_what_one_rank_has_no_memory_for(study, monkeypatch):
    class Two(World):
        def gather(self, value, group=None):
            return [value, "another rank has too little memory"]

    with pytest.raises(InputError, match="another rank has too little memory"):
        check_memory(study.run("learned", 1), Two())


def test_a_model_that_cannot_fit_is_refused_before_it_is_made(tmp_path, capsys):
    sets = [
        "model.num_hidden_layers=4096",
        "model.hidden_size=1048560",
        "model.intermediate_size=8388608",
    ]
    options = [word for assignment in sets for word in ("--set", assignment)]
    arguments = ["quickstart", *options, "--arm", "learned", "--out", str(tmp_path / "run")]
    assert "or use more ranks" in refused(capsys, "train", *arguments)
    assert not (tmp_path / "run").exists()


def test_the_memory_of_this_machine_is_known():
    assert (1 << 28) < free_bytes() <= total_bytes()
    require_memory(total_bytes(), "what fits", "")
    number = r"[\d,.]+ GB"
    with pytest.raises(
        InputError,
        match=f"^more: about {number} of memory; here are {number}, {number} of them free; less$",
    ):
        require_memory(total_bytes() + (1 << 30), "more", "less")


def test_the_limit_of_a_control_group_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    machine = total_bytes()
    (tmp_path / "memory.max").write_text("max\n")
    assert total_bytes() == machine
    (tmp_path / "memory.max").write_text("1000000\n")
    assert (total_bytes(), free_bytes()) == (1_000_000, 1_000_000)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["binary", "--vocab-size", "1000000000"],
            "a vocabulary of 1,000,000,000 tokens is beyond the 16,777,216",
        ),
        (["binary", "--vocab-size", HUGE], "is beyond the 16,777,216"),
        (["binary", "--vocab-size", "0"], "a vocabulary of 0 tokens"),
        (["binary", "--vocab-size", "-5"], "a vocabulary of -5 tokens"),
        (
            ["binary", "--vocab-size", "320", "--width", "1000000000000"],
            "a model has 1 to 1,048,576 channels",
        ),
        (["binary", "--vocab-size", "320", "--width", "0"], "a model has 1 to 1,048,576 channels"),
        (
            ["random:width=1048576", "--vocab-size", "16777216", "--width", "1048576"],
            "GB of memory; here are",
        ),
        (
            ["gf2:width=1048576", "--vocab-size", "320", "--width", "1048576"],
            "GB of memory; here are",
        ),
        (
            ["binary:width=1048576,lift=orthogonal", "--vocab-size", "1", "--width", "1048576"],
            "GB of memory; here are",
        ),
    ],
)
def test_codes_of_absurd_sizes_are_one_line(arguments, complaint, capsys):
    assert complaint in refused(capsys, "codes", *arguments)


def test_a_code_is_refused_only_if_its_words_exceed_the_memory(monkeypatch):
    spec = InterfaceSpec.parse("random:width=24")
    assert codebook_bytes(spec, 1000) == 1000 * (24 + 8)
    assert codebook_bytes(InterfaceSpec.parse("gaussian:width=24"), 1000) == 1000 * (4 * 24 + 8)
    assert codebook_bytes(InterfaceSpec.parse("gf2:width=24"), 1000) == 1000 * (24 + 8) + 24 * 24
    monkeypatch.setattr(memory, "total_bytes", lambda: 32_000)
    book = build_codebook(spec, 1000)
    monkeypatch.setattr(memory, "total_bytes", lambda: 31_999)
    with pytest.raises(InputError, match="for 1,000 tokens: about"):
        build_codebook(spec, 1000)
    monkeypatch.setattr(memory, "total_bytes", lambda: 8 * 24**2 - 1)
    with pytest.raises(InputError, match="products of 24 coordinates"):
        book.rank(36)
    monkeypatch.setattr(memory, "total_bytes", lambda: 16 * 24 * 36 - 1)
    with pytest.raises(InputError, match="lift=orthogonal from 24 coordinates to 36 channels"):
        orthogonal(24, 36, 0)


def test_memory_that_is_refused_by_the_system_is_one_line(monkeypatch, capsys):
    errors = [
        MemoryError("Unable to allocate 7.28 TiB"),
        torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"),
    ]
    errors += [
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99"
            " bytes"
        )
    ]
    for error in errors:

        def fails(*arguments, error=error):
            raise error

        monkeypatch.setattr("tokencodes.train.settings.read_study", fails)
        assert "not enough memory" in refused(capsys, "params", "quickstart")


def test_a_model_is_checked_without_its_weights():
    run = tiny_study(
        "unused", arms={"one": {"interface": "binary:ids=ranked"}}, study={"baseline": "one"}
    ).run("one", 1)
    check_model(run)
    wide = run.model.model_copy(
        update={"hidden_size": 1 << 20, "num_hidden_layers": 2, "num_attention_heads": 64}
    )
    check_model(run.model_copy(update={"model": wide}))  # 35 TB of weights
