"""A network as a list of operations, traced while it classifies two images.

The operations are torch's own (convolution, addition ...), below modules and functions, so that it does not
matter how the network is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rbtools.certification import operations as ops
from rbtools.certification.piecewise_linear import MaxPooled, Rectifier
from rbtools.errors import RbError

_PROBE = 2  # images
SUPPORTED = (
    "convolution in two dimensions, BatchNorm in eval mode, linear layers, ReLU, average and max pooling,"
    " addition, concatenation, flatten, slices, padding by zeros, and sums and products with constants"
)


class Node(NamedTuple):
    """An operation, the numbers of the nodes that it takes, and the shape of one image's values."""

    operation: ops.Operation
    parents: tuple[int, ...]
    shape: tuple[int, ...]


class TracedNetwork(NamedTuple):
    """The operations in the order of their evaluation: the first is the image, the last gives the logits.

    users: how many operations take the outputs of each. charged_later: which are taken by one addition alone.
    """

    nodes: list[Node]
    users: list[int]
    charged_later: list[bool]


def trace(model: Callable[[Tensor], Tensor], shape: Sequence[int], device: torch.device) -> TracedNetwork:
    """The operations of a model of images (N, *shape) in [0, 1], in eval mode.

    Raises RbError that names an operation that has no bounds, or that mixes images.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(_PROBE, *shape, generator=generator).to(device)
    with torch.no_grad(), _Recorder(images) as recorder:
        logits = model(images)
    return _network(recorder.nodes, recorder.number_of(logits), "so there is nothing to certify")


def trace_batch(model: Callable[[Tensor], Tensor], images: Tensor) -> tuple[TracedNetwork, Tensor]:
    """The operations of a pass of images (N, C, H, W), N of two or more, and its logits (N, K), for training.

    The model stays in its mode. Weights keep their type and their graph, so that bounds are differentiable in
    them; a BatchNorm in training mode scales by the statistics of these images, and dropout by its factors.
    Raises RbError as `trace` does.
    """
    with _Recorder(images, training=True) as recorder:
        logits = model(images)
    # During a call weights have no graph, so the operations are built again after it.
    nodes = [
        recorder.nodes[0],
        *(
            node._replace(operation=_HANDLERS[call.name.removesuffix("_")](call)[0])
            for call, node in zip(recorder.calls, recorder.nodes[1:], strict=True)
        ),
    ]
    last = recorder.number_of(logits)
    return _network(nodes, last, "so there are no bounds to train with"), logits


def _network(nodes: list[Node], last: int | None, consequence: str) -> TracedNetwork:
    """The network whose logits node `last` gives, if they depend on the image."""
    if last is None:
        raise RbError(f"The logits do not depend on the image, {consequence}.")
    return _pruned(_merged(nodes, last))


class _Recorder(TorchDispatchMode):
    """Records the operations on tensors that depend on the images."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here. Otherwise torch wraps the method, and imports its compiler for that: 3 s.
        return False

    def __init__(self, images: Tensor, *, training: bool = False) -> None:
        super().__init__()
        self.count, self.training = len(images), training
        self.nodes = [Node(ops.Input(), (), tuple(images.shape[1:]))]
        self.calls: list[_Call] = []  # the calls of all nodes but the first
        # A node of None is of outputs that nothing may use, such as the indices of max pooling.
        self._known: dict[int, tuple[Tensor, int, int | None]] = {id(images): (images, images._version, 0)}

    def number_of(self, value: object) -> int | None:
        """The node of a tensor; None for one that does not depend on the images."""
        if not isinstance(value, Tensor) or id(value) not in self._known:
            return None
        tensor, version, number = self._known[id(value)]
        if number is None or tensor._version != version:
            raise refusal("an operation that changes a tensor in place, or uses indices")
        return number

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        numbers = {id(value): self.number_of(value) for value in _tensors([*args, *kwargs.values()])}
        name = func.overloadpacket.__name__
        output = func(*args, **kwargs)
        if all(number is None for number in numbers.values()) or name in _CONSTANTS:
            return output
        handler = _HANDLERS.get(name.removesuffix("_"))
        if handler is None:
            raise refusal(name)
        first = output[0] if isinstance(output, tuple | list) else output
        call = _Call(name, args, kwargs, first, numbers, self.training)
        if first.shape[:1] != (self.count,):
            raise refusal(f"{name} over several images")
        operation, parents = handler(call)
        self.nodes.append(Node(operation, tuple(parents), tuple(first.shape[1:])))
        if self.training:
            self.calls.append(call)
        for tensor in _tensors([output]):
            number = len(self.nodes) - 1 if tensor is first else None
            self._known[id(tensor)] = (tensor, _version_after(tensor, args[0]), number)
        return output


def _version_after(output: Tensor, argument: object) -> int:
    """The number of changes of an output that torch will count once the call is over.

    A change in place is not counted yet, and a view does not share its base's count yet.
    """
    if not isinstance(argument, Tensor):
        return output._version
    shared = output.untyped_storage().data_ptr() == argument.untyped_storage().data_ptr()
    return argument._version + (output is argument) if shared else output._version


def refusal(name: str) -> RbError:
    """The error for an operation that has no bounds."""
    return RbError(
        f"The network cannot be certified: it has the operation {name}, which has no bounds here. Supported:"
        f" {SUPPORTED}."
    )


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    tensors = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += _tensors(value)
    return tensors


class _Call(NamedTuple):
    """A call of one of torch's operations, with its first output.

    numbers: the node of each tensor that it takes, by the tensor's id. training: see `trace_batch`.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor
    numbers: dict[int, int | None]
    training: bool

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def rest(self, position: int, *defaults: Any) -> list[Any]:
        """The arguments from a position on, with defaults for those that are missing."""
        passed = self.args[position : position + len(defaults)]
        return [*passed, *defaults[len(passed) :]]

    def only(self, position: int = 0) -> int:
        """The node of the only argument that depends on the images."""
        values = _tensors([*self.args, *self.kwargs.values()])
        number = self.number_of(self.args[position])
        if number is None or sum(self.number_of(value) is not None for value in values) > 1:
            raise refusal(f"{self.name} of two activations")
        return number

    def number_of(self, value: object) -> int | None:
        """The node of an argument; None for one that does not depend on the images."""
        return self.numbers.get(id(value))

    def weight(self, tensor: Tensor) -> Tensor:
        """A parameter as the bounds use it: in float64, or in training as it is."""
        return tensor.to(self.output.dtype) if self.training else tensor.detach().double()

    def constant(self, value: Any) -> Tensor:
        """A number or a tensor that does not depend on the images, (1, ...) that broadcasts.

        In training it may have a row for each image, such as the factors of dropout.
        """
        tensor = self.weight(torch.as_tensor(value, device=self.output.device))
        if tensor.ndim == self.output.ndim and tensor.shape[0] == len(self.output) and not self.training:
            if not tensor[:1].expand_as(tensor).equal(tensor):
                raise refusal(f"{self.name} with a constant that differs between images")
            tensor = tensor[:1]
        return tensor.view(*[1] * (self.output.ndim - tensor.ndim), *tensor.shape)


_Recorded = tuple[ops.Operation, Sequence[int]]
_HANDLERS: dict[str, Callable[[_Call], _Recorded]] = {}
# Operations whose result does not depend on the values that they take.
_CONSTANTS = frozenset(
    ("new_ones", "new_zeros", "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like")
)


def _handles(*names: str) -> Callable[[Callable[[_Call], _Recorded]], Callable[[_Call], _Recorded]]:
    """Register a function as the one that makes the operation of calls of these names."""

    def register(handler: Callable[[_Call], _Recorded]) -> Callable[[_Call], _Recorded]:
        _HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def _pair(value: Any) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return (values[0], values[-1])


@_handles("convolution")
def convolution(call: _Call) -> _Recorded:
    _, weight, bias, stride, padding, dilation, transposed, _, groups = call.args
    if transposed or weight.ndim != 4:
        kind = "transposed convolution" if transposed else f"convolution in {weight.ndim - 2} dimensions"
        raise refusal(kind)
    weight = call.weight(weight)
    bias = None if bias is None else call.weight(bias).view(1, -1, 1, 1)
    added = weight.new_zeros(1, len(weight), 1, 1) if bias is None else bias.abs()
    parts = (_pair(stride), _pair(padding), _pair(dilation), groups)
    return ops.Convolution(weight, bias, added, *parts), [call.only()]


@_handles("linear")
def linear(call: _Call) -> _Recorded:
    return _dense(call, call.args[1], call.arg(2, "bias")), [call.only()]


@_handles("mm")
def matrix_product(call: _Call) -> _Recorded:
    return _dense(call, call.args[1].T, None), [call.only()]


@_handles("addmm")
def addmm(call: _Call) -> _Recorded:
    if call.kwargs.get("beta", 1) != 1:
        raise refusal("addmm with a factor beta")
    bias, _, weight = call.args
    return _dense(call, weight.T, bias, call.kwargs.get("alpha", 1)), [call.only(1)]


def _dense(call: _Call, weight: Tensor, bias: Tensor | None, factor: float = 1) -> ops.Dense:
    shift = None if bias is None else call.weight(bias).view(1, -1)
    return ops.Dense((call.weight(weight) * factor).contiguous(), shift)


@_handles(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm",
    "miopen_batch_norm",
)
def batch_norm(call: _Call) -> _Recorded:
    values, weight, bias, mean, variance, *options = call.args
    if mean is None or (options[0] is True and len(options) == 3):
        if not call.training:
            raise refusal("BatchNorm with the statistics of the batch")
        dims = [0, *range(2, values.ndim)]
        mean, variance = values.mean(dims), values.var(dims, correction=0)
    scale = (call.weight(variance) + options[-1]).rsqrt()
    if weight is not None:
        scale = scale * call.weight(weight)
    centre = scale * call.weight(mean)
    shift = torch.zeros_like(centre) if bias is None else call.weight(bias)
    parts = (scale, shift - centre, centre.abs() + shift.abs())
    view = (1, -1, *[1] * (values.ndim - 2))
    return ops.ChannelScale(*(part.view(view) for part in parts)), [call.only()]


@_handles("add", "sub")
def shifted(call: _Call) -> _Recorded:
    sign = -1 if call.name.startswith("sub") else 1
    alpha = call.kwargs.get("alpha", 1)
    first, second = (call.number_of(value) for value in call.args[:2])
    if first is not None and second is not None:
        if alpha != 1 or call.args[0].shape != call.args[1].shape:
            raise refusal(f"{call.name} with a factor or of different shapes")
        return ops.Added((1, sign)), [first, second]
    at = 0 if first is not None else 1
    constant = call.constant(call.args[1 - at]) * (sign * alpha if at == 0 else 1)
    scale = torch.full_like(constant, 1 if at == 0 else sign * alpha)
    return _elementwise(call, ops.ChannelScale(scale, constant, constant.abs()), at)


@_handles("mul")
def times(call: _Call) -> _Recorded:
    at = 0 if call.number_of(call.args[0]) is not None else 1
    factor = call.constant(call.args[1 - at])
    return _elementwise(call, _scaled(factor), at)


@_handles("div")
def over(call: _Call) -> _Recorded:
    if call.kwargs.get("rounding_mode") is not None:
        raise refusal("division with rounding")
    return _elementwise(call, _scaled(1 / call.constant(call.args[1])), 0)


def _elementwise(call: _Call, operation: ops.ChannelScale, at: int) -> _Recorded:
    """The recorded operation, unless the constant has more values than the activation."""
    if call.args[at].shape != call.output.shape:
        raise refusal(f"{call.name} that repeats an activation")
    return operation, [call.only(at)]


def _scaled(factor: Tensor) -> ops.ChannelScale:
    return ops.ChannelScale(factor, torch.zeros_like(factor), torch.zeros_like(factor))


@_handles("neg")
def negated(call: _Call) -> _Recorded:
    return _scaled(call.constant(-1.0)), [call.only()]


@_handles("masked_fill")
def filled(call: _Call) -> _Recorded:
    mask, value = call.constant(call.args[1]) != 0, float(call.args[2])
    shift = call.weight(torch.where(mask, value, 0.0))
    return ops.ChannelScale(call.weight(~mask), shift, shift.abs()), [call.only()]


@_handles("relu", "clamp", "clamp_min")
def rectifier(call: _Call) -> _Recorded:
    least, most = call.arg(1, "min", 0), call.arg(2, "max")
    if call.name.startswith("clamp") and (least != 0 or most is not None):
        raise refusal(f"{call.name} to other limits than 0 and infinity")
    return Rectifier(), [call.only()]


@_handles("avg_pool2d")
def average_pool(call: _Call) -> _Recorded:
    kernel, stride = _pair(call.args[1]), _pair(call.rest(2, ())[0] or call.args[1])
    padding, ceil, include, divisor = call.rest(3, 0, False, True, None)
    options = (kernel, stride, _pair(padding), ceil, include, divisor)

    def adjoint(coefficients: Tensor, shape: Sequence[int]) -> Tensor:
        like = coefficients.new_empty(()).expand(len(coefficients), *shape)  # only its shape matters
        return torch.ops.aten.avg_pool2d_backward(coefficients, like, *options)  # type: ignore[no-any-return]

    average = ops.Average(lambda x: F.avg_pool2d(x, *options), math.prod(kernel), adjoint)
    return average, [call.only()]


@_handles("_adaptive_avg_pool2d")
def adaptive_pool(call: _Call) -> _Recorded:
    size = _pair(call.args[1])
    terms = math.prod(have // want + 2 for have, want in zip(call.args[0].shape[2:], size, strict=True))
    return ops.Average(lambda x: F.adaptive_avg_pool2d(x, size), terms), [call.only()]


@_handles("mean", "sum")
def reduced(call: _Call) -> _Recorded:
    values, dims, keep = call.args[0], call.arg(1, "dim"), call.arg(2, "keepdim", False)
    if not dims or any(dim % values.ndim == 0 for dim in dims):
        raise refusal(f"{call.name} over several images")
    terms = math.prod(values.shape[dim] for dim in dims)
    reduce = torch.mean if call.name == "mean" else torch.sum
    return ops.Average(lambda x: reduce(x, dims, keepdim=keep), terms), [call.only()]


@_handles("max_pool2d_with_indices")
def max_pool(call: _Call) -> _Recorded:
    kernel, stride = _pair(call.args[1]), _pair(call.rest(2, ())[0] or call.args[1])
    padding, dilation, ceil = call.rest(3, 0, 1, False)
    return MaxPooled(kernel, stride, _pair(padding), _pair(dilation), ceil), [call.only()]


@_handles("cat")
def concatenated(call: _Call) -> _Recorded:
    numbers = [call.number_of(part) for part in call.args[0]]
    dim = call.arg(1, "dim", 0) % call.output.ndim
    if any(number is None for number in numbers) or dim == 0:
        raise refusal("cat with constants or over several images")
    return ops.Concatenated(dim), [number for number in numbers if number is not None]


@_handles("view", "_unsafe_view", "_reshape_alias", "squeeze", "unsqueeze", "clone", "detach", "alias")
def reshaped(call: _Call) -> _Recorded:
    shape = call.output.shape[1:]
    return ops.Rearranged(lambda x: x.reshape(len(x), *shape)), [call.only()]


@_handles("slice")
def sliced(call: _Call) -> _Recorded:
    dim, start, end, step = call.rest(1, 0, None, None, 1)
    if dim % call.output.ndim == 0 and call.output.shape != call.args[0].shape:
        raise refusal("a slice of the images")
    if dim % call.output.ndim == 0:
        return ops.Rearranged(lambda x: x), [call.only()]
    return ops.Rearranged(lambda x: torch.ops.aten.slice(x, dim, start, end, step)), [call.only()]


@_handles("constant_pad_nd")
def padded(call: _Call) -> _Recorded:
    pads, value = list(call.args[1]), call.arg(2, "value", 0)
    if value != 0 or len(pads) >= 2 * call.output.ndim:
        raise refusal("padding by other numbers than 0")
    return ops.Rearranged(lambda x: F.pad(x, pads)), [call.only()]


def _merged(nodes: list[Node], last: int) -> list[Node]:
    """The nodes up to the last one, where a scale after a convolution or another scale is a part of it, and
    ReLUs of one input are one."""
    nodes = _shared(nodes[: last + 1])
    users = _users(nodes)
    merged = list(nodes)
    for number, node in enumerate(nodes):
        if not isinstance(node.operation, ops.ChannelScale):
            continue
        before = merged[node.parents[0]]
        single = users[node.parents[0]] == 1 and node.shape == before.shape
        scale = node.operation.scale
        if single and isinstance(before.operation, ops.Convolution):
            single = scale.ndim == 4 and scale.shape[1] == node.shape[0] and scale.numel() == node.shape[0]
        if single and isinstance(before.operation, ops.Convolution | ops.ChannelScale):
            merged[number] = Node(before.operation.scaled(node.operation), before.parents, node.shape)
    return merged


def _shared(nodes: list[Node]) -> list[Node]:
    """The nodes, where those that take a ReLU take the first one of the same input."""
    first: dict[int, int] = {}  # the input of a ReLU -> its number
    renumbered: list[int] = []
    shared = []
    for number, node in enumerate(nodes):
        parents = tuple(renumbered[parent] for parent in node.parents)
        shared.append(node._replace(parents=parents))
        rectifier = isinstance(node.operation, Rectifier)
        renumbered.append(first.setdefault(parents[0], number) if rectifier else number)
    return shared


def _pruned(nodes: list[Node]) -> TracedNetwork:
    """The nodes that the last one depends on, in their order."""
    needed = {0, len(nodes) - 1}
    for number in range(len(nodes) - 1, 0, -1):
        if number in needed:
            needed.update(nodes[number].parents)
    renumbered = {number: new for new, number in enumerate(sorted(needed))}
    kept = [
        nodes[number]._replace(parents=tuple(renumbered[parent] for parent in nodes[number].parents))
        for number in sorted(needed)
    ]
    users, charged_later = _users(kept), [False] * len(kept)
    for node in kept:
        for parent in node.parents if isinstance(node.operation, ops.Added) else ():
            charged_later[parent] = users[parent] == 1
    return TracedNetwork(kept, users, charged_later)


def _users(nodes: Sequence[Node]) -> list[int]:
    users = [0] * len(nodes)
    for node in nodes:
        for parent in node.parents:
            users[parent] += 1
    return users
