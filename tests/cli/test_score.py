"""rb-score: the composite number of a stream of records, and what the stream may hold besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rbtools.cli.score import main

Record = dict[str, Any]
# Eighths, so that every score below is exact.
THREE = [
    {"acc": 0.875, "pgd20.8": 0.125, "seconds_per_epoch": 10},
    {"acc": 0.75, "pgd20.8": 0.625, "seconds_per_epoch": 20},
    {"acc": 0.625, "pgd20.8": 0.375, "seconds_per_epoch": 30},
]
FAILED = '{"schema":1,"arch":{"name":"x"},"error":{"tool":"rb-train","message":"no"},"metrics":{"acc":9}}'


def line(metrics: Record, **more: Any) -> str:
    return json.dumps({"schema": 1, "arch": {"name": "a"}, "metrics": metrics, **more}, separators=(",", ":"))


def run(arguments: list[str], lines: list[str]) -> Result:
    return CliRunner().invoke(main, arguments, input="".join(one + "\n" for one in lines))


def scored(arguments: list[str], *metrics: Record) -> list[Record]:
    result = run(arguments, [line(one) for one in metrics])
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(text) for text in result.stdout.splitlines()]


def scores(arguments: list[str], *metrics: Record) -> list[float | None]:
    return [record["metrics"].get("score") for record in scored(arguments, *metrics)]


def refused(arguments: list[str], *metrics: Record) -> str:
    result = run(arguments, [line(one) for one in metrics])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("rb-score: error: ")
    return result.stderr.removeprefix("rb-score: error: ").rstrip("\n")


# --- the number -----------------------------------------------------------------------------------


def test_a_scored_record_as_it_is_written() -> None:
    result = run(["--metric", "acc,pgd20.8"], [line(one, mine=[1]) for one in THREE])
    assert result.stdout.splitlines()[1] == (
        '{"schema":1,"arch":{"name":"a"},'
        '"metrics":{"acc":0.75,"pgd20.8":0.625,"seconds_per_epoch":20,"score":0.75},"mine":[1],'
        '"evals":[{"tool":"rb-score","metric":"score","value":0.75,'
        '"terms":[{"metric":"acc","weight":1.0,"higher":true},{"metric":"pgd20.8","weight":1.0,"higher":true}],'
        '"contributions":{"acc":0.25,"pgd20.8":0.5}}]}'
    )


def test_the_mean_of_scaled_metrics() -> None:
    assert scores(["--metric", "acc,pgd20.8"], *THREE) == [0.5, 0.75, 0.25]
    assert scores(["--metric", "acc", "--metric", "pgd20.8"], *THREE) == [0.5, 0.75, 0.25]


def test_weights() -> None:
    assert scores(["--metric", "acc,pgd20.8:3"], *THREE) == [0.25, 0.875, 0.375]


def test_less_is_better_where_it_is() -> None:
    assert scores(["--metric", "seconds_per_epoch"], *THREE) == [1.0, 0.5, 0.0]
    assert scores(["--metric", "seconds_per_epoch:higher"], *THREE) == [0.0, 0.5, 1.0]
    assert scores(["--metric", "acc:2:lower"], *THREE) == [0.0, 0.5, 1.0]
    assert scores(["--metric", "ge.acc"], {"ge.acc": -0.5}, {"ge.acc": 0.5}) == [1.0, 0.0]


def test_equal_values_are_half() -> None:
    assert scores(["--metric", "acc"], {"acc": 0.3}, {"acc": 0.3}) == [0.5, 0.5]


def test_without_metrics_all_that_every_record_has() -> None:
    two = [{"acc": 1, "only": 3}, {"acc": 0, "pgd20.8": 1, "score": 0.9}]
    (first, second) = scored([], *two)
    assert [term["metric"] for term in first["evals"][0]["terms"]] == ["acc"]
    assert (first["metrics"]["score"], second["metrics"]["score"]) == (1.0, 0.0)


def test_a_former_score_is_replaced() -> None:
    again = scored(["--metric", "acc"], *[one["metrics"] for one in scored(["--metric", "pgd20.8"], *THREE)])
    assert [one["metrics"]["score"] for one in again] == [1.0, 0.5, 0.0]
    result = run(["--metric", "acc"], [json.dumps(one) for one in scored(["--metric", "pgd20.8"], *THREE)])
    assert [len(json.loads(text)["evals"]) for text in result.stdout.splitlines()] == [1, 1, 1]


def test_globs_stand_for_all_that_match() -> None:
    some = [{"acc": 0.5, "pgd20.4": 1, "pgd20.8": 0.5}, {"acc": 1, "pgd20.4": 0, "pgd20.8": 0}]
    by_glob = scored(["--metric", "acc,pgd20.*:2"], *some)
    assert [(term["metric"], term["weight"]) for term in by_glob[0]["evals"][0]["terms"]] == [
        ("acc", 1.0),
        ("pgd20.4", 2.0),
        ("pgd20.8", 2.0),
    ]
    assert [one["metrics"]["score"] for one in by_glob] == [0.8, 0.2]
    own_weight = scored(["--metric", "pgd20.*,pgd20.8:3"], *some)
    assert {t["metric"]: t["weight"] for t in own_weight[0]["evals"][0]["terms"]} == {
        "pgd20.4": 1,
        "pgd20.8": 3,
    }


def test_a_glob_leaves_a_former_score_out() -> None:
    (first, _) = scored(["--metric", "*"], {"acc": 1, "score": 0}, {"acc": 0, "score": 1})
    assert [term["metric"] for term in first["evals"][0]["terms"]] == ["acc"]


# --- records that lack a metric -------------------------------------------------------------------

LATE = [{"acc": 1.0}, {"acc": 0.5, "pgd20.8": 0.25}, {"acc": 0.0, "pgd20.8": 0.75}, {"pgd20.8": 0.5}, {}]


def test_a_record_that_lacks_a_metric_is_refused() -> None:
    assert refused(["--metric", "acc,pgd20.8"], *LATE) == (
        "2 of 5 records have no 'acc' (the first is record 4). Evaluate them, or say --missing renormalise"
        " (score them by the metrics they have) or --missing worst (count it as the lowest)."
    )


def test_missing_worst_counts_as_the_lowest() -> None:
    assert scores(["--metric", "acc,pgd20.8", "--missing", "worst"], *LATE) == [0.5, 0.25, 0.5, 0.25, 0.0]


def test_missing_renormalise_scores_by_what_there_is() -> None:
    found = scored(["--metric", "acc,pgd20.8", "--missing", "renormalise"], *LATE)
    assert [one["metrics"].get("score") for one in found] == [1.0, 0.25, 0.5, 0.5, None]
    assert found[0]["evals"][0]["contributions"] == {"acc": 1.0, "pgd20.8": None}
    assert found[4]["evals"][0]["value"] is None
    assert found[4]["evals"][0]["reason"] == "the record has none of the metrics"


def test_a_null_is_a_missing_value() -> None:
    assert scores(["--metric", "acc", "--missing", "worst"], {"acc": None}, {"acc": 1}, {"acc": 3}) == [
        0,
        0,
        1,
    ]
    assert "1 of 2 records have no 'acc'" in refused(["--metric", "acc"], {"acc": None}, {"acc": 1})


# --- what is in the stream besides ----------------------------------------------------------------


def test_failed_records_and_bad_lines_keep_their_places() -> None:
    lines = [line(THREE[0]), FAILED, "hello", line(THREE[1]), line(THREE[2])]
    result = run(["--metric", "acc"], lines)
    assert result.exit_code == 1
    assert result.stderr.startswith("rb-score: error: line 3 is not JSON")
    out = [json.loads(text) for text in result.stdout.splitlines()]
    assert [one.get("metrics", {}).get("score") for one in out] == [1.0, None, None, 0.5, 0.0]
    assert result.stdout.splitlines()[1] == FAILED
    assert out[2]["error"]["text"] == "hello"


def test_only_failed_records_pass_as_they_are() -> None:
    result = run(["--metric", "acc"], [FAILED, FAILED])
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{FAILED}\n{FAILED}\n", "")


def test_retry_errors_scores_what_failed_before() -> None:
    result = run(["--metric", "acc", "--retry-errors"], [line({"acc": 0}), FAILED])
    out = [json.loads(text) for text in result.stdout.splitlines()]
    assert [one["metrics"]["score"] for one in out] == [0.0, 1.0]
    assert "error" not in out[1]


def test_numbers_of_other_tools_come_through_as_they_were() -> None:
    text = '{"arch":{},"metrics":{"acc":1},"big":123456789012345678901234567890,"spaced": 1.50}'
    out = run(["--metric", "acc"], [text]).stdout
    assert '"big":123456789012345678901234567890,"spaced":1.5,' in out


def test_in_place_writes_the_file_and_nothing_else() -> None:
    Path("r.jsonl").write_text("".join(line(one) + "\n" for one in THREE))
    result = CliRunner().invoke(main, ["--metric", "acc", "--in-place", "r.jsonl"])
    assert (result.exit_code, result.stdout) == (0, "")
    kept = [json.loads(text) for text in Path("r.jsonl").read_text().splitlines()]
    assert [one["metrics"]["score"] for one in kept] == [1.0, 0.5, 0.0]


def test_a_refused_score_leaves_the_file_as_it_was() -> None:
    before = "".join(line(one) + "\n" for one in LATE)
    Path("r.jsonl").write_text(before)
    assert CliRunner().invoke(main, ["--metric", "acc", "--in-place", "r.jsonl"]).exit_code == 2
    assert Path("r.jsonl").read_text() == before
    assert [path.name for path in Path().iterdir()] == ["r.jsonl"]


def test_verbose_says_what_was_scored_by() -> None:
    result = run(["--metric", "acc:2,seconds_per_epoch", "-v"], [line(one) for one in THREE])
    assert result.stderr == (
        "rb-score: scored by acc (weight 2, higher is better),"
        " seconds_per_epoch (weight 1, lower is better).\n"
    )


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            "pgd20.9",
            "No record has the metric 'pgd20.9'. Did you mean 'pgd20.8'? They have: acc, pgd20.8, seconds",
        ),
        ("fgsm.*", "No record has the metric 'fgsm.*'."),
        ("acc:0", "The weight of 'acc' is 0. It must be above 0"),
        ("acc:-1", "The weight of 'acc' is -1. It must be above 0"),
        ("acc:nan", "The weight of 'acc' is nan. It must be above 0"),
        (
            "acc:lowr",
            "'lowr' in the metric 'acc:lowr' is neither a weight nor a direction. Did you mean 'lower'",
        ),
        ("acc,acc:2", "The score has 'acc' twice."),
        (",", "A score needs at least one metric."),
        (":2", "A metric of the score has no name."),
    ],
)
def test_metrics_that_cannot_be_scored(metric: str, message: str) -> None:
    assert message in refused(["--metric", metric], *THREE)


def test_no_common_metric() -> None:
    assert refused([], {"acc": 1}, {"fgsm.8": 1}) == (
        "There is no metric that all 2 records have (they have: acc, fgsm.8). Evaluate them alike, or name"
        " metrics with --metric and say --missing renormalise."
    )
    assert "(they have: none at all)" in refused([], {}, {})


def test_a_number_too_far_to_scale() -> None:
    assert "too far to scale. Is it a metric?" in refused(
        ["--metric", "acc"], {"acc": -1.7e308}, {"acc": 1.7e308}
    )


def test_an_integer_beyond_64_bits_is_a_number() -> None:
    assert scores(["--metric", "acc"], {"acc": 10**30}, {"acc": 0}, {"acc": 10**30 // 2}) == [1.0, 0.0, 0.5]
