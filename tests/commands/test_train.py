"""rb-train at the command line: several methods and seeds, failures, stored trainings, interruptions."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from rbtools.store import Store
from rbtools.store.checksum import content
from rbtools.training import METHODS
from rbtools.training.base import Loss
from rbtools.training.erm import ERM
from tests import runner
from tests.runner import in_a_process, one, records

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
    again = "the store has this training without the weights that are asked for: it is done again."
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
    assert told["config"]["eps"] == 8 / 255 and told["config"]["schedule"] == "onecycle"
    assert "best" not in told["checkpoints"]  # it trains on all images
    config = one(run(f"--preset=prbench --method alp --lambda 0.5 {small}"))["train"]["config"]
    assert (config["lambda"], config["lr"], config["weight_decay"]) == (0.5, 0.01, 3.5e-3)
    assert config["milestones"] == [75, 90] and config["normalize"] is None
    told = one(run(f"--preset wci --schedule constant --val 0.1 {small}"))["train"]
    config = told["config"]
    assert told["preset"] == "rice2020" and config["inner_mode"] == "train" and config["clean_pass"]
    assert config["schedule"] == "constant" and "milestones" not in config and config["val"] == 0.1


def test_a_second_run_finds_everything() -> None:
    first, again = run(f"{FAST} --seed 0,1"), run(f"{FAST} --seed 0,1")
    assert again.stdout == first.stdout
    assert again.stderr == "rb-train: 2 records: 0 computed, 2 found in the store.\n"
    assert run(f"{FAST} --force -q").stderr == ""


@pytest.fixture
def exploding() -> Iterator[str]:
    """A registered training method whose loss is infinite from the second batch on."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Exploding(ERM):
        """Diverges."""

        name = "exploding"

        def __call__(self, model: Any, images: Any, labels: Any, draws: Any) -> Loss:
            loss = super().__call__(model, images, labels, draws)
            seen.append(1)
            return loss if len(seen) == 1 else loss._replace(value=loss.value * float("inf"))

    seen: list[int] = []
    module = types.ModuleType("exploding")
    module.Exploding = Exploding  # type: ignore[attr-defined]
    sys.modules["exploding"] = module
    METHODS._entries["exploding"] = "exploding:Exploding"
    yield "exploding"
    del METHODS._entries["exploding"], sys.modules["exploding"]


def test_a_diverging_training_is_an_error_record_and_the_stream_goes_on(exploding: str) -> None:
    result = run(f"{FAST} --method {exploding},erm", LINE + LINE)
    assert result.exit_code == 1
    first, second, *rest = records(result)
    assert "The training diverged: the loss is inf in epoch 1." in first["error"]["message"]
    assert first["error"]["tool"] == "rb-train"
    assert {key: first[key] for key in first if key != "error"} == json.loads(LINE)  # the input, intact
    assert "error" not in second and second["train"]["method"] == "erm"
    assert ["error" in record for record in rest] == [True, False]
    (line, _, summary) = result.stderr.splitlines()
    assert line.startswith("rb-train: error: line 1 (|none~0|+") and "Lower the learning rate (--lr)" in line
    assert summary == "rb-train: 4 records: 1 computed, 1 found in the store, 2 failed."


def test_the_batch_cannot_be_larger_than_the_data() -> None:
    for words, told in (
        ("", "1413 training images (1442 less those that --val 0.02 holds out). Use --batch-size 1413 or"),
        ("--val 0", "1442 training images. Use --batch-size 1442 or less."),
    ):
        result = run(f"--batch-size 2000 {words}")
        assert result.exit_code == 1 and f"there are only {told}" in result.stderr


def test_tracking_goes_into_the_history() -> None:
    told = one(run(f"{FAST} --track robust --every 3 --track-n 20"))["train"]
    found = told["history"]
    gap = found["test_robust_loss"][0] - found["train_robust_loss"][0]
    assert found["robust_loss_gap"] == [pytest.approx(gap, rel=1e-4, abs=1e-5)]
    assert told["tracking"]["robust"] == {"n_train": 20, "n": 20}


WRONG = {
    "--method ,": f"--method is empty. Known methods: {', '.join(METHODS)}.",
    "--seed 1,-2": "--seed has -2. Expected whole numbers from 0 on, such as 0,1,2.",
    "--schedule step --milestones 7.5": "--milestones has 7.5. Expected whole numbers",
    "--schedule step": "no milestones. Give the epochs, such as --milestones 75,90.",
    "--store none": "With --store none, checkpoints cannot be stored.",
    "--optimizer sgd --momentum 0.8": "--momentum has no effect with --schedule onecycle",
    "--schedule cosine --decay 0.5": "--decay has no effect with --schedule cosine, which has no"
    " milestones. Leave out one, or change the other.",
    "--augment crop,rotate": "The augmentation is 'rotate'. Choose from: crop, crop-reflect, flip.",
    "--augment crop,crop-reflect": "--augment has both crop and crop-reflect",
    "--preset jung2023": "The preset jung2023 trains nothing",
    "--regularize cutmix": "The regularizer is 'cutmix'. Choose from: cutout, mixup, awp, l2, wci.",
    "--regularize l2 --weight-decay 1e-4": "--weight-decay has no effect with --regularize l2",
    "--l2 1e-4": "--l2 has no effect with no --regularize l2.",
    "--mixup-alpha 1": "--mixup-alpha has no effect with no --regularize mixup.",
    "--regularize awp --batch-size 20 --micro-batch 10": "and --micro-batch 10 cuts it in pieces.",
    "--track robust --stop-on wci": "--track has no wci. Add it: --track robust,wci.",
    "--stop-on ntk": "The measure of --stop-on is 'ntk'. Choose from: wci, sharpness.",
    "--val 0 --patience 3": "--patience 3 waits for a better validation, but --val 0",
    "--val 0 --select last --keep selected": "--keep has no effect with --val 0",
    "--val 0 --select best": "--select best needs a validation, but --val 0",
    "--output random --ema 0.9": "--output random keeps the weights before a random step, and --ema chooses",
    "--val 1": "--val is 1. It must be a share from 0 to below 1.",
    "--ema 1": "--ema is 1. It must be from 0 to below 1.",
    "--label-smoothing -0.1": "--label-smoothing is -0.1. It must be from 0 to",
    "--filter chen-lee": "--filter chen-lee is for attacks by steps, and --method erm has none.",
    "--filter chenlee": "The filter is 'chenlee'. Choose from: chen-lee.",
    "--method pgd --filter chen-lee --filter-rule example --inner-mode train": "whose"
    " BatchNorm would see them with --inner-mode train. Use --inner-mode eval, or --filter-rule batch.",
    "--filter-rule example": "--filter-rule has no effect with no --filter.",
    "--method pgd --filter chen-lee --filter-rule each": "Invalid value for '--filter-rule'",
    "--method pgd --filter chen-lee --warm-steps 11": "--warm-steps is 11, more than the 10 of",
    "--track wcy": "The measure to track is 'wcy'. Choose from: robust,",
    "--every 2": "--every has no effect with no --track.",
    "--track wci --track-n 9": "--track-n has no effect with no --track robust.",
    "--warm-steps 1": "--warm-steps has no effect with no --filter.",
    "--method mart --bce b": "Invalid value for '--bce'",
    "--method cvar --tail exact --rounds 2": "--rounds has no effect with --tail exact",
    "--method cvar --tail exact --tail-step image": "--tail-step has no effect with --tail exact",
    "--method corruption --scale unit": "--scale has no effect with --noise uniform",
    "--method at-pr --plain-steps 3": "--plain-steps has no effect with --first drawn.",
    "--method at-pr --plain-step 3": "--plain-step has no effect with --first drawn and",
    "--method cvar --beta 1.5": "beta of training method 'cvar' is 1.5.",
    "--init checkpoint --normalize none": "--normalize has no effect with --init checkpoint",
    "--resample prbench": "--resample has no effect with no --init timm",
    "--method trades --lambda -1": "lambda of training method 'trades' is -1.",
    "--preset nasrobbench201 --lambda 1": "belongs to --method trades and mart and alp and clp and fgsm-pgi,"
    " but --method is pgd.",
    "--method pgd --inner-mode both": "Invalid value for '--inner-mode'",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_options_are_usage_errors(words: str) -> None:
    result = run(words)
    assert result.exit_code == 2 and result.stdout == ""
    assert WRONG[words] in result.stderr and result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize(
    ("words", "size", "steps"),
    [
        ("--preset prbench-code --method at-pr", "--plain-step", "--plain-steps"),
        ("--method pgd,trades --step-size 2", "--step-size", "--attack-steps"),
        ("--method at-pr --step-max 2 --steps-max 10", "--step-max", "--steps-max"),
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
        f" border of its ball. Give a longer {size}, or more {steps}.\n" in said
    )


# --- real processes -------------------------------------------------------------------------------


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
    assert err == "rb-train: error: interrupted; what was finished is written and in the store.\n"
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
