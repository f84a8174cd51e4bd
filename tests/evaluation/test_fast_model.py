"""Fast models for searches: they compute the same function, and the exact model still decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rbtools import models
from rbtools.attacks import losses
from rbtools.attacks.oracle import Oracle, PassCounts
from rbtools.evaluation.fast_model import make_fast_model
from rbtools.execution import precision
from rbtools.execution.run import Run
from rbtools.models.normalize import Normalized
from rbtools.spaces import sized

SHAPE = (3, 32, 32)


def network(name: str) -> nn.Module:
    """An untrained network with other than initial BatchNorm statistics."""
    torch.manual_seed(0)
    if name == "nb201":
        arch: Any = sized("nasbench201", channels=8, cells=1).arch(13714)
    else:
        arch = {"space": "zoo", "name": name}
    made = models.build(arch, classes=10, shape=SHAPE)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    model: nn.Module = Normalized(made, [0.49, 0.48, 0.45], [0.25, 0.24, 0.26]).eval()
    return model.requires_grad_(False)


@pytest.mark.parametrize("name", ["nb201", "resnet18", "preactresnet18", "vgg19", "simplecnn"])
def test_folding_and_layout_change_no_decision(name: str) -> None:
    model = network(name)
    ready = make_fast_model(model, "fp32", SHAPE)
    assert set(ready.steps) >= {"channels-last"} and (name == "simplecnn" or "folded" in ready.steps)
    images = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(1))
    before, after = model(images), ready.model(images)
    assert (before - after).abs().max() <= 1e-4 * before.abs().max()
    top = before.topk(2, dim=1).values
    clear = top[:, 0] - top[:, 1] > 2e-4
    assert torch.equal(before.argmax(1)[clear], after.argmax(1)[clear]) and clear.any()
    assert after.dtype == torch.float32


@pytest.mark.parametrize("broken", [2, 6])
def test_an_image_has_the_same_passes_in_every_batch(broken: int) -> None:
    """If most of a batch is broken, the others get a second forward pass; else all go backward."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    images = torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    labels = model(images).argmax(1)
    labels[:broken] = (labels[:broken] + 1) % 3

    def passes(size: int) -> tuple[int, int]:
        oracle = Oracle(model, chunk_size=size)
        goal = losses.AttackObjective(losses.cross_entropy, labels, labels)
        oracle.loss_and_gradient(images, goal)
        return oracle.passes.forwards, oracle.passes.backwards

    assert passes(8) == passes(3) == passes(1) == (8, 8 - broken)


@pytest.mark.parametrize(
    ("flags", "wanted", "small"),
    [("flags\t\t: fpu avx512_bf16 avx2", "bf16", "fp32"), ("flags\t\t: fpu avx2", "fp32", "fp32")],
)
def test_auto_takes_bf16_where_the_processor_has_it(
    flags: str, wanted: str, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, *_, **__: flags)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    precision._cpu_has_bf16.cache_clear()
    try:
        auto, exact = Run.of(tool="test", precision="auto"), Run.of(tool="test", precision="fp32")
        on_gpu = Run.of(tool="test", precision="auto", device="cuda:1")
        assert precision.resolve(auto) == precision.of_training(auto, (3, 32, 32)) == wanted
        assert precision.of_training(auto, (1, 8, 8)) == small
        assert precision.resolve(exact) == precision.of_training(exact, (3, 32, 32)) == "fp32"
        assert precision.resolve(on_gpu) == precision.of_training(on_gpu, (1, 8, 8)) == "bf16"
    finally:
        precision._cpu_has_bf16.cache_clear()


def test_a_zero_gradient_counts_once_for_each_image() -> None:
    """Also if an attack tries several points of the last images at once."""
    oracle = Oracle(nn.Flatten(), passes=PassCounts(first=5))
    for size in (3, 6, 2):
        images = torch.zeros(size, 1, 2, 2, requires_grad=True)
        (oracle(images) * 0).sum().backward()
    assert (oracle.passes.zero_gradients, oracle.passes.backwards) == (5, 11)
