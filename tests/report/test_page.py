"""The page: whole, self-contained, true to the numbers on disk."""

import re
import shutil
from html.parser import HTMLParser

import pytest

from tests.conftest import tiny_study
from tokencodes.errors import InputError
from tokencodes.files import read_json, write_json
from tokencodes.report import figures
from tokencodes.report.page import write_report
from tokencodes.report.results import read_study_folder
from tokencodes.study import compare
from tokencodes.train.metrics import Silent
from tokencodes.train.stop import Stop


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "study"
    shutil.copytree(trained, out)
    write_report(out)
    return out


class Page(HTMLParser):
    """Collects tags, attributes and text;
    void elements aside, every tag must be closed in order."""

    VOID = frozenset({"meta", "br", "link", "img", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.words += " "

    def handle_data(self, data):
        self.words += data


def test_the_page_is_whole_and_asks_for_nothing_from_outside(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    loads = [
        value
        for tag, name, value in page.attributes
        if name in {"src", "href", "xlink:href", "data", "srcset"}
    ]
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in loads)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert not any(tag == "script" for tag, _, _ in page.attributes)


def test_ids_in_the_page_are_unique(folder):
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    ids = [value for _, name, value in page.attributes if name == "id"]
    shared = {value for value in ids if ids.count(value) > 1}
    used = {
        value
        for _, name, value in page.attributes
        if name in {"xlink:href", "clip-path"}
        for value in re.findall(r"#([\w-]+)", value)
    }
    assert not shared & used


def test_its_numbers_are_those_on_disk(folder, study):
    words = " ".join(Page((folder / "report.html").read_text(encoding="utf-8")).words.split())
    summary = read_json(folder / "summary.json")
    assert "8 of 8 runs" in words
    for arm in study.arms:
        losses = [
            read_json(folder / arm / f"seed-{seed}" / "result.json")["held_out_loss"]
            for seed in (1, 2)
        ]
        assert summary["arms"][arm]["held_out_loss"] == losses
        assert f"{sum(losses) / 2:.3f}" in words
        assert ", ".join(f"{loss:.3f}" for loss in losses) in words
        results = [read_json(folder / arm / f"seed-{seed}" / "result.json") for seed in (1, 2)]
        bits, perplexity = (
            sum(result[key] for result in results) / 2 for key in ("bits_per_byte", "perplexity")
        )
        below = read_json(folder / "ngram_baselines.json")["unigram"] - sum(losses) / 2
        row = (
            f"{arm} {sum(losses) / 2:.3f} {losses[0]:.3f}, {losses[1]:.3f} {bits:.3f}"
            f" {perplexity:.1f} {below:.3f}"
        )
        assert row in words
    for pair in summary["pairs"]:
        assert pair["sentence"] in words
    compared = {(pair["arm"], pair["baseline"]) for pair in summary["pairs"]}
    assert compared == {
        ("binary", "learned"),
        ("gf2", "learned"),
        ("permuted", "learned"),
        ("permuted", "binary"),
    }
    assert summary["matched"] is True
    assert "Their hashes were compared" in words
    for heading in (
        "Findings",
        "Learning curves",
        "Parameters",
        "Codebooks",
        "Text they write",
        "What is not shown",
        "Environment",
    ):
        assert heading in words


def test_arms_that_did_not_start_alike_are_told_apart(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "study")
    file = tmp_path / "study" / "gf2" / "seed-1" / "result.json"
    write_json(file, {**read_json(file), "start_sha256": "0" * 64})
    page, summary = write_report(tmp_path / "study")
    assert summary["matched"] is False
    assert "the differences mean nothing" in page.read_text(encoding="utf-8")


def test_every_seed_is_a_line_and_a_mark(folder):
    result = read_study_folder(folder)
    curves = figures.loss_curves(result)
    for look in figures.looks(result.arms).values():
        assert curves.lower().count(f"stroke: {look.colour.lower()}") >= 2


def test_an_unfinished_study_says_so(study, tmp_path):
    class AfterTwoRuns(Silent):
        begun = 0

        def begin(self, name, step, steps):
            self.begun += 1
            stop.requested = self.begun > 2

    stop = Stop()
    assert not compare(study, tmp_path / "part", AfterTwoRuns(), stop)
    write_report(tmp_path / "part")
    words = Page((tmp_path / "part" / "report.html").read_text(encoding="utf-8")).words
    assert "2 of 8 runs; the study is not finished" in words
    assert "in one run each" in words


def test_a_folder_that_holds_no_study_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no study.toml"):
        write_report(tmp_path)


def test_text_from_a_model_cannot_become_markup(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "study")
    file = tmp_path / "study" / "gf2" / "seed-1" / "sample.json"
    write_json(file, {**read_json(file), "continuation": "</blockquote><script>alert(1)</script>"})
    text = write_report(tmp_path / "study")[0].read_text(encoding="utf-8")
    assert "<script" not in text
    assert text.count("<blockquote>") == text.count("</blockquote>") == 4


def test_codes_that_the_spec_alone_does_not_give_are_named_not_drawn(dataset, tmp_path):
    arms = {
        "learned": {"interface": "learned"},
        "ranked": {"interface": "binary:ids=ranked"},
        "coded": {"interface": "learned-code"},
        "small": {"interface": "binary:scale=match"},
    }
    study = tiny_study(dataset.path, arms=arms, study={"seeds": [1]}, budget={"tokens": 64})
    assert compare(study, tmp_path / "study", Silent())
    page = Page(write_report(tmp_path / "study")[0].read_text(encoding="utf-8"))
    assert "Not drawn: ranked" in page.words
    norms = page.words[page.words.index("mean squared norm") :].split("Counted on")[0]
    assert norms.split()[-1] == "0.0144"  # a squared norm of width · 0.02²
    labels = [value for _, name, value in page.attributes if name == "aria-label"]
    assert [label for label in labels if "Codebook of" in label] == ["Codebook of small"]
