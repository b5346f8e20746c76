"""Compares `tokencodes prepare` with datatrove's DocumentTokenizer. Whole commands run in turn, on
the same text and cores.

    python bench/prepare_text.py --corpora FOLDER --tokenizer FILE [--runs 5] [--peer PYTHON]

PYTHON is the interpreter of an environment with datatrove, orjson and the same tokenizers, if that
is not this environment.

The times include start-up. datatrove runs in the faster of two settings: two tasks of one thread,
or one task with the library's own threads. Ids are compared document by document. Then one worker
is compared with two. The text is repeated there (`--repeat`), so that start-up matters less. The
peak memory of each command is printed.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from text import documents, write_parts

from tokencodes.data.dataset import Dataset

PEER = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens.tokenizer import DocumentTokenizer
if __name__ == "__main__":
    source, out, tokenizer, tasks = sys.argv[1:]
    steps = [
        JsonlReader(source),
        DocumentTokenizer(out, tokenizer, eos_token="<|endoftext|>", batch_size=1000,
                          shuffle_documents=False),
    ]
    count = int(tasks)
    LocalPipelineExecutor(steps, tasks=count, workers=count, logging_dir=out + "-logs").run()
"""


def measure(command: list[str], out: Path, threads: bool = True) -> tuple[float, float]:
    """Runs a command into a fresh folder. Returns seconds and peak RSS (MB, of the largest
    process).
    """
    for path in (out, out.with_name(f"{out.name}-logs")):
        shutil.rmtree(path, ignore_errors=True)
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true" if threads else "false"}
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"failed: {command}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def ours(source: Path, out: Path, tokenizer: Path, workers: int) -> list[str]:
    """Returns our command."""
    arguments = [
        "prepare",
        str(source),
        "--tokenizer",
        str(tokenizer),
        "--out",
        str(out),
        "--workers",
        str(workers),
    ]
    return [sys.executable, "-c", "from tokencodes_command import main; main()", *arguments]


def same_ids(dataset: Path, peer: Path) -> int:
    """Returns the number of documents whose ids differ from the peer's."""
    different = 0
    prepared = Dataset(dataset)
    for number, source in enumerate(sorted(entry.name for entry in prepared.manifest.sources)):
        tokens = np.fromfile(peer / f"{number:05d}_unshuffled.ds", dtype="<u2")
        ends = np.fromfile(peer / f"{number:05d}_unshuffled.ds.index", dtype="<u8").astype(np.int64)
        peer_documents = {
            bytes(tokens[a:b].tobytes()) for a, b in zip(np.append(0, ends[:-1]), ends, strict=True)
        }
        shards = [s for s in prepared.own_shards if s.path.parent.name == source]
        different += sum(
            ids.astype("<u2").tobytes() not in peer_documents
            for shard in shards
            for ids in shard.ids()
        )
        different += len(ends) - sum(shard.documents for shard in shards)
    return different


def main() -> None:
    """Prints the medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--repeat", type=int, default=8)
    options = parser.parse_args()
    texts = documents(options.corpora)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        size = write_parts(texts, place / "once", 2)
        (place / "peer.py").write_text(PEER)
        peer = [
            options.peer,
            str(place / "peer.py"),
            str(place / "once"),
            str(place / "theirs"),
            str(options.tokenizer),
        ]
        times: dict[str, list[tuple[float, float]]] = {
            "ours": [],
            "datatrove 2 tasks": [],
            "datatrove 1 task": [],
        }
        for _ in range(options.runs):
            command = ours(place / "once", place / "ours", options.tokenizer, 2)
            times["ours"].append(measure(command, place / "ours"))
            times["datatrove 1 task"].append(measure([*peer, "1"], place / "theirs"))
            times["datatrove 2 tasks"].append(
                measure([*peer, "2"], place / "theirs", threads=False)
            )
        tokens = sum(shard.tokens for shard in Dataset(place / "ours").own_shards)
        print(
            f"{len(texts):,} documents, {size / 1e6:.1f} MB of text, {tokens:,} tokens,"
            f" {options.runs} runs"
        )
        print(
            "documents whose ids differ from datatrove's:"
            f" {same_ids(place / 'ours', place / 'theirs')}"
        )
        best = min(
            ("datatrove 1 task", "datatrove 2 tasks"),
            key=lambda name: statistics.median(s for s, _ in times[name]),
        )
        for name, runs in times.items():
            seconds = statistics.median(second for second, _ in runs)
            peak = max(megabytes for _, megabytes in runs)
            print(
                f"{name:20} {seconds:7.2f} s {tokens / seconds / 1e6:7.2f} M tokens/s   peak"
                f" {peak:,.0f} MB"
            )
        ratios = sorted(b / a for (a, _), (b, _) in zip(times["ours"], times[best], strict=True))
        print(
            f"ours / {best}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
        shutil.rmtree(place / "once")
        write_parts(texts, place / "many", 4, options.repeat)
        pairs = []
        for _ in range(options.runs):
            single, _ = measure(
                ours(place / "many", place / "ours", options.tokenizer, 1), place / "ours"
            )
            double, _ = measure(
                ours(place / "many", place / "ours", options.tokenizer, 2), place / "ours"
            )
            pairs.append((single, double))
        gains = sorted(single / double for single, double in pairs)
        print(
            f"text {options.repeat} times over, one worker"
            f" {statistics.median(single for single, _ in pairs):.1f} s, two"
            f" {statistics.median(double for _, double in pairs):.1f} s:"
            f" {statistics.median(gains):.2f} times as fast ({gains[0]:.2f} to {gains[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
