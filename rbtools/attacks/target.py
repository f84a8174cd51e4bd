"""The interface between attacks and a model: logits, gradients, and whether a point fools the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.attacks.partial_results import PartialResults
from rbtools.attacks.steps import widen
from rbtools.errors import RbError
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.losses import AttackObjective
    from rbtools.attacks.steps import Objective


class Evaluated(NamedTuple):
    """The results at N points.

    `still_correct`, bool (N,), marks the correctly classified points. `loss` (S,) and `gradient` (S, C, H, W)
    are for the S correctly classified points, or with `everyone` for all points.
    """

    still_correct: Tensor
    loss: Tensor
    gradient: Tensor

    def take(self, index: Tensor) -> Evaluated:
        """If only correctly classified points have losses, `index` must select all such points."""
        some = index if len(self.loss) == len(self.still_correct) else slice(None)
        return Evaluated(self.still_correct[index], self.loss[some], self.gradient[some])


_NOTHING_KEPT = PartialResults()

# If most examples of a graph are broken, the graph is discarded: a second forward pass on the other examples
# costs less than a backward pass through all (which costs between one and two forward passes).
_WORTH_A_SECOND_FORWARD = 0.5


class Network:
    """A model under attack, for images float32 (N, C, H, W) in [0, 1] and labels int64 (N,).

    `chunk_size` is the number of images to process at once, or None for all images.
    """

    _captures = True

    def __init__(self, model: Callable[[Tensor], Tensor], chunk_size: int | None = None) -> None:
        self.model, self.chunk_size = model, chunk_size

    def __call__(self, images: Tensor) -> Tensor:
        return self.model(images)

    @property
    def randomised(self) -> bool:
        """True if the model is known to be randomised. Attacks then select points by their failure rates."""
        return bool(getattr(self.model, "randomised", False))

    def stage(self, words: str) -> None:
        """Receives the description of the stage that begins, for the status line."""

    def logits(self, images: Tensor) -> Tensor:
        """Logits (N, K) in float32 or higher precision, with a graph if the images require a gradient. Raises
        RbError for a model that does not accept images that require a gradient."""
        try:
            logits = self(images)
        except RuntimeError as error:
            if images.requires_grad and "requires grad" in str(error):
                raise not_differentiable() from error
            raise
        return widen(logits)

    def loss_and_gradient(
        self, points: Tensor, objective: AttackObjective, *, everyone: bool = False
    ) -> Evaluated:
        """The objective and its gradient with respect to correctly classified points (or all: `everyone`)."""
        return Evaluated(
            *self.in_chunks(
                len(points),
                lambda rows: self._loss_and_gradient(points[rows], objective.take(rows), everyone),
            )
        )

    def _loss_and_gradient(self, points: Tensor, objective: AttackObjective, everyone: bool) -> Evaluated:
        inputs, logits = self.with_graph(points)
        if everyone:
            correct = logits.detach().argmax(1) == objective.labels
            return Evaluated(correct, *differentiate(self, inputs, logits, objective))
        correct = self.still_correct(points, objective.labels, logits)
        count = int(correct.sum())
        if count == 0:
            return Evaluated(correct, logits.detach()[:0, 0], points[:0])
        if count < _WORTH_A_SECOND_FORWARD * len(correct):
            del logits  # frees the graph
            inputs, logits = self.with_graph(points[correct])
            self.count(-count, 0)
            return Evaluated(correct, *differentiate(self, inputs, logits, objective.take(correct)))
        loss, gradient = differentiate(self, inputs, logits, objective)
        if count < len(correct):
            self.count(0, count - len(correct))
            loss, gradient = loss[correct], gradient[correct]
        return Evaluated(correct, loss, gradient)

    def with_graph(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """A copy of the points that requires a gradient, and its logits."""
        with torch.enable_grad():
            inputs = points.detach().requires_grad_(True)
            return inputs, self.logits(inputs)

    def still_correct(self, points: Tensor, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        """Whether the model itself classifies each point correctly (N,). `logits` belong to the points."""
        if logits is None:
            with torch.no_grad():
                logits = self.logits(points)
        return logits.detach().argmax(1) == labels

    def verdict(self, points: Tensor, labels: Tensor) -> Tensor:
        """The points that the exact model, and not only its fast copy, classifies correctly: bool (N,)."""
        return self.still_correct(points, labels)

    def take(self, rows: Tensor | slice) -> Network:
        """The target for some examples, by positions or by a mask. A plain model is the same for all."""
        return self

    def repeat_draws(self) -> None:
        """Let the next pass repeat the random numbers of the last pass, if the target controls them."""

    def seen(self, points: Tensor) -> Tensor:
        """The images that the model receives for these points (N, C, H, W)."""
        return points

    def undecided(self) -> Network | None:
        """The fast copy without checks by the exact model, or None for a network without a fast copy."""
        return None

    @property
    def captures(self) -> bool:
        """True unless a capture of passes as a CUDA graph has failed."""
        return self.model.captures if isinstance(self.model, Network) else self._captures

    @captures.setter
    def captures(self, known: bool) -> None:
        if isinstance(self.model, Network):
            self.model.captures = known
        else:
            self._captures = known

    @property
    def counted(self) -> tuple[int, int]:
        """The number of images that went forward and backward through the model, or 0 if not counted."""
        return self.model.counted if isinstance(self.model, Network) else (0, 0)

    @property
    def partial(self) -> PartialResults:
        """The partial results of the attack on this network."""
        return self.model.partial if isinstance(self.model, Network) else _NOTHING_KEPT

    def memory(self) -> dict[str, Tensor]:
        """The values that passes change, for `recall`, which sets them again."""
        return self.model.memory() if isinstance(self.model, Network) else {}

    def recall(self, memory: dict[str, Tensor]) -> None:
        if isinstance(self.model, Network):
            self.model.recall(memory)

    def once(self, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The results of a part of an attack, computed or as they were kept (`PartialResults.once`)."""
        return self.partial.once(compute, self.memory, self.recall)

    def count(self, forwards: int, backwards: int) -> None:
        """Add passes that the model did not count. Negative numbers remove passes that an image made only
        because of other images in its batch."""
        if isinstance(self.model, Network):
            self.model.count(forwards, backwards)

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
        """The results of `part` for all rows of `count` examples, computed in chunks."""
        results = [part(rows) for rows in self.chunks(count)]
        return results[0] if len(results) == 1 else tuple(map(torch.cat, zip(*results, strict=True)))


def as_target(model: Any) -> Network:
    """Return a `Network` unchanged, and wrap any other callable from images to logits."""
    return model if isinstance(model, Network) else Network(model)


def not_differentiable() -> RbError:
    return RbError(
        "The model's output has no gradient with respect to the image, so attacks by gradients cannot run."
        " Only the attacks 'square' and 'noise' apply: they use outputs alone."
    )


def differentiate(
    target: Network, images: Tensor, logits: Tensor, objective: Objective, *, again: bool = False
) -> tuple[Tensor, Tensor]:
    """The objective (N,) and its gradient with respect to `images`, from the logits of `images`.

    With `again`, the graph is kept for another gradient. If the logits do not depend on the images (an
    architecture without a connected path), the gradient is zero. Raises RbError if the logits depend on the
    images but are not differentiable.
    """
    with torch.enable_grad():
        value = objective(logits)
        total = value.sum()  # with grad_outputs, torch would import sympy to compare shapes: 0.5 s
    gradient = None
    if value.requires_grad:
        (gradient,) = torch.autograd.grad(total, images, retain_graph=again, allow_unused=True)
    if gradient is None:
        need_constant(target, images, logits)
        gradient = torch.zeros_like(images)
    return value.detach(), gradient


def need_constant(target: Network, images: Tensor, logits: Tensor) -> None:
    """Raise RbError if logits without a gradient nevertheless depend on their images."""
    with torch.no_grad():
        if not torch.equal(target.logits(1 - images), logits):
            raise not_differentiable()
