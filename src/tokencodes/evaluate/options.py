"""Values of options that are checked before anything slow is imported or read."""

from collections.abc import Sequence

from tokencodes.errors import InputError

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")


def check_options(device: str, dtype: str) -> None:
    """InputError for a device or a dtype that is none."""
    _check("--device", device, DEVICES)
    _check("--dtype", dtype, DTYPES)


def _check(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{option} {value!r}: known: {', '.join(known)}")
