"""The score that a page begins with."""

from __future__ import annotations

from rbtools.pages import score_terms


def test_the_default_score_has_one_point_of_each_curve() -> None:
    names = [
        "acc",
        *(f"pgd20.{eps}" for eps in (1, 2, 4, 8, 16)),
        "fgsm.0.5",
        "fgsm.1",
        "fgsm.3",
        "pgd20.l2.0.5",
    ]
    names += ["corrupt.fog.3", "corrupt.snow.3", "corrupt.mean", "params"]
    records = [{"metrics": dict.fromkeys(names, 0.5)}, {"metrics": dict.fromkeys(names, 0.25)}]
    found = [term.metric for term in score_terms.score(records).terms]
    assert sorted(found) == sorted(["acc", "pgd20.8", "fgsm.1", "pgd20.l2.0.5", "corrupt.mean", "params"])
