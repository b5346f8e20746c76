"""Requests become tokens by lm-eval's rules, and say what was lost on the way."""

import numpy as np
import pytest
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from tests.conftest import VOCAB
from tokencodes.errors import InputError
from tokencodes.evaluate.requests import Asked, pair_requests, rolling_requests, windows
from tokencodes.evaluate.texts import open_texts

WHO = Asked("t", 3, 0)


def one(texts, context, continuation, limit=100, prefix=0):
    return pair_requests([(context, continuation)], [WHO], texts, limit, prefix)[0]


def test_both_are_encoded_together_and_cut_where_the_context_ends(small_texts):
    request, encode = one(small_texts, "She was ", "happy"), small_texts.tokenizer.encode
    assert request.context.tolist() == encode("She was")  # white space at the end moves
    assert request.tokens.tolist() == encode("She was happy") and request.dropped == 0 and request.prefix is None


def test_an_empty_context_is_the_prefix_token_unless_the_text_begins_with_it(small_texts):
    request = one(small_texts, "", "happy")
    assert (request.prefix, request.context.tolist()) == (0, [0])
    named = one(small_texts, "", "<|endoftext|>happy")
    assert (
        named.prefix is None and named.context.tolist() == [0] and named.continuation.tolist() == request.continuation.tolist()
    )
    with pytest.raises(InputError, match="t, document 3: an empty context, and no prefix token; give --prefix-token"):
        one(small_texts, "", "happy", prefix=None)


def test_what_is_too_long_loses_tokens_on_the_left_and_they_are_counted(small_texts):
    whole, cut = one(small_texts, "a b c d e f g h", " i"), one(small_texts, "a b c d e f g h", " i", limit=5)
    assert cut.dropped == len(whole.tokens) - 6 > 0
    assert cut.tokens.tolist() == whole.tokens[-6:].tolist()  # five are read, the sixth is only asked for


def test_nothing_to_score_and_too_much_to_score_are_refused(small_texts):
    with pytest.raises(InputError, match="t, document 3, choice 0: '' gives no token to score"):
        one(small_texts, "a", "")
    pairs = [("a", " b c d e f"), ("a", " b"), ("a", " b c d e f g h")]
    asked = [Asked("t", 3, 0), Asked("t", 3, 1), Asked("u/x", 5, 0)]
    with pytest.raises(InputError) as told:
        pair_requests(pairs, asked, small_texts, 2, 0)
    assert "longer than the 2 tokens that the model reads, t: 1 of up to" in str(told.value)  # all of them at once
    assert "(u/x, document 5)" in str(told.value) and str(told.value).endswith("leave out t, u")


def test_bytes_that_no_token_stands_for_are_counted(real_data):
    texts = open_texts(real_data / "tokenizer" / "smollm2.json")
    # U+0413 is D0 93: it has both; U+0404 is D0 84; a private-use character begins with EE; U+F1000 needs F3 B1; U+40000 F1.
    lost = one(texts, "a", " b\U00040000c")
    assert lost.lost > 0 and one(texts, "a", " bc").lost == 0


@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 20, 21, 35])
@pytest.mark.parametrize("limit", [1, 4, 10])
def test_rolling_windows_are_lm_evals(size, limit):
    ids = np.arange(5, 5 + size, dtype=np.uint32)
    theirs = [make_disjoint_window(pair) for pair in get_rolling_token_windows(ids.tolist(), 0, limit, 1)]
    assert [(before.tolist(), scored.tolist()) for before, scored in windows(ids, limit, 0)] == theirs


@pytest.mark.parametrize("size", [2, 9, 11, 35])
def test_without_a_prefix_every_token_but_the_first_is_asked_for_once(size):
    ids = np.arange(5, 5 + size, dtype=np.uint32)
    found = windows(ids, 10, None)
    assert np.concatenate([scored for _, scored in found]).tolist() == ids[1:].tolist()
    assert all(len(before) and len(before) + len(scored) - 1 <= 10 for before, scored in found)


def test_a_document_in_windows_says_which_of_them_has_the_prefix(small_texts):
    found = rolling_requests(["Emma was happy. " * 8], [WHO], small_texts, 16, 0)
    assert [request.prefix for request in found] == [0] + [None] * (len(found) - 1) and len(found) > 2
    assert [request.asked.part for request in found] == list(range(len(found)))
    whole = np.concatenate([request.continuation for request in found])
    assert whole.tolist() == small_texts.tokenizer.encode("Emma was happy. " * 8) and max(whole) < VOCAB
    with pytest.raises(InputError, match="gives no token to score"):
        rolling_requests([""], [WHO], small_texts, 16, 0)


def test_a_tokenizer_that_begins_texts_is_followed_and_one_that_ends_them_is_refused(tokenizer_path, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    for name, template in (("begins", "<|endoftext|> $A"), ("ends", "$A <|endoftext|>")):
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
        tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=[("<|endoftext|>", 0)])
        tokenizer.save(str(tmp_path / f"{name}.json"))
    texts = open_texts(tmp_path / "begins.json")
    assert one(texts, "a", " b").context.tolist()[0] == 0 and one(texts, "<|endoftext|>a", " b").context.tolist().count(0) == 1
    assert one(texts, "a", " b").lost == 0
    with pytest.raises(InputError, match="puts tokens behind each text"):
        open_texts(tmp_path / "ends.json")
