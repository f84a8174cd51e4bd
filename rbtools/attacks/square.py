"""Square, a random search with squares of pixels, without gradients. In L1 it follows Croce and Hein 2021.

A query is skipped if its square changes nothing, or if the same square was rejected since the best image last
changed. The images advance through their queries independently, which keeps the batches full.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import losses, pyauto
from rbtools.attacks.active_examples import may_be_true, rows_of, wide
from rbtools.attacks.base import ReferenceBackend, backend_param, norm_param
from rbtools.attacks.drive import Iterate, SteppedAttack
from rbtools.attacks.oracle import Losses
from rbtools.lazy import torch
from rbtools.registry import param, rare_param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch
    from rbtools.attacks.losses import AttackObjective
    from rbtools.attacks.pyauto import TameModel
    from rbtools.rng.draws import Draws

HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The queries, out of 10,000, after which the share of pixels in a square is halved (paper, section 4)."""
_AT_ONCE = 64  # queries whose random words are generated together
_WORDS = 5  # words per query: row and column of two corners; the channels' signs, with one bit for a rotation
_BLOCK = 8 * _AT_ONCE  # an image may be at most this many queries ahead of another
_MOST_SQUARES = 1 << 15  # different squares of one side; if there are more, few occur twice
_DECAY = {"l2": 2, "l1": 4}  # how fast eta falls with the distance from its centre


@dataclass(frozen=True, kw_only=True)
class Square(ReferenceBackend, SteppedAttack):
    """Square attack (Andriushchenko et al. 2020, arXiv:1912.00049), L-infinity, L2 and L1.

    The attack is a random search that decreases the margin z_y - (largest other logit) and uses only the
    logits of the model. The squares are random and independent for each image. A square that would change
    nothing needs no forward pass, but it counts as a query. An example is dropped as soon as a point fools
    the model. Unbroken examples are returned unchanged.

    The fraction of the pixels in a square is initially p and is halved after 10, 50, 200, 500, 1000, 2000,
    4000, 6000 and 8000 queries. With schedule "fixed", these numbers do not depend on --queries, as in
    AutoAttack. With "rescaled", they are multiplied by queries / 10,000, as in the paper and in torchattacks.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,).
    """

    name: ClassVar[str] = "square"
    words: ClassVar[str] = "Square"
    version: ClassVar[int] = 2
    random: ClassVar[bool] = True
    uses_gradients: ClassVar[bool] = False
    replayed: ClassVar[bool] = True
    unbroken = "images"
    waits: ClassVar[int] = 2  # for the broken examples, and for the end of a block
    loss: ClassVar[str] = "margin"

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    queries: int = rare_param(5000, "Number of queries of the model.", check="positive")
    p: float = param(0.8, "Fraction of the pixels that the first squares cover.", check="fraction")
    schedule: str = param(
        "fixed",
        "Schedule for shrinking the squares: after fixed numbers of queries (AutoAttack, Jung et al.), or"
        " after fractions of --queries with rescaled (the paper, torchattacks, NAS-RobBench-201).",
        choices=("fixed", "rescaled"),
    )
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")
    backend: str = backend_param()

    @property
    def most_passes(self) -> int:
        return self.draws_each * self.restarts * self.queries

    def share(self, query: int) -> float:
        """The share of the image's pixels in the square of this query. Queries are counted from 0."""
        if self.schedule == "rescaled":
            query = int(query / self.queries * 10000)
        return float(self.p / 2 ** sum(query > after for after in HALVED_AFTER))

    def side(self, query: int, height: int, width: int) -> int:
        """The side of a query's square in pixels. In l2 and l1, the side is odd and at least 3."""
        side = max(round(math.sqrt(self.share(query) * height * width)), 1)
        if self.norm != "linf":
            side = max(side, 3) | 1
        return min(side, height, width)

    @property
    def length(self) -> int:
        """The first step queries the start, and each further step makes one query."""
        return self.queries + 1

    def begin(self, batch: AttackBatch, restart: int) -> _SquareState:
        images, eps, norm = batch.images.contiguous(), self.eps, self.norm
        start = _stripes(batch, eps, restart) if norm == "linf" else _tiles(batch, eps, norm, restart)
        blocks = _blocks([self.side(query, *images.shape[2:]) for query in range(self.queries)])
        first_draw = restart * (math.ceil(self.queries / _AT_ONCE) + 1)
        goal = batch.goal(losses.margin)
        return _SquareState(images, start, goal, batch.draws, eps, norm, blocks, first_draw)

    def prepare(self, state: _SquareState, step: int, due: bool) -> object:
        """Begin a new block of queries. If all images have finished the queries of their block, its remaining
        steps are skipped."""
        if not step:
            return ()
        side = self.side(step - 1, *state.images.shape[2:])
        if step - 1 in state.blocks:
            words = _words(state.draws.child("squares"), state.first_draw, state.blocks[step - 1])
            state.start_block(words, side)
        if due and state.going:
            state.going = bool((state.next < state.words.shape[1]).any())
        return side if state.going else None

    def ask(self, state: _SquareState, step: int) -> Tensor:
        return state.tried(self.side(step - 1, *state.images.shape[2:])) if step else state.points

    def question(self, state: _SquareState, everyone: bool) -> Callable[[Tensor, AttackObjective], Losses]:
        return state.model.loss if state.changed is None else functools.partial(_of_changed, state)

    def tell(self, state: _SquareState, seen: Losses, step: int) -> None:
        if step:
            state.keep_better(seen)
        else:
            state.loss, state.fooled = seen.loss, ~seen.still_correct

    def reference(self, tame: TameModel, images: Tensor, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
        from pyautoattack.square import SquareAttack

        square = SquareAttack(
            tame,
            norm=pyauto.NORMS[self.norm],
            n_queries=self.queries,
            eps=self.eps,
            p_init=self.p,
            n_restarts=self.restarts,
            seed=seed,
            resc_schedule=self.schedule == "rescaled",
            device=images.device,
        )
        pyauto.mend_ties(square)
        perturb: Callable[[Tensor, Tensor], Tensor] = square.perturb
        return perturb


@dataclass
class _SquareState(Iterate):
    """`points` are the best images so far, with their loss (N,). `fooled` (N,) marks the examples that were
    misclassified before, and `changed` (N,) those that the current squares change.

    `blocks` maps the first query of each block to the block. For a block of Q queries, `words` (N, Q, 5) are
    the random words, `next` (N,) is the index of the next query, and `going` is false if no image has a query
    left. In linf, if there are few different squares, `numbers` (N, Q) identifies the square of each query,
    and `rejected` (N, squares) marks squares that do not increase the loss of the best image.
    """

    draws: Draws
    eps: float
    norm: str
    blocks: dict[int, range]
    first_draw: int
    loss: Tensor = field(init=False)
    fooled: Tensor = field(init=False)
    words: Tensor = field(init=False)
    next: Tensor = field(init=False)
    numbers: Tensor = field(init=False)
    rejected: Tensor | None = None
    going: bool = True
    changed: Tensor | None = None

    def start_block(self, words: Tensor, side: int) -> None:
        """Begin a block of Q queries. If the side is new, no square is marked as rejected."""
        self.words, self.next = words.to(self.images.device), torch.zeros_like(self.goal.labels)
        self.going = True
        channels, height, width = self.points.shape[1:]
        rows, columns = height - side + 1, width - side + 1
        squares = rows * columns << channels
        if self.norm != "linf" or squares > _MOST_SQUARES:  # in l2 and l1 a square depends on the best image
            self.rejected = None
            return
        top, left = _corners(self.words[..., :2], rows, columns)
        signs = self.words[..., 4] & ((1 << channels) - 1)
        self.numbers = ((top * columns + left) << channels) + signs
        if self.rejected is None or self.rejected.shape[1] != squares:
            self.rejected = torch.zeros(len(top), squares, dtype=torch.bool, device=top.device)
        self._skip_rejected()

    def tried(self, side: int) -> Tensor:
        """The best images with the next square of each image."""
        count, flat = self.words.shape[1], self.points.flatten(2)
        rows = torch.arange(len(flat), device=flat.device)
        words = self.words[rows, self.next.clamp_max(count - 1)]
        at, values = (_patch_linf if self.norm == "linf" else _patch_lp)(self, words, side)
        changed = (flat.gather(2, at) != values).flatten(1).any(1) & (self.next < count)
        if self.model.randomised and changed.any():
            # Both losses need the same random numbers: otherwise a loss that is high by chance would remain.
            some = self.model.take(changed)
            self.loss[changed] = some.loss(self.points[changed], self.goal.take(changed)).loss
            some.repeat_draws()
        self.changed = changed
        return flat.scatter(2, at, values).view_as(self.points)

    def keep_better(self, seen: Losses) -> None:
        """Keep the squares that increase the loss, and advance to the next queries that need the model."""
        fooled, going = ~seen.still_correct, self.next < self.words.shape[1]
        better = (seen.loss > self.loss) | fooled
        self.loss = torch.where(better, seen.loss, self.loss)
        self.points = torch.where(wide(better, self.points), seen.points, self.points)
        self.fooled = self.fooled | fooled
        if self.rejected is not None:
            last = self.numbers.gather(1, self.next.clamp_max(self.numbers.shape[1] - 1)[:, None])
            self.rejected.scatter_(1, last, self.rejected.gather(1, last) | going[:, None])
            self.rejected[better] = False
        self.next = self.next + going.long()
        self._skip_rejected()

    def _skip_rejected(self) -> None:
        if self.rejected is None:
            return
        answered, count = self.rejected.gather(1, self.numbers), self.numbers.shape[1]
        query = torch.arange(count, device=answered.device)
        answered |= query < self.next[:, None]
        self.next = torch.where(answered, count, query).amin(1)


def _blocks(sides: list[int]) -> dict[int, range]:
    """Divide the queries into blocks of at most _BLOCK queries, whose squares have the same side."""
    queries = range(len(sides))
    starts = [query for query in queries if query % _BLOCK == 0 or sides[query] != sides[query - 1]]
    return {start: range(start, stop) for start, stop in itertools.pairwise([*starts, len(sides)])}


def _words(draws: Draws, first: int, queries: range) -> Tensor:
    """The random words (N, Q, 5) of these queries, in [0, 2^32)."""
    drawn = [
        draws.bits(_WORDS * _AT_ONCE, draw=first + number)
        for number in range(queries[0] // _AT_ONCE, queries[-1] // _AT_ONCE + 1)
    ]
    words = torch.cat(drawn, 1).view(len(drawn[0]), -1, _WORDS)
    return words[:, queries[0] % _AT_ONCE :][:, : len(queries)]


def _of_changed(state: _SquareState, points: Tensor, goal: AttackObjective) -> Losses:
    """The loss of the images that the squares change; the loss of the other images is known."""
    assert state.changed is not None
    loss, correct = state.loss.clone(), torch.ones_like(state.changed)
    if may_be_true(state.changed):
        rows = rows_of(state.changed)
        _, correct[rows], loss[rows] = state.model.take(rows).loss(points[rows], goal.take(rows))
        loss = torch.where(state.changed, loss, state.loss)
        # If only the fast copy was fooled before, and not the model, the loss must rise further.
        correct |= ~state.changed | (state.fooled & (loss <= state.loss))  # does not apply to NaN
    return Losses(points, correct, loss)


def _stripes(batch: AttackBatch, eps: float, restart: int) -> Tensor:
    """The start in linf: vertical stripes of x + eps or x - eps, with random signs per channel."""
    channels, width = batch.images.shape[1], batch.images.shape[3]
    bits = batch.draws.child("stripes").integers(2, (channels, 1, width), draw=restart)
    signs: Tensor = bits.to(batch.images) * 2 - 1
    return (batch.images + eps * signs).clamp_(0, 1).contiguous()


def _corners(words: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Maps random words (..., 2) in [0, 2^32) to a row in [0, rows) and a column in [0, columns)."""
    return (words[..., 0] * rows) >> 32, (words[..., 1] * columns) >> 32


def _window(words: Tensor, side: int, like: Tensor) -> Tensor:
    """The flat pixel positions (N, C, side * side) of a square, from two random words (N, 2)."""
    channels, height, width = like.shape[1:]
    top, left = _corners(words, height - side + 1, width - side + 1)
    reach = torch.arange(side, device=words.device)
    inside = (reach[:, None] * width + reach).view(1, -1)
    return ((top * width + left)[:, None] + inside)[:, None].expand(-1, channels, -1)


def _signs(words: Tensor, channels: int) -> Tensor:
    """One random bit per channel: bool (N, C, 1)."""
    numbers = torch.arange(channels, device=words.device) % 32
    return ((words[:, None] >> numbers) & 1).bool()[:, :, None]


def _patch_linf(state: _SquareState, words: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Algorithm 2: the pixels inside a square become x + eps or x - eps, with one sign per channel. Returns
    flat positions and new values of pixels (N, C, side * side)."""
    at = _window(words[:, :2], side, state.points)
    x = state.images.flatten(2).gather(2, at)
    values = torch.where(_signs(words[:, 4], x.shape[1]), x + state.eps, x - state.eps)
    return at, values.clamp_(0, 1)


def _eta_half(rows: int, columns: int, norm: str) -> Tensor:
    """One half of the paper's eta (section 3.3), of length 1. At distance d from the centre (the larger of
    rows and columns), the value is the sum of 1 / (k + 1)^2 over k from d to the largest distance. In L1, the
    exponent is 4, as in AutoAttack's code."""
    distance = torch.maximum(
        (torch.arange(rows) - rows // 2).abs()[:, None], (torch.arange(columns) - columns // 2).abs()
    )
    terms = 1 / torch.arange(1, max(rows, columns) // 2 + 2).float() ** _DECAY[norm]
    half: Tensor = terms.flip(0).cumsum(0).flip(0)[distance]
    unit: Tensor = half / half.norm(p=ball.ORDER[norm])
    return unit


@functools.lru_cache(maxsize=64)
def _eta(side: int, norm: str, device: torch.device) -> Tensor:
    """The paper's eta (side, side), of length 1: two bumps of opposite sign, one above the other. The result
    is cached on the device, because a copy to a GPU makes the host wait."""
    lower = _eta_half(side - side // 2, side, norm)
    eta = torch.cat((_eta_half(side // 2, side, norm), -lower)) if side > 1 else lower
    unit: Tensor = eta / eta.norm(p=ball.ORDER[norm])
    return unit.to(device)


def _turned_etas(turned: Tensor, side: int, norm: str) -> Tensor:
    """Eta for each example (N, side * side), rotated by 90 degrees if `turned` (N,) is true."""
    upright = _eta(side, norm, turned.device)
    return torch.where(turned[:, None], upright.T.reshape(1, -1), upright.reshape(1, -1))


def _tiles(batch: AttackBatch, eps: float, norm: str, restart: int) -> Tensor:
    """The start in l2 and l1: a grid of about five by five etas, with a random sign for each eta and channel.
    In l2, the etas are scaled to length eps, and the start is clipped. In l1, the start is projected."""
    images = batch.images
    count, channels, height, width = images.shape
    side = max(min(height, width) // 5, 1)
    corners = [
        (top, left)
        for top in range(min(height % side, height - side) // 2, height - side + 1, side)
        for left in range(min(width % side, width - side) // 2, width - side + 1, side)
    ]
    bits = batch.draws.child("tiles").integers(2, (len(corners), channels + 1), draw=restart)
    bits = bits.to(images.device)
    offset = torch.zeros_like(images, memory_format=torch.contiguous_format)
    for number, (top, left) in enumerate(corners):
        eta = _turned_etas(bits[:, number, -1].bool(), side, norm).view(count, 1, side, side)
        signs = (bits[:, number, :-1] * 2 - 1).view(count, channels, 1, 1)
        offset[:, :, top : top + side, left : left + side] = eta * signs
    return _within(images, offset, eps, norm).contiguous()


def _within(images: Tensor, offset: Tensor, eps: float, norm: str) -> Tensor:
    """The images plus the offset, in ball and box. In l2, the offset is first scaled to length eps."""
    if norm == "l1":
        return ball.project(images + offset, images, eps, norm)
    return (images + eps * ball.unit(offset)).clamp_(0, 1)


def _unit_rows(rows: Tensor, norm: str) -> Tensor:
    """Each channel's values (N, C, P), scaled to length 1."""
    length: Tensor = torch.linalg.vector_norm(rows, ord=ball.ORDER[norm], dim=2, keepdim=True)
    return rows / length.clamp_min(1e-12)


def _patch_lp(state: _SquareState, words: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Algorithm 3: a new eta in the first of two windows receives the length of both windows and the unused
    part of eps.

    In l2, the squared lengths are added. In l1, the lengths are added, and each channel's share is multiplied
    by the number of channels, as in AutoAttack's code. Returns flat positions and new values of all pixels
    (N, C, H * W).
    """
    norm, channels = state.norm, state.points.shape[1]
    w1, w2 = (_window(corner, side, state.points) for corner in (words[:, :2], words[:, 2:4]))
    nu = (state.points - state.images).flatten(2)
    emptied = nu.scatter(2, w2, 0.0).scatter_(2, w1, 0.0)
    before, after = (nu.abs(), emptied.abs()) if norm == "l1" else (nu.square(), emptied.square())
    unused = (state.eps ** ball.ORDER[norm] - before.sum((1, 2))).clamp_min(0).view(-1, 1, 1)
    windows = before.sum(2, keepdim=True) - after.sum(2, keepdim=True)
    available = windows.clamp_min(0) + unused / channels
    length = available * channels if norm == "l1" else available.sqrt()
    rho = torch.where(_signs(words[:, 4], channels), 1.0, -1.0)
    eta = _turned_etas(((words[:, 4] >> 31) & 1).bool(), side, norm)[:, None]
    mixed = rho * eta + _unit_rows(nu.gather(2, w1), norm)
    nu = emptied.scatter(2, w1, _unit_rows(mixed, norm) * length)
    values = _within(state.images, nu.view_as(state.points), state.eps, norm).flatten(2)
    return torch.arange(values.shape[2], device=values.device).expand_as(values), values
