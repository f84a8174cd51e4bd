"""The opcodes of pickles of protocols 0 to 5, interpreted safely for untrusted files.

Not a subclass of `pickle.Unpickler`: the C version allocates as many memo entries and bytes as a file claims,
and both versions set attributes, extend and hash any object. Here memory and time are bounded by the size of
the file, and only values of the types in `_KEYS` are hashed: Python's hash of tuples, for example, recurses
without a limit.
"""

from __future__ import annotations

import argparse
import codecs
import struct
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import IO, Any

from rbtools.errors import shown

MOST_STEPS = 5_000_000  # opcodes: an empty set takes 216 bytes of memory, and one byte of the file
MOST_DIGITS = 1000  # the most digits and bytes of a number, because parsing takes Python quadratic time
# Hashes of numbers and tuples are no secret: keys of one hash can be computed in advance, and then each is
# compared with all before it. Numbers from 0 to SMALL are too few for that.
MOST_GUESSED_KEYS, MOST_KEY_PARTS, SMALL = 3_000, 64, 2**16
COPIES, ROOM = 4, 2**20  # bytes copied may be COPIES times the bytes read, plus ROOM
PROTOCOL = 5
_KEYS = (str, bytes, float, bool, type(None))


class Refused(Exception):
    """The pickle contains an object that is not allowed, of that `name`."""

    def __init__(self, name: str, message: str | None = None) -> None:
        self.name = shown(name)
        super().__init__(message or f"it asks for {self.name}, which could run code")


class Damaged(ValueError):
    """The bytes are no pickle, are incomplete, or declare more data than there is."""


class NotTorch(Damaged):
    """A pickle that torch.save did not write."""


class UnusualTensor:
    """A placeholder for a tensor that is not dense, such as a sparse one; `kind` names its kind."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


class NamedGlobal:
    """A placeholder for a class or a constant that a pickle only names, as an argument."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Maker(NamedGlobal):
    """The replacement of a function or class that a pickle calls: `make(machine, *arguments)`."""

    __slots__ = ("make",)

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        super().__init__(name)
        self.make = make


class Unbuilt:
    """A value that the opcode BUILD completes: `built` gets its state and returns the final value."""

    __slots__ = ("places",)

    def __init__(self) -> None:
        self.places: list[int] = []  # no value in the memo

    def built(self, machine: Machine, state: object) -> Any:
        raise NotImplementedError


class Machine:
    """Reads one pickle from a file.

    `most` bounds the bytes that its arguments may have together. `names` answers "module.name". `text`
    decodes the strings of Python 2 where they are text (None: they stay bytes). `persistent` answers
    persistent ids.
    """

    def __init__(
        self,
        file: IO[bytes],
        most: int,
        names: Mapping[str, Any],
        text: str | None = "utf-8",
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        self.file, self.most, self.names = file, most, names
        self.text, self.persistent = text, persistent
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # the stacks below the marks
        self.memo: dict[int, Any] = {}
        self.taken = self.copied = self.guessed_keys = 0

    def load(self) -> Any:
        """The value of the pickle; the file's position is then its end. Raises Refused, Damaged, OSError."""
        read, handlers = self.file.read, HANDLERS
        try:
            for _ in range(MOST_STEPS):
                code = read(1)
                if code == b".":
                    return self.stack.pop()
                handler = handlers.get(code)
                if handler is None:
                    raise Damaged("it is no pickle" if code else "it ends early")
                handler(self)
        except (Refused, Damaged):
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, struct.error) as error:
            message = (str(error).splitlines() or [""])[0]
            raise Damaged(f"{type(error).__name__}: {shown(message)}") from None
        raise Damaged(f"it has more than {MOST_STEPS} steps")

    def take(self, count: int) -> bytes:
        """The next bytes, at most as many as allowed."""
        self.taken += count
        if count < 0 or self.taken > self.most:
            raise Damaged("it claims more bytes than there are")
        data = self.file.read(count)
        if len(data) < count:
            raise Damaged("it ends early")
        return data

    def line(self) -> bytes:
        """The next line, without its end."""
        data = self.file.readline(self.most - self.taken + 1)
        self.taken += len(data)
        if not data.endswith(b"\n") or self.taken > self.most:
            raise Damaged("it ends early")
        return data[:-1]

    def spend(self, count: int) -> None:
        """Count a copy of `count` bytes or items: a file can request many copies of one value."""
        self.copied += count
        if self.copied > COPIES * self.taken + ROOM:
            raise Damaged("it makes much of little")

    def find(self, module: str, name: str) -> Any:
        path = f"{'builtins' if module == '__builtin__' else module}.{name}"
        value = self.names.get(path)
        if value is None:
            raise Refused(path)
        return value

    def call(self, function: object, arguments: object) -> Any:
        if not isinstance(function, Maker):
            raise Refused(function.name if isinstance(function, NamedGlobal) else type(function).__name__)
        if type(arguments) is not tuple:
            raise Damaged(f"{function.name} is called without arguments")
        return function.make(self, *arguments)

    def marked(self) -> list[Any]:
        """The items on the stack above the last mark."""
        items, self.stack = self.stack, self.outer.pop()
        return items

    def remember(self, index: int) -> None:
        if not 0 <= index <= len(self.memo) + SMALL:  # memo indices count up from 0
            self.guess()
        value = self.memo[index] = self.stack[-1]
        if isinstance(value, Unbuilt):
            value.places.append(index)

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise Damaged("it refers to what is not there")
        self.stack.append(self.memo[index])

    def append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise Damaged("it appends to what is no list")
        self.stack[-1].extend(items)

    def add(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not set:
            raise Damaged("it adds to what is no set")
        for item in items:
            self.check_key(item)
        self.stack[-1].update(items)

    def put(self, target: object, items: list[Any]) -> None:
        """Set items of a dict: key, value, key, value."""
        if type(target) is not dict and type(target) is not OrderedDict and type(target) is not Counter:
            raise Damaged("it sets items of what is no dict")
        if len(items) % 2:
            raise Damaged("it sets items of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.check_key(key)
            target[key] = value

    def check_key(self, key: object) -> None:
        """Raise Damaged for keys that are slow to hash, or whose hashes may collide."""
        if type(key) in (tuple, float) or (type(key) is int and not 0 <= key <= SMALL):
            self.guess()
            if not _is_small(key, [MOST_KEY_PARTS]):
                raise Damaged("it has too large a key")
        elif not _is_hashed(key):
            raise Damaged(f"it has a {type(key).__name__} as a key")

    def guess(self) -> None:
        """Count a key whose hash may collide with others. Raises Damaged where there are too many."""
        self.guessed_keys += 1
        if self.guessed_keys > MOST_GUESSED_KEYS:
            raise Damaged("it has too many tuples or large numbers as keys")

    def build(self) -> None:
        """Complete a value with its state."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Unbuilt):
            value = self.stack[-1] = target.built(self, state)
            for index in target.places:
                self.memo[index] = value
        elif type(target) is argparse.Namespace and type(state) is dict and all(map(_is_text, state)):
            self.spend(len(state))
            vars(target).update(state)
        elif type(target) is OrderedDict and type(state) is dict:
            # torch's metadata of a state dict. Other attributes could hide methods, and are not needed.
            if type(state.get("_metadata")) in (dict, OrderedDict):
                target._metadata = state["_metadata"]  # type: ignore[attr-defined]
        else:
            raise Refused(
                f"state of {target.name if isinstance(target, NamedGlobal) else type(target).__name__}"
            )


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_hashed(key: object) -> bool:
    """Ints from the modulus on have the hash of smaller ones."""
    return type(key) in _KEYS or (type(key) is int and abs(key) < sys.hash_info.modulus)


def _is_small(key: object, left: list[int]) -> bool:
    """Whether a tuple has few parts, counting nested ones."""
    left[0] -= 1
    if left[0] < 0:
        return False
    return all(_is_small(part, left) for part in key) if type(key) is tuple else _is_hashed(key)


# --- opcodes: each handler gets the machine -------------------------------------------------------


def _constant(make: Callable[[], Any]) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(make())


def _number(layout: str, use: Callable[[Machine, Any], Any]) -> Callable[[Machine], None]:
    """Reads a number of that layout and passes it on."""
    form = struct.Struct(layout)
    return lambda machine: use(machine, form.unpack(machine.take(form.size))[0])


def _pushed(machine: Machine, value: object) -> None:
    machine.stack.append(value)


def _sized(layout: str, turned: Callable[[Machine, bytes], Any]) -> Callable[[Machine], None]:
    """Reads a length and that many bytes, and pushes the decoded value."""
    return _number(layout, lambda machine, count: machine.stack.append(turned(machine, machine.take(count))))


def _text(machine: Machine, data: bytes) -> str:
    return str(data, "utf-8", "surrogatepass")


def _old_text(machine: Machine, data: bytes) -> str | bytes:
    """A string of Python 2: text or bytes."""
    try:
        return data if machine.text is None else str(data, machine.text)
    except UnicodeDecodeError:
        return data


def _whole(machine: Machine, data: bytes) -> int:
    if len(data) > MOST_DIGITS:
        raise Damaged("it has a number without end")
    return int.from_bytes(data, "little", signed=True)


def _digits(line: bytes) -> int:
    if len(line) > MOST_DIGITS:
        raise Damaged("it has a number without end")
    return int(line)


def _int_line(machine: Machine) -> None:
    line = machine.line()
    truth = {b"00": False, b"01": True}.get(line)
    machine.stack.append(_digits(line.rstrip(b"L")) if truth is None else truth)


def _string_line(machine: Machine) -> None:
    line = machine.line()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise Damaged("it has a text without quotes")
    machine.stack.append(_old_text(machine, codecs.escape_decode(line[1:-1])[0]))


def _global(machine: Machine) -> None:
    machine.stack.append(machine.find(str(machine.line(), "utf-8"), str(machine.line(), "utf-8")))


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise Damaged("it has a name that is no text")
    machine.stack.append(machine.find(module, name))


def _reduce(machine: Machine) -> None:
    arguments = machine.stack.pop()
    machine.stack[-1] = machine.call(machine.stack[-1], arguments)


def _new_with_names(machine: Machine) -> None:
    named = machine.stack.pop()
    if type(named) is not dict or named:
        raise Damaged("it makes an object with arguments by name")
    _reduce(machine)


def _instance(machine: Machine) -> None:
    _global(machine)
    target = machine.stack.pop()
    _pushed(machine, machine.call(target, tuple(machine.marked())))


def _object(machine: Machine) -> None:
    target, *arguments = machine.marked()
    machine.stack.append(machine.call(target, tuple(arguments)))


def _mark(machine: Machine) -> None:
    machine.outer.append(machine.stack)
    machine.stack = []


def _pop(machine: Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.marked()


def _tuple(count: int) -> Callable[[Machine], None]:
    def make(machine: Machine) -> None:
        if len(machine.stack) < count:
            raise Damaged("it takes what is not there")
        machine.stack[-count:] = [tuple(machine.stack[-count:])]

    return make


def _dict(machine: Machine) -> None:
    items, result = machine.marked(), dict[Any, Any]()
    machine.put(result, items)
    machine.stack.append(result)


def _frozen(machine: Machine) -> None:
    items = machine.marked()
    for item in items:
        machine.check_key(item)
    machine.stack.append(frozenset(items))


def _item(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.put(machine.stack[-1], [key, value])


def _items(machine: Machine) -> None:
    items = machine.marked()
    machine.put(machine.stack[-1], items)


def _persistent(machine: Machine, key: object) -> None:
    if machine.persistent is None:
        raise Refused("object by a persistent id")
    machine.stack.append(machine.persistent(key))


def _protocol(machine: Machine, number: int) -> None:
    if number > PROTOCOL:
        raise Damaged(f"it is of the protocol {number}")


def _frame(machine: Machine) -> None:
    """Skip the length of a frame, which is not needed."""
    machine.take(8)


def _refusing(name: str) -> Callable[[Machine], None]:
    def refuse(machine: Machine) -> None:
        raise Refused(name)

    return refuse


HANDLERS: dict[bytes, Callable[[Machine], None]] = {
    b"\x80": _number("<B", _protocol),
    b"\x95": _frame,
    # numbers and constants
    b"N": _constant(lambda: None),
    b"\x88": _constant(lambda: True),
    b"\x89": _constant(lambda: False),
    b"I": _int_line,
    b"L": lambda machine: machine.stack.append(_digits(machine.line().rstrip(b"L"))),
    b"F": lambda machine: machine.stack.append(float(machine.line())),
    b"J": _number("<i", _pushed),
    b"K": _number("<B", _pushed),
    b"M": _number("<H", _pushed),
    b"G": _number(">d", _pushed),
    b"\x8a": _sized("<B", _whole),
    b"\x8b": _sized("<i", _whole),
    # text and bytes
    b"S": _string_line,
    b"T": _sized("<i", _old_text),
    b"U": _sized("<B", _old_text),
    b"V": lambda machine: machine.stack.append(str(machine.line(), "raw-unicode-escape")),
    b"X": _sized("<I", _text),
    b"\x8c": _sized("<B", _text),
    b"\x8d": _sized("<Q", _text),
    b"B": _sized("<I", lambda machine, data: data),
    b"C": _sized("<B", lambda machine, data: data),
    b"\x8e": _sized("<Q", lambda machine, data: data),
    b"\x96": _sized("<Q", lambda machine, data: bytearray(data)),
    # containers
    b"]": _constant(list),
    b"}": _constant(dict),
    b")": _constant(tuple),
    b"\x8f": _constant(set),
    b"l": lambda machine: _pushed(machine, machine.marked()),
    b"d": _dict,
    b"t": lambda machine: _pushed(machine, tuple(machine.marked())),
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"\x91": _frozen,
    b"a": lambda machine: machine.append([machine.stack.pop()]),
    b"e": lambda machine: machine.append(machine.marked()),
    b"s": _item,
    b"u": _items,
    b"\x90": lambda machine: machine.add(machine.marked()),
    # the stack and the memo
    b"(": _mark,
    b"0": _pop,
    b"1": lambda machine: machine.marked().clear(),
    b"2": lambda machine: machine.stack.append(machine.stack[-1]),
    b"p": lambda machine: machine.remember(_digits(machine.line())),
    b"q": _number("<B", Machine.remember),
    b"r": _number("<I", Machine.remember),
    b"\x94": lambda machine: machine.remember(len(machine.memo)),
    b"g": lambda machine: machine.recall(_digits(machine.line())),
    b"h": _number("<B", Machine.recall),
    b"j": _number("<I", Machine.recall),
    # names and calls
    b"c": _global,
    b"\x93": _stack_global,
    b"R": _reduce,
    b"\x81": _reduce,
    b"\x92": _new_with_names,
    b"i": _instance,
    b"o": _object,
    b"b": Machine.build,
    b"P": lambda machine: _persistent(machine, str(machine.line(), "ascii")),
    b"Q": lambda machine: _persistent(machine, machine.stack.pop()),
    b"\x82": _refusing("class of an extension code"),
    b"\x83": _refusing("class of an extension code"),
    b"\x84": _refusing("class of an extension code"),
    b"\x97": _refusing("buffer outside the file"),
    b"\x98": _refusing("buffer outside the file"),
}
