"""Values that papers print or show on their web pages; the folder printed/ has one file for each table.

PAPER-table-N.tsv was copied from the paper, and site-*.tsv from the paper's web page. The first line of a
file starts with `#` and names the table and the unit. The second line contains the names of the columns, and
each further line is a row; cells are separated by tabs. An empty cell means that the value is not printed or
not legible.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("printed")


def read(name: str) -> dict[str, dict[str, float | None]]:
    """Map each row and column to a value. The name of a row consists of the cells before the first column of
    numbers, joined by commas."""
    head, *lines = (FOLDER / f"{name}.tsv").read_text().splitlines()
    columns, *rows = (line.split("\t") for line in lines)
    if not head.startswith("#") or any(len(row) != len(columns) for row in rows):
        raise ValueError(f"{name}.tsv lacks its first line, or has rows of different lengths.")
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


def title(name: str) -> str:
    """The name of the table and the unit, from the first line of a file."""
    return (FOLDER / f"{name}.tsv").read_text().partition("\n")[0].removeprefix("# ")


def fractions(name: str) -> dict[str, dict[str, float | None]]:
    """Convert the values of a file from percentages to fractions; times (s/epoch) are unchanged."""
    return {
        row: {
            column: value if value is None or column == "s/epoch" else value / 100
            for column, value in values.items()
        }
        for row, values in read(name).items()
    }


def _is_number(cell: str) -> bool:
    try:
        float(cell or 0)
    except ValueError:
        return False
    return True
