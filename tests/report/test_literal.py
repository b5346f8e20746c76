"""Names from outside keep their letters in tables and pictures:
Markdown, CSV, LaTeX, SVG, pages."""

import csv
import html
import io
import re
import warnings
from xml.etree import ElementTree

import matplotlib
import pytest
from markdown_it import MarkdownIt
from matplotlib.figure import Figure

from tokencodes.escape import markdown, markdown_code, printable
from tokencodes.export.card import _literal, _word
from tokencodes.report import figures
from tokencodes.report.pages import rendered
from tokencodes.report.tables import Grid

NAMES = [
    "a|b",
    "**bold** _it_ `code`",
    "<script>alert(1)</script>",
    "[x](http://y)",
    "![i](j)",
    "# title",
    "- item",
    "back\\slash",
    "~~gone~~",
    "&amp; & %",
    "$x^2$ #1",
    "acc_norm *",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_markdown_reads_as_it_is(name):
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    assert html.unescape(re.sub("<[^>]*>", "", page.renderInline(markdown(name)))) == name
    spans = page.render(f"| h |\n|---|\n| {markdown_code(name)} |\n")
    assert f"<code>{html.escape(name)}</code>" in spans
    table = Grid(name, [name, "n"], [[name, "1"], ["two", "2"]]).markdown()
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", page.render(table))
    assert [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in cells] == [
        name,
        "n",
        name,
        "1",
        "two",
        "2",
    ]


def test_a_line_break_in_a_name_ends_no_row():
    grid = Grid("a\nb", ["c\r\nd"], [["e\nf"], ["g"]], note="h\n\ni")
    assert grid.markdown().splitlines() == [
        "### a b",
        "",
        "| c d |",
        "| :--- |",
        "| e f |",
        "| g |",
        "",
        "h i",
    ]
    assert list(csv.reader(io.StringIO(grid.csv()))) == [["c\r\nd"], ["e\nf"], ["g"]]
    assert "\n\n" not in grid.latex()


def test_a_row_of_latex_that_begins_with_a_bracket_or_a_star_is_no_argument():
    lines = Grid("t", ["name"], [["[/books]"], ["*"]]).latex().splitlines()
    assert r"{[}/books{]} \\" in lines
    assert r"{*} \\" in lines


@matplotlib.rc_context(figures.STYLE)
def test_a_dollar_in_a_picture_is_no_formula_and_a_control_character_is_no_xml():
    picture = Figure()
    picture.add_subplot().set_title(r"$\nosuch{ $x_2$ <b> & " + "\x1b[2J \x00 日本")
    with warnings.catch_warnings():
        # a font without a glyph matters to no SVG that keeps its text
        warnings.simplefilter("error")
        text = figures.svg(picture, "test")
    words = "".join(ElementTree.fromstring(text).itertext())
    assert r"$\nosuch{ $x_2$ <b> & \x1b[2J \x00" in words


@pytest.mark.parametrize("name", NAMES)
def test_a_name_on_a_page_is_text(name):
    grid = Grid(name, [name], [[name]], note=name)
    page = rendered(
        "sheet.html.j2", title=name, lead=[name], findings=[name], figures=[], grids=[grid]
    )
    body = page[page.index("<body>") :]
    assert "<script" not in body
    assert html.unescape(re.sub("<[^>]*>", "", body)).count(name) == 7


def test_only_pictures_are_taken_for_markup_in_templates():
    from importlib.resources import files

    for template in files("tokencodes.report").iterdir():
        if template.name.endswith(".j2"):
            safe = set(re.findall(r"([^{}|]*)\| *safe\b", template.read_text(encoding="utf-8")))
            names = {expression.strip().rpartition(".")[2] for expression in safe}
            assert names <= {"final", "differences", "curves", "picture", "svg"}


def test_a_card_shows_names_literally_and_its_command_can_be_pasted():
    assert _literal("<b> # x") == r"\<b\> # x"
    assert _word("a b'$(c).gguf") == "'a b'\"'\"'$(c).gguf'"
    assert printable("\x1b") in _word("\x1b.gguf")
