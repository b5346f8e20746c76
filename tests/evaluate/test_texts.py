"""A tokenizer as an evaluation uses it."""

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.conftest import VOCAB
from tests.evaluate.conftest import with_begin
from tokencodes.data.encode import CachedEncoder
from tokencodes.errors import InputError
from tokencodes.evaluate.texts import Texts, located, open_texts, refuse_missing


def fast(path, **special):
    return PreTrainedTokenizerFast(tokenizer_file=str(path), **special)


def test_ids_are_the_librarys_own(small_texts):
    samples = ["She was happy.", "", "<|endoftext|>Émma", "Ω \x04\n"]
    assert [ids.tolist() for ids in small_texts.encode(samples)] == [
        small_texts.tokenizer.encode(text) for text in samples
    ]
    assert {ids.dtype for ids in small_texts.encode(samples)} == {
        np.dtype(np.uint32)
    } and small_texts.encode([]) == []
    assert (
        small_texts.plain("She").tolist() == small_texts.tokenizer.encode("She")
        and small_texts.vocab_size == VOCAB
    )
    assert small_texts.begin.tolist() == [] and [small_texts.begun(text) for text in samples] == [
        0,
        0,
        0,
        0,
    ]


def test_ids_are_the_same_without_the_cache(tokenizer_path, monkeypatch):
    samples = ["She was happy.", "", "<|endoftext|>Émma"]
    cached = open_texts(tokenizer_path).encode(samples)
    monkeypatch.setattr(CachedEncoder, "supports", staticmethod(lambda file: False))
    plain = open_texts(tokenizer_path).encode(samples)
    assert [ids.tolist() for ids in plain] == [ids.tolist() for ids in cached] and plain[
        0
    ].dtype == np.uint32


def test_begin_tokens_are_put_before_each_text_but_not_twice(beginning_path, holey_path, tmp_path):
    texts = open_texts(beginning_path)
    samples = ["happy", "", "<|endoftext|>happy", "\x04"]
    assert texts.begin.tolist() == [0] and [texts.begun(text) for text in samples] == [1, 1, 0, 1]
    plain = texts.plain("happy").tolist()
    assert [ids.tolist() for ids in texts.encode(samples)] == [[0, *plain], [0], [0, *plain], [0]]
    two = open_texts(with_begin(holey_path, tmp_path, "<|endoftext|> Z $A"))
    assert (
        two.begun("a") == 2
        and two.begun("<|endoftext|>Za") == 0
        and two.begun("<|endoftext|>a") == 2
    )


def test_bytes_without_a_token_are_counted(holey_path, beginning_path):
    for path in (holey_path, beginning_path):
        texts = open_texts(path)
        for text, lost in (
            ("happy", 0),
            ("\x04happy\x04", 2),
            ("\x04", 1),
            ("Émma\x04", 1),
            ("", 0),
        ):
            (ids,) = texts.encode([text])
            assert texts.lost(text, ids) == lost, (path, text)
        text = "a<|endoftext|>b"
        # a special token stands for no bytes
        assert texts.lost(text, texts.encode([text])[0]) is None


def test_lost_bytes_of_a_tokenizer_that_is_not_byte_level_are_not_known(tmp_path):
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    # no byte is written as an arrow
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2, "→": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = open_texts(tmp_path / "tokenizer.json")
    assert (
        texts.encode(["a b c"])[0].tolist() == [0, 1, 2]
        and texts.lost("a b c", texts.plain("a b c")) is None
    )


def test_the_prefix_is_the_begin_of_text_or_else_its_end(tokenizer_path, tmp_path):
    assert (
        Texts(fast(tokenizer_path, bos_token="a", eos_token="b")).prefix
        == fast(tokenizer_path).encode("a")[0]
    )
    assert Texts(fast(tokenizer_path, eos_token="b")).prefix == fast(tokenizer_path).encode("b")[0]
    assert Texts(fast(tokenizer_path, bos_token="<|endoftext|>")).prefix == 0
    assert Texts(fast(tokenizer_path)).prefix == 0  # by its name
    content = tokenizer_path.read_text().replace("<|endoftext|>", "<|other|>")
    (tmp_path / "tokenizer.json").write_text(content)
    assert open_texts(tmp_path / "tokenizer.json").prefix is None


def test_the_fingerprint_is_of_the_tokenizer_itself(tokenizer_path, holey_path):
    shas = {open_texts(path).sha256 for path in (tokenizer_path, holey_path)}
    assert len(shas) == 2 and open_texts(tokenizer_path).sha256 in shas


@pytest.mark.parametrize("place", ["/no/such/tokenizer.json", "./missing", "a/b/c"])
def test_a_path_that_is_not_there_is_not_asked_of_the_hub(place):
    for function in (refuse_missing, open_texts):
        with pytest.raises(InputError, match="no such file or folder"):
            function(place)


def test_names_that_may_be_of_the_hub_are_let_through(tmp_path):
    refuse_missing("owner/name")
    refuse_missing("name")
    refuse_missing(str(tmp_path))


def test_a_tokenizer_is_located_as_a_file_or_with_its_configuration_as_a_folder(
    tokenizer_path, tmp_path
):
    assert (
        located(tokenizer_path) == tokenizer_path
        and located("owner/name") is None
        and located(tmp_path) is None
    )
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "tokenizer.json"
    file.write_bytes(tokenizer_path.read_bytes())
    assert located(tmp_path) == file == located(tmp_path / "model")
    fast(tokenizer_path, eos_token="b").save_pretrained(tmp_path / "model")
    assert located(tmp_path) == tmp_path / "model"
    assert open_texts(tmp_path).prefix == fast(tokenizer_path).encode("b")[0]


def test_what_is_no_tokenizer_is_one_line(tmp_path, tokenizer_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json: not a tokenizers file"):
        open_texts(tmp_path / "tokenizer.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no tokenizer there"):
        open_texts(tmp_path / "empty")
