"""Networks of public repositories: recognised under their authors' names, and their functions."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from rbtools.datasets.normalization import CLASSES
from rbtools.errors import RbError
from rbtools.inputs.checkpoints import named_arch
from rbtools.models import build, checkpoint
from rbtools.models.checkpoint import NormalizationHints
from rbtools.models.load_weights import meta_init
from rbtools.models.recognise import infer
from rbtools.zoo import repositories
from rbtools.zoo.repositories.peng import PengResNet
from tests.calibrated import HALF, KNOWN, SIDE, hints, made, photographs, waves

# The first four logits of the first image and the first two of the second, with weights by formula, as the
# authors' code gives them. The networks are smaller than the published ones where the family has sizes.
GOLDEN: dict[str, tuple[list[float], list[float]]] = {
    "deepmind/wrn-10-2": ([1379.96, 9.56179, -1380.98, 168.765], [1408.52, 10.9179]),
    "deepmind/wrn-10-1:activation=relu": ([53.0243, 38.4972, -0.346812, -38.9714], [59.7496, 43.262]),
    "deepmind/preactresnet18": ([2.56825e10, 2.56052e10, 2.38273e10, 2.04668e10], [3.15015e10, 3.14253e10]),
    "deepmind/meansparse-wrn-10-2": ([1077.4, 2.02334, -1077.45, 137.108], [1110.65, -3.99855]),
    "huang/wrn-r-d1-2-1-w32-64-32": ([-47220.3, 57574.5, -58438.5, 49669.0], [-46429.9, 56577.1]),
    "huang/wrn-a-d1-2-1-w32-32-48": ([7602.51, 17170.3, -27367.7, 14332.5], [7643.7, 16942.2]),
    "dai/pssilu-wrn-10-2": ([-1098.38, -2615.06, 1435.78, 2429.57], [-983.079, -2312.12]),
    "augmix/resnext-11-2x32d": ([-603.965, -207.753, 242.78, 629.911], [-605.532, -208.316]),
    "card/resnet18-w16": ([1.20312e9, -1.48471e9, -1.0114e9, 1.61531e9], [1.19399e9, -1.45894e9]),
    "card/wide-preactresnet18-x1": (
        [-4.42642e10, -4.41404e10, -4.10847e10, -3.53002e10],
        [-4.33635e10, -4.32825e10],
    ),
    "kuangliu/dpn26": ([9.8014e8, 9.20765e8, 7.53986e8, 4.99257e8], [8.13778e8, 7.6473e8]),
    "kuangliu/googlenet": ([-238251.0, 1.81955e6, 3.40196e6, 4.09556e6], [-262796.0, 1.63774e6]),
    "kuangliu/lenet": ([-0.568254, 0.0391552, 0.439799, -1.00876], [-0.569784, 0.0376808]),
    "kuangliu/mobilenet": ([-10009.1, -5170.28, 1019.38, 6942.75], [-3928.74, -2030.73]),
    "kuangliu/resnext29-32x4d": ([6.49286e9, 5.96195e9, 3.87339e9, 7.72856e8], [7.30394e9, 6.70781e9]),
    "kuangliu/regnety-400mf": ([19184.0, 49284.8, -198.067, -49361.3], [8573.54, 17218.2]),
    "kuangliu/mobilenetv2": ([-25615.8, 24729.7, -13875.2, -2573.07], [-24382.5, 23537.2]),
    "kuangliu/efficientnetb0": ([-1.26584, -1.69531, 2.71265, -1.93272], [-1.26584, -1.69531]),
    "kuangliu/shufflenetg3": ([520.196, 348.357, 145.306, -70.7322], [415.652, 268.635]),
    "kuangliu/shufflenetv2-0.5": ([-2.31358, -3.77154, -4.20276, -3.50042], [-2.58121, -4.04688]),
    "kuangliu/pnasneta": ([4.10915e9, -4.03277e9, 2.17311e9, 6.47509e8], [3.93515e9, -3.76647e9]),
    "kuangliu/pnasnetb": ([-465210.0, -435172.0, 521403.0, 367844.0], [-575338.0, -529386.0]),
    "kuangliu/dla": ([1.18345e16, 6.65541e15, 1.03432e15, -4.65547e15], [1.17599e16, 6.61418e15]),
    "kuangliu/simpledla": ([4.04471e15, 2.251e15, 3.07785e14, -1.65587e15], [4.28144e15, 2.38304e15]),
    "chenyaofo/resnet20": ([3.85021e9, 6.63054e9, 5.21903e9, 5.08035e8], [3.72127e9, 6.40389e9]),
    "chenyaofo/mobilenetv2_x0_5": ([3.51804, -0.316394, -2.84393, 4.5991], [3.51806, -0.316308]),
    "chenyaofo/repvgg_a0": ([-2.51252e16, 2.02069e15, 2.18984e16, -3.69899e16], [-2.39579e16, 1.90681e15]),
    "huyvnphan/densenet121": ([-2.2625e9, -7.03198e8, 1.03982e9, 2.51117e9], [-2.18969e9, -6.80593e8]),
    "huyvnphan/googlenet": ([-26215.0, -11665.0, 5932.79, 21980.5], [-24725.7, -10880.1]),
    "chenyaofo/vgg11_bn": ([-12.7018, -28.2624, -42.0268, -53.0604], [-11.9967, -26.7441]),
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


def named(name: str) -> dict[str, Any]:
    """The architecture of a name, with the usual one of its variants."""
    return {"space": "repo", "name": name, **repositories.variants_of({"name": name}).usual}


def network_of(name: str, classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32)) -> nn.Module:
    return build(named_arch(f"repo:{name}"), classes=classes, shape=shape)


@pytest.mark.parametrize("name", GOLDEN)
@torch.no_grad()
def test_a_network_computes_what_its_authors_code_computes(name: str) -> None:
    logits = filled(network_of(name))(waves())
    for found, expected in zip((logits[0, :4], logits[1, :2]), GOLDEN[name], strict=True):
        torch.testing.assert_close(
            found, torch.tensor(expected), rtol=5e-4, atol=5e-4 * float(logits.abs().max())
        )


@torch.no_grad()
def test_peng_et_als_network_computes_what_its_authors_code_computes() -> None:
    """A smaller one, as the published one has 104 million parameters."""
    sizes = (1, 2, 1, 1), (8, 32, 32, 64, 64)  # blocks and widths
    logits = filled(PengResNet(*sizes, classes=10, in_channels=3, activation="silu"))(waves(64))
    expected = torch.tensor([[-0.968844, -0.307327, 0.521568, 1.01173]])
    torch.testing.assert_close(logits[:1, :4], expected, rtol=5e-4, atol=5e-4)
    torch.testing.assert_close(logits[1, :2], torch.tensor([-0.957001, -0.295945]), rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize("name", [name for _, family in repositories.families() for name in family.EXAMPLES])
def test_an_example_is_recognised_by_its_names_and_shapes(name: str) -> None:
    if name.startswith(("debenedetti/", "singh/", "microsoft/")) and not find_spec("timm"):
        pytest.skip("timm is not installed")
    with meta_init():
        network = network_of(name, 7, (1, 32, 32))
    inferred = infer(dict(network.state_dict()))
    assert inferred.arch == named(name)
    assert (inferred.classes, inferred.in_channels) == (7, 1)


def test_the_strides_of_a_mobilenet_are_measured() -> None:
    name = "chenyaofo/mobilenetv2_x0_5"
    network = saved(f"{name}:stem=imagenet")
    model, arch, facts = load()
    assert (arch["name"], arch["stem"]) == (name, "imagenet") and facts["fit"]["margin"] > 3
    with torch.no_grad():
        torch.testing.assert_close(model(waves(SIDE)), network(waves(SIDE)))


def test_a_lenet_without_batchnorm_is_asked_about() -> None:
    torch.save(network_of("kuangliu/lenet").state_dict(), "m.pt")
    known = NormalizationHints(photographs, {"dataset": KNOWN["cifar10"], **KNOWN}, CLASSES)
    with pytest.raises(RbError, match="--normalize kuangliu or --normalize none"):
        checkpoint.load("m.pt", shape=(3, 32, 32), hints=known)
    named = {"space": "repo", "name": "kuangliu/lenet"}  # by name it is the repository's
    _, _, facts = checkpoint.load("m.pt", named, shape=(3, 32, 32), hints=known)
    assert facts["normalize_from"] == "guess: the published configuration"
    assert facts["normalize"][1] == pytest.approx([0.2023, 0.1994, 0.2010])


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(RbError, match=r"no network repo:deepmind/wrn-28. Did you mean 'deepmind/wrn-28-10'"):
        network_of("deepmind/wrn-28")
    with pytest.raises(RbError, match=r"has no activation 'tanh'. Choose from: silu, relu"):
        network_of("deepmind/wrn-10-1:activation=tanh")


OPEN = ("deepmind/wrn-10-1", "huang/wrn-r-d1-1-1-w16-24-16", "huang/wrn-a-d1-1-1-w16-24-16")


def saved(name: str, normalize: object = None) -> nn.Module:
    """The calibrated network, in the file m.pt."""
    network = made(f"repo:{name}", normalize)
    torch.save({"state_dict": {f"module.{key}": v for key, v in network.state_dict().items()}}, "m.pt")
    return network


def load(arch: dict[str, Any] | None = None, seen: NormalizationHints | None = None) -> tuple[Any, Any, Any]:
    return checkpoint.load("m.pt", arch, shape=(3, SIDE, SIDE), hints=seen or hints())


@pytest.mark.parametrize(("name", "activation"), list(zip(OPEN, ("silu", "silu", "relu"), strict=True)))
def test_the_activation_is_measured(name: str, activation: str) -> None:
    network = saved(f"{name}:activation={activation}")
    model, arch, facts = load()
    assert (arch["name"], arch["activation"], arch["normalize"]) == (name, activation, "none")
    assert facts["fit"]["fits"] and facts["fit"]["margin"] > 3
    torch.testing.assert_close(model(waves(SIDE)), network(waves(SIDE)))


def test_a_named_activation_that_the_statistics_contradict_is_warned_of() -> None:
    saved("deepmind/wrn-10-1:activation=silu")
    for named in ("silu", "relu"):
        _, arch, facts = load(named_arch(f"repo:deepmind/wrn-10-1:activation={named}"))
        assert arch["activation"] == named and ("warnings" in facts) == (named == "relu")
    assert "Try --arch repo:deepmind/wrn-10-1:activation=silu" in facts["warnings"][0]


@torch.no_grad()
def test_an_activation_that_nothing_decides_is_asked_for() -> None:
    saved("deepmind/wrn-10-1")
    asked = r"several networks, and {}.*--arch repo:deepmind/wrn-10-1:activation=silu or --arch repo.*=relu"
    flat = torch.full((16, 3, SIDE, SIDE), 0.5)
    with pytest.raises(RbError, match=asked.format("the images have no contrast")):
        load(seen=hints(flat))
    stripes = (torch.arange(SIDE) % 2).expand(20, 3, SIDE, SIDE).float()
    with pytest.raises(RbError, match=asked.format("its BatchNorm statistics do not decide on these images")):
        load(seen=hints(stripes))
    fresh = network_of("deepmind/wrn-10-1")
    torch.save(fresh.state_dict(), "m.pt")
    with pytest.raises(RbError, match=asked.format("it has no BatchNorm statistics")):
        checkpoint.load("m.pt", shape=(3, 32, 32), hints=hints())
    named = named_arch("repo:deepmind/wrn-10-1:activation=relu")
    _, arch, _ = checkpoint.load("m.pt", named, shape=(3, 32, 32), hints=hints())
    assert arch["activation"] == "relu"


def test_the_authors_normalisation_is_taken_among_those_that_fit_alike() -> None:
    pair = [list(values) for values in ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))]
    saved("deepmind/wrn-10-1", pair)
    known = {"dataset": KNOWN["cifar10"], **KNOWN}
    _, arch, facts = load(seen=NormalizationHints(lambda: photographs()[HALF:], known, CLASSES))
    assert arch["normalize"] == pair and facts["normalize_name"] == "published"


def test_the_scores_of_edge_popup_are_left_out() -> None:
    network = network_of("card/wide-preactresnet18-x2", 5)
    state = dict(network.state_dict())
    state |= {key.replace("weight", "scores"): v for key, v in state.items() if key.endswith("conv1.weight")}
    torch.save(state, "m.pt")
    model, _, _ = checkpoint.load("m.pt", shape=(3, 32, 32))
    torch.testing.assert_close(model(waves()), network.eval()(waves()))
