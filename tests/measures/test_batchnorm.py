"""Measures of fresh networks whose BatchNorm takes the statistics of the batch, or of each image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.jobs.measurement import MeasureJob, perturbing
from rbtools.measures import MEASURES, batchnorm, kernel
from rbtools.measures.base import MeasureBatch, measured
from tests.conftest import SMALL_ARCH
from tests.networks import draws_for, images_for
from tests.runner import run_in

FRESH = {"schema": 1, "arch": SMALL_ARCH, "dataset": "digits"}
OF_BATCHES = ("ntk", "naswot", "nasi", "snip", "grad_norm")


def network() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    second = [nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


SHAPE = (3, 8, 8)


def rows_of(images: Tensor, each: bool) -> Tensor:
    """Gradients of each image's logits in one forward pass in training mode: (N, outputs, P), float64."""
    model = network().train()
    parameters, logits = list(model.parameters()), model(images)
    outputs = logits if each else logits.sum(1, keepdim=True)
    found = [torch.autograd.grad(one, parameters, retain_graph=True) for one in outputs.flatten()]
    rows = torch.stack([torch.cat([part.flatten() for part in one]) for one in found])
    return rows.view(*outputs.shape, -1).double()


def used(statistics: str) -> nn.Module:
    model = network().eval().requires_grad_(False)
    batchnorm.use(model, statistics)
    return model


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("most", [1 << 28, 600])
def test_the_kernel_of_batches_is_that_of_training_mode(
    each: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_ROWS", most)  # with a limit of 600 the parameters are in several groups
    batches = [images_for(5, SHAPE), images_for(4, SHAPE, seed=1)]
    rows = torch.cat([rows_of(images, each) for images in batches])
    exact = torch.einsum("iop,jop->ij", rows, rows)
    model = used("batch")
    found = kernel.gram_of_batches(model, batches, each_logit=each)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    # The gradient includes the dependence through the other images.
    alone = torch.cat([rows_of(image[None], each) for image in torch.cat(batches)])
    assert not torch.allclose(exact, torch.einsum("iop,jop->ij", alone, alone), rtol=0.05)


@pytest.mark.parametrize("each", [False, True])
def test_the_kernel_by_image_is_that_of_batches_of_one_in_training_mode(each: bool) -> None:
    images = images_for(5, SHAPE)
    rows = torch.cat([rows_of(image[None], each) for image in images])
    exact = torch.einsum("iop,jop->ij", rows, rows)
    found = kernel.gram(used("image"), images, each_logit=each)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))


def test_a_single_value_of_a_channel_has_no_variance() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    batchnorm.use(model, "batch")
    with pytest.raises(RbError, match="a single value per channel"):
        model(images_for(1, SHAPE))


def test_the_exact_jacobian_of_an_image_is_refused_where_images_depend_on_each_other() -> None:
    ids = torch.arange(3)
    batch = MeasureBatch(images_for(3, SHAPE), ids, draws_for(3), draws_for(1), together=True)
    with pytest.raises(RbError, match="--exact computes each image's Jacobian"):
        measured(MEASURES.build("jacobian", exact=True), used("batch"), [batch])


def asked(*names: str, **own: Any) -> MeasureJob:
    made = tuple(MEASURES.build(name) for name in names)
    return MeasureJob(made, perturbing(("pgd",), (8 / 255,), 2, None), batches=1, batch_size=8, **own)


def numbers(record: dict[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    return {k: v for k, v in record["metrics"].items() if k.split(".")[0] in names}


def test_fresh_weights_take_the_batch_and_the_entry_says_so() -> None:
    names = (*OF_BATCHES, "jacobian", "synflow")
    plain = asked(*names)(FRESH, run_in())
    said = {entry["metric"]: entry.get("batchnorm") for entry in plain["evals"]}
    assert {said[name] for name in said if name.split(".")[0] in OF_BATCHES} == {"batch"}
    assert said["jacobian.init.train"] == "running" and said["synflow"] is None
    batch = asked(*names, batchnorm="batch")(FRESH, run_in())
    assert numbers(batch, OF_BATCHES) == numbers(plain, OF_BATCHES)
    for other in ("running", "image"):
        record = asked(*OF_BATCHES, batchnorm=other)(FRESH, run_in())
        found = numbers(record, OF_BATCHES)
        assert {entry["batchnorm"] for entry in record["evals"]} == {other}
        assert all(found[name] != plain["metrics"][name] for name in found)


def test_the_batch_goes_through_as_a_whole_however_many_images_fit() -> None:
    whole = asked(*OF_BATCHES, "jacobian", batchnorm="batch")(FRESH, run_in())
    pieces = asked(*OF_BATCHES, "jacobian", batchnorm="batch")(FRESH, run_in("other", batch=3))
    found = numbers(whole, (*OF_BATCHES, "jacobian"))
    assert {name.split(".")[0] for name in found} == {*OF_BATCHES, "jacobian"}
    assert numbers(pieces, (*OF_BATCHES, "jacobian")) == found
