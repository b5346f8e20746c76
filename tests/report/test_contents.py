"""Files of a study with valid syntax and wrong contents: one line that names the file, and the
field where there is one.
"""

import json
import shutil
from pathlib import Path

import pytest
import tomli_w

from tokencodes.cli import run
from tokencodes.errors import InputError
from tokencodes.files import read_json, read_toml
from tokencodes.report.page import write_report
from tokencodes.study import compare
from tokencodes.train.metrics import Silent

RUN = "gf2/seed-1"
FILES = ["dataset_facts.json", "ngram_baselines.json", f"{RUN}/sample.json", f"{RUN}/result.json"]
WHOLE = ["{}", "[]", "null", "7", '"text"', "[{}]", "NaN"]


@pytest.fixture(scope="module")
def made(study, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("made") / "study"
    assert compare(study, out, Silent())
    return out


@pytest.fixture
def folder(made, tmp_path) -> Path:
    """The study, with files that may be changed."""
    return Path(
        shutil.copytree(
            made, tmp_path / "study", ignore=shutil.ignore_patterns("checkpoints", "model", "data")
        )
    )


def complaint(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of `report`."""
    assert run(["report", str(folder)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("text", WHOLE)
def test_a_file_that_is_another_thing_is_one_line_with_its_name(name, text, folder, capsys):
    (folder / name).write_text(text)
    assert str(folder / name) in complaint(folder, capsys)


def fields(value: object, place: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The places of all values in nested tables, tables included."""
    inside = value.items() if isinstance(value, dict) else ()
    return [
        inner for key, item in inside for inner in ((*place, key), *fields(item, (*place, key)))
    ]


def put(value: dict, place: tuple[str, ...], new: object) -> None:
    for key in place[:-1]:
        value = value[key]
    if new is REMOVED:
        del value[place[-1]]
    else:
        value[place[-1]] = new


REMOVED = object()
# Of the costs, what the report does not show.
UNREAD = {"interface", "steps", "tokens"}
UNREAD |= {"weight_bytes", "gradient_bytes", "activation_bytes", "activation_bytes_recomputed"}


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize(
    "new", [REMOVED, None, {"a": 1}, float("nan"), [[]], True], ids=lambda value: repr(value)[:7]
)
def test_a_wrong_value_in_any_field_is_one_line_with_the_file_and_the_field(
    name, new, folder, capsys
):
    original = json.dumps(read_json(folder / name))
    tried = 0
    for place in fields(json.loads(original)):
        if "costs" in place and (place[-1] in UNREAD or "learned" not in place):
            continue
        if new is None and place[-1] in ("rank", "squared_norm_mean"):
            continue
        value = json.loads(original)
        put(value, place, new)
        (folder / name).write_text(json.dumps(value))
        message = complaint(folder, capsys)
        assert str(folder / name) in message
        assert ".".join(place) in message
        tried += 1
    assert tried >= 4


def test_text_is_no_number_in_any_file(folder, capsys):
    for name, key in (("ngram_baselines.json", "unigram"), (f"{RUN}/sample.json", "seed")):
        kept = (folder / name).read_text()
        (folder / name).write_text(json.dumps({**json.loads(kept), key: "1.5"}))
        assert f"{folder / name}: {key} = '1.5'" in complaint(folder, capsys)
        (folder / name).write_text(kept)


KEYS = ["", "arms", "arms.gf2.interface", "study", "study.seeds", "study.baseline"]
KEYS += ["model.hidden_size", "optimizer", "batch.global_batch_size"]


@pytest.mark.parametrize("removed", KEYS)
def test_a_study_file_that_is_empty_or_lacks_a_key_is_one_line(removed, folder, capsys):
    values = read_toml(folder / "study.toml")
    if removed:
        put(values, tuple(removed.split(".")), REMOVED)
    (folder / "study.toml").write_text(tomli_w.dumps(values) if removed else "")
    line = complaint(folder, capsys)
    assert f"{folder / 'study.toml'}: " in line
    assert f"{removed}: is missing" in line or not removed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("study.seeds", ["1"]),
        ("study.seeds", []),
        ("study.contrasts", [["gf2"]]),
        ("batch.sampling", "another"),
        ("arms.gf2.interface", "nonsense"),
        ("arms", {"../../gf2": {"interface": "gf2"}}),
        ("arms", {}),
        ("model.context_length", "16"),
    ],
)
def test_a_study_file_with_a_wrong_value_is_one_line(key, value, folder, capsys):
    values = read_toml(folder / "study.toml")
    put(values, tuple(key.split(".")), value)
    (folder / "study.toml").write_text(tomli_w.dumps(values))
    line = complaint(folder, capsys)
    assert f"{folder / 'study.toml'}: {key}" in line


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{}", "kind"),
        ("[]", ""),
        ("null", ""),
        ('{"step": 3, "loss": 1.0}', "kind"),
        ('{"kind": "another", "step": 3}', "kind"),
        ('{"kind": "heldout", "step": 3, "tokens": 5}', ""),
        ('{"kind": "heldout", "step": 3, "tokens": "5", "loss": 1.0}', "tokens"),
        ('{"kind": "heldout", "step": 3, "tokens": 5, "loss": "low"}', "loss"),
        ('{"kind": "heldout", "step": 3, "tokens": 5, "loss": "1.5"}', "loss"),
        ('{"kind": "heldout", "step": 3, "tokens": 5, "loss": NaN}', "loss"),
        ('{"kind": "step", "step": "3"}', "step"),
    ],
)
def test_a_line_of_metrics_that_is_no_record_is_one_line_with_its_number(
    line, field, folder, capsys
):
    file = folder / RUN / "metrics.jsonl"
    whole = file.read_text().splitlines()
    file.write_text("\n".join([*whole[:2], line, *whole[2:]]) + "\n")
    message = complaint(folder, capsys)
    assert f"{file}, line 3: {field}" in message


@pytest.mark.parametrize("text", ["", '{"kind": "step", "step": 3}\n', None])
def test_metrics_without_a_held_out_loss_are_one_line(text, folder, capsys):
    file = folder / RUN / "metrics.jsonl"
    file.unlink() if text is None else file.write_text(text)
    assert f"{file}: no held-out loss in it" in complaint(folder, capsys)


def test_an_arm_that_the_facts_do_not_know_is_one_line(folder, capsys):
    facts = read_json(folder / "dataset_facts.json")
    del facts["costs"]["gf2"]
    (folder / "dataset_facts.json").write_text(json.dumps(facts))
    assert f"{folder / 'dataset_facts.json'}: costs.gf2: is missing" in complaint(folder, capsys)


@pytest.mark.parametrize("text", ["[]", "{}", "null"])
def test_compare_says_which_file_is_damaged_and_writes_it_anew_when_it_is_gone(
    text, study, made, tmp_path
):
    out = Path(shutil.copytree(made, tmp_path / "study"))
    file = out / "ngram_baselines.json"
    kept = file.read_text()
    file.write_text(text)
    with pytest.raises(InputError, match=r"ngram_baselines.json.*remove it, and repeat"):
        compare(study, out, Silent())
    file.unlink()
    (out / "dataset_facts.json").write_text(text)
    assert compare(study, out, Silent())
    assert file.read_text() == kept
    write_report(out)
