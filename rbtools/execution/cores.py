"""How many cores there are, and how many threads the user's environment asks for."""

from __future__ import annotations

import os


def count() -> int:
    """How many cores this process may use, by its affinity and its control groups."""
    import loky  # imported here because --help does not need it

    cores: int = loky.cpu_count()
    return cores


def asked() -> int | None:
    """The threads that OMP_NUM_THREADS and MKL_NUM_THREADS ask for, the smaller of both; None if neither
    is a number. Of a list, which has a number for each level of nesting, the first counts."""
    said = (os.environ.get(name, "").split(",")[0].strip() for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    numbers = (int(word) for word in said if word.isascii() and word.isdigit() and len(word) < 10)
    return min((number for number in numbers if number), default=None)
