"""Replacements for the globals of torch in pickles: tensors from storages, with their sizes checked."""

from __future__ import annotations

import math
from typing import Any

import torch

from rbtools.lazy import np
from rbtools.unpickle.containers import NAMES, constants, makers, sizes
from rbtools.unpickle.machine import Damaged, Machine, Maker, NamedGlobal, UnusualTensor

STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
    # Quantised tensors are not supported, but in the older format other storages follow theirs.
    "QInt8Storage": torch.int8,
    "QUInt8Storage": torch.uint8,
    "QInt32Storage": torch.int32,
    "QUInt4x2Storage": torch.uint8,
    "QUInt2x4Storage": torch.uint8,
}
_TYPES = """float16 float32 float64 bfloat16 uint8 int8 int16 int32 int64 bool complex64 complex128
uint16 uint32 uint64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"""
_DEVICES = ("cpu", "cuda", "mps", "xpu", "meta", "hpu", "xla", "mtia", "maia")
A_TENSOR = 64  # cost of making a tensor, about the bytes that one needs in a file
MOST_BYTES = 2**62  # most bytes of an expanded tensor, so that its size never overflows


class StorageType(NamedGlobal):
    """The class of a storage."""

    __slots__ = ("dtype",)

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        super().__init__(name)
        self.dtype = dtype


class Storage:
    """A range of numbers of one storage of a file; `source` owns the memory."""

    __slots__ = ("count", "dtype", "key", "source", "start")

    def __init__(self, source: Storages, key: str, dtype: torch.dtype, start: int, count: int) -> None:
        self.source, self.key, self.dtype, self.start, self.count = source, key, dtype, start, count


class Storages:
    """The storages of one file, by key."""

    def __init__(self) -> None:
        self.filled = True  # whether the memory already contains the file's bytes
        self.truths: dict[str, torch.Tensor] = {}

    def memory(self, key: str, dtype: torch.dtype) -> torch.Tensor:
        """The bytes of a whole storage, shape (bytes,), in the order that this machine has for the type."""
        raise NotImplementedError

    def claimed(self, key: str, dtype: torch.dtype, count: int) -> None:
        """Raise Damaged if the file has no storage of that many numbers under this key."""
        raise NotImplementedError

    def persistent(self, key: object) -> Any:
        """The storage that a persistent id names: ("storage", class, key, place, count[, view])."""
        if type(key) is not tuple or not 5 <= len(key) <= 6 or not isinstance(key[1], StorageType):
            raise Damaged("it has a persistent id that is no storage's")
        word, kind, name, _, count, *view = key
        if word not in ("storage", b"storage") or type(name) not in (str, int):
            raise Damaged("it has a persistent id that is no storage's")
        (count,) = sizes((count,))
        self.claimed(str(name), kind.dtype, count)
        storage = Storage(self, str(name), kind.dtype, 0, count)
        return storage if not view or view[0] is None else _view(storage, view[0])

    def check_truths(self, key: str, memory: torch.Tensor) -> None:
        """Raise Damaged if truth values are neither 0 nor 1, once they are read."""
        if self.filled and key not in self.truths and memory.numel() and memory.max() > 1:
            raise Damaged("it has truth values that are none")
        self.truths[key] = memory


def _view(storage: Storage, view: object) -> Storage:
    """A part of a storage, as in files of torch before 1.0: (key, offset, count)."""
    if type(view) is not tuple or len(view) != 3:
        raise Damaged("it has a view of a storage that is none")
    start, count = sizes(view[1:])
    if start + count > storage.count:
        raise Damaged("it has a view that is longer than its storage")
    return Storage(storage.source, storage.key, storage.dtype, start, count)


def _rebuilt(
    machine: Machine,
    storage: object,
    offset: object,
    shape: object,
    strides: object,
    needs_grad: object = False,
) -> Any:
    """A tensor on its storage; all of its numbers must lie inside it."""
    machine.spend(A_TENSOR)
    if isinstance(storage, UnusualTensor):
        return storage
    if not isinstance(storage, Storage):
        raise Damaged("it has a tensor without a storage")
    dtype, room = storage.dtype, storage.count
    shape, strides, (offset,) = sizes(shape), sizes(strides), sizes((offset,))
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if offset > room or (0 not in shape and last >= room):
        raise Damaged(f"it has a tensor of the shape {shape} outside its storage of {room} numbers")
    if math.prod(size or 1 for size in shape) * dtype.itemsize > MOST_BYTES:
        raise Damaged(f"it has a tensor of the shape {shape}")
    memory = storage.source.memory(storage.key, dtype)
    if dtype == torch.bool:
        storage.source.check_truths(storage.key, memory)
    start = storage.start + offset
    tensor = torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), start, shape, strides)
    return tensor.requires_grad_(_needs_grad(needs_grad, dtype))


def _needs_grad(value: object, dtype: torch.dtype) -> bool:
    if type(value) is not bool or (value and not (dtype.is_floating_point or dtype.is_complex)):
        raise Damaged("it has a tensor with a gradient that it cannot have")
    return value


def _tensor_v2(
    machine: Machine,
    storage: object,
    offset: object,
    shape: object,
    strides: object,
    needs_grad: object,
    hooks: object,
    metadata: object = None,
) -> Any:
    """Hooks are dropped: they would be functions."""
    if metadata:
        return UnusualTensor("conjugated or negated only by a mark")
    return _rebuilt(machine, storage, offset, shape, strides, needs_grad)


def _tensor_v3(
    machine: Machine,
    storage: object,
    offset: object,
    shape: object,
    strides: object,
    needs_grad: object,
    hooks: object,
    dtype: object,
    metadata: object = None,
) -> Any:
    """The numbers of a storage have the type `dtype`."""
    if not isinstance(dtype, torch.dtype):
        raise Damaged("it has a tensor without a type")
    if isinstance(storage, Storage):
        old, new = storage.dtype.itemsize, dtype.itemsize
        start, count = (number * old // new for number in (storage.start, storage.count))
        storage = Storage(storage.source, storage.key, dtype, start, count)
    return _tensor_v2(machine, storage, offset, shape, strides, needs_grad, hooks, metadata)


def _parameter(
    machine: Machine, data: object, needs_grad: object = True, hooks: object = None, state: object = None
) -> Any:
    """A parameter; attributes that were set on it are dropped."""
    machine.spend(A_TENSOR)
    if isinstance(data, UnusualTensor):
        return data
    if type(data) is not torch.Tensor:
        raise Damaged("it has a parameter without a tensor")
    return torch.nn.Parameter(data.detach(), _needs_grad(needs_grad, data.dtype))


def _from_type(machine: Machine, maker: object, kind: object, arguments: object, state: object) -> Any:
    """A tensor with attributes, which are dropped."""
    make = maker.make if isinstance(maker, Maker) else None
    if make not in (_tensor_v2, _tensor_v3, _parameter) or not isinstance(kind, NamedGlobal):
        raise Damaged("it has a tensor with attributes that is none")
    return machine.call(maker, arguments)


def _from_array(machine: Machine, data: object, dtype: object, device: object, needs_grad: object) -> Any:
    """A tensor of an accelerator that has no storages."""
    if type(data) is not np.ndarray or not isinstance(dtype, torch.dtype):
        raise Damaged("it has a tensor without numbers")
    machine.spend(A_TENSOR + 8 * data.nbytes)
    tensor = torch.from_numpy(data.astype(data.dtype.newbyteorder("="))).to(dtype)
    return tensor.requires_grad_(_needs_grad(needs_grad, dtype))


def _from_tensor(machine: Machine, data: object, dtype: object, device: object, needs_grad: object) -> Any:
    machine.spend(A_TENSOR)
    if type(data) is not torch.Tensor or dtype != data.dtype:
        raise Damaged("it has a tensor without numbers")
    return data.detach().requires_grad_(_needs_grad(needs_grad, dtype))


def _unusual(kind: str) -> Any:
    def make(machine: Machine, *_: object) -> UnusualTensor:
        return UnusualTensor(kind)

    return make


def _size(machine: Machine, values: object = ()) -> torch.Size:
    return torch.Size(sizes(values))


def _device(machine: Machine, kind: object, index: object = None) -> torch.device:
    word, _, number = kind.partition(":") if type(kind) is str else ("", "", "")
    if number.isascii() and number.isdigit() and index is None:
        index, number = int(number[:4]), ""
    if word not in _DEVICES or number or not (index is None or (type(index) is int and 0 <= index < 128)):
        raise Damaged("it has a device that is none")
    return torch.device(word) if index is None else torch.device(word, index)


def _layout(machine: Machine, name: object) -> NamedGlobal:
    return NamedGlobal("torch.layout")


def _storage_types() -> dict[str, StorageType]:
    return {
        f"{module}.{name}": StorageType(f"{module}.{name}", dtype)
        for module in ("torch", "torch.cuda", "torch.storage")
        for name, dtype in STORAGES.items()
    }


TORCH_NAMES: dict[str, Any] = {
    **NAMES,
    **_storage_types(),
    **{f"torch.{name}": getattr(torch, name) for name in _TYPES.split() if hasattr(torch, name)},
    **constants("torch", "Tensor per_tensor_affine per_tensor_symmetric per_channel_affine"),
    **constants("torch", "per_channel_symmetric per_channel_affine_float_qparams"),
    **makers("torch", {"Size": _size, "device": _device}),
    **makers("torch.nn.parameter", {"Parameter": _parameter}),
    **makers("torch.serialization", {"_get_layout": _layout}),
    **makers("torch._tensor", {"_rebuild_from_type_v2": _from_type}),
    **makers(
        "torch._utils",
        {
            "_rebuild_tensor": _rebuilt,
            "_rebuild_tensor_v2": _tensor_v2,
            "_rebuild_tensor_v3": _tensor_v3,
            "_rebuild_parameter": _parameter,
            "_rebuild_parameter_with_state": _parameter,
            "_rebuild_device_tensor_from_numpy": _from_array,
            "_rebuild_device_tensor_from_cpu_tensor": _from_tensor,
            "_rebuild_sparse_tensor": _unusual("sparse"),
            "_rebuild_nested_tensor": _unusual("nested"),
            "_rebuild_qtensor": _unusual("quantized"),
            "_rebuild_meta_tensor_no_storage": _unusual("without numbers (on the meta device)"),
        },
    ),
}
