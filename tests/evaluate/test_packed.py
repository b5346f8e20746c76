"""Attention over pieces: which keys each token sees, when a piece is cut, and that the numbers are
those of plain attention.
"""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AttentionInterface

from tests.conftest import VOCAB
from tests.evaluate.conftest import tiny
from tokencodes.evaluate import packed
from tokencodes.evaluate.packed import Packed, Rows, Unsupported, _attention_of, _chain, _parts_of
from tokencodes.evaluate.plan import Piece, make_plan

CPU = torch.device("cpu")
LAST = np.array([6, 6, 3, 3, 6, 6, 6])  # two tokens, then a branch of two and a branch of three


def piece_of(last=LAST, start=0):
    size = len(last)
    return Piece(np.arange(size, dtype=np.uint32), np.arange(size), last, start, None)


def seen_by(part, start):
    """The places, from the root on, that each token of a part sees."""
    keys = [key for first, end in part.ranges for key in range(first, end)]
    rows = part.end - part.begin
    mask = part.mask
    if mask is None:  # all up to it
        assert part.ranges == ((start + part.begin, start + part.end),) and start + part.begin == 0
        mask = torch.ones(rows, rows, dtype=torch.bool).tril()
    assert mask.shape == (rows, len(keys))
    return [
        [key for key, visible in zip(keys, row, strict=True) if visible] for row in mask.tolist()
    ]


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize(
    ("call", "copy", "cuts"),
    [
        (11, 0, [(0, 7)]),  # 22 pairs in vain: as much as two calls of 11 cost
        (10, 0, [(0, 2), (2, 4), (4, 7)]),
        (-1, 0, [(0, 2), (2, 4), (4, 7)]),
        (2000, 10, [(0, 7)]),
    ],
)
def test_a_piece_is_cut_where_masks_hide_more_than_calls_cost(monkeypatch, start, call, copy, cuts):
    monkeypatch.setattr(packed, "CALL", call)
    monkeypatch.setattr(packed, "COPY", copy)
    parts = _parts_of(piece_of(start=start), CPU)
    assert [(part.begin, part.end) for part in parts] == cuts
    for part in parts:
        for row, visible in enumerate(seen_by(part, start), part.begin):
            own = [start + key for key in range(row + 1) if LAST[key] >= row]
            assert visible == [*range(start), *own]


@pytest.mark.parametrize(("start", "copy", "count"), [(0, 1, 1), (0, 0, 3), (5, 1, 1), (1, 0, 3)])
def test_a_copied_key_costs_too(monkeypatch, start, copy, count):
    monkeypatch.setattr(packed, "CALL", 9)
    monkeypatch.setattr(packed, "COPY", copy)  # 22 <= 2 * (9 + copy * (start + 2))
    assert len(_parts_of(piece_of(start=start), CPU)) == count
    assert (packed.CALL, packed.AT_ONCE) == (9, 128)


def test_a_branch_of_a_branch_is_cut_too_and_keeps_what_lies_before_both(monkeypatch):
    monkeypatch.setattr(packed, "CALL", -1)
    monkeypatch.setattr(packed, "COPY", 0)
    last = np.array([6, 4, 2, 4, 4, 6, 6])  # 0; 1 with branches 2 and 3-4; 5-6
    parts = _parts_of(piece_of(last), CPU)
    assert [(part.begin, part.end) for part in parts] == [(0, 1), (1, 2), (2, 3), (3, 5), (5, 7)]
    assert [part.ranges for part in parts] == [
        ((0, 1),),
        ((0, 2),),
        ((0, 3),),
        ((0, 2), (3, 5)),
        ((0, 1), (5, 7)),
    ]
    assert seen_by(parts[3], 0) == [[0, 1, 3], [0, 1, 3, 4]] and seen_by(parts[4], 0) == [
        [0, 5],
        [0, 5, 6],
    ]


def test_a_piece_without_a_trunk_is_cut_into_its_branches(monkeypatch):
    monkeypatch.setattr(packed, "CALL", -1)
    monkeypatch.setattr(packed, "COPY", 0)
    parts = _parts_of(piece_of(np.array([1, 1, 2])), CPU)
    assert [(part.begin, part.end, part.ranges) for part in parts] == [
        (0, 2, ((0, 2),)),
        (2, 3, ((2, 3),)),
    ]
    assert parts[0].mask is None and seen_by(parts[0], 0) == [[0], [0, 1]]


def test_one_sequence_needs_no_mask_and_one_that_continues_another_does():
    (alone,) = _parts_of(piece_of(np.array([2, 2, 2])), CPU)
    assert (alone.begin, alone.end, alone.ranges, alone.mask) == (0, 3, ((0, 3),), None)
    (later,) = _parts_of(piece_of(np.array([2, 2, 2]), 4), CPU)
    assert later.ranges == ((0, 7),) and later.mask.tolist() == [
        [True] * (5 + row) + [False] * (2 - row) for row in range(3)
    ]
    keys = torch.arange(20.0).view(1, 10, 2)
    assert later.of(keys).tolist() == keys[:, :7].tolist()
    two = packed._Part(0, 1, ((0, 1), (3, 5)), None)
    assert two.of(keys)[0, :, 0].tolist() == [0.0, 6.0, 8.0]


def plain_attention(query, keys, values, mask, scaling):
    """A query head at a time, by the formula."""
    groups = query.shape[0] // keys.shape[0]
    rows = []
    for head in range(query.shape[0]):
        scores = (
            query[head]
            @ keys[head // groups].T
            * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        )
        rows.append(scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values[head // groups])
    return torch.stack(rows)


@pytest.mark.parametrize("scaling", [None, 0.7])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_attention_is_that_of_the_formula(key_heads, scaling):
    draw = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn(heads, 5, 6, generator=draw) for heads in (4, key_heads, key_heads)
    )
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    wanted = plain_attention(query, keys, values, causal, scaling)
    assert torch.allclose(_attention_of(query, keys, values, None, scaling), wanted, atol=1e-6)
    mask = causal & (torch.arange(25).view(5, 5) % 3 < 2) | torch.eye(5, dtype=torch.bool)
    masked = _attention_of(query, keys, values, mask, scaling)
    assert torch.allclose(masked, plain_attention(query, keys, values, mask, scaling), atol=1e-6)


def single_pass(*sequences):
    plan, _ = make_plan([(np.array(ids, np.uint32), len(ids) - 1) for ids in sequences], 64)
    (plan_pass,) = plan.passes
    return plan_pass


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_logits_come_in_parts_and_are_those_of_the_models_own_forward(kind, monkeypatch):
    monkeypatch.setattr(packed, "AT_ONCE", 3)
    model, plan_pass = tiny(kind), single_pass([3, 4, 5, 6, 7], [3, 4, 9, 8], [20, 21, 22, 23])
    rows = torch.arange(plan_pass.size)
    with torch.no_grad():
        parts = list(Packed(model).logits(plan_pass, rows))
        assert [len(part) for part in parts] == [3, 3, 2] and {part.dtype for part in parts} == {
            torch.float32
        }
        logits = torch.cat(parts)
        for ids in ([3, 4, 5, 6], [3, 4, 9], [20, 21, 22]):
            own = model(torch.tensor([ids])).logits[0]
            order = [row_after(plan_pass, ids[: place + 1]) for place in range(len(ids))]
            assert torch.allclose(logits[order], own, atol=2e-5)


def row_after(plan_pass, past):
    """The row of a pass whose past is this."""
    row = 0
    for piece in plan_pass.pieces:
        for place in range(len(piece.tokens)):
            seen = [
                int(piece.tokens[other]) for other in range(place + 1) if piece.last[other] >= place
            ]
            if seen == past:
                return row + place
        row += len(piece.tokens)
    raise AssertionError(past)


def test_a_head_with_a_bias_is_applied_as_it_is():
    model, plan_pass = tiny("llama"), single_pass([3, 4, 5])
    rows = torch.tensor([0, 1])
    with torch.no_grad():
        (plain,) = Packed(model).logits(plan_pass, rows)
        head = nn.Linear(32, VOCAB)
        head.weight.copy_(model.lm_head.weight)
        head.bias.copy_(torch.arange(VOCAB))
        model.lm_head = head
        (moved,) = Packed(model).logits(plan_pass, rows)
    assert torch.allclose(moved - plain, torch.arange(VOCAB).float().expand(2, -1), atol=1e-4)


def attend(model=None, mask=None, keys=3, **options):
    forward = Packed(model or tiny("llama"))
    query, key = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, keys, 8)
    return forward._attend(nn.Module(), query, key, key, mask, **options)


@pytest.mark.parametrize("name", ["sliding_window", "softcap", "s_aux", "position_bias"])
def test_attention_that_does_more_is_refused(name):
    with pytest.raises(Unsupported, match=f"^its attention asks for {name}$"):
        attend(**{name: 4})
    with pytest.raises(Unsupported, match="a mask or keys of its own"):
        attend(mask=torch.zeros(1))
    with pytest.raises(Unsupported, match="a mask or keys of its own"):
        attend(keys=4)


def test_a_model_whose_attention_cannot_be_replaced_is_refused(monkeypatch):
    forward = Packed(tiny("llama"))
    monkeypatch.setattr(forward, "_attention", contextlib.nullcontext)
    with pytest.raises(Unsupported, match="its attention cannot be replaced"), torch.no_grad():
        next(forward.logits(single_pass([3, 4, 5]), torch.tensor([0])))


def test_the_models_own_attention_comes_back_also_after_an_error():
    model = tiny("llama")
    forward = Packed(model)
    with pytest.raises(RuntimeError, match="stop"), forward._attention():
        assert model.config._attn_implementation == f"tokencodes-{id(forward)}"
        raise RuntimeError("stop")
    assert model.config._attn_implementation == "sdpa"
    assert not [
        name for name in AttentionInterface._global_mapping if name.startswith("tokencodes-")
    ]


def test_kept_keys_that_no_later_piece_needs_are_dropped():
    first, second = piece_of(np.array([1, 1])), piece_of(np.array([1, 1]))
    third = Piece(second.tokens, second.depth, second.last, 2, second, kept=True)
    fourth = Piece(second.tokens, second.depth, second.last, 4, third)
    assert list(_chain([fourth, first])) == [third, second] and list(_chain([first])) == []


def test_rows_are_padded_and_padding_is_not_seen():
    model, sequences = tiny("mistral"), ([3, 4, 5, 6, 7, 8, 9], [10, 11], [12])
    plan, _ = make_plan(
        [(np.array([*ids, 0], np.uint32), 1) for ids in sequences], 64, shared=False
    )
    (plan_pass,) = plan.passes
    with torch.no_grad():
        (logits,) = Rows(model).logits(plan_pass, torch.arange(plan_pass.size))
        own = torch.cat([model(torch.tensor([ids])).logits[0] for ids in sequences])
        (selected,) = Rows(model).logits(plan_pass, torch.tensor([7, 9]))
    assert (
        logits.shape == (10, VOCAB)
        and torch.allclose(logits, own, atol=2e-5)
        and torch.equal(selected, logits[[7, 9]])
    )
