"""Philox, permutations and the three samplers, written once more: slowly, in whole numbers, from
the documented layouts.

Nothing here uses the source that it is compared with.
"""

from bisect import bisect_right
from itertools import accumulate

WORD = 1 << 64
Lengths = list[list[int]]  # of the documents of each shard
Window = tuple[int, int, int, int]  # shard, document, start, length


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox4x64-10 as its paper has it."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        first, second = c0 * 0xD2E7470EE14C6C93, c2 * 0xCA5A826395121157
        c0, c1, c2, c3 = (
            (second >> 64) ^ c1 ^ k0,
            second % WORD,
            (first >> 64) ^ c3 ^ k1,
            first % WORD,
        )
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % WORD, (k1 + 0xBB67AE8584CAA73B) % WORD
    return c0, c1, c2, c3


def words(seed: int, domain: str, *counter: int) -> tuple[int, int, int, int]:
    """The block of a counter; places that are not named are 0."""
    name = int.from_bytes(domain.encode().ljust(8, b"\0"), "little")
    return philox((seed, name), (*counter, *(0,) * (4 - len(counter))))  # type: ignore[arg-type]


def stream(seed: int, domain: str, count: int, *index: int) -> list[int]:
    """Words of the counters (0, *index), (1, *index), ..."""
    return [word for block in range(-(-count // 4)) for word in words(seed, domain, block, *index)][
        :count
    ]


def permutation(seed: int, domain: str, size: int, *index: int) -> list[int]:
    """The places of random words in ascending order."""
    drawn = stream(seed, domain, size, *index)
    return sorted(range(size), key=drawn.__getitem__)


def bounded(word: int, bound: int) -> int:
    """A word as a number below the bound."""
    return word * bound >> 64


def paper_window(
    lengths: Lengths, context: int, seed: int, streams: int, visit: int, part: int, index: int
) -> Window:
    """Window `index` of the sampler `paper`."""
    visited = [number for number, shard in enumerate(lengths) if max(shard) >= context + 1]
    in_stream, of_stream = divmod(index, streams)
    cycle, place = divmod(in_stream // visit, len(visited))
    shard = visited[permutation(seed, "shards", len(visited), of_stream, cycle, part)[place]]
    eligible = [document for document, length in enumerate(lengths[shard]) if length >= context + 1]
    drawn = words(seed, "windows", index, part)
    document = eligible[bounded(drawn[0], len(eligible))]
    return shard, document, bounded(drawn[1], lengths[shard][document] - context), context + 1


def uniform_window(
    lengths: Lengths, context: int, seed: int, streams: int, visit: int, part: int, index: int
) -> Window:
    """Window `index` of the sampler `token-uniform`."""
    starts = [
        [(number, start) for number, n in enumerate(shard) for start in range(max(0, n - context))]
        for shard in lengths
    ]
    owners = [number for number, shard in enumerate(starts) for _ in shard]
    in_stream, of_stream = divmod(index, streams)
    shard = owners[
        bounded(words(seed, "tvisits", in_stream // visit, of_stream, part)[0], len(owners))
    ]
    document, start = starts[shard][
        bounded(words(seed, "tstarts", index, part)[0], len(starts[shard]))
    ]
    return shard, document, start, context + 1


def packed_window(lengths: Lengths, context: int, seed: int, part: int, index: int) -> Window:
    """Window `index` of the sampler `packed`."""
    windows = [
        [
            (number, start, min(context + 1, n - start))
            for number, n in enumerate(shard)
            for start in range(0, n - 1, context)
        ]
        for shard in lengths
    ]
    epoch, rest = divmod(index, sum(map(len, windows)))
    order = permutation(seed, "pshards", len(windows), epoch, part)
    ends = list(accumulate(len(windows[shard]) for shard in order))
    place = bisect_right(ends, rest)
    shard = order[place]
    size = len(windows[shard])
    within = rest - ends[place] + size
    image = scattered(within + 1, size + 1, words(seed, "packed", epoch, shard, part)[0])
    return (shard, *windows[shard][image - 1])


def hashed(number: int) -> int:
    """MurmurHash3's finaliser on 62 bits."""
    low = (1 << 62) - 1
    number &= low
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        number = ((number ^ number >> 33) * factor) & low
    return number ^ number >> 33


def scattered(number: int, size: int, seed: int) -> int:
    """The image of a number below `size` under the swap-or-not shuffle of 1 ... size-1; 0 stays."""
    if number == 0:
        return 0
    count, place = size - 1, number - 1
    rounds = 4 * max(1, count.bit_length())
    drawn = stream(seed, "scatter", 2 * rounds)
    for first, second in zip(drawn[::2], drawn[1::2], strict=True):
        partner = (bounded(first, max(1, count)) - place) % count
        if hashed(max(place, partner) ^ (second & (1 << 62) - 1)) & 1:
            place = partner
    return place + 1
