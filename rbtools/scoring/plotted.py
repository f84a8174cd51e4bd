"""Computations for figures: rb-plot passes this module to the plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rbtools.errors import unknown
from rbtools.lazy import np
from rbtools.records import expr
from rbtools.scoring import correlate, rank_order, terms
from rbtools.scoring.columns import ABSENT
from rbtools.scoring.composite import Composite


def front(columns: Sequence[Sequence[float]], higher: Sequence[bool]) -> list[int]:
    """The places on the Pareto front: no other is as good in every column and better in one."""
    return [
        place for place, on in enumerate(rank_order.front(list(zip(*columns, strict=True)), higher)) if on
    ]


def correlations(
    kind: str,
    names: Sequence[str],
    columns: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    cols: Sequence[str],
) -> list[list[float]]:
    """Rank correlations (rows, cols) between the named columns, NaN where there is none; see `correlate`."""
    numbers = np.array([[ABSENT if v is None else v for v in column] for column in columns]).T
    coefficients: list[list[float]] = correlate.matrix(kind, names, numbers, rows, cols).value.tolist()
    return coefficients


def composite(
    records: Iterable[Mapping[str, Any]],
    metric: str | None,
    *,
    preset: str | None = None,
    within: str | None = None,
    missing: str = "refuse",
) -> Composite:
    """The composite score of these records, with the options of rb-score.

    Raises RbError like rb-score: for a record that lacks a metric, and a metric that no record has.
    """
    if preset is not None and preset not in terms.presets():
        raise unknown("preset", preset, terms.presets())
    asked = [] if metric is None else terms.asked(metric)  # the figure's title has the warnings
    return Composite(list(records), asked, preset=preset, within=expr.items(within or ""), missing=missing)


def preset_metrics(preset: str) -> list[str]:
    """The metrics of a preset of rb-score, under their usual names."""
    presets = terms.presets()
    return [term.metric for term in presets[preset].terms] if preset in presets else []
