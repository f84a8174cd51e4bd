"""Small networks for tests, fresh weights by a seed, in evaluation mode; images and draws for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rbtools import datasets
from rbtools.rng.draws import Draws


def linear(shape: tuple[int, int, int] = (3, 8, 8), classes: int = 10, seed: int = 0) -> nn.Sequential:
    """One linear layer, whose worst case is known in closed form."""
    torch.manual_seed(seed)
    pixels = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes)).eval().requires_grad_(False)


def convolutional(
    channels: int = 3,
    classes: int = 10,
    *,
    width: int = 8,
    norm: bool = False,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Sequential:
    """A convolution, BatchNorm and dropout where asked for, ReLU, mean over pixels, a linear layer."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1)]
    layers += [nn.BatchNorm2d(width)] if norm else []
    layers += [nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)).eval()


class InFloat64(nn.Module):
    """A network computed in float64, in which neither rounding nor the order of operations shows."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.double().eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images.double())


def class_means(every: int = 1, first: int = 0) -> Tensor:
    """The mean image (10, 64) of each class of digits, of every so many training images, in float64."""
    data = datasets.load("digits", "train")
    pixels, labels = data.images[first::every].flatten(1).double() / 255, data.labels[first::every]
    return torch.stack([pixels[labels == label].mean(0) for label in range(10)])


def nearest(means: Tensor, scale: float = 1.0) -> nn.Sequential:
    """Logits: minus the squared distance to the mean (K, D) of each class, up to a constant."""
    layer = nn.Linear(means.shape[1], len(means))
    layer.weight.data = scale * 2 * means.float()
    layer.bias.data = -scale * means.square().sum(1).float()
    return nn.Sequential(nn.Flatten(), layer).eval().requires_grad_(False)


def gradient_rows(model: nn.Module, images: Tensor, of: Callable[[Tensor], Tensor] = torch.sum) -> Tensor:
    """The gradient of a number of each image's logits, by all weights in float64: (N, P)."""
    parameters = [parameter.requires_grad_() for parameter in model.parameters()]
    rows = []
    for image in images:
        number = of(model(image[None])[0])
        found = torch.autograd.grad(number, parameters, materialize_grads=True, allow_unused=True)
        rows.append(torch.cat([part.flatten() for part in found]).double())
    model.requires_grad_(False)
    return torch.stack(rows)


def images_for(count: int, shape: tuple[int, ...] = (3, 6, 6), seed: int = 0) -> Tensor:
    """Uniform pixels in [0, 1]."""
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


def draws_for(count: int, seed: int = 0) -> Draws:
    """The random numbers of examples 0 to `count` - 1."""
    return Draws(seed, "test", torch.arange(count))
