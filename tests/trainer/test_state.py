"""The state of a training, which saves and loads itself, and the optimisers: torch's own arithmetic."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from rbtools.trainer import optim, regularize
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.state import TrainState, threads

RECIPE = Recipe(epochs=4, batch_size=4, schedule="step", milestones=(2,))
SHAPE = (3, 1, 2, 2)


def state(seed: int, ema: float | None = 0.9) -> TrainState:
    """A state before the first epoch, of a network with these random weights."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.BatchNorm1d(2))
    averaged = None if ema is None else regularize.averaged(model, ema)
    optimizer = optim.of(RECIPE, model.parameters(), fused=False)
    schedule = optim.schedule(optimizer, RECIPE, 2)
    kept = {"delta": torch.zeros(SHAPE, dtype=torch.float16)}
    return TrainState(model, optimizer, schedule, averaged, kept)


def stepped(found: TrainState, epochs: int) -> TrainState:
    """The state after some epochs of a step each."""
    for epoch in range(1, epochs + 1):
        found.optimizer.zero_grad()
        found.model(torch.rand(SHAPE)).square().sum().backward()
        found.optimizer.step()
        found.schedule.step()
        if found.averaged is not None:
            found.averaged.update_parameters(found.model)
        found.epoch = epoch
        found.history.setdefault("loss", []).append(1.0 / epoch)
        found.tracked.setdefault("wci", []).append(None if epoch == 1 else 0.5)
        found.carried["delta"] += 0.25
        found.passes["forward"] += 3
    found.best = {"epoch": 1, "rank": [0.5, -1.0], "state": {"w": torch.ones(2)}}
    found.drawn = {"w": torch.zeros(2)}
    found.places.append("cpu, 1 thread")
    return found


def plain(value: Any) -> Any:
    """A value as nested containers of numbers and text, which == compares."""
    if isinstance(value, Tensor):
        return ["tensor", str(value.dtype), value.tolist()]
    if isinstance(value, AveragedModel):  # counts its updates, of which only the first would matter
        return plain(value.module)
    if isinstance(value, nn.Module | torch.optim.Optimizer) or hasattr(value, "state_dict"):
        return plain(value.state_dict())
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def fields(found: TrainState) -> dict[str, Any]:
    return {one.name: plain(getattr(found, one.name)) for one in dataclasses.fields(found)}


@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_state_loads_what_it_saved(ema: float | None) -> None:
    saved = stepped(state(0, ema), 2)
    saved.stopped = True
    loaded = state(1, ema)
    passes = loaded.passes
    assert fields(loaded) != fields(saved)
    loaded.load(saved.to_bytes())
    assert fields(loaded) == fields(saved)
    assert loaded.passes is passes, "the counters of the networks write into it"
    torch.manual_seed(2)
    ours = fields(stepped(saved, 1))
    torch.manual_seed(2)
    assert fields(stepped(loaded, 1)) == ours


def test_threads_of_no_state_are_unknown() -> None:
    assert threads(None) is None and threads(b"damaged") is None
    assert threads(state(0).to_bytes()) == torch.get_num_threads()


KINDS = [
    (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (optim.Adam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
]


def trained(kind, options, state=None, steps=3):
    """The weights after some steps, and the optimiser; `state` is the state of an earlier optimiser."""
    weight = nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3))
    optimizer = kind([weight], **options)
    if state is not None:
        optimizer.load_state_dict(state)
    for _ in range(steps):
        optimizer.zero_grad()
        (weight.exp() - weight).sum().backward()
        optimizer.step()
    return weight.detach(), optimizer


@pytest.mark.parametrize(("ours", "theirs", "options"), KINDS)
def test_steps_and_states_are_those_of_torch(ours, theirs, options):
    expected, reference = trained(theirs, options)
    found, optimizer = trained(ours, options)
    assert torch.equal(found, expected)
    kept, known = optimizer.state_dict(), reference.state_dict()
    assert kept.keys() == known.keys()
    assert kept["param_groups"] == known["param_groups"]
    again = [trained(ours, options, state)[0] for state in (kept, known)]
    assert torch.equal(again[0], again[1])


def test_a_recipe_sets_what_its_optimiser_takes():
    weight = nn.Parameter(torch.ones(2))
    recipe = Recipe(lr=0.01, momentum=0.8, weight_decay=0.02, schedule="constant")
    (sgd,) = optim.of(replace(recipe, nesterov=True), [weight], fused=False).param_groups
    assert (sgd["lr"], sgd["momentum"], sgd["nesterov"], sgd["weight_decay"]) == (0.01, 0.8, True, 0.02)
    (adam,) = optim.of(replace(recipe, optimizer="adam"), [weight], fused=False).param_groups
    assert (adam["lr"], adam["betas"], adam["weight_decay"]) == (0.01, (0.8, 0.999), 0.02)
    assert "optimizer" not in recipe.config()  # trainings of earlier versions keep their keys
    config = replace(recipe, optimizer="adam").config()
    assert config["optimizer"] == "adam" and "nesterov" not in config
