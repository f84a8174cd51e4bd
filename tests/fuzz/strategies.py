"""Strategies for damaged inputs: a valid thing, of which a part is something else."""

from __future__ import annotations

import bz2
import copy
import io
import json
import math
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
Bytes = st.SearchStrategy[bytes]

# --- values -----------------------------------------------------------------------------------------

NAMES = ("a", "0", "../x", "/x", "a/../../x", "\x00", "é\u202e", "x" * 300, "", ".", "..", "a\nb", "label")
SIZES = (0, 1, 2, 3, 4, 8, 64, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**61 - 1, 2**63 - 1, 2**63)
TOKEN = "\x01token "  # before a word that JSON does not have
TOKENS = tuple(TOKEN + word for word in ("NaN", "-Infinity", "1e999", "1" + "0" * 400))
ODD_NUMBERS = (-1, 0, 2, 0.5, 2**63, 2**70, 10**30, -(10**30), 1e308, -1e308, -0.0, math.nan, math.inf)
ODD_WORDS = ("", "x", "nan", "0.5", "a\nb", "\x00", "é\u2028|", "../x", "\ud800")
ODD_LISTS = ([], [None], [1, "a"], [[1]], [1e308, -1e308], {}, {"a": 1}, {"": [{}]})


def deep(depth: int, in_lists: bool) -> Any:
    """A list in a list in a list, or mappings likewise."""
    value: Any = 0
    for _ in range(depth):
        value = [value] if in_lists else {"a": value}
    return value


ODD: st.SearchStrategy[Any] = (
    st.sampled_from((None, True, False, *ODD_NUMBERS, *ODD_WORDS, *ODD_LISTS))
    | st.integers(-3, 300)
    | st.floats()
    | st.text(max_size=12)
    | st.builds(deep, st.sampled_from((2, 20, 99, 250, 300)), st.booleans())
)
CHANGES = "another another another left-out renamed one-more swapped in-a-list in-a-mapping as-text".split()


@st.composite
def changed(draw: Draw, value: Any, words: Sequence[str] = NAMES, odd: st.SearchStrategy[Any] = ODD) -> Any:
    """The mapping or list with one thing inside it replaced, left out, renamed or added.

    Words are names of fields. All depths are as likely, however long a list inside the value is.
    """
    new = copy.copy(value)
    keys = st.sampled_from(list(value) if isinstance(value, dict) else range(len(value)))
    key = draw(keys)
    inner = value[key]
    if isinstance(inner, (dict, list)) and inner and draw(st.integers(0, 3)):
        new[key] = draw(changed(inner, words, odd))
        return new
    how = draw(st.sampled_from(CHANGES))
    if how == "left-out":
        del new[key]
    elif how == "renamed" and isinstance(value, dict):
        name = draw(st.sampled_from(words) | st.text(max_size=8))
        new = {name if each == key else each: value[each] for each in value}
    elif how == "one-more" and isinstance(value, dict):
        new[draw(st.sampled_from(words))] = draw(odd)
    elif how == "swapped":
        new[key] = value[draw(keys)]
    else:
        same = {"in-a-list": [inner], "in-a-mapping": {"value": inner}, "as-text": str(inner)}
        new[key] = same[how] if how in same else draw(odd)
    return new


@st.composite
def json_of(draw: Draw, value: Any) -> bytes:
    """One of the spellings of JSON; a text that begins with TOKEN becomes the word after it."""
    separators = draw(st.sampled_from((None, (",", ":"), (" ,  ", "\t:"))))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=separators, default=str)
    return re.sub(r'"(?:\\u0001|\x01)token ([^"]*)"', r"\1", text).encode("utf-8", "surrogatepass")


# --- bytes ------------------------------------------------------------------------------------------


@st.composite
def damaged(draw: Draw, data: bytes) -> bytes:
    """The bytes with a few of them changed, cut out, repeated or put in."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from((0, 1, 1, 4, 64, len(data)))))
        part = st.sampled_from((b"", b"\xff", data[start:end] * 2, b"\n", b'"')) | st.binary(max_size=8)
        data = data[:start] + draw(part) + data[end:]
    return data


@st.composite
def overwritten(draw: Draw, data: bytes, end: int) -> bytes:
    """The bytes with other numbers over some of the first ones: sizes, offsets, counts."""
    fields = (b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\x00\x01\x00\x00", b"\x10\x00", b"\xff", b"\x00")
    for _ in range(draw(st.integers(1, 3))):
        start, field = draw(st.integers(0, min(len(data), end))), draw(st.sampled_from(fields))
        data = data[:start] + field + data[start + len(field) :]
    return data


def with_checksums(png: bytes) -> bytes:
    """The PNG with checksums that fit, so that a reader goes on to what was changed in it."""
    out, place = png[:8], 8
    while place + 12 <= len(png):
        size = min(int.from_bytes(png[place : place + 4], "big"), len(png) - place - 12)
        body = png[place + 4 : place + 8 + size]
        out += png[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += 12 + size
    return out


@st.composite
def zipped(draw: Draw, data: bytes, content: Callable[[str, bytes], Bytes]) -> bytes:
    """The zip archive with other contents of its members, and sometimes another field in its directory."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            new.writestr(name, draw(content(name, old.read(name))))
        if not draw(st.integers(0, 8)):
            small, large = ("flag_bits", "compress_type"), ("file_size", "compress_size", "header_offset")
            field = draw(st.sampled_from(small + large))
            value = draw(st.sampled_from((0, 1, 8) if field in small else (0, 40, 2**31)))
            setattr(draw(st.sampled_from(new.infolist())), field, value)
    return stream.getvalue()


@st.composite
def npy(draw: Draw, data: bytes) -> bytes:
    """The array of NumPy's format, version 1, with another header or other bytes."""
    size = 10 + int.from_bytes(data[8:10], "little")
    words = {"descr": "<i8", "fortran_order": False, "shape": [2, 4]}
    found = re.search(rb"'descr': '(.*?)'.*'shape': \((.*?)\)", data[10:size])
    assert found is not None
    words["descr"], words["shape"] = found[1].decode(), [int(n) for n in found[2].split(b",") if n.strip()]
    if draw(st.booleans()):
        return draw(damaged(data))  # type: ignore[no-any-return]
    types = ("|O", "<U0", "<f4", "|u1", "<i8", "V8", "<M8[s]", "|S3", "<c16", ">f8", "<U9")
    odd = st.sampled_from(SIZES) | st.sampled_from(types) | ODD
    words = draw(changed(words, ("shape", "descr", "x"), odd))
    if isinstance(words.get("shape"), list):
        words["shape"] = tuple(words["shape"])
    text = repr(words).encode("latin-1", "backslashreplace") + b"\n"
    return data[:8] + struct.pack("<H", len(text)) + text + data[size:]


# --- pickles ----------------------------------------------------------------------------------------

# What pickles may name: readers of weights and of data sets know some of them.
CALLS = (
    "numpy.ndarray numpy.dtype numpy.core.multiarray._reconstruct numpy._core.multiarray.scalar numpy.memmap"
    " numpy._core.numeric._frombuffer numpy.load numpy.void torch._utils._rebuild_tensor torch.Size"
    " torch._utils._rebuild_tensor_v2 torch._utils._rebuild_tensor_v3 torch._utils._rebuild_parameter"
    " torch._utils._rebuild_qtensor torch._utils._rebuild_sparse_tensor torch._utils._rebuild_nested_tensor"
    " torch._utils._rebuild_meta_tensor_no_storage torch._utils._rebuild_device_tensor_from_numpy"
    " torch._utils._rebuild_wrapper_subclass torch._tensor._rebuild_from_type_v2 torch.nn.parameter.Parameter"
    " torch.float32 torch.uint16 torch.float8_e4m3fn torch.FloatStorage torch.QInt8Storage torch.load"
    " torch.storage.UntypedStorage torch.storage._load_from_bytes torch.serialization._get_layout"
    " collections.OrderedDict collections.Counter collections.defaultdict collections.deque builtins.set"
    " builtins.bytearray builtins.complex builtins.list builtins.getattr builtins.eval __builtin__.object"
    " _codecs.encode codecs.encode argparse.Namespace copyreg._reconstructor copy_reg._reconstructor"
    " os.system posix.system pathlib.PosixPath functools.partial operator.attrgetter types.FunctionType"
    " torch.Tensor torch.device"
).split()
TEXTS = (
    "f4 f8 f2 i8 u1 b1 c8 O O8 V8 V0 U2 S3 M8 <f4 >i4 |u1 f4,i4 (2,3)f4 < > | = data labels cpu 0 1 é x"
    " state_dict latin1 rot13 C F _metadata __class__ __dict__ __setstate__ storage fc.weight \ud800"
).split(" ")
CONSTANTS = b"N|\x88|\x89|)|]|}|\x8f|I00\n|I01\n|Fnan\n|F1e999\n|h\0|2".split(b"|")
CONTAINERS = (b"(%bt", b"](%be", b"}(%bu", b"\x8f(%b\x90", b"(%bl", b"(%bd", b"(%b\x91")
CALLED = (b"%b(%btR", b"%b(%bt\x81", b"%b(%bt}\x92", b"%b)R}(%bub", b"%b)\x81(%btb")
ONE_VALUE = b"KMJIL\x8aGFXUV\x8cCBTNc\x88\x89"  # opcodes that leave one value more on the stack


def _number(number: int) -> list[bytes]:
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    forms = [b"I%d\n" % number, b"L%dL\n" % number, b"\x8a" + bytes([len(data)]) + data]
    forms += [b"\x8b" + struct.pack("<i", len(data)) + data]
    return forms + ([b"K" + bytes([number])] * 3 if 0 <= number < 256 else [])


NUMBERS = tuple(form for number in (*SIZES, -1, -(2**31), -(2**63), 2**70) for form in _number(number))
LAYOUTS = tuple(zip(b"X\x8d\x8cUCB\x8e\x96T", "IQBBBIQQI", strict=True))  # of texts, bytes and bytearrays


@st.composite
def _words(draw: Draw) -> bytes:
    """A text or bytes, whose length may be a lie."""
    data = draw(
        st.sampled_from([text.encode("utf-8", "surrogatepass") for text in TEXTS]) | st.binary(max_size=64)
    )
    code, layout = draw(st.sampled_from(LAYOUTS))
    most, length = 256 ** struct.calcsize(f"<{layout}") - 1, len(data)
    if not draw(st.integers(0, 29)):
        length = min(most, draw(st.sampled_from((0, length + 1, most // 2, most // 2 + 1, most))))
    return bytes([code]) + struct.pack(f"<{layout}", length) + data


def _named(path: str, by_stack: bool) -> bytes:
    """The opcodes that leave a function or class on the stack."""
    module, _, name = path.rpartition(".")
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    return texts + b"\x93" if by_stack else f"c{module}\n{name}\n".encode()


def _nested(times: int) -> list[bytes]:
    """One container in another, very often."""
    return [b")" + b"\x85" * times, b")" + b"2\x86" * times, b"]" * times + b"a" * (times - 1)]


NAMED = st.builds(_named, st.sampled_from(CALLS), st.booleans())
OPCODES: Bytes = st.recursive(
    st.sampled_from([*CONSTANTS, b"I" + b"9" * 5000 + b"\n", *_nested(3), *_nested(40), *_nested(3000)])
    | st.sampled_from(NUMBERS)
    | _words()
    | NAMED,
    lambda inner: (
        st.builds(lambda form, parts: form % b"".join(parts), st.sampled_from(CONTAINERS), st.lists(inner))
        | st.builds(
            lambda form, name, parts: form % (name, b"".join(parts)),
            st.sampled_from(CALLED),
            NAMED,
            st.lists(inner, max_size=4),
        )
    ),
    max_leaves=6,
)


@st.composite
def pickled(draw: Draw, data: bytes) -> bytes:
    """A pickle with a few of its opcodes dropped, doubled, swapped, added, or making another value."""
    places = [place for _, _, place in pickletools.genops(data)]
    parts = [data[start:end] for start, end in zip(places, [*places[1:], len(data)], strict=True)]
    for _ in range(draw(st.integers(1, 4))):
        place, other = draw(st.integers(0, len(parts) - 1)), draw(st.integers(0, len(parts) - 1))
        how = draw(st.integers(0, 9))
        if how == 0:
            parts[place] = b""
        elif how == 1:
            parts.insert(place, parts[other])
        elif how == 2:
            parts[place], parts[other] = parts[other], parts[place]
        elif how == 3:
            code = draw(st.sampled_from(pickletools.opcodes)).code.encode("latin-1")
            parts.insert(place, code + draw(st.binary(max_size=9)))
        else:
            values = [number for number, part in enumerate(parts) if part and part[0] in ONE_VALUE]
            parts[draw(st.sampled_from(values)) if values else place] = draw(OPCODES)
    return b"".join(parts)


def pickles(data: bytes) -> Iterator[bytes]:
    """The pickles that a file begins with, and what follows them."""
    try:
        while data:
            end = 1 + next(place or 0 for code, _, place in pickletools.genops(data) if code.name == "STOP")
            yield data[:end]
            data = data[end:]
    except Exception:  # no more of them
        yield data


@st.composite
def repickled(draw: Draw, data: bytes) -> bytes:
    """A file of weights with a changed pickle: in a zip archive, in bzip2, or the longest of several."""
    if data[:2] == b"PK":
        return draw(  # type: ignore[no-any-return]
            zipped(data, lambda name, inner: pickled(inner) if name.endswith(".pkl") else st.just(inner))
        )
    if data[:3] == b"BZh":
        return bz2.compress(draw(repickled(bz2.decompress(data))))
    parts = list(pickles(data))
    longest = max(range(len(parts)), key=lambda n: len(parts[n]) * (parts[n][:1] == b"\x80"))
    if parts[longest][:1] == b"\x80":
        parts[longest] = draw(pickled(parts[longest]))
    return b"".join(parts)
