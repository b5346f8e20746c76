"""The dataset of a run: a prepared folder, or text that is prepared beside the run."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokencodes.data.dataset import Corpus, Dataset
from tokencodes.data.entries import CountsEntry
from tokencodes.data.inputs import find_inputs
from tokencodes.data.mixture import Mixture
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import Means, Say, require_ours, start
from tokencodes.data.split import side_of, split_hash, threshold_for_both_sides, threshold_of
from tokencodes.data.text import Columns, Document, read_documents
from tokencodes.data.tokenizer import TokenizerFile, train_tokenizer
from tokencodes.errors import InputError, nearest
from tokencodes.files import LOCK
from tokencodes.train.config import DataConfig, RunConfig
from tokencodes.train.settings import difference, preset_names, read_run, read_study, validate

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
                raise InputError(
                    f"data.inputs {name!r}: no such embedded corpus; {nearest(corpus, known)}"
                )
            paths.append(str(known[corpus]))
        else:
            paths.append(name)
    return paths


def open_dataset(config: DataConfig, folder: Path, say: Say) -> Corpus:
    """The text that a recipe names: prepared folders, or else inputs, prepared under `folder`
    (tokenizer-KEY.json, data/).

    `say` hears how much of the text no token stands for, if it is anything.
    """
    corpus = _open_or_prepare(config, folder, say)
    for dataset in corpus.datasets:
        if (dataset.counts.lost_bytes or 0) > 0:
            say(f"{dataset.path}: {lost(dataset.counts)}")
    return corpus


def lost(counts: CountsEntry) -> str:
    """How much of the text no token stands for, as one sentence."""
    if counts.lost_bytes is None:
        return (
            "bytes of text that no token stands for: unknown, because the tokens are not the bytes"
            " of the text"
        )
    return (
        f"the tokenizer has no token for {counts.lost_bytes:,} of {counts.text_bytes:,} bytes of"
        " text, and left them out"
    )


def _open_or_prepare(config: DataConfig, folder: Path, say: Say) -> Corpus:
    if config.dataset is not None and config.mixture:
        raise InputError(
            "data: both a dataset and a mixture are given, and only one can be used; leave one out"
        )
    if config.dataset is not None or config.mixture:
        if config.inputs:
            say("data: prepared text is given, so data.inputs is not read")
        wanted = (
            config.tokenizer_sha256
            if config.tokenizer == "train"
            else TokenizerFile(Path(config.tokenizer)).sha256
        )
        corpus = open_prepared(config)
        corpus.require(config.vocab_size, wanted)
        return corpus
    if not config.inputs:
        raise InputError(
            "data: neither a dataset nor inputs; give --set data.dataset=FOLDER or --set"
            " data.inputs='[\"FILE\"]'"
        )
    prepared = prepare_inputs(config, folder, folder / "data", Means(), say)
    assert prepared is not None  # by this machine alone
    return prepared


def open_prepared(config: DataConfig) -> Corpus:
    """The prepared folder that a recipe names, or the several."""
    if config.dataset is not None:
        return Dataset(Path(config.dataset))
    return Mixture(
        [Dataset(Path(part.dataset)) for part in config.mixture],
        [part.weight for part in config.mixture],
    )


def prepare_inputs(
    config: DataConfig, folder: Path, out: Path, means: Means, say: Say
) -> Dataset | None:
    """Prepares a recipe's inputs into `out`; a tokenizer that must be trained first goes into
    `folder`.
    """
    inputs, options = resolve_inputs(config.inputs), options_of(config)
    tokenizer = Path(config.tokenizer)
    if config.tokenizer == "train":
        if config.tokenizer_sha256 is not None:
            raise InputError(
                "data.tokenizer: the recipe is bound to the tokenizer with SHA-256"
                f" {config.tokenizer_sha256[:12]}...; name its file (--tokenizer FILE, or --set"
                " data.tokenizer=FILE)"
            )
        require_ours(out)
        tokenizer = folder / f"tokenizer-{_tokenizer_key(inputs, config)}.json"
        if not tokenizer.is_file():
            say(f"training a tokenizer of {config.vocab_size:,} entries on the training documents")
            train_tokenizer(training_texts(inputs, options), config.vocab_size, tokenizer)
    tokenizer_file = TokenizerFile(tokenizer)
    if config.tokenizer_sha256 not in (None, tokenizer_file.sha256):
        raise InputError(
            f"{tokenizer}: its SHA-256 is {tokenizer_file.sha256[:12]}..., the recipe's"
            f" {str(config.tokenizer_sha256)[:12]}..."
        )
    if tokenizer_file.vocab_size != config.vocab_size:
        raise InputError(
            f"{tokenizer}: {tokenizer_file.vocab_size:,} entries, but data.vocab_size is"
            f" {config.vocab_size:,}; make them agree"
        )
    return start(inputs, tokenizer_file, out, options, means, say)


@dataclass(frozen=True)
class DatasetRequest:
    """What `prepare` was asked for: inputs with a tokenizer, or one preset that names both; and
    keys of its [data] section.
    """

    inputs: tuple[str, ...]
    tokenizer: Path | None
    options: dict[str, Any]
    sets: list[str]


def prepare_dataset(request: DatasetRequest, out: Path, means: Means, say: Say) -> Dataset | None:
    """Prepares what was asked for into `out`; None where a cluster goes on with it."""
    values = {
        **request.options,
        **({"tokenizer": str(request.tokenizer)} if request.tokenizer else {}),
    }
    first = request.inputs[0]
    if len(request.inputs) == 1 and (
        first.endswith(".toml") or (first in preset_names() and not Path(first).exists())
    ):
        sets = [
            *request.sets,
            *(f"data.{key}={json.dumps(value)}" for key, value in values.items()),
        ]
        config = read_study(first, sets)[0].data
        if config.dataset or config.mixture or not config.inputs:
            raise InputError(
                f"{first}: its data section names no inputs to prepare; give --set"
                " data.inputs='[\"FOLDER\"]'"
            )
        return prepare_inputs(config, out, out, means, say)
    if request.sets:
        raise InputError(
            f"--set {request.sets[0]!r}: only a preset has values to set; use this command's own"
            " options"
        )
    if request.tokenizer is None:
        raise InputError(
            "no tokenizer; give --tokenizer FILE, and make one by `tokencodes tokenizer` if there"
            " is none"
        )
    tokenizer = TokenizerFile(request.tokenizer)
    config = validate(
        DataConfig,
        {"inputs": request.inputs, "vocab_size": tokenizer.vocab_size, **values},
        "options",
    )
    return start(resolve_inputs(config.inputs), tokenizer, out, options_of(config), means, say)


def options_of(config: DataConfig) -> PrepareOptions:
    """The part of a recipe that decides the shards."""
    return PrepareOptions(
        split_seed=config.split_seed,
        validation_fraction=config.validation_fraction,
        shard_tokens=config.shard_tokens,
        columns=Columns(config.text_column, config.id_column, config.source_column),
        end_of_text=config.end_of_text,
        min_document_tokens=config.min_document_tokens,
        on_error=config.on_error,
    )


def foreign(folder: Path) -> str | None:
    """The first entry of an output folder that `open_dataset` did not put there; None if there is
    no such entry.
    """
    ours = ("data", "tokenizer-", "track", "slurm", ".tmp-", LOCK)
    return next(
        (path.name for path in sorted(folder.iterdir()) if not path.name.startswith(ours)), None
    )


def check_folder(out: Path, run: RunConfig) -> None:
    """A folder belongs to one configuration for good; InputError if it holds another run, or
    something else.
    """
    saved = out / "config.toml"
    if saved.is_file():
        differs = difference(read_run(saved), run)
        if differs:
            raise InputError(
                f"{out}: made from another configuration ({differs}); choose another --out"
            )
    elif out.is_dir() and foreign(out):
        raise InputError(
            f"{out}: neither empty nor a run's folder (it holds {foreign(out)}); choose another"
            " --out"
        )


def _tokenizer_key(inputs: list[str], config: DataConfig) -> str:
    """Names a tokenizer by all that decides it, so that one of another split, which saw what is now
    held out, is not reused.
    """
    digests = [source.fetch().facts()["sha256"] for source in find_inputs(inputs)]
    columns = [config.text_column, config.id_column, config.on_error]
    text = json.dumps(
        [digests, config.vocab_size, config.validation_fraction, config.split_seed, *columns]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def training_texts(inputs: list[str], options: PrepareOptions) -> Iterator[str]:
    """The texts of the training side, so that a tokenizer never sees what is held out.

    No side is empty, as in a prepared dataset: there too the threshold moves. One document may be
    read here and be held out there: if the one with the lowest hash has fewer than
    `min_document_tokens`, the next takes its place, and lengths need a tokenizer.
    """
    hashes = (split_hash(document, options.split_seed) for document in _documents(inputs, options))
    natural = threshold_of(options.validation_fraction)
    threshold = threshold_for_both_sides(hashes, natural) if natural else natural
    for document in _documents(inputs, options):
        if side_of(split_hash(document, options.split_seed), threshold) == "train":
            yield document.text


def _documents(inputs: list[str], options: PrepareOptions) -> Iterator[Document]:
    """The documents of all inputs that have text."""
    for source in find_inputs(inputs):
        for path in source.fetch().files:
            for document in read_documents(path, options.columns, skip=options.on_error == "skip"):
                if document.text:
                    yield document
