"""L0: the code itself. Proven, because every entry is looked at."""

import numpy as np

from tokencodes.codes import build_codebook, gf2, lift
from tokencodes.codes.codebook import Codebook, equal_rows, row_digests
from tokencodes.codes.spec import minimal_width
from tokencodes.errors import CodeMismatch
from tokencodes.interfaces import FixedCode
from tokencodes.verify.check import PROVEN, Check, Subject, check, not_applicable

MOVES = "the vectors of a trained input may move"


def codebook_regenerated(subject: Subject) -> Check:
    """Every stored entry equals, bit by bit, what the spec gives (float tables: their hash is the
    configuration's).
    """
    name, interface = "codebook regenerated", subject.model.input_interface
    if interface.sha256 is None:
        return not_applicable("L0", name, MOVES)
    try:
        interface.check()
    except CodeMismatch as error:
        return check("L0", name, PROVEN, False, str(error))
    entries = sum(buffer.numel() for buffer in interface.buffers())
    return check(
        "L0",
        name,
        PROVEN,
        True,
        f"{entries:,} stored entries are those of {str(interface.spec)!r}"
        f" ({interface.sha256[:12]})",
    )


def injective(subject: Subject) -> Check:
    """No two tokens share a vector, in float32. The whole table is looked at, a block of rows at a
    time.
    """
    interface = subject.model.input_interface
    if not isinstance(interface, FixedCode):
        return not_applicable("L0", "injective", MOVES)
    digests = np.concatenate(
        [row_digests(rows.float().cpu().numpy()) for _, rows in interface.blocks()]
    )
    size, same = len(digests), equal_rows(digests)
    detail = f"{size - len(same):,} distinct vectors of {size:,} tokens"
    if same:
        detail += f"; tokens {same[0][0]} and {same[0][1]} share one"
    return check("L0", "injective", PROVEN, not same, detail)


def gf2_inverse(subject: Subject) -> Check:
    """The stored matrix times its inverse is 1 over GF(2); other codes of bits have the rank that
    identity needs.
    """
    name, interface = "GF(2) inverse", subject.model.input_interface
    if not isinstance(interface, FixedCode) or not interface.spec.binary_valued:
        return not_applicable("L0", name, "no words of bits in this interface")
    buffers = dict(interface.named_buffers())
    if "matrix" in buffers:
        matrix = buffers["matrix"].cpu().numpy()
        rank = gf2.rank(matrix)
        holds = rank == len(matrix) and np.array_equal(
            gf2.multiply(matrix, gf2.inverse(matrix)), np.eye(len(matrix))
        )
        detail = f"rank {rank} of {len(matrix)}, offset of weight {int(buffers['offset'].sum())}"
        return check("L0", name, PROVEN, holds, detail)
    rank, least = gf2.rank(stored_book(interface).words_VK), minimal_width(interface.vocab_size)
    return check(
        "L0",
        name,
        PROVEN,
        rank >= least,
        f"no matrix; words of rank {rank}, and {least} tell the tokens apart",
    )


def lift_rank(subject: Subject) -> Check:
    """The lift loses nothing: full column rank."""
    interface = subject.model.input_interface
    if not isinstance(interface, FixedCode):
        return not_applicable("L0", "lift rank", "no lift of a fixed code in this interface")
    spec, width = interface.spec, interface.code_width
    rank = int(
        np.linalg.matrix_rank(lift.matrix(spec.lift, width, interface.hidden_size, spec.lift_seed))
    )
    detail = f"rank {rank} of {width} ({spec.lift} to {interface.hidden_size} channels)"
    return check("L0", "lift rank", PROVEN, rank == width, detail)


def stored_book(interface: FixedCode) -> Codebook:
    """The codebook of a model's spec; what the spec names by hash is read from the model."""
    buffers = dict(interface.named_buffers())
    given = {name: buffers[name].cpu().numpy() for name in interface.spec.given}
    return build_codebook(interface.spec, interface.vocab_size, given)


CHECKS = (codebook_regenerated, injective, gf2_inverse, lift_rank)
