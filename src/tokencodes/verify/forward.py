"""L2: the model against the float64 reference, module by module, on the model's own inputs.

Each module is judged on what it was given, so errors do not add up and bounds can be narrow. They
follow the random-walk model of rounding (N. Higham, T. Mary, SIAM J. Sci. Comput. 2019): an inner
product of n terms in float32 errs by about u sqrt(n) of its own size, u = 2^-24. Errors are root
mean squares relative to the reference's; bounds:
  input 0 (copied), or 2 u sqrt(K) behind an orthogonal lift    norms 8 u
  attention 4 u sqrt(d + T)    feed-forward 4 u sqrt(d + f)
  head 4 u sqrt(d)    sum of a block 4 u
Whole logits are bounded by 32 u a block of the largest.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tokencodes.interfaces import FixedCode
from tokencodes.measured import significant
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.verify import reference
from tokencodes.verify.check import (
    MEASURED,
    PROVEN,
    ROUNDOFF,
    Check,
    Subject,
    check,
    drawn_ids,
    not_applicable,
)
from tokencodes.verify.identity import stored_book
from tokencodes.verify.reference import Floats, Shape, Weights

Pairs = dict[str, list[tuple[Floats, Floats]]]


def weights_of(model: TokenCodeForCausalLM) -> Weights:
    """The state dict for the reference; a code that is computed from ids is written out as the
    words it stands for.
    """
    weights = {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}
    interface = model.input_interface
    if isinstance(interface, FixedCode) and interface.spec.storage == "computed":
        weights["model.embed_tokens.codebook"] = stored_book(interface).words_VK
    return weights


def shape_of(model: TokenCodeForCausalLM) -> Shape:
    """The reference's numbers, from the configuration alone."""
    c, spec = model.config, model.input_interface.spec
    return Shape(
        heads=c.num_attention_heads,
        rope_theta=c.rope_parameters["rope_theta"],
        rms_norm_eps=c.rms_norm_eps,
        code_width=None if spec.learned else spec.code_width(c.vocab_size),
        values=spec.values,
        lift=spec.lift,
    )


def input_vectors(subject: Subject) -> Check:
    """Every token's input vector against the reference, a block of ids at a time."""
    model, spec = subject.model, subject.model.input_interface.spec
    weights, shape, size = weights_of(model), shape_of(model), model.config.vocab_size
    bound = 0.0 if spec.lift != "orthogonal" else 2 * ROUNDOFF * np.sqrt(spec.code_width(size))
    errors = []
    for start, rows in model.input_interface.blocks():
        ids = np.arange(start, start + len(rows))
        errors.append(
            relative(rows.double().cpu().numpy(), reference.input_vectors(weights, shape, ids))
        )
    error = max(errors)
    detail = f"relative error {error:.1e}, bound {bound:.1e}, all {size:,} token ids"
    return check("L2", "input vectors", PROVEN, error <= bound, detail)


def relative(actual: Floats, expected: Floats) -> float:
    """Root mean square of the error, relative to that of the reference; infinite where either is
    not finite.
    """
    if not (np.isfinite(actual).all() and np.isfinite(expected).all()):
        return float("inf")
    size = float(np.sqrt((expected**2).mean()))
    error = float(np.sqrt(((actual - expected) ** 2).mean()))
    return error / size if size else (0.0 if error == 0.0 else float("inf"))


def traced(model: TokenCodeForCausalLM, ids: Tensor) -> dict[str, tuple[Floats, Floats]]:
    """Input and output of every module of one forward pass, float64 copies, by module name."""
    seen: dict[str, tuple[Floats, Floats]] = {}

    def record(name: str) -> Callable[..., None]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
        ) -> None:
            inputs = args[0] if args else kwargs["hidden_states"]
            outputs = out[0] if isinstance(out, tuple) else out
            seen[name] = inputs.double().cpu().numpy(), outputs.double().cpu().numpy()

        return hook

    names = ["model.norm", "lm_head"]
    for layer in range(model.config.num_hidden_layers):
        block = f"model.layers.{layer}"
        names += [
            block,
            *(
                f"{block}.{part}"
                for part in ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
            ),
        ]
    handles = [
        model.get_submodule(name).register_forward_hook(record(name), with_kwargs=True)
        for name in names
    ]
    try:
        with torch.no_grad():
            model(ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def modules(subject: Subject) -> list[Check]:
    """Norms, attention, feed-forward, sums and head of every block, each on its own input."""
    model, c = subject.model, subject.model.config
    weights, shape, ids = weights_of(model), shape_of(model), drawn_ids(model)
    pairs: Pairs = {
        name: [] for name in ("norms", "attention", "feed-forward", "block sums", "head")
    }
    for row in ids:
        seen = traced(model, row[None])
        for name, (inputs, outputs) in seen.items():
            x, y = inputs[0], outputs[0]
            if name.endswith("norm"):
                pairs["norms"].append(
                    (y, reference.rms_norm(x, weights[f"{name}.weight"], c.rms_norm_eps))
                )
            elif name.endswith("self_attn"):
                pairs["attention"].append((y, reference.attention(x, weights, name, shape)))
            elif name.endswith("mlp"):
                pairs["feed-forward"].append((y, reference.swiglu(x, weights, name)))
            elif name == "lm_head":
                pairs["head"].append((y, x @ weights["lm_head.weight"].astype(np.float64).T))
            else:
                pairs["block sums"].append(
                    (y, x + seen[f"{name}.self_attn"][1][0] + seen[f"{name}.mlp"][1][0])
                )
    length, d, f = ids.shape[1], c.hidden_size, c.intermediate_size
    factors = {
        "norms": 8,
        "attention": 4 * np.sqrt(d + length),
        "feed-forward": 4 * np.sqrt(d + f),
        "block sums": 4,
    }
    factors["head"] = 4 * np.sqrt(d)
    checks = []
    for name, compared in pairs.items():
        error, bound = (
            max(relative(*pair) for pair in compared),
            ROUNDOFF * float(factors[name]),
        )
        detail = (
            f"largest relative error {error:.1e}, bound {bound:.1e}, {len(compared)} times {length}"
            " positions"
        )
        checks.append(check("L2", name, MEASURED, error <= bound, detail))
    return checks


def logit_bound(model: TokenCodeForCausalLM, largest: float) -> float:
    """How far whole logits may be apart."""
    return 32 * (model.config.num_hidden_layers + 1) * ROUNDOFF * largest


@torch.no_grad()
def whole_logits(subject: Subject) -> Check:
    """Logits of whole sequences against the reference."""
    model, ids = subject.model, drawn_ids(subject.model)
    weights, shape = weights_of(model), shape_of(model)
    logits = model(ids).logits.double().cpu().numpy()
    expected = np.stack([reference.forward(weights, shape, row) for row in ids.numpy()])
    largest = float(np.abs(expected).max())
    bound = logit_bound(model, largest)
    error = float(np.abs(logits - expected).max()) if np.isfinite(logits).all() else float("inf")
    detail = (
        f"largest difference {error:.1e}, bound {bound:.1e}, {ids.numel()} tokens, logits to"
        f" {significant(largest)}"
    )
    return check("L2", "whole logits", MEASURED, error <= bound, detail)


@torch.no_grad()
def zero_code(subject: Subject) -> Check:
    """A sequence of zero codes gives zero logits, as a bias-free body must."""
    name, model = "zero code gives zero logits", subject.model
    if not isinstance(model.input_interface, FixedCode):
        return not_applicable("L2", name, "no fixed code")
    zero = torch.nonzero(~model.input_interface.materialize().any(1))[:, 0].tolist()
    if not zero:
        return not_applicable("L2", name, "no token has the zero vector")
    largest = float(model(torch.full((1, 8), zero[0])).logits.abs().max())
    return check(
        "L2",
        name,
        MEASURED,
        largest == 0.0,
        f"token {zero[0]} eight times: largest |logit| {largest:g}",
    )


@torch.no_grad()
def lengths_and_batches(subject: Subject) -> Check:
    """Each prefix of a sequence, and each row of a batch in another order, has the logits it has in
    the whole.
    """
    model, ids = subject.model, drawn_ids(subject.model)
    whole = model(ids).logits
    bound = logit_bound(model, float(whole.abs().max()))
    lengths = range(1, ids.shape[1] + 1)
    apart = [float((model(ids[:1, :n]).logits - whole[:1, :n]).abs().max()) for n in lengths]
    prefix = float(np.max(apart))  # NaN stays NaN, which is within no bound
    order = torch.arange(len(ids)).flip(0)
    moved = float((model(ids[order]).logits - whole[order]).abs().max())
    detail = (
        f"lengths 1 to {ids.shape[1]}: {prefix:.1e}; reversed batch: {moved:.1e}; bound {bound:.1e}"
    )
    return check("L2", "lengths and batches", MEASURED, prefix <= bound and moved <= bound, detail)


CHECKS = (input_vectors, whole_logits, zero_code, lengths_and_batches)
