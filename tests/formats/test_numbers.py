"""Published numbers, exactly and both ways."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools.formats.numbers import NoNumber, NotFinite, number, plain, printed
from rbtools.papers.formats.robustbench import distance


@pytest.mark.parametrize(
    ("raw", "percent", "value", "decimals"),
    [
        ("85.34", True, 0.8534, 4),
        (Decimal("94.90"), True, 0.949, 4),
        (0.3, False, 0.3, 1),
        (58, True, 0.58, 2),
        (" 50 % ", False, 0.5, 2),
        ("8/255", False, 8 / 255, 8),
        ("1e-3", False, 0.001, 3),
        (Decimal("0.00"), True, 0.0, 4),
    ],
)
def test_numbers_are_read_as_printed(raw: Any, percent: bool, value: float, decimals: int) -> None:
    found = number(raw, percent=percent)
    assert found is not None and (found.value, found.decimals) == (value, decimals)


@pytest.mark.parametrize("raw", [None, "", "  ", "null", "None", "-", "N/A"])
def test_nothing_is_no_number(raw: Any) -> None:
    assert number(raw) is None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (NotFinite("NaN"), "a number is NaN, which JSON does not have"),
        ("nan", "a number is nan, which is not finite"),
        (True, "found true where a number was expected"),
        ([1], "found a list where a number was expected"),
        ("high", "found the text 'high' where a number was expected"),
        ("1/0", "found the text '1/0' where a number was expected"),
        ("1e999", "the number 1e999 is too large"),
    ],
)
def test_what_is_no_number_is_a_clause(raw: Any, message: str) -> None:
    with pytest.raises(NoNumber) as wrong:
        number(raw)
    assert str(wrong.value) == message


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300), st.booleans())
def test_a_printed_value_is_read_to_the_last_bit(value: float, percent: bool) -> None:
    text = printed(value, percent=percent)
    for raw in (text, str(text)):
        found = number(raw, percent=percent)
        assert found is not None and found.value == value


@pytest.mark.parametrize(
    ("raw", "norm", "eps"),
    [
        ("8/255", "linf", 8 / 255),
        (8, "linf", 8 / 255),
        ("0.031", "linf", 0.031),
        ("0.5", "l2", 0.5),
        (2, "l2", 2),
    ],
)
def test_distances_are_on_the_scale_of_pixels(raw: Any, norm: str, eps: float) -> None:
    assert distance(raw, norm) == eps


def test_values_carried_along_are_json() -> None:
    value = {"a": Decimal("0.50"), "b": [NotFinite("NaN"), 1], "c": Decimal("1e999"), "d": "x"}
    assert plain(value) == {"a": 0.5, "b": [None, 1], "c": None, "d": "x"}
