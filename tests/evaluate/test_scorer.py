"""Scores are those of the model's own forward, one sequence at a time; order and interruption
change no bit of them.
"""

import json
import random

import numpy as np
import pytest
import torch

from tests.conftest import VOCAB
from tests.evaluate.conftest import tiny
from tokencodes.errors import CheckFailed
from tokencodes.evaluate import packed
from tokencodes.evaluate import plan as plan_module
from tokencodes.evaluate import scorer as scorer_module
from tokencodes.evaluate.plan import make_plan
from tokencodes.evaluate.requests import Request, RequestSource
from tokencodes.evaluate.scorer import Score, Scorer, _finished, _judge, _needed


def request_of(ids, scored, number=0):
    ids = np.array(ids, dtype=np.uint32)
    return Request(
        RequestSource("t", number, 0), ids[:-scored], ids[-scored:], 0, None, None, "", "", ("", "")
    )


def make_requests(seed=0, count=40):
    """Few-shot trunks, questions with several answers, single sequences, one asked twice."""
    draw = random.Random(seed)
    word = lambda size: [draw.randrange(1, VOCAB) for _ in range(size)]  # noqa: E731
    requests = []
    for _ in range(3):
        trunk = word(40)
        for _ in range(count // 8):
            question = trunk + word(draw.randrange(3, 12))
            requests += [
                request_of(question + answer, len(answer))
                for answer in (word(1), word(1), word(3), word(5))
            ]
    requests += [request_of(word(30), 29), request_of(word(2), 1), requests[0]]
    return requests


def plainly(model, request):
    """(log-probabilities, greedy) by one whole forward."""
    ids = torch.from_numpy(request.tokens.astype("int64"))
    with torch.no_grad():
        logits = model(ids[None, :-1]).logits[0, -request.scored :].double()
    log_probs = logits.log_softmax(-1)[torch.arange(request.scored), ids[-request.scored :]]
    return log_probs.numpy(), bool((logits.argmax(-1) == ids[-request.scored :]).all())


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
@pytest.mark.parametrize("batch", [32, 96, 2048])
def test_scores_are_those_of_the_models_own_forward(kind, batch):
    model, requests = tiny(kind), make_requests()
    scorer = Scorer(model, batch)
    for request, score in zip(requests, scorer.score(requests), strict=True):
        log_probs, greedy = plainly(model, request)
        assert np.abs(score.log_probs - log_probs).max() < 2e-5 and score.greedy == greedy


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("batch", [64, 2048])
def test_pieces_whose_attention_is_cut_at_every_branch_give_the_same(kind, batch, monkeypatch):
    model, requests = tiny(kind), make_requests(3)
    whole = Scorer(model, batch).score(requests)
    monkeypatch.setattr(packed, "CALL", -1)
    monkeypatch.setattr(packed, "COPY", 0)
    for first, second, request in zip(
        whole, Scorer(model, batch).score(requests), requests, strict=True
    ):
        assert np.abs(first.log_probs - second.log_probs).max() < 2e-5
        assert np.abs(second.log_probs - plainly(model, request)[0]).max() < 2e-5


def test_what_can_be_packed_is_and_a_window_is_not():
    assert Scorer(tiny("llama"), 64).shared and Scorer(tiny("gpt2"), 64).shared
    other = Scorer(tiny("mistral"), 64)
    assert not other.shared and "sliding_window" in other.how


def test_the_model_attends_as_before_afterwards():
    model = tiny("llama")
    before = model.config._attn_implementation
    Scorer(model, 64).score(make_requests())
    assert model.config._attn_implementation == before == "sdpa"


def test_common_beginnings_are_computed_once():
    requests, scorer = make_requests(), Scorer(tiny("llama"), 128)
    scorer.score(requests)
    assert scorer.computed < 0.35 * sum(len(request.tokens) - 1 for request in requests)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_order_changes_no_bit(kind):
    requests, model = make_requests(), tiny(kind)
    scores = Scorer(model, 64).score(requests)
    order = random.Random(1).sample(range(len(requests)), len(requests))
    again = Scorer(model, 64).score([requests[number] for number in order])
    for number, score in zip(order, again, strict=True):
        assert np.array_equal(scores[number].log_probs, score.log_probs)


def test_a_killed_evaluation_goes_on_and_no_bit_changes(tmp_path):
    requests, model = make_requests(), tiny("llama")
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
    scorer = Scorer(model, 64, tmp_path, progress=lambda *values: done.append(values))
    again = scorer.score(requests)
    fresh = Scorer(model, 64)
    fresh.score(requests)
    assert 0 < scorer.computed < fresh.computed
    assert all(
        np.array_equal(a.log_probs, b.log_probs) and a.greedy == b.greedy
        for a, b in zip(whole, again, strict=True)
    )
    assert done[-1][0] == done[-1][1] == len(requests) and all(
        json.loads(line) for line in file.read_text().splitlines()
    )


def test_a_killed_evaluation_goes_on_with_the_batch_it_was_begun_with(tmp_path):
    Scorer(tiny("llama"), 96, tmp_path).score(make_requests())
    assert (
        Scorer(tiny("llama"), None, tmp_path).batch_tokens == 96
        and Scorer(tiny("llama")).batch_tokens == 1024
    )


def test_another_models_journal_is_not_believed(tmp_path):
    requests = make_requests()
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

    def logits(self, plan_pass, rows):
        yield torch.zeros(max(0, len(rows) - 1), VOCAB)


def test_no_score_is_left_as_the_memory_was(monkeypatch):
    scorer, request = Scorer(tiny("llama"), 64), request_of([1, 2, 3, 4], 2)
    with monkeypatch.context() as patch:
        patch.setattr(scorer_module, "Packed", lambda model: Silent())
        with pytest.raises(
            CheckFailed,
            match="the model gave logits after 1 tokens of a pass, and 2 were asked for",
        ):
            scorer.score([request])
    whole = scorer._passes

    def without_the_last(plan, journal, askers):
        for plan_pass in plan.passes:
            plan_pass.items, plan_pass.places = plan_pass.items[:-1], plan_pass.places[:-1]
        return ((log_probs[:-1], best[:-1]) for log_probs, best in whole(plan, journal, askers))

    monkeypatch.setattr(scorer, "_passes", without_the_last)
    with pytest.raises(
        CheckFailed, match="t, document 5, part 0: a token has no log-probability after all passes"
    ):
        scorer.score([request_of([1, 2, 3, 4], 2, 5)])


def test_keys_that_nobody_wrote_are_nan(monkeypatch):
    seen = []
    attend = packed._attention_of
    monkeypatch.setattr(
        packed,
        "_attention_of",
        lambda query, keys, *rest: (seen.append(keys), attend(query, keys, *rest))[1],
    )
    model = tiny("llama")
    plan, _ = make_plan([(request.tokens, request.scored) for request in make_requests()], 32)
    forward = packed.Packed(model)
    room = 0
    with torch.no_grad():
        for plan_pass in plan.passes:
            for _ in forward.logits(plan_pass, torch.from_numpy(plan_pass.rows)):
                pass
            for piece in plan_pass.pieces:
                if piece.kept:
                    room += piece.room
                    keys, values = forward.kept[id(piece)][0]
                    end = piece.start + len(piece.tokens)
                    assert keys.shape[1] == values.shape[1] == end + piece.room
                    assert torch.isnan(keys[:, end:]).all() and torch.isnan(values[:, end:]).all()
                    assert (
                        torch.isfinite(keys[:, :end]).all()
                        and torch.isfinite(values[:, :end]).all()
                    )
    assert room and all(torch.isfinite(keys).all() for keys in seen)


def test_of_equally_likely_tokens_the_first_is_the_greedy_one():
    logits = torch.zeros(2, 5)
    logits[1, 3] = 1.0
    log_probs, best = _judge(logits.clone(), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 4, 3, 0]))
    assert best.tolist() == [True, False, True, False] and log_probs[:2].tolist() == pytest.approx(
        [-np.log(5)] * 2
    )


def test_a_reduced_dtype_is_scored_in_float32_softmax():
    requests, model = make_requests(), tiny("llama")
    exact, reduced = (
        Scorer(model, 64).score(requests),
        Scorer(tiny("llama").to(torch.bfloat16), 64).score(requests),
    )
    worst = max(
        float(np.abs(a.log_probs - b.log_probs).max()) for a, b in zip(exact, reduced, strict=True)
    )
    assert 1e-4 < worst < 0.5 and reduced[0].log_probs.dtype == np.float32


def test_a_score_is_the_sum_of_its_tokens_in_float64():
    values = np.array([-1e8, -1.0, -1.0], np.float32)
    assert Score(values, False).total == -100000002.0


def test_progress_counts_requests_and_tells_the_rate_and_the_time_left(monkeypatch):
    clock = iter(range(0, 1000, 2))  # two seconds a look
    monkeypatch.setattr(scorer_module.time, "monotonic", lambda: float(next(clock)))
    reports = []
    scorer = Scorer(tiny("llama"), 4, progress=lambda *values: reports.append(values))
    requests = [
        request_of([1, 2, 3, 9], 1),
        request_of([4, 5, 6, 7, 9], 1),
        request_of([1, 2, 3, 9], 1),
    ]
    scorer.score(requests)
    # Two passes, of three and of four tokens; the first answers two requests.
    assert reports == [(2, 3, 2 / 2, 2 / 3 * 4), (3, 3, 3 / 4, 0.0)] and scorer.computed == 7


def plan_of_a_kept_beginning(monkeypatch):
    """Passes 0 (kept), 1, 2 and 3, of which 1 and 2 continue 0."""
    monkeypatch.setattr(plan_module, "SAVED", 3)
    monkeypatch.setattr(plan_module, "KEYS_A_TOKEN", 2)
    sequences = [[1, 2, 3, 4, 5, 6, 0], [1, 2, 3, 7, 8, 9, 0], [50, 51, 52, 0]]
    plan, item_of = make_plan([(np.array(ids, np.uint32), 1) for ids in sequences], 3)
    assert [len(plan_pass.pieces) for plan_pass in plan.passes] == [1, 1, 1, 1]
    return plan, item_of


def test_a_pass_is_needed_if_it_is_not_done_or_if_one_that_continues_it_is_not(monkeypatch):
    plan, _ = plan_of_a_kept_beginning(monkeypatch)
    for done, needed in (
        ((), {0, 1, 2, 3}),
        ((0, 1, 2), {3}),
        ((0, 1, 3), {0, 2}),
        ((0, 1, 2, 3), set()),
        ((1, 2), {0, 3}),
    ):
        assert _needed(plan, dict.fromkeys(done)) == needed


def test_a_request_is_finished_in_the_last_pass_that_answers_it(monkeypatch):
    plan, item_of = plan_of_a_kept_beginning(monkeypatch)
    assert _finished(plan, np.bincount(item_of)).tolist() == [0, 1, 1, 1]
    sequences = [
        (np.array([1, 2, 3, 4, 5, 6, 0], np.uint32), 6),
        (np.array([1, 2, 3, 7, 8, 9, 0], np.uint32), 1),
    ]
    plan, item_of = make_plan([*sequences, sequences[0]], 3)
    assert _finished(plan, np.bincount(item_of)).tolist() == [0, 2, 1]


class OnAGpu:
    """As much of a model on a GPU as the choice of a batch looks at."""

    device = type("Device", (), {"type": "cuda"})


@pytest.mark.parametrize(
    ("fits", "batch"),
    [(99999, 32768), (32768, 32768), (30000, 16384), (4096, 4096), (2048, 2048), (5, 1024)],
)
def test_on_a_gpu_the_largest_batch_that_fits_is_taken(monkeypatch, fits, batch):
    scorer, tried = Scorer(tiny("llama"), 64), []
    scorer.model, scorer.shared = OnAGpu(), False

    def answers(forward, plan_pass):
        tried.append(plan_pass.size)
        if plan_pass.size > fits:
            raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(scorer, "_answers", answers)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert scorer._fitting() == batch
    assert tried[0] > 32000 and (scorer_module.CPU_BATCH, scorer_module.CUDA_BATCH) == (1024, 32768)


class Off(packed.Packed):
    """Packed logits that are off by a number, or NaN."""

    by = 0.0

    def logits(self, plan_pass, rows):
        for part in super().logits(plan_pass, rows):
            part[-1:, 0] += self.by
            yield part


@pytest.mark.parametrize(
    ("by", "dtype", "shared"),
    [
        (0.0, torch.float32, True),
        (9e-4, torch.float32, True),
        (1.1e-3, torch.float32, False),
        (-1.1e-3, torch.float32, False),
        (float("nan"), torch.float32, False),
        (0.1, torch.bfloat16, True),
        (0.5, torch.bfloat16, False),
    ],
)
def test_a_model_is_packed_only_if_its_own_forward_gives_the_same(monkeypatch, by, dtype, shared):
    monkeypatch.setattr(scorer_module, "Packed", type("Wrong", (Off,), {"by": by}))
    scorer = Scorer(tiny("llama").to(dtype), 64)
    assert scorer.shared is shared
    assert ("packed, common beginnings" in scorer.how) is shared and (
        "packed logits would differ by" in scorer.how
    ) is not shared


def test_the_culprit_is_the_document_whose_own_logits_are_not_finite():
    model = tiny("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = float("inf")
    scorer = Scorer(tiny("llama"), 64)
    scorer.model = model
    with pytest.raises(
        CheckFailed, match=r"^t, document 7, part 0: a log-probability is not finite"
    ):
        scorer.score(
            [request_of([1, 2, 3], 1, 6), request_of([1, 5, 6], 1, 7), request_of([9, 8, 7], 1, 8)]
        )


def test_another_thread_count_dtype_or_fingerprint_is_another_journal(monkeypatch):
    kinds = {Scorer(tiny("llama"), 64)._kind, Scorer(tiny("llama"), 64, fingerprint="x")._kind}
    kinds.add(Scorer(tiny("llama").to(torch.bfloat16), 64)._kind)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    kinds.add(Scorer(tiny("llama"), 64)._kind)
    assert len(kinds) == 4 and Scorer(tiny("llama"), 64).vocab_size == VOCAB


def test_a_scored_model_does_no_dropout():
    model = tiny("gpt2").train()
    Scorer(model, 64)
    assert not model.training


@pytest.mark.parametrize("place", [0, 3, 4])
def test_the_greedy_token_is_the_first_of_the_largest_logits(place):
    logits = torch.tensor([[0.0, 0.0, 0.0, 2.0, 2.0]])
    if place == 0:
        logits = torch.tensor([[2.0, 0.0, 0.0, 2.0, 2.0]])
    log_probs, best = _judge(logits.clone(), torch.tensor([0]), torch.tensor([place]))
    assert best.tolist() == [place in (0, 3)]
    assert float(log_probs[0]) == pytest.approx(float(logits.log_softmax(-1)[0, place]), abs=1e-6)


def test_where_no_document_is_to_blame_alone_the_first_one_is_named(monkeypatch):
    scorer = Scorer(tiny("llama"), 64)
    answers = scorer._answers

    def spoilt(forward, plan_pass):
        log_probs, best = answers(forward, plan_pass)
        return np.full_like(log_probs, np.nan), best

    monkeypatch.setattr(scorer, "_answers", spoilt)
    with pytest.raises(
        CheckFailed, match=r"^t, document 9, part 0: a log-probability is not finite"
    ):
        scorer.score([request_of([4, 5, 6], 1, 8), request_of([1, 2, 3], 1, 9)])
