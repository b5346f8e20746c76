"""Commands that train and report: compare, train, report, params, config."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokencodes.cli.common import Json, Out, Preset, Sets, Track, app, observer, quiet, stopped
from tokencodes.cli.printing import Table, emit
from tokencodes.errors import CheckFailed, InputError
from tokencodes.measured import significant

if TYPE_CHECKING:
    from tokencodes.parallel import World
    from tokencodes.train.config import RunConfig

config_app = typer.Typer(no_args_is_help=True, help="Look at configurations.")
app.add_typer(config_app, name="config")


@app.command()
def compare(
    preset: Preset, out: Out, sets: Sets = None, track: Track = None, as_json: Json = False
) -> None:
    """Train every arm with every seed, then write the report. Repeating the command continues where
    it stopped.
    """
    from tokencodes.parallel import join
    from tokencodes.report.page import write_report
    from tokencodes.study import compare as compare_arms
    from tokencodes.train.settings import read_study
    from tokencodes.train.stop import Stop

    quiet()

    study, _ = read_study(preset, sets or [])
    world = join(study.engine.device)
    with Stop().listen() as stop, world.together():
        done = compare_arms(study, out, observer(as_json, track, out), stop, world)
    if not done:
        stopped(as_json, out)
        return
    report_file, summary = world.on_first(lambda: write_report(out))
    emit(
        as_json,
        {"done": True, "out": str(out), "report": str(report_file), **summary},
        f"Report: {report_file}",
    )


@app.command()
def train(
    preset: Preset,
    out: Out,
    arm: Annotated[
        str | None, typer.Option(help="Arm of the preset; the baseline if not told.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Run seed; the preset's first if not told.")
    ] = None,
    replay: Annotated[
        int | None,
        typer.Option(
            metavar="STEP", help="Compute one step again, and change nothing: exit 1 if it differs."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the run would take, and train nothing.")
    ] = False,
    peak_tflops: Annotated[
        float | None,
        typer.Option(
            metavar="TFLOPS",
            min=1e-6,
            help="With --dry-run: the rate, of all ranks, to tell the time at.",
        ),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(
            min=1, help="With --dry-run: among how many ranks (eight a node) memory is told."
        ),
    ] = 1,
    sets: Sets = None,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Train one run. Repeating the command continues where it stopped."""
    from tokencodes.parallel import join
    from tokencodes.result import read_result
    from tokencodes.train.checks import check_memory, check_model
    from tokencodes.train.corpus import check_folder
    from tokencodes.train.run import open_together
    from tokencodes.train.run import train as train_run
    from tokencodes.train.settings import read_study
    from tokencodes.train.stop import Stop

    quiet()

    study, _ = read_study(preset, sets or [])
    run = study.chosen_run(arm, seed)
    if dry_run:
        _dry_run(run, peak_tflops, ranks, as_json)
        return
    if ranks > 1 or peak_tflops is not None:
        raise InputError(
            "--ranks and --peak-tflops belong to --dry-run; several ranks are begun by torchrun"
            " (see docs/training.md)"
        )
    world = join(run.engine.device)
    world.on_first(lambda: check_folder(out, run))
    if world.on_first(lambda: read_result(out)) is None:
        check_memory(run, world)
        world.on_first(lambda: check_model(run))  # before text is prepared
    watcher = observer(as_json, track, out)
    if replay is not None:
        with world.together():
            _replay(run, out, replay, as_json, world)
        return
    with Stop().listen() as stop, world.together():
        result = train_run(
            run, open_together(run.data, out, watcher.say, world), out, watcher, stop, world
        )
    if result is None:
        stopped(as_json, out)
        return
    values = {"done": True, "out": str(out), **result.model_dump(mode="json")}
    if result.divergence is not None:
        emit(as_json, values, f"{out}: the run has ended without a score; see {out}/result.json")
        raise CheckFailed(
            f"{out}: diverged in step {result.divergence.step}: {result.divergence.reason}"
        )
    score = (
        f"held-out loss {result.held_out_loss:.4f} nats per token, {result.bits_per_byte:.4f} bits"
        " a byte"
    )
    emit(as_json, values, f"{score}; see {out}/model")


def _dry_run(run: "RunConfig", peak_tflops: float | None, ranks: int, as_json: bool) -> None:
    from tokencodes.data.loader import rank_indices
    from tokencodes.train.cost import cost_of_run

    if peak_tflops is not None and not math.isfinite(peak_tflops):
        raise InputError(f"--peak-tflops {peak_tflops}: a rate in TFLOP/s, such as 400")
    rank_indices(0, run.batch.global_batch_size, 0, ranks)
    facts = cost_of_run(run)
    hours = facts.flops / (peak_tflops * 1e12) / 3600 if peak_tflops else None
    state = facts.state_bytes_of_a_rank(run, ranks, 8)
    memory = state + facts.activation_bytes
    counts = (memory, state, facts.activation_bytes, facts.activation_bytes_recomputed)
    whole, state_gb, kept, fewer = (significant(count / 1e9) for count in counts)
    where = f"each of {ranks} ranks, {run.engine.sharding}" if ranks > 1 else "one process"
    rows: dict[str, str] = {
        "parameters": f"{facts.total_parameters:,} ({facts.input_parameters:,} of the input)",
        f"memory of {where}, {run.engine.precision}": (
            f"{whole} GB: state {state_gb}, activations of a micro batch "
            f"{kept} (were all blocks recomputed: {fewer})"
        ),
        "steps": (
            f"{facts.steps:,}, each of {run.batch.global_batch_size:,} windows,"
            f" {run.tokens_per_step:,} tokens"
        ),
        "tokens": f"{facts.tokens:,}",
        "FLOPs": f"{facts.flops:.3e}, {facts.flops_per_token:,} a token",
    }
    if hours is not None:
        rows[f"time at {peak_tflops:g} TFLOP/s"] = f"{significant(hours)} hours"
    table = Table("", "", title=f"{run.arm}, seed {run.seed}: nothing is trained")
    for name, value in rows.items():
        table.add_row(name, value)
    emit(
        as_json,
        {**asdict(facts), "memory_bytes": memory, "flops": facts.flops, "hours_at_peak": hours},
        table,
    )


def _replay(run: "RunConfig", out: Path, step: int, as_json: bool, world: "World") -> None:
    from tokencodes.train.ledger import corpus_of
    from tokencodes.train.replay import replay as compute_again

    if not (out / "config.toml").is_file():
        raise InputError(f"{out}: no run is here to replay a step of; name its folder by --out")
    replayed = compute_again(run, corpus_of(out, run), out, step, world)
    exact = (
        "to the last bit"
        if replayed.otherwise is None
        else f"to rounding (its {replayed.otherwise} was another)"
    )
    same = {
        True: f"the same, {exact}",
        False: f"ANOTHER: {replayed.logged_loss!r}, norm {replayed.logged_grad_norm!r}",
        None: "none",
    }[replayed.agrees]
    message = (
        f"step {replayed.step}, computed from the state after step {replayed.began_after}: loss"
        f" {replayed.loss!r}, gradient norm"
        f" {replayed.grad_norm!r}{'' if replayed.finite else ' (NOT FINITE)'}; in the log: {same}"
    )
    plain = {
        key: value if math.isfinite(value) else str(value)
        for key, value in replayed.grad_norm_parts.items()
    }
    values = {**asdict(replayed), "grad_norm_parts": plain, "agrees": replayed.agrees}
    emit(
        as_json,
        {
            k: str(v) if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in values.items()
        },
        message,
    )
    if replayed.agrees is False:
        raise CheckFailed(
            f"{out}: step {step} is not what was logged: loss {replayed.loss!r} and gradient norm"
            f" {replayed.grad_norm!r},"
            f" logged {replayed.logged_loss!r} and {replayed.logged_grad_norm!r}"
        )


@app.command()
def report(
    study: Annotated[Path, typer.Argument(help="A study's folder.")], as_json: Json = False
) -> None:
    """Rebuild report.html from the results on disk."""
    from tokencodes.report.page import write_report

    report_file, _ = write_report(study)
    emit(as_json, {"report": str(report_file)}, f"Report: {report_file}")


@app.command()
def params(preset: Preset, sets: Sets = None, as_json: Json = False) -> None:
    """Show parameters, buffers, memory, steps and FLOPs of every arm, without training."""
    from tokencodes.train.cost import cost_of_arms
    from tokencodes.train.settings import read_study

    study, _ = read_study(preset, sets or [])
    arms = cost_of_arms(study)
    table = Table("", *arms, title=f"{preset}: float32 training state, counted on the meta device")
    for key in next(iter(arms.values())):
        values = [facts[key] for facts in arms.values()]
        cells = [significant(value) if isinstance(value, float) else value for value in values]
        table.add_row(
            key.replace("_", " "),
            *(f"{cell:,}" if isinstance(cell, int) else str(cell or "-") for cell in cells),
        )
    emit(as_json, {"preset": preset, "arms": arms}, table)


@config_app.command("show")
def config_show(preset: Preset, sets: Sets = None, as_json: Json = False) -> None:
    """Show every value of a configuration, its origin and its meaning."""
    from tokencodes.train.settings import descriptions, flatten, read_study

    study, origins = read_study(preset, sets or [])
    values = flatten(study.model_dump(mode="json"))
    meanings = descriptions(type(study), study)
    table = Table("key", "value", "origin", "meaning", title=preset)
    for key, value in values.items():
        table.add_row(key, "not set" if value is None else str(value), origins[key], meanings[key])
    emit(
        as_json,
        {
            key: {"value": value, "origin": origins[key], "meaning": meanings[key]}
            for key, value in values.items()
        },
        table,
    )


@config_app.command("presets")
def config_presets(as_json: Json = False) -> None:
    """List the presets in the package."""
    from tokencodes.train.settings import preset_names

    emit(as_json, {"presets": preset_names()}, preset_names())
