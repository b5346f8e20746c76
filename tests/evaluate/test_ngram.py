"""N-gram baselines against counting by hand."""

import math
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest

from tokencodes.data.windows import held_out_windows
from tokencodes.evaluate.ngram import fit_and_score


def test_both_models_are_those_of_the_written_formulas(dataset):
    held_out = held_out_windows(dataset, 16, 12)
    counts, after = Counter(), defaultdict(Counter)
    for shard in dataset.shards("train"):
        for document in shard.ids():
            ids = document.tolist()
            counts.update(ids)
            for first, second in pairwise(ids):
                after[first][second] += 1
    total = sum(counts.values())

    def unigram(token):
        return (counts[token] + 1) / (total + dataset.vocab_size)

    def bigram(first, token):
        seen = after[first]
        if not seen:
            return unigram(token)
        return (seen[token] + len(seen) * unigram(token)) / (seen.total() + len(seen))

    pairs = [pair for row in held_out.ids_NT1.tolist() for pair in pairwise(row)]
    losses = fit_and_score(dataset, held_out.ids_NT1)
    assert losses.unigram == pytest.approx(
        -sum(math.log(unigram(b)) for _, b in pairs) / len(pairs)
    )
    assert losses.bigram == pytest.approx(
        -sum(math.log(bigram(a, b)) for a, b in pairs) / len(pairs)
    )
    assert losses.bigram < losses.unigram < math.log(dataset.vocab_size)
    for first in (5, 0):
        assert sum(bigram(first, token) for token in range(dataset.vocab_size)) == pytest.approx(
            1.0
        )


def test_a_token_that_nothing_followed_falls_back_to_the_unigram(dataset):
    losses = fit_and_score(dataset, np.array([[0, 40]]))  # nothing follows the end of a document
    assert losses.bigram == losses.unigram


class Shard:
    def __init__(self, *documents):
        self._documents = documents

    def ids(self):
        return (np.array(document, dtype=np.uint16) for document in self._documents)


class Corpus:
    """Two shards of three documents over six tokens; 4 and 5 never occur."""

    vocab_size = 6

    def shards(self, split):
        assert split == "train"
        return [Shard([1, 2, 1, 2, 3], [2, 2, 0]), Shard([3, 1, 2, 0])]


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(
        "tokencodes.evaluate.ngram.token_counts", lambda corpus: np.array([2, 3, 5, 2, 0, 0])
    )
    return Corpus()


@pytest.mark.parametrize(
    ("before", "target", "unigram", "bigram"),
    [
        # 1 is followed by 2 three times, and by nothing else
        (1, 2, 6 / 18, (3 + 1 * 6 / 18) / (3 + 1)),
        # 2 is followed by 1, 3, 2 once, by 0 twice: 5 pairs of 4 kinds
        (2, 0, 3 / 18, (2 + 4 * 3 / 18) / (5 + 4)),
        (2, 5, 1 / 18, (0 + 4 * 1 / 18) / (5 + 4)),  # a pair above all that were seen of 2
        (3, 1, 4 / 18, (1 + 1 * 4 / 18) / (1 + 1)),
        (3, 5, 1 / 18, (0 + 1 * 1 / 18) / (1 + 1)),  # a pair above every pair that was seen
        (0, 0, 3 / 18, 3 / 18),  # nothing follows 0; a pair below every pair that was seen
        (5, 5, 1 / 18, 1 / 18),
    ],
)
def test_each_probability_by_hand(counted, before, target, unigram, bigram):
    losses = fit_and_score(counted, np.array([[before, target]]))
    assert losses.unigram == pytest.approx(-math.log(unigram), rel=1e-12)
    assert losses.bigram == pytest.approx(-math.log(bigram), rel=1e-12)


def test_losses_are_means_over_all_tokens_of_all_windows(counted):
    single = [fit_and_score(counted, np.array([pair])) for pair in ([1, 2], [2, 0], [3, 1], [1, 5])]
    losses = fit_and_score(counted, np.array([[1, 2, 0], [3, 1, 5]]))
    assert losses.unigram == pytest.approx(
        sum(window_losses.unigram for window_losses in single) / 4, rel=1e-12
    )
    assert losses.bigram == pytest.approx(
        sum(window_losses.bigram for window_losses in single) / 4, rel=1e-12
    )
