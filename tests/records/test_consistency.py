"""Each rule of consistency finds what it is for, and nothing in an honest record; checksums show edits."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from rbtools.probabilistic import intervals
from rbtools.records import checksums, consistency, results
from tests.runner import Record


def entry(metric: str, right: int, n: int = 1000, **more: Any) -> Record:
    value = right / n
    return {
        "tool": "rb-attack",
        "metric": metric,
        "split": "test",
        "n": n,
        "value": value,
        "ci95": list(intervals.wilson(right, n)),
        **more,
    }


def attack(name: str, eps: int, right: int, n: int = 1000, **more: Any) -> Record:
    stem = f"{name}{more['steps']}" if "steps" in more else name
    return entry(f"{stem}.{eps}", right, n, attack=name, norm="linf", eps=eps / 255, **more)


def record_of(*entries: Record) -> Record:
    record: Record = {"schema": 1, "arch": {"name": "a"}}
    for one in entries:
        record = results.add(record, one)
    return record


HONEST = record_of(
    entry("acc", 900),
    attack("pgd", 2, 800, steps=20),
    attack("pgd", 8, 500, steps=20),
    attack("pgd", 16, 503, steps=20),  # by chance
    attack("fgsm", 8, 600),
    attack("fgsm", 16, 700),  # a single step may be too long
    attack("aa", 8, 503),
    {**attack("aa", 8, 700, attacks="fgsm"), "metric": "mine.8"},  # a set of one's own may be weaker
    {**attack("pgd", 8, 400, steps=9), "metric": "pgd9.l2.0.5", "norm": "l2", "eps": 0.5},
    {"tool": "rb-ge", "metric": "ge.acc", "n": [1000, 1000], "value": 0.05, "split": "train-test"},
    {**entry("train.acc", 950), "split": "train"},
    {"tool": "rb-pr", "metric": "probacc.uniform.0.1.0.05", "n": 900, "value": 0.5, "ci95": [0.6, 0.7],
     "estimator": "biased"},
    {"tool": "rb-measure", "metric": "wci", "value": 12.5, "n": 100},
)  # fmt: skip


def rules(record: Record) -> set[tuple[str, str]]:
    return {(finding.metric, finding.rule) for finding in consistency.findings(record)}


def test_an_honest_record_has_no_finding() -> None:
    # All images at 8 are more than the 8-bit ones.
    assert rules(changed("pgd20.16", 700, grid="8bit")) == set()
    assert consistency.findings(HONEST) == []
    assert consistency.without_checksum(HONEST) == []


def changed(metric: str, right: int | None = None, **fields: Any) -> Record:
    """The honest record with another entry of that metric, as if a tool had written it so."""
    (old,) = [one for one in HONEST["evals"] if one["metric"] == metric]
    if right is not None:
        fields |= {"value": right / old["n"], "ci95": list(intervals.wilson(right, old["n"]))}
    return results.add(HONEST, {**old, **fields}, replace=True)


PLANTED = [
    (changed("aa.8", value=0.6, ci95=[0.47, 0.53]), ("aa.8", "interval")),
    (changed("aa.8", value=0.50345), ("aa.8", "count")),
    (changed("aa.8", value=50.3, ci95=[50.3, 50.3]), ("aa.8", "share")),
    (changed("acc", n=0), ("acc", "n")),
    (changed("aa.8", eps=8.0), ("aa.8", "unit")),
    (changed("pgd9.l2.0.5", norm="l1"), ("pgd9.l2.0.5", "unit")),
    (changed("aa.8", eps=0.08), ("aa.8", "unit")),
    (changed("pgd20.8", steps=10), ("pgd20.8", "unit")),
    (changed("acc", 790), ("pgd20.2", "above clean")),  # too few for two samples, too many for rounding
    (changed("pgd20.16", 700), ("pgd20.16", "distances")),
    (changed("aa.8", 700), ("aa.8", "AutoAttack")),
    (changed("ge.acc", value=0.02), ("ge.acc", "parts")),
    (changed("aa.8", broken_by={"apgd-ce": 900}), ("aa.8", "parts")),
]


@pytest.mark.parametrize(("record", "finding"), PLANTED)
def test_each_rule_finds_what_it_is_for(record: Record, finding: tuple[str, str]) -> None:
    assert finding in rules(record)


@pytest.mark.parametrize("ends", [["a", "b"], [None, None], [0.5], "ab", {}])
def test_an_interval_that_is_none_is_no_crash(ends: Any) -> None:
    odd = copy.deepcopy(HONEST)
    odd["evals"][0]["ci90"] = ends
    assert {rule for _, rule in rules(odd)} <= {"edited", "interval"}


def test_a_mean_over_severities_that_is_not_theirs() -> None:
    five = [
        entry(f"corrupt.fog.{severity}", 900 - 100 * severity, corruption="fog", severity=severity)
        for severity in range(1, 6)
    ]
    mean = entry("corrupt.fog.mean", 600, corruption="fog")
    assert rules(record_of(*five, mean)) == set()
    assert ("corrupt.fog.mean", "parts") in rules(record_of(*five, {**mean, "value": 0.605}))


def edit(metric: str, **fields: Any) -> Record:
    """The honest record with a field that was changed by hand."""
    record = copy.deepcopy(HONEST)
    for one in record["evals"]:
        if one["metric"] == metric:
            one.update(fields)
    return record


def test_edits_show_by_checksums() -> None:
    assert rules(edit("pgd20.8", restarts=5)) == {("pgd20.8", "edited")}
    assert rules(edit("pgd20.8", seconds=5.0, device="cuda", tool="rb-other")) == set()
    for record in (edit("wci", value=13.5), copy.deepcopy(HONEST)):
        record["metrics"]["wci"] = 13.5
        assert rules(record) == {("wci", "edited")}
    record = copy.deepcopy(HONEST)
    record["evals"] = [one for one in record["evals"] if one["metric"] != "aa.8"]
    assert rules(record) == {("aa.8", "edited"), ("aa.8", "no entry")}
    record = copy.deepcopy(HONEST)
    del record["metrics"]["aa.8"]
    assert rules(record) == {("aa.8", "no metric")}


def test_a_checksum_is_of_the_values_and_not_of_their_spelling() -> None:
    one = {"metric": "acc", "value": 1.0, "ci95": [0.5, 1.0], "nested": {"b": 2, "a": (1, 2.0)}}
    other = json.loads('{"nested":{"a":[1,2],"b":2},"ci95":[0.5,1],"value":1,"metric":"acc"}')
    assert checksums.of(one) == checksums.of(other)
    assert checksums.of({"metric": "x", "value": 2**70}) != checksums.of({"metric": "x", "value": 2**70 + 1})
    assert checksums.of({**other, "value": 0.9999999}) != checksums.of(one)


def test_published_numbers_are_judged_up_to_their_rounding() -> None:
    published = {"published": "50.31", "unit": "percent", "rounding": 0.0001, "value": 0.50345}
    assert rules(record_of(entry("acc", 900), {**attack("aa", 8, 503), **published})) == set()


@pytest.mark.parametrize("what", ["evals", "metrics", "checksums"])
def test_records_of_others_are_read(what: str) -> None:
    record = {**HONEST, what: None if what != "checksums" else 3}
    odd = {"metric": "x", "value": 1, "n": "many", "eps": [1], "attack": 3}
    for one in (record, {**record, "evals": [odd]}):
        consistency.findings(one)
