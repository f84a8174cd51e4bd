"""Images: data sets as image files, tables and arrays, and saved adversarial images."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, scalar_dtypes
from PIL import Image
from pyarrow import parquet

from rbtools import datasets
from rbtools.execution.run import Run
from rbtools.jobs.evidence import EvidenceJob
from rbtools.store import Store
from tests import runner
from tests.fuzz.properties import held, new_file
from tests.fuzz.strategies import Bytes, Draw, changed, damaged, json_of, zipped
from tests.golden import make as golden

EXAMPLES = settings(max_examples=20)
MODES = {"PNG": "RGB", "JPEG": "CMYK", "GIF": "P", "BMP": "1", "PPM": "L", "TIFF": "I;16", "WEBP": "RGBA"}


def load(name: str) -> None:
    """The first images of a data set, as an evaluation gets them."""
    with held():
        data = datasets.load(name, "test")
        count = min(len(data), 4)
        images = data.images[data.labels.new_tensor(range(count))]
        assert len(images) == count and int(data.labels.max()) < data.classes


def image(form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new(MODES[form], (8, 8)).save(stream, form)
    return stream.getvalue()


@EXAMPLES
@given(st.sampled_from([*MODES]).map(image).flatmap(lambda data: damaged(data, 400) | damaged(data)))
def test_an_image(data: bytes) -> None:
    folder = new_file("0.png", data).parent
    photos = folder / "photos/test/a"
    photos.mkdir(parents=True)
    (folder / "0.png").rename(photos / "0.png")
    (photos / "1.png").write_bytes(image())
    load(f"imagefolder:{folder}/photos")


@st.composite
def tables(draw: Draw) -> bytes:
    """A table of other types and packings, or with other bytes in its pages and its footer."""
    column = draw(st.lists(st.sampled_from([image()] * 9 + [b"", None]) | damaged(image()), min_size=1))
    if draw(st.booleans()):
        path = draw(st.text(max_size=5))
        column = [None if one is None else {"bytes": one, "path": path} for one in column]
    label = st.sampled_from((0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 255, 2**40, None))
    labels = draw(st.lists(label, min_size=len(column), max_size=len(column)))
    kind = draw(st.sampled_from((pa.int64(), pa.int64(), pa.int64(), pa.int8(), pa.float64(), pa.string())))
    first, second = draw(st.sampled_from([("image", "label")] * 3) | st.tuples(*[st.text(max_size=5)] * 2))
    try:
        numbers = pa.array(labels, pa.int64()).cast(kind, safe=False)
        table = pa.table({first: column, second: numbers})
    except (pa.ArrowException, OverflowError):  # such a table cannot be made
        assume(False)
    if draw(st.booleans()):
        notes = {"info": {"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": draw(json_of(draw(changed(notes))))})
    stream = io.BytesIO()
    packing = draw(st.sampled_from(("none", "snappy", "gzip", "zstd")))
    parquet.write_table(table, stream, compression=packing, use_dictionary=draw(st.booleans()))
    return draw(st.just(stream.getvalue()) | damaged(stream.getvalue()))  # type: ignore[no-any-return]


@EXAMPLES
@given(tables())
def test_a_table(data: bytes) -> None:
    load(f"parquet:{new_file('x.parquet', data)}")


def saved(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def rewritten(data: bytes) -> Bytes:
    """An .npz file with damaged arrays, most often in their headers, or damaged as a whole."""
    return zipped(data, lambda name, inner: st.just(inner) | st.just(inner) | damaged(inner, 128)) | damaged(
        data
    )


@st.composite
def archives(draw: Draw) -> bytes:
    content = {"images": np.zeros((3, 4, 4), np.uint8), "labels": np.arange(3)}
    content |= draw(
        st.sampled_from(({}, {"class_names": np.array(["a", "b", "c"])}, {"classes": np.array(3)}))
    )
    if draw(st.booleans()):
        odd = arrays(scalar_dtypes(), array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
        content[draw(st.sampled_from([*content]))] = draw(odd)
    return draw(st.just(saved(**content)) | rewritten(saved(**content)))  # type: ignore[no-any-return]


@EXAMPLES
@given(archives())
@example(saved(**{"a\nb": np.zeros(1)}))
def test_arrays(data: bytes) -> None:
    load(f"npz:{new_file('x.npz', data)}")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a record of an accuracy under an attack, and the file of its adversarial images."""
    folder = tmp_path_factory.mktemp("attacked")
    text = golden.inputs(folder)["erm"]
    result = runner.run("attack", ["fgsm", "--eps", "24", "--n", "6", "--save-adv", f"{folder}/adv"], text)
    (folder / "record.json").write_text(result.stdout)
    return folder


CLAIM = ("n", "eps", "norm", "metric", "split", "value", "grid", "defend", "checkpoint", "indices")


@EXAMPLES
@given(data=st.data())
def test_adversarial_images(attacked: Path, data: st.DataObject) -> None:
    record = json.loads((attacked / "record.json").read_bytes())
    content = dict(np.load(next(attacked.glob("adv/*.npz"))))
    if data.draw(st.booleans()):
        claim = data.draw(changed(json.loads(str(content["claim"])), CLAIM).flatmap(json_of))
        content["claim"] = np.array(claim.decode("utf-8", "replace"))
    if data.draw(st.booleans()):  # the file's own claim is judged
        del record["metrics"], record["evals"], record["checksums"]
    path = new_file("x.npz", data.draw(st.just(saved(**content)) | rewritten(saved(**content))))
    settings = Run.of(tool="rb-verify", store=Store("rb-store"), device="cpu", threads=1)
    with held():
        entries = EvidenceJob(str(path))(record, settings)["verify"]["entries"]
        assert all(entry["verdict"] in ("match", "differs") for entry in entries.values())
