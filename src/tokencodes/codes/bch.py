"""Binary BCH codes, shortened and extended: words far apart in Hamming distance.

A primitive BCH code of length 2^m - 1 has a generator polynomial g = lcm of the minimal polynomials
of a, a^2, ..., a^2t over GF(2^m), and distance >= 2t + 1. Its systematic form puts the message
first and message(x)·x^p mod g(x) behind it; leaving message bits at zero shortens it, an overall
parity bit makes an odd distance even. (R. Bose, D. Ray-Chaudhuri, 1960; A. Hocquenghem, 1959.
Primitive polynomials as in Lin and Costello, *Error Control Coding*.)
"""

from dataclasses import dataclass

PRIMITIVE = {
    3: 0b1011,
    4: 0b10011,
    5: 0b100101,
    6: 0b1000011,
    7: 0b10001001,
    8: 0b100011101,
    9: 0b1000010001,
}


@dataclass(frozen=True)
class BchCode:
    """A choice for messages of some bits: generator polynomial (as bits), whether extended, the
    guaranteed distance.
    """

    generator: int
    extended: bool
    distance: int

    @property
    def parity_bits(self) -> int:
        """Bits behind the message."""
        return self.generator.bit_length() - 1 + self.extended


def _power_table(m: int) -> list[int]:
    """a^0, a^1, ... in GF(2^m), as bit patterns."""
    table, value = [], 1
    for _ in range((1 << m) - 1):
        table.append(value)
        value <<= 1
        if value >> m:
            value ^= PRIMITIVE[m]
    return table


def _minimal_polynomial(m: int, exponent: int, powers: list[int]) -> int:
    """The polynomial over GF(2) with roots a^e, a^2e, a^4e, ...; its coefficients come out as 0 and
    1.
    """
    order = (1 << m) - 1
    logs = {value: e for e, value in enumerate(powers)}

    def product(x: int, y: int) -> int:
        return powers[(logs[x] + logs[y]) % order] if x and y else 0

    roots = {exponent * (1 << i) % order for i in range(m)}
    coefficients = [1]  # highest degree last
    for root in sorted(roots):
        shifted = [0, *coefficients]
        scaled = [product(c, powers[root]) for c in coefficients] + [0]
        coefficients = [a ^ b for a, b in zip(shifted, scaled, strict=True)]
    return sum(c << degree for degree, c in enumerate(coefficients))


def _multiply(a: int, b: int) -> int:
    total = 0
    while b:
        if b & 1:
            total ^= a
        a, b = a << 1, b >> 1
    return total


def remainder(value: int, modulus: int) -> int:
    """value mod modulus, both polynomials over GF(2) as bit patterns."""
    size = modulus.bit_length()
    while value.bit_length() >= size:
        value ^= modulus << (value.bit_length() - size)
    return value


def best_code(message_bits: int, width: int) -> BchCode | None:
    """The BCH code of largest guaranteed distance whose shortened length is at most `width`; None
    if there is none.
    """
    best: BchCode | None = None
    for m in PRIMITIVE:
        length, powers = (1 << m) - 1, _power_table(m)
        generator, done = 1, set[int]()
        for t in range(1, length // 2):
            minimal = _minimal_polynomial(m, 2 * t - 1, powers)
            if minimal not in done:
                done.add(minimal)
                generator = _multiply(generator, minimal)
            parity = generator.bit_length() - 1
            if length - parity < message_bits or message_bits + parity > width:
                break
            extended = message_bits + parity + 1 <= width
            candidate = BchCode(generator, extended, 2 * t + 1 + extended)
            if best is None or candidate.distance > best.distance:
                best = candidate
    return best


def masks(message_bits: int, width: int) -> list[int]:
    """For each of `width` code bits the message bits whose parity it is. Spare columns show the
    message again.
    """
    rows = [1 << j for j in range(message_bits)]
    code = best_code(message_bits, width)
    if code is not None:
        parity = code.parity_bits - code.extended
        checks = [remainder(1 << (parity + j), code.generator) for j in range(message_bits)]
        rows += [sum((checks[j] >> i & 1) << j for j in range(message_bits)) for i in range(parity)]
        if code.extended:
            overall = 0
            for row in rows:
                overall ^= row
            rows.append(overall)
    return [*rows, *(1 << (i % message_bits) for i in range(width - len(rows)))]
