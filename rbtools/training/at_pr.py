"""AT-PR: adversarial training on the candidate that lies deepest inside a wrong class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from rbtools.attacks import losses, steps
from rbtools.attacks.active_examples import uploaded, wide
from rbtools.errors import RbError
from rbtools.lazy import Tensor, nn, torch
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.threats import ball
from rbtools.training.base import LossTerms, Method, cross_entropy, mode, truth

Solution: TypeAlias = "Tensor | tuple[Tensor, Tensor | None]"

_CLOSE = 4  # decimals when depths of equal steps are compared, because they differ by rounding


class CandidateSettings(NamedTuple):
    """The step size and radius of a candidate, both (N, 1, 1, 1), and its number of steps (N,) on the CPU."""

    step_size: Tensor
    eps: Tensor
    steps: Tensor


class Walk(NamedTuple):
    """The depth of each candidate (-inf without a step), its cross-entropy, both (N,), and the points before
    the last step of the walk (N, C, H, W). The points are None if no candidate made a step."""

    depth: Tensor
    loss: Tensor
    last: Tensor | None


@dataclass(frozen=True, kw_only=True)
class ATPR(Method[Solution]):
    """AT-PR (PRBench, algorithm 2). The loss is CE(x') at the candidate x' that is farthest from being
    classified correctly. Each of `candidates` is the result of an attack on the cross-entropy from a uniform
    start. The step size and the number of steps of a candidate are random for each image. From a
    misclassified candidate, a walk (the paper's word) descends the loss with the candidate's step size. The
    walk ends when the point is classified correctly, or after `walk_steps` steps. The depth of a candidate is
    the L-infinity distance between the start and the end of its walk. The model is trained on the deepest
    candidate. If no candidate is misclassified, it is trained on the candidate with the highest loss.

    PRBench's paper specifies neither the ranges of step size and number of steps nor the distance. In the
    paper, the walk follows the unnormalised gradient (`walk="grad"`). The walk "sign" follows the signs of
    the gradient, and "margin" the signs of the gradient of the margin to the most probable wrong class. Walks
    stay in [0, 1].

    PRBench's code (wellzline/PRBenchmark, attack_algorithms.py, PR) differs in each option whose help
    mentions the code; --preset prbench-code sets these options. In the code, the first candidate is the
    result of the plain attack, and settings are sampled once per batch. The misclassified images of a batch
    walk together, in equal steps, until all but a tenth are classified correctly.
    """

    name = "at-pr"
    inner = "candidates"

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    candidates: int = param(
        5, "Number of attacks to choose from. PRBench's paper uses 5, and its code uses 10.", check="positive"
    )
    step_min: float = param(
        1 / 255,
        "Smallest step size of an attack. PRBench's code uses 1.235; its paper does not specify it.",
        unit="eps",
        check="non-negative",
    )
    step_max: float = param(
        4 / 255,
        "Largest step size of an attack. PRBench's code uses 2.765; its paper does not specify it.",
        unit="eps",
        check="non-negative",
    )
    steps_min: int = param(
        5,
        "Smallest number of steps of an attack. PRBench's code uses 8; its paper does not specify it.",
        check="positive",
    )
    steps_max: int = param(
        15,
        "Largest number of steps of an attack. PRBench's code uses 17; its paper does not specify it.",
        check="positive",
    )
    walk: str = param(
        "sign",
        "Direction of the walk back: grad as in PRBench's paper, sign as in its code and in both presets,"
        " or margin.",
        choices=("sign", "grad", "margin"),
    )
    walk_steps: int = param(
        10,
        "Largest number of steps of a walk. PRBench's code uses 40; its paper does not specify it.",
        check="positive",
    )
    inner_mode: str = param(
        "eval",
        "Mode of the model in attacks and walks: eval as in PRBench's paper, or train as in its code.",
        choices=("eval", "train"),
        optional=True,
    )
    eps_spread: float = param(
        0.0,
        "The radius of a candidate is drawn between eps minus this number and eps. PRBench's paper uses"
        " 0, and its code uses 5.1.",
        unit="eps",
        check="non-negative",
        optional=True,
    )
    settings: str = param(
        "image",
        "Draw the settings of a candidate for each image as in PRBench's paper, or for each batch as"
        " in its code.",
        choices=("image", "batch"),
        optional=True,
    )
    first: str = param(
        "drawn",
        "Settings of the first candidate: random (drawn) as in PRBench's paper, or --plain-step and"
        " --plain-steps (plain) as in its code.",
        choices=("drawn", "plain"),
        optional=True,
    )
    plain_step: float = param(
        2 / 255,
        "Step size of the plain attack, and of walks with --walk-size plain.",
        unit="eps",
        check="non-negative",
        optional=True,
    )
    plain_steps: int = param(10, "Number of steps of the plain attack.", check="positive", optional=True)
    walk_size: str = param(
        "own",
        "Step size of a walk: that of the candidate (own) as in PRBench's paper, or --plain-step (plain) as"
        " in its code.",
        choices=("own", "plain"),
        optional=True,
    )
    walk_rest: float = param(
        0.0,
        "Walks end when at most this share of the batch is misclassified. PRBench's paper uses 0, and"
        " its code uses 0.1.",
        check="fraction",
        optional=True,
    )
    fallback: str = param(
        "loss",
        "The candidate to train on if none is misclassified: the one with the highest loss, or the first"
        " one as in PRBench's code. PRBench's paper does not say.",
        choices=("loss", "first"),
        optional=True,
    )
    walk_gradient: str = param(
        "drop",
        "What to do with the weight gradient of the last step of the last walk: ignore it (drop) as in"
        " PRBench's paper, or add it (keep) as in its code.",
        choices=("drop", "keep"),
        optional=True,
    )

    def __post_init__(self) -> None:
        for least, most in (("step_min", "step_max"), ("steps_min", "steps_max"), ("eps_spread", "eps")):
            low, high = getattr(self, least), getattr(self, most)
            if low > high:
                low, high = (f"{x:g}" if least == "steps_min" else f"{x * 255:.4g}/255" for x in (low, high))
                raise RbError(
                    f"{least} of training method 'at-pr' is {low}, but {most} is {high}. Expected {least} to"
                    f" be at most {most}. Change one of them."
                )

    @property
    def reach(self) -> float:
        """The largest sum of step lengths of the random attack, or the sum of the plain attack if this attack
        is used and its sum is smaller, in pixel units of [0, 1]."""
        drawn = self.steps_max * self.step_max
        return min(drawn, self.plain_steps * self.plain_step) if self.first == "plain" else drawn

    @property
    def reach_options(self) -> tuple[str, str]:
        if self.reach < self.steps_max * self.step_max:
            return "--plain-step", "--plain-steps"
        return "--step-max", "--steps-max"

    @property
    def unused(self) -> dict[str, str]:
        idle = {"plain_steps": "--first drawn"} if self.first == "drawn" else {}
        if self.first == "drawn" and self.walk_size == "own":
            idle["plain_step"] = "--first drawn and --walk-size own"
        return idle

    @property
    def _in_train(self) -> bool:
        return self.inner_mode == "train"

    @property
    def of_whole_batches(self) -> bool:
        return self.settings == "batch" or self.walk_rest > 0

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Solution:
        """Return the chosen candidates, shaped as the images, and with `walk_gradient="keep"` `Walk.last`."""
        candidates, step_sizes = [], []
        with torch.no_grad(), mode(model, train=self._in_train):
            # All attacks come before the first walk; the reference code updates BatchNorm in this order.
            for number in range(self.candidates):
                own_draws = draws.child(f"candidate {number}")
                settings = self.drawn(images, own_draws, number)
                candidates.append(self.attacked(model, images, labels, own_draws, settings))
                step_sizes.append(settings.step_size)
            walks = [
                self.walked(model, candidate, labels, step_size)
                for candidate, step_size in zip(candidates, step_sizes, strict=True)
            ]
        chosen = torch.stack(candidates)[self.choice(walks), torch.arange(len(images), device=images.device)]
        if self.walk_gradient == "drop":
            return chosen
        return chosen, next((walk.last for walk in reversed(walks) if walk.last is not None), None)

    def choice(self, walks: list[Walk]) -> Tensor:
        """Return the index (N,) of each image's candidate: the first of the deepest candidates."""
        depth = torch.stack([walk.depth for walk in walks])
        if self.walk_size == "plain":
            depth = depth.round(decimals=_CLOSE)
        if self.fallback == "first":
            return depth.clamp_min(0).argmax(0)  # the code has distance 0 for candidates without a step
        loss = torch.stack([walk.loss for walk in walks])
        return torch.where(depth.amax(0) > -torch.inf, depth.argmax(0), loss.argmax(0))

    def drawn(self, images: Tensor, draws: Draws, number: int) -> CandidateSettings:
        n, eps = len(images), images.new_full((), self.eps)
        if number == 0 and self.first == "plain":
            step_size, count = images.new_full((), self.plain_step), torch.tensor(self.plain_steps)
        else:
            if self.settings == "batch":  # the draws of the batch's first image are used for all
                draws = draws.take(torch.zeros(1, dtype=torch.int64))
            if self.eps_spread:
                eps = self.eps - self.eps_spread * (1 - draws.child("eps").uniform((1, 1, 1)).to(images))
            share = draws.child("size").uniform((1, 1, 1)).to(images)
            step_size = self.step_min + (self.step_max - self.step_min) * share
            # On the CPU: which images continue is then known without waiting for a GPU at each step.
            more = draws.child("steps").on_host().integers(self.steps_max - self.steps_min + 1)
            count = self.steps_min + more
        return CandidateSettings(step_size.expand(n, 1, 1, 1), eps.expand(n, 1, 1, 1), count.expand(n))

    def attacked(
        self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws, settings: CandidateSettings
    ) -> Tensor:
        """Return the last iterate of each image's attack. In train mode, an image whose steps are finished
        still goes through the network, because BatchNorm uses the complete batch."""
        perturbed = ball.uniform_start(images, draws, settings.eps)
        for done in range(int(settings.steps.max())):
            moving = uploaded((settings.steps > done).nonzero()[:, 0], images.device)
            rows = slice(None) if self._in_train else moving
            gradient, _ = steps.input_gradient(model, perturbed[rows], steps.cross_entropy(labels[rows]))
            size, eps = settings.step_size[rows], settings.eps[rows]
            stepped = steps.step(perturbed[rows], gradient, images[rows], eps=eps, step_size=size)
            perturbed[moving] = stepped[moving] if self._in_train else stepped
        return perturbed

    def walked(self, model: nn.Module, candidate: Tensor, labels: Tensor, step_size: Tensor) -> Walk:
        """Return the walk of each misclassified candidate, in steps of `step_size` (N, 1, 1, 1).

        In eval mode, an image that is classified correctly is removed from the batch, except on a GPU, where
        removing it would need a synchronisation. In train mode, all images go through the network at each
        step, and once more after the last step, as in PRBench's code (for BatchNorm). An image whose walk has
        ended continues if the other images of the batch make it misclassified again.
        """
        waits = not candidate.is_cuda or self._in_train or self.walk_gradient == "keep"
        classes, walked, last = truth(labels), candidate.clone(), None
        if self.walk_size == "plain":
            step_size = torch.full_like(step_size, self.plain_step)
        depth = torch.full_like(candidate.flatten(1)[:, 0], -torch.inf)
        loss = torch.zeros_like(depth)
        rows = torch.arange(len(candidate), device=candidate.device)
        moving = torch.ones_like(depth, dtype=torch.bool)
        for step in range(self.walk_steps):
            objective = steps.cross_entropy(labels[rows])
            if self.walk == "margin":
                objective = losses.AttackObjective(losses.margin, classes[rows], classes[rows])
            gradient, logits = steps.input_gradient(model, walked[rows], objective)
            if step == 0:
                loss = cross_entropy(logits, labels).to(loss)
            wrong = logits.argmax(1) != classes[rows]
            moving = wrong if self._in_train else moving & wrong
            enough = moving.sum() > self.walk_rest * len(candidate)
            if waits and not enough:
                return Walk(depth, loss, last)
            moving = moving & enough
            if self.walk_gradient == "keep":
                last = walked.clone()
            if waits and not self._in_train:
                rows, gradient, moving = rows[moving], gradient[moving], moving[moving]
            direction = gradient if self.walk == "grad" else gradient.sign()
            further = (walked[rows] - step_size[rows] * direction).clamp_(0, 1)
            walked[rows] = torch.where(wide(moving, further), further, walked[rows])
            length = (walked[rows] - candidate[rows]).flatten(1).abs().amax(1)
            depth[rows] = torch.where(moving, length, depth[rows])
        if self._in_train:
            model(walked)
        return Walk(depth, loss, last)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: Solution) -> LossTerms:
        chosen, last = inner_result if isinstance(inner_result, tuple) else (inner_result, None)
        logits = model(chosen)
        values = cross_entropy(logits, labels)
        if last is not None:
            # Adds zeros that have the gradient of the cross-entropies at `last`, in the mode of the walk.
            # The buffers are copies: the walk's own pass has already updated BatchNorm's statistics.
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            with mode(model, train=self._in_train):
                at_last = cross_entropy(torch.func.functional_call(model, buffers, (last,)), labels)
            values = values + (at_last - at_last.detach())
        return LossTerms(values, adversarial=logits)
