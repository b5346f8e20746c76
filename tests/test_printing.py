"""What commands print: text from outside literally, on terminals of any width and encoding, and to
readers that go away.
"""

import ast
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from tests.conftest import tiny_study
from tests.test_layers import FILES, SOURCE
from tokencodes.cli import run
from tokencodes.cli.printing import Table, emit, json_line
from tokencodes.data.convert import PrepareOptions
from tokencodes.data.prepare import prepare
from tokencodes.data.text import Columns
from tokencodes.escape import encodable, latex, markdown, markdown_code, printable
from tokencodes.train.metrics import Silent, Terminal
from tokencodes.train.run import train

STRANGE = [
    "[/books]",
    "wiki[en]",
    "[bold]b",
    ":smile:",
    "\x1b[31mred\x1b[0m",
    "a\nb\rc",
    "\x9b2J",
    "日本語",
    "\u202etxt.exe",
]


@pytest.fixture(scope="module")
def strange_run(tokenizer_path, tmp_path_factory) -> Path:
    """A run on text whose sources and document ids have all that a terminal may take for something
    else.
    """
    folder = tmp_path_factory.mktemp("strange")
    lines = [
        json.dumps(
            {
                "id": f"{name} {number}",
                "source": name,
                "text": f"It is a truth that {number} is a number. " * 9,
            }
        )
        for number in range(20)
        for name in STRANGE
    ]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = PrepareOptions(validation_fraction=0.2, columns=Columns(source="source"))
    dataset = prepare([str(folder / "texts.jsonl")], tokenizer_path, folder / "data", options)
    train(tiny_study(dataset.path).run("gf2", 1), dataset, folder / "run", Silent())
    return folder


def in_shell(command: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    """A command line of bash in which `tokencodes` is this very code."""
    program = f"{shlex.quote(sys.executable)} -m tokencodes"
    script = f'set -o pipefail; tokencodes() {{ {program} "$@"; }}; {command}'
    source = str(SOURCE.parent)
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": source, **environment},
    )


def test_markup_and_escapes_in_sources_and_ids_are_printed_literally(strange_run, capsys):
    for command in (
        ["inspect", str(strange_run / "data"), "--context", "16"],
        ["ledger", str(strange_run / "run"), "3"],
    ):
        assert run(command) == 0
        printed = capsys.readouterr().out
        assert not set(printed) & {"\x1b", "\x9b", "\r", "\u202e"}
        assert run([*command, "--json"]) == 0
        raw = capsys.readouterr().out
        assert not set(raw) & {"\x1b", "\x9b", "\u202e"}
        printed_json = json.loads(raw)
        names = (
            list(printed_json["sources"])
            if "sources" in printed_json
            else [window["source"] for window in printed_json["windows"]]
        )
        assert set(names) <= set(STRANGE)
        for name in names:
            assert printable(name) in printed


def test_an_error_line_shows_control_characters_and_stays_one_line(capsys, tmp_path):
    assert run(["inspect", str(tmp_path / "[/x] \x1b[2J\n\x9bA")]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "[/x] \\x1b[2J \\x9bA" in errors


def test_lines_and_the_bar_of_training_show_names_literally(capsys):
    terminal = Terminal()
    terminal.say("source '[/books]' :smile: \x1b[2J")
    assert capsys.readouterr().err == "source '[/books]' :smile: \\x1b[2J\n"


def test_only_one_module_prints_tables_and_only_a_few_print_at_all():
    """Whatever prints beside `cli/printing.py` would have to escape by itself."""
    rich, printing = set(), set()
    for path in FILES:
        name = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(module.split(".")[0] == "rich" for module in modules):
                rich.add(name)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "print",
                "typer.echo",
                "typer.secho",
                "sys.stdout.write",
            ):
                printing.add(name)
    assert rich == {"cli/printing.py", "train/metrics.py"}
    # stop.py prints two fixed sentences
    assert printing == {"cli/printing.py", "train/metrics.py", "train/stop.py"}


ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("inspect {0}/data --context 16", 0),
        ("inspect {0}/data --context 16 --json", 0),
        ("inspect {0}/日本語", 2),
        ("config show {0}/tiny.toml --set data.dataset=日本語", 0),
        ("verify {0}/run", 0),
        ("train --help", 0),
    ],
)
def test_a_terminal_with_ascii_alone_gets_ascii(command, status, strange_run, study):
    (strange_run / "tiny.toml").write_text(
        tomli_w.dumps(study.model_dump(mode="json", exclude_none=True))
    )
    done = in_shell("tokencodes " + command.format(strange_run), **ASCII)
    assert done.returncode == status, done.stderr
    assert b"Traceback" not in done.stderr
    text = (done.stdout + done.stderr).decode("ascii")
    if "--json" in command:
        json.loads(text)


@pytest.mark.parametrize("command", ["config show quickstart", "--help"])
@pytest.mark.parametrize("streams", ["| head -c 1", "| true", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_reader_that_goes_away_and_a_closed_stream_change_nothing(command, streams):
    done = in_shell(f"tokencodes {command} {streams}")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_check_that_fails_is_told_to_a_shell_whose_reader_has_gone(strange_run):
    done = in_shell(f"tokencodes inspect {strange_run}/none 2>&1 | true")
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_one_line():
    done = in_shell("tokencodes --version >/dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith(b"tokencodes: standard output: No space left on device")
    assert done.stderr.count(b"\n") == 1


class Screen(io.StringIO):
    """A terminal of some width."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [20, 40, 80, 140])
def test_a_table_loses_nothing_on_a_narrow_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    table = Table("window", "source", "document", "sha256", title="what step 3 consumed")
    rows = [("8", "[/books]", f"document-{number}", "0123456789abcdef" * 4) for number in range(3)]
    for row in rows:
        table.add_row(*row)
    screen = Screen()
    table.print(screen)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())  # rich's own bold and italic
    lines = printed.splitlines()
    assert max(map(len, lines)) <= width
    letters = "".join(character for character in printed if character.isalnum())
    for row in rows:
        assert row[2].replace("-", "") in letters
    assert "…" not in printed
    assert printed.count("window: 8") == (3 if width < 60 else 0)


def test_a_table_in_a_pipe_breaks_no_word():
    table, pipe = Table("id", "n", title="t"), io.StringIO()
    table.add_row("x" * 500, "1")
    table.print(pipe)
    assert "x" * 500 in pipe.getvalue()


def test_several_lines_are_printed_apart_and_a_line_break_within_one_is_shown(capsys):
    emit(False, None, ["a\nb", "c"])
    assert capsys.readouterr().out == "a\\nb\nc\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_is_valid_in_every_encoding(encoding):
    value = {"日本": ["é", "\udce9", "\x7f\x9b\x1b", "😀", "\u2028"]}
    line = json_line(value, encoding)
    assert json.loads(line.encode(encoding).decode(encoding)) == value
    assert printable(line) == line


def test_what_is_no_control_character_stays_as_it_is():
    assert printable("naïve 日本語 😀 [x] C:\\tmp") == "naïve 日本語 😀 [x] C:\\tmp"
    assert encodable("█ ≥ é → 日", "ascii") == r"# >= \xe9 -> \u65e5"


def test_markdown_and_latex_keep_text_inside_its_cell():
    assert (
        markdown("a|b\n# c [x](y) <b> `d` *e* _f_ acc_norm")
        == r"a\|b # c \[x\](y) \<b\> \`d\` \*e\* \_f\_ acc_norm"
    )
    assert markdown_code("a`b|c") == "``  a`b\\|c ``".replace("  ", " ")
    assert latex("[a] 5 % of #1\n\\x * _b_") == r"{[}a{]} 5 \% of \#1 \textbackslash{}x {*} \_b\_"


def test_a_name_that_is_no_utf8_is_refused_in_one_line_where_a_file_must_record_it(
    study, dataset, tmp_path, capsys
):
    place = tmp_path / os.fsdecode(b"caf\xe9")
    place.symlink_to(dataset.path)
    preset = tmp_path / "tiny.toml"
    preset.write_text(tomli_w.dumps(study.model_dump(mode="json", exclude_none=True)))
    command = [
        "train",
        str(preset),
        "--arm",
        "gf2",
        "--out",
        str(tmp_path / "run"),
        "--set",
        f"data.dataset={place}",
    ]
    assert run(command) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "\\udce9" in errors and "choose another name" in errors
