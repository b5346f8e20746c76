"""Several datasets in fixed shares."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from tests.data.test_sampler import Lengths, drawn
from tokencodes.data.dataset import Dataset
from tokencodes.data.mixture import BLOCK, Mixture, MixtureSampler, build_sampler, quotas
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import prepare
from tokencodes.data.sampler import PackedSampler, PaperSampler
from tokencodes.data.tokenizer import train_tokenizer
from tokencodes.data.windows import read_windows
from tokencodes.errors import InputError

CONTEXT = 16
LEFT, RIGHT = [Lengths(40, 100), Lengths(60)], [Lengths(30, 80, 20)]


def mixed(weights, seed: int = 1, kind=PackedSampler) -> MixtureSampler:
    samplers = [
        kind(shards, CONTEXT, seed, *rest)
        for shards, rest in zip((LEFT, RIGHT), _rest(kind), strict=True)
    ]
    return MixtureSampler(samplers, [len(LEFT), len(RIGHT)], quotas(weights), seed)


def _rest(kind):
    return ((0,), (1,)) if kind is PackedSampler else ((2, 4, 0), (2, 4, 1))


@pytest.fixture(scope="module")
def halves(texts, tokenizer_path, tmp_path_factory) -> list[Dataset]:
    """Two datasets of one tokenizer."""
    made = []
    for source in sorted(texts.iterdir()):
        out = tmp_path_factory.mktemp("half") / "data"
        made.append(
            prepare([str(source)], tokenizer_path, out, PrepareOptions(validation_fraction=0.2))
        )
    return made


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((1,), [1024]),
        ((1, 1), [512, 512]),
        ((0.7, 0.3), [717, 307]),
        ((1, 1, 1), [342, 341, 341]),
        ((1000, 1), [1023, 1]),
    ],
)
def test_weights_become_windows_of_each_1024(weights, expected):
    assert quotas(weights) == expected
    assert sum(expected) == BLOCK


@pytest.mark.parametrize("weights", [(1, 0), (-1, 2), (float("nan"), 1), (float("inf"), 1)])
def test_weights_that_are_no_share_are_refused(weights):
    with pytest.raises(InputError, match="each must be a positive number"):
        quotas(weights)


def test_every_block_has_exactly_the_quotas_in_an_order_of_its_own():
    sampler = mixed((0.7, 0.3))
    orders = []
    for block in (0, 1, 10**9):
        shard = sampler.draw(np.arange(block * BLOCK, (block + 1) * BLOCK)).shard
        assert Counter((shard >= len(LEFT)).tolist()) == {False: 717, True: 307}
        orders.append((shard >= len(LEFT)).tolist())
    assert all(a != b for a, b in pairwise(orders))


@pytest.mark.parametrize("kind", [PackedSampler, PaperSampler])
def test_each_dataset_sees_the_windows_it_would_see_alone_without_a_gap(kind):
    windows = mixed((0.7, 0.3), kind=kind).draw(np.arange(3 * BLOCK))
    for part, shards in enumerate((LEFT, RIGHT)):
        here = (windows.shard >= len(LEFT)) == (part == 1)
        alone = kind(shards, CONTEXT, 1, *_rest(kind)[part]).draw(np.arange(int(here.sum())))
        columns = [
            array[here].tolist()
            for array in (
                windows.shard - part * len(LEFT),
                windows.document,
                windows.start,
                windows.length,
            )
        ]
        assert columns == [list(column) for column in zip(*drawn(alone), strict=True)]


def test_any_order_and_any_part_of_the_indices_gives_the_same_windows():
    indices = np.random.default_rng(0).integers(0, 10**12, 300)
    whole = drawn(mixed((2, 1)).draw(indices))
    assert whole == [drawn(mixed((2, 1)).draw(indices[i : i + 1]))[0] for i in range(len(indices))]


def test_a_mixture_reads_the_ids_of_both_datasets(halves):
    mixture = Mixture(halves, (3, 1))
    sampler = build_sampler(mixture, "paper", CONTEXT, 1, 2, 4)
    shards = mixture.shards("train")
    indices = np.arange(512)
    windows, ids = sampler.draw(indices), read_windows(shards, sampler, indices)
    for row, (shard, document, start, length) in zip(ids, drawn(windows), strict=True):
        assert row.tolist() == shards[shard].span(document, start, length).tolist()
    owners = {shard.path.parent.name for shard in shards}
    assert owners == {"austen", "sotu"}


def test_weights_are_part_of_what_a_mixture_is(halves):
    assert Mixture(halves, (1, 1)).fingerprint == Mixture(halves, (2, 2)).fingerprint
    assert Mixture(halves, (1, 1)).fingerprint != Mixture(halves, (2, 1)).fingerprint


def test_a_mixture_of_two_tokenizers_or_with_a_vanishing_weight_is_refused(halves, texts, tmp_path):
    with pytest.raises(InputError, match="less than one window in 1,024"):
        Mixture(halves, (10_000, 1))
    train_tokenizer(["some other words " * 400], 262, tmp_path / "t.json")
    other = prepare(
        [str(texts)],
        tmp_path / "t.json",
        tmp_path / "other",
        PrepareOptions(validation_fraction=0.2),
    )
    with pytest.raises(InputError, match="made with a vocabulary of 262"):
        Mixture([halves[0], other], (1, 1))
