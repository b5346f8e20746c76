"""Yardsticks against counting by hand."""

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
    assert losses.unigram == pytest.approx(-sum(math.log(unigram(b)) for _, b in pairs) / len(pairs))
    assert losses.bigram == pytest.approx(-sum(math.log(bigram(a, b)) for a, b in pairs) / len(pairs))
    assert losses.bigram < losses.unigram < math.log(dataset.vocab_size)
    for first in (5, 0):
        assert sum(bigram(first, token) for token in range(dataset.vocab_size)) == pytest.approx(1.0)


def test_a_token_that_nothing_followed_falls_back_to_the_unigram(dataset):
    losses = fit_and_score(dataset, np.array([[0, 40]]))  # nothing follows the end of a document
    assert losses.bigram == losses.unigram
