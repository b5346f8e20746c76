"""Which documents a step of a run consumed:
dataset, source, document and offset of every window."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

from tokencodes import checkpoint
from tokencodes.data.dataset import Corpus, Dataset
from tokencodes.data.loader import rank_indices
from tokencodes.errors import InputError
from tokencodes.files import read_json
from tokencodes.train.build import sampler_of
from tokencodes.train.config import RunConfig
from tokencodes.train.corpus import open_prepared
from tokencodes.train.settings import read_run


@dataclass(frozen=True)
class Entry:
    """One window. `start` and `tokens` count ids of the document; its last id is no input, and its
    first is not predicted.
    """

    window: int
    dataset: str
    shard: str
    document: int
    id: str
    source: str
    start: int
    tokens: int


def read_ledger(run: Path, step: int) -> list[Entry]:
    """The windows of step 1, 2, ... (as metrics.jsonl counts them), done or to come. InputError: no
    run, or no such text.
    """
    config = read_run(run / "config.toml")
    if step < 1:
        raise InputError(f"step {step}: steps count from 1, as in metrics.jsonl")
    if step * config.batch.global_batch_size >= 1 << 63:
        raise InputError(f"step {step}: its windows would count beyond 2^63")
    corpus = corpus_of(run, config)
    indices = rank_indices(step - 1, config.batch.global_batch_size)
    sampler = sampler_of(config, corpus)
    windows, shards = sampler.draw(indices), corpus.shards("train")
    owner = [dataset for dataset in corpus.datasets for _ in dataset.shards("train")]

    @cache
    def names(shard: int) -> pa.Table:
        return shards[shard].names()

    entries = []
    for index, shard, document, start, length in zip(
        *(
            array.tolist()
            for array in (indices, windows.shard, windows.document, windows.start, windows.length)
        ),
        strict=True,
    ):
        id, source = (names(shard)[column][document].as_py() for column in ("id", "source"))
        place = shards[shard].path.relative_to(owner[shard].path)
        entries.append(
            Entry(index, str(owner[shard].path), str(place), document, id, source, start, length)
        )
    return entries


def corpus_of(run: Path, config: RunConfig) -> Corpus:
    """The text of a run that has begun: the one that it names, or the one that was prepared in it
    or in its study.

    InputError: it is not there, or it is not what the run was trained on.
    """
    data = config.data
    if data.mixture or data.dataset is not None:
        corpus = open_prepared(data)
    else:
        places = [
            folder / "data"
            for folder in (run, run.parent.parent)
            if (folder / "data" / "manifest.json").is_file()
        ]
        if not places:
            raise InputError(
                f"{run}: its prepared text is not beside it (looked for data/manifest.json there"
                " and two folders up)"
            )
        corpus = Dataset(places[0])
    recorded = _recorded_fingerprint(run)
    if recorded not in (None, corpus.fingerprint):
        raise InputError(
            f"{corpus.path}: not the text of {run} (fingerprint {corpus.fingerprint[:12]}, the run"
            f" has {recorded[:12]})"
        )
    return corpus


def _recorded_fingerprint(run: Path) -> str | None:
    """What the run itself says that it was trained on; None if it has neither a result nor a
    checkpoint.
    """
    file = run / "result.json"
    if file.is_file():
        result = read_json(file)
        if not isinstance(result, dict) or not isinstance(result.get("dataset_fingerprint"), str):
            raise InputError(
                f"{file}: damaged (no dataset_fingerprint that is text); take a new copy, or train"
                " anew"
            )
        return str(result["dataset_fingerprint"])
    newest = checkpoint.newest_intact(run / "checkpoints", lambda line: None)
    return checkpoint.read_state(newest).dataset_fingerprint if newest else None
