"""Rules in a tokenizer file that would change data in silence: each is refused, switched off, or
counted.
"""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.conftest import VOCAB, contents
from tokencodes.cli import run
from tokencodes.data.counts import CHANGED, SPECIAL, UNKNOWN
from tokencodes.data.dataset import Dataset
from tokencodes.data.encode import engine_for
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import prepare
from tokencodes.data.tokenizer import (
    END_OF_TEXT,
    LARGEST_VOCABULARY,
    TokenizerFile,
    train_tokenizer,
)
from tokencodes.errors import InputError
from tokencodes.evaluate.texts import Texts
from tokencodes.train.config import DataConfig
from tokencodes.train.corpus import open_dataset

ALL = PrepareOptions(validation_fraction=0)


@pytest.fixture
def altered(tokenizer_path, tmp_path):
    """A function that writes the tests' tokenizer with a change in its JSON, and gives its path."""

    def write(change) -> Path:
        rules = json.loads(tokenizer_path.read_text())
        change(rules)
        (tmp_path / "altered.json").write_text(json.dumps(rules))
        return tmp_path / "altered.json"

    return write


def without_bytes(letters: str, unknown: str | None = None):
    """A change that takes these letters from a tokenizer: no token has them."""

    def change(rules) -> None:
        model = rules["model"]
        model["merges"] = [
            pair for pair in model["merges"] if not set(letters) & set("".join(pair))
        ]
        model["vocab"] = {
            token: id for token, id in model["vocab"].items() if not set(letters) & set(token)
        }
        if unknown is not None:
            model["unk_token"] = unknown
            model["vocab"][unknown] = VOCAB

    return change


def prepared(text: str, tokenizer: Path, folder: Path) -> Dataset:
    (folder / "text").mkdir(exist_ok=True)
    (folder / "text" / "a.jsonl").write_text(json.dumps({"text": text, "id": "a"}) + "\n")
    return prepare([str(folder / "text" / "a.jsonl")], tokenizer, folder / "data", ALL)


# Chance


def test_bpe_dropout_is_refused_in_one_line_and_nothing_is_written(
    altered, texts, tmp_path, capsys
):
    tokenizer = altered(lambda rules: rules["model"].update(dropout=0.1))
    assert (
        run(["prepare", str(texts), "--tokenizer", str(tokenizer), "--out", str(tmp_path / "data")])
        == 2
    )
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert f'{tokenizer}: "dropout" of its model is 0.1' in complaint
    assert 'set "dropout" to null in a copy of the file' in complaint
    assert not (tmp_path / "data").exists()


def test_bpe_dropout_is_refused_by_an_evaluation_too(altered):
    tokenizer = altered(lambda rules: rules["model"].update(dropout=0.5))
    with pytest.raises(InputError, match=r'"dropout" of its model is 0\.5'):
        Texts(PreTrainedTokenizerFast(tokenizer_file=str(tokenizer)))


def test_subword_sampling_of_a_unigram_model_is_refused(tmp_path):
    model = models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)
    model.alpha = 0.1
    with pytest.raises(InputError, match=r'"alpha" of its model is 0\.1'):
        TokenizerFile.of(Tokenizer(model), tmp_path / "t.json")


# Bytes that are lost


def test_bytes_without_a_token_are_told_by_prepare_and_by_a_run(altered, tmp_path, capsys):
    tokenizer = altered(without_bytes("q"))
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "quite a queue of quails"}) + "\n")
    command = [
        "prepare",
        str(tmp_path / "a.jsonl"),
        "--tokenizer",
        str(tokenizer),
        "--out",
        str(tmp_path / "data"),
    ]
    assert run([*command, "--validation-fraction", "0"]) == 0
    assert (
        "the tokenizer has no token for 3 of 23 bytes of text, and left them out"
        in capsys.readouterr().out
    )
    assert run([*command, "--validation-fraction", "0", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["text_bytes"], result["lost_bytes"]) == (23, 3)
    lines: list[str] = []
    config = DataConfig(dataset=str(tmp_path / "data"), vocab_size=VOCAB)
    open_dataset(config, tmp_path, lines.append)
    assert lines == [
        f"{tmp_path / 'data'}: the tokenizer has no token for 3 of 23 bytes of text, and left"
        " them out"
    ]


def test_a_run_says_nothing_where_no_byte_is_lost(dataset, tmp_path):
    lines: list[str] = []
    open_dataset(DataConfig(dataset=str(dataset.path), vocab_size=VOCAB), tmp_path, lines.append)
    assert dataset.counts.lost_bytes == 0
    assert lines == []


def test_an_unknown_token_stands_for_no_byte_and_its_documents_are_counted(altered, tmp_path):
    dataset = prepared("quick", altered(without_bytes("q", "<unk>")), tmp_path)
    assert [ids.tolist()[0] for shard in dataset.own_shards for ids in shard.ids()] == [VOCAB]
    assert dataset.counts.lost_bytes == 1
    assert dataset.counts.noted == {UNKNOWN: 1}


def test_an_unknown_token_that_is_special_stands_for_no_byte_either(altered, tmp_path):
    dataset = prepared("quick", altered(without_bytes("q", END_OF_TEXT)), tmp_path)
    assert dataset.counts.lost_bytes == 1
    assert dataset.counts.noted == {UNKNOWN: 1}


def test_the_literal_of_a_special_token_is_no_unknown_text(tokenizer_path, tmp_path):
    dataset = prepared(f"one{END_OF_TEXT}two", tokenizer_path, tmp_path)
    assert (dataset.counts.lost_bytes, dataset.counts.noted) == (0, {SPECIAL: 1})


def test_what_a_pre_tokenizer_removes_is_lost(altered, tmp_path):
    removes = {"type": "Split", "pattern": {"String": "-"}, "behavior": "Removed", "invert": False}

    def change(rules) -> None:
        rules["pre_tokenizer"]["pretokenizers"].insert(0, removes)

    assert prepared("well-to-do", altered(change), tmp_path).counts.lost_bytes == 2


def test_documents_that_a_normalizer_changes_are_counted_and_its_own_work_is_no_loss(
    altered, tmp_path
):
    dataset = prepared(
        "cafe\u0301", altered(lambda rules: rules.update(normalizer={"type": "NFC"})), tmp_path
    )
    assert (dataset.counts.lost_bytes, dataset.counts.noted) == (0, {CHANGED: 1})


@pytest.mark.parametrize(
    "change",
    [
        lambda rules: rules["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True),
        lambda rules: rules["model"]["vocab"].update({"<0x41>": VOCAB}),
        lambda rules: rules["model"].update(end_of_word_suffix="</w>"),
        lambda rules: rules["model"]["vocab"].update({"\u2581": VOCAB}),
    ],
    ids=["a space is added", "tokens of bytes", "marks at the end of words", "not byte-level"],
)
def test_where_tokens_are_not_the_bytes_of_the_text_the_loss_is_unknown(change, altered, tmp_path):
    assert prepared("plain words", altered(change), tmp_path).counts.lost_bytes is None


# Length


def test_truncation_and_padding_of_a_tokenizer_file_do_not_reach_documents(
    tokenizer_path, tmp_path
):
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "cuts.json"))
    text = "a text of more than two tokens"
    expected = TokenizerFile(tokenizer_path).encode([text])
    assert TokenizerFile(tmp_path / "cuts.json").encode([text]) == expected
    backend = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "cuts.json"))
    assert [ids.tolist() for ids in Texts(backend).encode([text])] == expected


# What cannot be


def test_a_text_that_the_tokenizer_cannot_encode_is_one_line(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({END_OF_TEXT: 0, "plain": 1}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    with pytest.raises(
        InputError, match=r"words\.json: it cannot encode this text \(WordLevel error: Missing"
    ):
        prepared("plain words", tmp_path / "words.json", tmp_path)
    assert contents(tmp_path / "data").keys() == {"tokenizer.json"}


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("truncation", 7),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}),  # the library panics
        ("pre_tokenizer", "x"),
        ("added_tokens", {}),
        ("model", None),
        ("version", []),
    ],
)
def test_a_tokenizer_file_with_wrong_contents_is_one_line(section, value, altered):
    path = altered(lambda rules: rules.update({section: value}))
    with pytest.raises(InputError) as caught:
        TokenizerFile(path).normalized(["a text"])
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ["cached", "reference"])
def test_an_unknown_token_that_is_not_there_is_one_line_of_both_engines(engine, altered):
    def change(rules) -> None:
        without_bytes("q")(rules)
        rules["model"]["unk_token"] = "absent"

    with pytest.raises(InputError, match=r"altered\.json: it cannot encode this text"):
        engine_for(TokenizerFile(altered(change)), engine).encode(["quick"])


def test_ids_that_no_table_can_hold_are_refused(altered):
    path = altered(lambda rules: rules["model"]["vocab"].update({"far": 4_000_000_000}))
    with pytest.raises(
        InputError, match=r"it has the id 4,000,000,000; ids must be below 16,777,216"
    ):
        TokenizerFile(path)


@pytest.mark.parametrize("vocab", [10**9, 10**23])
def test_a_vocabulary_that_no_table_can_hold_is_not_trained(vocab, texts, tmp_path, capsys):
    with pytest.raises(InputError, match=f"at most {LARGEST_VOCABULARY:,} entries are possible"):
        train_tokenizer(["some words"], vocab, tmp_path / "t.json")
    assert (
        run(
            ["tokenizer", str(texts), "--vocab-size", str(vocab), "--out", str(tmp_path / "t.json")]
        )
        == 2
    )
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "t.json").exists()


def test_a_normalizer_is_applied_as_the_library_applies_it(tokenizer_path, tmp_path):
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tokenizer.normalizer = normalizers.Lowercase()
    file = TokenizerFile.of(tokenizer, tmp_path / "t.json")
    assert file.normalized(["A Word"]) == ["a word"]
    assert TokenizerFile(tokenizer_path).normalized(["A Word"]) == ["A Word"]
