"""The one grammar of the fuzzer: a valid thing of which a part is something else.

`Chance` draws from a seed: values that nobody expects, records and objects with a field replaced, left out,
renamed or added, bytes that are damaged, and pickles of which an opcode is dropped, doubled, swapped, or
makes another value than it did.
"""

from __future__ import annotations

import json
import math
import pickletools
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Place = tuple[str | int, ...]  # where in a value of JSON
SIZES = (0, 1, 2, 3, 4, 8, 64, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**61 - 1, 2**63 - 1, 2**63)
NUMBERS = (*SIZES, -1, -2, -(2**31), -(2**63), 2**70, 10**30, -(10**30))
NAMES = ("a", "0", "../x", "/x", "a/../../x", "\x00", "é\u202e", "x" * 300, "", ".", "..", "a\nb", "label")
ABSENT = object()
TOKEN = "\x01token "  # before a word that JSON has not
TOKENS = tuple(TOKEN + word for word in ("NaN", "-Infinity", "1e999", "1" + "0" * 400))


def deep(depth: int, kind: str) -> Any:
    """A list in a list in a list, or objects likewise."""
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


ODD_NUMBERS = (-1, 0, 2, 0.5, 2**63, 2**70, 10**30, -(10**30), 1e308, -1e308, -0.0, math.nan, math.inf)
ODD_WORDS = ("", "x", "nan", "0.5", "a\nb", "\x00", "é\u2028|", "../x")
ODD_LISTS = ([], [None], [1, "a"], [[1]], [1e308, -1e308], {}, {"a": 1}, {"": [{}]})
ODD = (None, True, False, *ODD_NUMBERS, *ODD_WORDS, *ODD_LISTS, deep(20, "list"), deep(20, "dict"))

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
TEXTS = "f4 f8 f2 i8 u1 b1 c8 O O8 V8 V0 U2 S3 M8 <f4 >i4 |u1 f4,i4 (2,3)f4 < > | = data labels cpu 0 1 é x"
TEXTS += " state_dict latin1 rot13 C F _metadata __class__ __dict__ __setstate__ storage fc.weight \ud800"
CONSTANTS = b"N|\x88|\x89|)|]|}|\x8f|I00\n|I01\n|Fnan\n|F1e999\n|h\0|2".split(b"|")


class Chance:
    """Choices from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.integer, self.pick = self.random.randint, self.random.choice
        self.extra: Callable[[], Any] | None = None  # makes odd values of a target's own kind

    def often(self, one_in: int) -> bool:
        return self.integer(1, one_in) == 1

    def text(self, longest: int) -> str:
        return "".join(self.pick("A\n\0é€") for _ in range(self.integer(0, longest)))

    def data(self, longest: int) -> bytes:
        return self.random.randbytes(self.integer(0, longest))

    # ---- values ----

    def odd(self) -> Any:
        """A value that nobody expects there."""
        kind = self.integer(0, 6)
        if self.extra and self.often(2):
            return self.extra()
        if kind == 0:
            return self.text(12)
        if kind == 1:
            return self.integer(-3, 300)
        if kind == 2:
            return struct.unpack("<d", self.random.randbytes(8))[0]
        if kind == 3:
            return deep(self.pick((2, 20, 99, 250, 300)), self.pick(("list", "dict")))
        return self.pick(ODD)

    def changed(self, value: Any, words: Sequence[str] = NAMES) -> Any:
        """The value with one thing inside it replaced, left out, renamed or added."""
        place = self.place(value)
        how = self.integer(0, 9)
        inner = at(value, place[:-1])
        if how == 0 and isinstance(inner, dict):
            renamed = {
                self.pick((self.text(8), *words)) if key == place[-1] else key: inner[key] for key in inner
            }
            return put(value, place[:-1], renamed) if place[:-1] else renamed
        if how == 1 and isinstance(inner, dict):
            added = {**inner, self.pick(words): self.odd()}
            return put(value, place[:-1], added) if place[:-1] else added
        if how == 2:
            same = at(value, place)
            form = self.integer(0, 3)
            new = at(value, self.place(value)) if form == 0 else [same] if form == 1 else {"value": same}
            return put(value, place, str(same) if form == 3 else new)
        return put(value, place, self.pick((ABSENT, *ODD, *TOKENS)) if how < 7 else self.odd())

    def place(self, value: Any) -> Place:
        """Where something stands: at each depth all are as likely, however long a history is."""
        place: Place = ()
        while isinstance(value, (dict, list)) and value and (not place or self.integer(0, 3)):
            step = self.pick(list(value)) if isinstance(value, dict) else self.integer(0, len(value) - 1)
            place, value = (*place, step), value[step]
        return place

    def json(self, value: Any) -> bytes:
        """One of the spellings of JSON, with the words that JSON has not."""
        separators = self.pick((None, (",", ":"), (" ,  ", "\t:")))
        text = json.dumps(value, ensure_ascii=self.pick((True, False)), separators=separators, default=str)
        return re.sub(r'"(?:\\u0001|\x01)token ([^"]*)"', r"\1", text).encode("utf-8", "surrogatepass")

    # ---- bytes ----

    def damaged(self, data: bytes) -> bytes:
        """The bytes with a few of them changed, cut out, repeated or put in."""
        for _ in range(self.integer(0, 4)):
            start = self.integer(0, len(data))
            end = min(len(data), start + self.pick((0, 1, 1, 4, 64, len(data))))
            new = self.pick((b"", b"\xff", data[start:end] * 2, b"\n", b'"', self.data(8)))
            data = data[:start] + new + data[end:]
        return data

    # ---- pickles ----

    def pickle(self, data: bytes) -> bytes:
        """A pickle with a few of its opcodes dropped, doubled, swapped, added, or making another value."""
        places = [place for _, _, place in pickletools.genops(data)]
        parts = [data[start:end] for start, end in zip(places, [*places[1:], len(data)], strict=True)]
        for _ in range(self.pick((0, 1, 1, 2, 3, 5))):
            place, other = (self.integer(0, len(parts) - 1) for _ in range(2))
            how = self.integer(0, 9)
            if how == 0:
                parts[place] = b""
            elif how == 1:
                parts.insert(place, parts[other])
            elif how == 2:
                parts[place], parts[other] = parts[other], parts[place]
            elif how == 3:
                parts.insert(place, self.pick(pickletools.opcodes).code.encode("latin-1") + self.data(9))
            else:
                whole = [
                    n
                    for n, part in enumerate(parts)
                    if part[:1] in b"KMJIL\x8aGFXUV\x8cCBTNc\x88\x89" and part
                ]
                parts[self.pick(whole) if whole else place] = self.opcodes(0)
        return b"".join(parts)

    def opcodes(self, depth: int) -> bytes:
        """Opcodes that leave one value more on the stack."""
        kind = self.integer(0, 4 if depth > 3 else 8)
        if kind == 0:
            return self.pick(CONSTANTS)
        if kind == 1:
            return self.number()
        if kind in (2, 3):
            return self.words(
                self.pick(TEXTS.split(" ")).encode("utf-8", "surrogatepass") if kind == 2 else self.data(64)
            )
        if kind == 4:
            module, _, name = self.pick(CALLS).rpartition(".")
            return self.pick((f"c{module}\n{name}\n".encode(), self.named(module, name)))
        if kind == 5:  # one container in another, very often
            times = self.pick((3, 40, 3000))
            return self.pick(
                (b")" + b"\x85" * times, b")" + b"2\x86" * times, b"]" * times + b"a" * (times - 1))
            )
        inner = b"".join(self.opcodes(depth + 1) for _ in range(2 * self.integer(0, 2)))
        if kind == 6:
            return (
                self.pick((b"(%bt", b"](%be", b"}(%bu", b"\x8f(%b\x90", b"(%bl", b"(%bd", b"(%b\x91")) % inner
            )
        call = self.named(*self.pick(CALLS).rpartition(".")[::2])
        return self.pick((b"%b(%btR", b"%b(%bt\x81", b"%b(%bt}\x92", b"%b)R}(%bub", b"%b)\x81(%btb")) % (
            call,
            inner,
        )

    def named(self, module: str, name: str) -> bytes:
        return b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93"

    def number(self) -> bytes:
        number = self.pick(NUMBERS)
        data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
        forms = [b"I%d\n" % number, b"L%dL\n" % number, b"\x8a" + bytes([len(data)]) + data]
        forms += [b"\x8b" + struct.pack("<i", len(data)) + data, b"I" + b"9" * 5000 + b"\n"]
        forms += [b"K" + bytes([number])] * 3 if 0 <= number < 256 else [b"G" + self.random.randbytes(8)]
        return self.pick(forms)

    def words(self, data: bytes) -> bytes:
        """A text or bytes, whose length may be a lie."""
        code, layout = self.pick(((b"X", "<I"), (b"\x8d", "<Q"), (b"\x8c", "<B"), (b"U", "<B"), (b"C", "<B")))
        code, layout = self.pick(
            ((code, layout), (b"B", "<I"), (b"\x8e", "<Q"), (b"\x96", "<Q"), (b"T", "<I"))
        )
        most = 2 ** (8 * struct.calcsize(layout)) - 1
        length = (
            self.pick((most, most // 2, most // 2 + 1, len(data) + 1, 0)) if self.often(30) else len(data)
        )
        return code + struct.pack(layout, min(length, most)) + data


def at(value: Any, place: Place) -> Any:
    try:
        for step in place:
            value = value[step]
    except (KeyError, IndexError, TypeError):
        return None
    return value


def put(value: Any, place: Place, new: Any) -> Any:
    """The value with something else at a place; where the place is no longer there, as it was."""
    if not place:
        return {} if new is ABSENT else new
    step, *inner = place
    if isinstance(value, dict) and step in value:
        if not inner and new is ABSENT:
            return {key: item for key, item in value.items() if key != step}
        return {**value, step: put(value[step], tuple(inner), new)}
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        middle = [] if not inner and new is ABSENT else [put(value[step], tuple(inner), new)]
        return [*value[:step], *middle, *value[step + 1 :]]
    return value


def pickles(data: bytes) -> Iterator[bytes]:
    """The pickles that a file begins with, and what follows them."""
    try:
        while data:
            end = 1 + next(place or 0 for code, _, place in pickletools.genops(data) if code.name == "STOP")
            yield data[:end]
            data = data[end:]
    except Exception:  # no more of them
        yield data


def checked_png(data: bytes) -> bytes:
    """The PNG with checksums that fit, so that what was changed in it is read."""
    out, place = data[:8], 8
    while place + 12 <= len(data):
        size = min(int.from_bytes(data[place : place + 4], "big"), len(data) - place - 12)
        body = data[place + 4 : place + 8 + size]
        out += data[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += 12 + size
    return out
