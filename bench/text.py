"""Real text for the benchmarks of preparing and loading: JSON lines from the given corpora, split
into equal parts.
"""

import gzip
import json
from pathlib import Path


def documents(folder: Path) -> list[str]:
    """Returns the texts of each .jsonl.gz file of a folder, in order."""
    return [
        json.loads(line)["text"]
        for file in sorted(folder.glob("*.jsonl.gz"))
        for line in gzip.open(file)
    ]


def write_parts(texts: list[str], folder: Path, parts: int, repeat: int = 1) -> int:
    """Writes `parts` files of JSON lines with text and id. The documents are distributed in turn.
    Returns the bytes of text.
    """
    folder.mkdir(parents=True)
    files = [(folder / f"part-{part}.jsonl").open("w", encoding="utf-8") for part in range(parts)]
    size = 0
    for number, text in enumerate(text for _ in range(repeat) for text in texts):
        files[number % parts].write(
            json.dumps({"text": text, "id": f"d{number}"}, ensure_ascii=False) + "\n"
        )
        size += len(text.encode())
    for file in files:
        file.close()
    return size
