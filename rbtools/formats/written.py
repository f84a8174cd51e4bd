"""What formats that are only written have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from rbtools.errors import RbError
from rbtools.formats.base import Published, Record, Unit
from rbtools.formats.conversion_report import ConversionReport

_PROTOCOL = (int, float, str, bool)


@dataclass(frozen=True, kw_only=True)
class WrittenOnly:
    """A format that is not read. Its units have `expressed`, the part of the record that the format has."""

    name: ClassVar[str]

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit]:
        raise RbError(f"{self.name} is written, not read. Name where: rb-convert {self.name} --write PATH.")

    def record(self, unit: Any, report: ConversionReport, where: str) -> Record:
        expressed: Record = unit.expressed
        return expressed


@runtime_checkable
class Sender(Protocol):
    """A format whose units another program keeps, in a folder or on a server."""

    def send(self, units: Iterable[Unit], target: str) -> None:
        """Keep the units. Raises RbError if that cannot be done."""


def text_of(record: Record, *path: str) -> str:
    """A text inside a record; empty where there is none."""
    value: Any = record
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def model_name(record: Record) -> str:
    """The name of a record's model: architecture, training method and seed."""
    train = record.get("train")
    seed = train.get("seed") if isinstance(train, dict) else None
    parts = [text_of(record, "arch", "name"), text_of(record, "train", "method")]
    return "-".join([*filter(None, parts), *([f"s{seed}"] if type(seed) is int else [])]) or "model"


def numbers_of(record: Record) -> dict[str, float]:
    """The metrics of a record that are numbers. Raises RbError if there are none."""
    metrics = record.get("metrics")
    found = {
        name: value
        for name, value in (metrics.items() if isinstance(metrics, dict) else ())
        if type(value) in (int, float)
    }
    if not found:
        raise RbError("The record has no metrics. Evaluate the model first, such as with rb-attack.")
    return found


def settings_of(record: Record, metric: str) -> Record:
    """How a metric was measured: the plain settings of its entry, its number of images and its interval."""
    evals = record.get("evals")
    entries = [one for one in evals if isinstance(one, dict)] if isinstance(evals, list) else []
    entry = next((one for one in reversed(entries) if one.get("metric") == metric), {})
    return {
        key: value
        for key, value in entry.items()
        if key not in ("metric", "value")
        and (
            isinstance(value, _PROTOCOL)
            or (isinstance(value, list) and all(type(end) in (int, float) for end in value))
        )
    }
