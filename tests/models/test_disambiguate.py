"""Fields that tensor names and shapes do not determine, chosen by BatchNorm's statistics of training
images."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rbtools.datasets import NORMALIZATIONS
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.inputs import recognition
from rbtools.models import build, checkpoint, statistics
from rbtools.models.checkpoint import NormalizationHints
from rbtools.models.families import Ambiguous
from rbtools.models.normalize import Normalized

pytestmark = pytest.mark.trains
SKIP = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_1x1~1|nor_conv_3x3~2|"
POOL = SKIP.replace("skip_connect", "avg_pool_3x3")
KNOWN = {"none": None, **{name: (p.mean, p.std) for name, p in NORMALIZATIONS.items() if len(p.mean) == 3}}


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    fine = torch.rand(64, 3, 16, 16, generator=generator)  # high frequencies, which pooling removes
    return 0.6 * statistics.synthetic((3, 16, 16), 64) + 0.4 * fine


def trained(text, images, pair, steps=15):
    """A network with BatchNorm statistics of the images, cropped at random or not, behind a normalisation."""
    torch.manual_seed(0)
    arch = {"space": "nasbench201", "str": text, "channels": 4, "cells": 1}
    network = build(arch, classes=4, shape=(3, 16, 16))
    model = network if pair is None else Normalized(network, *pair)
    labels = (images.mean((1, 2, 3)) > 0.47) * 2 + (images[:, 0].mean((1, 2)) > images[:, 2].mean((1, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        part = torch.arange(step * 32, step * 32 + 32) % len(images)
        optimizer.zero_grad()
        F.cross_entropy(model(images[part]), labels[part]).backward()
        optimizer.step()
    with torch.no_grad():  # the weights stay constant, as in the last epochs of a schedule that ends at 0
        for _ in range(90):
            model(images)
    return model.eval()


@pytest.fixture(scope="module")
def with_skip(images):
    return trained(SKIP, images, KNOWN["cifar10"])


def load(images, arch=None, known=KNOWN):
    return checkpoint.load("m.pt", arch, hints=NormalizationHints(lambda: images, known))


def bare(model):
    return (model.network if isinstance(model, Normalized) else model).state_dict()


def test_the_cell_and_the_normalisation_are_told_by_images_of_the_data(with_skip, images):
    torch.save({"state_dict": bare(with_skip)}, "m.pt")
    model, arch, facts = load(images)
    assert arch["str"] == SKIP
    assert facts["arch_from"] == "weights and BatchNorm statistics on 64 images of the data set"
    assert facts["arch_margin"] > 1.5 and len(facts["arch_divergences"]) == 3
    assert (facts["normalize_from"], facts["normalize_name"]) == ("BatchNorm statistics", "cifar10")
    torch.testing.assert_close(model(images), with_skip(images))


def test_skip_and_pooling_are_told_apart_with_the_normalisation_inside(images):
    model = trained(POOL, images, KNOWN["kuangliu"])
    state = {f"1.{key}": value for key, value in bare(model).items()}
    torch.save({"0.mean": model.mean, "0.std": model.std, **state}, "m.pt")
    found, arch, facts = load(images)
    assert (arch["str"], facts["normalize_from"]) == (POOL, "checkpoint")
    assert torch.equal(found(images), model(images))


def test_pixels_as_they_are_is_one_of_the_answers(images):
    torch.save(bare(trained(SKIP, images, None)), "m.pt")
    _, arch, facts = load(images)
    assert (arch["str"], arch["normalize"], facts["normalize_name"]) == (SKIP, "none", "none")
    assert facts["normalize"] is None


def test_a_named_architecture_leaves_the_normalisation_to_be_told(with_skip, images):
    torch.save(bare(with_skip), "m.pt")
    given = {"space": "nasbench201", "str": SKIP}
    _, _, facts = load(images, given)
    assert (facts["arch_from"], facts["normalize_name"]) == ("given", "cifar10")
    told = {**given, "normalize": [[0.5] * 3, [0.5] * 3]}
    _, arch, facts = load(images, told)
    assert facts["normalize_from"] == "given" and arch["normalize"] == told["normalize"]


def test_a_fresh_network_remembers_nothing(images):
    arch = {"space": "nasbench201", "str": SKIP, "channels": 4, "cells": 1}
    torch.save(build(arch, classes=4, shape=(3, 16, 16)).state_dict(), "m.pt")
    with pytest.raises(Ambiguous, match=r"3 architectures fit.*those of a fresh network") as error:
        load(images)
    assert {one.arch["str"] for one in error.value.candidates} >= {SKIP, POOL}


def test_of_two_normalisations_that_fit_alike_one_is_taken(images):
    """The guess, here the data set's normalisation, is not used, because it does not fit."""
    torch.save(bare(trained(SKIP, images, ((0.49,) * 3, (0.25,) * 3))), "m.pt")
    known = {"dataset": 0.5, "one": 0.25 * 1.16, "other": 0.25 / 1.16}
    known = {name: ((0.1 if name == "dataset" else 0.49,) * 3, (std,) * 3) for name, std in known.items()}
    _, arch, facts = load(images, {"space": "nasbench201", "str": SKIP}, known)
    assert facts["normalize_from"] == "BatchNorm statistics" and facts["fit"]["fits"]
    assert facts["normalize_name"] in ("one", "other")
    assert arch["normalize"] == [list(part) for part in known[facts["normalize_name"]]]


def test_statistics_that_fit_no_candidate_decide_nothing(with_skip, images):
    """The best of three bad fits is refused, as after a last step that was too large."""
    state = {key: value.clone() for key, value in bare(with_skip).items()}
    state["cells.0.layers.2.op.1.weight"] *= 3
    state["stem.1.weight"] *= 2
    torch.save(state, "m.pt")
    with pytest.raises(Ambiguous, match="ambiguous; candidates and their divergences"):
        load(images)
    torch.save(bare(with_skip), "m.pt")  # black images cannot decide
    with pytest.raises(Ambiguous, match="candidates and their divergences: nb201-"):
        load(torch.zeros(64, 3, 16, 16))


def test_the_normalisation_of_a_network_without_batchnorm_is_asked_for(images):
    """Without images it stays open."""
    network = build({"space": "zoo", "name": "simplecnn"}, classes=4, shape=(1, 28, 28))
    torch.save(network.state_dict(), "m.pt")
    usual = {"dataset": ((0.13,), (0.31,)), "none": None}
    with pytest.raises(RbError, match=r"--normalize '0.13 0.31' or --normalize none"):
        checkpoint.load("m.pt", shape=(1, 28, 28), hints=NormalizationHints(lambda: images, usual))
    _, arch, facts = checkpoint.load("m.pt", shape=(1, 28, 28), hints=NormalizationHints(known=usual))
    assert facts["normalize_from"] == "open" and "normalize" not in arch


def test_normalisations_that_fit_equally_well_but_differ_are_both_named():
    class Flat(nn.Module):
        """The input of its BatchNorm does not depend on the image."""

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3)
            self.norm.running_mean.fill_(0.5)
            self.norm.running_var.fill_(0)

        def forward(self, x):
            return self.norm(x * 0 + 0.5)

    seen = torch.rand(8, 3, 8, 8)
    both = statistics.normalisation(Flat().eval(), seen, {"a": None, "b": ((0.5,) * 3, (0.1,) * 3)})
    assert both is not None and both.names == ["a", "b"]
    assert statistics.normalisation(nn.Conv2d(3, 3, 1), seen, {"a": None}) is None


def test_of_near_equal_normalisations_the_one_that_is_published_most_is_taken() -> None:
    """CINIC-10's constants fit a network of CIFAR-10 better on some 64 images: by chance."""
    images = statistics.synthetic((3, 32, 32))
    known = {name: NORMALIZATIONS[name] for name in ("cifar10", "kuangliu", "cinic10")}
    for trained_on, taken in (("cinic10", "cifar10"), ("cifar10", "cifar10"), ("kuangliu", "kuangliu")):
        network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None))
        network.train()(statistics.normalised(images, known[trained_on]))
        found = statistics.normalisation(network, images, known)
        assert found is not None and found.names[0] == taken and found.divergences.keys() == known.keys()
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None))
    network.train()(statistics.normalised(images, known["cifar10"]))
    own = statistics.normalisation(network, images, {"dataset": known["cinic10"], **known}, ["dataset"])
    assert own is not None and own.names[0] == "dataset"


def cut(images: torch.Tensor, labels: torch.Tensor) -> statistics.Batches:
    return lambda: zip(images.split(64), labels.split(64), strict=True)


def test_near_normalisations_are_compared_again_on_more_images() -> None:
    """The first images are darker, which would favour the other constants; all images together decide
    correctly."""
    images = statistics.synthetic((3, 32, 32), 1024)
    known = {name: NORMALIZATIONS[name] for name in ("cifar10", "rice", "cinic10")}
    for trained_on, factor in (("cifar10", 0.97), ("cinic10", 1.0)):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None))
        network.train()(statistics.normalised(images, known[trained_on]))
        more = cut(images, torch.zeros(1024))
        found = statistics.normalisation(network, images[:64] * factor, known, known, more)
        assert found is not None and found.tie is not None and found.tie.images == 1024
        assert found.names[0] == trained_on and next(iter(found.tie.divergences)) == trained_on
        # rice has cifar10's constants with other digits
        assert found.tie.divergences.keys() == {"cifar10", "cinic10"}
        few = statistics.normalisation(network, images[:64], known, known, cut(images[:64], torch.zeros(64)))
        assert few is not None and few.names[0] == "cifar10" and few.tie is not None  # published most
        alone = {"cifar10": known["cifar10"], "rice": known["rice"]}
        sure = statistics.normalisation(network, images[:64], alone, alone, more)
        assert sure is None or sure.tie is None


def test_a_divergence_over_batches_is_that_over_all_images() -> None:
    images = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    for first in (True, False):
        whole = statistics.divergence(network, images, first=first)
        batches = statistics.divergence(network, images.split([16, 8]), first=first)
        assert batches == pytest.approx(whole, rel=0.01)


def test_near_normalisations_are_both_told_with_the_accuracy_of_each(images) -> None:
    """The labels are the network's predictions with the second normalisation, so its accuracy is 1."""
    near = tuple(value + 0.015 for value in KNOWN["cifar10"][0]), KNOWN["cifar10"][1]
    model = trained(SKIP, images, KNOWN["cifar10"])
    torch.save(bare(model), "m.pt")
    with torch.no_grad():
        labels = Normalized(model.network, *near)(images).argmax(1)
        right = float(model(images).argmax(1).eq(labels).float().mean())
    known = {"mine": KNOWN["cifar10"], "near": near, "none": None}
    given = {"space": "nasbench201", "str": SKIP}
    hints = NormalizationHints(lambda: images[:8], known, more=cut(images, labels))
    _, _, facts = checkpoint.load("m.pt", given, hints=hints)
    tie = facts["normalize_tie"]
    assert facts["normalize_name"] == "mine" and (tie["images"], tie["acc_images"]) == (64, 64)
    assert tie["acc"] == {"mine": pytest.approx(right, abs=1e-4), "near": 1.0}
    lines: list[str] = []
    recognition.say_tie("m.pt", facts, Run.of(tool="rb-attack", notify=lines.append))
    (line,) = lines
    assert "compared on 64 images (64 for the accuracy)" in line and "near (divergence" in line
    assert "clean accuracy 1.0000" in line and f"clean accuracy {tie['acc']['mine']:.4f}" in line
    assert "mine is taken, it fits best;" in line
    worse = {**facts, "normalize_tie": {**tie, "divergences": {"mine": 0.002, "near": 0.001}}}
    recognition.say_tie("m.pt", worse, Run.of(tool="rb-attack", notify=lines.append))
    assert "mine is taken, it is published most;" in lines[-1]
