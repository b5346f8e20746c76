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


def test_what_does_not_count_cannot_spoil_what_does():
    h, head, ids = draw(5, [2])
    with torch.no_grad():
        h[2] = float("nan")
    found = loss.head_cross_entropy(h, head, ids)
    found.backward()
    assert torch.isfinite(found)
    assert not h.grad[2].any()
    assert torch.isfinite(h.grad[[0, 1, 3, 4]]).all()


def test_a_bfloat16_heads_gradient_is_summed_in_float32(monkeypatch):
    h, head, ids = draw(4000, [], torch.float32)
    small = [tensor.detach().to(torch.bfloat16).requires_grad_() for tensor in (h, head)]
    exact = [tensor.detach().double().requires_grad_() for tensor in small]
    monkeypatch.setattr(loss, "CHUNK_ENTRIES", 500)
    loss.head_cross_entropy(*small, ids).backward()
    F.cross_entropy(exact[0] @ exact[1].T, ids, reduction="sum").backward()
    error = (small[1].grad.double() - exact[1].grad).norm() / exact[1].grad.norm()
    assert error < 0.01
