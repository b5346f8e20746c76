"""The dataset of a run: a prepared folder, or text that is prepared beside the run."""

import hashlib
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from tokencodes.data.prepare import Progress, file_facts, prepare
from tokencodes.data.shards import Dataset
from tokencodes.data.split import split_of
from tokencodes.data.text import find_files, read_documents
from tokencodes.data.tokenizer import TokenizerFile, train_tokenizer
from tokencodes.errors import InputError, nearest
from tokencodes.files import LOCK
from tokencodes.train.config import DataConfig

EMBEDDED = "embedded:"


def resolve_inputs(inputs: tuple[str, ...]) -> list[str]:
    """Paths of the inputs; `embedded:NAME` becomes the corpus in the package."""
    folder = Path(str(files("tokencodes") / "corpora"))
    known = {path.name.removesuffix(".jsonl.gz"): path for path in folder.glob("*.jsonl.gz")}
    paths = []
    for name in inputs:
        if name.startswith(EMBEDDED):
            corpus = name.removeprefix(EMBEDDED)
            if corpus not in known:
                raise InputError(f"data.inputs {name!r}: no such embedded corpus; {nearest(corpus, known)}")
            paths.append(str(known[corpus]))
        else:
            paths.append(name)
    return paths


def open_dataset(config: DataConfig, folder: Path, progress: Progress) -> Dataset:
    """The dataset that a recipe names, prepared under `folder` (tokenizer-KEY.json, data/) if it names texts."""
    if config.dataset is not None and config.inputs:
        raise InputError("data: both a dataset and inputs are given, and only one can be used; leave one out")
    if config.dataset is not None:
        dataset = Dataset(Path(config.dataset))
        wanted = None if config.tokenizer == "train" else TokenizerFile(Path(config.tokenizer)).sha256
        dataset.require(config.vocab_size, wanted)
        return dataset
    if not config.inputs:
        raise InputError("data: neither a dataset nor inputs; give --set data.dataset=FOLDER or --set data.inputs='[\"FILE\"]'")
    inputs = resolve_inputs(config.inputs)
    if config.tokenizer == "train":
        tokenizer = folder / f"tokenizer-{_tokenizer_key(inputs, config)}.json"
        if not tokenizer.is_file():
            progress(f"training a tokenizer of {config.vocab_size:,} entries on the training documents")
            train_tokenizer(training_texts(inputs, config.split_seed, config.validation), config.vocab_size, tokenizer)
    else:
        tokenizer = Path(config.tokenizer)
    found = TokenizerFile(tokenizer).vocab_size
    if found != config.vocab_size:
        raise InputError(f"{tokenizer}: {found:,} entries, but data.vocab_size is {config.vocab_size:,}; make them agree")
    return prepare(
        inputs,
        tokenizer,
        folder / "data",
        split_seed=config.split_seed,
        validation=config.validation,
        progress=progress,
    )


def foreign(folder: Path) -> str | None:
    """The first entry of an output folder that `open_dataset` did not put there; None if there is no such entry."""
    ours = ("data", "tokenizer-", ".tmp-", LOCK)
    return next((path.name for path in sorted(folder.iterdir()) if not path.name.startswith(ours)), None)


def _tokenizer_key(inputs: list[str], config: DataConfig) -> str:
    """Names a tokenizer by all that decides it, so that one of another split, which saw what is now held out, is not reused."""
    told = [file_facts(file)["sha256"] for file in find_files(inputs)]
    text = json.dumps([told, config.vocab_size, config.validation, config.split_seed])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def training_texts(inputs: list[str], split_seed: int, validation: float) -> Iterator[str]:
    """The texts of the training side, so that a tokenizer never sees what is held out."""
    for path in find_files(inputs):
        for document in read_documents(path):
            if split_of(document, split_seed, validation) == "train":
                yield document.text
