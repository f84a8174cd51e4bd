"""The table of an entry's fields, and what derives from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rbtools.cli.docs import pages
from rbtools.errors import RbError
from rbtools.jobs import train_test_gap
from rbtools.pages import page_content
from rbtools.records import results, schema
from rbtools.scoring import corruptions, merge

BASE = {"tool": "rb-x", "metric": "corrupt.fog.1", "corruption": "fog", "value": 0.5, "ci95": [0.4, 0.6]}


@pytest.fixture(params=["protocol", "result"])
def toy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[schema.Field]:
    """A new field, which stands in the schema and nowhere else."""
    field = schema.Field(
        "toy", request.param, "measure", "own" if request.param == "result" else "shared", "a toy"
    )
    monkeypatch.setattr(schema, "EVALS", (*schema.EVALS, field))
    caches: list[Any] = [schema.role, schema.on_page]
    for cached in caches:
        cached.cache_clear()
    yield field
    for cached in caches:
        cached.cache_clear()


def test_a_new_field_needs_the_schema_and_its_writer_alone(toy: schema.Field) -> None:
    asked = toy.role == "protocol"
    old, new = ({**BASE, "n": 4, "seconds": 1.0, "toy": number} for number in (1, 2))
    record = {"arch": {}, "metrics": {BASE["metric"]: 0.5}, "evals": [old]}
    # the same question
    if asked:
        with pytest.raises(RbError, match="toy 1 there and 2 here"):
            results.add(record, new)
    else:
        assert results.add(record, new)["evals"] == [new]
    # means of records, and of severities
    assert ("toy" in merge.merged([record, record], {})["evals"][0]) == asked
    five = [{**old, "severity": severity} for severity in range(1, 6)]
    assert ("toy" in corruptions.summary(five, None, ["fog"])[0]) == asked
    # a generalisation error
    assert ("toy" in train_test_gap._gap(old, old)) == asked
    # the leaderboard page
    protocols = page_content.TextPool()
    _, own = page_content._entry(old, protocols)
    assert ("toy" in protocols.texts()[0], "toy" in own) == (asked, not asked)
    # rb-entry(5)
    page = next(page for page in pages.pages({}) if page.name == "rb-entry")
    terms = [part for part in page.body["FIELDS"] if isinstance(part, dict)]
    assert any(part.get("toy") == "A toy." for part in terms)
