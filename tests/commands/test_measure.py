"""rb-measure: lists of measures, presets, units."""

from __future__ import annotations

from click.testing import Result

from tests.runner import Record, entry, one, run

RECORD: Record = {
    "schema": 1,
    "arch": {"space": "nasbench201", "index": 13714, "channels": 2, "cells": 1},
    "mine": {"kept": [1, 2]},
}


def rb_measure(words: str) -> Result:
    return run("measure", f"{words} --batch-size 6", [RECORD])


def test_a_preset_sets_what_is_not_typed() -> None:
    record = one(rb_measure("ntk --preset nasrobbench201 --attack fgsm,pgd --attack-steps 1"))
    for name in ("fgsm.3", "fgsm.8", "pgd.3", "pgd.8"):
        assert f"ntk.twice.fro.{name}" in record["metrics"]
    told = entry(record, "ntk.twice.fro.pgd.3")
    assert (told["batch_size"], told["steps"]) == (6, 1)
    record = one(rb_measure("ntk --preset nasrobbench201 --eps 2 --attack fgsm --kernel clean"))
    assert {name.split(".")[1] for name in record["metrics"]} == {"clean"}
