"""Neural tangent kernels, Jacobians and the scores of networks without training, against other ways."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from rbtools import models
from rbtools.errors import RbError
from rbtools.measures import MEASURES, kernel, naswot
from rbtools.measures.base import MeasureBatch, Value, measured
from rbtools.models.normalize import Normalized
from rbtools.rng.draws import Draws
from tests.networks import gradient_rows, images_for

CELL = "|nor_conv_3x3~0|+|nor_conv_1x1~0|avg_pool_3x3~1|+|skip_connect~0|nor_conv_3x3~1|none~2|"
DEAD = "|none~0|+|nor_conv_3x3~0|none~1|+|none~0|none~1|none~2|"


def cells(string: str = CELL, seed: int = 0) -> nn.Module:
    """A network of cells in eval mode, with running statistics as a training leaves them."""
    torch.manual_seed(seed)
    arch = {"space": "nasbench201", "str": string, "channels": 4, "cells": 1}
    model = models.build(arch, classes=5, shape=(3, 8, 8))
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias)
    return model.eval().requires_grad_(False)


class Odd(nn.Module):
    """Grouped and strided convolutions, a layer used twice, a bare parameter, tokens, an overwritten map."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1, dilation=1, bias=False)
        self.grouped = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.one = nn.Conv2d(4, 6, 1, stride=2)
        self.scale = nn.Parameter(torch.rand(6, 1, 1))
        self.norm = nn.LayerNorm(6)
        self.tokens = nn.Linear(6, 6)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu_(self.first(images))
        x = F.relu(self.twice(torch.tanh(self.twice(x))))
        x = self.one(F.relu(self.grouped(x))) * self.scale
        x = self.tokens(self.norm(x.flatten(2).transpose(1, 2)))
        return self.head(x.mean(1))


class Tokens(nn.Module):
    """Attention, whose weights are no layer's of their own, and an embedding of places."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8)
        self.places = nn.Parameter(torch.randn(1, 4, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        y = self.norm(x)
        return self.head((x + self.attention(y, y, y, need_weights=False)[0]).mean(1))


SHAPE = (3, 8, 8)


def batch_of(count: int = 6, images: Tensor | None = None, **own: Any) -> MeasureBatch:
    images = images_for(count, SHAPE) if images is None else images
    ids = torch.arange(len(images))
    probes = Draws(0, "measure.batch", torch.tensor([0]))
    return MeasureBatch(images, ids % 5, Draws(0, "measure", ids), probes, **own)


def twice_the_same() -> MeasureBatch:
    return batch_of(images=images_for(1, SHAPE).repeat(2, 1, 1, 1))


def named(name: str, model: nn.Module, batch: MeasureBatch, **params: Any) -> dict[str, Value]:
    return {value.name: value for value in measured(MEASURES.build(name, **params), model, [batch])}


def value(name: str, model: nn.Module, batch: MeasureBatch, which: str = "", **params: Any) -> float:
    found = named(name, model, batch, **params)[which].value
    assert found is not None
    return found


@pytest.mark.parametrize(
    "make", [cells, Odd, Tokens, lambda: cells(DEAD)], ids=["cells", "odd", "tokens", "dead"]
)
@pytest.mark.parametrize("each", [False, True])
def test_the_kernel_is_that_of_one_backward_pass_per_image(make: Any, each: bool) -> None:
    torch.manual_seed(0)
    model, images = make().eval().requires_grad_(False), images_for(6, SHAPE)
    before = [p.requires_grad for p in model.parameters()]
    numbers: list[Any] = [operator.itemgetter(place) for place in range(5)] if each else [torch.sum]
    rows = torch.stack([gradient_rows(model, images, number) for number in numbers])
    exact = torch.einsum("oip,ojp->ij", rows, rows)
    found = kernel.gram(model, images, each_logit=each)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))
    assert [p.requires_grad for p in model.parameters()] == before


def test_ntk_scores_are_those_of_the_blocks_of_one_kernel() -> None:
    model, batch = cells(), batch_of()
    perturbed, twice = (batch.images + 0.03).clamp(0, 1), (batch.images + 0.06).clamp(0, 1)
    batch = batch_of(perturbed=perturbed, twice=twice)
    whole = gradient_rows(model, torch.cat([batch.images, perturbed, twice]))
    clean, robust, again = whole.split(6)
    found = {key: one.value for key, one in named("ntk", model, batch, kernel="joint", beta=0.25).items()}
    cross = clean @ robust.T
    joint = 0.5625 * clean @ clean.T + 0.1875 * (cross + cross.T) + 0.0625 * robust @ robust.T
    second = robust @ again.T
    joint2 = 0.5625 * robust @ robust.T + 0.1875 * (second + second.T) + 0.0625 * again @ again.T
    kernels = {"clean": clean @ clean.T, "robust": robust @ robust.T, "all": joint, "all_robust": joint2}
    for name, rows in kernels.items():
        values = torch.linalg.eigvalsh(rows)
        assert found[f"{name}.fro"] == pytest.approx(float(rows.norm()), rel=1e-4)
        assert found[f"{name}.trace"] == pytest.approx(float(values.sum()), rel=1e-4)
        assert found[f"{name}.lmin"] == pytest.approx(float(values[0]), rel=1e-2)
        assert found[f"{name}.cond"] == pytest.approx(float(values[-1] / values[0]), rel=1e-2)
    assert found["cross.fro"] == pytest.approx(float(cross.norm()), rel=1e-4)
    signs = torch.nn.functional.one_hot(batch.labels).double() * 2 - 1
    bound = torch.stack([y @ torch.linalg.solve(joint, y) for y in signs.T]).mean()
    assert found["all.bound"] == pytest.approx(float(bound), rel=1e-2)
    values_ = measured(MEASURES.build("ntk"), model, [batch])
    assert [one.clean for one in values_] == [one.name.startswith("clean") for one in values_]


def test_the_kernel_of_two_classes_can_be_that_of_the_logits_difference() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
    batch = batch_of()
    rows = gradient_rows(model, batch.images, lambda logits: logits[1] - logits[0])
    exact = rows @ rows.T
    found = value("ntk", model, batch, "clean.fro", kernel="clean", logits="difference")
    assert found == pytest.approx(float(exact.norm()), rel=1e-4)
    with pytest.raises(RbError, match="the network has 5"):
        named("ntk", cells(), batch, kernel="clean", logits="difference")


def test_a_singular_kernel_has_no_condition_and_says_why() -> None:
    found = named("ntk", cells(), twice_the_same(), kernel="clean")["clean.cond"]
    assert found.value is None and "singular" in found.more["reason"]


def test_the_exact_jacobian_is_that_of_autograd() -> None:
    model, batch = cells(), batch_of()
    each = [jacrev(lambda x: model(x[None])[0])(image) for image in batch.images]
    exact = float(torch.stack(each).square().flatten(1).sum(1).mean().sqrt())
    assert value("jacobian", model, batch, exact=True) == pytest.approx(exact, rel=1e-5)
    assert value("jacobian", model, batch_of(chunk=2), exact=True) == pytest.approx(exact, rel=1e-5)


def test_projections_are_unbiased_for_the_squared_norm() -> None:
    model, batch = cells(), batch_of()
    exact = value("jacobian", model, batch, exact=True)
    assert value("jacobian", model, batch, projections=120) == pytest.approx(exact, rel=0.06)
    one = value("jacobian", model, batch)
    assert one != pytest.approx(exact, rel=1e-3)
    assert one == pytest.approx(value("jacobian", model, batch_of(chunk=1)), rel=1e-6)


def loss_gradient(model: nn.Module, batch: MeasureBatch) -> dict[str, Tensor]:
    model.requires_grad_()
    loss = F.cross_entropy(model(batch.images), batch.labels)
    found = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True, allow_unused=True)
    model.requires_grad_(False)
    return {name: g for (name, _), g in zip(model.named_parameters(), found, strict=True)}


def test_gradient_scores_are_sums_over_the_gradient_of_the_batch() -> None:
    model, batch = cells(), batch_of(chunk=4)
    gradient = loss_gradient(model, batch)
    square = sum(float(g.square().sum()) for g in gradient.values())
    weights = dict(model.named_parameters())
    layers = [f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert value("grad_norm", model, batch) == pytest.approx(math.sqrt(square), rel=1e-4)
    assert value("nasi", model, batch) == pytest.approx(square, rel=1e-4)
    snip = sum(float((weights[name] * gradient[name]).abs().sum()) for name in layers)
    assert value("snip", model, batch) == pytest.approx(snip, rel=1e-4)


def test_synflow_of_a_chain_counts_its_paths_once_for_each_layer() -> None:
    """Of positive weights the flow is the product of the matrices, summed; each layer has all of it."""
    torch.manual_seed(0)
    first, second = nn.Linear(12, 4), nn.Linear(4, 3)
    for bias in (first.bias, second.bias):
        nn.init.zeros_(bias)
    model = nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(4), nn.ReLU(), second).eval()
    model[2].running_var.fill_(9)
    batch = batch_of(images=images_for(1, (3, 2, 2)))
    flow = float((second.weight.abs() @ first.weight.abs()).sum().detach())
    assert value("synflow", model, batch) == pytest.approx(2 * flow, rel=1e-6)
    assert float(model[2].running_var[0]) == 9 and model[1].weight.dtype == torch.float32


def test_synflow_sees_ones_after_the_normalisation() -> None:
    normalised = Normalized(cells(), [0.5, 0.4, 0.3], [0.2, 0.3, 0.1])
    bare = value("synflow", cells(), batch_of(1))
    assert value("synflow", normalised, batch_of(1)) == pytest.approx(bare)


def test_naswot_counts_units_that_are_alike() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 5)
    )
    batch = batch_of()
    on = [(model[:2](batch.images) > 0).double(), (model[:4](batch.images) > 0).double()]
    exact = sum(c @ c.T + (1 - c) @ (1 - c).T for c in on)
    torch.testing.assert_close(naswot.agreement(model.eval(), batch.images), exact)
    assert value("naswot", model, batch) == pytest.approx(float(torch.linalg.slogdet(exact)[1]))


def test_naswot_takes_relus_of_any_kind_that_reach_the_logits() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.relu = nn.Linear(192, 16), nn.ReLU(inplace=True)

        def forward(self, images: Tensor) -> Tensor:
            x = images.flatten(1)
            self.relu(self.layer(-x))  # the logits do not depend on it
            logits: Tensor = self.relu(self.layer(x)) + F.relu(self.layer(x)) + self.layer(x).relu()
            return logits + torch.relu_(self.layer(x))

    found = naswot.agreement(Mixed().eval(), images_for(3, SHAPE))
    assert found.diag().tolist() == [64, 64, 64]


def test_naswot_without_relu_is_refused_and_of_equal_codes_is_none() -> None:
    with pytest.raises(RbError, match="ReLU units, but the model has none"):
        value("naswot", nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), batch_of())
    found = named("naswot", cells(), twice_the_same())[""]
    assert found.value is None and "same states" in found.more["reason"]


def test_margin_is_the_labels_lead() -> None:
    model = cells()
    batch = batch_of(perturbed=(images_for(6, SHAPE) + 0.03).clamp(0, 1), chunk=4)
    logits = model(batch.images)
    pairs = zip(logits, batch.labels, strict=True)
    leads = [float(z[y] - max(z[k] for k in range(5) if k != y)) for z, y in pairs]
    found = named("margin", model, batch)
    assert found["clean"].value == pytest.approx(sum(leads) / 6, rel=1e-5) and found["clean"].clean
    assert found["clean"].se == pytest.approx(float(torch.tensor(leads).std()) / math.sqrt(6), rel=1e-4)
    attacked = batch_of(images=batch.attacked, perturbed=batch.attacked)
    assert found["robust"].value == pytest.approx(value("margin", model, attacked, "clean"))


def test_sharpness_is_one_step_against_the_weights() -> None:
    model = cells()
    batch = batch_of(perturbed=images_for(6, SHAPE))
    gradient, before = loss_gradient(model, batch), float(F.cross_entropy(model(batch.images), batch.labels))
    layers = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    moved = {
        name: p + 0.05 * p.norm() * g / g.norm() if name in layers and g.any() else p
        for (name, p), g in zip(model.named_parameters(), gradient.values(), strict=True)
    }
    after = float(F.cross_entropy(functional_call(model, moved, (batch.images,)), batch.labels))
    found = value("sharpness", model, batch, gamma=0.05)
    assert found == pytest.approx(after - before, rel=1e-3) and found > 0


@pytest.mark.parametrize(("norm", "eps"), [("l2", 0.2), ("linf", 0.03)])
def test_nu_of_a_linear_model_of_two_classes_is_known(norm: str, eps: float) -> None:
    """p moves along w: the best point is x + eps v or x - eps v; v is w / |w| in L2, else sign(w)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).eval().requires_grad_(False)
    images = images_for(6, SHAPE) * 0.6 + 0.2
    batch = dataclasses.replace(batch_of(images=images), labels=torch.arange(6) % 2)
    across = (model[1].weight[0] - model[1].weight[1]).view(1, 3, 8, 8)
    best = across / across.norm() if norm == "l2" else across.sign()
    there = model(images).softmax(1)
    ends = [(model(images + s * eps * best).softmax(1) - there).norm(dim=1) for s in (1, -1)]
    exact = float(torch.maximum(*ends).mean())
    # Each start climbs to one of the two ends: the nearer bound is the smaller of them.
    least = float(torch.minimum(*ends).mean())
    assert least * 0.999 <= value("nu", model, batch, eps=eps, norm=norm) <= exact * 1.001
