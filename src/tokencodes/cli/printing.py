"""The output of all commands. Text is printed literally: text from outside is never markup, and it
never moves the cursor.

Only this module, and the progress bar of training, may use rich. A test checks this.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from rich import table as rich_table
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tokencodes.escape import encodable, printable

# width of a table in a file or a pipe, in characters; longer words make it wider
WITHOUT_TERMINAL = 140
UNBROKEN = 14  # a word of this length is never broken; a longer one may be, on a terminal


class Table:
    """Rows of text under columns. If a terminal is too narrow for them, each row becomes a
    paragraph.
    """

    def __init__(self, *columns: str, title: str) -> None:
        self.columns, self.title = columns, title
        self.rows: list[tuple[str, ...]] = []
        self.last_of_section: set[int] = set()

    def add_row(self, *cells: str) -> None:
        """Adds a row. It may have fewer cells than there are columns."""
        self.rows.append(cells)

    def add_section(self) -> None:
        """Adds a line below the last row."""
        self.last_of_section.add(len(self.rows) - 1)

    def print(self, stream: TextIO) -> None:
        """Writes the table to a terminal, a file or a pipe."""
        terminal, words = stream.isatty(), self._longest_words()
        console = Console(
            file=stream, width=None if terminal else max(WITHOUT_TERMINAL, _table_width(words))
        )
        least = [min(word, UNBROKEN) for word in words] if terminal else words
        if _table_width(least) <= console.width:
            console.print(self._grid(stream.encoding, least))
        else:
            for line in self._paragraphs(stream.encoding):
                console.print(line, overflow="fold")

    def _longest_words(self) -> list[int]:
        """Returns the width of the longest word of each column."""
        texts = [
            (column, *(row[place] for row in self.rows if place < len(row)))
            for place, column in enumerate(self.columns)
        ]
        return [
            max((cell_len(word) for text in column for word in printable(text).split()), default=0)
            for column in texts
        ]

    def _grid(self, encoding: str, least: list[int]) -> rich_table.Table:
        shown = rich_table.Table(title=_text(self.title, encoding))
        for column, width in zip(self.columns, least, strict=True):
            shown.add_column(_text(column, encoding), min_width=width, overflow="fold")
        for number, row in enumerate(self.rows):
            cells = (_text(cell, encoding) for cell in row)
            shown.add_row(*cells, end_section=number in self.last_of_section)
        return shown

    def _paragraphs(self, encoding: str) -> list[Text]:
        """Returns the title, then for each row its first cell. The other cells follow below, each
        after its column's name.
        """
        lines = [_text(self.title, encoding)]
        for row in self.rows:
            named = zip(self.columns, row, strict=False)
            texts = [f"{column}: {cell}" if column else cell for column, cell in named if cell]
            lines += [
                _text(("  " if number else "") + text, encoding)
                for number, text in enumerate(texts)
            ]
        return lines


def _table_width(columns: list[int]) -> int:
    """Returns the width, in characters, of a table with columns of these widths. There is a space
    at each side of a column, and a line between two columns.
    """
    return sum(columns) + 3 * len(columns) + 1


def _text(text: str, encoding: str) -> Text:
    return Text(encodable(printable(text), encoding))


def emit(as_json: bool, value: Any, text: str | Sequence[str] | Table) -> None:
    """Prints the result: JSON for a program; a line, several lines or a table for a person. If
    there are several ranks, only the first one prints.
    """
    if not speaks():
        return
    if as_json:
        print(json_line(value, sys.stdout.encoding), flush=True)
    elif isinstance(text, Table):
        text.print(sys.stdout)
    else:
        for line in [text] if isinstance(text, str) else text:
            say(line)


def json_line(value: Any, encoding: str | None) -> str:
    """Returns JSON in one line. It escapes all characters beyond ASCII if the stream cannot hold
    them, or if a terminal could interpret them.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if encodable(printable(text), encoding) == text:
        return text
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def say(line: str) -> None:
    """Prints one line on standard output."""
    _print(line, sys.stdout)


def note(line: str) -> None:
    """Prints one line on standard error."""
    _print(line, sys.stderr)


def _print(line: str, stream: TextIO) -> None:
    print(encodable(printable(line), stream.encoding), file=stream, flush=True)


def speaks() -> bool:
    """Whether this process is the first rank or the only process."""
    return os.environ.get("RANK", "0") == "0"


def short(value: Any) -> str:
    """Returns the text of a value in a table's cell."""
    if isinstance(value, tuple):
        shown = [f"{number:.4g}" for number in value[:8]]
        return ", ".join(shown) + (
            f", ... ({len(value)} in all, last {value[-1]:.4g})" if len(value) > 8 else ""
        )
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not applicable"}[value]
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
    )
