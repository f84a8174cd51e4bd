"""Pickled archives (CIFAR, downsampled ImageNet) read without running anything that stands in them.

A pickle is a program: it may name any function and have it called. Here it may name nothing but what
numpy's arrays are made with, and even those names are answered by stand-ins, so that no function of
numpy or Python ever meets what a file says.
"""

from __future__ import annotations

import io
import pickle
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
_KINDS = "biuf"  # truth values, integers, floats: no objects, no structures


class Refused(Exception):
    """The pickle asks for something that is no array, list, dict, text, bytes or number."""


def load(file: IO[bytes]) -> dict[str, Any]:
    """The dict in a pickle: numpy arrays, lists, dicts, str, bytes and numbers, its keys as text.

    Text that Python 2 wrote arrives as bytes. Arrays may be read-only. Raises Refused, or whatever
    `pickle` raises for a file that is none.
    """
    found = _Unpickler(file, encoding="bytes").load()
    if not isinstance(found, dict):
        raise Refused(f"it holds a {type(found).__name__}, not a dict")
    return {_text(key): _plain(value) for key, value in found.items()}


def loads(data: bytes) -> dict[str, Any]:
    """As `load`, from bytes."""
    return load(io.BytesIO(data))


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, _Array) else value


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and name == "_reconstruct":
            return _Reconstruct()
        if module in _MODULES and name == "scalar":
            return _Scalar()
        if module in _NUMERIC and name == "_frombuffer":
            return _FromBuffer()
        if module == "numpy" and name == "dtype":
            return _MakeType()
        if module == "numpy" and name == "ndarray":
            return _Name()
        if module == "_codecs" and name == "encode":
            return _Encode()
        raise Refused(f"it asks for {module}.{name}, which could run code")


# The stand-ins have slots and nothing else, so that a pickle's BUILD has nothing to write to.


class _Name:
    """Stands for a class that is only named, as an argument."""

    __slots__ = ()


class _Array:
    """An array on its way: `__setstate__` gets what numpy's own would get."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state if len(state) == 5 else (0, *state)
        self.value = _array(data, kind, shape, "F" if fortran else "C")


class _Type:
    """A dtype on its way: its code, and its byte order once its state was set."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        if order not in ("<", ">", "|", "="):
            raise Refused(f"it has an array of the byte order {order!r}")
        self.order = order

    def numpy(self) -> np.dtype[Any]:
        import numpy as np

        code = self.code.lstrip("<>|=")
        if code[:1] not in _KINDS or not code[1:].isdigit():
            raise Refused(f"it has an array of the type {self.code!r}, expected numbers")
        return np.dtype(self.order + code)


class _Reconstruct:
    __slots__ = ()

    def __call__(self, *_: Any) -> _Array:
        return _Array()


class _MakeType:
    __slots__ = ()

    def __call__(self, code: Any, *_: Any) -> _Type:
        return _Type(_text(code))


class _Scalar:
    __slots__ = ()

    def __call__(self, kind: _Type, data: bytes) -> Any:
        return _array(data, kind, (1,), "C")[0].item()


class _FromBuffer:
    __slots__ = ()

    def __call__(self, data: Any, kind: _Type, shape: Any, order: Any) -> _Array:
        made = _Array()
        made.value = _array(data, kind, shape, _text(order))
        return made


class _Encode:
    """Python 3 writes bytes into old protocols as a text and its encoding."""

    __slots__ = ()

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
            raise Refused("it has bytes in an unusual encoding")
        return text.encode("latin-1")


def _array(data: Any, kind: Any, shape: Any, order: str) -> np.ndarray:
    import numpy as np

    if not isinstance(kind, _Type) or order not in ("C", "F"):
        raise Refused("it has an array whose description is none")
    # A protocol-5 pickle hands the bytes over as they are, older ones as text of Python 2.
    flat: np.ndarray = np.frombuffer(data, kind.numpy())
    return flat.reshape(tuple(int(side) for side in shape), order="F" if order == "F" else "C")
