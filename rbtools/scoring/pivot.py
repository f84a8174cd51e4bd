"""The tables of papers: methods as rows, metrics as columns, the best of each column marked."""

from __future__ import annotations

from collections.abc import Sequence

from rbtools.records.metric_name import higher_is_better
from rbtools.scoring import table
from rbtools.scoring.rank_order import Ranked, Record


def build(records: Sequence[Record], fields: Sequence[str], metrics: Sequence[str]) -> table.Table:
    """A row for each record under the fields that it was grouped by; how many were merged, where any were.

    Best is the best number as it is shown: what differs in digits that nobody sees is equally good.
    """
    columns = [*map(table.field_column, fields)]
    if any((record.get("aggregated") or {}).get("records", 1) > 1 for record in records):
        columns.append(table.RECORDS)
    first = len(columns)
    columns += map(table.metric_column, metrics)
    rows = []
    for record in records:
        spreads = table.spreads_of(record)
        rows.append([column.cell(Ranked(None, None, record), spreads) for column in columns])
    for place, name in enumerate(metrics, start=first):
        _mark([row[place] for row in rows], rows, place, higher_is_better(name))
    return table.Table([column.heading for column in columns], rows, [])


def _mark(cells: list[table.TableCell], rows: list[list[table.TableCell]], place: int, higher: bool) -> None:
    numbers = [cell.value for cell in cells if isinstance(cell.value, int | float)]
    if len(numbers) < 2:
        return
    best = table.figure(max(numbers) if higher else min(numbers))
    for row in rows:
        value = row[place].value
        if isinstance(value, int | float) and table.figure(value) == best:
            row[place] = row[place]._replace(best=True)
