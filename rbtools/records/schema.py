"""The fields of a record, of its `train` section and of an entry of `evals`, as `fields.tsv` lists them.

The table determines which entries are comparable (`results.protocol`), and the fields of merged records, of
means over corruptions and of generalisation errors. It also determines which fields the leaderboard page
stores once for many records, and the lists in rb-record(5) and rb-entry(5).

The name of a result, a cost or a label occurs twice: in the table, and in the code that computes it. The
settings of a spec are protocol, and its findings are not (tests/evaluation/test_keys.py checks this). If a
protocol field does not follow from the fields of the result's key, it must also be added to the key
(`Spec.column`); otherwise the store returns entries without this field. Earlier records and stores lack a new
protocol field. If two entries differ in the field, the new entry is an error (`results.refuse`), and
rb-verify does not compare them. Therefore leave out the field in key and entry if it has the value of all
earlier results, as `registry.param` does for an `optional` option.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple


class Field(NamedTuple):
    """One field, its role, and its line in rb-record(5) or rb-entry(5).

    If `role` is `protocol`, the field decides whether two results are comparable (in a record and in `train`:
    whether two records describe the same model). A `result` is the outcome, a `cost` is the time and work,
    and a `label` is any other field. For a field of an entry, `group` is its heading in rb-entry(5). `page`
    says how the page of the leaderboard stores it: once for all records with the same value (`shared`), with
    each record (`own`), or, for long fields, not at all (`omitted`).
    """

    name: str
    role: str
    group: str
    page: str
    doc: str


def _fields(part: str) -> tuple[Field, ...]:
    rows = (line.split("\t") for line in _LINES)
    return tuple(Field(*cells) for of, *cells in rows if of == part)


_LINES = Path(__file__).with_name("fields.tsv").read_text("utf-8").splitlines()
RECORD, TRAIN, EVALS = map(_fields, ("record", "train", "entry"))
_INTERVAL = re.compile(r"ci\d")  # ci95, ci99.9


def is_interval(name: str) -> bool:
    """True if a field of an entry is an interval of the value, such as `ci95` or `ci99.9`."""
    return _INTERVAL.match(name) is not None


@cache
def role(name: str, of: Literal["record", "train", "entry"] = "entry") -> str:
    """Return the role of a field. Fields outside the table, such as options of methods, are protocol."""
    table = {"record": RECORD, "train": TRAIN, "entry": EVALS}[of]
    roles = {field.name: field.role for field in table}
    return "result" if of == "entry" and is_interval(name) else roles.get(name, "protocol")


@cache
def of_images() -> frozenset[str]:
    """The fields of an entry that identify the evaluated images."""
    return frozenset(field.name for field in EVALS if field.group == "images")


@cache
def on_page(how: str) -> tuple[str, ...]:
    """Return the fields of an entry that the leaderboard page stores as `own`, or leaves out as `omitted`."""
    return tuple(field.name for field in EVALS if field.page == how)
