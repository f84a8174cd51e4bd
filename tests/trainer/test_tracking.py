"""Measures along a training: the numbers, the same weights as without, interruptions, and the store."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rbtools import datasets
from rbtools.errors import RbError
from rbtools.measures.base import MeasureBatch
from rbtools.measures.wci import WCI
from rbtools.models import checkpoint
from rbtools.rng.draws import Draws
from rbtools.store import Store, listing
from rbtools.trainer import loop, tracking, validation
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.train_model import train
from rbtools.training import METHODS
from tests.trainings import ARCH, Record, history, run_in

HOW = Recipe(epochs=3, batch_size=700, lr=0.1)
TRACKED = dataclasses.replace(HOW, track=("wci", "robust"), every=2, track_n=60)
PGD = METHODS.build("pgd", attack_steps=1, eps=32 / 255, step_size=16 / 255)


def go(how: Recipe, store: str = "rb-store", arch: Any = ARCH, method: Any = PGD, **options: Any) -> Record:
    return train({"schema": 1, "arch": arch}, method, how, run_in(store, **options))


@pytest.fixture(autouse=True)
def _few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = lambda self: {  # noqa: E731
        name: WCI(probes=2) for name in self.names if name != "robust"
    }
    monkeypatch.setattr(tracking.Tracking, "measures", quick)
    monkeypatch.setattr(WCI, "size", (2, 20))


@pytest.mark.slow
def test_the_numbers_are_those_of_the_weights() -> None:
    record = go(TRACKED)
    model, _, _ = checkpoint.load(Store("rb-store").object(record["checkpoint"]))
    model.requires_grad_(True)
    attack, found = validation.attack_of(PGD), {}
    for split in ("train", "test"):
        images, labels = (getattr(datasets.load("digits", split), name) for name in ("images", "labels"))
        ids = datasets.subset(labels, 60, seed=0)
        pixels = images[ids].float() / 255
        perturbed = attack.perturb(model, pixels, labels[ids], Draws(0, f"tracking/{split}", ids))
        assert float((perturbed - pixels).abs().max()) <= 32 / 255 + 1e-6
        with torch.no_grad():
            logits = model(perturbed)
        found[f"{split}_robust_loss"] = float(torch.nn.functional.cross_entropy(logits, labels[ids]))
        found[f"{split}_robust_error"] = float((logits.argmax(1) != labels[ids]).float().mean())
        if split == "train":
            measure = WCI(probes=2)
            made = []
            for number, part in enumerate(torch.arange(40).split(20)):
                draws = Draws(0, "tracking/wci", ids[part])
                probes = Draws(0, "tracking/wci/probes", torch.tensor([number]))
                batch = MeasureBatch(pixels[part], labels[ids][part], draws, probes, perturbed[part])
                made.append(measure(model, batch))
            index, trace = measure.values(made, [20, 20])
            found |= {"wci": index.value, "wci.se": index.se, "wci.trace": trace.value}
    for what in ("loss", "error"):
        found[f"robust_{what}_gap"] = found[f"test_robust_{what}"] - found[f"train_robust_{what}"]
    kept = record["train"]["history"]
    assert {name: kept[name][-1] for name in found} == pytest.approx(found, rel=1e-4, abs=1e-6)
    # Nothing after the first epoch; the second, and the last one, were due.
    assert all(kept[name][0] is None and None not in kept[name][1:] for name in found)
    assert len(kept["wci"]) == len(kept["loss"]) == 3 and kept["wci"][1] != kept["wci"][2]
    told = record["train"]["tracking"]
    assert (told["every"], told["steps"], told["robust"]) == (2, 10, {"n_train": 60, "n": 60})
    assert told["wci"] == {"n_train": 40, "probes": 2}


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        (ARCH, {"ema": 0.9, "val": 0.1}),
        ({"space": "zoo", "name": "simplecnn"}, {"epochs": 2, "every": 1, "track_n": 10}),
    ],
    ids=["BatchNorm", "dropout"],
)
@pytest.mark.slow
def test_weights_and_history_are_those_of_a_training_without(arch: Any, changes: dict[str, Any]) -> None:
    tracked = go(dataclasses.replace(TRACKED, **changes), "with", arch)
    plain = go(dataclasses.replace(TRACKED, track=(), **changes), "without", arch)
    assert tracked["checkpoint"] == plain["checkpoint"]
    assert "wci" in history(tracked)
    assert {name: history(tracked)[name] for name in history(plain)} == history(plain)
    assert tracked["train"]["passes"] == plain["train"]["passes"]


@pytest.mark.slow
def test_what_is_found_in_the_store() -> None:
    def computed(how: Recipe) -> tuple[int, Record]:
        run = run_in()
        record = train({"schema": 1, "arch": ARCH}, PGD, dataclasses.replace(how, epochs=1), run)
        return run.store.computed, record

    (first, plain), (second, tracked) = computed(HOW), computed(TRACKED)
    assert (first, second) == (1, 1)  # the history cannot be had without training again
    assert plain["checkpoint"] == tracked["checkpoint"]
    assert "tracking" not in plain["train"] and "wci" not in plain["train"]["history"]
    again = computed(dataclasses.replace(TRACKED, track=("robust", "wci")))
    assert again == (0, tracked)
    without, found = computed(HOW)  # the weights are there
    assert without == 0 and found["checkpoint"] == plain["checkpoint"]
    assert found["train"]["history"].keys() == plain["train"]["history"].keys()
    for change in ({"every": 1}, {"track_n": 50}, {"track": ("robust",)}):
        assert computed(dataclasses.replace(TRACKED, **change))[0] == 1
    kinds = [one.record and one.record["stored"]["kind"] for one in listing.records(Store("rb-store"))]
    assert sorted(map(str, kinds)) == ["tracking"] * 4 + ["training"]
    # Weights that were cleared away are trained again, for one and for the other.
    Store("rb-store").object(plain["checkpoint"]).unlink()
    assert computed(TRACKED)[0] == 1


def test_what_cannot_be_tracked_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking.Tracker, "_robust", lambda *_: {"train_robust_loss": float("nan")})
    record = go(dataclasses.replace(TRACKED, track=("robust",), epochs=1))
    assert record["train"]["history"]["train_robust_loss"] == [None]  # no finite number
    images = np.zeros((40, 4, 4, 1), np.uint8)
    np.savez(tmp_path / "one.npz", x_train=images, y_train=np.arange(40) % 2)
    for change, data, message in (
        ({"track": ("wcy",)}, "digits", r"The measure to track is 'wcy'\. Choose from: robust, .*wci"),
        ({"every": 0}, "digits", "--every is 0"),
        ({"batch_size": 20}, f"npz:{tmp_path / 'one.npz'}", "has no split 'test'"),
    ):
        with pytest.raises(RbError, match=message):
            go(dataclasses.replace(TRACKED, **change), dataset=data)


def test_measuring_is_not_in_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def slow(self: Any, model: Any) -> dict[str, float | None]:
        clock[0] += 100.0
        return {"wci": 1.0}

    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(tracking.Tracker, "measure", slow)
    record = go(dataclasses.replace(TRACKED, every=1))
    assert clock == [300.0] and record["train"]["history"]["seconds"] == [0.0] * 3
