"""Noise, PR and ProbAcc against wellzline/PRBenchmark, on the network of training/test_prbench_code.py."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from rbtools.probabilistic import NOISES, estimate, sequential
from rbtools.rng.draws import Draws
from rbtools.training.base import noisy
from tests.training.test_prbench_code import network, pixels, uniform

GOLDEN = json.loads(Path(__file__).with_name("prbench_code.json").read_text())
NETS = {one["net"]: one for one in GOLDEN["nets"]}
OURS = {"Uniform": "uniform", "Normal": "gaussian", "Laplace": "laplace", "normal": "gaussian"}
CASES = [(net, number) for net in NETS for number in range(3)]
SAMPLES = 100


def noise_of(name):
    """The evaluation noise of the code: uniform over the part of the ball in [0, 1], the others clipped."""
    return NOISES.build(name, **({"truncate": True} if name == "uniform" else {}))


def unit_draws(name, stream):
    """The code's draws for an image at radius 1, from the formula's numbers of (0, 1)."""
    u = uniform(stream, (SAMPLES, 3, 8, 8))
    if name == "uniform":
        return 2 * u - 1
    if name == "gaussian":
        return torch.special.ndtri(u).clamp(-1, 1)
    return torch.where(u < 0.5, (2 * u).log(), -(2 * (1 - u)).log()).clamp(-1, 1)


def examples(net, split):
    labels = torch.tensor(NETS[net][f"labels_{split}"])
    if split == "test":
        return pixels(40), labels
    fine, coarse = uniform(2010, (20, 3, 8, 8)), uniform(2011, (20, 3, 2, 2))
    coarse = coarse.repeat_interleave(4, 2).repeat_interleave(4, 3)
    images = (0.5 + 0.5 * (2 * coarse - 1) + 0.4 * (2 * fine - 1)).clamp(0, 1)
    return images, labels


def margin(logits, labels):
    own = logits.gather(1, labels[:, None])[:, 0]
    return own - logits.scatter(1, labels[:, None], -math.inf).amax(1)


@pytest.mark.parametrize(("net", "number"), CASES)
@pytest.mark.parametrize("split", ["test", "train"])
def test_as_many_copies_fail_as_in_the_code(net, number, split):
    case = NETS[net]["pr"][number]
    noise, model = noise_of(OURS[case["distribution"]]), network(net).eval()
    images, labels = examples(net, split)
    failures = []
    with torch.no_grad():
        assert (margin(model(images), labels) > 0).int().tolist() == NETS[net][f"correct_{split}"]
        for gamma in case["radii"]:
            failures.append([])
            for place, (image, label) in enumerate(zip(images, labels, strict=True)):
                unit = unit_draws(noise.name, place)
                copies = noise.apply(image.expand(SAMPLES, -1, -1, -1).clone(), unit, gamma)
                failures[-1].append(int((margin(model(copies), label.expand(SAMPLES)) <= 0).sum()))
    assert failures == case[f"failures_{split}"]


@pytest.mark.parametrize(("net", "number"), CASES)
@pytest.mark.parametrize(("group", "least"), [("clean_correct_only", 1), ("all_images_first20", 0)])
@pytest.mark.parametrize("split", ["test", "train"])
def test_pr_and_prob_acc_are_those_of_the_code(net, number, group, least, split):
    case = NETS[net]["pr"][number]
    right = NETS[net][f"correct_{split}"][: None if least else 20]
    for failed, published in zip(case[f"failures_{split}"], case[group][split][1], strict=True):
        correct = [SAMPLES - k for k, one in zip(failed, right, strict=False) if one >= least]
        assert len(correct) == published["Length"]
        assert 100 * estimate.pr_d(correct, SAMPLES).value == pytest.approx(published["Aug.Acc"], abs=0.0051)
        for rho in (0.2, 0.1, 0.05, 0.01):
            ours = 100 * estimate.prob_acc(correct, SAMPLES, rho, above=True).value
            assert ours == pytest.approx(published[f"Prob.Acc_{rho:g}"], abs=0.0051)


@pytest.mark.parametrize(("rho", "smallest"), GOLDEN["smallest_count_of_100"].items())
def test_the_smallest_count_that_passes_is_that_of_the_code(rho, smallest):
    assert SAMPLES - sequential.allowed(SAMPLES, float(Fraction(rho)), True) == smallest


@pytest.mark.parametrize(
    "one", GOLDEN["noise"], ids=lambda one: f"{one['kind']}-{one['pixel']}-{one['gamma']}"
)
def test_noise_has_the_moments_of_the_code(one):
    use, _, kind = one["kind"].partition("-")
    name, gamma = OURS.get(kind, kind), one["gamma"]
    images = torch.full((400, 1, 16, 16), one["pixel"])
    draws = Draws(0, "test", torch.arange(len(images)))
    if use == "train":
        values = noisy(images, draws, name, gamma, "noise", "unit")
    else:
        noise = noise_of(name)
        values = noise.apply(images.clone(), noise.unit(draws, (1, 16, 16), 0), gamma)
    count, values = values.numel(), values.double()
    low, high = max(one["pixel"] - gamma, 0), min(one["pixel"] + gamma, 1)
    shares = {"at_low": values <= low + 1e-6, "at_high": values >= high - 1e-6}
    assert float(values.mean()) == pytest.approx(one["mean"], abs=5 * one["std"] / math.sqrt(count))
    assert float(values.std()) == pytest.approx(one["std"], rel=0.02)
    for side, there in shares.items():
        error = math.sqrt(one[side] * (1 - one[side]) / count)
        assert float(there.double().mean()) == pytest.approx(one[side], abs=5 * error + 3e-4)
