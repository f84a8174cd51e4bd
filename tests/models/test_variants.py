"""Networks of the same names and shapes: their functions, and which it is by what BatchNorm remembers."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from rbtools.datasets.normalization import CLASSES, NORMALIZATIONS
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.inputs import recognition
from rbtools.inputs.checkpoints import named_arch
from rbtools.models import build, checkpoint, disambiguate, recognise, statistics
from rbtools.models.checkpoint import NormalizationHints
from rbtools.models.normalising import behind
from rbtools.models.normalize import PER_IMAGE, PerImageStandardization
from rbtools.spaces import describe
from rbtools.spaces.identity import identity

pytestmark = pytest.mark.slow

# The first four logits of the first image and the first two of the second, with weights by formula, as the
# published code of each network gives them.
GOLDEN = {
    "preactresnet18:shortcut=input": (  # locuslab/fast_adversarial
        [-812.929, -535.954, -223.461, 103.822],
        [-919.119, -606.183],
    ),
    "preactresnet18-kuangliu:shortcut=input": (  # RobustBench: Wong2020Fast, Andriushchenko2020Understanding
        [-13.0822, -13.7458, -13.4346, -12.1502],
        [-12.7443, -13.4432],
    ),
    "resnet18:stem=cifar-maxpool": (  # huyvnphan/PyTorch_CIFAR10
        [345.107, 400.923, 430.035, 430.508],
        [335.181, 393.643],
    ),
    "torchvision:mobilenet_v2:stem=cifar": (  # huyvnphan and chenyaofo/pytorch-cifar-models
        [-4.29845, 1.16022, 1.93787, -4.87823],
        [-4.29845, 1.16022],
    ),
    "torchvision:shufflenet_v2_x0_5:stem=cifar": (  # chenyaofo/pytorch-cifar-models
        [-2.28405, -1.36592, -0.0547963, 1.28472],
        [-2.28405, -1.36592],
    ),
    "wrn-28-4": (  # RobustBench: Ding2020MMA, each image standardised by itself
        [-543185.0, 477396.0, -403648.0, 323169.0],
        [-50114.1, 43866.4],
    ),
}


def filled(network: nn.Module) -> nn.Module:
    tensors = [(key, value) for key, value in network.state_dict().items() if value.is_floating_point()]
    for number, (key, value) in enumerate(tensors):
        wave = torch.sin(torch.arange(value.numel(), dtype=torch.float64) * 0.7 + number).float()
        if value.ndim > 1:
            value.copy_(wave.view(value.shape) * math.sqrt(3 / value[0].numel()))
        else:
            base = 3.0 if key.endswith("running_var") else 1.0 if key.endswith("weight") else 0.0
            value.copy_(wave.view(value.shape) * 0.2 + base)
    return network.eval()


def waves() -> torch.Tensor:
    sizes = (torch.arange(size, dtype=torch.float64) for size in (2, 3, 32, 32))
    n, c, h, w = torch.meshgrid(*sizes, indexing="ij")
    return (0.5 + 0.3 * torch.sin(n + 2 * c + 0.4 * h) + 0.2 * torch.cos(0.9 * w * (n + 1) + c)).float()


@pytest.mark.parametrize("name", GOLDEN)
@torch.no_grad()
def test_a_variant_computes_what_its_published_code_computes(name: str) -> None:
    network = filled(build(named_arch(name), classes=10, shape=(3, 32, 32)))
    logits = (PerImageStandardization(network) if name == "wrn-28-4" else network)(waves())
    for found, expected in zip((logits[0, :4], logits[1, :2]), GOLDEN[name], strict=True):
        torch.testing.assert_close(
            found, torch.tensor(expected), rtol=5e-4, atol=5e-4 * float(logits.abs().max())
        )


def test_a_flat_image_is_not_divided_by_nothing() -> None:
    images = torch.stack([torch.full((3, 4, 4), 0.5), torch.linspace(0, 1, 48).view(3, 4, 4)])
    found = PerImageStandardization(nn.Identity())(images)
    assert found[0].abs().max() == 0
    assert found[1].mean().abs() < 1e-6 and found[1].std() == pytest.approx(1)


# --- told apart -----------------------------------------------------------------------------------

SIDE, HALF = 16, 48
KNOWN = {
    "none": None,
    **{name: (pair.mean, pair.std) for name, pair in NORMALIZATIONS.items() if len(pair.mean) == 3},
    "half": ((0.5,), (0.5,)),
    "per-image": PER_IMAGE,
}


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """Photographs in their spectrum: the first half is trained on, the second evaluated."""
    generator = torch.Generator().manual_seed(0)
    fine = torch.rand(2 * HALF, 3, SIDE, SIDE, generator=generator)
    return 0.75 * statistics.synthetic((3, SIDE, SIDE), 2 * HALF) + 0.25 * fine


@torch.no_grad()
def calibrated(network: nn.Module, images: torch.Tensor, normalize: object = None) -> nn.Module:
    """A network with weights by chance whose BatchNorm layers remember these images."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain mean over the batches
    behind(network, normalize).train()(images)
    return network.eval()


def made(name: str, images: torch.Tensor, normalize: object = None, classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return calibrated(build(named_arch(name), classes=classes, shape=(3, SIDE, SIDE)), images, normalize)


def hints(images: torch.Tensor) -> NormalizationHints:
    return NormalizationHints(lambda: images, KNOWN, CLASSES)


@pytest.fixture
def run() -> Run:
    return Run.of("rb-test")


PAIRS = {
    "preactresnet18": "preactresnet18:shortcut=input",
    "preactresnet18-kuangliu:shortcut=input": "preactresnet18-kuangliu",
    "resnet18:stem=cifar-maxpool": "resnet18:stem=cifar",
    "torchvision:shufflenet_v2_x0_5:stem=cifar": "torchvision:shufflenet_v2_x0_5",
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_variant_is_told_from_its_sibling(name: str, images: torch.Tensor, run: Run) -> None:
    network = made(name, images[:HALF])
    torch.save(network.state_dict(), "m.pt")
    model, arch, facts = checkpoint.load("m.pt", shape=(3, SIDE, SIDE), hints=hints(images[HALF:]))
    assert disambiguate.label(arch) == name and arch["normalize"] == "none"
    fit = facts["fit"]
    assert fit["fits"] and fit["divergence"] < 0.1 and fit["margin"] > 3
    assert list(fit["divergences"]) == [name, PAIRS[name]]
    torch.testing.assert_close(model(images[:2]), network(images[:2]))
    assert recognition.judged("m.pt", facts, run) == facts
    # A sibling that the user names is not replaced, and warned of; without images nothing is decided.
    if name == "resnet18:stem=cifar-maxpool":
        _, arch, facts = checkpoint.load(
            "m.pt", named_arch(PAIRS[name]), shape=(3, SIDE, SIDE), hints=hints(images[HALF:])
        )
        assert disambiguate.label(arch) == PAIRS[name]
        assert f"Try --arch {name}" in recognition.judged("m.pt", facts, run)["warnings"][0]
        _, arch, facts = checkpoint.load("m.pt", hints=NormalizationHints(known=KNOWN))
        assert arch["stem"] == "cifar" and "stem" in facts["unchecked"] and "fit" not in facts


@pytest.mark.parametrize(
    "name",
    ["wrn-10-2:activation=silu", "wrn-10-2:eps=1e-3", "repo:deepmind/wrn-10-1:activation=gelu"],
)
def test_an_unusual_activation_or_epsilon_is_found_where_the_usual_one_fits_badly(
    name: str, images: torch.Tensor, run: Run
) -> None:
    torch.manual_seed(0)
    network = build(named_arch(name), classes=10, shape=(3, SIDE, SIDE))
    if "eps" in name:  # it counts where activations are small
        for layer in (module for module in network.modules() if isinstance(module, nn.Conv2d)):
            layer.weight.data.mul_(0.05)
    calibrated(network, images[:HALF])
    torch.save(network.state_dict(), "m.pt")
    model, arch, facts = checkpoint.load("m.pt", shape=(3, SIDE, SIDE), hints=hints(images[HALF:]))
    field = name.rpartition(":")[2].partition("=")[0]
    assert arch[field] == named_arch(name)[field]
    assert facts["fit"]["fits"] and facts["fit"]["margin"] > disambiguate.MARGIN
    torch.testing.assert_close(model(images[:2]), network(images[:2]))
    if name == "wrn-10-2:activation=silu":  # the usual one is warned of where it is named
        plain = named_arch("wrn-10-2:activation=relu")
        _, arch, facts = checkpoint.load("m.pt", plain, shape=(3, SIDE, SIDE), hints=hints(images[HALF:]))
        assert f"Try --arch {name}" in facts["warnings"][0] and arch["activation"] == "relu"


def test_an_unusual_field_is_one_of_a_list_and_decides_the_identity() -> None:
    with pytest.raises(RbError, match=r"no activation 'tanh'\. Choose from: relu, silu, gelu"):
        named_arch("wrn-28-10:activation=tanh")
    assert identity(named_arch("resnet18:eps=1e-3")) != identity(named_arch("resnet18"))


def test_a_network_that_is_no_known_variant_is_refused_with_its_numbers(
    images: torch.Tensor, run: Run
) -> None:
    torch.manual_seed(0)
    network = build(named_arch("torchvision:shufflenet_v2_x0_5"), classes=10, shape=(3, SIDE, SIDE))
    stages = [network.get_submodule(f"stage{number}") for number in (2, 3, 4)]
    hooks = [stage.register_forward_hook(lambda _, inputs, output: output.cos()) for stage in stages]
    calibrated(network, images[:HALF])
    for hook in hooks:
        hook.remove()
    torch.save(network.state_dict(), "m.pt")
    _, _, facts = checkpoint.load("m.pt", shape=(3, SIDE, SIDE), hints=hints(images[HALF:]))
    fit = facts["fit"]
    assert not fit["fits"] and fit["divergence"] > fit["most"] > fit["first"]
    with pytest.raises(RbError, match="names and shapes of a known network, but") as error:
        recognition.judged("m.pt", facts, run)
    for number in (fit["divergence"], *fit["divergences"].values()):
        assert f"{number:g}" in str(error.value)
    named = recognition.judged("m.pt", {**facts, "arch_from": "given"}, run)
    assert "It is another network" in named["warnings"][0]


def test_images_that_cannot_tell_variants_apart_are_said(run: Run) -> None:
    facts = {"arch_from": "weights", "normalize_from": "checkpoint"}
    fit = {"fits": False, "divergence": 0.01, "most": 0.3, "first": 0.0, "images": 64}
    with pytest.raises(
        RbError, match=r"do not tell on 64 images of the data set which it is.*\(a 0.01, b 0.012\)"
    ):
        recognition.judged("m.pt", {**facts, "fit": {**fit, "divergences": {"a": 0.01, "b": 0.012}}}, run)


def test_on_other_images_than_those_of_the_training_the_network_is_warned_of(
    images: torch.Tensor, run: Run
) -> None:
    network = made("torchvision:shufflenet_v2_x0_5:stem=cifar", images[:HALF])
    torch.save(network.state_dict(), "m.pt")
    stripes = (torch.arange(SIDE) % 2).expand(20, 3, SIDE, SIDE).float()
    _, _, facts = checkpoint.load("m.pt", shape=(3, SIDE, SIDE), hints=hints(stripes))
    fit = facts["fit"]
    assert not fit["fits"] and fit["first"] > fit["most"] == 0.2  # 0.15, and 1/20 by chance
    (warning,) = recognition.judged("m.pt", facts, run)["warnings"]
    assert "or trained on other images. Check --normalize and --dataset" in warning
    nearer = {**facts, "fit": {**fit, "first": 0.01}}
    with pytest.raises(RbError, match="of a known network"):
        recognition.judged("m.pt", nearer, run)


@pytest.mark.parametrize("classes", [10, 120])
def test_the_normalisation_of_imagenet16_is_for_its_120_classes(classes: int, images: torch.Tensor) -> None:
    pair = KNOWN["imagenet16-120"]
    assert isinstance(pair, tuple)
    torch.save(made("wrn-10-1", images[:HALF], list(pair), classes).state_dict(), "m.pt")
    _, _, facts = checkpoint.load("m.pt", shape=(3, SIDE, SIDE), hints=hints(images[HALF:]))
    assert ("imagenet16-120" in facts["normalize_divergences"]) == (classes == 120)


@pytest.mark.parametrize("name", ["none", "cifar10", "kuangliu", "half", "per-image", "imagenet"])
def test_the_normalisation_of_least_divergence_is_taken(name: str, images: torch.Tensor) -> None:
    pair = KNOWN[name]
    normalize = pair if pair is None or isinstance(pair, str) else list(pair)
    torch.save(
        made("wrn-10-1", images[:HALF], normalize, 1000 if name == "imagenet" else 10).state_dict(), "m.pt"
    )
    _, _, facts = checkpoint.load("m.pt", shape=(3, SIDE, SIDE), hints=hints(images[HALF:]))
    usual = "rice" if name == "cifar10" else name  # the digits that public code prints
    assert (facts["normalize_from"], facts["normalize_name"]) == ("BatchNorm statistics", usual)
    divergences = facts["normalize_divergences"]
    assert divergences[name] <= 1.25 * min(divergences.values()) + 0.003


def test_among_normalisations_that_fit_alike_that_of_as_many_classes_is_taken(images: torch.Tensor) -> None:
    between = [[0.499, 0.4845, 0.444], [0.2572, 0.25, 0.269]]  # of CIFAR-10's and CIFAR-100's
    names = []
    for classes in (10, 100):
        torch.save(made("wrn-10-1", images[:HALF], between, classes).state_dict(), "m.pt")
        _, _, facts = checkpoint.load("m.pt", shape=(3, SIDE, SIDE), hints=hints(images[HALF:]))
        names.append(facts["normalize_name"])
    assert names[0] in ("cifar10", "rice", "cinic10") and names[1] == "cifar100"


# --- their records --------------------------------------------------------------------------------


def test_the_fields_of_variants_are_counted_and_checked() -> None:
    small = describe(named_arch("resnet18:stem=cifar-maxpool"), 10, (3, 32, 32))
    usual = describe(named_arch("resnet18:stem=cifar"), 10, (3, 32, 32))
    assert small["params"] == usual["params"] and small["macs"] < usual["macs"] / 3
    assert "macs" not in describe(named_arch("torchvision:mobilenet_v2:stem=cifar"), 10, (3, 32, 32))
    for name, message in (
        ("resnet18:stem=big", "has no stem 'big'. Choose from: cifar, imagenet, cifar-maxpool"),
        ("preactresnet18:shortcut=bn", "no shortcut 'bn'. Choose from: activation, input"),
        ("torchvision:resnet18:stem=cifar", "torchvision's resnet18 has no stem 'cifar' here"),
    ):
        with pytest.raises(RbError, match=message):
            named_arch(name)


def test_a_network_written_behind_its_images_own_normalisation_is_read_so(images: torch.Tensor) -> None:
    model = PerImageStandardization(made("wrn-10-1", images[:HALF], PER_IMAGE))
    Path("own.safetensors").write_bytes(checkpoint.to_bytes(model, {"arch": named_arch("wrn-10-1")}))
    ours, _, facts = checkpoint.load("own.safetensors")
    assert (facts["normalize_from"], facts["normalize"]) == ("checkpoint", PER_IMAGE)
    assert torch.equal(ours(images[:2]), model.eval()(images[:2]))


def senet_state() -> dict[str, torch.Tensor]:
    """SENet18 of kuangliu/pytorch-cifar: a pre-activation ResNet with a BatchNorm behind its stem."""
    state = dict(build(named_arch("preactresnet18-kuangliu"), classes=10, shape=(3, 32, 32)).state_dict())
    norm = {f"bn1.{key}": value for key, value in nn.BatchNorm2d(64).state_dict().items()}
    convolutions = {key: value for key, value in state.items() if key.endswith("conv2.weight")}
    for key, value in convolutions.items():
        width = len(value)
        state[key.replace("conv2", "fc1")] = torch.ones(width // 16, width, 1, 1)
        state[key.replace("conv2", "fc2")] = torch.ones(width, width // 16, 1, 1)
    return state | norm


def test_a_network_that_only_looks_like_a_known_one_is_not_to_be_loaded_without_arch() -> None:
    torch.save(senet_state(), "m.pt")
    with pytest.raises(
        RbError, match=r"looks like resnet18 and is another network.*say which with --arch"
    ) as error:
        checkpoint.load("m.pt")
    assert "leave --arch out" not in str(error.value)


def test_the_last_of_counted_linear_layers_gives_the_logits() -> None:
    shapes = {"conv1": (6, 3, 5, 5), "fc1": (120, 400), "fc2": (84, 120), "fc3": (10, 84)}
    state = {f"{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    assert recognise.classes_of(state) == 10
    assert (
        recognise.classes_of(
            {"classifier.1.weight": torch.ones(7, 3), "classifier.4.weight": torch.ones(5, 7)}
        )
        == 5
    )


def test_vision_transformers_have_sides_and_patches() -> None:
    name = "vit_base_patch16_224"
    sides = {"side": 32, "patch": 4}
    assert named_arch(f"timm:{name}:side=32:patch=4") == {"space": "timm", "name": name, **sides}
    assert named_arch("deit-ti:patch=8") == {"space": "zoo", "name": "deit-ti", "patch": 8}
    for text, words in {
        "resnet18:side=32": "resnet18 takes no side=",
        "nb201-13714:patch=2": "takes no patch=",
        "nb201-126:channels=4": "no architecture takes by name. Expected one of stem, pool",
        f"timm:{name}:side=x": "is 'x'. Expected pixels, as in side=32",
        f"timm:{name}:patch=0": "is '0'. Expected pixels",
    }.items():
        with pytest.raises(RbError, match=re.escape(words)):
            named_arch(text)
