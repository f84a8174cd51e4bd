"""Seeds trained in the same steps: each ends as if trained alone, whatever becomes of the others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rbtools.commands import train as rb_train
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.models import checkpoint
from rbtools.store import Store
from rbtools.trainer import init, loop, stacked, step
from rbtools.trainer.recipe import Recipe, obstacle_to_stacking
from rbtools.trainer.train_model import train
from rbtools.training import METHODS
from tests.pretend_device import PretendDevice
from tests.runner import invoke, records

Record = dict[str, Any]
RECORD: Record = {
    "schema": 1,
    "arch": {
        "space": "nasbench201",
        "str": "|nor_conv_3x3~0|+|none~0|none~1|+|nor_conv_1x1~0|none~1|none~2|",
        "channels": 2,
        "cells": 1,
    },
}
SEEDS = (0, 3)
FAST = Recipe(epochs=2, batch_size=721, lr=0.1, augment=("crop", "flip"))


def run_in(folder: Path | str, seed: int = 0, **options: Any) -> Run:
    return Run.of(tool="rb-train", store=Store(folder), device="cpu", threads=1, seed=seed, **options)


def weights(record: Record, folder: str) -> dict[str, Tensor]:
    return checkpoint.read(Store(folder).object(record["checkpoint"])).state


def trained(method: Any, recipe: Recipe, folder: str, **options: Any) -> list[Record]:
    """The records of all seeds, of which the first trains the others."""
    return [train(RECORD, method, recipe, run_in(folder, seed, **options), SEEDS) for seed in SEEDS]


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks and images in float64, so that rounding turns no sign of an attack's gradient."""
    network, batch = init.network, step.batch_of
    monkeypatch.setattr(init, "network", lambda task, run: network(task, run).double())
    monkeypatch.setattr(step, "batch_of", lambda *how: tuple(map(as_double, batch(*how))))


def as_double(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def check_same(
    ours: list[Record], folder: str, alone: list[Record], other: str, within: float = 1e-4
) -> None:
    """Weights within that, of which signs of gradients that rounding turns are a part, and histories."""
    for one, own in zip(ours, alone, strict=True):
        mine, theirs = weights(one, folder), weights(own, other)
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, atol=within, rtol=0, msg=name)
        for name, values in own["train"]["history"].items():
            if name != "seconds":
                assert one["train"]["history"][name] == pytest.approx(values, abs=10 * within), name


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (METHODS.build("erm"), {"ema": 0.9, "label_smoothing": 0.1}),
        (METHODS.build("pgd", attack_steps=2), {}),
        (METHODS.build("pgd", attack_steps=1, inner_mode="train"), {"micro_batch": 361}),
        (METHODS.build("trades", attack_steps=1), {"regularize": ("mixup", "cutout"), "output": "random"}),
    ],
    ids=["erm", "pgd", "pgd-train", "trades"],
)
@pytest.mark.usefixtures("double")
def test_each_seed_ends_as_if_trained_alone(method: Any, changes: dict[str, Any]) -> None:
    recipe = dataclasses.replace(FAST, **changes)
    together = trained(method, recipe, "together", prepare=False)
    alone = [train(RECORD, method, recipe, run_in("alone", seed, prepare=False)) for seed in SEEDS]
    check_same(together, "together", alone, "alone")
    for one, own in zip(together, alone, strict=True):
        assert one["train"]["trained_on"] == ["cpu, 1 thread, 2 seeds stacked"]
        assert one["train"]["passes"] == own["train"]["passes"]
        assert one["train"]["seed"] == own["train"]["seed"]
        assert one["train"].get("output") == own["train"].get("output")
    assert len({one["checkpoint"] for one in together}) == 2
    assert not list(Path("together").glob("state/*/*")), "finished trainings leave no state"


def test_attacks_on_evaluation_copies_are_stacked_too() -> None:
    method, recipe = METHODS.build("pgd", attack_steps=1), dataclasses.replace(FAST, val=0.03)
    together = trained(method, recipe, "together")
    alone = [train(RECORD, method, recipe, run_in("alone", seed)) for seed in SEEDS]
    check_same(together, "together", alone, "alone", 5e-3)
    for one, own in zip(together, alone, strict=True):
        assert one["train"]["prepared"] == own["train"]["prepared"] == ["folded", "channels-last"]
        assert one["train"]["passes"] == own["train"]["passes"]
        assert one["train"]["trained_on"] == ["cpu, 1 thread, 2 seeds stacked"]


def test_seeds_are_stacked_in_bfloat16() -> None:
    """Where rounding is a tenth of a gradient and more: whether they may be is found in float32."""
    recipe, said = dataclasses.replace(FAST, epochs=1), list[str]()
    run = run_in("st", precision="bf16", notify=said.append)
    section = train(RECORD, METHODS.build("n-fgsm"), recipe, run, SEEDS)["train"]
    assert section["precision"] == "bf16" and section["prepared"][-1] == "bf16" and not said
    assert section["trained_on"] == ["cpu, 1 thread, 2 seeds stacked"]


def test_the_first_seed_trains_all_and_the_others_are_found() -> None:
    run = run_in("st", 3)
    train(RECORD, METHODS.build("erm"), FAST, run, SEEDS)
    assert (run.store.computed, run.store.found) == (1, 0)
    for seed in SEEDS:
        run = run_in("st", seed)
        train(RECORD, METHODS.build("erm"), FAST, run, SEEDS)
        assert (run.store.computed, run.store.found) == (0, 1)


def test_a_stacked_step_waits_no_more_than_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    backward, waits, launches = stacked._Stack.backward, [], []
    with PretendDevice() as device:

        def counted(self: Any, pieces: Any) -> None:
            device.reset()
            backward(self, pieces)
            waits.append(dict(device.waits))
            launches.append(device.launches.total())

        monkeypatch.setattr(stacked._Stack, "backward", counted)
        monkeypatch.setattr(loop, "reads_loss", lambda setup, number: False)
        run = run_in("st").changed(device="cuda")
        train(RECORD, METHODS.build("pgd", attack_steps=1), FAST, run, SEEDS)
    assert len(waits) == 4 and waits[2:] == [{}, {}], waits


class Pulled(BaseException):
    """The plug, pulled."""


@pytest.mark.usefixtures("double")
def test_an_interruption_goes_on_where_each_seed_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second seed's state of the first epoch is not stored any more, so it makes that epoch up alone."""
    keep, kept = Store.keep_state, []

    def pulled(self: Store, key: str, data: bytes) -> None:
        kept.append(key)
        if len(kept) == 2:
            raise Pulled
        keep(self, key, data)

    with monkeypatch.context() as patched, pytest.raises(Pulled):
        patched.setattr(Store, "keep_state", pulled)
        trained(METHODS.build("erm"), FAST, "together")
    epochs, begin = [], loop.Epoch.__init__

    def watched(self: Any, setup: Any, state: Any, pace: Any) -> None:
        epochs.append((setup.settings.seed, state.epoch))
        begin(self, setup, state, pace)

    with monkeypatch.context() as patched:
        patched.setattr(loop.Epoch, "__init__", watched)
        again = trained(METHODS.build("erm"), FAST, "together")
    assert epochs == [(3, 0), (0, 1), (3, 1)]
    alone = [train(RECORD, METHODS.build("erm"), FAST, run_in("alone", seed)) for seed in SEEDS]
    check_same(again, "together", alone, "alone")


@pytest.mark.usefixtures("double")
def test_a_seed_that_diverges_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = (0, 3, 4)
    finish = step.Step.finish

    def diverged(self: Any) -> Tensor:
        loss = finish(self)
        with torch.no_grad():
            if self.setup.settings.seed == 3 and self.state.epoch == 1:
                next(self.state.model.parameters()).fill_(torch.nan)  # as a step that is too long leaves them
        return loss

    monkeypatch.setattr(step.Step, "finish", diverged)
    method = METHODS.build("erm")
    found = [train(RECORD, method, FAST, run_in("together", seed), seeds) for seed in (0, 4)]
    with pytest.raises(RbError, match="diverged"):
        train(RECORD, method, FAST, run_in("together", 3), seeds)
    alone = [train(RECORD, method, FAST, run_in("alone", seed)) for seed in (0, 4)]
    check_same(found, "together", alone, "alone")


@pytest.mark.parametrize("place", ["loop.validation.Checks.measure", "step.Step.finish"])
def test_memory_that_runs_out_names_what_to_change(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, *how: Any, **more: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(f"rbtools.trainer.{place}", full)
    with pytest.raises(RbError, match=r"2 seeds of .* images at once\. Use a smaller --stack-seeds"):
        trained(METHODS.build("erm"), FAST, "together")


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("at-pr", {"settings": "batch"}, "depends on the others of its batch"),
        ("fgsm-pgi", {}, "keeps something of each image"),
        ("ibp", {}, "follows the operations"),
    ],
)
def test_what_is_known_not_to_stack_is_said(name: str, changes: dict[str, Any], why: str) -> None:
    assert why in str(obstacle_to_stacking(METHODS.build(name, **changes), FAST))
    assert obstacle_to_stacking(METHODS.build("trades"), FAST) is None
    awp = dataclasses.replace(FAST, regularize=("awp",))
    assert "awp" in str(obstacle_to_stacking(METHODS.build("erm"), awp))


def test_what_turns_out_not_to_stack_trains_alone_and_says_why() -> None:
    """at-pr sends the images of a batch that still move through the network."""
    said: list[str] = []
    method = METHODS.build("at-pr", candidates=1, steps_min=1, steps_max=2, walk_steps=1)
    recipe = dataclasses.replace(FAST, epochs=1)
    run = run_in("together", notify=said.append)
    found = train(RECORD, method, recipe, run, SEEDS)
    assert any("one after another" in one and "parts of a batch" in one for one in said), said
    assert found["checkpoint"] == train(RECORD, method, recipe, run_in("alone"))["checkpoint"]
    assert "trained_on" not in found["train"]


def test_other_gradients_than_alone_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network whose pass does not follow its weights alone: here each network looks up another number."""
    through = stacked._Stacked.through
    monkeypatch.setattr(
        stacked._Stacked, "through", lambda self, network, parts: through(self, network, parts).flip(0)
    )
    said: list[str] = []
    run = run_in("together", notify=said.append)
    train(RECORD, METHODS.build("erm"), dataclasses.replace(FAST, epochs=1), run, SEEDS)
    assert any("compute something else than erm alone" in one for one in said), said


def test_rb_train_writes_a_record_of_each_seed() -> None:
    how = ["--method", "erm", "--epochs", "1", "--batch-size", "721", "--val", "0", "--device", "cpu"]
    other = {**RECORD, "arch": {**RECORD["arch"], "channels": 1}}
    done = invoke(rb_train.main, [*how, "--seed", "0,1,2", "--stack-seeds", "2"], other, RECORD)
    assert done.exit_code == 0, done.stderr
    found = records(done)
    assert [one["train"]["seed"] for one in found] == [0, 1, 2, 0, 1, 2]
    stacks = [one["train"].get("trained_on") for one in found]
    assert stacks == [*[["cpu, 1 thread, 2 seeds stacked"]] * 2, None] * 2, stacks
    assert len({json.dumps(one["checkpoint"]) for one in found}) == 6


def test_rb_train_says_once_what_is_not_stacked() -> None:
    how = ["--method", "fgsm-pgi", "--epochs", "0", "--seed", "0,1", "--stack-seeds", "2"]
    done = invoke(rb_train.main, how, RECORD)
    assert done.exit_code == 0 and done.stderr.count("trained one after another") == 1, done.stderr
    done = invoke(rb_train.main, ["--stack-seeds", "2", "--force", "--jobs", "2"], RECORD)
    assert done.exit_code == 2 and "Leave out one of the three" in done.stderr
