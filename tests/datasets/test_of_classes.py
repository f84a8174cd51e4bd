"""digits:classes=3/8: some classes of a data set."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from rbtools import datasets
from rbtools.errors import RbError
from tests.runner import run

TWO = "digits:classes=8/3"


def test_labels_are_places_in_the_list() -> None:
    whole, two = datasets.load("digits", "test"), datasets.load(TWO, "test")
    wanted = (whole.labels == 3) | (whole.labels == 8)
    assert torch.equal(two.images, whole.images[wanted])
    assert torch.equal(two.labels, (whole.labels[wanted] == 3).long())
    assert (two.name, two.classes, two.class_names) == (TWO, 2, ["8", "3"])
    about, both = datasets.describe(TWO), datasets.describe("digits")
    assert about.sizes == {split: len(datasets.load(TWO, split)) for split in both.sizes}
    assert (about.classes, about.shape, about.mean) == (2, both.shape, both.mean)
    names = (TWO, "digits:classes=3/8", "digits:classes=3/7", "digits")
    assert len({datasets.fingerprint(name, split) for name in names for split in ("train", "test")}) == 8


@pytest.mark.parametrize(
    ("classes", "message"),
    [("3", "names 1 classes"), ("3/3", "names 1 classes"), ("3/x", "has no class 'x'"), ("", "no class ''")],
)
def test_unknown_or_too_few_classes_are_refused(classes: str, message: str) -> None:
    with pytest.raises(RbError, match=message):
        datasets.describe(f"digits:classes={classes}")


def test_a_bound_is_of_two_classes_on_the_sphere() -> None:
    """A network of the theory gets its head of two logits, and attacked images keep their norm."""
    made = run("arch", ["--space", "fcnn", "--depth", "2", "--sample", "1", "--width", "8", "--dataset", TWO])
    assert json.loads(made.stdout)["dataset"] == TWO
    sphere = ["--attack-norm", "sphere", "--attack-steps", "2", "--eps", "0.1", "--batch-size", "6"]
    done = run("measure", ["bound", "--paper", "robbench", *sphere], made.stdout)
    record = json.loads(done.stdout)
    (entry,) = [one for one in record["evals"] if one["metric"].startswith("bound.robbench2.robust")]
    assert entry["metric"] == "bound.robbench2.robust.pgd.sphere.0.1"
    assert (entry["norm"], entry["eps"]) == ("sphere", 0.1)
    assert 0.05 < entry["inputs"]["rho"] <= 0.1 + 1e-6
    refused = run("measure", ["bound", "--attack", "fgsm", *sphere], made.stdout)
    assert refused.exit_code == 2
    other = run("measure", "ntk --attack fgsm,pgd --attack-norm sphere --eps 0.1", made.stdout)
    assert other.exit_code == 2 and "for pgd alone" in other.stderr


@pytest.mark.parametrize("least", ["0", "8G"])  # read as they are used; in memory
def test_a_class_map_gives_the_labels_of_the_network(tmp_path, monkeypatch, least: str) -> None:
    monkeypatch.setenv("RB_IMAGE_MEMORY", least)
    images = torch.arange(6).reshape(6, 1, 1, 1).expand(6, 1, 2, 2).to(torch.uint8).numpy()
    file = tmp_path / "x.npz"
    np.savez(file, images=images, labels=[0, 1, 2, 0, 1, 2], class_names=["cat", "dog", "cow"])
    order = json.dumps(["bird", "dog", "emu", "cat"])  # of a record, which leaves the cow out
    about = datasets.describe(f"npz:{file}", class_map=order)
    found = datasets.load(f"npz:{file}", "test", class_map=order)
    assert (about.classes, about.present, about.sizes) == (4, (1, 3), {"test": 4})
    assert found.labels.tolist() == [3, 1, 3, 1] and found.images[:][:, 0, 0, 0].tolist() == [0, 1, 3, 4]
    prints = {datasets.fingerprint(f"npz:{file}", "test", class_map=one) for one in (order, None)}
    assert len(prints) == 2
