"""The ids of pre-tokens that were seen before, found a megabyte of text at a time.

Exact, not probable: a pre-token of at most 15 bytes is its own key, as one or two 64-bit words with
its length in the top byte; a longer one is looked up as bytes. What is not found is merged by the
tokenizer's own BPE, once.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Ints = NDArray[np.int64]

SLOTS = 1 << 20  # of each table; 12 or 20 bytes a slot
MOST = SLOTS // 2  # entries; a full cache is emptied, and the common words are soon back
# bytes of a pre-token that is kept: longer ones are seldom words, and seldom come again
LONGEST = 64
_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_LENGTH_SHIFT = np.uint64(56)
# of the first n bytes of a little-endian word
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(8)], dtype=np.uint64)


class _Table:
    """Open addressing over keys of one or two words. No key is 0: its last word has a length."""

    def __init__(self, words: int) -> None:
        self.keys = np.zeros((words, SLOTS), dtype=np.uint64)
        self.values = np.zeros(SLOTS, dtype=np.int32)
        self.entries = 0

    def _slots(self, keys: list[Words]) -> Ints:
        mixed = keys[0] * _FACTORS[0]
        for word, factor in zip(keys[1:], _FACTORS[1:], strict=False):
            mixed = (mixed ^ word) * factor
        return (mixed >> np.uint64(64 - SLOTS.bit_length() + 1)).astype(np.int64)

    def find(self, keys: list[Words]) -> tuple[NDArray[np.int32], Ints]:
        """The values, and which of the keys are not here."""
        slots = self._slots(keys)
        values = self.values[slots]
        open_ = np.flatnonzero(self._differs(keys, slots))
        missing = []
        while len(open_):
            here = slots[open_]
            empty = self.keys[-1][here] == 0
            missing.append(open_[empty])
            open_ = open_[~empty]
            slots[open_] = (slots[open_] + 1) % SLOTS
            here = slots[open_]
            values[open_] = self.values[here]
            open_ = open_[self._differs([word[open_] for word in keys], here)]
        return values, np.concatenate(missing) if missing else np.empty(0, dtype=np.int64)

    def _differs(self, keys: list[Words], slots: Ints) -> NDArray[np.bool_]:
        differs = self.keys[0][slots] != keys[0]
        for place in range(1, len(keys)):
            differs |= self.keys[place][slots] != keys[place]
        return differs

    def add(self, keys: list[Words], values: NDArray[np.int32]) -> None:
        """Adds keys that are not here, each once, as far as there is room."""
        room = max(0, MOST - self.entries)
        keys, values = [word[:room] for word in keys], values[:room]
        self.entries += len(values)
        slots = self._slots(keys)
        open_ = np.arange(len(values))
        while len(open_):
            free = open_[self.keys[-1][slots[open_]] == 0]
            # of those that want one slot, one gets it
            _, first = np.unique(slots[free], return_index=True)
            placed = free[first]
            for place, word in enumerate(keys):
                self.keys[place][slots[placed]] = word[placed]
            self.values[slots[placed]] = values[placed]
            open_ = np.setdiff1d(open_, placed, assume_unique=True)
            slots[open_] = (slots[open_] + 1) % SLOTS


class _Growing:
    """An int64 array that grows at its end, doubling its room."""

    def __init__(self) -> None:
        self.array, self.size = np.zeros(1024, dtype=np.int64), 0

    def extend(self, values: list[int]) -> None:
        """Adds values at the end."""
        end = self.size + len(values)
        if end > len(self.array):
            self.array = np.concatenate([self.array, np.zeros(end, dtype=np.int64)])
        self.array[self.size : end] = values
        self.size = end


class WordCache:
    """Pre-tokens -> ids. `merge` gives the ids of one pre-token that the cache has not."""

    def __init__(self, merge: Callable[[bytes], list[int]]) -> None:
        self._merge = merge
        self._clear()

    def _clear(self) -> None:
        self._short, self._middle = _Table(1), _Table(2)
        self._long: dict[bytes, int] = {}
        self._sequences = _Growing()  # ids of pre-tokens that have not exactly one, end to end
        self._offsets = _Growing()  # where each ends there
        self._offsets.extend([0])

    def ids(self, data: bytes, starts: Ints) -> tuple[NDArray[np.uint32], Ints]:
        """Ids of all pre-tokens of `data`, end to end, and how many each has. The last ends with
        `data`.
        """
        if (
            max(
                self._short.entries,
                self._middle.entries,
                len(self._long),
                self._sequences.size // 8,
            )
            >= MOST
        ):
            self._clear()
        padded = data + bytes(16)
        words = np.ndarray((len(data) + 9,), dtype="<u8", buffer=padded, strides=(1,))
        lengths = np.diff(starts, append=len(data))
        values = np.empty(len(starts), dtype=np.int32)
        first = words[starts]
        short = np.flatnonzero(lengths < 8)
        middle = np.flatnonzero((lengths >= 8) & (lengths < 16))
        size = lengths[short]
        keys = [(first[short] & _MASKS[size]) | (size.astype(np.uint64) << _LENGTH_SHIFT)]
        values[short] = self._values(self._short, keys, data, starts[short], size)
        size = lengths[middle]
        second = words[starts[middle] + 8] & _MASKS[size - 8]
        keys = [first[middle], second | (size.astype(np.uint64) << _LENGTH_SHIFT)]
        values[middle] = self._values(self._middle, keys, data, starts[middle], size)
        long = np.flatnonzero(lengths >= 16)
        if len(long):
            values[long] = self._long_values(data, starts[long], lengths[long])
        return self._expand(values)

    def _values(
        self, table: _Table, keys: list[Words], data: bytes, starts: Ints, lengths: Ints
    ) -> NDArray[np.int32]:
        values, missing = table.find(keys)
        if len(missing):
            words = _slices(data, starts[missing], lengths[missing])
            # of each new word one place
            place_of = {word: place for place, word in enumerate(words)}
            new_values = self._new(list(place_of))
            new = missing[list(place_of.values())]
            table.add([word[new] for word in keys], new_values)
            number_of = {word: number for number, word in enumerate(place_of)}
            values[missing] = new_values[[number_of[word] for word in words]]
        return values

    def _long_values(self, data: bytes, starts: Ints, lengths: Ints) -> list[int]:
        words = _slices(data, starts, lengths)
        unseen = [word for word in dict.fromkeys(words) if word not in self._long]
        fresh = dict(zip(unseen, self._new(unseen).tolist(), strict=True))
        self._long |= {word: value for word, value in fresh.items() if len(word) <= LONGEST}
        return [fresh[word] if word in fresh else self._long[word] for word in words]

    def _new(self, words: list[bytes]) -> NDArray[np.int32]:
        """Values of words that are not here: one id as it is; otherwise ~i for the i-th of the
        sequences.
        """
        values, sequences, ends = [], list[int](), list[int]()
        for word in words:
            ids = self._merge(word)
            if len(ids) == 1:
                values.append(ids[0])
            else:
                values.append(~(self._offsets.size - 1 + len(ends)))
                sequences += ids
                ends.append(self._sequences.size + len(sequences))
        self._sequences.extend(sequences)
        self._offsets.extend(ends)
        return np.array(values, dtype=np.int32)

    def _expand(self, values: NDArray[np.int32]) -> tuple[NDArray[np.uint32], Ints]:
        counts = np.ones(len(values), dtype=np.int64)
        several = np.flatnonzero(values < 0)
        if not len(several):
            return values.astype(np.uint32), counts
        offsets, which = self._offsets.array, ~values[several]
        size = offsets[which + 1] - offsets[which]
        counts[several] = size
        out = np.repeat(values, counts)
        first = np.cumsum(counts)[several] - size
        inside = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        out[np.repeat(first, size) + inside] = self._sequences.array[
            np.repeat(offsets[which], size) + inside
        ]
        return out.astype(np.uint32), counts


def _slices(data: bytes, starts: Ints, lengths: Ints) -> list[bytes]:
    return [
        data[start:end]
        for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    ]
