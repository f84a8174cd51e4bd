"""The numeric bounds of the papers as functions of numbers; no model, no torch.

Each returns a `Bound`: its value, the formula and its inputs, and whether it is vacuous, that is not smaller
than the trivial bound. RobBench is NAS-RobBench-201 (Wu et al., ICLR 2024), WCI the paper of the
Weight-Curvature Index; theorems have the papers' numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.lazy import np

if TYPE_CHECKING:
    Array = np.ndarray

FORMS = ("text", "appendix")

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda z: np.maximum(z, 0),
    "leaky": lambda z: np.where(z > 0, z, 0.01 * z),
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "tanh": lambda z: np.tanh(z),
    "swish": lambda z: z / (1 + np.exp(-z)),
}


@dataclass(frozen=True)
class Bound:
    """A bound: `value`, `formula` in words of its inputs, `inputs` by name, and whether it is vacuous.

    value is None where the formula has none; `reason` then says why.
    """

    formula: str
    value: float | None
    inputs: Mapping[str, Any]
    vacuous: bool
    reason: str | None = None


def robbench1(kernel: Array, targets: Array, depth: int) -> Bound:
    """RobBench's theorem 1, without its constants: sqrt(L^2 * y^T K^-1 y / N) bounds the expected error.

    kernel: (N, N), K_all for the clean error and K~_all for the robust one. targets: (N,), +1 and -1, or
    (N, K) of them, one column a class, over which y^T K^-1 y is averaged. depth: L. Vacuous from 1 on. A
    kernel that is not positive definite gives no bound.
    """
    kernel, targets = np.asarray(kernel, np.float64), np.asarray(targets, np.float64)
    count = len(kernel)
    inputs = {"L": depth, "N": count}
    formula = "sqrt(L^2 y^T K^-1 y / N)"
    lowest = float(np.linalg.eigvalsh((kernel + kernel.T) / 2)[0])
    if not lowest > 0:
        reason = f"the smallest eigenvalue of the kernel is {lowest:.3g}, so that it has no inverse"
        return Bound(formula, None, {**inputs, "lambda_min": lowest}, True, reason)
    columns = targets.reshape(count, -1)
    energy = float((columns * np.linalg.solve(kernel, columns)).sum(0).mean())
    value = depth * math.sqrt(max(energy, 0.0) / count)
    return Bound(formula, value, {**inputs, "yKy": energy}, value >= 1)


def robbench2(
    images: Array, rho: float, activation: str | Callable[[Array], Array], order: int | None = None
) -> Bound:
    """RobBench's theorem 2: a lower bound of the smallest eigenvalue of the robust kernel.

    2 mu_r(s_1)^2 (1 - (N-1) max_(i != j) (|<x_i, x_j>| + 2 rho + rho^2)^r), mu_r the r-th coefficient of the
    first activation s_1 in normalised Hermite polynomials. images: (N, d), of norm 1 each (they are brought
    to it); rho: L2 radius on that scale, 0 for the clean kernel. order: r; None takes that from 1 to 64 with
    the largest bound, of those whose coefficient is not 0. Vacuous from 0 down. Raises RbError for an image
    that is black, or fewer than two.
    """
    rows = np.asarray(images, np.float64).reshape(len(images), -1)
    norms = np.linalg.norm(rows, axis=1)
    if len(rows) < 2 or not (norms > 0).all():
        raise RbError(
            f"The bound on the smallest eigenvalue needs two images or more, none of them all 0. There are"
            f" {len(rows)}, {int((norms == 0).sum())} of them all 0."
        )
    rows = rows / norms[:, None]
    products = np.abs(rows @ rows.T)
    np.fill_diagonal(products, 0)
    closest = float(products.max())
    function = ACTIVATIONS[activation] if isinstance(activation, str) else activation
    spread = closest + 2 * rho + rho * rho

    def at(r: int) -> float:
        mu = hermite(function, r)
        power = min(r * math.log(spread), 700.0) if spread > 0 else -math.inf
        return 2 * mu * mu * (1 - (len(rows) - 1) * math.exp(power))

    there = [r for r in range(1, 65) if abs(hermite(function, r)) > 1e-8]
    chosen = order if order is not None else max(there, key=at)
    value = at(chosen)
    inputs = {"N": len(rows), "r": chosen, "mu_r": hermite(function, chosen), "rho": rho, "closest": closest}
    if isinstance(activation, str):
        inputs["activation"] = activation  # type: ignore[assignment]
    formula = "2 mu_r^2 (1 - (N-1) max(|<x_i,x_j>| + 2 rho + rho^2)^r)"
    return Bound(formula, value, inputs, value <= 0)


def hermite(function: Callable[[Array], Array], order: int) -> float:
    """The coefficient E[f(z) h_r(z)], z standard normal, of the normalised Hermite polynomial h_r.

    By Gauss-Legendre quadrature on each side of 0, where activations may have a kink: exact to 1e-10.
    """
    nodes, weights = np.polynomial.legendre.leggauss(200)
    total = 0.0
    for low, high in ((-14.0, 0.0), (0.0, 14.0)):
        z = (high - low) / 2 * nodes + (high + low) / 2
        before, polynomial = np.zeros_like(z), np.ones_like(z)
        for k in range(order):  # sqrt(k+1) h_(k+1) = z h_k - sqrt(k) h_(k-1)
            before, polynomial = (
                polynomial,
                (z * polynomial - math.sqrt(k) * before) / math.sqrt(k + 1),
            )
        density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        total += float((weights * function(z) * polynomial * density).sum()) * (high - low) / 2
    return total


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The Lipschitz constants of a loss and its gradients in PRBench's theorems, all in L2.

    lipschitz (L): of the loss in the image; lipschitz_theta (L_theta): of the loss in the weights; smooth
    (beta): of the gradient by the weights in the image; smooth_theta (beta_theta): of that gradient in the
    weights.
    """

    lipschitz: float
    lipschitz_theta: float
    smooth: float
    smooth_theta: float


def prbench1(constants: Constants, gamma: float, n: int, steps: int, c: float | None = None) -> Bound:
    """PRBench's theorem 1: |R - R_S| of training on the worst point of a ball (adversarial training).

    phi = 2 L_theta, chi = 4 beta gamma + 2 L_theta, psi = 2 beta_theta + L_theta^2, and
    1/n + (2 phi^2 + n phi chi) T / (psi (n-1)); `c` has the appendix' T^(c psi) in place of T. gamma: L2
    radius; n: training images; steps: T. For losses in [0, 1]: vacuous from 1 on.
    """
    k = constants
    phi = 2 * k.lipschitz_theta
    chi = 4 * k.smooth * gamma + 2 * k.lipschitz_theta
    psi = 2 * k.smooth_theta + k.lipschitz_theta**2
    return _stability(phi, chi, psi, gamma, n, steps, c)


def prbench2(
    constants: Constants,
    gamma: float,
    n: int,
    steps: int,
    *,
    nu: float,
    weight: float,
    c: float | None = None,
    form: str = "text",
) -> Bound:
    """PRBench's theorem 2: the same for training with a term `weight` (lambda) on the distance of outputs.

    phi~ = phi + 2 lambda (nu beta gamma + 3 nu^2 L_theta), psi~ = psi + 6 lambda (nu^2 beta_theta +
    4 nu L_theta^2), chi~ = 4 beta gamma + 2 nu L_theta + 2 lambda gamma (nu^2 beta + 2 nu L L_theta); the
    appendix (`form`) has 12 lambda in place of the last 2 lambda. nu: the largest distance of softmax outputs
    in the ball. Raises RbError for another form.
    """
    if form not in FORMS:
        raise RbError(f"The form of PRBench's theorem 2 is '{form}'. Choose from: {', '.join(FORMS)}.")
    k, factor = constants, 12 if form == "appendix" else 2
    phi = 2 * k.lipschitz_theta
    psi = 2 * k.smooth_theta + k.lipschitz_theta**2
    phi += 2 * weight * (nu * k.smooth * gamma + 3 * nu**2 * k.lipschitz_theta)
    psi += 6 * weight * (nu**2 * k.smooth_theta + 4 * nu * k.lipschitz_theta**2)
    chi = 4 * k.smooth * gamma + 2 * nu * k.lipschitz_theta
    chi += factor * weight * gamma * (nu**2 * k.smooth + 2 * nu * k.lipschitz * k.lipschitz_theta)
    bound = _stability(phi, chi, psi, gamma, n, steps, c)
    return Bound(
        bound.formula,
        bound.value,
        {**bound.inputs, "nu": nu, "lambda": weight, "form": form},
        bound.vacuous,
        bound.reason,
    )


def _stability(
    phi: float, chi: float, psi: float, gamma: float, n: int, steps: int, c: float | None
) -> Bound:
    if n < 2 or steps < 0 or gamma < 0:
        raise RbError(
            f"The bound is for n >= 2 training images, steps and gamma from 0 on; there are {n}, {steps} and"
            f" {gamma:g}."
        )
    inputs = {"phi": phi, "chi": chi, "psi": psi, "gamma": gamma, "n": n, "T": steps}
    formula = "1/n + (2 phi^2 + n phi chi) T / (psi (n-1))"
    if c is not None:
        inputs["c"] = c
        formula = "1/n + (2 phi^2 + n phi chi) T^(c psi) / (psi (n-1))"
    if psi <= 0:
        return Bound(formula, None, inputs, True, "psi is 0: the loss does not depend on the weights")
    power = math.log(steps) if c is None and steps else c * psi * math.log(steps) if c and steps else 0.0
    grown = 0.0 if not steps else math.exp(power) if power < 700 else math.inf
    value = 1 / n + (2 * phi**2 + n * phi * chi) * grown / (psi * (n - 1))
    if not math.isfinite(value):
        return Bound(formula, None, inputs, True, "the bound is larger than any number that can be written")
    return Bound(formula, value, inputs, value >= 1)


def wci4(wci: float, temperature: float) -> Bound:
    """WCI's theorem 4: sqrt(2 / lambda) * WCI bounds the robust generalisation gap.

    temperature: the lambda of its PAC-Bayesian argument, above 0. For losses in [0, 1]: vacuous from 1 on.
    Raises RbError for another lambda.
    """
    if not temperature > 0:
        raise RbError(f"lambda of WCI's theorem 4 is {temperature:g}. It must be above 0.")
    value = math.sqrt(2 / temperature) * wci
    return Bound("sqrt(2 / lambda) WCI", value, {"WCI": wci, "lambda": temperature}, value >= 1)
