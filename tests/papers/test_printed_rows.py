"""A paper's printed rows beside one network: rb-attack and rb-measure --preset with --checkpoint."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from rbtools.attacks import ATTACKS, presets
from rbtools.evaluation.accuracy import attacked
from rbtools.papers import packaged, printed, printed_rows
from rbtools.store import Store
from tests.runner import Record, one, run

TABLES = packaged.read("printed_rows.yaml")


def measured(metrics: dict[str, float], **arch: Any) -> dict[str, Any]:
    evals = [{"metric": name, "value": value, "n": 50} for name, value in metrics.items()]
    return {"arch": {"space": "nasbench201", **arch}, "metrics": metrics, "evals": evals}


@pytest.mark.parametrize("preset", TABLES)
def test_every_column_is_printed_and_measured_by_the_preset(preset: str) -> None:
    made = {"acc", "corrupt.mean"}  # the corruptions are those of rb-corrupt
    for part in presets.preset(preset):
        made |= {spec.name() for spec in attacked(ATTACKS.build(part.attack, **part.params), part.eps).specs}
    for fields in TABLES[preset]:
        for table in fields["tables"]:
            rows = list(printed.read(table).values())
            some = set(fields["columns"]) & set(rows[0])
            assert set(fields["columns"].values()) <= made
            assert len(some) >= 4 and all(row[name] is not None for row in rows for name in some)


def test_rows_have_the_unit_of_the_paper() -> None:
    """Values from table 1 of Jung et al. and from tables 5 and 7 of NAS-RobBench-201."""
    record = measured({"acc": 0.9, "fgsm.1": 0.5, "square.8": 0.1}, **{"class": 13714})
    title, head, here, best, *searches = printed_rows.beside("jung2023", record)
    assert title.startswith("Jung et al. 2023, table 1:") and title.endswith("in percent")
    assert head.split() == ["Clean", "FGSM"] and len(searches) == 8
    assert here.split("  ") == ["this network, 50 images", "90.00", "50.00"]
    assert best.split()[-2:] == ["94.68", "69.24"]
    record = measured({"acc": 0.9, "pgd20.8": 0.5}, none=2)
    *_, darts, row = printed_rows.beside("nasrobbench201", record)
    assert darts.split() == ["DARTS", "0.3320", "0.2130"] and row.split() == ["none=2", "0.7842", "0.4711"]
    assert not any("none=" in line for line in printed_rows.beside("nasrobbench201", measured({"acc": 0.9})))


def test_an_architecture_that_the_paper_prints_has_its_own_row() -> None:
    lines = printed_rows.beside("jung2023", measured({"acc": 0.9, "pgd40.1": 0.5}, **{"class": 0}))
    assert lines[-1].split() == ["#0", "0.8560", "0.2950"]
    assert printed_rows.beside("robust-all", measured({"acc": 0.9})) == []


def test_one_checkpoint_is_shown_beside_the_paper(trained: dict[str, Record]) -> None:
    shutil.copyfile(Store("rb-store").object(trained["erm"]["checkpoint"]), "model.safetensors")
    alone = "--checkpoint model.safetensors --dataset digits --device cpu --n 5"
    done = run("attack", f"--preset wci {alone}")
    assert list(one(done)["metrics"]) == ["acc", "pgd10.8"]
    assert "rb-attack: the paper prints none of these results for a single network.\n" in done.stderr
    few = "--attack fgsm --eps 8 --batch-size 4"
    done = run("measure", f"--preset nasrobbench201 {few} {alone}")
    assert "ntk.twice.fro.fgsm.8" in one(done)["metrics"]
    assert "rb-attack --preset nasrobbench201 measures the results that it prints." in done.stderr
    streamed = run("measure", f"--preset nasrobbench201 {few} --device cpu", [trained["erm"]])
    assert one(streamed)["metrics"].keys() >= {"ntk.twice.fro.fgsm.8"} and "paper" not in streamed.stderr
