"""What the input of another program's checkpoint may be: a table, a codebook, or a matrix over
GF(2).

Logits are given for a few ids only. So whatever is stored is compared whole: a proposed code must
give every stored entry.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

from tokencodes.codes import InterfaceSpec, build_codebook, gf2
from tokencodes.codes.codebook import Given, matrix_hash
from tokencodes.codes.spec import minimal_width
from tokencodes.errors import InputError
from tokencodes.importing.fit import as_bits, fit, has_words, words_of, written
from tokencodes.importing.plain import TABLE, Weights, interface_of_table
from tokencodes.interfaces import InputInterface, build_interface
from tokencodes.verify.check import row_not_finite


def interfaces_of(
    weights: Weights, code: Weights, requested: str | None, place: Path
) -> Iterator[InputInterface]:
    """What the input may be: the table's code or the table itself; a stored codebook or matrix
    behind each copying lift.

    requested: the interface, where it is known. Raises InputError if the stored code is not that of
    `requested`, or is no code.
    """
    size, width = weights["lm_head.weight"].shape
    for name, tensor in code.items():
        if row_not_finite(tensor) is not None:
            raise InputError(
                f"{place}: its {name} is not finite in row {row_not_finite(tensor)}; take a new"
                " copy"
            )
    if requested is not None and TABLE in weights:
        yield interface_of_table(weights[TABLE].numpy(), requested, None, place)[0]
    elif requested is not None:
        spec = InterfaceSpec.parse(requested)
        if not spec.fixed:
            raise InputError(f"--interface {requested}: no input table among the tensors")
        _require_stored(spec, size, code, place)
        yield build_interface(spec, size, width)
    elif TABLE in weights:
        try:
            yield fit(weights[TABLE].numpy())
        except InputError:
            yield build_interface(InterfaceSpec.parse("learned"), size, width)
    elif not code:
        raise InputError(
            "neither an input table nor a code among the tensors; say by --map FILE which it is, or"
            " give --interface SPEC"
        )
    else:
        for words, given in specs_of(code, size):
            count = InterfaceSpec.parse(words).code_width(size)
            for values, lift in product(("01", "pm1"), ("tile", "interleave", "pad")):
                keys = ({"values": values} if values != "01" else {}) | (
                    {"lift": lift} if lift != "tile" else {}
                )
                yield build_interface(
                    InterfaceSpec.parse(written(words, count, size, keys)), size, width, None, given
                )


def _require_stored(spec: InterfaceSpec, size: int, code: Weights, place: Path) -> None:
    """InputError where a stored codebook, matrix or offset is not that of a spec, in whatever
    entry.
    """
    if not code:
        return
    book = build_codebook(spec, size)
    for name, tensor in code.items():
        stored = tensor.float().numpy()
        if name == "codebook":
            bits = as_bits(stored) if spec.binary_valued else None
            same = bits is not None and has_words(str(spec), {}, bits, exact=True)
            same = same or (not spec.binary_valued and _close(stored, book.words_VK))
        else:
            wanted = book.arrays.get(name, np.empty(0))
            same = any(np.array_equal(stored, either) for either in (wanted, wanted.T))
        if not same:
            raise InputError(
                f"{place}: its {name} is not that of {str(spec)!r}; leave --interface out, or name"
                " its own"
            )


def _close(stored: np.ndarray, words_VK: np.ndarray) -> bool:
    """Whether float words are equal up to the last bits, which differ between machines. All are
    compared.
    """
    if stored.shape != words_VK.shape:
        return False
    return bool((np.abs(stored - words_VK) <= 1e-5 * np.abs(words_VK).max()).all())


def specs_of(code: Weights, size: int) -> Iterator[tuple[str, Given]]:
    """Words that give a stored codebook in every entry, or that a stored matrix and offset name,
    either way round.
    """
    if "codebook" in code:
        bits = as_bits(code["codebook"].float().numpy())
        if bits is None:
            raise InputError(
                "the stored codebook is not of bits; name its interface by --interface SPEC"
            )
        for words, given in words_of(bits, size):
            spec = written(words, bits.shape[1], size, {})
            if has_words(spec, given, bits, exact=True):
                yield spec, given
        return
    matrix = _bits_of("matrix", code["matrix"].float().numpy())
    offset = (
        _bits_of("offset", code["offset"].float().numpy())
        if "offset" in code
        else np.zeros(len(matrix), dtype=np.uint8)
    )
    places = minimal_width(size)
    invertible = [either for either in (matrix, matrix.T) if gf2.rank(either[:, :places]) == places]
    if not invertible:
        raise InputError(
            f"the stored matrix gives two of {size:,} tokens one word, so it is no code; take a new"
            " copy"
        )
    for either in invertible:
        given = {"matrix": np.ascontiguousarray(either), "offset": offset}
        yield f"gf2:matrix={matrix_hash(given)}", given


def _bits_of(name: str, stored: np.ndarray) -> np.ndarray:
    if not np.isin(stored, (0, 1)).all():
        raise InputError(
            f"the stored {name} holds other numbers than 0 and 1; say by --map FILE which tensor"
            " it is"
        )
    return stored.astype(np.uint8)
