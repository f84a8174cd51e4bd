"""Replacements for the globals of Python and NumPy in pickles: containers, bytes, numbers and arrays."""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter, OrderedDict
from typing import Any

from rbtools.lazy import np
from rbtools.unpickle.machine import Damaged, Machine, Maker, NamedGlobal, Refused, Unbuilt

MOST_DIMENSIONS = 64
_NUMBERS = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|f16")
_TEXTS = re.compile(r"[SU][0-9]{1,9}")


class Type:
    """A NumPy dtype: its code, such as f4 or U5, and its byte order once its state is set."""

    __slots__ = ("code", "order")

    def __init__(self, code: str, order: str) -> None:
        self.code, self.order = code, order

    def numpy(self) -> np.dtype[Any]:
        if not _NUMBERS.fullmatch(self.code):
            raise Refused(
                f"numpy.ndarray of the type {self.code!r}",
                f"it has an array of the type {self.code!r:.80}, expected numbers",
            )
        return np.dtype(("<" if self.order == "=" else self.order) + self.code)


class UnbuiltType(Unbuilt):
    """A dtype before its state is set; a file may also leave the state out."""

    __slots__ = ("type",)

    def __init__(self, code: str) -> None:
        super().__init__()
        self.type = Type(code.lstrip("<>|="), code[0] if code[:1] in ("<", ">") else "=")

    def built(self, machine: Machine, state: Any) -> Type:
        order = text(state[1])
        if order not in ("<", ">", "|", "="):
            raise Refused(f"array of the byte order {order!r}")
        return Type(self.type.code, order)


class UnbuiltArray(Unbuilt):
    """An array before its state is set, with the state of NumPy's `__setstate__`."""

    __slots__ = ()

    def built(self, machine: Machine, state: Any) -> np.ndarray:
        _, shape, kind, fortran, data = state if len(state) == 5 else (0, *state)
        return array(machine, data, kind, shape, "F" if fortran else "C")


def text(value: object) -> str:
    if type(value) is bytes:
        return value.decode("latin-1")
    if type(value) is not str:
        raise Damaged("it has a name that is no text")
    return value


def sizes(values: object) -> tuple[int, ...]:
    """A shape or strides: integers from 0 on that fit in 63 bits. Raises Damaged."""
    if not isinstance(values, (tuple, list)) or len(values) > MOST_DIMENSIONS:
        raise Damaged("it has a shape that is none")
    if not all(type(size) is int and 0 <= size < 2**63 for size in values):
        raise Damaged("it has a shape that is none")
    return tuple(values)


def array(machine: Machine, data: object, kind: object, shape: object, order: str) -> np.ndarray:
    """Numbers from bytes of exactly the length that type and shape need."""
    kind = kind.type if isinstance(kind, UnbuiltType) else kind
    if not isinstance(kind, Type) or order not in ("C", "F"):
        raise Damaged("it has an array whose description is none")
    dtype, shape = kind.numpy(), sizes(shape)
    if type(data) is str:  # bytes from Python 2 that were decoded as text
        data = data.encode("utf-8")
    need = math.prod(shape) * dtype.itemsize
    if (type(data) is not bytes and type(data) is not bytearray) or len(data) != need:
        raise Damaged(f"it has an array of the shape {shape} without the bytes for it")
    machine.spend(len(data))
    if dtype.kind == "b" and data and np.frombuffer(data, np.uint8).max() > 1:
        raise Damaged("it has truth values that are none")
    flat: np.ndarray = np.frombuffer(data, dtype) if data else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if order == "F" else "C")


def _scalar(machine: Machine, kind: Any, data: Any) -> Any:
    """One number or text, as Python's type."""
    kind = kind.type if isinstance(kind, UnbuiltType) else kind
    if isinstance(kind, Type) and _TEXTS.fullmatch(kind.code) and type(data) is bytes:
        machine.spend(len(data))
        if kind.code[0] == "S":
            return data.rstrip(b"\0")
        return data.decode("utf-32-be" if kind.order == ">" else "utf-32-le").rstrip("\0")
    (value,) = array(machine, data, kind, (1,), "C").tolist()
    return float(value) if isinstance(kind, Type) and kind.code == "f16" else value


def _reconstruct(machine: Machine, *_: object) -> UnbuiltArray:
    return UnbuiltArray()


def _from_buffer(machine: Machine, data: object, kind: object, shape: object, order: object) -> np.ndarray:
    return array(machine, data, kind, shape, text(order))


def _encode(machine: Machine, value: object, encoding: object) -> bytes:
    """Python 3 writes bytes into old protocols as a text and its encoding."""
    if type(value) is not str or text(encoding) not in ("latin1", "latin-1"):
        raise Damaged("it has bytes in an unusual encoding")
    machine.spend(len(value))
    return value.encode("latin-1")


def _bytearray(machine: Machine, value: object = b"", encoding: object = "latin-1") -> bytearray:
    data = value if type(value) is bytes else _encode(machine, value, encoding)
    machine.spend(len(data))
    return bytearray(data)


def _complex(machine: Machine, real: object, imaginary: object) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise Damaged("it has a complex number of other parts")
    return complex(real, imaginary)


def _members(machine: Machine, items: object) -> list[Any]:
    if type(items) is not list and type(items) is not tuple:
        raise Damaged("it has a set of what is no list")
    machine.spend(len(items))
    for item in items:
        machine.check_key(item)
    return list(items)


def _ordered(machine: Machine, pairs: object = ()) -> OrderedDict[Any, Any]:
    """Python 2 passes the pairs as an argument, Python 3 sets them one by one."""
    result: OrderedDict[Any, Any] = OrderedDict()
    if type(pairs) is not list and type(pairs) is not tuple:
        raise Damaged("it has a dict of what are no pairs")
    if not all(type(pair) in (list, tuple) for pair in pairs):
        raise Damaged("it has a dict of what are no pairs")
    machine.spend(len(pairs))
    for key, value in pairs:
        machine.put(result, [key, value])
    return result


def _counter(machine: Machine, counts: object = None) -> Counter[Any]:
    result: Counter[Any] = Counter()
    if counts is not None:
        if type(counts) is not dict:
            raise Damaged("it has a counter of what is no dict")
        machine.spend(len(counts))
        for key in counts:
            machine.check_key(key)
        dict.update(result, counts)
    return result


def makers(module: str, functions: dict[str, Any]) -> dict[str, Any]:
    return {f"{module}.{name}": Maker(f"{module}.{name}", make) for name, make in functions.items()}


def constants(module: str, names: str) -> dict[str, Any]:
    return {f"{module}.{name}": NamedGlobal(f"{module}.{name}") for name in names.split()}


NAMES: dict[str, Any] = {
    **makers("numpy.core.multiarray", {"_reconstruct": _reconstruct, "scalar": _scalar}),
    **makers("numpy._core.multiarray", {"_reconstruct": _reconstruct, "scalar": _scalar}),
    **makers("numpy.core.numeric", {"_frombuffer": _from_buffer}),
    **makers("numpy._core.numeric", {"_frombuffer": _from_buffer}),
    **makers("numpy", {"dtype": lambda machine, code, *_: UnbuiltType(text(code))}),
    **constants("numpy", "ndarray"),
    **makers("_codecs", {"encode": _encode}),
    **makers("builtins", {"bytearray": _bytearray, "complex": _complex}),
    **makers(  # Python 3 writes empty bytes into old protocols as a call
        "builtins",
        {
            "bytes": lambda machine: b"",
            "set": lambda machine, items=(): set(_members(machine, items)),
            "frozenset": lambda machine, items=(): frozenset(_members(machine, items)),
        },
    ),
    **constants("builtins", "list dict int float str tuple bool"),
    **makers("collections", {"OrderedDict": _ordered, "Counter": _counter}),
    # a plain dict, without the default factory
    **makers("collections", {"defaultdict": lambda machine, *_: {}}),
    **makers("argparse", {"Namespace": lambda machine: argparse.Namespace()}),
}
