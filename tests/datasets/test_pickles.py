"""Restricted unpickling: data of every Python and numpy comes through, nothing that could run does."""

from __future__ import annotations

import io
import os
import pickle

import numpy as np
import pytest

from rbtools import datasets
from rbtools.datasets import cifar
from rbtools.errors import RbError
from rbtools.unpickle import Refused
from tests.datasets import archives


def loads(data):
    return cifar.read_pickle(io.BytesIO(data))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_python_3_writes_is_read(protocol):
    given = {
        "data": archives.pixels(0, 4, 12),
        "labels": [1, 2, 3, 255, 2**40],
        "mean": np.linspace(0, 1, 5),
        "turned": np.asfortranarray(archives.pixels(1, 3, 5)),
        "big": np.arange(4, dtype=">i4"),
        "flags": np.array([True, False]),
        "one": np.float64(0.25),
        "whole": np.int32(-7),
        "deep": {"a": [(1, None), True, "text", b"bytes", ""], b"b": 1.5},
    }
    data = pickle.dumps(given, protocol)
    found, given = loads(data), pickle.loads(data)  # NumPy turns the byte order of `big`
    assert set(found) == set(given)
    for key, value in given.items():
        if isinstance(value, np.ndarray):
            assert found[key].dtype == value.dtype and np.array_equal(found[key], value)
        else:
            assert found[key] == value
            assert not isinstance(found[key], np.generic)


def test_what_python_2_wrote_is_read():
    given = {"data": archives.pixels(0, 3, 300), "labels": [0, 9, 4], "name": "x" * 300, "n": (1, None, True)}
    found = loads(archives.python2(given))
    assert np.array_equal(found["data"], given["data"]) and found["data"].dtype == np.uint8
    assert found["labels"] == [0, 9, 4] and found["name"] == b"x" * 300 and found["n"] == (1, None, True)


def test_newer_names_of_numpys_functions_are_read():
    data = pickle.dumps({"data": archives.pixels(0, 3, 5)}, 2)
    for old, new in ((b"numpy.core.", b"numpy._core."), (b"numpy._core.", b"numpy.core.")):
        assert loads(data.replace(old, new))["data"].shape == (3, 5)


class Calls:
    """Pickles into a call of a function with arguments."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def traces(tmp_path):
    return tmp_path / "it ran"


@pytest.mark.parametrize(
    "kind",
    [
        np.array([{}], object),
        np.array([(1, 2)], [("a", "i4"), ("b", "i4")]),
        np.array(["text"]),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.array([1j]),
    ],
    ids=["objects", "structures", "texts", "dates", "complex"],
)
def test_arrays_of_other_things_than_numbers_are_refused(kind):
    with pytest.raises((Refused, ValueError, TypeError)):
        loads(pickle.dumps({"data": kind}, 2))


@pytest.mark.parametrize("where", ["folder", "archive"])
def test_a_malicious_archive_is_one_clear_error(where, tmp_path, monkeypatch):
    archives.cifar10(tmp_path)
    monkeypatch.setattr(cifar.Cifar10, "sizes", {"train": 20, "test": 4})
    folder = tmp_path / "cifar-10-batches-py"
    victim, trace = folder / "test_batch", traces(tmp_path)
    victim.write_bytes(pickle.dumps({"data": Calls(os.system, f"touch '{trace}'")}))
    shown = str(victim)
    if where == "archive":
        packed = archives.tar(tmp_path / "cifar-10-python.tar.gz", folder)
        for path in folder.iterdir():
            path.unlink()
        shown = f"{packed}:test_batch"
    with pytest.raises(RbError) as caught:
        datasets.load("cifar10", "test", tmp_path)
    assert (
        f"The file {shown} was not read: it asks for {os.system.__module__}.system, which could run code"
        in (str(caught.value))
    )
    assert not trace.exists()
