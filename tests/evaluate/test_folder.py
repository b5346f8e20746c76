"""A damaged or falsified evaluation folder is one line that names the file and the field, and never
a traceback.
"""

import gzip
import json

import pytest

from tests.made_evaluations import choices, completion, evaluation_json, page, request, write_made
from tokencodes.cli import run as command
from tokencodes.errors import InputError
from tokencodes.evaluate.folder import (
    DocumentRecord,
    read_documents,
    read_evaluation,
    read_requests,
    write_evaluation_record,
    write_records,
)
from tokencodes.evaluate.pairs import open_evaluation
from tokencodes.files import read_json, write_json
from tokencodes.report.evaluations import write_evaluation

DOCUMENTS = [
    *(choices("piqa", number, number > 1, acc_norm=1.0) for number in range(4)),
    *(completion("lambada", number, number > 2, 3.5) for number in range(4)),
    *(page("wikitext", number, 20.0, 10) for number in range(4)),
]


@pytest.fixture
def folder(tmp_path):
    return write_made(tmp_path / "a", DOCUMENTS)


@pytest.fixture
def arguments(folder, tmp_path):
    write_made(tmp_path / "b", DOCUMENTS)
    return ["contrast", str(tmp_path / "b"), str(folder)]


def error_line(capsys):
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Traceback" not in said, said
    return said


def test_an_evaluation_is_read_as_it_was_written(folder):
    record = read_evaluation(folder)
    assert read_documents(folder, record) == DOCUMENTS
    assert list(read_requests(folder)) == [request(document) for document in DOCUMENTS]
    assert record.as_json() == read_json(folder / "evaluation.json")
    assert (
        "acc" not in record.as_json()["results"]["wikitext"]
        and "truncation" not in record.as_json()["sensitivity"]
    )


@pytest.mark.parametrize(
    "text", ["{}", "[]", "null", "3", '"text"', '{"identity": {}}', "", "{", "\xff"]
)
def test_an_evaluation_json_with_wrong_contents_is_one_line(text, folder, arguments, capsys):
    (folder / "evaluation.json").write_bytes(text.encode("latin-1"))
    assert command(arguments) == 2
    assert f"{folder}/evaluation.json: " in error_line(capsys)
    with pytest.raises(InputError, match=r"a/evaluation\.json: "):
        write_evaluation([folder], folder)


def leaves(value, path=()):
    """Every key of a JSON value."""
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in children:
        yield (*path, key)
        yield from leaves(child, (*path, key))


OPTIONAL = {("identity", "run"), ("identity", "embedded_held_out")}  # None where they are absent
FULL = evaluation_json(DOCUMENTS)
FULL["results"] = {"piqa": FULL["results"]["piqa"]}
FULL["audit"], FULL["identity"]["benchmarks"] = FULL["audit"][:1], ["piqa"]
NEEDED = [
    path for path in leaves(FULL) if path not in OPTIONAL and path[-1] not in ("acc", "acc_norm")
]


@pytest.mark.parametrize("path", NEEDED, ids=lambda path: ".".join(map(str, path)))
def test_a_field_that_is_missing_or_of_another_kind_is_named(path, tmp_path):
    for change in ("missing", "wrong"):
        value = json.loads(json.dumps(FULL))
        place = value
        for key in path[:-1]:
            place = place[key]
        if change == "missing":
            del place[path[-1]]
        else:
            place[path[-1]] = {"no": {"such": "value"}}
        (tmp_path / "evaluation.json").write_text(json.dumps(value))
        with pytest.raises(InputError) as refused:
            read_evaluation(tmp_path)
        said = str(refused.value)
        assert said.startswith(f"{tmp_path}/evaluation.json: ") and "\n" not in said
        assert str(path[-1]) in said or isinstance(path[-1], int) or path[0] in ("results", "audit")


def test_an_unknown_field_is_refused(folder):
    record = read_json(folder / "evaluation.json")
    record["identity"]["more"] = 1
    write_json(folder / "evaluation.json", record)
    with pytest.raises(InputError, match=r"evaluation.json: identity.more = 1: "):
        read_evaluation(folder)


@pytest.mark.parametrize("key", ["results", "audit"])
def test_results_and_audit_are_of_the_benchmarks_that_were_asked(key, folder):
    record = read_json(folder / "evaluation.json")
    record[key] = dict(list(record[key].items())[1:]) if key == "results" else record[key][1:]
    write_json(folder / "evaluation.json", record)
    with pytest.raises(
        InputError, match=f"the benchmarks of {key} are not those of identity.benchmarks"
    ):
        read_evaluation(folder)
    with pytest.raises(ValueError, match=f"the benchmarks of {key}"):
        write_evaluation_record(folder, record)


def rewrite(file, change):
    lines = gzip.decompress(file.read_bytes()).splitlines()
    file.write_bytes(gzip.compress(b"\n".join(change(lines)) + b"\n"))


def changed(line, **values):
    return json.dumps({**json.loads(line), **values}).encode()


def without(line, key):
    return json.dumps(
        {name: value for name, value in json.loads(line).items() if name != key}
    ).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [b"{}", *lines[1:]], r"line 1: task: is missing"),
        (lambda lines: [lines[0], b"null", *lines[2:]], r"line 2: "),
        (lambda lines: [*lines[:3], b"[]", *lines[4:]], r"line 4: "),
        (lambda lines: [b"{", *lines[1:]], r"line 1: Invalid JSON"),
        (lambda lines: [b"\xff", *lines[1:]], r"line 1: "),
        (
            lambda lines: [changed(lines[0], metrics={"acc": "half", "acc_norm": 1.0}), *lines[1:]],
            r"line 1: metrics.acc = 'half'",
        ),
        (
            lambda lines: [changed(lines[0], metrics={"acc": None, "acc_norm": 1.0}), *lines[1:]],
            r"metrics.acc is missing",
        ),
        (lambda lines: [changed(lines[0], document=-1), *lines[1:]], r"line 1: document = -1: "),
        (lambda lines: [without(lines[0], "gold"), *lines[1:]], r"line 1: gold is missing"),
        (lambda lines: [without(lines[0], "taken"), *lines[1:]], r"line 1: taken is missing"),
        (
            lambda lines: [without(lines[0], "log_probs"), *lines[1:]],
            r"line 1: log_probs is missing",
        ),
        (
            lambda lines: [*lines[:4], without(lines[4], "nats"), *lines[5:]],
            r"line 5: nats is missing",
        ),
        (
            lambda lines: [*lines[:4], without(lines[4], "tokens"), *lines[5:]],
            r"line 5: tokens is missing",
        ),
        (
            lambda lines: [*lines[:8], without(lines[8], "words"), *lines[9:]],
            r"line 9: words is missing",
        ),
        (
            lambda lines: [*lines[:8], changed(lines[8], bytes=0), *lines[9:]],
            r"line 9: bytes = 0: ",
        ),
        (
            lambda lines: [changed(lines[0], metrics={"acc": 1.0}), *lines[1:]],
            "documents of piqa do not have the same metrics",
        ),
        (lambda lines: lines[1:], r"3 documents of piqa; evaluation.json has 4"),
        (lambda lines: lines[:-1], r"3 documents of wikitext; evaluation.json has 4"),
        (
            lambda lines: [changed(lines[0], task="arc_easy"), *lines[1:]],
            "documents of arc_easy, of which evaluation.json has no",
        ),
    ],
)
def test_a_wrong_record_of_a_document_is_one_line(change, said, folder, arguments, capsys):
    rewrite(folder / "documents.jsonl.gz", change)
    with pytest.raises(InputError, match=said):
        open_evaluation(folder)
    assert command(arguments) == 2
    assert f"{folder}/documents.jsonl.gz" in error_line(capsys)


def test_a_damaged_or_missing_file_of_records_is_one_line(folder, arguments, capsys):
    file = folder / "documents.jsonl.gz"
    whole = file.read_bytes()
    for broken in (
        b"",
        b"no gzip",
        whole[: len(whole) // 2],
        whole[:20] + b"\0\0" + whole[22:],
        whole[:-8] + b"\0" * 8,
    ):
        file.write_bytes(broken)
        assert command(arguments) == 2
        assert f"{file}: " in error_line(capsys)
    file.unlink()
    assert command(arguments) == 2
    assert f"{file}: no such file" in error_line(capsys)


def test_wrong_records_of_requests_are_one_line(folder, tmp_path, capsys):
    other = write_made(
        tmp_path / "other", DOCUMENTS, [request(document, text="other") for document in DOCUMENTS]
    )
    arguments = ["contrast", str(other), str(folder)]
    for change, said in (
        (
            lambda lines: [without(lines[0], "read_sha256"), *lines[1:]],
            "line 1: read_sha256: is missing",
        ),
        (
            lambda lines: [*lines[:2], changed(lines[2], context_sha256="ab"), *lines[3:]],
            "line 3: context_sha256 = 'ab'",
        ),
        (lambda lines: [b"null", *lines[1:]], "line 1: "),
        (
            lambda lines: [changed(lines[0], read_sha256="0" * 64), *lines[1:]],
            "not the requests that evaluation.json was made of",
        ),
        (lambda lines: lines[1:], "not the requests that evaluation.json was made of"),
    ):
        before = (folder / "requests.jsonl.gz").read_bytes()
        rewrite(folder / "requests.jsonl.gz", change)
        assert command(arguments) == 2
        line = error_line(capsys)
        assert f"{folder}/requests.jsonl.gz" in line and said in line
        (folder / "requests.jsonl.gz").write_bytes(before)
    assert command(arguments) == 2
    assert (
        "did not ask the same: 12 only in the first (lambada 4, piqa 4, wikitext 4; such as "
        in error_line(capsys)
    )


def test_documents_in_another_order_are_not_compared(folder, arguments, capsys):
    rewrite(folder / "documents.jsonl.gz", lambda lines: [lines[1], lines[0], *lines[2:]])
    assert command(arguments) == 2
    assert (
        f"{folder}/documents.jsonl.gz: its documents of piqa, or their metrics, are not those of"
        in error_line(capsys)
    )


def test_other_metrics_of_the_same_documents_are_not_compared(folder, arguments, capsys):
    rewrite(
        folder / "documents.jsonl.gz",
        lambda lines: [changed(line, metrics={"acc": 1.0}) for line in lines[:4]] + lines[4:],
    )
    assert command(arguments) == 2
    assert (
        f"{folder}/documents.jsonl.gz: its documents of piqa, or their metrics, are not those of"
        in error_line(capsys)
    )


def test_what_a_contrast_compares_of_each_kind_of_document():
    assert DOCUMENTS[0].values() == {"acc": 0.0, "acc_norm": 1.0} and DOCUMENTS[0].kind == "choices"
    assert DOCUMENTS[7].values() == {"acc": 1.0, "nats": 3.5} and DOCUMENTS[7].kind == "text"
    assert page("wikitext", 0, 3 * 0.6931471805599453, 10).values() == {
        "bits_per_byte": pytest.approx(3.0)
    }
    assert (
        page("wikitext", 0, 1.0, 10).kind == "rolling"
        and choices("mmlu_0/law", 0, True).benchmark == "mmlu_0"
    )


def test_the_same_records_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_records(tmp_path / name, DOCUMENTS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    first = json.loads(gzip.decompress((tmp_path / "a").read_bytes()).splitlines()[0])
    assert DocumentRecord(**first) == DOCUMENTS[0] and "nats" not in first
