"""The second scorer reads texts by rules of its own, and stops at a score that is wrong."""

import pytest
import torch

from tests.evaluate.conftest import tiny, with_begin
from tokencodes.errors import CheckFailed
from tokencodes.evaluate import second_scorer
from tokencodes.evaluate.requests import CHOICE, RequestSource, pair_requests, rolling_requests
from tokencodes.evaluate.scorer import Scorer
from tokencodes.evaluate.second_scorer import Claim, _ids, check, sample
from tokencodes.evaluate.texts import open_texts

WHO = RequestSource("t", 0, 0)
DOCUMENT = "Emma was happy. " * 6


def claims_of(texts, model, limit, prefix, pairs=(), documents=()):
    """What an evaluation says of pairs and of documents."""
    requests = pair_requests(list(pairs), [WHO] * len(pairs), texts, limit, prefix)
    requests += rolling_requests(list(documents), [WHO] * len(documents), texts, limit, prefix)
    return [
        Claim(
            "t",
            0,
            0,
            *request.texts,
            None if request.source.kind == CHOICE else request.source.part,
            tuple(score.log_probs),
            score.greedy,
        )
        for request, score in zip(requests, Scorer(model, 64).score(requests), strict=True)
    ]


@pytest.mark.parametrize("prefix", [0, 7, None])
@pytest.mark.parametrize("limit", [100, 16, 3])
@pytest.mark.parametrize("template", [None, "<|endoftext|> $A", "<|endoftext|> Z $A"])
def test_both_scorers_read_the_same_tokens(holey_path, tmp_path, template, limit, prefix):
    texts = open_texts(with_begin(holey_path, tmp_path, template) if template else holey_path)
    pairs = [("She was ", "Z"), ("\x04a\n", "b"), ("<|endoftext|>She", " Z")]
    if prefix is not None:
        pairs += [("", "Z"), ("\x04 ", "Z"), ("", "<|endoftext|>Z")]
    model, documents = tiny("llama"), [DOCUMENT, "<|endoftext|>" + DOCUMENT]
    claims = claims_of(texts, model, limit, prefix, pairs, documents)
    opinion = check(model, texts.tokenizer, claims, limit, prefix)
    assert opinion.checked == len(claims) and opinion.largest < 2e-5
    assert opinion.tokens == sum(len(claim.log_probs) for claim in claims)


def test_ids_of_a_claim_by_hand(small_texts):
    tokenizer, plain = small_texts.tokenizer, lambda text: small_texts.plain(text).tolist()

    def ids(context, text, window=None, limit=100, prefix=0):
        return _ids(tokenizer, Claim("t", 0, 0, context, text, window, (), True), limit, prefix)

    assert ids("a \n", "b") == (plain("a \nb"), len(plain("a \nb")) - 1)
    assert ids("abcd", "Z", limit=2) == (plain("abcdZ")[-3:], 1)
    assert ids("", "Z") == ([0, *plain("Z")], 1) == ids("", "<|endoftext|>Z")
    letters = plain("ZQXJKV")
    assert len(letters) == 6
    assert ids("", "ZQXJKV", 0, 2) == ([0, *letters[:2]], 2)
    assert ids("", "ZQXJKV", 1, 2) == (letters[1:4], 2)
    assert ids("", "ZQXJKV", 2, 2) == (letters[3:6], 2)
    assert ids("", "ZQXJKV", 1, 4) == (letters[1:6], 2)
    assert ids("", "ZQXJKV", 0, 4, None) == (letters[:5], 4)
    assert ids("", "ZQXJKV", 1, 4, None) == (letters[1:6], 1)


class Fixed(torch.nn.Module):
    """A model of five tokens whose logits are these after every token."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(logits))
        self.device = torch.device("cpu")

    @property
    def dtype(self):
        return self.logits.dtype

    def forward(self, input_ids):
        class Out:
            logits = self.logits.expand(*input_ids.shape, 5)

        return Out


class Letters:
    """A tokenizer of the letters a to e."""

    def encode(self, text, add_special_tokens=True):
        return [ord(letter) - ord("a") for letter in text]


def judged(claims, logits=(0.0, 1.0, 2.0, 3.0, 4.0), dtype=torch.float32, **changes):
    model = Fixed(logits).to(dtype)
    judged_claims = [
        Claim("t", 4, 1, "a", text, None, tuple(log_probs), greedy)
        for text, log_probs, greedy in claims
    ]
    return check(model, Letters(), judged_claims, 16, None)


OF = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]).log_softmax(-1).tolist()


def test_an_opinion_counts_claims_and_tokens_and_takes_the_largest_and_the_mean():
    opinion = judged([("e", [OF[4]], True), ("cb", [OF[2] + 3e-5, OF[1] - 6e-5], False)])
    assert (opinion.checked, opinion.tokens, opinion.flags, opinion.allowed) == (2, 3, 0, 1e-4)
    assert opinion.largest == pytest.approx(6e-5, abs=2e-6) and opinion.mean == pytest.approx(
        3e-5, abs=2e-6
    )
    nothing = judged([])
    assert (nothing.checked, nothing.tokens, nothing.largest, nothing.mean) == (0, 0, 0.0, 0.0)


@pytest.mark.parametrize("off", [2e-4, -2e-4, float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 1])
def test_a_token_that_is_too_far_off_is_found_wherever_it_stands(place, off):
    log_probs = [OF[2], OF[1]]
    log_probs[place] += off
    with pytest.raises(
        CheckFailed,
        match=r"^t, document 4, part 1: a second, independent scorer differs by (0\.0002|nan|inf)",
    ):
        judged([("cb", log_probs, False)])


@pytest.mark.parametrize(("text", "log_probs"), [("cb", [OF[2]]), ("c", [OF[2], OF[1]]), ("", [])])
def test_another_number_of_tokens_is_found(text, log_probs):
    with pytest.raises(
        CheckFailed,
        match=f"part 1: {len(log_probs)} tokens were scored, a second scorer finds {len(text)}",
    ):
        judged([(text, log_probs, False)])


def test_a_greedy_flag_may_differ_only_where_two_logits_are_near():
    assert judged([("e", [OF[4]], True)]).flags == 0
    with pytest.raises(
        CheckFailed, match="part 1: a second scorer says greedy True, and no two logits are near"
    ):
        judged([("e", [OF[4]], False)])
    with pytest.raises(CheckFailed, match="says greedy False"):
        judged([("d", [OF[3]], True)])
    for gap, near in ((0.5e-4, True), (1.5e-4, False)):
        logits = (0.0, 0.0, 0.0, 4.0 - gap, 4.0)
        log_prob = float(torch.tensor(logits).log_softmax(-1)[3])
        if near:
            assert judged([("d", [log_prob], True), ("d", [log_prob], False)], logits).flags == 1
        else:
            with pytest.raises(CheckFailed, match="says greedy False"):
                judged([("d", [log_prob], True)], logits)


def test_a_reduced_dtype_may_be_a_nat_off_at_a_token_and_a_tenth_in_the_mean():
    reduced = {"dtype": torch.bfloat16}
    claims = [("e", [OF[4] + 0.9], True), *[("e", [OF[4]], True)] * 9]
    opinion = judged(claims, **reduced)
    assert opinion.allowed == 1.0 and opinion.mean == pytest.approx(0.09, abs=0.005)
    with pytest.raises(CheckFailed, match=r"differs by 1\.1 nats at a token"):
        judged([("e", [OF[4] + 1.1], True), *claims[1:]], **reduced)
    with pytest.raises(
        CheckFailed, match=r"differs by 0.18 nats a token in the mean of 5 \(allowed: 0.1\)"
    ):
        judged(claims[:5], **reduced)
    logits = (0.0, 1.0, 2.0, 3.0, 3.5)  # half a logit apart, which a reduced dtype may turn round
    assert (
        judged(
            [("d", [float(torch.tensor(logits).log_softmax(-1)[3])], True)], logits, **reduced
        ).flags
        == 1
    )


def test_a_sample_has_as_many_claims_of_each_task_and_at_least_one():
    claims = [
        Claim(task, number, 0, "", "", None, (), True) for task in "bca" for number in range(5)
    ]

    def counts(size, seed=0):
        drawn = sample(claims, size, seed)
        assert len({(drawn_claim.task, drawn_claim.document) for drawn_claim in drawn}) == len(
            drawn
        )
        assert [drawn_claim.task for drawn_claim in drawn] == sorted(
            drawn_claim.task for drawn_claim in drawn
        )
        return [sum(drawn_claim.task == task for drawn_claim in drawn) for task in "abc"]

    assert (counts(0), counts(1), counts(8), counts(9), counts(100)) == (
        [1] * 3,
        [1] * 3,
        [2] * 3,
        [3] * 3,
        [5] * 3,
    )
    assert sample([], 5, 0) == []
    assert sample(claims, 6, 1) == sample(claims, 6, 1) != sample(claims, 6, 2)


def test_the_bounds_are_those_of_the_documentation():
    assert (second_scorer.A_TOKEN, second_scorer.A_TOKEN_REDUCED) == (1e-4, 1.0)
    assert (second_scorer.MEAN_REDUCED, second_scorer.NEAR) == (0.1, 1e-4)
