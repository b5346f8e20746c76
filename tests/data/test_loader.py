"""Global batches do not depend on how they are cut, nor on the thread that reads ahead."""

import threading

import numpy as np
import pytest

from tokencodes.data.loader import Loader, rank_indices
from tokencodes.data.mixture import build_sampler
from tokencodes.data.windows import IGNORE, read_windows
from tokencodes.errors import InputError
from tokencodes.loss import IGNORE as LOSS_IGNORE

GLOBAL = 8


def loader(dataset, sampling: str = "paper", rank: int = 0, ranks: int = 1, **named) -> Loader:
    sampler = build_sampler(dataset, sampling, 16, 1, 2, 4)
    return Loader(dataset.shards("train"), sampler, GLOBAL, lambda ids: ids, rank, ranks, **named)


@pytest.mark.parametrize("sampling", ["paper", "token-uniform", "packed"])
def test_two_ranks_of_four_and_eight_ranks_of_one_see_the_global_batches_of_one_rank(
    dataset, sampling
):
    whole = loader(dataset, sampling)
    for ranks in (2, 8):
        parts = [loader(dataset, sampling, rank, ranks) for rank in range(ranks)]
        for step in (0, 1, 2, 1000):
            assert np.concatenate([part[step] for part in parts]).tolist() == whole[step].tolist()
        for part in parts:
            part.close()
    whole.close()


def test_what_is_read_ahead_is_what_is_read_alone(dataset):
    reading = loader(dataset)
    for step in (0, 1, 2, 7, 8, 3, 4, 10**9):
        indices = np.arange(step * GLOBAL, (step + 1) * GLOBAL)
        alone = read_windows(
            dataset.shards("train"), build_sampler(dataset, "paper", 16, 1, 2, 4), indices
        )
        assert reading[step].tolist() == alone.tolist()
    reading.close()


def test_the_next_steps_are_read_while_one_is_used(dataset):
    read: list[int] = []
    done = threading.Event()

    def note(ids):
        read.append(len(ids))
        if len(read) == 3:
            done.set()
        return ids

    reading = Loader(
        dataset.shards("train"), build_sampler(dataset, "paper", 16, 1, 2, 4), GLOBAL, note, ahead=2
    )
    _ = reading[0]
    assert done.wait(10)
    reading.close()


def test_an_error_of_the_thread_comes_out_at_its_step(dataset):
    def fail(ids):
        raise InputError("damaged")

    reading = Loader(
        dataset.shards("train"), build_sampler(dataset, "paper", 16, 1, 2, 4), GLOBAL, fail
    )
    with pytest.raises(InputError, match="damaged"):
        _ = reading[0]
    reading.close()


def test_windows_must_divide_among_the_ranks():
    with pytest.raises(InputError, match="10 windows a step do not divide among 4 ranks"):
        rank_indices(0, 10, 0, 4)


def test_short_windows_are_filled_with_what_the_loss_ignores(dataset):
    assert IGNORE == LOSS_IGNORE
    sampler = build_sampler(dataset, "packed", 16, 1, 2, 4)
    indices = np.arange(200)
    lengths, ids = (
        sampler.draw(indices).length,
        read_windows(dataset.shards("train"), sampler, indices),
    )
    assert lengths.min() < 17
    assert ((ids != IGNORE).sum(1) == lengths).all()
    assert all((row[length:] == IGNORE).all() for row, length in zip(ids, lengths, strict=True))
