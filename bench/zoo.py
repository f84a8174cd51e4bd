"""Other people's networks: which are recognised and evaluated rightly, one JSON line an architecture.

    python bench/zoo.py SOURCE [--only TEXT] [--named] [--images 64]
    python bench/zoo.py SOURCE --table > rbtools/spaces/robustbench.json

SOURCE is a folder with the package `robustbench` (RobustBench/robustbench, whose code stays there). Every
network of its zoo is built with random weights, its BatchNorm layers see images with the spectrum of
photographs, and its state dict is saved as the zoo ships it: under `state_dict`, with `module.` before the
names, and without the tensors that the published file lacks. rbtools then gets the file and 1/f images, which
the network has labelled, and its logits are compared with those of the network itself:

    right      the same logits, to 1e-5 of the largest
    near       the same to 2 %: the normalisation differs in its third digit
    wrong      anything else that was not refused
    refused    refused, with the reason

A line is one architecture: networks that differ only in their weights are run once (`entries`). `--named`
gives the name as `--arch robustbench:DATASET/THREAT/NAME`. `--table` writes, for each entry, what it is for
`--arch`, `--normalize` and the preprocessing of images of ImageNet. It needs timm, and about 6 GB of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import re
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rbtools.models.torchvision_import import torchvision

RIGHT, NEAR = 1e-5, 2e-2
NORMALISATION = ("cifar10", "cifar100", "imagenet")
# Entries whose published file lacks the buffers of the normalisation.
WITHOUT_MU = re.compile(
    "Andriushchenko2020Understanding|Augustin2020Adversarial|Engstrom2019Robustness"
    "|Rice2020Overfitting|Rony2019Decoupling|Wong2020Fast|Hendrycks2020AugMix|Kireev2021Effectiveness"
    "|Chen2020Efficient|Wu2020Adversarial|Diffenderfer2021Winning"
)
BUFFERS = ("mu", "sigma", "mean", "std", "normalize.mean", "normalize.std")


def imported(source: str) -> dict[str, Any]:
    """The zoo's tables, `{DATASET/THREAT/NAME: its factory}`. What only downloading needs is left out."""
    warnings.simplefilter("ignore")
    for name in ("gdown", "requests", "geotorch", "torchdiffeq"):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name])["odeint_adjoint"] = None
    package = types.ModuleType("robustbench")  # its own __init__ imports the attacks
    package.__path__ = [str(Path(source, "robustbench").resolve())]
    sys.modules["robustbench"] = package
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        models = importlib.import_module("robustbench.model_zoo.models")
    return {
        f"{dataset.value}/{threat.value}/{name}": (about, dataset.value, threat.value)
        for dataset, threats in models.model_dicts.items()
        for threat, entries in threats.items()
        for name, about in entries.items()
    }


def built(entry: str, zoo: dict[str, Any]) -> nn.Module:
    import timm

    about, dataset, threat = zoo[entry]
    name = entry.rpartition("/")[2]
    registered = f"{name.lower().replace('-', '_')}_{dataset}_{threat}".lower()
    with contextlib.redirect_stdout(io.StringIO()):
        if timm.is_model(registered):
            return timm.create_model(registered)
        if name == "Standard_R50":  # without downloading its weights
            utilities = importlib.import_module("robustbench.model_zoo.architectures.utils_architectures")
            imagenet = importlib.import_module("robustbench.model_zoo.imagenet")
            return utilities.normalize_model(torchvision.models.resnet50(), imagenet.mu, imagenet.sigma)
        return about["model"]()


def architectures(zoo: dict[str, Any], only: str | None) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """Entries by network, the small ones first, and the networks by architecture: without classes and
    normalisation.
    """
    from rbtools.models.meta import meta_init

    networks: dict[str, list[str]] = {}
    families: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for entry in zoo:
        if only and not re.search(only, entry):
            continue
        try:
            with meta_init():
                network = built(entry, zoo)
        except Exception:  # what needs its numbers, or files that are not there, is one of its own
            networks[entry], families[entry], sizes[entry] = [entry], {entry}, 0
            continue
        text = repr(network)
        small = [(key, b.tolist()) for key, b in network.named_buffers() if b.numel() < 5 and not b.is_meta]
        text = re.sub(r"ImageNormalizer\(.*\)", "", text)
        networks.setdefault(_hash(text + str(small)), []).append(entry)
        plain = re.sub(r"out_features=\d+|Conv2d\(\d+, (10|100),", "", text)
        plain = re.sub(r"(Net|ResNet)\b", "", plain)
        families.setdefault(_hash(plain), set()).add(_hash(text + str(small)))
        sizes[_hash(text + str(small))] = sum(value.numel() for value in network.parameters())
    return {name: networks[name] for name in sorted(networks, key=lambda one: sizes[one])}, families


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def images_of(shape: tuple[int, int, int], count: int) -> torch.Tensor:
    """Images (count, C, H, W) of bytes in the spectrum of photographs (1/f); none is seen twice."""
    channels, height, width = shape
    generator = torch.Generator().manual_seed(0)
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1 / max(height, width)
    noise = torch.randn(count, channels, height, width, generator=generator)
    images = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency**1.3, s=(height, width))
    return ((0.47 + 0.25 * images / images.std()).clamp(0, 1) * 255).round() / 255


@torch.no_grad()
def trained(network: nn.Module, images: torch.Tensor) -> nn.Module:
    """The network with the statistics of these images, and weights that leave no layer as it starts."""
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None
        own = dict(module.named_buffers(recurse=False))
        if {"threshold", "batch_num"} <= own.keys():  # MeanSparse
            own["threshold"].fill_(0.2)
            own["running_mean"].normal_(0, 0.1, generator=generator)
            own["running_var"].uniform_(0.5, 1.5, generator=generator)
    for value in network.parameters():
        if value.ndim <= 1 and value.numel() > 1:
            value.mul_(1 + 0.1 * torch.randn(value.shape, generator=generator))
            value.add_(0.02 * torch.randn(value.shape, generator=generator))
    network.eval()
    for module in network.modules():  # dropout stays off
        module.training = isinstance(module, nn.modules.batchnorm._BatchNorm)
    if any(module.training for module in network.modules()):
        network(images)
    return network.eval()


def as_shipped(entry: str, network: nn.Module, zoo: dict[str, Any]) -> Any:
    """The content of the file that the zoo downloads."""
    import timm

    _, dataset, threat = zoo[entry]
    name = entry.rpartition("/")[2]
    state = dict(network.state_dict())
    if timm.is_model(f"{name.lower().replace('-', '_')}_{dataset}_{threat}".lower()):
        inner = {k.removeprefix("model."): v for k, v in state.items() if not k.startswith("normalize.")}
        return {"state_dict": inner}
    if dataset == "imagenet":
        inner = {k.removeprefix("model."): v for k, v in state.items() if not k.startswith("normalize.")}
        if name == "Standard_R50":
            return inner
        return {"state_dict": inner, "epoch": 99}
    if WITHOUT_MU.match(name):
        state = {key: value for key, value in state.items() if key not in BUFFERS}
    if name == "Andriushchenko2020Understanding" or name.startswith("Kireev2021"):
        return {"last": state, "best": {key: value.clone() for key, value in state.items()}}
    return {"state_dict": {f"module.{key}": value for key, value in state.items()}, "epoch": 99}


def compared(entry: str, zoo: dict[str, Any], count: int, named: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    dataset = entry.partition("/")[0]
    shape = (3, 224, 224) if dataset == "imagenet" else (3, 32, 32)
    every = images_of(shape, 3 * count)
    if isinstance(zoo[entry][0].get("gdrive_id"), list):
        return {"verdict": "refused", "reason": "an ensemble of several files"}
    network = trained(built(entry, zoo), every[: 2 * count])
    expected = logits_of(network, every[2 * count :])
    content = as_shipped(entry, network, zoo)
    del network
    return read_back(
        content, dataset, every[2 * count :], expected, f"robustbench:{entry}" if named else None
    )


@torch.no_grad()
def logits_of(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([network(image[None]) for image in images])


def read_back(
    content: Any, dataset: str, images: torch.Tensor, expected: torch.Tensor, name: str | None = None
) -> dict[str, Any]:
    """Save the content of a file, read it with rbtools, and compare the logits of the last two images.

    `images`, labelled by the `expected` logits, choose network and normalisation; `name` is for `--arch`.
    """
    from rbtools.datasets.normalization import CLASSES, NORMALIZATIONS
    from rbtools.errors import RbError
    from rbtools.inputs.named_networks import named_arch
    from rbtools.models import checkpoint

    about: dict[str, Any] = {}
    classes = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}[dataset]
    channels, height, width = images.shape[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "weights.pt"))
        torch.save(content, path)
        del content
        pairs = {name: (pair.mean, pair.std) for name, pair in NORMALIZATIONS.items() if len(pair.mean) != 2}
        pairs = {name: pair for name, pair in pairs.items() if len(pair[0]) == 3 or name == "half"}
        known = {"dataset": pairs[dataset], "none": None, **pairs, "per-image": "per-image"}
        hints = checkpoint.NormalizationHints(known, CLASSES, lambda: [(images, expected.argmax(1))])
        start = time.perf_counter()
        try:
            arch = None if name is None else named_arch(name)
            shape = (channels, height, width)
            read, arch, facts = checkpoint.load(path, arch, classes=classes, shape=shape, hints=hints)
        except RbError as error:
            about["seconds"] = round(time.perf_counter() - start, 1)
            return {**about, "verdict": "refused", "reason": str(error).replace(path, "FILE")}
        about["seconds"] = round(time.perf_counter() - start, 1)
        about["params"] = sum(value.numel() for value in read.parameters())
        logits, expected = logits_of(read, images[-2:]), expected[-2:]
    about["arch"] = {
        k: v for k, v in arch.items() if k in ("space", "name", "activation", "stem", "shortcut")
    }
    about["normalize"], about["tried"] = facts["normalize_from"], facts.get("tried")
    if logits.shape != expected.shape:
        return {**about, "verdict": "wrong", "reason": f"{tuple(logits.shape)} logits"}
    difference = float((logits - expected).abs().max() / expected.abs().max())
    verdict = "right" if difference <= RIGHT else "near" if difference <= NEAR else "wrong"
    return {**about, "verdict": verdict, "difference": float(f"{difference:.2g}")}


PREPROCESSING = {
    "BicubicRes256Crop224": "bicubic-256-224",
    "Crop288": "crop-288",
    "Res224": "squash-224",
    "Res256Crop224": "",
    None: "",
}


def table(zoo: dict[str, Any]) -> dict[str, list[str]]:
    """[architecture, normalisation, preprocessing] of each entry that is one network; "" where the file says
    it, or it is the usual one.
    """
    import timm

    from rbtools.errors import RbError
    from rbtools.models import unpack
    from rbtools.models.meta import meta_init

    rows = {}
    for entry, (about, dataset, threat) in zoo.items():
        name = entry.rpartition("/")[2]
        if isinstance(about.get("gdrive_id"), list) or name == "Kang2021Stable":
            continue
        with meta_init():
            network = built(entry, zoo)
        content = as_shipped(entry, network, zoo)
        state = next((content[key] for key in ("state_dict", "last") if key in content), content)
        state = {key.removeprefix("module."): value for key, value in state.items()}
        mean, _ = unpack.take_normalisation(state, entry, {})
        unpack.strip(state)
        try:
            arch = label(name, dataset, state, network)
        except RbError as error:
            print(entry, error, file=sys.stderr)
            continue
        how = PREPROCESSING[about.get("preprocessing")]
        registered = f"{name.lower().replace('-', '_')}_{dataset}_{threat}".lower()
        if dataset == "imagenet" and timm.is_model(registered):
            inner: Any = timm.create_model(registered)
            cfg = (inner.model if threat == "corruptions" else inner).default_cfg
            how = f"{cfg['interpolation']}-{int(224 / cfg['crop_pct'])}-224"
        rows[entry] = [arch, "" if mean is not None else normalisation_of(network), how]
    return rows


def label(name: str, dataset: str, state: dict[str, torch.Tensor], network: nn.Module) -> str:
    """What --arch takes for the network, with what leaves no trace in its file."""
    from rbtools.models import families

    arch, words = families.infer(state).arch, repr(network)
    if "activation" in arch:
        arch["activation"] = "silu" if re.search(r"(SiLU|Swish)\(", words) else "relu"
    if arch["name"].startswith("debenedetti"):
        arch["stem"] = "imagenet" if dataset == "imagenet" else "cifar"
    if arch["name"].startswith("preactresnet") and "PreActBlockV2" not in words:
        arch["shortcut"] = "activation" if getattr(network, "out_shortcut", False) else "input"
    if "MIMIR" in name:
        arch["name"] = arch["name"].replace("microsoft", "xu")
    return families.label(arch)


def normalisation_of(network: nn.Module) -> str:
    """What --normalize takes for the normalisation that a network of the zoo applies by itself."""
    if type(network).__name__ == "Ding2020MMANet":
        return "per-image"
    if type(network).__name__ == "Hendrycks2019UsingNet":
        return "half"
    for module in (network, *network.children()):
        for words in (("mu", "sigma"), ("mean", "std")):
            pair = [getattr(module, word, None) for word in words]
            numbers = [value.flatten().tolist() for value in pair if isinstance(value, torch.Tensor)]
            if len(numbers) == len(pair):
                return " ".join(",".join(f"{round(number, 8):.7g}" for number in one) for one in numbers)
    return "none"


def lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    zoo = imported(options.source)
    networks, families = architectures(zoo, options.only)
    of_network = {network: family for family, several in families.items() for network in several}
    for network, entries in networks.items():
        words = [sys.executable, __file__, options.source, "--one", entries[0]]
        words += ["--images", str(options.images), *["--named"] * options.named]
        done = subprocess.run(words, capture_output=True, text=True)
        last = done.stdout.strip().rpartition("\n")[2]
        about = (
            json.loads(last) if last.startswith("{") else {"verdict": "crashed", "reason": done.stderr[-600:]}
        )
        yield {"entry": entries[0], "entries": len(entries), "architecture": of_network[network], **about}


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by verdict; an architecture is right where every network of it is."""
    entries: dict[str, int] = {}
    by_architecture: dict[str, list[str]] = {}
    for one in results:
        entries[one["verdict"]] = entries.get(one["verdict"], 0) + one["entries"]
        by_architecture.setdefault(one["architecture"], []).append(one["verdict"])
    whole = sum(all(verdict in ("right", "near") for verdict in each) for each in by_architecture.values())
    return {"architectures": len(by_architecture), "right or near": whole, "entries": entries}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--only", help="a regular expression for DATASET/THREAT/NAME")
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(compared(options.one, imported(options.source), options.images, options.named)))
    elif options.table:
        rows = [
            f"{json.dumps(key)}: {json.dumps(row)}" for key, row in table(imported(options.source)).items()
        ]
        print("{\n" + ",\n".join(rows) + "\n}")
    else:
        results = []
        for line in lines(options):
            results.append(line)
            print(json.dumps(line), flush=True)
        print(json.dumps(summary(results)), flush=True)
