"""AT-PR: adversarial training on the point that is deepest inside the wrong class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.registry import param
from rbtools.training.base import Method, Terms, cross_entropy, mode, truth

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class ATPR(Method):
    """AT-PR (PRBench, algorithm 2): CE(x') at the candidate x' that is farthest from being right again.

    Each of `candidates` is the end of an attack on the cross-entropy from a uniform start, with a step
    size and a number of steps of its own, drawn for each image. From a candidate that is classified wrong
    a walk goes down the loss, in its own step size, until it is right, at most `walk_steps` steps; the
    walk's L-infinity length says how deep the candidate lies. Trained is the deepest, or, where none is
    wrong, the one of highest loss.

    PRBench prints neither the ranges of step size and steps nor the distance; it prints the walk along the
    gradient itself (`walk="grad"`), whose length is that of the gradient: "sign" follows the gradient's
    signs, "margin" those of the margin to the likeliest wrong class. Walks stay in [0, 1]. The model is in
    eval mode in attack and walk.
    """

    name: ClassVar[str] = "at-pr"
    version: ClassVar[int] = 1
    inner: ClassVar[str | None] = "candidates"

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    candidates: int = param(5, "Attacks to choose from.", check="positive")
    step_min: float = param(
        1 / 255, "Shortest step of an attack and its walk.", unit="eps", check="non-negative"
    )
    step_max: float = param(4 / 255, "Longest step.", unit="eps", check="non-negative")
    steps_min: int = param(5, "Fewest steps of an attack.", check="positive")
    steps_max: int = param(15, "Most steps of an attack.", check="positive")
    walk: str = param("sign", "Direction of the walk back.", choices=("sign", "grad", "margin"))
    walk_steps: int = param(10, "Most steps of a walk.", check="positive")

    def __post_init__(self) -> None:
        for least, most, unit in (("step_min", "step_max", 255), ("steps_min", "steps_max", 1)):
            low, high = getattr(self, least) * unit, getattr(self, most) * unit
            if low > high:
                raise RbError(
                    f"{least} of training method 'at-pr' is {low:g} and {most} is {high:g}. Expected {least}"
                    f" to be {most} or less."
                )

    @property
    def reach(self) -> float:
        """How far the longest attack leads, in pixel units of [0, 1]."""
        return self.steps_max * self.step_max

    @property
    def passes(self) -> tuple[int, int]:
        most = self.candidates * (self.steps_max + self.walk_steps) + 1
        return most, most

    @property
    def solves_in_eval(self) -> bool:
        return True

    def solve(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        import torch

        best = images.clone()
        depth = torch.full_like(images.flatten(1)[:, 0], -torch.inf)
        loss = torch.full_like(depth, -torch.inf)
        with torch.no_grad(), mode(model, train=False):
            for number in range(self.candidates):
                own = draws.child(f"candidate {number}")
                sizes = self.step_sizes(images, own)
                candidate = self.attacked(model, images, labels, own, sizes)
                deep, high = self.depth(model, candidate, labels, sizes)
                # Any depth beats none (-inf); where no candidate so far is wrong, the loss decides.
                better = (deep > depth) | ((deep == -torch.inf) & (depth == -torch.inf) & (high > loss))
                best[better], depth[better], loss[better] = candidate[better], deep[better], high[better]
        return best

    def step_sizes(self, images: Tensor, draws: Any) -> Tensor:
        """A step size for each image, shaped to broadcast."""
        sizes: Tensor = draws.child("size").uniform((1, 1, 1)).to(images)
        return self.step_min + (self.step_max - self.step_min) * sizes

    def attacked(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Any, sizes: Tensor) -> Tensor:
        """The end of each image's attack; an image that has done its steps leaves the batch."""
        import torch

        from rbtools.attacks import steps

        # On the CPU: who goes on is then known without waiting for a GPU at each step.
        counts = self.steps_min + draws.child("steps").integers(self.steps_max - self.steps_min + 1).cpu()
        perturbed = steps.uniform_start(images, draws, self.eps)
        for done in range(int(counts.max())):
            at = torch.nonzero(counts > done)[:, 0].to(images.device, non_blocking=True)
            objective = steps.cross_entropy(labels[at])
            perturbed[at], _ = steps.pgd_step(
                model, perturbed[at], images[at], objective, eps=self.eps, step_size=sizes[at]
            )
        return perturbed

    def depth(
        self, model: nn.Module, candidate: Tensor, labels: Tensor, sizes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(depth, loss) of each candidate (N,); the depth of one that is classified right is -inf."""
        import torch

        from rbtools.attacks import losses, steps

        classes, walked = truth(labels), candidate.clone()
        depth = torch.full_like(candidate.flatten(1)[:, 0], -torch.inf)
        loss = torch.zeros_like(depth)
        at = torch.arange(len(candidate), device=candidate.device)
        for step in range(self.walk_steps):
            goal = classes[at]
            objective = steps.cross_entropy(labels[at])
            if self.walk == "margin":
                objective = losses.Goal(losses.margin, goal, goal)
            gradient, logits = steps.input_gradient(model, walked[at], objective)
            if step == 0:
                loss = cross_entropy(logits, labels).to(loss)
            wrong = logits.argmax(1) != goal
            at, gradient = at[wrong], gradient[wrong]
            if not len(at):
                break
            direction = gradient if self.walk == "grad" else gradient.sign()
            walked[at] = (walked[at] - sizes[at] * direction).clamp_(0, 1)
            depth[at] = (walked[at] - candidate[at]).flatten(1).abs().amax(1)
        return depth, loss

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, solved: Any) -> Terms:
        logits = model(solved)
        return Terms(cross_entropy(logits, labels), adversarial=logits)
