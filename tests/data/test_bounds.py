"""Sizes that nothing can have: one line with the value and its bounds, before anything is read or
written.
"""

import pytest

from tokencodes import memory
from tokencodes.cli import run

HUGE = str(10**23)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--shard-tokens", HUGE], "shard_tokens"),
        (["--shard-tokens", "0"], "shard_tokens"),
        (["--min-document-tokens", HUGE], "min_document_tokens"),
        (["--split-seed", HUGE], "split_seed"),
        (["--workers", HUGE], "'--workers'"),
        (["--workers", "1000000000"], "'--workers'"),
        (
            ["--batch-mb", "1e300"],
            "--batch-mb 1e+300: it must be above 0, and at most 1,048,576 megabytes",
        ),
        (["--batch-mb", "nan"], "--batch-mb nan"),
        (["--validation-fraction", "nan"], "validation"),
        (["--validation-fraction", "1"], "validation"),
    ],
)
def test_prepare_refuses_sizes_out_of_bounds(
    options, complaint, texts, tokenizer_path, tmp_path, capsys
):
    out = tmp_path / "data"
    assert (
        run(
            ["prepare", str(texts), "--tokenizer", str(tokenizer_path), "--out", str(out), *options]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--validation-fraction", "nan"],
        ["--validation-fraction", "2"],
        ["--split-seed", "-1"],
        ["--split-seed", HUGE],
    ],
)
def test_a_tokenizer_is_trained_on_no_impossible_split(options, texts, tmp_path, capsys):
    out = tmp_path / "t.json"
    assert run(["tokenizer", str(texts), "--vocab-size", "300", "--out", str(out), *options]) == 2
    error = capsys.readouterr().err
    assert options[0].removeprefix("--").replace("-", "_") in error and error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("context", ["1000000000000", HUGE])
def test_a_context_that_no_document_has_is_inspected_all_the_same(context, dataset, capsys):
    assert run(["inspect", str(dataset.path), "--context", context, "--json"]) == 0
    assert '"exposure": null' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "vocab", "reason"),
    [
        ("gf2", HUGE, "is beyond the 16,777,216 that are possible here"),
        ("binary", "1000000000", "is beyond the 16,777,216 that are possible here"),
        ("random:width=1000000", "49152", "about 49.2 GB of memory; here are 1.00 GB"),
    ],
)
def test_a_codebook_that_no_memory_can_hold_is_refused(spec, vocab, reason, capsys, monkeypatch):
    monkeypatch.setattr(memory, "total_bytes", lambda: 10**9)
    assert run(["codes", spec, "--vocab-size", vocab]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1
