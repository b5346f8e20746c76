"""The one seam: token ids in, the body's first hidden state out. `InputInterface` -> `LearnedTable`, `FixedCode`.

Letters in names: B batch, T time, D width, V vocabulary, K code width. A new code is a new function in `codes/`, never a
new class here. Paper: section "Interfaces".
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokencodes.codes import InterfaceSpec, build_codebook, lift
from tokencodes.errors import InputError


@dataclass(frozen=True)
class InterfaceFacts:
    """What an interface is made of. Counts are entries, sizes bytes, norms those of the d-wide vectors over all V."""

    spec: str
    trainable_parameters: int
    buffer_entries: int
    buffer_bytes: int
    spec_sha256: str
    codebook_sha256: str | None
    rank: int | None  # of the lifted V×d table, over the reals; None: not fixed, so not a fact of the interface
    squared_norm_mean: float | None
    squared_norm_min: float | None
    squared_norm_max: float | None


class InputInterface(nn.Module, ABC):
    """Token ids int64[B, T] -> vectors [B, T, D] in the parameters' dtype, also under autocast."""

    def __init__(self, spec: InterfaceSpec, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size

    @abstractmethod
    def forward(self, ids_BT: Tensor) -> Tensor:
        """The vectors of these tokens; IndexError for an id outside 0 ... V-1."""

    @abstractmethod
    def reset_buffers(self) -> None:
        """Writes every buffer anew from the spec: after `to_empty`, or where a file did not bring it."""

    @abstractmethod
    def check(self) -> None:
        """InputError if a buffer is not, bit by bit, what the spec says. Cheap: called at every load."""

    @abstractmethod
    def describe(self) -> InterfaceFacts:
        """Its facts; also on the meta device."""

    @abstractmethod
    def materialize(self) -> Tensor:
        """The table V×D that a plain `nn.Embedding` would hold."""

    def extra_repr(self) -> str:
        return f"{self.spec}, vocab_size={self.vocab_size}, hidden_size={self.hidden_size}"


class LearnedTable(InputInterface):
    """The baseline: a trainable table V×D, drawn from N(0, std^2). Its state-dict name is a plain Llama's."""

    def __init__(self, spec: InterfaceSpec, vocab_size: int, hidden_size: int) -> None:
        super().__init__(spec, vocab_size, hidden_size)
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))
        nn.init.normal_(self.weight, std=spec.std)

    def forward(self, ids_BT: Tensor) -> Tensor:
        return F.embedding(ids_BT, self.weight)

    def reset_buffers(self) -> None:
        """It has none."""

    def check(self) -> None:
        """Nothing here is fixed, so nothing can be stale."""

    def describe(self) -> InterfaceFacts:
        sha = self.spec.sha256(self.vocab_size, self.hidden_size)
        return InterfaceFacts(str(self.spec), self.weight.numel(), 0, 0, sha, None, None, None, None, None)

    def materialize(self) -> Tensor:
        return self.weight.detach().clone()


class FixedCode(InputInterface):
    """A fixed codebook of bits, shown as 0/1 or ±1 and copied to D channels. Nothing in it is trained.

    The codebook is a persistent uint8 buffer V×K: persistent, because transformers gives non-persistent buffers back as
    uninitialised memory and reports nothing; compact, because the lift needs no storage. The arrays that define it (for
    gf2: matrix K×K, offset K) are persistent buffers too.
    """

    def __init__(self, spec: InterfaceSpec, vocab_size: int, hidden_size: int) -> None:
        super().__init__(spec, vocab_size, hidden_size)
        self.code_width = spec.code_width(vocab_size)
        if hidden_size < self.code_width:
            raise InputError(
                f"interface {str(spec)!r}: a model width of {hidden_size} is below the code width {self.code_width}; "
                f"set hidden_size >= {self.code_width}"
            )
        for name, array in self._expected().items():
            self.register_buffer(name, torch.empty(array.shape, dtype=torch.uint8))
        # Empty, so nothing to lose: it only carries the dtype that `.to(...)` or `from_pretrained(dtype=...)` chose.
        self.register_buffer("like_parameters", torch.empty(0), persistent=False)
        self.reset_buffers()

    def _expected(self) -> dict[str, np.ndarray]:
        book = build_codebook(self.spec, self.vocab_size)
        return {"codebook": book.words_VK, **book.arrays}

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTK = F.embedding(ids_BT, self.codebook).to(self.like_parameters.dtype)
        if self.spec.values == "pm1":
            x_BTK = x_BTK * 2 - 1
        if self.spec.lift == "tile":
            copies = -(-self.hidden_size // self.code_width)
            return x_BTK.repeat(1, 1, copies)[..., : self.hidden_size]
        channels_D = torch.arange(self.hidden_size, device=x_BTK.device) * self.code_width // self.hidden_size
        return x_BTK.index_select(-1, channels_D)

    @torch.no_grad()
    def reset_buffers(self) -> None:
        for name, array in self._expected().items():
            self.get_buffer(name).copy_(torch.from_numpy(array.copy()))

    def check(self) -> None:
        for name, array in self._expected().items():
            buffer = self.get_buffer(name)
            if buffer.is_meta:
                raise InputError(f"{name} of {str(self.spec)!r} is on the meta device; call reset_buffers() after to_empty()")
            if buffer.dtype != torch.uint8 or buffer.shape != array.shape:
                raise InputError(
                    f"{name} of {str(self.spec)!r} is {buffer.dtype}{list(buffer.shape)}, not uint8{list(array.shape)}: "
                    "take the file's own configuration, or a new copy"
                )
            differs = np.argwhere(buffer.cpu().numpy() != array)
            if len(differs):
                raise InputError(
                    f"{name} differs from {str(self.spec)!r} in {len(differs):,} of {array.size:,} entries, first at row "
                    f"{differs[0][0]}: the file is damaged or was made with another code; take a new copy or its own spec"
                )

    def describe(self) -> InterfaceFacts:
        book = build_codebook(self.spec, self.vocab_size)
        values_VK = _values(book.words_VK, self.spec.values)
        copies_K = np.bincount(lift.columns(self.spec.lift, book.width, self.hidden_size), minlength=book.width)
        norms_V = (values_VK**2) @ copies_K
        buffers = [self.get_buffer(name) for name in self._expected()]
        return InterfaceFacts(
            spec=str(self.spec),
            trainable_parameters=0,
            buffer_entries=sum(buffer.numel() for buffer in buffers),
            buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in buffers),
            spec_sha256=self.spec.sha256(self.vocab_size, self.hidden_size),
            codebook_sha256=book.sha256,
            # The lift has full column rank, so the table's rank is the codebook's; its K×K Gram matrix has the same.
            rank=int(np.linalg.matrix_rank(values_VK.T @ values_VK)),
            squared_norm_mean=float(norms_V.mean()),
            squared_norm_min=float(norms_V.min()),
            squared_norm_max=float(norms_V.max()),
        )

    @torch.no_grad()
    def materialize(self) -> Tensor:
        return self(torch.arange(self.vocab_size, device=self.codebook.device)[None])[0]


def _values(words_VK: np.ndarray, values: str) -> np.ndarray:
    real = words_VK.astype(np.float64)
    return real * 2 - 1 if values == "pm1" else real


def build_interface(spec: InterfaceSpec, vocab_size: int, hidden_size: int) -> InputInterface:
    """The interface of a spec for V tokens and width D; InputError where the three do not fit."""
    kind = LearnedTable if spec.learned else FixedCode
    return kind(spec, vocab_size, hidden_size)
