"""Build the embedded corpora. Each line is one public-domain document (an address, a chapter).

    python tools/embed_corpora.py SOTU.jsonl.gz JANEAUSTEN.jsonl.gz src/tokencodes/corpora

The lines of the two inputs are {"text": ...}, one address or one novel each, from the packages that
`corpora/PROVENANCE.md` lists. Identical inputs give a byte-identical output.
"""

import gzip
import json
import re
import sys
from pathlib import Path

CHAPTER = re.compile(r"^[ \t]*chapter[ \t]+(?:[ivxlc]+|\d+)[ \t]*$", re.IGNORECASE | re.MULTILINE)
# The text after a chapter's last words: end marks, the next volume's title, and editors' notes,
# which are not by Austen.
END = re.compile(
    r"^[ \t]*(?:the end|finis|a note on the text|volume [ivx]+|[\[(](?:end (?:of )?volume|at this"
    r" point in).*)[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
NOVELS = (
    "emma",
    "mansfield-park",
    "northanger-abbey",
    "persuasion",
    "pride-and-prejudice",
    "sense-and-sensibility",
)


def read(path: Path) -> list[str]:
    """Returns the texts of a compressed file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def write(path: Path, documents: list[tuple[str, str]]) -> None:
    """Writes documents (id, text) as compressed JSON lines. The bytes are reproducible."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        for name, text in documents:
            file.write((json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n").encode())


def chapters(novel: str, text: str) -> list[tuple[str, str]]:
    """Returns the text between chapter headings, without title page and editors' end notes."""
    starts = [match.end() for match in CHAPTER.finditer(text)]
    ends = [*[match.start() for match in CHAPTER.finditer(text)][1:], len(text)]
    bodies = [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
    return [
        (f"{novel}-{number:02d}", END.split(body)[0].strip())
        for number, body in enumerate(bodies, 1)
    ]


def main(sotu: Path, austen: Path, out: Path) -> None:
    """Writes sotu.jsonl.gz and austen.jsonl.gz."""
    write(
        out / "sotu.jsonl.gz",
        [(f"sotu-{i:03d}", text.strip()) for i, text in enumerate(read(sotu), 1)],
    )
    parts = [
        part
        for novel, text in zip(NOVELS, read(austen), strict=True)
        for part in chapters(novel, text)
    ]
    write(out / "austen.jsonl.gz", parts)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
