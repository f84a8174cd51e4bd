"""Methods with the preset prbench-code against losses, gradients and statistics of wellzline/PRBenchmark."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rbtools.trainer import presets
from rbtools.training import METHODS
from rbtools.training.at_pr import ATPR
from rbtools.training.chen_lee import ChenLee

GOLDEN = json.loads(Path(__file__).with_name("prbench_code.json").read_text())
CASES = {case["name"]: case for case in GOLDEN["cases"]}
# In four of these rounding in float32 chooses among candidates of equal distance. Two are of a filter that
# the code calls nowhere: it decides after the whole attack in training mode, ours in the mode of the attack.
APART = {case["name"]: case for case in GOLDEN["apart"]}
WORD = np.uint64(0xFFFFFFFF)
METHOD = {"clean": "erm", "kl": "kl-pgd", "fgsm": "pgd"}
SCALARS = 500_000


def hashed(number):
    """A mixing function of 32-bit words, on uint64 arrays."""
    number = np.asarray(number, dtype=np.uint64) & WORD
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        number = (number ^ (number >> np.uint64(shift))) * np.uint64(factor) & WORD
    return number ^ (number >> np.uint64(16))


def uniform(stream, shape):
    """Numbers of (0, 1) in float64: of a stream always the same."""
    places = np.arange(math.prod(shape), dtype=np.uint64)
    words = hashed((hashed(7 + stream) + places) & WORD)
    return torch.from_numpy((words.astype(np.float64) + 0.5) / 2**32).view(*shape)


class Formula:
    """Draws of which the k-th call gives stream k; what is drawn once a batch has streams of its own."""

    def __init__(self):
        self.tensors = self.scalars = 0

    def child(self, name):
        return self

    def on_host(self):
        return self

    def take(self, index):
        assert index.tolist() == [0]  # a batch has the settings of its first image
        return self

    def uniform(self, shape, draw=0):
        if math.prod(shape) == 1:
            self.scalars += 1
            return uniform(SCALARS + self.scalars - 1, (1, *shape))
        self.tensors += 1
        return uniform(self.tensors - 1, (self.count, *shape))

    def normal(self, shape, draw=0):
        return torch.special.ndtri(self.uniform(shape))

    def integers(self, high):
        return (high * self.uniform(())).long()


def network(kind):
    layers = {"conv": nn.Conv2d(3, 4, 3, padding=1), "relu": nn.ReLU(), "bn": nn.BatchNorm2d(4)}
    if kind == "plain":
        del layers["bn"]
    net = nn.Sequential()
    for name, layer in {**layers, "pool": nn.AvgPool2d(2), "flat": nn.Flatten()}.items():
        net.add_module(name, layer)
    net.add_module("linear", nn.Linear(64, 10))
    net.double()
    state = net.state_dict()
    for one in GOLDEN["tensors"]:
        if one["name"] in state:
            filled = one["offset"] + one["scale"] * (2 * uniform(one["stream"], one["shape"]) - 1)
            state[one["name"]].copy_(filled)
    state["linear.bias"].copy_(torch.tensor(GOLDEN["linear.bias"][kind]))
    return net


def pixels(count):
    fine, coarse = uniform(2000, (40, 3, 8, 8)), uniform(2001, (40, 3, 2, 2))
    coarse = coarse.repeat_interleave(4, 2).repeat_interleave(4, 3)
    return (0.5 + 0.5 * (2 * coarse - 1) + 0.4 * (2 * fine - 1)).clamp(0, 1)[:count]


def method(case, **changes):
    """The method as the preset sets it, with what the case says of radius, steps and samples."""
    what = case["name"].partition("/")[2]
    name = METHOD.get(what) or next(one for one in sorted(METHODS, key=len, reverse=True) if one in what)
    given = case["arguments"]
    typed = {"attack_steps": 1, "step_size": 2 * given["epsilon"]} if what == "fgsm" else {}
    params = presets.params(presets.named("prbench-code"), METHODS.load(name), typed)
    renamed = {"eps": "epsilon", "attack_steps": "attack_steps", "step_size": "step_size", "samples": "M"}
    own = METHODS.load(name).__dataclass_fields__
    params |= {mine: given[theirs] for mine, theirs in renamed.items() if theirs in given and mine in own}
    if name == "corruption":
        params["noise"] = what.partition("-")[2]
    made = METHODS.build(name, **{**params, **changes})
    if "filter" in what:
        made = ChenLee(made, given.get("inefficient_counter", given["attack_steps"] - 1) + 1)
    return made


def made(case):
    """(network, images, labels, draws)"""
    kind, draws = case["name"].partition("/")[0], Formula()
    draws.count = case["images"]
    labels = torch.tensor(GOLDEN["labels"][kind][case["labels"]][: case["images"]])
    return network(kind), pixels(case["images"]), labels, draws


def gradients(net):
    return {name: value.grad.norm().item() for name, value in net.named_parameters()}


def test_the_formulas_are_those_of_the_numbers():
    assert uniform(1000, (4,)).tolist() == pytest.approx(GOLDEN["check"]["u_1000"], abs=1e-12)
    for kind, wanted in GOLDEN["check"]["eval_logits"].items():
        found = network(kind).eval()(pixels(2))
        assert torch.allclose(found, torch.tensor(wanted, dtype=torch.float64), atol=1e-5)


def trained_on(case, inner_result):
    """The images on which the loss is taken."""
    if "filter" in case["name"] or "at-pr" in case["name"]:
        return inner_result[0]
    points = inner_result[1] if "cvar" in case["name"] else inner_result
    return points[-1] if isinstance(points, list) else points


def check_trained(case, net, loss):
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], rel=1e-6)
    assert gradients(net) == pytest.approx(case["grad_l2"], rel=1e-5)


def check_statistics(case, net):
    """BatchNorm's are the case's, where it has them."""
    for key, wanted in case.get("bn_after", {}).items():
        assert getattr(net.bn, key).double().numpy().ravel() == pytest.approx(np.ravel(wanted), rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_images_loss_gradients_and_batchnorm_are_those_of_the_code(name):
    case = CASES[name]
    net, images, labels, draws = made(case)
    modes = []
    net.register_forward_hook(lambda module, *_: modes.append(module.training))
    chosen = method(case)
    inner_result = chosen.inner_attack(net, images, labels, draws)
    check_trained(case, net, chosen.loss(net, images, labels, inner_result).mean().value)
    check_statistics(case, net)
    again = "/at-pr" in name  # one pass more for the gradient that the code has left over
    assert (sum(modes) - again, len(modes) - sum(modes)) == (case["train_forwards"], case["eval_forwards"])
    if "discarded" in case:
        assert inner_result[1].tolist() == [not case["discarded"]] * len(images)
    if "t" in case:
        assert inner_result[0].tolist() == pytest.approx(case["t"], abs=1e-6)
    if "dot" in case and not case.get("discarded"):
        found = (trained_on(case, inner_result) * uniform(900, tuple(images.shape))).sum().item()
        assert found == pytest.approx(case["dot"], abs=2e-6)


def watched(monkeypatch):
    """Lists that take the candidates of AT-PR and the depths of their walks."""
    points, depths, walked = [], [], ATPR.walked

    def watch(self, model, candidate, labels, sizes):
        points.append(candidate.clone())
        walk = walked(self, model, candidate, labels, sizes)
        depths.append(walk.depth.clamp_min(0))
        return walk

    monkeypatch.setattr(ATPR, "walked", watch)
    return points, depths


@pytest.mark.parametrize("name", ["bn/at-pr-12-rounded", "plain/at-pr-hard-rounded"])
def test_the_candidates_and_walks_of_at_pr_are_those_of_the_code(name, monkeypatch):
    case, drawn, settings = CASES[name], [], ATPR.drawn
    points, depths = watched(monkeypatch)
    net, images, labels, draws = made(case)

    def watch_settings(self, *arguments):
        drawn.append(settings(self, *arguments))
        return drawn[-1]

    monkeypatch.setattr(ATPR, "drawn", watch_settings)
    chosen = method(case, walk_gradient="drop")
    inner_result = chosen.inner_attack(net, images, labels, draws)
    chosen.loss(net, images, labels, inner_result).mean().value.backward()
    assert gradients(net) == pytest.approx(case["grad_l2_of_loss_alone"], rel=1e-5)
    for found, wanted in zip(drawn, case["candidate_settings"], strict=True):
        assert [found.eps[0].item(), found.step_size[0].item(), int(found.steps[0])] == pytest.approx(wanted)
    for found, wanted in zip(depths, case["distance_in_steps"], strict=True):
        steps = (found * 255 / 2).round()
        assert steps.tolist() == [round(value) for value in wanted]
    for image, number in enumerate(case["selected"]):
        assert torch.equal(inner_result[image], points[number][image])


@pytest.mark.parametrize("name", [name for name in APART if "at-pr" in name])
def test_with_the_candidates_that_rounding_chose_at_pr_is_that_of_the_code(name, monkeypatch):
    case, (points, depths) = APART[name], watched(monkeypatch)
    net, images, labels, draws = made(case)
    chosen = method(case)
    _, last = chosen.inner_attack(net, images, labels, draws)
    distances = torch.stack(depths)
    for image, number in enumerate(case["selected"]):
        largest = distances[:, image].max()
        tied = [place for place, value in enumerate(distances[:, image]) if largest - value < 5e-5]
        assert tied == case["tied"][image] and number in tied
    taken = torch.stack([points[number][image] for image, number in enumerate(case["selected"])])
    assert (taken * uniform(900, tuple(taken.shape))).sum().item() == pytest.approx(case["dot"], rel=1e-7)
    check_trained(case, net, chosen.loss(net, images, labels, (taken, last)).mean().value)
    check_statistics(case, net)


@pytest.mark.parametrize("name", [name for name in APART if "filter" in name])
def test_a_filter_after_the_whole_attack_is_that_of_the_code_but_for_its_mode(name):
    case = APART[name]
    net, images, labels, draws = made(case)
    chosen = method(case)
    inner_result = chosen.inner_attack(net, images, labels, draws)
    assert inner_result[1].tolist() == [not case["discarded"]] * len(images)
    check_trained(case, net, chosen.loss(net, images, labels, inner_result).mean().value)
    if not case["discarded"]:
        check_statistics(case, net)


def test_the_step_of_fgsm_leaves_from_the_image_where_the_gradient_is_zero_too():
    """fgsm_loss: x + eps * sign g, clipped to the box, with g at the start; sign 0 leaves a pixel at x."""
    case = CASES["plain/fgsm"]
    net, images, labels, draws = made(case)
    net.conv.weight.data[:, 1] = 0  # nothing depends on the second channel
    eps = case["arguments"]["epsilon"]
    start = (images + eps * (2 * draws.uniform(tuple(images.shape[1:])) - 1)).clamp(0, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(net(start), labels), [start])
    assert (gradient[:, 1] == 0).all() and (gradient[:, 0] != 0).any()
    found = method(case).inner_attack(net, *made(case)[1:])
    assert torch.equal(found[:, 1], images[:, 1])
    assert torch.allclose(found, (images + eps * gradient.sign()).clamp(0, 1), atol=1e-7)
