"""Measures the peak memory of `tokencodes prepare` with one large input file.

    python bench/prepare_memory.py --corpora FOLDER --tokenizer FILE [--gigabytes 2] [--kind jsonl |
    parquet]

The Parquet file has one row group, which is the worst case for a reader.
"""

import argparse
import tempfile
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from prepare_text import measure, ours
from text import documents, write_parts


def write_parquet(texts: list[str], path: Path, repeat: int) -> None:
    """Writes one file with one row group in the layout of the paper's corpus."""
    numbers = count()
    table = pa.table({"text": texts, "metadata": [{"url": "none"}] * len(texts)})
    whole = pa.concat_tables([table] * repeat)
    whole = whole.append_column("id", pa.array([f"d{next(numbers)}" for _ in range(len(whole))]))
    pq.write_table(whole, path, row_group_size=len(whole))


def main() -> None:
    """Prints sizes, seconds and the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--kind", choices=("jsonl", "parquet"), default="jsonl")
    options = parser.parse_args()
    texts = documents(options.corpora)
    repeat = max(1, round(options.gigabytes * 1e9 / sum(len(text.encode()) for text in texts)))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if options.kind == "jsonl":
            write_parts(texts, place / "in", 1, repeat)
        else:
            (place / "in").mkdir()
            write_parquet(texts, place / "in" / "part.parquet", repeat)
        (file,) = (place / "in").iterdir()
        seconds, peak = measure(
            ours(place / "in", place / "out", options.tokenizer, 1), place / "out"
        )
        text = repeat * sum(len(document.encode()) for document in texts)
        print(
            f"{file.name}: {file.stat().st_size / 1e9:.2f} GB, {text / 1e9:.2f} GB of text,"
            f" {seconds:.0f} s ({text / seconds / 1e6:.0f} MB/s), peak RSS {peak:,.0f} MB"
        )


if __name__ == "__main__":
    main()
