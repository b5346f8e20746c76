"""Several ranks: the same run but for rounding, and faults on one of them that end or stop all.
Forked by `train_on_ranks`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import PATIENCE
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import prepare
from tokencodes.data.text import read_documents
from tokencodes.data.tokenizer import train_tokenizer

ROOT = Path(__file__).parent.parent.parent
EXACT, ROUNDED = 2e-6, 2e-3  # relative, of losses in float32 and with products in BF16


@pytest.fixture(scope="module")
def outcomes(texts, dataset, tmp_path_factory) -> dict:
    """The results of every scenario; V = 3,071 is divisible by no number of ranks here."""
    folder = tmp_path_factory.mktemp("ranks")
    documents = (
        document.text for file in sorted(texts.iterdir()) for document in read_documents(file)
    )
    train_tokenizer(documents, 3071, folder / "tokenizer.json")
    odd = prepare(
        [str(texts)],
        folder / "tokenizer.json",
        folder / "data",
        PrepareOptions(validation_fraction=0.2),
    )
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "tests/train_on_ranks.py",
            str(dataset.path),
            str(odd.path),
            str(folder / "runs"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict = json.loads(done.stdout.splitlines()[-1])
    return results


def values(results: list[dict]) -> list[dict]:
    """What the ranks returned; none may have failed."""
    assert all("value" in result for result in results), results
    return [result["value"] for result in results]


@pytest.mark.parametrize("arm", ["learned", "gf2"])
@pytest.mark.parametrize(
    ("engine", "tolerance"),
    [
        ("full", EXACT),
        ("replicate", EXACT),
        ("hybrid", EXACT),
        ("recompute", EXACT),
        ("recompute, sharded", EXACT),
        ("compile, sharded", EXACT),
        ("torch head", EXACT),
        ("autocast", ROUNDED),
        ("autocast, sharded", ROUNDED),
        ("bf16 parameters", ROUNDED),
        ("bf16 parameters, sharded", ROUNDED),
    ],
)
def test_ranks_and_engines_change_a_run_by_rounding_only(outcomes, arm, engine, tolerance):
    if engine not in outcomes["engines"][arm]:
        pytest.skip(f"tried with the other arm: {engine}")
    reference, other = outcomes["engines"][arm]["one"], outcomes["engines"][arm][engine]
    ends = values(other["ranks"])
    assert len({rank["end"] for rank in ends}) == 1, "the ranks hold different weights"
    assert {rank["begin"] for rank in ends} == {
        rank["begin"] for rank in values(reference["ranks"])
    }
    assert len(reference["losses"]) == 8
    assert other["losses"] == pytest.approx(reference["losses"], rel=tolerance)
    assert other["heldout"] == pytest.approx(reference["heldout"], rel=tolerance)
    for norms, expected in zip(other["norms"], reference["norms"], strict=True):
        assert norms == pytest.approx(expected, rel=100 * tolerance)
    for (ratios, scales), (their_ratios, their_scales) in zip(
        other["scales"], reference["scales"], strict=True
    ):
        assert ratios == pytest.approx(their_ratios, rel=100 * tolerance)
        assert scales == pytest.approx(their_scales, rel=10 * tolerance)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_two_ranks_saved_any_number_takes_up(outcomes, ranks):
    outcome = outcomes["world_sizes"][str(ranks)]
    saved, went_on = values(outcome["saved"]), values(outcome["went_on"])
    assert {(rank["done"], rank["step"]) for rank in saved} == {(False, 4)}, (
        "one rank alone was asked to stop"
    )
    assert len(went_on) == ranks
    assert {rank["begin"] for rank in went_on} == {saved[0]["end"]}
    assert {(rank["done"], rank["step"]) for rank in went_on} == {(True, 8)}
    assert outcome["losses"] == pytest.approx(
        outcomes["engines"]["gf2"]["one"]["losses"], rel=EXACT
    )


@pytest.mark.parametrize(
    ("kind", "begins", "says"),
    [
        (
            "batch",
            [{"rank": 1, "windows": [15, 15], "where": "loss"}],
            "it begins at rank 1, windows 15 to 15, loss",
        ),
        ("weight", None, "model.layers.1.mlp.up_proj.weight was not finite before"),
        (
            "gradient",
            [{"rank": 1, "windows": [14, 14], "where": "gradient of what the block 0 gives"}],
            "it begins at rank 1, windows 14 to 14, gradient",
        ),
    ],
)
def test_what_is_not_finite_on_one_rank_stops_all_before_the_step_and_is_named(
    outcomes, kind, begins, says
):
    outcome = outcomes["not_finite"][kind]
    assert [rank["error"] for rank in outcome["ranks"]] == ["NonFinite", "NonFinite"]
    assert len({rank["message"] for rank in outcome["ranks"]}) == 1
    assert "in step 4 (windows 12 to 15)" in outcome["ranks"][0]["message"]
    assert says in outcome["ranks"][0]["message"]
    assert outcome["steps"] == 3
    assert outcome["newest"] == 2
    assert outcome["file"]["windows"] == [12, 15]
    if begins:
        assert outcome["file"]["begins"] == begins
    else:
        assert outcome["file"]["parameters_not_finite_themselves"] == [
            "model.layers.1.mlp.up_proj.weight"
        ]


@pytest.mark.parametrize("kind", ["killed", "hangs"])
def test_a_rank_that_is_gone_or_hangs_ends_the_others(outcomes, kind):
    """By an error of its own. A rank that only stops when the test's patience ends is `late`, and
    has no error.
    """
    outcome = outcomes["lost"][kind]
    assert outcome["first"]["error"] == "CheckFailed"
    assert "rank 0 of 2: another rank is gone or hangs" in outcome["first"]["message"]
    assert set(outcome["damage"]) == {None}


def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_the_end_is_the_same(outcomes):
    outcome = outcomes["signalled"]
    assert [rank["done"] for rank in values(outcome["stopped"])] == [False, False]
    assert 3 <= outcome["step"] < 30
    assert values(outcome["went_on"])[0]["end"] == values(outcome["undisturbed"])[0]["end"]


def test_a_checkpoint_written_aside_is_the_one_that_is_written_at_once(outcomes):
    ends = {}
    for background, outcome in outcomes["in_background"].items():
        ends[background] = values(outcome["ranks"])[0]["end"]
        assert outcome["checkpoints"] == ["step-00000008", "step-00000006", "step-00000004"]
        assert set(outcome["damage"]) == {None}
        assert outcome["models"] == ["step-00000004", "step-00000008"]
    assert ends["yes"] == ends["no"]
