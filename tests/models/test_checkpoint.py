"""Reading, recognising and writing checkpoints, of training scripts and of own networks in wrappers."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from rbtools.errors import RbError
from rbtools.models import build, checkpoint, load_weights, weights_file
from rbtools.models.cell_network import NASBench201Network
from rbtools.models.normalize import Normalized

EVERY_EDGE = "|nor_conv_3x3~0|+|nor_conv_1x1~0|nor_conv_3x3~1|+|nor_conv_3x3~0|nor_conv_1x1~1|nor_conv_1x1~2|"
WITH_SKIP = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_1x1~1|nor_conv_3x3~2|"
HOLDS = r"contains nb201-\d+ with channels 2 and cells 2 \(4 classes, 3 image channels\)"
MEAN, STD = [0.49, 0.48, 0.44], [0.24, 0.25, 0.26]


def arch_of(text=EVERY_EDGE, **sizes):
    return {"space": "nasbench201", "str": text, "channels": 2, "cells": 2, **sizes}


def built(text=EVERY_EDGE, classes=4, **sizes):
    return build(arch_of(text, **sizes), classes=classes, shape=(3, 8, 8)).eval()


@pytest.fixture
def network():
    network = built().train()
    network(torch.rand(8, 3, 8, 8))  # so that the running statistics are not the initial ones
    return network.eval()


@pytest.fixture
def images():
    return torch.rand(3, 3, 8, 8)


def saved(content, name="model.pt"):
    torch.save(content, name)
    return Path(name).resolve()


def prefixed(state, prefix):
    return OrderedDict((prefix + key, value) for key, value in state.items())


NESTINGS = {
    "bare": lambda s: s,
    "net": lambda s: {"net": s, "acc": 93.1, "epoch": 199},
    "model_state_dict": lambda s: {"optimizer": {"state": {0: {"b": torch.ones(2)}}}, "model_state_dict": s},
    "two deep": lambda s: {"model": {"state_dict": s}},
    "last beside best": lambda s: {"last": {"w": torch.ones(1)}, "best": s},
    "model beside ema": lambda s: {"model": s, "model_ema": s, "best_acc": torch.tensor(0.7)},
    "ema": lambda s: {"ema": s},
    "unusual key": lambda s: {"weights_of_epoch_7": s, "optimizer_state": {"m": torch.ones(2)}},
}


PREFIXES = ("", "module.", "_orig_mod.module.", "module.model.", "net.", "1.")


@pytest.mark.parametrize(
    ("nesting", "prefix"),
    [*((nesting, "module.") for nesting in NESTINGS), *(("net", prefix) for prefix in PREFIXES)],
)
def test_nesting_and_prefixes_are_taken_off(network, images, nesting, prefix):
    path = saved(NESTINGS[nesting](prefixed(network.state_dict(), prefix)))
    model, arch, facts = checkpoint.load(path)
    assert torch.equal(model(images), network(images))
    assert (arch["str"], arch["channels"], arch["cells"]) == (EVERY_EDGE, 2, 2)
    assert (facts["classes"], facts["shape"][0], facts["prefix"]) == (4, 3, prefix)
    assert facts["arch_from"] == "weights" and not model.training


NORMALISERS = {
    "0.mean 0.std": ("0.mean", "0.std", "1."),
    "module.0.mean": ("module.0.mean", "module.0.std", "module.1."),
    "normalize.": ("normalize.mean", "normalize.std", ""),
    "normalizer.new_": ("module.normalizer.new_mean", "module.normalizer.new_std", "module.model."),
    "mu sigma": ("mu", "sigma", "model."),
    "ours": ("mean", "std", "network."),
}


@pytest.mark.parametrize(
    ("named", "shape", "scale"),
    [
        *((named, (3,), 1) for named in NORMALISERS),
        ("normalize.", (1, 3, 1, 1), 1),
        ("0.mean 0.std", (3, 1, 1), 255),
    ],
)
def test_normalisation_in_the_file_becomes_the_first_layer(network, images, named, shape, scale):
    names = NORMALISERS[named]
    mean, std = torch.tensor(MEAN).view(shape) * scale, torch.tensor(STD).view(shape) * scale
    state = prefixed(network.state_dict(), names[2])
    path = saved({names[0]: mean, names[1]: std, **state})
    model, _, facts = checkpoint.load(path)
    assert isinstance(model, Normalized)
    expected = Normalized(network, MEAN, STD)(images)
    torch.testing.assert_close(model(images), expected)
    assert facts["normalize"] == [pytest.approx(MEAN), pytest.approx(STD)]


def test_madrylab_files_with_an_attacker_beside_the_model(network, images):
    state = network.state_dict()
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    content = {**prefixed(state, "module.model."), **prefixed(state, "module.attacker.model.")}
    for where in ("normalizer", "attacker.normalize"):
        content |= {f"module.{where}.new_mean": mean, f"module.{where}.new_std": std}
    model, _, _ = checkpoint.load(saved({"model": content}))
    assert torch.equal(model(images), Normalized(network, MEAN, STD)(images))
    pair = {"a.mean": mean, "a.std": std, "b.mean": torch.zeros(3), "b.std": torch.ones(3)}
    with pytest.raises(RbError, match="2 different normalisations"):
        checkpoint.read(saved({**pair, **state}))


class TestRecognition:
    def test_the_published_resnet18(self):
        package = Path(importlib.util.find_spec("pyautoattack").origin).parent
        model, arch, facts = checkpoint.load(package / "examples" / "model_test.pt")
        assert arch == {"space": "zoo", "name": "resnet18", "stem": "cifar"}
        assert (facts["classes"], facts["shape"], facts["normalize"]) == (10, [3, 32, 32], None)
        assert model(torch.rand(1, 3, 32, 32)).shape == (1, 10)

    def test_an_edge_without_weights_is_named_with_the_architectures_that_fit(self):
        path = saved(built(WITH_SKIP).state_dict())
        with pytest.raises(RbError, match=r"edge 0->3 has no weights.*3 architectures fit.*nb201-13714"):
            checkpoint.load(path)

    @pytest.mark.parametrize("arch", [{"index": 13714}, {"str": WITH_SKIP}, {"name": "nb201-13714"}])
    def test_a_named_architecture_takes_its_sizes_from_the_weights(self, arch):
        path = saved(built(WITH_SKIP, cells=1).state_dict())
        model, found, facts = checkpoint.load(path, {"space": "nasbench201", **arch})
        assert (found["channels"], found["cells"], facts["arch_from"]) == (2, 1, "given")
        assert len(model.cells) == 5

    def test_a_string_in_the_metadata_settles_it_unless_it_contradicts_the_weights(self):
        state = built(WITH_SKIP).state_dict()
        for note in ({"arch_str": WITH_SKIP}, {"config": {"arch": [WITH_SKIP]}}):
            assert checkpoint.load(saved({**note, "state_dict": state}))[1]["index"] == 13714
        state = NASBench201Network((3, 3, 3, 1, 2, 2), channels=2, cells=1).state_dict()
        with pytest.raises(RbError, match="3 architectures fit"):
            checkpoint.load(saved({"arch": WITH_SKIP, "state_dict": state}))

    def test_cells_that_differ_are_not_recognised(self):
        network = NASBench201Network((3, 2, 3, 3, 2, 3), channels=2, cells=2)
        network.cells[1] = NASBench201Network((2, 2, 3, 3, 2, 3), channels=2, cells=1).cells[0]
        with pytest.raises(RbError, match="not recognised"):
            checkpoint.infer(network.state_dict())


class TestMisfits:
    def test_missing_unexpected_and_misshapen_keys_are_named(self, network):
        state = network.state_dict()
        del state["stem.1.bias"]
        state["extra.weight"] = torch.ones(1)
        state["lastact.0.weight"] = torch.ones(5)
        said = (
            r"missing: stem\.1\.bias; unexpected: extra\.weight; .*shape: lastact\.0\.weight 5, expected 8\."
        )
        with pytest.raises(RbError, match=said):
            checkpoint.load(saved(state), arch_of())

    def test_nothing_is_loaded_unless_everything_fits(self, network):
        state = {key: value + 1 for key, value in network.state_dict().items()}
        del state["classifier.bias"]
        before = {key: value.clone() for key, value in network.state_dict().items()}
        with pytest.raises(RbError, match=r"classifier\.bias"):
            load_weights.load_into(network, checkpoint.read(saved(state)))
        assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())

    @pytest.mark.parametrize(
        ("change", "how", "said"),
        [
            ({}, {"arch": {"space": "zoo", "name": "resnet18"}}, rf"\.\.\. \(\d+ in all\).*{HOLDS}"),
            ({"cell": WITH_SKIP}, {"arch": arch_of(WITH_SKIP, cells=5)}, "contains a NAS-Bench-201 network"),
            ({}, {"classes": 11}, "has 4 classes, but the data set has 11"),
            ({}, {"shape": (1, 28, 28)}, "3 channels, but the data set has 1"),
            ({"bias": torch.full((4,), torch.nan)}, {}, r"NaN or infinite numbers in classifier\.bias"),
        ],
    )
    def test_a_file_of_another_network_is_refused(self, change, how, said):
        state = built(change.get("cell", EVERY_EDGE)).state_dict()
        with pytest.raises(RbError, match=said):
            checkpoint.load(saved({**state, "classifier.bias": change.get("bias", torch.zeros(4))}), **how)


class TestWriting:
    def test_a_normalised_network_is_written_bare_and_loads_with_no_hint(self, images):
        network, metadata = built(WITH_SKIP), {"arch": arch_of(WITH_SKIP), "classes": 4}
        normalized = Normalized(network, MEAN, STD)
        Path("w.safetensors").write_bytes(weights_file.to_bytes(normalized, metadata))
        model, arch, facts = checkpoint.load("w.safetensors")
        assert torch.equal(model(images), normalized(images))
        assert arch == arch_of(WITH_SKIP)
        assert (facts["arch_from"], facts["format"]) == ("metadata", "safetensors")
        json.dumps(facts, allow_nan=False)  # the record keeps them
        assert checkpoint.read("w.safetensors").state.keys() == network.state_dict().keys()
        # Strict loading cannot see whether an edge skips or pools; the file says so.
        other = WITH_SKIP.replace("skip_connect", "avg_pool_3x3")
        with pytest.raises(RbError, match=r"contains the architecture .*skip_connect.*but .*avg_pool_3x3"):
            checkpoint.load("w.safetensors", {"space": "nasbench201", "str": other})

    def test_equal_weights_give_equal_bytes(self):
        network = built(WITH_SKIP)
        normalized = Normalized(network, MEAN, STD)
        first = weights_file.to_bytes(normalized, {"a": 1, "b": 2})
        network.to(memory_format=torch.channels_last)
        assert weights_file.to_bytes(normalized, {"b": 2, "a": 1}) == first
        with torch.no_grad():
            network.classifier.bias[0] += 1
        assert weights_file.to_bytes(normalized, {"a": 1, "b": 2}) != first
        metadata = {"x": [1], "y": None, "z": {"b": 1, "a": 2}}  # the writer's hash tables differ every time
        assert len({weights_file.to_bytes(normalized, metadata) for _ in range(20)}) == 1

    def test_tensors_that_share_memory_are_written(self):
        network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        network[1].weight = network[0].weight
        Path("t").write_bytes(weights_file.to_bytes(network, {}))
        state = checkpoint.read("t").state
        assert torch.equal(state["0.weight"], state["1.weight"])


class Hostile:
    def __reduce__(self):
        return os.system, ("touch it-ran",)


def cut_off(path, size, **how):
    torch.save({"w": torch.ones(4000)}, path, **how)
    path.write_bytes(path.read_bytes()[:size])


def zip_of_pictures(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jpg", b"...")


HTML = "\n<!DOCTYPE html>\n<html><head><title>Google Drive - Quota exceeded</title></head></html>"
LEGACY = {"_use_new_zipfile_serialization": False}
BAD_FILES = {
    "missing": (lambda path: None, "does not exist"),
    "folder": (lambda path: path.mkdir(), "is a folder"),
    "empty": (lambda path: path.touch(), r"is empty \(0 bytes\)"),
    "cut zip": (lambda path: cut_off(path, 9000), r"truncated or damaged \(it has 9000 bytes"),
    "cut legacy": (lambda path: cut_off(path, 5000, **LEGACY), r"truncated or damaged \(it has 5000 bytes"),
    "cut safetensors": (
        lambda path: path.write_bytes(weights_file.to_bytes(nn.Linear(9, 9), {})[:-7]),
        "truncated or damaged safetensors file",
    ),
    "html": (lambda path: path.write_text(HTML), "is a web page, titled 'Google Drive - Quota exceeded'"),
    "text": (lambda path: path.write_text("epoch,acc\n1,0.5\n"), "that begins with 'epoch,acc 1,0.5'"),
    "program": (lambda path: path.write_text("#!/bin/sh\n"), r"a program.*rbtools.evaluate\(FUNCTION"),
    "lfs": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "gzip": (lambda path: path.write_bytes(b"\x1f\x8b\x08" + bytes(50)), "gzip archive.*unpack it"),
    "other zip": (zip_of_pictures, r"zip archive of other files \(a.jpg\)"),
    "hostile": (lambda path: torch.save(Hostile(), path), "posix.system, whose class could run code"),
    "hostile legacy": (lambda path: torch.save(Hostile(), path, **LEGACY), "posix.system, whose class"),
    "plain pickle": (lambda path: path.write_bytes(pickle.dumps({"w": 1})), "a Python pickle"),
    "whole module": (lambda path: torch.save(nn.Linear(2, 2), path), r"torch\.nn\.modules\.linear\.Linear"),
    "tensor": (lambda path: torch.save(torch.ones(3), path), "contains a single tensor"),
    "no weights": (lambda path: torch.save({"epoch": 3, "opt": {}}, path), "it contains 'epoch', 'opt'"),
    "torchscript": (lambda path: torch.jit.script(nn.Linear(2, 2)).save(str(path)), "TorchScript program"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_holds_no_weights_is_described(case):
    make, said = BAD_FILES[case]
    path = Path("bad.pth.tar")
    make(path)
    with pytest.raises(RbError, match=said) as error:
        checkpoint.load(path)
    assert "bad.pth.tar" in str(error.value) and str(error.value).endswith(".")
    assert not Path("it-ran").exists()


class Net(nn.Module):
    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), *(nn.Linear(12, 12) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


class Lossy(Net):
    """A network with a layer that is called as a loss is."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.Linear(12, 12)


class Holder(nn.Module):
    """A wrapper without a forward of its own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Ema(Holder):
    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)


MAKERS = {
    "plain": Net,
    "parallel": lambda: nn.DataParallel(Net()),
    "compiled": lambda: torch.compile(Net()),
    "averaged": lambda: AveragedModel(Net()),
    "held": lambda: Holder(Net()),
    "ema": lambda: Ema(Net()),
    "large": lambda: Ema(Net(2)),
    "lossy": Lossy,
    "lazy": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(12)),
}
BESIDE = {"criterion.weight": torch.ones(12), "metric.total": torch.tensor(3), "val_acc.tp": torch.ones(2)}


def load_own(content: Any, maker: str) -> tuple[nn.Module, dict[str, Any]]:
    Path("makers.py").write_text("from tests.models.test_checkpoint import *\nglobals().update(MAKERS)\n")
    torch.save(content, "m.pt")
    arch = {"space": "python", "name": f"makers:{maker}", "normalize": "none"}
    model, _, facts = checkpoint.load("m.pt", arch, classes=12, shape=(3, 2, 2), allow_code=True)
    return model, facts


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where it imports its compiler
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "clf."])
@pytest.mark.parametrize("maker", [name for name in MAKERS if name not in ("large", "lazy", "lossy")])
@pytest.mark.slow
def test_weights_come_into_the_module_inside_and_what_is_beside_is_said(maker: str, prefix: str) -> None:
    net, images = Net(), torch.rand(4, 3, 2, 2)
    state = {prefix + key: value for key, value in net.state_dict().items()}
    model, facts = load_own({"state_dict": {**state, **BESIDE}}, maker)
    assert torch.equal(model(images), net(images))
    said = ["criterion.weight, metric.total, val_acc.tp in the file are not part of the network: left out"]
    assert facts["warnings"] == said


def test_a_loss_beside_a_flat_network_is_left_out_and_a_network_of_that_name_is_not() -> None:
    network = build({"space": "torchvision", "name": "resnet18"}, classes=2, shape=(3, 32, 32))
    torch.save({**network.state_dict(), "loss.pos_weight": torch.ones(1)}, "m.pt")
    for arch in ({}, {"space": "torchvision", "name": "resnet18"}):
        arch |= {"normalize": "none"}
        _, _, facts = checkpoint.load("m.pt", arch, classes=2, shape=(3, 32, 32))
        assert "loss.pos_weight" in facts["warnings"][0]
    assert load_own(Lossy().state_dict(), "lossy")[1].get("warnings", []) == []


def test_missing_layers_are_named_and_two_networks_are_not_guessed_between() -> None:
    state = {f"student.{key}": value for key, value in Net().state_dict().items()}
    with pytest.raises(RbError, match=r"missing: student\.net\.2\.weight, student\.net\.2\.bias\. "):
        load_own(state, "large")
    with pytest.raises(RbError, match="does not fit Net"):
        load_own({**state, **{f"other.{key}": value for key, value in Net().state_dict().items()}}, "plain")


def test_lazy_layers_get_their_sizes_before_the_weights() -> None:
    net, images = Net().net, torch.rand(4, 3, 2, 2)
    assert torch.equal(load_own(net.state_dict(), "lazy")[0](images), net(images))
