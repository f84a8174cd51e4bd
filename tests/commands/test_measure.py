"""rb-measure: lists of measures, presets, units, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rbtools.commands import measure, store

RECORD = {
    "schema": 1,
    "arch": {"space": "nasbench201", "index": 13714, "channels": 2, "cells": 1},
    "mine": {"kept": [1, 2]},
}


def rb_measure(*arguments: str, records: list[dict[str, Any]] | None = None) -> Result:
    lines = "".join(json.dumps(one) + "\n" for one in ([RECORD] if records is None else records))
    return CliRunner().invoke(measure.main, [*arguments, "--batch-size", "6"], input=lines)


def found(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def test_a_list_of_measures_is_measured_at_the_distances_given() -> None:
    record = found(rb_measure("ntk,naswot,params", "--eps", "3,8/255", "--attack", "fgsm"))
    names = {"ntk.robust.fro.fgsm.3", "ntk.robust.fro.fgsm.8", "ntk.clean.lmin", "naswot", "params"}
    assert names <= record["metrics"].keys() and record["mine"] == {"kept": [1, 2]}
    assert isinstance(record["metrics"]["params"], int)
    entry = next(entry for entry in record["evals"] if entry["metric"] == "ntk.robust.fro.fgsm.3")
    assert entry["tool"] == "rb-measure" and entry["eps"] == pytest.approx(3 / 255)


def test_every_measure_of_a_trained_network_has_a_name_of_its_own(
    trained: dict[str, dict[str, Any]],
) -> None:
    result = rb_measure(
        "all", "--probes", "2", "--batches", "1", "--iterations", "5", records=[trained["pgd"]]
    )
    record = found(result)
    new = [entry["metric"] for entry in record["evals"] if entry["tool"] == "rb-measure"]
    assert len(new) == len(set(new))
    from rbtools.measures import MEASURES

    assert {name.split(".")[0] for name in new} == set(MEASURES.all)


def test_bounds_take_what_the_training_decided_and_say_whether_they_are_vacuous(
    trained: dict[str, dict[str, Any]],
) -> None:
    record = trained["pgd"]
    result = rb_measure("bound", "--paper", "prbench", "--weight", "6", "--batch-size", "4", records=[record])
    made = {e["metric"]: e for e in found(result)["evals"] if e.get("measure") == "bound"}
    assert set(made) == {f"bound.prbench{number}.pgd.8" for number in (1, 2, 4, 5)}
    config = record["train"]["config"]
    for entry in made.values():
        images = entry["inputs"]["n"]
        assert entry["inputs"]["T"] == record["train"]["epochs"] * -(-images // config["batch_size"])
        assert entry["vacuous"] == (entry["value"] >= 1) and "lower bound" in entry["note"]
    assert made["bound.prbench4.pgd.8"]["value"] <= made["bound.prbench1.pgd.8"]["value"]
    line = ["--paper", "wci", "--probes", "2", "--batch-size", "4", "--largest", "2"]
    made = {
        e["metric"]: e
        for e in found(rb_measure("bound", *line, records=[record]))["evals"]
        if e.get("measure") == "bound"
    }
    assert set(made) == {f"bound.wci{number}.pgd.8" for number in (1, 2, 3, 4)}
    first = made["bound.wci1.pgd.8"]
    assert (first["largest"], first["failure"], first["inputs"]["C"]) == (2.0, 0.05, 2.0)
    assert "failure" not in made["bound.wci2.pgd.8"] and "largest" not in made["bound.wci4.pgd.8"]
    missing = rb_measure("bound", "--paper", "wci", records=[RECORD])
    assert missing.exit_code == 1 and "needs trained weights" in missing.stderr


def test_many_records_stream_through() -> None:
    records = [{**RECORD, "arch": {**RECORD["arch"], "index": index}} for index in (1, 2, 3)]  # type: ignore[dict-item]
    result = rb_measure("ntk,grad_norm", "--kernel", "clean", records=records)
    assert result.exit_code == 0
    assert [json.loads(line)["arch"]["index"] for line in result.stdout.splitlines()] == [1, 2, 3]
    assert "3 records: 3 computed" in result.stderr


STEPS = ("--attack-steps", "1")


def test_a_preset_sets_what_is_not_typed() -> None:
    record = found(rb_measure("ntk", "--preset", "nasrobbench201", "--attack", "fgsm,pgd", *STEPS))
    for name in ("fgsm.3", "fgsm.8", "pgd.3", "pgd.8"):
        assert f"ntk.twice.fro.{name}" in record["metrics"]
    entry = next(entry for entry in record["evals"] if entry["metric"] == "ntk.twice.fro.pgd.3")
    assert (entry["batch_size"], entry["steps"]) == (6, 1)
    record = found(
        rb_measure("ntk", "--preset", "nasrobbench201", "--eps", "2", "--attack", "fgsm", "--kernel", "clean")
    )
    assert {name.split(".")[1] for name in record["metrics"]} == {"clean"}


def test_jung2023_measures_both_splits_and_both_weights(trained: dict[str, dict[str, Any]]) -> None:
    line = "jacobian,hessian --preset jung2023 --batches 1 --iterations 3 --probes 2".split()
    record = found(rb_measure(*line, records=[trained["erm"]]))
    for on in ("init", "trained"):
        assert {f"jacobian.{on}.train", f"jacobian.{on}.test"} <= record["metrics"].keys()
    assert "hessian.weight.labs" in record["metrics"] and "hessian.weight.lmax" not in record["metrics"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nkt"], "Unknown measure 'nkt'. Did you mean 'ntk'"),
        (["ntk", "--preset", "jung"], "Unknown preset 'jung'. Did you mean 'jung2023'"),
        (["ntk", "--attack", "square"], "--attack is 'square'. Images are perturbed by one of: fgsm, pgd."),
        (["ntk", "--kernel", "robust", "--beta", "2"], "beta of measure 'ntk' is 2. It must be from 0 to 1."),
        (["ntk", "--eps", "many"], "--eps"),
        (["ntk", "--on", "init", "--init-seed", "-1"], "--init-seed"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(arguments: list[str], message: str) -> None:
    result = rb_measure(*arguments)
    assert result.exit_code == 2 and result.stdout == "" and message in result.stderr


def test_a_split_that_is_not_there_fails_the_record() -> None:
    result = rb_measure("ntk", "--split", "tets")
    assert result.exit_code == 1 and "no split 'tets'" in json.loads(result.stdout)["error"]["message"]


def test_the_store_lists_what_was_measured_on_networks_that_nobody_trained() -> None:
    measured = found(rb_measure("jacobian,synflow", "--split", "train", "--batches", "1"))
    listed = CliRunner().invoke(store.main, ["ls", "--kind", "evaluation"])
    assert listed.exit_code == 0 and listed.stderr == ""
    values: dict[str, float] = {}
    for line in listed.stdout.splitlines():
        record = json.loads(line)
        assert "checkpoint" not in record and record["arch"]["index"] == 13714
        values |= record["metrics"]
    assert values == measured["metrics"] and set(values) == {"jacobian.init.train", "synflow"}
    assert CliRunner().invoke(store.main, ["verify"]).exit_code == 0
