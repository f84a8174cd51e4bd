"""rb-verify: true claims match, false ones differ, on all images and on some; undecidable ones say so."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

import rbtools
from rbtools.cli.output import RecordWriter
from rbtools.execution.run import Run
from rbtools.jobs.evaluate_record import EvaluateJob
from rbtools.probabilistic import intervals
from rbtools.records import checksums
from tests import runner
from tests.runner import Record, records


def run(words: str, *given: Record) -> Result:
    return runner.run("verify", words, given)


def entries(result: Result) -> dict[str, Record]:
    (record,) = records(result)
    found: dict[str, Record] = record["verify"]["entries"]
    return found


def verdicts(result: Result) -> dict[str, str]:
    return {metric: one["verdict"] for metric, one in entries(result).items()}


def all_match(record: Record) -> set[str]:
    """The metrics of a record of which a result of each was measured again and is the same."""
    told = verdicts(run("", record))
    assert told.pop("seconds_per_epoch", "cannot be told") == "cannot be told"
    assert set(told.values()) == {"match"}, told
    return set(told)


@pytest.fixture
def measured(known: dict[str, Record]) -> Record:
    """A record with results of several tools, of a network whose behaviour is known."""
    record = rbtools.attack(known["erm"], "pgd", eps=[8, 16], steps=3, n=60)
    record = rbtools.pr(record, gamma=0.1, rho=0.05, samples=5, n=60)
    record = rbtools.corrupt(record, "contrast", severity=2, n=60)
    return rbtools.score([record], add=["drop=acc - pgd3.16"])[0]


def claimed(record: Record, metric: str, more: int) -> Record:
    """The record with `more` images added to a claim, and consistent other fields."""
    entry = runner.entry(record, metric)
    right, n = round(entry["value"] * entry["n"]) + more, entry["n"]
    record = edited(record, metric, value=right / n, ci95=list(intervals.wilson(right, n)))
    record["checksums"][metric] = checksums.of(runner.entry(record, metric))
    return record


def edited(record: Record, metric: str, **fields: Any) -> Record:
    """The record with other fields in the entry of a metric, and its value in metrics."""
    record = copy.deepcopy(record)
    entry = runner.entry(record, metric)
    entry |= fields
    record["metrics"][metric] = entry["value"]
    return record


def test_true_claims_match(measured: Record) -> None:
    assert {"acc", "pgd3.8", "pr.uniform.0.1", "drop"} <= all_match(measured)
    result = run("", measured)
    assert result.exit_code == 0 and json.loads(result.stdout)["metrics"] == measured["metrics"]


def test_a_false_claim_differs_with_status_1(measured: Record) -> None:
    result = run("", claimed(measured, "pgd3.16", 1))
    assert result.exit_code == 1
    assert verdicts(result)["pgd3.16"] == "differs" and verdicts(result)["pgd3.8"] == "match"
    (line,) = [line for line in result.stderr.splitlines() if "pgd3.16  " in line and "differs" in line]
    assert "line 1 (" in line
    counts = Counter(verdicts(result).values())
    words = f"{counts['match']} match, {counts['differs']} differ, {counts['cannot be told']} cannot be told."
    assert words in result.stderr


def test_a_random_part_of_the_images_and_of_the_entries(measured: Record) -> None:
    result = run("--n 40 --sample 4 --seed 3", measured)
    told = entries(result)
    assert result.exit_code == 0 and len(told) == 4
    assert {one["n"] for one in told.values() if "p" in one and one["n"] != 60} <= set(range(41))
    again = run("--n 40 --sample 4 --seed 3", measured)
    assert json.loads(again.stdout) == json.loads(result.stdout)


def test_a_large_lie_shows_on_a_part_of_the_images(measured: Record) -> None:
    lie = claimed(measured, "corrupt.contrast.2", -40)
    told = run("--n 30", lie)
    assert told.exit_code == 1 and verdicts(told)["corrupt.contrast.2"] == "differs"


KINDS: dict[str, Callable[[Record], Record]] = {
    "distances, whose step has no unit": lambda record: rbtools.attack(record, "fmn", eps=8, n=20, steps=20),
    "gap": lambda record: rbtools.ge(record, "attack", "pgd", eps=8, steps=2, n=20, n_train=30),
    "gap of means": lambda record: rbtools.ge(record, "corrupt", "contrast", severity="1-5", n=20),
    "gap of pr": lambda record: rbtools.ge(record, "pr", gamma=0.1, samples=3, n=20),
    "gap of losses": lambda record: rbtools.ge(record, "loss", "pgd", eps=8, steps=2, n=20),
    "ladder": lambda record: rbtools.attack(record, "pgd", eps=[2, 8, 16], steps=2, ladder=True, n=20),
    "train": lambda record: rbtools.attack(record, "fgsm", eps=8, n=20, split="train"),
    "curve": lambda record: rbtools.curve(record, eps=[0, 8, 16], queries=40, n=10),
    "decided": lambda record: rbtools.pr(record, gamma=0.2, rho=[0.1, 0.2], samples=9, only="probacc", n=20),
    "adaptive": lambda record: rbtools.pr(record, gamma=0.2, rho=0.3, samples=60, sampling="adaptive", n=20),
    "rare": lambda record: rbtools.pr(record, gamma=0.2, sampling="rare", particles=20, moves=1, runs=2, n=2),
    "certified": lambda record: rbtools.certify(record, "smooth", eps=[0, 0.1], samples=200, select=9, n=5),
    "certified list": lambda record: rbtools.certify(
        record, "smooth", eps=[0, 0.1, 0.25], samples=200, select=9, n=5, adaptive=True, detail=True
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_each_tool_writes_is_measured_again(kind: str, known: dict[str, Record]) -> None:
    assert all_match(KINDS[kind](known["erm"]))


def test_a_result_under_a_name_of_the_users_own(known: dict[str, Record]) -> None:
    record = rbtools.attack(known["erm"], "pgd", eps=16, steps=3, n=30)
    record = rbtools.attack(record, "pgd", eps=16, steps=3, restarts=2, n=30, **{"as": "mine"})
    assert {verdicts(run("", record))[name] for name in ("mine", "pgd3.16")} == {"match"}
    assert verdicts(run("", claimed(record, "mine", 1)))["mine"] == "differs"


def test_a_record_without_a_checkpoint(measured: Record) -> None:
    record = {name: value for name, value in measured.items() if name != "checkpoint"}
    result = run("", record)
    reason = entries(result)["acc"]["reason"]
    assert reason.startswith("the record has no checkpoint: name its file with")
    assert result.exit_code == 0 and "1 match, 0 differ," in result.stderr  # an expression needs no network
    bare = {**record, "evals": [one for one in record["evals"] if one["metric"] == "acc"]}
    bare |= {"metrics": {"acc": record["metrics"]["acc"]}, "checksums": {"acc": record["checksums"]["acc"]}}
    assert run("", bare).exit_code == 1  # nothing was verified
    lines = [line for line in result.stderr.splitlines() if "the record has no checkpoint" in line]
    assert len(lines) == 1 and "acc, " in lines[0] and "pgd3.8" in lines[0]


@pytest.mark.parametrize(
    ("metric", "fields", "reason"),
    [
        ("pgd3.8", {"n": 6000}, "355 such images"),
        ("pgd3.8", {"attack": "mystery"}, ""),
        ("pgd3.8", {"steps": {}}, ""),
        ("pgd3.8", {"norm": []}, ""),
        ("pr.uniform.0.1", {"n": []}, ""),
    ],
)
def test_a_setting_that_cannot_be_leaves_the_other_results_their_verdicts(
    metric: str, fields: Record, reason: str, measured: Record
) -> None:
    result = run("", {**edited(measured, metric, **fields), "checksums": {}})
    assert "Traceback" not in result.stderr
    told = verdicts(result)
    assert (told[metric] == "cannot be told" or reason) and told["acc"] == "match"
    assert reason in entries(result)[metric]["reason"]


def test_measures_are_measured_again(known: dict[str, Record]) -> None:
    record = rbtools.measure(known["erm"], "naswot,margin,synflow", batches=2, batch_size=10, on="auto")
    record = rbtools.measure(record, "hessian", wrt="both", batches=1, batch_size=5, probes=2, seed=3)
    measures = {"naswot", "margin.clean", "margin.robust.pgd.8", "synflow", "hessian.weight.trace"}
    assert measures <= all_match(record)
    value = record["metrics"]["margin.robust.pgd.8"]
    lie = run("--sample 99", edited(record, "margin.robust.pgd.8", value=value + 0.5))
    assert lie.exit_code == 1 and verdicts(lie)["margin.robust.pgd.8"] == "differs"


def test_a_measure_of_fresh_weights_needs_no_checkpoint(known: dict[str, Record]) -> None:
    bare = {name: value for name, value in known["erm"].items() if name in ("arch", "dataset", "schema")}
    record = rbtools.measure(bare, "synflow")
    assert verdicts(run("", record)) == {"synflow": "match"}
    assert verdicts(run("", edited(record, "synflow", value=1.0))) == {"synflow": "differs"}


def test_the_checklist_is_tested_again(known: dict[str, Record]) -> None:
    record = rbtools.check(known["erm"], eps=16, steps=3, queries=20, samples=3, n=20)
    told = entries(run("", record))
    assert {one["verdict"] for one in told.values()} == {"match", "cannot be told"}
    assert told["obfuscation.failed"]["test"] == "each test holds or fails as before"
    lie = edited(record, "obfuscation.failed", value=record["metrics"]["obfuscation.failed"] + 1)
    assert verdicts(run("", lie))["obfuscation.failed"] == "differs"
    less = {**record, "evals": [one for one in record["evals"] if one["metric"] != "square.16"]}
    assert verdicts(run("", less))["obfuscation.failed"] == "cannot be told"


def test_a_transfer_is_measured_again_from_the_model_that_its_entry_names(known: dict[str, Record]) -> None:
    record = rbtools.attack(known["erm"], "transfer", from_=known["pgd"], eps=[16], steps=3, n=40)
    (entry,) = [one for one in record["evals"] if one["metric"].startswith("transfer")]
    assert entry["source"] == known["pgd"]["checkpoint"] and "arch" in entry["source_model"]
    assert verdicts(run("", record))[entry["metric"]] == "match"
    part = run("--n 30", claimed(record, entry["metric"], 40 - round(entry["value"] * 40)))
    assert verdicts(part)[entry["metric"]] == "differs"
    old = copy.deepcopy(record)
    for one in old["evals"]:
        one.pop("source_model", None)
    result = entries(run("", old))[entry["metric"]]
    assert result["verdict"] == "cannot be told" and "--from" in result["reason"]


def test_a_transfer_from_several_models_is_measured_again(trained: dict[str, Record]) -> None:
    how: dict[str, Any] = {"attack": "mi-fgsm", "eps": 32, "steps": 2, "n": 40}
    record = rbtools.transfer(trained["erm"], [trained["pgd"], trained["erm"]], **how)
    (entry,) = [one for one in record["evals"] if one["metric"].startswith("transfer")]
    assert set(entry["source"]) == {trained["pgd"]["checkpoint"], trained["erm"]["checkpoint"]}
    assert verdicts(run("", record))[entry["metric"]] == "match"
    old = copy.deepcopy(record)
    for one in old["evals"]:
        if "source_model" in one:
            one["source_model"][one["source"].index(trained["pgd"]["checkpoint"])] = None
    result = entries(run("", old))[entry["metric"]]
    assert result["verdict"] == "cannot be told" and "--from" in result["reason"]


def test_a_score_is_recomputed_from_its_ranges(measured: Record) -> None:
    other = copy.deepcopy(measured)
    other["checkpoint"] = "sha256:" + "0" * 64
    other["metrics"] = {name: value / 2 for name, value in measured["metrics"].items()}
    del other["evals"], other["checksums"]
    with pytest.warns(UserWarning, match="min-max of two records"):
        record = rbtools.score([measured, other], metric=["acc,pgd3.8:2"])[0]
    assert verdicts(run("", record))["score"] == "match"
    lie = run("", edited(record, "score", value=record["metrics"]["score"] - 0.1))
    assert verdicts(lie)["score"] == "differs"
    better = run("", edited(record, "pgd3.8", value=record["metrics"]["pgd3.8"] / 2))
    assert verdicts(better)["score"] == "differs"  # the metric that it is made of was changed


def test_an_estimate_of_two_phases_is_measured_again(known: dict[str, Record]) -> None:
    record = rbtools.attack(known["erm"], "pgd", eps=[8], steps=3, n=60, two_phase=10, screen_steps=2)
    (entry,) = [one for one in record["evals"] if "two_phase" in one]
    assert verdicts(run("", record))[entry["metric"]] == "match"
    lie = edited(record, entry["metric"], value=entry["value"] - 0.2)
    assert verdicts(run("", lie))[entry["metric"]] == "differs"


def test_a_terminal_gets_a_table_and_a_pipe_the_record(
    measured: Record, monkeypatch: pytest.MonkeyPatch
) -> None:

    lie = claimed(measured, "pgd3.16", 9)
    monkeypatch.setattr(RecordWriter, "is_terminal", lambda self: True)
    monkeypatch.setattr(RecordWriter, "width", lambda self: 100)
    result = run("", {**lie, "arch": {**lie["arch"], "name": "a\x1b[31mb"}})
    table = result.stdout
    assert "0 of 60 differ" in table and "9 of 60 differ" in table and "test" in table.splitlines()[1]
    assert "differs" in table and "match" in table and "\x1b[31m" not in table
    assert "seconds_per_epoch: durations differ from run to run" in table
    assert not any(line.startswith("{") for line in table.splitlines())
    assert "pgd3.16" in result.stderr and "differs" in result.stderr


def test_inconsistent_needs_no_network(measured: Record) -> None:
    record = {**measured, "checkpoint": "sha256:" + "0" * 64}
    assert run("--inconsistent", record).exit_code == 0
    record["metrics"] = {**record["metrics"], "acc": 0.999}
    result = run("--inconsistent", record)
    assert result.exit_code == 1 and "acc is 0.999 in metrics" in result.stderr
    rules = [one["rule"] for one in json.loads(result.stdout)["verify"]["inconsistent"]]
    assert rules == ["edited"]
    assert run("--inconsistent --sample 2", record).exit_code == 2
    assert run("--inconsistent --n 2", record).exit_code == 2


def test_old_records_are_told_apart(measured: Record) -> None:
    record = {name: value for name, value in measured.items() if name != "checksums"}
    result = run("--inconsistent", record)
    assert result.exit_code == 0 and "results without a checksum" in result.stderr
    assert "acc" in json.loads(result.stdout)["verify"]["without_checksum"]


def test_workers_measure_too(trained: dict[str, Record]) -> None:
    record = rbtools.attack(trained["erm"], "fgsm", n=30)
    result = run("--jobs 2", record)
    assert result.exit_code == 0, result.stderr
    assert verdicts(result)["fgsm.8"] == "match"


def test_the_options_of_the_run_go_with_every_measurement(
    measured: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Run] = []
    work = EvaluateJob.__call__

    def recording(job: EvaluateJob, record: Record, run: Run) -> Record:
        asked.append(run)
        return work(job, record, run)

    monkeypatch.setattr(EvaluateJob, "__call__", recording)
    assert run("--threads 1 --batch 7 --device cpu", measured).exit_code == 0
    told = {(one.placement.threads, one.settings.batch, one.placement.device) for one in asked}
    assert told == {(1, 7, "cpu")}
