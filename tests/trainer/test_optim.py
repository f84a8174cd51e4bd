"""Optimisers without the compiler's guards: torch's own arithmetic, and nothing of the compiler."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from rbtools.trainer import optim
from rbtools.trainer.recipe import Recipe

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


def test_no_optimiser_imports_the_compiler():
    code = """
import sys, torch
from rbtools.trainer import optim
model = torch.nn.Linear(4, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model(torch.rand(3, 4)).sum().backward()
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
