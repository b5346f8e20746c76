"""The byte-level BPE: its fixed ids, its byte counts, its refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import VOCAB
from tokencodes.data.text import read_documents
from tokencodes.data.tokenizer import END_OF_TEXT, TokenizerFile, train_tokenizer
from tokencodes.errors import InputError


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path) -> TokenizerFile:
    return TokenizerFile(tokenizer_path)


def test_id_0_ends_texts_and_stands_for_no_byte(tokenizer):
    assert (tokenizer.end_of_text, tokenizer.vocab_size) == (0, VOCAB)
    assert tokenizer.tokenizer.id_to_token(0) == END_OF_TEXT
    assert tokenizer.bytes_per_token[0] == 0
    assert tokenizer.bytes_per_token[1:].min() == 1


def test_every_text_comes_back_and_its_bytes_can_be_counted_from_ids(tokenizer):
    @settings(max_examples=150, deadline=None)
    @given(
        st.text(st.characters(exclude_categories=["Cs"])).filter(
            lambda text: END_OF_TEXT not in text
        )
    )
    def holds(text):
        (ids,) = tokenizer.encode([text])
        assert tokenizer.tokenizer.decode(ids) == text
        assert tokenizer.bytes_per_token[ids].sum() == len(text.encode())

    holds()


def test_training_twice_gives_the_same_file(texts, tokenizer, tmp_path):
    documents = [d.text for file in sorted(texts.iterdir()) for d in read_documents(file)]
    train_tokenizer(documents, VOCAB, tmp_path / "again.json")
    assert TokenizerFile(tmp_path / "again.json").sha256 == tokenizer.sha256


def test_digits_are_split_one_by_one(tokenizer):
    assert len(tokenizer.encode(["1865"])[0]) == 4


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="at least 257 entries"):
        train_tokenizer(["abc"], 100, tmp_path / "t.json")
    with pytest.raises(InputError, match=r"gives a BPE of \d+ entries only"):
        train_tokenizer(["abc abc"], 5000, tmp_path / "t.json")
    assert not list(tmp_path.iterdir())
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizers file"):
        TokenizerFile(tmp_path / "bad.json")
    with pytest.raises(InputError, match="no such tokenizer file"):
        TokenizerFile(tmp_path / "none.json")


def test_the_real_tokenizer_gives_its_published_ids(real_data):
    file = TokenizerFile(real_data / "tokenizer" / "smollm2.json")
    assert file.sha256.startswith("9ca9acddb652")
    assert file.encode(["Hello, world!"]) == [[19556, 28, 905, 17]]
    assert (file.vocab_size, file.end_of_text) == (49152, 0)
    assert file.bytes_per_token[[19556, 28, 905, 17]].tolist() == [5, 1, 6, 1]
