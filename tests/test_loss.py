"""The chunked head and loss against the plain formula in float64."""

import pytest
import torch
from torch.nn import functional as F

from tokencodes import loss


def draw(targets: int, ignored: list[int], dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(targets)
    h = torch.randn(targets, 8, generator=generator, dtype=dtype, requires_grad=True)
    head = torch.randn(50, 8, generator=generator, dtype=dtype, requires_grad=True)
    ids = torch.randint(0, 50, (targets,), generator=generator)
    ids[ignored] = loss.IGNORE
    return h, head, ids


@pytest.mark.parametrize("ignored", [[], [0, 6], list(range(7))])
@pytest.mark.parametrize("chunk_entries", [1, 150, 1 << 21])
def test_value_and_gradients_are_those_of_the_plain_formula(ignored, chunk_entries, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_ENTRIES", chunk_entries)
    h, head, ids = draw(7, ignored)
    ours = loss.head_cross_entropy(h, head, ids)
    (ours / 3).backward()
    gradients = h.grad.clone(), head.grad.clone()
    h.grad = head.grad = None
    plain = F.cross_entropy(h @ head.T, ids, ignore_index=loss.IGNORE, reduction="sum")
    (plain / 3).backward()
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients, (h.grad, head.grad), rtol=1e-12, atol=1e-12)


def test_without_gradients_it_is_the_same_number():
    h, head, ids = draw(9, [2], torch.float32)
    with torch.no_grad():
        bare = loss.head_cross_entropy(h, head, ids)
    assert torch.equal(bare, loss.head_cross_entropy(h, head, ids).detach())


def test_float32_is_within_rounding_of_float64():
    h, head, ids = draw(200, [], torch.float32)
    exact = F.cross_entropy(h.double() @ head.double().T, ids, reduction="sum")
    assert loss.head_cross_entropy(h, head, ids).item() == pytest.approx(exact.item(), rel=1e-6)


def test_large_logits_do_not_overflow():
    h, head, ids = draw(5, [], torch.float32)
    assert torch.isfinite(loss.head_cross_entropy(h * 1e4, head, ids))
