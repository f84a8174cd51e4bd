"""Networks of transformers under the names of the classes that are built for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rbtools.models import build
from rbtools.models.families import infer
from rbtools.models.load_weights import load_into
from rbtools.models.read_checkpoint import Checkpoint
from rbtools.zoo.transformers_names import renamed

Shapes = dict[str, tuple[int, ...]]


def layer(name: str, outputs: int, *inputs: int) -> Shapes:
    """The weight and bias of a linear layer or, without inputs, of a normalisation."""
    return {f"{name}.weight": (outputs, *inputs), f"{name}.bias": (outputs,)}


def convolution(name: str, outputs: int, inputs: int, kernel: int) -> Shapes:
    numbers = {f"{name}.normalization.running_{word}": (outputs,) for word in ("mean", "var")}
    kernels = {f"{name}.convolution.weight": (outputs, inputs, kernel, kernel)}
    return kernels | layer(f"{name}.normalization", outputs) | numbers


def attention(name: str, inner: str, width: int) -> Shapes:
    words = [f"attention.{inner}.{word}" for word in ("query", "key", "value")]
    shapes: Shapes = {}
    for word in (*words, "attention.output.dense"):
        shapes |= layer(f"{name}.{word}", width, width)
    for word in ("layernorm_before", "layernorm_after"):
        shapes |= layer(f"{name}.{word}", width)
    shapes |= layer(f"{name}.intermediate.dense", 4 * width, width)
    return shapes | layer(f"{name}.output.dense", width, 4 * width)


def vit(kind: str = "vit", width: int = 192, depth: int = 12) -> Shapes:
    tokens = 1 + (kind == "deit")
    shapes: Shapes = {f"{kind}.embeddings.cls_token": (1, 1, width)}
    if kind == "deit":
        shapes["deit.embeddings.distillation_token"] = (1, 1, width)
    shapes[f"{kind}.embeddings.position_embeddings"] = (1, 196 + tokens, width)
    shapes |= layer(f"{kind}.embeddings.patch_embeddings.projection", width, 3, 16, 16)
    for block in range(depth):
        shapes |= attention(f"{kind}.encoder.layer.{block}", "attention", width)
    heads = ("cls_classifier", "distillation_classifier") if kind == "deit" else ("classifier",)
    for head in heads:
        shapes |= layer(head, 10, width)
    return shapes | layer(f"{kind}.layernorm", width)


def swin() -> Shapes:
    shapes = layer("swin.embeddings.patch_embeddings.projection", 96, 3, 4, 4)
    shapes |= layer("swin.embeddings.norm", 96) | layer("swin.layernorm", 768) | layer("classifier", 10, 768)
    for stage, depth in enumerate((2, 2, 6, 2)):
        width, name = 96 << stage, f"swin.encoder.layers.{stage}"
        for block in range(depth):
            shapes |= attention(f"{name}.blocks.{block}", "self", width)
            table = f"{name}.blocks.{block}.attention.self.relative_position_bias_table"
            shapes[table] = (169, 3 << stage)
        if stage < 3:
            shapes[f"{name}.downsample.reduction.weight"] = (2 * width, 4 * width)
            shapes |= layer(f"{name}.downsample.norm", 4 * width)
    return shapes


def convnext(kind: str, depths: tuple[int, ...], first: int) -> Shapes:
    shapes = layer(f"{kind}.embeddings.patch_embeddings", first, 3, 4, 4)
    shapes |= layer(f"{kind}.embeddings.layernorm", first) | layer(f"{kind}.layernorm", 8 * first)
    for stage, depth in enumerate(depths):
        width, name = first << stage, f"{kind}.encoder.stages.{stage}"
        if stage:
            shapes |= layer(f"{name}.downsampling_layer.0", width // 2)
            shapes |= layer(f"{name}.downsampling_layer.1", width, width // 2, 2, 2)
        for number in range(depth):
            block = f"{name}.layers.{number}"
            shapes |= layer(f"{block}.dwconv", width, 1, 7, 7) | layer(f"{block}.layernorm", width)
            shapes |= layer(f"{block}.pwconv1", 4 * width, width)
            shapes |= layer(f"{block}.pwconv2", width, 4 * width)
            if kind == "convnext":
                shapes[f"{block}.layer_scale_parameter"] = (width,)
            else:
                shapes |= {f"{block}.grn.{word}": (1, 1, 1, 4 * width) for word in ("weight", "bias")}
    return shapes | layer("classifier", 10, 8 * first)


def resnet() -> Shapes:
    shapes, before = convolution("resnet.embedder.embedder", 64, 3, 7), 64
    for stage in range(4):
        for number in range(2):
            block, width = f"resnet.encoder.stages.{stage}.layers.{number}", 64 << stage
            if before != width:
                shapes |= convolution(f"{block}.shortcut", width, before, 1)
            shapes |= convolution(f"{block}.layer.0", width, before, 3)
            shapes |= convolution(f"{block}.layer.1", width, width, 3)
            before = width
    return shapes | layer("classifier.1", 10, 512)


def regnet_y() -> Shapes:
    shapes, before = convolution("regnet.embedder.embedder", 32, 3, 3), 32
    for stage, (depth, width) in enumerate(zip((1, 3, 6, 6), (48, 104, 208, 440), strict=True)):
        for number in range(depth):
            block = f"regnet.encoder.stages.{stage}.layers.{number}"
            if before != width:
                shapes |= convolution(f"{block}.shortcut", width, before, 1)
            shapes |= convolution(f"{block}.layer.0", width, before, 1)
            shapes |= convolution(f"{block}.layer.1", width, 8, 3)
            squeezed = round(before / 4)
            shapes |= layer(f"{block}.layer.2.attention.0", squeezed, width, 1, 1)
            shapes |= layer(f"{block}.layer.2.attention.2", width, squeezed, 1, 1)
            shapes |= convolution(f"{block}.layer.3", width, width, 1)
            before = width
    return shapes | layer("classifier.1", 10, 440)


def filled(shapes: Shapes) -> dict[str, Tensor]:
    """Tensors that depend on their names alone."""
    tensors = {}
    for key, shape in shapes.items():
        value = torch.empty(shape)
        phase = sum(map(ord, key)) % 97
        wave = torch.sin(torch.arange(value.numel(), dtype=torch.float64) * 0.7 + phase).float().view(shape)
        matrix = value.ndim > 1 and not key.endswith(("token", "position_embeddings", "table"))
        one = key.endswith(("weight", "running_var", "parameter")) and "grn" not in key
        tensors[key] = wave * (3 / value[0].numel()) ** 0.5 if matrix and one else wave * 0.2 + one
    return tensors


def pixels(side: int) -> Tensor:
    sizes = (torch.arange(size, dtype=torch.float64) for size in (3, side, side))
    c, h, w = torch.meshgrid(*sizes, indexing="ij")
    return (0.5 + 0.3 * torch.sin(2 * c + 0.4 * h) + 0.2 * torch.cos(0.9 * w + c)).float()[None]


# Network -> (its tensors, the recognised name, the side of the image in pixels).
NETWORKS: dict[str, tuple[Shapes, str, int]] = {
    "ViT": (vit(), "zoo:deit-ti", 224),
    "DeiT": (vit("deit"), "timm:deit_tiny_distilled_patch16_224", 224),
    "Swin": (swin(), "repo:microsoft/swin-t", 224),
    "ConvNext": (convnext("convnext", (3, 3, 9, 3), 96), "timm:convnext_tiny", 64),
    "ConvNextV2": (convnext("convnextv2", (2, 2, 6, 2), 40), "timm:convnextv2_atto", 64),
    "ResNet": (resnet(), "zoo:resnet18", 64),
    "RegNet": (regnet_y(), "timm:regnety_004", 64),
}
# The first four logits of transformers 5.23 with these tensors (eval mode, float64).
GOLDEN: dict[str, list[float]] = {
    "ViT": [1.888303, -0.8190004, -1.230801, 2.316769],
    "DeiT": [-0.9321636, 1.030725, -0.6270569, -0.3580852],
    "Swin": [-1.849107, 3.585237, -5.457371, 6.07622],
    "ConvNext": [-3.794851, 1.650177, 0.0713211, -2.22562],
    "ConvNextV2": [0.2174264, -2.953408, 2.700164, -0.5551736],
    "ResNet": [-1620139.0, -1915859.0, -2084329.0, -2114361.0],
    "RegNet": [-148.1133, -164.9177, -179.2174, -190.7308],
}


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
@pytest.mark.slow
def test_a_network_computes_what_transformers_computes(name: str) -> None:
    shapes, expected, side = NETWORKS[name]
    state = renamed(filled(shapes))
    space, _, known = expected.partition(":")
    arch = {"space": space, "name": known}
    if name != "DeiT":  # only the configuration shows that it has two heads
        seen = infer(state)
        arch = seen.arch
        assert (f"{arch['space']}:{arch['name']}", seen.classes, seen.in_channels) == (expected, 10, 3)
    network = build(arch, classes=10, shape=(3, side, side))
    load_into(network, Checkpoint(Path("model.safetensors"), state))
    logits = network.double().eval()(pixels(side).double())
    wanted = torch.tensor(GOLDEN[name], dtype=torch.float64)
    torch.testing.assert_close(logits[0, :4], wanted, rtol=0, atol=2e-5 * float(logits.abs().max()))
