"""A spec made concrete: words by token, how they are shown, and the integer tables that a model
stores.

Integer codes are regenerated and compared bit by bit wherever they are loaded; nothing is trusted
because it was saved. Float codes and the orthogonal lift depend on the machine's numerics, so they
travel, and are checked by the hash of their bytes.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokencodes.codes import assign, gf2, lift, words
from tokencodes.codes.gf2 import Bits
from tokencodes.codes.spec import LINEAR, VOCABULARY_BOUND, InterfaceSpec, minimal_width
from tokencodes.errors import InputError, first_line
from tokencodes.files import map_array
from tokencodes.memory import require_memory

Given = dict[str, NDArray[Any]]
# wider words of bits are stored packed, V·K/8 bytes; narrower ones as the paper counts them
PACK_ABOVE = 16
CACHED_ENTRIES = 1 << 24
BLOCK_ROWS = 4096
DIGEST_ABOVE = 64  # bytes of a row
MOST_WIDTH = 4096  # of a matrix in a file; elimination takes seconds there
MOST_BYTES = 1 << 30  # of that file
NARROWER = "lower width= or base="


@dataclass(frozen=True, eq=False)
class Codebook:
    """words_VK: uint8 bits or float32, by token id; arrays: matrix and offset of gf2, order of an
    informed assignment.
    """

    spec: InterfaceSpec
    words_VK: NDArray[Any]
    arrays: Given

    @cached_property
    def sha256(self) -> str:
        """The codebook hash: SHA-256 of a header "V,K,dtype;" and the bytes, row by row."""
        return array_sha256(self.words_VK)

    @property
    def width(self) -> int:
        """K."""
        return int(self.words_VK.shape[1])

    def collisions(self) -> list[tuple[int, int]]:
        """Pairs of token ids that share a word (each with the first that has it): empty if
        injective.
        """
        return collisions(self.words_VK)

    def levels(self, hidden_size: int) -> NDArray[np.float32] | None:
        """What a 0 and a 1 are shown as in each coordinate, float32[2, K]; None for float words and
        for plain 0/1 or ±1.
        """
        spec = self.spec
        if not spec.binary_valued or not (spec.center or spec.scale != 1.0):
            return None
        value_0, value_1 = (-1.0, 1.0) if spec.values == "pm1" else (0.0, 1.0)
        share_K = self.words_VK.sum(0, dtype=np.int64) / len(self.words_VK)
        mean_K = value_0 + (value_1 - value_0) * share_K if spec.center else np.zeros(self.width)
        levels = np.stack([value_0 - mean_K, value_1 - mean_K])
        squared_K = levels[0] ** 2 * (1 - share_K) + levels[1] ** 2 * share_K
        return (levels * self._factor(squared_K, hidden_size)).astype(np.float32)

    def coordinates(self, hidden_size: int) -> NDArray[np.float32]:
        """The input z of the lift, float32[V, K]: the words after values, centring and scale."""
        spec = self.spec
        if spec.binary_valued:
            levels = self.levels(hidden_size)
            if levels is not None:
                return np.where(self.words_VK == 1, levels[1], levels[0])
            plain = self.words_VK.astype(np.float32)
            return plain * 2 - 1 if spec.values == "pm1" else plain
        if not (spec.center or spec.scale != 1.0):
            shown: NDArray[np.float32] = self.words_VK
            return shown
        z = self.words_VK.astype(np.float64)
        z = z - z.mean(0) if spec.center else z
        return (z * self._factor((z**2).mean(0), hidden_size)).astype(np.float32)

    def blocks(self, hidden_size: int) -> Iterator[NDArray[np.float64]]:
        """`coordinates`, float64, a block of rows at a time."""
        levels = self.levels(hidden_size)
        whole = None if self.spec.binary_valued else self.coordinates(hidden_size)
        value_0, value_1 = (-1.0, 1.0) if self.spec.values == "pm1" else (0.0, 1.0)
        for start in range(0, len(self.words_VK), BLOCK_ROWS):
            rows = (self.words_VK if whole is None else whole)[start : start + BLOCK_ROWS]
            if whole is not None:
                yield rows.astype(np.float64)
            elif levels is None:
                yield value_0 + (value_1 - value_0) * rows.astype(np.float64)
            else:
                yield np.where(
                    rows == 1, levels[1].astype(np.float64), levels[0].astype(np.float64)
                )

    def squared_norms(self, hidden_size: int) -> NDArray[np.float64]:
        """‖x(t)‖² of each token after the lift, float64[V]."""
        scale_K = lift.squared_scale(self.spec.lift, self.width, hidden_size)
        return np.concatenate([(block**2) @ scale_K for block in self.blocks(hidden_size)])

    def gram(self, hidden_size: int) -> NDArray[np.float64]:
        """zᵀz, float64[K, K]: the singular values of z are the roots of its eigenvalues."""
        require_memory(
            8 * self.width**2,
            f"interface {str(self.spec)!r}: products of {self.width:,} coordinates",
            NARROWER,
        )
        total = np.zeros((self.width, self.width))
        for block in self.blocks(hidden_size):
            total += block.T @ block
        return total

    def rank(self, hidden_size: int) -> int:
        """Rank of the V×d table over the reals: the lift has full column rank, so it is z's."""
        return int(np.linalg.matrix_rank(self.gram(hidden_size), hermitian=True))

    def _factor(self, squared_K: NDArray[np.float64], hidden_size: int) -> float:
        """`scale`, or what brings the mean squared norm after the lift to d·std², a learned table's
        at initialisation.
        """
        if self.spec.scale != "match":
            return float(self.spec.scale)
        now = float(squared_K @ lift.squared_scale(self.spec.lift, self.width, hidden_size))
        if now == 0.0:
            raise InputError(
                f"interface {str(self.spec)!r}: every vector is zero, so no scale can match a norm"
            )
        factor = float(np.sqrt(hidden_size * self.spec.std**2 / now))
        if np.float32(factor) == 0.0:
            raise InputError(
                f"interface {str(self.spec)!r}: std={self.spec.std:g} makes every vector zero; take"
                " a larger one"
            )
        return factor


def array_sha256(array: NDArray[Any]) -> str:
    """Hash of a V×K array with its shape and type."""
    count, width = array.shape
    digest = hashlib.sha256(f"{count},{width},{array.dtype.name};".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def collisions(words_VK: NDArray[Any]) -> list[tuple[int, int]]:
    """Pairs (first token with this word, another with the same), by value: -0.0 is 0.0.

    Words of no coordinate are all equal.
    """
    if not words_VK.shape[1]:
        return [(0, token) for token in range(1, len(words_VK))]
    rows: NDArray[Any] = np.packbits(words_VK, axis=1) if words_VK.dtype == np.uint8 else words_VK
    wide = rows.dtype.kind == "f" or rows.shape[1] > DIGEST_ABOVE
    return equal_rows(row_digests(rows) if wide else rows)


def row_digests(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """128 bits of each row by value, uint8[V, 16]: no copy of a wide table, and no chance hit."""
    digests = [hashlib.blake2b(row + row.dtype.type(0), digest_size=16).digest() for row in rows]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(rows), 16)


def equal_rows(rows: NDArray[Any]) -> list[tuple[int, int]]:
    """Pairs of row numbers with the same bytes: the first that has them, and each other."""
    rows = np.ascontiguousarray(rows)
    keys = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).reshape(-1)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    others = np.flatnonzero(first[group] != np.arange(len(keys)))
    return [(int(first[group[i]]), int(i)) for i in others]


def read_matrix(path: Path) -> Given:
    """A and b of gf2 from a text file of 0 and 1 (K rows of K; a further row is b) or an .npy
    array; InputError if unfit.
    """
    table = _table_of(path)
    if table.ndim != 2 or table.dtype.kind not in "biuf":
        raise InputError(
            f"matrix={path}: {table.ndim} dimensions of type {table.dtype}; rows of 0 and 1 are"
            " needed"
        )
    rows, width = table.shape
    if width > MOST_WIDTH or not width or rows not in (width, width + 1):
        raise InputError(
            f"matrix={path}: {rows:,} rows of {width:,}; a square matrix of at most {MOST_WIDTH:,}"
            " rows, or one row more for the offset, is needed"
        )
    wrong = np.argwhere(~np.isin(table, (0, 1)))
    if len(wrong):
        row, column = wrong[0].tolist()
        place = f"row {row + 1}, column {column + 1}"
        raise InputError(
            f"matrix={path}: {table[row, column]} in {place}; only 0 and 1 are possible"
        )
    matrix = table[:width].astype(np.uint8)
    rank = gf2.rank(matrix)
    if rank < width:
        same = collisions(matrix)
        why = (
            f"rows {same[0][0] + 1} and {same[0][1] + 1} are equal"
            if same
            else f"its rank over GF(2) is {rank}"
        )
        raise InputError(
            f"matrix={path}: singular, so tokens would share codes ({why} of {width}); give an"
            " invertible one"
        )
    return {
        "matrix": matrix,
        "offset": (
            table[width].astype(np.uint8) if rows > width else np.zeros(width, dtype=np.uint8)
        ),
    }


def _table_of(path: Path) -> NDArray[Any]:
    """The numbers in a file, of any shape. InputError: it is missing, no file, too large, or holds
    something else.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise InputError(f"matrix={path}: not a file; name a text file or an .npy array")
        if not 0 < size <= MOST_BYTES:
            raise InputError(
                f"matrix={path}: {size:,} bytes; a matrix has at least 1 and at most {MOST_BYTES:,}"
            )
        if path.suffix == ".npy":
            return map_array(path)
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        raise InputError(f"matrix={path}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"matrix={path}: not text (byte 0x{error.object[error.start]:02x} at {error.start:,})"
        ) from None
    except OSError as error:
        raise InputError(f"matrix={path}: cannot be read ({error.strerror})") from None
    lines = [line for line in text.splitlines() if line.partition("#")[0].strip()]
    if not lines:
        raise InputError(f"matrix={path}: no numbers in it; rows of 0 and 1 are needed")
    try:
        return np.loadtxt(lines, dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise InputError(f"matrix={path}: not a table of numbers ({first_line(error)})") from None


def matrix_hash(given: Given) -> str:
    """The value of `matrix=` in a spec after the file was read: a hash."""
    return (
        "sha256-"
        + hashlib.sha256(given["matrix"].tobytes() + given["offset"].tobytes()).hexdigest()[:16]
    )


def _check_matrix(given: Given, width: int, named: str) -> None:
    """InputError if a given matrix and offset are not uint8 of 0 and 1 in the code's width, or not
    what the spec names.
    """
    matrix, offset = given["matrix"], given["offset"]
    if matrix.shape != (width, width) and matrix.ndim == 2:
        size = len(matrix)
        raise InputError(
            f"matrix: {size}x{size}, but the code width is {width}; say width={size} in the spec"
        )
    for name, array, shape in (("matrix", matrix, (width, width)), ("offset", offset, (width,))):
        if array.dtype != np.uint8 or array.shape != shape or array.max() > 1:
            needed = " x ".join(map(str, shape))
            raise InputError(
                f"{name}: {array.dtype} of shape {array.shape}; {needed} numbers 0 and 1 of type"
                " uint8 are needed"
            )
    if matrix_hash(given) != named:
        raise InputError(
            f"matrix: its hash is {matrix_hash(given)}, the spec says {named}; give that one"
        )


def build_codebook(spec: InterfaceSpec, vocab_size: int, given: Given | None = None) -> Codebook:
    """The codebook of a spec for V tokens.

    `given` holds the arrays that no seed determines: `order`, or `matrix` and `offset`. Raises
    InputError if the spec cannot give each token its own code, if a needed array is missing, or if
    an array is not the one that the spec names.
    """
    if spec.learned:
        raise ValueError("a learned table has no codebook")
    if vocab_size < 1:
        raise InputError(
            f"interface {str(spec)!r}: a vocabulary of {vocab_size} tokens has no codes"
        )
    if vocab_size > VOCABULARY_BOUND:
        raise InputError(
            f"interface {str(spec)!r}: a vocabulary of {vocab_size:,} tokens is beyond the"
            f" {VOCABULARY_BOUND:,} that are possible here; lower it"
        )
    missing = [name for name in spec.given if name not in (given or {})]
    if missing:
        raise InputError(
            f"interface {str(spec)!r}: its {missing[0]} comes with a model or a dataset, not from"
            " the spec"
        )
    what = f"interface {str(spec)!r} for {vocab_size:,} tokens"
    require_memory(codebook_bytes(spec, vocab_size), what, f"{NARROWER}, or the vocabulary")
    if given or vocab_size * spec.code_width(vocab_size) > CACHED_ENTRIES:
        return _build(spec, vocab_size, given or {})
    return _cached(spec, vocab_size)


def codebook_bytes(spec: InterfaceSpec, vocab_size: int) -> int:
    """What building a codebook takes at least: words of V tokens, their numbers, and the K×K matrix
    of gf2.
    """
    width = spec.code_width(vocab_size)
    return vocab_size * (width * (1 if spec.binary_valued else 4) + 8) + (
        width**2 if spec.kind == "gf2" else 0
    )


@lru_cache(maxsize=4)
def _cached(spec: InterfaceSpec, vocab_size: int) -> Codebook:
    return _build(spec, vocab_size, {})


def _build(spec: InterfaceSpec, vocab_size: int, given: Given) -> Codebook:
    width = spec.code_width(vocab_size)
    arrays: Given = {name: given[name] for name in spec.given}
    if spec.informed:
        assign.check_order(arrays["order"], vocab_size, spec.order)
    if spec.matrix:
        _check_matrix(arrays, width, spec.matrix)
        _check_tokens_differ(spec, vocab_size, arrays["matrix"])
    if spec.kind == "gf2":
        arrays |= {} if spec.matrix else words.gf2_arrays(spec, width)
    numbers = numbers_of(spec, vocab_size, arrays)
    book: NDArray[Any]
    if spec.kind in LINEAR:
        masks = words.linear_masks(spec, vocab_size, arrays)
        book = by_rows(lambda n: words.parities(n, masks), numbers, width)
        book ^= arrays["offset"] if spec.kind == "gf2" else np.uint8(0)
    elif spec.kind == "random":
        keys, shifts = words.random_keys(width, spec.seed), np.arange(words.WORD_BITS)
        book = by_rows(lambda n: words.random_bits(n, width, keys, shifts), numbers, width)
    elif spec.kind == "digits":
        book = words.digits(vocab_size, spec.base, width)[numbers]
    else:
        drawn = words.floats(spec, vocab_size, width)
        book = drawn if spec.ids == "natural" else drawn[numbers]
    for array in (book, *arrays.values()):
        array.setflags(write=False)  # the cache hands the same arrays to everyone
    return Codebook(spec, book, arrays)


def _check_tokens_differ(spec: InterfaceSpec, vocab_size: int, matrix: Bits) -> None:
    """InputError where tokens would share words. Every nonzero number of b bits is the xor of two
    ids, so the b columns that ids reach must be independent.
    """
    bits = minimal_width(vocab_size)
    if gf2.rank(matrix[:, :bits]) < bits:
        raise InputError(
            f"interface {str(spec)!r}: its matrix gives two of {vocab_size:,} tokens one word; take"
            " an invertible one"
        )


def by_rows(
    function: Callable[[NDArray[np.int64]], Any], numbers: NDArray[np.int64], width: int
) -> Bits:
    """A formula's bits as uint8[V, K], a block of rows at a time: its int64 intermediates never
    exist whole.
    """
    book = np.empty((len(numbers), width), dtype=np.uint8)
    for start in range(0, len(numbers), BLOCK_ROWS):
        book[start : start + BLOCK_ROWS] = function(numbers[start : start + BLOCK_ROWS])
    return book


def numbers_of(spec: InterfaceSpec, vocab_size: int, arrays: Given) -> NDArray[np.int64]:
    """The word number of each token, int64[V]."""
    if spec.informed:
        return arrays["order"].astype(np.int64)
    return (
        assign.permuted(vocab_size, spec.ids_seed)
        if spec.ids == "permuted"
        else assign.natural(vocab_size)
    )


__all__ = ["Bits", "Codebook", "Given", "build_codebook", "collisions", "equal_rows", "row_digests"]
