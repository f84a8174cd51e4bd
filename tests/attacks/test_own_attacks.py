"""Properties of all attacks of rbtools: closed forms, budgets, unusual models, independence of the batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rbtools.attacks import ATTACKS, losses, square
from rbtools.attacks.aa import AutoAttack
from rbtools.attacks.active_examples import AttackBatch
from rbtools.attacks.curve import CurveAttack
from rbtools.attacks.oracle import Oracle
from rbtools.errors import RbError
from rbtools.evaluation import diagnostics
from rbtools.threats.ball import Ball
from tests.networks import InFloat64, draws_for, images_for

ORDER = {"linf": torch.inf, "l2": 2, "l1": 1}
SHORT = {
    **{name: {"steps": 5} for name in ("pgd", "cw", "mi-fgsm")},
    "cw-l2": {"steps": 20, "searches": 3},
    **{name: {"steps": 8} for name in ("apgd-ce", "apgd-dlr")},
    "apgd-t": {"steps": 6, "targets": 2},
    "fab": {"steps": 4},
    "fab-t": {"steps": 4, "targets": 2},
    "fmn": {"steps": 20},
    "ddn": {"steps": 60},
    "square": {"queries": 20},
    **{name: {"queries": 150} for name in ("hopskipjump", "rays", "boundary")} | {"surfree": {"queries": 90}},
    "spsa": {"queries": 150, "samples": 10},
    "noise": {"samples": 10},
    "aa": {"attacks": "fgsm,pgd,noise"},
}
OPTIONS = {
    "fgsm": [{}],
    "pgd": [
        {},
        {"norm": "l2", "restarts": 3},
        {"iterate": "last", "start": "zero"},
        {"target": "least-likely", "restarts": 2, "iterate": "last"},
        {"target": "1", "norm": "l2", "decay": "cosine"},
    ],
    "cw": [{}, {"norm": "l2", "iterate": "last"}, {"target": "2", "relative_step": 0.2, "decay": "linear"}],
    "mi-fgsm": [{}, {"norm": "l2", "diversity": 0.7, "kernel": 3}],
    "cw-l2": [{}],
    "fmn": [{}, {"norm": "l2"}, {"norm": "l1"}],
    "ddn": [{}],
    "apgd-ce": [{}, {"norm": "l2", "restarts": 2, "eot": 2}, {"norm": "l1", "restarts": 2, "eot": 2}],
    "apgd-dlr": [{}, {"norm": "l1"}],
    "apgd-t": [{}, {"norm": "l2", "restarts": 2}, {"norm": "l1"}],
    "fab": [{"restarts": 2}, {"norm": "l2"}, {"norm": "l1", "restarts": 2}],
    "fab-t": [{}, {"norm": "l2", "restarts": 2}, {"norm": "l1"}],
    "square": [{}, {"norm": "l2", "restarts": 2}, {"norm": "l1", "restarts": 2}],
    "hopskipjump": [{}, {"norm": "l2"}],
    **{name: [{}] for name in ("rays", "surfree", "boundary")},
    "spsa": [{}, {"norm": "l2"}],
    "noise": [{}, {"norm": "l2"}],
    "aa": [{}, {"norm": "l2", "attacks": "pgd,noise"}, {"norm": "l1", "attacks": "apgd-ce,square"}],
}
ALL = [(name, params) for name, options in OPTIONS.items() for params in options]
WITHOUT = {name for name in OPTIONS if not ATTACKS.load(name).uses_gradients} | {"aa"}
BY_GRADIENT = [pair for pair in ALL if pair[0] not in WITHOUT]


class ShortAutoAttack(AutoAttack):
    """AutoAttack whose parts are as short as alone: with their defaults a test takes a minute."""

    @property
    def plan(self):
        return [(name, SHORT.get(name, {})) for name, _ in super().plan]


def build(name, eps, **params):
    if name == "aa":
        return ShortAutoAttack(eps=eps, **{**SHORT["aa"], **params})
    return ATTACKS.build(name, eps=eps, **{**SHORT.get(name, {}), **params})


class Linear:
    """Templates with a bias that leaves every class a chance; its worst case can be written down."""

    def __init__(self, classes, size=108, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(classes, size, generator=generator)

    def __call__(self, images):
        return images.flatten(1) @ self.weight.to(images.dtype).T


def curved(seed=0, classes=4):
    """A small network, computed in float64 so that the batch cannot show through rounding."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, classes)
    )
    return InFloat64(net).eval()


def test_every_attack_is_among_them():
    assert {name for name, _ in ALL} == {name for name, cls in ATTACKS.loaded() if cls.within is Ball}


@pytest.mark.parametrize(("name", "params"), ALL)
@settings(max_examples=3, deadline=None)
@given(
    eps=st.floats(0.001, 1.0),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-3, 1.0, 50.0]),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
def test_never_leaves_ball_or_box(name, params, eps, seed, scale, layout):
    images = images_for(4, seed=seed % 97).round(decimals=1)  # some pixels lie on the border of the box
    images = images.to(memory_format=layout)
    model = Linear(5, seed=seed % 7)
    labels = model(images).argmax(1)
    labels[0] = (labels[0] + 1) % 5  # one is wrong without an attack
    before = images.clone()
    attack = build(name, eps, **params)
    perturbed = attack(lambda x: scale * model(x), images, labels, draws_for(4, seed))
    assert torch.equal(images, before), "the attack wrote into its input"
    assert perturbed.shape == images.shape and perturbed.dtype == torch.float32
    assert perturbed.min() >= 0 and perturbed.max() <= 1
    delta = (perturbed.double() - images.double()).flatten(1)
    # Each pixel is rounded to float32, which L1 adds up.
    assert (delta.norm(dim=1, p=ORDER[attack.norm]) <= eps + 3e-6).all()


@pytest.mark.parametrize(("name", "params"), ALL)
def test_result_does_not_depend_on_batch_or_order(name, params):
    model, images = curved(), images_for(13)
    labels = model(images).argmax(1)
    eps = 0.02 if ATTACKS.build(name, **params).norm == "linf" else 0.12
    attack, draws = build(name, eps, **params), draws_for(13)
    whole = attack(model, images, labels, draws)
    broken = model(whole).argmax(1) != labels
    if name not in ("square", "noise"):
        assert 0 < broken.sum() < 13  # some leave the batch early and some stay
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))
    for index in order.split([1, 1, 4, 7]):
        part = attack(model, images[index], labels[index], draws.take(index))
        torch.testing.assert_close(part, whole[index], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "params"), ALL)
def test_no_image_one_and_all_wrong_and_no_distance(name, params):
    model = curved()
    for count in (0, 1, 2):
        images = images_for(count)
        right = model(images_for(2)).argmax(1)[:count]
        for labels in (right, (right + 1) % 4):
            perturbed = build(name, 0.01, **params)(model, images, labels, draws_for(count))
            assert perturbed.shape == images.shape
    assert torch.equal(build(name, 0.0, **params)(model, images, right, draws_for(2)), images)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(("name", "params"), ALL)
def test_against_a_constant_model_points_stay_in_the_ball_and_the_box(name, params, flat):
    bias = torch.zeros(5) if flat else torch.arange(5).float().flip(0)
    images, labels = images_for(6), torch.tensor([0, 0, 1, 2, 3, 4])
    attack = build(name, 0.1, **params)
    perturbed = attack(lambda x: bias.expand(len(x), -1), images, labels, draws_for(6))
    assert (perturbed - images).flatten(1).norm(dim=1, p=ORDER[attack.norm]).max() <= 0.1 + 1e-5
    assert perturbed.min() >= 0 and perturbed.max() <= 1


@pytest.mark.parametrize(
    "model",
    [
        lambda images: Linear(4)(images.detach()),
        lambda images: torch.from_numpy(images.numpy()).flatten(1)[:, :5],
    ],
    ids=["detached", "numpy"],
)
@pytest.mark.parametrize(("name", "params"), BY_GRADIENT)
def test_model_without_gradient_is_told_from_a_constant_one(name, params, model):
    images = images_for(3)
    labels = model(images).argmax(1)
    with pytest.raises(RbError, match="Use attacks that need only outputs"):
        build(name, 0.1, **params)(model, images, labels, draws_for(3))


BY_NORM = {
    norm: [
        ("apgd-ce", {"steps": 100, "restarts": 2}),
        ("apgd-t", {"steps": 50, "targets": 3}),
        ("apgd-dlr", {"steps": 100, "restarts": 3}),
        ("fab-t", {"steps": 60, "targets": 3}),
        ("fab", {"steps": 60}),
        ("pgd", {"steps": 60, "restarts": 2}),
        ("cw", {"steps": 60, "restarts": 2}),
        ("aa", {"attacks": "apgd-ce,apgd-t,fab-t"}),
    ]
    for norm in ("linf", "l2")
}
BY_NORM["l1"] = [
    ("apgd-ce", {"restarts": 2}),
    ("apgd-t", {"steps": 50}),
    *((name, {"steps": 60}) for name in ("fab", "fab-t")),
    ("aa", {"attacks": "apgd-ce,apgd-t,fab-t"}),
]


@pytest.mark.parametrize(
    ("name", "params", "norm"), [(*one, norm) for norm, some in BY_NORM.items() for one in some]
)
def test_verdicts_are_those_of_a_linear_model_in_closed_form(name, params, norm):
    model, images, eps = Linear(4), images_for(60), {"linf": 0.1, "l2": 0.05, "l1": 2.0}[norm]
    if norm == "l2":  # where the box does not interfere
        images = 0.4 + 0.2 * images
        model.weight -= model.weight.mean(1, keepdim=True)  # so that the images' mean decides nothing
    labels = model(images).argmax(1)
    if norm == "linf":  # in the box
        slope = (model.weight[labels][:, None] - model.weight[None]).double()  # (N, K, d)
        flat = images.flatten(1).double()[:, None]
        worst = (slope * (flat - eps * slope.sign()).clamp(0, 1)).sum(2)
        worst = worst.scatter(1, labels[:, None], torch.inf).amin(1)
        clear = worst.abs() > 0.02 * eps * slope.abs().sum(2).amax(1)
    else:  # uniform pixels: in L1 the steepest of them reach their walls long before the boundary
        worst = nearest_of_linear(model, images, labels, norm) - eps
        clear = worst.abs() > 0.02 * eps
    robust = worst > 0
    assert 10 < robust.sum() < 50 and clear.float().mean() > 0.8
    perturbed = build(name, eps, norm=norm, **params)(model, images, labels, draws_for(60))
    still = model(perturbed).argmax(1) == labels
    assert still[robust].all()
    missed = (still != robust)[clear]
    # CE and DLR without a target are blind to the best class at times; the others miss nothing.
    assert missed.sum() <= (4 if name in ("apgd-ce", "apgd-dlr", "pgd", "cw") else 0)


class Coarse(Oracle):
    """An inexact fast model: it misclassifies points long before the exact model does."""

    def __init__(self, model):
        super().__init__(lambda images: model(images) - 0.4 * torch.eye(1, 4), decides=model)
        self.asked = 0

    def verdict(self, points, labels):
        self.asked += len(points)
        return super().verdict(points, labels)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        pair
        for pair in ALL
        if pair[0] not in ("fgsm", "mi-fgsm")
        and not {"iterate", "eot"} & pair[1].keys()
        and ATTACKS.load(pair[0]).uses_logits  # others ask the model itself
    ],
)
def test_nothing_is_broken_before_the_model_that_decides_says_so(name, params):
    model, images = curved(), images_for(40)
    labels = model(images).argmax(1)
    eps = 0.03 if ATTACKS.build(name, **params).norm == "linf" else 0.2
    coarse = Coarse(model)
    found, told = build(name, eps, **params).run(coarse, images, labels, draws_for(40))
    broken = model(found).argmax(1) != labels
    alone = build(name, eps, **params)(model, images, labels, draws_for(40))
    assert coarse.asked > 0
    assert broken.sum() >= (model(alone).argmax(1) != labels).sum() - 3
    if "broken_by" in told:
        assert torch.equal(told["broken_by"] != -1, broken)
    elif name not in ("pgd", "cw", "noise", "spsa"):
        assert torch.equal((found != images).flatten(1).any(1), broken)


@pytest.mark.parametrize("name", ["apgd-t", "fab-t"])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_runs_that_share_a_batch_find_what_runs_in_turn_find(name, norm, monkeypatch):
    model, images = curved(classes=6), images_for(24)
    labels = model(images).argmax(1)
    attack = build(name, {"linf": 0.03, "l2": 0.2, "l1": 1.5}[norm], norm=norm, targets=5)
    results, calls = [], []
    for room in (1, 3, 5):
        monkeypatch.setattr(AttackBatch, "room", room)
        oracle = Oracle(model, 20)
        oracle.passes.watch = lambda words, passes: calls[-1].add(words.partition(",")[2].partition("of")[0])
        calls.append(set())
        results.append(attack.run(oracle, images, labels, draws_for(24))[0])
    broken = (model(results[0]).argmax(1) != labels).sum()
    assert 0 < broken < 24
    assert all(torch.equal(results[0], other) for other in results[1:])
    assert len(calls[0]) > len(calls[2])  # fewer stages


def test_targets_of_pgd():
    model, images = Linear(4), images_for(30)
    labels = model(images).argmax(1)
    least = model(images).argmin(1)
    found = build("pgd", 0.5, target="least-likely", iterate="last")(model, images, labels, draws_for(30))
    assert torch.equal(model(found).argmax(1), least)
    found = build("pgd", 0.5, target="2", iterate="last")(model, images, labels, draws_for(30))
    predicted = model(found).argmax(1)
    assert (predicted[labels != 2] == 2).all() and (predicted[labels == 2] != 2).all()
    with pytest.raises(RbError, match="class 4, but the model has only the classes 0 to 3"):
        build("pgd", 0.5, target="4")(model, images, labels, draws_for(30))


def test_step_rules():
    assert ATTACKS.build("pgd", eps=8 / 255).effective_step_size == pytest.approx(1 / 255)  # 2.5 * 8 / 20
    assert ATTACKS.build("pgd", eps=0.5, norm="l2").effective_step_size == pytest.approx(0.0625)
    assert ATTACKS.build("pgd", step_size=0.003).effective_step_size == 0.003
    attack = ATTACKS.build("pgd", eps=0.3, steps=4, relative_step=0.1)
    assert [attack.step_at(step) for step in range(4)] == pytest.approx([0.03] * 4)
    attack = ATTACKS.build("pgd", eps=0.3, steps=4, step_size=0.1, decay="linear")
    assert [attack.step_at(step) for step in range(4)] == pytest.approx([0.1, 0.075, 0.05, 0.025])
    attack = ATTACKS.build("pgd", eps=0.3, steps=4, step_size=0.1, decay="cosine")
    cosine = [0.1, 0.0853553, 0.05, 0.0146447]
    assert [attack.step_at(step) for step in range(4)] == pytest.approx(cosine, rel=1e-5)
    with pytest.raises(RbError, match="has both step_size and relative_step"):
        ATTACKS.build("pgd", step_size=0.1, relative_step=0.1)


def test_fmn_in_l2_is_not_held_by_the_walls_of_the_box():
    # Most pixels are at the ends of the range: a step towards the nearest boundary is mostly clipped.
    model, images = Linear(4), images_for(20).round()
    labels = model(images).argmax(1)
    attack = ATTACKS.build("fmn", norm="l2", steps=200, eps=100.0)
    points, results = attack.run(model, images, labels, draws_for(20))
    assert torch.isfinite(results["distance"]).all() and (model(points).argmax(1) != labels).all()


def nearest_of_linear(model, images, labels, norm):
    """The distance to the nearest boundary of a linear model, in L1 with regard to the box: (N,)."""
    slope = model.weight[labels][:, None] - model.weight[None]
    margin = (slope * images.flatten(1)[:, None]).sum(2)
    if norm != "l1":  # away from the walls: the margin over the dual norm of its slope
        distance = margin / slope.norm(dim=2, p={"linf": 1, "l2": 2}[norm])
        return distance.scatter(1, labels[:, None], torch.inf).amin(1)
    # The pixels with the steepest slope go to their walls in turn, the last of them part of the way.
    pixels = images.flatten(1)[:, None].expand_as(slope)
    room = torch.where(slope > 0, pixels, 1 - pixels)
    order = slope.abs().argsort(dim=2, descending=True)
    slopes, rooms = slope.abs().gather(2, order), room.gather(2, order)
    gained = (slopes * rooms).cumsum(2)
    before = gained - slopes * rooms
    share = ((margin[:, :, None] - before) / (slopes * rooms).clamp_min(1e-12)).clamp(0, 1)
    distance = (share * rooms).sum(2)
    distance[gained[:, :, -1] < margin] = torch.inf
    return distance.scatter(1, labels[:, None], torch.inf).amin(1)


@pytest.mark.parametrize(
    ("name", "params", "norm"),
    [
        ("cw-l2", {"steps": 200, "c": 0.1}, "l2"),
        ("fmn", {"steps": 200, "norm": "l2"}, "l2"),
        ("fmn", {"steps": 200}, "linf"),
        ("fmn", {"steps": 400, "norm": "l1"}, "l1"),
        ("ddn", {"steps": 200}, "l2"),
    ],
)
@pytest.mark.slow
def test_the_nearest_example_of_a_linear_model_is_found(name, params, norm):
    model, images = Linear(4), 0.4 + 0.2 * images_for(20)
    labels = model(images).argmax(1)
    exact = nearest_of_linear(model, images, labels, norm)
    far = 1.0 if norm == "linf" else 100.0
    points, results = ATTACKS.build(name, **params, eps=far).run(model, images, labels, draws_for(20))
    assert (model(points).argmax(1) != labels).all()
    lengths = (points - images).flatten(1).norm(dim=1, p=ORDER[norm])
    torch.testing.assert_close(lengths, results["distance"], rtol=1e-4, atol=1e-5)
    assert (lengths >= exact - 1e-5).all() and (lengths <= 1.05 * exact + 0.01).all()
    near = float(exact.median())
    within = ATTACKS.build(name, **params, eps=near)(model, images, labels, draws_for(20))
    unbroken = model(within).argmax(1) == labels
    assert 5 < unbroken.sum() < 15 and torch.equal(within[unbroken], images[unbroken])


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_curve_finds_the_nearest_example_of_a_linear_model_within_its_queries(norm):
    images = 0.4 + 0.2 * images_for(20)
    model = Oracle(Linear(4))
    labels = model(images).argmax(1)
    exact = nearest_of_linear(Linear(4), images, labels, norm)
    before = model.passes.forwards
    points, results = CurveAttack(norm=norm, queries=400).run(model, images, labels, draws_for(20))
    lengths = (points - images).flatten(1).norm(dim=1, p=ORDER[norm])
    torch.testing.assert_close(lengths, results["distance"], rtol=1e-4, atol=1e-5)
    assert (lengths >= exact - 1e-5).all() and (lengths <= 1.05 * exact + 1e-3).all()
    assert model.passes.forwards - before + model.passes.backwards <= 400 * 20


def test_share_of_the_square_follows_the_paper():
    fixed = ATTACKS.build("square", queries=5000)
    wanted = {0: 1, 10: 1, 11: 2, 50: 2, 51: 4, 201: 8, 501: 16, 1001: 32, 2001: 64, 4001: 128, 4999: 128}
    assert {query: 0.8 / fixed.share(query) for query in wanted} == pytest.approx(wanted)


def test_side_of_the_square():
    # sqrt(.8 * 1024) = 28.6, sqrt(.4 * 1024) = 20.2, ... sqrt(.8 / 128 * 1024) = 2.5
    sides = {0: 29, 11: 20, 51: 14, 201: 10, 501: 7, 1001: 5, 2001: 4, 4001: 3}
    assert {query: ATTACKS.build("square").side(query, 32, 32) for query in sides} == sides
    assert ATTACKS.build("square", norm="l2").side(2001, 32, 32) == 5  # odd, so that it has a centre
    assert ATTACKS.build("square", p=1.0).side(0, 28, 5) == 5
    assert ATTACKS.build("square", p=0.0).side(0, 28, 28) == 1


def test_a_square_in_l1_moves_what_two_windows_had_into_one():
    images = torch.full((1, 1, 5, 5), 0.5)
    best = images.clone()
    best[0, 0, 0, 0], best[0, 0, 4, 4] = 0.6, 0.2  # lengths .1 and .3 of eps .5: .1 is unused
    words = torch.tensor([[0, 0, 2**32 - 1, 2**32 - 1, 1]])  # from the last corner into the first
    goal = AttackBatch(images, torch.zeros(1).long(), draws_for(1)).goal(losses.margin)
    state = square._SquareState(images, best, goal, draws_for(1), 0.5, "l1", {}, 0)
    _, values = square._patch_lp(state, words, 3)
    change = (values.view(5, 5) - 0.5).abs()
    assert float(change.sum()) == pytest.approx(0.5, abs=1e-6)
    assert float(change[:3, :3].sum()) == pytest.approx(0.5, abs=1e-6)


def test_standard_is_the_standard():
    assert len(ATTACKS.build("aa").stages(10)) == 1 + 9 + 9 + 1
    assert len(ATTACKS.build("aa").stages(4)) == 1 + 3 + 3 + 1
    in_l1 = ATTACKS.build("aa", norm="l1", eps=12.0).parts
    assert {part.norm for part in in_l1} == {"l1"}
    assert [part.restarts for part in in_l1] == [5, 1, 1, 1]
    assert [part.targets for part in in_l1[1:3]] == [5, 9]
    with pytest.raises(RbError, match="norm of attack 'pgd' is 'l1'"):
        ATTACKS.build("aa", norm="l1", attacks="apgd-ce,pgd")
    assert [part.eot for part in ATTACKS.build("aa", variant="rand").parts] == [20, 20]


def test_one_attack_in_a_sequence_is_that_attack_alone():
    model, images = Linear(4), images_for(20)
    labels = model(images).argmax(1)
    alone = ATTACKS.build("apgd-ce", eps=0.06)(model, images, labels, draws_for(20).child("apgd-ce"))
    found = ATTACKS.build("aa", eps=0.06, attacks="apgd-ce")(model, images, labels, draws_for(20))
    assert torch.equal(found, alone)


def test_square_says_something_of_gradients_only_beside_an_attack_by_gradients():
    for attacks, place, warns in (("square", 0, False), ("fgsm,square", 1, True)):
        fields = diagnostics.of_attack(
            ATTACKS.build("aa", attacks=attacks), {f"broken_by.{place}": 50.0}, 100
        )
        assert fields["broken_by"]["square"] == 50
        assert any("no gradient attack broke" in text for text in fields.get("warnings", [])) is warns
