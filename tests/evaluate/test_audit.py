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
    rows, sha256 = audit(
        EvaluationSettings(benchmarks("paper"), real_data / "eval", 2048, texts.prefix), texts
    )
    counts = {
        benchmark.name: (benchmark.requests, benchmark.truncated)
        for benchmark in [*rows, multiple_choice(rows)]
    }
    assert counts["multiple choice without MMLU"] == (68_671, 0)
    assert (counts["mmlu_0"], counts["mmlu_5"]) == ((56_168, 0), (56_168, 1_508))
    assert (counts["lambada"], counts["wikitext"]) == ((5_153, 0), (173, 0))
    assert (
        sum(benchmark.lost for benchmark in rows) == 0
        and sha256 == sha256.lower()
        and len(sha256) == 64
    )


def test_every_file_of_rows_is_bound_to_a_hash():
    named = {
        name
        for suite in SUITES.values()
        for benchmark in suite
        for name in (benchmark.rows, benchmark.examples)
        if name
    }
    assert named == {*SHA256, "embedded"}


def test_the_embedded_text_is_held_out_by_the_presets_that_train_on_it():
    for preset in ("quickstart", "nano"):
        data = read_study(preset, [])[0].data
        assert data.split_seed == 0 and data.validation_fraction >= 0.02
    counts = embedded_rows()
    assert len(counts) == 13 and sum(len(row["text"]) for row in counts) > 200_000


def test_every_benchmark_reports_its_endpoint(real_data):
    for task in make_tasks(
        list({benchmark.recipe: benchmark for benchmark in BENCHMARKS.values()}.values()),
        real_data / "eval",
    ):
        metrics = set(task.task._metric_fn_list)
        assert task.benchmark.endpoint in metrics, task.name


@pytest.mark.parametrize("suite", ["cloze", "cloze,piqa"])
def test_suites_join(suite):
    assert [benchmark.name for benchmark in benchmarks(suite)][:2] == [
        "mmlu_cloze",
        "commonsense_qa_cloze",
    ]
