"""Compares our values with a paper's values and tests the paper's claims. A reproduction
(`reproduce_NAME.py`) converts the records of its recipe to tables and to tested claims."""

from __future__ import annotations

import contextlib
import filecmp
import fnmatch
import importlib
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal, NamedTuple

import click
import orjson

from rbtools.papers import estimates
from rbtools.scoring import render
from rbtools.scoring.table import Heading, Table, TableCell

MOST_COLUMNS = 12  # of a table in LaTeX that is legible when it is as wide as a line
Records = list[dict[str, Any]]
Row = dict[str, float | None]  # column -> value
Values = dict[str, Row]  # row -> column -> value
Rows = Mapping[str, Mapping[str, float | None]]  # values that are only read


class Claim(NamedTuple):
    """A claim of a paper, whether it is true (None if undecided), and the values that were found."""

    words: str
    holds: bool | None
    found: str
    lacking: int = 0  # comparisons of values that are not there

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "FAILS", None: "cannot be told"}[self.holds]


def comparison(name: str) -> ModuleType:
    return importlib.import_module(f"rbtools.papers.reproduce_{name.replace('-', '_')}")


# The fields of a record, besides its entries, that figures and tables show.
_SHOWN = ("schema", "arch", "dataset", "checkpoint", "train", "search", "metrics")
_TRACKED = {"wci", "test_robust_error", "output"}
# Metrics whose entries are kept, because figures and tables show the intervals of these metrics.
_WITH_INTERVALS = ("pr", "probacc", "ge")


def each(stream: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """The records of a stream, one by one. Failed records are left out and counted on stderr."""
    count = failed = 0
    for line in stream:
        if line.strip():
            count += 1
            record = orjson.loads(line)
            if "error" in record:
                failed += 1
            else:
                yield record
    if failed:
        click.echo(f"{failed} of {count} records failed and are left out.", err=True)


def essential(record: Mapping[str, Any], confidences: bool = False) -> dict[str, Any]:
    """The fields of a record that figures and tables show, which are about a tenth of a record with 90
    entries. The history of a training run is kept if metrics were measured during training or if the output
    is an iterate, as in algorithm 1. If `confidences` is true, the confidences on clean images are kept."""
    kept = {name: record[name] for name in _SHOWN if name in record}
    if under_fgsm := dict(filter(None, map(_confidence, record.get("evals") or ()))):
        kept["confidences"] = under_fgsm
    train = record.get("train")
    if isinstance(train, dict) and _TRACKED.isdisjoint({*train.get("history", ()), *train}):
        kept["train"] = {name: value for name, value in train.items() if name != "history"}
    entries = [
        {name: value for name, value in entry.items() if name != "detail" or confidences}
        for entry in record.get("evals") or ()
        if "vacuous" in entry
        or entry["metric"].partition(".")[0] in _WITH_INTERVALS
        or (confidences and entry["metric"] == "acc")
    ]
    return kept | ({"evals": entries} if entries else {})


def _confidence(entry: Mapping[str, Any]) -> tuple[str, list[float | None]] | None:
    """The metric of clean accuracy or FGSM with its mean confidences, if it has any: in correct and in wrong
    predictions, and in class 0 on images of class 0."""
    means = (entry.get("detail") or {}).get("confidence")
    if not means or entry["metric"].partition(".")[0] not in ("acc", "fgsm"):
        return None
    return entry["metric"], [*means["prediction"], means["label"][0][0]]


def read(stream: Iterable[str | bytes]) -> Records:
    return [essential(record) for record in each(stream)]


@contextlib.contextmanager
def replacing(path: Path, aside: Path | None = None) -> Iterator[IO[bytes]]:
    """A temporary file (`aside`) that replaces `path` if it is complete and differs from `path`. A file with
    the same content keeps its date, because figures are drawn again if a date changes."""
    new = aside or path.with_suffix(".new")
    with new.open("wb") as stream:
        yield stream
    if path.exists() and filecmp.cmp(path, new, shallow=False):
        new.unlink()
    else:
        new.replace(path)


def of_first_set(records: Records) -> Records:
    """The records of the first data set. Tables contain only one data set, CIFAR-10 at full scale."""
    return [record for record in records if record.get("dataset") == records[0].get("dataset")]


def means(
    records: Iterable[Mapping[str, Any]], row: Callable[[Any], str | None], columns: Mapping[str, str]
) -> Values:
    """For each row, the mean of each column's metric over the records of the row."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        name = row(record)
        for column, metric in columns.items():
            if name is not None and metric in record.get("metrics", {}):
                found[name][column].append(record["metrics"][metric])
    return {
        name: {column: sum(values) / len(values) for column, values in of_row.items()}
        for name, of_row in found.items()
    }


def correlation(
    rows: Sequence[dict[str, Any]],
    first: str,
    second: str,
    *,
    measure: Literal["spearmanr", "kendalltau"] = "spearmanr",
) -> float | None:
    """The rank correlation of two columns; None for fewer than three rows or a constant column."""
    from scipy import stats

    pairs = [(one[first], one[second]) for one in rows if first in one and second in one]
    if len(pairs) < 3 or any(len(set(values)) < 2 for values in zip(*pairs, strict=True)):
        return None
    return float(getattr(stats, measure)(*zip(*pairs, strict=True)).statistic)


def percent(value: float) -> str:
    """A fraction as a percentage, in the form that papers print, such as 53.15."""
    return f"{100 * value:.2f}"


def rounded(value: float) -> str:
    return f"{value:.3g}"


class PaperTable(NamedTuple):
    """A table that compares the values that a paper prints, the values on the paper's web page (`site`), and
    ours. `show` returns the text of a column's value."""

    title: str
    printed: Rows
    ours: Rows
    columns: Sequence[str]
    show: Callable[[str, float], str] = lambda column, value: percent(value)
    site: Mapping[str, Mapping[str, float | None]] = {}

    def sides(self) -> dict[str, Rows]:
        """Maps each source that has values (`printed`, `site`) to its values, with `ours` last."""
        paper = {"printed": self.printed, "site": self.site}
        return {**{name: rows for name, rows in paper.items() if rows}, "ours": self.ours}

    @property
    def found(self) -> bool:
        return bool(self.ours)

    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for side in self.sides().values() for row in side))

    def cell(self, row: str, column: str) -> tuple[str, ...]:
        """The text of the value in each source, and the difference between our value and the value in the
        first other source. A missing value is a dash."""
        *paper, here = (side.get(row, {}).get(column) for side in self.sides().values())
        texts = ["-" if value is None else self.show(column, value) for value in (*paper, here)]
        first = next((value for value in paper if value is not None), None)
        apart = "-" if first is None or here is None else self.show(column, here - first)
        return *texts, apart if apart.startswith("-") else f"+{apart}"

    def text(self) -> str:
        """The table in Markdown; each cell contains all values and, if there are values besides ours, the
        difference."""
        sides = [*self.sides(), "difference"] if len(self.sides()) > 1 else ["ours"]
        lines = [f"{self.title}: {' / '.join(sides)}", ""]
        lines += [f"| | {' | '.join(self.columns)} |", "|---" * (len(self.columns) + 1) + "|"]
        for row in self.rows():
            cells = [self.cell(row, column) for column in self.columns]
            shown = ("-" if set(cell) == {"-"} else " / ".join(cell[: len(sides)]) for cell in cells)
            lines.append(f"| {row} | {' | '.join(shown)} |")
        return "\n".join([*lines, ""])

    def beside(self) -> Table:
        """The table with a column for each source of each column, with ours last. A source is omitted if its
        values are the same as those of earlier sources."""
        named = ["" if side == "ours" else f" ({side})" for side in self.sides()]
        cells = {(row, column): self.cell(row, column) for row in self.rows() for column in self.columns}
        shown = [
            (column, at)
            for column in self.columns
            for at, name in enumerate(named)
            if not name
            or any(cells[row, column][at] not in ("-", *cells[row, column][:at]) for row in self.rows())
        ]
        sides, grouped = [*self.sides()], len(named) > 1
        names = [
            Heading(f"{column}{named[at]}", True, group=column if grouped else "", short=sides[at])
            for column, at in shown
        ]
        rows = [
            [TableCell(row), *(TableCell(cells[row, column][at]) for column, at in shown)]
            for row in self.rows()
        ]
        return Table([Heading("", False), *names], rows)

    def files(self) -> dict[str, str]:
        """Maps each file extension to the contents of the table's file. In LaTeX, a wide table is split into
        parts, which are not wider than a line."""
        table = self.beside()
        parts = map(render.to_latex, table.parts(MOST_COLUMNS))
        return {
            "md": f"{render.heading(self.title, 'md')}\n{render.to_markdown(table)}",
            "tex": "\n".join([render.heading(self.title, "latex"), *parts]),
        }


class Excerpt(NamedTuple):
    """An excerpt of a file in a paper, and the same part of our file."""

    title: str
    lines: str

    @property
    def found(self) -> bool:
        return bool(self.lines)

    def rows(self) -> list[str]:
        return self.lines.splitlines()

    def text(self) -> str:
        return f"{self.title}\n\n```\n{self.lines}\n```\n"

    def files(self) -> dict[str, str]:
        return {"md": self.text(), "tex": f"\\begin{{verbatim}}\n{self.lines}\n\\end{{verbatim}}\n"}


Tables = Mapping[str, Any]  # a `PaperTable` or `Excerpt` for each number of the paper, such as `table 1`


def tested(words: str, tests: Mapping[str, Sequence[str]], rows: Rows) -> Claim:
    """The claim that all comparisons of values in a table are true.

    `{"AA": ["PGD,MART > ERM"]}` compares rows in the column AA, and `{"CVaR": ["PGD20 > CW20 by 0.1"]}`
    compares columns in the row CVaR. `by -0.1` allows the first value to be lower by .1. `>=` is also true
    for equal values. `<= 0.02` is true for a value of at most 0.02. Several names are separated by commas,
    and a name may be a pattern with wildcards that matches rows. A number on the left or on the right stands
    for itself. A comparison is undecided if the interval of the difference (`WithInterval`) contains the
    limit.
    """
    found: dict[str, list[str]] = {"right": [], "wrong": [], "equal": [], "near": []}
    most, lacking = (-math.inf, ""), 0
    for place, comparison in ((place, one) for place, some in tests.items() for one in some):
        parts = _COMPARISON.fullmatch(comparison)
        assert parts, comparison
        left, sign, right, by = parts.groups()
        for at, *both in itertools.product(*(_named(text, rows) for text in (place, left, right))):
            high, low = (_value(one, at, rows) for one in both)
            if high is None or low is None:
                lacking += 1
                continue
            named = [one for one in both if not _NUMBER.fullmatch(one)]
            if sign == "<=":
                told = f"{estimates.text(high)}, limit {low:g}"
                most = max(most, (estimates.ends(high)[1], told))
                start, end = estimates.of_difference(low, high)
            else:
                told = f"{estimates.text(high)} and {estimates.text(low)}"
                most = (high, told)
                least = float(by or 0) - 1e-12 * bool(by)  # .41 - .2 is below .21 by rounding
                start, end = (one - least for one in estimates.of_difference(high, low))
            # Two equal measurements decide nothing, but a value that equals a limit does not exceed it.
            strict = sign == ">" and not by
            if strict and high == low and len(named) == 2:
                state = "equal"
            elif start < 0 <= end:
                state = "near"
            else:
                state = "wrong" if end < 0 or (strict and end == 0) else "right"
            of_many = at in rows or len(tests) > 1 or "," in place
            name = f"{at}: {' and '.join(named)}" if of_many else " and ".join(named)
            found[state].append(f"{name} ({told})" if state == "wrong" else name)
    count = sum(map(len, found.values()))
    if not count:
        return Claim(words, None, "not measured here", lacking)
    holds = False if found["wrong"] else None if found["equal"] or found["near"] else True
    if count == 1 or sign == "<=":
        return Claim(words, holds, most[1], lacking)
    measured = f"all {count}" + (f" of {count + lacking} that are measured" if lacking else "")
    reasons = {"wrong": "not so", "equal": "equal", "near": "within the interval"}
    texts = [f"{reason} for {_listed(found[one])}" for one, reason in reasons.items() if found[one]]
    return Claim(words, holds, texts[0] if texts else measured, lacking)


def _listed(names: Sequence[str], most: int = 12) -> str:
    """At most `most` of the names, and the number of the others."""
    others = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + others


def beside(claim: Claim, printed: Claim) -> Claim:
    """The claim, tested on our values; `found` also says whether it agrees with the printed values, if they
    have its rows and columns."""
    if printed.holds is None:
        return claim
    told = printed.verdict if printed.holds else f"{printed.verdict}, {printed.found}"
    return claim._replace(found=f"{claim.found}; on the printed values it {told}")


_COMPARISON = re.compile(r"(.+) (>|>=|<=) (.+?)(?: by (-?[\d.]+))?")
_NUMBER = re.compile(r"\d+(\.\d+)?")


def _named(text: str, rows: Rows) -> list[str]:
    """The names in a list; each pattern is replaced by the rows that the pattern matches."""
    names = [fnmatch.filter(rows, name) if "*" in name else [name] for name in text.split(",")]
    return [name for some in names for name in some]


def _value(name: str, place: str, rows: Rows) -> float | None:
    """The number `name`, or the value in a row and a column, which are `name` and `place` in either order."""
    if _NUMBER.fullmatch(name):
        return float(name)
    row, column = (name, place) if name in rows else (place, name)
    return rows.get(row, {}).get(column)


def _bounds(records: Iterable[Mapping[str, Any]], start: str = "") -> dict[str, list[Mapping[str, Any]]]:
    """The entries of each bound whose metric begins with `start`."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        for entry in record.get("evals") or ():
            if "vacuous" in entry and entry["metric"].startswith(start):
                found[entry["metric"]].append(entry)
    return found


def bound_table(records: Iterable[Mapping[str, Any]], number: str, bound: str) -> PaperTable:
    """For each attack, the smallest and the largest value of a theorem's bound (such as wci4), and the number
    of vacuous bounds. The paper prints no such values."""
    rows: Values = {}
    for name, entries in _bounds(records, f"bound.{bound}.").items():
        values = [entry["value"] for entry in entries if entry["value"] is not None]
        vacuous = float(sum(bool(entry["vacuous"]) for entry in entries))
        rows[name] = {
            **({"least": min(values), "largest": max(values)} if values else {}),
            "vacuous": vacuous,
            "networks": float(len(entries)),
        }
    columns = ("least", "largest", "vacuous", "networks")
    return PaperTable(f"{number.capitalize()}, bounds", {}, rows, columns, lambda _, value: rounded(value))


def theory(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The bounds of `rb-measure bound`, with a row for each bound (columns `THEORY`) and the inputs of its
    smallest value. A bound without a value counts as vacuous."""
    rows = []
    for name, entries in _bounds(records).items():
        known = sorted((one for one in entries if one["value"] is not None), key=lambda one: one["value"])
        span = [f"{one['value']:.4g}" for one in (known[0], known[-1])] if known else ["none", "none"]
        inputs = known[0]["inputs"] if known else entries[0]["inputs"]
        words = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in inputs.items()
        )
        vacuous = f"{sum(bool(one['vacuous']) for one in entries)} of {len(entries)}"
        rows.append((name, entries[0]["formula"], *span, words, vacuous))
    return rows


THEORY = ("bound", "formula", "least", "largest", "inputs of the least", "vacuous")


def theory_text(records: Iterable[Mapping[str, Any]]) -> str:
    """The table of `theory` in Markdown; "" if no record has a bound."""
    rows = theory(records)
    if not rows:
        return ""
    cells = [[one.replace("|", "\\|") for one in row] for row in rows]
    lines = ["Theory: bounds for these records", "", f"| {' | '.join(THEORY)} |", "|---" * len(THEORY) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells), ""])


def told(claims: Sequence[Claim]) -> str:
    """One line for each claim with its verdict, and a line with the number of claims that are true."""
    lines = ["Claims of the paper:", ""]
    lines += [f"- {claim.words}: {claim.verdict} ({claim.found})" for claim in claims]
    known = [claim for claim in claims if claim.holds is not None]
    held = sum(bool(claim.holds) for claim in known)
    undecided = len(claims) - len(known)
    unknown = f"; {undecided} cannot be told from these records" if undecided else ""
    return "\n".join([*lines, "", f"{held} of {len(known)} claims hold here{unknown}."])
