"""The view `values` of the plot `heatmap`: metrics over severity or distance as coloured cells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import layout, marks, record_values, style, words
from rbtools.plots.base import Record
from rbtools.plots.renderer import FigureSpec, Panel

MOST_MODELS = 6  # of more models, the mean is drawn
_CELL = 0.24  # inches of a row
_LEAST = 1.9  # inches of a panel


def spec(records: Sequence[Record], metric: str, width: float) -> FigureSpec:
    """A row for each corruption or attack and a column for each severity or distance. Each model has a panel;
    if there are more than six models, the cells show their mean."""
    families = words.families(record_values.chosen(records, metric, "--metric"))
    axes = list(dict.fromkeys(over for _, over in families))
    if len(axes) != 1:
        found = f"have different axes ({', '.join(axes)})" if axes else "have no severity or distance"
        raise RbError(f"--metric: the metrics {found}. Choose some, such as --metric 'corrupt.*'.")
    numbers = sorted({number for members in families.values() for number, _ in members})
    names = [name for members in families.values() for _, name in members]
    tables = np.full((len(records), len(families), len(numbers)), np.nan)
    for row, members in enumerate(families.values()):
        for number, name in members:
            column = record_values.column(records, name, "--metric")
            tables[:, row, numbers.index(number)] = np.array(column, float)
    titles = words.tags(records) if len(records) > 1 else [""]
    bar = words.quantity(names)
    if len(records) > MOST_MODELS:
        counts = (~np.isnan(tables)).sum(0)
        tables = np.nansum(tables, 0, keepdims=True) / np.where(counts, counts, np.nan)
        titles, bar = [""], f"{bar}, mean of {len(records):,} models"
    rows = [title for title, _ in families]
    low, high = (0.0, 1.0) if words.are_accuracies(names) else (np.nanmin(tables), np.nanmax(tables))
    across = min(len(tables), max(1, int((width - 0.65) / _LEAST)))
    room = (width - 0.8 - min(layout.widest(rows, style.small()), 1.8)) / across
    look: dict[str, Any] = {"cmap": "cividis", "vmin": low, "vmax": high, "room": room, "written": _written}
    look["is_dark"] = lambda value: value < low + 0.55 * (high - low)
    ticks = [f"{number:g}" for number in numbers]
    panels = [
        Panel(partial(marks.matrix, table=table, **look), title, axes[0], "", ticks, rows)
        for title, table in zip(titles, tables, strict=True)
    ]
    return FigureSpec(panels, lambda _: _CELL * len(rows), least=_LEAST, bar=bar, bar_at="top")


def _written(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f}".removeprefix("0").replace("-", "−")
