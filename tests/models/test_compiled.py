"""--prepare compile: repeated blocks are compiled in place; networks that cannot be compiled run
unchanged."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools import models
from rbtools.evaluation import fast_model
from rbtools.evaluation.fast_model import make_fast_model
from rbtools.models import compiled

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo

CELL = "|none~0|+|none~0|none~1|+|nor_conv_1x1~0|none~1|none~2|"
SHAPE = (3, 12, 12)


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Traced as by the compiler, and run as it is: a C++ compiler takes minutes."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    monkeypatch.setattr(fast_model, "seconds_of_a_pass", takes(2.0, 1.0))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def takes(before: float, after: float) -> Any:
    """Times of a pass before a network is compiled and after."""
    times = iter([before, after])
    return lambda network, images: next(times)


def cells(in_a_stage: int = 1) -> nn.Module:
    arch = {"space": "nasbench201", "str": CELL, "channels": 4, "cells": in_a_stage}
    return models.build(arch, classes=4, shape=SHAPE).eval()


def test_the_repeated_blocks_are_the_outermost_of_a_class() -> None:
    blocks = compiled.repeated_blocks(cells())
    names = [type(block).__name__ for block in blocks]
    assert sorted(set(names)) == ["CellModule", "ResidualBlock"] and len(names) == 3 + 2
    assert compiled.repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


def test_a_copy_compiled_by_blocks_has_the_logits_and_gradients_of_the_network() -> None:
    network, said, traced = cells(2), list[str](), list[int]()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.5, 0.5)  # type: ignore[union-attr]
    compiled.BACKEND = lambda graph, inputs: traced.append(1) or graph.forward
    fast = make_fast_model(network, "fp32", SHAPE, compiled=True, notify=said.append)
    assert fast.steps == ("folded", "channels-last", "compiled") and not said and fast.remark is None
    count = len(traced)
    assert 0 < count < 2 * 8, "cells of as many channels share a program"
    images = torch.rand(5, *SHAPE).requires_grad_(True)
    logits = [model(images) for model in (fast.model, network)]
    gradients = [torch.autograd.grad(one.square().sum(), images)[0] for one in logits]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert len(traced) == count, "another batch size compiles nothing"


def test_where_compiling_gains_nothing_the_network_runs_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_model, "seconds_of_a_pass", takes(1.0, 1.5))
    network, said = cells(), list[str]()
    fast = make_fast_model(network, "fp32", SHAPE, compiled=True, notify=said.append)
    assert "compiled" not in fast.steps
    assert said == ["The network is not compiled: its passes take 1.50 times as long then."]
    assert all(module._compiled_call_impl is None for module in fast.model.modules())


def test_a_pass_is_timed_with_its_gradient_compiled_and_not() -> None:
    calls: list[bool] = []

    class Slow(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            calls.append(torch.is_grad_enabled())
            time.sleep(0.01 if self._compiled_call_impl is None else 0)
            return super().forward(images)

    network = Slow(3, 2)
    network._compiled_call_impl = network._call_impl
    with compiled.undone(network):
        before = compiled.seconds_of_a_pass(network, torch.rand(4, 3))
    assert before > 0.02 and calls == [False, True] * (len(calls) // 2)
    assert network._compiled_call_impl is not None
    compiled.undo(network)
    assert network._compiled_call_impl is None


def fails(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("no compiler here")


def doubled(graph: Any, inputs: Any) -> Any:
    return lambda *args: tuple(2 * output for output in graph.forward(*args))


@pytest.mark.parametrize(
    ("backend", "reason"), [(fails, "no compiler here"), (doubled, "compiled logits differ")]
)
def test_what_cannot_be_compiled_runs_as_it_is_and_says_why(
    backend: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "BACKEND", backend)
    network, said, images = cells(), list[str](), torch.rand(2, *SHAPE)
    fast = make_fast_model(network, "fp32", SHAPE, compiled=True, notify=said.append)
    assert "compiled" not in fast.steps
    torch.testing.assert_close(fast.model(images), network(images))
    assert len(said) == 1 and "not compiled" in said[0] and reason in said[0]
