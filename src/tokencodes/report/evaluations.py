"""Evaluations as tables and a page: results beside the paper's Table 3, the audit, each sensitivity
with its size, curves.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from tokencodes.evaluate.audit import title_of
from tokencodes.evaluate.folder import read_evaluation
from tokencodes.evaluate.suites import BENCHMARKS, NOT_METRICS
from tokencodes.files import write_text
from tokencodes.measured import OVERFLOW
from tokencodes.report.figures import COLOURS, MARKERS, STYLE, WIDTH_INCHES, svg
from tokencodes.report.pages import rendered
from tokencodes.report.paper import MODELS, TABLE_3
from tokencodes.report.tables import Grid

Record = dict[str, Any]
WHICH = {"default": "as evaluated", "none": "none", "other": "another token"}


def percent(value: float | None) -> str:
    """A fraction."""
    return "-" if value is None else f"{100 * value:.2f}"


def _shown(metric: str, value: float | None, documents: int) -> str:
    """With the standard error of a mean of zeros and ones."""
    if value is None:
        return OVERFLOW
    if not metric.startswith("acc"):
        return f"{value:.4f}" if metric == "bits_per_byte" else f"{value:,.2f}"
    error = (
        f" ±{100 * math.sqrt(value * (1 - value) / (documents - 1)):.2f}" if documents > 1 else ""
    )
    return percent(value) + error


def results_grid(evaluations: Sequence[Record]) -> Grid:
    """Every metric of every benchmark, a column an evaluation, beside the paper's three models and
    its SmolLM2-135M.
    """
    measured = [
        (name, metric) for name, first in evaluations[0]["results"].items() for metric in first
    ]
    # The paper measured neither `embedded` nor `cloze`.
    known = any(TABLE_3.get(pair) for pair in measured)
    paper_columns = (
        [MODELS.index(name) for name in ("Learned", "Binary16", "GF2", "SmolLM2-135M")]
        if known
        else []
    )
    columns = [
        "benchmark",
        "metric",
        *(_name(evaluation) for evaluation in evaluations),
        "chance",
        "documents",
        "ties",
    ]
    columns += [f"paper: {MODELS[n]}" for n in paper_columns]
    audits = {audit["name"]: audit for audit in evaluations[0]["audit"]}
    rows = []
    for name, first in evaluations[0]["results"].items():
        for metric in first:
            if metric in (*NOT_METRICS, "byte_perplexity"):
                continue
            size = first["documents"]
            ours = [
                _shown(metric, evaluation["results"][name][metric], size)
                for evaluation in evaluations
            ]
            choices = audits[name]["requests"] / size
            chance = percent(1 / choices) if metric.startswith("acc") and choices > 1 else "-"
            paper = TABLE_3.get((name, metric))
            cells = (
                ["-"] * len(paper_columns)
                if paper is None
                else [_cell(*paper[number]) for number in paper_columns]
            )
            ties = " / ".join(
                _ties(evaluation["results"][name], metric) for evaluation in evaluations
            )
            rows.append([title_of(name), metric, *ours, chance, f"{size:,}", ties, *cells])
    note = (
        "Accuracies in percent, ± their standard error over documents as if these were independent."
        " Chance: one in the number of choices, in the mean. Ties: documents in which several"
        " choices share the best number that is compared, and in brackets those in which all do."
        " The first of the best counts."
    )
    if known:
        note += (
            " The paper's models read the same requests only where tokenizer, context and documents"
            " are the same: compare the audits."
        )
    return Grid(
        "Results beside the paper's Table 3" if known else "Results", columns, rows, 2, note
    )


def _ties(results: dict[str, Any], metric: str) -> str:
    """How many documents of a benchmark were ties by a metric."""
    counts = results.get("ties", {}).get(metric)
    return "-" if counts is None else f"{counts['best']:,} ({counts['all']:,})"


def _tied(evaluation: Record) -> list[str]:
    """A sentence for each endpoint of which a tenth of the documents or more are ties."""
    lines = []
    for name, values in evaluation["results"].items():
        metric = BENCHMARKS[name].endpoint if name in BENCHMARKS else "acc"
        counts = values.get("ties", {}).get(metric)
        if counts and 10 * counts["best"] >= values["documents"]:
            lines.append(
                f"{title_of(name)}: {counts['best']:,} of {values['documents']:,} documents are"
                f" ties in {metric}. There the first of the best choices counts, whatever the model"
                " prefers."
            )
    return lines


def _cell(value: float, error: float | None) -> str:
    return f"{value:.2f}" + (f" ±{error:.2f}" if error is not None else "")


def _name(evaluation: Record) -> str:
    """Of a run its arm and seed; else the last part of what was named."""
    parts = [
        part
        for part in Path(evaluation["identity"]["model"]).parts
        if part not in ("model", "checkpoints")
    ]
    if parts and parts[-1].startswith("step-"):
        parts.pop()
    return "/".join(parts[-2:] if parts and parts[-1].startswith("seed-") else parts[-1:]) or str(
        evaluation["identity"]["model"]
    )


def audit_grid(evaluation: Record) -> Grid:
    """What was asked."""
    columns = [
        "benchmark",
        "documents",
        "requests",
        "truncated",
        "tokens dropped",
        "tokens",
        "scored",
        "bytes lost",
        "prefixed",
    ]
    keys = ("documents", "requests", "truncated", "dropped", "tokens", "scored", "lost", "prefixed")
    rows = [
        [
            title_of(audit["name"]),
            *("not known" if audit[key] is None else f"{audit[key]:,}" for key in keys),
        ]
        for audit in evaluation["audit"]
    ]
    note = (
        "Truncated: contexts that lost tokens to the limit of"
        f" {evaluation['identity']['context_length']:,}. Lost: bytes of text that no token stands"
        " for. Tokens: what all requests have, common beginnings counted each time; scored:"
        " those whose log-probability is asked for; prefixed: requests without a context, which"
        f" begin after the prefix token. Requests as a whole: {evaluation['requests_sha256'][:12]}."
    )
    return Grid("Audit", columns, rows, 1, note)


def sensitivity_grids(evaluation: Record) -> list[Grid]:
    """One for each thing that a result may hang on, where it occurs."""
    sensitivity, grids = evaluation["sensitivity"], []
    if sensitivity["prefix"]:
        rows = [
            [
                title_of(entry["benchmark"]),
                WHICH[entry["which"]],
                "-" if entry["prefix"] is None else str(entry["prefix"]),
                f"{entry['texts']:,}",
                "-" if entry["first_token"] is None else f"{entry['first_token']:.3f}",
                f"{entry['rest']:.4f}",
            ]
            for entry in sensitivity["prefix"]
        ]
        note = (
            "Nats. Of rolling documents the first 256 tokens; without a prefix, the first token is"
            " read and not asked for."
        )
        columns = ["benchmark", "prefix", "id", "texts", "first token", "mean of the others"]
        grids.append(Grid("The token before an empty context", columns, rows, 2, note))
    if "truncation" in sensitivity:
        rows = [
            [
                title_of(name),
                f"{entry['truncated']:,} of {entry['documents']:,}",
                *(percent(entry[key]) for key in TRUNCATION),
            ]
            for name, entry in sensitivity["truncation"].items()
        ]
        columns = [
            "benchmark",
            "truncated",
            "as is",
            "read whole only",
            "all truncated wrong",
            "all truncated right",
        ]
        grids.append(Grid("Truncated prompts, accuracy", columns, rows))
    if "averages" in sensitivity:
        rows = [
            [
                title_of(name),
                str(entry["subjects"]),
                percent(entry["micro"]),
                percent(entry["macro"]),
            ]
            for name, entry in sensitivity["averages"].items()
        ]
        grids.append(
            Grid(
                "Averages, accuracy",
                ["benchmark", "subjects", "over documents", "over subjects"],
                rows,
            )
        )
    if "letters" in sensitivity:
        rows = []
        for name, entry in sensitivity["letters"].items():
            taken, right = (
                " ".join(f"{letter} {count:,}" for letter, count in entry[key].items())
                for key in ("taken", "right")
            )
            rows.append(
                [
                    title_of(name),
                    taken,
                    right,
                    percent(entry["accuracy"]),
                    percent(entry["best_constant"]),
                ]
            )
        columns = [
            "benchmark",
            "letters taken",
            "letters right",
            "accuracy",
            "best constant letter",
        ]
        grids.append(Grid("Letters", columns, rows, 3))
    if "norms" in sensitivity:
        rows = [
            [title_of(name), *(percent(value) for value in entry.values())]
            for name, entry in sensitivity["norms"].items()
        ]
        columns = ["benchmark", "as they are", "by character", "by byte", "by token"]
        grids.append(Grid("How log-probabilities of choices are compared, accuracy", columns, rows))
    return grids


TRUNCATION = ("as_is", "whole_only", "least", "most")


def lead_of(evaluation: Record) -> list[str]:
    """What was evaluated and how, in sentences."""
    who, opinion, where = (
        evaluation["identity"],
        evaluation["second_opinion"],
        evaluation["environment"],
    )
    drawn = (
        f"{who['documents']:,} documents of each benchmark that has more, drawn with seed"
        f" {who['seed']}, and all of the others"
        if who["documents"]
        else "all documents"
    )
    interface = f", interface {who['interface']}" if who["interface"] else ""
    held_out = {
        True: "The embedded text was held out of its training.",
        False: (
            "THE EMBEDDED TEXT WAS IN ITS TRAINING: its run's split does not hold these documents"
            " out."
        ),
        None: "Whether the embedded text was in its training is not known.",
    }
    return [
        (
            f"{who['model']} (weights {who['weights_sha256'][:12]}{interface}), {who['dtype']}, on"
            f" {where['device']}; {drawn}; {who['context_length']:,} tokens read at once; an empty"
            f" context is token {who['prefix']}; prompts, choices and metrics by lm-eval"
            f" {who['lm_eval_version']}, rows {who['rows']}, no chat template."
        ),
        (
            "A second scorer, one request at a time and nothing shared, computed"
            f" {opinion['checked']} requests anew: {opinion['largest']:.1e} nats a token apart at"
            f" most (allowed: {opinion['allowed']:g})."
        ),
        *([held_out[who.get("embedded_held_out")]] if "embedded" in who["benchmarks"] else []),
        *_begun(evaluation),
        *_tied(evaluation),
        "One model is one draw: nothing here says how another seed, recipe or text would do.",
    ]


def _begun(evaluation: Record) -> list[str]:
    """What the tokenizer puts before each text, where it does so."""
    begin = evaluation.get("tokenizer_begin")
    if not begin:
        return []
    many = "token" if len(begin) == 1 else "tokens"
    return [
        f"The tokenizer puts {many} {', '.join(map(str, begin))} before each text. This is read,"
        " and is not scored."
    ]


def curves(evaluations: Sequence[Record]) -> str:
    """Endpoints of evaluations of several checkpoints, against their step."""
    points = sorted(
        ((evaluation["identity"]["step"], evaluation["results"]) for evaluation in evaluations),
        key=lambda point: point[0],
    )
    names = [name for name in points[0][1] if name in BENCHMARKS]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 1.7 * len(names)))
        for place, name in enumerate(names):
            axes = figure.add_subplot(len(names), 1, place + 1)
            metric = BENCHMARKS[name].endpoint
            values = [
                result[name][metric] * (100 if metric.startswith("acc") else 1)
                for _, result in points
            ]
            axes.plot(
                [step for step, _ in points],
                values,
                color=COLOURS[place % 8],
                marker=MARKERS[place % 8],
            )
            axes.set_ylabel(f"{title_of(name)}\n{metric}", fontsize=9)
        axes.set_xlabel("step")
        figure.tight_layout()
    return svg(figure, "curves")


def write_evaluation(folders: Sequence[Path], out: Path) -> Path:
    """results, audit (.md, .csv, .tex) and report.html in `out`, of one evaluation or of several of
    the same requests; returns the page. InputError if one is not done.
    """
    evaluations = [read_evaluation(folder).as_json() for folder in folders]
    grids = [
        results_grid(evaluations),
        audit_grid(evaluations[0]),
        *(sensitivity_grids(evaluations[0]) if len(evaluations) == 1 else []),
    ]
    grids[0].write(out, "results")
    grids[1].write(out, "audit")
    figures = []
    if len({evaluation["identity"]["step"] for evaluation in evaluations}) > 1:
        figures = [
            {"svg": curves(evaluations), "caption": "Endpoints over checkpoints of one run."}
        ]
    page = out / "report.html"
    title = (
        f"Evaluation of {', '.join(dict.fromkeys(_name(evaluation) for evaluation in evaluations))}"
    )
    write_text(
        page,
        rendered(
            "sheet.html.j2",
            title=title,
            lead=lead_of(evaluations[0]),
            findings=[],
            figures=figures,
            grids=grids,
        ),
    )
    return page
