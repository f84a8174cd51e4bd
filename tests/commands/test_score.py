"""rb-score: the composite number of a stream of records, and what the stream may hold besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests import runner
from tests.runner import Record, records

# Eighths, so that every score below is exact.
THREE = [
    {"acc": 0.875, "pgd20.8": 0.125, "seconds_per_epoch": 10},
    {"acc": 0.75, "pgd20.8": 0.625, "seconds_per_epoch": 20},
    {"acc": 0.625, "pgd20.8": 0.375, "seconds_per_epoch": 30},
]


def line(metrics: Record, **more: Any) -> str:
    return json.dumps({"schema": 1, "arch": {"name": "a"}, "metrics": metrics, **more}, separators=(",", ":"))


def run(words: str, lines: list[str]) -> Result:
    return runner.run("score", words, "".join(one + "\n" for one in lines))


def scored(words: str, *metrics: Record) -> list[Record]:
    result = run(words, [line(one) for one in metrics])
    assert result.exit_code == 0, result.stderr
    return records(result)


def scores(result: Result) -> list[float | None]:
    return [record.get("metrics", {}).get("score") for record in records(result)]


def refused(words: str, *metrics: Record) -> str:
    result = run(words, [line(one) for one in metrics])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("rb-score: error: ")
    return result.stderr.removeprefix("rb-score: error: ").rstrip("\n")


def test_a_scored_record_as_it_is_written() -> None:
    result = run("--metric acc,pgd20.8", [line(one, mine=[1]) for one in THREE])
    assert result.stdout.splitlines()[1] == (
        '{"schema":1,"arch":{"name":"a"},'
        '"metrics":{"acc":0.75,"pgd20.8":0.625,"seconds_per_epoch":20,"score":0.75},"mine":[1],'
        '"evals":[{"tool":"rb-score","metric":"score","value":0.75,'
        '"terms":[{"metric":"acc","weight":1.0,"higher":true},{"metric":"pgd20.8","weight":1.0,"higher":true}],'
        '"contributions":{"acc":0.25,"pgd20.8":0.5},"missing":"refuse",'
        '"ranges":{"acc":[0.625,0.875],"pgd20.8":[0.125,0.625]}}],'
        '"checksums":{"score":"3963b2b707f2622f"}}'
    )


def test_a_former_score_is_replaced() -> None:
    former = scored("--metric pgd20.8", *THREE)
    again = run("--metric acc", [json.dumps(one) for one in former])
    assert scores(again) == [1.0, 0.5, 0.0]
    assert [len(one["evals"]) for one in records(again)] == [1, 1, 1]


def test_a_former_score_is_no_metric_of_a_new_one() -> None:
    for words in ("", "--metric *"):
        (first, _) = scored(words, {"acc": 1, "score": 0}, {"acc": 0, "score": 1})
        assert [term["metric"] for term in first["evals"][0]["terms"]] == ["acc"]


LATE = [{"acc": 1.0}, {"acc": 0.5, "pgd20.8": 0.25}, {"acc": 0.0, "pgd20.8": 0.75}, {"pgd20.8": 0.5}, {}]


def test_missing_renormalise_scores_by_what_there_is() -> None:
    found = scored("--metric acc,pgd20.8 --missing renormalise", *LATE)
    assert [one["metrics"].get("score") for one in found] == [1.0, 0.25, 0.5, 0.5, None]
    assert found[0]["evals"][0]["contributions"] == {"acc": 1.0, "pgd20.8": None}
    assert found[4]["evals"][0]["value"] is None
    assert found[4]["evals"][0]["reason"] == "the record has none of the metrics"


def test_a_refused_score_leaves_the_file_as_it_was() -> None:
    before = "".join(line(one) + "\n" for one in LATE)
    Path("r.jsonl").write_text(before)
    assert run("--metric acc --in-place r.jsonl", []).exit_code == 2
    assert Path("r.jsonl").read_text() == before
    assert [path.name for path in Path().iterdir()] == ["r.jsonl"]


def on(dataset: str, name: str, **metrics: float) -> str:
    return json.dumps({"arch": {"name": name}, "dataset": dataset, "metrics": metrics})


# PRBench Table 4, four rows: acc, PGD-20, PR(.08), ProbAcc(.05), both GE, seconds, in percent.
TABLE_4 = {
    "erm": (94.85, 0, 76.19, 93.48, 0, 3.98, 3),
    "at-pr": (86.35, 46.53, 98.13, 98.82, 27.43, 11.81, 160),
    "trades": (83.34, 53.15, 97.74, 98.68, 16.12, 10.22, 25),
    "kl-pgd": (87.55, 48.43, 97.86, 98.73, 14.57, 7.06, 27),
}
SEVEN = ("acc", "pgd20.8", "pr.uniform.0.08", "probacc.uniform.0.0313725.0.05", "ge.pgd20.8")
SEVEN += ("ge.pr-all.uniform.0.08", "seconds_per_epoch")


@pytest.mark.parametrize(("preset", "radius"), [("prbench", "0.0313725"), ("prbench-code", "0.03")])
def test_the_preset_of_prbench(preset: str, radius: str) -> None:
    names = [name.replace("0.0313725", radius) for name in SEVEN]
    lines = [on("cifar10", "resnet18", **dict(zip(names, row, strict=True))) for row in TABLE_4.values()]
    found = records(run(f"--preset {preset}", lines))
    columns = list(zip(*TABLE_4.values(), strict=True))
    for place, record in enumerate(found):
        parts = [(c[place] - min(c)) / (max(c) - min(c)) for c in columns]
        expected = [*parts[:4], *(1 - part for part in parts[4:])]
        assert record["metrics"]["score"] == pytest.approx(sum(expected) / 7)
        assert list(record["evals"][0]["contributions"].values()) == pytest.approx(
            [part / 7 for part in expected]
        )
    assert found[0]["evals"][0]["preset"] == preset


def test_the_preset_of_prbench_on_mnist_is_at_larger_distances() -> None:
    names = ["acc", "pgd20.76.5", "pr.uniform.0.35", "probacc.uniform.0.3.0.05", "ge.pgd20.76.5"]
    names += ["ge.pr-all.uniform.0.35", "seconds_per_epoch"]
    digits = [on("mnist", "n", **dict(zip(names, row, strict=True))) for row in list(TABLE_4.values())[:3]]
    others = [on("cifar10", "n", **dict(zip(SEVEN, row, strict=True))) for row in list(TABLE_4.values())[:3]]
    result = run("--preset prbench --within dataset", [*digits, *others])
    found = records(result)
    assert scores(result)[:3] == scores(result)[3:]
    assert list(found[0]["evals"][0]["contributions"]) == names
    assert list(found[3]["evals"][0]["contributions"]) == list(SEVEN)


def test_a_preset_can_be_weighted_and_may_lack_metrics() -> None:
    some = [{"acc": 1, "pgd20.8": 0}, {"acc": 0, "pgd20.8": 1}]
    result = run("--preset prbench --weight acc=3 --missing renormalise", [line(one) for one in some])
    assert scores(result) == [0.75, 0.25]
    assert "warning: no record has 'seconds_per_epoch', which is a metric of the preset." in result.stderr
    assert "No record has the metric 'pr.uniform.0.08'." in refused("--preset prbench", *some)


def test_weights_and_directions_of_the_user() -> None:
    words = "--metric acc,mean(pgd20.*) --weight pgd20.8=3 --weight seconds_per_epoch=4"
    (first, *_) = scored(f"{words} --higher seconds_per_epoch --lower mean(pgd20.*)", *THREE)
    assert [(one["metric"], one["weight"], one["higher"]) for one in first["evals"][0]["terms"]] == [
        ("acc", 1, True),
        ("mean(pgd20.*)", 1, False),
        ("pgd20.8", 3, True),
        ("seconds_per_epoch", 4, True),
    ]


def test_a_value_that_cannot_be_calculated_has_a_reason() -> None:
    result = run("--add x=mean(fgsm.*)", [line({"acc": 1}), line({"fgsm.8": 1})])
    first, second = records(result)
    assert first["metrics"] == {"acc": 1} and second["metrics"]["x"] == 1
    assert first["evals"][0]["value"] is None
    assert first["evals"][0]["reason"] == "No metric matches 'fgsm.*'. Metrics: acc."


def test_add_does_not_overwrite_what_was_made_otherwise() -> None:
    result = run("--add 'acc=pgd20.8 * 2'", [line(THREE[0])])
    (record,) = records(result)
    assert record["metrics"] == THREE[0]
    assert record["error"]["message"].startswith("The record already has 'acc', which was measured.")
    result = run("--add 'acc=pgd20.8 * 2' --force", [line(THREE[0])])
    assert json.loads(result.stdout)["metrics"]["acc"] == 0.25
    again = run("--add 'acc=pgd20.8 * 2'", result.stdout.splitlines())
    assert again.stdout == result.stdout
