"""Suites by name, rows by hash, tasks by lm-eval's files."""

import functools
import gzip
import hashlib
import json
from types import SimpleNamespace

import pytest

from tokencodes.errors import InputError
from tokencodes.evaluate import tasks
from tokencodes.evaluate.evaluation import EvaluationSettings, chosen_documents
from tokencodes.evaluate.language_model import LanguageModel
from tokencodes.evaluate.requests import ROLLING, RequestSource
from tokencodes.evaluate.suites import (
    BENCHMARKS,
    EMBEDDED,
    MMLU_0,
    PIQA,
    SHA256,
    SUITES,
    benchmarks,
)
from tokencodes.evaluate.tasks import (
    check_rows,
    embedded_rows,
    lm_eval_folder,
    make_tasks,
    names_of,
    read_rows,
    subjects,
)

LINES = b'{"a": 1}\n\n{"a": 2}\n'


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """A folder with the rows of PIQA, which are two."""
    monkeypatch.setitem(SHA256, PIQA.rows, hashlib.sha256(LINES).hexdigest())
    (tmp_path / f"{PIQA.rows}.jsonl").write_bytes(LINES)
    return tmp_path


def test_suites_and_benchmarks_are_joined_each_once_in_their_order():
    names = [benchmark.name for benchmark in benchmarks("lambada, cloze,piqa,lambada,embedded")]
    assert names == ["lambada", "mmlu_cloze", "commonsense_qa_cloze", "piqa", "embedded"]
    assert benchmarks("paper") == SUITES["paper"] and benchmarks("piqa") == (PIQA,)
    for text, name in (("piqa,pica", "pica"), ("", ""), ("piqa,", "")):
        with pytest.raises(InputError, match=f"suite '{name}': no such suite or benchmark"):
            benchmarks(text)


def test_each_suite_has_its_benchmarks_with_their_endpoint_and_examples():
    settings = {
        name: (
            benchmark.endpoint,
            benchmark.shots,
            benchmark.cluster,
            benchmark.letters,
            benchmark.by_subject,
        )
        for name, benchmark in BENCHMARKS.items()
    }
    assert settings == {
        "hellaswag": ("acc_norm", 0, "source", False, False),
        "arc_easy": ("acc", 0, None, False, False),
        "arc_challenge": ("acc_norm", 0, None, False, False),
        "piqa": ("acc", 0, "goal", False, False),
        "winogrande": ("acc", 0, "twins", False, False),
        "openbookqa": ("acc_norm", 0, None, False, False),
        "commonsense_qa": ("acc", 0, None, True, False),
        "mmlu_0": ("acc", 0, "subject", True, True),
        "mmlu_5": ("acc", 5, "subject", True, True),
        "lambada": ("acc", 0, None, False, False),
        "wikitext": ("bits_per_byte", 0, None, False, False),
        "mmlu_cloze": ("acc_norm", 0, "subject", False, True),
        "commonsense_qa_cloze": ("acc_norm", 0, None, False, False),
        "embedded": ("bits_per_byte", 0, "work", False, False),
    }
    assert [len(suite) for suite in SUITES.values()] == [11, 2, 1]


@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_read_plain_or_compressed(rows, packed):
    if packed:
        (rows / f"{PIQA.rows}.jsonl").unlink()
        (rows / f"{PIQA.rows}.jsonl.gz").write_bytes(gzip.compress(LINES))
    assert read_rows(rows, PIQA.rows) == [{"a": 1}, {"a": 2}]
    check_rows([PIQA], rows)


def test_changed_damaged_and_missing_rows_are_refused(rows):
    file = rows / f"{PIQA.rows}.jsonl"
    file.write_bytes(LINES + b"\n")
    for function in (lambda: read_rows(rows, PIQA.rows), lambda: check_rows([PIQA], rows)):
        with pytest.raises(
            InputError,
            match=f"its lines have SHA-256 {hashlib.sha256(file.read_bytes()).hexdigest()}, not",
        ):
            function()
    file.unlink()
    with pytest.raises(InputError, match="no such file; its lines have SHA-256"):
        read_rows(rows, PIQA.rows)
    (rows / f"{PIQA.rows}.jsonl.gz").write_bytes(gzip.compress(LINES)[:-6])
    with pytest.raises(InputError, match=r"jsonl\.gz: damaged"):
        read_rows(rows, PIQA.rows)


def test_names_of_rows_are_those_that_benchmarks_want_and_several_missing_ones_are_told_at_once(
    rows,
):
    chosen = [PIQA, MMLU_0, EMBEDDED, BENCHMARKS["mmlu_5"]]
    assert names_of(chosen, None) == ["mmlu_dev", "mmlu_test", "piqa_validation"]
    assert names_of([PIQA, EMBEDDED], rows) == ["piqa_validation"]
    with pytest.raises(
        InputError, match=r"2 files are not there: mmlu_dev\.jsonl\.gz, mmlu_test\.jsonl\.gz$"
    ):
        names_of(chosen, rows)
    (rows / "mmlu_dev.jsonl.gz").touch()
    assert len(names_of(chosen, rows)) == 3  # of one that is missing, reading it says more
    with pytest.raises(
        InputError, match="no folder; name the one that the benchmarks' rows lie in"
    ):
        names_of(chosen, rows / "piqa_validation.jsonl")
    check_rows([EMBEDDED], None)
    check_rows([PIQA], None)


def test_lm_eval_must_be_the_release_that_is_meant(monkeypatch):
    assert (lm_eval_folder() / "mmlu").is_dir() and tasks.LM_EVAL_VERSION == "0.4.13"
    monkeypatch.setattr(tasks, "version", lambda name: "0.4.14")
    with pytest.raises(InputError, match=r"lm-eval 0\.4\.14: prompts are bound to 0\.4\.13"):
        lm_eval_folder()

    def absent(name):
        raise tasks.PackageNotFoundError

    monkeypatch.setattr(tasks, "version", absent)
    with pytest.raises(InputError, match="evaluation needs lm-eval: pip install"):
        lm_eval_folder()


def test_lm_eval_is_made_quick_and_quiet_once():
    from lm_eval import utils
    from lm_eval.api import task

    lm_eval_folder()
    once = task.tqdm, utils.env.from_string
    lm_eval_folder()
    assert (task.tqdm, utils.env.from_string) == once
    assert isinstance(task.tqdm, functools.partial) and task.tqdm.keywords == {"disable": True}
    assert utils.env.from_string("{{a}}!").render(a=1) == "1!"
    assert utils.env.from_string("{{a}}!") is utils.env.from_string("{{a}}!")


def test_the_subjects_of_mmlu():
    names = subjects(lm_eval_folder())
    assert (
        len(names) == 57
        and names[0] == "abstract_algebra"
        and names == sorted(names)
        and names[-1] == "world_religions"
    )


def test_embedded_rows_have_their_works():
    rows = embedded_rows()
    assert len(rows) == 13 == len({row["id"] for row in rows}) and all(row["text"] for row in rows)
    assert {row["id"].partition("/")[0] for row in rows} == {"austen", "sotu"}
    for row in rows:
        corpus, _, name = row["id"].partition("/")
        assert row["work"] == (name.rpartition("-")[0] if corpus == "austen" else name)


def test_tasks_are_made_of_local_rows(real_data):
    made = make_tasks(benchmarks("mmlu_5,embedded,piqa"), real_data / "eval")
    assert len(made) == 59 and [made[0].name, made[0].subject] == [
        "mmlu_5/abstract_algebra",
        "abstract_algebra",
    ]
    assert (made[57].name, made[57].subject, len(made[57].documents)) == ("embedded", None, 13)
    assert made[58].name == "piqa" and len(made[58].documents) == 1838
    assert {row["subject"] for row in made[0].documents} == {"abstract_algebra"} and len(
        made[0].documents
    ) == 100
    assert made[0].task.config.num_fewshot == 5 and len(list(made[0].task.fewshot_docs())) == 5
    assert (
        made[0].task.config.task == "mmlu_5/abstract_algebra"
        and made[0].task.config.dataset_path == "local"
    )


def task_with(name, size, benchmark=PIQA):
    return SimpleNamespace(
        name=name, benchmark=benchmark, task=SimpleNamespace(eval_docs=[None] * size)
    )


def test_documents_are_all_or_a_seeded_draw_from_each_benchmark():
    benchmark_tasks = [
        task_with("mmlu_0/a", 4, MMLU_0),
        task_with("mmlu_0/b", 3, MMLU_0),
        task_with("piqa", 2),
    ]

    def chosen(documents, seed=0):
        return chosen_documents(
            benchmark_tasks, EvaluationSettings((), None, 16, 0, documents, seed)
        )

    whole = {"mmlu_0/a": [0, 1, 2, 3], "mmlu_0/b": [0, 1, 2], "piqa": [0, 1]}
    assert chosen(None) == chosen(7) == chosen(8) == whole
    for size in range(1, 7):
        drawn = chosen(size)
        mmlu = [(name, number) for name in drawn for number in drawn[name] if name != "piqa"]
        assert (
            len(mmlu) == size == len(set(mmlu))
            and mmlu == sorted(mmlu)
            and len(drawn["piqa"]) == min(size, 2)
        )
        assert all(set(numbers) <= set(whole[name]) for name, numbers in drawn.items())
    assert chosen(3) == chosen(3, 0) and len({json.dumps(chosen(3, seed)) for seed in range(8)}) > 1


def test_a_language_model_numbers_documents_as_they_were_chosen(small_texts):
    model = LanguageModel(SimpleNamespace(), small_texts, 16, None, {"t": [4, 9]})
    instance = SimpleNamespace(task_name="t", doc_id=1)
    assert model._source(instance, 2, ROLLING) == RequestSource("t", 9, 2, ROLLING)
    assert model._source(SimpleNamespace(task_name="u", doc_id=1), 0, ROLLING).document == 1
    assert model._source(SimpleNamespace(task_name=None, doc_id=None), 0, ROLLING) == RequestSource(
        "", 0, 0, ROLLING
    )
    assert (
        model.eot_token_id == -1
        and LanguageModel(SimpleNamespace(), small_texts, 16, 7).eot_token_id == 7
    )


def test_a_language_model_encodes_with_and_without_what_the_tokenizer_adds(beginning_path):
    from tokencodes.evaluate.texts import open_texts

    model = LanguageModel(SimpleNamespace(), open_texts(beginning_path), 16, 0)
    plain = model.tok_encode("happy", add_special_tokens=False)
    assert (
        model.tok_encode("happy")
        == [0, *plain]
        == model.tok_encode("happy", add_special_tokens=True)
    )
    assert {type(id) for id in plain} == {int}
