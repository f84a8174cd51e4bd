"""Faults of networks are named by rb-attack check, false numbers by rb-verify; honest models stay unnamed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools.errors import RbError
from rbtools.inputs import resolve
from rbtools.models.normalize import Normalized
from rbtools.probabilistic import intervals
from rbtools.records import checksums, consistency
from tests.conftest import SMALL_ARCH
from tests.networks import class_means, nearest
from tests.runner import Record

Layer = Callable[[Tensor], Tensor]
EPS, N = 16, 60
CHECK = {"eps": EPS, "steps": 5, "queries": 100, "samples": 5, "n": N, "store": "rb-store"}


class Around(nn.Module):
    """The nearest mean between a function of the images and a function of the logits."""

    def __init__(self, before: Layer = lambda x: x, after: Layer = lambda x: x) -> None:
        super().__init__()
        self.before, self.after, self.nearest = before, after, nearest(class_means())

    def forward(self, images: Tensor) -> Tensor:
        return self.after(self.nearest(self.before(images)))


class Gradient(torch.autograd.Function):
    """Identity with a wrong gradient: by `mode` its negative, or a constant pattern."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, mode: str) -> Tensor:
        ctx.mode = mode
        return images.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.mode == "turned":
            return -gradient, None
        pattern = torch.arange(gradient.numel()).view_as(gradient) * 7919 % 97 - 48.0
        return pattern, None


def contrast(images: Tensor) -> Tensor:
    return torch.sigmoid(20 * (images - 0.5))


def record_of(monkeypatch: pytest.MonkeyPatch, network: nn.Module) -> Record:
    """The record of a file of the user's, whose network this is."""
    path = Path("model.pt").absolute()
    path.write_bytes(b"a network of the test's own")
    monkeypatch.setattr(resolve, "load_model", lambda *_: network.requires_grad_(False))
    name = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    record = {"schema": 1, "arch": dict(SMALL_ARCH), "dataset": "digits", "checkpoint": name}
    return {**record, "checkpoint_file": str(path), "recognised": {"normalize_from": "assumed"}}


def alarms(record: Record) -> list[str]:
    """What rb-attack check says of a model: warnings on outputs and gradients, failing tests, or an error."""
    try:
        checked = rbtools.check(record, **CHECK)
    except RbError as error:
        return [str(error)]
    words = ["randomised"] if checked.get("randomised") else []
    for entry in checked["evals"]:
        words += entry.get("sanity", {}).get("warnings", [])
        words += entry.get("warnings", [])
        words += [f"test {test['test']} fails" for test in entry.get("tests", ()) if not test["holds"]]
    return words


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "quantised input": (lambda: Around(lambda x: (x * 4).round() / 4), "gradient"),
    "noise at test time": (lambda: Around(lambda x: x + 0.3 * torch.rand_like(x)), "randomised"),
    "dropout left on": (lambda: Around(after=nn.Dropout(0.3).train()), "randomised"),
    "ends in a softmax": (lambda: Around(after=lambda logits: logits.softmax(1)), "ends in a softmax"),
    "saturated logits": (lambda: Around(after=lambda logits: 1e5 * logits), "gradient"),
    "wrong mean": (lambda: Normalized(Around(contrast), [0.9], [0.3]), "normalisation"),
    "labels shifted": (lambda: Around(after=lambda logits: logits.roll(1, 1)), "--class-map FILE"),
    "gradient stopped": (lambda: Around(lambda images: images.detach()), "gradient"),
    "gradient turned round": (lambda: Around(lambda x: Gradient.apply(x, "turned")), "test"),
    "gradient of a pattern": (lambda: Around(lambda x: Gradient.apply(x, "pattern")), "test"),
    "BatchNorm in train mode": (lambda: Around(after=nn.BatchNorm1d(10).train()), "train mode"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", NETWORKS)
@pytest.mark.slow
def test_a_faulty_network_is_named(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, word = NETWORKS[fault]
    torch.manual_seed(0)
    named = alarms(record_of(monkeypatch, make()))
    assert any(word in text for text in named), named


# Which training images the means are of (every so many, from one on), and a factor of the logits.
HONEST: dict[str, Callable[[], nn.Module]] = {
    "large logits": lambda: nearest(class_means(2, 1), 10),
    "small logits of few images": lambda: nearest(class_means(4, 3), 0.3),
    "BatchNorm in eval mode": lambda: Around(after=nn.BatchNorm1d(10).eval()),
    "brighter": lambda: Around(lambda images: 0.9 * images + 0.05),
    "little contrast": lambda: Around(lambda images: torch.sigmoid(3 * (images - 0.5))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", HONEST)
def test_an_honest_model_raises_no_alarm(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(monkeypatch, HONEST[model]().eval())
    assert alarms(record) == []
    checked = rbtools.check(record, **CHECK)
    checked = rbtools.attack(checked, "pgd", eps=[4, EPS], steps=5, n=N, store="rb-store")
    verify = rbtools.verify(checked, sample=3, store="rb-store")["verify"]
    assert verify["inconsistent"] == []
    assert {one["verdict"] for one in verify["entries"].values()} <= {"match", "cannot be told"}


def changed(record: Record, metric: str, value: float, n: int = N) -> None:
    """Change an entry, and all that has to fit it."""
    (entry,) = [one for one in record["evals"] if one["metric"] == metric]
    entry |= {"value": value, "n": n, "ci95": list(intervals.wilson(round(value * n), n))}
    record["metrics"][metric] = value
    record["checksums"][metric] = checksums.of(entry)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("planted", ["another network", "more images than there are"])
def test_numbers_that_were_not_measured_so_differ(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(monkeypatch, nearest(class_means()))
    record = rbtools.attack(record, "pgd", eps=[8, EPS], steps=5, n=N, store="rb-store")
    assert consistency.findings(record) == []
    if planted == "another network":
        for metric in ("pgd5.8", "pgd5.16"):
            changed(record, metric, (round(record["metrics"][metric] * N) + 2) / N)
    else:
        changed(record, "pgd5.16", record["metrics"]["pgd5.16"], 600)
    entries = rbtools.verify(record, store="rb-store")["verify"]["entries"].values()
    assert "differs" in {one["verdict"] for one in entries}
