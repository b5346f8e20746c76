"""Measures what a learned input table costs against fixed codes: time, memory, checkpoint size and
gradient traffic. It also computes the batch size above which the time no longer matters.

    OMP_WAIT_POLICY=PASSIVE python bench/costs.py --out docs/costs [--dataset FOLDER ...] [--quick]

The arms differ only in the input. The rest of the model is: 4 blocks, heads of 64, SwiGLU of 4 d,
context 128, an untied head. A step does what the trainer does: loss, backward, norm and clip, fused
AdamW, with one micro batch. The arms run in turn in one process. Peak memory and the checkpoint are
measured in a fresh process for each arm.

The ids come from prepared text (embedded text if there is no --dataset). For a vocabulary other
than the text's own, the ids are folded (id mod V) or spread (id * V div V of the text), so the
frequencies stay real. The costs do not depend on this choice: the table's gradient is dense, so
each step clears, norms, clips and steps V d entries, whichever rows were looked up.

Crossover B*: let D be the seconds that a learned table adds to a step, and a + b B the seconds of
the `binary` arm with B tokens. From B* = (D / 0.02 - a) / b tokens on, the table costs less than
2 %. D is the median difference at the smallest batch. a and b come from a least-squares line. The
model of the times has no fitted number. Its D is 40 V d bytes / stream rate + 4 V d bytes / rate of
fresh memory (or stream rate, below 32 MiB). Its a is the same 40 bytes for each other parameter.
Its b is FLOPs per token / rate of a 2,048^3 float32 matmul. All rates are measured in the same run.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from timing import (
    Rates,
    RealIds,
    Step,
    high_water,
    in_turn,
    machine,
    markdown,
    measure_rates,
    seconds,
    spread,
)

from tokencodes import checkpoint
from tokencodes.report.figures import COLOURS, MARKERS, STYLE
from tokencodes.train.config import RunConfig
from tokencodes.train.cost import Cost, cost_of_run
from tokencodes.train.settings import read_study

ARMS = {"learned": "learned", "binary": "binary", "computed": "gf2:seed=12345,storage=computed"}
VOCABULARIES, WIDTHS, BATCHES = (3072, 12288, 49152, 131072), (64, 192, 512), (512, 2048, 8192)
# The pairs of V and d for which memory and checkpoint are measured.
CHILDREN = ((3072, 192), (49152, 192), (131072, 192), (49152, 512))
CONTEXT, HEAD, MOST = 128, 64, 0.02
STEADY = 40  # bytes that a step moves for one parameter: norm 4, clip 8, AdamW 28
CLEARED = 4  # bytes that a step first writes for a table entry: the zeros of its gradient
RECYCLED = 1 << 25  # bytes; the C library returns larger blocks and gets new pages for each


def run_of(vocab: int, width: int, arm: str) -> RunConfig:
    """Returns the configuration of one arm with vocabulary size V and width d."""
    shape = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": 4,
        "context_length": CONTEXT,
    }
    shape["num_attention_heads"] = max(1, width // HEAD)
    overrides = [f"model.{key}={value}" for key, value in shape.items()]
    interfaces = [f"arms.{name}.interface={spec}" for name, spec in ARMS.items()]
    return read_study("small", [f"data.vocab_size={vocab}", *overrides, *interfaces])[0].run(arm, 1)


def table_seconds(rates: Rates, entries: int) -> float:
    """Returns the seconds that a learned table of so many entries adds to a step, by the model."""
    size = CLEARED * entries
    return STEADY * entries / rates.stream + size / (
        rates.fresh if size > RECYCLED else rates.stream
    )


def line(rates: Rates, fixed: Cost) -> tuple[float, float]:
    """Returns, by the model, a (seconds of a step without a table) and b (seconds per token)."""
    return STEADY * fixed.total_parameters / rates.stream, fixed.flops_per_token / rates.matmul


def crossover(added: float, start: float, slope: float) -> float:
    """Returns the tokens per step from which on a table costs less than MOST of the step."""
    return max(0.0, (added / MOST - start) / slope)


@dataclass
class Shape:
    """Holds one pair of V and d: the costs of each arm, and its seconds for each batch."""

    vocab: int
    width: int
    accounts: dict[str, Cost]
    times: dict[int, dict[str, list[float]]]

    def ratios(self, batch: int, arm: str) -> tuple[float, float, float]:
        """Returns the seconds of an arm divided by those of `binary` in the same round: median,
        least, largest.
        """
        return spread(
            [
                a / b
                for a, b in zip(self.times[batch][arm], self.times[batch]["binary"], strict=True)
            ]
        )

    def predicted(self, batch: int, rates: Rates) -> float:
        """Returns the model's ratio of learned to fixed."""
        start, slope = line(rates, self.accounts["binary"])
        return 1 + table_seconds(rates, self.accounts["learned"].input_parameters) / (
            start + slope * batch
        )

    def crossovers(self, rates: Rates) -> tuple[float | None, float]:
        """Returns the fitted B* (None if there is only one batch) and the B* of the model."""
        added = table_seconds(rates, self.accounts["learned"].input_parameters)
        modelled = crossover(added, *line(rates, self.accounts["binary"]))
        if len(self.times) < 2:
            return None, modelled
        medians = {batch: spread(times["binary"])[0] for batch, times in self.times.items()}
        slope, start = np.polyfit(list(medians), list(medians.values()), 1)
        first = self.times[min(self.times)]
        added = spread([a - b for a, b in zip(first["learned"], first["binary"], strict=True)])[0]
        return crossover(added, start, slope), modelled


def measure_shape(vocab: int, width: int, ids: RealIds, options: argparse.Namespace) -> Shape:
    """Measures all arms in turn, for each batch within the limit of FLOPs per step."""
    accounts = {arm: cost_of_run(run_of(vocab, width, arm)) for arm in ARMS}
    shape = Shape(vocab, width, accounts, {})
    steps = {arm: Step(run_of(vocab, width, arm)) for arm in ARMS}
    for batch in options.batches:
        if (
            batch == min(options.batches)
            or batch * accounts["binary"].flops_per_token <= options.flops
        ):
            shape.times[batch] = measure_batch(steps, ids.windows(vocab, batch, CONTEXT), options)
            median, low, high = shape.ratios(batch, "learned")
            fixed, rounds = (
                spread(shape.times[batch]["binary"])[0],
                len(shape.times[batch]["binary"]),
            )
            print(
                f"V {vocab:7,}  d {width:4}  B {batch:5,}  {rounds:2} rounds  binary"
                f" {1e3 * fixed:8.1f} ms  learned {median:.3f} ({low:.3f} to {high:.3f})  computed"
                f" {shape.ratios(batch, 'computed')[0]:.3f}",
                flush=True,
            )
    return shape


def measure_batch(
    steps: dict[str, Step], windows: torch.Tensor, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Returns the seconds of each arm on the same windows. The time limit sets the number of
    rounds.
    """
    works = {arm: lambda step=step: step(windows) for arm, step in steps.items()}
    once = min(seconds(works["binary"]) for _ in range(2))
    return in_turn(works, int(min(25, max(options.rounds, options.seconds / (len(ARMS) * once)))))


def child(vocab: int, width: int, arm: str, ids_file: Path) -> None:
    """Runs four steps in this process, then writes a real checkpoint. Prints memory and sizes in
    bytes as JSON.
    """
    windows = torch.from_numpy(np.load(ids_file))
    before = high_water()
    step = Step(run_of(vocab, width, arm))
    for _ in range(4):
        step(windows)
    peak = high_water()
    state = [
        t
        for parameter_state in step.optimizer.state.values()
        for t in parameter_state.values()
        if isinstance(t, torch.Tensor)
    ]
    with tempfile.TemporaryDirectory() as folder:
        train_state = checkpoint.TrainState(
            step=4, tokens=4 * windows[:, 1:].numel(), dataset_fingerprint="", tokenizer_sha256=""
        )
        tensors = checkpoint.tensors_of(step.model, step.optimizer)
        content = checkpoint.Content(tensors, step.model.config, train_state, windows.numpy())
        saved = checkpoint.write(checkpoint.CheckpointPolicy(Path(folder)), content)
        written = sum(file.stat().st_size for file in saved.rglob("*") if file.is_file())
    optimizer = sum(tensor.numel() * tensor.element_size() for tensor in state)
    print(
        json.dumps({"before": before, "peak": peak, "optimizer": optimizer, "checkpoint": written})
    )


def measure_children(shapes: list[Shape], ids: RealIds, workplace: Path) -> list[dict]:
    """Returns peak memory and checkpoint size of each arm at the shapes in CHILDREN."""
    measurements = []
    for shape in (
        candidate for candidate in shapes if (candidate.vocab, candidate.width) in CHILDREN
    ):
        file = workplace / "ids.npy"
        np.save(file, ids.windows(shape.vocab, 512, CONTEXT).numpy())
        for arm in ARMS:
            command = [
                sys.executable,
                __file__,
                "--child",
                str(shape.vocab),
                str(shape.width),
                arm,
                str(file),
            ]
            answer = json.loads(
                subprocess.run(command, capture_output=True, check=True, text=True).stdout
            )
            measurements.append({"vocab": shape.vocab, "width": shape.width, "arm": arm, **answer})
            print(f"V {shape.vocab:7,}  d {shape.width:4}  {arm:9} {answer}", flush=True)
    return measurements


def rows(shapes: list[Shape], rates: Rates) -> list[dict]:
    """Returns one row for each V, d, B and arm."""
    records = []
    for shape in shapes:
        for batch, times in shape.times.items():
            for arm, facts in shape.accounts.items():
                ratio, low, high = shape.ratios(batch, arm)
                row = {
                    "vocab": shape.vocab,
                    "width": shape.width,
                    "batch": batch,
                    "arm": arm,
                    "seconds": spread(times[arm])[0],
                }
                row |= {
                    "ratio": ratio,
                    "ratio_low": low,
                    "ratio_high": high,
                    "rounds": len(times[arm]),
                }
                row["modelled_ratio"] = shape.predicted(batch, rates) if arm == "learned" else ""
                row |= {
                    "parameters": facts.total_parameters,
                    "flops": facts.flops_per_token * batch,
                }
                records.append(row)
    return records


def step_lines(shapes: list[Shape], rates: Rates) -> list[list[str]]:
    """Returns the table rows with seconds and ratios."""
    table_lines = []
    for shape in shapes:
        for batch, times in shape.times.items():
            three = [shape.ratios(batch, arm) for arm in ("learned", "computed")]
            ratios = [f"{median:.3f} ({low:.3f} to {high:.3f})" for median, low, high in three]
            cells = [
                f"{shape.vocab:,}",
                str(shape.width),
                f"{batch:,}",
                f"{1e3 * spread(times['binary'])[0]:,.1f}",
            ]
            table_lines.append(
                [*cells, ratios[0], f"{shape.predicted(batch, rates):.3f}", ratios[1]]
            )
    return table_lines


def size_lines(shapes: list[Shape], rates: Rates) -> list[list[str]]:
    """Returns the table rows with the sizes (learned / fixed) that do not depend on the batch, and
    B*.
    """
    table_lines = []
    for shape in shapes:
        table, fixed = shape.accounts["learned"], shape.accounts["binary"]
        fitted, modelled = shape.crossovers(rates)
        pairs = [
            (cost.optimizer_bytes, 3 * cost.weight_bytes + cost.buffer_bytes, cost.gradient_bytes)
            for cost in (table, fixed)
        ]
        sizes = [f"{a / 1e6:,.1f} / {b / 1e6:,.1f}" for a, b in zip(*pairs, strict=True)]
        share = f"{table.input_parameters / table.total_parameters:.1%}"
        flops = f"{fixed.flops_per_token / 1e6:,.1f}"
        stars = ["one batch only" if fitted is None else f"{fitted:,.0f}", f"{modelled:,.0f}"]
        table_lines.append([f"{shape.vocab:,}", str(shape.width), share, *sizes, flops, *stars])
    return table_lines


def memory_lines(memory: list[dict], shapes: list[Shape]) -> list[list[str]]:
    """Returns the table rows that compare the memory of fresh processes with the formulas: 16 bytes
    for a trained parameter, 12 of them in a checkpoint.
    """
    accounts = {(shape.vocab, shape.width): shape.accounts for shape in shapes}
    table_lines = []
    for record in memory:
        facts = accounts[record["vocab"], record["width"]][record["arm"]]
        formula = 3 * facts.weight_bytes + facts.buffer_bytes
        cells = [f"{record['vocab']:,}", str(record["width"]), record["arm"]]
        sizes = [
            record["peak"] - record["before"],
            facts.state_bytes,
            record["optimizer"],
            record["checkpoint"],
            formula,
        ]
        table_lines.append(
            [
                *cells,
                *(f"{size / 1e6:,.1f}" for size in sizes),
                f"{record['checkpoint'] / formula - 1:+.2%}",
            ]
        )
    return table_lines


def paper_text(rates: Rates) -> str:
    """Returns the text about the paper's shape, by formula: two devices, 8 micro batches of 8
    windows each per step, the whole table on both devices.
    """
    study = read_study("paper", [])[0]
    table, fixed = (cost_of_run(study.run(arm, 1)) for arm in ("learned", "binary"))
    parts, tokens = 8, study.batch.global_batch_size * study.model.context_length // 2
    moved = (
        (STEADY + CLEARED * parts + 12 * (parts - 1)) * table.input_parameters,
        tokens * fixed.flops_per_token,
    )
    cases = {
        "4e14 FLOP/s and 3e12 bytes/s (assumed)": (4e14, 3e12),
        "this machine's rates": (rates.matmul, rates.stream),
    }
    lines = [
        [
            name,
            f"{moved[0] / stream:.3g}",
            f"{moved[1] / matmul:.4g}",
            f"{moved[0] / stream / (moved[1] / matmul):.4%}",
        ]
        for name, (matmul, stream) in cases.items()
    ]
    entries = table.input_parameters
    pairs = [
        (16 * entries, table.state_bytes),
        (12 * entries, 3 * table.weight_bytes),
        (4 * entries, table.gradient_bytes),
    ]
    state, saved, reduced = (f"{part / 1e9:.2f} of {whole / 1e9:.2f} GB" for part, whole in pairs)
    return f"""V 49,152, d 2,048, 24 blocks, {tokens:,} tokens a device and step in {parts} micro batches (each clears and
adds a dense gradient of the table), nothing recomputed. The table is {entries / table.total_parameters:.1%} of the trained
parameters, and as much of what goes with them at any batch: {state} of training state, {saved} of a checkpoint,
{reduced} of the gradients that a step reduces.

{markdown("rates|table, s a step|all else, s a step|share", lines)}"""  # noqa: E501


def write(out: Path, shapes: list[Shape], memory: list[dict], rates: Rates) -> None:
    """Writes costs.csv, memory.csv, costs.md and costs.png."""
    out.mkdir(parents=True, exist_ok=True)
    for name, records in (("costs.csv", rows(shapes, rates)), ("memory.csv", memory)):
        with (out / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(records[0]) if records else ["vocab"])
            writer.writeheader()
            writer.writerows(records)
    bound = (STEADY + CLEARED) * rates.matmul / (6 * MOST * rates.stream)
    steps = "V|d|B, tokens|binary, ms|learned|by the model|computed"
    sizes = (
        "V|d|table's share of parameters|optimizer|checkpoint|gradient traffic|MFLOP a token|B*"
        " fitted|B* by the model"
    )
    fresh = (
        "V|d|arm|peak above imports|training state by formula|optimizer|checkpoint written|by"
        " formula|difference"
    )
    text = f"""# What a learned input table costs

Made by `bench/costs.py`, whose head says what was measured and how B* is defined.

{machine(rates)}

![extra time of a learned table](costs.png)

## A step

Ratios to `binary` of the same round: median (least to largest). `computed` is `gf2` computed from ids, without a codebook.

{markdown(steps, step_lines(shapes, rates))}
## Sizes by formula, and where time stops mattering

MB, learned / binary. A checkpoint is 12 bytes for a trained parameter and the buffers; a data-parallel step reduces 4 each.
B*: tokens a step from which on a table takes less than {MOST:.0%} of it. Bytes do not fall with the batch; they go as V d.

{markdown(sizes, size_lines(shapes, rates))}
The untied head alone takes 6 V d FLOPs per token. So B* by the model is below {STEADY + CLEARED} / (6 x {MOST:g}) x matmul rate
/ stream rate = {bound:,.0f} tokens, whatever V and d, where the table's gradient is not fresh memory (above 32 MiB here).

## Measured in fresh processes (MB)

{markdown(fresh, memory_lines(memory, shapes))}
## The paper's shape: by formula, not measured

{paper_text(rates)}"""  # noqa: E501
    (out / "costs.md").write_text(text, encoding="utf-8")
    plot(shapes, rates).savefig(out / "costs.png", dpi=160)


def plot(shapes: list[Shape], rates: Rates) -> Figure:
    """Plots the extra time against the batch size, and the measured extra time against the model.
    Each V has a colour and each d has a marker.
    """
    vocabularies, widths = (
        sorted({getattr(shape, key) for shape in shapes}) for key in ("vocab", "width")
    )
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 8.2), layout="constrained")
        upper, lower = figure.subplots(2, 1)
    for shape in shapes:
        look = {
            "color": COLOURS[vocabularies.index(shape.vocab)],
            "marker": MARKERS[widths.index(shape.width)],
            "markersize": 6,
        }
        percent = np.array(
            [
                [100 * (ratio - 1) for ratio in shape.ratios(batch, "learned")]
                for batch in shape.times
            ]
        )
        modelled = [100 * (shape.predicted(batch, rates) - 1) for batch in shape.times]
        upper.plot(list(shape.times), percent[:, 0], linewidth=1.1, **look)
        around = np.abs(percent[:, 1:] - percent[:, :1]).T
        lower.errorbar(
            modelled, percent[:, 0], yerr=around, linestyle="none", elinewidth=0.8, **look
        )
    upper.set(
        xscale="log", xlabel="tokens per step", ylabel="learned table: extra time\nper step (%)"
    )
    upper.set_xticks(sorted({batch for shape in shapes for batch in shape.times}))
    upper.text(
        0.99,
        115 * MOST,
        f"{MOST:.0%}",
        transform=upper.get_yaxis_transform(),
        ha="right",
        fontsize=10,
    )
    lower.set(
        xscale="log", xlabel="extra time by the model (%)", ylabel="measured (%), with its range"
    )
    lower.plot(*[lower.get_xlim()] * 2, color="#808080", linewidth=1, zorder=0)
    for axes in (upper, lower):
        axes.set_yscale("symlog", linthresh=1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(
                matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,g}")
            )
            axis.set_minor_locator(matplotlib.ticker.NullLocator())
        axes.axhline(100 * MOST, color="#808080", linestyle="--", linewidth=1, zorder=0)
    for index, (vocab, width) in enumerate(
        zip_longest(vocabularies, widths)
    ):  # a column of the legend each
        upper.plot(
            [], [], color=COLOURS[index], linewidth=3, label=f"V {vocab:,}" if vocab else None
        )
        upper.plot(
            [],
            [],
            color="#555555",
            marker=MARKERS[index],
            linestyle="none",
            label=f"d {width}" if width else None,
        )
    figure.legend(
        loc="outside upper center",
        ncols=4,
        fontsize=9.5,
        frameon=False,
        columnspacing=1.0,
        handlelength=1.2,
    )
    return figure


def main() -> None:
    """Measures, and writes costs.csv, memory.csv, costs.md and costs.png."""
    if "--child" in sys.argv:
        vocab, width, arm, file = sys.argv[2:]
        child(int(vocab), int(width), arm, Path(file))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dataset", type=Path, nargs="*", default=[])
    parser.add_argument("--vocabularies", type=int, nargs="*", default=VOCABULARIES)
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS)
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    parser.add_argument(
        "--flops",
        type=float,
        default=4e11,
        help="limit of FLOPs per step; larger points are not measured",
    )
    parser.add_argument("--rounds", type=int, default=3, help="least number of rounds")
    parser.add_argument(
        "--seconds",
        type=float,
        default=8.0,
        help="time for each point, if it allows more rounds than --rounds",
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.vocabularies, options.widths, options.flops, options.rounds, options.seconds = (
            (3072, 49152),
            (64, 192),
            8e10,
            2,
            1.0,
        )
    with tempfile.TemporaryDirectory() as folder:
        ids = RealIds(options.dataset, Path(folder))
        rates = measure_rates(5 if options.quick else 21)
        shapes = [
            measure_shape(vocab, width, ids, options)
            for width in options.widths
            for vocab in options.vocabularies
        ]
        memory = measure_children(shapes, ids, Path(folder))
        write(options.out, shapes, memory, rates)


if __name__ == "__main__":
    main()
