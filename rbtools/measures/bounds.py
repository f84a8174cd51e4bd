"""The numeric bounds of the papers as functions of numbers, without a model and without torch.

RobBench is NAS-RobBench-201 (Wu et al., ICLR 2024), and WCI is the paper of the Weight-Curvature Index.
Theorems are numbered as in the papers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.measures.hermite import hermite

Array: TypeAlias = "np.ndarray"

FORMS = ("text", "appendix")

_MOST_ORDERS = 10_000  # of theorem 2; from order 13,000 on, mu_r^2 of sigmoid is below the least number
_SURE = 0.95  # the probability with which the inequality of lemma 1 holds for all layers


@dataclass(frozen=True)
class Bound:
    """A bound with its `value`, its `formula` as text, and its `inputs` by name. `vacuous` is true if it is
    not smaller than the trivial bound. If the formula has no value, `value` is None and `reason` says why."""

    formula: str
    value: float | None
    inputs: Mapping[str, Any]
    vacuous: bool
    reason: str | None = None


def robbench1(kernel: Array, targets: Array, depth: int) -> Bound:
    """RobBench's theorem 1 without its constants: sqrt(L^2 * y^T K^-1 y / N) bounds the expected error.

    `kernel` is (N, N): K_all for the clean error and K~_all for the robust error. `targets` contains +1 and
    -1. It is a vector (N,), or a matrix (N, K) with a column for each class; y^T K^-1 y is then averaged over
    the columns. `depth` is L. The bound is vacuous if it is 1 or more. If the kernel is not positive
    definite, there is no bound.
    """
    kernel, targets = np.asarray(kernel, np.float64), np.asarray(targets, np.float64)
    count = len(kernel)
    inputs = {"L": depth, "N": count}
    formula = "sqrt(L^2 y^T K^-1 y / N)"
    lowest = float(np.linalg.eigvalsh((kernel + kernel.T) / 2)[0])
    if not lowest > 0:
        reason = f"the smallest eigenvalue of the kernel is {lowest:.3g}, so it has no inverse"
        return Bound(formula, None, {**inputs, "lambda_min": lowest}, True, reason)
    columns = targets.reshape(count, -1)
    energy = float((columns * np.linalg.solve(kernel, columns)).sum(0).mean())
    value = depth * math.sqrt(max(energy, 0.0) / count)
    return Bound(formula, value, {**inputs, "yKy": energy}, value >= 1)


def robbench2(images: Array, rho: float, activation: str, order: int | None = None) -> Bound:
    """RobBench's theorem 2: a lower bound of the smallest eigenvalue of the robust kernel.

    The bound is 2 mu_r(s_1)^2 (1 - (N-1) max_(i != j) (|<x_i, x_j>| + 2 rho + rho^2)^r), where mu_r is the
    r-th coefficient of the first activation s_1 in normalised Hermite polynomials. `images` are (N, d) and
    are scaled to norm 1. `rho` is the L2 radius on this scale, 0 for the clean kernel. `order` is r; if it is
    None, the order with the largest bound. If the images do not satisfy the condition of `separation`, there
    is no such order and no value. The bound is vacuous if it is 0 or less. Raises RbError if an image is
    black or if there are fewer than two images.
    """
    count, closest = len(images), _closest(images)
    spread = closest + 2 * rho + rho * rho
    formula = "2 mu_r^2 (1 - (N-1) max(|<x_i,x_j>| + 2 rho + rho^2)^r)"
    inputs: dict[str, Any] = {"N": count, "rho": rho, "closest": closest, "activation": activation}

    def at(r: int) -> float:
        power = min(r * math.log(spread), 700.0) if spread > 0 else -math.inf
        return 2 * hermite(activation, r) ** 2 * (1 - (count - 1) * math.exp(power))

    if order is None:
        first = _first_order(count, spread)
        if first is None or first > _MOST_ORDERS:
            reason = f"max(|<x_i,x_j>|) + 2 rho + rho^2 is {spread:.6g}, so no order gives a bound above 0"
            if first is not None:
                reason = f"a bound above 0 needs order {first} or more, but only {_MOST_ORDERS} are computed"
            return Bound(formula, None, inputs, True, reason)
        order = tried = first
        # Over the even and over the odd orders, the bound rises to its maximum and then falls.
        while tried < order + 10:
            tried += 1
            order = tried if at(tried) > at(order) else order
    value = at(order)
    inputs = {"r": order, "mu_r": hermite(activation, order), **inputs}
    return Bound(formula, value, inputs, value <= 0)


def separation(images: Array, rho: float) -> Bound:
    """The condition of RobBench's theorem 2: s = max_(i != j) |<x_i, x_j>| + 2 rho + rho^2 is below 1.

    `order` is the smallest r with (N-1) s^r < 1. From this r on, the bound is positive for each activation
    whose mu_r is not 0. The condition is vacuous if s is 1 or more. `images`, `rho` and the errors are those
    of `robbench2`. In contrast, the paper's assumption 3 is about the distribution of images.
    """
    count, closest = len(images), _closest(images)
    value = closest + 2 * rho + rho * rho
    inputs: dict[str, Any] = {"N": count, "rho": rho, "closest": closest}
    if (order := _first_order(count, value)) is not None:
        inputs["order"] = order
    return Bound("max(|<x_i,x_j>|) + 2 rho + rho^2 < 1", value, inputs, value >= 1)


def _closest(images: Array) -> float:
    """The largest |<x_i, x_j>| of two different images scaled to norm 1, with the errors of `robbench2`."""
    rows = np.asarray(images, np.float64).reshape(len(images), -1)
    norms = np.linalg.norm(rows, axis=1)
    if len(rows) < 2 or not (norms > 0).all():
        raise RbError(
            f"The bound on the smallest eigenvalue needs two or more images, none of which is black. There"
            f" are {len(rows)} images, and {int((norms == 0).sum())} of them are black."
        )
    rows = rows / norms[:, None]
    products = np.abs(rows @ rows.T)
    np.fill_diagonal(products, 0)
    return float(products.max())


def _first_order(count: int, spread: float) -> int | None:
    """The smallest r with (count - 1) spread^r < 1, or None."""
    if not spread < 1:
        return None
    return 1 if spread == 0 else max(math.floor(math.log(count - 1) / -math.log(spread)) + 1, 1)


def robbench_lemmas(hidden: Sequence[Array], last: Array, pixels: int) -> dict[str, Bound]:
    """RobBench's lemmas 1, 2 and 9 on initial weights: the bounded quantities, each with its bound (`limit`).

    `hidden` are the matrices W_l (m, n) of the layers before the last one, where a convolution has n = kappa
    times its input channels. `last` is (K, m) or, with convolutions, (K, m p) for p `pixels`, which are 0
    without convolutions. All entries are samples from N(0, 1/m). Lemma 1 is about the singular values of
    sqrt(m) W_l: `singular` is the smallest zeta for which its inequality holds for all layers, and it exceeds
    the limit with a probability of at most 5 %. Lemma 2 (except layers with more columns than rows) and lemma
    9 give `spectral` and, for the last layer of a convolutional network, `frobenius`. `vacuous` is true if
    the limit is exceeded.
    """
    width = len(hidden[0])
    matrices = [*hidden, *([] if pixels else [last.T])]
    values = [np.linalg.svd(matrix.astype(np.float64), compute_uv=False) for matrix in matrices]
    zetas = []
    for matrix, each in zip(matrices, values, strict=True):
        long, short = sorted(map(math.sqrt, matrix.shape), reverse=True)
        scaled = each * math.sqrt(width)
        zetas.append(max(scaled[0] - long - short, long - short - scaled[-1]))
    # Lemma 2 is about matrices with no more columns than rows, such as the last, lemma 9 about all.
    layers = [layer for layer, one in enumerate(matrices) if pixels or one.shape[0] >= one.shape[1]]
    zeta = math.sqrt(2 * math.log(2 * len(matrices) / (1 - _SURE)))
    formula = "max_l max(s_max - sqrt(m1) - sqrt(m2), sqrt(m1) - sqrt(m2) - s_min) <= zeta"
    found = {
        "singular": _limited(formula, max(zetas), zeta, {"layers": len(matrices)}),
    }
    if layers:
        worst = max(layers, key=lambda layer: float(values[layer][0]))
        sides = dict(zip("mn", matrices[worst].shape, strict=True))
        found["spectral"] = _limited("max_l |W_l|_2 <= 3", values[worst][0], 3.0, sides)
    if pixels:
        norm = float(np.linalg.norm(last, axis=1).max())
        found["frobenius"] = _limited("|W_L|_F <= 3 sqrt(p)", norm, 3 * math.sqrt(pixels), {"p": pixels})
    return found


def _limited(formula: str, value: float, limit: float, inputs: dict[str, Any]) -> Bound:
    return Bound(formula, float(value), {"limit": limit, **inputs}, bool(value > limit))


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The Lipschitz constants of a model f, from images and weights to logits, in PRBench's assumption 1.

    `lipschitz` (L) and `lipschitz_theta` (L_theta) are the constants of f as a function of the image and of
    the weights (eq. 8). `smooth` (beta, eq. 10) and `smooth_theta` (beta_theta, eq. 9) are the constants of
    its Jacobian with respect to the weights, as a function of the image and of the weights. Norms are L2 and,
    of matrices, the induced norm. The theorems apply lemma 3, which derives from them the constants of the
    loss, 2 L_theta and 2 beta_theta + L_theta^2. With the constants of the loss itself instead, the bounds
    would be too small.
    """

    lipschitz: float
    lipschitz_theta: float
    smooth: float
    smooth_theta: float


def prbench1(constants: Constants, gamma: float, n: int, steps: int, c: float | None = None) -> Bound:
    """PRBench's theorem 1: a bound on |R - R_S| for training on the worst point of a ball.

    The bound is 1/n + (2 phi^2 + n phi chi) T / (psi (n-1)), where phi = 2 L_theta, chi = 4 beta gamma + 2
    L_theta and psi = 2 beta_theta + L_theta^2. With `c`, T is replaced by T^(c psi), as in the appendix.
    `gamma` is the L2 radius, `n` the number of training images, and `steps` is T. Losses are in [0, 1], so
    the bound is vacuous if it is 1 or more.
    """
    return _stability(*_of_worst_point(constants, gamma), gamma, n, steps, c)


def prbench4(constants: Constants, gamma: float, n: int, steps: int, c: float | None = None) -> Bound:
    """PRBench's theorem 1 with the best t0, the last step up to which the two compared training runs are the
    same.

    The bound is the minimum over t0 = 1, ..., T of t0/n + (2 phi^2 + n phi chi) (T/t0)^(c psi) / (psi (n-1)),
    after Hardt, Recht and Singer (2016), theorem 3.12. At t0 = 1 it equals `prbench1`. If c is None, the
    power is 1, as in the text. The appendix's theorem 4 (eq. 150) also uses the best t0, but in closed form.
    The arguments and `vacuous` are those of `prbench1`.
    """
    return _stability(*_of_worst_point(constants, gamma), gamma, n, steps, c, best=True)


def prbench5(constants: Constants, n: int, steps: int, c: float | None = None) -> Bound:
    """PRBench's proposition 1 with theorem 5: a bound on E(R - R_S) for training on random points.

    The bound is 1/n + 2 phi^2 T / (psi (n-1)), where phi = 2 L_theta and psi = max(phi, 2 beta_theta +
    L_theta^2). The objective of this training is itself phi-Lipschitz and psi-smooth, so the term n phi chi
    of `prbench1` is absent. (Lemma 3 gives phi and psi of the plain loss.) Theorem 5 bounds the expected gap
    by the stability, which is that of theorem 4 with eta = 0. The other arguments and `vacuous` are those of
    `prbench1`.
    """
    phi, _, smooth = _of_worst_point(constants, 0.0)
    bound = _stability(phi, 0.0, max(phi, smooth), 0.0, n, steps, c)
    formula = bound.formula.replace("(2 phi^2 + n phi chi)", "2 phi^2")
    unused = ("chi", "gamma")
    inputs = {name: value for name, value in bound.inputs.items() if name not in unused}
    return replace(bound, formula=formula, inputs=inputs)


def _of_worst_point(k: Constants, gamma: float) -> tuple[float, float, float]:
    phi = 2 * k.lipschitz_theta
    return phi, 4 * k.smooth * gamma + phi, 2 * k.smooth_theta + k.lipschitz_theta**2


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
    """PRBench's theorem 2: `prbench1` for a loss with `weight` (lambda) times the distance of outputs.

    phi~ = phi + 2 lambda (nu beta gamma + 3 nu^2 L_theta), psi~ = psi + 6 lambda (nu^2 beta_theta + 4 nu
    L_theta^2), chi~ = 4 beta gamma + 2 nu L_theta + 2 lambda gamma (nu^2 beta + 2 nu L L_theta). In the
    appendix (`form`), the last 2 lambda is 12 lambda. `nu` is the largest distance of softmax outputs in the
    ball. Raises RbError if the form is unknown.
    """
    if form not in FORMS:
        raise RbError(f"The form of PRBench's theorem 2 is '{form}'. Choose from: {', '.join(FORMS)}.")
    k, factor = constants, 12 if form == "appendix" else 2
    phi, _, psi = _of_worst_point(k, gamma)
    phi += 2 * weight * (nu * k.smooth * gamma + 3 * nu**2 * k.lipschitz_theta)
    psi += 6 * weight * (nu**2 * k.smooth_theta + 4 * nu * k.lipschitz_theta**2)
    chi = 4 * k.smooth * gamma + 2 * nu * k.lipschitz_theta
    chi += factor * weight * gamma * (nu**2 * k.smooth + 2 * nu * k.lipschitz * k.lipschitz_theta)
    bound = _stability(phi, chi, psi, gamma, n, steps, c)
    return replace(bound, inputs={**bound.inputs, "nu": nu, "lambda": weight, "form": form})


def _stability(
    phi: float, chi: float, psi: float, gamma: float, n: int, steps: int, c: float | None, best: bool = False
) -> Bound:
    """The value t0/n + (2 phi^2 + n phi chi) (T/t0)^power / (psi (n-1)), where power is c psi or 1, and t0 is
    1 or, with `best`, the best t0."""
    if n < 2 or steps < 0 or gamma < 0:
        raise RbError(
            f"The bound needs n >= 2 training images, and steps and gamma of 0 or more. Found n = {n},"
            f" steps = {steps} and gamma = {gamma:g}."
        )
    inputs = {"phi": phi, "chi": chi, "psi": psi, "gamma": gamma, "n": n, "T": steps}
    power_text = "" if c is None else "^(c psi)"
    formula = f"1/n + (2 phi^2 + n phi chi) T{power_text} / (psi (n-1))"
    if best:
        formula = f"min over t0 of t0/n + (2 phi^2 + n phi chi) (T/t0){power_text} / (psi (n-1))"
    if c is not None:
        inputs["c"] = c
    if psi <= 0:
        return Bound(formula, None, inputs, True, "psi is 0: the loss does not depend on the weights")
    scale, power = (2 * phi**2 + n * phi * chi) / (psi * (n - 1)), 1.0 if c is None else c * psi
    first = _best_start(scale, power, n, steps) if best and steps else 1
    if best:
        inputs["t0"] = first
    value = _at_start(first, scale, power, n, steps)
    if not math.isfinite(value):
        return Bound(formula, None, inputs, True, "the bound is larger than any number in float64")
    return Bound(formula, value, inputs, value >= 1)


def _at_start(first: int, scale: float, power: float, n: int, steps: int) -> float:
    if not steps:
        return first / n
    exponent = power * math.log(steps / first)
    return first / n + scale * (math.exp(exponent) if exponent < 700 else math.inf)


def _best_start(scale: float, power: float, n: int, steps: int) -> int:
    """The t0 from 1 to `steps` that minimises `_at_start`, which is convex in t0 if the power is positive."""
    if scale <= 0 or power <= 0:
        return 1
    # The derivative is 0 at t0^(power + 1) = n scale power T^power.
    log = (math.log(n) + math.log(scale) + math.log(power) + power * math.log(steps)) / (power + 1)
    middle = math.exp(min(log, math.log(steps)))
    around = {min(max(start, 1), steps) for start in (math.floor(middle), math.ceil(middle))}
    return min(around, key=lambda first: (_at_start(first, scale, power, n, steps), first))


def wci1(
    divergence: float, temperature: float, n: int, *, largest: float = 1.0, failure: float = 0.05
) -> Bound:
    """WCI's lemma 1, Catoni's bound: lambda C^2 / (8 n) + (KL + ln(1/epsilon)) / lambda.

    With probability 1 - epsilon over n training images, this bounds the robust gap (loss on the distribution
    minus loss on the images) of weights sampled from the posterior, for losses in [0, C]. `divergence` is the
    KL divergence of the posterior from the prior. `temperature` is lambda, which is positive and chosen
    before the images are seen. `largest` is C, and `failure` is epsilon. The bound is vacuous if it is C or
    more. Raises RbError if a number is outside its range.
    """
    if not (temperature > 0 and n > 0 and largest > 0 and 0 < failure < 1 and divergence >= 0):
        raise RbError(
            "WCI's lemma 1 needs lambda, n and C above 0, epsilon between 0 and 1 and a divergence of 0 or"
            f" more. Found {temperature:g}, {n}, {largest:g}, {failure:g} and {divergence:g}."
        )
    value = temperature * largest**2 / (8 * n) + (divergence + math.log(1 / failure)) / temperature
    inputs = {"KL": divergence, "lambda": temperature, "n": n, "C": largest, "epsilon": failure}
    return Bound("lambda C^2 / (8 n) + (KL + ln(1/epsilon)) / lambda", value, inputs, value >= largest)


def wci2(
    norms: Sequence[float], variances: Sequence[float], temperature: float, largest: float = 1.0
) -> Bound:
    """WCI's lemma 2: the sum over layers of |W_l|^2 / (2 sigma_l^2).

    This sum is the KL divergence (in nats) of a posterior N(W_l, sigma_l^2 I) from a prior N(0, sigma_l^2 I).
    `norms` are squared Frobenius norms. `variances` are sigma_l^2, each above 0, or infinite for a layer
    without curvature. The bound is vacuous if KL / lambda is at least the largest loss C in `wci1`.
    """
    value = math.fsum(norm / (2 * variance) for norm, variance in zip(norms, variances, strict=True))
    inputs = {"layers": len(norms), "lambda": temperature, "C": largest}
    return Bound("sum_l |W_l|^2 / (2 sigma_l^2)", value, inputs, value / temperature >= largest)


def wci_variances(norms: Sequence[float], traces: Sequence[float], temperature: float) -> list[float]:
    """The variances sigma_l^2 that minimise |W_l|^2 / (2 lambda sigma_l^2) + sigma_l^2 Tr H_l: sqrt(|W_l|^2 /
    (2 lambda Tr H_l)), or infinite for a layer whose trace is 0 or less. The minimum, summed over the layers,
    is theorem 4."""
    return [
        math.sqrt(norm / (2 * temperature * trace)) if trace > 0 and norm > 0 else math.inf
        for norm, trace in zip(norms, traces, strict=True)
    ]


def wci3(traces: Sequence[float], variances: Sequence[float], largest: float = 1.0) -> Bound:
    """WCI's lemma 3: the sum over layers of Tr(H_l) sigma_l^2 bounds the increase of the loss if noise N(0,
    sigma_l^2 I) is added to the weights. A layer of infinite variance has no curvature and adds nothing. The
    bound is vacuous if it is the largest loss C or more."""
    value = math.fsum(t * v for t, v in zip(traces, variances, strict=True) if math.isfinite(v))
    return Bound("sum_l Tr(H_l) sigma_l^2", value, {"layers": len(traces), "C": largest}, value >= largest)


def wci4(wci: float, temperature: float) -> Bound:
    """WCI's theorem 4: sqrt(2 / lambda) * WCI bounds the robust generalisation gap, for losses in [0, 1].
    `temperature` is lambda. The bound is vacuous if it is 1 or more. Raises RbError if lambda is 0 or
    less."""
    if not temperature > 0:
        raise RbError(f"lambda of WCI's theorem 4 is {temperature:g}. It must be above 0.")
    value = math.sqrt(2 / temperature) * wci
    return Bound("sqrt(2 / lambda) WCI", value, {"WCI": wci, "lambda": temperature}, value >= 1)
