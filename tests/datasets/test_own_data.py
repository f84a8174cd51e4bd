"""Data sets of the user's: python:MODULE:CLASS, which runs only with allow_code, and entry points."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rbtools import datasets
from rbtools.errors import RbError
from rbtools.models import build
from tests.fingerprints import fingerprint
from tests.runner import command, one

MODULE = '''
from dataclasses import dataclass
import numpy as np
from rbtools.datasets.arrays import ArrayDataset

@dataclass(frozen=True, kw_only=True)
class Flat(ArrayDataset):
    """Images of one grey a class, brighter by what follows the name."""

    def arrays(self, split):
        labels = np.arange(20 if split == "train" else 10) % 10
        grey = (10 * labels + int(self.argument or 0)).astype(np.uint8)
        return np.broadcast_to(grey[:, None, None, None], (len(labels), 1, 8, 8)), labels

ODD = {
    "stopping": lambda split: 1 / 0,
    "reals": lambda split: (np.zeros((2, 1, 8, 8)), np.zeros(2, int)),
    "short": lambda split: (np.zeros((2, 1, 8, 8), np.uint8), np.zeros(3, int)),
}

@dataclass(frozen=True, kw_only=True)
class Odd(ArrayDataset):
    def arrays(self, split):
        return ODD[self.argument](split)
'''


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Path("own_flat.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("own_flat", None)


attack = command("attack", "--n 10 --device cpu")


def test_arrays_are_all_that_a_data_set_needs() -> None:
    about = datasets.describe("python:own_flat:Flat", allow_code=True)
    assert (about.shape, about.classes, about.sizes) == ((1, 8, 8), 10, {"train": 20, "test": 10})
    data = datasets.load("python:own_flat:Flat:7", "test", allow_code=True)
    assert data.images.dtype == torch.uint8 and data.images[:, 0, 0, 0].tolist() == list(range(7, 107, 10))
    assert data.labels.tolist() == list(range(10)) and data.name == "python:own_flat:Flat:7"
    names = [f"python:own_flat:Flat{end}" for end in ("", ":0", ":7")]
    prints = {fingerprint(one, split, allow_code=True) for one in names for split in about.sizes}
    assert len(prints) == 4  # of the content: an argument that changes nothing changes no result


def test_a_record_names_it_and_cannot_give_it_leave() -> None:
    network = build({"space": "zoo", "name": "simplecnn"}, classes=10, shape=(1, 8, 8))
    torch.save(network.state_dict(), "model.pt")
    asked = "none --checkpoint model.pt --arch simplecnn --normalize none --dataset python:own_flat:Flat"
    refused = attack(asked)
    assert refused.exit_code == 2 and "names Python code, which would be run" in refused.stderr
    assert "own_flat" not in sys.modules
    record = one(attack(f"{asked} --allow-code"))
    assert record["dataset"] == "python:own_flat:Flat" and record["evals"][-1]["n"] == 10
    sys.modules.pop("own_flat")
    later = attack("none", {**record, "evals": [], "metrics": {}})
    assert later.exit_code == 1 and "add --allow-code" in later.stderr and "own_flat" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Odd:stopping", "raised ZeroDivisionError: division by zero"),
        ("Odd:reals", "its images are float64 (2, 1, 8, 8)"),
        ("Odd:short", "its labels are int64 (3,) for 2 images"),
    ],
)
def test_what_is_no_data_set_is_refused(name: str, message: str) -> None:
    with pytest.raises(RbError) as refused:
        datasets.load(f"python:own_flat:{name}", "test", allow_code=True)
    assert message in str(refused.value)


def test_an_entry_point_needs_no_allow_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(datasets.DATASETS), "plugins", {"flat": "own_flat:Flat"})
    assert datasets.describe("flat:3").name == "flat:3"
