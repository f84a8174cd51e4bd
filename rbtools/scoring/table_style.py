"""Styles tables for readers: labels, percentages, decimals, and the best value of each column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

from rbtools.errors import UsageError, near
from rbtools.records import expr
from rbtools.records.results import is_number
from rbtools.scoring.table import Table, TableCell, figure


class Style(NamedTuple):
    """The style of a table for readers. `digits` is the number of decimals, `plus_minus` is true if intervals
    are shown as ±, and `labels` replaces titles and texts."""

    percent: bool = False
    digits: int | None = None
    plus_minus: bool = False
    labels: Mapping[str, str] = {}


PLAIN = Style()


def styled(table: Table, style: Style) -> Table:
    """Return the table in this style; paths of files are shortened to names. In a table of standard
    deviations, which are shown as ±, intervals stay in brackets."""
    rows = [list(row) for row in table.rows]
    if any(cell.deviation is not None for row in rows for cell in row):
        style = style._replace(plus_minus=False)
    headings = list(table.headings)
    labels = {text: style.labels.get(stem, stem) for text, stem in _stems(table.texts).items()}
    style = style._replace(labels=labels | dict(style.labels))
    for place, heading in enumerate(headings):
        percent = style.percent and heading.share
        words = style.labels.get(heading.title, heading.text)
        headings[place] = heading._replace(words=f"{words}{' [%]' * (percent and '%' not in words)}")
        exact = heading.title.endswith((" p", " p_raw"))  # a p-value keeps its digits
        whole = all(isinstance(row[place].value, int) for row in rows if is_number(row[place].value))
        of_column = style._replace(digits=None) if whole and not percent else style
        for row in rows:
            row[place] = row[place] if exact else _styled(row[place], of_column, percent)
    return replace(table, headings=headings, rows=rows)


def _stems(texts: Iterable[str]) -> dict[str, str]:
    """Maps each path of a file to its stem, with enough folders before it to distinguish the files, or to its
    name if files of a folder differ only in their extensions."""
    paths = {text: PurePath(text) for text in texts if "/" in text and PurePath(text).suffix}
    most = max((len(path.parts) for path in paths.values()), default=1)
    for names in ({text: path.with_suffix("") for text, path in paths.items()}, paths):
        for depth in range(1, most + 1):
            short = {text: "/".join(name.parts[-depth:]) for text, name in names.items()}
            if len({*short.values()}) == len(short):
                return short
    return {text: text for text in paths}


def check_labels(tables: Iterable[Table], labels: Iterable[str]) -> None:
    """Raise UsageError if a label does not match any text in these tables."""
    known: dict[str, None] = {}
    for table in tables:
        titles = (heading.title for heading in table.headings)
        known |= dict.fromkeys([*titles, *table.texts, *_stems(table.texts).values()])
    for name in labels:
        if name not in known:
            raise UsageError(
                f"--label: no column or cell is called '{name}'.{near(name, known)} Known names:"
                f" {expr.nearest(name, known)}."
            )


def _styled(cell: TableCell, style: Style, percent: bool) -> TableCell:
    if isinstance(cell.value, str):
        return cell._replace(value=style.labels.get(cell.value, cell.value))
    digits = cell.digits if style.digits is None else style.digits
    cell = cell._replace(digits=digits, plus_minus=style.plus_minus)
    if not percent or not is_number(cell.value):
        return cell
    ends = cell.interval and (100 * cell.interval[0], 100 * cell.interval[1])
    spread = cell.deviation and 100 * cell.deviation
    digits = 2 if style.digits is None else style.digits
    return cell._replace(value=100.0 * cell.value, interval=ends, deviation=spread, digits=digits)


def with_best(table: Table, higher: Mapping[str, bool]) -> Table:
    """Mark the best number in each column of `higher`, which says whether higher is better. Numbers with the
    same text count as equal; if all are equal, none is marked."""
    rows = [list(row) for row in table.rows]
    for place, heading in enumerate(table.headings):
        numbers = [(cell.value, row) for row in rows if is_number((cell := row[place]).value)]
        if heading.title not in higher or len(numbers) < 2:
            continue
        choose = max if higher[heading.title] else min
        digits = numbers[0][1][place].digits
        texts = [figure(value, digits) for value, _ in numbers]
        best = figure(choose(value for value, _ in numbers), digits)
        for text, (_, row) in zip(texts, numbers, strict=True):
            row[place] = row[place]._replace(best=text == best and len({*texts}) > 1)
    return replace(table, rows=rows)
