"""Recorded passes, on a pretend recorder."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools.attacks import ATTACKS
from rbtools.models import cuda_graphs
from rbtools.rng.draws import Draws
from rbtools.trainer import step_networks
from rbtools.training import METHODS
from tests import pretend_graphs
from tests.pretend_graphs import PretendGraph


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[PretendGraph]:
    return pretend_graphs.install(monkeypatch)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


def images(count: int, seed: int = 1) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def refuse(sentence: str) -> None:
    raise AssertionError(sentence)


def frozen() -> tuple[nn.Module, nn.Module]:
    model = network().eval().requires_grad_(False)
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
    wanted, got = (attack(m, points, labels, Draws(0, "attack", torch.arange(6))) for m in (model, graphed))
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
    with cuda_graphs.released(graphed):
        assert graphed.recordings
    assert not graphed.recordings and len(graphs) == 2
    for _ in range(cuda_graphs.CALLS):
        torch.testing.assert_close(gradient(graphed, images(4))[1], gradient(model, images(4))[1])
    assert len(graphs) == 4


class _Mixes(nn.Module):
    """An example's logits depend on the batch."""

    def forward(self, images: Tensor) -> Tensor:
        return (images - images.mean(0)).flatten(1)[:, :5]


class _Reads(nn.Module):
    """Python looks at a value."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :5] * float(images.detach().sum())


class _Random(nn.Module):
    """Another function in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, images: Tensor) -> Tensor:
        self.passes += 1
        return images.flatten(1)[:, :5] * self.passes


@pytest.mark.parametrize(
    ("model", "reason"),
    [(_Reads(), "not permitted when stream is capturing"), (_Random(), "differs"), (_Mixes(), "differs")],
)
def test_a_network_that_cannot_be_recorded_says_why(
    model: nn.Module, reason: str, graphs: list[PretendGraph]
) -> None:
    sentences: list[str] = []
    assert cuda_graphs.frozen(model, images(2), sentences.append) is model
    assert len(sentences) == 1 and "CUDA graphs are not used" in sentences[0] and reason in sentences[0]


def test_no_graphs_on_a_cpu() -> None:
    model = network()
    assert cuda_graphs.frozen(model, images(2), refuse) is model
    assert cuda_graphs.training(model, torch.device("cpu"), refuse) is None


def _train(model: nn.Module, own: nn.Module, begin: Any, sizes: tuple[int, ...]) -> list[Tensor]:
    """Steps with a clean and an adversarial pass; the losses."""
    model.train()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step, size in enumerate(sizes):
        begin()
        points, labels = images(size, step), torch.arange(size) % 5
        optimizer.zero_grad(set_to_none=True)
        clean, moved = model(points), model((points + 0.1).clamp(0, 1))
        loss = (
            nn.functional.cross_entropy(clean, labels) + (clean.softmax(1) - moved.softmax(1)).square().sum()
        )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return losses


def test_training_steps_are_the_networks_own(graphs: list[PretendGraph]) -> None:
    own = network()
    other = copy.deepcopy(own)
    graphed = cuda_graphs.training(other, torch.device("cpu"), refuse)
    assert graphed is not None
    sizes = (8, 8, 8, 8, 8, 5, 8)
    wanted = _train(own, own, lambda: None, sizes)
    got = _train(graphed, other, graphed.begin, sizes)
    torch.testing.assert_close(got, wanted)
    for name, value in own.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value)
    assert len(graphs) == 4 and all(graph.replays >= 4 for graph in graphs)


def test_a_pass_with_other_buffers_is_not_recorded(graphs: list[PretendGraph]) -> None:
    own = network().train()
    graphed = cuda_graphs.training(own, torch.device("cpu"), refuse)
    assert graphed is not None
    graphed.train()
    for _ in range(cuda_graphs.CALLS + 1):
        graphed.begin()
        before = [buffer.clone() for buffer in own.buffers()]
        buffers = {name: buffer.clone() for name, buffer in graphed.named_buffers()}
        torch.func.functional_call(graphed, buffers, (images(8),))
        assert all(torch.equal(a, b) for a, b in zip(own.buffers(), before, strict=True))
        assert not graphs
    graphed.begin()
    graphed(images(8))
    assert len(graphs) == 2


def test_the_batch_size_of_the_first_step_is_recorded(graphs: list[PretendGraph]) -> None:
    own = network()
    graphed = cuda_graphs.training(own, torch.device("cpu"), refuse)
    assert graphed is not None
    _train(graphed, own, graphed.begin, (8, 8, 5, 8, 8))
    assert graphed.shape == (8, 1, 8, 8) and len(graphs) == 4


def test_training_with_dropout_is_not_recorded(graphs: list[PretendGraph]) -> None:
    sentences: list[str] = []
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 5))
    assert cuda_graphs.training(model, torch.device("cpu"), sentences.append) is None
    assert "dropout" in sentences[0]


def test_an_older_torch_records_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    said: list[str] = []
    network, device = nn.Linear(2, 2), torch.device("cuda")
    assert cuda_graphs.training(network, device, said.append) is None
    probe = types.SimpleNamespace(device=device)
    assert cuda_graphs.frozen(network, probe, said.append) is network  # type: ignore[arg-type]
    assert len(set(said)) == 1 and "torch is 2.6.0+cu124, they need 2.12" in said[0]
    assert cuda_graphs.training(network, torch.device("cpu"), said.append) is None and len(said) == 2


def test_a_training_that_is_not_recorded_knows_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def why(deterministic: bool, method: str) -> str | None:
        recipe, built = types.SimpleNamespace(deterministic=deterministic), METHODS.build(method)
        return step_networks.obstacle_to_graphs(recipe, built)  # type: ignore[arg-type]

    assert why(False, "pgd") is None
    assert "--deterministic" in (why(True, "pgd") or "")
    assert "ibp follows the operations" in (why(False, "ibp") or "")
    monkeypatch.setattr(step_networks.distributed, "count", lambda: 2)
    assert "processes" in (why(False, "pgd") or "")
