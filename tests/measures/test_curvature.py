"""Hessians and the Weight-Curvature Index against full Hessians, closed forms and PyHessian."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from rbtools.measures import MEASURES, derivatives, hessian, wci
from rbtools.measures.base import MeasureBatch, Value, measured
from rbtools.rng.draws import Draws
from tests.networks import images_for

COUNT = 12


def network(seed: int = 0) -> nn.Sequential:
    """A convolution, BatchNorm and a linear layer: 300 weights."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)]
    return nn.Sequential(*layers).eval()


def batch_of(count: int = COUNT, chunk: int = 64, first: int = 0, seed: int = 0) -> MeasureBatch:
    images = images_for(first + count, (2, 4, 4), seed=1)[first:]
    ids = torch.arange(first, first + count)
    draws, probes = Draws(seed, "measure", ids), Draws(seed, "measure.batch", ids[:1])
    perturbed = (images + 0.1).clamp(0, 1)
    return MeasureBatch(images, ids % 3, draws, probes, perturbed=perturbed, chunk=chunk)


def full_hessian(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The Hessian of the mean cross-entropy with respect to all weights, by autograd twice."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    sizes = [value.numel() for value in weights.values()]

    def loss(flat: Tensor) -> Tensor:
        parts = zip(weights.items(), flat.split(sizes), strict=True)
        changed = {name: part.view(value.shape) for (name, value), part in parts}
        return F.cross_entropy(functional_call(model, changed, (images,)), labels)

    return jacrev(jacrev(loss))(torch.cat([v.flatten() for v in weights.values()])).detach()


def named(name: str, model: nn.Module, *batches: MeasureBatch, **params: Any) -> dict[str, Value]:
    found = measured(MEASURES.build(name, **params), model, batches or [batch_of()])
    return {value.name: value for value in found}


def test_weight_eigenvalues_are_those_of_the_full_hessian() -> None:
    model, batch = network(), batch_of()
    exact = torch.linalg.eigvalsh(full_hessian(model, batch.images, batch.labels).double())
    found = named("hessian", model, batch, solver="both", top=3, tolerance=1e-6, iterations=300, probes=100)
    trace = found["weight.trace"]
    assert trace.value is not None and trace.se is not None and trace.over == "probes"
    assert 0 < trace.se < 0.2 * exact.sum() and abs(trace.value - exact.sum()) < 4 * trace.se
    for name, value in (("lmax", exact[-1]), ("top2", exact[-2]), ("top3", exact[-3])):
        assert found[f"weight.{name}"].value == pytest.approx(float(value), rel=1e-4)
    largest = exact[exact.abs().argmax()]
    assert found["weight.labs"].value == pytest.approx(float(largest), rel=1e-3)


def test_input_hessian_is_the_mean_over_images() -> None:
    model, batch = network(), batch_of()

    def loss(image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(model(image.view(1, 2, 4, 4)), label[None])

    each = [jacrev(jacrev(loss))(x.flatten(), y) for x, y in zip(batch.images, batch.labels, strict=True)]
    exact = torch.stack([torch.linalg.eigvalsh(one.detach().double()) for one in each])
    found = named("hessian", model, batch, wrt="input", solver="both", tolerance=1e-6, probes=300, top=2)
    assert found["input.lmax"].value == pytest.approx(float(exact[:, -1].mean()), rel=1e-4)
    assert found["input.top2"].value == pytest.approx(float(exact[:, -2].mean()), rel=1e-4)
    largest = exact.gather(1, exact.abs().argmax(1, keepdim=True))
    assert found["input.labs"].value == pytest.approx(float(largest.mean()), rel=1e-2)
    assert found["input.lmax"].over == "examples"
    assert found["input.trace"].value == pytest.approx(float(exact.sum(1).mean()), rel=0.05)


@pytest.mark.parametrize("name", ["hessian", "wci"])
def test_the_chunk_changes_nothing_but_rounding(name: str) -> None:
    whole, parts = (named(name, network(), batch_of(chunk=chunk)) for chunk in (64, 5))
    assert list(whole) == list(parts)
    for key in whole:
        assert whole[key].value == pytest.approx(parts[key].value, rel=1e-4)


def test_several_batches_have_their_error_over_batches() -> None:
    batches = [batch_of(first=8 * i, count=8) for i in range(3)]
    single = [named("hessian", network(), one)["weight.lmax"].value for one in batches]
    found = named("hessian", network(), *batches)["weight.lmax"]
    assert found.value == pytest.approx(sum(x for x in single if x is not None) / 3)
    assert found.over == "batches"
    assert found.se == pytest.approx(float(torch.tensor(single).std()) / math.sqrt(3), rel=1e-4)


def of_traces(*traces: list[float]) -> Any:
    """The index and the trace that these traces of layers make, a row for each probe."""
    found = {"layers": ["a", "b"], "norms": [4.0, 9.0], "traces": [*traces]}
    return MEASURES.build("wci", probes=len(traces)).values([found], [10])


def test_a_negative_trace_counts_as_zero_and_is_said() -> None:
    index, trace = of_traces([-1.0, 3.0], [-3.0, 5.0])
    assert index.value == pytest.approx(6.0) and index.more["negative"] == 1
    assert index.more["layers"]["a"]["trace"] == -2.0
    assert trace.value == pytest.approx(2.0)
    # The first layer's trace is -2 +- 1, so that every estimate without a probe is 0, too.
    index, _ = of_traces([-1.0, 4.0], [-3.0, 4.0])
    assert index.value == pytest.approx(6.0) and index.se == pytest.approx(math.sqrt(4 * 1.0))


def deep(activation: type[nn.Module]) -> nn.Sequential:
    """Nine layers between which the Hessian has large blocks: 1,130 weights, from a formula."""
    widths, layers = (2, 4, 4, 6, 6, 6, 8, 8), list[nn.Module]()
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), activation()]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 8), activation(), nn.Linear(8, 3)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            wave = torch.sin(torch.arange(parameter.numel()) * 12.9898 + number).mul(43758.5453).frac()
            parameter.copy_((wave * 2.5 / math.sqrt(parameter[0].numel())).view_as(parameter))
    return model.eval()


@pytest.mark.parametrize(("activation", "same"), [(nn.ReLU, True), (nn.Tanh, False)])
def test_wci_does_not_change_if_layers_are_rescaled_and_the_network_is_the_same(
    activation: type[nn.Module], same: bool
) -> None:
    """Section 2.2 of the paper on the index. Behind Tanh the network, and so the index, is another one."""
    before, after = deep(activation), deep(activation)
    with torch.no_grad():
        for number, factor in ((0, 8.0), (2, 0.25), (4, 0.5)):  # convolutions without biases
            after[number].weight *= factor
    batch = batch_of()
    assert torch.allclose(before(batch.images), after(batch.images), rtol=1e-4) == same
    (index, trace), (other, changed) = (named("wci", model, batch).values() for model in (before, after))
    assert (other.value == pytest.approx(index.value, rel=1e-4)) == same
    assert changed.value != pytest.approx(trace.value, rel=0.1)  # which is not scaled by the weights
    layers = [found.more["layers"]["0"] for found in (index, other)]
    assert layers[1]["norm2"] == pytest.approx(64 * layers[0]["norm2"])
    assert (layers[1]["trace"] == pytest.approx(layers[0]["trace"] / 64, rel=1e-4)) == same


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.slow
def test_wci_with_its_default_probes_is_that_of_the_exact_traces(activation: type[nn.Module]) -> None:
    """Against dense differentiation; behind Tanh, not piecewise linear, layers have probes of their own."""
    model, batch = deep(activation), batch_of(count=48)
    names = list(derivatives.layers(model).values())
    norms, exact = [], []
    for name in names:
        weight = model.get_parameter(name).detach()

        def loss(flat: Tensor, name: str = name, shape: torch.Size = weight.shape) -> Tensor:
            logits = functional_call(model, {name: flat.view(shape)}, (batch.attacked,))
            return F.cross_entropy(logits, batch.labels)

        exact.append(float(jacrev(jacrev(loss))(weight.flatten()).detach().trace()))
        norms.append(float(weight.square().sum()))
    index = wci.index(norms, exact)
    seen = []
    for seed in range(2):
        value = named("wci", model, batch_of(count=48, seed=seed))[""]
        seen.append(value.value / index)
        assert abs(value.value - index) < 5 * value.se and value.se < 0.15 * index
        if activation is nn.ReLU:
            assert value.more["negative"] == 0
    assert seen == pytest.approx([1.0] * 2, abs=0.15), seen


def test_batches_of_other_sizes_are_weighted() -> None:
    wci = MEASURES.build("wci", probes=1)
    parts = [{"layers": ["a"], "norms": [1.0], "traces": [[trace]]} for trace in (1.0, 5.0)]
    index, trace = wci.values(parts, [30, 10])
    assert trace.value == 2.0 and index.value == pytest.approx(math.sqrt(2)) and index.se is None


def test_curvature_that_is_not_finite_is_not_a_number() -> None:
    model = network()
    with torch.no_grad():
        model[4].weight.mul_(torch.inf)
    found = named("hessian", model, wrt="both", solver="both")
    assert all(math.isnan(value.value or 0.0) for value in found.values())
    assert math.isnan(named("wci", model)[""].value or 0.0)


def test_lanczos_finds_a_small_eigenvalue_beside_a_large_negative_one() -> None:
    """Power iteration finds the other one: it is for the largest size."""
    matrix = torch.diag(torch.tensor([-5.0, 1.0, 0.5, 0.0, -0.1]))
    start = torch.ones(1, 5)
    limits: Any = {"iterations": 300, "tolerance": 1e-6}
    found = hessian.lanczos(lambda v: v @ matrix, start, top=1, **limits)
    assert float(found[0, 0]) == pytest.approx(1, abs=1e-5)
    assert float(hessian.power(lambda v: v @ matrix, start, **limits)[0]) == pytest.approx(-5, abs=1e-4)


def test_lanczos_of_a_row_that_is_exhausted_is_exact_and_leaves_the_others_alone() -> None:
    diagonals = torch.tensor([[3.0, 0.0, 0.0, 0.0], [4.0, 3.0, 2.0, 1.0]])
    start = torch.ones(2, 4)
    found = hessian.lanczos(lambda v: v * diagonals, start, top=3, iterations=10, tolerance=1e-6)
    assert found[1].tolist() == pytest.approx([4, 3, 2], abs=1e-4)
    assert found[0, :2].tolist() == pytest.approx([3, 0], abs=1e-4) and math.isnan(found[0, 2])
