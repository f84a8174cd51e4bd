"""The constants of a model's logits in PRBench's assumption 1 (eq. 8 to 10), estimated on some images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rbtools.lazy import Tensor, nn, torch
from rbtools.measures import derivatives
from rbtools.measures.base import BatchResult, MeasureBatch
from rbtools.measures.hessian import lanczos

CONSTANTS = ("lipschitz", "lipschitz_theta", "smooth", "smooth_theta")
_PRODUCTS, _TOLERANCE = 16, 0.01  # of Lanczos, which is exact after as many products as there are classes
_ROUNDS, _RISE = 8, 1.02  # of the maximisation for smooth_theta: most rounds, and the least rise to go on

Logits = Callable[[Any], Tensor]  # from weights or images to logits (1, K)


def of_logits(model: nn.Module, batch: MeasureBatch) -> BatchResult:
    """The largest values on these images and on their adversarial examples, at the model's weights. The keys
    are the names of the constants; gamma, the largest L2 distance of an attacked image; softmax, the largest
    distance of softmax outputs; and smooth_theta_local, the list of smooth_theta for each attacked image.

    lipschitz and lipschitz_theta are the spectral norms of the Jacobians with respect to the image and to the
    weights, smooth is the spectral norm of the change of the latter divided by the distance of the two
    images, and smooth_theta is the norm of the second derivative, the maximum of w . f''[u, v] over unit
    vectors u and v of weights and w of logits.
    """
    largest = dict.fromkeys((*CONSTANTS, "gamma", "softmax"), 0.0)
    local = []

    def raise_to(name: str, value: float) -> None:
        largest[name] = max(largest[name], value)

    weights, images = derivatives.weights_of(model), (batch.images, batch.attacked)
    for row, pair in enumerate(derivatives.chunks(1, *images)):
        functions = [derivatives.logits_of(model, image) for image in pair]
        with derivatives.differentiating():
            logits = [function(weights) for function in functions]
            start = (
                batch.draws.take(torch.tensor([row], device=pair[0].device))
                .child("logits")
                .normal(tuple(logits[0].shape[1:]))
            )
            start = start.to(logits[0])
            change, distance = (float((after - before).norm()) for before, after in (logits, pair))
            for image, function in zip(pair, functions, strict=True):
                raise_to("lipschitz", spectral_norm(_at(model, weights), image, start))
                raise_to("lipschitz_theta", spectral_norm(function, weights, start))
            if distance > 0:
                raise_to("lipschitz", change / distance)
                raise_to("smooth", spectral_norm(_difference(*functions), weights, start) / distance)
            local.append(curvature(functions[1], weights, start))
        before, after = (one.double().softmax(1) for one in logits)
        raise_to("softmax", float((after - before).norm()))
        raise_to("gamma", distance)
        raise_to("smooth_theta", local[-1])
    return {**largest, "smooth_theta_local": local}


def _at(model: nn.Module, weights: derivatives.Weights) -> Logits:
    return lambda image: torch.func.functional_call(model, weights, (image,))


def _difference(first: Logits, second: Logits) -> Logits:
    return lambda weights: second(weights) - first(weights)


def spectral_norm(function: Logits, point: Any, start: Tensor) -> float:
    """The largest singular value of the Jacobian J of `function` at `point`. The Lanczos method starts from
    `start` (1, K) and works on J J', which has only the size of the logits."""
    _, pulled, *_ = torch.func.vjp(function, point)  # w -> J' w
    # The derivative of w -> J' w, transposed, is v -> J v.
    _, pushed, *_ = torch.func.vjp(lambda vector: _pull(function, point, vector), torch.zeros_like(start))
    limits: dict[str, Any] = {"iterations": _PRODUCTS, "tolerance": _TOLERANCE}
    squares = lanczos(lambda vector: pushed(pulled(vector)[0])[0], start, top=1, **limits)
    return math.sqrt(max(float(squares[0, 0]), 0.0))


def curvature(function: Logits, weights: derivatives.Weights, start: Tensor) -> float:
    """The norm of the second derivative at the weights, max w . f''[u, v], by an alternating maximisation
    over u, v and w from w = `start` and v = J' w. The value rises in every round towards a local maximum, and
    is a lower bound."""
    vector, outputs, value = _pull(function, weights, start), start / start.norm(), 0.0
    for _ in range(_ROUNDS):
        length = derivatives.flat(vector).norm()
        if not length > 0:
            break
        direction = {name: part / length for name, part in vector.items()}

        def product(outputs: Tensor, v: derivatives.Weights = direction) -> derivatives.Weights:  # w . f''[v]
            _, transposed, *_ = torch.func.vjp(lambda at: _pull(function, at, outputs), weights)
            result: derivatives.Weights = transposed(v)[0]
            return result

        vector, transposed, *_ = torch.func.vjp(product, outputs)
        outputs = transposed(vector)[0]  # f''[u, v] for the u of this length
        size = outputs.norm()
        before, value = value, float(size / derivatives.flat(vector).norm().clamp_min(1e-30))
        outputs = outputs / size.clamp_min(1e-30)
        if not value > _RISE * before:
            break
    return value


def _pull(function: Logits, point: Any, vector: Tensor) -> Any:
    return torch.func.vjp(function, point)[1](vector)[0]
