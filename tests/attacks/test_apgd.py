"""Auto-PGD's checkpoints, halvings and momentum against sequences worked out by hand."""

from __future__ import annotations

import pytest
import torch

from rbtools.attacks import apgd_ascent, losses
from rbtools.attacks.active_examples import AttackBatch
from rbtools.attacks.apgd import APGDCE
from rbtools.attacks.oracle import Oracle
from tests.networks import draws_for


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        # p_j of the paper: .22 .41 .57 .70 .80 .87 .93 .99
        (100, [22, 41, 57, 70, 80, 87, 93, 99]),
        # gaps 11, then 1 less each time, no less than 3: 11 10 9 8 7 (and 6 would end at 51)
        (50, [11, 21, 30, 38, 45]),
        # .22 * 10 = 2.2, then 1, since no gap is less than 1
        (10, [2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (1, [1]),
    ],
)
def test_checkpoints(count, expected):
    assert apgd_ascent.checkpoints(count) == expected


def test_who_stalls():
    #        rose  halved  best  best then
    rows = [
        (16, True, 2.0, 1.0, True),  # 16 of 22 is less than three quarters
        (17, True, 2.0, 1.0, False),  # 17 of 22 is more
        (17, False, 1.0, 1.0, True),  # no better than at the last checkpoint, and not halved there
        (17, True, 1.0, 1.0, False),  # halved there: it gets one more gap
        (17, False, 1.5, 1.0, False),
    ]
    rose, halved, best, then, expected = (torch.tensor(column) for column in zip(*rows, strict=True))
    assert apgd_ascent.stalled(rose, 22, halved, best, then).tolist() == expected.tolist()
    # 6 is exactly three quarters of 8: no more than RHO
    at_the_limit = apgd_ascent.stalled(torch.tensor([6, 7]), 8, halved[:2], best[:2], then[:2])
    assert at_the_limit.tolist() == [True, False]


def margin_of_first(logits, labels, targets):
    return -logits[:, 0]


def test_momentum_and_halving_by_hand(monkeypatch):
    # loss = -(x - .5)^2 around the image .5, eps .2: the sign of the slope sends every step across.
    # 10 steps: checkpoints after 2, 3, 4, ... Values of x, each projected onto [.3, .7]:
    # x0 = .3
    # x1 = .3 + .4 = .7 (no momentum)                      loss equal to x0's: not risen
    # x2: z = .7 - .4 = .3; .7 + .75 (.3 - .7) + .25 (.7 - .3) = .5      risen once of 2: halved
    #     checkpoint 2: step .2, the best point is .5 itself, its slope 0
    # x3: z = .5; .5 + .25 (.5 - .7) = .45                  fallen. Checkpoint 3: step .1, back to .5
    # x4: z = .5; .5 + .25 (.5 - .5)                        the last point is x2 = .5
    image, points = torch.full((1, 1, 1, 1), 0.5), []

    def model(images):
        points.append(images.item())
        return torch.cat([(images - 0.5) ** 2, torch.full_like(images, -9.0)], dim=1)[:, :, 0, 0]

    monkeypatch.setattr(apgd_ascent, "border_start", lambda *_: image - 0.2)
    batch = AttackBatch(image, torch.zeros(1).long(), draws_for(1))
    goal = batch.goal(margin_of_first)
    apgd_ascent.apgd(APGDCE(eps=0.2, steps=10), (0,), Oracle(model), batch, goal)
    assert points[:5] == pytest.approx([0.3, 0.7, 0.5, 0.45, 0.5], abs=1e-5)


@pytest.mark.parametrize(("norm", "passes"), [("linf", 11), ("l2", 11), ("l1", 4 + 4 + 5)])
def test_the_last_of_ten_iterates_is_judged(norm, passes):
    image, points = torch.full((1, 1, 2, 2), 0.5), []

    def model(images):
        points.append(images)
        first = images.sum((1, 2, 3)) * 0 + (2.0 if len(points) < passes else -2.0)
        return torch.stack([first, torch.zeros(1)], dim=1)

    batch = AttackBatch(image, torch.zeros(1).long(), draws_for(1))
    attack, goal = APGDCE(eps=0.2, norm=norm, steps=10), batch.goal(margin_of_first)
    found, broken = apgd_ascent.apgd(attack, (0,), Oracle(model), batch, goal)
    assert len(points) == passes and broken.tolist() == [True] and torch.equal(found, points[-1])


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (100, [(36, 30), (24, 30), (12, 40)]),
        (7, [(36, 2), (24, 2), (12, 3)]),
        (3, [(12, 3)]),
        (1, [(12, 1)]),
    ],
)
def test_the_balls_of_l1(count, expected):
    assert apgd_ascent.radii(12, count) == expected


def test_a_sparse_step_by_hand():
    gradient = torch.tensor([[3.0, -2.0, 0.5, 0.0], [1.0, -1.0, 1.0, 0.1], [0.0] * 4]).view(3, 1, 2, 2)
    two = apgd_ascent.sparse_direction(gradient, torch.tensor([2.0, 2.0, 2.0])).flatten(1)
    # In the second row three entries are as large as the second largest.
    expected = [[0.5, -0.5, 0, 0], [1 / 3, -1 / 3, 1 / 3, 0], [0] * 4]
    torch.testing.assert_close(two, torch.tensor(expected))
    one = apgd_ascent.sparse_direction(gradient, torch.tensor([0.0, 4.0, 4.0])).flatten(1)
    torch.testing.assert_close(one, torch.tensor([[1.0, 0, 0, 0], [0.25, -0.25, 0.25, 0.25], [0] * 4]))


def test_the_step_in_l1_shrinks_until_the_best_change_is_sparser():
    images = torch.full((2, 1, 2, 5), 0.5)
    start = images + 0.1
    loss, gradient = torch.zeros(2), torch.ones(2, 1, 2, 5)
    goal = AttackBatch(images, torch.zeros(2).long(), draws_for(2)).goal(margin_of_first)
    state = apgd_ascent.SparseAscent(images, start, goal, eps=1.0, norm="l1", count=10)
    state.first(loss, gradient)
    assert state.changed.tolist() == [10, 10]
    sparse = start.clone()
    sparse[0, 0, 0, 0] = 0.5  # 9 of 10 entries: less than .95 of them
    state.points = sparse
    state.note(torch.tensor([1.0, 1.0]), gradient)
    state.points = start + 0.05
    state.check(1)
    assert state.step_size.flatten().tolist() == pytest.approx([1.0, 1 / 1.5])
    assert torch.equal(state.points[0], sparse[0]) and torch.equal(state.points[1], start[1] + 0.05)
    for number in range(2, 12):
        state.check(number)
    assert state.step_size.flatten().tolist() == pytest.approx([0.1, 0.1])  # no less than a tenth of eps


def test_losses_by_hand():
    logits = torch.tensor([[3.0, 1.0, 2.0, -1.0], [0.0, 4.0, 1.0, 2.0]])
    labels, targets = torch.tensor([0, 0]), torch.tensor([1, 3])
    assert losses.margin(logits, labels, targets).tolist() == [-1, 4]
    assert losses.margin(logits, labels, targets, 3.0).tolist() == [-1, 3]
    assert losses.targeted_margin(logits, labels, targets).tolist() == [-2, 2]
    assert losses.dlr(logits, labels, targets).tolist() == pytest.approx([-1 / 2, 4 / 3])
    # z_(1) - (z_(3) + z_(4)) / 2: 3 - 0 = 3 and 4 - .5 = 3.5
    assert losses.targeted_dlr(logits, labels, targets).tolist() == pytest.approx([-2 / 3, 2 / 3.5])
    away = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert torch.equal(losses.cross_entropy(logits, labels, targets), away)
    toward = losses.targeted_cross_entropy(logits, labels, torch.tensor([1, 0]))
    assert toward.tolist() == pytest.approx([float(logits[0].log_softmax(0)[1]), float(away[1])])
    assert losses.ranked_targets(logits, labels).tolist() == [[2, 1, 3], [1, 3, 2]]
