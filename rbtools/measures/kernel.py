"""The empirical neural tangent kernel: inner products of the images' gradients, which are not stored.

In eval mode, an image's gradient with respect to a layer's weight is computed from the layer's input and the
gradient at its output. One forward and one backward pass for all images compute all inputs and output
gradients. The kernel is summed layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from rbtools.lazy import F, Tensor, nn, torch
from rbtools.measures.base import watching
from rbtools.measures.derivatives import Weights, differentiating, weights_of

# Takes a layer, its input, and the gradient at its output.
Add = Callable[["nn.Module", Tensor, Tensor], None]
# Yields a parameter's name and the gradients of N images with respect to some of its numbers: (N, ...).
Blocks = Iterator[tuple[str, Tensor]]

# How many numbers of a layer's gradients are in memory at once, and columns of a block of products.
_NUMBERS = 1 << 26
_COLUMNS = 4096
# How many numbers of all images' gradients are in memory at once if each image needs its own pass.
_ROWS = 1 << 28


def gram(model: nn.Module, images: Tensor, *, each_logit: bool = False) -> Tensor:
    """The kernel of the sum of the logits: K_ij = <d f(x_i)/d theta, d f(x_j)/d theta>, float64 (N, N), for
    images (N, C, H, W).

    With `each_logit`, the result is the sum over logits of the kernel of each logit, which is the trace over
    outputs. Gradients are in float32 and their products in float64, so the kernel is positive semidefinite up
    to the rounding of float64. The error of its small eigenvalues is about 1e-6 * sqrt(largest * smallest).
    Raises RbError if the model has no parameters.
    """
    weights_of(model)  # raises RbError if there are none
    total = torch.zeros(len(images), len(images), dtype=torch.float64, device=images.device)
    taken, others = _taken(model, images[:1])

    def add(module: nn.Module, inside: Tensor, gradient: Tensor) -> None:
        for name, block in _blocks(module, inside, gradient):
            if name in taken[module]:
                _add_products(total, block)

    _backward(model, images, set(taken), add, each_logit)
    if others:
        _one_by_one(model, images, others, total, each_logit)
    return total


def gram_of_batches(model: nn.Module, batches: Sequence[Tensor], *, each_logit: bool = False) -> Tensor:
    """The kernel of a model in which the logits of an image depend on its batch (BatchNorm with the batch's
    statistics). Here f(x_i) is the output for image i in its batch; its derivative goes through all images of
    the batch.

    For each image (and logit), a backward pass through the complete batch is needed. At most 1 GiB of
    gradients is in memory at once; if all gradients need more, the passes are repeated for parts of the
    parameters. The rows of the kernel are the images of all batches, in order. Raises RbError if the model
    has no parameters.
    """
    weights = weights_of(model)
    count = sum(map(len, batches))
    total = torch.zeros(count, count, dtype=torch.float64, device=batches[0].device)
    parameters = dict(model.named_parameters())
    with _differentiable(list(parameters.values())), torch.enable_grad():
        for group in _groups(weights, list(weights), _ROWS // count):
            some = [parameters[name] for name in group]
            # The graphs of all batches are kept, because there is a backward pass for each image.
            logits = [model(images) for images in batches]
            outputs = [part.T if each_logit else part.sum(1)[None] for part in logits]
            for places in zip(*outputs, strict=True):
                rows = []
                for output in (output for batch_outputs in places for output in batch_outputs):
                    gradients = tuple(torch.zeros_like(parameter) for parameter in some)
                    if output.requires_grad:
                        gradients = torch.autograd.grad(
                            output, some, retain_graph=True, allow_unused=True, materialize_grads=True
                        )
                    rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
                _add_products(total, torch.stack(rows))
    return total


def _add_products(total: Tensor, block: Tensor) -> None:
    """Add the inner products of all pairs of rows to the kernel, in float64."""
    for part in block.flatten(1).split(_COLUMNS, dim=1):  # the float64 copy stays in the cache
        rows = part.double()
        total.addmm_(rows, rows.T)


def _blocks(module: nn.Module, inside: Tensor, gradient: Tensor) -> Blocks:
    """The images' gradients with respect to a layer's own parameters, from its input and output gradient;
    nothing for layers that this module does not support."""
    if isinstance(module, nn.Conv2d):
        if module.groups == 1 and not isinstance(module.padding, str) and module.padding_mode == "zeros":
            yield from _convolution(module, inside, gradient)
            yield "bias", gradient.flatten(2).sum(2)
    elif isinstance(module, nn.Linear):
        yield from _linear(module, inside, gradient)
    elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
        yield from _batch_norm(module, inside, gradient)
    elif isinstance(module, nn.modules.batchnorm._BatchNorm) and inside.ndim > 2:
        # the statistics of each image
        normal = F.instance_norm(inside, eps=module.eps)
        yield "weight", (gradient * normal).flatten(2).sum(2)
        yield "bias", gradient.flatten(2).sum(2)
    elif isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        normal = F.layer_norm(inside, module.normalized_shape, eps=module.eps)
        yield "weight", _middle_sum(gradient * normal)
        yield "bias", _middle_sum(gradient)


def _convolution(conv: nn.Conv2d, inside: Tensor, gradient: Tensor) -> Blocks:
    """Compute the gradients of all images as the weight gradient of one convolution with a group for each
    image. (50 images of 16 channels and 32x32 pixels take 3.7 ms on one core, and 16.7 ms by unfolding.)"""
    count, channels = gradient.shape[:2]
    if conv.kernel_size == (1, 1) and conv.padding == (0, 0):
        seen = inside[:, :, :: conv.stride[0], :: conv.stride[1]].flatten(2)
        yield "weight", torch.bmm(gradient.flatten(2), seen.transpose(1, 2))
        return
    step = max(_NUMBERS // (count * conv.weight[0].numel()), 1)
    channels_of_all = inside.reshape(1, -1, *inside.shape[2:])
    for first in range(0, channels, step):
        part = gradient[:, first : first + step].reshape(1, -1, *gradient.shape[2:])
        weight = conv.weight.detach()[:1].expand(part.shape[1], *conv.weight.shape[1:])
        options = (None, conv.stride, conv.padding, conv.dilation, False, [0, 0], count, [False, True, False])
        gradients = torch.ops.aten.convolution_backward(part, channels_of_all, weight, *options)
        yield "weight", gradients[1].view(count, -1)


def _linear(module: nn.Linear, inside: Tensor, gradient: Tensor) -> Blocks:
    """The images' gradients of a linear layer, summed over the dimensions between the first and the last."""
    left, right = (x.reshape(len(x), -1, x.shape[-1]) for x in (gradient, inside))
    step = max(_NUMBERS // right[:, 0].numel(), 1)
    for part in left.split(step, dim=2):
        yield "weight", torch.bmm(part.transpose(1, 2), right)
    yield "bias", _middle_sum(gradient)


def _middle_sum(gradient: Tensor) -> Tensor:
    return gradient.reshape(len(gradient), -1, gradient.shape[-1]).sum(1)


def _batch_norm(norm: nn.modules.batchnorm._BatchNorm, inside: Tensor, gradient: Tensor) -> Blocks:
    """Use the backward pass of one BatchNorm with a channel for each channel of each image."""
    assert norm.running_mean is not None and norm.running_var is not None
    count = len(inside)
    left, right = (x.reshape(1, -1, *x.shape[2:]) for x in (gradient, inside))
    mean, variance = norm.running_mean.repeat(count), norm.running_var.repeat(count)
    options = (None, None, False, norm.eps, [False, True, True])
    _, weight, bias = torch.ops.aten.native_batch_norm_backward(left, right, None, mean, variance, *options)
    yield "weight", weight.view(count, -1)
    yield "bias", bias.view(count, -1)


def _taken(model: nn.Module, image: Tensor) -> tuple[dict[nn.Module, set[str]], list[str]]:
    """The parameters for which `_blocks` reproduces autograd's gradient for one image, and the names of the
    other parameters on which the logits depend."""
    blocks: dict[Tensor, list[Tensor]] = {}
    places: dict[Tensor, tuple[nn.Module, str]] = {}

    def add(module: nn.Module, inside: Tensor, gradient: Tensor) -> None:
        for name, block in _blocks(module, inside, gradient):
            parameter = module._parameters.get(name)
            if parameter is not None:
                blocks.setdefault(parameter, []).append(block.flatten())
                places[parameter] = module, name

    parameters = dict(model.named_parameters())
    every = list(parameters.values())
    with _differentiable(every), _watched(set(model.modules()), add), torch.enable_grad():
        exact = torch.autograd.grad(model(image).sum(), every, allow_unused=True)
    pairs = [
        (torch.cat(blocks.get(parameter, [gradient.new_empty(0)])), gradient.flatten())
        for parameter, gradient in zip(parameters.values(), exact, strict=True)
        if gradient is not None
    ]
    same = iter(_same(pairs))
    taken: dict[nn.Module, set[str]] = {}
    others = []
    for (name, parameter), gradient in zip(parameters.items(), exact, strict=True):
        if gradient is None:
            continue
        if next(same):
            module, own_name = places[parameter]
            taken.setdefault(module, set()).add(own_name)
        else:
            others.append(name)
    return taken, others


def _same(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[bool]:
    """Whether each computed gradient is close to the exact gradient, relative to the largest value. The
    results are read from the device in two reads."""
    alike = [computed.shape == exact.shape for computed, exact in pairs]
    comparable = [pair for pair, fits in zip(pairs, alike, strict=True) if fits]
    if not comparable:
        return alike
    largest = torch.stack([exact.abs().max() for _, exact in comparable]).tolist()
    close = [
        torch.isclose(computed, exact, rtol=1e-3, atol=1e-4 * most, equal_nan=True).all()
        for (computed, exact), most in zip(comparable, largest, strict=True)
    ]
    answers = iter(torch.stack(close).tolist())
    return [fits and next(answers) for fits in alike]


@contextmanager
def _differentiable(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Make frozen parameters require gradients inside the `with` block."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _backward(model: nn.Module, images: Tensor, modules: set[nn.Module], add: Add, each_logit: bool) -> None:
    """Call `add` with the input and the output gradient of each call of these modules."""
    with _watched(modules, add), torch.enable_grad():
        points = images.detach().requires_grad_()
        logits = model(points)
        if not logits.requires_grad:  # the logits depend neither on the image nor on a layer that gets it
            return
        outputs = logits.sum(0) if each_logit else logits.sum()[None]
        for number, output in enumerate(outputs):
            torch.autograd.grad(output, points, retain_graph=number + 1 < len(outputs), allow_unused=True)


def _watched(modules: set[nn.Module], add: Add) -> AbstractContextManager[None]:
    def take(module: nn.Module, inside: Tensor, gradient: Tensor) -> None:
        with torch.no_grad():
            add(module, inside, gradient.detach())

    def seen(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad and isinstance(inputs[0], torch.Tensor):
            # The hook gets the gradient at the tensor's current value, even if it is overwritten later.
            output.register_hook(partial(take, module, inputs[0].detach()))

    return watching((module for module in modules if module._parameters), seen)


def _one_by_one(model: nn.Module, images: Tensor, names: list[str], total: Tensor, each_logit: bool) -> None:
    """Add the contribution of the parameters that `_blocks` does not support, with vmap over images."""
    weights = weights_of(model)
    classes = len(model(images[:1])[0]) if each_logit else 1

    def output(values: Weights, image: Tensor, logit: int) -> Tensor:
        logits = torch.func.functional_call(model, {**weights, **values}, (image[None],))[0]
        result: Tensor = logits[logit] if each_logit else logits.sum()
        return result

    with differentiating():
        for group in _groups(weights, names, _NUMBERS // 32):
            step = max(_NUMBERS // sum(value.numel() for value in group.values()), 1)
            for logit in range(classes):
                gradients = torch.func.vmap(torch.func.grad(output), in_dims=(None, 0, None), chunk_size=step)
                for block in gradients(group, images, logit).values():
                    _add_products(total, block)


def _groups(weights: Weights, names: list[str], most: int) -> Iterator[Weights]:
    """Yields these parameters in groups with at most `most` numbers or with a single parameter."""
    group: Weights = {}
    for name in names:
        if group and sum(map(torch.Tensor.numel, (*group.values(), weights[name]))) > most:
            yield group
            group = {}
        group[name] = weights[name]
    yield group
