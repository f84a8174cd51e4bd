"""Unions of metrics against an enumeration in NumPy, what is refused, and who broke what."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from rbtools.errors import RbError
from rbtools.proportions import wilson
from rbtools.records import answers, consistency, expr, results
from rbtools.scoring import union
from rbtools.scoring.derived import derived, explained
from tests.runner import model

NAMES = ("acc", "pgd20.8", "aa.8", "aa.l2.0.5", "corrupt.fog.3", "corrupt.snow.3")


def entry(name: str, right: np.ndarray, examples: str = "abc", **more: Any) -> dict[str, Any]:
    value = {"n": len(right), "value": float(right.mean())}
    return {"metric": name, **value, answers.FIELD: answers.packed(right, examples), **more}


def made(seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """A record with made-up answers, and whether each image counts: (6, N)."""
    rng = np.random.default_rng(seed)
    right = rng.random((len(NAMES), int(rng.integers(1, 300)))) < rng.uniform(0.3, 1, (len(NAMES), 1))
    return model("a", *map(entry, NAMES, right)), right


@pytest.mark.parametrize("seed", range(50))
def test_unions_and_what_explains_them_are_those_of_an_enumeration(seed: int) -> None:
    record, right = made(seed)
    assert expr.compile("union(pgd20.8, aa.*)")(record) == pytest.approx(right[1:4].all(0).mean())
    gap = right[0].mean() - right[1:3].all(0).mean()
    assert expr.compile("acc - union(*.8)")(record) == pytest.approx(gap)
    assert expr.compile("union(*)")(record) <= expr.compile("min(*)")(record)
    whole = union.union_of(record, ["*"])
    about = union.explained(whole)
    broken = ~right
    assert about["broken"] == dict(zip(NAMES, broken.sum(1).tolist(), strict=True))
    alone = [int((broken[part] & (broken.sum(0) == 1)).sum()) for part in range(len(NAMES))]
    assert list(about["only"].values()) == alone
    assert sum(gain for _, gain in about["gain"]) == broken.any(0).sum()
    sets = (
        some for size in range(len(NAMES) + 1) for some in itertools.combinations(range(len(NAMES)), size)
    )
    fewest = next(len(some) for some in sets if (broken[list(some)].any(0) == broken.any(0)).all())
    smallest = [NAMES.index(name) for name in about["smallest"]]
    assert len(smallest) == fewest and "proven" not in about
    assert (broken[smallest].any(0) == broken.any(0)).all()


def test_the_smallest_set_is_found_where_taking_the_largest_first_needs_more() -> None:
    broken = np.zeros((3, 6), bool)
    broken[0, 1:5] = True  # the largest, but the other two cover all
    broken[1, :3] = True
    broken[2, 3:] = True
    order = [part for part, gain in union.gains(broken) if gain]
    assert order == [0, 1, 2]
    assert union.smallest_set(broken) == ([1, 2], True)


def test_a_union_is_a_metric_with_its_interval_and_answers() -> None:
    record, right = made(3)
    added = derived("worst=union(aa.8, corrupt.*)").added(record)
    made_entry = results.last_entry(added, "worst")
    survived = right[[2, 4, 5]].all(0)
    n, count = len(survived), int(survived.sum())
    assert (made_entry["n"], made_entry["value"]) == (n, count / n)
    assert made_entry["ci95"] == list(wilson(count, n))
    assert list(made_entry["union"]) == ["aa.8", "corrupt.fog.3", "corrupt.snow.3"]
    nested = derived("all=union(worst, acc)").added(added)
    assert nested["metrics"]["all"] == pytest.approx((survived & right[0]).mean())
    assert not list(consistency.findings(nested))
    assert explained("union(acc, aa.8)").added(record)["evals"][-1]["explained"]["gain"]


def reason(record: dict[str, Any], expression: str) -> str:
    with pytest.raises(RbError) as wrong:
        expr.compile(expression)(record)
    return str(wrong.value)


def test_what_is_no_part_of_a_union_is_refused_by_its_name() -> None:
    right = np.arange(8) < 6
    record = model(
        "a",
        entry("acc", right),
        entry("train.acc", right, "other", split="train"),
        entry("fgsm.8", right[:4]),
        entry("cert.linf.1", right, on="init"),
        {"metric": "pgd20.8", "value": 0.5, "n": 8},
        {"metric": "aa.8", "value": 0.5, "n": 8, "two_phase": {}},
        {"metric": "pr.uniform.0.1", "value": 0.5, "n": 8},
        {"metric": "aa.4", "value": 0.5, "records": 3},
        {"metric": "seconds_per_epoch", "value": 2},
        {"metric": "lost", "value": 0.25, "expression": "1-acc"},
    )
    for expression, said in {
        "union(acc, train.acc)": "have different examples: split None and train.",
        "union(acc, fgsm.8)": "have 8 and 4 images. Use union.common(...) for the 4",
        "union(cert.linf.1, acc)": "have different weights: init and None",
        "union(acc, pgd20.8)": "Evaluate again",
        "union(acc, aa.8)": "not all images were attacked",
        "union(acc, pr.uniform.0.1)": "a share of noisy copies",
        "class.min(aa.4)": "a mean over records",
        "union(acc, lost)": "lost is computed from other metrics: 1-acc.",
        "union(acc, seconds_per_epoch)": "not a share of images",
        "union(pr.*)": "pr.* does not match a share of images: pr.uniform.0.1.",
    }.items():
        assert said in reason(record, expression)
    assert expr.compile("union.common(acc, fgsm.8)")(record) == 1.0
    assert results.last_entry(derived("u=union.common(acc,fgsm.8)").added(record), "u")["n"] == 4
    assert expr.compile("union(*)")(model("a", *record["evals"][:1], *record["evals"][6:7])) == 0.75


def test_edited_unions_and_answers_are_named() -> None:
    record, _ = made(5)
    added = derived("worst=union(acc, aa.8)").added(record)
    worst = added["evals"][-1]
    higher = {**worst, "value": 1.0, "answers": answers.packed(np.ones(worst["n"], bool), "abc")}
    cut = {**worst, "answers": {**worst["answers"], "bits": worst["answers"]["bits"][:4]}}
    for edited, rule, said in (
        (higher, "parts", "above its smallest part|differs from the answers"),
        (cut, "answers", "The answers of worst are damaged"),
    ):
        findings = consistency.findings({**added, "evals": [*record["evals"], edited]})
        assert re.search(said, {one.rule: one.says for one in findings}[rule])
