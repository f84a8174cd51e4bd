"""The model under attack, which attacks query for logits, gradients and whether a point fools the model."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.attacks import lattice
from rbtools.attacks.losses import logit_margin
from rbtools.attacks.partial_results import PartialResults
from rbtools.attacks.steps import widen
from rbtools.errors import RbError
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.losses import AttackObjective
    from rbtools.attacks.steps import Objective
    from rbtools.attacks.verdicts import Judge


class Evaluated(NamedTuple):
    """The results at N points.

    `still_correct`, bool (N,), marks the correctly classified points. `loss` (S,) and `gradient` (S, C, H, W)
    are for the S correctly classified points, or with `everyone` for all points.
    """

    still_correct: Tensor
    loss: Tensor
    gradient: Tensor

    def take(self, index: Tensor) -> Evaluated:
        """Select some results by `index`, a mask if only correctly classified points have losses."""
        some = index if len(self.loss) == len(self.still_correct) else index[self.still_correct]
        return Evaluated(self.still_correct[index], self.loss[some], self.gradient[some])


class Losses(NamedTuple):
    """Results without gradients at `points` (N, C, H, W), with a mask (N,) of the correct ones."""

    points: Tensor
    still_correct: Tensor
    loss: Tensor

    def take(self, index: Tensor) -> Losses:
        return Losses(*(one[index] for one in self))


_NOTHING_KEPT = PartialResults()

# If most examples of a graph are broken, the graph is discarded: a second forward pass on the other examples
# costs less than a backward pass through all (which costs between one and two forward passes).
_WORTH_A_SECOND_FORWARD = 0.5


@dataclass
class PassCounts:
    """The numbers of forward passes, backward passes and zero gradients of an attack, summed over images.

    Zero gradients are counted among the `first` gradients. An example whose gradient is zero at the start
    does not move, which looks like robustness. `watch` is called with the progress, which is a string and the
    number of passes. The string is empty if an earlier process made them. `captures` is false after capturing
    passes as a CUDA graph has failed.
    """

    first: int = 0
    started: int = 0
    watch: Callable[[str, int], None] | None = None
    stage: str = ""
    forwards: int = 0
    backwards: int = 0
    captures: bool = True
    _zeros: list[Tensor] = field(default_factory=list)  # on the device, because reading makes the host wait

    def add(self, forwards: int, backwards: int) -> None:
        """Negative numbers remove passes that were only made because of other images in the batch."""
        self.forwards += forwards
        self.backwards += backwards
        if self.watch is not None:
            some = f"{self.forwards:,} pass{'es' * (self.forwards != 1)}"
            self.watch(f"{self.stage}{some}", self.forwards + self.backwards)

    def gradient(self, gradient: Tensor) -> None:
        """A hook that every backward pass calls."""
        self.backwards += len(gradient)
        if self.started < self.first and not (gradient.is_cuda and torch.cuda.is_current_stream_capturing()):
            gradient = gradient[: self.first - self.started]
            self.started += len(gradient)
            self._zeros.append((gradient == 0).flatten(1).all(1).sum())

    @property
    def zero_gradients(self) -> int:
        return int(torch.stack(self._zeros).sum()) if self._zeros else 0


class Oracle:
    """The model under attack, for images float32 (N, C, H, W) in [0, 1] and labels int64 (N,).

    `model` maps images to logits (N, K). `chunk_size` is the number of images to process at once, or None for
    all. If `model` is a fast copy, the exact model is `decides`, and a point counts as misclassified only if
    both models misclassify it. `judge` has a float32 copy, which decides for the exact model unless a point
    is nearly tied. If `model` is not in float32, `least` (N,) is its smallest margin at any point of each
    example. The evaluation uses it to find the examples whose outcome may be due to rounding. With
    `eight_bit`, the model receives the nearest 8-bit image of every point.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        chunk_size: int | None = None,
        decides: Callable[[Tensor], Tensor] | None = None,
        judge: Judge | None = None,
        *,
        passes: PassCounts | None = None,
    ) -> None:
        self.model, self.chunk_size, self.decides, self.judge = model, chunk_size, decides, judge
        self.passes = PassCounts() if passes is None else passes
        self.eight_bit = False
        self.partial = _NOTHING_KEPT
        self.least: Tensor | None = None
        self.rows: Tensor | slice = slice(None)  # of `least`

    def __call__(self, images: Tensor) -> Tensor:
        return self.logits(images)

    # Parts of a batch, and other views of the same model

    def take(self, rows: Tensor | slice) -> Oracle:
        """The oracle for some examples, given by positions or by a mask."""
        if self.least is None or (isinstance(rows, slice) and rows == slice(None)):
            return self
        some = copy.copy(self)
        some.rows = torch.arange(len(self.least), device=self.least.device)[self.rows][rows]
        return some

    def undecided(self) -> Oracle | None:
        """The fast copy without checks by the exact model, or None if there is no fast copy."""
        if self.decides is None:
            return None
        alone = copy.copy(self)
        alone.decides = None
        return alone

    @property
    def judged(self) -> bool:
        """True if `model` is the float32 copy that decides."""
        return self.judge is not None and self.model is self.judge.copy

    def exact(self) -> Oracle:
        """The exact model alone, or its float32 copy with the decisions of the exact model."""
        if self.decides is None or self.judged:
            return self
        alone = copy.copy(self)
        alone.least = None
        if self.judge is None:
            alone.model, alone.decides = self.decides, None
        else:
            alone.model = self.judge.copy
        return alone

    @property
    def randomised(self) -> bool:
        """True if the model is known to be randomised. Attacks then select points by their failure rates."""
        return bool(getattr(self.model, "randomised", False))

    def repeat_draws(self) -> None:
        """Make the next pass repeat the random numbers of the last pass, if the oracle controls them."""

    def memory(self) -> dict[str, Tensor]:
        """The values that passes change. After an interruption, `recall` restores them."""
        passes = self.passes
        counts = [passes.forwards, passes.backwards, passes.started, passes.zero_gradients]
        return {"counts": torch.tensor(counts), **({} if self.least is None else {"least": self.least})}

    def recall(self, memory: dict[str, Tensor]) -> None:
        forwards, backwards, self.passes.started, _ = memory["counts"].tolist()
        self.passes.forwards, self.passes.backwards = forwards, backwards
        self.passes._zeros = [memory["counts"][3]]  # on the device of the gradients that follow
        if self.passes.watch is not None:
            self.passes.watch("", forwards + backwards)
        if self.least is not None:
            self.least.copy_(memory["least"])

    # Answers

    def seen(self, points: Tensor) -> Tensor:
        """The images that the model receives for these points. Gradients are passed back to the points."""
        if not self.eight_bit:
            return points
        images = lattice.nearest(points.detach())
        return images + (points - points.detach()) if points.requires_grad else images

    def logits(self, points: Tensor) -> Tensor:
        """Logits (N, K) in float32 or higher precision, with a graph if the points require a gradient. Raises
        RbError for a model that does not accept images that require a gradient."""
        images = self.seen(points)
        self.passes.add(len(images), 0)
        if not (images.requires_grad and torch.is_grad_enabled()):
            return widen(self._in_pieces(self.model, images))
        inputs = images.view_as(images)
        inputs.register_hook(self.passes.gradient)
        try:
            return widen(self.model(inputs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if self._refuses_gradients(images[:1].detach()):
                raise not_differentiable() from error
            raise

    def _refuses_gradients(self, image: Tensor) -> bool:
        """Whether the model accepts an image (1, C, H, W) but rejects it if it requires a gradient."""
        for needed in (False, True):
            try:
                with torch.set_grad_enabled(needed):
                    self.model(image.requires_grad_(needed).view_as(image))
            except RuntimeError:
                return needed
        return False

    def loss(self, points: Tensor, objective: AttackObjective) -> Losses:
        """The objective at the points, without a gradient."""
        logits = self.logits(points)
        return Losses(points, self.still_correct(points, objective.labels, logits), objective(logits))

    def loss_and_gradient(
        self, points: Tensor, objective: AttackObjective, *, everyone: bool = False
    ) -> Evaluated:
        """The objective and its gradient with respect to correctly classified points (or all: `everyone`)."""
        points, parts = self.seen(points.detach()), []
        for rows in self.chunks(len(points)):
            some, goal = self.take(rows), objective.take(rows)
            inputs, logits = some.with_graph(points[rows])
            if everyone:
                correct = logits.detach().argmax(1) == goal.labels
                some._note(logits, goal.labels)
            else:
                correct = some.still_correct(points[rows], goal.labels, logits)
            count, kept = len(correct) if everyone else int(correct.sum()), correct
            if count == 0:
                parts.append(Evaluated(correct, logits.detach()[:0, 0], points[:0]))
                continue
            if count < _WORTH_A_SECOND_FORWARD * len(correct):
                del logits  # frees the graph
                goal = goal.take(correct)
                inputs, logits = self.with_graph(points[rows][correct])
                self.passes.add(-count, 0)
                kept = correct[correct]
            loss, gradient = self.differentiate(inputs, logits, goal)
            if count < len(kept):
                self.passes.add(0, count - len(kept))
                loss, gradient = loss[kept], gradient[kept]
            parts.append(Evaluated(correct, loss, gradient))
        return parts[0] if len(parts) == 1 else Evaluated(*map(torch.cat, zip(*parts, strict=True)))

    def labels(self, points: Tensor) -> Tensor:
        """The predicted classes (N,), for attacks that need only these. Each counts as one pass."""
        with torch.no_grad():
            return self.exact().logits(points).argmax(1)

    def still_correct(self, points: Tensor, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        """Whether each point is classified correctly by the copy or by the exact model: bool (N,). `logits`
        belong to the points."""
        if logits is None:
            with torch.no_grad():
                logits = self.logits(points)
        correct = logits.detach().argmax(1) == labels
        self._note(logits, labels)
        if self.decides is not None and not correct.all():
            wrong = ~correct
            if self.judge is not None and self.judged:
                wrong &= self.judge.tied(logits.detach())
            if wrong.any():
                correct[wrong] = self.verdict(points[wrong].detach(), labels[wrong])
        return correct

    def verdict(self, points: Tensor, labels: Tensor) -> Tensor:
        """A mask (N,) of the points that the exact model classifies correctly, and not only its fast copy."""
        if self.decides is None:
            return self.still_correct(points, labels)
        self.passes.forwards += len(points)
        model = self.decides
        if self.judge is not None:
            model = functools.partial(self.judge.logits, model)
        with torch.no_grad():
            return self._in_pieces(model, self.seen(points)).argmax(1).eq(labels)

    def with_graph(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """A copy of the points that requires a gradient, and its logits."""
        with torch.enable_grad():
            inputs = points.detach().requires_grad_(True)
            return inputs, self.logits(inputs)

    def differentiate(
        self, images: Tensor, logits: Tensor, objective: Objective, *, again: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The objective (N,) and its gradient with respect to `images`, from the logits of `images`.

        With `again`, the graph is kept for another gradient. If the logits do not depend on the images (an
        architecture without a connected path), the gradient is zero. Raises RbError if the logits depend on
        the images but are not differentiable.
        """
        with torch.enable_grad():
            value = objective(logits)
            total = value.sum()  # with grad_outputs, torch would import sympy to compare shapes: 0.5 s
        gradient = None
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(total, images, retain_graph=again, allow_unused=True)
        if gradient is None:
            self.need_constant(images, logits)
            gradient = torch.zeros_like(images)
        return value.detach(), gradient

    def need_constant(self, images: Tensor, logits: Tensor) -> None:
        """Raise RbError if logits without a gradient nevertheless depend on their images."""
        with torch.no_grad():
            if not torch.equal(self.logits(1 - images), logits):
                raise not_differentiable()

    # Chunks

    def chunks(self, count: int) -> Iterator[slice]:
        """Divides the rows of `count` examples into slices that go through the model at once. An attack
        receives more examples than fit in one slice, so slices remain full when examples are dropped."""
        size = self.chunk_size or max(count, 1)
        if count <= size:
            yield slice(None)
            return
        for start in range(0, count, size):
            yield slice(start, start + size)

    def in_chunks(self, count: int, part: Callable[[slice], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Compute the results of `part` in chunks, for all rows of `count` examples."""
        results = [part(rows) for rows in self.chunks(count)]
        return results[0] if len(results) == 1 else tuple(map(torch.cat, zip(*results, strict=True)))

    def _in_pieces(self, model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        if self.chunk_size is None or len(images) <= self.chunk_size:
            return model(images)
        return torch.cat([model(piece) for piece in images.split(self.chunk_size)])

    def _note(self, logits: Tensor, labels: Tensor) -> None:
        if self.least is not None:
            with torch.no_grad():
                margin = logit_margin(logits, labels)
                if isinstance(self.rows, slice):
                    self.least[self.rows] = torch.minimum(self.least[self.rows], margin)
                else:  # runs that share a batch have the same example several times
                    self.least.scatter_reduce_(0, self.rows, margin, "amin")


def oracle_of(model: Any) -> Oracle:
    """Return an `Oracle` unchanged, and wrap any other callable from images to logits."""
    return model if isinstance(model, Oracle) else Oracle(model)


def not_differentiable() -> RbError:
    return RbError(
        "The model's output has no gradient with respect to the image, so gradient attacks cannot run. Use"
        " attacks that need only outputs, such as square and noise."
    )
