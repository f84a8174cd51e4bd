"""rb-card: looks, their intervals, the end, what cannot be measured, two models, pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import rbtools
from rbtools.cli.card_table import table
from rbtools.errors import RbError
from rbtools.evaluation import under_corruption
from rbtools.execution.run import Run
from rbtools.jobs import card_intervals, model_card
from rbtools.probabilistic import intervals
from rbtools.records import consistency
from rbtools.store import Store
from tests import runner
from tests.runner import Record, entry, one, records

CHEAP = "clean,corruptions"

run = runner.command("card", "--device cpu")


def request(*parts: str, seconds: float | None = None) -> model_card.CardRequest:
    return model_card.CardRequest(parts, 32 / 255, seconds)


def the_run() -> Run:
    return Run.of(tool="rb-card", store=Store("rb-store"), device="cpu", n=40)


@pytest.mark.slow
def test_every_part_is_measured_and_the_intervals_are_those_of_planned_looks(
    trained: dict[str, Record],
) -> None:
    record = one(run(f"--for {CHEAP} --time none --n 40", trained["pgd"]))
    about = record["card"]
    assert (about["ended"], about["images"]) == ("images", 40)
    assert list(about["parts"]) == ["clean", "corruptions"]
    acc, mean = entry(record, "acc"), entry(record, "corrupt.mean")
    assert acc["n"] == mean["n"] == 40
    assert acc["anytime"] == {"looks": len(card_intervals.sizes(40)), "confidence": round(1 - 0.05 / 3, 6)}
    right = round(acc["value"] * 40)
    assert acc["ci95"] == pytest.approx(intervals.clopper_pearson(right, 40, 1 - 0.05 / 3))
    assert mean["ci95"][0] < mean["value"] < mean["ci95"][1]
    assert acc["answers"]["images"] == 40
    assert [f for f in consistency.findings(record) if f.rule == "interval"] == []
    tool = rbtools.corrupt(trained["pgd"], "all", n=40, device="cpu", store="rb-store")
    assert tool["metrics"].items() <= record["metrics"].items()
    again = runner.run("attack", "none --n 40 --device cpu", [trained["pgd"]])
    assert "0 computed, 1 found" in again.stderr


def test_looks_double_and_their_intervals_hold_together() -> None:
    assert card_intervals.sizes(100) == [16, 32, 64, 100]
    assert card_intervals.sizes(16) == [16] and card_intervals.sizes(5) == [5]
    sure = card_intervals.confidence(3)
    rng, missed = np.random.default_rng(0), 0
    for right in rng.random((400, 64)) < 0.3:
        ends = [intervals.clopper_pearson(int(right[:n].sum()), n, sure) for n in (16, 32, 64)]
        missed += any(not low <= 0.3 <= high for low, high in ends)
    assert missed / 400 <= 0.05


def test_a_part_that_does_not_fit_into_the_time_is_left_out_and_named(trained: dict[str, Record]) -> None:
    record = model_card.run_card(trained["pgd"], request("clean", "attack", seconds=1e-6), the_run())
    clean, attack = record["card"]["parts"].values()
    assert record["card"]["ended"] == "time"
    assert clean["n"] == 16 and "n" not in attack and "0 s of the limit are left" in attack["reason"]


def test_a_card_ends_with_its_time_within_a_part(trained: dict[str, Record], monkeypatch: Any) -> None:
    """Here, its time ends at the 40th question, during the 75 passes of the corruptions."""
    left = iter([1e9] * 40)
    monkeypatch.setattr(model_card.Card, "left", lambda self: next(left, 0.0))
    record = model_card.run_card(trained["pgd"], request("corruptions", "clean", seconds=1e9), the_run())
    corruptions, clean = record["card"]["parts"].values()  # the cheapest part came first
    assert record["card"]["ended"] == "time" and clean["n"] == 16
    assert "n" not in corruptions and "before its first result" in corruptions["reason"]


@pytest.mark.slow
def test_a_command_that_is_interrupted_writes_the_record(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    look = model_card.Card.look

    def looked(self: model_card.Card, state: model_card.PartState, size: int) -> None:
        if size > 16:
            raise KeyboardInterrupt
        look(self, state, size)

    monkeypatch.setattr(model_card.Card, "look", looked)
    result = run(f"--for {CHEAP} --n 40", trained["pgd"])
    assert result.exit_code == 130
    (record,) = records(result)
    assert record["card"]["ended"] == "interrupted" and record["card"]["parts"]["clean"]["n"] == 16
    assert "interrupted; finished results were written" in result.stderr


def test_parts_that_cannot_run_are_named_and_the_others_are_done(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:

    def refuse(*_: object) -> Any:
        raise RbError("This network has no corruptions.")

    monkeypatch.setattr(under_corruption.Corrupted, "rows", refuse)
    result = run(f"--for {CHEAP} --time none --n 20", trained["pgd"])
    record = one(result)
    assert record["card"]["parts"]["corruptions"]["reason"] == "This network has no corruptions."
    assert "15 corruptions: not measured: This network has no corruptions." in result.stderr
    assert entry(record, "acc")["n"] == 20


@pytest.mark.slow
def test_a_module_in_memory_has_a_card() -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4)).eval()
    images = torch.rand(40, 1, 8, 8)
    right = network(images).argmax(1)
    labels = torch.where(torch.arange(40) < 30, right, (right + 1) % 4)
    parts = "clean,norms,pr,gap,masking"
    record = rbtools.card(network, data=(images, labels), for_=parts, n=16, time="none")
    reasons = [name for name, part in record["card"]["parts"].items() if "reason" in part]
    assert reasons == ["gap"]
    clean = entry(record, "acc")["value"]
    assert entry(record, "square.8")["value"] <= clean and entry(record, "apgd-ce.8")["value"] <= clean


@pytest.mark.slow
def test_a_smaller_card_replaces_no_larger_one(trained: dict[str, Record]) -> None:
    large = one(run(f"--for {CHEAP} --time none --n 40", trained["pgd"]))
    words = "--for clean --time none --n 20"
    small = run(words, large)
    assert entry(one(small), "acc")["n"] == 40 and "the record keeps its acc" in small.stderr
    assert one(small)["card"]["parts"].keys() == {"clean", "corruptions"}
    assert entry(one(run(f"{words} --force", large)), "acc")["n"] == 20


def test_a_dry_run_leaves_out_what_the_images_do_not_allow(trained: dict[str, Record]) -> None:
    images = np.zeros((20, 1, 8, 8), np.uint8)
    np.savez("one.npz", x_test=images, y_test=np.arange(20) % 10)
    result = run("--for clean,gap --time none --dataset npz:one.npz --dry-run", trained["erm"])
    assert result.exit_code == 0
    assert "clean accuracy: 1 batch to compute" in result.stderr and "no split" not in result.stderr


@pytest.fixture
def weights(trained: dict[str, Record]) -> Callable[[str], str]:
    """The file of a trained network, by its method."""

    def file(method: str) -> str:
        source = Store("rb-store").object(trained[method]["checkpoint"])
        return shutil.copy(source, f"{method}.pt")

    return file


@pytest.mark.slow
def test_two_checkpoints_are_compared_on_the_same_images(weights: Callable[[str], str]) -> None:
    paths = f"{weights('erm')} {weights('pgd')}"
    result = run(f"--for {CHEAP} --time none --n 60 {paths} -o two.md")
    first, second = records(result)
    row, other = (r["card"]["against"]["parts"]["corruptions"]["corrupt.mean"] for r in (first, second))
    means = [entry(record, "corrupt.mean")["value"] for record in (first, second)]
    assert row["difference"] == pytest.approx(means[0] - means[1]) == pytest.approx(-other["difference"])
    assert row["ci95"] == pytest.approx([-other["ci95"][1], -other["ci95"][0]])
    assert row["ci95"][0] < row["difference"] < row["ci95"][1]
    assert first["card"]["against"]["checkpoint"] == second["checkpoint"]
    assert Path("two.md").read_text().count(", digits**\n\n| part |") == 2
    again = run(f"--for {CHEAP} --time none --n 60 {paths} --dry-run")
    assert "of 2 records 2 found in the store" in again.stderr


@pytest.mark.slow
def test_gaps_and_probabilistic_robustness_are_compared_at_the_end(trained: dict[str, Record]) -> None:
    both = trained["erm"], trained["pgd"]
    first, second = model_card.run_pair(both, request("pr", "gap"), the_run())
    rows = first["card"]["against"]["parts"]
    gaps = [record["metrics"]["ge.acc"] for record in (first, second)]
    assert rows["gap"]["ge.acc"]["difference"] == pytest.approx(gaps[0] - gaps[1])
    for name, row in rows["pr"].items():
        values = [record["metrics"][name] for record in (first, second)]
        assert name.startswith("pr-all.") and row["n"] == 40
        assert row["difference"] == pytest.approx(values[0] - values[1])
    assert rows["pr"]
    for row, lower in [*((row, False) for row in rows["pr"].values()), (rows["gap"]["ge.acc"], True)]:
        low, high = row["ci95"]
        better = "other" if (low > 0) == lower else "this"
        assert row["better"] == (None if low <= 0 <= high else better)


def test_the_live_table_has_a_row_for_each_part() -> None:
    row = {"part": "AutoAttack", "metric": "aa.8", "value": 0.5, "ci95": [0.4, 0.6], "n": 64, "seconds": 3.0}
    wrong = {"part": "masking", "metric": "square.8", "value": None, "ci95": None, "n": 0, "seconds": 1.0}
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table({"parts": [row, {**wrong, "reason": "the memory was too small"}, wrong]}))
    lines = capture.get().splitlines()
    assert "0.500  0.400 to 0.600" in lines[1] and "60%" in lines[1]
    assert "not measured" in lines[2] and "memory" in lines[2]
    assert len(lines) == 4 and max(map(len, lines)) <= 80
