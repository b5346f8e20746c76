"""Windows as ids."""

import hashlib

import numpy as np
import pytest

from tokencodes.data.sampler import PackedSampler, PaperSampler
from tokencodes.data.windows import (
    IGNORE,
    HeldOut,
    chained,
    held_out_windows,
    read_windows,
    window_digests,
)
from tokencodes.errors import InputError


def test_windows_are_the_tokens_that_the_sampler_named(dataset):
    shards = dataset.shards("train")
    sampler = PaperSampler(shards, 16, seed=1, streams=2, windows_per_visit=4)
    indices = np.arange(40)
    places, ids = sampler.draw(indices), read_windows(shards, sampler, indices)
    assert ids.shape == (40, 17)
    for row, shard, document, start in zip(
        ids, places.shard, places.document, places.start, strict=True
    ):
        whole = list(shards[shard].ids())[document]
        assert row.tolist() == whole[start : start + 17].tolist()
        assert 0 not in row[:-1]  # the end of a document can only be the last token


def test_held_out_windows_are_frozen_disjoint_and_from_held_out_documents(dataset):
    windows = held_out_windows(dataset, 16, 10)
    assert windows.ids_NT1.shape == (10, 17)
    assert windows.sha256 == held_out_windows(dataset, 16, 10).sha256
    everything = held_out_windows(dataset, 16, 10**6)
    held = {bytes(row[:16].tobytes()) for row in everything.ids_NT1}
    assert {bytes(row[:16].tobytes()) for row in windows.ids_NT1} <= held
    cuts = sum(
        (int(length) - 1) // 16
        for shard in dataset.shards("validation")
        for length in shard.lengths
    )
    assert everything.tokens == 16 * cuts


def test_bits_a_byte_is_the_code_length_of_the_text_over_its_bytes(dataset):
    held_out = held_out_windows(dataset, 16, 10)
    text = [
        dataset.tokenizer.tokenizer.decode(row[1:].tolist(), skip_special_tokens=True)
        for row in held_out.ids_NT1
    ]
    assert held_out.text_bytes == sum(len(part.encode()) for part in text)
    uniform = np.log(dataset.vocab_size)
    assert held_out.bits_per_byte(uniform) == pytest.approx(
        np.log2(dataset.vocab_size) * 160 / held_out.text_bytes
    )


def test_a_context_that_no_held_out_document_has_is_an_error(dataset):
    with pytest.raises(InputError, match="no held-out document has the 10,001 tokens"):
        held_out_windows(dataset, 10_000, 4)


def test_held_out_windows_are_spread_evenly_over_all_documents(dataset):
    every = held_out_windows(dataset, 16, 10**6).ids_NT1
    chosen = held_out_windows(dataset, 16, 10).ids_NT1
    assert chosen.tolist() == [every[i * len(every) // 10].tolist() for i in range(10)]


def test_held_out_windows_are_every_documents_cuts_that_have_all_their_tokens(dataset):
    """Written anew: a cut at 0, T, 2T, ... counts if T + 1 tokens begin there."""
    cuts = []
    for shard in dataset.shards("validation"):
        for document in shard.ids():
            whole = document.tolist()
            pieces = [whole[start : start + 17] for start in range(0, len(whole), 16)]
            cuts += [piece for piece in pieces if len(piece) == 17]
    assert held_out_windows(dataset, 16, 10**6).ids_NT1.tolist() == cuts
    assert held_out_windows(dataset, 16, len(cuts)).ids_NT1.tolist() == cuts
    assert held_out_windows(dataset, 16, 1).ids_NT1.tolist() == cuts[:1]
    windows = held_out_windows(dataset, 16, 7)
    assert windows.ids_NT1.tolist() == [cuts[number * len(cuts) // 7] for number in range(7)]
    sizes = dataset.tokenizer.bytes_per_token
    assert windows.text_bytes == sum(
        int(sizes[id]) for row in windows.ids_NT1.tolist() for id in row[1:]
    )


def test_what_held_out_windows_tell_of_themselves():
    held_out = HeldOut(np.array([[1, 2, 3], [4, 5, 6]]), text_bytes=8)
    assert held_out.tokens == 4
    assert (
        held_out.sha256
        == hashlib.sha256(b"".join(id.to_bytes(8, "little") for id in range(1, 7))).hexdigest()
    )
    # 2 bits for each of 4 tokens, over 8 bytes
    assert held_out.bits_per_byte(2 * np.log(2.0)) == pytest.approx(1.0)


def test_a_short_window_is_filled_up_behind_its_tokens(dataset):
    shards = dataset.shards("train")
    sampler = PackedSampler(shards, 16, seed=1)
    indices = np.arange(60)
    places, ids = sampler.draw(indices), read_windows(shards, sampler, indices)
    assert IGNORE == -100
    assert 0 < (places.length < 17).sum() < 60
    for row, shard, document, start, length in zip(
        ids.tolist(), places.shard, places.document, places.start, places.length, strict=True
    ):
        tokens = list(shards[shard].ids())[document][start : start + length].tolist()
        assert row == tokens + [-100] * (17 - length)


def test_the_chain_of_windows_is_made_of_each_windows_hash():
    ids_NT1 = np.array([[1, 2], [3, 2**40]])
    digests = [hashlib.sha256(np.array(row, "<i8").tobytes()).digest() for row in ids_NT1]
    assert window_digests(ids_NT1) == digests
    assert window_digests(ids_NT1.astype(np.float64)) == digests
    first = chained("", digests[:1])
    assert first == hashlib.sha256(digests[0]).hexdigest()
    assert chained(first, digests[1:]) == hashlib.sha256(first.encode() + digests[1]).hexdigest()
    assert chained("abc", digests) == hashlib.sha256(b"abc" + digests[0] + digests[1]).hexdigest()
