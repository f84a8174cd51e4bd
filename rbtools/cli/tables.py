"""Tables for people: ranked records, the results of one model, and the verdicts on a record.

Every row is printed on one line, and the text of a cell is never broken. If a table is too wide, details
are left out first, then all intervals, and then other columns. A note below the table lists the columns that
are not shown.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len

from rbtools.cli.output import RecordWriter, may_be_bold
from rbtools.records.metric_name import heading_pieces
from rbtools.records.results import is_number
from rbtools.scoring import remeasured, render, table

_GAP = 2  # spaces between columns
_NARROWEST = 10  # least width of the lines that a heading is broken into
_LONGEST_TEXT = 32  # the most characters of a name, a data set or a method
_NAMED = 8  # the most metrics to list as not shown


class _DrawnColumn(NamedTuple):
    """One column of a table. `heading` may have several lines. `best` contains the cells to mark."""

    heading: str
    numeric: bool
    cells: list[str]
    width: int
    best: list[bool]


_HINT = "--columns and --metric choose columns; --format jsonl has all"


def write(built: table.Table, key: str, form: str, output: RecordWriter, fixed: int = 2) -> table.Table:
    """Write a table in one of the formats of `render`. Returns the part that fits."""
    if form != "table":
        output.line(render.RENDERERS[form](built).rstrip("\n").encode())
        return built
    shown, text = _drawn_part(
        built, key, output.width(), output.is_terminal() and may_be_bold(), fixed, _HINT
    )
    output.line(text.encode())
    return shown


def draw(
    built: table.Table, key: str, width: int, *, bold: bool = False, fixed: int = 2, hint: str = _HINT
) -> str:
    """The table of records ranked by `key`, at most `width` characters wide, with the notes below it.

    The key and the first `fixed` columns (rank and name) are always shown, even if they do not fit. With
    `bold`, headings and the best values are bold; without, stars mark the best values. `hint` tells the user
    how to see columns that do not fit.
    """
    return _drawn_part(built, key, width, bold, fixed, hint)[1]


def _drawn_part(
    built: table.Table, key: str, width: int, bold: bool, fixed: int, hint: str
) -> tuple[table.Table, str]:
    shown, hidden = _fitting(built, key, width, fixed)
    columns = [_column(shown, place, shorten=bool(hidden)) for place in range(len(shown.headings))]
    parts = [_drawn(columns if bold else [*map(_starred, columns)], bold)]
    if hidden:
        parts.append(_folded(f"not shown: {_listed(hidden)} ({hint})", width))
    if words := render.note(shown, always=False):
        parts.append(_folded(words, width))
    return shown, "\n\n".join(parts)


def _column(built: table.Table, place: int, *, shorten: bool = False) -> _DrawnColumn:
    heading = built.headings[place]
    cells = [row[place] for row in built.rows]
    texts = [table.text(cell) or heading.missing for cell in cells]
    if shorten and not heading.numeric:
        texts = [_shortened(text) for text in texts]
    title = _broken(heading.text, _widest(texts))
    width = _widest([*texts, *title.split("\n")])
    return _DrawnColumn(title, heading.numeric, texts, width, [cell.best for cell in cells])


def _starred(column: _DrawnColumn) -> _DrawnColumn:
    """Mark the best values with a star and other values with a blank, for output without bold type."""
    if not any(column.best):
        return column
    cells = [f"{text}{'*' if best else ' '}" for text, best in zip(column.cells, column.best, strict=True)]
    return column._replace(cells=cells, width=max(column.width, _widest(cells)))


def _fitting(built: table.Table, key: str, width: int, fixed: int) -> tuple[table.Table, list[str]]:
    """The part of the table that fits, and the names of what does not fit.

    Columns have this priority: columns that distinguish records, metrics, the intervals of all these metrics,
    columns with the same value in all records (such as the data set), details.
    """
    titles = [heading.title for heading in built.headings]
    every, key_place, bare = range(len(titles)), titles.index(key, fixed), built.without_spreads()
    free = width + _GAP
    if sum(_column(built, place).width + _GAP for place in every) <= free:
        return built, []
    short = [_column(bare, place, shorten=True) for place in every]
    full = [_column(built, place, shorten=True) for place in every]
    details = [place for place in every if place > key_place and table.is_detail(titles[place])]
    metrics = [place for place in every if place > key_place and place not in details]
    about = range(fixed, key_place)
    same = [place for place in about if len(built.rows) > 1 and len(set(short[place].cells)) == 1]
    apart = [place for place in about if place not in same]

    def added(places: Iterable[int], columns: Sequence[_DrawnColumn], chosen: Iterable[int]) -> list[int]:
        kept = [*chosen]
        for place in places:
            if sum(columns[at].width + _GAP for at in (*kept, place)) <= free:
                kept.append(place)
        return kept

    chosen = added([*apart, *metrics], short, [*range(fixed), key_place])
    fits = sum(full[place].width + _GAP for place in chosen) <= free
    chosen = sorted(added([*same, *details], full if fits else short, chosen))
    hidden = [heading.text for place, heading in enumerate(built.headings) if place not in chosen]
    if any(full[place].width > short[place].width for place in chosen) and not fits:
        hidden.insert(0, "the intervals" if built.averaged is None else "the standard deviations")
    return (built if fits else bare).of_columns(chosen), hidden


def _drawn(columns: Sequence[_DrawnColumn], bold: bool) -> str:
    headings = [column.heading.split("\n") for column in columns]
    lines = max(map(len, headings))
    head = [
        _aligned([""] * (lines - len(words)) + words, column, [bold] * lines)
        for words, column in zip(headings, columns, strict=True)
    ]
    body = [_aligned(column.cells, column, [bold and best for best in column.best]) for column in columns]
    gap = " " * _GAP
    rule = "─" * (sum(column.width + _GAP for column in columns) - _GAP)
    above, below = ([gap.join(row).rstrip() for row in zip(*part, strict=True)] for part in (head, body))
    return "\n".join([*above, rule, *below])


def _aligned(cells: Sequence[str], column: _DrawnColumn, bold: Sequence[bool]) -> list[str]:
    aligned = []
    for text, is_bold in zip(cells, bold, strict=True):
        blanks = " " * (column.width - cell_len(text))
        shown = f"\x1b[1m{text}\x1b[0m" if is_bold and text else text
        aligned.append(blanks + shown if column.numeric else shown + blanks)
    return aligned


def _listed(hidden: Sequence[str]) -> str:
    named = "; ".join(hidden[:_NAMED])
    return f"{named} and {len(hidden) - _NAMED} more" if len(hidden) > _NAMED else named


def _folded(words: str, width: int) -> str:
    return textwrap.fill(table.printable(words), max(width, 20), break_on_hyphens=False)


def _widest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _broken(title: str, width: int) -> str:
    """A heading, broken between the parts of a name, so that its lines are about as wide as the cells."""
    lines = [""]
    for piece in heading_pieces(table.printable(title)):
        if lines[-1] and len(lines[-1] + piece) > max(width, _NARROWEST):
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = (_LONGEST_TEXT - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def model_table(record: Mapping[str, Any], width: int) -> str:
    """A line about the model, a row for each metric, and the record's error, if any."""
    entries = {entry.get("metric"): entry for entry in record.get("evals") or []}
    rows = []
    for name, value in (record.get("metrics") or {}).items():
        entry = entries.get(name, {})
        cell = table.measured(value if is_number(value) else str(value), entry)
        n, cell = cell.n, cell._replace(n=None)
        split = None if entry.get("split") is None else str(entry["split"])
        rows.append([table.TableCell(name), cell, table.TableCell(table.sides(n)), table.TableCell(split)])
    headings = [table.Heading(title, title in ("value", "n")) for title in ("metric", "value", "n", "split")]
    return _of_record(record, table.Table(headings, rows), "value", width, _HINT)


_VERDICT = ("metric", "verdict", "claimed", "measured", "p", "test", "n", "difference")


def verify_table(record: Mapping[str, Any], width: int) -> str:
    """A line about the model, a row for each entry, the reasons, and a line for each inconsistency."""
    verify = record.get("verify") or {}
    entries = verify.get("entries") or {}
    headings = [
        table.Heading(title, title not in ("metric", "verdict", "test"), missing="–" if place > 1 else "")
        for place, title in enumerate(_VERDICT)
    ]
    rows = [
        [_verdict_cell(title, {**verdict, "metric": name}) for title in _VERDICT]
        for name, verdict in entries.items()
    ]
    unknown = remeasured.unknown_by_reason(entries)
    lines = [f"{', '.join(names)}: {reason}" for reason, names in unknown.items()]
    lines += [
        f"{name}: {verdict['reason']}"
        for name, verdict in entries.items()
        if "reason" in verdict and verdict["verdict"] != remeasured.UNKNOWN
    ]
    lines += [
        f"{name}: assumed: {verdict['assumed']}" for name, verdict in entries.items() if "assumed" in verdict
    ]
    lines += [f"inconsistent: {finding['says']}" for finding in verify.get("inconsistent") or ()]
    if verify.get("inconsistent") == []:
        lines.append("The numbers of the record agree with each other.")
    return _of_record(record, table.Table(headings, rows), "verdict", width, "the record has all", lines)


def _verdict_cell(title: str, verdict: Mapping[str, Any]) -> table.TableCell:
    value = verdict.get(title)
    if title in ("metric", "verdict"):
        return table.TableCell(str(value))
    if title == "test" and isinstance(value, str):
        return table.TableCell(re.split("[,;:]", value)[0])  # only its name: the record has the details
    return table.TableCell(value if is_number(value) else None)


def _of_record(
    record: Mapping[str, Any], built: table.Table, key: str, width: int, hint: str, lines: Sequence[str] = ()
) -> str:
    arch = record.get("arch") or {}
    parts = [
        table.printable(", ".join(str(part) for part in (arch.get("name"), record.get("dataset")) if part))
    ]
    if built.rows:
        parts.append(draw(built, key, width, bold=may_be_bold(), fixed=1, hint=hint))
    parts += map(table.printable, lines)
    if "error" in record:
        parts.append(f"error: {table.printable(str(record['error'].get('message', '')))}")
    return "\n".join([*parts, "(output to a pipe or a file is the record, as JSON)"])
