"""The accuracy of guessing, which depends on the number of classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

# Of published data sets, as rb-convert and people write them; hyphens and capitals do not matter. A test
# asks for those of rbtools.datasets, which a figure does not load.
_CLASSES = {
    "digits": 10,
    "mnist": 10,
    "fashionmnist": 10,
    "svhn": 10,
    "cifar10": 10,
    "cifar10c": 10,
    "cifar100": 100,
    "cifar100c": 100,
    "cinic10": 10,
    "tinyimagenet": 200,
    "imagenet": 1000,
    "imagenet50": 50,
    "imagenet16120": 120,
}


def classes(records: Sequence[dict[str, Any]]) -> int | None:
    """The number of classes of the records' data set; None where it is unknown or they differ."""
    found = {_of(record) for record in records}
    return found.pop() if len(found) == 1 else None


def _of(record: dict[str, Any]) -> int | None:
    name = str(record.get("dataset", "")).lower().partition(":")[0].replace("-", "").replace("_", "")
    return _CLASSES.get(name) or next(_matrices(record.get("evals") or ()), None)


def _matrices(entries: Iterable[dict[str, Any]]) -> Iterator[int]:
    for entry in entries:
        detail = entry.get("detail")
        if isinstance(detail, dict) and isinstance(detail.get("confusion"), list):
            yield len(detail["confusion"])
