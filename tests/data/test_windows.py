"""Windows as ids."""

import numpy as np
import pytest

from tokencodes.data.sampler import PaperSampler
from tokencodes.data.windows import held_out_windows, read_windows
from tokencodes.errors import InputError


def test_windows_are_the_tokens_that_the_sampler_named(dataset):
    shards = dataset.shards("train")
    sampler = PaperSampler(shards, 16, seed=1, streams=2, windows_per_visit=4)
    indices = np.arange(40)
    places, ids = sampler.draw(indices), read_windows(shards, sampler, indices)
    assert ids.shape == (40, 17)
    for row, shard, document, start in zip(ids, places.shard, places.document, places.start, strict=True):
        whole = list(shards[shard].ids())[document]
        assert row.tolist() == whole[start : start + 17].tolist()
        assert 0 not in row[:-1]  # the end of a document can only be the last target


def test_held_out_windows_are_frozen_disjoint_and_from_held_out_documents(dataset):
    one = held_out_windows(dataset, 16, 10)
    assert one.ids_NT1.shape == (10, 17)
    assert one.sha256 == held_out_windows(dataset, 16, 10).sha256
    everything = held_out_windows(dataset, 16, 10**6)
    held = {bytes(row[:16].tobytes()) for row in everything.ids_NT1}
    assert {bytes(row[:16].tobytes()) for row in one.ids_NT1} <= held
    cuts = sum((int(length) - 1) // 16 for shard in dataset.shards("validation") for length in shard.lengths)
    assert everything.targets == 16 * cuts


def test_bits_a_byte_is_the_code_length_of_the_text_over_its_bytes(dataset):
    held_out = held_out_windows(dataset, 16, 10)
    text = [dataset.tokenizer.tokenizer.decode(row[1:].tolist(), skip_special_tokens=True) for row in held_out.ids_NT1]
    assert held_out.target_bytes == sum(len(part.encode()) for part in text)
    uniform = np.log(dataset.vocab_size)
    assert held_out.bits_per_byte(uniform) == pytest.approx(np.log2(dataset.vocab_size) * 160 / held_out.target_bytes)


def test_a_context_that_no_held_out_document_has_is_an_error(dataset):
    with pytest.raises(InputError, match="no held-out document has the 10,001 tokens"):
        held_out_windows(dataset, 10_000, 4)


def test_held_out_windows_are_spread_evenly_over_all_documents(dataset):
    every = held_out_windows(dataset, 16, 10**6).ids_NT1
    some = held_out_windows(dataset, 16, 10).ids_NT1
    assert some.tolist() == [every[i * len(every) // 10].tolist() for i in range(10)]
