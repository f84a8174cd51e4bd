"""A hostile file for each input of rbtools (the table of docs/trust.md): each gives an error message quickly.

Pickles have tests of their own, in tests/unpickle.
"""

from __future__ import annotations

import ast
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from rbtools import datasets
from rbtools.cli import config
from rbtools.datasets import imagefolder, indices
from rbtools.errors import RbError, UsageError
from rbtools.evaluation import base
from rbtools.models import read_checkpoint
from rbtools.papers.formats.published_json import parsed
from rbtools.records.lines import parse

ROOT = Path(__file__).resolve().parents[1]


def refused(work: Callable[[], Any], match: str | None = None) -> None:
    """The work ends with a finished sentence."""
    with pytest.raises(RbError, match=match) as wrong:
        work()
    assert len(str(wrong.value)) < 1500 and "\n" not in str(wrong.value)


def about(start: int, end: int, shape: list[int] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [4] if shape is None else shape, "data_offsets": [start, end]}


WHOLE = json.dumps(about(0, 16)).encode()
SAFETENSORS: dict[str, Any] = {
    "overlapping": {"a": about(0, 16), "b": about(0, 16)},
    "out of range": {"a": about(0, 32, [8])},
    "another shape": {"a": about(0, 16, [5])},
    "a shape that wraps around": {"a": about(0, 16, [2**62, 2**62])},
    "a negative shape": {"a": about(0, 16, [-4])},
    "ends before it starts": {"a": about(16, 0)},
    "another type": {"a": about(0, 16, dtype="F64")},
    "a hole": {"a": about(8, 16, [2])},
    "deep": b'{"a":' * 50_000,
    "deep notes": {"__metadata__": {"rbtools": "[" * 100_000}, "a": about(0, 16)},
}


def safetensors(header: bytes, length: int | None = None) -> dict[str, Any]:
    size = len(header) if length is None else length
    Path("w.safetensors").write_bytes(size.to_bytes(8, "little") + header + bytes(16))
    return read_checkpoint.read("w.safetensors").state


@pytest.mark.parametrize("case", SAFETENSORS)
def test_a_header_of_safetensors_that_does_not_hold_together(case: str) -> None:
    assert list(safetensors(b'{"a":' + WHOLE + b"}")) == ["a"]
    header = SAFETENSORS[case]
    refused(lambda: safetensors(header if isinstance(header, bytes) else json.dumps(header).encode()))
    for length in (0, 5, 2**31, 2**40, 2**63 - 1):  # not that of the header
        refused(lambda: safetensors(b'{"a":' + WHOLE + b"}", length))  # noqa: B023


def npy(kind: str, shape: Any, data: bytes = b"", header: str | None = None) -> bytes:
    words = {"descr": kind, "fortran_order": False, "shape": shape}
    text = (repr(words) if header is None else header).encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


IMAGES = npy("|u1", (2, 4, 4), bytes(32))
LABELS = npy("<i8", (2,), struct.pack("<2q", 0, 1))
NPZ: dict[str, dict[str, bytes]] = {
    "objects": {"images": npy("|O", (2, 4, 4), bytes(256))},
    "a terabyte": {"images": npy("|u1", (2**36, 4, 4), bytes(32))},
    "a shape that wraps around": {"images": npy("|u1", (2**62, 4, 4), bytes(32))},
    "a negative shape": {"images": npy("|u1", (-2, -4, 4), bytes(32))},
    "a deep header": {"images": npy("", 0, header="(" * 9000)},
    "a long header": {"images": npy("", 0, header="{" + " " * 60_000 + "}")},
    "a header of signs": {"images": npy("", 0, header="-" * 9000 + "1")},
    "a header of 4 GB": {"images": b"\x93NUMPY\2\0\xff\xff\xff\xff{}"},
    "a shape of text": {"images": npy("|u1", "ab", bytes(32))},
    "names of no bytes": {"class_names": npy("<U0", (2**40,))},
    "a label of 2^40": {"labels": npy("<i8", (2,), struct.pack("<2q", 0, 2**40))},
    "2^40 classes": {"classes": npy("<i8", (1,), struct.pack("<q", 2**40))},
    "no number of classes": {"classes": npy("<i8", (0,))},
}


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("case", NPZ)
def test_an_array_that_claims_more_than_there_is(case: str, packed: int) -> None:
    def load(**arrays: bytes) -> Any:
        with zipfile.ZipFile("x.npz", "w", packed) as file:
            for name, data in arrays.items():
                file.writestr(f"{name}.npy", data)
        return datasets.load("npz:x.npz", "test")

    assert len(load(images=IMAGES, labels=LABELS)) == 2
    refused(lambda: load(**{"images": IMAGES, "labels": LABELS, **NPZ[case]}))


def test_outcomes_from_elsewhere_are_numbers_or_nothing() -> None:
    """An archive may bring them into a store."""
    good = base.OutcomeRows(np.ones(3, np.int32), {"seconds": 1.0}, ["cpu"]).encoded()
    assert base.OutcomeRows.decoded(good) is not None
    head = good.partition(b"\n")[0] + b"\n"
    for body in (npy("|O", (1,), bytes(8)), npy("<i4", (2**60,), bytes(8)), npy("", 0, header="(" * 9000)):
        assert base.OutcomeRows.decoded(head + body) is None
    assert base.OutcomeRows.decoded(b"[" * 100_000 + b"\n") is None


def test_an_image_that_is_a_program_is_not_read() -> None:
    """Pillow would have Ghostscript run it, whatever the file's ending."""
    folder = Path("photos/test/a")
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "0.png")
    (folder / "1.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    )
    refused(lambda: datasets.load("imagefolder:photos", "test"), r"1.png cannot be read \(cannot identify")


def test_an_image_that_unpacks_to_gigabytes_is_refused() -> None:
    folder = Path("photos/test/a")
    folder.mkdir(parents=True)
    stream = io.BytesIO()
    Image.new("1", (8, 8)).save(stream, "png")
    data = bytearray(stream.getvalue())
    data[16:24] = struct.pack(">2I", 30_000, 30_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    (folder / "0.png").write_bytes(data)
    refused(lambda: datasets.load("imagefolder:photos", "test"), "exceeds limit")


@pytest.mark.parametrize("label", [2**40, 2**62])
def test_a_table_whose_labels_ask_for_endless_classes(label: int) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "png")
    parquet.write_table(pa.table({"image": [stream.getvalue()] * 2, "label": [0, label]}), "x.parquet")
    refused(lambda: datasets.load("parquet:x.parquet", "test"), "at most 100000 classes")
    Path("x.parquet").write_bytes(Path("x.parquet").read_bytes()[:-60] + b"\xff" * 56 + b"PAR1")
    refused(lambda: datasets.load("parquet:x.parquet", "test"))


def test_a_table_of_more_rows_than_bytes_is_refused() -> None:
    # A run of equal labels takes a few bytes however long it is, and so do images that are missing.
    count = 300_000
    table = pa.table({"image": pa.nulls(count, pa.binary()), "label": pa.array(np.zeros(count, np.int64))})
    parquet.write_table(table, "x.parquet", row_group_size=count // 2)
    refused(lambda: datasets.load("parquet:x.parquet", "test"), f"it claims {count} rows in ")


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{x}: &{x} [*{y}, *{y}, *{y}]\n" for y, x in zip("abcdefghij", "bcdefghijk", strict=True)
)
YAML = {
    "an object": "rb-train: !!python/object/apply:os.system [id]\n",
    "laughs": LAUGHS,
    "merged again and again": "a: &a {k: 1}\nb: {<<: [*a, *a]}\n",
    "itself": "rb-train: &a [*a]\n",
    "deep": "rb-train: " + "[" * 5000,
    "deep mappings": "rb-train: " + "{a: " * 5000,
    "a number without end": f"rb-train: {{eps: {'9' * 6000}}}\n",
    "a date that is none": "rb-train: {eps: 2026-99-99}\n",
    "a list as a key": "[a]: 1\n",
    "not base64": "rb-train: {eps: !!binary x}\n",
}


@pytest.mark.parametrize("case", YAML)
def test_yaml_that_stands_for_more_than_it_is(case: str) -> None:
    Path("c.yaml").write_text(YAML[case])
    with pytest.raises(UsageError) as wrong:
        config._read("c.yaml")
    assert "c.yaml" in str(wrong.value)


def test_a_line_that_is_no_record() -> None:
    for line in (b'{"arch":' * 5000, b'{"arch":{},"n":' + b"9" * 6000 + b"}"):
        refused(lambda line=line: parse(line))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[" + "9" * 6000 + "]", '["a", 1]', "[1e999]"]
)
@pytest.mark.parametrize(
    "read", [lambda file: imagefolder.read_class_map(file, ["a", "b"]), lambda file: indices.read(file, 100)]
)
def test_json_that_is_no_list_of_classes_or_examples(read: Callable[[str], Any], text: str) -> None:
    Path("list.json").write_text(text)
    refused(lambda: read("list.json"), r"list\.json")


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"[" + b"9" * 6000, b'{"a":1', b""])
def test_published_results_that_are_no_json(text: bytes) -> None:
    refused(lambda: parsed(text))


# Unsafe readers, and the modules that may call them, with the reason.
RUNS = {
    # after the check of a published MD5; sent by the same user's other process
    "pickle.loads": {
        "rbtools/datasets/cifar.py",
        "rbtools/execution/ray_engine.py",
        "rbtools/jobs/tile_calls.py",
    },
    "pickle.load": set(),
    "torch.load": {"rbtools/models/unpickle.py"},  # with an unpickler that runs nothing
    "torch.jit.load": {"rbtools/models/programs.py"},  # only with --allow-code
    "torch.export.load": {"rbtools/models/programs.py"},
    "yaml.load": set(),
    "eval": set(),
    "exec": set(),
}


LAST = {name.rpartition(".")[2] for name in RUNS}


@pytest.mark.slow
def test_nothing_else_reads_files_that_can_run() -> None:
    places: dict[str, set[str]] = {name: set() for name in RUNS}
    for path in sorted((ROOT / "rbtools").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            function = node.func if isinstance(node, ast.Call) else None
            last = getattr(function, "attr", None) or getattr(function, "id", None)
            called = ast.unparse(function) if function is not None and last in LAST else ""
            if called in places:
                places[called].add(str(path.relative_to(ROOT)))
            if called in ("np.load", "numpy.load"):
                assert any(word.arg == "allow_pickle" for word in node.keywords), path
    assert places == RUNS


def test_the_table_names_tests_that_there_are() -> None:
    text = (ROOT / "docs/trust.md").read_text("utf-8")
    named = {
        word for line in text.splitlines() for word in line.split("`")[1::2] if word.startswith("tests/")
    }
    assert len(named) > 1 and all((ROOT / name).exists() for name in named)
