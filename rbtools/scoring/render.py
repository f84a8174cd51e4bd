"""Writes tables for other programs as CSV, Markdown or LaTeX, with special characters escaped."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

from rbtools.records import sheet_cells
from rbtools.scoring.table import Table, TableCell, printable, sides, spread, text

# Punctuation marks with a meaning inside a cell. CommonMark permits a backslash before each of them.
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
        **{"ε": r"$\varepsilon$", "γ": r"$\gamma$", "ρ": r"$\rho$", "σ": r"$\sigma$"},
        '"': r"{''}",
        **{mark: "\\" + mark for mark in "&%$#_"},
    }
)


def to_csv(table: Table, as_cell: Callable[[str], str] = sheet_cells.cell) -> str:
    """Comma-separated values with full precision. The columns NAME_low and NAME_high contain intervals,
    NAME_std standard deviations, and NAME_n numbers of images (for a difference both, as in 100 + 200).
    `as_cell` escapes strings that a spreadsheet would execute."""
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
        if any(cell.n is not None for cell in cells):
            columns.append([f"{heading.title}_n", *(sides(cell.n) for cell in cells)])
        for line, *values in zip(lines, *columns, strict=True):
            line += values
    return "".join(_csv_line(line, as_cell) for line in lines)


def to_markdown(table: Table) -> str:
    """A table in GitHub-flavoured Markdown, with numbers aligned to the right, and a note below it."""

    def cell_text(cell: TableCell) -> str:
        words = markdown(text(cell)) or "–"
        return f"**{words}**" if cell.best else words

    titles = [markdown(heading.text) for heading in table.headings]
    rules = ["---:" if heading.numeric else "---" for heading in table.headings]
    rows = [[cell_text(cell) for cell in row] for row in table.rows]
    lines = "".join("| " + " | ".join(cells) + " |\n" for cells in [titles, rules, *rows])
    words = note(table)
    return f"{lines}\n{markdown(words)}\n" if words else lines


def to_latex(table: Table) -> str:
    r"""A LaTeX `tabular` that is at most as wide as a line, with a note below it and a comment above it that
    names the required packages."""

    def cell_text(cell: TableCell) -> str:
        words = latex(text(cell)).replace("±", r"$\pm$")
        if not isinstance(cell.value, str):
            words = re.sub(r"e(?:\$(-)\$|\+)0*(\d+)", r"$\\times10^{\1\2}$", words.replace("-", "$-$"))
        words = words or "--"
        return rf"\textbf{{{words}}}" if cell.best else words

    def line(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\" + "\n"

    layout = "".join("r" if heading.numeric else "l" for heading in table.headings)
    head = line(latex(heading.short if heading.group else heading.text) for heading in table.headings)
    if any(heading.group for heading in table.headings):
        groups = [
            (name, len([*some])) for name, some in itertools.groupby(one.group for one in table.headings)
        ]
        spans = (
            rf"\multicolumn{{{count}}}{{c}}{{{latex(name)}}}" if name else "&" * (count - 1)
            for name, count in groups
        )
        head = line(spans) + head
    body = "".join(line(map(cell_text, row)) for row in table.rows)
    tabular = (
        f"\\begin{{tabular}}{{{layout}}}\n\\toprule\n{head}\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )
    words = latex(note(table)).replace("±", r"$\pm$")
    return "".join(
        [
            "% \\usepackage{booktabs,adjustbox}\n",
            f"\\begin{{adjustbox}}{{max width=\\linewidth}}\n{tabular}\\end{{adjustbox}}\n",
            f"\\par\\smallskip{{\\footnotesize {words}\\par}}\n" if words else "",
        ]
    )


def to_raw_csv(table: Table) -> str:
    """The same table as from `to_csv`, but strings are unchanged, except that zero bytes are replaced."""
    # Python's csv can write zero bytes only from 3.11 on
    return to_csv(table, lambda words: words.replace("\0", "\ufffd"))


RENDERERS: dict[str, Callable[[Table], str]] = {
    "csv": to_csv,
    "csv-raw": to_raw_csv,
    "md": to_markdown,
    "latex": to_latex,
}


def heading(words: str, form: str) -> str:
    if form == "md":
        return f"**{markdown(words)}**\n"
    return f"% {printable(words)}" if form == "latex" else printable(words)


def note(table: Table, *, always: bool = True) -> str:
    """The note below a table, which explains brackets and ±, and gives the numbers of images of the columns
    (without `always`, only if there is an interval or the numbers differ)."""
    found = {spread(cell) for row in table.rows for cell in row}
    words = []
    if "half" in found:
        words.append("± is half of the 95 % interval")
        if "brackets" in found:
            words.append("Brackets are 95 % intervals whose middle is far from the value")
    elif "brackets" in found:
        words.append("Brackets are 95 % intervals")
    counts, intervals = of_images(table), bool(words)
    if intervals and len(counts) == 1:
        words[0] += f", n = {next(iter(counts))}"
    if "deviation" in found:
        least, most = table.averaged or (0, 0)
        records = "" if most == 0 else f"{least} to {most} " if least < most else f"{most} "
        words.append(f"± is the standard deviation over the {records}records averaged in each row")
    if len(counts) > 1:
        words += [f"{count} images: {'; '.join(names)}" for count, names in counts.items()]
    elif counts and always and not intervals:
        words.append(f"{next(iter(counts))} images")
    titles = [heading.title for heading in table.headings]
    if "ranks" in titles:
        words.append("Ranks are those that a model may have; models of one band are not separated")
    if any(title.endswith(" paired") for title in titles):
        words.append("Paired is the difference from the reference on the same images, p is McNemar's")
    return " ".join(f"{sentence}." for sentence in words)


def of_images(table: Table) -> dict[str, list[str]]:
    """Maps numbers of images, such as `200` or `50 to 100`, to the headings of the columns that have them."""
    columns: dict[str, list[str]] = {}
    for name, counts in table.images.items():
        one_side = all(type(n) is int for n in counts)
        several = [counts[0], counts[-1]] if one_side else counts
        said = (" to " if one_side else ", ").join(dict.fromkeys(str(sides(n)) for n in several))
        columns.setdefault(said, []).append(name)
    return columns


def markdown(words: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", printable(words)).strip()


def latex(words: str) -> str:
    """Escape a string for LaTeX: no commands, ligatures of hyphens or arguments of line breaks remain."""
    escaped = printable(words).translate(_LATEX)
    escaped = re.sub(r"-(?=-)", "-{}", escaped)
    # The \\ before a row would take a leading [ or * as its argument.
    return "{}" + escaped if escaped[:1] in ("[", "*") else escaped


def _csv_line(values: list[Any], as_cell: Callable[[str], str]) -> str:
    # Written with CRLF, so that the csv module quotes both characters; then changed to a Unix line end.
    cells = [as_cell(value) if isinstance(value, str) else value for value in values]
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue()[:-2] + "\n"
