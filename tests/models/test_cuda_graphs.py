"""Captured passes, with simulated CUDA graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools.attacks import ATTACKS
from rbtools.models import cuda_graphs
from tests import pretend_graphs
from tests.networks import convolutional, draws_for, images_for
from tests.pretend_graphs import PretendGraph


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[PretendGraph]:
    return pretend_graphs.install(monkeypatch)


def images(count: int, seed: int = 1) -> Tensor:
    return images_for(count, (1, 8, 8), seed)


def refuse(sentence: str) -> None:
    raise AssertionError(sentence)


def frozen() -> tuple[nn.Module, nn.Module]:
    model = convolutional(1, 5, width=4, norm=True).requires_grad_(False)
    return model, cuda_graphs.frozen(model, images(2), refuse)


def gradient(model: nn.Module, points: Tensor) -> tuple[Tensor, Tensor]:
    points = points.clone().requires_grad_(True)
    logits = model(points)
    return logits.detach(), torch.autograd.grad(logits.logsumexp(1).sum(), points)[0]


def test_sizes_of_padding() -> None:
    assert [cuda_graphs.padded(n) for n in (1, 16, 17, 25, 33, 49, 65, 512, 513)] == [
        *(16, 16, 24, 32, 48, 64, 96, 512, 768)
    ]
    assert all(n <= cuda_graphs.padded(n) <= max(16, 1.5 * n) for n in range(1, 3000))


@pytest.mark.parametrize("count", [3, 16, 20])
def test_a_replay_is_the_network(count: int, graphs: list[PretendGraph]) -> None:
    model, graphed = frozen()
    for seed in range(cuda_graphs.CALLS + 2):
        points = images(count, seed)
        for wanted, got in zip(gradient(model, points), gradient(graphed, points), strict=True):
            torch.testing.assert_close(got, wanted)
        with torch.no_grad():
            torch.testing.assert_close(graphed(points), model(points))
    assert all(graph.replays > 2 for graph in graphs[-3:])
    assert len(graphs) == (3 if count <= 16 else 5)  # forward, backward, forward alone; the probe's two


def test_weights_may_change_between_replays(graphs: list[PretendGraph]) -> None:
    model, graphed = frozen()
    points = images(4)
    before = graphed(points.requires_grad_(True)).detach()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    for wanted, got in zip(gradient(model, points.detach()), gradient(graphed, points.detach()), strict=True):
        torch.testing.assert_close(got, wanted)
    assert not torch.allclose(before, graphed(points).detach())


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
        torch.testing.assert_close(
            one[k], torch.autograd.grad(exact[:, k].sum(), first, retain_graph=True)[0]
        )


def test_an_attack_perturbs_as_on_the_network(graphs: list[PretendGraph]) -> None:
    model, graphed = frozen()
    points, labels = images(6), torch.arange(6) % 5
    attack = ATTACKS.build("apgd-ce", eps=0.1, steps=8)
    wanted, got = (attack(m, points, labels, draws_for(6)) for m in (model, graphed))
    assert torch.equal(got, wanted)
    assert sum(graph.replays for graph in graphs) > 16


def test_logits_without_a_gradient_are_replayed(graphs: list[PretendGraph]) -> None:
    class Detached(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.detach().flatten(1)[:, :5] * 2

    graphed = cuda_graphs.frozen(Detached(), images(2), refuse)
    logits = graphed(images(3).requires_grad_(True))
    assert not logits.requires_grad and torch.equal(logits, images(3).flatten(1)[:, :5] * 2)
    assert len(graphs) == 1 and graphs[0].replays == 4


def test_images_of_another_shape_are_recorded_apart(graphs: list[PretendGraph]) -> None:
    class Means(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3)) * torch.ones(1, 3)

    graphed, colour = cuda_graphs.frozen(Means(), images(2), refuse), torch.rand(2, 3, 8, 8)
    for _ in range(cuda_graphs.CALLS):
        torch.testing.assert_close(graphed(colour.requires_grad_(True)), colour.mean((2, 3)))
    assert len(graphs) == 4


def test_memory_that_was_given_back_is_recorded_again(graphs: list[PretendGraph]) -> None:
    model, graphed = frozen()
    assert isinstance(graphed, cuda_graphs.GraphedNetwork) and graphed.recordings
    graphed.release()
    assert not graphed.recordings and len(graphs) == 2
    for _ in range(cuda_graphs.CALLS):
        torch.testing.assert_close(gradient(graphed, images(4))[1], gradient(model, images(4))[1])
    assert len(graphs) == 4


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
        (lambda images: next(PASSES), "differs"),
        (len, "differs"),  # an example's logits depend on the batch
    ],
)
def test_a_network_that_cannot_be_recorded_says_why(
    factor: Callable[[Tensor], Any], reason: str, graphs: list[PretendGraph]
) -> None:
    model = Of(factor)
    sentences: list[str] = []
    assert cuda_graphs.frozen(model, images(2), sentences.append) is model
    assert len(sentences) == 1 and "CUDA graphs are not used" in sentences[0] and reason in sentences[0]


def test_an_older_torch_records_nothing_and_says_so(
    graphs: list[PretendGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    said: list[str] = []
    model = convolutional(1, 5)
    assert cuda_graphs.frozen(model, images(2), said.append) is model and not graphs
    assert len(said) == 1 and "torch is 2.6.0+cu124, they need 2.12" in said[0]


@pytest.mark.parametrize(
    ("value", "device", "usable"), [("1", "cuda", True), ("0", "cuda", False), ("1", "cpu", False)]
)
def test_graphs_are_off_until_asked_for(
    value: str, device: str, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RB_CUDA_GRAPHS", value)
    assert cuda_graphs.usable(torch.device(device)) is usable
    monkeypatch.delenv("RB_CUDA_GRAPHS")
    assert not cuda_graphs.usable(torch.device(device))
