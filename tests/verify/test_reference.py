"""The reference forward against transformers' own Llama, and by properties that any decoder of its
kind has.
"""

import numpy as np
import pytest
import torch

from tests.test_model import SHAPE, model_of
from tokencodes.verify import forward, reference

PLAIN = reference.Shape(heads=2, rope_theta=10_000.0, rms_norm_eps=1e-5, code_width=9)
SPECS = [
    "learned",
    "learned-code:init=gaussian,width=12,lift=interleave",
    "gf2",
    "gf2:values=pm1,center=true,lift=interleave",
    "binary:values=pm1,lift=pad",
    "binary:scale=match,lift=orthogonal",
    "random:width=20,values=pm1",
    "gaussian:width=36",
    "digits:base=3",
    "random:width=20,storage=computed",
    "gf2:affine=true,ids=permuted,storage=computed",
]


def weights_of(spec: str) -> reference.Weights:
    return forward.weights_of(model_of(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_it_is_the_model_within_rounding(spec):
    shape = forward.shape_of(model_of(spec))
    ids = torch.randint(0, 320, (1, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model_of(spec)(ids).logits[0].double().numpy()
    expected = reference.forward(weights_of(spec), shape, ids[0].numpy())
    assert np.abs(logits - expected).max() < 1e-6 * np.abs(expected).max() + 1e-9


def test_the_future_does_not_reach_back():
    ids = np.arange(1, 17)
    changed = ids.copy()
    changed[10:] = 7
    original, altered = (reference.forward(weights_of("gf2"), PLAIN, row) for row in (ids, changed))
    assert np.array_equal(original[:10], altered[:10])
    assert not np.array_equal(original[10:], altered[10:])


def test_rotation_depends_on_distance_alone():
    random = np.random.default_rng(0)
    query, key = random.normal(size=(2, 18))
    turned = reference.rotate(np.stack([np.tile(query, (12, 1)), np.tile(key, (12, 1))]), 10_000.0)
    scores = turned[0] @ turned[1].T
    assert np.allclose(np.diagonal(scores, -3), scores[3, 0])
    assert np.allclose(np.linalg.norm(turned[0], axis=-1), np.linalg.norm(query))
    assert SHAPE["hidden_size"] // SHAPE["num_attention_heads"] == 18
