"""House rules that a machine can hold: imports point downwards, files stay short."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tokencodes"
FILES = sorted(SOURCE.rglob("*.py"))
# What each part may import of the project, besides itself and what stands at the bottom.
BOTTOM = {
    "errors",
    "escape",
    "files",
    "measured",
    "memory",
    "philox",
    "records",
    "result",
    "scatter",
    "streams",
    "study_records",
}
ALLOWED = {
    "codes": set(),
    "interfaces": {"codes"},
    "loss": set(),
    "model": {"codes", "interfaces", "loss"},
    "init": {"model"},
    "swap": {"codes", "interfaces"},
    "parallel": set(),
    "checkpoint": {"codes", "model", "parallel"},
    "data": set(),
    "train": {"codes", "data", "model", "init", "loss", "parallel", "checkpoint"},
    "evaluate": {"codes", "data", "model", "loss", "checkpoint"},
    "verify": {"codes", "interfaces", "model", "loss", "checkpoint"},
    "export": {"codes", "interfaces", "model", "checkpoint", "verify"},
    "importing": {"codes", "export", "interfaces", "model", "verify"},
    "hub": {"checkpoint"},
    "report": {"codes", "evaluate"},
    "study": {"data", "evaluate", "model", "parallel", "train"},
    "__init__": {"codes", "hub", "interfaces", "model", "swap"},
    "__main__": {"cli"},
}
# The numpy-only parts, and the reference, which must be independent of what it checks.
FORBIDDEN = {
    "codes": {"torch", "transformers"},
    "data": {"torch", "transformers"},
    "philox": {"torch"},
}


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= (
                {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                if node.module == "tokencodes"
                else {node.module}
            )
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    here = part(path)
    used = imports(path)
    inside = {name.split(".")[1] for name in used if name.startswith("tokencodes.")}
    if here not in BOTTOM | {"cli"}:
        assert inside - BOTTOM - {here} <= ALLOWED[here]
    elif here in BOTTOM:
        assert inside <= BOTTOM
    outside = {name.split(".")[0] for name in used}
    assert not outside & FORBIDDEN.get(here, set())


def test_the_reference_forward_is_independent():
    used = imports(SOURCE / "verify" / "reference.py")
    assert not {name for name in used if name.startswith(("torch", "transformers", "tokencodes"))}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_short(path):
    # Long functions are ruff's: at most 45 statements (PLR0915).
    assert len(path.read_text().splitlines()) <= 450


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_and_public_name_is_explained(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


# Such a name says nothing of what the value is.
VAGUE = {"told", "one", "found", "mine", "theirs", "some", "beside", "way", "asked", "asking"}
VAGUE |= {"travelling", "harness"}


def bound_names(tree: ast.AST) -> set[str]:
    """Every name that a module binds: variables, attributes, arguments, functions and classes."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                names.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
    return names


def vague_names(tree: ast.AST) -> list[str]:
    """The names with a vague word in them. A test's own name is a sentence, and may have one."""
    return sorted(
        name
        for name in bound_names(tree)
        if not name.startswith("test_")
        and VAGUE & {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    )


def test_a_vague_name_is_noticed():
    tree = ast.parse("def way_out(found): self.told = oneself = None\nclass Asked: ...")
    assert vague_names(tree) == ["Asked", "found", "told", "way_out"]


@pytest.mark.parametrize("folder", ["src", "tests", "bench", "tools"])
def test_a_name_says_what_the_thing_is(folder):
    for path in sorted((SOURCE.parent.parent / folder).rglob("*.py")):
        assert vague_names(ast.parse(path.read_text())) == [], path
