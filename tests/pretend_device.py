"""A pretend GPU: tensors that say "cuda" and compute on the CPU, and counts of what the host would wait for.

    with PretendDevice() as device:
        model.to("cuda")(images.to("cuda"))
    device.launches.total(), device.waits

Every storage carries a mark whether it lies on the pretend device; views, detached copies and what autograd
saves share the storage, so that all of torch (autograd, torch.func, nn.Module.to) runs as it is. A mode of
functions answers `.device` and takes the `device=` arguments; a mode of operations sees each kernel. Where
tensors of two devices meet that a real GPU would not take together, RuntimeError is raised as torch does.

What it cannot see: kernels that one operation starts besides the first, streams and memory. With `graphs` a
replay of what was captured counts as one launch; without it, launches are those without graphs.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rbtools import lazy
from tests.pretend_graphs import PretendGraph, Stream

ROOT = str(Path(__file__).resolve().parents[1])
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")

# Operations that start no kernel, besides views: they make or describe tensors.
_NO_KERNEL = {
    "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "detach", "_unsafe_view",
    "set_", "lift_fresh", "is_same_size", "resize_", "_local_scalar_dense", "_has_same_storage_numel",
    "record_stream",
}  # fmt: skip
# Operations whose result has a size or a value that the host reads.
_WAITS = {
    "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount",
    "equal", "repeat_interleave", "nonzero_numpy", "_linalg_eigh", "_linalg_svd", "linalg_eig",
    "_linalg_eigvals", "linalg_lstsq", "_linalg_check_errors", "histc", "is_nonzero", "allclose",
}  # fmt: skip
_OF_HOST_DATA = {"tensor", "as_tensor", "asarray", "new_tensor", "scalar_tensor"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_COPIES = {"copy_", "_to_copy", "_copy_from", "copy"}


class _OfThread(threading.local):
    """The state of a thread that works on the device. copying: a copy that is counted by itself. exempt: an
    operation that reads values on a CPU only. inside: a function of torch on tensors of the device, so that
    its results are on the device.
    """

    copying = exempt = inside = False


class PretendDevice(contextlib.AbstractContextManager["PretendDevice"]):
    """Inside its `with` block torch has one GPU, of which `launches` and `waits` are counted.

    launches: kernels by operation. waits: what the host waits for, by kind and by the line of this repository
    that asks: ("item", "rbtools/attacks/pgd.py:160").
    """

    def __init__(self, *, graphs: bool = False) -> None:
        self.graphs = graphs
        self.launches: Counter[str] = Counter()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.of_thread = _OfThread()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> PretendDevice:
        self._stack = contextlib.ExitStack()
        for name, value in self._cuda().items():
            self._stack.enter_context(mock.patch.object(torch.cuda, name, value))
        usable = mock.patch("rbtools.graphs.usable", lambda device: self.graphs and device.type == "cuda")
        self._stack.enter_context(mock.patch.object(ThreadPoolExecutor, "submit", self._submit))
        for module in (lazy.torch, torch):  # the former caches values of the latter
            self._stack.enter_context(mock.patch.object(module, "autocast", _autocast))
        for name, kernel in self._kernels().items():
            self._stack.enter_context(mock.patch.object(torch, name, kernel))
        recorded = mock.patch.object(Tensor, "record_stream", lambda tensor, stream: None, create=True)
        version = mock.patch.object(torch.backends.cudnn, "version", lambda: 0)  # asks the driver
        for patch in (usable, recorded, version):
            self._stack.enter_context(patch)
        self._stack.enter_context(self._modes())
        return self

    @contextlib.contextmanager
    def _modes(self) -> Iterator[None]:
        with _Operations(self), _Functions(self):
            yield

    @property
    def _submit(self) -> Callable[..., Any]:
        """As that of thread pools: the device is there in their threads, too."""
        submit = ThreadPoolExecutor.submit

        def with_modes(pool: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                with self._modes():
                    return function(*args, **kwargs)

            return submit(pool, run)

        return with_modes

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _cuda(self) -> dict[str, Callable[..., Any]]:
        """The functions of torch.cuda that are asked of a GPU."""
        return {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "synchronize": lambda device=None: self.wait("synchronize"),
            "empty_cache": lambda: None,
            "get_device_name": lambda device=None: "pretend",
            "reset_peak_memory_stats": lambda device=None: None,
            "mem_get_info": lambda device=None: (1 << 34, 1 << 34),
            "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": lambda state, device=None: None,
            "Stream": Stream,
            "Event": lambda **options: _Event(self),
            "stream": lambda stream: contextlib.nullcontext(),
            "CUDAGraph": lambda: _Graph(self),
            "graph_pool_handle": lambda: (0, 0),
            "get_sync_debug_mode": lambda: 0,
            "set_sync_debug_mode": lambda mode: None,
            "is_current_stream_capturing": lambda: False,
            "current_stream": Stream,
            **dict.fromkeys(("max_memory_allocated", "memory_allocated"), lambda device=None: 0),
            **dict.fromkeys(("max_memory_reserved", "memory_reserved"), lambda device=None: 0),
        }

    def _kernels(self) -> dict[str, Callable[..., Any]]:
        """Convolutions of cuDNN that do the work of other layers, too: one kernel each."""

        def convolution_relu(x: Tensor, weight: Tensor, bias: Tensor, *how: Any) -> Tensor:
            with self.during("copying", True):
                made = torch.nn.functional.conv2d(x, weight, bias, *how).relu()
            self.launches["cudnn_convolution_relu"] += 1
            return _mark(made, True)

        def convolution_add_relu(
            x: Tensor, weight: Tensor, z: Tensor, alpha: float, bias: Tensor, *how: Any
        ) -> Tensor:
            with self.during("copying", True):
                made = (torch.nn.functional.conv2d(x, weight, bias, *how) + alpha * z).relu()
            self.launches["cudnn_convolution_add_relu"] += 1
            return _mark(made, True)

        return {
            "cudnn_convolution_relu": convolution_relu,
            "cudnn_convolution_add_relu": convolution_add_relu,
        }

    def wait(self, kind: str) -> None:
        """Count something that the host waits for."""
        if not self.of_thread.exempt:
            self.waits[kind, _asker()] += 1

    def reset(self) -> None:
        """Count from 0."""
        self.launches.clear()
        self.waits.clear()

    @contextlib.contextmanager
    def during(self, name: str, value: bool) -> Iterator[None]:
        """Set `copying`, `exempt` or `inside` of this thread for a while."""
        before = getattr(self.of_thread, name)
        setattr(self.of_thread, name, value)
        try:
            yield
        finally:
            setattr(self.of_thread, name, before)


class _Graph(PretendGraph):
    """A replay is one launch, whatever it computes."""

    def __init__(self, device: PretendDevice) -> None:
        super().__init__()
        self.device = device

    def replay(self) -> None:
        with self.device.during("copying", True):
            super().replay()
        self.device.launches["graph"] += 1


def _autocast(device_type: str, *how: Any, autocast: Any = torch.autocast, **options: Any) -> Any:
    """What computes on the CPU is cast there."""
    return autocast("cpu" if device_type == "cuda" else device_type, *how, **options)


class _Event:
    """Its work has already ended; only an explicit wait of the host counts as one."""

    def __init__(self, device: PretendDevice) -> None:
        self.device = device

    def record(self, stream: Any = None) -> None:
        pass

    wait = record

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.device.wait("synchronize")


def _asker() -> str:
    """The innermost line of this repository that is running, this file aside."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(ROOT) and file != __file__ and ".venv" not in file:
            return f"{file[len(ROOT) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def on_device(tensor: Tensor) -> bool:
    """Whether a tensor lies on the pretend device."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    try:
        return getattr(tensor.untyped_storage(), "pretend", False)
    except NotImplementedError:  # sparse tensors have no storage
        return False


def _mark(result: Any, pretend: bool) -> Any:
    for tensor in tree_leaves(result):
        if isinstance(tensor, Tensor) and tensor.layout is torch.strided and tensor.device.type == "cpu":
            while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                tensor = torch._C._functorch.get_unwrapped(tensor)
            tensor.untyped_storage().pretend = pretend  # type: ignore[attr-defined]
    return result


def _tensors(*values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


class _Operations(TorchDispatchMode):
    """Counts what runs on the device, marks results, and refuses tensors of two devices."""

    def __init__(self, device: PretendDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            own = self.device
            name = func._schema.name.split("::")[1]
            tensors = _tensors(args, kwargs)
            here = [on_device(tensor) for tensor in tensors]
            if own.of_thread.copying:
                return func(*args, **kwargs)
            if not any(here):
                made = func(*args, **kwargs)
                return _mark(made, True) if own.of_thread.inside and not tensors else made
            self._count(func, name, args, tensors, here)
            return _mark(func(*args, **kwargs), True)

    def _count(self, func: Any, name: str, args: Any, tensors: list[Tensor], here: list[bool]) -> None:
        own = self.device
        if name in _COPIES:
            if len(set(here)) > 1:
                own.wait("copy to the device" if here[0] else "copy to the host")
        elif name in _INDEXING:
            self._check_index(name, args)
        else:
            strangers = [t for t, pretend in zip(tensors, here, strict=True) if not pretend and t.ndim]
            writes = func._schema.is_mutable and not here[0]
            if strangers or writes:
                shapes = [tuple(tensor.shape) for tensor in tensors]
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, cuda:0"
                    f" and cpu! {name} of {shapes}, on the device: {here}"
                )
        if name == "_local_scalar_dense":
            own.wait("item")
        elif name in _WAITS:
            own.wait(name)
        view = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        if name not in _NO_KERNEL and not view:
            own.launches[name] += 1

    def _check_index(self, name: str, args: Any) -> None:
        """An index may come from the host, which costs a copy; one of truth values costs a look at them."""
        own, target = self.device, args[0]
        values = args[2] if name != "index" and len(args) > 2 else None
        if not on_device(target) or (values is not None and values.ndim and not on_device(values)):
            raise RuntimeError(
                "Expected all tensors to be on the same device: indices should be either on cpu or on the"
                f" same device as the indexed tensor ({name})"
            )
        fills = values is not None and values.numel() == 1 and not on_device(values)  # masked_fill serves
        for index in (one for one in args[1] if one is not None):
            if not on_device(index):
                own.wait("copy of an index")
            elif index.dtype in (torch.bool, torch.uint8) and not fills:
                own.wait("truth values as an index")


class _Functions(TorchFunctionMode):
    """Answers questions about devices and takes `device=` arguments; all else is torch's own."""

    def __init__(self, device: PretendDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._property(func, args)
        special = getattr(self, f"_{name.strip('_')}", None) if name in _SPECIAL else None
        if special is not None:
            return special(func, args, kwargs)
        if kwargs.get("pin_memory"):
            return self._pin_memory(func, (func(*args, **kwargs | {"pin_memory": False}),), {})
        if name in _OF_HOST_DATA or kwargs.get("device") is not None:
            return self._made(func, name, args, kwargs)
        inside = isinstance(func, FunctionType) and any(map(on_device, _tensors(args, kwargs)))
        with self.device.during("inside", True) if inside else contextlib.nullcontext():
            return func(*args, **kwargs)

    def _property(self, func: Any, args: Any) -> Any:
        asked = func.__self__
        if asked is torch.Tensor.device:
            return CUDA if on_device(args[0]) else func(*args)
        if asked is torch.Tensor.is_cuda:
            return on_device(args[0])
        if asked is torch.Tensor.is_cpu:
            return not on_device(args[0]) and func(*args)
        return func(*args)

    def _made(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A tensor made on a device; of data of the host, by a copy that is waited for."""
        own, device = self.device, kwargs.get("device")
        source = args[0] if args and isinstance(args[0], Tensor) else None
        if device is None and not (name == "new_tensor" and source is not None and on_device(source)):
            return func(*args, **kwargs)
        target = device is None or _is_cuda(device)
        kwargs = kwargs | ({} if device is None else {"device": "cpu"} if target else {"device": device})
        if name in ("as_tensor", "asarray") and source is not None:
            return self._moved(source, target, kwargs.get("dtype"), False, {})
        if not target:
            made = func(*args, **kwargs)
            return _mark(made, False)
        if name in _OF_HOST_DATA:
            with own.during("copying", True):
                made = func(*args, **kwargs)
            own.wait("copy of host data")
            own.launches["copy"] += 1
            return _mark(made.clone() if name in ("as_tensor", "asarray") else made, True)
        with own.during("inside", True):
            made = func(*args, **kwargs)
        if not name.startswith("empty"):
            own.launches[name] += not any(map(on_device, _tensors(args)))
        return _mark(made, True)

    def _moved(self, tensor: Tensor, target: bool, dtype: Any, non_blocking: bool, more: Any) -> Any:
        """A tensor on the device or off it; the copy is waited for unless pinned memory goes there."""
        own = self.device
        options = more if dtype is None else {**more, "dtype": dtype}
        if on_device(tensor) is target:
            return tensor.to(**options) if options else tensor
        pinned = getattr(tensor.untyped_storage(), "pinned", False)
        if not (target and pinned and non_blocking):
            own.wait("copy to the device" if target else "copy to the host")
        own.launches["copy"] += 1
        with own.during("copying", True):
            moved = tensor.to(**(options | {"copy": True}))
        return _mark(moved, target)

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, *rest = args
        more = {key: kwargs[key] for key in ("memory_format", "copy") if key in kwargs}
        if rest and isinstance(rest[0], Tensor):
            return self._moved(
                tensor, on_device(rest[0]), rest[0].dtype, kwargs.get("non_blocking", False), more
            )
        given = {key: value for key, value in kwargs.items() if key not in ("memory_format", "copy")}
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*rest[:3], **given)
        if device is not None and device.type not in ("cuda", "cpu"):
            return func(*args, **kwargs)
        target = on_device(tensor) if device is None else device.type == "cuda"
        return self._moved(tensor, target, dtype, non_blocking, more)

    def _cuda(self, func: Any, args: Any, kwargs: Any) -> Any:
        return self._moved(args[0], True, None, kwargs.get("non_blocking", False), {})

    def _cpu(self, func: Any, args: Any, kwargs: Any) -> Any:
        return self._moved(args[0], False, None, False, {})

    def _tolist(self, func: Any, args: Any, kwargs: Any) -> Any:
        if on_device(args[0]):
            self.device.wait("tolist")
        return func(*args, **kwargs)

    def _numpy(self, func: Any, args: Any, kwargs: Any) -> Any:
        if on_device(args[0]):
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to"
                " host memory first."
            )
        return func(*args, **kwargs)

    _array = _numpy

    def _pin_memory(self, func: Any, args: Any, kwargs: Any) -> Any:
        pinned = args[0].clone()
        pinned.untyped_storage().pinned = True
        return pinned

    def _is_pinned(self, func: Any, args: Any, kwargs: Any) -> bool:
        return getattr(args[0].untyped_storage(), "pinned", False)

    def _one_hot(self, func: Any, args: Any, kwargs: Any) -> Any:
        """With a number of classes it reads no value on a GPU."""
        given = kwargs.get("num_classes", args[1] if len(args) > 1 else -1) >= 0
        with self.device.during("exempt", given), self.device.during("inside", on_device(args[0])):
            return func(*args, **kwargs)

    def _deepcopy(self, func: Any, args: Any, kwargs: Any) -> Any:
        return _mark(func(*args, **kwargs), True) if on_device(args[0]) else func(*args, **kwargs)


_SPECIAL = {
    "to", "cuda", "cpu", "tolist", "numpy", "__array__",
    "pin_memory", "is_pinned", "one_hot", "__deepcopy__",
}  # fmt: skip
