"""Changed files of all families: the same logits or an error, never silently another function."""

from __future__ import annotations

import copy
import functools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.inputs.named_networks import named_arch
from rbtools.models import build, checkpoint
from rbtools.models.families import infer
from rbtools.models.load_weights import load_into
from rbtools.models.read_checkpoint import Checkpoint
from rbtools.zoo.transformers_names import renamed
from tests.zoo.test_transformers_names import NETWORKS as transformers
from tests.zoo.test_transformers_names import filled

pytestmark = pytest.mark.slow
State = dict[str, Tensor]
SMALL = (
    *("deepmind/wrn-10-1", "deepmind/meansparse-wrn-10-1", "deepmind/preactresnet18"),
    *("huang/wrn-r-d1-2-1-w16-24-16", "huang/wrn-a-d1-2-1-w16-24-16"),
    *("augmix/resnext-11-2x32d", "card/resnet18-w8", "card/wide-preactresnet18-x1"),
    "debenedetti/xcit-s12",
)
# The smallest network of each family, and the side of its images.
NETWORKS = {
    **dict.fromkeys("nb201 resnet18 preactresnet18 wrn-16-1 vgg11".split(), 32),
    **dict.fromkeys(["deit-ti", "repo:microsoft/swin-t", "hf:ViT"], 224),
    **dict.fromkeys(["torchvision:squeezenet1_1", "torchvision:shufflenet_v2_x0_5"], 64),
    **dict.fromkeys(["torchvision:mnasnet0_5", "repo:singh/convnext-t"], 64),
    **dict.fromkeys(["hf:ConvNextV2", "hf:ResNet", "hf:RegNet"], 64),
    **dict.fromkeys([f"repo:{name}" for name in SMALL], 32),
}
CELL = {
    "space": "nasbench201",
    "str": "|nor_conv_3x3~0|+|nor_conv_1x1~0|nor_conv_3x3~1|+|nor_conv_1x1~0|nor_conv_3x3~1|nor_conv_3x3~2|",
    **{"channels": 8, "cells": 1},
}
HUB = "hf:"  # networks of transformers, under its names
BY_TIMM = ("repo:debenedetti/", "repo:singh/", "repo:microsoft/", HUB)
ANY_DEPTH = ("repo:huang/",)  # without the last block of a stage it is the next smaller network
TRIES = 4  # changes of each network


def reshaped(state: State, rng: random.Random) -> tuple[Any, State | None]:
    key = rng.choice([key for key, value in state.items() if value.ndim and len(value) > 1])
    value = state[key]
    half = value.flatten()[: len(value) // 2]
    others = [value[:-1], torch.cat([value, value[:1]]), value.unsqueeze(-1), half]
    return {**state, key: rng.choice(others)}, None


def without_a_module(state: State, rng: random.Random) -> tuple[Any, State | None]:
    words = rng.choice([key for key in state if not key.endswith("num_batches_tracked")]).split(".")
    start = ".".join(words[: rng.randint(1, len(words))])
    return {k: v for k, v in state.items() if k != start and not k.startswith(f"{start}.")}, None


def two_in_one_dict(state: State, rng: random.Random) -> tuple[Any, State | None]:
    names = rng.choice([("first", "second"), ("generator", "classifier"), ("module", "teacher2")])
    return {f"{name}.{key}": value for name in names for key, value in state.items()}, None


def two_dicts(state: State, rng: random.Random) -> tuple[Any, State | None]:
    other = {key: value + 1 for key, value in state.items()}
    return {"discriminator": other, "classifier": state}, None


def rounded(state: State, rng: random.Random) -> tuple[Any, State | None]:
    kind = rng.choice([torch.float16, torch.bfloat16, torch.float64])
    cast = {key: value.to(kind) if value.is_floating_point() else value for key, value in state.items()}
    return cast, {key: cast[key].to(value.dtype) for key, value in state.items()}


def in_whole_numbers(state: State, rng: random.Random) -> tuple[Any, State | None]:
    """Weights of 8 bits, whose scales the file does not have, or has elsewhere."""
    kind = rng.choice([torch.int8, torch.uint8, torch.int32])
    whole = {k: (v * 100).clamp(0, 100).to(kind) if v.ndim > 1 else v for k, v in state.items()}
    scales = {f"{key}_scale": 0.01 for key in state}
    return rng.choice([whole, {"state_dict": whole, "scales": scales}]), None


def quantised(state: State, rng: random.Random) -> tuple[Any, State | None]:
    wide = {key: value for key, value in state.items() if value.ndim > 1}
    return state | {
        key: torch.quantize_per_tensor(value.detach(), 0.01, 0, torch.qint8) for key, value in wide.items()
    }, None


def pruned(state: State, rng: random.Random) -> tuple[Any, State | None]:
    """As torch.nn.utils.prune saves it, in some modules or in all."""
    wide = [key for key, value in state.items() if value.ndim > 1]
    chosen = rng.choice([wide, wide[-1:], wide[:1]])
    rest = {key: value for key, value in state.items() if key not in chosen}
    masks = {key: (state[key].abs() > state[key].abs().mean() / 2).float() for key in chosen}
    file = rest | {f"{k}_orig": state[k] for k in chosen} | {f"{k}_mask": v for k, v in masks.items()}
    return file, state | {key: state[key] * mask for key, mask in masks.items()}


def fused(state: State, rng: random.Random) -> tuple[Any, State | None]:
    """Without BatchNorm layers, which were folded into convolutions with a bias."""
    norms = [key.removesuffix("running_mean") for key in state if key.endswith("running_mean")]
    rest = {key: value for key, value in state.items() if not key.startswith(tuple(norms or ["-"]))}
    biases = {re.sub("weight$", "bias", k): v[:, 0, 0, 0].clone() for k, v in rest.items() if v.ndim == 4}
    return biases | rest, state if not norms else None


def in_another_language(state: State, rng: random.Random) -> tuple[Any, State | None]:
    words = {"layer": "couche", "block": "bloc", "conv": "pli", "weight": "poids", "features": "traits"}
    words |= dict.fromkeys(("fc", "linear", "classifier", "head", "logits"), "sortie")
    pattern = "|".join(words)
    return {re.sub(pattern, lambda match: words[match[0]], key): v for key, v in state.items()}, None


CHANGES: tuple[Callable[[State, random.Random], tuple[Any, State | None]], ...] = (
    *(reshaped, without_a_module, two_in_one_dict, two_dicts, rounded, in_whole_numbers, quantised, pruned),
    *(fused, in_another_language),
)


@functools.cache
def network_of(name: str) -> nn.Module:
    torch.manual_seed(len(name))
    side = NETWORKS[name]
    if name.startswith(HUB):
        state = renamed(state_of(name))
        network = build(infer(state).arch, classes=10, shape=(3, side, side)).eval()
        load_into(network, Checkpoint(Path("m.pt"), state))
        return network
    arch = CELL if name == "nb201" else named_arch(name)
    network = build(arch, classes=10, shape=(3, side, side)).eval()
    with torch.no_grad():
        for value in network.state_dict().values():
            if value.ndim == 1 and value.is_floating_point():
                value.add_(torch.rand_like(value), alpha=0.1)
    return network


def state_of(name: str) -> State:
    """The tensors of the undamaged file."""
    if name.startswith(HUB):
        torch.manual_seed(len(name))
        shapes, _, _ = transformers[name.removeprefix(HUB)]
        return {key: value + 0.01 * torch.rand_like(value) for key, value in filled(shapes).items()}
    return {key: value.detach() for key, value in network_of(name).state_dict().items()}


@torch.no_grad()
def logits_of(name: str, state: State, images: Tensor) -> Tensor:
    network = copy.deepcopy(network_of(name))
    if name.startswith(HUB):
        load_into(network, Checkpoint(Path("m.pt"), renamed(state)))
    else:
        for key, value in network.state_dict().items():
            value.copy_(state[key])
    return network(images)


@torch.no_grad()
def refused(name: str, content: Any, stands_for: State | None, file: Path) -> str | None:
    """The message where the file is refused; else None, after comparing the logits."""
    side = NETWORKS[name]
    torch.save(content, file)
    try:
        ours, arch, _ = checkpoint.load(file, shape=(3, side, side), classes=10)
    except RbError as error:
        return str(error)
    if arch["name"] != name.partition(":")[2] and name.startswith(ANY_DEPTH):
        return "m.pt is whole as a network of fewer blocks, which is named"
    assert stands_for is not None, "a file that was to be refused is evaluated"
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    expected = logits_of(name, stands_for, images)
    torch.testing.assert_close(ours(images), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    return None


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_changed_file_gives_the_same_logits_or_is_refused(name: str, tmp_path: Path) -> None:
    """Each network gets a choice of the changes, so that each is tried in several families."""
    for change in random.Random(name).sample(CHANGES, TRIES):
        state = state_of(name)
        content, stands_for = change(state, random.Random(f"{name} {change.__name__}"))
        message = refused(name, content, stands_for, tmp_path / "m.pt")
        assert message is None or "m.pt" in message, (change.__name__, message)
        if change in (rounded, pruned):
            assert message is None, (change.__name__, message)
