"""Strategies for damaged inputs: a valid thing, of which a part is something else."""

from __future__ import annotations

import bz2
import contextlib
import copy
import io
import json
import math
import pickle
import pickletools
import zipfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from rbtools.models import unpickle

Draw = Callable[[st.SearchStrategy[Any]], Any]
Bytes = st.SearchStrategy[bytes]

# --- values -----------------------------------------------------------------------------------------

NAMES = ("a", "0", "../x", "/x", "a/../../x", "\x00", "é\u202e", "x" * 300, "", ".", "..", "a\nb", "label")
SIZES = (-1, 0, 1, 3, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**61 - 1, 2**63 - 1, 2**63, 2**70)
ODD_NUMBERS = (*SIZES, 0.5, 10**30, 10**400, -(10**30), 1e308, -1e308, -0.0, math.nan, math.inf)
ODD_WORDS = (*NAMES, "nan", "0.5", "é\u2028|", "\ud800")
DEPTHS = (2, 20, 99, 250, 300)
ODD_LISTS = ([], [None], [1, "a"], [[1]], [1e308, -1e308], {}, {"a": 1}, {"": [{}]})
ODD: st.SearchStrategy[Any] = (
    st.sampled_from((None, True, False, *ODD_NUMBERS, *ODD_WORDS, *ODD_LISTS))
    | st.integers(-3, 300)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from([json.loads(x * n + "0" + y * n) for n in DEPTHS for x, y in ("[]", ('{"a":', "}"))])
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
    """One of the spellings of JSON, with the words that Python adds (NaN) and numbers that are too large."""
    separators = draw(st.sampled_from((None, (",", ":"), (" ,  ", "\t:"))))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=separators, default=str)
    return text.replace("1e+308", "1e999").encode("utf-8", "surrogatepass")


# --- bytes ------------------------------------------------------------------------------------------

PARTS = (
    b"",
    b"\xff" * 4,
    bytes(4),
    b"\x7f\xff\xff\xff",
    b"\x00\x01\x00\x00",
    b"\x10\x00",
    b"\xff",
    b"\n",
    b'"',
)


@st.composite
def damaged(draw: Draw, data: bytes, first: int = 2**20) -> bytes:
    """The bytes with some of the first ones written over, cut out or repeated, or with others put in."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, min(len(data), first)))
        part = draw(st.sampled_from((*PARTS, data[start : start + 64])) | st.binary(max_size=8))
        end = start + draw(st.sampled_from((len(part), len(part), len(part), 0, 1, 64, len(data))))
        data = data[:start] + part + data[end:]
    return data


@st.composite
def zipped(draw: Draw, data: bytes, content: Callable[[str, bytes], Bytes]) -> bytes:
    """The zip archive with other contents of its members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            new.writestr(name, draw(content(name, old.read(name))))
    return stream.getvalue()


# --- pickles ----------------------------------------------------------------------------------------

# What pickles may name: what the reader knows, and what must not run.
CALLS = (
    *unpickle.MAKERS,
    *"numpy.memmap numpy.load numpy.void torch.load torch.storage._load_from_bytes torch.Tensor".split(),
    *"codecs.encode builtins.getattr builtins.eval copyreg._reconstructor os.system".split(),
)
TEXTS = "f4 i8 u1 O O8 V0 U2 M8 >i4 f4,i4 (2,3)f4 < > = data cpu latin1 rot13 __class__ __dict__".split()
ODD_OPCODES = (b"h\0", b"2", b"\x8f", b")" + b"\x85" * 3000, b")" + b"2\x86" * 40, b"]" * 3000 + b"a" * 2999)
CONTAINERS = (b"(%bt", b"](%be", b"}(%bu", b"\x8f(%b\x90", b"(%bl", b"(%bd", b"(%b\x91")
CALLED = (b"%b(%btR", b"%b(%bt\x81", b"%b(%bt}\x92", b"%b)R}(%bub", b"%b)\x81(%btb")
ONE_VALUE = b"KMJIL\x8aGFXUV\x8cCBTNc\x88\x89"  # opcodes that leave one value more on the stack


def _filled(form: bytes, *parts: list[bytes]) -> bytes:
    return form % tuple(b"".join(part) for part in parts)


NAMED = st.sampled_from(["c{}\n{}\n".format(*call.rsplit(".", 1)).encode() for call in CALLS])
OPCODES: Bytes = st.recursive(
    st.builds(
        lambda value, protocol: pickle.dumps(value, protocol)[2 * (protocol > 1) : -1],
        ODD | st.binary(max_size=64) | st.sampled_from(TEXTS),
        st.integers(0, 3),
    )
    | st.sampled_from(ODD_OPCODES)
    | NAMED,
    lambda inner: (
        st.builds(_filled, st.sampled_from(CONTAINERS), st.lists(inner, max_size=4))
        | st.builds(_filled, st.sampled_from(CALLED), st.tuples(NAMED), st.lists(inner, max_size=4))
    ),
    max_leaves=6,
)


@st.composite
def pickled(draw: Draw, data: bytes) -> bytes:
    """A pickle with a few of its opcodes dropped, doubled, added, or making another value."""
    parts = [data[start:end] for start, end in pairwise([*_places(data), len(data)])]
    for _ in range(draw(st.integers(1, 4))):
        place, other = draw(st.integers(0, len(parts) - 1)), draw(st.integers(0, len(parts) - 1))
        how = draw(st.integers(0, 9))
        if how == 0:
            parts[place] = b""
        elif how == 1:
            parts.insert(place, parts[other])
        elif how == 2:
            code = draw(st.sampled_from(pickletools.opcodes)).code.encode("latin-1")
            parts.insert(place, code + draw(st.binary(max_size=9)))
        else:
            values = [number for number, part in enumerate(parts) if part and part[0] in ONE_VALUE]
            parts[draw(st.sampled_from(values)) if values else place] = draw(OPCODES)
    return b"".join(parts)


def _places(data: bytes) -> list[int]:
    """Where the opcodes of a pickle begin."""
    return [place or 0 for _, _, place in pickletools.genops(data)]


@st.composite
def repacked(draw: Draw, data: bytes) -> bytes:
    """A file of weights with another header (safetensors) or a changed pickle: in a zip archive, in bzip2, or
    the longest of several."""
    if data[8:9] == b"{":
        size = int.from_bytes(data[:8], "little")
        header = draw(changed(json.loads(data[8 : 8 + size])).flatmap(json_of))
        return len(header).to_bytes(8, "little") + header + data[8 + size :]
    if data[:2] == b"PK":
        return draw(  # type: ignore[no-any-return]
            zipped(data, lambda name, inner: pickled(inner) if name.endswith(".pkl") else st.just(inner))
        )
    if data[:3] == b"BZh":
        return bz2.compress(draw(repacked(bz2.decompress(data))))
    ends = [0]
    with contextlib.suppress(Exception):  # the rest is no pickle
        while ends[-1] < len(data):
            ends.append(ends[-1] + _places(data[ends[-1] :])[-1] + 1)
    start, end = max(pairwise(ends), key=lambda part: part[1] - part[0])
    return data[:start] + draw(pickled(data[start:end])) + data[end:]
