"""Parses files of torch.save: a zip with a pickle and a member for each storage, or (before torch 1.6) five
pickles and the storages one after another.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Callable
from typing import IO, Any

import torch

from rbtools.errors import RbError
from rbtools.unpickle.containers import makers
from rbtools.unpickle.machine import Damaged, Machine, NotTorch
from rbtools.unpickle.tensors import TORCH_NAMES, Storages

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
ENTRY, SIGNATURE = 30, b"PK\x03\x04"  # a zip member's own header: its fixed length, its first bytes
ENCRYPTED = 1
NAME = "/data.pkl"


def load(file: IO[bytes]) -> Any:
    """See `rbtools.unpickle.torch_file`."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(4)
    file.seek(0)
    if head == SIGNATURE:
        return _load_zip(file, size)
    return _load_stream(file, size)


def nested_names() -> dict[str, Any]:
    """The names of a plain pickle with tensors, whose storages are files of torch.save inside it."""
    return {**TORCH_NAMES, **makers("torch.storage", {"_load_from_bytes": _storage})}


def _storage(machine: Machine, data: object) -> Any:
    """A storage inside a pickle; not as a zip, which may unpack to any size."""
    if type(data) is not bytes:
        raise Damaged("it has a storage without bytes")
    if data[:2] == b"PK":
        raise RbError("holds a zip archive in the place of a tensor. Copy or download it again.")
    machine.spend(len(data))
    return _load_stream(io.BytesIO(data), len(data))


# --- zip ------------------------------------------------------------------------------------------


class _Members(Storages):
    """Storages that are members of a zip; each is read once, and only if a tensor needs it."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile, size: int) -> None:
        super().__init__()
        self.file, self.archive = file, archive
        self.members = _checked(file, archive, size)
        pickles = [name for name in self.members if f"/{name}".endswith(NAME)]
        if len(pickles) != 1:
            raise Damaged(f"it has {len(pickles)} members called data.pkl, expected one")
        self.folder = pickles[0].removesuffix(NAME[1:])
        self.order = self.read("byteorder") if f"{self.folder}byteorder" in self.members else b"little"
        if self.order not in (b"little", b"big"):
            raise Damaged("it has a byte order that is none")
        self.there: dict[str, torch.Tensor] = {}

    def pickle(self) -> bytes:
        return self.read(NAME[1:])

    def read(self, name: str) -> bytes:
        entry, _ = self.members[self.folder + name]
        return self.archive.read(entry)

    def claimed(self, key: str, dtype: torch.dtype, count: int) -> None:
        entry, _ = self.members.get(f"{self.folder}data/{key}", (None, 0))
        if entry is None or entry.file_size != count * dtype.itemsize:
            there = "no bytes" if entry is None else f"{entry.file_size} bytes"
            raise Damaged(f"it has {there} of the storage {key}, expected {count * dtype.itemsize}")

    def memory(self, key: str, dtype: torch.dtype) -> torch.Tensor:
        if key not in self.there:
            self.there[key] = self._read_storage(key, dtype)
        return self.there[key]

    def _read_storage(self, key: str, dtype: torch.dtype) -> torch.Tensor:
        entry, start = self.members[f"{self.folder}data/{key}"]
        memory = torch.empty(entry.file_size, dtype=torch.uint8)
        # Read directly into its memory. As in torch, the checksum is not computed: it would double the time.
        self.file.seek(start)
        _fill(self.file, memory)
        width = dtype.itemsize // (2 if dtype.is_complex else 1)
        if self.order != sys.byteorder.encode() and width > 1:
            memory.numpy().view(f"u{width}").byteswap(inplace=True)
        return memory


def _fill(file: IO[bytes], memory: torch.Tensor) -> None:
    view = memory.numpy().data
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise Damaged("it ends early")
        done += count


def _checked(file: IO[bytes], archive: zipfile.ZipFile, size: int) -> dict[str, tuple[zipfile.ZipInfo, int]]:
    """Name -> (entry, offset of its bytes). Raises Damaged for equal names and overlapping members."""
    members: dict[str, tuple[zipfile.ZipInfo, int]] = {}
    end = 0
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        file.seek(entry.header_offset)
        header = file.read(ENTRY)
        if len(header) < ENTRY or header[:4] != SIGNATURE or entry.flag_bits & ENCRYPTED:
            raise Damaged("its list of members is wrong")
        start = entry.header_offset + ENTRY
        start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        if entry.header_offset < end or entry.filename in members:
            raise Damaged("it has members of one name, or of one place")
        end = start + entry.compress_size
        if entry.compress_type != zipfile.ZIP_STORED:
            raise Damaged("it has a packed member, and torch.save packs none")
        if end > min(size, archive.start_dir) or entry.file_size != entry.compress_size:
            raise Damaged("it has a member of a wrong size")
        members[entry.filename] = entry, start
    return members


def _load_zip(file: IO[bytes], size: int) -> Any:
    try:
        with zipfile.ZipFile(file) as archive:
            members = _Members(file, archive, size)
            data = members.pickle()
            machine = Machine(io.BytesIO(data), len(data), TORCH_NAMES, persistent=members.persistent)
            return machine.load()
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise Damaged(str(error)) from None


# --- before torch 1.6 -----------------------------------------------------------------------------


class _Stream(Storages):
    """Storages that follow the pickle: their memory is allocated first, and filled afterwards."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.left, self.filled = size, False
        self.there: dict[str, tuple[torch.dtype, int, torch.Tensor]] = {}

    def claimed(self, key: str, dtype: torch.dtype, count: int) -> None:
        if key in self.there:
            if self.there[key][:2] != (dtype, count):
                raise Damaged(f"it has two sizes of the storage {key}")
            return
        self.left -= count * dtype.itemsize
        if self.left < 0:
            raise Damaged("it claims more bytes than there are")
        self.there[key] = dtype, count, torch.empty(count * dtype.itemsize, dtype=torch.uint8)

    def memory(self, key: str, dtype: torch.dtype) -> torch.Tensor:
        return self.there[key][2]

    def fill(self, file: IO[bytes], keys: object) -> None:
        if type(keys) is not list or not all(type(key) in (str, int) for key in keys):
            raise Damaged("its list of storages is none")
        if sorted(map(str, keys)) != sorted(self.there):
            raise Damaged("its list of storages is not that of its tensors")
        for key in map(str, keys):
            _, count, memory = self.there[key]
            if int.from_bytes(file.read(8), "little") != count:
                raise Damaged(f"it has another size of the storage {key}")
            _fill(file, memory)
        self.filled, truths, self.truths = True, self.truths, {}
        for key, memory in truths.items():
            self.check_truths(key, memory)


def _load_stream(file: IO[bytes], size: int) -> Any:
    def pickle(persistent: Callable[[object], object] | None = None) -> Any:
        return Machine(file, size - file.tell(), TORCH_NAMES, persistent=persistent).load()

    if pickle() != MAGIC or pickle() != PROTOCOL:
        raise NotTorch("it is a pickle that torch.save did not write")
    pickle()  # the byte order of the machine that wrote the file
    storages = _Stream(size)
    value = pickle(persistent=storages.persistent)
    storages.fill(file, pickle())
    return value
