"""The main job on a tiny study: what it leaves, that it resumes, that it refuses."""

import shutil

import pytest

from tests.conftest import tiny_study
from tokencodes.data.split import split_of
from tokencodes.data.text import read_documents
from tokencodes.data.tokenizer import TokenizerFile, train_tokenizer
from tokencodes.errors import InputError
from tokencodes.files import read_json, write_json
from tokencodes.report.page import write_report
from tokencodes.study import compare, runs
from tokencodes.train.config import DataConfig
from tokencodes.train.corpus import open_dataset
from tokencodes.train.metrics import Silent
from tokencodes.train.stop import Stop
from tokencodes.verify.certificate import certify


class Interrupt(Silent):
    """Asks for a stop in the middle of the third run."""

    def __init__(self, stop: Stop) -> None:
        self.stop, self.begun = stop, 0

    def begin(self, name, step, steps):
        self.begun += 1

    def record(self, record):
        if self.begun == 3 and record.step == 3:
            self.stop.requested = True


@pytest.fixture(scope="module")
def whole(study, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    assert compare(study, out, Silent())
    return out


def test_seeds_are_the_outer_loop_so_that_pairs_come_early(study):
    assert [name for _, name in runs(study)][:5] == [
        "learned/seed-1",
        "binary/seed-1",
        "gf2/seed-1",
        "permuted/seed-1",
        "learned/seed-2",
    ]


def test_every_run_leaves_its_configuration_metrics_checkpoints_and_model(study, whole):
    for run, name in runs(study):
        for left in (
            "config.toml",
            "metrics.jsonl",
            "checkpoints/latest",
            "model/config.json",
            "model/tokenizer.json",
        ):
            assert (whole / name / left).is_file(), left
        result = read_json(whole / name / "result.json")
        assert (result["arm"], result["seed"], result["steps"]) == (run.arm, run.seed, 8)
        assert read_json(whole / name / "sample.json")["continuation"]
    assert certify(whole / "gf2" / "seed-2").holds


def test_an_interrupted_study_goes_on_to_the_same_results(study, whole, tmp_path):
    stop = Stop()
    assert not compare(study, tmp_path / "study", Interrupt(stop), stop)
    assert not (tmp_path / "study" / "gf2" / "seed-1" / "result.json").exists()
    assert compare(study, tmp_path / "study", Silent())
    for _, name in runs(study):
        expected, result = (
            read_json(folder / name / "result.json") for folder in (whole, tmp_path / "study")
        )
        assert expected["held_out_loss"] == result["held_out_loss"]
        assert read_json(whole / name / "sample.json") == read_json(
            tmp_path / "study" / name / "sample.json"
        )


def test_a_study_grows_by_arms_and_seeds_without_training_anything_again(dataset, tmp_path):
    arms = {"learned": {"interface": "learned"}}
    small = tiny_study(dataset.path, arms=arms, study={"seeds": [1]})
    large = tiny_study(
        dataset.path,
        arms={**arms, "signed": {"interface": "binary:values=pm1"}},
        study={"seeds": [1, 2]},
    )
    assert compare(small, tmp_path, Silent())
    before = (tmp_path / "learned" / "seed-1" / "metrics.jsonl").stat().st_mtime_ns
    assert compare(large, tmp_path, Silent())
    assert (tmp_path / "learned" / "seed-1" / "metrics.jsonl").stat().st_mtime_ns == before
    assert (tmp_path / "signed" / "seed-2" / "result.json").is_file()


def test_another_study_or_other_files_in_the_folder_are_refused(study, whole, dataset, tmp_path):
    with pytest.raises(
        InputError, match=r"another recipe \(budget.tokens is 512 there, 64 asked for\)"
    ):
        compare(tiny_study(dataset.path, budget={"tokens": 64}), whole, Silent())
    changed = tiny_study(dataset.path, arms={"learned": {"interface": "learned:std=1"}})
    with pytest.raises(
        InputError, match=r"interface is 'learned' there, 'learned:std=1' asked for"
    ):
        compare(changed, whole, Silent())
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="neither empty nor a study's folder"):
        compare(study, tmp_path, Silent())


def test_a_configuration_that_cannot_work_does_not_claim_the_folder_nor_leave_its_tokenizer(
    texts, tmp_path
):
    arms, out = {"learned": {"interface": "learned"}}, tmp_path / "study"
    sections = {"arms": arms, "study": {"seeds": [1]}, "budget": {"tokens": 64}}
    data = {"inputs": [str(texts)], "vocab_size": 300}
    with pytest.raises(InputError, match="no document fell on the train side"):
        compare(
            tiny_study(
                "",
                data={**data, "validation_fraction": 1e-9, "min_document_tokens": 10**6},
                **sections,
            ),
            out,
            Silent(),
        )
    assert compare(
        tiny_study("", data={**data, "validation_fraction": 0.2}, **sections), out, Silent()
    )
    # the first had seen what is held out now, so it was not reused
    assert len(list(out.glob("tokenizer-*.json"))) == 2
    tokenizer_sha256 = read_json(out / "dataset_facts.json")["dataset"]["tokenizer_sha256"]
    fresh = tmp_path / "fresh"
    assert compare(
        tiny_study("", data={**data, "validation_fraction": 0.2}, **sections), fresh, Silent()
    )
    assert (
        read_json(fresh / "dataset_facts.json")["dataset"]["tokenizer_sha256"] == tokenizer_sha256
    )


def test_a_study_from_text_trains_its_own_tokenizer_on_the_training_side(texts, tmp_path):
    data = {"inputs": [str(texts)], "vocab_size": 300, "validation_fraction": 0.2}
    arms = {"learned": {"interface": "learned"}}
    study = tiny_study("", data=data, arms=arms, study={"seeds": [1]}, budget={"tokens": 64})
    assert compare(study, tmp_path / "study", Silent())
    facts = read_json(tmp_path / "study" / "dataset_facts.json")
    assert len(list((tmp_path / "study").glob("tokenizer-*.json"))) == 1
    assert facts["dataset"]["vocab_size"] == 300
    assert facts["dataset"]["validation"]["documents"] > 0


def test_a_result_on_other_held_out_windows_is_refused(study, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "study")
    file = tmp_path / "study" / "gf2" / "seed-1" / "result.json"
    write_json(file, {**read_json(file), "held_out_sha256": "0" * 64})
    with pytest.raises(InputError, match="measured on other held-out windows"):
        compare(study, tmp_path / "study", Silent())


def test_a_tokenizer_never_sees_what_is_held_out(texts, tmp_path):
    documents = [d for file in sorted(texts.iterdir()) for d in read_documents(file)]
    training = [d.text for d in documents if split_of(d, 0, 0.2) == "train"]
    assert len(training) < len(documents)
    train_tokenizer(training, 300, tmp_path / "expected.json")
    data = DataConfig(inputs=(str(texts),), vocab_size=300, validation_fraction=0.2)
    prepared = open_dataset(data, tmp_path / "out", lambda line: None)
    assert prepared.tokenizer.sha256 == TokenizerFile(tmp_path / "expected.json").sha256


def test_a_result_of_another_run_or_dataset_is_refused(study, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "study")
    file = tmp_path / "study" / "gf2" / "seed-1" / "result.json"
    for change, complaint in (
        ({"arm": "binary"}, "its arm is 'binary'"),
        ({"dataset_fingerprint": "0" * 64}, "dataset_fingerprint"),
    ):
        write_json(file, {**read_json(whole / "gf2" / "seed-1" / "result.json"), **change})
        with pytest.raises(InputError, match=complaint):
            compare(study, tmp_path / "study", Silent())


def test_a_study_that_names_a_suite_is_evaluated_and_its_page_shows_the_contrasts(
    dataset, real_data, tmp_path, monkeypatch
):
    evaluation = {
        "suite": "winogrande,commonsense_qa,lambada",
        "data": str(real_data / "eval"),
        "documents": 5,
    }
    model = {
        "hidden_size": 36,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "context_length": 64,
    }
    arms = {"learned": {"interface": "learned"}, "binary": {"interface": "binary"}}
    without = tiny_study(dataset.path, model=model, arms=arms)
    assert compare(without, tmp_path, Silent())
    # what is judged may change at any time
    study = tiny_study(dataset.path, model=model, arms=arms, evaluation=evaluation)
    stop = Stop(requested=True)
    assert not compare(study, tmp_path, Silent(), stop) and not list(
        tmp_path.glob("*/*/evaluation/evaluation.json")
    )
    stop.requested = False
    assert compare(study, tmp_path, Silent(), stop)
    assert len(list(tmp_path.glob("*/*/evaluation/evaluation.json"))) == 4
    page = write_report(tmp_path)[0].read_text()
    assert "2 run seeds do not tell these interfaces apart" in page
    for words in ("binary - learned", "CommonsenseQA", "LAMBADA", "Audit"):
        assert words in page
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/evaluation/*.json*")}
    # where all is trained, nothing is asked beforehand: rows may be out of reach
    with monkeypatch.context() as patched:
        patched.setattr(
            "tokencodes.study._check_requests", lambda study, dataset: pytest.fail("asked again")
        )
        assert compare(study, tmp_path, Silent())
    assert before == {
        path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/evaluation/*.json*")
    }
    other = tiny_study(
        dataset.path, model=model, arms=arms, evaluation={**evaluation, "suite": "lambada"}
    )
    assert compare(other, tmp_path, Silent())  # another suite: the old results are kept aside
    assert len(list(tmp_path.glob("*/*/evaluation-1/evaluation.json"))) == 4
    assert read_json(tmp_path / "binary" / "seed-1" / "evaluation" / "evaluation.json")["identity"][
        "benchmarks"
    ] == ["lambada"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"suite": "lambda"}, "did you mean 'lambada'"),
        ({"data": "/nowhere"}, "no folder; name the one that the benchmarks' rows lie in"),
        (
            {"suite": "piqa"},
            "evaluation.suite: continuations longer than the 16 tokens that the model reads",
        ),
        (
            {"context_length": 4096},
            "evaluation.context_length 4096: the models read 16 tokens at most",
        ),
    ],
)
def test_a_suite_that_cannot_be_scored_is_refused_before_training(
    change, said, dataset, real_data, tmp_path
):
    evaluation = {"suite": "lambada", "data": str(real_data / "eval"), **change}
    with pytest.raises(InputError, match=said):
        compare(tiny_study(dataset.path, evaluation=evaluation), tmp_path / "study", Silent())
    assert not list(tmp_path.glob("study/*/*/metrics.jsonl"))


class Listener(Silent):
    """Keeps the lines for a person."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_the_time_left_counts_only_runs_that_are_still_to_be_trained(
    dataset, tmp_path, monkeypatch
):
    from tokencodes import study as module

    counted: list[int] = []
    monkeypatch.setattr(module, "_time_left", lambda spent, waiting: counted.append(waiting) or "")
    arms = {"learned": {"interface": "learned"}, "gf2": {"interface": "gf2"}}
    assert compare(tiny_study(dataset.path, arms=arms, budget={"tokens": 64}), tmp_path, Silent())
    assert counted == [3, 2, 1, 0]
    counted.clear()
    listener = Listener()
    more = tiny_study(
        dataset.path,
        arms={**arms, "signed": {"interface": "binary:values=pm1"}},
        budget={"tokens": 64},
    )
    assert compare(more, tmp_path, listener)
    assert counted == [1, 0]  # four of the six runs were finished
    assert [line.partition(":")[0] for line in listener.lines] == [
        "run 3 of 6 done",
        "run 6 of 6 done",
    ]


def test_the_time_left_is_told_in_seconds_or_minutes():
    from tokencodes.study import _time_left

    assert _time_left([10.0, 20.0], 3) == "; about 45 s left"
    assert _time_left([10.0, 20.0], 6) == "; about 2 min left"
    assert _time_left([10.0], 0) == _time_left([], 3) == ""
