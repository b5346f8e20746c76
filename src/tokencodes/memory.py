"""How much memory this machine has, and the refusal of work that cannot fit into it."""

import os
from pathlib import Path

from tokencodes.errors import InputError
from tokencodes.measured import significant

CGROUPS = Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of control groups, version 2 and 1


def total_bytes() -> int:
    """Memory that this process can have at most: the machine's with its swap, or the limit of its
    control group.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + _meminfo("SwapTotal", 0)
    limits = [_number(CGROUPS / name) for name in LIMITS]
    return min([machine, *(limit for limit in limits if limit)])


def free_bytes() -> int:
    """Memory that is free now, as the system estimates it;
    the total where the system does not say."""
    total = total_bytes()
    return min(total, _meminfo("MemAvailable", total))


def require_memory(
    needed: int, what: str, remedy: str, total: int | None = None, free: int | None = None
) -> None:
    """InputError where `needed` bytes are more than there can be. total, free: of a GPU; by default
    the machine's.
    """
    total = total_bytes() if total is None else total
    if needed > total:
        free = free_bytes() if free is None else free
        wanted, whole, left = (significant(count / 1e9) for count in (needed, total, free))
        raise InputError(
            f"{what}: about {wanted} GB of memory; here are {whole} GB, {left} GB of them free;"
            f" {remedy}"
        )


def _meminfo(name: str, missing: int) -> int:
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    values = [int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")]
    return values[0] if values else missing


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such file, or the word "max"
        return None
