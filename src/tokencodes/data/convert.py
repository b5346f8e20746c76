"""One input -> its shards, in a folder that appears at once. What a worker does, on this machine or
on another.

Documents are read in batches, so that memory is bounded by the batch (or by the longest document),
not by the file. What becomes no document, or is worth knowing of one, is counted by kind; nothing
is dropped without a count.
"""

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokencodes.data.counts import (
    CHANGED,
    EMPTY,
    NO_ID,
    NO_SOURCE,
    NOTED,
    SHORT,
    SPECIAL,
    UNKNOWN,
    Counts,
)
from tokencodes.data.encode import Encoder
from tokencodes.data.entries import ShardEntry, SourceFile, as_json
from tokencodes.data.inputs import Input
from tokencodes.data.options import PrepareOptions, settings_of
from tokencodes.data.shards import token_dtype
from tokencodes.data.split import Split, side_of, split_hash, threshold_of
from tokencodes.data.text import Document, Position, Refusal, printable, read_rows
from tokencodes.data.tokenized import TOKENIZED, read_tokenized
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.data.writer import ShardWriter
from tokencodes.errors import InputError
from tokencodes.files import LOCK, fsync, locked_folder, write_json
from tokencodes.records import read_record

BATCH_DOCUMENTS = 4096
PARTIAL = ".tmp-"


@dataclass(frozen=True)
class Job:
    """One input to be converted, with everything that a worker needs."""

    input: Input
    out: Path
    options: PrepareOptions
    batch_bytes: int = 4 << 20  # of text, held at a time
    # of the split; None: the validation share's, or whatever it was converted with before
    threshold: int | None = None


@dataclass(frozen=True)
class Progress:
    """What was done since the last report, in bytes of the input file, bytes of text and tokens."""

    input_bytes: int
    text_bytes: int
    tokens: int


Report = Callable[[Progress], None]


def finished(job: Job, tokenizer: TokenizerFile) -> SourceFile | None:
    """The `source.json` of an input that was already converted with the same settings.

    Returns None if the input must be converted. Raises InputError if `source.json` is not valid.
    """
    folder = job.out / job.input.name
    if not (folder / "source.json").is_file():
        return None
    there = read_record(
        folder / "source.json", SourceFile, "not made by prepare, so choose another --out"
    )
    if job.input.origin is not None:
        same_input = there.input.origin == job.input.origin
    else:
        same_input = job.input.seen() == there.seen or job.input.facts() == as_json(there.input)
    if there.settings != settings_of(job.options, tokenizer) or not same_input:
        return None
    if job.threshold is not None and (
        there.split is None or int(there.split.threshold, 16) != job.threshold
    ):
        return None
    return there


def convert(job: Job, encoder: Encoder, report: Report = lambda progress: None) -> SourceFile:
    """Converts one input, unless it was converted before. Returns its `source.json`.

    Raises InputError if the folder was not made by `prepare`, or if the input cannot be read.
    """
    done = finished(job, encoder.tokenizer)
    if done is not None:
        return done
    folder = job.out / job.input.name
    if folder.exists():
        if not (folder / "source.json").is_file():
            raise InputError(f"{folder}: not made by prepare; choose another --out")
        # left by an unfinished run with other settings; no manifest ever named it
        shutil.rmtree(folder)
    partial = folder.with_name(f"{PARTIAL}{folder.name}-{uuid.uuid4().hex[:12]}")
    job = replace(job, input=job.input.fetch())
    try:
        # so that a cleaning program can tell work in progress from what a dead one left
        with locked_folder(partial):
            written = _write_folder(job, encoder, partial, report)
            try:
                partial.replace(folder)
            except OSError:
                # the same task, run twice: the other one was faster
                done = finished(job, encoder.tokenizer)
                if done is None:
                    raise
                shutil.rmtree(partial, ignore_errors=True)
                return done
            # only now: without it, what is not yet renamed would look like a dead one's
            (folder / LOCK).unlink()
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    fsync(folder.parent)
    return written


def _write_folder(job: Job, encoder: Encoder, partial: Path, report: Report) -> SourceFile:
    # in this order: what changes while it is hashed has changed
    seen, facts = job.input.seen(), job.input.facts()
    conversion = _Conversion(job, encoder, partial, report)
    shards = conversion.run()
    if job.input.seen() != seen:
        raise InputError(f"{job.input.title}: changed while it was read; repeat the command")
    entry = {
        "input": facts,
        "settings": as_json(settings_of(job.options, encoder.tokenizer)),
        "seen": seen,
        "counts": conversion.counts.as_json(),
        "shards": [as_json(shard) for shard in shards],
        "split": conversion.split_entry(),
    }
    write_json(partial / "source.json", entry)
    fsync(partial)
    return SourceFile.model_validate(entry)


def clean(out: Path) -> None:
    """Removes unfinished files that ended programs left in a dataset's folder."""
    for leftover in out.glob(f"{PARTIAL}*"):
        if not leftover.is_dir():
            leftover.unlink(missing_ok=True)
            continue
        with suppress(InputError), locked_folder(leftover):  # a living program holds its own
            shutil.rmtree(leftover, ignore_errors=True)


class _Conversion:
    """The batches of one input, from text to shards."""

    def __init__(self, job: Job, encoder: Encoder, partial: Path, report: Report) -> None:
        self._job, self._options, self._encoder, self._report = job, job.options, encoder, report
        self._partial, self.counts = partial, Counts()
        tokenizer = self._tokenizer = encoder.tokenizer
        self._writers: dict[Split, ShardWriter] = {}
        self._shards: list[ShardEntry] = []
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._end = np.array(
            [tokenizer.end_of_text] if self._options.end_of_text == "append" else [],
            dtype=self._dtype,
        )
        special = tokenizer.tokenizer.get_added_tokens_decoder()
        self._special = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
        self._special[[id for id in special if id != tokenizer.unknown]] = True
        self._bytes = self._bytes_of(special)
        self._threshold = (
            threshold_of(self._options.validation_fraction)
            if job.threshold is None
            else job.threshold
        )
        self._lowest: int | None = None  # of the hashes of kept documents
        self._highest: int | None = None

    def _bytes_of(self, special: dict[int, Any]) -> NDArray[np.int64] | None:
        """The number of bytes of text of each id, int64[V]; a special token counts its literal.

        Returns None if the numbers cannot be known.
        """
        try:
            byte_counts = self._tokenizer.bytes_per_token.copy()
        except InputError:
            byte_counts = None
        if byte_counts is None or self._tokenizer.adds_space:
            self.counts.token_bytes = None
            return None
        for id, token in special.items():
            if id != self._tokenizer.unknown:
                byte_counts[id] = len(token.content.encode())
        return byte_counts

    def split_entry(self) -> dict[str, Any]:
        """How the documents were split: the `split` of `source.json`."""
        lowest, highest = (
            None if number is None else f"{number:016x}" for number in (self._lowest, self._highest)
        )
        return {"threshold": f"{self._threshold:016x}", "lowest": lowest, "highest": highest}

    def run(self) -> list[ShardEntry]:
        """Converts all files of the input. Returns the entries of its shards."""
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
            texts = [document.text for _, document in batch]
            ids, sizes = self._encoder.encode(texts)
            lengths = np.array([len(text.encode()) for text in texts], dtype=np.int64)
            self._note(batch, ids, sizes)
            named = [
                (document, f"{name}:{number - first}", document.source or source)
                for number, document in batch
            ]
            self._write(named, ids, sizes, (lengths, self._encoded_lengths(texts, lengths)))
            self._report(Progress(position.at - read, int(lengths.sum()), int(sizes.sum())))
            read = position.at
        # what stands behind the last document
        self._report(Progress(path.stat().st_size - read, 0, 0))

    def _encoded_lengths(self, texts: list[str], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of each text as the tokenizer's normalizer hands it on; `lengths` where there is no
        normalizer.
        """
        normalized = self._tokenizer.normalized(texts)
        if normalized is texts:
            return lengths
        self.counts.noted[CHANGED] += sum(
            text != other for text, other in zip(texts, normalized, strict=True)
        )
        return np.array([len(text.encode()) for text in normalized], dtype=np.int64)

    def _tokenized(self, path: Path) -> None:
        position, read = Position(), 0
        for ids, sizes in read_tokenized(
            path, self._tokenizer.vocab_size, self._job.batch_bytes, position
        ):
            first = self.counts.documents
            self.counts.documents += len(sizes)
            name = printable(path.name)
            places = [f"{name}:{first + number}" for number in range(len(sizes))]
            before = self.counts.text_bytes
            self._write([(Document("", place), place, name) for place in places], ids, sizes, None)
            self._report(Progress(position.at - read, self.counts.text_bytes - before, len(ids)))
            read = position.at

    def _documents(self, path: Path, position: Position) -> Iterator[tuple[int, Document]]:
        """The documents that can be used, with their number; the others are counted, or stop the
        work.
        """
        for row in read_rows(path, self._options.columns, position):
            number = self.counts.documents
            self.counts.documents += 1
            if isinstance(row, Refusal):
                if self._options.on_error == "stop":
                    raise InputError(
                        f"{row.message}, or leave such documents out by --on-error skip"
                    )
                # where the file lies must not decide a dataset's fingerprint
                place = row.message.removeprefix(str(path))
                self.counts.drop(row.kind, f"{path.name}{place}")
            elif not row.text:
                self.counts.drop(EMPTY, f"{path.name}, document {number}")
            else:
                yield number, row

    def _note(
        self, batch: list[tuple[int, Document]], ids: NDArray[np.uint32], sizes: NDArray[np.int64]
    ) -> None:
        for _, document in batch:
            self.counts.noted.update(document.notes)
            if document.id is None:
                self.counts.noted[NO_ID] += 1
            if document.source is None and self._options.columns.source is not None:
                self.counts.noted[NO_SOURCE] += 1
            self.counts.noted.update(kind for sign, kind in NOTED.items() if sign in document.text)
        ends, unknown = np.cumsum(sizes), self._tokenizer.unknown
        special = {*_documents_of(self._special[ids], ends)}
        if unknown is not None:
            literal = self._tokenizer.tokenizer.id_to_token(unknown) or ""
            without = {*_documents_of(ids == unknown, ends)}
            written = {number for number in without if literal in batch[number][1].text}
            special |= written
            self.counts.noted[UNKNOWN] += len(without - written)
        self.counts.noted[SPECIAL] += len(special)

    def _write(
        self,
        named: list[tuple[Document, str, str]],
        ids: NDArray[np.uint32],
        sizes: NDArray[np.int64],
        lengths: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    ) -> None:
        """Documents of known ids. `lengths`: the bytes of their texts, as read and as normalized;
        None where there is no text but the ids'.
        """
        ends = np.cumsum(sizes)
        tokens = ids.astype(self._dtype)
        summed = None if self._bytes is None else np.append(0, np.cumsum(self._bytes[ids]))
        for number, ((document, place, source), start, end) in enumerate(
            zip(named, (ends - sizes).tolist(), ends.tolist(), strict=True)
        ):
            has_end = (
                lengths is None and end > start and tokens[end - 1] == self._tokenizer.end_of_text
            )
            stop = end - 1 if has_end else end  # what ends a document is no text of its
            if lengths is None and stop == start:
                self.counts.drop(EMPTY, place)
                continue
            whole = tokens[start:end] if has_end else np.concatenate([tokens[start:end], self._end])
            if len(whole) < self._options.min_document_tokens or not len(whole):
                self.counts.drop(SHORT, place)
                continue
            held = 0 if summed is None else int(summed[stop] - summed[start])
            read, encoded = (
                (held, held)
                if lengths is None
                else (int(lengths[0][number]), int(lengths[1][number]))
            )
            self.counts.keep(read, max(0, encoded - held))
            self._add(self._side(document), whole, document.id or place, source)

    def _side(self, document: Document) -> Split:
        number = split_hash(document, self._options.split_seed)
        self._lowest = number if self._lowest is None else min(self._lowest, number)
        self._highest = number if self._highest is None else max(self._highest, number)
        return side_of(number, self._threshold)

    def _add(self, side: Split, ids: NDArray[Any], id: str, source: str) -> None:
        if side not in self._writers:
            number = sum(entry.split == side for entry in self._shards)
            self._writers[side] = ShardWriter(
                self._partial / f"{side}-{number:05d}", side, self._dtype
            )
        self._writers[side].add(ids, id, source)
        if self._writers[side].tokens >= self._options.shard_tokens:
            self._close(side)

    def _close(self, side: Split) -> None:
        writer = self._writers.pop(side, None)
        if writer is not None:
            self._shards.append(writer.close())


def _documents_of(chosen: NDArray[np.bool_], ends: NDArray[np.int64]) -> list[int]:
    """The documents that the chosen tokens are in, each once. `ends`: where each document's tokens
    end.
    """
    numbers: list[int] = np.unique(
        np.searchsorted(ends, np.flatnonzero(chosen), side="right")
    ).tolist()
    return numbers


def _batches(
    documents: Iterator[tuple[int, Document]], size: int
) -> Iterator[list[tuple[int, Document]]]:
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
