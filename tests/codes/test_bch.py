"""BCH codes against their published parameters and by counting distances."""

import numpy as np
import pytest

from tokencodes.codes import InterfaceSpec, bch, build_codebook, minimal_width


def test_generators_are_the_published_ones():
    # Lin and Costello, table of primitive BCH codes: (15,7,5) 721, (31,16,7) 107657 in octal.
    assert bch.best_code(7, 15).generator == 0o721
    code = bch.best_code(16, 31)
    assert (code.generator, code.distance, code.extended) == (0o107657, 7, False)
    assert bch.best_code(16, 32).distance == 8


@pytest.mark.parametrize(
    ("vocab", "width"), [(3072, 24), (3072, 20), (320, 18), (49152, 32), (1000, 40), (65536, 31)]
)
def test_the_guaranteed_distance_holds_on_every_pair(vocab, width):
    words = build_codebook(InterfaceSpec.parse(f"ecc:width={width}"), vocab).words_VK
    bits = minimal_width(vocab)
    whole = build_codebook(InterfaceSpec.parse(f"ecc:width={width}"), 1 << bits).words_VK
    weights = whole[1:].sum(1)  # linear: a distance is a weight
    assert weights.min() >= bch.best_code(bits, width).distance
    assert np.array_equal(whole[:vocab], words)


def test_the_message_stands_in_front():
    ecc, plain = (
        build_codebook(InterfaceSpec.parse(spec), 3072).words_VK for spec in ("ecc", "binary")
    )
    assert np.array_equal(ecc[:, :12], plain)


def test_without_room_for_parity_the_message_is_shown_again():
    assert bch.best_code(9, 9) is None
    assert bch.masks(2, 3) == [1, 2, 1]
