"""The pictures of a report, as SVG text. Each arm has a colour, a dash and a marker, so that grey
prints can be read.
"""

import io
import warnings
from dataclasses import dataclass
from itertools import pairwise

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tokencodes.codes import Codebook
from tokencodes.escape import printable
from tokencodes.evaluate.statistics import PairedDifference
from tokencodes.report.results import StudyResult

# Small pages with large type: at a phone's width (about 350 px) a figure is shown at two thirds of
# its size.
WIDTH_INCHES = 5.4
STYLE = {
    "font.size": 11.5,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "text.parse_math": False,  # `$` in a name is a dollar
}
# Okabe and Ito's colours, ordered so that neighbours differ in lightness too.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#CC79A7", "#009E73", "#D55E00", "#56B4E9", "#808080")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
DIVERGED = "X"  # the marker of a run without a score
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True)
class Look:
    """How an arm is drawn."""

    colour: str
    dash: str | tuple[int, tuple[int, ...]]
    marker: str


def looks(arms: list[str]) -> dict[str, Look]:
    """A look for each arm, by its place in the study."""
    return {arm: Look(COLOURS[i % 8], DASHES[i % 8], MARKERS[i % 8]) for i, arm in enumerate(arms)}


def svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element that fits its place; ids are made from `name`, so that pages
    can hold several.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # text stays text, and the reader's fonts show it
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(
            buffer,
            format="svg",
            dpi=200,
            metadata={"Date": None},
            bbox_inches="tight",
            pad_inches=0.05,
        )
    text = buffer.getvalue()
    # control characters in a name are no XML
    return "\n".join(map(printable, text[text.index("<svg") :].split("\n")))


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_INCHES, height))
    return figure, figure.add_subplot()


@matplotlib.rc_context(STYLE)
def loss_curves(study: StudyResult) -> str:
    """Held-out loss against tokens, one line a seed; the n-gram baselines as level lines."""
    figure, axes = _axes(3.6)
    for arm, look in looks(study.arms).items():
        for number, run in enumerate(study.runs[arm].values()):
            axes.plot(
                [line.tokens / 1e3 for line in run.held_out],
                [line.loss for line in run.held_out],
                color=look.colour,
                linestyle=look.dash,
                marker=look.marker,
                markersize=5,
                linewidth=1.4,
                label=arm if number == 0 else None,
            )
            if run.result.diverged:
                stopped, edge = run.result.tokens / 1e3, axes.get_xaxis_transform()
                axes.plot(
                    [stopped],
                    [1.0],
                    DIVERGED,
                    color=look.colour,
                    markersize=9,
                    transform=edge,
                    clip_on=False,
                )
    for name in ("unigram", "bigram"):
        axes.axhline(
            getattr(study.ngram_baselines, name),
            color="#666666",
            linewidth=1,
            linestyle=(0, (2, 2)),
        )
        place = (1.0, getattr(study.ngram_baselines, name))
        axes.annotate(
            name, place, xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=10.5
        )
    # The start, near ln V in every arm, would flatten everything else: the lines come in from
    # above.
    runs = (
        run for arm in study.arms for run in study.runs[arm].values() if not run.result.diverged
    )
    later = [line.loss for run in runs for line in run.held_out[1:]]
    axes.set_ylim(top=max([study.ngram_baselines.unigram, *later]) + 0.3)
    axes.set_xlabel("tokens seen (thousands)")
    axes.set_ylabel("held-out loss (nats per token)")
    axes.legend(frameon=False, fontsize=10.5, handlelength=3.2)
    return svg(figure, "curves")


@matplotlib.rc_context(STYLE)
def final_losses(study: StudyResult) -> str:
    """Every seed a dot, the mean a bar."""
    arms = study.arms
    figure, axes = _axes(0.9 + 0.55 * len(arms))
    for row, (arm, look) in enumerate(looks(arms).items()):
        values = study.values(arm, "held_out_loss")
        lost = len(study.runs[arm]) - len(values)
        if lost:
            edge = axes.get_yaxis_transform()
            axes.plot(
                [1.0],
                [row],
                DIVERGED,
                color=look.colour,
                markersize=9,
                transform=edge,
                clip_on=False,
            )
            corner = (1.0, row - 0.3)
            axes.annotate(
                f"{lost} diverged", corner, xycoords=edge, ha="right", va="bottom", fontsize=10.5
            )
        if arm not in study.scored:
            continue
        axes.plot(
            values,
            np.full(len(values), row),
            look.marker,
            color=look.colour,
            markersize=7,
            fillstyle="none",
            mew=1.6,
        )
        axes.plot([values.mean()] * 2, [row - 0.28, row + 0.28], color=look.colour, linewidth=2.4)
        axes.annotate(
            f"{values.mean():.3f}",
            (values.mean(), row - 0.3),
            ha="center",
            va="bottom",
            fontsize=10.5,
        )
    axes.set_yticks(range(len(arms)), arms)
    axes.set_ylim(len(arms) - 0.5, -0.75)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("held-out loss (nats per token); lower is better")
    return svg(figure, "final")


@matplotlib.rc_context(STYLE)
def differences(study: StudyResult, pairs: list[PairedDifference]) -> str:
    """Differences to the baseline by seed, with the t interval of their mean where there is one."""
    figure, axes = _axes(0.9 + 0.6 * len(pairs))
    drawn = looks(study.arms)
    for row, pair in enumerate(pairs):
        look = drawn[pair.arm]
        count = len(pair.differences)
        axes.plot(
            pair.differences,
            np.full(count, row),
            look.marker,
            color=look.colour,
            markersize=7,
            fillstyle="none",
            mew=1.6,
        )
        if pair.low is not None and pair.high is not None:
            axes.plot(
                [pair.low, pair.high],
                [row + 0.25] * 2,
                color=look.colour,
                linewidth=1.6,
                marker="|",
                markersize=9,
            )
            axes.plot([pair.mean], [row + 0.25], look.marker, color=look.colour, markersize=6)
    axes.axvline(0, color="#000000", linewidth=1)
    axes.set_yticks(
        range(len(pairs)), [f"{pair.arm}\n- {pair.baseline}" for pair in pairs], fontsize=10
    )
    axes.set_ylim(len(pairs) - 0.4, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("difference in held-out loss (nats per token)")
    return svg(figure, "differences")


@matplotlib.rc_context(STYLE)
def draw_codebook(book: Codebook, hidden_size: int, name: str) -> str:
    """A codebook twice: the first 64 tokens, and all tokens in 128 bins; below, how long the input
    vectors are.
    """
    count, bits = len(book.words_VK), book.spec.binary_valued
    first, bins = min(64, count), min(128, count)
    edges = np.linspace(0, count, bins + 1).astype(int)
    means = np.stack([book.words_VK[a:b].mean(0) for a, b in pairwise(edges)])
    norms = book.squared_norms(hidden_size)
    figure = Figure(figsize=(WIDTH_INCHES, 4.6), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, height_ratios=(1, 1, 0.9))
    low, high = (0, 1) if bits else (-2, 2)
    look = {
        "cmap": "Greys",
        "vmin": low,
        "vmax": high,
        "aspect": "auto",
        "interpolation": "nearest",
        "origin": "lower",
    }
    top.imshow(book.words_VK[:first].T, **look, extent=(-0.5, first - 0.5, -0.5, book.width - 0.5))
    middle.imshow(means.T, **look, extent=(0, count, -0.5, book.width - 0.5))
    axis = "bit" if bits else "coordinate"
    top.set(xlabel=f"token id, the first {first}", ylabel=axis)
    middle.set(xlabel=f"token id, all {count:,} (mean of each bin)", ylabel=axis)
    for axes in (top, middle):
        axes.grid(visible=False)
    levels, counts = np.unique(norms.round(9), return_counts=True)
    if len(levels) > 60:
        counts, ends = np.histogram(norms, bins=40)
        levels = (ends[1:] + ends[:-1]) / 2
    width = 0.8 * (np.diff(levels).min() if len(levels) > 1 else 1.0)
    bottom.bar(levels, counts, width=width, color="#555555")
    bottom.set(xlabel="squared norm of the input vector", ylabel="tokens")
    return svg(figure, f"codebook-{name}")
