"""The accuracy of guessing, which depends on the number of classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rbtools.datasets import DATASETS, WITH_PATH, describe

# Of published data sets that people write besides those that there are here.
_OTHERS = {"fashionmnist": 10, "imagenet": 1000}


def classes(records: Sequence[dict[str, Any]]) -> int | None:
    """The number of classes of the records' data set; None where it is unknown or they differ."""
    found = {_of(record) for record in records}
    return found.pop() if len(found) == 1 else None


def _of(record: dict[str, Any]) -> int | None:
    name = _plain(str(record.get("dataset", "")).partition(":")[0])
    known = next((one for one in DATASETS if _plain(one) == name and one not in WITH_PATH), None)
    if known is not None:
        return describe(known).classes
    return _OTHERS.get(name) or next(_matrices(record.get("evals") or ()), None)


def _plain(name: str) -> str:
    """A data set's name as it is compared: rb-convert and people write CIFAR-10, too."""
    return name.lower().replace("-", "").replace("_", "")


def _matrices(entries: Iterable[dict[str, Any]]) -> Iterator[int]:
    for entry in entries:
        detail = entry.get("detail")
        if isinstance(detail, dict) and isinstance(detail.get("confusion"), list):
            yield len(detail["confusion"])
