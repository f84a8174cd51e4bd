"""Hostile pickles: nothing in them runs, and each ends with one error."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rbtools.models import unpickle
from tests.unpickle import opcodes
from tests.unpickle.opcodes import Raw, built, call, name, pickled, value


def read(data: bytes) -> Any:
    return unpickle.published(data)


def whole(data: bytes) -> Any:
    return unpickle.torch_file(io.BytesIO(data))


def read_torch(data: bytes) -> Any:
    return unpickle.torch_file(io.BytesIO(opcodes.zipped(data)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_read_as_python_reads_them(protocol: int) -> None:
    shared = [1, "a"]
    given: dict[Any, Any] = {
        "small numbers": [0, 1, -1, 255, 256, 65536, -(2**31), 2**31],
        "numbers": [2**100, -(2**2000), 0.1, float("inf"), 2 + 1j],
        "texts": ["", "a", "é\n'\"\\", "\U0001f600", "x" * 300, "\ud800"],
        "bytes": [b"", b"a\xff\n", b"y" * 300, bytearray(b"ab")],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "sets": [set(), {1, 2}, frozenset({"a", (1, 2)})],
        "constants": [None, True, False],
        "shared": [shared, shared],
        ("a", 1): {None: True, 1.5: b"z"},
    }
    found = read(pickle.dumps(given, protocol))
    assert found == given and found["shared"][0] is found["shared"][1]
    given["itself"] = given
    found = read(pickle.dumps(given, protocol))
    assert found["itself"] is found


@pytest.mark.parametrize("case", opcodes.objects(bytes(64)))
def test_arrays_of_objects_are_refused_by_name(case: str) -> None:
    data = pickled(opcodes.objects(bytes(64))[case])
    for reader in (read, read_torch):
        with pytest.raises(unpickle.Refused) as refused:
            reader(data)
        assert refused.value.name.startswith("numpy.ndarray")


FLOATS = built(call("numpy.dtype", "f8", False, True), (3, "<", None, None, None, -1, -1, 0))
EMPTY = call("numpy.core.multiarray._reconstruct", Raw(name("numpy.ndarray")), (0,), b"b")

NAMES = {
    "os.system": call("os.system", "true"),
    "a class": Raw(name("pathlib.PosixPath") + b")\x81"),
    "an instance": Raw(b"(ios\nPath\n"),
    "an object": Raw(b"(" + name("os.Path") + b"o"),
    "a dotted name": Raw(value("numpy") + value("ndarray.tofile") + b"\x93"),
    "a persistent id": Raw(b"Pone\n"),
    "a binary persistent id": Raw(value("one") + b"Q"),
    "a constant called": call("builtins.list", ()),
    "a state of a list": Raw(b"]" + value(1) + b"b"),
    "a state of a function": built(name("numpy.ndarray"), 1),
    "a state with attributes": built(Raw(b"]"), opcodes.mapping(append=1)),
    "a subclass": call("numpy.core.multiarray._reconstruct", Raw(name("numpy.matrix")), (0,), b"b"),
    "memory": call("numpy.memmap", "x"),
    "a reducer": call("copyreg._reconstructor", Raw(name("numpy.ndarray")), None, None),
    "texts": call("numpy.core.numeric._frombuffer", bytes(8), call("numpy.dtype", "U2"), (1,), "C"),
}


class Calls:
    """Pickles into a call of a function with arguments."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_no_function_of_a_file_runs(protocol: int, tmp_path: Path) -> None:
    """Beside weights every unknown object is a stub, in each of torch's formats and in a plain pickle."""
    trace = tmp_path / "it ran"
    calls = {
        "eval": Calls(eval, f"open({str(trace)!r}, 'w')"),
        "getattr": Calls(getattr, {}, "clear"),
        "os": Calls(os.mkdir, str(trace)),
        "torch": Calls(torch.hub.load, "a/b", "c"),
        "partial": functools.partial(os.mkdir, str(trace)),
        "module": torch.nn.Linear(2, 2),
        "path": tmp_path,
    }
    value = {"w": 1, **calls}
    files = [pickle.dumps(value, protocol)]
    for zipped in (True, False):
        stream = io.BytesIO()
        torch.save(value, stream, pickle_protocol=max(protocol, 2), _use_new_zipfile_serialization=zipped)
        files.append(stream.getvalue())
    for file, reader in zip(files, (unpickle.published, whole, whole), strict=True):
        try:
            found = reader(file)
        except unpickle.Damaged:
            assert protocol == 0  # a module as a plain pickle
            continue
        assert found.pop("w") == 1 and all(isinstance(one, unpickle.Stub) for one in found.values())
        assert found["eval"].name == "builtins.eval"
    assert not trace.exists()


@pytest.mark.parametrize("case", [*NAMES, *opcodes.objects(bytes(64))])
def test_a_hostile_pickle_beside_weights_is_a_stub_or_one_error(case: str) -> None:
    made = pickled({**NAMES, **opcodes.objects(bytes(64))}[case])
    for reader in (read_torch, read, lambda data: whole(opcodes.legacy(data))):
        with contextlib.suppress(unpickle.Refused, unpickle.Damaged):
            found = reader(made)
            assert isinstance(found, (unpickle.Stub, np.ndarray)) or type(found) is type


def nested(depth: int) -> Raw:
    """A tuple in a tuple, and so on."""
    return Raw(b")" + b"\x85" * depth)


def array(shape: object, data: bytes = bytes(16), dtype: Raw = FLOATS, fortran: object = False) -> Raw:
    return built(EMPTY, (1, shape, dtype, fortran, data))


DAMAGED = {
    "a state of an array": pickled(built(built(EMPTY, (1, (1,), FLOATS, False, bytes(8))), (1, (1,)))),
    "a buffer": pickled(Raw(b"\x97")),
    "an extension": pickled(Raw(b"\x82\x01")),
    "nothing": b"",
    "no end": b"N",
    "a pop of nothing": b"0.",
    "no mark": b"t.",
    "an unknown opcode": b"\xff.",
    "protocol 99": b"\x80\x63N.",
    "an unknown memo": b"h\x05.",
    "bytes of 2 GB": b"B\xff\xff\xff\x7fab.",
    "text of 2^63 bytes": b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fab.",
    "a bytearray of 2^62 bytes": b"\x96\xff\xff\xff\xff\xff\xff\xff\x3fab.",
    "a text of minus one byte": b"T\xff\xff\xff\xffab.",
    "a number of 2 GB": b"\x8b\xff\xff\xff\x7f\x01.",
    "a memo of 10,000 digits": b"Np" + b"9" * 10_000 + b"\n.",
    "a name that is no text": b"NN\x93.",
    "a list as a key": b"}]Ns.",
    "an array as a key": b"}" + array((2,)) + b"Ns.",
    "deep tuples as a key": b"}" + nested(50_000) + b"Ns.",
    "wide tuples as a key": b"}" + b")2\x86" * 30 + b"Ns.",
    "tuples of tuples as a key": b"}Nq\x000(%bt%bNs." % (b"h\0" * 40, b"q\x010(%bt" % (b"h\x01" * 40)),
    "wide tuples as a type": name("numpy.dtype") + b")" + b"2\x86" * 60 + b"\x85R.",
    "deep tuples in a set": b"\x8f(" + nested(50_000) + b"\x90.",
    "deep tuples in a frozen set": b"(" + nested(50_000) + b"\x91.",
    "a frozen set as a key": b"}(\x91Ns.",
    "a list set as a dict": b"]NNs.",
    "a dict appended to": b"}Na.",
    "a set appended to": b"\x8fNa.",
    "a list added to": b"](N\x90.",
    "arguments by name": name("numpy.dtype") + b")" + opcodes.mapping(a=1) + b"\x92.",
    "arguments that are no tuple": name("numpy.dtype") + b"]R.",
    "too many arguments": call("argparse.Namespace", 1, 2) + b".",
    "a line without end": b"Sab",
    "a text without quotes": b"Sab\n.",
    "an array without bytes": array((2**40,)) + b".",
    "an array with too many bytes": array((1,)) + b".",
    "a negative shape": array((-2,)) + b".",
    "a shape that wraps around": array((2**32, 2**32, 2**2)) + b".",
    "an empty array of a huge shape": array((0, 2**62, 2**62, 2**62), b"") + b".",
    "an array of 65 dimensions": array((1,) * 65, bytes(8)) + b".",
    "a shape of text": array(("2",)) + b".",
    "an array of a number": array(2) + b".",
    "an array of no type": array((2,), dtype=Raw(b"N")) + b".",
    "a state of five numbers": built(EMPTY, 12345) + b".",
    "a number of no bytes": call("numpy.core.multiarray.scalar", FLOATS, b"") + b".",
    "a text of half a letter": call("numpy.core.multiarray.scalar", call("numpy.dtype", "U1"), b"ab") + b".",
    "an unusual encoding": call("_codecs.encode", "a", "rot13") + b".",
    "pairs of three": call("collections.OrderedDict", ((1, 2, 3),)) + b".",
    "a set of lists": call("builtins.set", Raw(b"]]a")) + b".",
    "a complex number of text": call("builtins.complex", "1", "2") + b".",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_claims_more_than_there_is_is_damaged(case: str) -> None:
    with pytest.raises(unpickle.Damaged):
        read(DAMAGED[case])


def test_a_memo_with_large_numbers_takes_no_room() -> None:
    assert read(b"}r\xff\xff\xff\x7fj\xff\xff\xff\x7f.") == {}


@pytest.mark.slow
def test_deep_nesting_has_no_depth_limit_and_no_cost() -> None:
    found, depth = read(b"]" * 200_000 + b"a" * 199_999 + b"."), 0
    while found:
        (found,), depth = found, depth + 1
    assert depth == 199_999
