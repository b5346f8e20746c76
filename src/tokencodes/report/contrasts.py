"""A contrast of two evaluations: its table, a forest plot, and a page."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from tokencodes.evaluate.audit import title_of
from tokencodes.evaluate.verdicts import ACCURACIES
from tokencodes.files import write_json, write_text
from tokencodes.report.figures import COLOURS, STYLE, WIDTH_INCHES, svg
from tokencodes.report.pages import rendered
from tokencodes.report.tables import Grid

NAMES = {"acc": "acc", "acc_norm": "acc_norm", "nats": "nats a document", "bits_per_byte": "bits per byte"}

COMMON = (
    "With a star: pre-declared endpoints. p values are adjusted, by Holm among these, by Benjamini and Hochberg among the "
    "rest; intervals are of one metric each. Detectable: what would be found with a power of 0.8 as the first of so many "
    "tests. p within margin: of the difference being at least the declared margin. "
)
OVER_SEEDS = COMMON + (
    "Differences are other - base on the same documents, one a run seed, accuracies in percent points; intervals are t "
    "intervals over seeds."
)
OF_CHECKPOINTS = COMMON + (
    "Differences are other - base on the same documents, accuracies in percent points; intervals count documents that share a "
    "subject, a video or a source as one cluster. McNemar takes documents for independent."
)


def scaled(metric: str, value: float | None, sign: bool = False) -> str:
    """A number as people read it: accuracies in percent."""
    if value is None:
        return "-"
    mark = "+" if sign else ""
    return f"{value * 100:{mark}.2f}" if metric in ACCURACIES else f"{value:{mark}.4f}"


def p_value(value: float | None) -> str:
    """Of a test."""
    return "-" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def table_of(told: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one metric of one benchmark each, pre-declared endpoints marked with a star."""
    own = "each seed" if told["pairs"] > 1 else "McNemar p"
    columns = ["benchmark", "metric", told["base"], told["other"], "difference", "95 % interval", "p adjusted", own]
    return [*columns, "detectable", "p within margin", "says"], [_row(one) for one in told["contrasts"]]


def _row(one: dict[str, Any]) -> list[str]:
    metric, found = one["metric"], one["difference"]
    head = [title_of(one["benchmark"]), NAMES[metric] + (" *" if one["endpoint"] else "")]
    means = [scaled(metric, one["base"]), scaled(metric, one["other"])]
    interval = "-" if found["low"] is None else f"{scaled(metric, found['low'], True)} to {scaled(metric, found['high'], True)}"
    own = p_value(one["mcnemar"]["p"]) if one["mcnemar"] else "-"
    if one["differences"]:
        own = ", ".join(scaled(metric, value, True) for value in one["differences"])
    rest = [p_value(one["adjusted"]), own, scaled(metric, one["detectable"]), p_value(one["equivalence"]), one["says"]]
    return [*head, *means, scaled(metric, found["estimate"], True), interval, *rest]


def forest(told: dict[str, Any]) -> str:
    """Paired differences of accuracies in points with their intervals, and the single seeds as dots."""
    some = [one for one in told["contrasts"] if one["metric"] in ACCURACIES]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 1.2 + 0.32 * len(some)))
        axes = figure.add_subplot()
        for place, one in enumerate(reversed(some)):
            found, colour = one["difference"], COLOURS[1] if one["endpoint"] else COLOURS[7]
            if found["low"] is not None:
                axes.plot([100 * found["low"], 100 * found["high"]], [place, place], color=colour, linewidth=1.6)
            axes.plot([100 * found["estimate"]], [place], marker="s", markersize=6, color=colour)
            for value in one["differences"]:
                axes.plot([100 * value], [place - 0.25], marker="o", markersize=3, color=colour, alpha=0.7)
        names = [f"{title_of(one['benchmark'])} {one['metric']}" for one in reversed(some)]
        axes.set_yticks(range(len(some)), names, fontsize=9)
        axes.axvline(0, color="#444444", linewidth=1)
        axes.set_xlabel(f"{told['other']} - {told['base']}, points")
        axes.grid(axis="y", visible=False)
    return svg(figure, "forest")


def grid_of(told: dict[str, Any]) -> Grid:
    """With what its columns mean."""
    columns, rows = table_of(told)
    note = OVER_SEEDS if told["pairs"] > 1 else OF_CHECKPOINTS
    return Grid(told["title"], columns, rows, 2, note, words=True)


def write_contrast(told: dict[str, Any], folder: Path) -> Path:
    """contrast.json, .md, .csv, .tex, forest.svg, contrast.html; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    grid, picture = grid_of(told), forest(told)
    grid.write(folder, "contrast")
    write_json(folder / "contrast.json", told)
    write_text(folder / "forest.svg", picture)
    findings = [
        f"{title_of(one['benchmark'])}, {NAMES[one['metric']]}: {one['says']}" for one in told["contrasts"] if one["endpoint"]
    ]
    lead = [
        f"What is claimed here is about {told['level']}, on one set of requests ({told['requests_sha256'][:12]}, "
        f"{told['context']:,} tokens read at once)."
    ]
    figures = [{"svg": picture, "caption": "Paired differences with 95 % intervals; pre-declared endpoints in blue."}]
    page = folder / "contrast.html"
    write_text(
        page, rendered("sheet.html.j2", title=told["title"], lead=lead, findings=findings, figures=figures, grids=[grid])
    )
    return page
