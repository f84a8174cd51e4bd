"""The attack of `rb-attack curve`, which combines several searches for the nearest adversarial example."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.attacks import cw_l2, ddn, fmn, losses
from rbtools.attacks.base import norm_param
from rbtools.attacks.minimal_norm import MinimalNormAttack
from rbtools.errors import unknown
from rbtools.lazy import torch
from rbtools.registry import Registry, rare_param
from rbtools.threats.ball import distances

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.oracle import Oracle

# Shares of the steps: _TARGETED for searches towards the _TARGETS likeliest classes, _REFINED for the search
# around the nearest point so far. The first search gets the rest; in L2, DDN gets the share _DDN of this.
_TARGETED, _TARGETS = 0.5, 4
_MANY = 150  # with fewer steps there are no targeted searches, because the first search would not converge
_REFINED = 0.2
_DDN = 0.7
_HALVINGS = 10
_SEARCHES = 9  # number of runs of CW's binary search, which share the queries
_CONFIRMATIONS = 10  # passes that confirm the points of each search and find their classes
_ON_LABELS = ("hopskipjump", "rays", "surfree", "boundary")
SEARCHES = Registry(
    "search",
    {
        "curve": "rbtools.attacks.curve:CurveAttack",
        "fmn": "rbtools.attacks.fmn:FMN",
        "ddn": "rbtools.attacks.ddn:DDN",
        "cw-l2": "rbtools.attacks.cw_l2:CWL2",
        "hopskipjump": "rbtools.attacks.hopskipjump:HopSkipJump",
        "rays": "rbtools.attacks.rays:RayS",
        "boundary": "rbtools.attacks.boundary:Boundary",
        "surfree": "rbtools.attacks.surfree:SurFree",
    },
)


@dataclass(frozen=True, kw_only=True)
class CurveAttack(MinimalNormAttack):
    """The nearest adversarial example from several searches, with at most `queries` passes for each image.

    The searches run in this order: DDN in L2; FMN in L2, L-infinity and L1; FMN towards each of the four most
    likely other classes; FMN with smaller steps from the nearest example so far, towards the class of this
    example; and bisection between the image and the nearest example. One forward pass with its backward pass
    counts as two queries. Passes in which the exact model checks decisions of the fast model are not counted.
    `run` returns the distances as "distance" (infinite if no adversarial example was found).

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "curve"
    words: ClassVar[str] = "curve"
    version: ClassVar[int] = 1
    loss: ClassVar[str] = "margin"

    eps: float | None = None  # type: ignore[assignment]  # None: any distance
    norm: str = norm_param("l1")
    queries: int = rare_param(2000, "Maximum number of network passes for each image.", check="positive")

    @property
    def most_passes(self) -> int:
        return self.draws_each * self.queries

    def search(self, model: Oracle, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        budget = max((self.queries - _HALVINGS - _CONFIRMATIONS) // 2, 1)
        classes = losses.ranked_targets(model.logits(images), labels)[:, :_TARGETS].unbind(1)
        targeted = int(_TARGETED * budget / _TARGETS) if budget >= _MANY else 0
        refined = int(_REFINED * budget)
        first = max(budget - len(classes) * targeted - refined, 1)
        if self.norm == "l2":
            best = ddn.DDN(steps=max(int(_DDN * first), 1)).search(model, images, labels)
            second = fmn.FMN(norm="l2", steps=max(first - int(_DDN * first), 1))
            best = nearer(best, second.search(model, images, labels))
        else:
            best = fmn.FMN(norm=self.norm, steps=first).search(model, images, labels)
        for targets in classes if targeted else ():
            attack = fmn.FMN(norm=self.norm, steps=targeted)
            best = nearer(best, attack.search(model, images, labels, targets))
        if refined:  # with step sizes as at the end of FMN
            attack = fmn.FMN(norm=self.norm, steps=refined, step_size=0.1, last_step_size=0.001, gamma=0.01)
            own_class = model.logits(best[0]).argmax(1)
            best = nearer(best, attack.search(model, images, labels, own_class, best[0]))
        return self._bisect(model, images, labels, *best)

    def _bisect(
        self, model: Oracle, images: Tensor, labels: Tensor, points: Tensor, distance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Bisect between images and points. Returns the nearest points that fool the model."""
        low, high = torch.zeros_like(distance), torch.ones_like(distance)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            tried = model.seen(images + middle.view(-1, 1, 1, 1) * (points - images))
            fooled = ~model.still_correct(tried, labels) & distance.isfinite()
            high, low = torch.where(fooled, middle, high), torch.where(fooled, low, middle)
        nearest = model.seen(images + high.view(-1, 1, 1, 1) * (points - images))
        nearest = torch.where((high < 1).view(-1, 1, 1, 1), nearest, points)
        return nearest, torch.where(high < 1, distances(nearest, images, self.norm), distance)


def search_named(name: str, norm: str, queries: int) -> Any:
    """The search called `name`, with at most `queries` passes per image. Raises RbError for other names."""
    searches: dict[str, Callable[[], Any]] = {
        "curve": lambda: CurveAttack(norm=norm, queries=queries),
        "fmn": lambda: fmn.FMN(norm=norm, steps=max(queries // 2, 1), eps=None),
    }
    if norm == "l2":
        searches |= {
            "ddn": lambda: ddn.DDN(steps=max(queries // 2, 1), eps=None),
            "cw-l2": lambda: cw_l2.CWL2(steps=max(queries // 2 // _SEARCHES, 1), eps=None),
        }
    for label in _ON_LABELS:
        cls = SEARCHES.load(label)
        fields = {"norm": norm} if "norm" in cls.__dataclass_fields__ else {}
        if fields or cls.norm == norm:
            searches[label] = functools.partial(cls, eps=None, queries=queries, **fields)
    if name not in searches:
        raise unknown(f"search in {norm}", name, searches)
    return searches[name]()


def nearer(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """For each example, the nearer of two points (N, C, H, W), and the distance (N,) of this point."""
    points = torch.where((other[1] < one[1]).view(-1, 1, 1, 1), other[0], one[0])
    return points, torch.minimum(one[1], other[1])
