"""The common parts of formats that are written but not read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from rbtools.errors import RbError
from rbtools.formats.base import Published, Record, Unit, own_part
from rbtools.formats.conversion_report import ConversionReport
from rbtools.records import results


@dataclass(frozen=True, kw_only=True)
class WrittenOnly:
    """A format that cannot be read. A unit is a record that has only the fields which the format contains."""

    name: ClassVar[str]

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit]:
        raise RbError(f"{self.name} can be written, but not read. Use rb-convert {self.name} --write PATH.")

    def record(self, unit: Record, report: ConversionReport, where: str) -> Record:
        return unit


@runtime_checkable
class Sender(Protocol):
    """A format whose units are stored by another program, in a folder or on a server."""

    def send(self, units: Iterable[Unit], target: str) -> None:
        """Store the units. Raises RbError if the units cannot be stored."""


def text_of(record: Record, path: str) -> str:
    value = results.at(record, path.split("."))
    return value if isinstance(value, str) else ""


def model_name(record: Record) -> str:
    seed = results.at(record, ("train", "seed"))
    parts = [text_of(record, "arch.name"), text_of(record, "train.method")]
    return "-".join([*filter(None, parts), *([f"s{seed}"] if type(seed) is int else [])]) or "model"


def numbers_of(record: Record) -> dict[str, float]:
    """The metrics of a record whose value is a number. Raises RbError if no metric has a number."""
    found = own_part(record.get("metrics")).items()
    if numbers := {name: value for name, value in found if results.is_number(value)}:
        return numbers
    raise RbError("The record has no metrics. Evaluate the model first, for example with rb-attack.")
