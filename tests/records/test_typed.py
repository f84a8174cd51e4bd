"""The typed dictionaries of records name the fields of the schema."""

from __future__ import annotations

from typing import Any

import pytest

from rbtools.records import schema, typed


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(typed.Record, schema.RECORD), (typed.Train, schema.TRAIN), (typed.Entry, schema.EVALS)],
)
def test_each_field_of_the_schema_has_a_type(kind: Any, fields: tuple[schema.Field, ...]) -> None:
    assert list(kind.__annotations__) == [field.name for field in fields]
