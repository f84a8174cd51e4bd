"""FAB: steps onto the linearised decision boundary, with a bias towards the image."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses, pyauto
from rbtools.attacks.active_examples import check_schedule, may_be_true, misclassified, wide
from rbtools.attacks.apgd_ascent import border_start
from rbtools.attacks.base import ReferenceBackend, backend_param, norm_param
from rbtools.attacks.drive import Iterate, SteppedAttack
from rbtools.attacks.oracle import Losses
from rbtools.attacks.targets import Towards
from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.losses import AttackObjective
    from rbtools.attacks.oracle import Oracle
    from rbtools.attacks.pyauto import TameModel

ALPHA_MAX = 0.1  # the largest weight of the projection of the image
ETA = 1.05  # overshoot factor of a step beyond the linearised boundary
BETA = 0.9  # the share of the offset from the image that is kept once a point is adversarial


@dataclass(frozen=True, kw_only=True)
class FAB(ReferenceBackend, SteppedAttack):
    """Fast adaptive boundary attack (Croce and Hein 2020, arXiv:1907.02044), untargeted.

    The attack searches for the nearest adversarial example. An example is dropped as soon as an adversarial
    example within eps is found. Every step computes the gradients of all classes. The attack `fab-t` computes
    only one gradient and is therefore better suited to many classes. The first run starts at the image;
    further runs start at random points. Unbroken examples are returned unchanged.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "fab"
    version: ClassVar[int] = 1
    loss: ClassVar[str] = "logit-difference"
    targeted: ClassVar[bool] = False
    precise: ClassVar[bool] = True
    replayed: ClassVar[bool] = True
    unbroken = "images"

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    steps: int = param(100, "Number of steps.", check="positive")
    restarts: int = param(
        1, "Number of runs; all runs except the first start at a random point.", check="positive"
    )
    backend: str = backend_param()

    @property
    def random(self) -> bool:
        return self.restarts > 1

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self.drive, restart * classes) for restart in range(self.restarts)]

    def begin(self, batch: AttackBatch, restart: int) -> Iterate:
        """`restart` is the number of the run times the number of classes, plus the rank of the target."""
        assert batch.logits is not None
        number, rank = divmod(restart, batch.logits.shape[1])
        start, targets = batch.images, None
        if self.targeted:
            targets = losses.ranked_targets(batch.logits, batch.labels)[:, rank]
        if number:
            border = border_start(batch.images, batch.draws, self.eps, self.norm, restart)
            start = batch.images + (border - batch.images) / 2
        return Iterate(batch.images, start, batch.goal(losses.targeted_margin, targets))

    def ask(self, state: Iterate, step: int) -> Tensor:
        """Make a step onto the boundary, linearised at the current points."""
        find = _boundary if self.targeted else functools.partial(_nearest_boundary, self.norm)
        value, normal = state.model.in_chunks(len(state.points), functools.partial(find, state))
        state.points = _step(state, value.to(normal), normal, self.norm)
        return state.model.seen(state.points)

    def question(self, state: Iterate, everyone: bool) -> Callable[[Tensor, AttackObjective], Losses]:
        return functools.partial(self._near, state)

    def _near(self, state: Iterate, points: Tensor, goal: AttackObjective) -> Losses:
        """Classify the points within eps. The loss only shows whether a point is beyond the boundary."""
        logits = state.model.logits(points)
        over = logits.argmax(1) != goal.labels
        near = over & (length(points - state.images, self.norm) <= self.eps)
        return Losses(points, ~misclassified(near, state.model, points, goal.labels, logits), over)

    def tell(self, state: Iterate, seen: Losses, step: int) -> None:
        """Move the points beyond the boundary towards their images."""
        if may_be_true(seen.loss):
            offset = state.points - state.images
            state.points = torch.where(wide(seen.loss, offset), state.images + BETA * offset, state.points)

    def reference(self, tame: TameModel, images: Tensor, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
        from pyautoattack.fab_pt import FABAttack_PT

        perturb: Callable[[Tensor, Tensor], Tensor] = FABAttack_PT(
            tame,
            norm=pyauto.NORMS[self.norm],
            n_restarts=self.restarts,
            n_iter=self.steps,
            eps=self.eps,
            seed=seed,
            targeted=self.targeted,
            device=images.device,
            n_target_classes=min(getattr(self, "targets", 9), tame.classes - 1),
        ).perturb
        return perturb


@dataclass(frozen=True, kw_only=True)
class FABT(FAB):
    """Targeted fast adaptive boundary attack (Croce and Hein 2020, arXiv:1907.02044 and 2003.01690).

    The attack makes one run for each target, with steps onto the linearised boundary between the true class
    and the target. The targets are the wrong classes in decreasing order of their clean logits. An example is
    dropped as soon as a point within eps is classified as any wrong class. Unbroken examples are returned
    unchanged.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "fab-t"
    version: ClassVar[int] = 1
    targeted: ClassVar[bool] = True

    targets: int = param(9, "Number of wrong classes to use as targets (at most all).", check="positive")

    def stages(self, classes: int) -> list[Stage]:
        ranks = range(min(self.targets, classes - 1))
        if self.restarts == 1:
            return [Towards(self, (rank,)) for rank in ranks]
        starts = range(self.restarts)
        return [functools.partial(self.drive, start * classes + rank) for rank in ranks for start in starts]

    def rank(self, number: int) -> int:
        return number

    def towards(
        self, numbers: Sequence[int], model: Oracle, batch: AttackBatch, more: bool
    ) -> tuple[Tensor, Tensor]:
        """The runs from the image towards the classes with these ranks (rbtools.attacks.targets)."""
        goal = batch.goal(losses.targeted_margin, losses.targets_of(numbers, batch))
        return self.drive(0, model, batch, more, Iterate(batch.images, batch.images, goal))


def length(vectors: Tensor, norm: str) -> Tensor:
    """The norm of each example (N,)."""
    flat = vectors.flatten(1)
    if norm == "linf":
        return flat.abs().amax(1)
    return flat.abs().sum(1) if norm == "l1" else torch.linalg.vector_norm(flat, dim=1)


def _step(state: Iterate, value: Tensor, normal: Tensor, norm: str) -> Tensor:
    """The next point lies between the projections of the current point and of the image onto the boundary."""
    here, image, normal = state.points.flatten(1), state.images.flatten(1), normal.flatten(1)
    from_image = value + (normal * (image - here)).sum(1)
    both = shortest_way(
        torch.cat((here, image)), torch.cat((normal, normal)), torch.cat((value, from_image)), norm
    )
    ways = both[: len(here)], both[len(here) :]
    near, far = (length(way, norm).clamp_min(1e-8) for way in ways)
    alpha = (near / (near + far)).clamp_max(ALPHA_MAX)[:, None]
    moved = (1 - alpha) * (here + ETA * ways[0]) + alpha * (image + ETA * ways[1])
    return moved.clamp_(0, 1).view_as(state.points)


def _boundary(state: Iterate, rows: slice) -> tuple[Tensor, Tensor]:
    """The difference z_t - z_y (N,) and its gradient (N, C, H, W), for some examples."""
    some = state.model.take(rows)
    return some.differentiate(*some.with_graph(state.points[rows]), state.goal.take(rows))


def _nearest_boundary(norm: str, state: Iterate, rows: slice) -> tuple[Tensor, Tensor]:
    """The same as `_boundary`, but for the wrong class whose linearised boundary is nearest."""
    labels, model = state.goal.labels[rows], state.model.take(rows)
    inputs, logits = model.with_graph(state.points[rows])
    least = torch.full_like(logits[:, 0].detach(), torch.inf)
    value, normal = torch.zeros_like(least), torch.zeros_like(inputs).detach()
    for further in range(1, logits.shape[1]):  # each wrong class
        goal = losses.AttackObjective(losses.targeted_margin, labels, (labels + further) % logits.shape[1])
        one, slope = model.differentiate(inputs, logits, goal, again=True)
        away = one.abs() / (torch.linalg.vector_norm(slope.flatten(1), ord=ball.DUAL[norm], dim=1) + 1e-12)
        nearer = away < least
        least = torch.where(nearer, away, least)
        value = torch.where(nearer, one, value)
        normal = torch.where(wide(nearer, normal), slope, normal)
    return value, normal


_ROUNDS = 50
# The number of iterations on a GPU, where a check for convergence would wait. Converged rows do not change;
# the others continue in the next step of the attack.
_ROUNDS_UNCHECKED = 16


def shortest_way(points: Tensor, normal: Tensor, value: Tensor, norm: str) -> Tensor:
    """The smallest change d in `norm` for which value + <normal, d> = 0 and points + d is in [0, 1].

    If the box does not intersect the hyperplane, every coordinate moves to the border of the box. Coordinates
    whose normal is zero are not changed.

    Shape: points, normal and result are (N, d), and value is (N,).

    For linf and l2, a coordinate moves by min(t * speed, room) in the direction that decreases |value|. The
    speed is 1 in linf and |normal| in l2. The change of the value is concave and piecewise linear in t.
    Newton's method from t = 0 therefore approaches the solution from below, and needs at most one iteration
    for each linear piece. In l1, coordinates move to the border of the box one after another, in descending
    order of |normal|. The last coordinate that moves covers only part of the distance to the border.
    """
    slope = normal.abs()
    direction = normal.sign().mul_(-value.sign()[:, None])
    # the distance to the border of the box; comparisons would cost three times as much
    room = 0.5 - direction * (points - 0.5)
    if norm == "l1":
        return direction.mul_(_steepest_first(slope, room, value.abs()))
    speed = slope if norm == "l2" else None
    rate = slope if speed is None else slope.square()
    wanted = value.abs()
    t = torch.zeros_like(wanted)
    gain, pace, move = t, rate.sum(1), torch.zeros_like(room)
    for _ in check_schedule(points.device).rounds(_ROUNDS, _ROUNDS_UNCHECKED):
        short = wanted - gain
        ahead = (short > 1e-6 * wanted) & (pace > 0)
        if not may_be_true(ahead):
            break
        t = torch.where(ahead, t + short / pace.clamp_min(torch.finfo(pace.dtype).tiny), t)
        reach = t[:, None] if speed is None else t[:, None] * speed
        move = torch.minimum(room, reach)
        gain = (slope * move).sum(1)
        pace = torch.where(room > reach, rate, 0.0).sum(1)
    return direction.mul_(move)


def _steepest_first(slope: Tensor, room: Tensor, wanted: Tensor) -> Tensor:
    """The moves (N, d) with the smallest L1 norm for which the sum of slope * move is `wanted` (N,)."""
    slopes, order = slope.sort(dim=1, descending=True)
    rooms = room.gather(1, order)
    gains = slopes * rooms
    missing = wanted[:, None] - (gains.cumsum(1) - gains)
    moves = torch.where(slopes > 0, missing / slopes, 0.0).clamp_min_(0).minimum(rooms)
    return torch.zeros_like(moves).scatter_(1, order, moves)
