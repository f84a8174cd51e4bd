"""Captured passes, with simulated CUDA graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rbtools.graphs
from rbtools.models import cuda_graphs
from rbtools.models.cuda_graphs import GraphedNetwork
from tests import pretend_graphs
from tests.networks import convolutional, images_for
from tests.pretend_graphs import PretendGraph


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[PretendGraph]:
    monkeypatch.setattr(cuda_graphs, "CALLS", 1)
    return pretend_graphs.install(monkeypatch)


def images(count: int, seed: int = 1) -> Tensor:
    return images_for(count, (1, 8, 8), seed)


def frozen(count: int = 4) -> tuple[nn.Module, GraphedNetwork]:
    model = convolutional(1, 5, width=4, norm=True).requires_grad_(False)
    return model, GraphedNetwork(model, count, pytest.fail)


def gradient(model: nn.Module, points: Tensor) -> tuple[Tensor, Tensor]:
    points = points.clone().requires_grad_(True)
    logits = model(points)
    return logits.detach(), torch.autograd.grad(logits.logsumexp(1).sum(), points)[0]


def test_a_replay_is_the_network(graphs: list[PretendGraph]) -> None:
    model, graphed = frozen()
    for seed in range(cuda_graphs.CALLS + 2):
        points = images(4, seed)
        for wanted, got in zip(gradient(model, points), gradient(graphed, points), strict=True):
            torch.testing.assert_close(got, wanted)
        with torch.no_grad():
            torch.testing.assert_close(graphed(points), model(points))
    with torch.no_grad():  # weights may change between replays
        for weight in model.parameters():
            weight.mul_(1.5)
    for wanted, got in zip(gradient(model, images(4)), gradient(graphed, images(4)), strict=True):
        torch.testing.assert_close(got, wanted)
    assert all(graph.replays > 2 for graph in graphs[-3:])
    assert len(graphs) == 3  # forward, backward, forward alone


def test_logits_whose_memory_was_overwritten_are_differentiated_anew(graphs: list[PretendGraph]) -> None:
    model, graphed = frozen()
    first, second = images(4, 1).requires_grad_(True), images(4, 2).requires_grad_(True)
    logits = graphed(first)
    graphed(second)
    replays = [graph.replays for graph in graphs]
    (late,) = torch.autograd.grad(logits.logsumexp(1).sum(), first)
    assert [graph.replays for graph in graphs] == replays
    torch.testing.assert_close(late, gradient(model, first.detach())[1])
    logits = graphed(first)
    one = [torch.autograd.grad(logits[:, k].sum(), first, retain_graph=True)[0] for k in range(2)]
    exact = model(first)
    for k in range(2):
        wanted = torch.autograd.grad(exact[:, k].sum(), first, retain_graph=True)[0]
        torch.testing.assert_close(one[k], wanted)


PASSES = itertools.count(1)


class Of(nn.Module):
    """The first pixels times a factor, which a function of the images gives."""

    def __init__(self, factor: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :5] * self.factor(images)


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (lambda images: float(images.detach().sum()), "not permitted when stream is capturing"),
        (lambda images: next(PASSES), "the results of the replay differ by"),
    ],
)
def test_a_network_that_cannot_be_recorded_says_why(
    factor: Callable[[Tensor], Any], reason: str, graphs: list[PretendGraph]
) -> None:
    model = Of(factor)
    sentences: list[str] = []
    graphed = GraphedNetwork(model, 2, sentences.append)
    for _ in range(2):
        graphed(images(2).requires_grad_(True))
    assert graphed.stopped and not graphed.recordings
    assert len(sentences) == 1 and "CUDA graphs are not used" in sentences[0] and reason in sentences[0]


def test_where_graphs_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, version, usable in (
        *(("", "2.13.0+cu130", True), ("0", "2.13.0+cu130", False)),
        *(("", "2.11.0", False), ("1", "2.11.0", True)),
    ):
        monkeypatch.setenv("RB_CUDA_GRAPHS", value)
        monkeypatch.setattr(rbtools.graphs.torch, "__version__", version)
        assert rbtools.graphs.usable(torch.device("cuda")) is usable
        assert not rbtools.graphs.usable(torch.device("cpu"))
