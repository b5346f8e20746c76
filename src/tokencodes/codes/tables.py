"""The tables that a model stores for a fixed code, all of integer type, so that no cast of the
model can reach them.

  codebook   bits: uint8[V, K] up to K = 16, packed uint8[V, ceil(K / 8)] above;
             floats: float32[V, K] as int32 bit patterns
  masks      instead of a codebook where the code is computed from ids: int64[K] (linear words)
  matrix, offset, order    what defines gf2 words and an informed assignment
  levels     what 0 and 1 are shown as, float32[2, K] as int32, where they are neither 0/1 nor ±1
  lift       the orthogonal lift, float32[d, K] as int32

Float words and the orthogonal lift are stored with a model and checked by hash: another machine's
numerics can change their last bits. All other tables are made again and compared bit by bit.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokencodes.codes import lift, words
from tokencodes.codes.codebook import PACK_ABOVE, Codebook, array_sha256
from tokencodes.codes.spec import LINEAR, InterfaceSpec

Tables = dict[str, NDArray[Any]]


def hashed_tables(spec: InterfaceSpec) -> tuple[str, ...]:
    """The tables of a spec that are checked by hash."""
    names = ("codebook",) if spec.fixed and not spec.binary_valued else ()
    return (*names, "lift") if spec.lift == "orthogonal" and not spec.learned else names


def make_tables(book: Codebook, hidden_size: int) -> Tables:
    """The tables of a fixed code."""
    spec, tables = book.spec, dict(book.arrays)
    if spec.storage == "computed":
        if spec.kind in LINEAR:
            tables["masks"] = words.linear_masks(spec, len(book.words_VK), book.arrays)
    elif not spec.binary_valued:
        tables["codebook"] = book.coordinates(hidden_size).view(np.int32)
    elif book.width > PACK_ABOVE:
        tables["codebook"] = np.packbits(book.words_VK, axis=1, bitorder="little")
    else:
        tables["codebook"] = book.words_VK
    levels = book.levels(hidden_size)
    if levels is not None:
        tables["levels"] = levels.view(np.int32)
    return tables | lift_table(spec, book.width, hidden_size)


def lift_table(spec: InterfaceSpec, width: int, hidden_size: int) -> Tables:
    """The table of the lift, where it needs one."""
    if spec.lift != "orthogonal":
        return {}
    return {"lift": lift.orthogonal(width, hidden_size, spec.lift_seed).view(np.int32)}


def shapes(
    spec: InterfaceSpec, vocab_size: int, hidden_size: int
) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and numpy type of each table. No table is made."""
    width = spec.code_width(vocab_size)
    table_shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    if spec.informed and spec.fixed:
        table_shapes["order"] = (vocab_size,), "int32"
    if spec.kind == "gf2" and spec.fixed:
        table_shapes |= {"matrix": ((width, width), "uint8"), "offset": ((width,), "uint8")}
    if spec.fixed:
        if spec.storage == "computed":
            table_shapes |= {"masks": ((width,), "int64")} if spec.kind in LINEAR else {}
        elif not spec.binary_valued:
            table_shapes["codebook"] = (vocab_size, width), "int32"
        else:
            table_shapes["codebook"] = (
                (
                    vocab_size,
                    width if width <= PACK_ABOVE else -(-width // 8),
                ),
                "uint8",
            )
        if spec.binary_valued and (spec.center or spec.scale != 1.0):
            table_shapes["levels"] = (2, width), "int32"
    if spec.lift == "orthogonal":
        table_shapes["lift"] = (hidden_size, width), "int32"
    return table_shapes


def tables_sha256(spec: InterfaceSpec, tables: Tables, book_sha256: str | None) -> str | None:
    """The codebook hash of a model.

    Without hashed tables it is the hash of the bits. Otherwise it covers the hashed tables and the
    bits.
    """
    names = hashed_tables(spec)
    if not names:
        return book_sha256
    parts = [book_sha256 or ""] if spec.fixed and spec.binary_valued else []
    parts += [f"{name}:{array_sha256(tables[name])}" for name in names]
    return hashlib.sha256(";".join(parts).encode()).hexdigest()
