"""How far a trained table moved, which is the first question to ask before a word on what training
it was worth.
"""

import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import tiny_study
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import table_movement

STUDY = Path(__file__).parent.parent / "docs" / "nano" / "README.md"


def test_the_movement_is_the_change_over_the_first_length():
    before = torch.tensor([[3.0, 4.0], [0.0, 5.0], [5.0, 0.0]])
    after = before + torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 2.0]])
    whole, row = table_movement.movement(before, after)
    assert whole == pytest.approx((5 / 75) ** 0.5)
    assert row == pytest.approx(0.2)


@pytest.fixture(scope="module")
def runs(dataset, tmp_path_factory) -> dict[str, Path]:
    """A small table, and one of fifty times its standard deviation, trained alike."""
    folder = tmp_path_factory.mktemp("tables")
    arms = {
        "learned": {"interface": "learned"},
        "large": {"interface": "learned:std=1"},
        "fixed": {"interface": "gf2"},
    }
    study = tiny_study(dataset.path, arms=arms)
    for arm in arms:
        train(study.run(arm, 1), dataset, folder / arm, Silent())
    return {arm: folder / arm for arm in arms}


def test_at_one_rate_a_large_table_hardly_moves_where_a_small_one_does(runs):
    moved = {
        arm: table_movement.movement(*table_movement.tables(runs[arm]))[0]
        for arm in ("learned", "large")
    }
    assert moved["large"] < 0.02 < 0.1 < moved["learned"]


def test_a_fixed_input_is_refused(runs):
    with pytest.raises(SystemExit, match="its input 'gf2' is fixed"):
        table_movement.tables(runs["fixed"])


def test_the_first_study_says_that_its_large_table_was_hardly_trained():
    text = " ".join(STUDY.read_text().split())
    assert "hardly trained" in text
    assert "tools/table_movement.py" in text
