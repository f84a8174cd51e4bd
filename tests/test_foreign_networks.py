"""Networks of other people: they change their input, see the whole batch, refuse values, or end Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools.attacks.pgd import PGD
from rbtools.errors import RbError
from rbtools.spaces.own_code import code_digest
from tests.runner import run

CODE = """
import argparse
import sys
import torch
from torch import nn


class Linear(nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        first = [nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)] if norm else []
        self.net = nn.Sequential(*first, nn.Flatten(), nn.Linear(128 if norm else 64, 16), nn.Linear(16, 10))

    def forward(self, x):
        return self.net(self.before(x))

    def before(self, x):
        return (x - 0.3) / 0.4


class InPlace(Linear):
    def before(self, x):
        return x.sub_(0.3).div_(0.4)


class OfData(Linear):
    def before(self, x):
        x.data.sub_(0.3)
        return x / 0.4


class InTrainMode(Linear):
    def before(self, x):
        return x.sub_(0.3).div_(0.4) if self.training else (x - 0.3) / 0.4


class Squeezed(Linear):
    def forward(self, x):
        return super().forward(x).squeeze()


class Auxiliary(Linear):
    def forward(self, x):
        logits = super().forward(x)
        return (logits, logits) if self.training else logits


class Exits(Linear):
    def forward(self, x):
        sys.exit("not today")


def frozen():
    return Linear().requires_grad_(False)


def reads_options():
    argparse.ArgumentParser().parse_args(["--unknown"])

"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names in a module `foreign` of the working folder."""
    Path("foreign.py").write_text(CODE)
    names: dict[str, Any] = {}
    exec(CODE, names)
    return names


def digits(n: int = 60) -> tuple[Tensor, Tensor]:
    split = rbtools.datasets.load("digits", "test")
    return split.images[:n].float() / 255, split.labels[:n]


def attacked(network: str, file: str, *more: str) -> dict[str, Any]:
    """What rb-attack makes of a file of weights with this network."""
    words = f"pgd --eps 8 --steps 2 --n 20 --checkpoint {file} --arch python:foreign:{network} --allow-code"
    done = run("attack", [*words.split(), "--dataset", "digits", *more])
    record: dict[str, Any] = json.loads(done.stdout)
    return {**record, "said": done.stderr}


@pytest.mark.filterwarnings("ignore:The model. its forward pass changes")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "norm", "form"),
    [
        ("InPlace", False, "module"),
        ("InPlace", True, "module"),
        ("OfData", False, "module"),
        ("InPlace", False, "function"),
        ("InPlace", False, "program"),
    ],
)
def test_the_images_of_the_caller_stay(code: dict[str, Any], name: str, norm: bool, form: str) -> None:
    torch.manual_seed(0)
    good, bad = code["Linear"](norm).eval(), code[name](norm).eval()
    bad.load_state_dict(good.state_dict())
    images, labels = digits()
    before, attack = images.clone(), PGD(eps=16 / 255, steps=3)
    forms: dict[str, Callable[[], Any]] = {
        "module": lambda: bad,
        "function": lambda: lambda x: bad(x),
        "program": lambda: torch.jit.trace(bad, images.clone(), check_trace=False),
    }
    given = forms[form]()
    for task in ("acc", attack):
        assert rbtools.evaluate(given, (images, labels), task).value == pytest.approx(
            rbtools.evaluate(good, (images, labels), task).value
        )
    assert torch.equal(attack(given, images, labels), attack(good, images, labels))
    assert torch.equal(images, before)
    assert not bad._forward_pre_hooks


@pytest.mark.parametrize("method", ["erm", "pgd"])
@pytest.mark.parametrize("name", ["InPlace", "InTrainMode"])
def test_a_training_of_a_network_in_place(code: dict[str, Any], name: str, method: str) -> None:
    images, labels = digits(200)
    before, weights = images.clone(), []
    for kind in ("Linear", name):
        torch.manual_seed(0)
        network = code[kind](True)
        told = rbtools.fit(network, (images, labels), method, epochs=1, val=0).notices
        weights.append(torch.cat([value.flatten().double() for value in network.state_dict().values()]))
    assert "changes its input in place" in told[0]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(images, before)
    assert not network._forward_pre_hooks


def test_a_file_of_a_network_in_place(code: dict[str, Any]) -> None:
    torch.manual_seed(0)
    torch.save(code["Linear"]().eval().state_dict(), "m.pt")
    records = [attacked(name, "m.pt", "--normalize", "none") for name in ("Linear", "InPlace")]
    assert records[0]["metrics"] == records[1]["metrics"]
    assert [record["said"].count("changes its input") for record in records] == [0, 1]
    assert "randomised" not in records[1]


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("Squeezed", r"shape \(10,\) for 1 images of 10 classes"),
        ("Auxiliary", "tuple for 2 images of 10 classes in train mode"),
        ("frozen", "no trainable weights"),
        ("Exits", "SystemExit"),
        ("reads_options", r"SystemExit: 2 \(.*foreign.py"),
    ],
)
def test_one_sentence_of_what_a_training_cannot_take(code: dict[str, Any], network: str, words: str) -> None:
    given = {"schema": 1, "arch": {"space": "python", "name": f"foreign:{network}"}, "dataset": "digits"}
    other = {"schema": 1, "error": {"tool": "rb-arch", "message": "is passed on"}}
    done = run("train", "--allow-code --epochs 1 --val 0", [given, other])
    first, second = map(json.loads, done.stdout.splitlines())
    assert second == other
    (said,) = [line for line in done.stderr.splitlines() if "error: line 1" in line]
    assert re.search(words, first["error"]["message"])
    assert first["error"]["message"] in said


@pytest.mark.parametrize("network", ["Squeezed", "Exits", "reads_options"])
def test_one_sentence_of_what_an_attack_cannot_take(code: dict[str, Any], network: str) -> None:
    torch.save(code["Linear"]().state_dict(), "m.pt")
    record = attacked(network, "m.pt", "--normalize", "none")
    assert record["error"]["message"] in record["said"]
    assert "Traceback" not in record["said"]


def test_weights_in_double_precision_are_named() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double().eval()
    with pytest.raises(RbError, match=r"torch\.float64.*model\.float\(\)"):
        rbtools.evaluate(model, digits(), "acc")


def test_within_inference_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    task = PGD(eps=16 / 255, steps=2)
    expected = rbtools.evaluate(model, digits(), task).value
    with torch.inference_mode():
        assert rbtools.evaluate(model, digits(), task).value == expected
        assert rbtools.fit(model, digits(), epochs=1, val=0, batch_size=20).epochs == 1


def test_a_dry_run_counts_a_network_that_is_not_trained_yet(code: dict[str, Any]) -> None:
    arch = {"space": "python", "name": "foreign:Linear", "code": code_digest("foreign:Linear")}
    record = {"schema": 1, "arch": arch, "dataset": "digits"}
    told = run("attack", "fgsm --n 20 --dry-run --allow-code", [record])
    assert told.exit_code == 0 and "1 record would first be trained" in told.stderr
