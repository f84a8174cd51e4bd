"""rb-train at the command line: several methods and seeds, stored trainings, interruptions, processes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import Result

from rbtools.models import checkpoint
from rbtools.store import Store
from rbtools.store.checksum import content
from tests import runner
from tests.runner import in_a_process, lines, one, records

ARCH = {
    "space": "nasbench201",
    "str": "|none~0|+|none~0|none~1|+|nor_conv_1x1~0|none~1|none~2|",
    "channels": 2,
    "cells": 1,
}
LINE = json.dumps({"schema": 1, "arch": ARCH, "mine": {"kept": [1, 2]}}, separators=(",", ":")) + "\n"
FAST = "--epochs 1 --batch-size 721 --device cpu"


def run(words: str, text: str = LINE) -> Result:
    return runner.run("train", words, text)


@pytest.mark.slow
def test_methods_and_seeds_fan_out_each_with_its_own_options() -> None:
    result = run(f"{FAST} --method erm,trades --seed 0,2 --lambda 2 --eps 16 --attack-steps 1")
    assert result.exit_code == 0
    assert result.stderr == "rb-train: 4 records: 4 computed, 0 found in the store.\n"
    found = records(result)
    told = [record["train"] for record in found]
    fanned = [(one["method"], one["seed"]) for one in told]
    assert fanned == [("erm", 0), ("erm", 2), ("trades", 0), ("trades", 2)]
    assert "lambda" not in told[0]["config"]
    assert told[2]["config"]["lambda"] == 2 and told[2]["config"]["eps"] == 16 / 255
    assert len({record["checkpoint"] for record in found}) == 4
    assert all(record["mine"] == {"kept": [1, 2]} and record["dataset"] == "digits" for record in found)
    assert all(record["metrics"]["seconds_per_epoch"] > 0 for record in found)


def test_the_record_names_both_checkpoints_and_goes_on_with_the_one_selected() -> None:
    last = one(run(f"{FAST} --epochs 3 --val 0.1"))
    result = run(f"{FAST} --epochs 3 --val 0.1 --select best")
    best = one(result)
    assert result.stderr.endswith("0 computed, 1 found in the store.\n")
    names = last["train"]["checkpoints"]
    assert best["train"]["checkpoints"] == {**names, "selected": "best"}
    assert (last["checkpoint"], best["checkpoint"]) == (names["last"], names["best"])


@pytest.mark.slow
def test_the_store_keeps_the_selected_weights_alone_on_request() -> None:
    how = f"{FAST} --epochs 3 --val 0.1 --lr 3"  # this rate is too high for the last epoch
    both = one(run(f"{how} --store other"))
    names, store = both["train"]["checkpoints"], Store("rb-store")
    last = one(run(f"{how} --select last --keep selected"))
    # The same numbers under the same name; of the weights, those of the record alone.
    assert last["train"]["history"]["loss"] == both["train"]["history"]["loss"]
    assert names["last"] != names["best"] and last["checkpoint"] == names["last"]
    left = {name: value for name, value in names.items() if name != "best"}
    assert last["train"]["checkpoints"] == left
    assert [f"sha256:{path.name}" for path in store.files("objects")] == [names["last"]]
    assert "0 computed, 1 found in the store.\n" in run(f"{how} --select last --keep selected").stderr
    # What is asked for and is not there is trained again, and a line says why.
    result = run(f"{how} --select best --keep selected")
    again = "the store has this result without the requested weights: training again."
    assert again in result.stderr and result.stderr.endswith("1 computed, 0 found in the store.\n")
    assert one(result)["checkpoint"] == names["best"]
    found = run(how)
    assert found.stderr.endswith("0 computed, 1 found in the store.\n") and again not in found.stderr
    assert one(found)["train"]["checkpoints"] == names


@pytest.mark.slow
def test_a_preset_sets_what_single_options_do_not() -> None:
    small = f"{FAST} --attack-steps 1"
    told = one(run(f"--preset nasrobbench201 {small}"))["train"]
    assert told["method"] == "pgd" and told["preset"] == "nasrobbench201"
    assert (told["epochs"], told["config"]["attack_steps"], told["config"]["batch_size"]) == (1, 1, 721)
    told = one(run(f"--preset wci --schedule constant --val 0.1 {small}"))["train"]
    config = told["config"]
    assert told["preset"] == "rice2020" and config["inner_mode"] == "train" and config["clean_pass"]
    assert config["schedule"] == "constant" and "milestones" not in config and config["val"] == 0.1


@pytest.mark.parametrize(
    ("words", "size", "steps"),
    [
        ("--preset prbench-code --method at-pr", "--plain-step", "--plain-steps"),
        ("--method pgd,trades --step-size 2", "--step-size", "--attack-steps"),
        ("--method pgd,trades", None, None),
    ],
)
def test_a_step_that_cannot_reach_the_border_is_warned_about_once(
    words: str, size: str | None, steps: str | None
) -> None:
    said = run(f"{words} --eps 32 --dry-run").stderr
    assert said.count("the attack cannot reach the border of its ball.") == (size is not None)
    assert size is None or (
        "rb-train: warning: --eps is 32/255, but the steps add up to 20/255: the attack cannot reach the"
        f" border of its ball. Increase {size} or {steps}.\n" in said
    )


def states() -> list[Path]:
    return [path for path in Path("rb-store/state").glob("*/*") if not path.name.startswith(".")]


def kept_seconds(state: Path) -> list[float]:
    """The times of the epochs in a stored state."""
    data = content("state", state.name, state.read_bytes())
    found: list[float] = torch.load(io.BytesIO(data), weights_only=True)["history"]["seconds"]
    return found


def test_after_ctrl_c_the_next_run_goes_on() -> None:
    how = "--method pgd --attack-steps 4 --epochs 30 --batch-size 721 in.jsonl"
    Path("in.jsonl").write_text(LINE)
    with subprocess.Popen(
        ["rb-train", *how.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not states():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, "")
    assert "interrupted; finished results were written and stored." in err
    (state,) = states()
    done = kept_seconds(state)
    assert 1 <= len(done) < 30
    seconds = one(run(how))["train"]["history"]["seconds"]
    assert seconds[: len(done)] == done and len(seconds) == 30  # these were not trained again
    assert not states()


def test_a_training_whose_reader_is_gone_stops_within_an_epoch() -> None:
    """The reader takes one record and stays until the next training, of some minutes, has begun."""
    failed = '{"schema":1,"arch":{},"error":{"message":"before"}}\n'
    Path("in.jsonl").write_text(failed + LINE)
    script = (
        "rb-train --epochs 3000 --batch-size 721 in.jsonl"
        " | { head -1; until ls rb-store/state/*/* >/dev/null 2>&1; do sleep 0.05; done; };"
        " echo ${PIPESTATUS[*]}"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout == failed + "141 0\n" and done.stderr == ""
    (state,) = states()  # the state is stored, so that the training can resume
    assert 1 <= len(kept_seconds(state)) < 1000


def test_a_run_that_finds_everything_imports_no_torch() -> None:
    first = records(run(FAST))
    out, said, modules = in_a_process("train", FAST, LINE)
    record = json.loads(out)
    # a call from Python has no command line
    assert record["train"].pop("command") == f"rb-train {FAST}"
    assert [record] == first and said.endswith("0 computed, 1 found in the store.\n")
    assert not {"torch", "numpy", "sklearn"} & modules


CODE = """
from torch import nn


def network(classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))
"""
OPTIONS = (
    "--method trades --attack-steps 1 --epochs 2 --batch-size 301 --val 0.05 --regularize awp"
    " --allow-code --device cpu --threads 1"
)


def test_two_processes_train_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A network without BatchNorm: each process has half of every batch, and the weights are those of one."""
    Path("network_of_two.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    given, missing = (
        {"arch": {"space": "python", "name": f"network_of_two:{name}"}} for name in ("network", "missing")
    )
    command = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2"
    command += f" -m rbtools.commands.train {OPTIONS} --store two"
    two = subprocess.run(
        command.split(), input=lines(given, missing), capture_output=True, text=True, timeout=300
    )
    done, failed = map(json.loads, two.stdout.splitlines())
    assert "has no function missing" in failed["error"]["message"] and "error" not in done
    assert two.stderr.count("1 computed, 0 found in the store, 1 failed.") == 1  # process 0 alone speaks
    alone = one(run(f"{OPTIONS} --store one", lines(given)))
    assert done["train"]["processes"] == 2 and "processes" not in alone["train"]
    assert done["train"]["passes"] == alone["train"]["passes"]
    for name in ("loss", "acc", "robust_acc", "val_acc"):
        assert done["train"]["history"][name] == pytest.approx(alone["train"]["history"][name], rel=0.02)
    weights = [
        checkpoint.read(Store(folder).object(record["checkpoint"])).state
        for folder, record in (("two", done), ("one", alone))
    ]
    for name, value in weights[1].items():
        torch.testing.assert_close(weights[0][name], value, rtol=1e-2, atol=1e-4)


def test_what_several_processes_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words, option in (("--jobs 2", "--jobs"), ("--engine ray", "--engine ray")):
        result = run(words)
        assert result.exit_code == 2
        assert f"2 processes train one network together, which {option}" in result.stderr
