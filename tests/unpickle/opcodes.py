"""Pickles written by hand, opcode by opcode, and the files around them."""

from __future__ import annotations

import io
import re
import struct
import zipfile

import torch


def name(path: str) -> bytes:
    """A function or class by its name, "module.name"."""
    module, _, last = path.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def value(what: object) -> bytes:
    """Text, bytes, a small number, None, or a tuple of these; bytes that come from `raw` as they are."""
    if isinstance(what, Raw):
        return what
    if isinstance(what, tuple):
        return b"(" + b"".join(map(value, what)) + b"t"
    if isinstance(what, str):
        return b"X" + struct.pack("<I", len(what.encode())) + what.encode()
    if isinstance(what, bytes):  # as Python 3 writes them into protocol 2, which torch uses
        return call("_codecs.encode", what.decode("latin-1"), "latin1")
    if what is None or isinstance(what, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[what]
    if 0 <= what < 256:
        return b"K" + bytes([what])
    data = what.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


class Raw(bytes):
    """Opcodes."""


def call(path: str, *arguments: object) -> Raw:
    return Raw(name(path) + value(arguments) + b"R")


def built(made: bytes, state: object) -> Raw:
    return Raw(made + value(state) + b"b")


def mapping(**items: object) -> Raw:
    return Raw(b"}(" + b"".join(value(part) for item in items.items() for part in item) + b"u")


def pickled(what: object) -> bytes:
    return b"\x80\x02" + value(what) + b"."


def storage(kind: str, key: str, count: object, *view: object) -> Raw:
    return Raw(value(("storage", Raw(name(f"torch.{kind}")), key, "cpu", count, *view)) + b"Q")


def tensor(stored: bytes, offset: object, shape: object, strides: object) -> Raw:
    return call("torch._utils._rebuild_tensor_v2", Raw(stored), offset, shape, strides, False, None)


def objects(addresses: bytes) -> dict[str, Raw]:
    """Arrays of objects whose addresses the file chooses, in each way that NumPy's pickles know."""
    shape = (len(addresses) // 8,)
    dtype = built(call("numpy.dtype", "O8", False, True), (3, "|", None, None, None, -1, -1, 63))
    empty = call("numpy.core.multiarray._reconstruct", Raw(name("numpy.ndarray")), (0,), b"b")
    record = built(call("numpy.dtype", "V8", False, True), (3, "|", None, ("a",), None, 8, 8, 16))
    return {
        "called": call("numpy.ndarray", shape, "O", addresses),
        "a dtype": call("numpy.ndarray", shape, dtype, addresses),
        "a new object": Raw(name("numpy.ndarray") + value((shape, "O", addresses)) + b"\x81"),
        "from a buffer": call("numpy._core.numeric._frombuffer", addresses, dtype, shape, "C"),
        "by its state": built(empty, (1, shape, dtype, False, addresses)),
        "of records": built(empty, (1, shape, record, False, addresses)),
        "a scalar": call("numpy.core.multiarray.scalar", dtype, addresses[:8]),
    }


def zipped(data: bytes, *storages: bytes, order: str = "little", folder: str = "a") -> bytes:
    """A file of torch.save around a pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(f"{folder}/data.pkl", data)
        archive.writestr(f"{folder}/byteorder", order)
        for number, content in enumerate(storages):
            archive.writestr(f"{folder}/data/{number}", content)
        archive.writestr(f"{folder}/version", "3\n")
    return stream.getvalue()


def legacy(data: bytes, *storages: bytes, width: int = 4) -> bytes:
    """A file of torch.save before torch 1.6 around a pickle."""
    stream = io.BytesIO()
    torch.save([], stream, _use_new_zipfile_serialization=False)
    head = stream.getvalue()[: stream.getvalue().index(b"]") - 2]
    keys = b"\x80\x02](" + b"".join(value(str(number)) for number in range(len(storages))) + b"e."
    data = re.sub(rb"(?<!t)tQ", b"NtQ", data)  # no view of the storage
    return head + data + keys + b"".join(struct.pack("<q", len(c) // width) + c for c in storages)
