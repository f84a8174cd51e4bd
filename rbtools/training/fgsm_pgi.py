"""FGSM-PGI: adversarial training with one step that starts from each example's previous perturbation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rbtools.attacks import steps
from rbtools.attacks.steps import widen
from rbtools.lazy import Tensor, nn, torch
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.threats import ball
from rbtools.training.base import LossTerms, Method, cross_entropy, mode, step_mode_param

_LARGEST = 60000.0  # the largest float16 is 65504


class Prior(NamedTuple):
    """The perturbation from which the step starts, in pixel units of [0, 1], and the momentum of the
    gradients, in multiples of their mean size, both (N, C, H, W)."""

    delta: Tensor
    momentum: Tensor


class PriorStep(NamedTuple):
    """The images at the start and at the end of the step (N, C, H, W), and the prior for the next epoch."""

    start: Tensor
    perturbed: Tensor
    following: Prior


@dataclass(frozen=True, kw_only=True)
class FGSMPGI(Method[PriorStep]):
    """Single-step training with a prior-guided start (Jia et al. 2022, arXiv:2207.08859;
    jiaxiaojunQAQ/FGSM-PGI).

    The loss is CE(x') + lambda * mean over classes of (z(x') - z(x + eta))^2, where z are the logits. Here
    eta is the example's own perturbation of the previous epoch, g is the gradient of the cross-entropy at x +
    eta, and x' = project(x + eta + alpha * eps * sign g), onto the ball and [0, 1]. For the next epoch, m <-
    g / mean|g| + prior_decay * m and eta <- project(x + eta + alpha * eps * sign m) - x. These updates are
    the paper's FGSM-MEP. With `prior_decay=0`, eta is x' - x, which is the paper's FGSM-EP. In the first
    epoch and every `reset` epochs, eta is eps * sign U(-1, 1) and m is 0. The perturbation eta belongs to the
    pixels of the network's input, so it is neither cropped nor flipped with the image, and x + eta is not
    clipped, as in the authors' code.

    This class differs from the authors' code in three points. First, gradients are normalised for each
    example; in the code, they are normalised for each batch. Second, the code computes g in training mode, in
    the same pass as the loss; here `inner_mode` determines the mode, and the loss needs its own pass (no pass
    if lambda is 0). Third, eta and m are kept in float16. The label smoothing in the authors' code
    corresponds to --label-smoothing 0.444 for ten classes.

    Without `carrying`, that is, outside a training run, every batch is treated as in the first epoch.
    """

    name = "fgsm-pgi"
    inner = "prior-step"
    single_step = True
    carried = Prior._fields

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    alpha: float = param(1.0, "Step size, in multiples of --eps.", check="non-negative")
    lambda_: float = param(
        10.0,
        "Weight of the squared distance between the logits at both ends of the step; 0 saves one pass.",
        name="lambda",
        check="non-negative",
    )
    prior_decay: float = param(
        0.3,
        "Decay, from epoch to epoch, of the momentum that determines the next start. With 0, the method"
        " is FGSM-EP.",
        check="fraction",
    )
    reset: int = param(
        40,
        "Number of epochs between random starts. The authors' code uses 40 in a run of 110 epochs.",
        check="positive",
    )
    inner_mode: str = step_mode_param()

    def carrying(self, state: Mapping[str, Tensor]) -> Method[PriorStep]:
        return CarriedPrior(self, Prior(**state))

    def random_prior(self, images: Tensor, draws: Draws) -> Prior:
        """Return the prior of the first epoch and of every `reset`-th later epoch."""
        upper = draws.child("prior").uniform(tuple(images.shape[1:])) >= 0.5
        signs = torch.where(upper, self.eps, -self.eps).to(images)
        return Prior(signs, torch.zeros_like(images))

    def step(self, model: nn.Module, images: Tensor, labels: Tensor, prior: Prior) -> PriorStep:
        start, length = images + prior.delta, self.alpha * self.eps
        with torch.no_grad(), mode(model, train=self.inner_mode == "train"):
            gradient, _ = steps.input_gradient(model, start, steps.cross_entropy(labels))
            size = gradient.abs().mean(dim=(1, 2, 3), keepdim=True)
            unit = gradient / size.clamp_min(torch.finfo(gradient.dtype).tiny)
            momentum = unit + self.prior_decay * prior.momentum
            ends = [
                ball.project(steps.ascend(start, along, length, "linf"), images, self.eps, "linf")
                for along in (gradient, momentum)
            ]
        return PriorStep(start, ends[0], Prior(ends[1] - images, momentum))

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> PriorStep:
        return self.step(model, images, labels, self.random_prior(images, draws))

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: PriorStep) -> LossTerms:
        # In the order of the authors' code, for BatchNorm's running statistics: the start, then x'.
        start = model(inner_result.start) if self.lambda_ > 0 else None
        logits = model(inner_result.perturbed)
        values = cross_entropy(logits, labels)
        if start is not None:
            values = values + self.lambda_ * (widen(logits) - widen(start)).square().mean(1)
        return LossTerms(values, adversarial=logits)


class CarriedPrior(Method[PriorStep]):
    """FGSM-PGI in a training run, which reads and writes the prior of each example in tensors (examples, C,
    H, W), possibly on another device. `draws.offset` must be the epoch."""

    def __init__(self, method: FGSMPGI, kept: Prior) -> None:
        self.method, self.kept = method, kept
        self.name, self.inner, self.inner_mode = method.name, method.inner, method.inner_mode  # type: ignore[misc]

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> PriorStep:
        kept, eps = self.kept, self.method.eps
        places = draws.examples if kept.delta.device == draws.device else draws.on_host().examples
        if draws.offset % self.method.reset == 0:
            prior = self.method.random_prior(images, draws)
        else:
            delta, momentum = (_taken(values, places, images.device).to(images) for values in kept)
            prior = Prior(delta.clamp_(-eps, eps), momentum)  # rounding to float16 may have left the ball
        result = self.method.step(model, images, labels, prior)
        following = [
            values.clamp(-_LARGEST, _LARGEST).to(old.dtype)
            for old, values in zip(kept, result.following, strict=True)
        ]
        if kept.delta.device != images.device:  # one copy for both, because each waits for the device
            following = list(torch.stack(following).to(kept.delta.device))
        for old, values in zip(kept, following, strict=True):
            old[places] = values
        return result

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: PriorStep) -> LossTerms:
        return self.method.loss(model, images, labels, inner_result)


def _taken(values: Tensor, places: Tensor, device: torch.device) -> Tensor:
    if values.device == device:
        return values[places]
    shape = (len(places), *values.shape[1:])
    # From pinned memory a GPU copies without making the host wait.
    pixels = torch.empty(shape, dtype=values.dtype, pin_memory=device.type == "cuda")
    return torch.index_select(values, 0, places, out=pixels).to(device, non_blocking=True)
