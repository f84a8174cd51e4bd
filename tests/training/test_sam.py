"""SAM: its step on a quadratic and on a softmax regression written out, BatchNorm, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools.errors import RbError
from rbtools.trainer import regularize
from rbtools.trainer.recipe import Recipe, check_method
from rbtools.training import METHODS
from tests.networks import images_for

RHO = 0.3
STEP = {"batch_size": 12, "epochs": 1, "schedule": "constant", "momentum": 0.0, "augment": (), "val": 0.0}


def test_a_step_on_a_quadratic_is_the_closed_form() -> None:
    """Of w'Aw / 2 + b'v: gradients A w and b, so that w and v move together by rho along (A w, b)."""
    slope, curve = torch.tensor([3.0, -4.0]).double(), torch.diag(torch.tensor([1.0, 2.0, 5.0])).double()
    net = nn.ParameterDict({"w": torch.ones(3, 1).double(), "v": torch.zeros(2).double()})

    def loss() -> Tensor:
        value: Tensor = (net["w"].T @ curve @ net["w"]).sum() / 2 + slope @ net["v"]
        return value

    gradient = torch.tensor([1.0, 2.0, 5.0]).double()
    length = (gradient.square().sum() + 25).sqrt()
    with regularize.perturbed_weights(net, loss, regularize.SAMAscent(RHO)):
        assert torch.allclose(net["w"][:, 0], 1 + RHO * gradient / length)
        assert torch.allclose(net["v"], RHO * slope / length)
        loss().backward()
    assert torch.equal(net["w"], torch.ones(3, 1)) and torch.equal(net["v"], torch.zeros(2))
    assert torch.allclose(net["w"].grad[:, 0], curve @ (1 + RHO * gradient / length))


def start() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A softmax regression, images and labels."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 3)), images_for(12), torch.arange(12) % 3


def softmax_gradient(weight: Tensor, bias: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of the mean cross-entropy: the mean of (p - y) x', and that of p - y."""
    x = images.flatten(1).double()
    error = (x @ weight.T + bias).softmax(1) - nn.functional.one_hot(labels, len(bias))
    return error.T @ x / len(x), error.mean(0)


def test_a_training_step_is_that_of_a_softmax_regression_written_out() -> None:
    net, images, labels = start()
    weight, bias = (value.detach().double() for value in net.parameters())
    first = softmax_gradient(weight, bias, images, labels)
    length = (first[0].square().sum() + first[1].square().sum()).sqrt()
    moved = [value + RHO * g / length for value, g in zip((weight, bias), first, strict=True)]
    there = softmax_gradient(*moved, images, labels)
    # The weight decay is that of the weights before the perturbation.
    wanted = [v - 0.5 * (g + 0.1 * v) for v, g in zip((weight, bias), there, strict=True)]
    done = rbtools.fit(net, (images, labels), "sam", rho=RHO, lr=0.5, weight_decay=0.1, **STEP)
    for value, by_hand in zip(net.parameters(), wanted, strict=True):
        assert torch.allclose(value.double(), by_hand, atol=1e-6)
    assert done.passes == {"forward": 2.0, "backward": 2.0}
    logits = images.flatten(1).double() @ moved[0].T + moved[1]
    loss = float(nn.functional.cross_entropy(logits, labels))
    assert done.history["loss"][0] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("change", "named"), [({"regularize": ("awp",)}, "awp"), ({"micro_batch": 4}, "micro")]
)
def test_it_refuses_pieces_of_a_batch_and_another_perturbation(change: dict[str, object], named: str) -> None:
    with pytest.raises(RbError, match=f"--method sam perturbs .* and .*{named}"):
        check_method(Recipe(**change), METHODS.build("sam"))  # type: ignore[arg-type]
