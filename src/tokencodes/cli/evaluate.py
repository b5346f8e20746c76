"""Commands that evaluate models: audit, evaluate, contrast."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokencodes.cli.common import Json, Out, app, quiet
from tokencodes.cli.printing import Table, emit, note, say
from tokencodes.errors import InputError
from tokencodes.measured import significant

if TYPE_CHECKING:
    from tokencodes.evaluate.evaluation import EvaluationSettings
    from tokencodes.evaluate.suites import Benchmark
    from tokencodes.evaluate.texts import Texts

Suite = Annotated[
    str, typer.Option(help="paper, cloze, embedded, or single benchmarks, joined by commas.")
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder of the benchmarks' rows; without it they come from the hub."),
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context-length",
        "--context",
        min=1,
        help="Tokens that are read at once; 2,048 as in the paper unless the model reads less.",
    ),
]
Documents = Annotated[
    int | None, typer.Option(min=1, help="So many documents of each benchmark, drawn by --seed.")
]
Seed = Annotated[
    int, typer.Option(help="Of the drawn documents, and of the requests that are scored twice.")
]
PrefixToken = Annotated[
    int | None,
    typer.Option("--prefix-token", help="Id for an empty context; default: begin of text."),
]
Plain = Annotated[
    bool,
    typer.Option(
        "--plain-prompts",
        help="Go on where the tokenizer has a chat template: prompts are plain text.",
    ),
]


@app.command()
def audit(
    tokenizer: Annotated[
        str, typer.Option(help="A tokenizer.json, a run, a model's folder or a hub id.")
    ],
    suite: Suite = "paper",
    data: Data = None,
    context_length: Context = None,
    documents: Documents = None,
    seed: Seed = 0,
    prefix_token: PrefixToken = None,
    as_json: Json = False,
) -> None:
    """Count a suite's requests and those whose context is cut; no model is needed."""
    chosen = _benchmarks(suite, data)
    from tokencodes.evaluate import evaluation
    from tokencodes.evaluate.audit import multiple_choice, title_of
    from tokencodes.evaluate.subject import model_context_length
    from tokencodes.evaluate.tasks import lm_eval_folder
    from tokencodes.evaluate.texts import open_texts

    lm_eval_folder()
    quiet()
    texts = open_texts(tokenizer)
    limit = model_context_length(tokenizer) if context_length is None else context_length
    settings = _evaluation_settings(chosen, data, limit, texts, prefix_token, documents, seed)
    counts, sha256 = evaluation.audit(settings, texts)
    together = multiple_choice(counts)
    rows = [*counts, together] if together else counts
    columns = [key for key in counts[0].model_dump() if key != "name"]
    table = Table("benchmark", *columns, title=f"{suite}, {settings.limit:,} tokens")
    for row in rows:
        values = [value for key, value in row.model_dump().items() if key != "name"]
        table.add_row(
            title_of(row.name),
            *("not known" if value is None else f"{value:,}" for value in values),
        )
    emit(
        as_json,
        {
            "requests_sha256": sha256,
            "context_length": settings.limit,
            "audit": [row.model_dump() for row in rows],
        },
        table,
    )


@app.command()
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="A run, a checkpoint, a folder of any causal LM, a hub id."
        ),
    ],
    out: Out,
    suite: Suite = "paper",
    data: Data = None,
    context_length: Context = None,
    documents: Documents = None,
    seed: Seed = 0,
    prefix_token: PrefixToken = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer.json, where none is beside the model.")
    ] = None,
    plain_prompts: Plain = False,
    every_checkpoint: Annotated[
        bool,
        typer.Option(
            "--every-checkpoint",
            help="Each checkpoint that a run has kept, for curves over training.",
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16.")] = "float32",
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a pass; found by itself otherwise.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a model on a suite and record every request. Repeating the command continues after a
    stop.
    """
    from tokencodes.evaluate.options import check_options

    chosen = _benchmarks(suite, data)
    check_options(device, dtype)
    _refuse_other(
        out,
        "evaluation.json",
        "journal",
        "*.jsonl.gz",
        "step-*",
        "report.html",
        "results.*",
        "audit.*",
    )
    from tokencodes.evaluate.tasks import check_rows, lm_eval_folder

    lm_eval_folder()  # names the package to install, before an import fails
    check_rows(chosen, data)
    from tokencodes.evaluate import evaluation
    from tokencodes.evaluate.subject import context_limit, find_subject, load
    from tokencodes.report.evaluations import write_evaluation

    quiet()
    tell = (lambda line: None) if as_json else say
    places = _checkpoints(model, out) if every_checkpoint else {model: out}
    planned = []  # all subjects are found before any weights are read
    for place, folder in places.items():
        subject = find_subject(place, tokenizer)
        _refuse_chat(place, subject.texts, plain_prompts)
        limit = context_limit(subject.config, context_length)
        planned.append(
            (
                subject,
                _evaluation_settings(
                    chosen, data, limit, subject.texts, prefix_token, documents, seed
                ),
                folder,
            )
        )
    results = []
    for subject, settings, folder in planned:
        evaluated = load(subject, device, dtype)
        results.append(
            evaluation.evaluate(
                evaluated, settings, folder, batch_tokens, _Shown(tell).progress, tell
            )
        )
        page = write_evaluation([folder], folder)
    if every_checkpoint:
        page = write_evaluation(list(places.values()), out)
    tell(f"{page}: results, audit and sensitivities")
    emit(as_json, results if every_checkpoint else results[0], _table(results[-1]))


@app.command()
def contrast(
    base: Annotated[
        Path, typer.Argument(help="An evaluation's folder, or a folder of evaluations, one a seed.")
    ],
    other: Annotated[Path, typer.Argument(help="The same of what is held against it.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables, a forest plot and a page.")
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            help=(
                "Accuracies that differ by less are equal; 0.01 is one point. Declare it before you"
                " look."
            )
        ),
    ] = 0.01,
    margin_bits: Annotated[float, typer.Option(help="The same for bits per byte.")] = 0.005,
    as_json: Json = False,
) -> None:
    """Compute paired statistics of two evaluations, other - base, and state what they support."""
    if not 0 < margin < 0.5:
        raise InputError(f"--margin {margin}: between 0 and 0.5; 0.01 is one point")
    if not 0 < margin_bits < math.inf:
        raise InputError(f"--margin-bits {margin_bits}: a number above 0")
    if out is not None:
        _refuse_other(out, "contrast.json", "contrast.*", "forest.svg")
    for folder in (base, other):
        if not folder.is_dir():
            raise InputError(
                f"{folder}: no such folder; name an evaluation, or a folder of evaluations"
            )
    from tokencodes.evaluate.contrast import compared
    from tokencodes.evaluate.pairs import sides
    from tokencodes.report.contrasts import pairing_note, table_of, write_contrast

    comparison = compared(sides(base, other), margin, margin_bits)
    if out is not None:
        write_contrast(comparison, out)
    columns, rows = table_of(comparison)
    if comparison["not_told"]:
        note(f"left out, because one cluster gives no error: {'; '.join(comparison['not_told'])}")
    if comparison["pairs"] > 1:
        note(pairing_note(comparison))
    table = Table(*columns[:-1], title=comparison["title"])
    for row in rows:
        table.add_row(*row[:-1])
    emit(as_json, comparison, table)
    if not as_json:
        for row in rows:
            say(f"{row[0]}, {row[1]}: {row[-1]}")


def _benchmarks(suite: str, data: Path | None) -> "tuple[Benchmark, ...]":
    """Returns the benchmarks of a suite. Raises InputError if the suite is unknown, or if files of
    its rows are missing.
    """
    from tokencodes.evaluate.suites import benchmarks
    from tokencodes.evaluate.tasks import names_of

    chosen = benchmarks(suite)
    names_of(chosen, data)
    return chosen


def _checkpoints(model: str, out: Path) -> dict[str, Path]:
    """Returns each checkpoint that a run has kept, with the folder of its evaluation. Raises
    InputError if there is none.
    """
    from tokencodes import checkpoint

    places = checkpoint.checkpoints(Path(model) / "checkpoints")
    if not places:
        raise InputError(f"{model}: no run with checkpoints; --every-checkpoint wants one")
    return {str(place): out / place.name for place in sorted(places)}


def _refuse_chat(place: str, texts: "Texts", plain_prompts: bool) -> None:
    if texts.tokenizer.chat_template and not plain_prompts:
        raise InputError(
            f"{place}: its tokenizer has a chat template, and the suites' prompts are plain text,"
            " as in the paper; say --plain-prompts if that is meant"
        )


def _evaluation_settings(
    chosen: "tuple[Benchmark, ...]",
    data: Path | None,
    limit: int,
    texts: "Texts",
    prefix: int | None,
    documents: int | None,
    seed: int,
) -> "EvaluationSettings":
    from tokencodes.evaluate.evaluation import EvaluationSettings

    if prefix is not None and not 0 <= prefix < texts.vocab_size:
        raise InputError(
            f"--prefix-token {prefix}: the tokenizer's ids are 0 to {texts.vocab_size - 1:,}"
        )
    return EvaluationSettings(
        chosen, data, limit, texts.prefix if prefix is None else prefix, documents, seed
    )


def _refuse_other(out: Path, whole: str, *parts: str) -> None:
    """Raises InputError if `out` holds files of another origin, so that a command writes only into
    its own folder. whole: the file of a finished result. parts: patterns of the other files that
    may be there, for example after a stop.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: a file, and a folder is needed; name another --out")
    if not out.is_dir() or (out / whole).is_file():
        return
    left = sorted(
        path.name
        for path in out.iterdir()
        if not any(path.match(pattern) for pattern in (".lock", ".tmp-*", *parts))
    )
    if left:
        raise InputError(
            f"{out}: neither empty nor of this command (it holds {left[0]}); name another --out"
        )


def _table(evaluation: dict[str, Any]) -> Table:
    from tokencodes.evaluate.audit import title_of
    from tokencodes.evaluate.suites import NOT_METRICS
    from tokencodes.measured import OVERFLOW
    from tokencodes.report.contrasts import scaled

    table = Table(
        "benchmark", "documents", "metric", "value", "ties", title=evaluation["identity"]["model"]
    )
    for name, values in evaluation["results"].items():
        for metric, value in values.items():
            if metric not in NOT_METRICS:
                ties = values.get("ties", {}).get(metric, {}).get("best")
                tied = "-" if ties is None else f"{ties:,}"
                shown = OVERFLOW if value is None else scaled(metric, value)
                table.add_row(title_of(name), f"{values['documents']:,}", metric, shown, tied)
    return table


class _Shown:
    """Shows progress: one line every few seconds."""

    EVERY = 10.0  # seconds

    def __init__(self, say: Any) -> None:
        self.say, self.last = say, time.monotonic()

    def progress(self, done: int, of: int, rate: float, left: float) -> None:
        """Prints one line, unless the last line is too recent."""
        now = time.monotonic()
        if now - self.last >= self.EVERY:
            self.last = now
            minutes, seconds = divmod(int(left), 60)
            self.say(
                f"{done:,} of {of:,} requests, {significant(rate)} a second,"
                f" {minutes}:{seconds:02d} left"
            )
