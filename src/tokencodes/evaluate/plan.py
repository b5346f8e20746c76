"""How many requests are computed together: each token once, however many requests begin with it.

What requests read is a tree: a root, and from it every token sequence, with common beginnings in
common. A *piece* is a part of that tree that is computed in one go, small enough for a pass; where
a subtree is too large for one, its common beginning becomes a piece of its own whose keys and
values are kept, and what follows continues it. So the five examples of a subject, the question that
has four endings, the context of four letters are computed once. A *pass* is pieces side by side,
without padding.

The plan is a function of the set of requests and of `batch` alone: the same for any order in which
they come.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]
Ints = NDArray[np.int64]

# tokens that a beginning must save to be kept: less costs less than the pass that it takes
SAVED = 128
# Keys that a token may attend to in vain for the cost of computing a token anew: 24 d² FLOPs a
# block against 4 d a key, at about half a matmul's rate; so about 2 d, of a width of some hundreds.
KEYS_A_TOKEN = 1000
VERSION = 1


@dataclass(eq=False)
class Piece:
    """M tokens in the order of a walk through the tree: a token, then everything below it.

    depth: how many tokens lie between `start` and each; last: the last of those below each, so that
    token i is seen by exactly the tokens i..last[i]. continues: the kept piece after whose end this
    one begins, `start` tokens from the root.
    """

    tokens: Tokens
    depth: Ints
    last: Ints
    start: int
    continues: "Piece | None"
    kept: bool = False
    room: int = 0  # tokens of the largest piece that continues it
    number: int = -1  # of the pass

    @property
    def chain(self) -> bool:
        """Whether it is one sequence, without branches."""
        return bool((self.last == len(self.tokens) - 1).all())


@dataclass(eq=False)
class Pass:
    """Pieces side by side. Each score stands after the row'th token of the pass: it is that of the
    token `target`, the place'th of the scored tokens of item `item`; int64[A] each.
    """

    pieces: list[Piece]
    rows: Ints
    targets: Ints
    items: Ints
    places: Ints

    @property
    def size(self) -> int:
        """Tokens computed."""
        return sum(len(piece.tokens) for piece in self.pieces)


@dataclass(eq=False)
class Plan:
    """items: distinct token sequences (uint32[T], how many at the end are scored), sorted."""

    items: list[tuple[Tokens, int]]
    passes: list[Pass]
    batch: int
    shared: bool
    sha256: str

    @property
    def size(self) -> int:
        """Tokens computed in all."""
        return sum(plan_pass.size for plan_pass in self.passes)


@dataclass(eq=False)
class _Node:
    """Tokens begin..end of sequence `of`, which all sequences below share."""

    of: int
    begin: int
    end: int
    parent: "_Node | None" = None
    children: list["_Node"] = field(default_factory=list)
    total: int = 0  # tokens of the subtree
    piece: Piece | None = None
    offset: int = 0  # of its first token in the piece

    def adopt(self, child: "_Node") -> None:
        child.parent, child.begin = self, self.end


def make_plan(
    requests: Sequence[tuple[Tokens, int]], batch: int, shared: bool = True
) -> tuple[Plan, Ints]:
    """The plan, and the item of each request. asked: all tokens of each request, and how many at
    the end are scored. batch: tokens of a pass; a longer sequence is a pass alone. shared: False
    computes each sequence by itself.
    """
    keys = [(tokens.astype(">u4").tobytes(), scored) for tokens, scored in requests]
    order = {key: number for number, key in enumerate(sorted(set(keys)))}
    items = [(np.frombuffer(key, ">u4").astype(np.uint32), scored) for key, scored in order]
    digest = hashlib.sha256(f"{VERSION} {batch} {SAVED} {KEYS_A_TOKEN} {shared}".encode())
    for tokens, scored in items:
        digest.update(f" {len(tokens)} {scored} ".encode())
        digest.update(tokens.astype("<u4").tobytes())
    reads = sorted({tokens[:-1].astype(">u4").tobytes() for tokens, _ in items})
    numbers = {read: number for number, read in enumerate(reads)}
    sequences = [np.frombuffer(read, ">u4").astype(np.uint32) for read in reads]
    ends = (
        _tree(sequences)
        if shared
        else [
            _Node(n, 0, len(sequence), total=len(sequence)) for n, sequence in enumerate(sequences)
        ]
    )
    pieces = list(_pieces(sequences, ends, batch))
    passes = _passes(pieces, batch, padded=not shared)
    item_ends = [ends[numbers[tokens[:-1].astype(">u4").tobytes()]] for tokens, _ in items]
    _assign_scored_tokens(passes, items, item_ends)
    plan = Plan(items, passes, batch, shared, digest.hexdigest())
    return plan, np.array([order[key] for key in keys], dtype=np.int64)


def _tree(sequences: list[Tokens]) -> list[_Node]:
    """The node at which each of the sorted, distinct sequences ends."""
    root = _Node(0, 0, 0)
    path, ends, before = [root], [], np.empty(0, dtype=np.uint32)
    for number, sequence in enumerate(sequences):
        common = _common(before, sequence)
        below = None
        while path[-1].end > common:
            below = path.pop()
        if (
            path[-1].end < common and below is not None
        ):  # the last one is cut in two where they part
            upper = _Node(below.of, path[-1].end, common, path[-1], [below])
            path[-1].children[-1] = upper
            upper.adopt(below)
            path.append(upper)
        leaf = _Node(number, common, len(sequence), path[-1])
        path[-1].children.append(leaf)
        path.append(leaf)
        ends.append(leaf)
        before = sequence
    for node in reversed(list(_walk(root))):
        node.total = node.end - node.begin + sum(child.total for child in node.children)
    return ends


def _common(first: Tokens, second: Tokens) -> int:
    size = min(len(first), len(second))
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if len(differ) else size


def _walk(node: _Node) -> Iterator[_Node]:
    """A node, then everything below it."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def _pieces(sequences: list[Tokens], ends: list[_Node], batch: int) -> Iterator[Piece]:
    """The tree cut into pieces; one that is continued comes before those that continue it."""
    roots = dict.fromkeys(_root(node) for node in ends)
    waiting: list[tuple[_Node, Piece | None]] = [(root, None) for root in reversed(list(roots))]
    while waiting:
        node, kept = waiting.pop()
        before = kept.start + len(kept.tokens) if kept else 0
        if not node.children or (
            node.begin - before + node.total <= batch and _together(node, before)
        ):
            piece = _subtree(sequences, node, kept, before)
            if kept:
                kept.room = max(kept.room, len(piece.tokens))
            if len(piece.tokens):
                yield piece
            continue
        saved = (node.end - before) * (len(node.children) - 1)
        if saved >= (SAVED if node.begin - before + node.total > batch else max(SAVED, batch)):
            tokens = sequences[node.of][before : node.end]
            size = np.arange(len(tokens))
            piece = Piece(
                tokens, size, np.full(len(tokens), len(tokens) - 1), before, kept, kept=True
            )
            if kept:
                kept.room = max(kept.room, len(tokens))
            node.piece, node.offset, kept = piece, node.begin - before, piece
            yield piece
        waiting.extend((child, kept) for child in reversed(node.children))


def _together(node: _Node, before: int) -> bool:
    """Whether one piece costs less than a piece for each child: a token attends to the keys of its
    whole piece, also to those that its mask hides.
    """
    common = node.end - before
    split = sum((common + child.total) ** 2 for child in node.children)
    return bool(
        (node.begin - before + node.total) ** 2 - split
        <= KEYS_A_TOKEN * common * (len(node.children) - 1)
    )


def _root(node: _Node) -> _Node:
    while node.parent is not None:
        node = node.parent
    return node


def _subtree(sequences: list[Tokens], top: _Node, kept: Piece | None, before: int) -> Piece:
    """A node and all below it, after what lies between them and the kept piece."""
    carried = top.begin - before
    parts, depths = [sequences[top.of][before : top.begin]], [np.arange(carried)]
    spans: list[tuple[_Node, int]] = []
    size = carried
    piece = Piece(parts[0], depths[0], depths[0], before, kept)
    for node in _walk(top):
        node.piece, node.offset = piece, size
        parts.append(sequences[node.of][node.begin : node.end])
        depths.append(np.arange(node.begin - before, node.end - before))
        spans.append((node, size))
        size += node.end - node.begin
    last = np.full(size, size - 1)
    for node, offset in spans:
        last[offset : offset + node.end - node.begin] = offset + node.total - 1
    piece.tokens, piece.depth, piece.last = np.concatenate(parts), np.concatenate(depths), last
    return piece


def _passes(pieces: list[Piece], batch: int, padded: bool) -> list[Pass]:
    """Pieces in their order, as many to a pass as fit; a piece comes after the pass of the one that
    it continues. padded: each counts as long as the longest.
    """
    groups: list[list[Piece]] = []
    size = longest = 0
    for piece in pieces:
        waits = piece.continues is not None and piece.continues.number == len(groups) - 1
        longest = max(longest, len(piece.tokens))
        grown = (len(groups[-1]) + 1) * longest if groups and padded else size + len(piece.tokens)
        if not groups or waits or grown > batch:
            groups.append([])
            size, longest = 0, len(piece.tokens)
        piece.number = len(groups) - 1
        groups[-1].append(piece)
        size += len(piece.tokens)
    nothing = np.empty(0, dtype=np.int64)
    return [Pass(group, nothing, nothing, nothing, nothing) for group in groups]


def _assign_scored_tokens(
    passes: list[Pass], items: list[tuple[Tokens, int]], ends: list[_Node]
) -> None:
    """Notes in each pass what is asked for there."""
    first: dict[int, int] = {}  # id of a piece -> its first row in its pass
    for plan_pass in passes:
        row = 0
        for piece in plan_pass.pieces:
            first[id(piece)] = row
            row += len(piece.tokens)
    rows_by_pass: list[list[tuple[int, int, int, int]]] = [[] for _ in passes]
    for number, ((tokens, scored), end) in enumerate(zip(items, ends, strict=True)):
        for place, (piece, offset) in zip(range(scored - 1, -1, -1), _upwards(end), strict=False):
            target = int(tokens[len(tokens) - scored + place])
            rows_by_pass[piece.number].append((first[id(piece)] + offset, target, number, place))
    for plan_pass, rows in zip(passes, rows_by_pass, strict=True):
        table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 4)
        plan_pass.rows, plan_pass.targets, plan_pass.items, plan_pass.places = (
            np.ascontiguousarray(column) for column in table.T
        )


def _upwards(end: _Node) -> Iterator[tuple[Piece, int]]:
    """Where each token up to a node's last is computed, from that one to the first: the node, the
    nodes above it in its piece, what the piece carries, then the pieces that it continues.
    """
    piece, node = end.piece, end
    if piece is None:  # it was too large, and short: what lies below it carries its tokens
        while piece is None:
            node = node.children[0]
            piece = node.piece
        yield from ((piece, offset) for offset in range(end.end - 1 - piece.start, -1, -1))
        piece = piece.continues
    elif not piece.kept:
        while True:
            yield from (
                (piece, offset)
                for offset in range(node.offset + node.end - node.begin - 1, node.offset - 1, -1)
            )
            if node.parent is None or node.parent.piece is not piece:
                break
            node = node.parent
        yield from ((piece, offset) for offset in range(node.offset - 1, -1, -1))
        piece = piece.continues
    while piece is not None:
        yield from ((piece, offset) for offset in range(len(piece.tokens) - 1, -1, -1))
        piece = piece.continues
