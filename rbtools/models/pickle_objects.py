"""What a pickle of another project may contain: errors, stand-ins for foreign objects, and the functions that
are called instead of those named in a pickle. They create containers, numbers, arrays and tensors.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from rbtools.errors import shown
from rbtools.lazy import np, torch

DEEPEST_KEY = 8  # maximum levels of tuples in a key: Python hashes them by recursion without a limit
MOST_BYTES = 2**62  # maximum size in bytes of an expanded tensor, so that sizes never overflow


class Refused(Exception):
    """Raised if the pickle contains an object that is not allowed. `name` is the name of the object."""

    def __init__(self, name: str, message: str | None = None) -> None:
        self.name = shown(name)
        super().__init__(message or f"it refers to {self.name}, which could run code")


class Damaged(ValueError):
    """Raised if the bytes are not a pickle, are incomplete, or are inconsistent."""


class NotTorch(Damaged):
    """Raised for a pickle that torch.save did not write."""


class Stub:
    """Replaces an object of an unknown class. A stub keeps the content of the object, but does nothing."""

    name = ""

    def __init__(self, *given: object) -> None:
        self.given, self.items = given, list[object]()

    def append(self, item: object) -> None:
        self.items.append(item)


class UnusualTensor:
    """A placeholder for a tensor that is not dense; `kind` describes the layout, such as sparse."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class Maker:
    """A function name that a pickle may call, with the function that is called instead."""

    def __init__(self, name: str, make: Callable[..., Any] | None = None) -> None:
        self.name, self.make = name, make


class ArrayType:
    """A NumPy dtype of numbers or text. The state of the dtype in the pickle may set the byte order."""

    def __init__(self, code: object, *_: object) -> None:
        code = text(code)
        if not re.fullmatch(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16|[SU][0-9]{1,9})", code):
            raise Refused(
                f"numpy.ndarray of type {code!r}",
                f"it has an array of type {code!r:.80}, expected numbers",
            )
        self.dtype = np.dtype(code)


def text(value: object) -> str:
    if not isinstance(value, (str, bytes)):
        raise Damaged("it has a name that is not a string")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _dtype(kind: Any) -> np.dtype[Any]:
    if not isinstance(kind, ArrayType):
        raise Damaged("it has an array with an invalid type")
    return kind.dtype


def sizes(values: Any) -> tuple[int, ...]:
    """Checks and returns a shape or strides. Raises Damaged for anything except non-negative integers."""
    if not isinstance(values, tuple) or not all(type(size) is int and 0 <= size < 2**63 for size in values):
        raise Damaged("it has an invalid shape")
    return values


def array(data: Any, kind: Any, shape: Any, order: Any = "C") -> np.ndarray:
    dtype = _dtype(kind)
    data = data.encode() if isinstance(data, str) else data  # written by Python 2
    if dtype.kind in "SU":
        raise Refused("numpy.ndarray of text", "it has an array of strings, expected numbers")
    if len(data) != math.prod(sizes(shape)) * dtype.itemsize:
        raise Damaged(f"it has an array of shape {shape} with the wrong number of bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if text(order) == "F" else "C")


def _reconstruct(kind: Any, *_: object) -> np.ndarray:
    if getattr(kind, "name", None) != "numpy.ndarray":
        raise Refused(f"an array of the class {getattr(kind, 'name', type(kind).__name__)}")
    return np.empty(0)


def _encoded(value: str = "", encoding: object = "latin1") -> bytes:
    """The bytes of a string. In old protocols, Python 3 writes bytes as a string with its encoding."""
    if encoding not in ("latin1", "latin-1"):
        raise Damaged("it has bytes in an unusual encoding")
    return value.encode("latin-1")


def check_key(key: object, levels: int = DEEPEST_KEY, parts: int = 64) -> int:
    """Returns the number of parts of the key that may still follow."""
    if isinstance(key, tuple):
        if not levels or len(key) > parts:
            raise Damaged("it has a key with too many parts")
        for part in key:
            parts = check_key(part, levels - 1, parts - 1)
    elif not isinstance(key, (str, bytes, int, float, complex, type(None))):
        raise Damaged(f"it has a key of type {type(key).__name__}")
    return parts


def of_keys(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(items: Any = ()) -> Any:
        for item in items:
            check_key(item)
        return make(items)

    return made


def _mapping(make: Callable[..., Any], *given: Any) -> Any:
    for key, _ in given and (given[0].items() if isinstance(given[0], dict) else given[0]):
        check_key(key)
    return make(*given)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, needs_grad: Any = False, *more: Any) -> Any:
    """A tensor on its storage, for each of torch's formats. Hooks are ignored, because they are functions."""
    if not isinstance(storage, torch.storage.TypedStorage):
        raise Damaged("it has a tensor without a storage")
    memory = storage._untyped_storage
    dtype = next((one for one in more if isinstance(one, torch.dtype)), storage.dtype)
    if any(isinstance(about, dict) and about for about in more[1:]):
        return UnusualTensor("marked as conjugated or negated")
    shape, strides, (offset,) = sizes(shape), sizes(strides), sizes((offset,))
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    room = memory.nbytes() // dtype.itemsize
    if offset > room or (0 not in shape and last >= room):
        raise Damaged(f"it has a tensor of shape {shape} that exceeds its storage of {room} numbers")
    if len(shape) > 64 or math.prod(size or 1 for size in shape) * dtype.itemsize > MOST_BYTES:
        raise Damaged(f"it has a tensor of shape {shape}, which is too large")
    return torch.empty(0, dtype=dtype).set_(memory, offset, shape, strides).requires_grad_(needs_grad)


def _parameter(data: Any, needs_grad: Any = True, *_: object) -> Any:
    """A parameter. Attributes that were set on the parameter are ignored."""
    if isinstance(data, UnusualTensor):
        return data
    if type(data) is not torch.Tensor:
        raise Damaged("it has a parameter without a tensor")
    return torch.nn.Parameter(data.detach(), needs_grad)


def _of_type(maker: Any, kind: object, arguments: Any, *_: object) -> Any:
    """A tensor whose attributes are ignored."""
    if getattr(maker, "make", None) not in (_tensor, _parameter):
        raise Damaged("it has an invalid tensor with attributes")
    return maker.make(*arguments)


_UNUSUAL = {
    "_rebuild_sparse_tensor": "sparse",
    "_rebuild_nested_tensor": "nested",
    "_rebuild_qtensor": "quantized",
    "_rebuild_meta_tensor_no_storage": "without data (on the meta device)",
}
MAKERS: dict[str, Callable[..., Any] | None] = {
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy.core.multiarray.scalar": lambda kind, data: np.frombuffer(data, _dtype(kind), 1)[0].item(),
    "numpy.core.numeric._frombuffer": array,
    "numpy.dtype": ArrayType,
    "numpy.ndarray": None,
    "_codecs.encode": _encoded,
    "builtins.bytes": _encoded,
    "builtins.bytearray": lambda *given: bytearray(
        given[0] if given[:1] and type(given[0]) is bytes else _encoded(*given)
    ),
    "builtins.complex": complex,
    "builtins.set": of_keys(set),
    "builtins.frozenset": of_keys(frozenset),
    "builtins.list": None,
    "builtins.dict": None,
    "builtins.int": None,
    "builtins.float": None,
    "collections.OrderedDict": partial(_mapping, OrderedDict),
    "collections.Counter": partial(_mapping, Counter),
    "collections.defaultdict": lambda *_: {},  # without the function for missing keys
    "argparse.Namespace": argparse.Namespace,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "torch.nn.parameter.Parameter": _parameter,
    "torch.Size": lambda *values: torch.Size(*map(sizes, values)),
    "torch.device": lambda *given: torch.device(*given),
    **{f"torch._utils.{name}": lambda *_, kind=kind: UnusualTensor(kind) for name, kind in _UNUSUAL.items()},
    "torch.storage._load_from_bytes": None,  # `_Unpickler.called` reads it within the limits of the file
}
