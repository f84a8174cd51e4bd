"""Papers beside ours: tables and claims."""

from __future__ import annotations

import re

import pytest

from rbtools.papers import estimates
from rbtools.papers import sidebyside as side
from rbtools.papers.estimates import WithInterval


def test_a_site_is_a_side_of_its_own_between_the_printed_values_and_ours() -> None:
    printed: side.Rows = {"pgd": {"Acc": 0.8383, "AA": None}, "erm": {"Acc": 0.9485}}
    site = {"pgd": {"Acc": 0.8383, "AA": 0.4634}}
    ours = {"pgd": {"Acc": 0.85, "AA": 0.5}, "new": {"Acc": 0.5}}
    table = side.PaperTable("Table 4", printed, ours, ["Acc", "AA"], site=site)
    assert table.text().splitlines()[0] == "Table 4: printed / site / ours / difference"
    assert table.text().splitlines()[4:] == [
        "| pgd | 83.83 / 83.83 / 85.00 / +1.17 | - / 46.34 / 50.00 / +3.66 |",
        "| erm | 94.85 / - / - / - | - |",
        "| new | - / - / 50.00 / - | - |",
    ]
    # The site's column stands where it says something else.
    heads = [heading.title for heading in table.beside().headings]
    assert heads == ["", "Acc (printed)", "Acc", "AA (site)", "AA"]
    alone = table._replace(printed={})
    assert list(alone.sides()) == ["site", "ours"]
    assert list(table._replace(site={}).sides()) == ["printed", "ours"]


def test_a_wide_table_is_in_latex_parts_that_keep_the_sides_of_a_column_together() -> None:
    columns = [f"PR {number}" for number in range(8)]
    row = dict.fromkeys(columns, 0.5)
    text = side.PaperTable("Table 4", {"pgd": row}, {"pgd": row}, columns).files()["tex"]
    assert re.findall(r"begin\{tabular\}\{(\w+)\}", text) == ["l" + 10 * "r", "l" + 6 * "r"]
    assert text.count(r"\begin{adjustbox}{max width=\linewidth}") == 2
    second = text.split(r"\toprule")[2].splitlines()[1:3]
    spans = " & ".join(rf"\multicolumn{{2}}{{c}}{{PR {number}}}" for number in (5, 6, 7))
    assert second == [rf" & {spans} \\", r" & printed & ours & printed & ours & printed & ours \\"]
    alone = side.PaperTable("Theorem 1", {}, {"pgd": row}, columns).files()["tex"]
    assert "multicolumn" not in alone and " & PR 0 & PR 1" in alone


def test_claims_that_fail_are_shown_and_counted() -> None:
    rows = {"a": {"AA": 0.5}, "b": {"AA": 0.3}, "c": {"AA": 0.4}}
    comparisons = ("a > b", "b > a", "a > d", "b <= 0.3", "a,b,d > c", "a,c >= c")
    text = side.told([side.tested(one, {"AA": [one]}, rows) for one in comparisons])
    assert "- b > a: FAILS (0.3 and 0.5)" in text
    assert "- a,b,d > c: FAILS (not so for b and c (0.3 and 0.4))" in text
    assert "- a > d: cannot be told (not measured here)" in text
    assert text.endswith("3 of 5 claims hold here; 1 cannot be told from these records.")


def test_a_claim_compares_rows_in_columns_and_columns_in_rows() -> None:
    rows = {
        "pgd": {"Acc": 0.8, "AA": 0.5},
        "erm": {"Acc": 0.9, "AA": 0.01},
        "pgd m=1": {"Acc": 0.7, "AA": 0.5},
    }

    def tested(place: str, *comparisons: str) -> tuple[bool | None, str]:
        claim = side.tested("words", {place: comparisons}, rows)
        return claim.holds, claim.found

    assert tested("Acc", "erm > pgd") == (True, "0.9 and 0.8")
    assert tested("Acc,AA", "erm > pgd,mart") == (False, "not so for AA: erm and pgd (0.01 and 0.5)")
    assert tested("AA", "pgd > pgd m=*") == (None, "0.5 and 0.5")
    assert tested("AA", "pgd >= pgd m=*,erm") == (True, "all 2")
    assert tested("pgd*", "AA > Acc") == (
        False,
        "not so for pgd: AA and Acc (0.5 and 0.8), pgd m=1: AA and Acc (0.5 and 0.7)",
    )
    assert tested("erm", "Acc > AA by 0.9") == (False, "0.9 and 0.01")
    assert tested("AA", "erm,pgd <= 0.02") == (False, "0.5, limit 0.02")
    assert tested("AA", "pgd,pgd m=* > 0.4") == (True, "all 2")
    assert tested("AA", "mart > pgd") == (None, "not measured here")
    assert tested("Acc", "pgd > erm by -0.2", "erm > pgd by -0.2") == (True, "all 2")
    assert tested("Acc", "pgd > erm by -0.05") == (False, "0.8 and 0.9")


def test_a_claim_that_an_interval_leaves_open_is_undecided() -> None:
    rows: side.Rows = {
        "tau": {
            "a": WithInterval(0.5, 0.4, 0.6),
            "b": WithInterval(0.3, 0.1, 0.45),
            "c": WithInterval(0.1, -0.1, 0.3),
            "d": WithInterval(0.4, 0.1, 0.5),
        }
    }

    def tested(*comparisons: str) -> tuple[bool | None, str]:
        claim = side.tested("words", {"tau": comparisons}, rows)
        return claim.holds, claim.found

    assert tested("a > 0") == (True, "0.5 [0.4, 0.6] and 0")
    assert tested("c > 0") == (None, "0.1 [-0.1, 0.3] and 0")
    assert tested("0 > a") == (False, "0 and 0.5 [0.4, 0.6]")
    assert tested("a > d,c") == (None, "within the interval for tau: a and d")
    assert tested("a > c") == (True, "0.5 [0.4, 0.6] and 0.1 [-0.1, 0.3]")
    assert tested("c > a", "a > b") == (False, "not so for tau: c and a (0.1 [-0.1, 0.3] and 0.5 [0.4, 0.6])")
    assert tested("a > c by 0.05") == (True, "0.5 [0.4, 0.6] and 0.1 [-0.1, 0.3]")
    assert tested("a > c by 0.2") == (None, "0.5 [0.4, 0.6] and 0.1 [-0.1, 0.3]")
    assert tested("c <= 0.3") == (True, "0.1 [-0.1, 0.3], limit 0.3")
    assert tested("b,c <= 0.3") == (None, "0.3 [0.1, 0.45], limit 0.3")
    assert tested("a <= 0.3") == (False, "0.5 [0.4, 0.6], limit 0.3")


def test_a_claim_is_judged_on_the_printed_values_too() -> None:
    ours, paper = {"a": {"AA": 0.5}, "b": {"AA": 0.3}}, {"a": {"AA": 0.2}, "b": {"AA": 0.3}}
    tests = {"AA": ["a > b"]}

    def beside(mine: side.Rows, printed: side.Rows) -> side.Claim:
        return side.beside(side.tested("words", tests, mine), side.tested("words", tests, printed))

    told = beside(ours, paper)
    assert told.holds and told.found == "0.5 and 0.3; on the printed values it FAILS, 0.2 and 0.3"
    assert beside({}, ours).found == "not measured here; on the printed values it holds"
    assert beside(ours, {}) == side.tested("words", tests, ours)
    # .41 and .2 of the paper differ by .21, but not their floats.
    assert side.tested("words", {"AA": ["a > b by 0.21"]}, {"a": {"AA": 0.41}, "b": {"AA": 0.2}}).holds


def test_intervals_of_means_and_medians_are_those_of_textbooks() -> None:
    mean, median = estimates.mean([1.0, 2.0, 3.0, 4.0]), estimates.median(range(1, 16))
    assert mean is not None and median is not None
    # Student's t of 3 degrees of freedom is 3.182; the median of 15 is between the 4th and the 12th.
    half = 3.182446 * (5 / 3 / 4) ** 0.5
    assert (mean, mean.low, mean.high) == pytest.approx((2.5, 2.5 - half, 2.5 + half))
    assert (median, median.low, median.high) == (8, 4, 12)
    assert estimates.mean([1.0, 2.0]) is None and estimates.median([1.0] * 5) is None
    rows = [{"a": value, "b": -value, "c": 1.0} for value in (0.1, 0.4, 0.2, 0.3)]
    assert estimates.correlations(rows, "a", ["b", "c"]).keys() == {"b"}
    assert (
        estimates.correlations(rows, "a", ["b"])["b"] == -1.0 and estimates.correlations([], "a", ["b"]) == {}
    )


def test_means_are_over_the_records_of_a_row() -> None:
    records = [{"train": {"method": m}, "metrics": {"acc": a}} for m, a in (("pgd", 0.4), ("pgd", 0.6))]
    found = side.means(records, lambda record: record["train"]["method"], {"Acc": "acc", "AA": "aa.8"})
    assert found == {"pgd": {"Acc": 0.5}}


def test_failed_records_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert side.read(['{"arch":{}}\n', "\n", '{"arch":{},"error":{}}\n']) == [{"arch": {}}]
    assert capsys.readouterr().err == "1 of 2 records failed and are left out.\n"


def test_bounds_of_records_are_one_row_each_with_the_inputs_of_the_least() -> None:
    def record(value: float | None, n: int) -> dict[str, object]:
        bound = {"measure": "bound", "metric": "bound.b", "formula": "|a|/n", "value": value}
        return {
            "evals": [{"metric": "acc"}, {**bound, "inputs": {"n": n, "a": 0.5}, "vacuous": value != 0.25}]
        }

    records = [record(4.0, 1), record(0.25, 2), record(None, 3)]
    assert side.theory(records) == [("bound.b", "|a|/n", "0.25", "4", "n 2, a 0.5", "2 of 3")]
    assert side.theory_text(records).splitlines()[-1] == (
        "| bound.b | \\|a\\|/n | 0.25 | 4 | n 2, a 0.5 | 2 of 3 |"
    )
    assert side.theory_text([{"evals": []}]) == ""
