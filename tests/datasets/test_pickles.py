"""Restricted unpickling: data of every Python and numpy comes through, nothing that could run does."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

from rbtools import datasets
from rbtools.datasets import cifar, pickles
from rbtools.errors import RbError
from tests.datasets import archives


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
    found = pickles.loads(pickle.dumps(given, protocol))
    assert set(found) == set(given)
    for key, value in given.items():
        if isinstance(value, np.ndarray):
            assert found[key].dtype == value.dtype and np.array_equal(found[key], value)
        else:
            assert found[key] == value
            assert not isinstance(found[key], np.generic)


def test_what_python_2_wrote_is_read():
    given = {"data": archives.pixels(0, 3, 300), "labels": [0, 9, 4], "name": "x" * 300, "n": (1, None, True)}
    found = pickles.loads(archives.python2(given))
    assert np.array_equal(found["data"], given["data"]) and found["data"].dtype == np.uint8
    assert found["labels"] == [0, 9, 4] and found["name"] == b"x" * 300 and found["n"] == (1, None, True)


def test_pickles_written_for_the_tests_are_those_of_python_2():
    """The standard library reads them as it reads the official CIFAR files."""
    given = {"data": archives.pixels(0, 3, 300), "labels": [0, 9, 4]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some numpys warn of what they wrote themselves back then
        found = pickle.loads(archives.python2(given), encoding="bytes")
    assert np.array_equal(found[b"data"], given["data"]) and found[b"labels"] == [0, 9, 4]


def test_newer_names_of_numpys_functions_are_read():
    data = pickle.dumps({"data": archives.pixels(0, 3, 5)}, 2)
    for old, new in ((b"numpy.core.", b"numpy._core."), (b"numpy._core.", b"numpy.core.")):
        assert pickles.loads(data.replace(old, new))["data"].shape == (3, 5)


# --- what must not run ----------------------------------------------------------------------------


class Calls:
    """Pickles into a call of a function with arguments."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def traces(tmp_path):
    return tmp_path / "it ran"


def touching(trace):
    return f"__import__('pathlib').Path({str(trace)!r}).touch()"


MALICIOUS = {
    "os.system": lambda trace: pickle.dumps({"data": Calls(os.system, f"touch '{trace}'")}),
    "exec": lambda trace: pickle.dumps({"data": Calls(exec, touching(trace))}),
    "eval as a key": lambda trace: pickle.dumps({Calls(eval, touching(trace)): 1}),
    "open": lambda trace: pickle.dumps(Calls(open, str(trace), "w")),
    "a class": lambda trace: pickle.dumps({"data": Path(trace)}),
    "numpy.load": lambda trace: pickle.dumps({"data": Calls(np.load, str(trace), None, True)}),
    "numpy's memmap": lambda trace: pickle.dumps({"data": Calls(np.memmap, str(trace), "u1", "w+", 0, 8)}),
    "by hand, protocol 0": lambda trace: f"cos\nsystem\n(S'touch {trace.name}'\ntR.".encode(),
    "getattr": lambda trace: b"c__builtin__\ngetattr\n(cnumpy\nndarray\nS'tofile'\ntR.",
    "dotted name": lambda trace: b"\x80\x04\x8c\x05numpy\x8c\x0aos.listdir\x93\x8c\x01.\x85R.",
    "a name inside numpy": lambda trace: b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.__new__\x93)R.",
    "copyreg": lambda trace: b"ccopyreg\n_reconstructor\n(cnumpy\nndarray\ncnumpy\ndtype\nNtR.",
    "codecs.decode": lambda trace: b"c_codecs\ndecode\n(S'x'\nS'rot13'\ntR.",
}


@pytest.mark.parametrize("kind", MALICIOUS)
def test_code_in_a_pickle_does_not_run(kind, tmp_path):
    trace = traces(tmp_path)
    with pytest.raises((pickles.Refused, pickle.UnpicklingError, TypeError)):
        pickles.loads(MALICIOUS[kind](trace))
    assert not trace.exists() and not list(tmp_path.iterdir())


def test_the_malicious_pickles_would_run_elsewhere(tmp_path):
    """Else the test above could not fail."""
    for kind in ("os.system", "exec", "eval as a key", "numpy's memmap"):
        trace = traces(tmp_path)
        pickle.loads(MALICIOUS[kind](trace))
        assert trace.exists()
        trace.unlink()


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
    with pytest.raises((pickles.Refused, ValueError, TypeError)):
        pickles.loads(pickle.dumps({"data": kind}, 2))


@pytest.mark.parametrize(
    "text",
    [
        # Attributes set on what find_class gave: on its instances, and on itself.
        b"cnumpy.core.multiarray\n_reconstruct\n}S'__call__'\nI1\nsb.",
        b"cnumpy.core.multiarray\n_reconstruct\n(N}S'__setstate__'\nI1\nstb.",
        b"cnumpy\nndarray\n(N}S'x'\nI1\nstb.",
        # New objects of what is named.
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02cnumpy\ndtype\n)\x81.",
        # Arrays whose state is none.
        b"cnumpy.core.multiarray\n_reconstruct\n(tR(I1\nI2\nI3\ntb.",
        b"cnumpy.core.multiarray\n_reconstruct\n(tR(I1\n(I9\ntcnumpy\ndtype\n(S'u1'\ntRI00\nS'abc'\ntb.",
        b"cnumpy.core.multiarray\nscalar\n(S'u1'\nS'a'\ntR.",
        b"c_codecs\nencode\n(S'a'\nS'utf-8'\ntR.",
        b"\x80\x02]q\x00h\x00a.",  # a list in itself, which is no dict
        b"Pan id\n.",
        b"",
        b"\x80\x63.",
    ],
)
def test_odd_pickles_end_in_an_error(text):
    with pytest.raises(Exception) as caught:
        pickles.loads(text)
    assert isinstance(caught.value, Exception)
    # Nothing sticks: the next pickle is read as ever.
    assert pickles.loads(pickle.dumps({"data": archives.pixels(0, 2, 2)}))["data"].shape == (2, 2)


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


def test_a_pickle_from_a_stream_is_read_to_its_end():
    stream = io.BytesIO(pickle.dumps({"a": 1}) + b"rest")
    assert pickles.load(stream) == {"a": 1}
