"""Scores are those of the model's own forward, one sequence at a time; order and interruption change no bit of them."""

import json
import random

import numpy as np
import pytest
import torch

from tests.conftest import VOCAB
from tests.evaluate.conftest import tiny
from tokencodes.errors import CheckFailed
from tokencodes.evaluate import packed
from tokencodes.evaluate import scorer as scorer_module
from tokencodes.evaluate.plan import make_plan
from tokencodes.evaluate.requests import Asked, Request
from tokencodes.evaluate.scorer import Scorer, _judge


def request_of(ids, scored, number=0):
    ids = np.array(ids, dtype=np.uint32)
    return Request(Asked("t", number, 0), ids[:-scored], ids[-scored:], 0, None, None, "", "", ("", ""))


def some_requests(seed=0, count=40):
    """Few-shot trunks, questions with several answers, single sequences, one asked twice."""
    draw = random.Random(seed)
    word = lambda size: [draw.randrange(1, VOCAB) for _ in range(size)]  # noqa: E731
    found = []
    for _ in range(3):
        trunk = word(40)
        for _ in range(count // 8):
            question = trunk + word(draw.randrange(3, 12))
            found += [request_of(question + answer, len(answer)) for answer in (word(1), word(1), word(3), word(5))]
    found += [request_of(word(30), 29), request_of(word(2), 1), found[0]]
    return found


def plainly(model, request):
    """(log-probabilities, greedy) by one whole forward."""
    ids = torch.from_numpy(request.tokens.astype("int64"))
    with torch.no_grad():
        logits = model(ids[None, :-1]).logits[0, -request.scored :].double()
    found = logits.log_softmax(-1)[torch.arange(request.scored), ids[-request.scored :]]
    return found.numpy(), bool((logits.argmax(-1) == ids[-request.scored :]).all())


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
@pytest.mark.parametrize("batch", [32, 96, 2048])
def test_scores_are_those_of_the_models_own_forward(kind, batch):
    model, requests = tiny(kind), some_requests()
    scorer = Scorer(model, batch)
    for request, score in zip(requests, scorer.score(requests), strict=True):
        log_probs, greedy = plainly(model, request)
        assert np.abs(score.log_probs - log_probs).max() < 2e-5 and score.greedy == greedy


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("batch", [64, 2048])
def test_pieces_whose_attention_is_cut_at_every_branch_give_the_same(kind, batch, monkeypatch):
    model, requests = tiny(kind), some_requests(3)
    whole = Scorer(model, batch).score(requests)
    monkeypatch.setattr(packed, "CALL", -1)
    monkeypatch.setattr(packed, "COPY", 0)
    for one, other, request in zip(whole, Scorer(model, batch).score(requests), requests, strict=True):
        assert np.abs(one.log_probs - other.log_probs).max() < 2e-5
        assert np.abs(other.log_probs - plainly(model, request)[0]).max() < 2e-5


def test_what_can_be_packed_is_and_a_window_is_not(caplog):
    assert Scorer(tiny("llama"), 64).shared and Scorer(tiny("gpt2"), 64).shared
    other = Scorer(tiny("mistral"), 64)
    assert not other.shared and "sliding_window" in other.how


def test_the_model_attends_as_before_afterwards():
    model = tiny("llama")
    before = model.config._attn_implementation
    Scorer(model, 64).score(some_requests())
    assert model.config._attn_implementation == before == "sdpa"


def test_common_beginnings_are_computed_once():
    requests, scorer = some_requests(), Scorer(tiny("llama"), 128)
    scorer.score(requests)
    assert scorer.computed < 0.35 * sum(len(one.tokens) - 1 for one in requests)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_order_changes_no_bit(kind):
    requests, model = some_requests(), tiny(kind)
    scores = Scorer(model, 64).score(requests)
    order = random.Random(1).sample(range(len(requests)), len(requests))
    again = Scorer(model, 64).score([requests[number] for number in order])
    for number, score in zip(order, again, strict=True):
        assert np.array_equal(scores[number].log_probs, score.log_probs)


def test_a_killed_evaluation_goes_on_and_no_bit_changes(tmp_path):
    requests, model = some_requests(), tiny("llama")
    whole = Scorer(model, 64).score(requests)

    class Killed(BaseException):
        pass

    def kill(done, of, rate, left):
        if done > of / 2:
            raise Killed

    with pytest.raises(Killed):
        Scorer(model, 64, tmp_path, progress=kill).score(requests)
    (file,) = tmp_path.glob("passes-*")
    with file.open("a") as cut:
        cut.write('{"pass": 7, "log_pr')  # a line that was not finished
    done = []
    scorer = Scorer(model, 64, tmp_path, progress=lambda *told: done.append(told))
    again = scorer.score(requests)
    fresh = Scorer(model, 64)
    fresh.score(requests)
    assert 0 < scorer.computed < fresh.computed
    assert all(np.array_equal(a.log_probs, b.log_probs) and a.greedy == b.greedy for a, b in zip(whole, again, strict=True))
    assert done[-1][0] == done[-1][1] == len(requests) and all(json.loads(line) for line in file.read_text().splitlines())


def test_a_killed_evaluation_goes_on_with_the_batch_it_was_begun_with(tmp_path):
    Scorer(tiny("llama"), 96, tmp_path).score(some_requests())
    assert Scorer(tiny("llama"), None, tmp_path).batch == 96 and Scorer(tiny("llama")).batch == 1024


def test_another_models_journal_is_not_believed(tmp_path):
    requests = some_requests()
    Scorer(tiny("llama"), 64, tmp_path, "one").score(requests)
    other = Scorer(tiny("llama"), 64, tmp_path, "other")
    other.score(requests)
    assert other.computed and len(list(tmp_path.glob("passes-*"))) == 2


def test_a_nan_stops_and_names_the_document(tmp_path):
    model = tiny("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = float("nan")
    scorer = Scorer(tiny("llama"), 64, tmp_path)
    scorer.model = model
    with pytest.raises(CheckFailed, match="t, document 3, part 0: a log-probability is not finite"):
        scorer.score([request_of([1, 2, 3], 1, 2), request_of([4, 5, 6], 1, 3)])


class Silent:
    """A model that gives logits after some of the tokens that are asked for, not after all."""

    def logits(self, one, rows):
        yield torch.zeros(max(0, len(rows) - 1), VOCAB)


def test_no_score_is_left_as_the_memory_was(monkeypatch):
    scorer, request = Scorer(tiny("llama"), 64), request_of([1, 2, 3, 4], 2)
    with monkeypatch.context() as patch:
        patch.setattr(scorer_module, "Packed", lambda model: Silent())
        with pytest.raises(CheckFailed, match="the model gave logits after 1 tokens of a pass, and 2 were asked for"):
            scorer.score([request])
    whole = scorer._passes

    def without_the_last(plan, journal, askers):
        for one in plan.passes:
            one.items, one.places = one.items[:-1], one.places[:-1]
        return ((log_probs[:-1], best[:-1]) for log_probs, best in whole(plan, journal, askers))

    monkeypatch.setattr(scorer, "_passes", without_the_last)
    with pytest.raises(CheckFailed, match="t, document 5, part 0: a token has no log-probability after all passes"):
        scorer.score([request_of([1, 2, 3, 4], 2, 5)])


def test_keys_that_nobody_wrote_are_nan(monkeypatch):
    seen = []
    attend = packed._attention_of
    monkeypatch.setattr(packed, "_attention_of", lambda query, keys, *rest: (seen.append(keys), attend(query, keys, *rest))[1])
    model = tiny("llama")
    plan, _ = make_plan([(one.tokens, one.scored) for one in some_requests()], 32)
    forward = packed.Packed(model)
    room = 0
    with torch.no_grad():
        for one in plan.passes:
            for _ in forward.logits(one, torch.from_numpy(one.rows)):
                pass
            for piece in one.pieces:
                if piece.kept:
                    room += piece.room
                    keys, values = forward.kept[id(piece)][0]
                    end = piece.start + len(piece.tokens)
                    assert keys.shape[1] == values.shape[1] == end + piece.room
                    assert torch.isnan(keys[:, end:]).all() and torch.isnan(values[:, end:]).all()
                    assert torch.isfinite(keys[:, :end]).all() and torch.isfinite(values[:, :end]).all()
    assert room and all(torch.isfinite(keys).all() for keys in seen)


def test_of_equally_likely_tokens_the_first_is_the_greedy_one():
    logits = torch.zeros(2, 5)
    logits[1, 3] = 1.0
    found, best = _judge(logits.clone(), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 4, 3, 0]))
    assert best.tolist() == [True, False, True, False] and found[:2].tolist() == pytest.approx([-np.log(5)] * 2)


def test_a_reduced_dtype_is_scored_in_float32_softmax():
    requests, model = some_requests(), tiny("llama")
    exact, reduced = Scorer(model, 64).score(requests), Scorer(tiny("llama").to(torch.bfloat16), 64).score(requests)
    worst = max(float(np.abs(a.log_probs - b.log_probs).max()) for a, b in zip(exact, reduced, strict=True))
    assert 1e-4 < worst < 0.5 and reduced[0].log_probs.dtype == np.float32
