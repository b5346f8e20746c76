"""Codes: what a token's fixed vector is, as pure functions on numpy arrays (no torch anywhere
below).

Open in this order: `spec` (the written form, its axes and its hash), `gf2`, `bch`, `scatter`
(algebra, permutations), `words`, `assign`, `lift` (three axes), `codebook` (put together; the
fourth), `tables` (what a model stores). Paper: section "Interfaces".
"""

from tokencodes.codes.codebook import Codebook, build_codebook
from tokencodes.codes.spec import InterfaceSpec, minimal_width

__all__ = ["Codebook", "InterfaceSpec", "build_codebook", "minimal_width"]
