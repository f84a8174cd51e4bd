"""AT-PR: adversarial training on the candidate deepest inside a wrong class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from rbtools.attacks import losses, steps
from rbtools.attacks.active_examples import uploaded, wide
from rbtools.errors import RbError
from rbtools.lazy import Tensor, nn, torch
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.training.base import LossTerms, Method, cross_entropy, mode, truth

Solution: TypeAlias = "Tensor | tuple[Tensor, Tensor | None]"

_CLOSE = 4  # decimals to which distances in equal steps are compared, since they are rounded


class Candidate(NamedTuple):
    """A candidate's step size and radius, each (N, 1, 1, 1), and its number of steps, (N,) on the CPU."""

    size: Tensor
    eps: Tensor
    steps: Tensor


class Walk(NamedTuple):
    """Depth and cross-entropy of each candidate, (N,), and the point before the last step, shaped as images.

    The depth of a candidate that took no step is -inf; `last` is None where none of the batch took one.
    """

    depth: Tensor
    loss: Tensor
    last: Tensor | None


@dataclass(frozen=True, kw_only=True)
class ATPR(Method[Solution]):
    """AT-PR (PRBench, algorithm 2): CE(x') at the candidate x' that is farthest from being classified
    correctly. Each of `candidates` is the result of an attack on the cross-entropy from a uniform start, with
    its own step size and number of steps, drawn for each image. From a misclassified candidate a walk (the
    paper's word) descends the loss, with the candidate's step size, until it is correct, for at most
    `walk_steps` steps; the walk's L-infinity length is the depth of the candidate. The deepest one is trained
    on, or, if none is misclassified, the one of highest loss.

    PRBench's text gives neither the ranges of step size and steps nor the distance; it gives the walk along
    the unnormalised gradient (`walk="grad"`); "sign" follows the gradient's signs, "margin" those of the
    margin to the likeliest wrong class. Walks stay in [0, 1].

    PRBench's code (wellzline/PRBenchmark, attack_algorithms.py, PR) differs in each of the options that name
    it; --preset prbench-code sets them. There the first candidate is the plain attack, settings are drawn
    once per batch, and the misclassified images of a batch walk together, in equal steps, until all but a
    tenth are correct.
    """

    name = "at-pr"
    inner = "candidates"

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    candidates: int = param(5, "Attacks to choose from: 5 (text), 10 (PRBench's code).", check="positive")
    step_min: float = param(
        1 / 255,
        "Shortest step of an attack: 1 (not in the text), 1.235 (PRBench's code).",
        unit="eps",
        check="non-negative",
    )
    step_max: float = param(
        4 / 255,
        "Longest step of an attack: 4 (not in the text), 2.765 (PRBench's code).",
        unit="eps",
        check="non-negative",
    )
    steps_min: int = param(5, "Fewest steps: 5 (not in the text), 8 (PRBench's code).", check="positive")
    steps_max: int = param(15, "Most steps: 15 (not in the text), 17 (PRBench's code).", check="positive")
    walk: str = param(
        "sign",
        "Direction of the walk back: grad (text), sign (PRBench's code, and both presets) or margin.",
        choices=("sign", "grad", "margin"),
    )
    walk_steps: int = param(
        10, "Most steps of a walk: 10 (not in the text), 40 (PRBench's code).", check="positive"
    )
    inner_mode: str = param(
        "eval",
        "Mode of the model in attacks and walks: eval (text), train (PRBench's code).",
        choices=("eval", "train"),
        optional=True,
    )
    eps_spread: float = param(
        0.0,
        "Draw a candidate's radius from this much below the ball's up to it: 0 (text), 5.1 (PRBench's code).",
        unit="eps",
        check="non-negative",
        optional=True,
    )
    settings: str = param(
        "image",
        "Draw a candidate's settings for each image (text), or once a batch (PRBench's code).",
        choices=("image", "batch"),
        optional=True,
    )
    first: str = param(
        "drawn",
        "Settings of the first candidate: drawn (text), or --plain-step and --plain-steps, plain (PRBench's"
        " code).",
        choices=("drawn", "plain"),
        optional=True,
    )
    plain_step: float = param(
        2 / 255,
        "Step of the plain attack, and of plain walks.",
        unit="eps",
        check="non-negative",
        optional=True,
    )
    plain_steps: int = param(10, "Number of steps of the plain attack.", check="positive", optional=True)
    walk_size: str = param(
        "own",
        "Step of a walk: its candidate's own (text), or --plain-step for all, plain (PRBench's code).",
        choices=("own", "plain"),
        optional=True,
    )
    walk_rest: float = param(
        0.0,
        "Walks end when no larger share of the batch is wrong: 0 (text), 0.1 (PRBench's code).",
        check="fraction",
        optional=True,
    )
    fallback: str = param(
        "loss",
        "Where no candidate is wrong, train the one of highest loss (not in the text), or the first"
        " (PRBench's code).",
        choices=("loss", "first"),
        optional=True,
    )
    walk_gradient: str = param(
        "drop",
        "The weights' gradient of the last walk's last step: drop (text), or add it, keep (PRBench's code).",
        choices=("drop", "keep"),
        optional=True,
    )

    def __post_init__(self) -> None:
        for least, most in (("step_min", "step_max"), ("steps_min", "steps_max"), ("eps_spread", "eps")):
            low, high = getattr(self, least), getattr(self, most)
            if low > high:
                shown = "{:g}" if least == "steps_min" else "{:.4g}/255"
                scale = 1 if least == "steps_min" else 255
                raise RbError(
                    f"{least} of training method 'at-pr' is {shown.format(low * scale)} and {most} is"
                    f" {shown.format(high * scale)}. Expected {least} to be {most} or less: change one of"
                    " them."
                )

    @property
    def reach(self) -> float:
        """The largest sum of step lengths of the drawn or the plain attack, the smaller of both, in [0, 1]
        units."""
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
    def solves_in_eval(self) -> bool:
        return not self._in_train

    @property
    def of_whole_batches(self) -> bool:
        return self.settings == "batch" or self.walk_rest > 0

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Solution:
        """The chosen candidates, as the images; with `walk_gradient="keep"` (these, `Walk.last`)."""
        best, last = images.clone(), None
        depth = torch.full_like(images.flatten(1)[:, 0], -torch.inf)
        loss = torch.full_like(depth, -torch.inf)
        with torch.no_grad(), mode(model, train=self._in_train):
            drawn_candidates = []
            # Before the first walk: the order of BatchNorm updates in the reference code.
            for number in range(self.candidates):
                candidate_draws = draws.child(f"candidate {number}")
                settings = self.drawn(images, candidate_draws, number)
                drawn_candidates.append(
                    (settings.size, self.attacked(model, images, labels, candidate_draws, settings))
                )
            for number, (sizes, candidate) in enumerate(drawn_candidates):
                walk = self.walked(model, candidate, labels, sizes)
                last = last if walk.last is None else walk.last
                better = self.better(walk, depth, loss, number)
                best = torch.where(wide(better, best), candidate, best)
                depth = torch.where(better, walk.depth, depth)
                loss = torch.where(better, walk.loss, loss)
        return (best, last) if self.walk_gradient == "keep" else best

    def better(self, walk: Walk, depth: Tensor, loss: Tensor, number: int) -> Tensor:
        """Which candidates (N,) are better than the best so far, of these depths and losses."""
        deep, deepest = walk.depth, depth
        if self.walk_size == "plain":
            deep, deepest = deep.round(decimals=_CLOSE), deepest.round(decimals=_CLOSE)
        if self.fallback == "first":
            # The code has distance 0 for candidates without a step, and keeps the first of equal ones.
            return deep > deepest.clamp_min(0) if number else torch.ones_like(deep, dtype=torch.bool)
        # Any depth is better than none (-inf); while no candidate is misclassified, the loss decides.
        return (deep > deepest) | ((deep == -torch.inf) & (deepest == -torch.inf) & (walk.loss > loss))

    def drawn(self, images: Tensor, draws: Draws, number: int) -> Candidate:
        """The settings of the candidate of that number, one entry per image."""

        n, eps = len(images), images.new_full((), self.eps)
        if number == 0 and self.first == "plain":
            size, count = images.new_full((), self.plain_step), torch.full((n,), self.plain_steps)
            return Candidate(size.expand(n, 1, 1, 1), eps.expand(n, 1, 1, 1), count)
        if self.settings == "batch":  # the draws of the batch's first image count for all
            draws = draws.take(torch.zeros(1, dtype=torch.int64))
        if self.eps_spread:
            eps = self.eps - self.eps_spread * (1 - draws.child("eps").uniform((1, 1, 1)).to(images))
        size = draws.child("size").uniform((1, 1, 1)).to(images)
        size = self.step_min + (self.step_max - self.step_min) * size
        # On the CPU: which images continue is then known without waiting for a GPU at each step.
        more = draws.child("steps").on_host().integers(self.steps_max - self.steps_min + 1)
        count = (self.steps_min + more).expand(n)
        return Candidate(size.expand(n, 1, 1, 1), eps.expand(n, 1, 1, 1), count)

    def attacked(
        self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws, chosen: Candidate
    ) -> Tensor:
        """The last iterate of each image's attack; an image with fewer steps keeps its last one. In train
        mode it still goes through the network with the others, since BatchNorm uses the whole batch. In eval
        mode it is dropped.
        """
        perturbed = steps.uniform_start(images, draws, chosen.eps)
        for done in range(int(chosen.steps.max())):
            active = chosen.steps > done
            moving = uploaded(torch.nonzero(active)[:, 0], images.device)
            at = torch.arange(len(images), device=images.device) if self._in_train else moving
            stepped, _ = steps.pgd_step(
                model,
                perturbed[at],
                images[at],
                steps.cross_entropy(labels[at]),
                eps=chosen.eps[at],
                step_size=chosen.size[at],
            )
            perturbed[moving] = stepped[moving] if self._in_train else stepped
        return perturbed

    def walked(self, model: nn.Module, candidate: Tensor, labels: Tensor, sizes: Tensor) -> Walk:
        """The walk back of each candidate that is misclassified, in steps of the sizes (N, 1, 1, 1).

        In eval mode an image that is correct is dropped; on a GPU, which would wait for that, it goes through
        the network with the others at each of `walk_steps` steps and does not move. In train mode all go
        through the network at each step, and once more after the last one, as in the code (for BatchNorm); an
        image whose walk has ended continues if the batch makes it misclassified again.
        """
        reads = not candidate.is_cuda or self._in_train or self.walk_gradient == "keep"
        classes, walked, last = truth(labels), candidate.clone(), None
        if self.walk_size == "plain":
            sizes = torch.full_like(sizes, self.plain_step)
        depth = torch.full_like(candidate.flatten(1)[:, 0], -torch.inf)
        loss = torch.zeros_like(depth)
        at = torch.arange(len(candidate), device=candidate.device)
        moving = torch.ones_like(depth, dtype=torch.bool)
        for step in range(self.walk_steps):
            targets = classes[at]
            objective = steps.cross_entropy(labels[at])
            if self.walk == "margin":
                objective = losses.AttackObjective(losses.margin, targets, targets)
            gradient, logits = steps.input_gradient(model, walked[at], objective)
            if step == 0:
                loss = cross_entropy(logits, labels).to(loss)
            wrong = logits.argmax(1) != targets
            moving = wrong if reads else moving & wrong
            enough = moving.sum() > self.walk_rest * len(candidate)
            if not reads:
                moving = moving & enough
            elif not enough:
                return Walk(depth, loss, last)
            if self.walk_gradient == "keep":
                last = walked.clone()
            if reads and not self._in_train:
                at, gradient, moving = at[moving], gradient[moving], moving[moving]
            direction = gradient if self.walk == "grad" else gradient.sign()
            further = (walked[at] - sizes[at] * direction).clamp_(0, 1)
            walked[at] = torch.where(wide(moving, further), further, walked[at])
            depth[at] = torch.where(moving, (walked[at] - candidate[at]).flatten(1).abs().amax(1), depth[at])
        if self._in_train:
            model(walked)
        return Walk(depth, loss, last)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: Solution) -> LossTerms:
        chosen, last = inner_result if isinstance(inner_result, tuple) else (inner_result, None)
        logits = model(chosen)
        values = cross_entropy(logits, labels)
        # zeros whose gradient is that of the cross-entropies there, in the mode of the walk
        if last is not None:
            # On copies of the buffers: the walk's own pass has already updated BatchNorm's statistics.
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            with mode(model, train=self._in_train):
                at_last = cross_entropy(torch.func.functional_call(model, buffers, (last,)), labels)
            values = values + (at_last - at_last.detach())
        return LossTerms(values, adversarial=logits)
