"""L2: each check fails just above its bound and holds just below it, wherever the deviation is."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.test_model import model_of
from tokencodes.interfaces import base
from tokencodes.measured import significant
from tokencodes.verify import forward, reference
from tokencodes.verify.check import MEASURED, PROVEN, Subject, check, drawn_ids, not_applicable

U = 2.0**-24
D, F, T, LAYERS = 36, 48, 16, 2
# Relative bounds of the modules, as the head of `forward` has them.
BOUNDS = {
    "norms": 8 * U,
    "attention": 4 * U * (D + T) ** 0.5,
    "feed-forward": 4 * U * (D + F) ** 0.5,
    "block sums": 4 * U,
    "head": 4 * U * D**0.5,
}
COUNTS = {"norms": 6 * 5, "attention": 6 * 2, "feed-forward": 6 * 2, "block sums": 6 * 2, "head": 6}


def of(spec: str) -> Subject:
    return Subject(model_of(spec), Path("nowhere"))


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([6.0, 8.0], [3.0, 4.0], 1.0),
        ([1.0, 2.0], [0.0, 2.0], 0.5),  # root mean squares, not the largest
        ([-3.0, 4.0], [3.0, 4.0], 1.2),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 1e-30], [0.0, 0.0], np.inf),
        ([np.nan, 4.0], [3.0, 4.0], np.inf),
        ([3.0, np.inf], [3.0, 4.0], np.inf),
        ([3.0, 4.0], [np.nan, 4.0], np.inf),
        ([3.0, 4.0], [3.0, np.inf], np.inf),
        ([np.nan], [np.nan], np.inf),
    ],
)
def test_an_error_is_relative_to_the_size_of_what_is_expected(actual, expected, error):
    assert forward.relative(np.array(actual), np.array(expected)) == pytest.approx(error, rel=1e-12)


def test_the_reference_gets_the_words_of_a_computed_code_and_else_what_is_stored():
    computed, looked_up = of("gf2:storage=computed").model, of("gf2").model
    words = forward.weights_of(computed)["model.embed_tokens.codebook"]
    assert np.array_equal(words, looked_up.input_interface.codebook.numpy())
    for model in (looked_up, of("learned").model, of("learned-code").model):
        weights = forward.weights_of(model)
        assert weights.keys() == model.state_dict().keys()
        assert all(
            np.array_equal(weights[name], tensor.numpy())
            for name, tensor in model.state_dict().items()
        )


def test_the_references_numbers_are_the_configurations():
    values = {"heads": 2, "rope_theta": 10_000.0, "rms_norm_eps": 1e-5}
    assert forward.shape_of(of("learned").model) == reference.Shape(**values)
    coded = reference.Shape(**values, code_width=9, values="pm1", lift="interleave")
    assert forward.shape_of(of("gf2:values=pm1,lift=interleave").model) == coded


# Input vectors: every id, in blocks.


@pytest.mark.parametrize(
    "spec", ["learned", "gf2", "random:width=20,values=pm1", "gaussian:lift=pad", "learned-code"]
)
@pytest.mark.parametrize("id", [0, 6, 7, 318, 319])
def test_the_smallest_change_of_one_entry_of_one_vector_is_caught(spec, id, monkeypatch):
    monkeypatch.setattr(base, "BLOCK_ENTRIES", D * 7)
    subject = of(spec)
    detail = "relative error 0.0e+00, bound 0.0e+00, all 320 token ids"
    assert forward.input_vectors(subject) == check("L2", "input vectors", PROVEN, True, detail)

    def change(module, args, out):
        where = (args[0] == id).nonzero()[:, 0]
        out[where, 35] = torch.nextafter(out[where, 35], torch.tensor(9.0))

    subject.model.input_interface.register_forward_hook(change)
    with torch.no_grad():
        assert forward.input_vectors(subject).status == "fails"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_is_caught_in_whatever_row(value):
    subject = of("learned")
    with torch.no_grad():
        subject.model.input_interface.weight[317, 3] = value
    assert forward.input_vectors(subject).status == "fails"


@pytest.mark.parametrize(("factor", "status"), [(0.85, "holds"), (1.15, "fails")])
@pytest.mark.parametrize(
    ("spec", "width"), [("gf2:lift=orthogonal", 9), ("random:width=33,lift=orthogonal", 33)]
)
def test_an_orthogonal_lift_may_round_as_a_sum_of_k_terms_does(spec, width, factor, status):
    subject, bound = of(spec), 2 * U * width**0.5
    subject.model.input_interface.register_forward_hook(
        lambda module, args, out: (out.double() * (1 + factor * bound)).to(out.dtype)
    )
    made = forward.input_vectors(subject)
    assert made.status == status and f"bound {bound:.1e}" in made.detail


# Modules, each on its own input.


def answered_exactly(monkeypatch, name: str, factor: float, layer: int, row: int) -> None:
    """Makes every module's answer the reference's own; one module's is off by `factor` times its
    bound, in one text.
    """
    traced, texts = forward.traced, []

    def exact(model, ids):
        weights, shape, seen = (
            forward.weights_of(model),
            forward.shape_of(model),
            traced(model, ids),
        )
        off = 1 + factor * BOUNDS[name] if len(texts) == row else 1.0
        texts.append(ids)
        eps = model.config.rms_norm_eps

        def put(module: str, kind: str, y, here: bool = True):
            seen[module] = seen[module][0], (y * (off if kind == name and here else 1.0))[None]

        for number in range(LAYERS):
            block, here = f"model.layers.{number}", number == layer
            for norm in ("input_layernorm", "post_attention_layernorm"):
                full = f"{block}.{norm}"
                put(
                    full,
                    "norms",
                    reference.rms_norm(seen[full][0][0], weights[f"{full}.weight"], eps),
                    here,
                )
            full = f"{block}.self_attn"
            put(
                full, "attention", reference.attention(seen[full][0][0], weights, full, shape), here
            )
            full = f"{block}.mlp"
            put(full, "feed-forward", reference.swiglu(seen[full][0][0], weights, full), here)
            total = seen[block][0][0] + seen[f"{block}.self_attn"][1][0] + seen[full][1][0]
            put(block, "block sums", total, here)
        put(
            "model.norm",
            "norms",
            reference.rms_norm(seen["model.norm"][0][0], weights["model.norm.weight"], eps),
            False,
        )
        put(
            "lm_head",
            "head",
            seen["lm_head"][0][0] @ weights["lm_head.weight"].astype(np.float64).T,
        )
        return seen

    monkeypatch.setattr(forward, "traced", exact)


@pytest.mark.parametrize(("layer", "row"), [(0, 5), (1, 0)])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_module_holds_up_to_its_bound_and_fails_above_and_alone(name, layer, row, monkeypatch):
    for factor, failing in ((0.99, set()), (1.01, {name})):
        with monkeypatch.context() as patched:
            answered_exactly(patched, name, factor, layer, row)
            made = forward.modules(of("gf2"))
        assert {result.name for result in made if result.status == "fails"} == failing
        assert [result.name for result in made] == list(BOUNDS)
        for result in made:
            assert (result.level, result.scope) == ("L2", MEASURED)
            assert result.detail.endswith(
                f"bound {BOUNDS[result.name]:.1e}, {COUNTS[result.name]} times 16 positions"
            )


def test_a_module_is_judged_on_what_it_was_given_and_what_it_gave():
    model, ids = model_of("gf2"), drawn_ids(model_of("gf2"))[:1]
    seen = forward.traced(model, ids)
    parts = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    names = {
        f"model.layers.{layer}{part}"
        for layer in range(LAYERS)
        for part in ("", *(f".{part}" for part in parts))
    }
    assert seen.keys() == {"model.norm", "lm_head"} | names
    assert all(array.dtype == np.float64 for pair in seen.values() for array in pair)
    with torch.no_grad():
        assert np.array_equal(seen["lm_head"][1], model(ids).logits.double().numpy())
        assert np.array_equal(
            seen["model.layers.0"][0], model.input_interface(ids).double().numpy()
        )
    assert np.array_equal(seen["model.layers.0"][1], seen["model.layers.1"][0])
    assert not any(module._forward_hooks for module in model.modules()), "hooks are taken off again"


def test_hooks_are_taken_off_where_the_model_breaks():
    model = model_of("gf2")
    model.lm_head.register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        forward.traced(model, drawn_ids(model)[:1])
    assert not any(module._forward_hooks for module in model.modules())


# Whole logits.


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_logits_may_be_apart_by_32_roundings_a_block_and_one(layers):
    model = model_of("learned")
    model.config.num_hidden_layers = layers
    assert forward.logit_bound(model, 3.0) == 32 * (layers + 1) * U * 3.0


@pytest.mark.parametrize(("factor", "status"), [(0.99, "holds"), (1.0, "holds"), (1.01, "fails")])
@pytest.mark.parametrize("sign", [1, -1])
def test_whole_logits_hold_up_to_the_bound_and_fail_above(factor, sign, status, monkeypatch):
    subject, ids = of("gf2"), drawn_ids(model_of("gf2"))
    with torch.no_grad():
        logits = subject.model(ids).logits.double().numpy()
    bound, arguments = 2.0**-10, []
    monkeypatch.setattr(
        forward, "logit_bound", lambda model, largest: arguments.append(largest) or bound
    )

    def answer(weights, shape, row):
        number = next(n for n, other in enumerate(ids.numpy()) if np.array_equal(row, other))
        row_logits = logits[number].copy()
        if number == 5:
            row_logits[15, 319] -= sign * factor * bound
        return row_logits

    monkeypatch.setattr(forward.reference, "forward", answer)
    made = forward.whole_logits(subject)
    assert (made.level, made.name, made.status, made.scope) == (
        "L2",
        "whole logits",
        status,
        MEASURED,
    )
    largest = max(float(np.abs(answer(None, None, row)).max()) for row in ids.numpy())
    assert arguments == [largest]
    assert (
        made.detail
        == f"largest difference {factor * bound:.1e}, bound {bound:.1e}, 96 tokens, logits to"
        f" {significant(largest)}"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_never_hold(value, monkeypatch):
    subject = of("gf2")
    monkeypatch.setattr(
        forward, "logit_bound", lambda model, largest: float("inf") if np.isfinite(value) else 1.0
    )

    def spoil(module, args, out):
        out[5, 15, 319] = value

    subject.model.lm_head.register_forward_hook(spoil)
    assert forward.whole_logits(subject).status == "fails"


# Zero codes.


def test_a_sequence_of_zero_codes_must_give_zeros_only():
    name, subject, shapes = "zero code gives zero logits", of("gf2"), []
    subject.model.lm_head.register_forward_pre_hook(
        lambda module, args: shapes.append(tuple(args[0].shape))
    )
    detail = "token 0 eight times: largest |logit| 0"
    assert forward.zero_code(subject) == check("L2", name, MEASURED, True, detail)
    assert shapes == [(1, 8, D)]
    subject.model.lm_head.register_forward_hook(lambda module, args, out: out + 1e-30)
    made = forward.zero_code(subject)
    assert made.status == "fails" and made.detail == "token 0 eight times: largest |logit| 1e-30"


def test_the_zero_code_is_looked_for():
    subject = of("gf2")
    book = subject.model.input_interface.codebook
    book[7], book[0] = 0, 1
    assert forward.zero_code(subject).detail.startswith("token 7 eight times")


def test_without_a_zero_code_there_is_nothing_to_see():
    name = "zero code gives zero logits"
    for spec in ("learned", "learned-code"):
        assert forward.zero_code(of(spec)) == not_applicable("L2", name, "no fixed code")
    no_zero = not_applicable("L2", name, "no token has the zero vector")
    assert forward.zero_code(of("binary:values=pm1")) == no_zero


# Lengths and batches.


def logits_are(subject: Subject, answer) -> None:
    """Logits of a stand-in: `answer(ids)` is written into zeros at the last position and entry of
    the first row.
    """
    state = {}
    subject.model.register_forward_pre_hook(lambda module, args: state.update(ids=args[0]))

    def give(module, args, out):
        out.zero_()
        out[0, -1, -1] = answer(state["ids"])

    subject.model.lm_head.register_forward_hook(give)


DELTA = 2.0**-10


@pytest.mark.parametrize(
    ("size", "status"), [(DELTA, "holds"), (2 * DELTA, "fails"), (float("nan"), "fails")]
)
@pytest.mark.parametrize("length", [1, 2, 15, 16])
def test_every_length_of_a_prefix_is_looked_at(length, size, status, monkeypatch):
    subject = of("gf2")
    monkeypatch.setattr(forward, "logit_bound", lambda model, largest: DELTA)
    logits_are(subject, lambda ids: size if ids.shape == (1, length) else 0.0)
    made = forward.lengths_and_batches(subject)
    assert (made.name, made.status, made.scope) == ("lengths and batches", status, MEASURED)
    assert made.detail == f"lengths 1 to 16: {size:.1e}; reversed batch: 0.0e+00; bound {DELTA:.1e}"


@pytest.mark.parametrize(
    ("size", "status"), [(DELTA, "holds"), (2 * DELTA, "fails"), (float("nan"), "fails")]
)
def test_the_order_of_a_batch_is_looked_at(size, status, monkeypatch):
    subject, ids = of("gf2"), drawn_ids(model_of("gf2"))
    monkeypatch.setattr(forward, "logit_bound", lambda model, largest: DELTA)
    logits_are(subject, lambda given: size if torch.equal(given, ids.flip(0)) else 0.0)
    made = forward.lengths_and_batches(subject)
    assert made.status == status
    assert made.detail == f"lengths 1 to 16: 0.0e+00; reversed batch: {size:.1e}; bound {DELTA:.1e}"


def test_the_bound_of_lengths_is_that_of_the_largest_logit(monkeypatch):
    arguments, subject = [], of("gf2")
    monkeypatch.setattr(
        forward, "logit_bound", lambda model, largest: arguments.append(largest) or 1.0
    )
    logits_are(subject, lambda ids: -3.0)
    forward.lengths_and_batches(subject)
    assert arguments == [3.0]
