"""The copy that inner attacks run on: the same function of the weights as they are after each step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from rbtools import models
from rbtools.models.normalize import Normalized
from rbtools.trainer.step_networks import eval_copy

SHAPE = (3, 16, 16)


CELLS = {"space": "nasbench201", "index": 13714, "channels": 4, "cells": 1}


def network(arch: dict[str, Any] = CELLS) -> nn.Module:
    torch.manual_seed(0)
    return Normalized(models.build(arch, classes=10, shape=SHAPE), [0.4, 0.5, 0.6], [0.2, 0.25, 0.3])


def moved(model: nn.Module) -> None:
    """A step of a training: weights and statistics change."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    model(torch.rand(8, *SHAPE)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("arch", [CELLS, {"space": "zoo", "name": "preactresnet18"}])
@pytest.mark.slow
def test_the_shadow_follows_the_network(arch: dict[str, Any]) -> None:
    model = network(arch)
    made = eval_copy(model, SHAPE, bf16=False)
    assert made is not None and made.folds and not any(p.requires_grad for p in made.parameters())
    before = [module.training for module in model.modules()]
    images = torch.rand(5, *SHAPE)
    for _ in range(2):
        moved(model)
        made.update()
        with torch.no_grad():
            wanted = copy.deepcopy(model).eval()(images)
            torch.testing.assert_close(made(images), wanted, rtol=1e-3, atol=1e-4)
    assert [module.training for module in model.modules()] == before
    count = sum(isinstance(m, nn.BatchNorm2d) for m in made.modules())
    assert count < sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())


def test_in_bfloat16_the_logits_are_near_and_float32() -> None:
    model = network()
    made = eval_copy(model, SHAPE, bf16=True)
    moved(model)
    made.update()
    images = torch.rand(5, *SHAPE)
    found = made(images)
    assert found.dtype == torch.float32
    wanted = model.eval()(images)
    assert float((found - wanted).abs().max().detach()) < 0.05 * float(wanted.abs().max().detach())
    assert all(p.dtype == torch.bfloat16 for p in made.parameters())
