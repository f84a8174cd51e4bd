"""Checkpoints of the user's at the command line: recognised, normalised, looked at, and refused."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from torch import nn

from rbtools import datasets, models
from rbtools.models import weights_file
from rbtools.models.normalize import Normalized
from tests import calibrated
from tests.runner import Record, entry, one, records, run

CELL = "|nor_conv_3x3~0|+|nor_conv_1x1~0|nor_conv_1x1~1|+|nor_conv_1x1~0|nor_conv_1x1~1|nor_conv_1x1~2|"


def attack(words: str, *given: Record) -> Result:
    return run("attack", f"fgsm --eps 0 --device cpu {words}", given)


@pytest.fixture(autouse=True)
def _fresh_modules() -> Iterator[None]:
    """A user's module is imported once in a process, and here every test writes its own."""
    yield
    for name in ("linear", "mine"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


SIDE, CLASSES = 16, 4
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.2)
NUMBERS = "0.4,0.5,0.6 0.2,0.25,0.2"


@pytest.fixture
def data() -> str:
    """Images 16x16 of four classes, which differ in the position of a bright quarter."""
    labels = torch.arange(80) % CLASSES
    pixels = torch.rand(80, SIDE, SIDE, 3, generator=torch.Generator().manual_seed(0)) * 0.5
    for place in range(CLASSES):
        rows, columns = 8 * (place // 2), 8 * (place % 2)
        pixels[labels == place, rows : rows + 8, columns : columns + 8] += 0.4
    np.savez("data.npz", images=(pixels * 255).to(torch.uint8).numpy(), labels=labels.numpy())
    return "npz:data.npz"


@pytest.fixture
def network() -> Normalized:
    """A NAS-Bench-201 network behind a normalisation."""
    torch.manual_seed(0)
    arch = {"space": "nasbench201", "str": CELL, "channels": 4, "cells": 1}
    return Normalized(models.build(arch, classes=CLASSES, shape=(3, SIDE, SIDE)), MEAN, STD).eval()


@pytest.fixture
def bare(network: Normalized) -> str:
    """Its weights without the normalisation, as most training scripts save them."""
    torch.save({"state_dict": network.network.state_dict()}, "bare.pt")
    return "bare.pt"


def test_a_normalisation_beside_that_of_the_file_or_of_other_channels(
    network: Normalized, bare: str, data: str
) -> None:
    Path("own.safetensors").write_bytes(weights_file.to_bytes(network, {}))
    for words, said in (
        ("own.safetensors --normalize none", "contains its own normalisation"),
        (f"{bare} --normalize 0.1,0.2 0.3,0.4", "has 2 means, but the images"),
    ):
        result = attack(f"--dataset {data} --checkpoint {words}")
        assert result.exit_code == 1 and said in result.stderr


def test_a_training_leaves_behind_what_belonged_to_the_file() -> None:
    cell = {"space": "nasbench201", "str": CELL, "channels": 4, "cells": 1}
    network = models.build(cell, classes=10, shape=(1, 8, 8))
    torch.save({"a": network.state_dict(), "b": network.state_dict()}, "two.pt")
    made = one(run("arch", "--from-checkpoint two.pt --member a --dataset digits --normalize none"))
    assert (made["arch"]["member"], made["arch"]["normalize"]) == ("a", "none")
    record = one(run("train", "--epochs 0 --device cpu", [made]))
    assert not {"checkpoint_file", "recognised"} & record.keys()
    assert not {"member", "normalize"} & record["arch"].keys()
    assert one(attack("--n 10", record))["evals"][-1]["n"] == 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"recognised": [1]},
        {"recognised": {"normalize_from": 5}},
        {"arch": {"space": "nasbench201", "str": CELL, "normalize": [[0.5]]}},
        {"arch": {"space": "python", "name": 7}},
        {"arch": {"space": "checkpoint", "name": "torchscript"}},
        {"checkpoint_file": 3},
    ],
)
def test_a_record_of_a_file_that_makes_no_sense_is_no_bug(wrong: Record, bare: str, data: str) -> None:
    made = one(run("arch", f"--from-checkpoint {bare}"))
    result = attack(f"--dataset {data}", {**made, **wrong})
    assert "bug" not in result.stderr and "Traceback" not in result.stderr
    if result.exit_code:
        assert len(records(result)[0]["error"]["message"]) > 20


@pytest.fixture
def own_code() -> str:
    Path("mine.py").write_text(
        "import pathlib\n"
        "from torch import nn\n"
        "pathlib.Path('it-ran').touch()\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
        "    def forward(self, images):\n"
        "        return self.model(images)\n"
        "def make(num_classes): return Net(num_classes)\n"
    )
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    torch.save({f"model.{key}": value for key, value in network.state_dict().items()}, "mine.pt")
    return "mine.pt"


@pytest.mark.slow
def test_the_network_that_is_named_is_taken_where_its_variants_do_as_well() -> None:
    network = models.build({"space": "zoo", "name": "preactresnet18"}, classes=10, shape=(1, 8, 8))
    torch.save(network.state_dict(), "p.pt")
    words = "--from-checkpoint p.pt --dataset digits --normalize none"
    assert "--arch preactresnet18:shortcut=input: " in run("arch", words).stderr
    known = one(run("arch", f"{words} --arch preactresnet18"))
    assert "shortcut" not in known["arch"] and len(known["recognised"]["tried"]["acc"]) == 2


def test_code_runs_only_where_the_command_line_says_so(own_code: str) -> None:
    result = attack(f"--checkpoint {own_code} --arch python:mine:make --n 20")
    assert result.exit_code == 2 and "add --allow-code" in result.stderr
    record = one(
        run("arch", f"--from-checkpoint {own_code} --arch python:mine:make --dataset digits --allow-code")
    )
    Path("it-ran").unlink()
    asked = {**record, "allow_code": True}
    refused = attack("--n 20", asked)
    assert refused.exit_code == 1 and "may not do this without your" in refused.stderr
    assert not Path("it-ran").exists()
    # The prefix belongs to the network's own names, so it is not removed.
    assert one(attack("--n 20 --allow-code", asked))["evals"][-1]["n"] == 20
    Path("mine.py").write_text(Path("mine.py").read_text() + "# other code\n")
    changed = attack("--n 20 --allow-code --force", asked)
    assert changed.exit_code == 1 and "has changed since the record was created" in changed.stderr


def test_code_is_not_run_by_a_training_unless_allowed(own_code: str) -> None:
    given = records(run("arch", "--arch python:mine:make"))
    assert not Path("it-ran").exists()
    refused = run("train", "--epochs 0 --device cpu", given)
    assert refused.exit_code == 1 and "add --allow-code" in refused.stderr
    trained = run("train", "--epochs 0 --device cpu --allow-code", given)
    assert trained.exit_code == 0 and Path("it-ran").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["torchscript", "torch.export"])
@pytest.mark.slow
def test_programs_run_only_where_the_command_line_says_so(kind: str) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    if kind == "torchscript":
        torch.jit.script(network).save("program.pt")
    else:
        batch = ({0: torch.export.Dim("batch")},)
        torch.export.save(
            torch.export.export(network, (torch.rand(2, 1, 8, 8),), dynamic_shapes=batch), "program.pt"
        )
    words = "--checkpoint program.pt --n 20"
    refused = attack(words)
    assert refused.exit_code == 1 and "could run code. If you trust it, add --allow-code" in refused.stderr
    asked = attack(f"{words} --allow-code")  # it is not trained
    assert asked.exit_code == 1 and "a record for other tools: --" in asked.stderr
    record = one(attack(f"{words} --allow-code --normalize none"))
    assert record["arch"]["space"] == "checkpoint" and record["arch"]["name"] == kind
    found = datasets.load("digits", "test")
    order = datasets.subset(found.labels, 20, seed=0)
    right = network(found.images[order].float() / 255).argmax(1).eq(found.labels[order])
    assert record["metrics"]["acc"] == int(right.sum()) / 20
    piped = attack("--n 20 --force", record)
    assert piped.exit_code == 1 and "--allow-code" in piped.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_program_with_a_normaliser_takes_pixels_as_they_are() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    network = torch.jit.trace(Normalized(linear, 0.5, 0.2).eval(), torch.rand(2, 1, 8, 8))
    torch.jit.save(network, "program.pt")
    record = one(attack("--checkpoint program.pt --n 20 --allow-code"))
    assert record["arch"]["normalize"] == "none"
    assert record["recognised"]["normalize_from"] == "guess: the program normalises by itself"


@pytest.fixture
def small() -> str:
    """The small form of a shufflenet with random weights, in small.pt, and images that are labelled by it."""
    network, _ = calibrated.made("torchvision:shufflenet_v2_x0_5:stem=cifar", classes=CLASSES)
    torch.save(network.state_dict(), "small.pt")
    pixels = (calibrated.images() * 255).to(torch.uint8)
    labels = network(pixels.float() / 255).argmax(1)
    np.savez("own.npz", images=pixels.permute(0, 2, 3, 1).numpy(), labels=labels.numpy())
    return "npz:own.npz"


@pytest.mark.slow
def test_variant_and_normalisation_are_told_at_once_or_when_there_are_images(small: str) -> None:
    result = run("arch", f"--from-checkpoint small.pt --dataset {small}")
    direct = one(result)
    assert (direct["arch"]["stem"], direct["arch"]["normalize"]) == ("cifar", "none")
    assert direct["recognised"]["normalize_from"] == "accuracy"
    name = "torchvision:shufflenet_v2_x0_5"
    assert f"Accuracy on 64 images: 1.0000 with --arch {name}:stem=cifar --normalize none, 0" in result.stderr
    made = run("arch", "--from-checkpoint small.pt")
    assert "to be chosen by accuracy on --dataset, or given by --normalize" in made.stderr
    record = one(made)
    assert "stem" not in record["arch"] and record["recognised"]["normalize_from"] == "open"
    evaluated = attack(f"--dataset {small} --n 4", record)
    assert f"Accuracy on 64 images: 1.0000 with --arch {name}:stem=cifar --normalize none" in evaluated.stderr
    piped = one(evaluated)
    assert piped["recognised"] == direct["recognised"] and piped["arch"] == direct["arch"]


QUADRANTS = """
import torch
from torch import nn

class Net(nn.Module):
    # Of four places the brightest; the places from {near} on by how near their pixels are to 0.

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        {normaliser}

    def forward(self, images):
        {first}
        means = nn.functional.adaptive_avg_pool2d(images.mean(1), 2).flatten(1) * self.scale
        return torch.where(torch.arange(4) >= {near}, -means.abs(), means)

def make():
    return Net()
"""


def quadrants(normaliser: str = "", first: str = "", near: int = 2) -> str:
    """The arguments that evaluate that network. With the right mean it is correct on all images, else only on
    those whose class is below `near`."""
    Path("mine.py").write_text(QUADRANTS.format(normaliser=normaliser, first=first, near=near))
    torch.save({"scale": torch.ones(1)}, "mine.pt")
    return "--checkpoint mine.pt --arch python:mine:make --allow-code"


def test_a_guessed_normalisation_is_compared_with_the_others_on_the_first_images(data: str) -> None:
    words = f"{quadrants()} --dataset {data}"
    result = attack(words)
    assert one(result)["metrics"]["acc"] == 0.5  # so the accuracy is not near chance
    said = "clean accuracy is 0.5000, and higher with another one: try --normalize cifar10, with which it is"
    assert said in result.stderr
    assert any(said in text for text in entry(one(result), "acc")["sanity"]["warnings"])
    for normalize, acc in (("none", 0.5), ("cifar10", 1.0)):  # it is used, with a warning if it is worse
        named = attack(f"{words} --normalize {normalize} --store other")
        assert one(named)["metrics"]["acc"] == acc
        assert (f"its normalisation was given by you, but {said}" in named.stderr) == (acc < 1)


BUFFER = "self.register_buffer('{}', torch.full((1, 3, 1, 1), {}), persistent=False); "
INSIDE = {
    "buffers that are not saved": BUFFER.format("mu", 0.65) + BUFFER.format("sigma", 0.25),
    "attributes": "self.mu, self.sigma = [.65] * 3, torch.full((3, 1, 1), .25)",
}


@pytest.mark.parametrize("case", INSIDE)
def test_normalisation_inside_a_network_of_ones_own_and_outside_do_not_add_up(case: str, data: str) -> None:
    first = "images = (images - torch.as_tensor(self.mu).view(-1, 1, 1)) / self.sigma"
    words = f"{quadrants(INSIDE[case], first)} --dataset {data}"
    record = one(attack(words))
    assert record["metrics"]["acc"] == 1.0 and record["arch"]["normalize"] == "none"
    assert record["recognised"]["normalize_from"] == "guess: the network normalises by itself"
    twice = attack(f"{words} --normalize cifar10")
    assert "normalised twice: by --normalize, and by the network itself" in twice.stderr
    assert "twice" in one(twice)["recognised"]["warnings"][0]


@pytest.mark.slow
def test_which_of_several_sets_of_weights_is_taken_is_said(network: Normalized, data: str) -> None:
    state = network.network.state_dict()
    torch.save({"last": state, "best": state, "epoch": 3}, "two.pt")
    words = f"--checkpoint two.pt --dataset {data} --normalize {NUMBERS}"
    result = attack(words)
    assert "several sets of weights: best is used; the others are last. Choose with --member" in result.stderr
    assert one(result)["recognised"]["nesting"] == ["best"]
    assert "several sets" not in attack(f"{words} --member last").stderr


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch it-ran",)


def test_a_bad_file_is_one_sentence_before_the_evaluation(data: str) -> None:
    torch.save(Hostile(), "m.pt")
    result = attack(f"--checkpoint m.pt --dataset {data}")
    assert result.exit_code == 1
    assert "could run code and is not loaded" in records(result)[0]["error"]["message"]
    assert "clean accuracy" not in result.stderr and not Path("it-ran").exists()
