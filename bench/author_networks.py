"""Networks of three repositories for CIFAR-10: which are recognised and evaluated rightly from a state dict.

    python bench/author_networks.py kuangliu FOLDER [--only TEXT] [--images 40]
    python bench/author_networks.py chenyaofo FOLDER
    python bench/author_networks.py huyvnphan FOLDER
    python bench/author_networks.py timm [--named]

FOLDER is a checkout of kuangliu/pytorch-cifar, chenyaofo/pytorch-cifar-models or huyvnphan/PyTorch_CIFAR10,
whose code stays there. As in zoo.py, every network gets random weights, its BatchNorm layers see images (two
times `--images`), and the logits that rbtools computes from its state dict alone are compared with its own:
`right` (1e-5 of the largest), `near`, `wrong`, `refused`. kuangliu's networks see pixels as they are, the
others the normalisation of their repository. `timm` are 24 common networks of timm for ImageNet, behind their
configuration's normalisation; `--named` gives the name as `--arch timm:NAME`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from zoo import images_of, logits_of, read_back, trained

from rbtools.models.normalize import Normalized
from rbtools.zoo.libraries import import_timm

KUANGLIU = """ResNet18 PreActResNet18 GoogLeNet densenet_cifar DenseNet121 ResNeXt29_2x64d ResNeXt29_32x4d
    MobileNet MobileNetV2 DPN26 ShuffleNetG2 ShuffleNetG3 SENet18 EfficientNetB0 RegNetX_200MF RegNetX_400MF
    RegNetY_400MF PNASNetA PNASNetB SimpleDLA DLA LeNet""".split()
CHENYAOFO = """resnet20 vgg11_bn mobilenetv2_x0_5 mobilenetv2_x0_75 mobilenetv2_x1_0 mobilenetv2_x1_4
    shufflenetv2_x0_5 shufflenetv2_x1_0 shufflenetv2_x1_5 shufflenetv2_x2_0 repvgg_a0 repvgg_a1
    repvgg_a2""".split()
HUYVNPHAN = {
    "vgg": ("vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn"),
    "resnet": ("resnet18", "resnet34", "resnet50"),
    "densenet": ("densenet121", "densenet161", "densenet169"),
    "mobilenetv2": ("mobilenet_v2",),
    "googlenet": ("googlenet",),
    "inception": ("inception_v3",),
}
TIMM = """mobilenetv3_small_100 mobilenetv3_large_100 ghostnet_100 efficientnet_b0 tf_efficientnet_b0
    deit_tiny_patch16_224 mobilenetv2_100 regnety_008 densenet121 resnet18 tf_efficientnetv2_b0
    deit_small_patch16_224
    resnet34 xception resnet50 resnext50_32x4d seresnet50 resnest50d convnext_tiny
    swin_tiny_patch4_window7_224 inception_v3 mixer_b16_224 deit_base_patch16_224
    vit_base_patch16_224""".split()
MEAN = (0.4914, 0.4822, 0.4465)
# The standard deviations of each repository's normalisation of CIFAR-10.
STD = {"chenyaofo": (0.2023, 0.1994, 0.2010), "huyvnphan": (0.2471, 0.2435, 0.2616)}


def shufflenet(folder: str) -> Any:
    """kuangliu's file, which divides whole numbers as Python 2 did."""
    module: Any = types.ModuleType("shufflenet")
    source = Path(folder, "models", "shufflenet.py").read_text("utf-8")
    exec(source.replace("out_planes/4", "out_planes//4"), vars(module))
    return module


def makers(repository: str, folder: str) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """The networks' names, and what builds them."""
    if repository == "timm":
        timm: Any = import_timm()
        for name in TIMM:
            yield name, lambda name=name: timm.create_model(name)
    elif repository == "kuangliu":
        models: Any = importlib.import_module("models")
        yield "VGG11", lambda: models.VGG("VGG11")
        yield "ShuffleNetV2-1", lambda: models.ShuffleNetV2(1)
        for name in KUANGLIU:
            yield name, getattr(shufflenet(folder) if name.startswith("ShuffleNetG") else models, name)
    elif repository == "chenyaofo":
        models = importlib.import_module("pytorch_cifar_models")
        for name in CHENYAOFO:
            yield name, getattr(models, f"cifar10_{name}")
    else:
        for file, names in HUYVNPHAN.items():
            models = importlib.import_module(f"cifar10_models.{file}")
            for name in names:
                yield name, getattr(models, name)


def compared(
    repository: str, name: str, make: Callable[[], nn.Module], count: int, named: bool
) -> dict[str, Any]:
    torch.manual_seed(0)
    network = make()
    if repository == "timm":
        cfg: Any = network.pretrained_cfg
        side, dataset, pair = cfg["input_size"][-1], "imagenet", (cfg["mean"], cfg["std"])
    else:
        side, dataset = 32, "cifar10"
        pair = None if repository == "kuangliu" else (MEAN, STD[repository])
    every = images_of((3, side, side), 3 * count)
    behind = network if pair is None else Normalized(network, *pair)
    trained(behind, every[: 2 * count])
    expected = logits_of(behind, every[-2:])
    given = f"timm:{name}" if named else None
    result = read_back(dict(network.state_dict()), dataset, every[2 * count :], expected, given)
    return {"network": f"{repository}/{name}", **result}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("repository", choices=["kuangliu", "chenyaofo", "huyvnphan", "timm"])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--only", default="", help="a regular expression for names")
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--named", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.folder:
        sys.path.insert(0, options.folder)
    verdicts: dict[str, int] = {}
    for name, make in makers(options.repository, options.folder or ""):
        if re.search(options.only, name):
            line = compared(options.repository, name, make, options.images, options.named)
            verdicts[line["verdict"]] = verdicts.get(line["verdict"], 0) + 1
            print(json.dumps(line), flush=True)
    print(json.dumps(verdicts))
