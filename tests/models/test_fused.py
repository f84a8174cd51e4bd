"""Convolutions that take ReLU and sums: the same function and gradient, and no network that does not fit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from rbtools import models
from rbtools.evaluation.fast_model import make_fast_model
from rbtools.models import folding
from rbtools.models.fused import ActivatedConvolution, fuse, fuse_in_place
from rbtools.spaces import sized
from tests.pretend_device import PretendDevice

SHAPE = (3, 16, 16)
FUSED = {"resnet18": 17, "preactresnet18": 8, "nb201": 5}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "nb201":
        return models.build(sized("nasbench201", channels=4, cells=1).arch(13714), classes=10, shape=SHAPE)
    return models.build({"space": "zoo", "name": name}, classes=10, shape=SHAPE).eval()


class Blocks(nn.Module):
    """Every form that is replaced, and those that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.twice, self.summed = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.again, self.plus = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.bare = nn.Conv2d(3, 3, 1, bias=False)
        self.around = nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular")
        self.same, self.relu = nn.Conv2d(3, 3, 3, padding="same"), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.a(x))  # replaced
        x = torch.relu(self.b(x) + self.c(x))  # one of the two takes the sum
        old, x = x, torch.relu(x + self.plus(x))
        x = torch.relu(self.bare(x)) + torch.relu(self.around(x)) + torch.relu(self.same(x))
        x, y = torch.relu(x + torch.relu(x) + 1), self.twice(x)
        x = self.summed(x)
        x = torch.relu(x + x) + torch.relu(y) + torch.relu(y + 1) + y
        x = torch.relu(self.again(self.again(x)))
        return x + old


@pytest.mark.parametrize("name", ["blocks", "resnet18", "preactresnet18", "nb201"])
def test_logits_and_gradients_are_those_of_single_layers(name: str) -> None:
    made = Blocks() if name == "blocks" else network(name)

    def traced() -> Any:
        whole = fx.symbolic_trace(copy.deepcopy(made)) if name == "blocks" else folding.fold(made)[0]
        return whole.requires_grad_(False)

    plain, other = traced(), traced()
    count = fuse_in_place(other)
    assert count == (3 if name == "blocks" else FUSED[name])
    assert sum(isinstance(module, ActivatedConvolution) for module in other.modules()) == count
    images = torch.rand(4, *SHAPE)
    results = []
    for one in (plain, other):
        inputs = images.clone().requires_grad_(True)
        logits = one(inputs)
        results.append((logits, *torch.autograd.grad(logits.square().sum(), inputs)))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_on_a_gpu_in_bfloat16_attacks_use_them() -> None:
    model = network("resnet18").requires_grad_(False)
    with PretendDevice() as device:
        there = model.to("cuda")
        for precision in ("fp32", "bf16"):
            ready = make_fast_model(there, precision, SHAPE)
            assert ("fused" in ready.steps) is (precision == "bf16")
            images = torch.rand(8, *SHAPE, device="cuda")
            logits = ready.model(images)
            assert (logits - there(images)).abs().max() < 0.05 * there(images).abs().max()
            slopes = []
            for one in (there, ready.model):
                inputs = images.clone().requires_grad_(True)
                slopes.append(torch.autograd.grad(one(inputs).square().sum(), inputs)[0])
            wanted, got = slopes
            assert (got - wanted).norm() < (0.3 if precision == "bf16" else 1e-3) * wanted.norm()
        assert logits.dtype == torch.float32
        device.reset()
        ready.model(images)
        assert device.launches["cudnn_convolution_relu"] == 9
        assert device.launches["cudnn_convolution_add_relu"] == 8
        empty = ready.model(images[:0])
    assert empty.shape == (0, 10)


@pytest.mark.slow
def test_a_kernel_that_is_missing_or_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*values: Any) -> Tensor:
        raise RuntimeError("no engine for this configuration")

    def wrong(x: Tensor, weight: Tensor, bias: Tensor, *how: Any) -> Tensor:
        return nn.functional.conv2d(x, weight, bias, *how)  # without ReLU

    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
    with PretendDevice():
        there = layers.to("cuda").eval().requires_grad_(False)
        traced = fx.symbolic_trace(there.bfloat16())
        inputs = torch.rand(2, *SHAPE, device="cuda").bfloat16()
        assert fuse(traced, inputs) is not None and fuse(there, inputs) is None
        assert fuse(traced, inputs.float()) is None
        for kernel, words in ((missing, "no engine"), (wrong, "results of the fused copy differ")):
            with monkeypatch.context() as patch:
                patch.setattr(torch, "cudnn_convolution_relu", kernel)
                with pytest.raises((RuntimeError, ValueError), match=words):
                    fuse(traced, inputs)
                model = network("resnet18").requires_grad_(False).to("cuda")
                ready = make_fast_model(model, "bf16", SHAPE)
                assert "fused" not in ready.steps and words in (ready.remark or "")
    assert fuse(traced, torch.rand(2, *SHAPE).bfloat16()) is None
