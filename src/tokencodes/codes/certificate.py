"""The certificate of one code: identity, geometry and what its order gives away. Exact, unless a
line says otherwise.

Nothing here is sampled: the minimum distance is over all pairs of the instantiated vocabulary.
Linear words need no pairs: for 2^(b-1) < V <= 2^b every nonzero b-bit number is the xor of two
numbers below V, so the least distance is the least weight.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokencodes.codes import gf2, lift
from tokencodes.codes.codebook import Codebook, by_rows, collisions, equal_rows, row_digests
from tokencodes.codes.spec import LINEAR, minimal_width
from tokencodes.codes.words import linear_masks, parities
from tokencodes.errors import InputError

# up to here a table of all words is cheap, and near pairs are found by flipping bits
PRESENCE_BITS = 26
PAIR_BLOCK = 4096
COUNT_WIDTH = 256  # bits up to which counting beats a matrix product
COUNT_BLOCK = 64  # rows whose xor with a block of pairs stays in cache


@dataclass(frozen=True)
class CodeCertificate:
    """Facts of one code over its V tokens. Distances: Hamming for bits, Euclidean between
    coordinates for floats.
    """

    spec: str
    vocab_size: int
    hidden_size: int
    code_width: int
    spec_sha256: str
    codebook_sha256: str
    injective: bool
    injective_bfloat16: bool
    injective_float16: bool
    minimum_distance: float
    mean_squared_distance: float  # of all pairs; for bits the mean Hamming distance
    rank_gf2: int | None
    rank_real: int
    squared_norm_mean: float
    squared_norm_std: float
    squared_norm_min: float
    squared_norm_median: float
    squared_norm_max: float
    mean_vector_squared_norm: float
    bit_balance: tuple[float, ...] | None  # share of ones in each coordinate
    unused_words: int | None  # of 2^K; None for float words
    singular_values: tuple[float, ...]  # of the lifted V×d table, largest first


def certify_code(book: Codebook, hidden_size: int) -> CodeCertificate:
    """Returns the certificate of a code.

    Raises InputError if two tokens share a code or a float32 vector.
    """
    spec, vocab_size, width = book.spec, len(book.words_VK), book.width
    same = book.collisions()
    if same:
        raise InputError(
            f"interface {str(spec)!r}: tokens {same[0][0]} and {same[0][1]} share a code"
            f" ({len(same):,} collisions among {vocab_size:,} tokens); widen width= or change the"
            " words"
        )
    if not _injective_rounded(book, hidden_size, to_float32):
        raise InputError(
            f"interface {str(spec)!r}: two tokens share a vector in float32; change scale= or the"
            " words"
        )
    norms_V = book.squared_norms(hidden_size)
    scale_K = lift.squared_scale(spec.lift, width, hidden_size)
    mean_K = sum(block.sum(0) for block in book.blocks(hidden_size)) / vocab_size
    gram = book.gram(hidden_size) * np.sqrt(np.outer(scale_K, scale_K))
    eigenvalues = np.linalg.eigvalsh(gram)[::-1].clip(min=0)
    bits = spec.binary_valued
    return CodeCertificate(
        spec=str(spec),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        code_width=width,
        spec_sha256=spec.sha256(vocab_size, hidden_size),
        codebook_sha256=book.sha256,
        injective=True,
        injective_bfloat16=_injective_rounded(book, hidden_size, to_bfloat16),
        injective_float16=_injective_rounded(book, hidden_size, to_float16),
        minimum_distance=minimum_distance(book, hidden_size),
        mean_squared_distance=mean_squared_distance(book, hidden_size),
        rank_gf2=gf2.rank(book.words_VK) if bits else None,
        rank_real=int((eigenvalues > eigenvalues[0] * width * np.finfo(np.float64).eps).sum()),
        squared_norm_mean=float(norms_V.mean()),
        squared_norm_std=float(norms_V.std()),
        squared_norm_min=float(norms_V.min()),
        squared_norm_median=float(np.median(norms_V)),
        squared_norm_max=float(norms_V.max()),
        mean_vector_squared_norm=float(mean_K**2 @ scale_K),
        bit_balance=tuple(book.words_VK.mean(0).tolist()) if bits else None,
        unused_words=2**width - vocab_size if bits else None,
        singular_values=tuple(np.sqrt(eigenvalues).tolist()),
    )


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bit patterns after rounding to bfloat16, nearest even; -0 as 0."""
    raw = (values + np.float32(0)).view(np.uint32)
    return ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16)


def to_float32(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Bit patterns as they are; -0 as 0."""
    return (values + np.float32(0)).view(np.uint32)


def to_float16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bit patterns after rounding to float16;
    what is too large becomes infinite, and so the same."""
    with np.errstate(over="ignore"):
        return (values.astype(np.float16) + np.float16(0)).view(np.uint16)


def _injective_rounded(book: Codebook, hidden_size: int, rounded: Any) -> bool:
    """Whether the lifted vectors stay distinct. A copying lift shows the coordinates themselves, so
    it need not be made.
    """
    turned = None
    if book.spec.lift == "orthogonal":
        turned = lift.orthogonal(book.width, hidden_size, book.spec.lift_seed).T
    elif (
        book.spec.binary_valued
    ):  # the two levels of a coordinate must stay apart, or the coordinate is lost
        two = book.levels(hidden_size)
        kept = (
            np.ones(book.width, dtype=bool) if two is None else rounded(two)[0] != rounded(two)[1]
        )
        return bool(kept.all()) or not collisions(np.ascontiguousarray(book.words_VK[:, kept]))
    parts = []
    for block in book.blocks(hidden_size):
        z = block.astype(np.float32)
        parts.append(row_digests(rounded(z if turned is None else z @ turned)))
    return not equal_rows(np.concatenate(parts))


def mean_squared_distance(book: Codebook, hidden_size: int) -> float:
    """Mean over all pairs of distinct tokens: 2 (mean ‖z‖² - ‖mean z‖²) V / (V - 1); for bits the
    mean Hamming distance.
    """
    count = len(book.words_VK)
    if count == 1:
        return 0.0
    if book.spec.binary_valued:
        share_K = book.words_VK.mean(0, dtype=np.float64)
        return float(2 * (share_K * (1 - share_K)).sum() * count / (count - 1))
    squared, total_K = 0.0, np.zeros(book.width)
    for block in book.blocks(hidden_size):
        squared, total_K = squared + float((block**2).sum()), total_K + block.sum(0)
    return float(2 * (squared / count - ((total_K / count) ** 2).sum()) * count / (count - 1))


def minimum_distance(book: Codebook, hidden_size: int) -> float:
    """The least distance of two tokens, exact; infinite for a single token."""
    spec, words_VK = book.spec, book.words_VK
    if len(words_VK) == 1:
        return float("inf")
    if spec.binary_valued and spec.kind in LINEAR:
        bits = minimal_width(len(words_VK))
        masks = linear_masks(spec, len(words_VK), book.arrays)
        every = by_rows(
            lambda n: parities(n, masks), np.arange(1 << bits, dtype=np.int64), book.width
        )
        return float(every[1:].sum(1, dtype=np.int64).min())
    if spec.binary_valued:
        near = _near_by_flipping(words_VK) if book.width <= PRESENCE_BITS else None
        if near is not None:
            return float(near)
        if book.width <= COUNT_WIDTH:
            return float(_least_by_counting(words_VK))
        # ‖a - b‖² of bits is their Hamming distance
        return float(_least_by_products(words_VK.astype(np.float32)))
    return float(np.sqrt(_least_by_products(book.coordinates(hidden_size))))


def _near_by_flipping(words_VK: NDArray[Any]) -> int | None:
    """The least Hamming distance if it is 1 or 2: some word has a neighbour among all words."""
    width = words_VK.shape[1]
    numbers = words_VK.astype(np.int64) @ (1 << np.arange(width, dtype=np.int64))
    present = np.zeros(1 << width, dtype=bool)
    present[numbers] = True
    flips = [1 << i for i in range(width)]
    if any(present[numbers ^ flip].any() for flip in flips):
        return 1
    pairs = (a ^ b for i, a in enumerate(flips) for b in flips[:i])
    return 2 if any(present[numbers ^ flip].any() for flip in pairs) else None


def _least_by_counting(words_VK: NDArray[Any]) -> int:
    """The least Hamming distance over every pair, by xor and population count of 64 bits at a time;
    two threads.
    """
    packed = np.packbits(words_VK, axis=1)
    columns = -(-packed.shape[1] // 8)
    padded = np.zeros((len(packed), 8 * columns), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    words_CV = np.ascontiguousarray(padded.view(np.uint64).T)

    def least_from(first: int) -> int:
        left_CN = words_CV[:, first : first + COUNT_BLOCK]
        least = words_VK.shape[1]
        for start in range(first, words_CV.shape[1], PAIR_BLOCK):
            right_CN = words_CV[:, start : start + PAIR_BLOCK]
            counts = np.zeros((left_CN.shape[1], right_CN.shape[1]), dtype=np.uint16)
            for left, right in zip(left_CN, right_CN, strict=True):
                counts += np.bitwise_count(left[:, None] ^ right[None, :])
            if start == first:
                np.fill_diagonal(counts, np.iinfo(np.uint16).max)
            least = min(least, int(counts.min()))
        return least

    with ThreadPoolExecutor(2) as threads:
        return min(threads.map(least_from, range(0, words_CV.shape[1], COUNT_BLOCK)))


def _least_by_products(z_VK: NDArray[np.float32]) -> float:
    """The least squared Euclidean distance: float32 products find the near pairs of each block,
    float64 measures them.

    ‖a - b‖² is one product of (-2a, ‖a‖², 1) and (b, 1, ‖b‖²), so a block of pairs is made and read
    once.
    """
    starts = range(0, len(z_VK), PAIR_BLOCK)
    norms_V = np.concatenate(
        [(z_VK[i : i + PAIR_BLOCK].astype(np.float64) ** 2).sum(1) for i in starts]
    ).astype(np.float32)

    def extended(start: int, factor: float, last: bool) -> NDArray[np.float32]:
        block, norms = z_VK[start : start + PAIR_BLOCK], norms_V[start : start + PAIR_BLOCK, None]
        ones = np.ones_like(norms)
        return np.hstack([np.float32(factor) * block, *((ones, norms) if last else (norms, ones))])

    # Twice the worst rounding of such a product: no nearer pair can hide behind it.
    slack = float(norms_V.max()) * 8 * np.finfo(np.float32).eps * np.sqrt(z_VK.shape[1])
    least = np.inf
    for i in starts:
        left = extended(i, -2.0, last=False)
        for j in range(i, len(z_VK), PAIR_BLOCK):
            squared = left @ extended(j, 1.0, last=True).T
            if i == j:
                np.fill_diagonal(squared, np.inf)
            if squared.min() - slack < least:
                least = min(
                    least,
                    _measured(
                        z_VK, np.argwhere(squared <= squared.min() + slack) + np.array([i, j])
                    ),
                )
    return least


def _measured(z_VK: NDArray[np.float32], pairs: NDArray[np.int64]) -> float:
    """The least squared distance of some pairs, in float64, a block of pairs at a time."""
    blocks = (pairs[start : start + PAIR_BLOCK] for start in range(0, len(pairs), PAIR_BLOCK))
    return min(
        float(((z_VK[b[:, 0]].astype(np.float64) - z_VK[b[:, 1]]) ** 2).sum(1).min())
        for b in blocks
    )
