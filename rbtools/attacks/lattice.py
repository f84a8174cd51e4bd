"""Attacks whose results are 8-bit images (`grid` "8bit"), with pixels k/255.

The points of the search are real numbers, but the model receives the nearest 8-bit image of each point
(`Oracle.seen`). Gradients are computed at this 8-bit image, while the point itself accumulates steps that are
smaller than a grey level. After the search, each point is rounded to an 8-bit image inside the ball
(`project`). In L-infinity, the result is the image that the model received. In L2 and L1, the nearest 8-bit
image may be outside the ball. If rounding into the ball undoes a success, the search is repeated in smaller
balls.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from rbtools.errors import RbError
from rbtools.lazy import torch
from rbtools.registry import rare_param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import Attack
    from rbtools.attacks.oracle import Oracle
    from rbtools.rng.draws import Draws

    Method = TypeVar("Method", bound=Attack)

_LEVELS = 255
_SLACK = 1e-6  # relative tolerance of a distance, for the rounding of float32
_SMALLER = (0.97, 0.9, 0.75)  # shares of eps for new searches in L2 and L1 after rounding undid a success


def grid_param() -> Any:
    return rare_param(
        "none",
        "With 8bit, all pixels of an attacked image are k/255, as in an 8-bit image file.",
        choices=("none", "8bit"),
        optional=True,
        last=True,
    )


def check_distance(attack: Attack) -> None:
    if attack.grid != "none" and attack.norm == "sphere":
        raise RbError(
            "With norm sphere, pixels may be outside [0, 1], but 8-bit pixels cannot. Leave out grid."
        )
    if attack.grid != "none" and attack.in_ball and attack.eps and _in_levels(attack.eps) < 1:
        raise RbError(
            f"With grid 8bit, eps is {attack.eps * _LEVELS:.4g}/255. Pixels of 8-bit images change by at"
            " least 1/255, so this ball contains only the clean image. Give an eps of 1/255 or more, or leave"
            " out grid."
        )


def searched(attack: Method) -> Method:
    """The attack with the eps that its search uses, which in linf with a grid is rounded down to k/255."""
    if attack.grid == "none" or not attack.in_ball or attack.norm != "linf" or attack.eps is None:
        return attack
    return attack.at(math.floor(_in_levels(attack.eps)) / _LEVELS)


def _in_levels(eps: float) -> float:
    """A distance in units of 1/255, increased slightly because `eps * 255` may be just below an integer."""
    return eps * _LEVELS * (1 + 1e-9)


def nearest(images: Tensor) -> Tensor:
    """The nearest 8-bit images, with pixels k/255."""
    return levels(images).div_(_LEVELS)


def levels(images: Tensor) -> Tensor:
    """The grey levels (integers from 0 to 255) of the nearest 8-bit images."""
    return (images * _LEVELS).round_().clamp_(0, _LEVELS)


def run(
    attack: Attack, model: object, images: Tensor, labels: Tensor, draws: Draws
) -> tuple[Tensor, dict[str, Tensor]]:
    """Call `attack.run` with the attack's grid, on the mean over samples if the model is randomised. Raises
    RbError for grid "8bit" if the clean images are not 8-bit images or if the ball contains no other 8-bit
    image."""
    from rbtools.attacks.oracle import oracle_of

    oracle = oracle_of(model)
    means = attack.over_draws and (attack.draws_each > 1 or oracle.randomised)
    if attack.batch_dependent or not means:
        return _run(attack, oracle, images, labels, draws)
    from rbtools.attacks.mean_over_draws import MeanOverDraws

    with torch.no_grad():
        mean = MeanOverDraws(oracle, attack, images, labels, draws)
        points, findings = _run(attack, mean, images, labels, draws)
        if mean.each == 1:
            return points, findings
        mean.eight_bit = False  # the candidates are images already
        return mean.chosen(project(points, images, attack)), findings


def _run(
    attack: Attack, oracle: Oracle, images: Tensor, labels: Tensor, draws: Draws
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same as `run`, without the mean over samples of a randomised model. The `oracle` is changed. The
    result `outside` is true for images that were outside the ball before any projection."""
    if attack.grid == "none":
        points, findings = attack.run(oracle, images, labels, draws)
        return points, {**findings, "outside": ~attack.threat.contains(points.detach().float(), images)}
    check_distance(attack)
    if len(images) and bool((images * _LEVELS - levels(images)).abs().max() > 1e-3):
        raise RbError(
            "grid 8bit needs clean 8-bit images, with pixels k/255, but these images have other pixel values."
            " Round them first, or pass uint8 images."
        )
    oracle.eight_bit, search = True, searched(attack)
    if attack.in_ball and attack.eps is not None:
        search = search.at(search.eps * (1 + _SLACK))
    points, findings = search.run(oracle, images, labels, draws)
    findings = {**findings, "outside": ~search.threat.contains(points.detach().float(), images)}
    if not attack.in_ball:
        return points, findings
    if attack.norm in ("linf", "any") or attack.batch_dependent or attack.eps is None:
        return project(points, images, attack), findings
    inside = project(points, images, attack)
    for share in _SMALLER:
        rows = (levels(points) != levels(inside)).flatten(1).any(1).nonzero()[:, 0]
        if len(rows):
            some = oracle.take(rows)
            lost = some.still_correct(inside[rows], labels[rows])
            rows = rows[lost & ~some.still_correct(points[rows], labels[rows])]
        if not len(rows):
            break
        smaller = search.at(attack.eps * share)
        points[rows], _ = smaller.run(oracle.take(rows), images[rows], labels[rows], draws.take(rows))
        inside[rows] = project(points[rows], images[rows], attack)
    return inside, findings


def project(points: Tensor, images: Tensor, attack: Attack) -> Tensor:
    """Project points onto the threat and, if the attack has a grid, onto the 8-bit images.

    If the nearest 8-bit image is outside an L2 or L1 ball, the pixels that rounding moved farthest away from
    the clean image are rounded towards it.

    Shape: points (N, ...), in a ball (N, C, H, W); images and result (N, C, H, W). If the attack has a grid,
    `images` must be 8-bit images.
    """
    threat = attack.threat
    points = threat.project(points.detach().float(), images)
    points = points if attack.in_ball else threat.made(points, images)
    if attack.grid == "none":
        return points
    if not attack.in_ball or attack.eps is None or attack.norm == "any":
        return nearest(points)
    clean = levels(images.double())
    wanted = (points.double() * _LEVELS - clean).flatten(1)
    rounded = (levels(points.double()) - clean).flatten(1)
    eps = _in_levels(attack.eps)
    if attack.norm == "linf":
        rounded = rounded.clamp(-math.floor(eps), math.floor(eps))
    else:
        sizes = rounded.abs()
        power = ball.ORDER[attack.norm]
        # how much the last step of each pixel adds to the norm (l1) or to its square (l2)
        gains = torch.where(sizes > 0, sizes**power - (sizes - 1) ** power, 0)
        excess = (sizes**power).sum(1) - eps**power
        order = torch.where(sizes > 0, sizes - wanted.abs(), -torch.inf).argsort(1, descending=True)
        before = gains.gather(1, order).cumsum(1) - gains.gather(1, order)
        undone = torch.zeros_like(sizes).scatter(1, order, (before < excess[:, None]).double())
        rounded = rounded.sign() * (sizes - undone).clamp_min(0)
    return (clean + rounded.view_as(clean)).float().div_(_LEVELS)
