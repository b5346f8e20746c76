"""The scoring journal: each line is believed only if its hash holds, and only in the journal that
it was written for.
"""

import json

import numpy as np
import pytest

from tests.evaluate.conftest import tiny
from tests.evaluate.test_scorer import make_requests
from tokencodes.errors import InputError
from tokencodes.evaluate.journal import Journal, noted_batch
from tokencodes.evaluate.scorer import Scorer

FIRST = (np.array([-0.1, -2.5], np.float32), np.array([True, False]))
SECOND = (np.array([-3.25], np.float32), np.array([False]))
SIZES = (2, 1)  # log-probabilities of each pass


def written(folder, name="a"):
    """A journal of two passes; returns its file."""
    with Journal(folder, name, 64, SIZES) as journal:
        journal.note(0, FIRST)
        journal.note(1, SECOND)
    return folder / f"passes-{name}.jsonl"


def test_what_was_noted_is_read_again_to_the_last_bit(tmp_path):
    written(tmp_path)
    done = Journal(tmp_path, "a", 64, SIZES).done
    assert sorted(done) == [0, 1]
    for number, (log_probs, best) in enumerate((FIRST, SECOND)):
        assert (
            done[number][0].dtype == np.float32 and done[number][0].tobytes() == log_probs.tobytes()
        )
        assert done[number][1].dtype == bool and done[number][1].tolist() == best.tolist()


def test_without_a_folder_nothing_is_kept(tmp_path):
    with Journal(None, "a", 64, SIZES) as journal:
        journal.note(0, FIRST)
    assert journal.done == {} and journal.path is None and noted_batch(None) is None
    assert noted_batch(tmp_path) is None


def test_a_line_that_a_kill_cut_short_goes_and_the_next_one_is_whole(tmp_path):
    file = written(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    with Journal(tmp_path, "a", 64, SIZES) as journal:
        assert sorted(journal.done) == [0]
        journal.note(1, SECOND)
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda line: line | {"log_probs": [-0.1, -2.4]}, "its SHA-256 is not that of its values"),
        (lambda line: line | {"best": [1, 1]}, "its SHA-256 is not that of its values"),
        (lambda line: line | {"pass": 1}, "its SHA-256 is not that of its values"),
        (lambda line: line | {"log_probs": [-0.1, 1e300]}, "its SHA-256 is not that of its values"),
        (lambda line: line | {"log_probs": [-0.1, None]}, "log_probs.1 = None"),
        (lambda line: line | {"log_probs": [-0.1, float("nan")]}, "log_probs.1 = nan"),
        (lambda line: {key: line[key] for key in line if key != "best"}, "best: is missing"),
        (lambda line: {key: line[key] for key in line if key != "sha256"}, "sha256: is missing"),
        (lambda line: line | {"pass": -1}, "pass = -1"),
        (lambda line: {}, "pass: is missing"),
        (lambda line: [], "must be a table of keys"),
        (lambda line: None, "must be a table of keys"),
    ],
)
def test_a_damaged_line_of_the_scoring_journal_is_one_error_that_names_it(
    tmp_path, change, complaint
):
    file = written(tmp_path)
    first, second = file.read_text().splitlines()
    file.write_text(f"{second}\n{json.dumps(change(json.loads(first)))}\n")
    with pytest.raises(InputError) as error:
        Journal(tmp_path, "a", 64, SIZES)
    said = str(error.value)
    assert said.startswith(f"{file}, line 2: ") and complaint in said and "\n" not in said
    assert said.endswith("remove this file and repeat the command: what it holds is computed again")


def test_a_line_copied_from_another_journal_is_not_believed(tmp_path):
    other, file = written(tmp_path, "b"), written(tmp_path, "a")
    file.write_text(other.read_text())
    with pytest.raises(
        InputError,
        match=r"passes-a\.jsonl, line 1: its SHA-256 is not that of its values in this journal",
    ):
        Journal(tmp_path, "a", 64, SIZES)


@pytest.mark.parametrize("sizes", [(), (2,), (1, 1), (2, 2), (3, 1)])
def test_a_line_that_does_not_fit_the_plan_is_refused(tmp_path, sizes):
    written(tmp_path)
    with pytest.raises(
        InputError, match=r"line [12]: no pass of this evaluation; remove this file"
    ):
        Journal(tmp_path, "a", 64, sizes)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "null",
        '{"batch_tokens": 0}',
        '{"batch_tokens": "many"}',
        '{"batch_tokens": 1.5}',
        "{",
    ],
)
def test_a_damaged_batch_file_of_the_journal_is_one_error_that_names_it(tmp_path, text):
    (tmp_path / "batch.json").write_text(text)
    with pytest.raises(InputError, match=r"batch\.json: ") as error:
        Scorer(tiny("llama"), None, tmp_path)
    assert "\n" not in str(error.value)


def test_the_batch_size_is_noted_and_one_is_the_smallest(tmp_path):
    written(tmp_path)
    assert noted_batch(tmp_path) == 64
    (tmp_path / "batch.json").write_text('{"batch_tokens": 1}')
    assert noted_batch(tmp_path) == 1


def test_a_falsified_value_never_reaches_a_score(tmp_path):
    requests, model = make_requests(), tiny("llama")
    Scorer(model, 64, tmp_path).score(requests)
    (file,) = tmp_path.glob("passes-*")
    lines = file.read_text().splitlines()
    line = json.loads(lines[2])
    line["log_probs"][0] += 0.5
    file.write_text("\n".join([*lines[:2], json.dumps(line), *lines[3:]]) + "\n")
    with pytest.raises(InputError, match=r"line 3: its SHA-256"):
        Scorer(model, 64, tmp_path).score(requests)
