"""The common parts of attacks on labels: the start, bisection, query counts and the nearest point so far.

A search consists of phases, in each of which the model is queried about the same kind of points for all
images. Images that have completed a phase wait for the others without queries, as do images that have no
queries left. The queries of an image therefore depend neither on the other images nor on how many queries are
left.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.attacks.active_examples import AttackBatch, may_be_true, rows_of, wide
from rbtools.attacks.drive import Iterate, SteppedAttack
from rbtools.attacks.losses import margin
from rbtools.attacks.oracle import oracle_of
from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from rbtools.attacks.oracle import Oracle
    from rbtools.rng.draws import Draws

START, BISECT, SEARCH = range(3)  # phases; an attack may have more
_STARTS = 100  # random images that are tried until one is misclassified
REACH = 0.01  # distance of random points from a boundary point, as a share of its distance
_PHASES = 8  # the largest number of successive phases without queries
_SPARE = 200  # steps in which images wait for others
_HALVINGS_OF_8_BITS = 11  # then the pixels of the two ends differ by an eighth of a grey level or less
AT = "at."  # begins the names of the results after fewer queries


def queries_param() -> Any:
    return param(5000, "Number of queries of the model for each image.", check="positive")


class DecisionAttack(SteppedAttack):
    """Base class of attacks on labels, which search for the nearest misclassified image with at most
    `queries` queries for each image. `run` also returns the distances as "distance" (N,), which are infinite
    if no misclassified image was found, and the number of queries as "asked" (N,).

    An attack defines `follow`, and `propose` and `learn` for the phase SEARCH and the phases after it. It may
    also define the other methods.
    """

    minimal: ClassVar[bool] = True
    precise: ClassVar[bool] = True
    uses_gradients: ClassVar[bool] = False
    uses_logits: ClassVar[bool] = False
    # Smaller numbers of queries after which the nearest points are also returned ("at.500").
    marks: tuple[int, ...] = ()
    queries: int
    unbroken = "nearest"

    @property
    def over_draws(self) -> bool:
        return False

    @property
    def any_counts(self) -> bool:
        return False

    @property
    def most_passes(self) -> int:
        return self.queries

    @property
    def length(self) -> int:
        return self.queries + _SPARE

    def marked(self, marks: tuple[int, ...]) -> Self:
        """A copy of the attack that also returns its points after these numbers of queries."""
        made = copy.copy(self)
        object.__setattr__(made, "marks", marks)  # no field: it does not change the search
        return made

    def run(
        self, model: Oracle, images: Tensor, labels: Tensor, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.threat.empty or len(images) == 0:
            return images.clone(), {}
        model = oracle_of(model)
        with torch.no_grad():
            found = model.partial.open(model)
            if found is None:
                batch = AttackBatch(images, labels, draws)
                state: Any = self.begin(batch, 0)
                self.drive(0, model, batch, False, state)
                found = model.partial.close(state.found(self.marks))
            points = found.pop("points")
            if self.eps is not None:
                points = torch.where(wide(found["distance"] <= self.eps, points), points, images)
        return points, found

    # The phases

    def limit(self, state: Any) -> int:
        """The largest number of steps in the current phase. A step can query several points."""
        return _STARTS if state.phase == START else state.halvings

    def wanted(self, state: Any) -> Tensor:
        """A mask (N,) of the images that need further queries in this phase."""
        moved: Tensor = state.moved
        return ~moved if state.phase == START else moved

    def propose(self, state: Any) -> Tensor:
        """The next points (N, B, C, H, W) to query in this phase."""
        if state.phase == START:
            noise: Tensor = state.draws.child("start").uniform(state.images.shape[1:], draw=state.place)
            return noise[:, None]
        middle: Tensor = state.between((state.low + state.high) / 2)
        return middle[:, None]

    def learn(self, state: Any, points: Tensor, wrong: Tensor) -> None:
        """Update the state from the points (N, B, C, H, W) of `propose` and the mask `wrong` (N, B) of the
        misclassified points."""
        if state.phase == START:
            state.far = torch.where(wide(wrong[:, 0], state.far), points[:, 0], state.far)
            state.moved = state.moved | wrong[:, 0]
        else:
            middle, asked = (state.low + state.high) / 2, state.asking[:, 0]
            state.high = torch.where(wrong[:, 0], middle, state.high)
            state.low = torch.where(asked & ~wrong[:, 0], middle, state.low)

    def follow(self, state: Any) -> int:
        """Prepare the next phase, and return it. `BISECT` follows the start."""
        raise NotImplementedError

    # The loop

    def fields(self, batch: AttackBatch) -> dict[str, Any]:
        """The fields of a `Decision` at the start, when no misclassified image is known."""
        images, size = batch.images.contiguous(), batch.images[0].numel()
        first = images.flatten(1)[:, 0]
        none, unreached = torch.zeros_like(first, dtype=torch.bool), torch.full_like(first, torch.inf)
        return {
            **{"images": images, "points": images, "goal": batch.goal(margin), "draws": batch.draws},
            "norm": self.norm,
            "halvings": math.ceil(math.log2((size if self.norm == "linf" else math.sqrt(size)) / REACH)),
            **{"nearest": images.clone(), "distance": unreached, "length": unreached},
            "at": images[:, None].repeat(1, len(self.marks), 1, 1, 1),
            **{"asked": torch.zeros_like(batch.labels), "asking": none[:, None]},
            **{"far": images, "moved": none, "low": torch.zeros_like(first), "high": torch.ones_like(first)},
        }

    def prepare(self, state: Any, step: int, due: bool) -> object:
        for turn in range(_PHASES if state.going else 0):
            left = state.asked < self.queries
            state.asks = self.wanted(state) & left
            some = may_be_true(state.asks) if turn or not due else bool(state.asks.any())
            if some and state.place < self.limit(state):
                return state.phase
            if not (some or bool((left & state.distance.isfinite()).any())):
                break
            state.phase, state.place = self.follow(state), 0
        state.going = 0
        return None

    def ask(self, state: Any, step: int) -> Tensor:
        state.tried = self.propose(state)
        number = torch.arange(state.tried.shape[1], device=state.asked.device)
        state.asking = state.asks[:, None] & (state.asked[:, None] + number < self.queries)
        return state.tried  # type: ignore[no-any-return]

    def question(self, state: Any, everyone: bool) -> Callable[..., Tensor]:
        return lambda points, goal: state.wrong(points, goal.labels)

    def tell(self, state: Any, seen: Tensor, step: int) -> None:
        state.asked = state.asked + state.asking.sum(1)
        points, state.tried = state.tried, None  # which need not be kept
        if points.shape[1] == 1:
            state.note(points[:, 0], seen[:, 0], self.marks)
        self.learn(state, points, seen)
        state.place += 1


@dataclass
class Decision(Iterate):
    """The state of a search, whose `points` (N, C, H, W) are on the misclassified side of the boundary, at
    the distances `length` (N,).

    `nearest` (N, C, H, W) are the nearest misclassified images so far, with their distances (N,), and `at`
    (N, M, C, H, W) are the nearest ones after fewer queries. `asked` (N,) are the numbers of queries, and
    `asking` (N, B) marks the points to query. `far` (N, C, H, W) are the misclassified ends of a bisection
    between the shares `low` and `high` (N,) of the way, for the images `moved` (N,). `place` is the number of
    steps in the phase so far, and `round` is the number of rounds of phases.
    """

    draws: Draws
    norm: str
    halvings: int
    nearest: Tensor
    distance: Tensor
    at: Tensor
    asked: Tensor
    asking: Tensor
    far: Tensor
    moved: Tensor
    low: Tensor
    high: Tensor
    length: Tensor
    phase: int = START
    place: int = 0
    round: int = 0
    going: int = 1
    tried: Tensor | None = None
    asks: Tensor = field(init=False)

    def wrong(self, points: Tensor, labels: Tensor) -> Tensor:
        """A mask (N, B) of the points (N, B, C, H, W) that the model misclassifies, false for points that are
        not queried. On a GPU, all points are queried, because a selection would make the host wait."""
        rows = torch.arange(len(points), device=labels.device).repeat_interleave(points.shape[1])
        chosen = rows_of(self.asking.flatten())
        rows = rows[chosen]
        wrong = self.model.take(rows).labels(points.flatten(0, 1)[chosen]) != labels[rows]
        if isinstance(chosen, slice):
            return wrong.view_as(self.asking) & self.asking
        return torch.zeros_like(chosen).masked_scatter(chosen, wrong).view_as(self.asking)

    def note(self, points: Tensor, wrong: Tensor, marks: tuple[int, ...]) -> None:
        """Keep the points (N, C, H, W) that are misclassified (the mask `wrong`, (N,)) and nearer than the
        nearest point so far."""
        if not may_be_true(wrong):
            return
        points = self.model.seen(points)
        length = ball.distances(points, self.images, self.norm)
        nearer = wrong & (length < self.distance)
        self.distance = torch.where(nearer, length, self.distance)
        self.nearest = torch.where(wide(nearer, points), points, self.nearest)
        for place, mark in enumerate(marks):
            early = wide(nearer & (self.asked <= mark), points)
            self.at[:, place] = torch.where(early, points, self.at[:, place])

    def between(self, share: Tensor) -> Tensor:
        """The points at these shares (N,) of the way from the images to the far ends. In L-infinity, these
        are the ends clipped to a ball."""
        share, change = wide(share, self.images), self.far - self.images
        if self.norm == "linf":
            reach = share * change.abs().flatten(1).amax(1).view(-1, 1, 1, 1)
            return self.images + torch.maximum(torch.minimum(change, reach), -reach)
        return self.images + share * change

    def bisect(self) -> int:
        """Prepare a bisection between images and far ends."""
        self.low, self.high = torch.zeros_like(self.low), torch.ones_like(self.high)
        self.halvings = min(self.halvings, _HALVINGS_OF_8_BITS) if self.model.eight_bit else self.halvings
        return BISECT

    def settle(self) -> None:
        """Move to the misclassified end of each bisection."""
        ends = self.between(self.high)
        self.points = torch.where(wide(self.moved, ends), ends, self.points)
        self.length = ball.distances(self.points, self.images, self.norm)

    def found(self, marks: tuple[int, ...]) -> dict[str, Tensor]:
        """The results of the search."""
        at = {f"{AT}{mark}": points for mark, points in zip(marks, self.at.unbind(1), strict=True)}
        return {"points": self.nearest, "distance": self.distance, "asked": self.asked, **at}


def directions(draws: Draws, count: int, shape: tuple[int, ...], draw: int, norm: str) -> Tensor:
    """Random directions (N, count, *shape) of L2 norm 1, which are uniform or, in L-infinity, the directions
    of uniform points in a cube. Each number is one of 256 quantiles, because eight random bits take a quarter
    of the time of 32."""
    size = count * math.prod(shape)
    words = draws.bits(-(-size // 4), draw).to(torch.int32)
    levels = (torch.arange(256, device=words.device) + 0.5) / 128 - 1
    table = levels if norm == "linf" else torch.erfinv(levels)
    vectors = table[words.view(torch.uint8)[:, :size].long()].view(len(words), count, -1)
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=2, keepdim=True)
    return vectors.div_(lengths).view(-1, count, *shape)
