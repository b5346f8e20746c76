"""The one seam: token ids in, the body's first hidden state out. `base` says what that is, `coded` holds the codes."""

from typing import Any, NoReturn

from tokencodes.codes import InterfaceSpec
from tokencodes.codes.codebook import Given
from tokencodes.errors import InputError
from tokencodes.interfaces.base import InputInterface, InterfaceFacts, LearnedTable
from tokencodes.interfaces.coded import FixedCode, LearnedCode


def build_interface(
    spec: InterfaceSpec, vocab_size: int, hidden_size: int, sha256: str | None = None, given: Given | None = None
) -> InputInterface:
    """The interface of a spec for V tokens and width D; InputError where the three do not fit.

    sha256: the codebook hash that it must have. given: `order`, or `matrix` and `offset`, where the spec names them by hash.
    """
    if spec.learned:
        return LearnedTable(spec, vocab_size, hidden_size)
    kind = FixedCode if spec.fixed else LearnedCode
    return kind(spec, vocab_size, hidden_size, sha256, given)


def refuse_resize(*args: Any, **kwargs: Any) -> NoReturn:
    """What `resize_token_embeddings` is where the input is fixed."""
    raise InputError(
        "a fixed code cannot be resized: its width and words belong to the vocabulary; build the interface for the new "
        "vocabulary with swap_input on the original model"
    )


__all__ = ["FixedCode", "InputInterface", "InterfaceFacts", "LearnedCode", "LearnedTable", "build_interface", "refuse_resize"]
