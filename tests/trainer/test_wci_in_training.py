"""The Weight-Curvature Index in a training: as a term of the loss, and as a rule that stops it."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools.measures import wci
from rbtools.trainer import tracking
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.train_model import train
from rbtools.training import METHODS
from tests.networks import images_for
from tests.trainings import ARCH, Record, run_in

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


PGD = METHODS.build("pgd", attack_steps=1)
STOPS = Recipe(
    epochs=9, batch_size=721, lr=0.1, val=0.0, track=("wci",), every=1, stop_on="wci", stop_patience=2
)
CURVE = (5.0, 6.0, 4.0, 4.5, 4.5, 4.6, 4.7, 4.8)


def go(how: Recipe, folder: str = "rb-store") -> Record:
    return train({"schema": 1, "arch": ARCH}, PGD, how, run_in(folder))


@pytest.fixture
def curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements that belong to the epoch, whichever process makes them."""

    def after(self: Any, state: Any, *, last: bool) -> None:
        due = last or state.epoch % self.tracking.every == 0
        state.tracked.setdefault("wci", []).append(CURVE[state.epoch - 1] if due else None)

    monkeypatch.setattr(tracking.Tracker, "after", after)


@pytest.mark.parametrize(
    ("values", "count", "risen"),
    [
        ((1.0, 2.0), 1, True),
        ((1.0, 1.0), 1, False),
        ((2.0, 1.0, 2.0), 2, False),
        ((None, 1.0, None, 2.0, None, 3.0, None), 2, True),
        ((1.0, 2.0, 3.0, 2.5), 2, False),
    ],
)
def test_what_counts_as_a_rise(values: tuple[float | None, ...], count: int, risen: bool) -> None:
    assert tracking.has_risen(values, count) is risen


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
    def trainings(how: Recipe) -> int:
        run = run_in()
        train({"schema": 1, "arch": ARCH}, PGD, how, run)
        return run.store.computed

    once = dataclasses.replace(STOPS, epochs=1)
    without = dataclasses.replace(once, stop_on=None)
    changes: Iterator[Recipe] = iter((once, without, dataclasses.replace(once, every=2), copy.copy(once)))
    assert [trainings(how) for how in changes] == [1, 1, 1, 0]


def test_the_term_is_there_where_the_filter_leaves_all_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = itertools.cycle([0.0, 1.0])  # at x', then at x

    def judged(logits: Tensor, labels: Tensor) -> Tensor:
        plain = nn.functional.cross_entropy(logits, labels, reduction="none")
        return plain if logits.requires_grad else torch.full_like(plain, next(lowered))

    monkeypatch.setattr("rbtools.training.chen_lee.cross_entropy", judged)
    options = {"filter": "chen-lee", "attack_steps": 2}
    assert index_after("pgd", regularize=("wci",), wci_weight=1.0, **options) < index_after("pgd", **options)
