"""Fingerprints of data sets by name."""

from __future__ import annotations

from typing import Any

from rbtools import datasets
from rbtools.datasets.base import HashCache


def fingerprint(
    name: str, split: str, data_dir: Any = None, cache: HashCache | None = None, **options: Any
) -> str:
    """The fingerprint of a split. `options` are those of `datasets.source`."""
    return datasets.source(name, data_dir, **options).fingerprint(split, cache)
