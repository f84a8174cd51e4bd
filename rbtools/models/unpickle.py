"""Reads pickles from other projects (checkpoints, published results, training states) without running their
code.

A pickle can normally call any function with any arguments. In this module, a name in a pickle refers to one
of a few functions that make containers, numbers, arrays and tensors from data. Every other name becomes an
inert `Stub`. Only functions of this module and stubs are ever called, and only stubs, arrays and mappings
receive a state.
"""

from __future__ import annotations

import argparse
import io
import math
import pickle
import re
import struct
import sys
import types
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import IO, Any, ClassVar

from rbtools.errors import shown
from rbtools.lazy import np

DEEPEST_KEY = 8  # maximum levels of tuples in a key: Python hashes them by recursion without a limit
MOST_BYTES = 2**62  # maximum size in bytes of an expanded tensor, so that sizes never overflow
# Limits of the objects that a file makes, and of expanded tensors: SHARED times the file, plus SMALL bytes.
SHARED, SMALL = 16, 2**26
TENSOR = 500  # bytes that a tensor takes beside its numbers


class Refused(Exception):
    """The pickle contains an object that is not allowed. `name` is the name of the object."""

    def __init__(self, name: str, message: str | None = None) -> None:
        self.name = shown(name)
        super().__init__(message or f"it asks for {self.name}, which could run code")


class Damaged(ValueError):
    """The bytes are not a pickle, are incomplete, or are inconsistent."""


class NotTorch(Damaged):
    """A pickle that torch.save did not write."""


class Stub:
    """An object of an unknown class, which keeps its content from the file and does nothing."""

    name = ""

    def __init__(self, *given: object) -> None:
        self.given, self.items = given, list[object]()

    def append(self, item: object) -> None:
        self.items.append(item)


class UnusualTensor:
    """A placeholder for a tensor that is not dense; `kind` describes the layout, such as sparse."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Maker:
    """A name that a pickle may call, with the function that is called instead."""

    def __init__(self, name: str, make: Callable[..., Any] | None = None) -> None:
        self.name, self.make = name, make


class _Type:
    """A NumPy dtype of numbers or text. The state of the dtype in the pickle may set the byte order."""

    def __init__(self, code: object, *_: object) -> None:
        code = _text(code)
        if not re.fullmatch(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16|[SU][0-9]{1,9})", code):
            raise Refused(
                f"numpy.ndarray of the type {code!r}",
                f"it has an array of the type {code!r:.80}, expected numbers",
            )
        self.dtype = np.dtype(code)


def _text(value: object) -> str:
    if not isinstance(value, (str, bytes)):
        raise Damaged("it has a name that is not a text")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _dtype(kind: Any) -> np.dtype[Any]:
    if not isinstance(kind, _Type):
        raise Damaged("it has an array with an invalid type")
    return kind.dtype


def _sizes(values: Any) -> tuple[int, ...]:
    """Checks and returns a shape or strides. Raises Damaged for anything except non-negative integers."""
    if not isinstance(values, tuple) or not all(type(size) is int and 0 <= size < 2**63 for size in values):
        raise Damaged("it has an invalid shape")
    return values


def _array(data: Any, kind: Any, shape: Any, order: Any = "C") -> np.ndarray:
    dtype = _dtype(kind)
    data = data.encode() if isinstance(data, str) else data  # written by Python 2
    if dtype.kind in "SU":
        raise Refused("numpy.ndarray of text", "it has an array of text, expected numbers")
    if len(data) != math.prod(_sizes(shape)) * dtype.itemsize:
        raise Damaged(f"it has an array of the shape {shape} without the bytes for it")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if _text(order) == "F" else "C")


def _reconstruct(kind: Any, *_: object) -> np.ndarray:
    if getattr(kind, "name", None) != "numpy.ndarray":
        raise Refused(f"an array of the class {getattr(kind, 'name', type(kind).__name__)}")
    return np.empty(0)


def _encoded(value: str = "", encoding: object = "latin1") -> bytes:
    """The bytes of a text. In old protocols, Python 3 writes bytes as a text with its encoding."""
    if encoding not in ("latin1", "latin-1"):
        raise Damaged("it has bytes in an unusual encoding")
    return value.encode("latin-1")


def _checked_key(key: object, levels: int = DEEPEST_KEY, parts: int = 64) -> int:
    """Returns the number of parts of the key that may still follow."""
    if isinstance(key, tuple):
        if not levels or len(key) > parts:
            raise Damaged("it has a key of many parts")
        for part in key:
            parts = _checked_key(part, levels - 1, parts - 1)
    elif not isinstance(key, (str, bytes, int, float, complex, type(None))):
        raise Damaged(f"it has a key of the type {type(key).__name__}")
    return parts


def _set(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(items: Any = ()) -> Any:
        for item in items:
            _checked_key(item)
        return make(items)

    return made


def _mapping(make: Callable[..., Any], *given: Any) -> Any:
    for key, _ in given and (given[0].items() if isinstance(given[0], dict) else given[0]):
        _checked_key(key)
    return make(*given)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, needs_grad: Any = False, *more: Any) -> Any:
    """A tensor on its storage, for each of torch's formats. Hooks are ignored, because they are functions."""
    import torch

    if not isinstance(storage, torch.storage.TypedStorage):
        raise Damaged("it has a tensor without a storage")
    memory = storage._untyped_storage
    dtype = next((one for one in more if isinstance(one, torch.dtype)), storage.dtype)
    if any(isinstance(about, dict) and about for about in more[1:]):
        return UnusualTensor("conjugated or negated only by a mark")
    shape, strides, (offset,) = _sizes(shape), _sizes(strides), _sizes((offset,))
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    room = memory.nbytes() // dtype.itemsize
    if offset > room or (0 not in shape and last >= room):
        raise Damaged(f"it has a tensor of the shape {shape} outside its storage of {room} numbers")
    if len(shape) > 64 or math.prod(size or 1 for size in shape) * dtype.itemsize > MOST_BYTES:
        raise Damaged(f"it has a tensor of the shape {shape}")
    return torch.empty(0, dtype=dtype).set_(memory, offset, shape, strides).requires_grad_(needs_grad)


def _parameter(data: Any, needs_grad: Any = True, *_: object) -> Any:
    """A parameter. Attributes that were set on the parameter are ignored."""
    import torch

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


def _torchs(name: str) -> Callable[..., Any]:
    def made(*given: Any) -> Any:
        import torch

        return getattr(torch, name)(*given)

    return made


_UNUSUAL = {
    "_rebuild_sparse_tensor": "sparse",
    "_rebuild_nested_tensor": "nested",
    "_rebuild_qtensor": "quantized",
    "_rebuild_meta_tensor_no_storage": "without numbers (on the meta device)",
}
_MAKERS: dict[str, Callable[..., Any] | None] = {
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy.core.multiarray.scalar": lambda kind, data: np.frombuffer(data, _dtype(kind), 1)[0].item(),
    "numpy.core.numeric._frombuffer": _array,
    "numpy.dtype": _Type,
    "numpy.ndarray": None,
    "_codecs.encode": _encoded,
    "builtins.bytes": _encoded,
    "builtins.bytearray": lambda *given: bytearray(
        given[0] if given[:1] and type(given[0]) is bytes else _encoded(*given)
    ),
    "builtins.complex": complex,
    "builtins.set": _set(set),
    "builtins.frozenset": _set(frozenset),
    "builtins.list": None,
    "builtins.dict": None,
    "builtins.int": None,
    "builtins.float": None,
    "collections.OrderedDict": lambda *pairs: _mapping(OrderedDict, *pairs),
    "collections.Counter": lambda *counts: _mapping(Counter, *counts),
    "collections.defaultdict": lambda *_: {},  # without the function for missing keys
    "argparse.Namespace": argparse.Namespace,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "torch.nn.parameter.Parameter": _parameter,
    "torch.Size": lambda *values: _torchs("Size")(*map(_sizes, values)),
    "torch.device": _torchs("device"),
    **{f"torch._utils.{name}": lambda *_, kind=kind: UnusualTensor(kind) for name, kind in _UNUSUAL.items()},
    "torch.storage._load_from_bytes": None,  # `_Unpickler.called` reads it within the limits of the file
}


class _Room:
    """The bytes of memory that the storages and the other objects of a file of `size` bytes may still take.

    A few bytes of a pickle can ask for the same object, or for the same bytes of the file, again and again.
    """

    def __init__(self, size: int) -> None:
        self.storages, self.objects = size, SHARED * size + SMALL

    def take(self, storages: int = 0, objects: int = 0) -> None:
        self.storages, self.objects = self.storages - storages, self.objects - objects
        if min(self.storages, self.objects) < 0:
            raise Damaged("it unpacks to far more than the bytes of the file")


_PYTHONS: Any = pickle._Unpickler  # not the one in C, whose opcodes cannot be replaced


class _Unpickler(_PYTHONS):
    dispatch: ClassVar[dict[int, Callable[..., Any]]] = dict(_PYTHONS.dispatch)
    stack: list[Any]
    room: _Room

    def __init__(self, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.storages: set[str | int] = set()  # the keys of those that were loaded

    def counted(self, made: Any) -> Any:
        """The object, after its memory is subtracted from what the file may take."""
        size = TENSOR if hasattr(made, "untyped_storage") else 0
        self.room.take(objects=size + sys.getsizeof(made))
        return made

    def find_class(self, module: str, name: str) -> Any:
        import torch

        known = getattr(torch, name, None) if module in ("torch", "torch.storage") else None
        if isinstance(known, torch.dtype) or known is torch.UntypedStorage:
            return known
        module = {"__builtin__": "builtins"}.get(module, module.replace("numpy._core", "numpy.core"))
        full = f"{module}.{name}"
        return self.counted(
            _Maker(full, _MAKERS[full]) if full in _MAKERS else type("Stub", (Stub,), {"name": full})
        )

    def called(self, function: Any, given: Any) -> Any:
        if not isinstance(given, tuple):
            raise Damaged("it has arguments that are not a tuple")
        if isinstance(function, type) and issubclass(function, Stub):
            return self.counted(function(*given))
        if isinstance(function, _Maker) and function.name == "torch.storage._load_from_bytes":
            return _legacy(io.BytesIO(*given), self.room)
        if not isinstance(function, _Maker) or function.make is None:
            raise Refused(getattr(function, "name", type(function).__name__))
        return self.counted(function.make(*given))

    def call(self) -> None:
        given = self.stack.pop()
        self.stack[-1] = self.called(self.stack[-1], given)

    def call_with_names(self) -> None:
        if self.stack.pop():
            raise Damaged("it has named arguments")
        self.call()

    def instance(self) -> None:
        module, name = (self.readline()[:-1].decode() for _ in range(2))
        given = tuple(self.pop_mark())
        self.append(self.called(self.find_class(module, name), given))

    def instance_on_stack(self) -> None:
        function, *given = self.pop_mark()
        self.append(self.called(function, tuple(given)))

    def build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if type(made) is np.ndarray:
            shape, kind, fortran, data = state[-4:]
            value = _array(data, kind, shape, "F" if fortran else "C")
            value_state: Any = (1, value.shape, value.dtype, bool(fortran), value.tobytes("A"))
            self.room.take(objects=value.nbytes)
            made.__setstate__(value_state)
        elif isinstance(made, _Type):
            made.dtype = made.dtype.newbyteorder(_text(state[1]))  # type: ignore[arg-type]
        elif type(made) is OrderedDict:  # torch stores the versions of modules in their state
            vars(made).update({key: state[key] for key in state if key == "_metadata"})
        elif isinstance(made, argparse.Namespace):
            vars(made).update({str(key): value for key, value in state.items()})
        elif isinstance(made, Stub):
            made.items.append(state)
        else:
            raise Refused(f"a state of {getattr(made, 'name', type(made).__name__)}")

    def put(self, items: list[Any]) -> None:
        into = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            _checked_key(key)
            if isinstance(into, Stub):
                into.items.append((key, value))
            elif isinstance(into, dict):
                into[key] = value
            else:
                raise Damaged("it has an item for something that is not a dict")

    def put_one(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.put([key, value])

    def put_many(self) -> None:
        self.put(self.pop_mark())

    def append_one(self) -> None:
        self.extend([self.stack.pop()])

    def append_many(self) -> None:
        self.extend(self.pop_mark())

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], (list, Stub)):
            raise Damaged("it has an item for something that is not a list")
        for item in items:
            self.stack[-1].append(item)

    def add(self) -> None:
        items, into = self.pop_mark(), self.stack[-1]
        if not isinstance(into, set):
            raise Damaged("it has a member for something that is not a set")
        into.update(_set(list)(items))

    def frozen(self) -> None:
        items = self.pop_mark()
        self.append(_set(frozenset)(items))

    def stored(self) -> None:
        key = self.stack.pop()
        kind = type(key[1]).__name__ if type(key) is tuple and len(key) > 4 else ""
        if type(key) is tuple and key and key[0] == "module":
            self.append(key[1])  # a class; the source that follows is ignored (torch would compare it)
            return
        if (
            kind not in ("StorageType", "type")
            or _text(key[0]) != "storage"
            or type(key[2]) not in (str, int)
        ):
            raise Damaged("it has a persistent id that is not of a storage")
        _sizes((key[4],))
        found = self.persistent_load(key)
        if key[2] not in self.storages:  # torch reads it once for each key, and several keys can mean it
            self.storages.add(key[2])
            self.room.take(storages=found._untyped_storage.nbytes())
        self.append(found)

    def stored_by_text(self) -> None:
        raise Refused("a persistent id")

    def mapping(self) -> None:
        items = self.pop_mark()
        self.append(self.counted({}))
        self.put(items)

    def empty(self, make: Callable[[], Any]) -> None:
        self.append(self.counted(make()))

    dispatch |= {
        pickle.REDUCE[0]: call,
        pickle.NEWOBJ[0]: call,
        pickle.NEWOBJ_EX[0]: call_with_names,
        pickle.INST[0]: instance,
        pickle.OBJ[0]: instance_on_stack,
        pickle.BUILD[0]: build,
        pickle.DICT[0]: mapping,
        pickle.EMPTY_DICT[0]: partial(empty, make=dict),
        pickle.EMPTY_LIST[0]: partial(empty, make=list),
        pickle.EMPTY_SET[0]: partial(empty, make=set),
        pickle.SETITEM[0]: put_one,
        pickle.SETITEMS[0]: put_many,
        pickle.APPEND[0]: append_one,
        pickle.APPENDS[0]: append_many,
        pickle.ADDITEMS[0]: add,
        pickle.FROZENSET[0]: frozen,
        pickle.BINPERSID[0]: stored,
        pickle.PERSID[0]: stored_by_text,
    }


def _part(reader: type[_Unpickler], file: IO[bytes], **how: Any) -> Any:
    """A part of torch's older format: a number, the sizes of a machine's types, or the list of storages."""
    value = reader(file, **how).load()
    keys = value if isinstance(value, list) else []
    if not isinstance(value, (int, dict, list)) or not all(isinstance(key, (str, int)) for key in keys):
        raise NotTorch("it is a pickle that torch.save did not write")
    return 0 if isinstance(value, dict) else value  # torch ignores this part


def _reader(room: _Room) -> type[_Unpickler]:
    return type("_Reader", (_Unpickler,), {"room": room})


def _load(stream: Any, room: _Room) -> Any:
    import torch

    reader = _reader(room)
    # Passed to torch.load in place of Python's module.
    module: Any = types.SimpleNamespace(
        __name__="rbtools.models.unpickle", Unpickler=reader, load=partial(_part, reader)
    )
    return torch.load(stream, "cpu", module, weights_only=False)


class _Stream(io.RawIOBase):
    """A file without a file descriptor, because torch searches a file with a descriptor for a tar archive."""

    def __init__(self, file: Any) -> None:
        self.read, self.readline = file.read, file.readline  # type: ignore[method-assign]
        self.seek, self.tell = file.seek, file.tell  # type: ignore[method-assign]
        self.readinto = file.readinto  # type: ignore[method-assign]


def _one_error(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (Refused, Damaged, OSError):
        raise
    except Exception as error:  # pickle, NumPy and torch raise nearly any error for a damaged file
        message = (str(error).splitlines() or [""])[0]
        if "Invalid magic number" in message:
            raise NotTorch("it is a pickle that torch.save did not write") from None
        raise Damaged(f"{type(error).__name__}: {shown(message)}") from None


def _legacy(file: IO[bytes], room: _Room) -> Any:
    if file.read(2) == b"PK":
        raise Damaged("it contains a zip archive in the place of a tensor")
    file.seek(0)
    return _load(_Stream(file), room)


def members(file: IO[bytes]) -> list[zipfile.ZipInfo]:
    """The members of a zip archive, of which there is only one list. Raises Damaged.

    Python's zipfile reads the list that ends where the end record begins, and torch reads the list at the
    offset in the end record. Two different lists could name different members.
    """
    size = file.seek(0, io.SEEK_END)
    begin = file.seek(max(size - 2**16 - 98, 0))
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + 22:
        raise Damaged("the end of the archive is missing")
    length, offset = struct.unpack_from("<LL", tail, at + 12)
    if at >= 76 and tail[at - 20 : at].startswith(b"PK\6\7"):  # the record for large archives is before it
        (there,) = struct.unpack_from("<Q", tail, at - 12)
        at -= 76
        length, offset = struct.unpack_from("<QQ", tail, at + 40)
        if not tail[at:].startswith(b"PK\6\6") or there != begin + at:
            raise Damaged("its end records are not where they should be")
    if offset + length != begin + at:
        raise Damaged("its list of members is not where the end record says")
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise Damaged(str(error)) from None


def torch_file(file: IO[bytes]) -> Any:
    """The value in a seekable file of torch.save (any format), with tensors on the CPU.

    The value is equal to `torch.load(file, "cpu", weights_only=True)` for state dicts, optimiser states and
    notes of training scripts. The function also reads arrays, numbers and text of NumPy, and argparse's
    Namespace. All other objects become Stubs. Raises Refused, Damaged, NotTorch or OSError.
    """
    import torch

    def read() -> Any:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        zipped = file.read(4) == b"PK\x03\x04"
        file.seek(0)
        if not zipped:
            return _legacy(file, _Room(size))
        entries = members(file)
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > size or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise Damaged(f"it unpacks to {unpacked} bytes, and PyTorch packs no weights")
        file.seek(0)
        stream: Any = _Stream(file)
        reader: Any = torch._C.PyTorchFileReader(stream)
        # A TorchScript program has this member, and torch would run it. `has_record` does not find all names
        # that torch takes for it: torch ends a name at its first NUL.
        if "constants.pkl" in reader.get_all_records():
            raise Refused("a TorchScript program")
        file.seek(0)
        return _load(stream, _Room(size))

    return _one_error(read)


def published(data: bytes) -> Any:
    """The value of a plain pickle with tensors, as in NATS-Bench. Raises the errors of `torch_file`."""
    return _one_error(_reader(_Room(len(data)))(io.BytesIO(data)).load)
