"""rb-measure: lists of measures, presets, units, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result

from rbtools.measures import MEASURES
from tests.runner import Record, entry, one, records, run

RECORD: Record = {
    "schema": 1,
    "arch": {"space": "nasbench201", "index": 13714, "channels": 2, "cells": 1},
    "mine": {"kept": [1, 2]},
}


def rb_measure(words: str, *given: Record) -> Result:
    return run("measure", f"{words} --batch-size 6", given or [RECORD])


def bounds(result: Result) -> dict[str, Record]:
    return {entry["metric"]: entry for entry in one(result)["evals"] if entry.get("measure") == "bound"}


def test_a_list_of_measures_is_measured_at_the_distances_given() -> None:
    record = one(rb_measure("ntk,naswot,params --eps 3,8/255 --attack fgsm"))
    names = {"ntk.robust.fro.fgsm.3", "ntk.robust.fro.fgsm.8", "ntk.clean.lmin", "naswot", "params"}
    assert names <= record["metrics"].keys() and record["mine"] == {"kept": [1, 2]}
    assert isinstance(record["metrics"]["params"], int)
    told = entry(record, "ntk.robust.fro.fgsm.3")
    assert told["tool"] == "rb-measure" and told["eps"] == pytest.approx(3 / 255)


@pytest.mark.slow
def test_every_measure_of_a_trained_network_has_a_name_of_its_own(
    trained: dict[str, dict[str, Any]],
) -> None:
    record = one(rb_measure("all --probes 2 --batches 1 --iterations 5", trained["pgd"]))
    new = [entry["metric"] for entry in record["evals"] if entry["tool"] == "rb-measure"]
    assert len(new) == len(set(new))
    assert {name.split(".")[0] for name in new} == set(MEASURES.all)


def test_bounds_take_what_the_training_decided_and_say_whether_they_are_vacuous(
    trained: dict[str, dict[str, Any]],
) -> None:
    record = trained["pgd"]
    made = bounds(rb_measure("bound --paper prbench --weight 6", record))
    assert set(made) == {f"bound.prbench{number}.pgd.8" for number in (1, 2, 4, 5)}
    config = record["train"]["config"]
    for about in made.values():
        images = about["inputs"]["n"]
        assert about["inputs"]["T"] == record["train"]["epochs"] * -(-images // config["batch_size"])
        assert about["vacuous"] == (about["value"] >= 1) and "lower bound" in about["note"]
    assert made["bound.prbench4.pgd.8"]["value"] <= made["bound.prbench1.pgd.8"]["value"]
    made = bounds(rb_measure("bound --paper wci --probes 2 --largest 2", record))
    assert set(made) == {f"bound.wci{number}.pgd.8" for number in (1, 2, 3, 4)}
    first = made["bound.wci1.pgd.8"]
    assert (first["largest"], first["failure"], first["inputs"]["C"]) == (2.0, 0.05, 2.0)
    assert "failure" not in made["bound.wci2.pgd.8"] and "largest" not in made["bound.wci4.pgd.8"]
    missing = rb_measure("bound --paper wci")
    assert missing.exit_code == 1 and "needs trained weights" in missing.stderr


def test_a_preset_sets_what_is_not_typed() -> None:
    record = one(rb_measure("ntk --preset nasrobbench201 --attack fgsm,pgd --attack-steps 1"))
    for name in ("fgsm.3", "fgsm.8", "pgd.3", "pgd.8"):
        assert f"ntk.twice.fro.{name}" in record["metrics"]
    told = entry(record, "ntk.twice.fro.pgd.3")
    assert (told["batch_size"], told["steps"]) == (6, 1)
    record = one(rb_measure("ntk --preset nasrobbench201 --eps 2 --attack fgsm --kernel clean"))
    assert {name.split(".")[1] for name in record["metrics"]} == {"clean"}


def test_jung2023_measures_both_splits_and_both_weights(trained: dict[str, dict[str, Any]]) -> None:
    words = "jacobian,hessian --preset jung2023 --batches 1 --iterations 3 --probes 2"
    record = one(rb_measure(words, trained["erm"]))
    for on in ("init", "trained"):
        assert {f"jacobian.{on}.train", f"jacobian.{on}.test"} <= record["metrics"].keys()
    assert "hessian.weight.labs" in record["metrics"] and "hessian.weight.lmax" not in record["metrics"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nkt", "Unknown measure 'nkt'. Did you mean 'ntk'"),
        ("ntk --preset jung", "Unknown preset 'jung'. Did you mean 'jung2023'"),
        ("ntk --attack square", "--attack is 'square'. Images are perturbed by one of: fgsm, pgd."),
        ("ntk --kernel robust --beta 2", "beta of measure 'ntk' is 2. It must be from 0 to 1."),
        ("ntk --eps many", "--eps"),
        ("ntk --on init --init-seed -1", "--init-seed"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: str, message: str) -> None:
    result = rb_measure(words)
    assert result.exit_code == 2 and result.stdout == "" and message in result.stderr


def test_a_split_that_is_not_there_fails_the_record() -> None:
    result = rb_measure("ntk --split tets")
    assert result.exit_code == 1 and "no split 'tets'" in json.loads(result.stdout)["error"]["message"]


def test_the_store_lists_what_was_measured_on_networks_that_nobody_trained() -> None:
    measured = one(rb_measure("jacobian,synflow --split train --batches 1"))
    listed = run("store", "ls --kind evaluation")
    assert listed.exit_code == 0 and listed.stderr == ""
    values: dict[str, float] = {}
    for record in records(listed):
        assert "checkpoint" not in record and record["arch"]["index"] == 13714
        values |= record["metrics"]
    assert values == measured["metrics"] and set(values) == {"jacobian.init.train", "synflow"}
    assert run("store", "verify").exit_code == 0
