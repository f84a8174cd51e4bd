"""Tables: which columns and numbers; text that other programs read back unchanged, and no formulas."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rbtools.probabilistic.intervals import mean_interval
from rbtools.records import answers, expr, metric_name, sheet_cells
from rbtools.records.sheet_cells import of_cell
from rbtools.scoring import means, render, table
from rbtools.scoring.derived import derived
from rbtools.scoring.rank_order import rank
from rbtools.scoring.table_style import Style, styled
from tests.runner import model, run


def record(name: str, method: str | None = None, seed: int = 0, **metrics: float) -> dict[str, Any]:
    entries = [
        {"metric": metric, "value": value, "ci95": [value - 0.01, value + 0.01]}
        for metric, value in metrics.items()
    ]
    made: dict[str, Any] = {"arch": {"name": name}, "dataset": "digits", "metrics": metrics, "evals": entries}
    return made | ({"train": {"method": method, "seed": seed}} if method else {})


def table_of(*records: dict[str, Any], key: str = "pgd20.8", **options: Any) -> table.Table:
    return table.build(rank(records, lambda one: one.get("metrics", {}).get(key)), key, **options)


def test_figure() -> None:
    values = (0.53150001, 1.0, -0.0, -0.0132, 25.123, 160.0, 3, 1073466, 2.3e-5, -2e-5, 1.2345e7)
    wanted = "0.5315 1.0000 0.0000 -0.0132 25.12 160 3 1073466 2.3e-05 -2e-05 1.234e+07"
    assert [table.figure(value) for value in values] == wanted.split()


def test_csv_has_full_precision_and_interval_columns() -> None:
    records = [record('a, "b"', **{"pgd20.8": 1 / 3}), record("c", acc=0.5)]
    rows = list(csv.reader(io.StringIO(render.to_csv(table_of(*records)))))
    assert rows[0] == "rank name dataset pgd20.8 pgd20.8_low pgd20.8_high acc acc_low acc_high".split()
    numbers = [repr(number) for number in (1 / 3, 1 / 3 - 0.01, 1 / 3 + 0.01)]
    assert rows[1] == ["1", 'a, "b"', "digits", *numbers, "", "", ""]
    assert rows[2] == ["", "c", "digits", "", "", "", "0.5", "0.49", "0.51"]


@pytest.mark.parametrize(
    ("name", "heading", "share"),
    [
        ("ge.aa.l1.12", "GE AutoAttack (L1), ε = 12", True),
        ("cert.smooth.0.25.0.5", "certified by smoothing, σ = 0.25, ε = 0.5", True),
        ("probacc-all.uniform.0.0313725.0.05", "ProbAcc (all images) uniform, γ = 8/255, ρ = 0.05", True),
        ("mean(pgd20.*) - acc", "mean(pgd20.*) - acc", True),
        ("acc / pgd20.8", "acc / pgd20.8", False),
    ],
)
def test_a_heading_is_in_words_and_a_share_is_known(name: str, heading: str, share: bool) -> None:
    assert metric_name.heading(name) == heading
    assert table.is_share(name) is share


def test_a_table_for_people() -> None:
    paths = ("/some/a/model.pt", "/some/b/model.pt")
    some = [
        record("net", acc=0.985) | {"checkpoint_file": path, "metrics": {"acc": 0.985, "cost": 25.126}}
        for path in paths
    ]
    plain_table = table_of(*some, key="acc", metrics=["cost"])
    labels = {"a/model": "Ours", "acc": "Accuracy"}
    shown = styled(plain_table, Style(percent=True, digits=1, plus_minus=True, labels=labels))
    assert render.to_markdown(shown).splitlines()[:4:2] == [
        r"| rank | name | dataset | checkpoint | Accuracy \[%\] | cost |",
        "| 1 | net | digits | Ours | 98.5 ± 1.0 | 25.1 |",
    ]
    assert render.note(shown) == "± is half of the 95 % interval."
    cells = [
        cell._replace(value=0.0, interval=(0.0, 2.35), plus_minus=True, digits=1) for cell in shown.rows[0]
    ]
    assert table.text(cells[0]) == "0.0 [0.0, 2.4]"  # and not 0.0 ± 1.2
    assert render.note(table.Table(shown.headings, [cells])) == "Brackets are 95 % intervals."


def test_files_of_a_folder_that_differ_in_their_extensions_keep_these() -> None:
    some = [record("net", acc=0.5) | {"checkpoint_file": f"/some/net.{end}"} for end in ("pt", "safetensors")]
    shown = styled(table_of(*some, key="acc"), Style())
    assert [row[3].value for row in shown.rows] == ["net.pt", "net.safetensors"]


def test_a_note_explains_the_columns_of_a_comparison_and_latex_sets_powers_of_ten() -> None:
    compared = {"acc": {"difference": 0.2, "ci95": [0.1, 0.3], "p": 6.6e-5}}
    found = record("net", acc=0.5) | {
        "paired": {"reference": "old", "metrics": compared},
        "rank_ci95": [1, 2],
    }
    text = render.to_latex(table_of(found, key="acc", paired=["acc"]))
    assert r"0.2000 [0.1000, 0.3000] & 6.6$\times10^{-5}$ \\" in text
    assert "Ranks are those that a model may have" in text and "Paired is the difference" in text


def with_answers(**right: list[bool]) -> dict[str, Any]:
    one = record("a", **{name: float(np.mean(bits)) for name, bits in right.items()})
    for entry, bits in zip(one["evals"], right.values(), strict=True):
        entry |= {"n": len(bits), answers.FIELD: answers.packed(np.array(bits), "some")} if bits else {}
    return one


def test_a_mean_of_metrics_has_an_interval() -> None:
    mean = expr.compile("mean(fgsm.*)")
    apart = record("a", **{"fgsm.8": 0.5, "fgsm.4": 0.7})
    assert means.interval(apart, mean) == pytest.approx((0.59, 0.61))  # the mean of both: never too narrow
    assert table.text(table.build(rank([apart], mean), mean.text).rows[0][3]) == "0.6000 [0.5900, 0.6100]"
    added = derived("m=mean(fgsm.*)").added(apart)
    assert added["evals"][-1]["ci95"] == pytest.approx([0.59, 0.61])
    bits = [True] * 30 + [False] * 10
    known = with_answers(**{"fgsm.8": bits, "fgsm.4": bits})
    assert means.interval(known, mean) == mean_interval([0, 1], [10, 30])
    opposite = with_answers(**{"fgsm.8": bits[:20] + bits[20:], "fgsm.4": bits[::-1]})
    assert means.interval(opposite, mean) == mean_interval([0.5, 1], [20, 20])
    del apart["evals"][1]["ci95"]
    assert means.interval(apart, mean) is None
    assert means.interval(known, expr.compile("fgsm.8 - fgsm.4")) is None


def test_markdown_has_no_links() -> None:
    links = {"[click](http://x.example)": 0.75, "www.x.example": 0.5, "\x1b[31m\u202e": 0.5}
    linked = render.to_markdown(table_of({"arch": {"name": "a"}, "metrics": links}, key="www.x.example"))
    assert not re.search(r"(?<!\\)\]\(", linked) and "www.x" not in linked and "http:" not in linked
    assert "\x1b" not in linked and "\u202e" not in linked


def one_cell(words: str) -> table.Table:
    return table.Table(
        [table.Heading(words, False), table.Heading("n", True)],
        [[table.TableCell(words), table.TableCell(0.5)]] * 2,
    )


# Everything printable, with the marks that mean something somewhere more often than the rest.
words = st.text(
    st.one_of(st.sampled_from(r"""\`*_[]{}<>|~&$#!:@^%"'-,;=()./ """), st.characters(codec="utf-8"))
)


@given(words)
def test_csv_reads_back(found: str) -> None:
    rows = list(csv.reader(io.StringIO(render.to_csv(one_cell(found)), newline="")))
    assert [[of_cell(cell) for cell in row] for row in rows] == [[found, "n"], [found, "0.5"], [found, "0.5"]]
    raw = list(csv.reader(io.StringIO(render.to_raw_csv(one_cell(found)), newline="")))
    shown = found.replace("\0", "\ufffd")
    assert raw == [[shown, "n"], [shown, "0.5"], [shown, "0.5"]]


def markdown_cells(document: str) -> list[str]:
    """The text of each cell as a Markdown renderer shows it."""
    cells = []
    for token in MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(document):
        if token.type == "inline":
            assert all(child.type in ("text", "text_special") for child in token.children or []), (
                token.children
            )
            cells.append("".join(child.content for child in token.children or []))
    return cells


@given(words)
def test_markdown_reads_back(found: str) -> None:
    shown = table.printable(found).strip() or "–"
    cells = markdown_cells(render.to_markdown(one_cell(found)))
    assert cells[1:] == ["n", *[shown, "0.5000"] * 2]


_TOKENS = re.compile(r"\\([a-zA-Z]+)\{\}|\\([&%$#_{}])|(\{''\})|(\{\})|([^\\{}&%$#_~^|<>`\"])", re.DOTALL)
_COMMANDS = {
    "textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textbar": "|", "textless": "<",
    "textgreater": ">", "textasciigrave": "`",
}  # fmt: skip


def set_by_latex(source: str) -> str:
    """What LaTeX would print, for the little that is allowed; fails on any other special character."""
    printed, at = "", 0
    while at < len(source):
        token = _TOKENS.match(source, at)
        assert token, f"LaTeX would not print {source[at:]!r} as it is"
        command, escaped, quote, _, letter = token.groups()
        printed += _COMMANDS[command] if command else escaped or (quote and '"') or letter or ""
        at = token.end()
    return printed


@given(words)
def test_latex_reads_back(found: str) -> None:
    escaped = render.latex(found)
    assert set_by_latex(escaped) == table.printable(found)
    assert "--" not in escaped and not escaped.startswith(("[", "*"))
    lines = render.to_latex(one_cell(found)).splitlines()[2:]
    assert len(lines) == 9  # a name cannot add a line
    assert all(line.endswith(r" & 0.5000 \\") for line in lines[4:6])


def test_what_begins_a_formula_is_quoted_and_what_is_not_seen_is_spelled() -> None:
    for found in ["=1+1", "+x", "-x", "@SUM(A1)", "\t=1", "\r", " =1", "-", "--5", "'=1", "\uff1d1", "'\t"]:
        assert sheet_cells.cell(found) == f"'{found}"
    for found in ["-0.5", "+1e-3", "0.5", "-inf", "x=1", "a-b", "", "'x'", "wrn-28-10", "\\x", "C:\\users"]:
        assert sheet_cells.cell(found) == found
    for found in ["\x1b[2J", "a\x9bb", "\u202eabc", "\u2066x", "\x00", "\x7f"]:
        assert sheet_cells.cell(found).isprintable()


LETTERS = "=+-@\t\r\n '\\u001b\x1b\x9b\u202e\u2066aF0.5\uff1d"


@given(st.text(st.sampled_from(LETTERS), max_size=12) | st.text(max_size=12))
def test_every_text_comes_back(found: str) -> None:
    assert of_cell(sheet_cells.cell(found)) == found
    assert not sheet_cells.cell(found).startswith(("=", "@", "\t", "\r"))
    assert "\x1b" not in sheet_cells.cell(found)


NAMES = ["=cmd|' /C calc'!A0", "-2+3", "\x1b[31mred", "\u202egnp", "'=x", "tab\there", "-0.5", "@x"]
METRICS = {"acc": 0.5, "loss": -0.5, "=1+1": 0.25, "[click](http://x.example)": 0.75, "www.x.example": 0.5}
MANY = [model(name, metrics=METRICS) for name in NAMES]


def test_tables_in_csv_hold_no_formula() -> None:
    result = run("rank", "--by acc --format csv", MANY)
    cells = [one for row in csv.reader(io.StringIO(result.stdout)) for one in row]
    assert len(cells) > 10 and "\x1b" not in result.stdout and "\u202e" not in result.stdout
    for one in cells:
        assert not one.startswith(("=", "+", "@")) and (not one.startswith("-") or float(one) < 0)
    assert set(NAMES) <= {of_cell(one) for one in cells} and "-0.5" in cells
    raw = io.StringIO(run("rank", "--by acc --format csv-raw", MANY).stdout, newline="")  # for programs
    assert set(NAMES) <= {one for row in csv.reader(raw) for one in row}
