"""Measures how the cost of a token grows with V, T and d, and compares it with the FLOPs that
`cost` counts.

    OMP_WAIT_POLICY=PASSIVE python bench/scaling.py --out docs/scaling [--dataset FOLDER ...]
    [--quick]

The base is `nano`'s shape (V 3,072, T 256, d 192, 4 blocks, heads of 64, SwiGLU of 8/3 d). One axis
changes at a time. Each step has 2,048 tokens and does what the trainer does (loss, backward, norm
and clip, fused AdamW), on the `binary` arm. The sizes of an axis run in turn. The ids come from
prepared text, folded or spread into each vocabulary (see `timing.RealIds`).

The slope between two neighbours is d log(seconds per token) / d log(size). The theoretical slope is
that of the FLOPs. A larger measured slope means work that FLOPs do not count (memory, small
matrices). A smaller measured slope means a cost that did not grow (overhead).
"""

import argparse
import csv
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from timing import Rates, RealIds, Step, in_turn, machine, markdown, measure_rates, spread

from tokencodes.report.figures import COLOURS, MARKERS, STYLE
from tokencodes.train.config import RunConfig
from tokencodes.train.cost import cost_of_run
from tokencodes.train.settings import read_study

TOKENS, HEAD = 2048, 64
AXES = {
    "V": (1024, 3072, 8192, 16384, 32768, 65536),
    "T": (64, 128, 256, 512, 1024, 2048),
    "d": (64, 128, 192, 256, 384, 512, 768),
}
SHORT = {"V": (1024, 8192), "T": (64, 256), "d": (64, 192)}
NAMES = {"V": "vocabulary V", "T": "context T", "d": "width d"}


@dataclass(frozen=True)
class Point:
    """Holds one size of one axis: seconds per token (median, least, largest), and FLOPs per token
    by `cost`.
    """

    axis: str
    size: int
    seconds: float
    low: float
    high: float
    flops: int


def run_of(axis: str, size: int) -> RunConfig:
    """Returns the configuration of nano's shape with one size changed."""
    sizes = {"V": 3072, "T": 256, "d": 192, axis: size}
    width = sizes["d"]
    values = {
        "data.vocab_size": sizes["V"],
        "model.context_length": sizes["T"],
        "model.hidden_size": width,
        "model.intermediate_size": width * 8 // 3,
        "model.num_attention_heads": width // HEAD,
    }
    return read_study("nano", [f"{key}={value}" for key, value in values.items()])[0].run(
        "binary", 1
    )


def measure(axis: str, sizes: tuple[int, ...], ids: RealIds, rounds: int) -> list[Point]:
    """Measures the sizes of one axis in turn."""
    works = {}
    for size in sizes:
        run = run_of(axis, size)
        step, windows = (
            Step(run),
            ids.windows(run.data.vocab_size, TOKENS, run.model.context_length),
        )
        works[str(size)] = lambda step=step, windows=windows: step(windows)
    points = []
    for size, times in in_turn(works, rounds).items():
        median, low, high = (value / TOKENS for value in spread(times))
        points.append(
            Point(
                axis,
                int(size),
                median,
                low,
                high,
                cost_of_run(run_of(axis, int(size))).flops_per_token,
            )
        )
        print(
            f"{axis} {int(size):6,}: {1 / median:9,.0f} tokens/s,"
            f" {points[-1].flops / median / 1e9:6.1f} GFLOP/s",
            flush=True,
        )
    return points


def slope(first: Point, second: Point, key: str) -> float:
    """Returns the slope of seconds or FLOPs per token between two points."""
    return math.log(getattr(second, key) / getattr(first, key)) / math.log(second.size / first.size)


def fitted(points: list[Point], key: str) -> float:
    """Returns the least-squares slope of all points of one axis."""
    return float(
        np.polyfit(np.log([p.size for p in points]), np.log([getattr(p, key) for p in points]), 1)[
            0
        ]
    )


def lines(axes: dict[str, list[Point]], peak: float) -> list[list[str]]:
    """Returns the rows of the table."""
    rows = []
    for axis, points in axes.items():
        for before, point in zip([None, *points[:-1]], points, strict=True):
            slopes = [
                f"{slope(before, point, key):.2f}" if before else "" for key in ("seconds", "flops")
            ]
            speed = f"{1 / point.seconds:,.0f} ({1 / point.high:,.0f} to {1 / point.low:,.0f})"
            share = f"{point.flops / point.seconds / peak:.0%}"
            costs = f"{1e6 * point.seconds:,.0f}", f"{point.flops / 1e6:,.1f}"
            rows.append([f"{axis} {point.size:,}", speed, *costs, share, *slopes])
        slopes = [f"**{fitted(points, key):.2f}**" for key in ("seconds", "flops")]
        rows.append([f"**{axis}, all**", "", "", "", "", *slopes])
    return rows


def plot(axes: dict[str, list[Point]]) -> Figure:
    """Plots microseconds per token for each axis, and the FLOPs' curve through the largest size."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 9.0), layout="constrained")
        places = figure.subplots(len(axes), 1)
    for index, (place, (axis, points)) in enumerate(zip(places, axes.items(), strict=True)):
        sizes, micro = [p.size for p in points], [1e6 * p.seconds for p in points]
        around = [
            [1e6 * (p.seconds - p.low) for p in points],
            [1e6 * (p.high - p.seconds) for p in points],
        ]
        theory = [micro[-1] * p.flops / points[-1].flops for p in points]
        look = {"color": COLOURS[index + 1], "marker": MARKERS[index], "markersize": 6}
        label = f"measured, slope {fitted(points, 'seconds'):.2f}"
        place.errorbar(
            sizes, micro, yerr=around, linewidth=1.4, elinewidth=0.9, label=label, **look
        )
        counted = f"FLOPs, slope {fitted(points, 'flops'):.2f}"
        place.plot(sizes, theory, color="#000000", linestyle="--", linewidth=1.2, label=counted)
        place.set(xscale="log", yscale="log", xlabel=NAMES[axis], ylabel="microseconds\nper token")
        place.set_xticks(sizes, [f"{size:,}" for size in sizes])
        place.tick_params(axis="x", labelsize=10)
        low, high = (
            min(*theory, *(1e6 * p.low for p in points)) / 1.2,
            max(1e6 * p.high for p in points),
        )
        high = max(1.8 * high, 3 * low)  # room for the legend
        steps = (1, 2, 5) if high > 8 * low else (1, 1.5, 2, 3, 4, 6, 8)
        ticks = [
            tick
            for tick in (factor * 10**e for e in range(5) for factor in steps)
            if low <= tick <= high
        ]
        place.set_ylim(low, high)
        place.set_yticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        place.margins(x=0.07)
        place.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        place.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        place.legend(frameon=False, fontsize=10.5, loc="upper left")
    return figure


def write(out: Path, axes: dict[str, list[Point]], rates: Rates) -> None:
    """Writes scaling.csv, scaling.md and scaling.png."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "scaling.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["axis", "size", "seconds_per_token", "low", "high", "flops_per_token"])
        writer.writerows(
            [p.axis, p.size, p.seconds, p.low, p.high, p.flops]
            for points in axes.values()
            for p in points
        )
    head = (
        "size|tokens/s|microseconds a token|MFLOP a token|share of the matmul rate|slope of"
        " time|slope of FLOPs"
    )
    text = f"""# How the cost of a token grows

Made by `bench/scaling.py`, whose head says what was measured.

{machine(rates)}

![scaling](scaling.png)

Medians, in brackets least and largest; slopes are to the row above. The dashed curve has the rate of the largest size.

{markdown(head, lines(axes, rates.matmul))}"""  # noqa: E501
    (out / "scaling.md").write_text(text, encoding="utf-8")
    plot(axes).savefig(out / "scaling.png", dpi=160)


def main() -> None:
    """Measures, and writes the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dataset", type=Path, nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as folder:
        ids, rates = (
            RealIds(options.dataset, Path(folder)),
            measure_rates(5 if options.quick else 21),
        )
        axes = {
            axis: measure(axis, sizes, ids, rounds)
            for axis, sizes in (SHORT if options.quick else AXES).items()
        }
    write(options.out, axes, rates)


if __name__ == "__main__":
    main()
