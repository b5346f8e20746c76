"""Seeds of two arms are paired by the seeds that their runs have on record. The names of folders
show nothing.
"""

import json
import shutil

import pytest

from tests.conftest import tiny_study
from tests.made_evaluations import choices, run_origin, sha256, write_made, write_run
from tokencodes.checkpoint import origin_of
from tokencodes.cli import run as command
from tokencodes.errors import InputError
from tokencodes.evaluate.contrast import compared
from tokencodes.evaluate.origin import run_of
from tokencodes.evaluate.pairs import open_evaluation, pairing, sides
from tokencodes.files import read_json, write_json
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train

# by arm and seed: which of 8 documents are right. `binary` is better by one document in every seed
RIGHT = {
    ("learned", 1): (0, 1),
    ("learned", 2): (0, 1, 2, 3),
    ("learned", 3): (0, 1, 2, 3, 4, 5),
    ("binary", 1): (0, 1, 2),
    ("binary", 2): (0, 1, 2, 3, 4),
    ("binary", 3): (0, 1, 2, 3, 4, 5, 6),
}


def documents(right):
    return [
        choices("piqa", number, number in right, acc_norm=float(number in right))
        for number in range(8)
    ]


@pytest.fixture
def study(tmp_path):
    for (arm, seed), right in RIGHT.items():
        write_run(tmp_path / arm / f"seed-{seed}", documents(right), arm, seed)
    return tmp_path


def rotate(arm):
    """Gives each seed's folder the name of the next one."""
    for seed in (1, 2, 3):
        (arm / f"seed-{seed}").rename(arm / f"moved-{seed}")
    for seed in (1, 2, 3):
        (arm / f"moved-{seed}").rename(arm / f"seed-{seed % 3 + 1}")


def change_identity(folder, **changes):
    record = read_json(folder / "evaluation.json")
    record["identity"] |= changes
    (folder / "evaluation.json").write_text(json.dumps(record))


def change_run(folder, **changes):
    run = read_json(folder / "evaluation.json")["identity"]["run"]
    change_identity(folder, run={**run, **changes})


def test_seeds_are_paired_by_the_seed_on_record_whatever_their_folders_are_called(study):
    before = compared(sides(study / "learned", study / "binary"))
    assert (
        before["contrasts"][0]["differences"] == (0.125, 0.125, 0.125)
        and before["paired_by"] == "run seeds"
    )
    rotate(study / "binary")
    after = compared(sides(study / "learned", study / "binary"))
    assert after["contrasts"] == before["contrasts"]
    names = [[folder.rpartition("/")[2] for folder in pair] for pair in after["paired"]]
    assert names == [["seed-1", "seed-2"], ["seed-2", "seed-3"], ["seed-3", "seed-1"]]


def test_seeds_are_paired_in_the_order_of_numbers(tmp_path):
    for arm in ("learned", "binary"):
        for seed in (10, 9):
            write_run(tmp_path / arm / f"seed-{seed}", documents((0,)), arm, seed)
    pairs = sides(tmp_path / "learned", tmp_path / "binary")
    assert (
        [pair[0].identity.run.seed for pair in pairs]
        == [9, 10]
        == [pair[1].identity.run.seed for pair in pairs]
    )


def test_evaluations_beside_their_runs_are_found(study):
    for arm in ("learned", "binary"):
        for seed in (1, 2, 3):
            folder = study / arm / f"seed-{seed}"
            folder.rename(study / "aside")
            folder.mkdir()
            (study / "aside").rename(folder / "evaluation")
    assert len(sides(study / "learned", study / "binary")) == 3


def test_the_same_seed_twice_on_a_side_is_refused(study):
    change_run(study / "binary" / "seed-2", seed=1)
    with pytest.raises(
        InputError, match=r"binary/seed-1 and .*binary/seed-2: both are run seed 1 of this side"
    ):
        sides(study / "learned", study / "binary")
    shutil.copytree(study / "learned" / "seed-1", study / "learned" / "seed-1" / "evaluation")
    with pytest.raises(
        InputError, match=r"learned/seed-1 and .*learned/seed-1/evaluation: both are run seed 1"
    ):
        sides(study / "learned", study / "binary")


def test_a_seed_that_one_side_lacks_is_named(study):
    shutil.rmtree(study / "binary" / "seed-2")
    with pytest.raises(
        InputError, match=r"learned/seed-2: run seed 2 is evaluated on one side only"
    ):
        sides(study / "learned", study / "binary")
    shutil.rmtree(study / "binary")
    with pytest.raises(
        InputError, match=r"binary: neither an evaluation nor a folder of evaluations"
    ):
        sides(study / "learned", study / "binary")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"start_sha256": sha256("another start")}, r"no matched pair \(start of body and head: "),
        ({"windows_sha256": sha256("other windows")}, r"no matched pair \(windows seen: "),
    ],
)
def test_runs_that_began_otherwise_or_saw_other_windows_are_no_pair(study, changed, said):
    change_run(study / "binary" / "seed-3", **changed)
    with pytest.raises(InputError, match=rf"learned/seed-3 and .*binary/seed-3 are {said}"):
        compared(sides(study / "learned", study / "binary"))


def test_pairs_of_two_seeds_are_refused(study):
    a, b = (
        [open_evaluation(study / arm / f"seed-{seed}") for seed in (1, 2)]
        for arm in ("learned", "binary")
    )
    with pytest.raises(
        InputError,
        match=r"learned/seed-1 and .*binary/seed-2 are no matched pair \(run seed: 1 and 2\)",
    ):
        compared([(a[0], b[1]), (a[1], b[0])])


@pytest.mark.parametrize(
    "changed",
    [{"study_sha256": sha256("b")}, {"arm": "other"}, {"optimizer_sha256": sha256("b")}],
    ids=lambda changes: next(iter(changes)),
)
@pytest.mark.parametrize("side", ["learned", "binary"])
def test_seeds_of_two_studies_or_two_arms_are_not_one_side(study, side, changed):
    change_run(study / side / "seed-2", **changed)
    with pytest.raises(
        InputError, match=rf"{side}/seed-1 and .*{side}/seed-2 are no seeds of one arm of one study"
    ):
        compared(sides(study / "learned", study / "binary"))


@pytest.mark.parametrize("changed", [{"interface": "gf2"}, {"step": 4}])
@pytest.mark.parametrize("side", ["learned", "binary"])
def test_another_interface_or_another_checkpoint_is_no_seed(study, side, changed):
    change_identity(study / side / "seed-2", **changed)
    with pytest.raises(InputError, match=rf"{side}/seed-2: interface .*not checkpoints of a run"):
        compared(sides(study / "learned", study / "binary"))


def test_the_same_weights_are_no_second_seed(study):
    weights = read_json(study / "binary" / "seed-1" / "evaluation.json")["identity"][
        "weights_sha256"
    ]
    change_identity(study / "binary" / "seed-3", weights_sha256=weights)
    with pytest.raises(
        InputError,
        match=r"binary/seed-3: the same weights as .*binary/seed-1, so no seed of its own",
    ):
        compared(sides(study / "learned", study / "binary"))


@pytest.mark.parametrize("key", ["optimizer_sha256", "study_sha256"])
def test_recipes_that_differ_are_told_from_the_records_of_the_runs(study, key):
    assert (
        compared(sides(study / "learned", study / "binary"))["level"]
        == "these interfaces, over 3 run seeds"
    )
    for seed in (1, 2, 3):
        change_run(study / "binary" / f"seed-{seed}", **{key: sha256("other")})
    several = compared(sides(study / "learned", study / "binary"))
    single = compared(sides(study / "learned" / "seed-1", study / "binary" / "seed-1"))
    assert several["level"] == "these interfaces, over 3 run seeds, of which recipes differ too"
    assert single["level"] == "these checkpoints, of which recipes differ too"


def test_a_recipe_that_the_caller_knows_to_differ_is_told(study):
    pairs = sides(study / "learned", study / "binary")
    assert (
        compared(pairs, same_recipe=False)["level"]
        == "these interfaces, over 3 run seeds, of which recipes differ too"
    )
    assert compared(pairs, same_recipe=True)["level"] == "these interfaces, over 3 run seeds"


def test_models_of_no_run_are_paired_by_name_and_every_output_says_so(tmp_path, capsys):
    for arm, first, second in (("learned", (0,), (0, 1)), ("binary", (0, 2), (0, 1, 2, 3))):
        for name, right in (("a", first), ("b", second)):
            write_made(tmp_path / arm / name, documents(right), interface=None)
    result = compared(sides(tmp_path / "learned", tmp_path / "binary"))
    assert result["paired_by"] == "folder names" and result["contrasts"][0]["differences"] == (
        0.125,
        0.25,
    )
    assert result["level"] == "these interfaces, over 2 run seeds by the names of their folders"
    arguments = [
        "contrast",
        str(tmp_path / "learned"),
        str(tmp_path / "binary"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert command(arguments) == 0
    note = "PAIRS BY FOLDER NAME ALONE (a with a, b with b)"
    assert (
        note in capsys.readouterr().err and note in (tmp_path / "out" / "contrast.html").read_text()
    )
    (tmp_path / "binary" / "b").rename(tmp_path / "binary" / "c")
    with pytest.raises(InputError, match=r"learned/b: 'b' is evaluated on one side only"):
        sides(tmp_path / "learned", tmp_path / "binary")


def test_pairs_by_seed_are_shown_as_such(study, capsys):
    assert (
        command(
            ["contrast", str(study / "learned"), str(study / "binary"), "--out", str(study / "out")]
        )
        == 0
    )
    note = "Pairs: by the run seed that each evaluation has on record"
    assert note in capsys.readouterr().err and note in (study / "out" / "contrast.html").read_text()
    assert (
        command(["contrast", str(study / "learned" / "seed-1"), str(study / "binary" / "seed-2")])
        == 0
    )
    assert "Pairs" not in capsys.readouterr().err
    assert pairing(sides(study / "learned" / "seed-1", study / "binary" / "seed-1")) is None


def test_a_side_that_names_its_runs_is_not_paired_with_one_that_does_not(study):
    change_identity(study / "binary" / "seed-2", run=None)
    with pytest.raises(
        InputError,
        match=r"learned/seed-1 names the run that it comes from, .*binary/seed-2 does not",
    ):
        sides(study / "learned", study / "binary")


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    """Two arms of one seed, and one of them with another learning rate."""
    folder = tmp_path_factory.mktemp("trained")
    configured = tiny_study(
        dataset.path,
        arms={
            "learned": {"interface": "learned"},
            "binary": {"interface": "binary"},
            "slow": {"interface": "learned", "overrides": {"peak_lr": 1e-3}},
        },
        checkpoint={
            "interval_steps": 4,
            "keep_latest": 2,
            "keep_interval_steps": 4,
            "export_hf": True,
        },
    )
    for arm, seed in (("learned", 1), ("learned", 2), ("binary", 1), ("slow", 1)):
        train(configured.run(arm, seed), dataset, folder / arm / f"seed-{seed}", Silent())
    return folder


def identified(place):
    return run_of(origin_of(place))


LAST, HALF = "checkpoints/step-00000008", "checkpoints/step-00000004"


def test_a_model_names_the_run_that_it_comes_from(trained):
    run = trained / "learned" / "seed-1"
    results = identified(run / "model")
    result = read_json(run / "result.json")
    assert (results.arm, results.seed) == ("learned", 1)
    assert (results.start_sha256, results.windows_sha256) == (
        result["start_sha256"],
        result["windows_sha256"],
    )
    assert results == identified(run / LAST)
    half = identified(run / HALF)
    assert (
        half.start_sha256 == results.start_sha256 and half.windows_sha256 != results.windows_sha256
    )
    assert identified(run / "models" / "step-00000004") == half and half.recipe == results.recipe


def test_a_run_that_is_not_finished_is_known_by_its_checkpoints(trained, tmp_path):
    shutil.copytree(trained / "learned" / "seed-1", tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    assert identified(tmp_path / "run" / LAST) == identified(trained / "learned" / "seed-1" / LAST)
    shutil.rmtree(tmp_path / "run" / HALF)
    assert identified(tmp_path / "run" / "models" / "step-00000004") is None


def test_arms_of_a_seed_have_their_start_and_windows_and_study_in_common(trained):
    learned, second, binary, slow = (
        identified(trained / arm / f"seed-{seed}" / "model")
        for arm, seed in (("learned", 1), ("learned", 2), ("binary", 1), ("slow", 1))
    )
    assert (learned.start_sha256, learned.windows_sha256) == (
        binary.start_sha256,
        binary.windows_sha256,
    )
    assert (
        learned.start_sha256 != second.start_sha256
        and learned.windows_sha256 != second.windows_sha256
    )
    assert learned.recipe == second.recipe == binary.recipe
    assert (
        slow.study_sha256 == learned.study_sha256
        and slow.optimizer_sha256 != learned.optimizer_sha256
    )


@pytest.mark.parametrize(
    "change",
    [
        ("rope_theta = 10000.0", "rope_theta = 500.0"),
        ("streams = 2", "streams = 1"),
        ("tokens = 512", "tokens = 513"),
        ('precision = "float32"', 'precision = "bf16-autocast"'),
    ],
)
def test_another_recipe_is_another_study(trained, tmp_path, change):
    shutil.copytree(trained / "learned" / "seed-1", tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    assert change[0] in file.read_text()
    file.write_text(file.read_text().replace(*change))
    assert (
        identified(tmp_path / "run" / "model").study_sha256
        != identified(trained / "learned" / "seed-1" / "model").study_sha256
    )


def test_another_dataset_is_another_study(trained, tmp_path):
    shutil.copytree(trained / "learned" / "seed-1", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    file = tmp_path / "run" / "result.json"
    write_json(file, read_json(file) | {"dataset_fingerprint": "other"})
    first, other = (
        identified(trained / "learned" / "seed-1" / "model"),
        identified(tmp_path / "run" / "model"),
    )
    assert other.study_sha256 != first.study_sha256 and other.start_sha256 == first.start_sha256


def test_a_model_apart_from_its_run_names_no_run(trained, tmp_path):
    shutil.copytree(trained / "learned" / "seed-1" / "model", tmp_path / "model")
    assert identified(tmp_path / "model") is None


def test_damaged_records_of_a_run_are_one_line(trained, tmp_path):
    shutil.copytree(trained / "learned" / "seed-1", tmp_path / "run")
    result = read_json(tmp_path / "run" / "result.json")
    write_json(tmp_path / "run" / "result.json", {**result, "windows_sha256": "short"})
    with pytest.raises(InputError, match=r"result.json: windows_sha256 = 'short': "):
        identified(tmp_path / "run" / "model")
    write_json(tmp_path / "run" / "result.json", result)
    config = (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "run" / "config.toml").write_text(config.replace("[budget]", "[other]"))
    with pytest.raises(InputError, match=r"config.toml: budget: is missing"):
        identified(tmp_path / "run" / "model")


def test_an_evaluation_has_its_run_on_record(evaluated, runs):
    record = open_evaluation(evaluated / "binary" / "seed-2").record
    assert record.identity.run == identified(runs / "binary" / "seed-2" / "model")
    assert (record.identity.run.arm, record.identity.run.seed) == ("binary", 2)
    assert run_origin("binary", 2).keys() == record.identity.run.model_dump().keys()
