"""Draws the figures of docs/codes.md.

    python tools/draw_codes.py docs/codes [DATASET]

With a prepared dataset (such as runs/quickstart/data) the informed assignments are drawn too.
"""

import sys
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tokencodes.codes import Codebook, lift
from tokencodes.data.dataset import Dataset
from tokencodes.report.figures import STYLE, svg
from tokencodes.train.interface import certificate_of

VOCAB, WIDTH, FIRST, BINS = 3072, 192, 64, 192
WORDS = (
    "binary",
    "gray",
    "gf2",
    "ecc",
    "random:width=24",
    "digits:base=4",
    "gaussian:width=24",
    "sphere:width=24",
    "sincos:width=24",
)
IDS = ("natural", "permuted", "ranked", "clustered")
VALUES = (
    "binary",
    "binary:values=pm1",
    "binary:center=true",
    "binary:scale=match",
    "gf2",
    "gaussian:width=192",
)


def panel(axes: Axes, image: np.ndarray, title: str, signed: bool) -> None:
    """Draws one code as an image. The vertical axis is the coordinate, upwards."""
    low, high = (-2, 2) if signed else (0, 1)
    axes.imshow(
        image,
        cmap="Greys",
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
        origin="lower",
    )
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.grid(visible=False)
    axes.set_yticks([])


def grid(rows: int, columns: int, height: float) -> tuple[Figure, np.ndarray]:
    """Returns a figure of equal panels."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, height), layout="constrained")
        return figure, figure.subplots(rows, columns).ravel()


def words(dataset: Dataset | None) -> str:
    """Draws the first tokens of each kind of code words."""
    figure, places = grid(3, 3, 5.6)
    for axes, spec in zip(places, WORDS, strict=True):
        book = certificate_of(spec, VOCAB, WIDTH).book
        panel(
            axes,
            book.words_VK[:FIRST].T,
            f"{spec}  ({book.width} wide)",
            not book.spec.binary_valued,
        )
    return svg(figure, "words")


def binned(book: Codebook) -> np.ndarray:
    """Returns the mean of each coordinate over bins of ids."""
    edges = np.linspace(0, VOCAB, BINS + 1).astype(int)
    return np.stack([book.words_VK[a:b].mean(0) for a, b in pairwise(edges)]).T


def assignments(dataset: Dataset | None) -> str:
    """Draws the whole vocabulary under each assignment."""
    names = IDS if dataset is not None else IDS[:2]
    figure, places = grid(len(names), 1, 1.25 * len(names))
    for axes, name in zip(places, names, strict=True):
        panel(
            axes,
            binned(certificate_of(f"binary:ids={name}", VOCAB, WIDTH, None, dataset).book),
            f"ids={name}",
            False,
        )
    places[-1].set_xlabel(f"bins of {VOCAB // BINS} token ids, from the first merges to the last")
    return svg(figure, "ids")


def values(dataset: Dataset | None) -> str:
    """Draws the distribution of the squared norms of the vectors."""
    figure, places = grid(2, 3, 3.6)
    for axes, spec in zip(places, VALUES, strict=True):
        norms = certificate_of(spec, VOCAB, WIDTH).book.squared_norms(WIDTH)
        margin = 0.02 * float(np.ptp(norms)) or 1.0
        axes.hist(
            norms, bins=40, range=(norms.min() - margin, norms.max() + margin), color="#555555"
        )
        axes.set_title(f"{spec}\nmean {norms.mean():.3g}", fontsize=10, loc="left")
    for axes in places[3:]:
        axes.set_xlabel("squared norm")
    return svg(figure, "values")


def lifts(dataset: Dataset | None) -> str:
    """Draws the four lifts as transposed d x K matrices."""
    figure, places = grid(4, 1, 4.4)
    for axes, name in zip(places, ("tile", "interleave", "pad", "orthogonal"), strict=True):
        matrix = lift.matrix(name, 12, 96, 0).T
        scale = 2 / np.abs(matrix).max() if name == "orthogonal" else 1
        panel(axes, matrix * scale, f"lift={name}", name == "orthogonal")
    places[-1].set_xlabel("channel")
    return svg(figure, "lift")


def main(out: Path, dataset: Dataset | None) -> None:
    """Writes words.svg, assignments.svg, values.svg and lifts.svg."""
    out.mkdir(parents=True, exist_ok=True)
    for draw in (words, assignments, values, lifts):
        (out / f"{draw.__name__}.svg").write_text(draw(dataset), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Dataset(Path(sys.argv[2])) if len(sys.argv) > 2 else None)
