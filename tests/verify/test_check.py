"""What a line of a certificate says, which ids are drawn, and where a tensor is not finite."""

import numpy as np
import pytest
import torch

from tests.test_model import model_of
from tokencodes.verify import check as checks
from tokencodes.verify.check import MEASURED, PROVEN, Check, drawn_ids, ids_drawn, row_not_finite


def test_a_check_holds_or_fails_and_keeps_its_words():
    assert checks.check("L1", "a", PROVEN, True, "why") == Check(
        "L1", "a", "holds", "proven for all inputs", "why"
    )
    assert checks.check("L2", "b", MEASURED, False, "why") == Check(
        "L2", "b", "fails", "measured on these inputs", "why"
    )
    assert checks.not_applicable("L3", "c", "why") == Check(
        "L3", "c", "not applicable", "not applicable", "why"
    )
    assert checks.not_shown("L4", "d", "why") == Check("L4", "d", "not shown", "not shown", "why")


def test_roundoff_is_half_the_spacing_of_float32_at_one():
    assert np.finfo(np.float32).eps / 2 == checks.ROUNDOFF


@pytest.mark.parametrize(
    ("context", "length"), [(1, 1), (2, 2), (16, 16), (64, 64), (65, 64), (2048, 64)]
)
def test_six_sequences_are_drawn_no_longer_than_the_context_and_than_64(context, length):
    ids = ids_drawn(320, context)
    assert ids.shape == (6, length) and ids.dtype == torch.int64
    assert ids[0, :2].tolist() == [0, 319][:length]
    assert int(ids.min()) >= 0 and int(ids.max()) <= 319


def test_the_same_ids_are_drawn_everywhere():
    # Certificates of different machines and versions can be compared, because these never change.
    ids = ids_drawn(49152, 2048)
    assert ids[0, :6].tolist() == [0, 49151, 12092, 10074, 17329, 13416] and ids[
        5, -3:
    ].tolist() == [48382, 108, 49007]
    assert ids[0, 2:5].tolist() != ids[1, 2:5].tolist()
    assert len(set(ids.flatten().tolist())) > 370
    assert torch.equal(drawn_ids(model_of("gf2")), ids_drawn(320, 16))


@pytest.mark.parametrize("size", [1, 2])
def test_a_vocabulary_of_one_or_two_tokens_has_ids_too(size):
    assert (
        ids_drawn(size, 4)[0, :2].tolist() == [0, size - 1]
        and int(ids_drawn(size, 4).max()) == size - 1
    )


@pytest.mark.parametrize("entries", [1, 3, 7, 12, 100])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_found_in_every_row_and_column(entries, value, monkeypatch):
    monkeypatch.setattr(checks, "BLOCK_ENTRIES", entries)
    for shape in ((5, 3), (5, 1), (5,), (4, 3, 2)):
        assert row_not_finite(torch.zeros(shape)) is None
        for place in range(torch.zeros(shape).numel()):
            tensor = torch.zeros(shape)
            tensor.view(-1)[place] = value
            row = place // (tensor.numel() // len(tensor))
            assert row_not_finite(tensor) == row
            tensor.view(-1)[-1] = value
            assert row_not_finite(tensor) == row  # the first of several


def test_tensors_without_entries_and_whole_numbers_are_finite():
    for tensor in (
        torch.zeros(0),
        torch.zeros(0, 3),
        torch.zeros(3, 0),
        torch.arange(6).reshape(2, 3),
    ):
        assert row_not_finite(tensor) is None


def test_a_block_is_as_many_rows_as_fit(monkeypatch):
    seen = []
    isfinite = torch.isfinite
    monkeypatch.setattr(
        checks.torch, "isfinite", lambda block: seen.append(len(block)) or isfinite(block)
    )
    for entries, blocks in ((1, [1] * 5), (6, [2, 2, 1]), (8, [2, 2, 1]), (15, [5]), (99, [5])):
        monkeypatch.setattr(checks, "BLOCK_ENTRIES", entries)
        seen.clear()
        row_not_finite(torch.zeros(5, 3))
        assert seen == blocks
