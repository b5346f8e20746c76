"""An independent forward pass in float64 on numpy: the paper's decoder, written from its
description.

It shares no code with the model: no torch, no transformers, no interface class. It reads weights by
state-dict names, and a codebook as the table that the checkpoint holds. Paper: section "Body and
recipe"; the rotary layout, left open there, is transformers' rotate-half: channel i turns with
channel i + H/2 by the angle p · base^(-2i/H), H the head's width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Weights = dict[str, NDArray[Any]]
INPUT = "model.embed_tokens."


@dataclass(frozen=True)
class Shape:
    """The numbers of a decoder that its weights do not show."""

    heads: int
    rope_theta: float
    rms_norm_eps: float
    code_width: int | None = None  # K of a coded input
    values: str = "01"
    lift: str = "tile"


def input_vectors(weights: Weights, shape: Shape, ids_T: NDArray[np.int64]) -> Floats:
    """x[t] = E[id] for a table; else the lifted coordinates: trained, float words, or bits as they
    are shown.
    """
    if INPUT + "weight" in weights:
        return weights[INPUT + "weight"][ids_T].astype(np.float64)
    channels = weights["model.norm.weight"].shape[0]
    z_TK = _coordinates(weights, shape, ids_T)
    if shape.lift == "orthogonal":
        return z_TK @ weights[INPUT + "lift"].view(np.float32).astype(np.float64).T
    width, x_TD = z_TK.shape[1], np.zeros((len(ids_T), channels))
    for channel in range(channels):
        if shape.lift == "tile":
            x_TD[:, channel] = z_TK[:, channel % width]
        elif shape.lift == "interleave":
            x_TD[:, channel] = z_TK[:, channel * width // channels]
        elif channel < width:  # pad
            x_TD[:, channel] = z_TK[:, channel]
    return x_TD


def _coordinates(weights: Weights, shape: Shape, ids_T: NDArray[np.int64]) -> Floats:
    if INPUT + "coordinates" in weights:
        return weights[INPUT + "coordinates"][ids_T].astype(np.float64)
    rows = weights[INPUT + "codebook"][ids_T]
    if rows.dtype == np.int32:  # float words, as bit patterns
        return np.ascontiguousarray(rows).view(np.float32).astype(np.float64)
    if rows.shape[1] != shape.code_width:  # eight bits a byte
        rows = np.unpackbits(rows, axis=1, bitorder="little")[:, : shape.code_width]
    if INPUT + "levels" in weights:
        low_K, high_K = weights[INPUT + "levels"].view(np.float32).astype(np.float64)
        return np.where(rows == 1, high_K, low_K)
    return np.where(rows == 1, 1.0, -1.0 if shape.values == "pm1" else 0.0)


def rms_norm(x_TD: Floats, scale_D: NDArray[Any], eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) · scale."""
    return x_TD / np.sqrt((x_TD**2).mean(-1, keepdims=True) + eps) * scale_D.astype(np.float64)


def rotate(x_HTC: Floats, theta: float) -> Floats:
    """Rotary positions 0 ... T-1 on heads of C channels."""
    _, length, channels = x_HTC.shape
    half = channels // 2
    frequency = theta ** (-2.0 * np.arange(half) / channels)
    angle_TC = np.arange(length)[:, None] * frequency
    first, second = x_HTC[..., :half], x_HTC[..., half:]
    cos, sin = np.cos(angle_TC), np.sin(angle_TC)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(x_TD: Floats, weights: Weights, prefix: str, shape: Shape) -> Floats:
    """Causal multi-head attention without biases, as many key-value heads as heads."""
    length, width = x_TD.shape
    channels = width // shape.heads

    def heads(name: str) -> Floats:
        projected = x_TD @ weights[f"{prefix}.{name}.weight"].astype(np.float64).T
        return projected.reshape(length, shape.heads, channels).swapaxes(0, 1)

    query, key, value = (
        rotate(heads("q_proj"), shape.rope_theta),
        rotate(heads("k_proj"), shape.rope_theta),
        heads("v_proj"),
    )
    scores_HTT = query @ key.swapaxes(1, 2) / np.sqrt(channels)
    scores_HTT[:, ~np.tri(length, dtype=bool)] = -np.inf
    scores_HTT = np.exp(scores_HTT - scores_HTT.max(-1, keepdims=True))
    mixed_HTC = scores_HTT / scores_HTT.sum(-1, keepdims=True) @ value
    return (
        mixed_HTC.swapaxes(0, 1).reshape(length, width)
        @ weights[f"{prefix}.o_proj.weight"].astype(np.float64).T
    )


def swiglu(x_TD: Floats, weights: Weights, prefix: str) -> Floats:
    """down(silu(gate(x)) · up(x))."""
    gate, up, down = (
        weights[f"{prefix}.{name}_proj.weight"].astype(np.float64)
        for name in ("gate", "up", "down")
    )
    gated = x_TD @ gate.T
    return (gated / (1.0 + np.exp(-gated)) * (x_TD @ up.T)) @ down.T


def layers(weights: Weights) -> int:
    """How many blocks the weights hold."""
    count = 0
    while f"model.layers.{count}.input_layernorm.weight" in weights:
        count += 1
    return count


def forward(weights: Weights, shape: Shape, ids_T: NDArray[np.int64]) -> Floats:
    """Logits [T, V] of one sequence of ids, in float64."""
    x_TD = input_vectors(weights, shape, ids_T)
    for layer in range(layers(weights)):
        block = f"model.layers.{layer}"
        normed = rms_norm(x_TD, weights[f"{block}.input_layernorm.weight"], shape.rms_norm_eps)
        x_TD = x_TD + attention(normed, weights, f"{block}.self_attn", shape)
        normed = rms_norm(
            x_TD, weights[f"{block}.post_attention_layernorm.weight"], shape.rms_norm_eps
        )
        x_TD = x_TD + swiglu(normed, weights, f"{block}.mlp")
    hidden = rms_norm(x_TD, weights["model.norm.weight"], shape.rms_norm_eps)
    return hidden @ weights["lm_head.weight"].astype(np.float64).T
