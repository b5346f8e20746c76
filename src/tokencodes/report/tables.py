"""One table, in the forms that people paste: Markdown, CSV, LaTeX. Pages render it by
`sheet.html.j2`.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokencodes.escape import latex, markdown
from tokencodes.files import write_text


@dataclass(frozen=True)
class Grid:
    """Cells as text; all columns after `left` are numbers and stand to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    note: str = ""
    words: bool = False  # whether the last column is text

    def _wordy(self, number: int) -> bool:
        return self.words and number == len(self.columns) - 1

    def without_words(self) -> "Grid":
        """Without the last column, where that is text that stands elsewhere."""
        return (
            replace(
                self, columns=self.columns[:-1], rows=[row[:-1] for row in self.rows], words=False
            )
            if self.words
            else self
        )

    def markdown(self) -> str:
        """With its title as a heading, its note below."""
        lines = [
            f"### {markdown(self.title)}",
            "",
            _line([markdown(column) for column in self.columns]),
            _line(
                [
                    ":---" if number < self.left or self._wordy(number) else "---:"
                    for number in range(len(self.columns))
                ]
            ),
            *(_line([markdown(cell) for cell in row]) for row in self.rows),
        ]
        return "\n".join([*lines, *(["", markdown(self.note)] if self.note else [])]) + "\n"

    def csv(self) -> str:
        """A header and a line a row."""
        memory = io.StringIO()
        writer = csv.writer(memory, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return memory.getvalue()

    def latex(self) -> str:
        """For booktabs."""
        form = "".join(
            "p{6cm}" if self._wordy(number) else "l" if number < self.left else "r"
            for number in range(len(self.columns))
        )
        lines = [" & ".join(map(latex, row)) + r" \\" for row in (self.columns, *self.rows)]
        body = [lines[0], r"\midrule", *lines[1:]]
        caption = latex(f"{self.title}. {self.note}" if self.note else self.title)
        inside = [
            rf"\begin{{tabular}}{{{form}}}",
            r"\toprule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return (
            "\n".join([r"\begin{table}", *inside, rf"\caption{{{caption}}}", r"\end{table}"]) + "\n"
        )

    def write(self, folder: Path, name: str) -> None:
        """NAME.md, NAME.csv, NAME.tex."""
        for ending, text in (("md", self.markdown()), ("csv", self.csv()), ("tex", self.latex())):
            write_text(folder / f"{name}.{ending}", text)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
