"""What an input interface is, and the baseline: a trainable table.

Letters in names: B batch, T time, D width, V vocabulary, K code width. A new code is a new function
in `codes/`, never a new class here. Paper: section "Interfaces".
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokencodes.codes import InterfaceSpec
from tokencodes.errors import InputError

Generators = Callable[[str], torch.Generator]
INTEGERS = (torch.int64, torch.int32)
BLOCK_ENTRIES = 1 << 22  # of a table that is looked at in blocks: 16 MiB in float32


@dataclass(frozen=True)
class InterfaceFacts:
    """What an interface is made of. Entries are logical (V·K bits, however packed), sizes bytes,
    norms d-wide over all V.
    """

    spec: str
    trainable_parameters: int
    buffer_entries: int
    buffer_bytes: int
    spec_sha256: str
    codebook_sha256: str | None
    rank: int | None  # of the lifted V×d table, over the reals; None where vectors may move
    squared_norm_mean: float | None
    squared_norm_min: float | None
    squared_norm_max: float | None


class InputInterface(nn.Module, ABC):
    """Token ids of any shape, int64 or int32 -> vectors of that shape and D, as `nn.Embedding`
    gives them.

    Their dtype is the parameters', also under autocast.
    """

    def __init__(
        self, spec: InterfaceSpec, vocab_size: int, hidden_size: int, sha256: str | None
    ) -> None:
        super().__init__()
        self.spec = spec
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.sha256 = sha256  # the codebook hash; None where nothing is fixed

    @abstractmethod
    def forward(self, ids: Tensor) -> Tensor:
        """Returns the vectors of these tokens.

        Raises InputError if the ids are not integers or (on a CPU) are outside 0 ... V-1.
        """

    def looked_up(self, ids: Tensor, table: Tensor) -> Tensor:
        """Rows of a table. The lookup itself minds the range on a CPU; it is read again only to say
        which id was wrong.
        """
        if ids.dtype not in INTEGERS:
            self.checked(ids)
        if torch.compiler.is_compiling():
            return F.embedding(ids, table)
        try:
            return F.embedding(ids, table)
        except IndexError:
            self.checked(ids)
            raise

    def checked(self, ids: Tensor) -> Tensor:
        """The ids, if they can be looked up. Their range is not read where that would wait for a
        device or split a graph.
        """
        if ids.dtype not in INTEGERS:
            raise InputError(f"token ids of dtype {ids.dtype}: they must be int64 or int32")
        if ids.device.type == "cpu" and ids.numel() and not torch.compiler.is_compiling():
            low, high = (int(bound) for bound in torch.aminmax(ids))
            if low < 0 or high >= self.vocab_size:
                raise InputError(
                    f"token id {low if low < 0 else high} is outside 0 ... {self.vocab_size - 1}"
                )
        return ids

    @abstractmethod
    def reset_buffers(self) -> None:
        """Writes every buffer again from the spec.

        Call it after `to_empty`, or if a file did not contain the buffers.
        """

    @abstractmethod
    def draw(self, generator: Generators) -> None:
        """Initialises its parameters, each from the generator of its name."""

    @abstractmethod
    def check(self) -> None:
        """Checks every buffer against the spec, bit by bit. It is called at every load.

        Raises CodeMismatch (an InputError) if a buffer differs.
        """

    @abstractmethod
    def describe(self) -> InterfaceFacts:
        """Its facts; also on the meta device."""

    @torch.no_grad()
    def materialize(self) -> Tensor:
        """The table V×D that a plain `nn.Embedding` would hold."""
        return self(torch.arange(self.vocab_size, device=self._device())).clone()

    @torch.no_grad()
    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """The same table in blocks of rows, so that a large one never exists whole: first id,
        vectors [rows, D].
        """
        rows = max(1, BLOCK_ENTRIES // self.hidden_size)
        for start in range(0, self.vocab_size, rows):
            yield (
                start,
                self(
                    torch.arange(start, min(start + rows, self.vocab_size), device=self._device())
                ),
            )

    def _device(self) -> torch.device | None:
        return next((tensor.device for tensor in (*self.parameters(), *self.buffers())), None)

    def extra_repr(self) -> str:
        return f"{self.spec}, vocab_size={self.vocab_size}, hidden_size={self.hidden_size}"


class LearnedTable(InputInterface):
    """The baseline: a trainable table V×D, drawn from N(0, std²). Its state-dict name is a plain
    Llama's.
    """

    def __init__(self, spec: InterfaceSpec, vocab_size: int, hidden_size: int) -> None:
        super().__init__(spec, vocab_size, hidden_size, None)
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        nn.init.normal_(self.weight, std=spec.std)

    def forward(self, ids: Tensor) -> Tensor:
        return self.looked_up(ids, self.weight)

    def reset_buffers(self) -> None:
        """It has none."""

    @torch.no_grad()
    def draw(self, generator: Generators) -> None:
        drawn = torch.empty(self.weight.shape, dtype=torch.float32, device="cpu")
        self.weight.copy_(drawn.normal_(0.0, self.spec.std, generator=generator("weight")))

    def check(self) -> None:
        """Nothing here is fixed, so nothing can be stale."""

    def describe(self) -> InterfaceFacts:
        sha = self.spec.sha256(self.vocab_size, self.hidden_size)
        return InterfaceFacts(
            str(self.spec), self.weight.numel(), 0, 0, sha, None, None, None, None, None
        )
