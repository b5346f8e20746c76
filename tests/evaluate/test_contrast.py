"""Two evaluations of tiny trained runs against each other: what is refused, what is left out, and
what is said.
"""

import json
import math
import shutil

import pytest

from tokencodes.cli import run as command
from tokencodes.errors import InputError
from tokencodes.evaluate.audit import difference, multiset
from tokencodes.evaluate.contrast import Contrast, compared, contrast
from tokencodes.evaluate.evaluation import EvaluationSettings, evaluate
from tokencodes.evaluate.folder import read_requests
from tokencodes.evaluate.paired import Difference
from tokencodes.evaluate.pairs import open_evaluation, sides
from tokencodes.evaluate.subject import open_evaluated
from tokencodes.evaluate.suites import benchmarks
from tokencodes.evaluate.verdicts import verdict
from tokencodes.report.contrasts import write_contrast


def test_two_evaluations_are_contrasted_and_seeds_are_paired(evaluated, tmp_path):
    single = compared(
        sides(evaluated / "learned" / "seed-1", evaluated / "binary" / "seed-1"), 0.01, 0.005
    )
    assert single["level"] == "these checkpoints" and {
        entry["benchmark"] for entry in single["contrasts"]
    } >= {
        "lambada",
        "wikitext",
    }
    assert sum(entry["endpoint"] for entry in single["contrasts"]) == 6
    several = compared(sides(evaluated / "learned", evaluated / "binary"), 0.01, 0.005)
    assert several["level"] == "these interfaces, over 2 run seeds" and all(
        len(entry["differences"]) == 2 for entry in several["contrasts"]
    )
    for name, summary in (("single", single), ("several", several)):
        page = write_contrast(summary, tmp_path / name).read_text()
        assert not [part for part in ('src="http', 'href="http', "url(http") if part in page]
        assert "<svg" in page
        assert (tmp_path / name / "contrast.csv").read_text().count("\n") == len(
            summary["contrasts"]
        ) + 1


NO_DIFFERENCE = (
    "these documents do not tell these checkpoints apart (+1.00 points; a difference of 2.00 points"
    " would be detected with a power of 80 %)"
)


def contrast_of(endpoint=True, adjusted=0.5, equivalence=0.5, each=(), **summary):
    summary = {
        "estimate": 0.01,
        "error": 0.004,
        "low": 0.002,
        "high": 0.018,
        "p": 0.01,
        "documents": 9,
        "clusters": 9,
    } | summary
    difference = Difference(identical=summary.pop("identical", False), **summary)
    return Contrast(
        "piqa",
        "acc",
        endpoint,
        0.5,
        0.51,
        difference,
        each,
        None,
        0.01,
        equivalence,
        adjusted,
        0.02,
    )


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (contrast_of(adjusted=0.01), "these checkpoints differ: b is better (+1.00 points)"),
        (contrast_of(adjusted=0.01, low=-0.001), NO_DIFFERENCE),
        (
            contrast_of(equivalence=0.01),
            "these checkpoints differ by less than the margin of 1.00 points (+1.00 points)",
        ),
        (contrast_of(), NO_DIFFERENCE),
        (contrast_of(each=(0.01, 0.01)), "2 run seeds do not tell these checkpoints apart"),
        (
            contrast_of(error=0.0, low=math.nan, high=math.nan),
            "all differences are equal (+1.00 points), so no error can",
        ),
        (contrast_of(identical=True, error=0.0), "the same value on every document"),
        (
            contrast_of(endpoint=False, adjusted=0.01),
            "not declared before: these checkpoints differ",
        ),
    ],
)
def test_no_more_is_said_than_was_shown(result, said):
    assert verdict(result, "a", "b", "checkpoints").startswith(said)


def test_the_same_weights_another_dtype_or_checkpoints_for_seeds_are_not_contrasted(
    evaluated, tmp_path
):
    entry = open_evaluation(evaluated / "learned" / "seed-1")
    with pytest.raises(InputError, match="evaluations of the same weights"):
        contrast(entry, entry)
    for name, change in (("dtype", {"dtype": "bfloat16"}), ("step", {"step": 4}), ("weights", {})):
        shutil.copytree(evaluated / "learned", tmp_path / name / "learned")
        file = tmp_path / name / "learned" / "seed-2" / "evaluation.json"
        summary = json.loads(file.read_text())
        first = json.loads((evaluated / "learned" / "seed-1" / "evaluation.json").read_text())[
            "identity"
        ]
        summary["identity"] |= change or {"weights_sha256": first["weights_sha256"]}
        file.write_text(json.dumps(summary))
    with pytest.raises(
        InputError, match="seed-2 in bfloat16: rounding would pass for a difference"
    ):
        compared(sides(evaluated / "binary" / "seed-2", tmp_path / "dtype" / "learned" / "seed-2"))
    for name, said in (("step", "not checkpoints of a run"), ("weights", "so no seed of its own")):
        with pytest.raises(InputError, match=said):
            compared(sides(tmp_path / name / "learned", evaluated / "binary"))


def test_other_recipes_are_not_put_down_to_the_interface(evaluated):
    pairs = sides(evaluated / "learned", evaluated / "binary")
    summary = compared(pairs, same_recipe=False)
    assert summary["level"] == "these interfaces, over 2 run seeds, of which recipes differ too"


def test_other_requests_are_not_contrasted_and_it_is_said_which(
    evaluated, runs, real_data, tmp_path
):
    subject = open_evaluated(str(runs / "learned" / "seed-1"), None, "cpu", "float32")
    evaluate(
        subject,
        EvaluationSettings(
            benchmarks("lambada"), real_data / "eval", 90, subject.texts.prefix, documents=4
        ),
        tmp_path / "a",
    )
    evaluate(
        subject,
        EvaluationSettings(
            benchmarks("lambada"), real_data / "eval", 60, subject.texts.prefix, documents=4
        ),
        tmp_path / "b",
    )
    with pytest.raises(
        InputError,
        match=r"did not ask the same: \d only in the first \(lambada \d; such as lambada, document",
    ):
        compared(sides(tmp_path / "a", tmp_path / "b"), 0.01, 0.005)
    records = list(read_requests(tmp_path / "a"))
    assert difference(multiset(records), multiset(records[::-1])) is None
    assert "1 only in the second" in difference(multiset(records), multiset([*records, records[0]]))


def test_a_contrast_says_what_it_left_out_and_takes_no_margin_for_points(
    evaluated, tmp_path, capsys
):
    arguments = [
        "contrast",
        str(evaluated / "learned" / "seed-1"),
        str(evaluated / "binary" / "seed-1"),
    ]
    for margin in ("1", "nan", "inf", "-0.1"):
        assert command([*arguments, "--margin", margin]) == 2
        assert "between 0 and 0.5; 0.01 is one point" in capsys.readouterr().err
    assert command([*arguments, "--out", str(evaluated / "learned")]) == 2
    assert "neither empty nor of this command" in capsys.readouterr().err
    assert command([*arguments, "--out", str(tmp_path / "out")]) == 0
    page, table = (
        (tmp_path / "out" / "contrast.html").read_text(),
        (tmp_path / "out" / "contrast.md").read_text(),
    )
    assert (
        "Margins: 1 points, 0.005 bits per byte" in page
        and "bits per byte" in (tmp_path / "out" / "forest.svg").read_text()
    )
    assert (
        "documents (clusters)" in page
        and "| 4 (4) |" in table
        and "says" in table
        and "says</th>" not in page
    )
    assert "learned/seed-1" in page and "float32" in page


def test_one_cluster_gives_no_error_and_that_is_said(runs, real_data, tmp_path):
    for arm in ("learned", "binary"):
        subject = open_evaluated(str(runs / arm / "seed-1"), None, "cpu", "float32")
        for suite, name in (("lambada", "one"), ("lambada,winogrande", "two")):
            settings = EvaluationSettings(
                benchmarks(suite), real_data / "eval", 96, subject.texts.prefix, documents=1
            )
            evaluate(subject, settings, tmp_path / name / arm)
    with pytest.raises(InputError, match="one cluster of documents in each benchmark"):
        compared(sides(tmp_path / "one" / "learned", tmp_path / "one" / "binary"))
    with pytest.raises(InputError, match="one cluster of documents in each benchmark"):
        compared(sides(tmp_path / "two" / "learned", tmp_path / "two" / "binary"))
