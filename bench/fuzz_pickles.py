"""Pickles from a grammar: what each opcode needs is mostly there, and what it gets is often hostile.

`pickle_of` makes values (numbers, text, containers, calls, arrays, tensors, states), each as any of the
opcodes that make such a thing, of names that readers of weights and of data sets know and of some that they
do not; then a few opcodes are dropped, doubled, swapped or added.
"""

from __future__ import annotations

import bz2
import io
import pickletools
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

SIZES = (
    0,
    1,
    2,
    3,
    4,
    8,
    16,
    63,
    64,
    65,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32,
    2**61 - 1,
    2**62,
    2**63 - 1,
    2**63,
)
NUMBERS = (*SIZES, -1, -2, -(2**31), -(2**63), 2**64, 2**70, 2**2000)
NAMES = (
    "numpy.ndarray numpy.dtype numpy.core.multiarray._reconstruct numpy._core.multiarray._reconstruct"
    " numpy.core.multiarray.scalar numpy._core.multiarray.scalar numpy._core.numeric._frombuffer"
    " numpy.core.numeric._frombuffer numpy.memmap numpy.matrix numpy.load numpy.void numpy.str_"
    " torch._utils._rebuild_tensor torch._utils._rebuild_tensor_v2 torch._utils._rebuild_tensor_v3"
    " torch._utils._rebuild_parameter torch._utils._rebuild_parameter_with_state"
    " torch._utils._rebuild_qtensor"
    " torch._utils._rebuild_sparse_tensor torch._utils._rebuild_nested_tensor"
    " torch._utils._rebuild_meta_tensor_no_storage torch._utils._rebuild_device_tensor_from_numpy"
    " torch._utils._rebuild_device_tensor_from_cpu_tensor torch._utils._rebuild_wrapper_subclass"
    " torch._tensor._rebuild_from_type_v2 torch.nn.parameter.Parameter torch.Tensor torch.Size torch.device"
    " torch.float32 torch.bool torch.uint16 torch.float8_e4m3fn torch.complex64 torch.bfloat16"
    " torch.FloatStorage torch.BoolStorage torch.HalfStorage torch.QInt8Storage torch.storage.UntypedStorage"
    " torch.storage._load_from_bytes torch.serialization._get_layout torch.per_tensor_affine torch.load"
    " collections.OrderedDict collections.Counter collections.defaultdict collections.deque"
    " builtins.set builtins.frozenset builtins.bytearray builtins.bytes builtins.complex builtins.list"
    " builtins.dict builtins.int builtins.getattr builtins.eval __builtin__.set __builtin__.object"
    " _codecs.encode _codecs.decode codecs.encode argparse.Namespace copyreg._reconstructor"
    " copy_reg._reconstructor"
    " os.system posix.system pathlib.PosixPath functools.partial operator.attrgetter types.FunctionType"
).split()
CODES = (
    "f4 f8 f2 f16 i1 i4 i8 u1 u2 b1 c8 O O8 V V8 V0 U2 S3 M8 m8 <f4 >i4 |u1 float32 f4,i4 (2,3)f4 a".split()
)
TEXTS = (
    "",
    "a",
    "data",
    "labels",
    "state_dict",
    "latin1",
    "latin-1",
    "rot13",
    "C",
    "F",
    "_metadata",
    "__class__",
)
TEXTS += (
    "__dict__",
    "__setstate__",
    "append",
    "storage",
    "cpu",
    "0",
    "1",
    "2",
    "fc.weight",
    "é",
    "\ud800",
    "x" * 300,
)
STORED = (64, 16, 0, 3)  # bytes of the storages that the files have
DEEPEST = 6


class Rolled:
    """Choices from a seed: as many as are wanted, and fast."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def pick(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)

    def text(self, longest: int) -> str:
        return "".join(
            chr(self.random.choice((65, 10, 0, 233, 0x20AC))) for _ in range(self.integer(0, longest))
        )

    def data(self, longest: int) -> bytes:
        return self.random.randbytes(self.integer(0, longest))

    def real(self) -> float:
        return float(struct.unpack("<d", self.random.randbytes(8))[0])


class Grammar:
    """Writes the opcodes of one pickle into `parts`, one opcode each."""

    def __init__(self, chance: Rolled, ids: bool) -> None:
        self.chance, self.ids = chance, ids
        self.parts: list[bytes] = []
        self.noted = 0

    def put(self, *opcodes: bytes) -> None:
        self.parts.extend(opcodes)

    def value(self, depth: int = 0) -> None:
        """One value more on the stack."""
        simple = (self.constant, self.number, self.text, self.data, self.recalled)
        nested = (self.container, self.call, self.array, self.tensor, self.state, self.name, self.deep)
        makers: Sequence[Callable[..., None]] = simple if depth > DEEPEST else (*simple, *nested, *nested)
        maker = self.chance.pick(makers)
        if maker in simple or maker == self.name:
            maker()
        else:
            maker(depth + 1)
        if self.chance.integer(0, 4) == 0:
            self.noted += 1
            place = self.chance.pick((self.noted, self.noted, 2**31, 2**32 - 1))
            few = [b"q" + bytes([self.noted % 256]), b"p%d\n" % place]
            self.put(self.chance.pick([b"\x94", b"r" + struct.pack("<I", place), *few]))

    def constant(self) -> None:
        self.put(self.chance.pick((b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", b"I00\n", b"I01\n")))

    def number(self, value: int | None = None) -> None:
        """An integer, a float, or a text that should be one."""
        number = self.chance.pick(NUMBERS) if value is None else value
        forms = [b"I%d\n" % number if abs(number) < 2**900 else b"I1\n", b"L%dL\n" % (number % 2**900)]
        data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
        if len(data) < 256:
            forms += [b"\x8a" + bytes([len(data)]) + data] * 3
        forms.append(b"\x8b" + struct.pack("<i", len(data)) + data)
        forms += [b"K" + bytes([number])] * 5 if 0 <= number < 256 else []
        forms += [b"M" + struct.pack("<H", number)] if 0 <= number < 2**16 else []
        forms += [b"J" + struct.pack("<i", number)] if -(2**31) <= number < 2**31 else []
        if value is None and self.chance.integer(0, 3) == 0:
            real = self.chance.real()
            forms = [
                b"G" + struct.pack(">d", real),
                b"F%r\n" % real,
                b"Fnan\n",
                b"F1e999\n",
                b"I" + b"9" * 5000 + b"\n",
            ]
        self.put(self.chance.pick(forms))

    def length(self, true: int, layout: str) -> bytes:
        """The length of what follows, or a lie."""
        most = 2 ** (8 * struct.calcsize(layout)) - 1
        told = (
            true
            if self.chance.integer(0, 30)
            else self.chance.pick((most, most // 2, most // 2 + 1, true + 1, 0))
        )
        return struct.pack(layout, min(told, most))

    def text(self, value: str | None = None) -> None:
        text = (
            (self.chance.pick(TEXTS) if self.chance.integer(0, 5) else self.chance.text(9))
            if value is None
            else value
        )
        data = text.encode("utf-8", "surrogatepass")
        forms = [b"X" + self.length(len(data), "<I") + data, b"\x8d" + self.length(len(data), "<Q") + data]
        forms.append(b"V" + text.encode("raw-unicode-escape").replace(b"\n", b"\\u000a") + b"\n")
        if len(data) < 256:
            forms += [b"\x8c" + self.length(len(data), "<B") + data] * 3
            forms += [
                b"U" + self.length(len(data), "<B") + data,
                b"S'" + data.replace(b"\n", b"").replace(b"'", b"") + b"'\n",
            ]
        self.put(self.chance.pick(forms))

    def data(self, value: bytes | None = None) -> None:
        data = self.chance.data(self.chance.pick((0, 8, 16, 64, 300))) if value is None else value
        forms = [b"B" + self.length(len(data), "<I") + data, b"\x8e" + self.length(len(data), "<Q") + data]
        forms += [b"\x96" + self.length(len(data), "<Q") + data, b"T" + self.length(len(data), "<I") + data]
        if len(data) < 256:
            forms += [b"C" + self.length(len(data), "<B") + data] * 3
        if self.chance.integer(0, 3) == 0:
            self.named("_codecs.encode")
            self.put(b"(")
            self.text(data.decode("latin-1"))
            self.text("latin1")
            self.put(b"t", b"R")
        else:
            self.put(self.chance.pick(forms))

    def recalled(self) -> None:
        place = self.chance.integer(0, max(1, self.noted))
        self.put(
            self.chance.pick(
                (b"h" + bytes([place % 256]), b"j" + struct.pack("<I", place), b"g%d\n" % place, b"2")
            )
        )

    def named(self, path: str) -> None:
        module, _, last = path.rpartition(".")
        if self.chance.integer(0, 2):
            self.put(f"c{module}\n{last}\n".encode())
        else:
            self.text(module)
            self.text(last)
            self.put(b"\x93")

    def name(self) -> None:
        self.named(self.chance.pick(NAMES) if self.chance.integer(0, 20) else self.chance.text(6) + ".x")

    def tuple(self, *makers: Callable[[], None]) -> None:
        marked = len(makers) > 3 or self.chance.integer(0, 1)
        self.put(*([b"("] if marked else []))
        for maker in makers:
            maker()
        self.put(b"t" if marked else (b")", b"\x85", b"\x86", b"\x87")[len(makers)])

    def container(self, depth: int) -> None:
        kind, count = self.chance.integer(0, 9), self.chance.integer(0, 4)
        opened = {0: (b"]", b"("), 1: (b"}", b"("), 2: (b"\x8f", b"("), 3: (b"}",), 4: (b"]",)}.get(
            kind, (b"(",)
        )
        self.put(*opened)
        for _ in range(2 * count if kind in (1, 5) else 2 if kind == 3 else 1 if kind == 4 else count):
            self.value(depth)
        closed = {0: b"e", 1: b"u", 2: b"\x90", 3: b"s", 4: b"a", 5: b"d", 6: b"l", 7: b"\x91"}
        self.put(closed.get(kind, b"t"))

    def deep(self, depth: int) -> None:
        """One container in another, very often."""
        kind = self.chance.pick((b"\x85", b"2\x86", b"]"))
        times = self.chance.pick((3, 40, 3000))
        self.put(
            b")" if kind != b"]" else b"", *[kind] * times, *([b"a"] * (times - 1) if kind == b"]" else [])
        )

    def call(self, depth: int) -> None:
        form = self.chance.integer(0, 9)
        if form == 0:
            module, _, last = self.chance.pick(NAMES).rpartition(".")
            self.put(b"(")
            self.value(depth)
            self.put(f"i{module}\n{last}\n".encode())
            return
        self.put(*([b"("] if form == 1 else []))
        self.name()
        if form == 1:
            self.value(depth)
            self.put(b"o")
            return
        if form == 2:
            self.value(depth)
        else:
            self.tuple(*[lambda: self.value(depth)] * self.chance.integer(0, 5))
        if form == 3:
            self.put(b"}", b"\x92")
        else:
            self.put(b"\x81" if form == 4 else b"R")

    def shape(self) -> None:
        form = self.chance.integer(0, 9)
        if form == 0:
            self.value(DEEPEST)
            return
        sizes = (0, 1, 2, 3, 4) if form < 7 else SIZES
        self.tuple(*[lambda: self.number(self.chance.pick(sizes))] * self.chance.integer(0, 4))

    def dtype(self) -> None:
        if self.chance.integer(0, 9) == 0:
            self.value(DEEPEST)
            return
        self.named("numpy.dtype")
        self.tuple(lambda: self.text(self.chance.pick(CODES)), lambda: self.number(0), lambda: self.number(1))
        self.put(b"R")
        if self.chance.integer(0, 2):
            order = self.chance.pick(("<", ">", "|", "=", "!", "O"))
            rest = [lambda: self.put(b"N")] * 3 + [lambda: self.number(-1)] * 2 + [lambda: self.number(63)]
            self.tuple(lambda: self.number(3), lambda: self.text(order), *rest)
            self.put(b"b")

    def array(self, depth: int) -> None:
        form, core = self.chance.integer(0, 4), self.chance.pick(("numpy.core", "numpy._core"))
        raw = bytes(self.chance.pick((0, 1, 4, 8, 16, 64)))
        if form == 0:
            self.named("numpy.ndarray")
            self.tuple(self.shape, lambda: self.text("O"), lambda: self.data(raw))
            self.put(self.chance.pick((b"R", b"\x81")))
        elif form == 1:
            self.named(f"{core}.multiarray.scalar")
            self.tuple(self.dtype, lambda: self.data(raw))
            self.put(b"R")
        elif form == 2:
            self.named(f"{core}.numeric._frombuffer")
            self.tuple(
                lambda: self.data(raw), self.dtype, self.shape, lambda: self.text(self.chance.pick("CFA"))
            )
            self.put(b"R")
        else:
            self.named(f"{core}.multiarray._reconstruct")
            self.tuple(
                lambda: self.named("numpy.ndarray"),
                lambda: self.tuple(lambda: self.number(0)),
                lambda: self.data(b"b"),
            )
            self.put(b"R")
            parts = [lambda: self.number(1), self.shape, self.dtype, self.constant, lambda: self.data(raw)]
            self.tuple(*parts[self.chance.integer(0, 1) :])
            self.put(*[b"b"] * self.chance.integer(1, 2))

    def storage(self) -> None:
        key = self.chance.integer(0, len(STORED))
        width, kind = self.chance.pick(
            (
                (4, "Float"),
                (4, "Int"),
                (1, "Bool"),
                (2, "Half"),
                (8, "ComplexFloat"),
                (1, "Untyped"),
                (1, "QInt8"),
            )
        )
        count = (STORED[key] if key < len(STORED) else 4) // width
        if self.chance.integer(0, 9) == 0:
            count = self.chance.pick(NUMBERS)
        view = [lambda: self.put(b"N")] * self.chance.integer(0, 1)
        if self.chance.integer(0, 9) == 0:
            view = [lambda: self.tuple(lambda: self.text("v"), self.small, self.small)]
        module = "torch.storage" if kind == "Untyped" else "torch"
        self.tuple(
            lambda: self.text("storage"),
            lambda: self.named(f"{module}.{kind}Storage"),
            lambda: self.text(str(key)),
            lambda: self.text("cpu"),
            lambda: self.number(count),
            *view,
        )
        self.put(b"Q" if self.chance.integer(0, 20) else b"Pone\n")

    def small(self) -> None:
        self.number(self.chance.pick((0, 0, 1, 2, 4)) if self.chance.integer(0, 9) else None)

    def tensor(self, depth: int) -> None:
        form = self.chance.integer(0, 9)
        if form == 0:
            self.named("torch._utils._rebuild_parameter")
            self.tuple(
                lambda: self.tensor(depth + 1) if depth < DEEPEST else self.constant(),
                self.constant,
                self.constant,
            )
        elif form == 1:
            self.named("torch._tensor._rebuild_from_type_v2")
            self.tuple(
                self.name,
                self.name,
                lambda: self.tuple(self.storage, self.small, self.shape, self.shape),
                self.constant,
            )
        elif form == 2:
            self.named("torch.storage._load_from_bytes")
            self.tuple(lambda: self.data(legacy(b"\x80\x02N.") if self.chance.integer(0, 1) else b"PK"))
        else:
            version = self.chance.pick(("", "_v2", "_v2", "_v2", "_v3"))
            self.named(f"torch._utils._rebuild_tensor{version}")
            more = [lambda: self.put(b"\x89"), lambda: self.put(b"N")] if version else []
            more += (
                [lambda: self.named(f"torch.{self.chance.pick(('bool', 'float64', 'uint16'))}")]
                if version == "_v3"
                else []
            )
            stored = self.storage if self.ids or self.chance.integer(0, 1) else self.constant
            self.tuple(stored, self.small, self.shape, self.shape, *more)
        self.put(b"R")

    def state(self, depth: int) -> None:
        """A value and its state."""
        path = self.chance.pick(
            ("collections.OrderedDict", "argparse.Namespace", "numpy.ndarray", "torch.Tensor")
        )
        if self.chance.integer(0, 3):
            self.named(path)
            self.put(b")", self.chance.pick((b"R", b"\x81")))
        else:
            self.value(depth)
        self.put(b"}", b"(")
        for _ in range(self.chance.integer(0, 3)):
            self.text()
            self.value(depth)
        self.put(b"u", b"b")


def pickle_of(chance: Rolled, ids: bool) -> bytes:
    """A pickle; with persistent `ids` more often than without, where the reader knows none."""
    grammar = Grammar(chance, ids)
    grammar.put(b"}", b"(")
    for word in (chance.pick(("data", "state_dict", "full")), chance.pick(("labels", "fc.weight", "args"))):
        grammar.text(word)
        grammar.value()
    parts = [*grammar.parts, b"u"]
    for _ in range(chance.pick((0, 0, 0, 1, 2, 5))):
        place = chance.integer(0, len(parts) - 1)
        how = chance.integer(0, 3)
        if how == 0:
            del parts[place]
        elif how == 1:
            parts.insert(place, chance.pick(parts))
        elif how == 2:
            other = chance.integer(0, len(parts) - 1)
            parts[place], parts[other] = parts[other], parts[place]
        else:
            opcode = chance.pick(pickletools.opcodes).code.encode("latin-1")
            parts.insert(place, opcode + chance.data(9))
        if not parts:
            break
    return b"\x80" + bytes([chance.pick((2, 2, 3, 4, 5))]) + b"".join(parts) + b"."


def legacy(data: bytes, keys: int = 0) -> bytes:
    """A file of torch.save before torch 1.6 around a pickle, with storages of numbers of four bytes."""
    names = b"\x80\x02](" + b"".join(b"X\1\0\0\0%d" % number for number in range(keys)) + b"e."
    stored = b"".join(
        struct.pack("<q", STORED[number] // 4) + bytes(STORED[number]) for number in range(keys)
    )
    head = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."
    return head + data + names + stored


def zipped(data: bytes, chance: Rolled) -> bytes:
    """A file of torch.save around a pickle, now and then with a member that is changed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", data)
        archive.writestr("a/byteorder", "x" if chance.integer(0, 30) == 0 else chance.pick(("little", "big")))
        for number, size in enumerate(STORED):
            archive.writestr(f"a/data/{number}", bytes(size))
        if chance.integer(0, 9) == 0:
            entry = chance.pick(archive.infolist())
            field = chance.pick(("file_size", "compress_size", "header_offset", "flag_bits", "compress_type"))
            small = field in ("flag_bits", "compress_type")
            setattr(entry, field, chance.pick((0, 1, 8) if small else (0, 1, 8, 40, 2**31)))
    return stream.getvalue()


def made(chance: Rolled) -> tuple[str, bytes]:
    """(what reads it: "file" or "cifar", its bytes)."""
    form = chance.integer(0, 3)
    data = pickle_of(chance, ids=form < 2)
    if form == 0:
        return "file", zipped(data, chance)
    if form == 1:
        return "file", legacy(data, chance.integer(0, len(STORED)))
    return ("file", bz2.compress(data)) if form == 2 else ("cifar", data)
