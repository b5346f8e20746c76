"""The one seam: token ids in, the body's first hidden state out. `base` says what that is, `coded`
holds the codes.
"""

from itertools import product
from typing import TYPE_CHECKING, Any, NoReturn

from tokencodes.codes import InterfaceSpec
from tokencodes.codes.codebook import Given
from tokencodes.errors import InputError
from tokencodes.interfaces.base import InputInterface, InterfaceFacts, LearnedTable
from tokencodes.interfaces.coded import FixedCode, LearnedCode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TIED = "tie_word_embeddings=True: a tied head would make the input trainable; set it to false"


def build_interface(
    spec: InterfaceSpec,
    vocab_size: int,
    hidden_size: int,
    sha256: str | None = None,
    given: Given | None = None,
) -> InputInterface:
    """The interface of a spec for V tokens and width D.

    `sha256` is the codebook hash that it must have. `given` holds `order`, or `matrix` and
    `offset`, if the spec names them by hash. Raises InputError if spec, V and D do not fit.
    """
    if spec.learned:
        return LearnedTable(spec, vocab_size, hidden_size)
    kind = FixedCode if spec.fixed else LearnedCode
    return kind(spec, vocab_size, hidden_size, sha256, given)


def refuse_resize(*args: Any, **kwargs: Any) -> NoReturn:
    """Replaces `resize_token_embeddings` of a fixed input. Always raises InputError."""
    raise InputError(
        "a fixed code cannot be resized: its width and words belong to the vocabulary; build the"
        " interface for the new vocabulary with swap_input on the original model"
    )


def refuse_tied_head(model: "PreTrainedModel") -> None:
    """Raises InputError if the head shares the input table, or if the configuration ties them."""
    if getattr(model.config, "tie_word_embeddings", False):
        raise InputError(TIED)
    head = model.get_output_embeddings()
    pairs = product(
        () if head is None else head.parameters(), model.get_input_embeddings().parameters()
    )
    if any(
        weight is other or weight.data_ptr() == other.data_ptr() != 0 for weight, other in pairs
    ):
        raise InputError(
            "the head holds the input table's own weight, so both would be trained as one; give it"
            " a copy"
        )


__all__ = [
    "TIED",
    "FixedCode",
    "InputInterface",
    "InterfaceFacts",
    "LearnedCode",
    "LearnedTable",
    "build_interface",
    "refuse_resize",
    "refuse_tied_head",
]
