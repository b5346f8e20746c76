"""A plain Llama back as a compact model: its table is taken for the code that it says it is, or
that can be found in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.initialization import no_init_weights

from tokencodes.codes import InterfaceSpec, lift
from tokencodes.codes.codebook import Given
from tokencodes.errors import CheckFailed, InputError
from tokencodes.export.agreement import LOOSE
from tokencodes.export.runtimes import Ids, Logits, Runtime, Transformers
from tokencodes.export.source import require_body
from tokencodes.importing.fit import affine, as_bits, fit, folded, order_of, require_code, verified
from tokencodes.interfaces import InputInterface, build_interface
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.verify.check import ids_drawn, row_not_finite
from tokencodes.verify.forward import logit_bound

TABLE = "model.embed_tokens.weight"
PREFIX = "model.embed_tokens."
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Answers:
    """What a program for plain Llamas says of one: ids int64[N, T], logits float32[N, T, V]. exact:
    see `Runtime`.
    """

    program: str
    exact: bool
    ids: Ids
    logits: Logits


def answers_of(runtime: Runtime, config: dict[str, Any]) -> Answers:
    """Asks a program, which can then be let go: two models at once would take twice the memory."""
    ids = ids_drawn(
        int(config["vocab_size"]), int(config.get("max_position_embeddings", 2048))
    ).numpy()
    return Answers(runtime.name, runtime.exact, ids, np.stack([runtime.logits(row) for row in ids]))


@dataclass(eq=False)
class Plain:
    """A plain Llama as it was read: configuration, tensors (table and head among them), what it
    says of its interface, and the answers of the program that it is for.
    """

    place: Path
    config: dict[str, Any]
    weights: Weights
    claim: str | None
    tokenizer_sha256: str | None
    answers: Answers


@dataclass(eq=False)
class Imported:
    """The model, and in words how its interface was found and what was compared."""

    model: TokenCodeForCausalLM
    recognised_by: str
    compared: str


def compact(plain: Plain, requested: str | None) -> Imported:
    """The compact model of a plain Llama. The tensors of the plain model are used up.

    requested: the interface, where it is known. Without it, the plain model's own claim is used.
    Without a claim, the code is searched in the table. Raises InputError if the model is tied or
    incomplete, or if the table is not the named code or no code. Raises CheckFailed if the logits
    of the compact model differ from the plain model's.
    """
    refuse_tied(plain.config, plain.place)
    weights = plain.weights
    for name in (TABLE, "lm_head.weight"):
        if name not in weights:
            raise InputError(
                f"{plain.place}: no {name} in its files; take a complete copy of an untied Llama"
            )
    if plain.config.get("rope_scaling"):
        raise InputError(
            f"{plain.place}: rope_scaling {plain.config['rope_scaling']}; only plain rotary"
            " positions are taken"
        )
    require_body(plain.config, plain.place)
    config = dict(plain.config)
    # version 4
    config.setdefault(
        "rope_parameters", {"rope_type": "default", "rope_theta": config.get("rope_theta", 10000.0)}
    )
    table = weights.pop(TABLE).float()
    interface, recognised_by = interface_of_table(
        table.numpy(), requested, plain.claim, plain.place
    )
    model = assembled(config, interface, weights, table, plain.tokenizer_sha256, plain.place)
    runtime, answers = Transformers(model), plain.answers
    logits = np.stack([runtime.logits(row) for row in answers.ids])
    apart, largest = (
        float(np.abs(logits - answers.logits).max()),
        float(np.abs(answers.logits).max()),
    )
    spec = interface.spec
    exact = answers.exact and (spec.learned or spec.lift != "orthogonal")
    if not apart <= (0.0 if exact else max(logit_bound(model, largest), LOOSE)):
        raise CheckFailed(
            f"{plain.place}: the compact model's logits differ by up to {apart:.1e}; nothing was"
            " written"
        )
    agreement = "bit by bit" if apart == 0.0 else f"up to {apart:.1e}"
    return Imported(
        model,
        recognised_by,
        f"measured on {answers.ids.size} drawn ids: the logits of {answers.program} {agreement}",
    )


def refuse_tied(config: dict[str, Any], folder: Path) -> None:
    """A tied configuration would put the table in the head's place, whatever the file holds, and
    report success.
    """
    if config.get("tie_word_embeddings"):
        raise InputError(
            f"{folder}/config.json: tie_word_embeddings is true, so loading would overwrite the"
            " head by the input table; if the model has a head of its own, set it to false there"
        )


def interface_of_table(
    table_VD: np.ndarray, requested: str | None, claim: str | None, place: Path
) -> tuple[InputInterface, str]:
    """The interface whose vectors are these, and how it was found."""
    size, width = table_VD.shape
    wanted = requested or claim
    if wanted is None:
        fitted = fit(table_VD)
        return fitted, f"{fitted.spec}, found in the table"
    spec = InterfaceSpec.parse(wanted)
    said = f"{spec}, as {'asked for' if requested else 'its file says'}"
    if spec.learned:
        return build_interface(spec, size, width), said
    if spec.fixed:
        require_code(table_VD)
    given = given_of(spec, table_VD)
    if spec.words == "learned-code":
        return build_interface(spec, size, width, None, given), said
    interface = verified(str(spec), given, table_VD)
    if (
        interface is None and spec.lift == "orthogonal"
    ):  # a product: equal up to the last bits of this machine's
        interface = build_interface(spec, size, width, None, given)
        blocks = interface.blocks()
        apart = np.max(
            [
                np.abs(rows.numpy() - table_VD[start : start + len(rows)]).max()
                for start, rows in blocks
            ]
        )
        said += f", every entry within {apart:.1e}"
        if not apart <= 1e-5 * float(np.abs(table_VD).max()):
            interface = None
    if interface is None:
        raise InputError(
            f"{place}: its input table is not that of {str(spec)!r}; it was trained since, or is of"
            " another code. --interface SPEC names another, --interface learned takes it as a"
            " trained table"
        )
    return interface, said


def given_of(spec: InterfaceSpec, table_VD: np.ndarray) -> Given:
    """What a spec names by hash, read off the table."""
    given: Given = order_of(spec, table_VD) if spec.informed and spec.fixed else {}
    if spec.matrix:
        bits = next((as_bits(table_VD[:, shown]) for _, _, shown in folded(table_VD)), None)
        solved = affine(bits) if bits is not None else None
        if solved is None or solved[0].shape[0] != solved[0].shape[1]:
            raise InputError(
                f"the input table does not determine the matrix of {str(spec)!r}; import the model"
                " that it was exported from"
            )
        given |= {"matrix": solved[0], "offset": solved[1]}
    return given


def assembled(
    values: dict[str, Any],
    interface: InputInterface,
    weights: Weights,
    table: torch.Tensor,
    tokenizer_sha256: str | None,
    place: Path,
) -> TokenCodeForCausalLM:
    """A model of this interface with these tensors for body and head. InputError where they are not
    all of them, or one holds a value that is not finite, in whatever row.
    """
    for name, tensor in {**weights, TABLE: table}.items():
        row = row_not_finite(tensor)
        if row is not None:
            raise InputError(
                f"{place}: {name} is not finite in row {row}; take a new copy, or train it anew"
            )
    leave = {
        "architectures",
        "model_type",
        "frozen_input",
        "tokencodes",
        "rope_theta",
        "rope_scaling",
        "torch_dtype",
        "dtype",
    }
    kept = {
        key: value
        for key, value in values.items()
        if key not in leave and not key.startswith("transformers")
    }
    config = TokenCodeConfig(
        **kept, interface=str(interface.spec), tokenizer_sha256=tokenizer_sha256
    )
    with no_init_weights():  # memory that nothing is drawn into is not taken
        model = TokenCodeForCausalLM(config, given_arrays(interface))
    own = {name: value for name, value in model.state_dict().items() if name.startswith(PREFIX)}
    spec = interface.spec
    if spec.learned:  # in a tied model's state both are one, and would stay one
        own[TABLE] = (
            table.clone() if weights["lm_head.weight"].data_ptr() == table.data_ptr() else table
        )
    elif spec.words == "learned-code":
        own[f"{PREFIX}coordinates"] = _coordinates(table, interface, place)
    try:
        model.load_state_dict(
            {
                name: value.float() if value.is_floating_point() else value
                for name, value in {**weights, **own}.items()
            },
            assign=True,
        )
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise InputError(
            f"{place}: not the tensors of a Llama of its shape"
            f" ({' '.join(lines[:2]).strip()[:200]})"
        ) from None
    model.input_interface.check()
    return model.eval()


def given_arrays(interface: InputInterface) -> Given:
    """What a spec names by hash, from an interface that has it."""
    names = interface.spec.given if interface.spec.fixed else ()
    return {name: interface.get_buffer(name).numpy() for name in names}


def _coordinates(table: torch.Tensor, interface: InputInterface, place: Path) -> torch.Tensor:
    """Trained coordinates, where the lift copies them."""
    spec, (size, width) = interface.spec, table.shape
    if spec.lift == "orthogonal":
        raise InputError(
            f"{place}: coordinates behind an orthogonal lift cannot be read off its table exactly;"
            " --interface learned"
        )
    count = spec.code_width(size)
    shown = lift.columns(spec.lift, count, width)
    first = [int(np.flatnonzero(shown == coordinate)[0]) for coordinate in range(count)]
    z_VK = table[:, first]
    lifted = torch.where(
        torch.from_numpy(shown >= 0), z_VK[:, torch.from_numpy(np.maximum(shown, 0))], 0.0
    )
    if not torch.equal(lifted, table):
        raise InputError(
            f"{place}: its input table is no lift of {count} coordinates as {str(spec)!r} has them;"
            " --interface learned"
        )
    return z_VK
