"""Numbers that were measured:
an exponential that may overflow, and how many digits a reader sees."""

import math

OVERFLOW = "over 1e308"  # what a reader sees where a perplexity has no number


def perplexity(nats: float) -> float | None:
    """exp(nats). None where that is more than a 64-bit float holds (nats above 709.78), or where
    `nats` is not finite.
    """
    try:
        value = math.exp(nats)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, and never fewer than its whole part has: 1,234 and
    12.3 and 0.0390.
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    scientific = f"{value:.{digits - 1}e}"
    exponent = int(scientific.partition("e")[2])
    if not -5 < exponent < 15:
        return scientific
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"
