"""Fixtures of all tests: their own home, store and folder, one thread, no network, fixed seeds."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Before anything imports numpy or torch: the test processes share the cores, and sums must not
# depend on how many threads made them.
THREADS = os.environ.get("RBTOOLS_TEST_THREADS", "1")
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = THREADS
# Where a command takes more, threads that wait for each other sleep: spinning takes the other process's core.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

# Hundreds of processes that tests start import the package: none compiles it again, whatever the user sets.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts the tests in the background lets them, and the processes that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests as on another machine (tests/README.md): the processes that tests start are changed as this one is.
MACHINE = ROOT / "tests" / "machine"
OTHER_MACHINE = bool({"RBTOOLS_TEST_SEED", "RBTOOLS_TEST_BF16"} & set(os.environ))
if OTHER_MACHINE:
    runpy.run_path(str(MACHINE / "sitecustomize.py"))

# numpy, if it is there, comes with it
from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

TIMES_LONGER = 20

# The same examples in every run: a failure must be there again when it is looked for. The isolating fixture
# below is made once for all examples of a test, which is intended.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Other examples in every run and twenty times as many: --hypothesis-profile=long, by hand.
settings.register_profile(
    "long",
    settings.get_profile("repeatable"),
    derandomize=False,
    print_blob=True,
    max_examples=TIMES_LONGER * settings.get_profile("repeatable").max_examples,
)
settings.load_profile("repeatable")


_FOREIGN = ("RB_", "XDG_", "TORCH_", "SLURM_")  # settings of the user's that tests do not see


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, nor a process it starts, sees the user's files, settings or terminal."""
    from rbtools.datasets import digits

    st.text().validate()  # makes tables of characters, in a new clone for 2 s: no case is charged with them
    home = tmp_path_factory.mktemp("home")
    here = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(_FOREIGN) or name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
                patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("RB_STORE", str(home / "rb-store"))
        # Commands typed as in the README (`rb-arch | ...`) are those of this environment and tree.
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        if OTHER_MACHINE:
            patch.setenv("PYTHONPATH", str(MACHINE), prepend=os.pathsep)
        patch.setattr(digits, "raw", cache(digits.raw))  # thousands of commands load them
        patch.setattr(os, "fsync", os.fstat)  # no test cuts the power: only a wrong handle is noticed
        os.chdir(home)
        yield
        os.chdir(here)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts in an empty folder of its own, with an empty store beside what it writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RB_STORE", str(tmp_path / "rb-store"))


# Two convolutions and a skip in a cell: an epoch on digits takes some 0.3 s on one core.
SMALL_ARCH = {
    "space": "nasbench201",
    "name": "small",
    "str": "|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|",
    "channels": 4,
    "cells": 1,
}


@pytest.fixture(scope="session")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A store with small networks trained on digits, and their records as JSON by method."""
    from rbtools.execution.run import Run
    from rbtools.store import Store
    from rbtools.trainer.recipe import Recipe
    from rbtools.trainer.train_model import train
    from rbtools.training import METHODS

    folder = tmp_path_factory.mktemp("trained") / "rb-store"
    run = Run.of(tool="rb-train", store=Store(folder), device="cpu", threads=1)
    methods = {
        "erm": (METHODS.build("erm"), Recipe(epochs=2, lr=0.2)),
        "pgd": (
            METHODS.build("pgd", attack_steps=2, eps=16 / 255, step_size=8 / 255),
            Recipe(epochs=1, lr=0.2),
        ),
    }
    record = {"schema": 1, "arch": SMALL_ARCH, "dataset": "digits", "mine": {"kept": [1, 2]}}
    return folder, {name: json.dumps(train(record, *how, run)) for name, how in methods.items()}


@pytest.fixture
def trained(_trained: tuple[Path, dict[str, str]], tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Records of trained networks, "erm" and "pgd"; the test's own store has their checkpoints."""
    folder, records = _trained
    shutil.copytree(folder, tmp_path / "rb-store")
    return {name: json.loads(text) for name, text in records.items()}


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stamp of every file is believed in this process, however young the file is."""
    from rbtools.store import checksum

    monkeypatch.setattr(checksum, "RESOLUTION_SECONDS", -3600.0)


@pytest.fixture
def overwrite() -> Callable[[Path, bytes], None]:
    """Give a file other content in its place: inode, size and time of modification stay."""

    def overwritten(path: Path, data: bytes) -> None:
        before = path.stat()
        assert len(data) == before.st_size and data != path.read_bytes()
        while path.stat().st_ctime_ns == before.st_ctime_ns:  # in the tick in which it was written
            time.sleep(0.001)
            path.write_bytes(data)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return overwritten


@pytest.fixture
def known(trained: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The same records, but the network of each is one whose behaviour is known on every machine.

    It takes the class whose mean image is nearest: accuracy 324 of 355, and no test image is near a border.
    """
    from rbtools.inputs import resolve
    from tests.networks import class_means, nearest

    network = nearest(class_means())
    monkeypatch.setattr(resolve, "load_model", lambda *_: network)
    return trained


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of generated 32x32 photographs, ten classes, `train` (2 each) and `val` (3 each)."""
    import numpy as np
    from PIL import Image

    root = tmp_path_factory.mktemp("data") / "photos"
    generator = np.random.default_rng(0)
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    for split, count in (("train", 2), ("val", 3)):
        for name in names:
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                # Smooth like a photograph: noise of 4x4 pixels, enlarged.
                pixels = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                image = Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC)
                image.save(folder / f"{number}.png")
    return root


def _refuse_other_machines(address: Any) -> None:
    host = address[0] if isinstance(address, tuple) else address
    name = host.decode() if isinstance(host, bytes) else host
    if isinstance(address, tuple) and not (name in ("localhost", "::1", "") or str(name).startswith("127.")):
        raise AssertionError(
            f"A test reached for {name!r}. Tests make or ship their data, they never download."
        )


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Refuse connections and name look-ups beyond this machine."""
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        _refuse_other_machines(address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        _refuse_other_machines(address)
        return connect_ex(self, address)

    def guarded_getaddrinfo(host: Any, *rest: Any, **options: Any) -> Any:
        _refuse_other_machines((host or "", 0))
        return getaddrinfo(host, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
        yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    """A network that a test builds has the same weights whichever tests ran before it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int(os.environ.get("RBTOOLS_TEST_SEED", "0")))


@pytest.fixture(autouse=True)
def _tracer() -> Iterator[None]:
    """Restore tracing (coverage) after a test of code that switches it off."""
    outer = sys.gettrace()
    yield
    if sys.gettrace() is not outer:  # AutoAttack's own check for dynamic models leaves none behind
        sys.settrace(outer)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restore one thread after a command that ran a large network in this process on all cores."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != int(THREADS):
        torch.set_num_threads(int(THREADS))


LONGEST_SECONDS = 6.0  # of the processor, of a case that `make test` runs, where _slowness() is 1: aim at a third


def _slowness() -> float:
    """The time that this processor needs now for a fixed loop, as a multiple of 0.1 s, and at least 1."""
    begin = time.process_time()
    sum(map(len, map(str, range(500_000))))
    return max(1.0, (time.process_time() - begin) / 0.1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a case that takes long and is not marked `slow`: `make test` is to end in minutes.

    A case in which a process imports a large package (torch, its compiler) is not judged.
    """
    begin, modules = time.process_time(), len(sys.modules)
    result = yield
    seconds = time.process_time() - begin
    most = LONGEST_SECONDS * (TIMES_LONGER if _in_the_long_profile() else 1)
    marked = any(map(item.get_closest_marker, ("slow", "smoke", "processes")))
    judged = not marked and len(sys.modules) < modules + 300
    if judged and seconds > most and seconds > most * _slowness():
        pytest.fail(f"took {seconds:.1f} s of the processor; mark it with @pytest.mark.slow or shorten it")
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests begin first; those marked `gpu` are skipped where there is none; others say what they use.

    A long test that starts last delays the end of the whole run. Torch is asked for a GPU only if there are
    tests for one.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    _prolong(items)
    if config.getoption("loadgroup", False):
        _name_groups(items)
    for item in items:
        if "_trained" in getattr(item, "fixturenames", ()) or _matches(_TRAINING, item.path):
            item.add_marker("trains")
        elif _matches(_TORCH, item.path):
            item.add_marker("arithmetic")
        if _starts_processes(item):
            item.add_marker("processes")
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("extra")
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


_LEFT = {
    "extra": "with packages of the extra test-all (mkdocs, mlflow, playwright, Ray, tensorboard)",
    "processes": "with processes of their own",
    "slow": "slow",
}
_left: Counter[str] = Counter()


def pytest_deselected(items: list[pytest.Item]) -> None:
    marks = ([mark for mark in ("smoke", *_LEFT) if item.get_closest_marker(mark)] for item in items)
    _left.update(first for first, *_ in filter(None, marks) if first != "smoke")


def pytest_sessionfinish(session: pytest.Session) -> None:
    getattr(session.config, "workeroutput", {})["left"] = dict(_left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # Every process of pytest-xdist collects every test.
    _left.update(Counter(getattr(node, "workeroutput", {}).get("left", {})) - _left)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that `make test` leaves out."""
    kinds = "; ".join(f"{_left[mark]:,} {words}" for mark, words in _LEFT.items() if _left[mark])
    if kinds:
        terminalreporter.write_line(f"Left to make test-all: {_left.total():,} tests: {kinds}.")


def _name_groups(items: list[pytest.Item]) -> None:
    """Append the group of a test to its name, from which pytest-xdist reads it.

    pytest-xdist 3.8 does so in an attribute that pytest 9.2 no longer reads (its issue 1386): without this,
    every process starts a cluster of Ray, and waits until that of the other has ended.
    """
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and hasattr(item, "_id"):
            item._id = type(item._id).parse(f"{item.nodeid}@{group.args[0]}")


# What a file of tests imports where it trains networks of its own, and where it computes with torch.
_TRAINING = re.compile(
    r"rbtools\.trainer(\.| import .*\b)(train_model|recipe)\b"
    r"|rbtools\.search import .*\bsupernet_search\b"
    r"|rbtools\.commands(\.train\b| import .*\btrain\b)|\brbtools\.train\(|\"train\": \["
    r"|\brun\(\"train\""
)
_TORCH = re.compile(r"^(import|from) torch\b", re.M)


@cache
def _matches(imports: re.Pattern[str], file: Path) -> bool:
    return imports.search(file.read_text("utf-8")) is not None


# What a test calls that starts another process, or runs in a browser or on Ray.
_STARTERS = {"subprocess", "multiprocessing", "in_a_process", "Processes", "RayEngine", "chromium", "browser"}
_JOBS = re.compile(r"--jobs|--engine|torchrun")


def _starts_processes(item: pytest.Item) -> bool:
    """Whether a test, one of its fixtures or a function of its file that it calls starts other processes."""
    starters = _starters(item.path)
    names = {getattr(item, "originalname", item.name), *getattr(item, "fixturenames", ())}
    return not starters.isdisjoint(names)


@cache
def _starters(file: Path) -> frozenset[str]:
    """The functions of a file of tests that start other processes, themselves or by one another."""
    text = file.read_text("utf-8")
    if not (_JOBS.search(text) or any(word in text for word in _STARTERS)):
        return frozenset(_STARTERS)
    tree = ast.parse(text)
    uses: dict[str, set[str]] = {}
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        nodes = [*ast.walk(function)]
        uses[function.name] = {node.id for node in nodes if isinstance(node, ast.Name)}
        uses[function.name] |= {argument.arg for argument in function.args.args}
        texts = [
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        if any(map(_JOBS.search, texts)):
            uses[function.name].add("subprocess")
    starters = set(_STARTERS)
    while more := {name for name, used in uses.items() if name not in starters and used & starters}:
        starters |= more
    return frozenset(starters)


def _in_the_long_profile() -> bool:
    return settings.default == settings.get_profile("long")


def _prolong(items: list[pytest.Item]) -> None:
    """In the long profile, tests that say how many examples they want get more of them, too."""
    if not _in_the_long_profile():
        return
    tests = {id(test): test for test in (getattr(item, "obj", None) for item in items)}
    for test in tests.values():
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None and own.max_examples < settings.default.max_examples:
            more = settings(own, max_examples=TIMES_LONGER * own.max_examples)
            test._hypothesis_internal_use_settings = more
