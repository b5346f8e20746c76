"""Several datasets as one text to learn from, each with a weight, and the samplers over one or
many.

Of every 1,024 windows in a row, each dataset gives its share (largest remainder), in an order drawn
for that block: window i is place r = i mod 1,024 of block b = i div 1,024, whose order is
permutation(seed, "mixture", 1024, (b, 0, 0)) over the datasets' quotas in a row. So the shares are
exact, and each dataset's own windows are counted without a gap, as if it were alone (with its
number, `part`, in the counters, so that no two datasets draw alike).
"""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokencodes import philox
from tokencodes.data.dataset import Corpus, Dataset
from tokencodes.data.sampler import (
    PackedSampler,
    PaperSampler,
    Sampler,
    TokenUniformSampler,
    Windows,
)
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError

Ints = NDArray[np.int64]
Sampling = Literal["paper", "token-uniform", "packed"]
BLOCK = 1024


class Mixture(Corpus):
    """Several datasets of one tokenizer, each with a weight: its share of the training windows."""

    def __init__(self, datasets: Sequence[Dataset], weights: Sequence[float]) -> None:
        if len(datasets) != len(weights) or not datasets:
            raise InputError(
                f"{len(weights)} weights for {len(datasets)} datasets; give each dataset one"
            )
        self._datasets = list(datasets)
        self._quotas = quotas(weights)
        for dataset, quota in zip(datasets, self._quotas, strict=True):
            dataset.require(datasets[0].vocab_size, datasets[0].tokenizer_sha256)
            if quota == 0:
                raise InputError(
                    f"{dataset.path}: its weight is less than one window in {BLOCK:,}; raise it, or"
                    " leave it out"
                )

    @property
    def path(self) -> Path:
        """The first dataset's."""
        return self._datasets[0].path

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the datasets' fingerprints and quotas."""
        parts = [
            [dataset.fingerprint, quota]
            for dataset, quota in zip(self._datasets, self._quotas, strict=True)
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._datasets[0].vocab_size

    @property
    def tokenizer_sha256(self) -> str:
        """Every dataset's."""
        return self._datasets[0].tokenizer_sha256

    @property
    def tokenizer(self) -> TokenizerFile:
        """Every dataset's."""
        return self._datasets[0].tokenizer

    @property
    def datasets(self) -> list[Dataset]:
        """In the order that was given."""
        return self._datasets

    @property
    def quotas(self) -> list[int]:
        """Windows of each 1,024."""
        return self._quotas


def quotas(weights: Sequence[float]) -> list[int]:
    """The number of windows in 1,024 for each weight, by the method of the largest remainder.

    Of equal remainders the first comes first. Raises InputError if a weight is not positive.
    """
    if any(not np.isfinite(weight) or weight <= 0 for weight in weights):
        raise InputError(f"weights {list(weights)}: each must be a positive number")
    exact = np.array(weights, dtype=np.float64) / sum(weights) * BLOCK
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(-(exact - counts), kind="stable")[: BLOCK - int(counts.sum())]] += 1
    return [int(count) for count in counts]


class MixtureSampler(Sampler):
    """Windows of several samplers in fixed shares; `shard` counts the shards of all in a row."""

    def __init__(
        self, samplers: Sequence[Sampler], shards: Sequence[int], quotas: Sequence[int], seed: int
    ) -> None:
        super().__init__(samplers[0].context)
        self._samplers, self._seed = samplers, seed
        self._first_shard = np.cumsum([0, *shards])
        self._quotas = np.array(quotas, dtype=np.int64)
        self._owner = np.repeat(np.arange(len(quotas)), quotas)
        self._block = lru_cache(maxsize=256)(self._draw_block)

    @property
    def tokens_per_window(self) -> float:
        """By the datasets' shares."""
        each = [sampler.tokens_per_window for sampler in self._samplers]
        return float(np.average(each, weights=self._quotas))

    def _draw_block(self, block: int) -> tuple[Ints, Ints]:
        """The dataset of each place of a block, and how many of its windows the block has before
        that place.
        """
        owner = self._owner[philox.permutation(self._seed, "mixture", BLOCK, (block, 0, 0))]
        before = np.empty(BLOCK, dtype=np.int64)
        for part in range(len(self._quotas)):
            before[owner == part] = np.arange(self._quotas[part])
        return owner, before

    def draw(self, indices: Ints) -> Windows:
        """See `Sampler`."""
        blocks, places = np.divmod(indices, BLOCK)
        owner, own = np.empty_like(indices), np.empty_like(indices)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            owners, before = self._block(block)
            owner[here] = owners[places[here]]
            own[here] = block * self._quotas[owner[here]] + before[places[here]]
        columns = [np.empty_like(indices) for _ in range(4)]
        for part, sampler in enumerate(self._samplers):
            here = owner == part
            windows = sampler.draw(own[here])
            for array, values in zip(
                columns,
                (
                    windows.shard + self._first_shard[part],
                    windows.document,
                    windows.start,
                    windows.length,
                ),
                strict=True,
            ):
                array[here] = values
        return Windows(*columns)


def build_sampler(
    corpus: Corpus,
    sampling: Sampling,
    context: int,
    seed: int,
    streams: int,
    windows_per_visit: int,
) -> Sampler:
    """The sampler of a corpus's training side."""
    samplers: list[Sampler] = []
    for part, dataset in enumerate(corpus.datasets):
        shards = dataset.shards("train")
        if sampling == "packed":
            samplers.append(PackedSampler(shards, context, seed, part))
        else:
            kind = PaperSampler if sampling == "paper" else TokenUniformSampler
            samplers.append(kind(shards, context, seed, streams, windows_per_visit, part))
    if not isinstance(corpus, Mixture):
        return samplers[0]
    counts = [len(dataset.shards("train")) for dataset in corpus.datasets]
    return MixtureSampler(samplers, counts, corpus.quotas, seed)
