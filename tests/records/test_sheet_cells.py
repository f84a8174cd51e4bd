"""Cells of CSV files: no formulas, nothing that a terminal obeys, and the same text when read back."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from rbtools.records.sheet_cells import cell, of_cell
from tests.runner import run

LETTERS = "=+-@\t\r\n '\\u001b\x1b\x9b\u202e\u2066aF0.5\uff1d"


def test_what_begins_a_formula_is_quoted_and_what_is_not_seen_is_spelled() -> None:
    for text in ["=1+1", "+x", "-x", "@SUM(A1)", "\t=1", "\r", " =1", "-", "--5", "'=1", "\uff1d1", "'\t"]:
        assert cell(text) == f"'{text}"
    for text in ["-0.5", "+1e-3", "0.5", "-inf", "x=1", "a-b", "", "'x'", "wrn-28-10", "\\x", "C:\\users"]:
        assert cell(text) == text
    for text in ["\x1b[2J", "a\x9bb", "\u202eabc", "\u2066x", "\x00", "\x7f"]:
        assert cell(text).isprintable()


@given(st.text(st.sampled_from(LETTERS), max_size=12) | st.text(max_size=12))
def test_every_text_comes_back(text: str) -> None:
    assert of_cell(cell(text)) == text
    assert not cell(text).startswith(("=", "@", "\t", "\r")) and "\x1b" not in cell(text)


NAMES = ["=cmd|' /C calc'!A0", "-2+3", "\x1b[31mred", "\u202egnp", "'=x", "tab\there", "-0.5", "@x"]
METRICS = {"acc": 0.5, "loss": -0.5, "=1+1": 0.25, "[click](http://x.example)": 0.75, "www.x.example": 0.5}


def many() -> list[dict[str, object]]:
    return [{"schema": 1, "arch": {"name": name}, "metrics": METRICS} for name in NAMES]


def test_tables_in_csv_hold_no_formula() -> None:
    result = run("rank", "--by acc --format csv", many())
    cells = [cell for row in csv.reader(io.StringIO(result.stdout)) for cell in row]
    assert len(cells) > 10 and "\x1b" not in result.stdout and "\u202e" not in result.stdout
    for one in cells:
        assert not one.startswith(("=", "+", "@")) and (not one.startswith("-") or float(one) < 0)
    assert set(NAMES) <= {of_cell(one) for one in cells} and "-0.5" in cells
    raw = io.StringIO(run("rank", "--by acc --format csv-raw", many()).stdout, newline="")  # for programs
    assert set(NAMES) <= {cell for row in csv.reader(raw) for cell in row}
