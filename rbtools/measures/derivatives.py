"""Derivatives of a model's loss with torch.func. Weights are arguments of functions, and Hessians are
represented by their products with vectors.

All functions split images into chunks and accumulate in the model's dtype.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from rbtools.errors import RbError
from rbtools.lazy import F, Tensor, nn, torch
from rbtools.rng.draws import Draws

Weights = dict[str, Tensor]


@contextlib.contextmanager
def differentiating() -> Iterator[None]:
    """Disable autograd outside of torch.func, and select an attention kernel that has second derivatives."""
    attention = torch.nn.attention
    with torch.no_grad(), attention.sdpa_kernel(attention.SDPBackend.MATH):
        yield


def weights_of(model: nn.Module, names: Sequence[str] | None = None) -> Weights:
    """The model's parameters, or only those with these names. Raises RbError if the model has none."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    if not weights:
        raise RbError("The model has no parameters, so nothing depends on its weights. Use another model.")
    return weights if names is None else {name: weights[name] for name in names}


def layers(model: nn.Module) -> dict[str, str]:
    """Maps the name of each convolution and linear layer to the name of its weight. Raises RbError if the
    model has no such layers."""
    kinds = (nn.modules.conv._ConvNd, nn.Linear)
    weight_names = {
        name: f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if isinstance(module, kinds)
    }
    if not weight_names:
        raise RbError(
            "This measure needs a convolution or a linear layer, but the model has none. It has:"
            f" {', '.join(sorted({type(module).__name__ for module in model.modules()}))}."
        )
    return weight_names


def flat(weights: Weights) -> Tensor:
    return torch.cat([value.flatten() for value in weights.values()])


def logits_of(model: nn.Module, images: Tensor) -> Callable[[Weights], Tensor]:
    """The function from some weights to the logits (N, K) of images (N, C, H, W). Other weights are
    constant."""
    fixed = weights_of(model)
    return lambda weights: torch.func.functional_call(model, {**fixed, **weights}, (images,))


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[Weights], Tensor]:
    """The function from weights to the summed cross-entropy of images, in float32 or float64."""
    logits_at = logits_of(model, images)

    def loss(weights: Weights) -> Tensor:
        logits = logits_at(weights)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(wide, labels, reduction="sum")

    return loss


def chunks(chunk: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Splits all tensors along the first dimension. Yields at most `chunk` rows of each."""
    yield from zip(*(tensor.split(chunk) for tensor in tensors), strict=True)


def read_sum(terms: Iterable[Tensor]) -> float:
    """The sum of scalars, in float64 and in the given order. The result is read from the device once."""
    return float(sum(torch.stack(list(terms)).tolist()))


def gradient(model: nn.Module, images: Tensor, labels: Tensor, chunk: int) -> Weights:
    """The gradient of the mean cross-entropy of images (N, C, H, W) with respect to all weights."""
    weights = weights_of(model)
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    with differentiating():
        for part, truth in chunks(chunk, images, labels):
            for name, value in torch.func.grad(loss_of(model, part, truth))(weights).items():
                total[name] += value / len(labels)
    return total


def mean_loss(model: nn.Module, weights: Weights, images: Tensor, labels: Tensor, chunk: int) -> float:
    """The mean cross-entropy of images (N, C, H, W) if these weights replace the model's weights."""
    with differentiating():
        parts = chunks(chunk, images, labels)
        return read_sum(loss_of(model, part, truth)(weights) for part, truth in parts) / len(labels)


class WeightHessian:
    """The Hessian of the mean cross-entropy of images (N, C, H, W) with respect to some weights of the model.
    Vectors and products are dictionaries of weights by name."""

    def __init__(
        self, model: nn.Module, images: Tensor, labels: Tensor, chunk: int, names: Sequence[str] | None = None
    ) -> None:
        self.model, self.images, self.labels, self.chunk = model, images, labels, chunk
        self.weights = weights_of(model, names)
        self.size = sum(value.numel() for value in self.weights.values())
        self._only: Callable[[Weights], Weights] | None = None

    def product(self, vector: Weights) -> Weights:
        """The product H v."""
        total = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        with differentiating():
            for part, truth in chunks(self.chunk, self.images, self.labels):
                for name, value in self._product(part, truth)(vector).items():
                    total[name] += value
        return total

    def traces(self, probes: Draws, count: int) -> list[list[float]]:
        """Hutchinson's estimates v_l . (H v)_l of the trace of each weight's diagonal block of H, a row for
        each random vector v, which has random signs for all weights at once. The estimate is unbiased for
        each weight. All estimates together cost as much as one estimate of the trace of H."""
        signs, names = probes.child("trace"), list(self.weights)
        estimates = []
        with differentiating():
            for part, truth in chunks(self.chunk, self.images, self.labels):
                # The gradient of a chunk is computed once for all probes: a probe costs about as much as a
                # gradient, and not twice as much.
                product = self._product(part, truth)
                for number in range(count):
                    vector = self.shaped(rademacher(signs, self.size, number)[0])
                    block = product(vector)
                    estimates.append(torch.stack([(vector[name] * block[name]).sum() for name in names]))
        rows = [[0.0] * len(names) for _ in range(count)]
        # All are read at once, because a read waits for a GPU, and added in float64.
        for index, read in enumerate(torch.stack(estimates).tolist() if estimates else ()):
            rows[index % count] = [
                total + estimate for total, estimate in zip(rows[index % count], read, strict=True)
            ]
        return rows

    def flat(self, vector: Tensor) -> Tensor:
        """The product H v, where v and H v are flattened to one row (1, size)."""
        return flat(self.product(self.shaped(vector[0])))[None]

    def shaped(self, flat: Tensor) -> Weights:
        sizes = [value.numel() for value in self.weights.values()]
        parts = zip(self.weights.items(), flat.split(sizes), strict=True)
        return {name: part.view(value.shape) for (name, value), part in parts}

    def _product(self, images: Tensor, labels: Tensor) -> Callable[[Weights], Weights]:
        """The product with the Hessian of one chunk of images. The function for a single chunk is cached."""
        if self._only is not None:
            return self._only
        # Reverse over reverse: on a CPU half the time of forward over reverse, which computes the gradient
        # again for every vector (ResNet-18, 32 images, one core: 5.5 s against 11.7 s).
        _, transposed, *_ = torch.func.vjp(torch.func.grad(loss_of(self.model, images, labels)), self.weights)

        def product(vector: Weights) -> Weights:
            products: Weights = transposed(vector)[0]
            return {name: value / len(self.labels) for name, value in products.items()}

        if len(labels) == len(self.labels):
            self._only = product
        return product


class InputHessian:
    """The Hessian of each image's cross-entropy with respect to the image. Vectors are (N, C*H*W)."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        self.images = images
        fixed = weights_of(model)

        def loss(images: Tensor) -> Tensor:
            logits = torch.func.functional_call(model, fixed, (images,))
            return F.cross_entropy(logits, labels, reduction="sum")

        with differentiating():
            _, self._transposed, *_ = torch.func.vjp(torch.func.grad(loss), images)

    def flat(self, vectors: Tensor) -> Tensor:
        """The product H_i v_i for each row i."""
        with differentiating():
            (products,) = self._transposed(vectors.view_as(self.images))
        product: Tensor = products.flatten(1)
        return product


def rademacher(draws: Draws, count: int, draw: int) -> Tensor:
    """Random signs, each +1 or -1 with probability 1/2: float32 (N, count) for the N examples of `draws`."""
    words = draws.bits(-(-count // 32), draw)
    places = torch.arange(32, device=words.device)
    signs = words[:, :, None].bitwise_right_shift(places).bitwise_and_(1).flatten(1)[:, :count]
    result: Tensor = signs.float().mul_(2).sub_(1)
    return result


def pullback(model: nn.Module, images: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The logits z (N, K), and a function that maps vectors v (N, K) to the gradients of v.z (N, C, H, W)."""
    fixed = weights_of(model)
    logits, transposed, *_ = torch.func.vjp(lambda x: torch.func.functional_call(model, fixed, (x,)), images)
    return logits, lambda vectors: transposed(vectors)[0]
