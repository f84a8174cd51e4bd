"""Values that papers print, or have on their sites: a file a table in printed/.

PAPER-table-N.tsv was typed from the paper, site-*.tsv from its web page. A file begins with `#` and the table
and unit; then come names of columns, then rows, with tabs. An empty cell is not printed or not legible.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("printed")


def read(name: str) -> dict[str, dict[str, float | None]]:
    """Row -> column -> value. The columns before the first of numbers name the row, joined by commas."""
    head, *lines = (FOLDER / f"{name}.tsv").read_text().splitlines()
    columns, *rows = (line.split("\t") for line in lines)
    if not head.startswith("#") or any(len(row) != len(columns) for row in rows):
        raise ValueError(f"{name}.tsv lacks its first line, or has a row of another length.")
    keys = 1
    while not all(_is_number(row[keys]) for row in rows):
        keys += 1
    return {
        ", ".join(row[:keys]): {
            column: float(cell) if cell else None
            for column, cell in zip(columns[keys:], row[keys:], strict=True)
        }
        for row in rows
    }


def _is_number(cell: str) -> bool:
    """Whether a cell is a value or empty."""
    try:
        float(cell or 0)
    except ValueError:
        return False
    return True
