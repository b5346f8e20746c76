"""Requests become tokens by lm-eval's rules, and say what was lost on the way."""

import hashlib

import numpy as np
import pytest
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from tests.conftest import VOCAB
from tests.evaluate.conftest import with_begin
from tokencodes.errors import InputError
from tokencodes.evaluate.requests import (
    CHOICE,
    ROLLING,
    Request,
    RequestSource,
    pair_requests,
    rolling_requests,
    sha256,
    windows,
)
from tokencodes.evaluate.texts import open_texts

WHO = RequestSource("t", 3, 0)


def request_of(texts, context, continuation, limit=100, prefix=0):
    return pair_requests([(context, continuation)], [WHO], texts, limit, prefix)[0]


def test_both_are_encoded_together_and_cut_where_the_context_ends(small_texts):
    request, encode = request_of(small_texts, "She was ", "happy"), small_texts.tokenizer.encode
    assert request.context.tolist() == encode("She was")  # white space at the end moves
    assert (
        request.tokens.tolist() == encode("She was happy")
        and request.dropped == 0
        and request.prefix is None
    )


def test_an_empty_context_is_the_prefix_token_unless_the_text_begins_with_it(small_texts):
    request = request_of(small_texts, "", "happy")
    assert (request.prefix, request.context.tolist()) == (0, [0])
    named = request_of(small_texts, "", "<|endoftext|>happy")
    assert (
        named.prefix is None
        and named.context.tolist() == [0]
        and named.continuation.tolist() == request.continuation.tolist()
    )
    with pytest.raises(
        InputError,
        match="t, document 3: an empty context, and no prefix token; give --prefix-token",
    ):
        request_of(small_texts, "", "happy", prefix=None)


def test_what_is_too_long_loses_tokens_on_the_left_and_they_are_counted(small_texts):
    whole, cut = (
        request_of(small_texts, "a b c d e f g h", " i"),
        request_of(small_texts, "a b c d e f g h", " i", limit=5),
    )
    assert cut.dropped == len(whole.tokens) - 6 > 0
    # five are read, the sixth is only asked for
    assert cut.tokens.tolist() == whole.tokens[-6:].tolist()


def test_nothing_to_score_and_too_much_to_score_are_refused(small_texts):
    with pytest.raises(
        InputError,
        match=r"no token to score, t: 1 \(such as t, document 3, choice 0: ''\); leave out t",
    ):
        request_of(small_texts, "a", "")
    pairs = [("a", " b c d e f"), ("a", " b"), ("a", " b c d e f g h")]
    sources = [RequestSource("t", 3, 0), RequestSource("t", 3, 1), RequestSource("u/x", 5, 0)]
    with pytest.raises(InputError) as error:
        pair_requests(pairs, sources, small_texts, 2, 0)
    # all of them at once
    assert "longer than the 2 tokens that the model reads, t: 1 of up to" in str(error.value)
    assert "(u/x, document 5)" in str(error.value) and str(error.value).endswith("leave out t, u")


def test_bytes_that_no_token_stands_for_are_counted(real_data):
    texts = open_texts(real_data / "tokenizer" / "smollm2.json")
    # U+0413 is D0 93: it has both; U+0404 is D0 84; a private-use character begins with EE; U+F1000
    # needs F3 B1; U+40000 F1.
    lost = request_of(texts, "a", " b\U00040000c")
    assert lost.lost > 0 and request_of(texts, "a", " bc").lost == 0


@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 20, 21, 35])
@pytest.mark.parametrize("limit", [1, 4, 10])
def test_rolling_windows_are_lm_evals(size, limit):
    ids = np.arange(5, 5 + size, dtype=np.uint32)
    expected = [
        make_disjoint_window(pair) for pair in get_rolling_token_windows(ids.tolist(), 0, limit, 1)
    ]
    prefix = np.zeros(1, dtype=np.uint32)
    assert [
        (before.tolist(), scored.tolist()) for before, scored in windows(prefix, ids, limit)
    ] == expected


@pytest.mark.parametrize("size", [2, 9, 11, 35])
def test_without_a_prefix_every_token_but_the_first_is_asked_for_once(size):
    ids = np.arange(5, 5 + size, dtype=np.uint32)
    pairs = windows(ids[:1], ids[1:], 10)
    assert np.concatenate([scored for _, scored in pairs]).tolist() == ids[1:].tolist()
    assert all(len(before) and len(before) + len(scored) - 1 <= 10 for before, scored in pairs)


def test_a_document_in_windows_says_which_of_them_has_the_prefix(small_texts):
    requests = rolling_requests(["Emma was happy. " * 8], [WHO], small_texts, 16, 0)
    assert [request.prefix for request in requests] == [0] + [None] * (len(requests) - 1) and len(
        requests
    ) > 2
    assert [request.source.part for request in requests] == list(range(len(requests)))
    whole = np.concatenate([request.continuation for request in requests])
    assert (
        whole.tolist() == small_texts.tokenizer.encode("Emma was happy. " * 8)
        and max(whole) < VOCAB
    )
    with pytest.raises(InputError, match="gives no token to score"):
        rolling_requests([""], [WHO], small_texts, 16, 0)


def test_a_tokenizer_that_begins_texts_is_followed_and_one_that_ends_them_is_refused(
    tokenizer_path, beginning_path, tmp_path
):
    texts = open_texts(beginning_path)
    assert (
        request_of(texts, "a", " b").context.tolist()[0] == 0
        and request_of(texts, "<|endoftext|>a", " b").context.tolist().count(0) == 1
    )
    assert request_of(texts, "a", " b").lost == 0
    for template in ("$A <|endoftext|>", "<|endoftext|> $A <|endoftext|>"):
        with pytest.raises(
            InputError, match=r"tokenizer\.json: this tokenizer puts tokens behind each text \(\["
        ):
            open_texts(with_begin(tokenizer_path, tmp_path, template))


def test_a_context_that_gives_no_token_is_an_empty_one(holey_path):
    texts = open_texts(holey_path)
    assert texts.plain("\x04").tolist() == []
    empty, vanished = request_of(texts, "", "happy"), request_of(texts, "\x04 ", "happy")
    plain = texts.plain(" happy").tolist()
    assert (vanished.context.tolist(), vanished.continuation.tolist(), vanished.prefix) == (
        [0],
        plain,
        0,
    )
    assert (empty.lost, vanished.lost) == (0, 1)  # the record says that a byte has no token
    assert vanished.context_sha256 == sha256("\x04") != empty.context_sha256 == sha256("")
    with pytest.raises(
        InputError,
        match="t, document 3: an empty context, and no prefix token; give --prefix-token",
    ):
        request_of(texts, "\x04", "happy", prefix=None)


def test_a_context_without_tokens_of_its_own_is_empty_where_the_tokenizer_adds_a_begin_token(
    beginning_path,
):
    texts = open_texts(beginning_path)
    for context in ("", "\x04"):
        request = request_of(texts, context, "happy", prefix=7)
        assert (request.context.tolist(), request.prefix, request.begin) == ([7], 7, 0)
        assert request.continuation.tolist() == texts.plain("happy").tolist()
    assert (request_of(texts, "\x04a", "b").begin, request_of(texts, "\x04a", "b").prefix) == (
        1,
        None,
    )


def test_a_continuation_that_gives_no_token_is_refused_for_all_documents_at_once(holey_path):
    texts = open_texts(holey_path)
    pairs = [("a", "\x04"), ("a", " b"), ("\x04", "\x04"), ("", "\x04"), ("", "<|endoftext|>")]
    sources = [
        RequestSource("t/x", 1, 0),
        RequestSource("t/x", 1, 1),
        RequestSource("t/y", 2, 0),
        RequestSource("u", 3, 1),
        RequestSource("u", 4, 0),
    ]
    with pytest.raises(InputError) as error:
        pair_requests(pairs, sources, texts, 100, 0)
    assert (
        str(error.value)
        == "continuations that give no token to score, t: 2 (such as t/x, document 1, choice 0:"
        " '\\x04'); u: 2 (such as u, document 3, choice 1: '\\x04'); leave out t, u"
    )


def test_a_request_without_a_context_or_without_a_continuation_cannot_exist():
    none, single = np.empty(0, dtype=np.uint32), np.ones(1, dtype=np.uint32)
    for context, continuation, purpose in (
        (none, single, "to read before the scored ones"),
        (single, none, "to score"),
    ):
        with pytest.raises(
            InputError, match=f"^t, document 3, part 0: no token {purpose}; leave it out$"
        ):
            Request(WHO, context, continuation, 0, None, None, "", "", ("", ""))
    request = Request(WHO, single, single, 0, None, None, "", "", ("", ""))
    assert (request.scored, request.begin, request.tokens.tolist(), request.source.kind) == (
        1,
        0,
        [1, 1],
        CHOICE,
    )


def test_the_hash_of_a_request_is_over_how_many_tokens_are_scored_and_all_of_them():
    ids = np.arange(1, 5, dtype=np.uint32)
    request = Request(WHO, ids[:2], ids[2:], 0, None, None, "", "", ("", ""))
    assert request.read_sha256 == hashlib.sha256(b"2:" + ids.astype("<u4").tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("limit", "dropped", "begin"), [(100, 0, 1), (5, 0, 1), (4, 1, 0), (3, 2, 0)]
)
def test_a_begin_token_that_the_limit_cuts_off_is_not_counted(
    beginning_path, limit, dropped, begin
):
    texts = open_texts(beginning_path)
    # six tokens with the begin token; the last one is not read
    request = request_of(texts, "Zq", "XJW", limit=limit)
    assert len(texts.plain("ZqXJW")) == 5
    assert (request.dropped, request.begin, len(request.tokens)) == (dropped, begin, 6 - dropped)


@pytest.mark.parametrize("prefix", [0, None])
def test_a_begin_token_that_the_tokenizer_adds_to_a_rolling_document_is_read_and_not_scored(
    beginning_path, prefix
):
    texts, text = open_texts(beginning_path), "Emma was happy. " * 8
    requests = rolling_requests([text], [WHO], texts, 16, prefix)
    assert requests[0].context.tolist() == [0] and [request.begin for request in requests] == [
        1
    ] + [0] * (len(requests) - 1)
    assert (
        np.concatenate([request.continuation for request in requests]).tolist()
        == texts.plain(text).tolist()
    )
    assert [request.prefix for request in requests] == [prefix] + [None] * (len(requests) - 1)
    assert {request.lost for request in requests} == {0} and len(requests[0].continuation) == 16


def test_a_prefix_token_of_its_own_stands_before_the_added_begin_token_and_neither_is_scored(
    beginning_path,
):
    texts = open_texts(beginning_path)
    (request,) = rolling_requests(["happy"], [WHO], texts, 16, 7)
    assert (request.context.tolist(), request.prefix, request.begin) == ([7, 0], 7, 1)
    assert request.continuation.tolist() == texts.plain("happy").tolist()


def test_of_two_added_tokens_none_is_scored(holey_path, tmp_path):
    texts = open_texts(with_begin(holey_path, tmp_path, "<|endoftext|> Z $A"))
    begin = texts.begin.tolist()
    assert begin[0] == 0 and len(begin) == 2
    for prefix, context in ((0, begin), (None, begin), (7, [7, *begin])):
        (request,) = rolling_requests(["happy"], [WHO], texts, 16, prefix)
        assert (request.context.tolist(), request.begin) == (context, 2)
        assert request.continuation.tolist() == texts.plain("happy").tolist()


def test_a_rolling_document_that_has_the_prefix_token_itself_gets_no_second_one(small_texts):
    (request,) = rolling_requests(["<|endoftext|>happy"], [WHO], small_texts, 16, 0)
    assert (request.context.tolist(), request.prefix, request.begin) == ([0], None, 0)
    assert request.continuation.tolist() == small_texts.plain("happy").tolist()


def test_a_rolling_document_of_nothing_but_a_begin_token_is_refused(beginning_path, small_texts):
    for texts, text, prefix in (
        (open_texts(beginning_path), "", 0),
        (open_texts(beginning_path), "\x04", None),
        (small_texts, "<|endoftext|>", 0),
        (small_texts, "Z", None),
        (small_texts, "", None),
    ):
        with pytest.raises(
            InputError, match=r"^t, document 3: .* gives no token to score; leave it out$"
        ):
            rolling_requests([text], [WHO], texts, 16, prefix)


def test_the_windows_of_a_document_have_hashes_and_the_first_one_has_what_was_lost(holey_path):
    texts, text = open_texts(holey_path), "Emma\x04 was happy. " * 4
    requests = rolling_requests([text], [RequestSource("t", 9, 5)], texts, 16, 0)
    assert len(requests) > 1 and [request.lost for request in requests] == [4] + [0] * (
        len(requests) - 1
    )
    assert [request.source for request in requests] == [
        RequestSource("t", 9, part, ROLLING) for part in range(len(requests))
    ]
    assert {request.context_sha256 for request in requests} == {sha256("")} and {
        request.dropped for request in requests
    } == {0}
    assert {request.texts for request in requests} == {("", text)}
    assert len({request.continuation_sha256 for request in requests}) == len(requests)


def test_two_sides_of_the_limit_of_a_continuation(small_texts):
    size = len(request_of(small_texts, "a", " b c").continuation)
    # the last token is not read
    assert len(request_of(small_texts, "a", " b c", limit=size).continuation) == size
    with pytest.raises(InputError, match=f"longer than the {size - 1} tokens"):
        request_of(small_texts, "a", " b c", limit=size - 1)


def test_the_longest_opening_of_a_window_leaves_room_for_one_scored_token():
    opening, ids = np.arange(3, dtype=np.uint32), np.arange(10, 14, dtype=np.uint32)
    pairs = [(before.tolist(), scored.tolist()) for before, scored in windows(opening, ids, 2)]
    assert pairs == [([1, 2], [10]), ([10], [11, 12]), ([11, 12], [13])]
