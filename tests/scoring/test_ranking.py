"""Ranks by one or several keys, groups, merged records, the Pareto front, bands; assertions."""

from __future__ import annotations

import math
import random
from typing import Any
from xml.etree import ElementTree

import pytest

from rbtools.errors import UsageError
from rbtools.records import checksums
from rbtools.scoring import groups, merge, rank_order, same_model
from rbtools.scoring.assertions import Verdict, assertion, to_junit
from rbtools.scoring.rank_order import bands, front
from tests import runner
from tests.runner import Record, run


@pytest.mark.parametrize(
    ("values", "higher", "ranks"),
    [
        ([0.5, 0.9, 0.5, 0.1, 0.9], True, [(1, 0.9, 1), (1, 0.9, 4), (3, 0.5, 0), (3, 0.5, 2), (5, 0.1, 3)]),
        ([0.5, -0.9, 3], False, [(1, -0.9, 1), (2, 0.5, 0), (3, 3, 2)]),
        ([None, 0.5, math.nan, 0.5], False, [(1, 0.5, 1), (1, 0.5, 3), (None, None, 0), (None, None, 2)]),
    ],
)
def test_equals_share_a_rank_and_missing_values_come_last(
    values: list[Any], higher: bool, ranks: list[Any]
) -> None:
    found = rank_order.rank(range(len(values)), lambda place: values[place], higher=higher)
    assert found == ranks


def test_the_name_of_a_metric_or_the_user_says_its_direction() -> None:
    told = rank_order.Directions(lower="acc, mean(a, b)", higher="params")
    items = ["acc", "seconds_per_epoch", "mean(a, b)"]
    assert told.sort_keys(items, "--by", ["params"]) == [(name, False) for name in items]
    with pytest.raises(UsageError, match="--higher names 'params', which is not in --by"):
        told.sort_keys(items, "--by")
    with pytest.raises(UsageError, match="--lower and --higher both name 'acc'"):
        rank_order.Directions(lower="acc", higher="acc").sort_keys(["acc"], "--by")


def trained(seed: int, **more: Any) -> Record:
    train = {"method": "pgd", "seed": seed, "config": {"eps": 0.03}, "history": [seed]}
    train["seconds_per_epoch"] = seed
    record = {"schema": 1, "arch": {"name": "n"}, "dataset": "d", "train": train, "checkpoint": f"c{seed}"}
    return {**record, "metrics": {"acc": seed / 8}, **more}


def test_what_was_found_out_does_not_make_another_model() -> None:
    one = same_model.model(trained(1))
    assert same_model.model({**trained(1), "metrics": {}, "evals": [], "rank": 3}) == one
    assert same_model.model(dict(reversed(trained(1).items()))) == one
    assert same_model.model({**trained(1), "train": {**trained(1)["train"], "history": []}}) == one
    others = [trained(2), trained(1, dataset="e"), trained(1, checkpoint="x"), trained(1, mine=1)]
    assert one not in map(same_model.model, others) and len(set(map(same_model.model, others))) == 4


def test_merged_records_have_means_deviations_and_what_they_agree_in() -> None:
    entry = {"metric": "acc", "n": 8, "attack": None, "ci95": [0, 1], "value": 0.5, "device": "cpu"}
    some = [trained(seed, evals=[{**entry, "seed": seed}]) for seed in (1, 2, 6)]
    some[0]["metrics"]["pgd"] = 0.25
    one_seed = merge.merged([trained(3), trained(3)], {"over": ["eps"]})["aggregated"]
    assert one_seed == {"over": ["eps"], "records": 2}
    merged = merge.merged(some, {"over": ["seed"]})
    assert merged.pop("checksums") == {one["metric"]: checksums.of(one) for one in merged["evals"]}
    assert [one.pop("tool") for one in merged["evals"]] == ["rb-rank"] * 2
    deviation = pytest.approx((7 / 64) ** 0.5)
    assert merged == {
        "schema": 1,
        "arch": {"name": "n"},
        "dataset": "d",
        "train": {"method": "pgd", "config": {"eps": 0.03}},
        "metrics": {"acc": 0.375, "pgd": 0.25},
        "aggregated": {"over": ["seed"], "records": 3, "seeds": [1, 2, 6]},
        "evals": [
            {"metric": "acc", "n": 8, "attack": None, "value": 0.375, "std": deviation, "records": 3},
            {"metric": "pgd", "value": 0.25, "std": None, "records": 1},
        ],
    }


def test_keys_of_groups_stand_in_their_order() -> None:
    keys = [("b",), (10,), (None,), (9,), ("a",)]
    assert groups.in_order(keys) == [(None,), (9,), (10,), ("a",), ("b",)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_front_is_what_nothing_beats(size: int) -> None:
    chance = random.Random(size)
    points = [tuple(chance.randrange(6) for _ in range(size)) for _ in range(60)]
    higher = [True, False, True][:size]

    def beaten(point: tuple[int, ...]) -> bool:
        def as_good(other: tuple[int, ...]) -> bool:
            return all(o >= p if up else o <= p for o, p, up in zip(other, point, higher, strict=True))

        return any(other != point and as_good(other) for other in points)

    assert front(points, higher) == [not beaten(point) for point in points]


def test_a_band_is_who_overlaps_its_first() -> None:
    ends = [(0.8, 0.9), (0.75, 0.85), (0.7, 0.79), (0.72, 0.81), (0.1, 0.2)]
    assert bands(ends) == [1, 1, 2, 1, 3]
    assert bands([(-high, -low) for low, high in ends], higher=False) == [1, 1, 2, 1, 3]
    assert bands([]) == []


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
    assert "cannot be decided" in str(assertion("aa.8 >= .3").problem(record))


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
    assert ("1 record failed in an earlier tool" in result.stderr) == ("error" in str(given))
    if "junit" in words:
        report = ElementTree.fromstring(result.stdout.encode()).attrib
        assert (report["tests"], report["failures"]) == ("1", "0")
