"""Attacks on labels: distances in closed form, counts of queries, and independence of batch and budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools.attacks import ATTACKS
from rbtools.attacks.decision import AT
from rbtools.attacks.spsa import SPSA
from rbtools.errors import RbError
from rbtools.evaluation.base import Batch
from rbtools.evaluation.distances import Nearest, nearest
from rbtools.rng.draws import Draws
from rbtools.threats import ball

ALL: dict[str, tuple[str, dict[str, Any]]] = {
    "hopskipjump l2": ("hopskipjump", {"norm": "l2"}),
    "hopskipjump linf": ("hopskipjump", {"norm": "linf"}),
    "rays": ("rays", {}),
    "surfree": ("surfree", {"frequencies": 1.0}),
    "boundary": ("boundary", {}),
}


LONG = {"hopskipjump linf": 2000, "surfree": 500, "boundary": 600}


class Halves(nn.Module):
    """Two classes on the sides of a plane; counts the images."""

    def __init__(self) -> None:
        super().__init__()
        self.normal = torch.randn(16, generator=torch.Generator().manual_seed(0))
        self.images = 0

    def forward(self, images: Tensor) -> Tensor:
        self.images += len(images)
        side = (images - 0.5).flatten(1) @ self.normal
        return torch.stack([-side, side], 1)


def attack_of(name: str, queries: int, **more: Any) -> Any:
    attack, own = ALL[name]
    return ATTACKS.build(attack, eps=None, queries=queries, **own, **more)


def images_of(count: int) -> Tensor:
    return 0.3 + 0.4 * torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def found(attack: Any, count: int, model: nn.Module | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    model, images = model or Halves(), images_of(count)
    labels = Halves()(images).argmax(1)
    points, findings = attack.run(model, images, labels, Draws(0, "test", torch.arange(count)))
    return points, findings


@pytest.mark.parametrize("name", ALL)
def test_on_a_plane_the_distance_is_nearly_that_of_the_plane(name: str) -> None:
    attack, images, model = attack_of(name, LONG.get(name, 1200)), images_of(7), Halves()
    points, findings = found(attack, 7)
    dual = {"l2": 2, "linf": 1}[attack.norm]
    exact = ((images - 0.5).flatten(1) @ model.normal).abs() / torch.linalg.vector_norm(model.normal, dual)
    assert bool((model(points).argmax(1) != model(images).argmax(1)).all())
    torch.testing.assert_close(findings["distance"], ball.distances(points, images, attack.norm))
    share = findings["distance"] / exact
    assert float(share.min()) >= 1 - 1e-4 and float(share.median()) < 1.08, share


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("queries", [1, 7, 130])
def test_no_image_is_asked_about_more_often_than_queries_say(name: str, queries: int) -> None:
    model = Halves()
    _, findings = found(attack_of(name, queries), 1, model)
    assert model.images == int(findings["asked"]) <= queries
    several = Halves()
    _, findings = found(attack_of(name, queries), 5, several)
    assert several.images == int(findings["asked"].sum()) and int(findings["asked"].max()) <= queries


@pytest.mark.parametrize("name", ALL)
def test_a_run_with_fewer_queries_is_the_beginning_of_a_longer_one(name: str) -> None:
    shorter, _ = found(attack_of(name, 200), 5)
    longer, findings = found(attack_of(name, 300).marked((200,)), 5)
    assert torch.equal(findings[f"{AT}200"], shorter)
    assert name == "rays" or not torch.equal(longer, shorter)  # which is at its end


@pytest.mark.parametrize("name", ALL)
def test_results_do_not_depend_on_the_batch(name: str) -> None:
    few, many = found(attack_of(name, 150), 7), found(attack_of(name, 150), 40)
    torch.testing.assert_close(few[0], many[0][:7], rtol=0, atol=1e-5)
    assert torch.equal(few[1]["asked"], many[1]["asked"][:7])


@pytest.mark.parametrize("name", ALL)
def test_the_distance_of_8_bit_images_is_that_of_the_judged_image(name: str) -> None:
    images, model = images_of(6).mul(255).round().div(255), Halves()
    labels = model(images).argmax(1)
    batch = Batch(model, images, labels, torch.arange(6), seed=0, chunk_size=6)
    method = attack_of(name, 300, grid="8bit")
    (outcome,) = Nearest.rows_together([Nearest(method=method)], batch)
    assert bool(outcome.values.isfinite().all())
    levels = outcome.values[:, 0] * 255
    if method.norm == "linf":
        torch.testing.assert_close(levels, levels.round(), rtol=0, atol=0.01)
    else:
        torch.testing.assert_close(levels.square(), levels.square().round(), rtol=1e-4, atol=0.05)


@pytest.mark.parametrize("name", ["hopskipjump l2", "rays"])
def test_one_search_has_the_rows_of_the_same_search_with_fewer_queries(name: str) -> None:
    images, model = images_of(6), Halves()
    labels = model(images).argmax(1)
    labels[2] = 1 - labels[2]
    batch = Batch(model, images, labels, torch.arange(6), seed=0, chunk_size=6)
    methods = [attack_of(name, queries) for queries in (100, 300, 200)]
    specs = [spec for spec in nearest(methods, (0.1,)).specs if spec.eps is None]
    assert [spec.name().partition(".")[0] for spec in specs] == [
        f"{ALL[name][0]}{n}" for n in (100, 300, 200)
    ]
    before = model.images
    together = Nearest.rows_together(specs, batch)
    asked = model.images - before
    assert asked <= 6 + 5 * 300 + 3 * 6
    for spec, one in zip(specs, together, strict=True):
        (alone,) = Nearest.rows_together([spec], batch)
        torch.testing.assert_close(one.values, alone.values)
        assert float(one.values[2]) == 0


def test_spsa_stays_in_the_ball_and_in_its_queries() -> None:
    model, images = Halves(), images_of(5)
    exact = ((images - 0.5).flatten(1) @ model.normal).abs() / model.normal.abs().sum()
    labels = model(images).argmax(1)
    model.images = 0
    attack = SPSA(eps=float(exact.median()) * 1.05, queries=200, samples=10)
    points, _ = attack.run(model, images, labels, Draws(0, "test", torch.arange(5)))
    assert model.images <= 5 * 200 + 5  # the clean images are classified first
    wrong = model(points).argmax(1) != labels
    assert not bool((wrong & (exact > attack.eps)).any())
    assert bool(wrong[exact < 0.7 * attack.eps].all()) and bool(wrong.any())


def test_a_curve_over_queries_without_an_image_to_attack_has_accuracy_0() -> None:
    network, images = Halves(), torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    labels = 1 - network(images).argmax(1)
    searches = [ATTACKS.build("hopskipjump", eps=None, queries=count) for count in (20, 40)]
    curve = nearest(searches, (8 / 255,))
    without_medians = tuple(spec for spec in curve.specs if spec.eps is not None)
    results = rbtools.evaluate(network, (images, labels), replace(curve, specs=without_medians))
    found = {one.metric: one.value for one in results}
    assert found["hopskipjump20.8"] == found["hopskipjump40.8"] == 0


@pytest.mark.parametrize("name", ["hopskipjump", "rays", "surfree", "boundary", "spsa"])
def test_means_over_samples_are_refused(name: str) -> None:
    with pytest.raises(RbError, match="cannot average gradients over random draws"):
        ATTACKS.build(name, eot=3).check_distance()
