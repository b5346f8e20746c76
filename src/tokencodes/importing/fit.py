"""The code in a table V×d: the lift from equal columns, how bits are shown from the values, the
words by solving for them.

Words that are linear over GF(2) in the id's bits (binary, gray, ecc, gf2 with any matrix and
offset) are solved for; seeded ones are tried with the seeds that people use. Whatever is proposed
must then give the very table: found exactly, or refused.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from tokencodes.codes import InterfaceSpec, build_codebook
from tokencodes.codes import lift as lifts
from tokencodes.codes.codebook import Given, collisions, matrix_hash
from tokencodes.codes.spec import PAPER_MIN_WEIGHT, PAPER_SEED, minimal_width
from tokencodes.errors import InputError
from tokencodes.interfaces import InputInterface, build_interface
from tokencodes.verify.check import row_not_finite

Floats = NDArray[np.float32]
Bits = NDArray[np.uint8]
IDS_SEEDS = range(16)  # of permuted ids
SEEDS = (PAPER_SEED, *range(8))  # of random words
LARGEST_BASE = 256


def fit(table_VD: Floats) -> InputInterface:
    """The interface, with its tables. InputError where no code that can be found gives every entry
    of this table.
    """
    require_code(table_VD)
    for spec, given in proposals(table_VD):
        interface = verified(spec, given, table_VD)
        if interface is not None:
            return interface
    raise InputError(
        "the input table is no code that can be found: name it by --interface SPEC, or say"
        " --interface learned to take it as a trained table"
    )


def require_code(table_VD: Floats) -> None:
    """InputError where a table is no code's, whatever the code: a value is not finite, or two
    tokens share a vector.
    """
    row = row_not_finite(torch.from_numpy(table_VD))
    if row is not None:
        raise InputError(
            f"the input table is not finite in the row of token {row}; take a new copy, or train it"
            " anew"
        )
    same = collisions(table_VD)
    if same:
        raise InputError(
            f"tokens {same[0][0]} and {same[0][1]} have the same vector in the input table"
            f" ({len(same):,} such pairs), so it is no code; --interface learned takes it as a"
            " trained table"
        )


def verified(spec: str, given: Given, table_VD: Floats) -> InputInterface | None:
    """The interface of a spec if it gives every entry of this table; else None. A block of rows at
    a time.
    """
    size, width = table_VD.shape
    try:
        interface = build_interface(InterfaceSpec.parse(spec), size, width, None, given)
    except InputError:  # a spec that does not fit these sizes
        return None
    table = torch.from_numpy(table_VD)
    same = all(
        torch.equal(rows, table[start : start + len(rows)]) for start, rows in interface.blocks()
    )
    return interface if same else None


def proposals(table_VD: Floats) -> Iterator[tuple[str, Given]]:
    """Specs that may be it, with the arrays that they name by hash; likelier ones first."""
    size = len(table_VD)
    for lift, count, shown in folded(table_VD):
        z_VK = table_VD[:, shown]
        bits = as_bits(z_VK)
        tail = {} if lift == "tile" else {"lift": lift}
        if bits is None:
            for words in (
                "sincos",
                *(f"{kind}:seed={seed}" for kind in ("gaussian", "sphere") for seed in SEEDS),
            ):
                yield written(words, count, size, tail), {}
            continue
        for words, given in words_of(bits, size):
            if has_words(written(words, count, size, {}), given, bits):
                for values in values_of(z_VK):
                    yield written(words, count, size, values | tail), given


def has_words(spec: str, given: Given, bits_VK: Bits, exact: bool = False) -> bool:
    """Whether a spec's words are these bits. Unless `exact`, coordinates that are the same in every
    token are left to the table itself.
    """
    try:
        words_VK = build_codebook(InterfaceSpec.parse(spec), len(bits_VK), given).words_VK
    except InputError:  # these words have no such width
        return False
    if words_VK.shape != bits_VK.shape:
        return False
    left_out = np.zeros(1, dtype=bool) if exact else (bits_VK == bits_VK[0]).all(0)
    return bool(((words_VK == bits_VK) | left_out).all())


def written(words: str, count: int, size: int, keys: Mapping[str, object]) -> str:
    """A SPEC from its words, K where these words do not have it anyway, and further keys."""
    width = {} if InterfaceSpec.parse(words).code_width(size) == count else {"width": count}
    options = ",".join(f"{key}={value}" for key, value in {**width, **keys}.items())
    return words + (("," if ":" in words else ":") + options if options else "")


def folded(table_VD: Floats) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Copying lifts that the equal columns of a table allow: name, K, and for each coordinate a
    channel that shows it.
    """
    size, width = table_VD.shape
    least = min(minimal_width(size), width)
    digests = [
        hashlib.blake2b(np.ascontiguousarray(column).data, digest_size=16).digest()
        for column in table_VD.T
    ]
    # equal columns have equal numbers
    same = np.array([digests.index(digest) for digest in digests])
    for count in range(least, width):
        for lift in ("tile", "interleave"):
            shown = lifts.columns(lift, count, width)
            first = (
                np.searchsorted(shown, np.arange(count))
                if lift == "interleave"
                else np.arange(count)
            )
            if np.array_equal(same, same[first][shown]):
                yield lift, count, first
                return  # the narrowest; a wider one repeats it
    used = np.flatnonzero(table_VD.any(axis=0))
    if len(used) and used[-1] + 1 < width:
        count = max(least, int(used[-1]) + 1)
        yield "pad", count, np.arange(count)
    yield "tile", width, np.arange(width)


def as_bits(z_VK: Floats) -> Bits | None:
    """1 where a coordinate shows the larger of its two values; None where one has more than two."""
    low, high = z_VK.min(0), z_VK.max(0)
    is_high = z_VK == high
    if not (is_high | (z_VK == low)).all():
        return None
    constant = low == high
    # a coordinate that is always shown as 0 is 0
    return (is_high & ~(constant & (high <= 0))).astype(np.uint8)


def values_of(z_VK: Floats) -> list[dict[str, object]]:
    """How bits may be shown, from the two values of the coordinates;
    what takes fewest words first."""
    reach = float((z_VK.max(0) - z_VK.min(0)).max())
    candidates: list[dict[str, object]] = []
    for center in ({}, {"center": "true"}):
        for values, span in (({}, 1.0), ({"values": "pm1"}, 2.0)):
            scales = [{}, {"scale": "match"}, {"scale": repr(reach / span)}]
            candidates += [
                {**values, **center, **scale} for scale in (scales if reach else scales[:1])
            ]
    return sorted(candidates, key=len)


def words_of(bits_VK: Bits, size: int) -> Iterator[tuple[str, Given]]:
    """What these words may be by number."""
    numbers, width = np.arange(size), bits_VK.shape[1]
    solved = affine(bits_VK)
    if solved is not None:
        yield "binary", {}
        yield "binary:endian=big", {}
        yield "gray", {}
        yield "ecc", {}
        matrix, offset = solved
        weights = matrix.sum(0).min(initial=width), matrix.sum(1).min(initial=width)
        if (
            min(weights) >= PAPER_MIN_WEIGHT and width >= 2 * PAPER_MIN_WEIGHT
        ):  # or no draw of these seeds is it
            for seed in SEEDS:
                yield f"gf2:seed={seed}" + (",affine=true" if offset.any() else ""), {}
        if matrix.shape[1] == width:
            given: Given = {"matrix": matrix, "offset": offset}
            yield f"gf2:matrix={matrix_hash(given)}", given
        return
    for seed in IDS_SEEDS:
        for words in ("binary", "gf2", "gray"):
            yield f"{words}:ids=permuted,ids_seed={seed}", {}
    for seed in SEEDS:
        yield f"random:seed={seed}", {}
    for base in range(2, min(LARGEST_BASE, width) + 1):
        if width % base == 0 and base ** (width // base) >= len(numbers):
            yield f"digits:base={base}", {}


def affine(bits_VK: Bits) -> tuple[Bits, Bits] | None:
    """Matrix [K, bits] and offset [K] over GF(2) with word(t) = A·t + b for every id; None where
    there is none. Ids 2^j have one bit each, so that A is read off them, and the rest must follow.
    """
    size, places = len(bits_VK), minimal_width(len(bits_VK))
    offset = bits_VK[0]
    powers = [1 << place for place in range(places)]
    if powers[-1] >= size:
        return None
    matrix = (bits_VK[powers] ^ offset).T
    ids = (np.arange(size)[:, None] >> np.arange(places) & 1).astype(np.uint8)
    said = (ids.astype(np.int64) @ matrix.T.astype(np.int64) & 1).astype(np.uint8) ^ offset
    return (np.ascontiguousarray(matrix), offset.copy()) if np.array_equal(said, bits_VK) else None


def order_of(spec: InterfaceSpec, table_VD: Floats) -> Given:
    """What an informed assignment names by hash, read off the table: the number of each token's
    word. InputError where a token has no word of these.
    """
    size, width = table_VD.shape
    plain = replace(spec, ids="natural", ids_seed=0, order=None)
    natural = build_interface(plain, size, width).materialize().numpy()
    numbers = {row.tobytes(): number for number, row in enumerate(natural)}
    try:
        return {"order": np.array([numbers[row.tobytes()] for row in table_VD], dtype=np.int32)}
    except KeyError:
        raise InputError(
            f"the input table holds a vector that is no word of {str(spec)!r}"
        ) from None
