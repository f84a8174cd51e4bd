"""Square: random search with squares of pixels, without gradients. In L1 it follows Croce and Hein 2021.

The best image so far is a single buffer. A query writes its square into this buffer, and the old pixels are
written back if the margin does not decrease. A query is skipped if its square changes nothing, or if the same
square was rejected since the best image last changed. The images advance through their queries independently,
which keeps the batches full.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import pyauto
from rbtools.attacks.active_examples import ActiveExamples, ExampleRows, may_be_true, rows_of
from rbtools.attacks.base import ReferenceBackend, backend_param, norm_param
from rbtools.attacks.losses import best_other, of_class
from rbtools.attacks.partial_results import continued, keep
from rbtools.attacks.replays import Replays
from rbtools.lazy import torch
from rbtools.registry import param
from rbtools.threats import ball

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.oracle import Oracle
    from rbtools.attacks.pyauto import TameModel
    from rbtools.rng.draws import Draws

HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The queries, of 10,000, after which the share of pixels in a square is halved (section 4 of the paper)."""
_AT_ONCE = 64  # queries whose random words are generated together
_WORDS = 5  # words per query: row and column of two corners; the channels' signs, with one bit for a rotation
_BLOCK = 8 * _AT_ONCE  # an image may be at most this many queries ahead of another
_MOST_SQUARES = 1 << 15  # different squares of one side; if there are more, few occur twice
_DECAY = {"l2": 2, "l1": 4}  # how fast eta falls with the distance from its centre


@dataclass(frozen=True, kw_only=True)
class Square(ReferenceBackend):
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
    version: ClassVar[int] = 2
    random: ClassVar[bool] = True
    uses_gradients: ClassVar[bool] = False
    loss: ClassVar[str] = "margin"

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    queries: int = param(5000, "Number of queries of the model.", check="positive")
    p: float = param(0.8, "Fraction of the pixels that the first squares cover.", check="fraction")
    schedule: str = param(
        "fixed",
        "Schedule that shrinks the squares: after fixed numbers of queries (AutoAttack, Jung et al.) "
        "or, rescaled, after fractions of --queries (the paper, torchattacks, NAS-RobBench-201).",
        choices=("fixed", "rescaled"),
    )
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")
    backend: str = backend_param()

    @property
    def most_passes(self) -> int:
        return self.draws_each * self.restarts * self.queries

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self._search, restart) for restart in range(self.restarts)]

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

    def _search(self, restart: int, model: Oracle, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        """Make one run. Returns images (N, C, H, W) in [0, 1], and a mask (N,) of the broken examples."""
        sides = [self.side(query, *batch.images.shape[2:]) for query in range(self.queries)]
        schedule = batch.schedule.seldom(2)  # a check waits twice: for the active images, and a block's end
        active, images = ActiveExamples(batch, schedule), batch.images.contiguous()
        eps, norm = self.eps, self.norm
        best = _stripes(batch, eps, restart) if norm == "linf" else _tiles(batch, eps, norm, restart)
        margin, fooled = _ask(model, best, batch.labels)
        state = _SquareState(batch.labels, best, margin, images, batch.draws, eps, norm)
        state, model = active.update(-1, fooled, state.best, state, model)
        done, state, model = continued(model, state, active)

        def query() -> None:
            nonlocal state, model
            fooled = _try(model, state, side, active.marked)
            state, model = active.update(-1, fooled, state.best, state, model)

        make_query = Replays(model, state, query, active)
        first_draw = restart * (math.ceil(len(sides) / _AT_ONCE) + 1)
        for queries in _blocks(sides):
            if not len(active):
                break
            if queries.stop <= done:
                continue
            side = sides[queries[0]]
            if queries.start >= done:
                state.start_block(_words(state.draws.child("squares"), first_draw, queries), side)
            for tried in range(max(done - queries.start, 0), len(queries)):
                if schedule.due(tried - 1) and not (state.next < len(queries)).any():
                    break
                make_query(side)
                state, model = active.check(tried, state, model)
                keep(model, state, active, queries.start + tried + 1)
        return active.finish()

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
class _SquareState(ExampleRows):
    """The examples that are not broken, with the best image so far and its margin.

    For a block of Q queries, `words` (N, Q, 5) are the random words, and `next` (N,) is the index of the next
    query. In linf, if there are few different squares, `numbers` (N, Q) identifies the square of each query,
    and `rejected` (N, squares) marks squares that do not decrease the margin of the best image.
    """

    labels: Tensor
    best: Tensor
    margin: Tensor
    images: Tensor
    draws: Draws
    eps: float
    norm: str
    words: Tensor = field(init=False)
    next: Tensor = field(init=False)
    numbers: Tensor = field(init=False)
    rejected: Tensor | None = None

    def start_block(self, words: Tensor, side: int) -> None:
        """Begin a block of Q queries. If the side is new, no square is marked as rejected."""
        self.words, self.next = words.to(self.images.device), torch.zeros_like(self.labels)
        channels, height, width = self.best.shape[1:]
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

    def advance(self, going: Tensor, better: Tensor) -> None:
        """Advance the images `going` (N,) to their next query that needs the model. `better` (N,) are the
        images whose last query was accepted."""
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


def _blocks(sides: list[int]) -> Iterator[range]:
    """Divide the queries into ranges inside blocks of _BLOCK queries, whose squares have the same side."""
    start = 0
    for query in range(1, len(sides) + 1):
        if query == len(sides) or query % _BLOCK == 0 or sides[query] != sides[start]:
            yield range(start, query)
            start = query


def _words(draws: Draws, first: int, queries: range) -> Tensor:
    """The random words (N, Q, 5) of these queries, in [0, 2^32)."""
    drawn = [
        draws.bits(_WORDS * _AT_ONCE, draw=first + number)
        for number in range(queries[0] // _AT_ONCE, queries[-1] // _AT_ONCE + 1)
    ]
    words = torch.cat(drawn, 1).view(len(drawn[0]), -1, _WORDS)
    return words[:, queries[0] % _AT_ONCE :][:, : len(queries)]


def _try(model: Oracle, state: _SquareState, side: int, marked: Tensor) -> Tensor:
    """Write each image's next square into its best image if this decreases the margin. Returns a mask (N,) of
    the newly misclassified examples. `marked` (N,) are those that were misclassified before."""
    count = state.words.shape[1]
    going = state.next < count
    words = state.words[torch.arange(len(going), device=going.device), state.next.clamp_max(count - 1)]
    at, values = (_patch_linf if state.norm == "linf" else _patch_lp)(state, words, side)
    flat = state.best.flatten(2)
    old = flat.gather(2, at)
    changed = (old != values).flatten(1).any(1) & going
    if model.randomised and changed.any():
        # Both margins need the same random numbers: otherwise a margin that is low by chance would remain.
        some = model.take(changed)
        state.margin[changed] = _ask(some, state.best[changed], state.labels[changed])[0]
        some.repeat_draws()
    flat.scatter_(2, at, values)
    margin, fooled = state.margin.clone(), torch.zeros_like(changed)
    if may_be_true(changed):
        rows = rows_of(changed)
        margin[rows], fooled[rows] = _ask(model.take(rows), state.best[rows], state.labels[rows])
        margin = torch.where(changed, margin, state.margin)
        # If only the fast copy was fooled before, and not the model, the margin must continue to fall.
        fooled &= changed & ~(marked & (margin >= state.margin))  # does not apply to NaN
    better = (margin < state.margin) | fooled
    state.margin = torch.where(better, margin, state.margin)
    flat.scatter_(2, at, torch.where(better[:, None, None], values, old))
    state.advance(going, better)
    return fooled


def _ask(model: Oracle, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns z_y - (largest other logit) (N,), and a mask (N,) of the misclassified images."""
    logits = model.logits(images)
    wrong = ~model.still_correct(images, labels, logits)
    return of_class(logits, labels) - best_other(logits, labels), wrong


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
    at = _window(words[:, :2], side, state.best)
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
    norm, channels = state.norm, state.best.shape[1]
    w1, w2 = (_window(corner, side, state.best) for corner in (words[:, :2], words[:, 2:4]))
    nu = (state.best - state.images).flatten(2)
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
    values = _within(state.images, nu.view_as(state.best), state.eps, norm).flatten(2)
    return torch.arange(values.shape[2], device=values.device).expand_as(values), values
