"""Weights files: from a file to a network that takes images, or to a message. No code in a file runs."""

from __future__ import annotations

import argparse
import bz2
import io
import json
import math
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from rbtools import models, spaces
from rbtools.models import checkpoint
from rbtools.models.meta import meta_init
from rbtools.store import canonical
from tests.fuzz.properties import held, new_file
from tests.fuzz.strategies import ODD, Draw, changed, damaged, repacked

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a failing file
EXAMPLES = settings(max_examples=20)
LARGEST_RUN = 500_000  # parameters of a network that is run on an image, too
WORDS = (
    "cells.99999999.conv_a.op.1.weight fc1.weight features.1.running_mean conv_proj.weight mean std mu sigma"
    " encoder.layers.encoder_layer_0.mlp.0.weight AuxLogits.fc.weight normalize.mean n_averaged attacker.x"
    " features.denseblock1.denselayer1.norm.1.weight state_dict model net ema best optimizer arch args module"
    " config normalization full 200 all_results net_state_dict arch_str rbtools epoch history"
).split()
CELL = "|nor_conv_3x3~0|+|nor_conv_1x1~0|nor_conv_3x3~1|+|nor_conv_3x3~0|{}~1|nor_conv_1x1~2|"
SMALL = {"space": "nasbench201", "str": CELL.format("nor_conv_1x1"), "channels": 4, "cells": 1}
ARCHES: tuple[Any, ...] = (
    *(None, SMALL, {"member": "cifar10"}, {"normalize": [[0.5], [0.25]]}, {"normalize": "none"}),
    *({"space": "fcnn", "str": "relu/tanh"}, {"space": "zoo", "name": "resnet18"}),
    *({"space": "python", "name": "os:system"}, {"space": "timm", "name": "hf-hub:a/b"}),
)
DATA: tuple[tuple[int | None, Any], ...] = (
    *((10, (3, 32, 32)), (10, (3, 32, 32)), (10, (1, 32, 32)), (10, (1, 28, 28)), (None, None)),
)


class Hostile:
    """Unpickled, it would leave a folder."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, ("ran",)


@cache
def states() -> list[dict[str, Any]]:
    """State dicts of small networks of every kind; larger tensors are one number, expanded."""
    networks: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
        (SMALL, (3, 32, 32)),
        ({**SMALL, "str": CELL.format("skip_connect")}, (1, 32, 32)),
        ({"space": "fcnn", "str": "relu/tanh", "width": 8}, (1, 8, 8)),
        ({"space": "rescnn", "str": "relu3/tanh3+skip", "width": 4}, (3, 8, 8)),
        ({"space": "torchvision", "name": "squeezenet1_1"}, (3, 64, 64)),
        ({"space": "zoo", "name": "simplecnn"}, (1, 28, 28)),
    ]
    zoo = ("resnet18", "preactresnet18", "wrn-16-4", "vgg11", "deit-ti")
    networks += [({"space": "zoo", "name": name}, (3, 32, 32)) for name in zoo]
    found = []
    for arch, shape in networks:
        with meta_init():
            state = models.build(arch, classes=10, shape=shape).state_dict()
        ones = {key: torch.full((), 0.01).to(value.dtype).expand(value.shape) for key, value in state.items()}
        found.append({key: one.clone() if one.numel() < 600 else one for key, one in ones.items()})
    return found


def saved(value: Any, **how: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **how)
    return stream.getvalue()


@cache
def files() -> list[bytes]:
    """Small states in each of the formats, and what scripts put beside the weights."""
    one = {key: value.contiguous() for key, value in states()[0].items()}
    runs = {("cifar10", 777): {"net_state_dict": one, "arch_config": {"arch_str": SMALL["str"]}}}
    beside = {"epoch": 3, "args": argparse.Namespace(lr=0.1), "optimizer": {"state": {0: {"step": 1}}}}
    return [
        saved({f"module.{key}": value for key, value in one.items()}),
        saved({"state_dict": OrderedDict(one), **beside, "mean": [0.5], "std": [0.25]}),
        saved(one, _use_new_zipfile_serialization=False),
        saved({"full": {"all_results": runs}}),
        saved({"x": Hostile()}),
        bz2.compress(pickle.dumps({"full": {"all_results": runs}})),
        save(one, {"rbtools": json.dumps({"arch": SMALL})}),
    ]


def load(data: bytes, arch: Any, classes: int | None, shape: Any) -> None:
    """The network of a file takes images, and its facts can be written."""
    hints = checkpoint.NormalizationHints(known={"none": None, "dataset": ((0.5,), (0.2,))})
    path = new_file("w.pt", data)
    with held():
        network, arch, facts = checkpoint.load(path, arch, classes=classes, shape=shape, hints=hints)
        canonical({"arch": arch, "facts": facts})
        spaces.describe(arch, facts["classes"], facts["shape"])
        if sum(value.numel() for value in network.parameters()) < LARGEST_RUN and max(facts["shape"]) <= 64:
            with torch.no_grad():
                assert network(torch.zeros(2, *facts["shape"])).shape == (2, facts["classes"])


@st.composite
def damaged_files(draw: Draw) -> bytes:
    data = draw(st.sampled_from(files()))
    return draw(repacked(data) | repacked(data) | damaged(data, 400) | damaged(data))  # type: ignore[no-any-return]


@EXAMPLES
@given(damaged_files(), st.none() | st.sampled_from(ARCHES), st.sampled_from(DATA))
def test_a_damaged_file(data: bytes, arch: Any, of: tuple[int | None, Any]) -> None:
    load(data, arch, *of)


KINDS = (torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64)
KINDS += (torch.bfloat16, torch.float8_e4m3fn, torch.uint8)


@st.composite
def tensors(draw: Draw) -> torch.Tensor:
    """A tensor of any shape and type; a large one is one number, expanded."""
    shape = draw(st.lists(st.sampled_from((0, 1, 3, 10, 64, 100, 512, 10**5, 2**31, 2**40)), max_size=4))
    one = torch.zeros((), dtype=draw(st.sampled_from(KINDS)))
    plain = one.expand(shape) if math.prod(shape) < 2**60 else one
    return draw(st.sampled_from((plain, plain, plain, torch.eye(3).to_sparse())))  # type: ignore[no-any-return]


@st.composite
def odd_contents(draw: Draw) -> bytes:
    """A file of what a training script may have saved, or nobody."""
    odd, words = ODD | tensors() | tensors(), st.sampled_from(WORDS)
    prefix = draw(st.sampled_from(("", "", "", "module.", "model.", "0.", "ema.", "é", ".")))
    state: Any = {f"{prefix}{key}": value for key, value in draw(st.sampled_from(states())).items()}
    if not draw(st.integers(0, 6)):  # the layout of NAS-Bench-201's archives
        runs = {("cifar10", 777): {"net_state_dict": state, "arch_config": {"arch_str": "|none~0|"}}}
        state = {"full": {"all_results": runs, "arch_str": "|x~0|", "other": Hostile()}}
    for _ in range(draw(st.integers(0, 3))):
        state = draw(changed(state, WORDS, odd)) or {"a": 0}
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        noted = draw(changed(draw(st.sampled_from(ARCHES)) or {"x": 1}, WORDS, odd))
        state = {draw(words): state, draw(words): noted, draw(words): draw(odd)}
    try:
        return saved(state)
    except (RuntimeError, OverflowError):  # torch or pickle cannot save such a thing
        assume(False)
        raise


@pytest.mark.slow
@pytest.mark.slow
@EXAMPLES
@given(odd_contents(), st.none() | st.sampled_from(ARCHES), st.sampled_from(DATA))
def test_an_odd_content(data: bytes, arch: Any, of: tuple[int | None, Any]) -> None:
    load(data, arch, *of)
