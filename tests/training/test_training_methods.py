"""Each training method against straight-line float64 formulas: inner problem, loss, gradient, BatchNorm."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools import registry
from rbtools.errors import RbError
from rbtools.rng.draws import Draws
from rbtools.trainer import regularize
from rbtools.trainer.recipe import Recipe, check_method
from rbtools.trainer.state import allocate_carried
from rbtools.training import METHODS
from rbtools.training.base import Method, divergence
from tests.networks import images_for

EPS, STEP = 0.1, 0.03
INNER = {"eps": EPS, "step_size": STEP, "attack_steps": 4}


def network():
    """A network with BatchNorm whose running statistics differ from any batch's."""
    torch.manual_seed(0)
    head = [nn.Softplus(), nn.Flatten(), nn.Linear(4 * 16, 3)]
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), *head).double()
    net[1].running_mean.uniform_(-0.3, 0.3)
    net[1].running_var.uniform_(0.5, 2)
    return net.train()


def batch(count=6):
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(count, 2, 4, 4, generator=generator, dtype=torch.float64)
    return images, torch.arange(count) % 3, Draws(3, "test", torch.arange(count))


ATTACKING = ("pgd", "trades", "mart", "alp", "clp", "kl-pgd", "mixed")
SMALL = {
    **dict.fromkeys(ATTACKING, INNER),
    "corruption": {"eps": EPS},
    "erm-dataaug": {"eps": EPS, "samples": 4},
    "cvar": {"eps": EPS, "samples": 4, "rounds": 3},
    "evar": {"eps": EPS, "samples": 4},
    "at-pr": {"eps": EPS, "candidates": 2, "steps_min": 1, "steps_max": 3, "walk_steps": 2},
}


def build(name, **params):
    return METHODS.build(name, **{**SMALL.get(name, {}), **params})


def log_p(logits):
    return logits - logits.exp().sum(1, keepdim=True).log()


def ce(logits, labels):
    return -log_p(logits)[range(len(labels)), labels].mean()


def kl(clean, other):
    """KL(p(clean) || p(other)): the sum over classes, the mean over the batch, written out."""
    return (log_p(clean).exp() * (log_p(clean) - log_p(other))).sum() / len(clean)


def inner_loop(net, images, start, objective):
    """x' <- clip[0,1](clip(x' + a sign g, x - eps, x + eps)), written out."""
    point = start
    for _ in range(INNER["attack_steps"]):
        point = point.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(objective(net(point)), point)
        point = point.detach() + STEP * gradient.sign()
        point = torch.minimum(torch.maximum(point, images - EPS), images + EPS).clamp(0, 1)
    return point


KL_INNER, NOISE_START = ("trades", "kl-pgd"), ("trades", "kl-pgd", "mart")


def expected_inner(name, net, images, labels, draws):
    frozen = copy.deepcopy(net).eval()
    start = (images + EPS * (2 * draws.uniform((2, 4, 4)).double() - 1)).clamp(0, 1)
    if name in NOISE_START:
        start = images + 0.001 * draws.normal((2, 4, 4)).double()
    clean = frozen(images).detach()
    if name in KL_INNER:
        return inner_loop(frozen, images, start, lambda logits: kl(clean, logits))
    return inner_loop(frozen, images, start, lambda logits: ce(logits, labels))


@pytest.mark.parametrize(("k", "alpha"), [(2, 1), (0.5, 1.25), (0, 1)])
def test_n_fgsm_is_one_step_from_noise_without_a_projection(k, alpha):
    net, (images, labels, draws) = network(), batch()
    noise = draws.child("noise").uniform((2, 4, 4)).double() * 2 - 1
    start = (images + k * EPS * noise).clamp(0, 1).requires_grad_(True)
    ce(copy.deepcopy(net).eval()(start), labels).backward()
    expected = (start.detach() + alpha * EPS * start.grad.sign()).clamp(0, 1)
    method = METHODS.build("n-fgsm", eps=EPS, k=k, alpha=alpha)
    perturbed = method.inner_attack(net, images, labels, draws)
    assert torch.allclose(perturbed, expected, atol=1e-6)
    assert bool((perturbed - images).abs().max() > EPS + 1e-6) is (k > 0)
    found = method.loss(net, images, labels, perturbed).values.mean()
    assert torch.allclose(found, ce(net(perturbed), labels))


def expected_loss(name, net, images, perturbed, labels, params):
    """Each paper's loss, a mean over the batch; MART's example by example and class by class."""
    if name == "erm":
        return ce(net(images), labels)
    if name in ("pgd", "kl-pgd"):
        return ce(net(perturbed), labels)
    clean, other = net(images), net(perturbed)
    if name == "trades":
        return ce(clean, labels) + params.get("lambda", 6.0) * kl(clean, other)
    if name == "mixed":
        beta = params.get("beta", 0.5)
        return (1 - beta) * ce(clean, labels) + beta * ce(other, labels)
    p, q = log_p(clean).exp(), log_p(other).exp()
    if name in ("alp", "clp"):
        pair = (p, q) if params.get("pair", "softmax") == "softmax" else (clean, other)
        squares = ((pair[1] - pair[0]) ** 2).sum(1)
        distance = (squares if params.get("distance", "squared") == "squared" else squares.sqrt()).mean()
        return ce(other if name == "alp" else clean, labels) + params.get("lambda", 1.0) * distance
    total = 0.0
    for i, y in enumerate(labels.tolist()):
        first = -q[i, y].log()
        if params.get("bce", "bce") == "bce":
            first = first - (1.0001 - max(q[i, k] for k in range(3) if k != y) + 1e-12).log()
        apart = sum(p[i, k] * (p[i, k].log() - (q[i, k] + 1e-12).log()) for k in range(3))
        total = total + first + params.get("lambda", 5.0) * (1.0000001 - p[i, y]) * apart
    return total / len(labels)


CASES = [
    *((name, {}) for name in ("erm", *ATTACKING)),
    ("trades", {"lambda": 0.5}),
    ("mart", {"bce": "ce", "lambda": 2.0}),
    *((name, {"pair": "logits", "lambda": 0.3}) for name in ("alp", "clp")),
    ("alp", {"pair": "logits", "lambda": 0.3, "distance": "l2"}),
    ("clp", {"distance": "l2", "extra_pass": True}),
    ("mixed", {"beta": 0.2}),
]


@pytest.mark.parametrize(("name", "params"), CASES)
def test_value_and_gradient_are_those_of_the_formula(name, params):
    net, (images, labels, draws) = network(), batch()
    perturbed = None if name == "erm" else expected_inner(name, net, images, labels, draws)
    loss = build(name, **params)(net, images, labels, draws)
    loss.value.backward()
    other = network()
    expected = expected_loss(name, other, images, perturbed, labels, params)
    expected.backward()
    assert loss.value.item() == pytest.approx(expected.item(), rel=1e-10)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-10)
    # What the history's accuracies are made of.
    assert loss.clean_logits is None or torch.allclose(loss.clean_logits, network()(images))
    assert loss.adversarial_logits is None or torch.allclose(loss.adversarial_logits, network()(perturbed))


def test_divergence_has_the_closed_form_gradient_on_both_sides():
    torch.manual_seed(0)
    clean, other = (3 * torch.randn(5, 4, dtype=torch.float64) for _ in range(2))
    clean.requires_grad_(True), other.requires_grad_(True)
    each = divergence(clean, other)
    p, q = torch.softmax(clean.detach(), 1), torch.softmax(other.detach(), 1)
    ratio = p.log() - q.log()
    expected = (p * ratio).sum(1)
    assert torch.allclose(each, expected, rtol=1e-12)
    each.sum().backward()
    assert torch.allclose(other.grad, q - p, atol=1e-12)
    assert torch.allclose(clean.grad, p * (ratio - expected[:, None]), atol=1e-12)
    half = divergence(torch.randn(2, 3).bfloat16(), torch.randn(2, 3).bfloat16())
    assert half.dtype == torch.float32
    clean = torch.tensor([[300.0, 0.0, -300.0]], requires_grad=True)  # probabilities underflow
    other = torch.tensor([[-300.0, 300.0, 0.0]], requires_grad=True)
    each = divergence(clean, other)
    each.sum().backward()
    assert each.item() == pytest.approx(600.0) and torch.isfinite(clean.grad).all()
    assert torch.allclose(other.grad, torch.tensor([[-1.0, 1.0, 0.0]]))


@pytest.mark.parametrize(
    ("name", "params", "order"),
    [
        *((name, {}, order) for name, order in {"erm": "x", "pgd": "a", "mart": "xa", "alp": "xa"}.items()),
        *(("trades", {}, "xax"), ("trades", {"extra_pass": False}, "xa")),
        ("alp", {"extra_pass": True}, "aax"),
        ("clp", {"extra_pass": True}, "xax"),
    ],
)
def test_batchnorm_sees_the_passes_of_the_reference_in_their_order(name, params, order):
    net, (images, labels, draws) = network(), batch()
    other = copy.deepcopy(net)
    method = build(name, **params)
    perturbed = None if name == "erm" else method.perturb(net, images, labels, draws)
    method(net, images, labels, draws)
    for which in order:
        other(images if which == "x" else perturbed)
    for mine, theirs in zip(net.buffers(), other.buffers(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)


PASSES = {
    **dict.fromkeys(("erm", "sam", "corruption"), (1, 1)),
    **{"pgd": (5, 5), "kl-pgd": (6, 5), "trades": (8, 6), "n-fgsm": (2, 2), "fgsm-pgi": (3, 3)},
    **dict.fromkeys(("mart", "alp", "clp", "mixed"), (6, 6)),
    **{"erm-dataaug": (4, 4), "evar": (4, 4), "cvar": (12, 4)},
}


@pytest.mark.parametrize(
    ("name", "params", "passes"),
    [
        *((name, {}, PASSES[name]) for name in METHODS if name != "at-pr"),
        *((name, {"inner_mode": "train"}, PASSES[name]) for name in ATTACKING),
        ("cvar", {"tail": "prl"}, (12, 4)),
        ("cvar", {"tail": "exact"}, (4, 4)),
        *((name, {"extra_pass": True}, (7, 6)) for name in ("alp", "clp")),
        ("trades", {"extra_pass": False}, (7, 6)),
        ("mixed", {"beta": 0.0}, (1, 1)),
        ("mixed", {"beta": 1.0}, (5, 5)),
    ],
)
def test_a_step_takes_its_passes(name, params, passes):
    net, (images, labels, draws) = network(), batch()
    forward, backward = [], []

    def count(module, inputs, output):
        forward.append(len(output))
        if output.requires_grad:
            output.register_hook(lambda g: backward.append(len(g)))

    net.register_forward_hook(count)
    build(name, **params)(net, images, labels, draws).value.backward()
    assert (sum(forward) / len(images), sum(backward) / len(images)) == passes


@pytest.mark.parametrize("name", ["pgd", "trades", "corruption", "at-pr"])
def test_result_belongs_to_the_draws(name):
    net, (images, labels, draws) = network(), batch()
    method = build(name)
    once, again = (method.inner_attack(net, images, labels, draws) for _ in range(2))
    other = method.inner_attack(net, images, labels, Draws(4, "test", torch.arange(6)))
    assert torch.equal(once, again) and not torch.equal(once, other)
    order = torch.tensor([4, 1, 0])
    part = method.inner_attack(net, images[order], labels[order], draws.take(order))
    assert torch.allclose(part, once[order], atol=1e-9)


def test_the_default_step_reaches_the_border_of_the_ball():
    steps = {
        (eps, count): METHODS.build("pgd", eps=eps / 255, attack_steps=count).step_size * 255
        for eps, count in ((8, 10), (20, 10), (32, 10), (32, 16), (8, 2), (0, 1))
    }
    assert steps == pytest.approx({(8, 10): 2, (20, 10): 2, (32, 10): 8, (32, 16): 2, (8, 2): 10, (0, 1): 2})
    assert METHODS.build("trades", eps=32 / 255, step_size=2 / 255).step_size == 2 / 255


def test_settings_that_came_later_leave_the_keys_of_former_results_alone():
    """The default fields of methods in store keys: a changed default needs a new version."""
    inner = {"eps": 8 / 255, "step_size": 2 / 255, "attack_steps": 10, "inner_mode": "eval"}
    pair = {**inner, "lambda": 1.0, "pair": "softmax"}
    ranges = {"step_min": 1 / 255, "step_max": 4 / 255, "steps_min": 5, "steps_max": 15}
    for name, wanted in (
        ("trades", {**inner, "lambda": 6.0}),
        *(("alp", pair), ("clp", pair), ("corruption", {"eps": 8 / 255, "noise": "uniform"})),
        ("at-pr", {"eps": 8 / 255, "candidates": 5, **ranges, "walk": "sign", "walk_steps": 10}),
    ):
        method = METHODS.build(name)
        assert (method.version, registry.config(method)) == (1, wanted)
    # CVaR's numbers are others.
    assert METHODS.build("cvar").version == 2
    assert registry.config(METHODS.build("alp", distance="l2")) == {**pair, "distance": "l2"}
    assert registry.config(METHODS.build("trades", extra_pass=False))["extra_pass"] is False


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("trades", {"lambda": -1.0}, r"lambda of training method 'trades' is -1. It must be 0 or more"),
        ("cvar", {"beta": 1.5}, r"beta of training method 'cvar' is 1.5. Expected 0 < beta <= 1"),
        ("at-pr", {"steps_min": 9, "steps_max": 3}, r"steps_min of .* is 9, but steps_max is 3\."),
        ("at-pr", {"eps": 0.05, "eps_spread": 0.1}, r"eps_spread of .* is 25.5/255, but eps is 12.75/255"),
    ],
)
def test_what_no_method_can_do_is_said(name, given, message):
    with pytest.raises(RbError, match=message):
        METHODS.build(name, **given)


RHO = 0.3
ONE_STEP = {"batch_size": 12, "epochs": 1, "schedule": "constant", "momentum": 0.0, "augment": (), "val": 0.0}


@pytest.mark.parametrize("ascent", [regularize.SAMAscent(RHO), regularize.AWPAscent(RHO)])
def test_the_ascent_on_a_quadratic_is_the_closed_form(ascent) -> None:
    """Of w'Aw / 2 + b'v: gradients A w and b. SAM moves w and v together by rho along (A w, b); AWP moves w,
    which is a matrix, by the share rho of its length, along A w.
    """
    slope, curve = torch.tensor([3.0, -4.0]).double(), torch.diag(torch.tensor([1.0, 2.0, 5.0])).double()
    net = nn.ParameterDict({"w": torch.ones(3, 1).double(), "v": torch.zeros(2).double()})

    def loss() -> Tensor:
        return (net["w"].T @ curve @ net["w"]).sum() / 2 + slope @ net["v"]

    gradient = torch.tensor([1.0, 2.0, 5.0]).double()
    together = RHO / (gradient.square().sum() + 25).sqrt()
    sam = isinstance(ascent, regularize.SAMAscent)
    moved = gradient * (together if sam else RHO * 3**0.5 / gradient.norm())
    with regularize.perturbed_weights(net, loss, ascent):
        assert torch.allclose(net["w"][:, 0], 1 + moved)
        assert torch.allclose(net["v"], together * slope if sam else 0 * slope)
        loss().backward()
    assert torch.allclose(net["w"], torch.ones(3, 1).double()) and torch.equal(net["v"], torch.zeros(2))
    assert torch.allclose(net["w"].grad[:, 0], curve @ (1 + moved))


def start() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A softmax regression, images and labels."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 3)), images_for(12), torch.arange(12) % 3


def softmax_gradient(weight: Tensor, bias: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of the mean cross-entropy: the mean of (p - y) x', and that of p - y."""
    x = images.flatten(1).double()
    error = (x @ weight.T + bias).softmax(1) - nn.functional.one_hot(labels, len(bias))
    return error.T @ x / len(x), error.mean(0)


def test_a_training_step_is_that_of_a_softmax_regression_written_out() -> None:
    net, images, labels = start()
    weight, bias = (value.detach().double() for value in net.parameters())
    first = softmax_gradient(weight, bias, images, labels)
    length = (first[0].square().sum() + first[1].square().sum()).sqrt()
    moved = [value + RHO * g / length for value, g in zip((weight, bias), first, strict=True)]
    there = softmax_gradient(*moved, images, labels)
    # The weight decay is that of the weights before the perturbation.
    wanted = [v - 0.5 * (g + 0.1 * v) for v, g in zip((weight, bias), there, strict=True)]
    done = rbtools.fit(net, (images, labels), "sam", rho=RHO, lr=0.5, weight_decay=0.1, **ONE_STEP)
    for value, by_hand in zip(net.parameters(), wanted, strict=True):
        assert torch.allclose(value.double(), by_hand, atol=1e-6)
    assert done.passes == {"forward": 2.0, "backward": 2.0}
    logits = images.flatten(1).double() @ moved[0].T + moved[1]
    loss = float(nn.functional.cross_entropy(logits, labels))
    assert done.history["loss"][0] == pytest.approx(loss, rel=1e-5)


def test_sam_refuses_pieces_of_a_batch_and_another_perturbation() -> None:
    for recipe, named in ((Recipe(regularize=("awp",)), "awp"), (Recipe(micro_batch=4), "micro")):
        with pytest.raises(RbError, match=f"--method sam perturbs .* combined with .*{named}"):
            check_method(recipe, METHODS.build("sam"))


@pytest.mark.parametrize("inner_mode", ["eval", "train"])
def test_frozen_batchnorm_stays_frozen_also_after_an_error(inner_mode):
    net, (images, labels, draws) = network(), batch()
    net[1].eval()
    method = build("trades", inner_mode=inner_mode)
    method(net, images, labels, draws)
    assert not net[1].training and net[0].training and net.training
    with pytest.raises(RuntimeError):
        method(net, images[:, :1], labels, draws)  # one channel where the network takes two
    assert not net[1].training and net[0].training and net.training


@pytest.mark.parametrize("name", "pgd trades mart clp mixed corruption cvar evar at-pr".split())
def test_a_distribution_that_is_sure_is_a_label(name):
    """Label smoothing and mixup hand over distributions: (N, K) instead of (N,)."""
    images, labels, draws = batch()
    sure = torch.eye(3, dtype=torch.float64)[labels]
    plain, other = (build(name)(network(), images, target, draws).value for target in (labels, sure))
    assert other.item() == pytest.approx(plain.item(), rel=1e-9)


def test_statistics_of_batchnorm_are_those_of_the_first_pass() -> None:
    _, images, labels = start()
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    once = copy.deepcopy(net).train()
    once(images)
    rbtools.fit(net, (images, labels), "sam", rho=5.0, lr=0.5, **ONE_STEP)
    for (name, mine), theirs in zip(net.named_buffers(), once.buffers(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6), name


ALPHA, DECAY, COUNT = 0.75, 0.3, 6
SHAPE = (2, 4, 4)


def carrying(**options: Any) -> tuple[Method[Any], dict[str, Tensor]]:
    method = METHODS.build("fgsm-pgi", **{"eps": EPS, "alpha": ALPHA, "prior_decay": DECAY, **options})
    state = {name: torch.zeros(COUNT, *SHAPE, dtype=torch.float64) for name in method.carried}
    return method.carrying(state), state


def attacked(method: Method[Any], net: nn.Module, epoch: int, ids: Tensor | None = None) -> Any:
    """The result of the inner attack in that epoch, on these examples or on all."""
    ids = torch.arange(COUNT) if ids is None else ids
    images, labels = (values[ids] for values in batch()[:2])
    return method.inner_attack(net, images, labels, Draws(3, "test", ids, offset=epoch))


def random_start(epoch: int) -> Tensor:
    numbers = Draws(3, "test", torch.arange(COUNT), offset=epoch).child("prior").uniform(SHAPE)
    return EPS * (2 * numbers.double() - 1).sign()


def onto_ball(points: Tensor, images: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(points, images - EPS), images + EPS).clamp(0, 1)


def written_out(net: nn.Module, epochs: int, reset: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(x + eta, x', the next eta) of each epoch, example by example."""
    frozen, (images, labels) = copy.deepcopy(net).eval(), batch()[:2]
    eta, momentum, found = torch.empty(0), torch.zeros_like(images), []
    for epoch in range(epochs):
        if epoch % reset == 0:
            eta, momentum = random_start(epoch), torch.zeros_like(images)
        start = (images + eta).requires_grad_(True)
        nn.functional.cross_entropy(frozen(start), labels, reduction="sum").backward()
        for i, gradient in enumerate(start.grad):
            momentum[i] = gradient / gradient.abs().mean() + DECAY * momentum[i]
        start = start.detach()
        own = onto_ball(start + ALPHA * EPS * frozen_sign(net, start, labels), images)
        eta = onto_ball(start + ALPHA * EPS * momentum.sign(), images) - images
        found.append((start, own, eta))
    return found


def frozen_sign(net: nn.Module, points: Tensor, labels: Tensor) -> Tensor:
    points = points.clone().requires_grad_(True)
    values = nn.functional.cross_entropy(copy.deepcopy(net).eval()(points), labels, reduction="sum")
    return torch.autograd.grad(values, points)[0].sign()


@pytest.mark.parametrize("reset", [2, 40])
def test_steps_of_fgsm_pgi_over_epochs_are_the_written_out_ones(reset: int) -> None:
    net = network()
    method, state = carrying(reset=reset)
    for epoch, (start, end, eta) in enumerate(written_out(net, 5, reset)):
        step = attacked(method, net, epoch)
        torch.testing.assert_close(step.start, start)
        torch.testing.assert_close(step.perturbed, end)
        torch.testing.assert_close(state["delta"], eta)
        assert (step.perturbed - batch()[0]).abs().max() <= EPS + 1e-12
    assert net[1].num_batches_tracked == 0 and all(value.grad is None for value in net.parameters())


def test_what_fgsm_pgi_keeps_belongs_to_the_example() -> None:
    net = network()
    together, whole = carrying()
    apart, parts = carrying()
    for epoch in range(3):
        attacked(together, net, epoch)
        for ids in (torch.tensor([4, 1]), torch.tensor([0, 5, 3, 2])):
            attacked(apart, net, epoch, ids)
    for name, values in whole.items():
        torch.testing.assert_close(parts[name], values)


@pytest.mark.parametrize("weight", [0.0, 10.0])
def test_loss_and_gradient_of_fgsm_pgi_are_those_of_the_formula(weight: float) -> None:
    net, (images, labels, draws) = network(), batch()
    other = copy.deepcopy(net)
    method = METHODS.build("fgsm-pgi", eps=EPS, lambda_=weight)
    loss = method(net, images, labels, draws)
    loss.value.backward()
    start = images + random_start(0)
    end = onto_ball(start + EPS * frozen_sign(other, start, labels), images)
    logits = [other(start), other(end)] if weight else [other(end)]
    expected = nn.functional.cross_entropy(logits[-1], labels)
    if weight:
        expected = expected + weight * nn.functional.mse_loss(logits[1], logits[0])
    expected.backward()
    torch.testing.assert_close(loss.value, expected)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(net[1].running_var, other[1].running_var)


def test_rounding_to_float16_stays_in_the_ball() -> None:
    net, method = network(), METHODS.build("fgsm-pgi", eps=0.3)
    state = allocate_carried(method, COUNT, SHAPE, torch.device("cpu"))
    assert {values.dtype for values in state.values()} == {torch.float16}
    kept = method.carrying(state)
    attacked(kept, net, 0)
    following = attacked(kept, net, 1)
    assert state["delta"].double().abs().max() > 0.3
    assert (following.start - batch()[0]).abs().max() <= 0.3 + 1e-12
