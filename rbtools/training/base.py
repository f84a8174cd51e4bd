"""Common parts of training methods: the loss of a batch, and the inner attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from rbtools import units
from rbtools.attacks import steps
from rbtools.attacks.steps import widen
from rbtools.lazy import F, Tensor, nn, torch
from rbtools.registry import Registered, param, rare_param
from rbtools.rng.draws import Draws
from rbtools.threats import ball

Objective = Callable[[Tensor], Tensor]

NOISES = ("uniform", "gaussian", "laplace")
START_STD = 0.001
"""Standard deviation of the start around the image, for inner problems without a gradient at the image."""
DEFAULT_STEP = 2 / 255
"""The step size of an inner attack, if its steps can reach the border of the ball (Rice et al. 2020,
PRBench)."""


class Loss(NamedTuple):
    """The loss of a batch, a scalar with a graph to the parameters, and the logits that were computed for it.

    The logits are detached (N, K), computed in training mode before the update. Logits are None if the method
    does not compute them.
    """

    value: Tensor
    clean_logits: Tensor | None = None
    adversarial_logits: Tensor | None = None


class LossTerms(NamedTuple):
    """The loss of each example (N,), and the logits (N, K) from which it is computed, all with their graphs.

    At least one of `clean` and `adversarial` (at the solution of the inner problem) is given.
    """

    values: Tensor
    clean: Tensor | None = None
    adversarial: Tensor | None = None

    def mean(self) -> Loss:
        """The loss of the batch."""
        clean, adversarial = (None if logits is None else logits.detach() for logits in self[1:])
        return Loss(self.values.mean(), clean, adversarial)


def step_mode_param() -> Any:
    help = "Mode of the model for the gradient of the step: eval, or train (the authors' code)."
    return param("eval", help, choices=("eval", "train"))


InnerResult = TypeVar("InnerResult")  # the type that `Method.inner_attack` returns and `Method.loss` takes


class Method(Registered, Generic[InnerResult]):
    """A training method, which solves an inner problem and computes the loss of the batch at the solution.

    Shape, in all methods: images float32 (N, C, H, W) in [0, 1]; labels int64 (N,), or float (N, K), a
    distribution for each example (from label smoothing or mixup). The attack and the loss accept both.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    # The inner problem: "ce" and "kl" ascend from a point of the ball (see `Adversarial`), others are
    # explained in their methods; None if there is no inner problem.
    inner: ClassVar[str | None] = None
    carried: ClassVar[tuple[str, ...]] = ()  # tensors kept for each example between epochs: see `carrying`
    inner_mode: str = ""  # the model's mode during the inner attack, "eval" or "train"
    attack_steps: int  # if `inner` is "ce" or "kl"

    @property
    def reach_options(self) -> tuple[str, str] | None:
        """The options for step size and number of steps, or None if the method makes no steps."""
        return None

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> InnerResult:
        """Solve the inner problem, and return the solution without a graph. Keep the model's gradients."""
        return cast(InnerResult, None)  # without an inner problem

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: InnerResult) -> LossTerms:
        """Return the loss of each example at the result x' of `inner_attack`. By default, this is CE(x')."""
        logits = model(inner_result)
        return LossTerms(cross_entropy(logits, labels), adversarial=logits)

    def carrying(self, state: Mapping[str, Tensor]) -> Method[InnerResult]:
        """Return the method for one training run. It reads and writes `state`, which has a float16 tensor
        (examples of the split, C, H, W), initially zero, for each name in `carried`. The trainer stores the
        tensors with its own state, so an interrupted training run resumes with the same numbers."""
        return self

    @property
    def weight_radius(self) -> float | None:
        """SAM's rho, the distance by which weights are moved before the gradient of a step, or None."""
        return None

    @property
    def solves_in_eval(self) -> bool:
        """Whether `inner_attack` uses the model only in eval mode; a fast copy may then replace the model."""
        return self.inner_mode == "eval"

    @property
    def single_step(self) -> bool:
        """Whether the inner attack is one step of gradient ascent, which risks catastrophic overfitting."""
        return False

    @property
    def of_whole_batches(self) -> bool:
        """Whether the loss of an example depends on the rest of its batch, apart from BatchNorm."""
        return False

    @property
    def unused(self) -> dict[str, str]:
        """Maps each field that has no effect to the reason, in terms of the command line."""
        return {}

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Loss:
        return self.loss(model, images, labels, self.inner_attack(model, images, labels, draws)).mean()


@dataclass(frozen=True, kw_only=True)
class Adversarial(Method[Tensor]):
    """A method that trains on the result of an inner attack in the L-infinity ball.

    The inner attack is x' <- clip[0,1](clip(x' + step_size * sign g, x - eps, x + eps)), with x' detached.
    `inner` is the objective of this attack: "ce", the cross-entropy with the labels, or "kl", the divergence
    KL(p(x) || p(x')) with p(x) held constant. `start` is "uniform", a uniform point in the ball, or "noise",
    x + 0.001 * N(0, 1), because the divergence has no gradient at x itself. If `step_size` is not given, it
    is 2/255, or 2.5 * eps / attack_steps if steps of 2/255 would end inside the ball. If `inner_mode` is
    "eval", BatchNorm uses its running statistics during the attack without updating them, and dropout is off.
    If `inner_mode` is "train", every iterate updates the statistics.
    """

    start: ClassVar[str]
    norm: ClassVar[str] = "linf"
    reach_options = "--step-size", "--attack-steps"

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    step_size: float = rare_param(
        None,
        "Step size of the inner attack, in the unit of --eps.  [default: 2 if --attack-steps such steps reach"
        " --eps, else 2.5*eps/steps]",
        unit="eps",
        check="non-negative",
    )
    attack_steps: int = param(10, "Number of steps of the inner attack.", check="positive")
    inner_mode: str = param(
        "eval",
        "Mode of the model during the inner attack: eval as in PRBench's paper, or train as in its code for"
        " pgd, alp and clp.",
        choices=("eval", "train"),
    )

    def __post_init__(self) -> None:
        if self.step_size is None:
            reaches = units.reaches(self.attack_steps * DEFAULT_STEP, self.eps)
            step = DEFAULT_STEP if reaches else 2.5 * self.eps / self.attack_steps
            object.__setattr__(self, "step_size", step)

    @property
    def single_step(self) -> bool:
        return self.attack_steps == 1 and self.inner == "ce"

    @property
    def from_image(self) -> bool:
        """Whether each step of the attack starts from the image instead of the iterate."""
        return False

    @property
    def reach(self) -> float:
        """The sum of the attack's step lengths, for pixels in [0, 1]."""
        return self.attack_steps * self.step_size

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        return self.perturb(model, images, labels, draws)

    def perturb(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        """Solve the inner problem. Returns detached images (N, C, H, W) in the ball and in [0, 1]. Afterwards
        the mode of each module is restored, and no parameter has a gradient."""
        with torch.no_grad(), mode(model, train=self.inner_mode == "train"):
            objective = self.objective(model, images, labels)
            return self.climb(model, images, self.begin(images, draws), objective, self.attack_steps)

    def climb(
        self, model: nn.Module, images: Tensor, start: Tensor, objective: Objective, count: int
    ) -> Tensor:
        """Make `count` steps from `start`, shaped as `images` (N, C, H, W), in the model's current mode."""
        perturbed = start
        for _ in range(count):
            gradient, _ = steps.input_gradient(model, perturbed, objective)
            perturbed = steps.step(
                images if self.from_image else perturbed,
                gradient,
                images,
                eps=self.eps,
                step_size=self.step_size,
                norm=self.norm,
            )
        return perturbed

    def objective(
        self, model: nn.Module, images: Tensor, labels: Tensor, clean: Tensor | None = None
    ) -> Objective:
        """Return the attack's objective. `clean` are the logits of the images, if they are known."""
        if self.inner == "kl":
            constant = model(images) if clean is None else clean
            return lambda logits: divergence(constant, logits)
        return steps.cross_entropy(labels)

    def begin(self, images: Tensor, draws: Draws) -> Tensor:
        """The starting point of the attack, (N, C, H, W) in [0, 1]."""
        if self.start == "noise":
            # Not clipped, as in the authors' code: the first step projects it into the ball.
            return images + START_STD * draws.normal(tuple(images.shape[1:])).to(images)
        return ball.uniform_start(images, draws, self.eps, self.norm)


def noisy(images: Tensor, draws: Draws, noise: str, eps: float, name: str, scale: str = "eps") -> Tensor:
    """Returns clip[0,1](x + delta), with one random delta per example; eps is in pixel units.

    The random numbers are those of the stream `name`. With uniform, delta ~ U(-eps, eps). With gaussian and
    laplace, delta = clamp(s * z, -eps, eps), where z ~ N(0, 1) or Laplace(1). With `scale` "eps", s is eps,
    as in PRBench's evaluation. With "unit", s is 1, as in the training of PRBench's code
    (wellzline/PRBenchmark, corruption_gaussian and corruption_laplace).
    """
    stream, shape = draws.child(name), tuple(images.shape[1:])
    if noise == "gaussian":
        z = stream.normal(shape)
    else:
        z = stream.uniform(shape).mul_(2).sub_(1 - 2.0**-24)  # odd multiples of 2^-24: symmetric about 0
        if noise == "laplace":
            z = -z.sign() * (-z.abs()).log1p()
    if noise == "uniform" or scale == "eps":
        delta = eps * z.clamp_(-1, 1).to(images)
    else:
        delta = z.to(images).clamp_(-eps, eps)
    return (images + delta).clamp_(0, 1)


def divergence(clean: Tensor, perturbed: Tensor) -> Tensor:
    """Return the divergence KL(p(x) || p(x')) from logits, summed over classes (N,), differentiable in both
    arguments.

    Only log-probabilities are used, because the derivative of p log p is NaN if a probability has underflowed
    to 0.
    """
    log_clean = F.log_softmax(widen(clean), dim=1)
    log_perturbed = F.log_softmax(widen(perturbed), dim=1)
    return F.kl_div(log_perturbed, log_clean, reduction="none", log_target=True).sum(1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each example (N,), in float32 or higher precision."""
    return F.cross_entropy(widen(logits), labels, reduction="none")


def truth(labels: Tensor) -> Tensor:
    """Return the class of each example (N,). For a distribution, this is the most probable class."""
    return labels if labels.ndim == 1 else labels.argmax(1)


@contextmanager
def mode(model: nn.Module, *, train: bool) -> Iterator[None]:
    """Inside the block, the model is in eval mode or, with `train`, in its current mode. Afterwards the mode
    of each module is restored, so a BatchNorm that the user froze stays frozen."""
    before = [(module, module.training) for module in model.modules()]
    if not train:
        model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
