"""The publications whose values `rb-rank --against` compares with records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from rbtools.cli.against import Key, PublishedSource
from rbtools.errors import RbError
from rbtools.formats import Unit
from rbtools.papers.formats import robustbench
from rbtools.papers.formats.published_json import class_of

Record = Mapping[str, Any]
_CIFAR = {"cifar10": 10_000, "cifar100": 10_000}
_IMAGENET16 = "imagenet16-120"


def _leaderboard_key(record: Record) -> Key | None:
    """A model's name in RobustBench, from --arch robustbench:NAME or from a converted record."""
    name = record.get("leaderboard") or robustbench.model_name(record)
    return (record.get("dataset"), name.rpartition("/")[2]) if isinstance(name, str) else None


def _trained_key(record: Record) -> Key | None:
    arch, train = record.get("arch") or {}, record.get("train") or {}
    noise = (train.get("config") or {}).get("noise") if train.get("method") == "corruption" else None
    return record.get("dataset"), arch.get("space"), arch.get("name"), train.get("method"), noise


def _cell_key(record: Record) -> Key | None:
    """The isomorphism class of a NAS-Bench-201 cell, which published files list under its first index."""
    with contextlib.suppress(RbError):
        index = class_of(record.get("arch") or {})
        return None if index is None else (record.get("dataset"), index)
    return None


def _shipped(wanted: set[Key]) -> Iterator[Unit]:
    for unit in robustbench.shipped():
        if (unit.content.dataset, unit.content.model) in wanted:
            yield unit


ROBUSTBENCH = PublishedSource(
    _leaderboard_key, {**_CIFAR, "imagenet": 5_000}, shipped=_shipped, folder="model_info"
)
PRBENCH = PublishedSource(
    _trained_key,
    {
        **_CIFAR,
        **{"tinyimagenet": 10_000, "mnist": 10_000, "svhn": 26_032, "cinic10": 90_000},
        "imagenet50": 2_500,
    },
)
JUNG2023 = PublishedSource(_cell_key, {**_CIFAR, _IMAGENET16: 3_000}, ("erm",))
NASROBBENCH201 = PublishedSource(_cell_key, {**_CIFAR, _IMAGENET16: 6_000}, ("pgd",), {"seeds": "mean"})
