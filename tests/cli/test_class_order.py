"""The classes of a data set as the network numbers them, and pictures with the network's channels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.runner import one, run

# The nearest of the network's levels of grey is the class: class k has the level 20 k + 10.
LEVELS = """
import torch
from torch import nn

def make(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * 16, classes))

def twelve(classes, shape):
    return make(12, (1, 4, 4))

class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 1)

    def forward(self, images):
        return self.conv(images).mean((2, 3))
"""
NETWORK = "--checkpoint hf/m.pt --arch python:levels:make --allow-code --normalize none"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("levels.py").write_text(LEVELS)
    Path("hf").mkdir()


def network(classes: int, channels: int = 3) -> None:
    levels = (torch.arange(classes) * 20 + 10) / 255
    weight = (2 * levels / (16 * channels))[:, None].expand(classes, 16 * channels) * 200
    torch.save({"1.weight": weight.contiguous(), "1.bias": -(levels**2) * 200}, "hf/m.pt")


def pictures(folder: str, levels: dict[str, int], mode: str = "RGB") -> None:
    for name, level in levels.items():
        Path(folder, "test", name).mkdir(parents=True)
        for number in range(8):
            pixels = np.full((4, 4, 3), 20 * level + 6 + number, np.uint8)
            Image.fromarray(pixels).convert(mode).save(f"{folder}/test/{name}/{number}.png")


def metrics(words: str) -> dict[str, Any]:
    return dict(one(run("attack", f"none {NETWORK} {words}"))["metrics"])


BOTH = {"acc-among": 1.0, "acc": 1.0}


@pytest.mark.parametrize(
    "config",
    [
        {"label_names": ["dog", "cat"]},
        {"pretrained_cfg": {"label_names": ["Dog", "cat, house cat"]}},
        {"id2label": {"0": "dog", "1": "cat"}},
        {"label2id": {"dog": 0, "cat": 1}},
    ],
)
def test_names_beside_the_weights_give_the_order(config: dict[str, Any]) -> None:
    network(2)
    pictures("pets", {"cat": 1, "dog": 0})
    assert metrics("--dataset imagefolder:pets") == {"acc": 0.0}
    Path("hf/config.json").write_text(json.dumps(config))
    result = run("attack", f"none {NETWORK} --dataset imagefolder:pets")
    assert one(result)["metrics"] == {"acc": 1.0}
    assert "numbers of its classes in the network: dog is 0, cat is 1." in result.stderr
    assert one(run("attack", "fgsm --eps 1 --allow-code", [one(result)]))["metrics"]["fgsm.1"] == 1.0


@pytest.mark.parametrize(
    ("levels", "words", "right"),
    [
        ({"1": 1, "3": 3, "5": 5}, "", BOTH),
        ({"1": 1, "3": 3, "10": 10}, "--classes 1,10", BOTH),
        ({"a": 1, "b": 3, "c": 5}, "--classes 1,3,5", BOTH),
        ({"a": 1, "b": 3, "c": 5}, "--classes 1,4,5", {"acc-among": 1.0, "acc": 2 / 3}),
    ],
)
def test_images_of_some_classes_by_number(
    levels: dict[str, int], words: str, right: dict[str, float]
) -> None:
    network(12)
    pictures("part", levels)
    assert metrics(f"--dataset imagefolder:part {words}") == pytest.approx(right)


@pytest.mark.parametrize("words", ["", "--classes b,c", "--classes wolf,c", "--classes 3,5"])
def test_images_of_some_classes_by_name(words: str) -> None:
    network(12)
    pictures("part", {"a": 1, "b": 3, "c": 5})
    names = ["0", "a", "2", "b, wolf", "4", "C", *"6789xy"]
    Path("hf/config.json").write_text(json.dumps({"id2label": dict(enumerate(names))}))
    assert metrics(f"--dataset imagefolder:part {words}") == BOTH


def test_the_numbers_of_an_npz_are_the_networks() -> None:
    network(12)
    images = np.array([[[[20 * k + 10] * 3] * 4] * 4 for k in (1, 3, 5)], np.uint8)
    np.savez("part.npz", images=images, labels=[1, 3, 5])
    np.savez("all.npz", images=images, labels=[1, 3, 5], classes=12)
    assert metrics("--dataset npz:part.npz") == BOTH
    assert metrics("--dataset npz:all.npz") == {"acc": 1.0}
    assert metrics("--dataset npz:all.npz --classes 1,3,5") == BOTH


@pytest.mark.parametrize(
    "words", ["", "--classes 1,3", "--classes a,b", "--classes 1,1,3", "--classes 1,3,12"]
)
def test_classes_that_nothing_tells_are_asked_for(words: str) -> None:
    network(12)
    pictures("part", {"a": 1, "b": 3, "c": 5})
    result = run("attack", f"none {NETWORK} --dataset imagefolder:part {words}")
    assert "--classes" in json.loads(result.stdout)["error"]["message"]


@pytest.mark.parametrize("arch", ["make", "Convolutional"])
def test_a_network_of_one_channel_gets_pictures_of_one(arch: str) -> None:
    network(12, channels=1)
    if arch == "Convolutional":
        state = torch.load("hf/m.pt")
        weight = state["1.weight"].sum(1)[:, None, None, None]
        torch.save({"conv.weight": weight, "conv.bias": state["1.bias"]}, "hf/m.pt")
    pictures("grey", {str(k): k for k in range(12)}, "L")
    words = NETWORK.replace("make", arch)
    result = run("attack", f"none {words} --dataset imagefolder:grey")
    record = one(result)
    assert record["metrics"] == {"acc": 1.0} and record["dataset"].endswith("/grey:grey")
    assert "The network takes 1 channels" in result.stderr
    after = one(run("attack", "fgsm --eps 1 --allow-code --dataset imagefolder:grey", [record]))
    assert after["metrics"]["fgsm.1"] == 1.0


def test_labels_that_start_at_one_are_named() -> None:
    network(12, channels=1)
    np.savez("from_one.npz", images=np.zeros((24, 4, 4), np.uint8), labels=np.arange(24) % 12 + 1)
    result = run("attack", f"none {NETWORK.replace(':make', ':twelve')} --dataset npz:from_one.npz")
    assert "returns 12 logits, but the data set has 13 classes" in result.stderr
