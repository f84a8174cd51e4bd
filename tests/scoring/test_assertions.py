"""Assertions: which end of an interval counts, what cannot be judged, JUnit's XML."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from rbtools.errors import UsageError
from rbtools.scoring.assertions import Verdict, assertion, to_junit
from tests import runner
from tests.runner import run

Record = dict[str, Any]


def model(name: str = "a", value: float = 0.45, **more: Any) -> Record:
    robust = {"metric": "aa.8", "value": value, "n": 100, "ci95": [value - 0.1, value + 0.1]}
    record = runner.model(name, robust, {"metric": "cost", "value": 3.0}, **more)
    record["arch"]["params"] = 100
    return record


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("aa.8 >= .35", True),  # the lower end is .35
        ("aa.8 > .35", False),
        ("aa.8 <= .55", True),  # the upper end is .55
        ("aa.8 < .55", False),
        ("params <= 100", True),  # a field is exact
        ("acc >= 0", False),  # the record has none
        ("cost < 9", False),  # no interval
        ("mean(aa.*) >= .35", True),  # the interval of a mean of metrics
        ("mean(aa.*, cost) > 0", False),
    ],
)
def test_the_worse_end_of_the_interval_counts(text: str, holds: bool) -> None:
    record = model()
    record["evals"][0]["ci95"] = [0.35, 0.55]
    assert (assertion(text).problem(record) is None) is holds
    if text.startswith("aa"):
        record["evals"][0]["ci90"] = record["evals"][0].pop("ci95")
        assert (assertion(text).problem(record) is None) is holds


def test_a_point_assertion_compares_the_value() -> None:
    record = model()
    assert assertion("aa.8 >= .45", point=True).problem(record) is None
    assert assertion("mean(aa.*) >= .46", point=True).problem(record) is not None
    assert assertion("cost < 9", point=True).problem(record) is None
    record["metrics"]["aa.8"] = 0.9  # edited: the interval of its entry does not judge it
    assert "cannot be told" in str(assertion("aa.8 >= .3").problem(record))


@pytest.mark.parametrize(
    "text", ["aa.8", "aa.8 = 1", ".3 < aa.8 < .4", "aa.8 < acc", "1 < 2", "aa.8 < 'x'", ""]
)
def test_what_is_no_assertion(text: str) -> None:
    with pytest.raises(UsageError, match=r"--assert: .*aa.8 >= .4"):
        assertion(text)


def test_junit_is_xml_whatever_a_record_is_called() -> None:
    text = to_junit([Verdict('<&"\x00\x9b', "aa.8 >= .4", None), Verdict("b", "aa.8 >= .4", 'is "less"')])
    suite = ElementTree.fromstring(text.encode())[0]
    assert [suite.attrib[key] for key in ("name", "tests", "failures")] == ["rb-rank", "2", "1"]
    assert [case.attrib["classname"] for case in suite] == ['<&"??', "b"]
    assert [[child.attrib["message"] for child in case] for case in suite] == [[], ['is "less"']]


@pytest.mark.parametrize(
    ("words", "given", "status"),
    [
        ("--top 1", [model("a", 0.3), model("b", 0.6)], 0),  # only records that are written are judged
        ("--where 'aa.8 < .5'", [model("a", 0.3), model("b", 0.6)], 1),
        ("", [], 1),
        ("", [model("a", 0.9), model("b", 0.9, error={"tool": "rb-attack", "message": "no"})], 1),
        ("--format junit", [model("a", 0.6)], 0),
    ],
)
def test_the_status_says_whether_every_record_passes(words: str, given: list[Record], status: int) -> None:
    assert run("rank", "--format junit --by aa.8", [model()]).exit_code == 2  # no assertion to report
    result = run("rank", f"--assert 'aa.8 >= .4' --by aa.8 {words}", given)
    assert result.exit_code == status
    assert ("1 record failed before" in result.stderr) == ("error" in str(given))
    if "junit" in words:
        report = ElementTree.fromstring(result.stdout.encode()).attrib
        assert (report["tests"], report["failures"]) == ("1", "0")
