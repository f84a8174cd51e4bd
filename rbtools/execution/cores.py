"""The number of cores, and the number of threads that the user's environment requests."""

from __future__ import annotations

import os


def count() -> int:
    """The number of cores that this process may use, according to its affinity and its control groups."""
    import loky  # here, because --help does not need loky

    return loky.cpu_count()


def asked() -> int | None:
    """The smaller of the numbers of threads in OMP_NUM_THREADS and MKL_NUM_THREADS, or None. Of a list with a
    number for each level of nesting, the first number counts."""
    said = (os.environ.get(name, "").split(",")[0].strip() for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    numbers = (int(word) for word in said if word.isascii() and word.isdigit() and len(word) < 10)
    return min((number for number in numbers if number), default=None)
