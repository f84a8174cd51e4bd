"""Dry runs, events, times by stage, curves, and what a terminal shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rbtools.cli import tables
from rbtools.cli.filter_loop import Loop
from rbtools.cli.output import RecordWriter
from rbtools.cli.source import RecordSource
from rbtools.cli.terminal import Terminal
from rbtools.cli.window import Window
from rbtools.execution.report import Clock
from rbtools.execution.run import Run
from rbtools.jobs import tile_calls
from tests.conftest import SMALL_ARCH
from tests.runner import lines, model, one, run

TRAIN = "--epochs 1 --lr 0.2"
SMALL = [{"arch": SMALL_ARCH}]


def plan() -> dict[str, Any]:
    """The last event of a dry run for programs, without the fields of every event."""
    (event,) = [event for event in events() if event["event"] == "plan"]
    Path("log.jsonl").unlink()
    return {key: event[key] for key in ("found", "missing")}


@pytest.mark.slow
def test_evaluations_of_a_network_that_is_not_trained_yet_are_counted() -> None:
    dry = "--dry-run --log log.jsonl"
    first = run("train", f"{TRAIN} {dry}", SMALL)
    assert plan() == {"found": 0, "missing": 1}
    two = first.stdout * 2  # as two seeds: the records of a dry run are equal, the trainings are not
    trained = run("train", TRAIN, SMALL).stdout
    for tool, words in (("attack", "pgd --eps 4,8 --n 50"), ("measure", "wci")):
        run(tool, f"{words} {dry}", two)
        assert plan() == {"found": 0, "missing": 2}
        run(tool, words, trained)
        run(tool, f"{words} {dry}", trained)
        assert plan() == {"found": 1, "missing": 0}


def test_both_sides_and_all_parts_are_looked_at(trained: dict[str, dict[str, Any]]) -> None:
    ge = run("ge", "acc --n 20 --n-train 30 --dry-run", [trained["erm"]])
    assert "clean accuracy: 2 batches to compute" in ge.stderr
    preset = run("attack", "preset prbench --n 20 --dry-run", [trained["erm"]])
    assert all(f"{name}: 1 batch to compute" in preset.stderr for name in ("pgd10", "pgd20", "cw20", "aa"))


@pytest.mark.parametrize(
    ("tool", "words", "says"),
    [
        ("attack", "pgd --eps 4,8", "pgd20: 1 batch to compute, 13 minutes to 42 minutes here"),
        ("corrupt", "contrast,fog", "corruptions: 1 batch to compute, 6 minutes here"),
        ("attack", "none", "clean accuracy: 1 batch to compute, less than a minute here"),
    ],
)
def test_a_dry_run_says_minutes(
    tool: str, words: str, says: str, trained: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 30 images, one second for each pass: attacks leave out those that they have broken."""
    monkeypatch.setattr(tile_calls, "seconds_per_pass", lambda inputs: 1.0)
    result = run(tool, f"{words} --n 30 --dry-run", [trained["erm"]])
    assert says in result.stderr


def events(path: str = "log.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_log_has_an_event_a_line(jobs: str) -> None:
    result = run("train", f"{TRAIN} --epochs 2 --jobs {jobs} --log log.jsonl", f"{lines(*SMALL)}no\n")
    assert result.exit_code == 1, result.stderr
    found = events()
    kinds = [event["event"] for event in found]
    assert kinds[0] == "start" and kinds[-1] == "end" and kinds.count("epoch") == 2
    assert kinds.count("record") == 1 and kinds.count("error") == 1
    assert all({"time", "tool", "pid"} <= event.keys() and event["tool"] == "rb-train" for event in found)
    epoch = next(event for event in found if event["event"] == "epoch")
    assert {"arch", "method", "seed", "epoch", "epochs", "loss", "val_robust_acc", "lr"} <= epoch.keys()
    record = next(event for event in found if event["event"] == "record")
    assert record["outcome"] == "done" and record["computed"] == 1 and record["stages"]["training"] > 0
    assert list(record["metrics"]) == ["seconds_per_epoch"]
    assert found[-1]["status"] == 1


def test_stages_within_stages_count_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr("rbtools.execution.report.time.perf_counter", lambda: next(ticks))
    clock = Clock()
    with clock.stage("outer"), clock.stage("inner"):
        pass
    assert clock.seconds == {"inner": 3.0, "outer": 7.0}


@pytest.mark.extra
@pytest.mark.slow
def test_curves_are_written_while_training_and_for_what_is_found() -> None:
    from tensorboard.backend.event_processing import event_accumulator as accumulator

    for folder in ("first", "second"):  # the second time the training is found in the store
        history = one(run("train", f"{TRAIN} --epochs 2 --tensorboard {folder}", SMALL))["train"]["history"]
        curves = accumulator.EventAccumulator(f"{folder}/small-erm-seed0").Reload()
        for name in ("loss", "val_acc", "lr"):
            points = [(tensor.step, tensor.tensor_proto.float_val[0]) for tensor in curves.Tensors(name)]
            assert [step for step, _ in points] == [1, 2]
            assert [value for _, value in points] == pytest.approx(history[name], rel=1e-5)


def test_the_status_line_and_the_summary_count_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Terminal, "status", lambda screen, text: said.append(text))
    failed = {"arch": {"name": "other"}, "error": {"tool": "rb-arch", "message": "before"}}
    result = run("train", f"{TRAIN} --method erm", "no record\n" + lines(failed, *SMALL))
    assert {text.partition(" ·")[0] for text in said} == {"[3/3] erm seed 0"}
    counts = "3 records: 1 computed, 0 found in the store, 1 failed, 1 passed on with their error.\n"
    assert result.stderr.endswith(counts)


def test_one_time_is_left_and_a_long_run_suggests_a_sample(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of 6,466 trainings took 60 s, and the second has run for 10 s."""
    monkeypatch.setattr("rbtools.cli.filter_loop.time.perf_counter", iter([0.0, 60.0, 70.0]).__next__)
    loop = Loop(RecordSource(), [], Terminal("rb-train"), RecordWriter(), Run())
    window = Window(loop, 4)
    window.given, text = 6466, "erm · epoch 1/10 · 100 images/s · 50 s left · loss 2.000"
    assert loop._status(text, None, window, False) == f"[1/6466] {text}"
    assert "6,466 results will be computed or read from the store" in capsys.readouterr().err
    loop.done = loop.computed = 1
    words = "[2/6466, 4 days left] erm · epoch 1/10 · 100 images/s · loss 2.000"
    assert loop._status(text, None, window, False) == words
    said = capsys.readouterr().err
    assert "All 6,466 results will take about 4 days." in said and "rb-arch --sample 20" in said


@pytest.mark.parametrize("setting", ["TERM=dumb", "NO_COLOR=1"])
def test_a_plain_terminal_gets_no_codes(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*setting.split("="))
    acc = {"metric": "acc", "value": 0.9, "n": 10, "split": "test"}
    assert "\x1b" not in tables.model_table(model("resnet18", acc), 80)


def test_a_name_in_the_status_line_moves_no_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Terminal("test")
    monkeypatch.setattr(screen, "terminal", True)
    monkeypatch.setattr(screen, "_painted", 0.0)
    monkeypatch.setattr(screen, "_mine", lambda: True)
    screen.status("\x1b]0;evil\x07\x1b[2J\nname")
    assert capsys.readouterr().err == "\r\x1b[2Ktest: \\x1b]0;evil\\x07\\x1b[2J\\nname"


def test_a_failed_record_shows_its_error_and_what_was_measured() -> None:
    acc = {"metric": "acc", "value": 0.9, "n": 10, "split": "test", "ci95": [0.6, 0.98]}
    error = {"tool": "rb-pr", "message": "The GPU is\x1b[31m gone."}
    shown = tables.model_table(model("resnet18", acc, error=error), 80)
    assert "error: The GPU is\ufffd[31m gone." in shown
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()]
    assert ["acc", "0.9000", "[0.6000,", "0.9800]", "10", "test"] in rows
