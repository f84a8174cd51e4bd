"""Tables as text that other programs read: CSV, Markdown, LaTeX. Everything is escaped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from typing import Any

from rbtools.records import sheet_cells
from rbtools.scoring.table import Table, TableCell, plain, text

# CommonMark allows escaping every ASCII punctuation mark; these have a meaning inside a cell.
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~&$#!:@]|(?<=www)\.", re.IGNORECASE)  # www. begins a link
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "`": r"\textasciigrave{}",
        '"': r"{''}",
        **{mark: "\\" + mark for mark in "&%$#_"},
    }
)


def to_csv(table: Table, as_cell: Callable[[str], str] = sheet_cells.cell) -> str:
    """Comma-separated values: numbers in full precision, intervals in columns NAME_low and NAME_high,
    deviations in NAME_std. `as_cell` makes texts safe for a spreadsheet.
    """
    lines: list[list[Any]] = [[] for _ in range(len(table.rows) + 1)]
    for place, heading in enumerate(table.headings):
        cells = [row[place] for row in table.rows]
        columns: list[list[Any]] = [[heading.title, *(cell.value for cell in cells)]]
        if any(cell.interval for cell in cells):
            ends = [cell.interval or (None, None) for cell in cells]
            columns.append([f"{heading.title}_low", *(low for low, _ in ends)])
            columns.append([f"{heading.title}_high", *(high for _, high in ends)])
        if any(cell.deviation is not None for cell in cells):
            columns.append([f"{heading.title}_std", *(cell.deviation for cell in cells)])
        for line, *values in zip(lines, *columns, strict=True):
            line += values
    return "".join(_csv_line(line, as_cell) for line in lines)


def to_markdown(table: Table) -> str:
    """A pipe table of GitHub-flavoured Markdown, numbers to the right."""

    def shown(cell: TableCell) -> str:
        words = markdown(text(cell)) or "–"
        return f"**{words}**" if cell.best else words

    titles = [markdown(heading.title) for heading in table.headings]
    rules = ["---:" if heading.numeric else "---" for heading in table.headings]
    rows = [[shown(cell) for cell in row] for row in table.rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in [titles, rules, *rows])


def to_latex(table: Table) -> str:
    r"""A `tabular`, below a comment with the package that it needs."""

    def shown(cell: TableCell) -> str:
        words = latex(text(cell)).replace("±", r"$\pm$")
        words = (words if isinstance(cell.value, str) else words.replace("-", "$-$")) or "--"
        return rf"\textbf{{{words}}}" if cell.best else words

    def line(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\" + "\n"

    layout = "".join("r" if heading.numeric else "l" for heading in table.headings)
    head = line(latex(heading.title) for heading in table.headings)
    body = "".join(line(map(shown, row)) for row in table.rows)
    return "% \\usepackage{booktabs}\n" + (
        f"\\begin{{tabular}}{{{layout}}}\n\\toprule\n{head}\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def to_raw_csv(table: Table) -> str:
    """`to_csv` for programs: texts are unchanged, but without zero bytes."""
    # Python's csv can write zero bytes only from 3.11 on
    return to_csv(table, lambda words: words.replace("\0", "\ufffd"))


RENDERERS: dict[str, Callable[[Table], str]] = {
    "csv": to_csv,
    "csv-raw": to_raw_csv,
    "md": to_markdown,
    "latex": to_latex,
}


def heading(words: str, form: str) -> str:
    """A line above a table, in that format."""
    if form == "md":
        return f"**{markdown(words)}**\n"
    return f"% {plain(words)}" if form == "latex" else plain(words)


def caption(table: Table, form: str) -> str:
    """The notes below a table: the meaning of its deviations, the numbers of images of its columns if they
    differ, and the labels of shares in %. Nothing in CSV, where a line below would be a row.
    """
    words = []
    if any(cell.deviation is not None for row in table.rows for cell in row):
        least, most = table.averaged or (0, 0)
        count = "" if most == 0 else f"{least} to {most} " if least < most else f"{most} "
        words.append(f"± is the standard deviation over the {count}records that a row averages.")
    if table.images:
        words.append(of_images(table))
    if form in ("csv", "csv-raw") or not words:
        return ""
    if form == "latex":
        return "% " + plain(" ".join(words))
    return "\n" + (markdown if form == "md" else plain)(" ".join(words))


def of_images(table: Table) -> str:
    """`200 images for acc, fgsm.8; 50 for pgd20.8.`"""
    columns: dict[tuple[int, int], list[str]] = {}
    for heading in table.headings:
        if heading.title in table.images:
            columns.setdefault(table.images[heading.title], []).append(heading.title)
    counts = [str(least) if least == most else f"{least} to {most}" for least, most in columns]
    counts[0] += " images"
    parts = zip(counts, columns.values(), strict=True)
    return "; ".join(f"{count} for {', '.join(names)}" for count, names in parts) + "."


def markdown(words: str) -> str:
    """Text escaped for Markdown, also for table cells."""
    return _MARKDOWN.sub(r"\\\g<0>", plain(words)).strip()


def latex(words: str) -> str:
    """Text escaped for LaTeX: no command, no ligature of hyphens, no argument of a line break."""
    escaped = plain(words).translate(_LATEX)
    escaped = re.sub(r"-(?=-)", "-{}", escaped)
    # A row is preceded by \\, which would take a leading [ or * as its own.
    return "{}" + escaped if escaped[:1] in ("[", "*") else escaped


def _csv_line(values: list[Any], as_cell: Callable[[str], str]) -> str:
    # Written with CRLF, so that the csv module quotes both characters, then given a Unix line end.
    cells = [as_cell(value) if isinstance(value, str) else value for value in values]
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue()[:-2] + "\n"
