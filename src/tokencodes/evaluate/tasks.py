"""lm-eval's tasks over rows that are known by hash: prompts, choices and metrics are the harness's,
the data are ours to check.
"""

import functools
import gzip
import hashlib
import json
import logging
import math
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokencodes.data.split import split_of
from tokencodes.data.text import read_documents
from tokencodes.errors import InputError
from tokencodes.evaluate.suites import EMBEDDED, EMBEDDED_SEED, EMBEDDED_SHARE, SHA256, Benchmark

LM_EVAL_VERSION = "0.4.13"  # the release whose task files and request rules are meant
SPLITS = {"training_split", "validation_split", "test_split", "fewshot_split"}


@dataclass(frozen=True, eq=False)
class TaskOf:
    """One lm-eval task of a benchmark: all of it, or one subject. name is what lm-eval and results
    call it.
    """

    benchmark: Benchmark
    name: str
    subject: str | None
    task: Any  # lm_eval.api.task.ConfigurableTask

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The scored rows, as the task's prompts see them."""
        rows: list[dict[str, Any]] = list(self.task.eval_docs)
        return rows


def lm_eval_folder() -> Path:
    """The folder of lm-eval's task files. InputError if the wanted release is not there."""
    try:
        installed = version("lm-eval")
    except PackageNotFoundError:
        raise InputError("evaluation needs lm-eval: pip install 'tokencodes[eval]'") from None
    if installed != LM_EVAL_VERSION:
        raise InputError(
            f"lm-eval {installed}: prompts are bound to {LM_EVAL_VERSION}; pip install"
            f" 'lm-eval=={LM_EVAL_VERSION}'"
        )
    spec = find_spec("lm_eval")
    assert spec is not None and spec.origin is not None
    for name in ("lm_eval", "lm-eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    _quick_and_quiet()
    return Path(spec.origin).parent / "tasks"


def _quick_and_quiet() -> None:
    """lm-eval compiles a prompt's template anew for each document, which takes most of the time
    that prompts take; and it shows a bar for each of 57 subjects.
    """
    from lm_eval import utils
    from lm_eval.api import task

    if not isinstance(task.tqdm, functools.partial):
        task.tqdm = functools.partial(task.tqdm, disable=True)
    if not isinstance(utils.env.from_string, functools._lru_cache_wrapper):
        utils.env.from_string = functools.lru_cache(maxsize=None)(utils.env.from_string)


def embedded_rows() -> list[dict[str, Any]]:
    """Documents of the embedded texts that are held out wherever the share of validation is 0.02 or
    more and its seed 0. work: the novel of a chapter, or the document itself.
    """
    rows = []
    for path in sorted(Path(str(files("tokencodes") / "corpora")).glob("*.jsonl.gz")):
        held_out = [
            document
            for document in read_documents(path)
            if split_of(document, EMBEDDED_SEED, EMBEDDED_SHARE) == "validation"
        ]
        corpus = path.name.partition(".")[0]
        for document in held_out:
            name = str(document.id)
            work = name.rpartition("-")[0] if corpus == "austen" else name
            rows.append({"id": f"{corpus}/{name}", "work": work, "text": document.text})
    return rows


def read_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of NAME.jsonl or NAME.jsonl.gz. InputError if they are missing, or not the ones that
    are meant.
    """
    places = [folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"]
    place = next((path for path in places if path.is_file()), None)
    if place is None:
        raise InputError(
            f"{places[1]}: no such file; its lines have SHA-256 {SHA256[name]}, and --data names"
            " its folder"
        )
    try:
        data = gzip.decompress(place.read_bytes()) if place.suffix == ".gz" else place.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{place}: damaged ({error}); take a new copy") from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != SHA256[name]:
        raise InputError(
            f"{place}: its lines have SHA-256 {digest}, not {SHA256[name]}: other rows than are"
            " meant; take a new copy"
        )
    return [json.loads(line) for line in data.split(b"\n") if line]


def names_of(chosen: Sequence[Benchmark], data: Path | None) -> list[str]:
    """The files of rows that benchmarks want. InputError where `data` is no folder, or several of
    them are not in it.
    """
    names = sorted(
        {name for benchmark in chosen for name in (benchmark.rows, benchmark.examples) if name}
        - {EMBEDDED.rows}
    )
    if data is None:
        return names
    if not data.is_dir():
        raise InputError(f"--data {data}: no folder; name the one that the benchmarks' rows lie in")
    absent = [
        name
        for name in names
        if not any((data / f"{name}.{end}").is_file() for end in ("jsonl", "jsonl.gz"))
    ]
    if len(absent) > 1:  # of one, `read_rows` says more
        listed = ", ".join(f"{name}.jsonl.gz" for name in absent)
        raise InputError(f"--data {data}: {len(absent)} files are not there: {listed}")
    return names


def check_rows(chosen: Sequence[Benchmark], data: Path | None) -> None:
    """InputError where local rows of benchmarks are missing, or not the ones that are meant."""
    for name in names_of(chosen, data):
        if data:
            read_rows(data, name)


def subjects(folder: Path) -> list[str]:
    """MMLU's 57, in the order of their names."""
    return sorted(
        path.stem.removeprefix("mmlu_")
        for path in (folder / "mmlu" / "default").glob("mmlu_*.yaml")
    )


def make_tasks(chosen: Sequence[Benchmark], data: Path | None) -> list[TaskOf]:
    """The tasks of benchmarks over local rows, or (data None) over lm-eval's own data sets of the
    Hugging Face hub.
    """
    folder = lm_eval_folder()
    names = names_of(chosen, data)
    read = {name: read_rows(data, name) for name in names} if data else {}
    if any(benchmark.rows == EMBEDDED.rows for benchmark in chosen):
        read[EMBEDDED.rows] = embedded_rows()
    tasks = []
    for benchmark in chosen:
        for subject in subjects(folder) if benchmark.by_subject else [None]:
            name = f"{benchmark.name}/{subject}" if subject else benchmark.name
            tasks.append(
                TaskOf(benchmark, name, subject, _task(benchmark, name, subject, folder, read))
            )
    return tasks


def _task(
    benchmark: Benchmark,
    name: str,
    subject: str | None,
    folder: Path,
    read: dict[str, list[dict[str, Any]]],
) -> Any:
    from datasets import Dataset, DatasetDict
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = (
        load_yaml(folder / benchmark.recipe.format(subject=subject)) if benchmark.recipe else {}
    )
    config = {key: value for key, value in config.items() if key != "tag"}
    config |= {"task": name, "num_fewshot": benchmark.shots, **dict(benchmark.changes)}
    if benchmark.rows in read:
        kept = {"test_split" if benchmark.split == "test" else "validation_split": benchmark.split}
        parts = {benchmark.split: benchmark.rows}
        if benchmark.examples:
            kept["fewshot_split"], parts["dev"] = "dev", benchmark.examples
        config = {
            key: value
            for key, value in config.items()
            if key not in SPLITS | {"dataset_path", "dataset_name"}
        } | kept
        rows = {
            split: Dataset.from_list(
                [row for row in read[file] if subject in (None, row.get("subject"))]
            )
            for split, file in parts.items()
        }
        config |= {"dataset_path": "local", "custom_dataset": lambda **_: DatasetDict(rows)}
    try:
        task = ConfigurableTask(config=config)
    except (OSError, ConnectionError, ValueError) as error:
        raise InputError(
            f"{name}: its rows could not be had from the hub ({str(error).splitlines()[0]}); give"
            " --data"
        ) from None
    task._aggregation_list = {
        metric: _without_overflow(mean) for metric, mean in task._aggregation_list.items()
    }
    return task


def _without_overflow(mean: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """lm-eval's mean of a metric. Results take nothing from it, so a perplexity that overflows must
    not end an evaluation.
    """

    def guarded(items: Any) -> Any:
        try:
            return mean(items)
        except OverflowError:
            return math.inf

    return guarded
