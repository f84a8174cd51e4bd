"""Units at the edge: what users type for distances and lists, and the messages for typing errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools import units
from rbtools.cli import parse_units
from rbtools.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8.0), ("8/255", 8 / 255), ("0.03", 0.03), (" 8 ", 8.0), ("1e-3", 1e-3), (".5", 0.5), (4, 4.0)],
)
def test_numbers_and_fractions(text: str | float, value: float) -> None:
    assert units.number(text, "--x") == value


@pytest.mark.parametrize(
    ("texts", "expected"),
    [(" eight 8/ /255 8/0 8/2/5 8% 0x8", "number such"), ("nan inf -inf 1e999", "finite")],
)
def test_what_is_no_number_is_named(texts: str, expected: str) -> None:
    for text in texts.split(" "):
        with pytest.raises(UsageError, match=f"--x is '{text}'.* Expected a {expected}"):
            units.number(text, "--x")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,8", [1, 2, 8]),
        ("1-5", [1, 2, 3, 4, 5]),
        ("1-3,8/255", [1, 2, 3, 8 / 255]),
        ("0:0.15:4", [0, 0.05, 0.1, 0.15]),
        ("1:0:3", [1, 0.5, 0]),
        ("-1", [-1]),
        (" 1 , 2 ,", [1, 2]),
    ],
)
def test_lists_and_ranges(text: str | float, values: list[float]) -> None:
    assert units.number_list(text, "--x") == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5-1", "has the range '5-1', which is in reverse order. Write '1-5'."),
        ("0:1:x", "has the count 'x'. Write start:stop:count, such as 0:0.15:31."),
        ("0:1", "is '0:1'. Expected a number"),
    ],
)
def test_what_is_no_list_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError) as wrong:
        units.number_list(text, "--x")
    assert message in str(wrong.value) and str(wrong.value).startswith("--x ")


@given(st.integers(0, 255))
def test_an_l_infinity_distance_is_the_same_number_with_and_without_its_255(eps: int) -> None:
    assert units.eps_to_pixels(str(eps)) == units.eps_to_pixels(f"{eps}/255") == eps / 255


@pytest.mark.parametrize(
    ("text", "meant"), [("0.031", "8"), ("0.03137", "8"), ("0.01", "2.55"), ("0.03", "8")]
)
def test_a_distance_with_two_readings_is_refused_with_both(text: str, meant: str) -> None:
    words = f"--eps {text} is ambiguous. .* Write --eps {meant} for .*, or --eps {text}/255"
    for read in (lambda: units.eps_slip(text), lambda: parse_units.distances(f"8,{text}", "linf")):
        with pytest.raises(UsageError, match=words):
            read()
    with pytest.raises(UsageError, match=f"--step-size {text} is ambiguous"):
        parse_units.distance(text, "--step-size")
    assert parse_units.distances(text, "l2") == (float(text),)
    assert parse_units.distances(f"{text}/255", "linf") == (float(text) / 255,)


def test_a_range_has_two_readings_if_all_of_it_has() -> None:
    assert parse_units.distances("0:2:101", "linf")[1] == 0.02 / 255
    with pytest.raises(UsageError, match="is ambiguous"):
        parse_units.distances("0:0.06:7", "linf")
    assert parse_units.distances("0", "linf") == (0.0,)


def test_an_l2_distance_is_on_the_unit_scale() -> None:
    assert units.eps_to_pixels("0.5", "l2") == 0.5
    assert units.eps_to_pixels("128/255", "l2") == 128 / 255
    assert units.eps_to_pixels("3", "l2") == 3.0  # may be longer than a pixel's range


def test_a_spaced_range_has_the_numbers_that_people_would_write() -> None:
    values = units.number_list("0:0.15:31", "--x")
    assert [f"{value!r}" for value in values[:4]] == ["0.0", "0.005", "0.01", "0.015"]
    assert len(values) == 31 and values[-1] == 0.15
