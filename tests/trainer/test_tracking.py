"""Measures along a training; the Weight-Curvature Index as a term of the loss and as a rule to stop."""

from __future__ import annotations

import dataclasses
import itertools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools import datasets
from rbtools.errors import RbError
from rbtools.measures import wci
from rbtools.measures.base import MeasureBatch
from rbtools.measures.wci import WCI
from rbtools.models import checkpoint
from rbtools.rng.draws import Draws
from rbtools.store import Store, listing
from rbtools.trainer import loop, tracking, validation
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.train_model import train
from rbtools.training import METHODS
from tests.networks import images_for
from tests.trainings import ARCH, Record, history, run_in

HOW = Recipe(epochs=3, batch_size=700, lr=0.1)
TRACKED = dataclasses.replace(HOW, track=("wci", "robust"), every=2, track_n=60)
PGD = METHODS.build("pgd", attack_steps=1, eps=32 / 255, step_size=16 / 255)


def go(how: Recipe, store: str = "rb-store", arch: Any = ARCH, method: Any = PGD, **options: Any) -> Record:
    return train({"schema": 1, "arch": arch}, method, how, run_in(store, **options))


def computed(how: Recipe) -> tuple[int, Record]:
    """How many trainings of one epoch were computed for this one, and its record."""
    run = run_in()
    record = train({"schema": 1, "arch": ARCH}, PGD, dataclasses.replace(how, epochs=1), run)
    return run.store.computed, record


@pytest.fixture(autouse=True)
def _few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(self: Any) -> dict[str, WCI]:
        return {name: WCI(probes=2) for name in self.names if name != "robust"}

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
    with pytest.raises(RbError, match="has no split 'test'"):
        go(dataclasses.replace(TRACKED, batch_size=20), dataset=f"npz:{tmp_path / 'one.npz'}")


def test_measuring_is_not_in_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def slow(self: Any, model: Any) -> dict[str, float | None]:
        clock[0] += 100.0
        return {"wci": 1.0}

    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(tracking.Tracker, "measure", slow)
    record = go(dataclasses.replace(TRACKED, every=1))
    assert clock == [300.0] and record["train"]["history"]["seconds"] == [0.0] * 3


LABELS = torch.arange(12) % 3


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def test_the_gradient_of_the_index_is_that_of_finite_differences() -> None:
    net, images = small().double().train(), images_for(12).double()
    signs = torch.randint(0, 2, (12, 3)).double() * 2 - 1

    def index() -> Tensor:
        return wci.of_batch(net, net(images), signs)

    index().backward()
    for name, weight in net.named_parameters():
        assert weight.grad is not None
        for place in range(0, weight.numel(), max(weight.numel() // 7, 1)):
            values = []
            for move in (1e-6, -1e-6):
                entries = weight.data.view(-1)
                entries[place] += move
                values.append(float(index().detach()))
                entries[place] -= move
            found = float(weight.grad.view(-1)[place])
            assert found == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-7), (name, place)


def test_over_all_probes_its_square_is_the_index_of_a_layer() -> None:
    """|W|^2 times the trace, mean over images of (sum of p - sum of p^2) |x|^2."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 2, bias=False)).double()
    images = images_for(3, (1, 2, 3)).double()
    logits = net(images)
    squares = [
        float(wci.of_batch(net, logits, torch.tensor(signs).double().view(3, 2)).detach()) ** 2
        for signs in itertools.product((-1, 1), repeat=6)
    ]
    p = logits.softmax(1)
    trace = ((1 - p.square().sum(1)) * images.flatten(1).square().sum(1)).mean()
    exact = float((net[1].weight.square().sum() * trace).detach())
    assert sum(squares) / len(squares) == pytest.approx(exact, rel=1e-9)
    net[1].weight.data.mul_(1e6)  # probabilities of zero
    wci.of_batch(net, net(images), torch.ones(3, 2).double()).backward()
    assert net[1].weight.grad.isfinite().all()


def index_after(method: str, **options: Any) -> float:
    """The index of a small network on its training images after a short training."""
    net = small()
    few = {"augment": (), "val": 0.0, "epochs": 4, "batch_size": 6, "lr": 0.05, "weight_decay": 0.0}
    done = rbtools.fit(net, (images_for(12), LABELS), method, **few, **options)
    assert all(value == value for value in done.history["loss"])
    net.eval()
    signs = torch.randint(0, 2, (64, 12, 3), generator=torch.Generator().manual_seed(0)).float() * 2 - 1
    logits = net(images_for(12))
    return float(torch.stack([wci.of_batch(net, logits, one).detach() for one in signs]).mean())


def test_a_training_with_the_term_ends_with_a_lower_index() -> None:
    plain, none = index_after("erm"), index_after("erm", regularize=("wci",), wci_weight=0.0)
    low = index_after("erm", regularize=("wci",), wci_weight=0.3)
    assert none == plain and low < 0.8 * plain


STOPS = Recipe(
    epochs=9, batch_size=721, lr=0.1, val=0.0, track=("wci",), every=1, stop_on="wci", stop_patience=2
)
CURVE = (5.0, 6.0, 4.0, 4.5, 4.5, 4.6, 4.7, 4.8)


@pytest.fixture
def curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements that belong to the epoch, whichever process makes them."""

    def after(self: Any, state: Any, *, last: bool) -> None:
        due = last or state.epoch % self.tracking.every == 0
        state.tracked.setdefault("wci", []).append(CURVE[state.epoch - 1] if due else None)

    monkeypatch.setattr(tracking.Tracker, "after", after)


@pytest.mark.slow
@pytest.mark.usefixtures("curve")
def test_a_training_stops_after_so_many_measurements_that_rise() -> None:
    told = go(STOPS)["train"]
    assert told["stopped_after"] == 7 and told["epochs"] == 9  # 4.5, 4.6, 4.7
    assert told["history"]["wci"] == list(CURVE[:7]) and len(told["history"]["loss"]) == 7
    assert (told["config"]["stop_on"], told["config"]["stop_patience"]) == ("wci", 2)
    seldom = go(dataclasses.replace(STOPS, every=2, stop_patience=1))["train"]
    assert seldom["stopped_after"] == 6  # 6.0, 4.5, 4.6
    assert "stopped_after" not in go(dataclasses.replace(STOPS, epochs=8, stop_patience=4))["train"]


@pytest.mark.slow
def test_a_training_that_may_stop_is_another_one_in_the_store() -> None:
    without = dataclasses.replace(STOPS, stop_on=None)
    changes = (STOPS, without, dataclasses.replace(STOPS, every=2), STOPS)
    assert [computed(how)[0] for how in changes] == [1, 1, 1, 0]
