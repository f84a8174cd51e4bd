"""Lists of expressions: which commas separate."""

from __future__ import annotations

import pytest

from rbtools.errors import RbError
from rbtools.records import expr


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("acc", ["acc"]),
        ("acc, fgsm.*", ["acc", "fgsm.*"]),
        ("mean(a, b), c", ["mean(a, b)", "c"]),
        ("count(max(a, b), c):2,d", ["count(max(a, b), c):2", "d"]),
        ("train.method in ['a', 'b'], c", ["train.method in ['a', 'b']", "c"]),
        ("x == 'a, b)', c", ["x == 'a, b)'", "c"]),
        (" , a,, ", ["a"]),
        ("a), b", ["a)", "b"]),
        ("", []),
    ],
)
def test_items(text: str, items: list[str]) -> None:
    assert expr.items(text) == items


@pytest.mark.parametrize("text", ["acc", "pgd20.*", "*", "apgd-ce.8", "arch.name"])
def test_bare(text: str) -> None:
    assert expr.is_bare(text)


@pytest.mark.parametrize("text", ["acc - 1", "mean(*)", "8", "'acc'", "and", "", "my metric!"])
def test_not_bare(text: str) -> None:
    assert not expr.is_bare(text)


def test_number_is_none_where_there_is_none() -> None:
    compiled = expr.compile("acc + fgsm.8")
    assert compiled.number({"metrics": {"acc": 1, "fgsm.8": 2}}) == 3
    assert compiled.number({"metrics": {"acc": 1}}) is None
    assert compiled.number({"metrics": {"acc": 1, "fgsm.8": None}}) is None
    assert expr.compile("acc").number({"metrics": {"acc": None}}) is None
    with pytest.raises(RbError, match="'acc > 0' is true"):
        expr.compile("acc > 0").number({"metrics": {"acc": 1}})
