"""The table of rb-rank for people: every record on one line, and only the columns that fit.

Cells never wrap. If the table is too wide, intervals are left out first, then columns, details before others;
a note below the table names what is not shown.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from rbtools.records.metric_name import heading_pieces
from rbtools.scoring import table

_GAP = 2  # spaces between columns
_NARROWEST = 10  # shortest line that a heading is broken into
_LONGEST_TEXT = 32  # of a name, a data set or a method
_NAMED = 8  # metrics that are named as not shown


class _DrawnColumn(NamedTuple):
    """One column as it is to be drawn; `heading` may have several lines. `best`: the cells to mark."""

    heading: str
    numeric: bool
    cells: list[str]
    width: int
    best: list[bool]


_HINT = "--metric chooses columns; --format jsonl has all"


def draw(
    built: table.Table, key: str, width: int, *, terminal: bool = False, fixed: int = 2, hint: str = _HINT
) -> str:
    """The table of records ranked by `key`, at most `width` characters wide.

    The first `fixed` columns (rank and name) and the key are always there, even if they do not fit. On a
    `terminal` headings are bold. `hint`: where columns are that do not fit.
    """
    columns, hidden = _fitting(built, key, width, fixed)
    columns = [column if terminal else _starred(column) for column in columns]
    text = _drawn(columns, width, terminal)
    return f"{text}\n\n{_note(hidden, width, hint)}" if hidden else text


def _column(built: table.Table, place: int, *, measured: bool) -> _DrawnColumn:
    heading = built.headings[place]
    cells = [row[place] for row in built.rows]
    texts = [table.text(cell if measured else cell._replace(interval=None, deviation=None)) for cell in cells]
    texts = [text or heading.missing for text in texts]
    if not heading.numeric:
        texts = [_shortened(text) for text in texts]
    title = _broken(heading.title, _widest(texts))
    width = _widest([*texts, *title.split("\n")])
    return _DrawnColumn(title, heading.numeric, texts, width, [cell.best for cell in cells])


def _starred(column: _DrawnColumn) -> _DrawnColumn:
    """Without bold type, a star follows the best values, and a blank the others."""
    if not any(column.best):
        return column
    cells = [f"{text}{'*' if best else ' '}" for text, best in zip(column.cells, column.best, strict=True)]
    return column._replace(cells=cells, width=max(column.width, _widest(cells)))


def _fitting(built: table.Table, key: str, width: int, fixed: int) -> tuple[list[_DrawnColumn], list[str]]:
    """The columns that fit, and the names of those that do not.

    Priority: columns that distinguish records, then metrics, then what all records share (such as their data
    set), then intervals of metrics, then details.
    """
    titles = [heading.title for heading in built.headings]
    every, own = range(len(titles)), titles.index(key, fixed)
    short = [_column(built, place, measured=False) for place in every]
    full = [_column(built, place, measured=True) for place in every]
    if sum(column.width + _GAP for column in full) <= width + _GAP:
        return full, []
    details = [place for place in every if place > own and table.is_detail(titles[place])]
    metrics = [place for place in every if place > own and place not in details]
    chosen = {place: short[place] for place in (*range(fixed), own)}
    free = width + _GAP - sum(column.width + _GAP for column in chosen.values())
    about = range(fixed, own)
    shared = [place for place in about if len(built.rows) > 1 and len(set(short[place].cells)) == 1]
    apart = [place for place in about if place not in shared]
    wishes = [(place, short[place]) for place in [*apart, *metrics, *shared]]
    wishes += [(place, full[place]) for place in [own, *metrics]]
    wishes += [(place, short[place]) for place in details]
    for place, column in wishes:
        more = column.width - chosen[place].width if place in chosen else column.width + _GAP
        if more <= free and (place in chosen or column is short[place]):
            chosen[place] = column
            free -= more
    hidden = [titles[place] for place in every if place not in chosen]
    if without := sum(full[place].width > column.width for place, column in chosen.items()):
        hidden.insert(0, f"the intervals of {without} column{'s' * (without > 1)}")
    return [chosen[place] for place in sorted(chosen)], hidden


def _drawn(columns: Sequence[_DrawnColumn], width: int, terminal: bool) -> str:
    """Headings by rich, rows by hand: rich takes a millisecond for each of them."""
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        side: Literal["right", "left"] = "right" if column.numeric else "left"
        drawn.add_column(
            column.heading, justify=side, vertical="bottom", no_wrap=True, min_width=column.width
        )
    needed = sum(column.width + _GAP for column in columns)
    # With a height as well: without it, rich assumes 80 columns for a dumb terminal.
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=max(width, needed),
        height=25,
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(drawn)
    headings: str = console.file.getvalue()  # type: ignore[attr-defined]
    rows = zip(*(_aligned(column, terminal) for column in columns), strict=True)
    lines = [*headings.rstrip("\n").split("\n"), *((" " * _GAP).join(row) for row in rows)]
    return "\n".join(line.rstrip() for line in lines)


def _aligned(column: _DrawnColumn, terminal: bool) -> list[str]:
    """The cells of a column in its width; on a terminal the best are bold."""
    cells = []
    for text, best in zip(column.cells, column.best, strict=True):
        blanks = " " * (column.width - cell_len(text))
        shown = f"\x1b[1m{text}\x1b[0m" if terminal and best else text
        cells.append(blanks + shown if column.numeric else shown + blanks)
    return cells


def _note(hidden: Sequence[str], width: int, hint: str) -> str:
    named = ", ".join(hidden[:_NAMED])
    more = f" and {len(hidden) - _NAMED} more" if len(hidden) > _NAMED else ""
    text = f"not shown: {named}{more} ({hint})"
    return textwrap.fill(table.plain(text), max(width, 20), break_on_hyphens=False)


def _widest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _broken(title: str, width: int) -> str:
    """A heading in lines of about the width of its cells, between the parts of a name."""
    lines = [""]
    for piece in heading_pieces(table.plain(title)):
        if lines[-1] and len(lines[-1] + piece) > max(width, _NARROWEST):
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _shortened(text: str) -> str:
    """A long name without its middle."""
    if len(text) <= _LONGEST_TEXT:
        return text
    half = (_LONGEST_TEXT - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
