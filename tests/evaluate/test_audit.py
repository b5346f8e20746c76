"""The paper's audit, request for request."""

import pytest

from tokencodes.evaluate.audit import multiple_choice
from tokencodes.evaluate.evaluation import EvaluationSettings, audit
from tokencodes.evaluate.suites import BENCHMARKS, SHA256, SUITES, benchmarks
from tokencodes.evaluate.tasks import embedded_rows, make_tasks
from tokencodes.evaluate.texts import open_texts
from tokencodes.train.settings import read_study


def test_the_paper_suites_counts_are_the_papers(real_data):
    texts = open_texts(real_data / "tokenizer" / "smollm2.json")
    found, sha256 = audit(
        EvaluationSettings(benchmarks("paper"), real_data / "eval", 2048, texts.prefix), texts
    )
    counts = {one.name: (one.requests, one.truncated) for one in [*found, multiple_choice(found)]}
    assert counts["multiple choice without MMLU"] == (68_671, 0)
    assert (counts["mmlu_0"], counts["mmlu_5"]) == ((56_168, 0), (56_168, 1_508))
    assert (counts["lambada"], counts["wikitext"]) == ((5_153, 0), (173, 0))
    assert sum(one.lost for one in found) == 0 and sha256 == sha256.lower() and len(sha256) == 64


def test_every_file_of_rows_is_bound_to_a_hash():
    named = {
        name
        for suite in SUITES.values()
        for one in suite
        for name in (one.rows, one.examples)
        if name
    }
    assert named == {*SHA256, "embedded"}


def test_the_embedded_text_is_held_out_by_the_presets_that_train_on_it():
    for preset in ("quickstart", "nano"):
        told = read_study(preset, [])[0].data
        assert told.split_seed == 0 and told.validation_fraction >= 0.02
    found = embedded_rows()
    assert len(found) == 13 and sum(len(row["text"]) for row in found) > 200_000


def test_every_benchmark_reports_its_endpoint(real_data):
    for task in make_tasks(
        list({one.recipe: one for one in BENCHMARKS.values()}.values()), real_data / "eval"
    ):
        metrics = set(task.task._metric_fn_list)
        assert task.benchmark.endpoint in metrics, task.name


@pytest.mark.parametrize("suite", ["cloze", "cloze,piqa"])
def test_suites_join(suite):
    assert [one.name for one in benchmarks(suite)][:2] == ["mmlu_cloze", "commonsense_qa_cloze"]
