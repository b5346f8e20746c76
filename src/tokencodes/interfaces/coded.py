"""Interfaces made of a code: coordinates that are fixed, or begin as a code and are trained, behind
a fixed lift.
"""

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokencodes.codes import InterfaceSpec, build_codebook, words
from tokencodes.codes.codebook import PACK_ABOVE, Codebook, Given
from tokencodes.codes.spec import LINEAR
from tokencodes.codes.tables import (
    Tables,
    hashed_tables,
    lift_table,
    make_tables,
    shapes,
    tables_sha256,
)
from tokencodes.errors import CodeMismatch, InputError
from tokencodes.interfaces.base import Generators, InputInterface, InterfaceFacts
from tokencodes.scatter import round_keys, scatter

TORCH_TYPES = {"uint8": torch.uint8, "int32": torch.int32, "int64": torch.int64}


class _Coded(InputInterface):
    """What FixedCode and LearnedCode share: stored tables, their checks, the lift."""

    def __init__(
        self,
        spec: InterfaceSpec,
        vocab_size: int,
        hidden_size: int,
        sha256: str | None,
        given: Given | None,
    ) -> None:
        super().__init__(spec, vocab_size, hidden_size, sha256)
        self.code_width = spec.code_width(vocab_size)
        if hidden_size < self.code_width:
            raise InputError(
                f"interface {str(spec)!r}: a model width of {hidden_size} is below the code width"
                f" {self.code_width}; set hidden_size >= {self.code_width}, or a smaller width="
            )
        self._given = given or {}
        for name, (shape, dtype) in shapes(spec, vocab_size, hidden_size).items():
            self.register_buffer(name, torch.zeros(shape, dtype=TORCH_TYPES[dtype]))

    def _book(self) -> Codebook:
        """The codebook by spec; what no seed gives is taken from the caller or from the buffers."""
        names = self.spec.given if self.spec.fixed else ()
        stored = {name: self.get_buffer(name).cpu().numpy() for name in names}
        return build_codebook(self.spec, self.vocab_size, {**stored, **self._given})

    @abstractmethod
    def _expected(self) -> tuple[Tables, str | None]:
        """The tables by spec, and their hash."""

    def _known(self) -> bool:
        """Whether the spec and what was given suffice to make the tables here and now."""
        return all(name in self._given for name in self.spec.given)

    def _fill(self) -> None:
        """At construction: makes the tables where that is possible and wanted, and settles the
        hash.
        """
        on_meta = any(buffer.is_meta for buffer in self.buffers())
        if not self._known() or (on_meta and hashed_tables(self.spec) and self.sha256 is not None):
            return  # the tables come with a file, and `check` holds them against the hash
        tables, sha256 = self._expected()
        if self.sha256 not in (None, sha256):
            raise InputError(
                f"codebook_sha256 {str(self.sha256)[:12]} is not that of {str(self.spec)!r} with"
                f" {self.vocab_size:,} tokens ({str(sha256)[:12]}): the configuration was changed"
                " by hand, or made where codes differ"
            )
        self.sha256 = sha256
        self._write(tables)

    @torch.no_grad()
    def _write(self, tables: Tables) -> None:
        for name, table in tables.items():
            self.get_buffer(name).copy_(torch.from_numpy(table.copy()))

    def reset_buffers(self) -> None:
        tables, sha256 = self._expected()
        if self.sha256 not in (None, sha256):
            raise InputError(
                f"{str(self.spec)!r}: this machine's numerics make other float codes than the model"
                " was trained with; load them from its file"
            )
        self.sha256 = sha256
        self._write(tables)

    def check(self) -> None:
        where = f"of {str(self.spec)!r}"
        stored: Tables = {}
        for name, (shape, dtype) in shapes(self.spec, self.vocab_size, self.hidden_size).items():
            buffer = self.get_buffer(name)
            if buffer.is_meta:
                raise CodeMismatch(
                    f"{name} {where} is on the meta device; call reset_buffers() after to_empty()"
                )
            if buffer.dtype != TORCH_TYPES[dtype] or buffer.shape != shape:
                raise CodeMismatch(
                    f"{name} {where} is {buffer.dtype}{list(buffer.shape)}, not"
                    f" {dtype}{list(shape)}: take the file's own configuration, or a new copy"
                )
            stored[name] = buffer.cpu().numpy()
        if not stored:
            return
        hashed = hashed_tables(self.spec)
        expected = self._exact_tables(stored)
        for name in stored.keys() - set(hashed):
            differs = np.argwhere(stored[name] != expected[name])
            if len(differs):
                raise CodeMismatch(
                    f"{name} differs from {str(self.spec)!r} in {len(differs):,} of"
                    f" {stored[name].size:,} entries, first at row {differs[0][0]}: the file is"
                    " damaged or was made with another code; take a new copy or its own spec"
                )
        if hashed and self.sha256 is not None and self._stored_sha256(stored) != self.sha256:
            raise CodeMismatch(
                f"{hashed[0]} {where} has another hash than the configuration"
                f" ({self.sha256[:12]}): it is damaged or was made with another code; take a new"
                " copy"
            )

    @abstractmethod
    def _exact_tables(self, stored: Tables) -> Tables:
        """The tables that are compared bit by bit, made from the spec and from what it names by
        hash.
        """

    @abstractmethod
    def _stored_sha256(self, stored: Tables) -> str | None:
        """The hash of the tables as they are stored."""

    def _lifted(self, z: Tensor) -> Tensor:
        """R·z, [..., K] -> [..., D]. Copies are expanded and then written at once: one kernel,
        where `repeat` runs several, which a generated token waits for.
        """
        width, hidden = self.code_width, self.hidden_size
        if self.spec.lift == "tile":
            tiled = z.unsqueeze(-2).expand(*z.shape[:-1], -(-hidden // width), width).flatten(-2)
            return tiled if hidden % width == 0 else tiled[..., :hidden].contiguous()
        if self.spec.lift == "interleave" and hidden % width == 0:
            return z.unsqueeze(-1).expand(*z.shape, hidden // width).flatten(-2)
        if self.spec.lift == "interleave":
            return z.index_select(-1, torch.arange(hidden, device=z.device) * width // hidden)
        if self.spec.lift == "pad":
            return F.pad(z, (0, hidden - width))
        # a learned table would not be rounded either
        with torch.autocast(z.device.type, enabled=False):
            return z @ self.lift.view(torch.float32).to(z.dtype).T


class LearnedCode(_Coded):
    """Trainable coordinates V×K behind a fixed lift; they begin as a fixed code's. Between a table
    and a code.
    """

    def __init__(
        self,
        spec: InterfaceSpec,
        vocab_size: int,
        hidden_size: int,
        sha256: str | None = None,
        given: Given | None = None,
    ) -> None:
        super().__init__(spec, vocab_size, hidden_size, sha256, given)
        self.coordinates = nn.Parameter(torch.zeros(vocab_size, self.code_width))
        self._fill()
        if self._known() and not self.coordinates.is_meta:
            self.draw(lambda name: torch.Generator())

    def forward(self, ids: Tensor) -> Tensor:
        return self._lifted(self.looked_up(ids, self.coordinates))

    @torch.no_grad()
    def draw(self, generator: Generators) -> None:
        self.coordinates.copy_(torch.from_numpy(self._book().coordinates(self.hidden_size).copy()))

    def _expected(self) -> tuple[Tables, str | None]:
        tables = lift_table(self.spec, self.code_width, self.hidden_size)
        return tables, tables_sha256(self.spec, tables, None)

    def _exact_tables(self, stored: Tables) -> Tables:
        return {}

    def _stored_sha256(self, stored: Tables) -> str | None:
        return tables_sha256(self.spec, stored, None)

    def describe(self) -> InterfaceFacts:
        entries = sum(buffer.numel() for buffer in self.buffers())
        size = sum(buffer.numel() * buffer.element_size() for buffer in self.buffers())
        sha = self.spec.sha256(self.vocab_size, self.hidden_size)
        return InterfaceFacts(
            str(self.spec),
            self.coordinates.numel(),
            entries,
            size,
            sha,
            self.sha256,
            None,
            None,
            None,
            None,
        )


class FixedCode(_Coded):
    """A fixed code: nothing in it is trained. Looked up in a compact codebook, or computed from the
    ids.

    Its tables are persistent, because transformers gives non-persistent buffers back as
    uninitialised memory and reports nothing, and of integer type, so that no cast of the model
    reaches them (see `codes.tables`).
    """

    def __init__(
        self,
        spec: InterfaceSpec,
        vocab_size: int,
        hidden_size: int,
        sha256: str | None = None,
        given: Given | None = None,
    ) -> None:
        super().__init__(spec, vocab_size, hidden_size, sha256, given)
        # Empty, so nothing to lose: it only carries the dtype that `.to(...)` or
        # `from_pretrained(dtype=...)` chose.
        self.register_buffer("like_parameters", torch.empty(0), persistent=False)
        if spec.storage == "computed":
            self._id_keys = (
                round_keys(vocab_size, spec.ids_seed) if spec.ids == "permuted" else None
            )
            self._word_keys = (
                words.random_keys(self.code_width, spec.seed) if spec.kind == "random" else None
            )
        self._fill()

    def forward(self, ids: Tensor) -> Tensor:
        dtype = self.like_parameters.dtype
        if not self.spec.binary_valued:
            return self._lifted(self.looked_up(ids, self.codebook).view(torch.float32).to(dtype))
        bits = (
            self._computed(self.checked(ids))
            if self.spec.storage == "computed"
            else self._bits(ids)
        )
        if "levels" in self._buffers:
            low_K, high_K = self.levels.view(torch.float32).to(dtype)
            return self._lifted(torch.where(bits == 1, high_K, low_K))
        z = bits.to(dtype)
        return self._lifted(z * 2 - 1 if self.spec.values == "pm1" else z)

    def _bits(self, ids: Tensor) -> Tensor:
        rows = self.looked_up(ids, self.codebook)
        if self.code_width <= PACK_ABOVE:
            return rows
        shifts_8 = torch.arange(8, device=rows.device, dtype=torch.uint8)
        return (rows[..., None] >> shifts_8 & 1).flatten(-2)[..., : self.code_width]

    def _computed(self, ids: Tensor) -> Tensor:
        numbers = ids.long()
        if self._id_keys is not None:
            numbers = scatter(numbers, self.vocab_size, self._id_keys, torch)
        if self.spec.kind in LINEAR:
            bits = words.parities(numbers, self.masks)
            return bits ^ self.offset if self.spec.kind == "gf2" else bits
        shifts = torch.arange(words.WORD_BITS, device=ids.device)
        return words.random_bits(numbers, self.code_width, self._word_keys, shifts, torch)

    def draw(self, generator: Generators) -> None:
        """It has no parameter."""

    def _expected(self) -> tuple[Tables, str | None]:
        book = self._book()
        tables = make_tables(book, self.hidden_size)
        return tables, tables_sha256(self.spec, tables, book.sha256)

    def _exact_tables(self, stored: Tables) -> Tables:
        if not self.spec.binary_valued and not self.spec.given:
            # float words travel; nothing else is stored with them but the lift, which travels too
            return {}
        given = {name: stored[name] for name in self.spec.given}
        return make_tables(build_codebook(self.spec, self.vocab_size, given), self.hidden_size)

    def _stored_sha256(self, stored: Tables) -> str | None:
        given = {name: stored[name] for name in self.spec.given}
        bits = self.spec.binary_valued
        book_sha256 = build_codebook(self.spec, self.vocab_size, given).sha256 if bits else None
        return tables_sha256(self.spec, stored, book_sha256)

    def describe(self) -> InterfaceFacts:
        book, table_shapes = self._book(), shapes(self.spec, self.vocab_size, self.hidden_size)
        norms_V = book.squared_norms(self.hidden_size)
        logical = {name: int(np.prod(shape)) for name, (shape, _) in table_shapes.items()}
        if "codebook" in logical:
            logical["codebook"] = self.vocab_size * self.code_width
        return InterfaceFacts(
            spec=str(self.spec),
            trainable_parameters=0,
            buffer_entries=sum(logical.values()),
            buffer_bytes=sum(
                int(np.prod(shape)) * np.dtype(dtype).itemsize
                for shape, dtype in table_shapes.values()
            ),
            spec_sha256=self.spec.sha256(self.vocab_size, self.hidden_size),
            codebook_sha256=self.sha256,
            rank=book.rank(self.hidden_size),
            squared_norm_mean=float(norms_V.mean()),
            squared_norm_min=float(norms_V.min()),
            squared_norm_max=float(norms_V.max()),
        )
