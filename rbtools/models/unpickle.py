"""Reads pickles from other projects (checkpoints, published results, training states) without running their
code.

A pickle can normally call any function with any arguments. Here, a name in a pickle refers to one of the
functions of `pickle_objects`. Every other name becomes a `Stub`, which does nothing. Only these functions and
stubs are ever called, and only stubs, arrays and mappings receive a state.
"""

from __future__ import annotations

import argparse
import io
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import IO, Any, ClassVar

from rbtools.errors import shown
from rbtools.lazy import np, torch
from rbtools.models.pickle_objects import (
    MAKERS,
    ArrayType,
    Damaged,
    Maker,
    NotTorch,
    Refused,
    Stub,
    array,
    check_key,
    of_keys,
    sizes,
    text,
)

# Limits of the objects that a file makes, and of expanded tensors: SHARED times the file, plus SMALL bytes.
SHARED, SMALL = 16, 2**26
TENSOR = 500  # bytes that a tensor takes in addition to its numbers


class _Room:
    """The bytes of memory that the storages and the other objects of a file of `size` bytes may still use.

    A few bytes of a pickle can request the same object, or the same bytes of the file, again and again.
    """

    def __init__(self, size: int) -> None:
        self.storages, self.objects = size, SHARED * size + SMALL

    def take(self, storages: int = 0, objects: int = 0) -> None:
        self.storages, self.objects = self.storages - storages, self.objects - objects
        if min(self.storages, self.objects) < 0:
            raise Damaged("it unpacks to far more bytes than the file has")


_PYTHONS: Any = pickle._Unpickler  # not the one in C, whose opcodes cannot be replaced


class _Unpickler(_PYTHONS):
    """Replaces each opcode that calls a function, or that could change an object other than a list.

    Items are appended by Python's own opcodes: only lists, stubs and bytearrays have such a method here.
    """

    dispatch: ClassVar[dict[int, Callable[..., Any]]] = dict(_PYTHONS.dispatch)
    stack: list[Any]
    room: _Room

    def __init__(self, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.storages: set[str | int] = set()  # the keys of those that were loaded

    def counted(self, made: Any) -> Any:
        """The object, after its memory is subtracted from the memory that the file may still use."""
        size = TENSOR if hasattr(made, "untyped_storage") else 0
        self.room.take(objects=size + sys.getsizeof(made))
        return made

    def find_class(self, module: str, name: str) -> Any:
        known = getattr(torch, name, None) if module in ("torch", "torch.storage") else None
        if isinstance(known, torch.dtype) or known is torch.UntypedStorage:
            return known
        module = {"__builtin__": "builtins"}.get(module, module.replace("numpy._core", "numpy.core"))
        full = f"{module}.{name}"
        return self.counted(
            Maker(full, MAKERS[full]) if full in MAKERS else type("Stub", (Stub,), {"name": full})
        )

    def called(self, function: Any, given: Any) -> Any:
        if not isinstance(given, tuple):
            raise Damaged("it has arguments that are not a tuple")
        if isinstance(function, type) and issubclass(function, Stub):
            return self.counted(function(*given))
        if isinstance(function, Maker) and function.name == "torch.storage._load_from_bytes":
            return _legacy(io.BytesIO(*given), self.room)
        if not isinstance(function, Maker) or function.make is None:
            raise Refused(getattr(function, "name", type(function).__name__))
        return self.counted(function.make(*given))

    def call(self) -> None:
        given = self.stack.pop()
        self.stack[-1] = self.called(self.stack[-1], given)

    def call_with_names(self) -> None:
        if self.stack.pop():
            raise Damaged("it has named arguments")
        self.call()

    def _instantiate(self, function: Any, given: Any) -> None:  # of INST and OBJ
        self.append(self.called(function, tuple(given)))

    def build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if type(made) is np.ndarray:
            shape, kind, fortran, data = state[-4:]
            value = array(data, kind, shape, "F" if fortran else "C")
            value_state: Any = (1, value.shape, value.dtype, bool(fortran), value.tobytes("A"))
            self.room.take(objects=value.nbytes)
            made.__setstate__(value_state)
        elif isinstance(made, ArrayType):
            made.dtype = made.dtype.newbyteorder(text(state[1]))  # type: ignore[arg-type]
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
            check_key(key)
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

    def add(self) -> None:
        items, into = self.pop_mark(), self.stack[-1]
        if not isinstance(into, set):
            raise Damaged("it has a member for something that is not a set")
        into.update(of_keys(list)(items))

    def frozen(self) -> None:
        items = self.pop_mark()
        self.append(of_keys(frozenset)(items))

    def stored(self) -> None:
        key = self.stack.pop()
        kind = type(key[1]).__name__ if type(key) is tuple and len(key) > 4 else ""
        if type(key) is tuple and key and key[0] == "module":
            self.append(key[1])  # a class; the source that follows is ignored (torch would compare it)
            return
        if kind not in ("StorageType", "type") or text(key[0]) != "storage" or type(key[2]) not in (str, int):
            raise Damaged("it has a persistent id that does not name a storage")
        sizes((key[4],))
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
        pickle.BUILD[0]: build,
        pickle.DICT[0]: mapping,
        pickle.EMPTY_DICT[0]: partial(empty, make=dict),
        pickle.EMPTY_LIST[0]: partial(empty, make=list),
        pickle.EMPTY_SET[0]: partial(empty, make=set),
        pickle.SETITEM[0]: put_one,
        pickle.SETITEMS[0]: put_many,
        pickle.ADDITEMS[0]: add,
        pickle.FROZENSET[0]: frozen,
        pickle.BINPERSID[0]: stored,
        pickle.PERSID[0]: stored_by_text,
    }


def _part(reader: type[_Unpickler], file: IO[bytes], **how: Any) -> Any:
    """Read a part of torch's older format: a number, the sizes of C types, or the list of storages."""
    value = reader(file, **how).load()
    keys = value if isinstance(value, list) else []
    if not isinstance(value, (int, dict, list)) or not all(isinstance(key, (str, int)) for key in keys):
        raise NotTorch("it is a pickle that torch.save did not write")
    return 0 if isinstance(value, dict) else value  # torch ignores this part


def _reader(room: _Room) -> type[_Unpickler]:
    return type("_Reader", (_Unpickler,), {"room": room})


def _load(stream: Any, room: _Room) -> Any:
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
        raise Damaged("it contains a zip archive instead of a tensor")
    file.seek(0)
    return _load(_Stream(file), room)


def members(file: IO[bytes]) -> list[zipfile.ZipInfo]:
    """The members of a zip archive. Raises Damaged if the archive could have two different lists of members.

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
    """The value in a seekable file that torch.save wrote (in any format), with tensors on the CPU.

    The value is equal to `torch.load(file, "cpu", weights_only=True)` for state dicts, optimiser states and
    options of training scripts. The function also reads NumPy arrays, numbers and strings, and argparse's
    Namespace. All other objects become Stubs. Raises Refused, Damaged, NotTorch or OSError.
    """

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
            raise Damaged(f"it unpacks to {unpacked} bytes, but PyTorch does not compress weights")
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
