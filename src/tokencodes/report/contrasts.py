"""A contrast of two evaluations: its table, a forest plot, and a page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from tokencodes.evaluate.audit import title_of
from tokencodes.evaluate.suites import EMBEDDED
from tokencodes.evaluate.verdicts import ACCURACIES
from tokencodes.files import write_json, write_text
from tokencodes.report.figures import COLOURS, STYLE, WIDTH_INCHES, svg
from tokencodes.report.pages import rendered
from tokencodes.report.tables import Grid

NAMES = {
    "acc": "acc",
    "acc_norm": "acc_norm",
    "nats": "nats a document",
    "bits_per_byte": "bits per byte",
}

COMMON = (
    "With a star: pre-declared endpoints. p of the difference and p within margin are adjusted, by"
    " Holm among these, by Benjamini and Hochberg among the rest; intervals are of one metric each."
    " Detectable: what would be found with a power of 0.8 as the first of so many tests. p within"
    " margin: of the difference being at least the declared margin. "
)
OVER_SEEDS = (
    COMMON
    + "Differences are other - base on the same documents, one a run seed, accuracies in percent"
    " points; intervals are t intervals over seeds."
)
OF_CHECKPOINTS = (
    COMMON
    + "Differences are other - base on the same documents, accuracies in percent points; intervals"
    " count documents that share a subject, a video or a source as one cluster. McNemar takes"
    " documents for independent, and its p is not adjusted."
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


def table_of(contrast: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one metric of one benchmark each, pre-declared endpoints marked with a
    star.
    """
    own = "each seed" if contrast["pairs"] > 1 else "McNemar p, raw"
    columns = [
        "benchmark",
        "metric",
        "documents (clusters)",
        contrast["base"],
        contrast["other"],
        "difference",
        "95 % interval",
        "p, adjusted",
        own,
    ]
    return [*columns, "detectable", "p within margin, adjusted", "says"], [
        _row(row) for row in contrast["contrasts"]
    ]


def _row(row: dict[str, Any]) -> list[str]:
    metric, difference = row["metric"], row["difference"]
    head = [title_of(row["benchmark"]), NAMES[metric] + (" *" if row["endpoint"] else "")]
    means = [scaled(metric, row["base"]), scaled(metric, row["other"])]
    interval = (
        "-"
        if difference["low"] is None
        else f"{scaled(metric, difference['low'], True)} to"
        f" {scaled(metric, difference['high'], True)}"
    )
    own = p_value(row["mcnemar"]["p"]) if row["mcnemar"] else "-"
    if row["differences"]:
        own = ", ".join(scaled(metric, value, True) for value in row["differences"])
    possible = row["detectable"] is not None and (metric not in ACCURACIES or row["detectable"] < 1)
    detectable = (
        scaled(metric, row["detectable"])
        if possible
        else "-"
        if row["detectable"] is None
        else "none"
    )
    rest = [p_value(row["adjusted"]), own, detectable, p_value(row["equivalence"]), row["says"]]
    drawn = (
        f"{difference['documents']:,} ({difference['clusters']:,})"
        if not row["differences"]
        else f"{len(row['differences'])} seeds"
    )
    return [*head, drawn, *means, scaled(metric, difference["estimate"], True), interval, *rest]


def forest(contrast: dict[str, Any]) -> str:
    """Paired differences with their intervals, the single seeds as dots: of accuracies in points,
    of bits per byte below. Hollow where no error could be told. Nats a document have no common
    scale, so they are in the table alone.
    """
    panels = [
        ([row for row in contrast["contrasts"] if row["metric"] in ACCURACIES], 100.0, "points")
    ]
    panels.append(
        (
            [row for row in contrast["contrasts"] if row["metric"] == "bits_per_byte"],
            1.0,
            "bits per byte",
        )
    )
    panels = [panel for panel in panels if panel[0]]
    if not panels:
        return ""
    sizes = [1.2 + 0.32 * len(rows) for rows, _, _ in panels]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, sum(sizes)))
        grid = figure.add_gridspec(len(panels), 1, height_ratios=sizes)
        for number, (rows, scale, unit) in enumerate(panels):
            axes = figure.add_subplot(grid[number])
            _forest_panel(axes, rows, scale)
            axes.set_xlabel(f"{contrast['other']} - {contrast['base']}, {unit}")
        figure.tight_layout()
    return svg(figure, "forest")


def _forest_panel(axes: Any, rows: list[dict[str, Any]], scale: float) -> None:
    for place, row in enumerate(reversed(rows)):
        difference, colour = row["difference"], COLOURS[1] if row["endpoint"] else COLOURS[7]
        inside = colour
        if difference["low"] is not None and difference["error"]:
            axes.plot(
                [scale * difference["low"], scale * difference["high"]],
                [place, place],
                color=colour,
                linewidth=1.6,
            )
        else:
            inside = "none"
        axes.plot(
            [scale * difference["estimate"]],
            [place],
            marker="s",
            markersize=6,
            color=colour,
            markerfacecolor=inside,
        )
        for value in row["differences"]:
            axes.plot(
                [scale * value], [place - 0.25], marker="o", markersize=3, color=colour, alpha=0.7
            )
    axes.set_yticks(
        range(len(rows)),
        [f"{title_of(row['benchmark'])} {NAMES[row['metric']]}" for row in reversed(rows)],
        fontsize=9,
    )
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.axvline(0, color="#444444", linewidth=1)
    axes.grid(axis="y", visible=False)


def grid_of(contrast: dict[str, Any]) -> Grid:
    """With what its columns mean. What each row says stands below the table on a page, where a
    sentence has room.
    """
    columns, rows = table_of(contrast)
    margins = contrast["margins"]
    note = (
        (OVER_SEEDS if contrast["pairs"] > 1 else OF_CHECKPOINTS)
        + f" Margins: {100 * margins['accuracy']:g} points, {margins['bits_per_byte']:g} bits per"
        " byte."
    )
    if not contrast["held_out"] and any(
        row["benchmark"] == EMBEDDED.name for row in contrast["contrasts"]
    ):
        note += (
            f" {EMBEDDED.title.capitalize()}: not known to be held out of training on both sides."
        )
    if contrast["not_told"]:
        note += f" Left out, because one cluster gives no error: {'; '.join(contrast['not_told'])}."
    return Grid(contrast["title"], columns, rows, 2, note, words=True)


def pairing_note(contrast: dict[str, Any]) -> str:
    """By what the evaluations of several seeds were paired."""
    if contrast["paired_by"] == "run seeds":
        return (
            "Pairs: by the run seed that each evaluation has on record. In each pair both models"
            " began from the same body and head and saw the same windows, by hash."
        )
    names = ", ".join(
        f"{Path(base).name} with {Path(other).name}" for base, other in contrast["paired"]
    )
    return (
        f"PAIRS BY FOLDER NAME ALONE ({names}): these evaluations name no run. Nothing shows that"
        " the two models of a pair began alike or saw the same data, nor that the models of a side"
        " differ in their seed alone."
    )


def sentences(contrast: dict[str, Any]) -> list[str]:
    """What each row says; endpoints come first."""
    return [
        f"{title_of(row['benchmark'])}, {NAMES[row['metric']]}: {row['says']}"
        for row in contrast["contrasts"]
    ]


def write_contrast(contrast: dict[str, Any], folder: Path) -> Path:
    """contrast.json, .md, .csv, .tex, forest.svg, contrast.html; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    grid, picture = grid_of(contrast), forest(contrast)
    grid.write(folder, "contrast")
    write_json(folder / "contrast.json", contrast)
    write_text(folder / "forest.svg", picture)
    models = (
        f"{contrast['models'][1]} - {contrast['models'][0]}"
        if contrast["pairs"] == 1
        else f"{contrast['pairs']} pairs of runs, by seed"
    )
    lead = [
        f"{models}, {contrast['dtype']}. What is claimed here is about {contrast['level']}, on one"
        f" set of requests ({contrast['requests_sha256'][:12]}, {contrast['context_length']:,}"
        " tokens read at once)."
    ]
    if contrast["pairs"] > 1:
        lead.append(pairing_note(contrast))
    caption = (
        "Paired differences with 95 % intervals; pre-declared endpoints in blue; hollow where no"
        " error can be told."
    )
    figures = [{"svg": picture, "caption": caption}] if picture else []
    grids, findings = [replace(grid, title="Every metric").without_words()], sentences(contrast)
    page = folder / "contrast.html"
    write_text(
        page,
        rendered(
            "sheet.html.j2",
            title=contrast["title"],
            lead=lead,
            findings=findings,
            figures=figures,
            grids=grids,
        ),
    )
    return page
