"""The faults that `tools/mutate.py` puts into the source: each is one small change, and text is
left alone.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import mutants

SOURCE = '''"""A module."""

def half(x: int, most: int = 4) -> float:
    """The half of x."""
    if x > most and not x % 2:
        raise ValueError(f"{x} is more than {most}")
    note(x)
    return x / 2
'''


def changes(source: str) -> dict[str, set[str]]:
    """By kind: what becomes what."""
    by_kind: dict[str, set[str]] = {}
    for mutant in mutants.mutants(source):
        by_kind.setdefault(mutant.kind, set()).add(f"{mutant.before} => {mutant.after}")
    return by_kind


def test_every_kind_of_fault_is_offered_where_it_is_possible():
    assert changes(SOURCE) == {
        "number": {"4 => 5", "2 => 3"},
        "comparison": {"x > most => x >= most", "x > most => x <= most"},
        "operator": {"x % 2 => x // 2", "x / 2 => x * 2"},
        "sign": {"not x % 2 => x % 2"},
        "and/or": {"x > most and (not x % 2) => x > most or not x % 2"},
        "condition negated": {"x > most and (not x % 2) => not (x > most and (not x % 2))"},
        "raise left out": {"raise ValueError(f'{x} is more than {most}') => pass"},
        "statement left out": {"note(x) => pass"},
        "nothing returned": {"return x / 2 => return None"},
    }


def test_each_number_puts_in_its_own_fault_and_no_other():
    originals = mutants.mutants(SOURCE)
    texts = [mutants.mutated(SOURCE, mutant.number) for mutant in originals]
    assert len(set(texts)) == len(originals)
    assert all(len(mutants.mutants(text)) > 0 for text in texts)
    with pytest.raises(IndexError):
        mutants.mutated(SOURCE, len(originals))


def test_a_fault_names_its_function():
    source = "class A:\n    x = 1\n    def f(self):\n        return self.x\n"
    assert [(mutant.function, mutant.line) for mutant in mutants.mutants(source)] == [
        ("A", 2),
        ("A.f", 4),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '"""Two 2s."""',
        "x: int",
        "__all__ = ['a', 1]",
        "print(f'{1 + 1}')",
        "from a import b",
        "return_value = 'text'",
    ],
)
def test_text_and_annotations_are_left_alone(text):
    assert not [mutant for mutant in mutants.mutants(text) if mutant.kind != "statement left out"]
