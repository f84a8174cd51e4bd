"""The verdicts on one record as a table, which a terminal shows for rb-verify in place of the record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rbtools.cli.rank_table import draw
from rbtools.scoring import remeasured, table

_HINT = "the record has all"
_HEADINGS = (
    table.Heading("metric", False),
    table.Heading("verdict", False),
    table.Heading("claimed", True, missing="–"),
    table.Heading("measured", True, missing="–"),
    table.Heading("p", True, missing="–"),
    table.Heading("test", False, missing="–"),
    table.Heading("n", True, missing="–"),
    table.Heading("difference", True, missing="–"),
)


def text(record: Mapping[str, Any], width: int) -> str:
    """A line about the model, a row for each entry, then why entries cannot be told, and what is
    inconsistent, a line each.
    """
    arch, verify = record.get("arch") or {}, record.get("verify") or {}
    about = ", ".join(str(part) for part in (arch.get("name"), record.get("dataset")) if part)
    entries = verify.get("entries") or {}
    parts = [table.plain(about)]
    if entries:
        rows = [_row(name, verdict) for name, verdict in entries.items()]
        parts.append(
            draw(table.Table([*_HEADINGS], rows, []), "verdict", width, terminal=True, fixed=1, hint=_HINT)
        )
    unknown = remeasured.unknown_by_reason(entries)
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in unknown.items()]
    reasons += [
        f"{name}: {verdict['reason']}"
        for name, verdict in entries.items()
        if "reason" in verdict and verdict["verdict"] != remeasured.UNKNOWN
    ]
    reasons += [
        f"{name}: assumed: {verdict['assumed']}" for name, verdict in entries.items() if "assumed" in verdict
    ]
    findings = [f"inconsistent: {finding['says']}" for finding in verify.get("inconsistent") or ()]
    if "inconsistent" in verify and not findings:
        findings = ["The numbers of the record agree with each other."]
    parts += map(table.plain, [*reasons, *findings])
    if "error" in record:
        parts.append(f"error: {table.plain(str(record['error'].get('message', '')))}")
    parts.append("(a pipe or a file gets the record, as JSON)")
    return "\n".join(parts)


def _row(name: str, verdict: Mapping[str, Any]) -> list[table.TableCell]:
    cells = [table.TableCell(name), table.TableCell(str(verdict.get("verdict")))]
    for key in ("claimed", "measured", "p", "test", "n", "difference"):
        value = verdict.get(key)
        if key == "test" and isinstance(value, str):
            cells.append(table.TableCell(re.split("[,;:]", value)[0]))  # its name; the rest is in the record
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        cells.append(table.TableCell(value if number else None))
    return cells
