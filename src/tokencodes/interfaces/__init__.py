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
    """The interface of a spec for V tokens and width D; InputError where the three do not fit.

    sha256: the codebook hash that it must have. given: `order`, or `matrix` and `offset`, where the
    spec names them by hash.
    """
    if spec.learned:
        return LearnedTable(spec, vocab_size, hidden_size)
    kind = FixedCode if spec.fixed else LearnedCode
    return kind(spec, vocab_size, hidden_size, sha256, given)


def refuse_resize(*args: Any, **kwargs: Any) -> NoReturn:
    """What `resize_token_embeddings` is where the input is fixed."""
    raise InputError(
        "a fixed code cannot be resized: its width and words belong to the vocabulary; build the"
        " interface for the new vocabulary with swap_input on the original model"
    )


def refuse_tied_head(model: "PreTrainedModel") -> None:
    """InputError where a model's head is its input table, or its configuration asks for that."""
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
