"""The benchmarks on a study's page: every arm against the baseline, or the reason why not."""

import html
import shutil

import pytest

from tests.made_evaluations import choices, completion, request, write_made
from tokencodes.checkpoint import origin_of
from tokencodes.cli import run as command
from tokencodes.errors import InputError
from tokencodes.evaluate.origin import run_of
from tokencodes.files import read_json, write_json
from tokencodes.report.page import write_report

ARMS = ("learned", "binary", "gf2", "permuted")


def documents(right):
    return [choices("piqa", number, number in right) for number in range(8)]


def evaluate(study, arm, seed, given=None, requests=None, **identity):
    """Leaves an evaluation beside a run, as `compare` does."""
    run = study / arm / f"seed-{seed}"
    keys = {"run": run_of(origin_of(run / "model")).model_dump(), "interface": arm, **identity}
    given = documents(range(seed + ARMS.index(arm))) if given is None else given
    return write_made(run / "evaluation", given, requests, **keys)


@pytest.fixture
def evaluated(trained, tmp_path):
    """Every run with an evaluation. Each arm has one document more right than the arm before it."""
    shutil.copytree(trained, tmp_path / "study")
    for arm in ARMS:
        for seed in (1, 2):
            evaluate(tmp_path / "study", arm, seed)
    return tmp_path / "study"


def words(study):
    return html.unescape(write_report(study)[0].read_text(encoding="utf-8"))


def test_every_arm_stands_against_the_baseline_with_how_its_runs_were_paired(evaluated):
    page = words(evaluated)
    for arm in ARMS[1:]:
        assert f"<h3>{arm} - learned</h3>" in page
    assert page.count("Pairs: by the run seed that each evaluation has on record") == 3
    assert "No contrast of" not in page and "Not every finished run was evaluated" not in page
    # `learned` and `binary`
    assert "18.75 (12.50, 25.00)" in page and "31.25 (25.00, 37.50)" in page


def test_an_arm_that_cannot_be_contrasted_is_shown_with_the_reason(evaluated):
    for seed in (1, 2):
        shutil.rmtree(evaluated / "gf2" / f"seed-{seed}" / "evaluation")
        given = documents(range(3))
        evaluate(
            evaluated, "gf2", seed, given, [request(document, text="other") for document in given]
        )
    page = words(evaluated)
    assert (
        "<b>No contrast of gf2 with learned:</b>" in page
        and "did not ask the same: 8 only in the first (piqa 8;" in page
    )
    assert "<h3>gf2 - learned</h3>" not in page and "<h3>binary - learned</h3>" in page


def test_an_arm_of_which_one_seed_was_evaluated_is_shown_with_the_reason(evaluated):
    shutil.rmtree(evaluated / "binary" / "seed-2" / "evaluation")
    page = words(evaluated)
    assert "<b>No contrast of binary with learned:</b>" in page
    assert "learned/seed-2/evaluation: run seed 2 is evaluated on one side only" in page
    assert "Not every finished run was evaluated: binary." in page


def test_seeds_that_only_one_arm_has_finished_are_left_out(evaluated):
    (evaluated / "binary" / "seed-2" / "result.json").unlink()
    page = words(evaluated)
    assert "<h3>binary/seed-1 - learned/seed-1</h3>" in page and "No contrast of" not in page
    (evaluated / "learned" / "seed-1" / "result.json").unlink()
    assert (
        "<b>No contrast of binary with learned:</b> no seed of binary and of learned is both"
        " finished" in words(evaluated)
    )


def test_a_benchmark_that_the_first_arm_lacks_is_still_a_row(evaluated):
    for seed in (1, 2):
        shutil.rmtree(evaluated / "permuted" / f"seed-{seed}" / "evaluation")
        evaluate(
            evaluated,
            "permuted",
            seed,
            [*documents((0,))[:4], *(completion("lambada", n, n > 1, 2.0) for n in range(4))],
        )
    page = words(evaluated)
    assert "LAMBADA" in page and "4 or 8" in page


def test_an_evaluation_of_another_run_is_refused(evaluated):
    for name in ("learned/seed-2", "binary/seed-1"):
        folder = evaluated / "learned" / "seed-1" / "evaluation"
        folder.rename(evaluated / "aside")
        shutil.copytree(evaluated / name / "evaluation", folder)
        arm, seed = name.split("/seed-")
        with pytest.raises(
            InputError,
            match=(
                rf"learned/seed-1/evaluation: an evaluation of arm {arm}, seed {seed}, and not of"
            ),
        ):
            write_report(evaluated)
        shutil.rmtree(folder)
        (evaluated / "aside").rename(folder)
    for key in ("start_sha256", "windows_sha256"):
        file = evaluated / "learned" / "seed-1" / "evaluation" / "evaluation.json"
        record = read_json(file)
        write_json(
            file,
            {
                **record,
                "identity": (
                    record["identity"] | {"run": {**record["identity"]["run"], key: "0" * 64}}
                ),
            },
        )
        with pytest.raises(InputError, match="and not of the run in"):
            write_report(evaluated)
        write_json(file, record)


def test_results_are_believed_only_in_the_folder_of_their_own_run(evaluated):
    first, second = (evaluated / "gf2" / f"seed-{seed}" for seed in (1, 2))
    first.rename(evaluated / "aside")
    second.rename(first)
    (evaluated / "aside").rename(second)
    with pytest.raises(
        InputError,
        match=r"gf2/seed-1/result\.json: of arm gf2, seed 2, and not of the run that this folder",
    ):
        write_report(evaluated)
    shutil.rmtree(first)
    shutil.copytree(evaluated / "binary" / "seed-1", first)
    with pytest.raises(InputError, match=r"gf2/seed-1/result\.json: of arm binary, seed 1"):
        write_report(evaluated)


@pytest.mark.parametrize("text", ["{}", "[]", "null"])
def test_a_damaged_evaluation_ends_the_report_in_one_line(text, evaluated, capsys):
    file = evaluated / "gf2" / "seed-2" / "evaluation" / "evaluation.json"
    file.write_text(text)
    assert command(["report", str(evaluated)]) == 2
    said = capsys.readouterr().err
    assert f"{file}: " in said and said.count("\n") == 1


def test_an_arm_of_another_recipe_is_not_put_down_to_its_interface(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "study")
    file = tmp_path / "study" / "study.toml"
    file.write_text(
        file.read_text().replace(
            "[arms.binary.overrides]\n", "[arms.binary.overrides]\npeak_lr = 0.001\n"
        )
    )
    for arm in ("learned", "binary", "gf2"):
        for seed in (1, 2):  # in both arms each seed has the same difference, up to a little
            evaluate(
                tmp_path / "study", arm, seed, documents(range(0 if arm == "learned" else 5 + seed))
            )
    page = words(tmp_path / "study")
    assert (
        "these interfaces, over 2 run seeds, of which recipes differ too, differ: binary is better"
        in page
    )
    assert "these interfaces, over 2 run seeds, differ: gf2 is better" in page
