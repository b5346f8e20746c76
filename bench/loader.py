"""Measures the sampler and the loader: windows per second, and how the cost grows with the number
of documents and with the index.

    python bench/loader.py --corpora FOLDER --tokenizer FILE [--documents 10000000] [--runs 7]

The shards hold real ids. The documents are the paragraphs of the corpora, repeated, with the whole
documents among them, until the largest offset table has --documents documents. All data is read
from the page cache.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from text import documents

from tokencodes.data.encode import engine_for
from tokencodes.data.entries import ShardEntry
from tokencodes.data.loader import Loader
from tokencodes.data.mixture import Sampling
from tokencodes.data.sampler import PackedSampler, PaperSampler, Sampler, TokenUniformSampler
from tokencodes.data.shards import Shard
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.data.windows import read_windows
from tokencodes.data.writer import ShardWriter

CONTEXT = 2048
STEP = 128  # windows per step, as in the paper
WHOLE_EVERY = 300  # each 300th document is a whole document, the others are paragraphs


def pieces(corpora: Path, tokenizer: TokenizerFile) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the ids of all paragraphs, and of all documents that are longer than a window."""
    texts = documents(corpora)
    encoder = engine_for(tokenizer)
    arrays = []
    for part in ([line for text in texts for line in text.split("\n\n") if line], texts):
        ids, sizes = encoder.encode(part)
        arrays.append([array.astype(np.uint16) for array in np.split(ids, np.cumsum(sizes)[:-1])])
    return arrays[0], [ids for ids in arrays[1] if len(ids) > CONTEXT]


def write(folder: Path, size: int, paragraphs: list[np.ndarray], whole: list[np.ndarray]) -> Shard:
    """Writes a shard of `size` documents and returns it."""
    writer = ShardWriter(folder, "train", np.uint16)
    for number in range(size):
        every, place = divmod(number, WHOLE_EVERY)
        writer.add(
            whole[every % len(whole)] if place == 0 else paragraphs[number % len(paragraphs)],
            f"d{number}",
            "bench",
        )
    return Shard(folder, writer.close())


def samplers(shard: Shard) -> dict[Sampling, Sampler]:
    """Returns one sampler of each kind."""
    return {
        "paper": PaperSampler([shard], CONTEXT, 1, 2, 8192),
        "token-uniform": TokenUniformSampler([shard], CONTEXT, 1, 2, 8192),
        "packed": PackedSampler([shard], CONTEXT, 1),
    }


def microseconds(work: Callable[[np.ndarray], object], runs: int, first: int) -> float:
    """Returns the median microseconds per window of steps from `first` on, after one warm-up."""
    times = []
    for run in range(runs + 1):
        began = time.perf_counter()
        for step in range(20):
            start = first + (20 * run + step) * STEP
            work(np.arange(start, start + STEP, dtype=np.int64))
        times.append((time.perf_counter() - began) / (20 * STEP) * 1e6)
    return statistics.median(times[1:])


def anonymous() -> float:
    """Returns the anonymous memory of this process in MB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


FIRST = """
import sys, time
from pathlib import Path
import numpy as np
from tokencodes.data.sampler import PaperSampler
from tokencodes.data.entries import ShardEntry
from tokencodes.data.shards import Shard
from tokencodes.data.windows import read_windows
entry = ShardEntry.model_validate_json(sys.argv[2])
began = time.perf_counter()
shard = Shard(Path(sys.argv[1]), entry)
read_windows([shard], PaperSampler([shard], 2048, 1, 2, 8192), np.arange(1))
print(time.perf_counter() - began)
"""


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    paragraphs, whole = pieces(options.corpora, TokenizerFile(options.tokenizer))
    with tempfile.TemporaryDirectory() as folder:
        shards = {
            size: write(Path(folder) / str(size), size, paragraphs, whole)
            for size in (1000, 100_000, options.documents)
        }
        del paragraphs, whole
        large = shards[options.documents]
        size = (large.path / "tokens.npy").stat().st_size
        print(
            f"largest shard: {options.documents:,} documents, {large.tokens:,} tokens,"
            f" {size / 1e9:.2f} GB"
        )
        command = [sys.executable, "-c", FIRST, str(large.path), _entry(large).model_dump_json()]
        first = float(subprocess.run(command, capture_output=True, check=True).stdout)
        print(f"its first window, seconds after the imports: {first:.3f}")
        print("microseconds a window to draw (medians)   documents x first index")
        before = anonymous()
        for kind in ("paper", "token-uniform", "packed"):
            cells = []
            for documents_, shard in shards.items():
                sampler = samplers(shard)[kind]
                for first in (0, 10**12):
                    cells.append(
                        f"{documents_:.0e} x {first:.0e}:"
                        f" {microseconds(sampler.draw, options.runs, first):.2f}"
                    )
            print(f"  {kind:14} {'   '.join(cells)}")
        middle = shards[100_000]
        for name, shard in (("1e5 documents", middle), ("largest", large)):
            sampler = PaperSampler([shard], CONTEXT, 1, 2, 8192)
            fresh, began = Shard(shard.path, _entry(shard)), time.perf_counter()
            for step in range(2 * 8192 // STEP):
                read_windows([fresh], sampler, np.arange(step * STEP, (step + 1) * STEP))
            rate = 2 * 8192 * CONTEXT / (time.perf_counter() - began) / 1e6
            warm = CONTEXT / microseconds(
                lambda indices: read_windows([fresh], sampler, indices),  # noqa: B023
                options.runs,
                0,
            )
            print(
                f"{name}: first visit of two streams, checksums included {rate:.1f} M tokens/s;"
                f" later {warm:.1f}"
            )
        loader = Loader(
            [middle], PaperSampler([middle], CONTEXT, 1, 2, 8192), STEP, lambda ids: ids
        )
        for step in range(300):
            if step == 20:
                began = time.perf_counter()
            _ = loader[step]
        print(
            "loader with its thread:"
            f" {280 * STEP * CONTEXT / (time.perf_counter() - began) / 1e6:.1f} M tokens/s"
        )
        loader.close()
        print(f"anonymous memory: {anonymous() - before:,.0f} MB more than before the samplers")


def _entry(shard: Shard) -> ShardEntry:
    return ShardEntry(
        path=shard.path.name,
        split="train",
        documents=shard.documents,
        tokens=shard.tokens,
        longest=shard.longest,
        checksums_sha256=shard._checksums_sha256,
    )


if __name__ == "__main__":
    main()
