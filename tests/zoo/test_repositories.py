"""Networks of public repositories under their authors' names, and RobustBench's names of networks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints
from rbtools.inputs.data import data_of
from rbtools.inputs.named_networks import named_arch
from rbtools.models import build, checkpoint
from rbtools.models.checkpoint import NormalizationHints
from rbtools.models.families import infer
from rbtools.models.meta import meta_init
from rbtools.models.normalize import Known
from rbtools.spaces.identity import identity
from rbtools.zoo import leaderboard_names, repositories
from tests.calibrated import SIDE, hints, made, waves

# The first four logits of the first image and the first two of the second, with weights by formula, as the
# authors' code gives them. The networks are smaller than the published ones where the family has sizes.
GOLDEN: dict[str, tuple[list[float], list[float]]] = {
    "deepmind/wrn-10-2": ([1379.96, 9.56179, -1380.98, 168.765], [1408.52, 10.9179]),
    "deepmind/wrn-10-1:activation=relu": ([53.0243, 38.4972, -0.346812, -38.9714], [59.7496, 43.262]),
    "deepmind/preactresnet18": ([2.56825e10, 2.56052e10, 2.38273e10, 2.04668e10], [3.15015e10, 3.14253e10]),
    "deepmind/meansparse-wrn-10-2": ([1077.4, 2.02334, -1077.45, 137.108], [1110.65, -3.99855]),
    "huang/wrn-r-d1-2-1-w32-64-32": ([-47220.3, 57574.5, -58438.5, 49669.0], [-46429.9, 56577.1]),
    "huang/wrn-a-d1-2-1-w32-32-48": ([7602.51, 17170.3, -27367.7, 14332.5], [7643.7, 16942.2]),
    "augmix/resnext-11-2x32d": ([-603.965, -207.753, 242.78, 629.911], [-605.532, -208.316]),
    "card/resnet18-w16": ([1.20312e9, -1.48471e9, -1.0114e9, 1.61531e9], [1.19399e9, -1.45894e9]),
    "card/wide-preactresnet18-x1": (
        [-4.42642e10, -4.41404e10, -4.10847e10, -3.53002e10],
        [-4.33635e10, -4.32825e10],
    ),
}


def filled(network: nn.Module) -> nn.Module:
    """The network with weights that depend on their names alone."""
    for key, value in network.state_dict().items():
        if not value.is_floating_point():
            continue
        phase = sum(map(ord, key)) % 97
        wave = torch.sin(torch.arange(value.numel(), dtype=torch.float64) * 0.7 + phase).float()
        if key.endswith("threshold"):
            value.fill_(0.5)
        elif value.ndim > 1:
            value.copy_(wave.view(value.shape) * (3 / value[0].numel()) ** 0.5)
        else:
            base = 0.5 if key.endswith("running_var") else 1.0 if key.endswith("weight") else 0.0
            value.copy_(wave.view(value.shape) * 0.2 + base)
    return network.eval()


def network_of(name: str, classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32)) -> nn.Module:
    return build(named_arch(f"repo:{name}"), classes=classes, shape=shape)


@pytest.mark.parametrize("name", GOLDEN)
@torch.no_grad()
def test_a_network_computes_what_its_authors_code_computes(name: str) -> None:
    logits = filled(network_of(name))(waves())
    for found, expected in zip((logits[0, :4], logits[1, :2]), GOLDEN[name], strict=True):
        atol = 5e-4 * float(logits.abs().max())
        torch.testing.assert_close(found, torch.tensor(expected), rtol=5e-4, atol=atol)


@pytest.mark.parametrize("name", [name for family in repositories.families() for name in family.EXAMPLES])
@pytest.mark.slow
def test_an_example_is_recognised_by_its_names_and_shapes(name: str) -> None:
    with meta_init():
        network = network_of(name, 7, (1, 32, 32))
    inferred = infer(dict(network.state_dict()))
    usual = next(iter(repositories.variants_of({"name": name})), {})
    assert inferred.arch == {"space": "repo", "name": name, **usual}
    assert (inferred.classes, inferred.in_channels) == (7, 1)


def saved(name: str, normalize: Known = None) -> Tensor:
    """The labels of a network, which is in the file m.pt."""
    network, labels = made(f"repo:{name}", normalize)
    torch.save({"state_dict": {f"module.{key}": v for key, v in network.state_dict().items()}}, "m.pt")
    return labels


def load(seen: NormalizationHints) -> tuple[Any, Any, Any]:
    return checkpoint.load("m.pt", shape=(3, SIDE, SIDE), hints=seen)


@pytest.mark.parametrize("name", ["huang/wrn-r-d1-1-1-w16-24-16", "huang/wrn-a-d1-1-1-w16-24-16"])
def test_the_activation_is_told_by_accuracy(name: str) -> None:
    for activation in ("silu", "relu"):
        labels = saved(f"{name}:activation={activation}")
        _, arch, _ = load(hints(labels, {"none": None}))
        assert (arch["name"], arch["activation"], arch["normalize"]) == (name, activation, "none")


@pytest.mark.slow
def test_every_row_names_a_network_a_normalisation_and_a_preprocessing() -> None:
    rows = leaderboard_names.table()
    assert len(rows) >= 188 and not {key.rpartition("/")[2] for key in rows} & set(leaderboard_names.WITHOUT)
    for key, (text, normalize, how) in rows.items():
        arch = named_arch(f"robustbench:{key}")
        identity(arch)
        assert ("normalize" in arch) == bool(normalize) and arch.get("preprocessing", "") == how
        assert how == "" or key.startswith("imagenet/")
        if text.startswith("repo:"):
            name = text.split(":")[1]
            assert any(re.fullmatch(family.NAMES, name) for family in repositories.families()), name


def test_a_name_is_completed_by_the_classes_of_the_data() -> None:
    name, hundred = "Wang2023Better_WRN-28-10", [[0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]]
    ten = [[0.4914, 0.4822, 0.4465], [0.2471, 0.2435, 0.2616]]
    for classes, normalize in (10, ten), (100, hundred):
        assert named_arch(f"robustbench:{name}", classes)["normalize"] == normalize
    assert named_arch(f"robustbench:cifar100/{name}")["normalize"] == hundred
    run = Run.of("rb-test", dataset="cifar100")
    assert CheckpointHints(arch=f"robustbench:{name}").given(run)["normalize"] == hundred
    with pytest.raises(
        RbError, match=r"names several networks. Choose from: robustbench:cifar10/Linf/Wang2023"
    ):
        named_arch(f"robustbench:{name}")


def test_images_are_preprocessed_as_the_network_wants_them() -> None:
    arch = named_arch("robustbench:imagenet/Mo2022When_ViT-B")
    assert data_of({"arch": arch}, Run.of("rb-test", dataset="digits")).name == "digits"
    image = Path("data/imagenet/val/n01440764/ILSVRC2012_val_00000001.png")
    image.parent.mkdir(parents=True)
    Image.new("RGB", (30, 20)).save(image)
    found = data_of({"arch": arch}, Run.of("rb-test", dataset="imagenet"))
    assert (found.name, found.preprocessing) == ("imagenet", "squash-bilinear-224-224")
    given = data_of({"arch": arch}, Run.of("rb-test", dataset="imagenet", preprocessing="crop-288"))
    assert (given.protocol(), given.about.shape) == ({"preprocessing": "crop-288"}, (3, 288, 288))
