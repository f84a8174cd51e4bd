"""Square: random search with squares of pixels, without gradients; in L1 as in Croce and Hein 2021.

The best image so far is one buffer: a proposal writes its square into it, and if the margin does not fall the
old square is written back. Random numbers belong to the example and are drawn for many queries at a time.

A square that changes nothing, or was rejected since the best image last changed, needs no query. Each image
advances through its queries independently, so that batches stay full.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import pyauto, steps
from rbtools.attacks.active_examples import ActiveExamples, CheckSchedule, ExampleRows
from rbtools.attacks.base import ReferenceBackend, backend_param, norm_param
from rbtools.attacks.losses import best_other, of_class
from rbtools.attacks.replays import Replays
from rbtools.lazy import torch
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.pyauto import TameModel
    from rbtools.attacks.target import Network
    from rbtools.rng.draws import Draws

    # Takes the state, random words (N, 5) and the side in pixels; returns a patch for each image.
    Propose = Callable[["_SquareState", Tensor, int], "_Patch"]

HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The queries, of 10,000, after which the share of pixels in a square is halved (section 4 of the paper)."""
_AT_ONCE = 64  # queries whose random words are drawn together
_WORDS = 5  # words per query: two corners, and the signs of the channels
_BLOCK = 8 * _AT_ONCE  # the most queries by which an image may be ahead of another
_MOST_SQUARES = 1 << 15  # squares in an image; with more, few are drawn twice
_ORDER = {"l2": 2, "l1": 1}
_DECAY = {"l2": 2, "l1": 4}  # how fast a bump falls with the distance from its centre


@dataclass(frozen=True, kw_only=True)
class Square(ReferenceBackend):
    """Square attack (Andriushchenko et al. 2020, arXiv:1912.00049), L-infinity, L2 and L1.

    A random search that lowers the margin z_y - max of the others and uses only the logits of the model.
    Every image has its own squares. A square that would change nothing costs no query of the model. An
    example that is fooled is dropped. Unbroken examples are returned unchanged.

    The share of the pixels in a square starts at p and is halved after 10, 50, 200, 500, 1000, 2000, 4000,
    6000 and 8000 queries. With schedule "fixed" these numbers do not depend on --queries, as in AutoAttack;
    with "rescaled" they are multiplied by queries / 10,000, as in the paper and in torchattacks.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    """

    name: ClassVar[str] = "square"
    version: ClassVar[int] = 2
    random: ClassVar[bool] = True
    loss: ClassVar[str] = "margin"

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    queries: int = param(5000, "Number of queries of the model.", check="positive")
    p: float = param(0.8, "Share of the pixels in the first squares.", check="fraction")
    schedule: str = param(
        "fixed",
        "Whether the squares shrink after fixed numbers of queries (AutoAttack; Jung et al.), or after shares"
        " of --queries (the paper; torchattacks, and so NAS-RobBench-201).",
        choices=("fixed", "rescaled"),
    )
    restarts: int = param(1, "Number of runs from new random starts.", check="positive")
    backend: str = backend_param()

    def stages(self, classes: int) -> list[Stage]:
        return [functools.partial(self._search, restart) for restart in range(self.restarts)]

    def share(self, query: int) -> float:
        """Share of the pixels in the square of a query, counted from 0."""
        if self.schedule == "rescaled":
            query = int(query / self.queries * 10000)
        return float(self.p / 2 ** sum(query > after for after in HALVED_AFTER))

    def side(self, query: int, height: int, width: int) -> int:
        """Side of the square of a query in pixels; odd and at least 3 in l2 and l1, where it needs a
        centre."""
        side = max(round(math.sqrt(self.share(query) * height * width)), 1)
        if self.norm != "linf":
            side = max(side, 3) | 1
        return min(side, height, width)

    def _search(self, restart: int, model: Network, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        """One run: images (N, C, H, W) in [0, 1], and which are broken (N,)."""
        eps, norm, (height, width) = self.eps, self.norm, batch.images.shape[2:]
        sides = [self.side(query, height, width) for query in range(self.queries)]
        schedule = batch.schedule
        if not schedule.each_step:  # two checks: which images are active, and whether a block is at its end
            schedule = CheckSchedule(2 * schedule.every)
        active, images = ActiveExamples(batch, schedule), batch.images.contiguous()
        best = _stripes(batch, eps, restart) if norm == "linf" else _tiles(batch, eps, norm, restart)
        draws, first = batch.draws, restart * (-(-len(sides) // _AT_ONCE) + 1)
        margin, fooled = _ask(model, best, batch.labels)
        low, high = (images - eps).clamp_(0, 1), (images + eps).clamp_(0, 1)
        state = _SquareState(batch.labels, best, margin, images, low, high, words=margin, next=margin)
        state, draws, model = active.update(-1, fooled, state.best, state, draws, model)
        propose = _square_linf if norm == "linf" else functools.partial(_squares, eps=eps, norm=norm)

        def query() -> None:
            nonlocal state, draws, model
            fooled = _try(model, state, propose, side, schedule.each_step)
            state, draws, model = active.update(-1, fooled, state.best, state, draws, model)

        make_query = Replays(model, state, query, active)
        for queries in _blocks(sides):
            if not len(active):
                break
            state.words = _words(draws.child("squares"), first, queries).to(images.device)
            side = sides[queries[0]]
            if norm == "linf":
                _number_squares(state, side, new_side=queries[0] == 0 or sides[queries[0] - 1] != side)
            state.next = torch.zeros_like(state.labels)
            _skip_known(state)
            for tried in range(len(queries)):
                if schedule.due(tried - 1) and not (state.next < len(queries)).any():
                    break
                make_query(side)
                state, draws, model = active.check(tried, state, draws, model)
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
    """The examples that are not broken: their best image so far, its margin, and its bounds.

    Of a block of Q queries: words (N, Q, 5); next (N,), the first query that is not yet made; and if every
    square of the side has a number, numbers (N, Q) and rejected (N, squares): those known not to lower the
    margin of the best image.
    """

    labels: Tensor
    best: Tensor
    margin: Tensor
    images: Tensor
    low: Tensor
    high: Tensor
    words: Tensor
    next: Tensor
    numbers: Tensor | None = None
    rejected: Tensor | None = None


def _blocks(sides: list[int]) -> Iterator[range]:
    """The queries in ranges of one side, each inside a block of _BLOCK."""
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


def _number_squares(state: _SquareState, side: int, *, new_side: bool) -> None:
    """Number the squares of the block's queries; with a new side none is rejected yet."""
    channels, height, width = state.best.shape[1:]
    rows, columns = height - side + 1, width - side + 1
    squares = rows * columns << channels
    if squares > _MOST_SQUARES:
        state.numbers = state.rejected = None
        return
    top, left = _corner(state.words[..., 0], rows), _corner(state.words[..., 1], columns)
    signs = state.words[..., 4] & ((1 << channels) - 1)
    state.numbers = ((top * columns + left) << channels) + signs
    if new_side:
        state.rejected = torch.zeros(len(state.labels), squares, dtype=torch.bool, device=state.labels.device)


def _advance(state: _SquareState, going: Tensor, better: Tensor) -> None:
    """Advance the `going` images (N,) to the next query that needs the model; the last query of the `better`
    ones (N,) was accepted.
    """
    if state.numbers is not None and state.rejected is not None:
        last = state.numbers.gather(1, state.next.clamp_max(state.numbers.shape[1] - 1)[:, None])
        state.rejected.scatter_(1, last, state.rejected.gather(1, last) | going[:, None])
        state.rejected[better] = False
    state.next = state.next + going.long()
    _skip_known(state)


def _skip_known(state: _SquareState) -> None:
    """Leave out the queries that propose a rejected square."""
    if state.numbers is not None and state.rejected is not None:
        answered, count = state.rejected.gather(1, state.numbers), state.numbers.shape[1]
        query = torch.arange(count, device=answered.device)
        answered |= query < state.next[:, None]
        state.next = torch.where(answered, count, query).amin(1)


@dataclass
class _Patch:
    """Windows of a batch of images: flat positions of their pixels (N, P) and new values (N, C, P)."""

    at: Tensor
    values: Tensor


def _try(model: Network, state: _SquareState, propose: Propose, side: int, each: bool) -> Tensor:
    """Put each image's next patch into its best image if that lowers the margin; return which examples it
    fools (N,). `each`: find first which images change, and query the model for these alone.
    """
    count = state.words.shape[1]
    going = state.next < count
    words = state.words[torch.arange(len(going), device=going.device), state.next.clamp_max(count - 1)]
    patch = propose(state, words, side)
    flat = state.best.flatten(2)
    at = patch.at[:, None].expand_as(patch.values)
    old = flat.gather(2, at)
    changed = (old != patch.values).flatten(1).any(1) & going
    if model.randomised and changed.any():
        # A mean over other draws is no measure for the next point: a lucky one would never be beaten.
        some = model.take(changed)
        state.margin[changed] = _ask(some, state.best[changed], state.labels[changed])[0]
        some.repeat_draws()
    flat.scatter_(2, at, patch.values)
    if not each:
        margin, fooled = _ask(model, state.best, state.labels)
        margin = torch.where(changed, margin, state.margin)
        # A fast copy may have been fooled before, and the model not: the margin goes on to fall.
        fooled &= ~(margin >= state.margin)  # not where it is NaN
    elif changed.all():
        margin, fooled = _ask(model, state.best, state.labels)
    else:
        margin, fooled = state.margin.clone(), torch.zeros_like(changed)
        if changed.any():
            margin[changed], fooled[changed] = _ask(
                model.take(changed), state.best[changed], state.labels[changed]
            )
    better = (margin < state.margin) | fooled
    state.margin = torch.where(better, margin, state.margin)
    flat.scatter_(2, at, torch.where(better[:, None, None], patch.values, old))
    _advance(state, going, better)
    return fooled


def _ask(model: Network, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(z_y - the largest other logit (N,), which images are misclassified (N,))."""
    logits = model.logits(images)
    wrong = ~model.still_correct(images, labels, logits)
    return of_class(logits, labels) - best_other(logits, labels), wrong


def _stripes(batch: AttackBatch, eps: float, restart: int) -> Tensor:
    """Vertical stripes: x + eps or x - eps, one sign per channel and column, clipped to the box."""
    channels, width = batch.images.shape[1], batch.images.shape[3]
    bits = batch.draws.child("stripes").integers(2, (channels, 1, width), draw=restart)
    signs: Tensor = bits.to(batch.images) * 2 - 1
    return (batch.images + eps * signs).clamp_(0, 1).contiguous()


def _corner(words: Tensor, spaces: int) -> Tensor:
    """Words in [0, 2^32) as whole numbers in [0, spaces)."""
    return (words * spaces) >> 32


def _window(top: Tensor, left: Tensor, side: int, width: int) -> Tensor:
    """Flat positions (N, side * side) of the pixels of a square."""
    reach = torch.arange(side, device=top.device)
    inside = (reach[:, None] * width + reach).view(1, -1)
    return (top * width + left)[:, None] + inside


def _signs(words: Tensor, channels: int) -> Tensor:
    """One bit per channel: bool (N, C, 1)."""
    numbers = torch.arange(channels, device=words.device) % 32
    return ((words[:, None] >> numbers) & 1).bool()[:, :, None]


def _square_linf(state: _SquareState, words: Tensor, side: int) -> _Patch:
    """x + eps or x - eps, one sign per channel, inside a square."""
    channels, height, width = state.best.shape[1:]
    top, left = _corner(words[:, 0], height - side + 1), _corner(words[:, 1], width - side + 1)
    at = _window(top, left, side, width)
    wide = at[:, None].expand(-1, channels, -1)
    high, low = (bound.flatten(2).gather(2, wide) for bound in (state.high, state.low))
    return _Patch(at, torch.where(_signs(words[:, 4], channels), high, low))


def _bump(rows: int, columns: int, norm: str) -> Tensor:
    """The paper's eta (section 3.3) on a rectangle, of length 1: a pixel at distance d from the centre
    (the larger of its two) has the sum of 1 / (k + 1)^2 over k from d to the largest distance; in L1 of
    1 / (k + 1)^4, as in AutoAttack's code."""
    distance = torch.maximum(
        (torch.arange(rows) - rows // 2).abs()[:, None], (torch.arange(columns) - columns // 2).abs()
    )
    terms = 1 / torch.arange(1, max(rows, columns) // 2 + 2).float() ** _DECAY[norm]
    bump: Tensor = terms.flip(0).cumsum(0).flip(0)[distance]
    unit: Tensor = bump / bump.norm(p=_ORDER[norm])
    return unit


@functools.lru_cache(maxsize=64)
def _pattern(side: int, norm: str, device: torch.device) -> Tensor:
    """Two bumps of opposite sign, one above the other, of length 1 (side, side).

    Cached on the device, because a copy to a GPU makes the host wait.
    """
    half = side // 2
    if half:
        pattern: Tensor = torch.cat((_bump(half, side, norm), -_bump(side - half, side, norm)))
    else:
        pattern = _bump(side, side, norm)
    unit: Tensor = pattern / pattern.norm(p=_ORDER[norm])
    return unit.to(device)


def _patterns(turned: Tensor, side: int, norm: str) -> Tensor:
    """A pattern per example (N, side * side), rotated by 90 degrees where `turned` (N,)."""
    upright = _pattern(side, norm, turned.device)
    return torch.where(turned[:, None], upright.T.reshape(1, -1), upright.reshape(1, -1))


def _tiles(batch: AttackBatch, eps: float, norm: str, restart: int) -> Tensor:
    """A grid of about five patterns a side, each with a sign per channel; of length eps, clipped to the
    box (l2), or projected onto ball and box (l1)."""
    images = batch.images
    count, channels, height, width = images.shape
    side = max(min(height, width) // 5, 1)
    corners = [
        (top, left)
        for top in range(min(height % side, height - side) // 2, height - side + 1, side)
        for left in range(min(width % side, width - side) // 2, width - side + 1, side)
    ]
    bits = (
        batch.draws.child("tiles").integers(2, (len(corners), channels + 1), draw=restart).to(images.device)
    )
    offset = torch.zeros_like(images, memory_format=torch.contiguous_format)
    for number, (top, left) in enumerate(corners):
        pattern = _patterns(bits[:, number, -1].bool(), side, norm).view(count, 1, side, side)
        signs = (bits[:, number, :-1] * 2 - 1).view(count, channels, 1, 1)
        offset[:, :, top : top + side, left : left + side] = pattern * signs
    return _within(images, offset, eps, norm).contiguous()


def _within(images: Tensor, offset: Tensor, eps: float, norm: str) -> Tensor:
    """Images in ball and box: the offset stretched to length eps and clipped (l2), or projected (l1)."""
    if norm == "l1":
        return steps.project(images + offset, images, eps, norm)
    return (images + eps * steps.unit(offset)).clamp_(0, 1)


def _unit_rows(rows: Tensor, norm: str) -> Tensor:
    """Each channel's values (N, C, P) scaled to length 1."""
    length: Tensor = torch.linalg.vector_norm(rows, ord=_ORDER[norm], dim=2, keepdim=True)
    return rows / length.clamp_min(1e-12)


def _squares(state: _SquareState, words: Tensor, side: int, eps: float, norm: str) -> _Patch:
    """Algorithm 3: the length of two windows, and the rest of eps, go into a new pattern in one of them.

    In l2 the squares of lengths add up. In l1 lengths do, and each channel gets its share times the number of
    channels, as in AutoAttack's code; the projection removes the excess.
    """
    count, channels, height, width = state.best.shape
    spaces = height - side + 1, width - side + 1
    into = _window(_corner(words[:, 0], spaces[0]), _corner(words[:, 1], spaces[1]), side, width)
    out_of = _window(_corner(words[:, 2], spaces[0]), _corner(words[:, 3], spaces[1]), side, width)
    offset = (state.best - state.images).flatten(2)
    there = into[:, None].expand(-1, channels, -1)
    inside = offset.gather(2, there)
    emptied = offset.scatter(2, out_of[:, None].expand(-1, channels, -1), 0.0).scatter_(2, there, 0.0)
    sizes, left = (offset.abs(), emptied.abs()) if norm == "l1" else (offset.square(), emptied.square())
    unused = (eps ** _ORDER[norm] - sizes.sum((1, 2))).clamp_min(0).view(count, 1, 1)
    taken = sizes.sum(2, keepdim=True) - left.sum(2, keepdim=True)
    share = taken.clamp_min(0) + unused / channels
    length = share * channels if norm == "l1" else share.sqrt()
    turned = ((words[:, 4] >> 31) & 1).bool()
    signs = torch.where(_signs(words[:, 4], channels), 1.0, -1.0)
    pattern = signs * _patterns(turned, side, norm)[:, None] + _unit_rows(inside, norm)
    fresh = emptied.scatter(2, there, _unit_rows(pattern, norm) * length).view_as(state.best)
    moved = _within(state.images, fresh, eps, norm).flatten(2)
    everywhere = torch.arange(height * width, device=moved.device).expand(count, -1)
    return _Patch(everywhere, moved)
