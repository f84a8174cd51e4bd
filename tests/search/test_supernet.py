"""Differentiable searches: the supernet, the penalty of AdvRush, NASI's step, and the cells derived."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import Result
from torch import nn

from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.models.cell_network import NASBench201Network
from rbtools.search import SEARCHES, supernet_search
from rbtools.search.darts import curvature
from rbtools.search.supernet import MixedOp, Supernet
from rbtools.spaces import nasbench201
from rbtools.store import Store
from tests import runner
from tests.search.landscapes import slope, table_file

SHORT: dict[str, dict[str, Any]] = {
    "darts": {"epochs": 2, "steps": 2, "batch_size": 16},
    "advrush": {"epochs": 2, "steps": 2, "batch_size": 16, "warmup": 1},
    "nasi": {"steps": 3, "batch_size": 16},
}


def searched(name: str, seed: int = 0, store: Store | None = None, **more: Any) -> dict[str, Any]:
    run = Run.of(tool="rb-search", store=store or Store(None), seed=seed, device="cpu")
    return supernet_search.search(SEARCHES.build(name, **{**SHORT[name], **more}), run, 2, 1)


def test_an_edge_is_the_weighted_sum_of_its_operations() -> None:
    torch.manual_seed(0)
    edge, x = MixedOp(3).eval(), torch.randn(2, 3, 8, 8)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25])
    by_hand = sum(weight * op(x) for weight, op in zip(weights, edge.ops, strict=True))
    torch.testing.assert_close(edge(x, weights), by_hand)
    assert not any(parameter.numel() == 3 for parameter in edge.parameters())  # BatchNorm without a scale


@pytest.mark.parametrize("index", [0, 1462, 9, 11472])
def test_a_supernet_that_is_sure_is_the_network_of_that_cell(index: int) -> None:
    ops = nasbench201.ops_of({"index": index})
    torch.manual_seed(0)
    network = NASBench201Network(ops, channels=2, cells=1).eval()
    whole = Supernet(channels=2, cells=1).eval()
    state = whole.state_dict()
    for name, value in network.state_dict().items():
        parts = name.split(".")
        if "layers" in parts:
            edge = int(parts[3])
            name = ".".join([*parts[:2], "edges", str(edge), "ops", str(ops[edge]), *parts[4:]])
        if name in state:
            state[name] = value
    whole.load_state_dict(state)
    whole.mixture = F.one_hot(torch.tensor(ops), 5).float()
    images = torch.rand(4, 3, 16, 16)
    torch.testing.assert_close(whole(images), network(images))


def test_the_derived_cell_has_the_heaviest_operation_of_each_edge() -> None:
    net = Supernet(channels=2, cells=1)
    with torch.no_grad():
        net.alphas.copy_(F.one_hot(torch.tensor([3, 0, 1, 4, 2, 3]), 5))
    assert net.genotype() == (3, 0, 1, 4, 2, 3)
    assert len(net.weights()) == len(list(net.parameters())) - 1
    assert all(parameter is not net.alphas for parameter in net.weights())


def test_the_penalty_of_advrush_is_the_change_of_the_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)
    ).double()
    images, labels = torch.rand(4, 3, 2, 2, dtype=torch.float64), torch.tensor([0, 2, 1, 2])
    model(images)  # BatchNorm has seen something
    model.train()
    found = curvature(model, images, labels, 1.5)
    assert model.training
    model.eval()

    def gradient(image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        image = image.clone().requires_grad_()
        F.cross_entropy(model(image[None]), label[None]).backward()
        assert image.grad is not None
        return image.grad

    norms = []
    for image, label in zip(images, labels, strict=True):
        here = gradient(image, label)
        moved = image + 1.5 * here.sign() / here.sign().norm()
        norms.append((gradient(moved, label) - here).norm())
    torch.testing.assert_close(found, torch.stack(norms).mean())
    step = 1e-6
    weight = model[1].weight
    (slopes,) = torch.autograd.grad(found, [weight])
    with torch.no_grad():
        weight[0, 0] += step
    model.train()
    assert float(slopes[0, 0]) == pytest.approx(
        float((curvature(model, images, labels, 1.5) - found).detach()) / step, rel=1e-3
    )


def test_the_reward_of_nasi_is_the_squared_gradient_less_what_is_too_much() -> None:
    torch.manual_seed(0)
    net, images, labels = Supernet(channels=2, cells=1), torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    F.cross_entropy(net(images), labels).backward()
    norm = sum(float(weight.grad.square().sum()) for weight in net.weights() if weight.grad is not None)
    reward = SEARCHES.build("nasi").reward(net, net.weights(), images, labels)
    assert float(reward.detach()) == pytest.approx(norm, rel=1e-4)
    charged = SEARCHES.build("nasi", limit=norm / 2, penalty=2.0).reward(net, net.weights(), images, labels)
    assert float(charged.detach()) == pytest.approx(0.0, abs=1e-3 * norm)


@pytest.mark.parametrize("name", ["darts", "nasi"])
@pytest.mark.slow
def test_a_search_is_repeatable_and_found_in_the_store(name: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "kept")
    first = searched(name, store=store)
    assert (store.computed, store.found) == (1, 0)
    assert searched(name, store=store) == first == searched(name)
    assert (store.computed, store.found) == (1, 1)
    assert searched(name, seed=1, store=store)["alphas"] != first["alphas"]


def test_the_entropy_of_the_first_mixtures_is_that_of_equal_shares() -> None:
    assert searched("darts")["history"]["entropy"][0] == pytest.approx(math.log(5), abs=0.1)


def test_a_search_that_diverges_ends() -> None:
    with pytest.raises(RbError, match="diverged in epoch 1"):
        searched("darts", lr=1e30)


def run(words: str) -> Result:
    return runner.run("search", f"{words} --channels 2 --cells 1 --device cpu")


@pytest.mark.slow
def test_a_derived_cell_is_looked_up_and_reported_on_another_table() -> None:
    tables = f"--table {table_file('one.jsonl')} --report-table {table_file('two.jsonl', more=100)}"
    words = "nasi --steps 2 --batch-size 8 --runs 2 --objective acc"
    result = run(f"{words} {tables}")
    assert result.exit_code == 0, result.stderr
    found = runner.records(result)
    assert [one["search"]["run"] for one in found] == [0, 1]
    for one in found:
        index = int(one["search"]["found"].removeprefix("nb201-"))
        assert one["search"]["values"]["acc"] == slope(nasbench201.classes()[index])
    values = [one["search"]["values"]["acc"] for one in found]
    looked_up = found[0]["search"]["looked_up"]
    assert looked_up["table"]["metrics"]["acc"]["mean"] == sum(values) / 2
    assert looked_up["two.jsonl"]["metrics"]["acc"]["mean"] == sum(values) / 2 + 100
    assert found[0]["search"]["gap"]["n"] == 2 and found[0]["search"]["searched_on"] == "digits"


def test_a_derived_cell_without_a_table_is_a_record_that_can_be_trained() -> None:
    one = runner.one(run("darts --epochs 1 --steps 1 --batch-size 8"))
    assert one["arch"]["channels"] == 2 and one["arch"]["name"] == one["search"]["found"]
    assert "objective" not in one["search"]


def test_advrush_adds_its_penalty_after_the_warm_up_alone() -> None:
    torch.manual_seed(0)
    net, images, labels = Supernet(channels=2, cells=1), torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    net(images)
    advrush, darts = SEARCHES.build("advrush", warmup=1), SEARCHES.build("darts")
    before = [float(one.architecture_loss(net, images, labels, 0).detach()) for one in (advrush, darts)]
    assert before[0] == before[1]
    after = advrush.architecture_loss(net, images, labels, 1)
    assert float(after.detach()) > before[1]
    (slopes,) = torch.autograd.grad(after, [net.alphas])
    assert bool(slopes.isfinite().all()) and float(slopes.norm()) > 0
