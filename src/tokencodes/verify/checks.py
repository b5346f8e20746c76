"""The checks of a certificate. Each says what it found, and whether that is proven for all inputs or measured on some.

First version: identity (codebook, rank, lift), counts, and behaviour on drawn token ids. What it does not show is said in the
certificate. Paper: section "Verification utility".
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from tokencodes.codes import gf2, lift, minimal_width
from tokencodes.codes.codebook import collisions
from tokencodes.errors import InputError
from tokencodes.interfaces import FixedCode, LearnedTable
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.philox import multiply_high, stream
from tokencodes.verify import reference

Status = Literal["holds", "fails", "not applicable"]
Scope = Literal["proven for all inputs", "measured on these inputs", "not applicable"]
PROVEN: Scope = "proven for all inputs"
MEASURED: Scope = "measured on these inputs"

SEQUENCES = 4
LENGTH = 48
GENERATED = 16
ROUNDOFF = 2.0**-24  # of float32


@dataclass(frozen=True)
class Check:
    """One line of a certificate."""

    name: str
    status: Status
    scope: Scope
    detail: str


def not_applicable(name: str, why: str) -> Check:
    """A check that has no meaning for this model."""
    return Check(name, "not applicable", "not applicable", why)


def check(name: str, scope: Scope, holds: bool, detail: str) -> Check:
    """A check that was made."""
    return Check(name, "holds" if holds else "fails", scope, detail)


def drawn_ids(model: TokenCodeForCausalLM) -> torch.Tensor:
    """Token ids int64[N, T] drawn uniformly over the vocabulary by a fixed seed; the first row begins with ids 0, V-1."""
    size = model.config.vocab_size
    length = min(LENGTH, model.config.max_position_embeddings)
    ids = multiply_high(stream(0, "verify", SEQUENCES * length), size).astype(np.int64).reshape(SEQUENCES, length)
    ids[0, :2] = (0, size - 1)[: len(ids[0, :2])]
    return torch.from_numpy(ids)


def codebook_regenerated(model: TokenCodeForCausalLM) -> Check:
    """Every buffer equals, bit by bit, what the spec gives."""
    name = "codebook regenerated"
    if isinstance(model.input_interface, LearnedTable):
        return not_applicable(name, "a learned table has no codebook")
    try:
        model.input_interface.check()
    except InputError as error:
        return check(name, PROVEN, False, str(error))
    facts = model.input_interface.describe()
    return check(
        name,
        PROVEN,
        True,
        f"{facts.buffer_entries:,} entries equal {facts.spec!r} (sha256 {str(facts.codebook_sha256)[:12]})",
    )


def injective(model: TokenCodeForCausalLM) -> Check:
    """No two tokens share a code."""
    name = "injective"
    if not isinstance(model.input_interface, FixedCode):
        return not_applicable(name, "the rows of a learned table may move")
    same = collisions(model.input_interface.codebook.cpu().numpy())
    count = model.config.vocab_size
    detail = (
        f"{count:,} distinct codes of {count:,} tokens" if not same else f"tokens {same[0]} share a code ({len(same)} pairs)"
    )
    return check(name, PROVEN, not same, detail)


def gf2_rank(model: TokenCodeForCausalLM) -> Check:
    """A stored matrix has an inverse over GF(2); a codebook without one has the rank that identity needs."""
    name = "GF(2) rank"
    buffers = dict(model.input_interface.named_buffers())
    if "codebook" not in buffers:
        return not_applicable(name, "a learned table is not over GF(2)")
    if "matrix" not in buffers:
        found, least = gf2.rank(buffers["codebook"].cpu().numpy()), minimal_width(model.config.vocab_size)
        return check(name, PROVEN, found >= least, f"codebook of rank {found}; {least} are needed to tell the tokens apart")
    matrix = buffers["matrix"].cpu().numpy()
    found = gf2.rank(matrix)
    holds = found == len(matrix) and np.array_equal(gf2.multiply(matrix, gf2.inverse(matrix)), np.eye(len(matrix)))
    return check(name, PROVEN, holds, f"rank {found} of {len(matrix)}, offset weight {int(buffers['offset'].sum())}")


def lift_rank(model: TokenCodeForCausalLM) -> Check:
    """The lift loses nothing: full column rank."""
    name = "lift rank"
    interface = model.input_interface
    if not isinstance(interface, FixedCode):
        return not_applicable(name, "no lift in this interface")
    found = int(np.linalg.matrix_rank(lift.matrix(interface.spec.lift, interface.code_width, interface.hidden_size)))
    detail = f"rank {found} of {interface.code_width} ({interface.spec.lift} to {interface.hidden_size} channels)"
    return check(name, PROVEN, found == interface.code_width, detail)


def parameter_counts(model: TokenCodeForCausalLM) -> Check:
    """Trainable parameters are what the shapes say, none of them at a fixed input, and the head has storage of its own."""
    c = model.config
    body = c.num_hidden_layers * (4 * c.hidden_size**2 + 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size)
    body += c.hidden_size
    table = c.vocab_size * c.hidden_size
    inputs = table if isinstance(model.input_interface, LearnedTable) else 0
    found = sum(p.numel() for p in model.parameters())
    tied = any(p is model.lm_head.weight for p in model.input_interface.parameters())
    holds = found == inputs + body + table and not tied and all(p.requires_grad for p in model.parameters())
    return check("parameter counts", PROVEN, holds, f"{inputs:,} input + {body:,} body + {table:,} head = {found:,}")


@torch.no_grad()
def finite_logits(model: TokenCodeForCausalLM) -> Check:
    """No NaN and no infinity."""
    logits = model(drawn_ids(model)).logits
    detail = f"{logits.numel():,} logits, largest {logits.abs().max():.3f}"
    return check("finite logits", MEASURED, bool(torch.isfinite(logits).all()), detail)


@torch.no_grad()
def zero_code(model: TokenCodeForCausalLM) -> Check:
    """A sequence of zero codes gives zero logits, as a bias-free body must."""
    name = "zero code gives zero logits"
    interface = model.input_interface
    zero = []
    if isinstance(interface, FixedCode) and interface.spec.values == "01":
        zero = torch.nonzero(interface.codebook.sum(1) == 0)[:, 0].tolist()
    if not zero:
        return not_applicable(name, "no token has the zero vector")
    largest = float(model(torch.full((1, 8), zero[0])).logits.abs().max())
    return check(name, MEASURED, largest == 0.0, f"token {zero[0]} eight times: largest |logit| {largest:g}")


@torch.no_grad()
def reload_equals(model: TokenCodeForCausalLM) -> Check:
    """Saved as a Hugging Face folder and read back, every tensor and every logit is the same."""
    ids = drawn_ids(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        try:
            again = TokenCodeForCausalLM.from_pretrained(Path(folder)).eval()
        except InputError as error:
            return check("reload equals", MEASURED, False, f"a saved copy is refused: {error}")
    old, new = model.state_dict(), again.state_dict()
    differ = [
        name for name in old.keys() | new.keys() if name not in old or name not in new or not torch.equal(old[name], new[name])
    ]
    same_logits = torch.equal(model(ids).logits, again(ids).logits)
    detail = f"{len(old)} tensors bitwise equal, logits equal" if not differ else f"differ: {', '.join(sorted(differ)[:3])}"
    return check("reload equals", MEASURED, not differ and same_logits, detail)


@torch.no_grad()
def equals_reference(model: TokenCodeForCausalLM) -> Check:
    """Logits against the float64 reference. Bound: 32 roundings of float32 a block, of the largest logit."""
    weights = {name: tensor.cpu().numpy() for name, tensor in model.state_dict().items()}
    spec, c = model.input_interface.spec, model.config
    shape = reference.Shape(
        heads=c.num_attention_heads,
        rope_theta=c.rope_parameters["rope_theta"],
        rms_norm_eps=c.rms_norm_eps,
        values=spec.values,
        lift=spec.lift,
    )
    ids = drawn_ids(model)
    logits = model(ids).logits.double().numpy()
    expected = np.stack([reference.forward(weights, shape, row) for row in ids.numpy()])
    error = float(np.abs(logits - expected).max())
    bound = 32 * (c.num_hidden_layers + 1) * ROUNDOFF * float(np.abs(expected).max())
    detail = f"largest |difference| {error:.2e}, bound {bound:.2e}, on {ids.numel()} drawn tokens"
    return check("equals the reference forward", MEASURED, error <= bound, detail)


@torch.no_grad()
def greedy_generation(model: TokenCodeForCausalLM) -> Check:
    """Cached greedy decoding runs, and each token is the best of a full forward."""
    prompt = drawn_ids(model)[:1, :4]
    tokens = min(GENERATED, model.config.max_position_embeddings - prompt.shape[1])
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=tokens,
        min_new_tokens=1,
        do_sample=False,
        pad_token_id=0,
    )
    new = out[0, prompt.shape[1] :]
    logits = model(out[:, :-1]).logits[0, prompt.shape[1] - 1 :]
    # min_new_tokens forbids the end token first. A near tie may fall either way, so within rounding of the best is enough.
    logits[0, model.config.eos_token_id] = -torch.inf
    short = (logits.max(-1).values - logits.gather(1, new[:, None])[:, 0]).max()
    holds = bool(short <= 1e-4) and len(new) > 0
    return check(
        "greedy generation",
        MEASURED,
        holds,
        f"{len(new)} tokens, each within {float(short):.1e} of the full forward's best",
    )


CHECKS: tuple[Callable[[TokenCodeForCausalLM], Check], ...] = (
    codebook_regenerated,
    injective,
    gf2_rank,
    lift_rank,
    parameter_counts,
    finite_logits,
    zero_code,
    reload_equals,
    equals_reference,
    greedy_generation,
)
