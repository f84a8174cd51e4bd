"""Values that papers print or show on their sites, with a file for each table in printed/.

PAPER-table-N.tsv was typed from the paper, site-*.tsv from its web page. The first line of a file is `#` with
the table and the unit. The names of columns and the rows follow, separated by tabs. An empty cell is not
printed or not legible.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("printed")


def read(name: str) -> dict[str, dict[str, float | None]]:
    """Maps rows and columns to values. The columns before the first column of numbers, joined by commas, name
    the row."""
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
