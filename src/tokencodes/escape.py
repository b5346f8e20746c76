"""Text from outside, shown literally: on a terminal, in Markdown, in LaTeX.

Names of sources, documents, files and models may hold any character, and so may messages of other
libraries. Each place where such text is shown has characters that mean something else there. The
functions here escape them.
"""

import codecs
import re

# C0, DEL and C1 control characters, lone surrogates, line separators, and what reverses the order
# of writing.
CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# What this project prints beyond ASCII, and how it reads on a terminal that has ASCII alone.
PLAIN = {
    "█": "#",
    "·": "*",
    "×": "x",
    "±": "+-",
    "²": "^2",
    "‖": "||",
    "→": "->",
    "≥": ">=",
    "≤": "<=",
    "…": "...",
}
PLAIN |= {"–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"'}
MARKDOWN = re.compile(r"[\\`*\[\]<>|~]|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])|^[#+-](?=\s)")
LATEX = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"}
    | {character: f"${character}$" for character in "<>|"}
    # at the start of a row they would be arguments of \\
    | {character: f"{{{character}}}" for character in "[]*"}
    | {
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
    }
)
ENCODE_ERRORS = "tokencodes"  # the name of `_replace` as an error handler of `str.encode`


def printable(text: str) -> str:
    """One line in which control characters are written as in Python's strings: a line break is
    `\\n`, Escape is `\\x1b`.
    """
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def encodable(text: str, encoding: str | None) -> str:
    """The text in the characters that an encoding has; the others are replaced by similar ones, or
    written as `\\xe9`.
    """
    name = encoding or "utf-8"
    return text.encode(name, ENCODE_ERRORS).decode(name)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return (
        "".join(PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in characters),
        error.end,
    )


codecs.register_error(ENCODE_ERRORS, _replace)


def markdown(text: str) -> str:
    """Text inside a line or a table's cell of Markdown. An underscore inside a word means nothing
    there, so it stays.
    """
    return MARKDOWN.sub(lambda match: "\\" + match[0], printable(_single_line(text)))


def markdown_code(text: str) -> str:
    """A code span of Markdown, also inside a table's cell."""
    inside = printable(_single_line(text)).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", inside)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{inside}{space}{fence}"


def latex(text: str) -> str:
    """Text inside a cell or a caption of LaTeX."""
    return printable(_single_line(text)).translate(LATEX)


def _single_line(text: str) -> str:
    return re.sub(r"\s*[\r\n]\s*", " ", text)
