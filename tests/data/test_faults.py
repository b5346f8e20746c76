"""What goes wrong around a dataset: killed, stopped, out of room, twice at once, damaged, fed with bad lines or huge ones.

The rule for all of it: what is there afterwards is either the undisturbed run's bytes, or one line says what is the matter.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokencodes.cli import run
from tokencodes.data.convert import EMPTY, NOTED, SHORT, Job, PrepareOptions, convert
from tokencodes.data.dataset import Dataset, fingerprint
from tokencodes.data.encode import ReferenceEncoder, engine_for
from tokencodes.data.inputs import Input, find_inputs
from tokencodes.data.inspect import inspect
from tokencodes.data.prepare import Means, prepare
from tokencodes.data.text import BYTE_ORDER_MARK, read_documents
from tokencodes.data.tokenizer import TokenizerFile, train_tokenizer
from tokencodes.errors import InputError
from tokencodes.files import LOCK, write_json
from tokencodes.train.corpus import resolve_inputs

WHOLE_TRAIN = PrepareOptions(validation=0)
KILLS = 4
FLIPS = 100
SHARD_FILES = ("tokens.npy", "offsets.npy", "documents.parquet", "checksums.json")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the locks."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != LOCK)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".tmp-*")]


# Disturbed processes


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """Half of the embedded documents, whole, dealt to five files: enough work to be disturbed in."""
    folder = tmp_path_factory.mktemp("library")
    lines = [
        json.dumps({"id": document.id, "text": document.text})
        for path in resolve_inputs(("embedded:austen", "embedded:sotu"))
        for document in list(read_documents(Path(path)))[::2]
    ]
    for number in range(5):
        (folder / f"part-{number}.jsonl").write_text("\n".join(lines[number::5]) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def command(library, tokenizer_path) -> list[str]:
    """All but --workers and --out."""
    return [*f"{sys.executable} -m tokencodes prepare {library} --tokenizer {tokenizer_path} --json --validation 0.2".split()]


class Process:
    """A real `tokencodes prepare`, in a process group of its own."""

    def __init__(self, command: list[str], out: Path, workers: int) -> None:
        self.out = out
        told = [*command, "--workers", str(workers), "--out", str(out)]
        self._process = subprocess.Popen(
            told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.pid = self._process.pid

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline and self._process.poll() is None, self._process.communicate()
            time.sleep(0.002)

    def workers(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def taken(self) -> bool:
        return (self.out / LOCK).is_file()

    def converting(self) -> bool:
        return any(self.out.glob(".tmp-*/*"))

    def end(self) -> tuple[int, list[str]]:
        """Waits; gives exit status and the lines on standard error."""
        _, errors = self._process.communicate(timeout=60)
        return self._process.returncode, errors.splitlines()


@pytest.fixture(scope="module")
def undisturbed(command, tmp_path_factory) -> dict[int, tuple[dict[str, bytes], float]]:
    """By number of workers: the bytes, and the seconds from the taking of the folder to the end."""
    found = {}
    for workers in (1, 2):
        process = Process(command, tmp_path_factory.mktemp("undisturbed") / "data", workers)
        process.wait_for(process.taken)
        began = time.monotonic()
        assert process.end() == (0, [])
        found[workers] = contents(process.out), time.monotonic() - began
    return found


def the_same_command_ends_well(process: Process, command: list[str], workers: int, expected: dict[str, bytes]) -> None:
    assert Process(command, process.out, workers).end() == (0, [])
    assert contents(process.out) == expected
    assert not leftovers(process.out)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: list[int], within: float = 10) -> bool:
    deadline = time.monotonic() + within
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, pids))


def test_one_worker_and_two_give_the_same_bytes(undisturbed):
    assert undisturbed[1][0] == undisturbed[2][0]


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_random_moments_and_repeated_it_ends_in_the_undisturbed_bytes(workers, command, undisturbed, tmp_path):
    expected, seconds = undisturbed[workers]
    moments = random.Random(workers)
    for number in range(KILLS):
        process = Process(command, tmp_path / str(number), workers)
        process.wait_for(process.taken)
        time.sleep(moments.uniform(0, seconds))
        os.kill(process.pid, signal.SIGKILL)
        the_same_command_ends_well(process, command, workers, expected)


def test_workers_end_with_their_parent_even_before_they_have_begun(command, tmp_path):
    process = Process(command, tmp_path / "data", 2)
    process.wait_for(lambda: len(process.workers()) == 2)
    workers = process.workers()
    os.kill(process.pid, signal.SIGKILL)
    assert process.end() == (-signal.SIGKILL, [])
    assert gone(workers)
    assert not list(process.out.glob("*/source.json"))


def test_a_killed_worker_is_one_line_and_the_same_command_goes_on(command, undisturbed, tmp_path):
    process = Process(command, tmp_path / "data", 2)
    process.wait_for(process.converting)
    workers = process.workers()
    os.kill(workers[0], signal.SIGKILL)
    status, lines = process.end()
    assert (status, len(lines)) == (2, 1), lines
    assert re.match(r"tokencodes: .*part-\d\.jsonl: its worker ended \(exit status -9\); .* repeat the command", lines[0])
    assert gone(workers)
    assert not leftovers(process.out)
    the_same_command_ends_well(process, command, 2, undisturbed[2][0])


@pytest.mark.parametrize(("workers", "moment"), [(1, "converting"), (2, "workers"), (2, "converting")])
def test_ctrl_c_is_one_line_and_exit_130_and_leaves_nobody_alive(workers, moment, command, undisturbed, tmp_path):
    process = Process(command, tmp_path / "data", workers)
    process.wait_for(getattr(process, moment))
    pids = process.workers()
    os.killpg(process.pid, signal.SIGINT)
    status, lines = process.end()
    assert (status, len(lines)) == (130, 1), lines
    assert lines[0].startswith("tokencodes: interrupted; what was finished is intact")
    assert gone(pids)
    assert not leftovers(process.out)
    the_same_command_ends_well(process, command, workers, undisturbed[workers][0])


def test_of_two_at_once_into_one_folder_one_is_refused_or_both_end_in_the_same_bytes(command, undisturbed, tmp_path):
    pair = [Process(command, tmp_path / "data", 1) for _ in range(2)]
    ends = sorted(process.end() for process in pair)
    assert ends[0] == (0, [])
    status, lines = ends[1]
    assert (status, lines) == (0, []) or (status == 2 and len(lines) == 1 and "another program is writing here" in lines[0])
    assert contents(tmp_path / "data") == undisturbed[1][0]
    assert not leftovers(tmp_path / "data")


# No room


@pytest.fixture
def small_disk(tmp_path):
    """A function that gives a folder, a file system of its own, this many bytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")

    def sized(size: int) -> Path:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
        return disk

    yield sized
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(("share", "workers"), [(0.05, 1), (0.3, 1), (0.6, 1), (0.9, 1), (0.5, 2)])
def test_a_full_disk_is_one_line_and_with_room_the_bytes_are_the_same(
    share, workers, texts, tokenizer_path, tmp_path, small_disk, capsys
):
    options = PrepareOptions(validation=0.2, shard_tokens=5000)
    expected = contents(prepare([str(texts)], tokenizer_path, tmp_path / "whole", options).path)
    disk = small_disk(int(share * sum(map(len, expected.values()))))
    told = f"prepare {texts} --tokenizer {tokenizer_path} --out {disk / 'data'} --validation 0.2 --shard-tokens 5000 --json"
    command = [*told.split(), "--workers", str(workers)]
    assert run(command) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("tokencodes: ") and complaint.count("\n") == 1
    assert "No space left on device" in complaint
    assert not leftovers(disk)
    small_disk(64 << 20)
    assert run(command) == 0
    assert contents(disk / "data") == expected
    assert not leftovers(disk)


# Damage


@pytest.fixture
def copied(dataset, tmp_path) -> Path:
    return Path(shutil.copytree(dataset.path, tmp_path / "copy"))


def covered(folder: Path) -> list[Path]:
    """The files that a checksum reaches: all but the lock and what `prepare` alone reads."""
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name not in (LOCK, "source.json")]


def complaint_about(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        inspect(Dataset(folder), 16, full=True)
    return str(caught.value)


def test_one_flipped_bit_anywhere_is_detected_and_its_file_named(copied):
    places = random.Random(1)
    for _ in range(FLIPS):
        file = places.choice(covered(copied))
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[places.randrange(len(whole))] ^= 1 << places.randrange(8)
        file.write_bytes(damaged)
        assert str(file) in complaint_about(copied)
        file.write_bytes(whole)
    assert inspect(Dataset(copied), 16, full=True).checked == "every byte"


@pytest.mark.parametrize("change", ["cut by a byte", "cut in half", "emptied", "longer by a byte"])
def test_a_file_of_another_length_is_detected_and_named(change, copied):
    for file in covered(copied):
        if file.name == "manifest.json" and change == "cut by a byte":  # a line break at the end of JSON says nothing
            continue
        whole = file.read_bytes()
        cut = {"cut by a byte": whole[:-1], "cut in half": whole[: len(whole) // 2], "emptied": b"", "longer by a byte": whole}
        file.write_bytes(cut[change] + (b"x" if change == "longer by a byte" else b""))
        assert str(file) in complaint_about(copied)
        file.write_bytes(whole)


@pytest.mark.parametrize("name", [*SHARD_FILES, "tokenizer.json"])
def test_a_missing_file_is_named(name, copied):
    file = next(file for file in covered(copied) if file.name == name)
    file.unlink()
    told = complaint_about(copied)
    assert str(file) in told and ("missing" in told or "no such" in told)


def test_a_missing_shard_or_manifest_is_named(copied):
    shard = Dataset(copied).own_shards[-1].path
    shutil.rmtree(shard)
    assert complaint_about(copied) == f"{shard / 'tokens.npy'}: missing; prepare the dataset anew"
    (copied / "manifest.json").unlink()
    assert f"{copied}: no manifest.json, so not a finished dataset" in complaint_about(copied)


def test_another_tokenizer_in_the_dataset_is_named(copied, tmp_path):
    train_tokenizer(["some other words " * 50], 262, tmp_path / "other.json")
    shutil.copyfile(tmp_path / "other.json", copied / "tokenizer.json")
    assert complaint_about(copied).startswith(f"{copied / 'tokenizer.json'}: not the tokenizer that made these ids")


def test_a_manifest_of_another_version_is_refused_even_if_it_is_sound(copied):
    manifest = json.loads((copied / "manifest.json").read_text())
    other = {**manifest, "version": manifest["version"] + 1}
    write_json(copied / "manifest.json", {**other, "fingerprint": fingerprint(other)})
    told = complaint_about(copied)
    assert f"version {manifest['version'] + 1}" in told and f"reads 'tokencodes-dataset' version {manifest['version']}" in told


@pytest.mark.parametrize("text", ["[]", "null", '"manifest"', "{}", "", "{"])
def test_a_manifest_that_is_none_is_refused(text, copied):
    (copied / "manifest.json").write_text(text)
    assert complaint_about(copied).startswith(f"{copied}/manifest.json: ")


# Lines that are no documents, or strange ones

REFUSED = {
    "not JSON": b'{"text": "never ended',
    "no text": b'{"body": "text under another name"}',
    "null text": b'{"text": null}',
    "lone surrogate": b'{"text": "half a pair: \\ud83d"}',
    "not UTF-8": '{"text": "café, in Latin-1"}'.encode("latin-1"),
}
STRANGE = {
    BYTE_ORDER_MARK: (b'\xef\xbb\xbf{"id": "mark", "text": "behind a mark"}', "behind a mark"),
    NOTED["\r\n"]: (b'{"id": "crlf", "text": "one\\r\\ntwo"}', "one\r\ntwo"),
    NOTED["\0"]: (b'{"id": "nul", "text": "a\\u0000b"}', "a\0b"),
}
EMPTY_LINE = b'{"id": "empty", "text": ""}'


@pytest.fixture
def faulty(texts, tmp_path) -> Path:
    """Good lines, and among them each refused kind, each kind once more often than the one before, and strange ones."""
    lines = (texts / "austen.jsonl").read_bytes().splitlines()
    for often, line in enumerate(REFUSED.values(), 1):
        for place in range(often):
            lines.insert(5 * place + often, line)
    lines += [EMPTY_LINE, EMPTY_LINE, *(line for line, _ in STRANGE.values())]
    path = tmp_path / "lines" / "faulty.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def named_texts(dataset: Dataset) -> dict[str, str]:
    """Every document's text by its id, read back out of the shards."""
    decode = dataset.tokenizer.tokenizer.decode
    return {
        name: decode(ids.tolist()[:-1], skip_special_tokens=False)
        for shard in dataset.own_shards
        for name, ids in zip(shard.names()["id"].to_pylist(), shard.ids(), strict=True)
    }


@pytest.mark.parametrize("kind", REFUSED)
def test_a_line_that_is_no_document_stops_the_work_and_is_named(kind, texts, tokenizer_path, tmp_path):
    path = tmp_path / "lines.jsonl"
    good = (texts / "austen.jsonl").read_bytes().splitlines()
    path.write_bytes(b"\n".join([*good[:7], REFUSED[kind], *good[7:]]))
    with pytest.raises(InputError) as caught:
        prepare([str(path)], tokenizer_path, tmp_path / "data", WHOLE_TRAIN)
    assert str(caught.value).startswith(f"{path}, line 8: ")
    assert "--on-error skip" in str(caught.value)
    assert contents(tmp_path / "data").keys() == {"tokenizer.json"}


def test_skipped_lines_are_counted_by_kind_and_every_good_document_is_kept(faulty, texts, tokenizer_path, tmp_path):
    found = prepare([str(faulty)], tokenizer_path, tmp_path / "data", PrepareOptions(validation=0.3, on_error="skip"))
    (source,) = found.manifest["sources"]
    counts = source["counts"]
    good = {document.id: document.text for document in read_documents(texts / "austen.jsonl")}
    strange = {json.loads(line.decode("utf-8-sig"))["id"]: text for line, text in STRANGE.values()}
    assert named_texts(found) == good | strange
    assert counts["dropped"] == {kind: often for often, kind in enumerate(REFUSED, 1)} | {EMPTY: 2}
    assert counts["noted"] == dict.fromkeys(STRANGE, 1)
    assert counts["kept"] == len(good) + len(strange)
    assert counts["documents"] == counts["kept"] + sum(counts["dropped"].values())
    assert counts["text_bytes"] == sum(len(text.encode()) for text in (good | strange).values())


def test_the_first_of_each_kind_is_told_by_file_and_line(faulty, tokenizer_path, tmp_path):
    found = prepare([str(faulty)], tokenizer_path, tmp_path / "data", PrepareOptions(validation=0.3, on_error="skip"))
    examples = found.manifest["sources"][0]["counts"]["examples"]
    lines = faulty.read_bytes().splitlines()
    assert examples.keys() == {*REFUSED, EMPTY}
    for kind, line in REFUSED.items():
        assert examples[kind].startswith(f"faulty.jsonl, line {lines.index(line) + 1}: ")
    assert examples[EMPTY] == f"faulty.jsonl, document {lines.index(EMPTY_LINE)}"


def test_where_an_input_lies_does_not_reach_the_fingerprint(faulty, tokenizer_path, tmp_path):
    options = PrepareOptions(validation=0.3, on_error="skip")
    here = prepare([str(faulty)], tokenizer_path, tmp_path / "here", options)
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy2(faulty, tmp_path / "elsewhere")
    assert prepare([str(moved)], tokenizer_path, tmp_path / "there", options).fingerprint == here.fingerprint


def test_empty_and_strange_documents_do_not_stop_the_work(texts, tokenizer_path, tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"\n".join([EMPTY_LINE, *(line for line, _ in STRANGE.values())]))
    found = prepare([str(path)], tokenizer_path, tmp_path / "data", WHOLE_TRAIN)
    assert list(named_texts(found).values()) == [text for _, text in STRANGE.values()]
    counts = found.manifest["sources"][0]["counts"]
    assert (counts["dropped"], counts["noted"]) == ({EMPTY: 1}, dict.fromkeys(STRANGE, 1))


def test_documents_below_the_least_length_are_dropped_and_counted(texts, tokenizer_path, tmp_path):
    path = texts / "sotu.jsonl"
    documents = list(read_documents(path))
    lengths = [len(ids) + 1 for ids in TokenizerFile(tokenizer_path).encode([one.text for one in documents])]
    least = sorted(lengths)[len(lengths) // 3] + 1
    found = prepare([str(path)], tokenizer_path, tmp_path / "data", PrepareOptions(validation=0, min_tokens=least))
    kept = [document.id for document, length in zip(documents, lengths, strict=True) if length >= least]
    assert list(named_texts(found)) == kept
    counts = found.manifest["sources"][0]["counts"]
    first = next(number for number, length in enumerate(lengths) if length < least)
    assert counts["dropped"] == {SHORT: len(documents) - len(kept)}
    assert counts["examples"] == {SHORT: f"sotu.jsonl:{first}"}


# An input that does not hold still


def swap_case(path: Path) -> None:
    """Other bytes, as many of them."""
    path.write_bytes(path.read_bytes().swapcase())


def test_an_input_that_changes_while_it_is_read_is_refused(texts, tokenizer_path, tmp_path):
    path = Path(shutil.copy2(texts / "sotu.jsonl", tmp_path))
    job = Job(find_inputs([str(path)])[0], tmp_path / "data", WHOLE_TRAIN, batch_bytes=10_000)
    with pytest.raises(InputError, match=r"sotu\.jsonl: changed while it was read; repeat the command"):
        convert(job, engine_for(TokenizerFile(tokenizer_path)), lambda progress: os.utime(path))
    assert not contents(tmp_path / "data")


def test_an_input_that_changes_after_it_was_hashed_is_refused(texts, tokenizer_path, tmp_path, monkeypatch):
    path = Path(shutil.copy2(texts / "sotu.jsonl", tmp_path))
    hashed = Input.facts

    def facts(self):
        told = hashed(self)
        path.write_bytes(path.read_bytes().replace(b"Congress", b"congress"))
        return told

    monkeypatch.setattr(Input, "facts", facts)
    with pytest.raises(InputError, match=r"sotu\.jsonl: changed while it was read"):
        prepare([str(path)], tokenizer_path, tmp_path / "data", WHOLE_TRAIN)
    assert contents(tmp_path / "data").keys() == {"tokenizer.json"}


# The means decide nothing

MEANS = {
    "two workers": Means(workers=2),
    "the reference engine": Means(tokenizer_engine="reference"),
    "a document at a time": Means(batch_bytes=1),
    "other batches": Means(batch_bytes=30_000),
    "all of it": Means(workers=2, tokenizer_engine="reference", batch_bytes=7_000),
}


def prepare_mixed(folder: Path, tokenizer: Path, out: Path, means: Means) -> dict[str, bytes]:
    options = PrepareOptions(validation=0.2, shard_tokens=5000, min_tokens=6, on_error="skip")
    prepare([str(folder)], tokenizer, out, options, means)
    return contents(out)


@pytest.fixture
def mixed(faulty, texts) -> Path:
    """Inputs of each kind in one folder, faults among them."""
    documents = list(read_documents(texts / "sotu.jsonl"))
    table = {"id": [one.id for one in documents[20:]], "text": [one.text for one in documents[20:]]}
    pq.write_table(pa.table(table), faulty.parent / "rows.parquet")
    for document in documents[:20]:
        (faulty.parent / f"{document.id}.txt").write_text(document.text, encoding="utf-8")
    return faulty.parent


def test_workers_engine_and_batches_do_not_change_a_byte(mixed, tokenizer_path, tmp_path):
    expected = prepare_mixed(mixed, tokenizer_path, tmp_path / "plain", Means())
    assert len(expected) > 40
    for name, means in MEANS.items():
        assert prepare_mixed(mixed, tokenizer_path, tmp_path / name, means) == expected, name


def test_nor_do_they_with_real_text_and_the_real_tokenizer(real_data, tmp_path):
    inputs = [str(real_data / "corpora" / "rust-books.jsonl.gz")]
    tokenizer = real_data / "tokenizer" / "smollm2.json"
    expected = contents(prepare(inputs, tokenizer, tmp_path / "plain", WHOLE_TRAIN).path)
    for name in ("the reference engine", "other batches"):
        assert contents(prepare(inputs, tokenizer, tmp_path / name, WHOLE_TRAIN, MEANS[name]).path) == expected


# A huge document

PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
SAFE_CUT = re.compile(r"[A-Za-z](?= [A-Za-z])")  # no pre-token reaches across


def test_a_document_of_50_megabytes_goes_through_in_little_memory(real_data, tmp_path):
    documents = read_documents(real_data / "corpora" / "python3.11-doc-rst.jsonl.gz")
    text = "\n\n".join(document.text for document in documents)
    text = (text * (50_000_000 // len(text) + 1))[:50_000_000]
    (tmp_path / "big.jsonl").write_text(json.dumps({"id": "big", "text": text}, ensure_ascii=False), encoding="utf-8")
    tokenizer = real_data / "tokenizer" / "smollm2.json"
    told = f"-m tokencodes prepare {tmp_path / 'big.jsonl'} --tokenizer {tokenizer} --validation 0 --out {tmp_path / 'data'}"
    measured = [sys.executable, "-c", PEAK, sys.executable, *told.split(), "--json"]
    assert int(subprocess.run(measured, capture_output=True, check=True).stdout) < 1_000_000_000

    (shard,) = Dataset(tmp_path / "data").own_shards
    (ids,) = shard.ids()
    encoder = ReferenceEncoder(TokenizerFile(tokenizer))
    head, tail = SAFE_CUT.search(text, 1_000_000), SAFE_CUT.search(text, len(text) - 1_000_000)
    first, last = (encoder.encode([part])[0] for part in (text[: head.end()], text[tail.end() :]))
    assert ids[: len(first)].tolist() == first.tolist()
    assert ids[-len(last) - 1 :].tolist() == [*last.tolist(), encoder.tokenizer.end_of_text]
