"""N-FGSM: adversarial training with one step from strong noise."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.attacks import steps
from rbtools.lazy import Tensor, nn, torch
from rbtools.registry import param
from rbtools.rng.draws import Draws
from rbtools.training.base import Method, mode, noisy, step_mode_param


@dataclass(frozen=True, kw_only=True)
class NFGSM(Method[Tensor]):
    """Single-step training with noise (de Jorge et al. 2022, arXiv:2202.01181). The loss is CE(x').

    Here x' = clip[0,1](x_n + alpha * eps * sign g), where x_n = clip[0,1](x + delta), delta ~ U(-k eps, k
    eps), and g is the gradient of the cross-entropy at x_n. The point x' is not projected onto the ball of
    radius eps. The authors' code (pdejorge/N-FGSM) computes g in training mode; here `inner_mode` determines
    the mode, as in the other methods.
    """

    name = "n-fgsm"
    inner = "noisy-step"
    single_step = True

    eps: float = param(8 / 255, "Radius of the L-infinity ball.", unit="eps", check="non-negative")
    k: float = param(2.0, "Half width of the uniform noise, in multiples of --eps.", check="non-negative")
    alpha: float = param(1.0, "Step size, in multiples of --eps.", check="non-negative")
    inner_mode: str = step_mode_param()

    def inner_attack(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        noised = noisy(images, draws, "uniform", self.k * self.eps, "noise")
        with torch.no_grad(), mode(model, train=self.inner_mode == "train"):
            gradient, _ = steps.input_gradient(model, noised, steps.cross_entropy(labels))
            return steps.ascend(noised, gradient, self.alpha * self.eps, "linf").clamp_(0, 1)
