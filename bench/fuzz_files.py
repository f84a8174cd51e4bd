"""What `fuzz.py` makes for the other ways in: files of data and of stores, leases, messages of Ray's workers.

A target makes the bytes of one input and reads it as rbtools does. A sentence for the user is as good as a
value; another exception, code that runs, a file outside the folder, 2 s or 500 MB are findings.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import pickle
import struct
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_targets import Chance, Finding, Watch, damaged, odd, told

from rbtools.errors import RbError

NUMBERS = (0, 1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, -1, -(2**31), -(2**63))
NAMES = (
    "a",
    "0",
    "../x",
    "/x",
    "a/../../x",
    "\x00",
    "é\u202e",
    "x" * 300,
    "",
    ".",
    "..",
    "a\nb",
    "label",
    "image",
)
HASH, BYTES = "ab" * 32, b"weights"
OBJECT = hashlib.sha256(BYTES).hexdigest()
OUTSIDE = "outside"


class Files:
    """The base: a folder for each input, in which a file beside it must stay as it is."""

    kinds = 1
    slow, greedy = 2.0, 500 * 10**6  # seconds and bytes
    writes = False  # whether reading writes files, into the folder of the input

    def __init__(self) -> None:
        self.top = Path(tempfile.mkdtemp())
        (self.top / OUTSIDE).write_text("as it was")
        self.watch = Watch()
        if self.writes:
            self.watch.CHANGES = ()  # type: ignore[misc]
        with contextlib.suppress(RbError):
            self.read(self.make(Fixed()), Path(tempfile.mkdtemp(dir=self.top)))  # imports what is used
        self.left = set(os.listdir(self.top))

    def make(self, chance: Chance) -> bytes:
        raise NotImplementedError

    def read(self, data: bytes, folder: Path) -> None:
        raise NotImplementedError

    def check(self, data: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=self.top, ignore_cleanup_errors=True) as name:
            try:
                with self.watch:
                    self.read(data, Path(name))
            except RbError as wrong:
                told(str(wrong))
            finally:
                self.watch.on = False
            others = set(os.listdir(self.top)) - self.left - {Path(name).name}
        if others or (self.top / OUTSIDE).read_text() != "as it was":
            raise Finding(f"files outside its folder were written: {sorted(others)}")


class Fixed:
    """The first of all choices: an input as it should be, or nearly."""

    def integer(self, low: int, high: int) -> int:
        return low

    def pick(self, options: Any) -> Any:
        return options[0]

    def text(self, longest: int) -> str:
        return ""

    def data(self, longest: int) -> bytes:
        return b""

    def real(self) -> float:
        return 0.0


# ---- weights and images ----------------------------------------------------------------------------


class Safetensors(Files):
    """A header of claims before a few bytes."""

    def make(self, chance: Chance) -> bytes:
        header: dict[str, Any] = {}
        if chance.integer(0, 2):
            notes = json.dumps({"arch": {"space": "zoo", "name": chance.text(9)}, "x": odd(chance)})
            header["__metadata__"] = {
                chance.pick(("rbtools", "format", "x")): chance.pick((notes, "[" * 9999))
            }
        place = 0
        for _ in range(chance.integer(1, 6)):
            shape = [chance.pick((1, 2, 3, 10, *NUMBERS)) for _ in range(chance.integer(0, 4))]
            end = place + 4 * max(1, *shape, 1) if max(shape, default=1) < 99 else place + 8
            name = chance.pick(("conv1.weight", "fc.weight", "bn1.running_mean", "x" * 10**6, *NAMES))
            header[name] = {
                "dtype": chance.pick(
                    ("F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "C64", "F4", "?")
                ),
                "shape": shape,
                "data_offsets": [place, end] if chance.integer(0, 3) else [chance.pick(NUMBERS), end],
            }
            place = end
        text = json.dumps(header).encode()
        if chance.integer(0, 3) == 0:
            text = damaged(text, chance)
        length = chance.pick((len(text), len(text), len(text), *NUMBERS[:6], 2**40))
        return struct.pack("<Q", length) + text + bytes(min(place, 4096))

    def read(self, data: bytes, folder: Path) -> None:
        from rbtools.models import checkpoint

        (folder / "w.safetensors").write_bytes(data)
        checkpoint.load(folder / "w.safetensors", None, classes=10, shape=(3, 32, 32))


class Images(Files):
    """One image of each of seven formats, damaged, among whole ones."""

    FORMATS = ("PNG", "JPEG", "GIF", "BMP", "PPM", "TIFF", "WEBP")
    FIELDS = (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"\x00\x01\x00\x00", b"\x10\x00")

    def make(self, chance: Chance) -> bytes:
        from PIL import Image

        stream = io.BytesIO()
        mode = chance.pick(("RGB", "L", "P", "1", "CMYK", "RGBA", "I;16"))
        made = Image.new(mode, (chance.integer(8, 40), 8))
        form = chance.pick(self.FORMATS)
        try:
            made.save(stream, form, **({"compression": "tiff_lzw"} if form == "TIFF" and mode != "P" else {}))
        except (OSError, KeyError, ValueError):  # a mode that the format does not have
            Image.new("RGB", (8, 8)).save(stream, form)
        data = stream.getvalue()
        for _ in range(chance.integer(0, 3)):  # numbers of its header: sizes, offsets, counts
            place = chance.integer(0, min(len(data), 400))
            field = chance.pick(self.FIELDS)
            data = data[:place] + field + data[place + len(field) :]
        data = damaged(data, chance) if chance.integer(0, 1) else data
        return _checked_png(data) if chance.integer(0, 2) and form == "PNG" else data

    def read(self, data: bytes, folder: Path) -> None:
        from PIL import Image

        from rbtools import datasets

        place = folder / "photos/test/a"
        place.mkdir(parents=True)
        (place / "0.png").write_bytes(data)
        Image.new("RGB", (8, 8)).save(place / "1.png")
        _load(datasets, f"imagefolder:{folder}/photos")

    writes = True  # its own whole image


def _load(datasets: Any, name: str) -> None:
    """The images of a data set, as an evaluation gets them."""
    data = datasets.load(name, "test")
    images = data.images[data.labels.new_tensor(range(min(len(data), 4)))]
    if images.shape[0] != min(len(data), 4) or int(data.labels.max()) >= data.classes:
        raise Finding(f"a data set that does not fit itself: {images.shape} {data.classes}")


def _checked_png(data: bytes) -> bytes:
    """The PNG with checksums that fit, so that what was changed in it is read."""
    out, place = data[:8], 8
    while place + 12 <= len(data):
        size = min(int.from_bytes(data[place : place + 4], "big"), len(data) - place - 12)
        body = data[place + 4 : place + 8 + size]
        out += data[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += 12 + size
    return out


class Parquet(Files):
    """Tables of other types and packings, and with other bytes in their pages and footers."""

    writes = True

    def make(self, chance: Chance) -> bytes:
        import pyarrow as pa
        from PIL import Image
        from pyarrow import parquet

        stream = io.BytesIO()
        Image.new("RGB", (8, 8)).save(stream, "png")
        png = stream.getvalue()
        count = chance.pick((2, 1, 5, 40))
        image = chance.pick((png, png, b"", b"x", damaged(png, chance), None))
        images: Any = [png] * (count - 1) + [image]
        if chance.integer(0, 1):
            images = [None if one is None else {"bytes": one, "path": chance.text(5)} for one in images]
        labels = [chance.pick((0, 1, 2, *NUMBERS[:11], None)) for _ in range(count)]
        label = chance.pick((pa.int64(), pa.int8(), pa.float64(), pa.string(), pa.list_(pa.int64())))
        try:
            table = pa.table({"image": images, "label": pa.array(labels, pa.int64()).cast(label, safe=False)})
        except (pa.ArrowException, OverflowError):
            table = pa.table({"image": images, "label": [0] * count})
        if chance.integer(0, 2) == 0:
            notes = {"info": {"features": {"label": {"names": odd(chance), "_type": "ClassLabel"}}}}
            table = table.replace_schema_metadata({"huggingface": json.dumps(notes, default=str)})
        stream = io.BytesIO()
        packing = chance.pick(("none", "snappy", "gzip", "zstd"))
        parquet.write_table(table, stream, compression=packing, use_dictionary=bool(chance.integer(0, 1)))
        data = stream.getvalue()
        if chance.integer(0, 2):
            place = chance.integer(4, len(data) - 8)
            data = data[:place] + chance.pick((b"\xff", b"\x00", b"\x7f\xff")) + data[place + 1 :]
        return damaged(data, chance) if chance.integer(0, 2) == 0 else data

    def read(self, data: bytes, folder: Path) -> None:
        from rbtools import datasets

        (folder / "x.parquet").write_bytes(data)
        _load(datasets, f"parquet:{folder}/x.parquet")


class Adversarial(Files):
    """Headers and blocks of .adv files: sizes and numbers out of range, parts that unpack to more."""

    SHAPE = (3, 8, 8)

    def make(self, chance: Chance) -> bytes:
        from rbtools.jobs import evidence
        from rbtools.lazy import np

        count, pixels = chance.pick((2, 1, 4)), 192
        forms = np.array([chance.integer(0, 3) for _ in range(count)], np.uint8)
        ids = np.array([chance.pick((0, 1, 2, 2**31 - 1, -1)) for _ in range(count)])
        coarse = chance.pick((1, 8, 0, 127))
        zeros = np.zeros((count, pixels))
        block = evidence.packed(ids, forms, zeros.astype(np.int8), zeros.astype(np.float32), max(coarse, 1))
        if chance.integer(0, 3) == 0:
            sizes = list(struct.unpack("<6I", block[:24]))
            sizes[chance.integer(0, 5)] = chance.pick(NUMBERS) % 2**32
            block = struct.pack("<6I", *sizes) + block[24:]
        if chance.integer(0, 4) == 0:
            bomb = zlib.compress(bytes(50_000_000))
            block = struct.pack("<6I", count, len(bomb), *[8] * 4) + bomb + block[24:]
        header = {"n": count, "eps": 8 / 255, "step": 1 / 255, "coarse": coarse, "norm": "linf"}
        for _ in range(chance.integer(0, 2)):
            header[chance.pick(list(header))] = chance.pick((odd(chance), *NUMBERS, 1e308, 1e-320))
        try:
            text = json.dumps(header).encode()
        except ValueError:
            text = b"{}"
        data = evidence.MAGIC + text + b"\n" + block * chance.pick((1, 2))
        return damaged(data, chance) if chance.integer(0, 1) else data

    def read(self, data: bytes, folder: Path) -> None:
        from rbtools.jobs import evidence

        (folder / "x.adv").write_bytes(data)
        evidence.header_of(folder / "x.adv")
        for ids, forms, differences in evidence.blocks(folder / "x.adv", self.SHAPE, 10):
            if not len(ids) == len(forms) == len(differences) <= 10:
                raise Finding(f"a block of {len(ids)}, {len(forms)} and {len(differences)}")


# ---- archives --------------------------------------------------------------------------------------


def tar_of(members: list[tuple[str, bytes]], chance: Chance) -> bytes:
    """A tar with odd members among these, and headers that lie."""
    stream = io.BytesIO()
    with tarfile.open(
        fileobj=stream, mode="w", format=chance.pick((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    ) as tar:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            if chance.integer(0, 7) == 0:
                entry.type = chance.pick((b"1", b"2", b"3", b"6", b"5", b"S", b"7", b"x", b"L"))
                entry.linkname = chance.pick(("../outside", "/etc/passwd", "a"))
            if chance.integer(0, 7) == 0:
                entry.mtime = chance.pick((0, 2**33, -1, 1e300))
            if chance.integer(0, 7) == 0 and tar.format == tarfile.PAX_FORMAT:
                key = chance.pick(("path", "size", "mtime", "GNU.sparse.map", "GNU.sparse.major", "linkpath"))
                entry.pax_headers = {key: chance.pick(("nan", "1e999", "../x", "9" * 400, "-5", "0,9", "1"))}
            try:
                tar.addfile(entry, io.BytesIO(data))
            except (ValueError, OverflowError, UnicodeError):
                continue
    data = stream.getvalue()
    for _ in range(chance.pick((0, 0, 1, 2))):
        header = 512 * chance.integer(0, max(0, len(data) // 512 - 1))
        field, size = chance.pick(((124, 12), (136, 12), (0, 100), (156, 1), (100, 8)))
        new = chance.pick((b"7" * size, b"\x80" + b"\xff" * (size - 1), b"\0" * size, b"-" * size))
        head = bytearray(data[header : header + 512].ljust(512, b"\0"))
        head[field : field + size] = new[:size]
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        data = data[:header] + bytes(head) + data[header + 512 :]
    return data


class Shards(Files):
    """WebDataset's shards of ImageNet."""

    writes = True

    def make(self, chance: Chance) -> bytes:
        from PIL import Image

        stream = io.BytesIO()
        Image.new("RGB", (8, 8)).save(stream, "png")
        members = []
        for number in range(chance.pick((1, 2, 5))):
            key = chance.pick((f"{number:04}", f"{number:04}", *NAMES))
            label = chance.pick((b"0", b"7", b"1000", b"-1", b"x", b"9" * 8, b"9" * 400, b"", "٣".encode()))
            members += [(f"{key}.cls", label), (f"{key}.png", damaged(stream.getvalue(), chance))]
        data = tar_of(members, chance)
        return damaged(data, chance) if chance.integer(0, 3) == 0 else data

    def read(self, data: bytes, folder: Path) -> None:
        from rbtools.datasets import decode, imagenet
        from rbtools.lazy import np

        (folder / "val-000.tar").write_bytes(data)
        tree = imagenet.packed_tree([folder / "val-000.tar"], [f"n{number:08}" for number in range(1000)])
        out = np.zeros((len(tree), 3, 8, 8), np.uint8)
        decode.decode(tree, range(len(tree)), out, decode.Scaling(8))


class StoreArchives(Files):
    """What `rb-store import` is given, packed and not."""

    writes = True

    def make(self, chance: Chance) -> bytes:
        from rbtools.store import archive
        from rbtools.store.checksum import sealed
        from rbtools.store.content_store import MARKER

        members = [(archive.FIRST, chance.pick((MARKER, MARKER, MARKER, b"{}", b"[" * 10**5)))]
        for _ in range(chance.integer(0, 5)):
            kind = chance.pick(("results", "outcomes", "state", "objects", "cache", "leases"))
            name = chance.pick((f"{kind}/ab/{HASH}", f"{kind}/ab/{HASH}", f"{kind}/ab/../{HASH}", *NAMES))
            body = chance.pick(
                (
                    sealed(b'{"metric":"acc"}'),
                    sealed(json.dumps(odd(chance), default=str).encode()),
                    sealed(pickle.dumps(print)),
                    b"[" * 10**5,
                    chance.data(99),
                    b"\x93NUMPY" + chance.data(40),
                    bytes(10**6),
                )
            )
            members.append((name, body))
        count = chance.pick((len(members) - 1, len(members) - 1, *NUMBERS))
        members.append((archive.LAST, json.dumps({"files": count}).encode()))
        data = tar_of(members, chance)
        data = damaged(data, chance) if chance.integer(0, 4) == 0 else data
        pack: Callable[[bytes], bytes] = chance.pick((bytes, gzip.compress, bz2.compress, lzma.compress))
        if chance.integer(0, 9) == 0:  # it unpacks to much
            data += bytes(200_000_000)
        packed = pack(data) if len(data) < 10**8 else gzip.compress(data, 1)
        return damaged(packed, chance) if chance.integer(0, 4) == 0 else packed

    def read(self, data: bytes, folder: Path) -> None:
        from rbtools.store import archive, listing
        from rbtools.store.content_store import Store

        store = Store(folder / "store")
        for taken in archive.take(store, io.BytesIO(data), "a.tar"):
            if taken.problem is not None:
                told(f"{taken.problem}.")
        for kind in ("results", "outcomes", "objects", "state"):
            list(listing.paths(store, kind))
        for _ in listing.records(store):
            pass


# ---- leases and messages ---------------------------------------------------------------------------


class Leases(Files):
    """A file in the place of a lease: anything, of any time; and the clock of this machine anywhere."""

    writes = True

    def make(self, chance: Chance) -> bytes:
        from rbtools.store import lease

        holder: Any = {**lease.myself(), "token": "x"}
        for _ in range(chance.integer(0, 2)):
            holder[chance.pick(("host", "space", "pid", "token"))] = chance.pick(
                (odd(chance), *NUMBERS, "9" * 5000)
            )
        about = {
            "kind": chance.pick(
                ("file", "file", "file", "folder", "pipe", "link", "circle", "sparse", "device")
            ),
            "age": chance.pick((0, 5, 30, 59, 61, 3600, 10**9, -30, -61, -(10**9), -(2**33))),
            "clock": chance.pick((0, 0, -(10**9), 10**9, 10**12, -(10**10))),
        }
        body = json.dumps(holder, default=str).encode()
        body = chance.pick((body, body, body, b"", b"[" * 10**5, b"\xff\xfe", damaged(body, chance)))
        return json.dumps(about).encode() + b"\n" + body

    def read(self, data: bytes, folder: Path) -> None:
        from rbtools.store import lease, upkeep
        from rbtools.store.content_store import Store

        head, _, body = data.partition(b"\n")
        about = json.loads(head)
        store = Store(folder / "store")
        store.mark()
        path = store.path("leases", HASH)
        assert path is not None
        path.parent.mkdir(parents=True)
        self._put(path, about["kind"], body)
        if about["kind"] in ("file", "sparse"):
            then = time.time() - about["age"]
            os.utime(path, (then, then))
        real = time.time
        time.time = lambda: real() + about["clock"]
        try:
            held = self._claimed(path)
            list(upkeep.find(store).garbage)
        finally:
            time.time = real
        old = abs(about["age"]) > 60
        if about["kind"] == "file" and old != held and not lease._holder_is_gone(body):
            raise Finding(f"a lease of the age {about['age']} is {'' if held else 'not '}taken away")

    def _put(self, path: Path, kind: str, body: bytes) -> None:
        if kind in ("folder", "pipe"):
            (os.mkdir if kind == "folder" else os.mkfifo)(path)
        elif kind in ("link", "circle", "device"):
            os.symlink(
                {"link": "../../../../outside", "circle": path.name, "device": "/dev/zero"}[kind], path
            )
        else:
            path.write_bytes(body)
        if kind == "sparse":
            os.truncate(path, 2**36)

    def _claimed(self, path: Path) -> bool:
        from rbtools.store import lease

        try:
            held = lease.claim(path)
        except OSError as wrong:
            told(f"{wrong.strerror or wrong}.")
            return False
        if held is not None:
            lease.touch_all()
            held.release()
        return held is not None


TARGETS: dict[str, Callable[[], Files]] = {
    "safetensors": Safetensors,
    "images": Images,
    "parquet": Parquet,
    "shards": Shards,
    "adv": Adversarial,
    "archives": StoreArchives,
    "leases": Leases,
}
