"""Converts published numbers to metrics and entries of a record, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from rbtools.errors import RbError
from rbtools.formats import numbers
from rbtools.formats.base import Record
from rbtools.formats.conversion_report import ConversionReport
from rbtools.records import SCHEMA, checksums, results

TOOL = "rb-convert"
ENOUGH = 4  # of so many JSON numbers in a row, all end in a zero only in 1 of 10,000 rows
SHARE, DIFFERENCE = (0.0, 1.0), (-1.0, 1.0)  # limits of shares of images, and of their differences


class PublishedRow:
    """The metrics of one published row. `percent` is true if the accuracies of the row are percentages."""

    def __init__(self, source: str, report: ConversionReport, where: str, *, percent: bool) -> None:
        self.source, self.report, self.where, self.percent = source, report, where, percent
        self.metrics: dict[str, float | int] = {}
        self.entries: list[Record] = []
        self.digits: dict[int, int] = {}  # index in entries -> decimals of a JSON number
        self.shares: list[numbers.Number] = []

    @property
    def known(self) -> set[str]:
        """The names of the metrics that have an entry."""
        return {entry["metric"] for entry in self.entries}

    def absent(self, protocol: Record, reason: str) -> None:
        self.entries.append(
            {"tool": TOOL, **protocol, "source": self.source, "value": None, "reason": reason}
        )

    def add(
        self,
        metric: str,
        raw: object,
        percent: bool | None = None,
        *,
        limits: tuple[float, float] | None = SHARE,
        **protocol: object,
    ) -> None:
        """Add a published value. If the value is not a number or is outside the limits, add an entry with the
        reason; if the value is null, add nothing. `percent` is None if the number has the scale of the row.
        """
        percent = self.percent if percent is None else percent
        entry: Record = {"tool": TOOL, "metric": metric, **protocol, "source": self.source}
        try:
            got = numbers.number(raw, percent=percent)
            if got is None:
                return
            if limits and not limits[0] <= got.value <= limits[1]:
                raise numbers.NoNumber(_out_of_range(got, percent, limits))
        except numbers.NoNumber as wrong:
            shown = str(raw)[:20]
            problem = f"{wrong}; the metric is left out, and its entry in evals gives the reason"
            self.report.error(problem, f"{self.where}: {metric} is {shown}")
            self.entries.append({**entry, "value": None, "reason": f"published as {shown}: {wrong}"})
            return
        self.metrics[metric] = got.value
        if percent:
            entry |= {"published": got.text, "unit": "percent"}
        elif isinstance(raw, str):
            entry["published"] = got.text
        if 0 < got.decimals < numbers.UNROUNDED:
            entry["rounding"] = float(f"1e-{got.decimals}")
            if not isinstance(raw, str):
                self.digits[len(self.entries)] = got.decimals
        self.entries.append({**entry, "value": got.value})
        if limits == SHARE:
            self.shares.append(got)

    def check_scale(self) -> None:
        """Raise RbError if accuracies that should be percentages look like fractions."""
        read = [got for got in self.shares if got.value]
        if self.percent and not self.report.ours and read and all(got.value <= 0.01 for got in read):
            raise RbError(
                f"No accuracy of the row is above 1 (the first is {read[0].text}), so they look like"
                f" fractions, but {self.source} has percentages. For fractions, use --scale fraction."
            )

    def record(self, arch: Record, **fields: object) -> Record:
        """The record, without empty fields. JSON drops trailing zeros, so all JSON numbers of the row get the
        rounding of the number with the most digits (in a short row, no rounding)."""
        most = max(self.digits.values(), default=0)
        for place in self.digits:
            if len(self.digits) < ENOUGH:
                del self.entries[place]["rounding"]
            else:
                self.entries[place]["rounding"] = float(f"1e-{most}")
        fields = {key: value for key, value in fields.items() if value not in (None, {}, [])}
        results = {"metrics": self.metrics, "evals": self.entries}
        return {"schema": SCHEMA, "arch": arch, **fields, **results, **checksums.of_all(self.entries)}


def _out_of_range(got: numbers.Number, percent: bool, limits: tuple[float, float]) -> str:
    unit, scale = ("percent", 100) if percent else ("a fraction", 1)
    side = "above" if got.value > limits[1] else "below"
    hint = " (for percentages, give --scale percent)" if not percent and 1 < got.value <= 100 else ""
    least, most = (limit * scale for limit in limits)
    return f"a number is {side} the range of {unit} ({least:g} to {most:g}){hint}"


def measured(entry: Mapping[str, Any]) -> dict[str, float]:
    """The values that belong to a metric: its number of images n, and its 95 % interval from low to high."""
    beside = {"n": entry["n"]} if type(entry.get("n")) is int else {}
    return beside | dict(zip(("low", "high"), results.interval(entry) or (), strict=False))


class MetricValues:
    """The metrics of a record as numbers to write: Decimals, integers, or None."""

    def __init__(self, record: Record, *, percent: bool) -> None:
        self.metrics = record.get("metrics") or {}
        self.entries = results.by_metric(record)
        self.percent = percent

    def value(self, metric: str, percent: bool | None = None) -> Decimal | int | None:
        """The value, with the published digits if possible, and by default on the scale of the file."""
        percent = self.percent if percent is None else percent
        value = self.metrics.get(metric)
        if value is None:
            return None
        entry = self.entries.get(metric, {})
        text = entry.get("published")
        if isinstance(text, str) and (entry.get("unit") == "percent") == percent:
            with contextlib.suppress(numbers.NoNumber, ArithmeticError):
                again = numbers.number(text, percent=percent)
                if again is not None and again.value == value:
                    return Decimal(text)
        if isinstance(value, int) and not percent:
            return value
        return numbers.printed(value, percent=percent)
