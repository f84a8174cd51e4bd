"""The composite score: by hand, its invariances, gaps, and mistakes in its terms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.scoring.composite import scores as scored
from rbtools.scoring.rank_order import Directions
from rbtools.scoring.terms import Term, asked, check

ACC, GE = Term("acc"), Term("ge.acc", higher=False)


def scores(
    columns: list[list[float | None]], terms: list[Term], missing: str = "refuse"
) -> list[float | None]:
    return [one.score for one in scored(columns, terms, missing)]


def test_by_hand() -> None:
    terms = [Term("acc", 3.0), Term("ge.acc", 1.0, higher=False)]
    found = list(scored([[0.9, 0.7, 0.8], [0.2, -0.2, 0.1]], terms))
    # n(acc) = 1, 0, .5; n(ge) = 0, 1, .25
    assert [one.score for one in found] == pytest.approx([0.75, 0.25, 0.4375])
    assert found[2].contributions == pytest.approx([0.375, 0.0625])
    assert scores([[0.3, 0.3], [1.0, 2.0]], [ACC, Term("pgd20.8")]) == [0.25, 0.75]  # equal values: half
    assert scores([[0.3]], [ACC]) == [0.5]  # a single record, too
    weights = [Term(f"m{i}", weight) for i, weight in enumerate([0.1, 0.2, 0.3, 0.7, 1 / 3])]
    assert scores([[0.1, 0.7]] * 5, weights) == [0.0, 1.0]  # exactly, however the weights add up


def test_missing_values_can_be_renormalised_or_count_as_worst() -> None:
    columns: list[list[float | None]] = [[0.0, 1.0, 0.5, None], [0.0, 4.0, None, None]]
    terms = [Term("acc", 1.0), Term("pgd20.8", 3.0)]
    assert scores(columns, terms, "renormalise") == [0.0, 1.0, 0.5, None]
    assert scores(columns, terms, "worst") == [0.0, 1.0, 0.125, 0.0]
    found = list(scored(columns, terms, "renormalise"))
    assert found[2].contributions == [0.5, None]
    assert found[3].contributions == [None, None]
    nobody: list[list[float | None]] = [[0.0, 1.0], [None, None]]
    assert scores(nobody, [ACC, GE], "renormalise") == [0.0, 1.0]
    assert scores(nobody, [ACC, GE], "worst") == [0.0, 0.5]


finite = st.floats(-1e6, 1e6, allow_nan=False)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[float]], list[Term]]:
    rows, count = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    columns = [
        draw(st.lists(st.integers(-50, 50).map(float), min_size=rows, max_size=rows)) for _ in range(count)
    ]
    terms = [Term(f"m{i}", draw(st.floats(0.01, 100)), draw(st.booleans())) for i in range(count)]
    return columns, terms


@given(tables())
def test_scores_lie_between_0_and_1_and_are_the_sum_of_contributions(
    table: tuple[list[list[float]], list[Term]],
) -> None:
    for one in scored(*table):
        assert one.score is not None and 0 <= one.score <= 1
        assert sum(part or 0 for part in one.contributions) == pytest.approx(one.score, abs=1e-12)
        assert all(str(part) != "-0.0" for part in one.contributions)


@given(tables(), st.floats(1e-3, 1e3), finite, st.floats(0.1, 10))
def test_rescaling_a_metric_or_all_weights_changes_nothing(
    table: tuple[list[list[float]], list[Term]], factor: float, shift: float, weight: float
) -> None:
    columns, terms = table
    rescaled = [[factor * value + shift for value in columns[0]], *columns[1:]]
    heavier = [Term(one.metric, weight * one.weight, one.higher) for one in terms]
    assert scores(rescaled, heavier) == pytest.approx(scores(columns, terms), abs=1e-5)


def weighed(text: str) -> list[Term]:
    return asked([], Directions(), [text])


@pytest.mark.parametrize(
    ("wrong", "given", "message"),
    [
        (weighed, ["acc=-1"], "The weight of 'acc' is -1. It must be above 0. To reverse a metric, name it"),
        (weighed, ["acc=nan"], "It must be above 0"),
        (check, [[ACC, GE, Term("acc", 2.0)]], "has 'acc' twice"),
        (scored, [[[-1e308, 1e308]], [ACC]], "'acc' ranges from -1e\\+308 to 1e\\+308, too large a range"),
    ],
)
def test_terms_and_values_that_make_no_score(wrong: Any, given: list[Any], message: str) -> None:
    with pytest.raises(RbError, match=message):
        wrong(*given)
