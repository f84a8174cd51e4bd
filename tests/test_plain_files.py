"""rbtools/plain_files.py: no path that a record or an option names makes a tool wait, or fills the memory."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rbtools import datasets, plain_files
from rbtools.cli import config
from rbtools.commands import convert, rank
from rbtools.datasets import content_hash, imagefolder, indices, npy
from rbtools.errors import RbError, UsageError
from rbtools.jobs import evidence
from rbtools.models import published, read_checkpoint
from rbtools.records.lines import read
from rbtools.store import checksum
from tests.fingerprints import fingerprint

ROOT = Path(__file__).resolve().parents[1]
RECORD = {"schema": 1, "arch": {"name": "x"}, "metrics": {"acc": 0.5}}


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """A test that waits for ever, or takes all memory, ends with an error."""

    def late(number: int, frame: Any) -> None:
        raise AssertionError("it waits")

    former, limit = signal.signal(signal.SIGALRM, late), resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30, limit[1]))
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
        resource.setrlimit(resource.RLIMIT_AS, limit)


# Functions that read a path from a record, an untrusted folder or an option.
READERS: dict[str, Callable[[str], Any]] = {
    "npz": lambda path: datasets.load(f"npz:{path}", "test"),
    "the hash of npz": lambda path: fingerprint(f"npz:{path}", "test"),
    "parquet": lambda path: datasets.load(f"parquet:{path}", "test"),
    "a checkpoint": lambda path: read_checkpoint.read(path),
    "NATS-Bench's": lambda path: published.read_pickle(Path(path)),
    "adversarial images": evidence.claim_of,
    "a class map": lambda path: imagefolder.read_class_map(path, ["a", "b"]),
    "indices": lambda path: indices.read(path, 100),
    "an array": lambda path: npy.mapped(Path(path)),
    "a sum": content_hash.md5_of,
    "a stored file": checksum.hash_of_file,
}


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device", "folder"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_plain_file_is_refused(reader: str, kind: str) -> None:
    path = "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a device":
        os.symlink("/dev/zero", path)
    elif kind == "folder":
        os.mkdir(path)
    else:
        path = "/dev/zero"
    with guarded(), pytest.raises((RbError, OSError)) as wrong:
        READERS[reader](path)
    if kind != "folder":
        assert "plain file" in str(wrong.value) or "parquet" in reader


def test_a_folder_of_results_with_a_pipe_in_it() -> None:
    os.mkdir("results")
    os.mkfifo("results/x.json")
    with guarded():
        result = CliRunner().invoke(convert.main, ["robustbench", "results"])
    assert result.exit_code == 2 and "plain file" in result.stderr


def test_a_record_that_names_a_device_does_not_end_the_run() -> None:
    """The other records are written, and the record itself with its error."""
    from rbtools.commands import measure

    arch = {"space": "zoo", "name": "simplecnn"}
    os.mkfifo("pipe")
    names = ("digits", "npz:/dev/zero", "npz:pipe", "digits")
    records = [{"schema": 1, "arch": arch, "dataset": name} for name in names]
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    with guarded():
        result = CliRunner().invoke(measure.main, ["params", "--store", "none"], input=lines)
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert ["error" in record for record in told] == [False, True, True, False]
    assert all("plain file" in record["error"]["message"] for record in told[1:3])


@pytest.mark.parametrize("text", ["x" * 100, "é" * 60])
def test_a_list_is_read_up_to_its_limit(text: str) -> None:
    Path("list").write_text(text, "utf-8")
    assert plain_files.read_text("list", most=120) == text
    with pytest.raises(OSError, match="more than 99 bytes"):
        plain_files.read_text("list", most=99)


def poured(path: str, text: str) -> threading.Thread:
    """A pipe, and a thread that writes the text into it."""
    os.mkfifo(path)
    thread = threading.Thread(target=Path(path).write_text, args=(text,), daemon=True)
    thread.start()
    return thread


def test_records_and_settings_come_through_pipes() -> None:
    """As of `rb-rank <(...)` and `--config <(...)`: these are read once, from front to back."""
    threads = [
        poured("records", json.dumps(RECORD) + "\n"),
        poured("config", "rb-rank: {by: acc}\n"),
    ]
    with guarded():
        assert list(read("records")) == [RECORD]
        assert config._paths(["--config", "config"]) == ["config"]
        assert config._read("config") == {"rb-rank": {"by": "acc"}}
    for thread in threads:
        thread.join()


def test_devices_without_an_end_are_no_records_and_no_settings() -> None:
    with guarded():
        with pytest.raises(UsageError, match="Cannot read /dev/zero"):
            config._read("/dev/zero")
        result = CliRunner().invoke(rank.main, ["/dev/zero"])
    assert result.exit_code == 2 and "Cannot read /dev/zero: it is a device" in result.stderr
    with plain_files.streamed(os.devnull) as stream:
        assert stream.read() == b""


# What opens a file to read it, and the modules that may call it with anything but `plain(...)`.
OPENS = set(
    "open fdopen FileIO read_bytes read_text memmap fromfile loadtxt genfromtxt loadmat ZipFile GzipFile"
    " BZ2File LZMAFile TarFile safe_open load_file ParquetFile read_schema read_metadata memory_map read_csv"
    " read_parquet".split()
)
MAY = {
    "a file of the system": "cli/exit_status cli/output cli/terminal datasets/streaming execution/device"
    " execution/precision execution/ray_engine execution/resources measures/jacobian",
    "a file of a package": "cli/docs/pages corruptions/frost datasets/digits datasets/photographs"
    " datasets/published_files records/schema pages/templates papers/packaged papers/printed"
    " papers/formats/robustbench registry zoo/external zoo/leaderboard_names",
    "a file that a recipe wrote": "papers/__main__ papers/pipes papers/figures_of_papers",
    "it is written": "cli/events jobs/corrupted_images jobs/save_images papers/sidebyside store/files"
    " store/lease",
    "a model that is reached": "queries/model",
    "a stream that is open": "cli/source corruptions/jpeg_compression datasets/decode datasets/npz"
    " formats/csv formats/parquet_table jobs/evidence models/unpickle",
}


def opens_otherwise(source: str) -> bool:
    """Whether a call opens a file to read it, and is neither of plain_files nor given `plain(...)`."""
    tree = ast.parse(source)
    own = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "rbtools.plain_files"
        for alias in node.names
    }
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        base, _, name = ast.unparse(call.func).rpartition(".")
        modes = [word.value for word in (*call.args[1:2], *call.args[:1]) if isinstance(word, ast.Constant)]
        if name not in OPENS or (not base and name in own) or (name == "open" and base in OTHERS):
            continue
        writes = name in ("ZipFile", "open_memmap") and "w" in modes
        if not writes and not any("plain(" in ast.unparse(word) for word in call.args[:1]):
            return True
    return False


# Objects of rbtools and of zipfile whose `open` takes the number or the name of a member.
OTHERS = set("archive images tree table self self.table self._zip source super() self.process".split())
OTHERS |= {"batch.partial", "model.partial", "some.partial"}


@pytest.mark.slow
def test_every_file_is_opened_by_plain_files() -> None:
    names = {path: str(path.relative_to(ROOT / "rbtools")) for path in (ROOT / "rbtools").rglob("*.py")}
    found = {name[:-3] for path, name in names.items() if opens_otherwise(path.read_text("utf-8"))}
    assert found - {"plain_files"} == set(" ".join(MAY.values()).split())
