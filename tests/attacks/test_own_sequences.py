"""Square's schedule and squares, and AutoAttack's sequence, as they are written here."""

from __future__ import annotations

import pytest
import torch

from rbtools.attacks import ATTACKS, square
from rbtools.errors import RbError
from rbtools.evaluation import diagnostics
from tests.networks import draws_for, images_for


def linear(classes=4, size=108, seed=0):
    weight = torch.randn(classes, size, generator=torch.Generator().manual_seed(seed))
    return lambda images: images.flatten(1) @ weight.T


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


@pytest.mark.parametrize(("norm", "order"), [("linf", torch.inf), ("l2", 2), ("l1", 1)])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 14), (3, 4, 4), (1, 28, 12)])
def test_square_takes_any_size_of_image(norm, order, shape):
    images = images_for(3, shape)
    model = linear(size=images[0].numel())
    found = ATTACKS.build("square", eps=0.2, norm=norm, queries=70)(
        model, images, model(images).argmax(1), draws_for(3)
    )
    size = (found - images).flatten(1)
    assert size.norm(dim=1, p=order).max() <= 0.2 + 1e-6


def test_a_square_in_l1_moves_what_two_windows_had_into_one():
    images = torch.full((1, 1, 5, 5), 0.5)
    best = images.clone()
    best[0, 0, 0, 0], best[0, 0, 4, 4] = 0.6, 0.2  # lengths .1 and .3 of eps .5: .1 is unused
    words = torch.tensor([[0, 0, 2**32 - 1, 2**32 - 1, 1]])  # from the last corner into the first
    margin, labels = torch.zeros(1), torch.zeros(1, dtype=torch.long)
    state = square._SquareState(labels, best, margin, images, draws_for(1), 0.5, "l1")
    _, values = square._patch_lp(state, words, 3)
    change = (values.view(5, 5) - 0.5).abs()
    assert float(change.sum()) == pytest.approx(0.5, abs=1e-6)
    assert float(change[:3, :3].sum()) == pytest.approx(0.5, abs=1e-6)


def run(attack, count=40, model=None, eps=0.06, **params):
    model, images = model or linear(), images_for(count)
    labels = model(images).argmax(1)
    labels[:3] = (labels[:3] + 1) % 4
    made = ATTACKS.build(attack, eps=eps, **params)
    return (made, labels, *made.run(model, images, labels, draws_for(count)))


def test_standard_is_the_standard():
    parts = ATTACKS.build("aa").parts
    assert [part.name for part in parts] == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert [part.steps for part in parts[:3]] == [100] * 3 and parts[3].queries == 5000
    assert [part.restarts for part in parts] == [1] * 4
    assert [part.targets for part in parts[1:3]] == [9, 9]
    assert len(ATTACKS.build("aa").stages(10)) == 1 + 9 + 9 + 1
    assert len(ATTACKS.build("aa").stages(4)) == 1 + 3 + 3 + 1
    plus = ATTACKS.build("aa", variant="plus").parts
    assert [(part.name, part.restarts) for part in plus] == [
        ("apgd-ce", 5),
        ("apgd-dlr", 5),
        ("fab", 5),
        ("square", 1),
        ("apgd-t", 1),
        ("fab-t", 5),
    ]
    in_l1 = ATTACKS.build("aa", norm="l1", eps=12.0).parts
    assert [(part.name, part.norm) for part in in_l1] == [(part.name, "l1") for part in parts]
    assert [part.restarts for part in in_l1] == [5, 1, 1, 1]
    assert [part.targets for part in in_l1[1:3]] == [5, 9]
    with pytest.raises(RbError, match="norm of attack 'pgd' is 'l1'"):
        ATTACKS.build("aa", norm="l1", attacks="apgd-ce,pgd")
    assert [(part.name, part.eot) for part in ATTACKS.build("aa", variant="rand").parts] == [
        ("apgd-ce", 20),
        ("apgd-dlr", 20),
    ]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"attacks": "apgd"},
            r"names 'apgd'\. Did you mean .*'apgd-t'.* With backend rbtools there are: fgsm",
        ),
        ({"attacks": "pgd", "backend": "pyautoattack"}, "With backend pyautoattack there are: apgd-ce"),
        ({"attacks": "aa"}, "names 'aa'"),
        ({"attacks": "fgsm", "norm": "l2"}, "has no parameter 'norm'"),
    ],
)
def test_attacks_that_cannot_run_in_turn_are_refused(params, words):
    with pytest.raises(RbError, match=words):
        ATTACKS.build("aa", **params)


def test_one_attack_in_a_sequence_is_that_attack_alone():
    model, images = linear(), images_for(20)
    labels = model(images).argmax(1)
    alone = ATTACKS.build("apgd-ce", eps=0.06)(model, images, labels, draws_for(20).child("apgd-ce"))
    assert torch.equal(
        ATTACKS.build("aa", eps=0.06, attacks="apgd-ce")(model, images, labels, draws_for(20)), alone
    )


@pytest.mark.parametrize(
    ("attacks", "warns"), [("square", False), ("fgsm,square", True), ("apgd-ce,square", True)]
)
def test_square_says_something_of_gradients_only_beside_an_attack_by_gradients(attacks, warns):
    attack = ATTACKS.build("aa", attacks=attacks)
    square = attacks.split(",").index("square")
    fields = diagnostics.of_attack(attack, {f"broken_by.{square}": 50.0}, 100)
    assert fields["broken_by"]["square"] == 50
    assert any("no attack by gradients broke" in text for text in fields.get("warnings", [])) is warns
