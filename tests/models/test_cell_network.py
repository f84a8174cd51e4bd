"""The NAS-Bench-201 network against the original's outputs and against its definition, written plainly."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from rbtools.errors import RbError
from rbtools.models import build
from rbtools.models.cell_network import EDGES, NASBench201Network

GOLDEN = json.loads((Path(__file__).parent / "data/nasbench201-golden.json").read_text())
# The published train-mode logits of these were float32 results in which BatchNorm over two nearly
# equal images amplifies rounding: float64, free of it, is 2e-4 to 6e-4 away.
ILL_CONDITIONED_IN_TRAIN_MODE = {3456, 21, 1832}
CELLS = st.tuples(*[st.integers(0, 4)] * 6)


def fill_by_formula(network: nn.Module) -> None:
    """The weights that the golden file's "about" describes."""
    state = network.state_dict()
    for i, key in enumerate(sorted(state)):
        tensor = state[key]
        if not tensor.is_floating_point():
            continue
        wave = torch.sin(0.37 * torch.arange(tensor.numel(), dtype=torch.float64) + i)
        if key.endswith("running_var"):
            wave = 6 + 2 * wave
        elif tensor.ndim == 1:
            wave = 1 + 0.1 * wave if key.endswith("weight") else 0.1 * wave
        else:
            wave = wave * (1 / tensor[0].numel()) ** 0.5
        state[key] = wave.reshape(tensor.shape).to(tensor.dtype)
    network.load_state_dict(state)


def golden_images(size: int, dtype: torch.dtype) -> torch.Tensor:
    wave = torch.sin(0.01 * torch.arange(2 * 3 * size * size, dtype=torch.float64))
    return (0.5 + 0.5 * wave).reshape(2, 3, size, size).to(dtype)


def relative(found: torch.Tensor, expected: list) -> float:
    wanted = torch.tensor(expected, dtype=torch.float64)
    return ((found.double() - wanted).abs().max() / wanted.abs().max()).item()


def multiply_adds(network: NASBench201Network, size: int) -> int:
    """Counted from the weights' shapes: the width of a convolution tells the stage it is in."""
    stem = network.stem[0].out_channels
    total = network.classifier.weight.numel()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            total += module.weight.numel() * (size * stem // module.out_channels) ** 2
    return total


@pytest.mark.parametrize("expected", GOLDEN["networks"], ids=lambda e: f"{e['index']}-{e['image']}")
def test_counts_logits_and_gradients_are_the_originals(expected):
    arch = {"space": "nasbench201", **{key: expected[key] for key in ("str", "index", "channels", "cells")}}
    size, index = expected["image"], expected["index"]
    network = build(arch, classes=expected["classes"], shape=(3, size, size)).eval()
    fill_by_formula(network)
    assert sum(p.numel() for p in network.parameters()) == expected["params"]
    assert len(network.state_dict()) == expected["keys"]
    assert multiply_adds(network, size) == expected["conv_linear_macs"]
    if index == 13714:
        names = hashlib.sha256("\n".join(sorted(network.state_dict())).encode()).hexdigest()
        assert names == GOLDEN["sha256_of_state_dict_keys_13714_sorted_one_a_line"]
    images = golden_images(size, torch.float32).requires_grad_()
    logits = network(images)
    assert relative(logits, expected["logits_eval"]) < 1e-4
    labels = torch.tensor([3, 7]) % expected["classes"]
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, labels), images)
    assert gradient.abs().sum().item() == pytest.approx(expected["input_grad_l1"], rel=1e-4)
    with torch.no_grad():
        logits = network.double().train()(golden_images(size, torch.float64))
    bound = 1e-3 if index in ILL_CONDITIONED_IN_TRAIN_MODE else 1e-4
    assert relative(logits, expected["logits_train"]) < bound


def plain_cell(cell: nn.Module, ops: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """Node j is the sum over i < j of op_ij(node i): every term computed, zeros added."""
    nodes = [x]
    for target in (1, 2, 3):
        total = torch.zeros_like(x)
        for k, (source, end) in enumerate(EDGES):
            if end != target:
                continue
            node = nodes[source]
            if ops[k] == 1:
                total = total + node
            elif ops[k] in (2, 3):
                _, conv, norm = cell.layers[k].op
                total = total + norm(F.conv2d(F.relu(node), conv.weight, padding=(ops[k] - 2)))
            elif ops[k] == 4:
                count = F.avg_pool2d(torch.ones_like(node), 3, 1, 1)
                total = total + F.avg_pool2d(node, 3, 1, 1) / count
        nodes.append(total)
    return nodes[3]


@settings(max_examples=30, deadline=None)
@given(ops=CELLS, train=st.booleans())
@example(ops=(0,) * 6, train=False)
@example(ops=(0, 0, 1, 0, 3, 0), train=False)  # a convolution of zeros is BatchNorm's constant
def test_a_cell_is_its_definition(ops, train):
    network = NASBench201Network(ops, channels=4, cells=1, classes=3).double().train(train)
    fill_by_formula(network)
    cell, twin = network.cells[0], copy.deepcopy(network.cells[0])
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    found, expected = cell(x), plain_cell(twin, ops, x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weights = torch.randn_like(found)
    (gradient,) = torch.autograd.grad((found * weights).sum(), x)
    (wanted,) = torch.autograd.grad((expected * weights).sum() + 0 * x.sum(), x)
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("arch", "said"),
    [
        ({}, "no architecture"),
        ({"index": 15625}, "15624"),
        ({"str": "|none~0|+|nne~0|none~1|+|none~0|none~1|none~2|"}, "'none'"),
        ({"index": 0, "cells": 0}, "cells = 0"),
        ({"index": 0, "channels": "16"}, "channels = '16'"),
        ({"index": 0, "shape": (3, 32, 30)}, "32x30"),
    ],
)
def test_a_record_that_describes_no_network_is_refused(arch, said):
    shape = arch.get("shape", (3, 32, 32))
    with pytest.raises(RbError, match=said):
        build({"space": "nasbench201", **arch}, classes=10, shape=shape)
