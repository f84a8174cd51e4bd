"""Balls around images, which contain all images within a distance, with projections and random points.

All functions compute each example separately, so no result depends on the batching.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.threats.base import Threat

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.rng.draws import Draws

ORDER = {"linf": math.inf, "l2": 2, "l1": 1}
DUAL = {"linf": 1, "l2": 2, "l1": math.inf}  # the norm of the gradient that bounds the change of a loss

_AXES = {
    "": "ε [1/255]",
    "l1": "ε in L1, on pixels in [0, 1]",
    "l2": "ε in L2, on pixels in [0, 1]",
    "sphere": "ε as a share of the image's norm",
}

_ROUNDING = 1e-5  # the share by which rounding in float32 may exceed a distance


@dataclass(frozen=True, kw_only=True)
class Ball(Threat):
    """The images within `eps` of an image in a norm, with pixels in [0, 1]. A point is an image.

    `eps` is in pixel units of [0, 1]. With the norm `sphere`, the images have the norm of the unchanged
    image, and `eps` is a share of this norm. With `any`, every image is allowed, and `eps` is only part of
    the name; this is for users' own attacks whose images are not in a ball.
    """

    name: ClassVar[str] = "ball"
    words: ClassVar[tuple[str, ...]] = ("l2", "l1", "any", "sphere")

    eps: float = 8 / 255
    norm: str = param("linf", "The norm that bounds the perturbation.", choices=(*ORDER, "sphere", "any"))

    @property
    def in_names(self) -> str:
        return f"{self.eps * 255:g}" if self.norm == "linf" else f"{self.eps:g}"

    @classmethod
    def settings(cls, word: str, values: Mapping[str, str]) -> dict[str, Any]:
        eps = float(values["eps"])
        return {"eps": eps, "norm": word} if word else {"eps": eps / 255, "norm": "linf"}

    @classmethod
    def axis(cls, word: str) -> str:
        return _AXES.get(word, "strength of the attack")

    @classmethod
    def said(cls, word: str, values: Mapping[str, str]) -> str:
        if word == "any":
            return f"strength {values['eps']}"
        return f"ε = {values['eps']}{'' if word else '/255'}"

    @classmethod
    def beside(cls, word: str) -> str:
        return {"l1": " (L1)", "l2": " (L2)", "sphere": " (sphere)"}.get(word, "")

    def distances(self, points: Tensor, images: Tensor) -> Tensor:
        return distances(points, images, self.norm)

    def project(self, points: Tensor, images: Tensor) -> Tensor:
        if self.norm == "any":
            return points.clamp(0, 1)
        return project(points, images, self.eps, self.norm)

    def contains(self, points: Tensor, images: Tensor) -> Tensor:
        if self.norm == "sphere":
            near = distances(points, images, "l2") <= self.eps * length(images).flatten() * (1 + _ROUNDING)
            return near & torch.isclose(length(points), length(images), rtol=_ROUNDING).flatten()
        inside = points.flatten(1).amin(1).ge(0) & points.flatten(1).amax(1).le(1)
        if self.norm == "any":
            return inside
        return inside & (distances(points, images, self.norm) <= self.eps * (1 + _ROUNDING) + _ROUNDING / 10)


@dataclass(frozen=True, kw_only=True)
class AnyDistance(Threat):
    """All images at any distance, for attacks that search for the nearest adversarial example in a norm."""

    name: ClassVar[str] = "distance"

    norm: str = param("linf", "The norm of the distance.", choices=tuple(ORDER))

    @property
    def empty(self) -> bool:
        return False

    def distances(self, points: Tensor, images: Tensor) -> Tensor:
        return distances(points, images, self.norm)

    def project(self, points: Tensor, images: Tensor) -> Tensor:
        return points.clamp(0, 1)

    def contains(self, points: Tensor, images: Tensor) -> Tensor:
        return points.flatten(1).amin(1).ge(0) & points.flatten(1).amax(1).le(1)


def project(perturbed: Tensor, images: Tensor, eps: float | Tensor, norm: str) -> Tensor:
    """Project onto the ball of radius `eps` around `images`, and then onto the box [0, 1].

    The second projection does not leave the ball, because `images` are in the box and clipping moves every
    pixel towards its original value. In l1, the result is the nearest point, in L2, of the intersection of
    ball and box. Two successive projections would shorten a change that touches the box (Croce and Hein
    2021). In sphere, the result is on the sphere of radius |x| and in the L2 ball of radius eps |x|, without
    a box (definition 1 in Wu et al. 2024, with the unit sphere scaled by the image's norm).

    Shape: perturbed, images and result are (N, C, H, W). Images and eps are in pixel units of [0, 1].
    """
    if norm == "linf":
        return torch.clamp(perturbed, images - eps, images + eps).clamp_(0, 1)
    if norm == "sphere":
        return _onto_cap(perturbed, images, float(eps))  # eps is one number for the batch
    delta = perturbed - images
    if norm == "l1":
        room = torch.where(delta > 0, 1 - images, images)
        return (images + _onto_l1_ball(delta, eps, room)).clamp_(0, 1)
    shrink = (eps / length(delta).clamp_min(torch.finfo(delta.dtype).tiny)).clamp_max(1)
    return (images + delta * shrink).clamp_(0, 1)


_L1_ROUNDS = 60
_L1_ROUNDS_UNCHECKED = 16  # on a GPU, where a check of convergence would have to wait


def _onto_l1_ball(delta: Tensor, eps: float | Tensor, room: Tensor) -> Tensor:
    """The point in the L1 ball of radius eps around 0, with absolute entries of at most `room`, that is
    nearest in L2.

    By Croce and Hein 2021 (arXiv:2103.01208), the result is sign(delta) clip(|delta| - t, 0, room), with the
    smallest t >= 0 for which the sum of absolute values is at most eps. This sum is piecewise linear in t.
    Each iteration computes a new t from the linear piece at the current t. If the new t is outside the
    interval known to contain the solution, the interval is halved.

    Shape: delta, room and result are (N, C, H, W) with room >= 0. eps is a number or has shape (N, 1, 1, 1).
    """
    sizes, walls = delta.abs().flatten(1), room.flatten(1)
    if isinstance(eps, torch.Tensor):
        radius = eps.to(delta).expand(len(delta), 1, 1, 1).flatten()
    else:
        radius = torch.full_like(sizes[:, 0], eps)
    low, high = torch.zeros_like(radius), sizes.amax(1)
    threshold = low
    unchecked = delta.device.type != "cpu"
    for _ in range(_L1_ROUNDS_UNCHECKED if unchecked else _L1_ROUNDS):
        shrunk = sizes - threshold[:, None]
        excess = torch.minimum(shrunk, walls).clamp_min_(0).sum(1) - radius
        low, high = torch.where(excess > 0, threshold, low), torch.where(excess > 0, high, threshold)
        sliding = ((shrunk > 0) & (shrunk < walls)).sum(1)
        solved = threshold + excess / sliding
        inside = (solved > low) & (solved < high)
        following = torch.where(inside, solved, (low + high) / 2)
        going = (excess.abs() > 1e-6 * radius) & (following > low) & (following < high)
        if not unchecked and not going.any():
            break
        threshold = torch.where(going, following, threshold)
    changed = torch.minimum((sizes - threshold[:, None]).clamp_min_(0), walls).view_as(delta)
    # The sum now differs from eps by at most a share of 1e-6; scaling removes the difference.
    within = radius / changed.flatten(1).sum(1).clamp_min(torch.finfo(delta.dtype).tiny)
    return delta.sign() * changed * within.clamp_max(1).view(-1, 1, 1, 1)


def _onto_cap(perturbed: Tensor, images: Tensor, eps: float) -> Tensor:
    """The point on the sphere, at most eps |x| from x, with the direction nearest to that of `perturbed`."""
    centre, point = unit(images), unit(perturbed)
    along = (centre * point).sum(dim=tuple(range(1, images.ndim)), keepdim=True)
    # The border of the ball on the sphere, from |u - v|^2 = 2 - 2 cos.
    cosine = 1 - min(eps, 2.0) ** 2 / 2
    border = cosine * centre + math.sqrt(1 - cosine**2) * unit(point - along * centre)
    return length(images) * torch.where(length(point - centre) > eps, border, point)


def uniform_start(
    images: Tensor, draws: Draws, eps: float | Tensor, norm: str = "linf", draw: int = 0
) -> Tensor:
    """Returns one uniformly distributed point per example in the ball of radius `eps`, clipped to the box.

    In l2 the direction is uniform and the radius is eps * u^(1/d), which makes equal volumes equally likely.
    In sphere, a point is drawn as in l2 from the ball of radius eps |x| and projected onto the sphere.

    Shape: images and result are (N, C, H, W). eps is in pixel units of [0, 1], and is a number or has shape
    (N, 1, 1, 1).
    """
    shape = tuple(images.shape[1:])
    if norm == "linf":
        offset = draws.uniform(shape, draw=draw).to(images) * 2 - 1
    else:
        direction = unit(draws.normal(shape, draw=draw).to(images))
        radius = draws.child("radius").uniform((1,), draw=draw).to(images) ** (1 / images[0].numel())
        offset = direction * radius.reshape(-1, *[1] * len(shape))
    reach = eps * length(images) if norm == "sphere" else eps
    start: Tensor = images + reach * offset
    return project(start, images, eps, norm)


def distances(points: Tensor, images: Tensor, norm: str) -> Tensor:
    """The distances (N,) of the points (N, C, H, W) from their images."""
    lengths: Tensor = torch.linalg.vector_norm((points - images).flatten(1), ord=ORDER[norm], dim=1)
    return lengths


def length(vectors: Tensor) -> Tensor:
    """The L2 norm (N, 1, ...) of each example."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=tuple(range(1, vectors.ndim)), keepdim=True)
    return lengths


def unit(vectors: Tensor) -> Tensor:
    """Each example, scaled to L2 norm 1. Examples that are zero are returned unchanged.

    Each example is first divided by its largest entry, because squares of gradients below 1e-20 would
    underflow.
    """
    tiny = torch.finfo(vectors.dtype).tiny
    scaled = vectors / vectors.abs().amax(dim=tuple(range(1, vectors.ndim)), keepdim=True).clamp_min(tiny)
    return scaled / length(scaled).clamp_min(tiny)
