"""One input -> its shards, in a folder that appears at once. What a worker does, on this machine or on another.

Documents are read in batches, so that memory is bounded by the batch (or by the longest document), not by the file. What
becomes no document, or is worth knowing of one, is counted by kind; nothing is dropped without a count.
"""

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokencodes.data.encode import Encoder
from tokencodes.data.inputs import Input
from tokencodes.data.shards import token_dtype
from tokencodes.data.split import Split, split_of
from tokencodes.data.text import Columns, Document, Position, Refusal, printable, read_rows
from tokencodes.data.tokenized import TOKENIZED, read_tokenized
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.data.writer import ShardWriter
from tokencodes.errors import InputError
from tokencodes.files import LOCK, fsync, only_one, read_json, write_json

BATCH_DOCUMENTS = 4096
EMPTY, SHORT, SPECIAL = "empty text", "too short", "special token in the text"
NO_ID, NO_SOURCE = "no id, so split by the text", "no source where one was named"
NOTED = {"\r\n": "CRLF line ends", "\0": "NUL byte"}  # kept as they are, and counted
PARTIAL = ".tmp-"


@dataclass(frozen=True)
class PrepareOptions:
    """What, besides text and tokenizer, decides the shards."""

    split_seed: int = 0
    validation: float = 0.001  # expected share of documents; the paper's threshold
    shard_tokens: int = 100_000_000
    columns: Columns = field(default_factory=Columns)
    end_of_text: Literal["append", "none"] = "append"  # ours: the paper does not say; it counts towards the length
    min_tokens: int = 0  # shorter documents are dropped and counted
    on_error: Literal["stop", "skip"] = "stop"


@dataclass(frozen=True)
class Job:
    """One input to be converted; everything that a worker must be told."""

    input: Input
    out: Path
    options: PrepareOptions
    batch_bytes: int = 4 << 20  # of text, held at a time


@dataclass
class Counts:
    """What was read, kept and left out. Bytes are of UTF-8 text; `token_bytes` is None where a token's bytes are unknown."""

    documents: int = 0
    kept: int = 0
    text_bytes: int = 0
    token_bytes: int | None = 0
    dropped: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)  # the first of each kind that was dropped

    def as_json(self) -> dict[str, Any]:
        """As plain values, kinds in the order of their names."""
        told = {name: getattr(self, name) for name in ("documents", "kept", "text_bytes", "token_bytes")}
        return told | {name: dict(sorted(getattr(self, name).items())) for name in ("dropped", "noted", "examples")}

    def drop(self, kind: str, place: str) -> None:
        """Counts one that becomes no document of the dataset."""
        self.dropped[kind] += 1
        self.examples.setdefault(kind, place)


@dataclass(frozen=True)
class Progress:
    """What was done since the last report, in bytes of the input file, bytes of text and tokens."""

    input_bytes: int
    text_bytes: int
    tokens: int


Report = Callable[[Progress], None]


def settings_of(options: PrepareOptions, tokenizer: TokenizerFile) -> dict[str, Any]:
    """What a dataset must have in common with what is asked for, as it stands in its files."""
    return {"tokenizer_sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size, **asdict(options)}


def finished(job: Job, tokenizer: TokenizerFile) -> dict[str, Any] | None:
    """The manifest's entry of an input that was converted before, in just this way; None if there is work to do."""
    folder = job.out / job.input.name
    if not (folder / "source.json").is_file():
        return None
    told = read_json(folder / "source.json")
    if not isinstance(told, dict) or set(told) != {"input", "settings", "seen", "counts", "shards"}:
        raise InputError(f"{folder}: not made by prepare; choose another --out")
    if job.input.origin is not None:
        same_input = told["input"].get("from") == job.input.origin
    else:
        same_input = job.input.seen() == told["seen"] or job.input.facts() == told["input"]
    if told["settings"] != settings_of(job.options, tokenizer) or not same_input:
        return None
    return {"name": folder.name, "input": told["input"], "counts": told["counts"], "shards": told["shards"]}


def convert(job: Job, encoder: Encoder, report: Report = lambda progress: None) -> dict[str, Any]:
    """Converts one input, or finds that it was done; returns its entry for the manifest."""
    done = finished(job, encoder.tokenizer)
    if done is not None:
        return done
    folder = job.out / job.input.name
    if folder.exists():
        if not (folder / "source.json").is_file():
            raise InputError(f"{folder}: not made by prepare; choose another --out")
        shutil.rmtree(folder)  # left by an unfinished run with other settings; no manifest ever named it
    partial = folder.with_name(f"{PARTIAL}{folder.name}-{uuid.uuid4().hex[:12]}")
    job = replace(job, input=job.input.fetch())
    try:
        with only_one(partial):  # so that a cleaning program can tell work in progress from what a dead one left
            seen, facts = job.input.seen(), job.input.facts()  # in this order: what changes while it is hashed has changed
            conversion = _Conversion(job, encoder, partial, report)
            shards = conversion.run()
            if job.input.seen() != seen:
                raise InputError(f"{job.input.title}: changed while it was read; repeat the command")
            entry: dict[str, Any] = {"input": facts, "settings": settings_of(job.options, encoder.tokenizer), "seen": seen}
            entry |= {"counts": conversion.counts.as_json(), "shards": shards}
            write_json(partial / "source.json", entry)
            fsync(partial)
            try:
                partial.replace(folder)
            except OSError:
                done = finished(job, encoder.tokenizer)  # the same task, run twice: the other one was faster
                if done is None:
                    raise
                shutil.rmtree(partial, ignore_errors=True)
                return done
            (folder / LOCK).unlink()  # only now: without it, what is not yet renamed would look like a dead one's
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    fsync(folder.parent)
    return {"name": folder.name, "input": facts, "counts": entry["counts"], "shards": shards}


def clean(out: Path) -> None:
    """Removes what dead programs left half-written in a dataset's folder."""
    for leftover in out.glob(f"{PARTIAL}*"):
        if not leftover.is_dir():
            leftover.unlink(missing_ok=True)
            continue
        with suppress(InputError), only_one(leftover):  # a living program holds its own
            shutil.rmtree(leftover, ignore_errors=True)


class _Conversion:
    """The batches of one input, from text to shards."""

    def __init__(self, job: Job, encoder: Encoder, partial: Path, report: Report) -> None:
        self._job, self._options, self._encoder, self._report = job, job.options, encoder, report
        self._partial, self.counts = partial, Counts()
        tokenizer = self._tokenizer = encoder.tokenizer
        self._writers: dict[Split, ShardWriter] = {}
        self._shards: list[dict[str, Any]] = []
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._end = np.array([tokenizer.end_of_text] if self._options.end_of_text == "append" else [], dtype=self._dtype)
        special = tokenizer.tokenizer.get_added_tokens_decoder()
        self._special = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
        self._special[list(special)] = True
        self._bytes = self._bytes_of(special)

    def _bytes_of(self, special: dict[int, Any]) -> NDArray[np.int64] | None:
        """Bytes of text that each id stands for, a special token's literal among them; None if the tokens are not bytes."""
        try:
            found = self._tokenizer.bytes_per_token.copy()
        except InputError:
            self.counts.token_bytes = None
            return None
        for id, token in special.items():
            found[id] = len(token.content.encode())
        return found

    def run(self) -> list[dict[str, Any]]:
        """Everything; returns the shards' entries."""
        try:
            for path in self._job.input.files:
                self._tokenized(path) if path.name.endswith(TOKENIZED) else self._texts(path)
            for side in ("train", "validation"):
                self._close(side)
        finally:
            for writer in self._writers.values():
                writer.abort()
        return self._shards

    def _texts(self, path: Path) -> None:
        position, read, first = Position(), 0, self.counts.documents
        name = printable(path.name)
        source = name if len(self._job.input.files) == 1 else self._job.input.name
        for batch in _batches(self._documents(path, position), self._job.batch_bytes):
            ids, sizes = self._encoder.encode([document.text for _, document in batch])
            lengths = np.array([len(document.text.encode()) for _, document in batch], dtype=np.int64)
            self._note(batch, ids, sizes)
            named = [(document, f"{name}:{number - first}", document.source or source) for number, document in batch]
            self._write(named, ids, sizes, lengths)
            self._report(Progress(position.at - read, int(lengths.sum()), int(sizes.sum())))
            read = position.at
        self._report(Progress(path.stat().st_size - read, 0, 0))  # what stands behind the last document

    def _tokenized(self, path: Path) -> None:
        position, read = Position(), 0
        for ids, sizes in read_tokenized(path, self._tokenizer.vocab_size, self._job.batch_bytes, position):
            first = self.counts.documents
            self.counts.documents += len(sizes)
            name = printable(path.name)
            places = [f"{name}:{first + number}" for number in range(len(sizes))]
            before = self.counts.text_bytes
            self._write([(Document("", place), place, name) for place in places], ids, sizes, None)
            self._report(Progress(position.at - read, self.counts.text_bytes - before, len(ids)))
            read = position.at

    def _documents(self, path: Path, position: Position) -> Iterator[tuple[int, Document]]:
        """The documents that can be used, with their number; the others are counted, or stop the work."""
        for row in read_rows(path, self._options.columns, position):
            number = self.counts.documents
            self.counts.documents += 1
            if isinstance(row, Refusal):
                if self._options.on_error == "stop":
                    raise InputError(f"{row.message}, or leave such documents out by --on-error skip")
                place = row.message.removeprefix(str(path))  # where the file lies must not decide a dataset's fingerprint
                self.counts.drop(row.kind, f"{path.name}{place}")
            elif not row.text:
                self.counts.drop(EMPTY, f"{path.name}, document {number}")
            else:
                yield number, row

    def _note(self, batch: list[tuple[int, Document]], ids: NDArray[np.uint32], sizes: NDArray[np.int64]) -> None:
        for _, document in batch:
            self.counts.noted.update(document.notes)
            if document.id is None:
                self.counts.noted[NO_ID] += 1
            if document.source is None and self._options.columns.source is not None:
                self.counts.noted[NO_SOURCE] += 1
            self.counts.noted.update(kind for sign, kind in NOTED.items() if sign in document.text)
        special = np.flatnonzero(self._special[ids])
        if len(special):
            self.counts.noted[SPECIAL] += len(np.unique(np.searchsorted(np.cumsum(sizes), special, side="right")))

    def _write(
        self,
        named: list[tuple[Document, str, str]],
        ids: NDArray[np.uint32],
        sizes: NDArray[np.int64],
        lengths: NDArray[np.int64] | None,
    ) -> None:
        """Documents of known ids; `lengths` are the bytes of their texts, None where there is no text but the ids'."""
        ends = np.cumsum(sizes)
        tokens = ids.astype(self._dtype)
        summed = None if self._bytes is None else np.append(0, np.cumsum(self._bytes[ids]))
        for number, ((document, place, source), start, end) in enumerate(
            zip(named, (ends - sizes).tolist(), ends.tolist(), strict=True)
        ):
            has_end = lengths is None and end > start and tokens[end - 1] == self._tokenizer.end_of_text
            stop = end - 1 if has_end else end  # what ends a document is no text of its
            if lengths is None and stop == start:
                self.counts.drop(EMPTY, place)
                continue
            whole = tokens[start:end] if has_end else np.concatenate([tokens[start:end], self._end])
            if len(whole) < self._options.min_tokens or not len(whole):
                self.counts.drop(SHORT, place)
                continue
            self.counts.kept += 1
            held = 0 if summed is None else int(summed[stop] - summed[start])
            self.counts.text_bytes += held if lengths is None else int(lengths[number])
            if self.counts.token_bytes is not None:
                self.counts.token_bytes += held
            self._add(
                split_of(document, self._options.split_seed, self._options.validation), whole, document.id or place, source
            )

    def _add(self, side: Split, ids: NDArray[Any], id: str, source: str) -> None:
        if side not in self._writers:
            number = sum(entry["split"] == side for entry in self._shards)
            self._writers[side] = ShardWriter(self._partial / f"{side}-{number:05d}", side, self._dtype)
        self._writers[side].add(ids, id, source)
        if self._writers[side].tokens >= self._options.shard_tokens:
            self._close(side)

    def _close(self, side: Split) -> None:
        writer = self._writers.pop(side, None)
        if writer is not None:
            self._shards.append(writer.close())


def _batches(documents: Iterator[tuple[int, Document]], size: int) -> Iterator[list[tuple[int, Document]]]:
    """As many documents as give `size` characters: at least one, at most BATCH_DOCUMENTS."""
    batch: list[tuple[int, Document]] = []
    held = 0
    for numbered in documents:
        batch.append(numbered)
        held += len(numbered[1].text)
        if held >= size or len(batch) == BATCH_DOCUMENTS:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
