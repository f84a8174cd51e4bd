"""One model's results as a small table, which a terminal shows for `--checkpoint` in place of the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rbtools.cli.rank_table import draw
from rbtools.scoring import table


def text(record: Mapping[str, Any], width: int) -> str:
    """A line about the model, then a row for each metric: value with 95 % interval, images, split.

    A record with an error has that in place of the rows that are missing.
    """
    arch = record.get("arch") or {}
    about = ", ".join(str(part) for part in (arch.get("name"), record.get("dataset")) if part)
    entries = {entry.get("metric"): entry for entry in record.get("evals") or []}
    spreads = table.spreads_of(dict(record))
    rows = [
        _row(name, value, entries.get(name, {}), spreads.get(name, table.NO_SPREAD))
        for name, value in (record.get("metrics") or {}).items()
    ]
    headings = [table.Heading("metric", False), table.Heading("value", True)]
    headings += [table.Heading("n", True), table.Heading("split", False)]
    parts = [table.plain(about)]
    if rows:
        parts.append(draw(table.Table(headings, rows, []), "value", width, terminal=True, fixed=1))
    if "error" in record:
        parts.append(f"error: {table.plain(str(record['error'].get('message', '')))}")
    parts.append("(a pipe or a file gets the record, as JSON)")
    return "\n".join(parts)


def _row(name: str, value: object, entry: Mapping[str, Any], spread: table.Spread) -> list[table.TableCell]:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    n, split = entry.get("n"), entry.get("split")
    return [
        table.TableCell(name),
        table.TableCell(number, *spread),
        table.TableCell(n if isinstance(n, int) else None),
        table.TableCell(None if split is None else str(split)),
    ]
