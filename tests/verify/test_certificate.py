"""A certificate of checks: whether it holds, in which order it says what, and what a check that
breaks is.
"""

import json
from pathlib import Path

import pytest

from tests.test_model import model_of
from tokencodes.errors import CodeMismatch
from tokencodes.verify import certificate, forward, identity, runtime, structure
from tokencodes.verify.certificate import NOT_SHOWN, Certificate, certify, page, run_checks
from tokencodes.verify.check import MEASURED, PROVEN, Subject, check, not_applicable, not_shown

GOOD = check("L0", "good", PROVEN, True, "yes")
BAD = check("L2", "bad <b>", MEASURED, False, "no & never")
NONE = not_applicable("L1", "none", "why")
OPEN = not_shown("L5", "open", "because")


def of(*checks) -> Certificate:
    return Certificate("place", "gf2", 49152, 2048, checks)


def test_a_certificate_holds_where_no_check_fails():
    assert of(GOOD, NONE, OPEN).holds is True and of(GOOD, NONE, OPEN).failed == []
    assert of(GOOD, BAD, NONE).holds is False and of(GOOD, BAD, NONE).failed == [BAD]
    assert of(BAD).holds is False and of().holds is True


def test_as_json_it_has_every_check_and_the_verdict():
    values = of(GOOD, BAD).as_json()
    assert (
        values["holds"] is False and values["interface"] == "gf2" and values["vocab_size"] == 49152
    )
    assert [entry["name"] for entry in values["checks"]] == ["good", "bad <b>"]
    assert values["checks"][1] == {
        "level": "L2",
        "name": "bad <b>",
        "status": "fails",
        "scope": "measured on these inputs",
        "detail": "no & never",
    }
    json.dumps(values)


def test_the_page_has_a_heading_a_level_and_a_row_a_check():
    text = page(of(GOOD, NONE, check("L1", "more", PROVEN, True, "also"), BAD, OPEN))
    assert "<h1>1 checks do not hold.</h1>" in text and "gf2, 49,152 tokens, width 2,048" in text
    heads = [f'<tr><th colspan="4">{level}: ' for level in ("L0", "L1", "L2", "L5")]
    assert [text.count(head) for head in heads] == [1, 1, 1, 1] and text.count("<th ") == 4
    assert text.index(heads[0]) < text.index("good") < text.index(heads[1]) < text.index(">none<")
    cells = (
        "<td>bad &lt;b&gt;</td><td>fails</td><td>measured on these inputs</td><td>no &amp;"
        " never</td>"
    )
    assert f'<tr class="fails">{cells}</tr>' in text
    assert (
        '<tr class="not-applicable"><td>none</td>' in text
        and '<tr class="not-shown"><td>open</td>' in text
    )
    assert "<h1>Every check that was made holds.</h1>" in page(of(GOOD))


def test_every_check_of_every_level_is_made_once_and_in_order():
    subject = Subject(model_of("gf2"), Path("nowhere"))
    made = run_checks(subject)
    levels = [entry.level for entry in made]
    assert levels == sorted(levels)
    names = [
        *("codebook regenerated", "injective", "GF(2) inverse", "lift rank"),
        *(
            "state-dict bijection",
            "parameter counts",
            "head untied",
            "finite values",
            "buffer types",
            "tokenizer",
        ),
        *("reload equals", "export equals checkpoint", "trained weights"),
        *("input vectors", "whole logits", "zero code gives zero logits", "lengths and batches"),
        *("norms", "attention", "feed-forward", "block sums", "head", "other inputs"),
        *("bfloat16", "other devices"),
        *("cached decoding", "greedy generation"),
        *("replay of the last step", "training as a whole"),
    ]
    assert [entry.name for entry in made] == names
    shown = {entry.name for entry in made if entry.status == "not shown"}
    assert (
        shown
        == {entry.name for entry in NOT_SHOWN}
        == {*("trained weights", "other inputs", "other devices", "training as a whole")}
    )


@pytest.mark.parametrize(
    ("error", "detail"),
    [(ValueError("first\nsecond"), "ValueError: first"), (KeyError(), "KeyError: ")],
)
@pytest.mark.parametrize("level", ["L0", "L1", "L2", "L3", "L4", "L5"])
def test_a_check_that_breaks_has_failed_at_its_own_level(level, error, detail, monkeypatch):
    def a_broken_check(subject):
        raise error

    def broken(here: str) -> tuple:
        return (a_broken_check,) if here == level else ()

    for here, part in (("L0", identity), ("L1", structure), ("L2", forward)):
        monkeypatch.setattr(part, "CHECKS", broken(here))
    monkeypatch.setattr(runtime, "CHECKS", {here: broken(here) for here in ("L3", "L4", "L5")})
    monkeypatch.setattr(forward, "modules", lambda subject: [BAD, BAD])
    made = [
        entry
        for entry in run_checks(Subject(model_of("gf2"), Path("nowhere")))
        if entry.status != "not shown"
    ]
    failed = check(level, "a broken check", MEASURED, False, detail)
    assert sorted(made, key=lambda entry: entry.name) == [failed, BAD, BAD]


def test_a_folder_with_another_code_is_certified_as_such_and_nothing_else_is_said(
    tmp_path, monkeypatch
):
    model_of("gf2").save_pretrained(tmp_path)
    whole = certify(tmp_path)
    assert whole.holds and (whole.interface, whole.vocab_size, whole.hidden_size) == (
        "gf2",
        320,
        36,
    )
    assert whole.checkpoint == str(tmp_path)

    def mismatch(place):
        raise CodeMismatch("codebook differs")

    monkeypatch.setattr(certificate, "load_model", mismatch)
    result = certify(tmp_path)
    assert (result.checkpoint, result.interface, result.vocab_size, result.hidden_size) == (
        str(tmp_path),
        "gf2",
        320,
        36,
    )
    assert result.checks == (
        check("L0", "codebook regenerated", PROVEN, False, "codebook differs"),
        not_shown(
            "L1", "everything else", "the model is not loaded with a code that is not its own"
        ),
    )
    assert not result.holds
