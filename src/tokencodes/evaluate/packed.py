"""A pass of pieces through a transformers model: every layer sees all tokens in one row, and only
attention knows of pieces.

The model's own forward runs, with another attention function in its place: each piece attends to
itself as its tree has it, and to the keys and values that the piece it continues has left. Models
whose attention does more than that (a window, soft capping, sinks) or goes another way are refused,
and are scored without sharing (`rows`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel

from tokencodes.evaluate.plan import Pass, Piece

Kept = tuple[Tensor, Tensor]  # keys and values, [heads, start + M + room, channels] each
AT_ONCE = 128  # positions whose logits exist at a time
# A call of attention of its own costs as much as so many pairs of query and key, and copying a key
# to it as these: about 60 and 0.3 microseconds a block, at 576 channels on two cores.
CALL, COPY = 2000, 10
BEYOND = ("sliding_window", "softcap", "s_aux", "position_bias")


class Unsupported(Exception):
    """A model whose attention is more than what is done here."""


@dataclass(eq=False)
class Packed:
    """Logits of passes, in the order of their plan. Keys and values that no later piece needs are
    dropped.
    """

    model: PreTrainedModel
    # id of a piece -> layer -> keys and values
    kept: dict[int, dict[int, Kept]] = field(default_factory=dict)
    _pieces: list[Piece] = field(default_factory=list)
    _parts: list[list["_Part"]] = field(default_factory=list)
    _seen: int = 0  # calls of attention in this pass

    def logits(self, plan_pass: Pass, rows: Tensor) -> Iterator[Tensor]:
        """Logits [R, V] in float32 after some of the pass's tokens, int64[..], a part of them at a
        time.
        """
        hidden, head = self._hidden(plan_pass), self.model.get_output_embeddings()
        for part in rows.split(AT_ONCE):
            if (
                type(head) is nn.Linear and head.bias is None
            ):  # so laid out, the product is faster by a fifth on a CPU
                yield (head.weight @ hidden[part].T).T.float()
            else:
                yield head(hidden[part]).float()

    def _hidden(self, plan_pass: Pass) -> Tensor:
        device = self.model.device
        alive = {id(piece) for piece in _chain(plan_pass.pieces)}
        self.kept = {piece: held for piece, held in self.kept.items() if piece in alive}
        self._pieces, self._seen = plan_pass.pieces, 0
        self._parts = [_parts_of(piece, device) for piece in plan_pass.pieces]
        ids = torch.cat(
            [torch.from_numpy(piece.tokens.astype("int64")) for piece in plan_pass.pieces]
        ).to(device)
        places = torch.cat(
            [torch.from_numpy(piece.start + piece.depth) for piece in plan_pass.pieces]
        ).to(device)
        with self._attention():
            output = self.model.base_model(
                input_ids=ids[None], position_ids=places[None], use_cache=False
            )
        if not self._seen:
            raise Unsupported("its attention cannot be replaced")
        hidden: Tensor = output[0][0]
        return hidden

    @contextmanager
    def _attention(self) -> Iterator[None]:
        name, before = f"tokencodes-{id(self)}", self.model.config._attn_implementation
        AttentionInterface.register(name, self._attend)
        self.model.set_attn_implementation(name)
        try:
            yield
        finally:
            self.model.set_attn_implementation(before)
            AttentionInterface._global_mapping.pop(name, None)

    def _attend(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        *args: Any,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """query [1, heads, N, channels], key and value [1, key heads, N, channels] -> [1, N, heads,
        channels].
        """
        beyond = [name for name in BEYOND if options.get(name) is not None]
        if beyond or mask is not None or query.shape[2] != key.shape[2]:
            raise Unsupported(
                f"its attention asks for {', '.join(beyond) or 'a mask or keys of its own'}"
            )
        self._seen += 1
        layer, row, parts = int(module.layer_idx), 0, []  # type: ignore[arg-type]
        for piece, split in zip(self._pieces, self._parts, strict=True):
            rows = slice(row, row + len(piece.tokens))
            keys, values = key[0, :, rows], value[0, :, rows]
            if piece.continues is not None or piece.kept:
                keys, values = self._with_kept(piece, layer, keys, values)
            for part in split:
                own = query[0, :, row + part.begin : row + part.end]
                parts.append(
                    _attention_of(
                        own, part.of(keys), part.of(values), part.mask, options.get("scaling")
                    )
                )
            row = rows.stop
        return torch.cat(parts, dim=1).transpose(0, 1)[None], None

    def _with_kept(self, piece: Piece, layer: int, keys: Tensor, values: Tensor) -> Kept:
        """Keys and values from the root on. Those of a kept piece lie in memory with room behind
        them, so that a piece that continues it writes its own there, and nothing is copied for it.
        """
        before = self.kept[id(piece.continues)][layer] if piece.continues is not None else None
        end = piece.start + len(piece.tokens)
        if piece.kept:
            both = []
            for own, old in zip((keys, values), before or (None, None), strict=True):
                # NaN, not memory as it is: a key that nobody wrote makes every score NaN that sees
                # it.
                held = own.new_full((own.shape[0], end + piece.room, own.shape[2]), torch.nan)
                if old is not None:
                    held[:, : piece.start] = old[:, : piece.start]
                both.append(held)
            self.kept.setdefault(id(piece), {})[layer] = before = both[0], both[1]
        assert before is not None
        before[0][:, piece.start : end], before[1][:, piece.start : end] = keys, values
        return before[0][:, :end], before[1][:, :end]


def _chain(pieces: list[Piece]) -> Iterator[Piece]:
    """The pieces that some continue, and those that these continue."""
    for piece in pieces:
        above = piece.continues
        while above is not None:
            yield above
            above = above.continues


@dataclass(frozen=True, eq=False)
class _Part:
    """Tokens begin..end of a piece, the ranges of keys that lie before them, counted from the root,
    and which of all these each of them sees: bool[end - begin, keys]; None where that is all up to
    it, and nothing before the part.
    """

    begin: int
    end: int
    ranges: tuple[tuple[int, int], ...]
    mask: Tensor | None

    def of(self, all_keys: Tensor) -> Tensor:
        """The keys, or values, that it attends to."""
        slices = [all_keys[:, begin:end] for begin, end in self.ranges]
        return slices[0] if len(slices) == 1 else torch.cat(slices, dim=1)


def _parts_of(piece: Piece, device: torch.device) -> list[_Part]:
    """A piece cut where its branches part, as far as that saves more pairs of query and key that
    masks hide than it costs.
    """
    parts: list[_Part] = []
    waiting: list[tuple[int, int, tuple[tuple[int, int], ...]]] = [(0, len(piece.tokens), ())]
    while waiting:
        begin, end, above = waiting.pop()
        trunk = begin + int((piece.last[begin:end] == end - 1).cumprod().sum())
        children, first = [], trunk
        while first < end:
            children.append((first, int(piece.last[first]) + 1))
            first = children[-1][1]
        before = piece.start + sum(stop - start for start, stop in above)
        shared, size = before + trunk - begin, end - begin
        hidden = (
            size * (before + size)
            - (trunk - begin) * shared
            - sum((b - a) * (shared + b - a) for a, b in children)
        )
        if len(children) < 2 or hidden <= len(children) * (CALL + COPY * shared):
            parts.append(_part(piece, begin, end, above, device))
            continue
        if trunk > begin:
            parts.append(_part(piece, begin, trunk, above, device))
            above = (*above, (begin, trunk))
        waiting.extend((a, b, above) for a, b in reversed(children))
    return parts


def _part(
    piece: Piece, begin: int, end: int, above: tuple[tuple[int, int], ...], device: torch.device
) -> _Part:
    last = torch.from_numpy(np.minimum(piece.last[begin:end], end - 1) - begin).to(device)
    own = torch.arange(end - begin, device=device)
    seen = (own[None] <= own[:, None]) & (own[:, None] <= last[None])
    ranges: list[tuple[int, int]] = []
    for first, stop in [(-piece.start, 0), *above, (begin, end)]:
        if (
            ranges and ranges[-1][1] == first + piece.start
        ):  # next to each other: a view, nothing is copied
            ranges[-1] = (ranges[-1][0], stop + piece.start)
        elif stop > first:
            ranges.append((first + piece.start, stop + piece.start))
    before = sum(stop - first for first, stop in ranges) - (end - begin)
    if not before and bool((last == end - begin - 1).all()):
        return _Part(begin, end, tuple(ranges), None)
    return _Part(
        begin, end, tuple(ranges), torch.cat([seen.new_ones(end - begin, before), seen], dim=1)
    )


def _attention_of(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    """[heads, M, channels] of one piece. Query heads that share keys are put one below the other:
    no key is copied.
    """
    heads, size, channels = query.shape
    groups = heads // keys.shape[0]
    if mask is None:
        output = F.scaled_dot_product_attention(
            query[None],
            keys[None],
            values[None],
            is_causal=True,
            scale=scaling,
            enable_gqa=groups > 1,
        )
        return output[0]
    folded = query.reshape(keys.shape[0], groups * size, channels)
    output = F.scaled_dot_product_attention(
        folded[None], keys[None], values[None], attn_mask=mask.repeat(groups, 1), scale=scaling
    )
    return output[0].view(heads, size, values.shape[-1])


@dataclass(eq=False)
class Rows:
    """The same by the model's own forward, a padded row for each piece, for models that cannot be
    packed. Nothing is shared.
    """

    model: PreTrainedModel

    def logits(self, plan_pass: Pass, rows: Tensor) -> Iterator[Tensor]:
        """See `Packed.logits`."""
        device = self.model.device
        ids = nn.utils.rnn.pad_sequence(
            [torch.from_numpy(piece.tokens.astype("int64")) for piece in plan_pass.pieces], True
        )
        sizes = torch.tensor([len(piece.tokens) for piece in plan_pass.pieces])
        there = torch.arange(ids.shape[1])[None] < sizes[:, None]
        output = self.model(
            input_ids=ids.to(device), attention_mask=there.long().to(device), use_cache=False
        )
        places = there.flatten().nonzero()[:, 0].to(device)
        yield output.logits.flatten(0, 1)[places[rows]].float()
