"""The context of a run: the options that all tools share, and the callbacks for messages and progress."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rbtools.execution import LOCAL
from rbtools.store import Store


def discard(text: str) -> None:
    """Discard a message."""


def _do_nothing() -> None:
    """Check nothing."""


def _count_nothing(images: int) -> None:
    """Count no images."""


def discard_event(event: dict[str, Any]) -> None:
    """Discard an event."""


class Clock:
    """Seconds by stage of a job: what -v shows."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0  # seconds of nested stages, to subtract

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the block, excluding nested stages."""
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inner
            self._inner = outer + spent


class Pace:
    """Rate and remaining time of `total` units of work, for the status line.

    `done` of them were finished before the clock starts.
    """

    def __init__(self, total: int, done: int = 0, unit: str = "images") -> None:
        self.total, self.first, self.unit = total, done, unit
        self.start = time.monotonic()

    def words(self, done: int) -> str:
        """`1,234 images/s · 0:42 left`; empty before the first unit is done."""
        seconds = time.monotonic() - self.start
        if done <= self.first or seconds <= 0:
            return ""
        rate = (done - self.first) / seconds
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"{shown} {self.unit}/s · {clock_time((self.total - done) / rate)} left"


def clock_time(seconds: float) -> str:
    """`0:42`, `1:02:03`."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass
class RunContext:
    """The options that every tool shares.

    `weights` is a folder of published weights, `member` the name of one of several networks in a file.
    `allow_code` lets networks that are the user's own code run; no record and no file can set it. `progress`
    takes text for the status line, `event` the same for programs, `notify` messages for people and `warn`
    warnings, a line each. `check_cancelled` is called between units of work and raises when the run should
    stop (nobody reads the output any more), `after_batch` when so many images are done.
    """

    tool: str
    store: Store = field(default_factory=lambda: Store(None))
    seed: int = 0
    device: str = "auto"
    batch: int | None = None
    threads: int | None = None
    dataset: str | None = None
    data_dir: str | None = None
    class_map: str | None = None
    download: bool = False
    split: str = "test"
    precision: str = "fp32"  # of attack searches: fp32, bf16, or auto: by the machine
    prepare: bool = True  # attacks may search on the fast model
    compile: bool = False
    n: int | None = None
    indices: Any = None  # a file's name, or the examples themselves (datasets.indices.Indices)
    archive: str | None = None  # a folder of corrupted images, used in place of clean ones
    name_as: str | None = None
    replace: bool = False
    weights: str | None = None
    member: str | None = None
    allow_code: bool = False
    engine: str = LOCAL  # the name of the executor (execution.ENGINES)
    address: str | None = None  # of the engine's cluster
    jobs: int = 1  # workers; 0: as many as the engine has room for (`Executor.own_capacity`)
    jobs_per_gpu: int = 1  # 1: as many as are measured to be fastest, where `gpus` are measured
    # GPUs whose workers are measured in the first minute: how many (unless `jobs_per_gpu` says it), and
    # whether they are processes or jobs of one process in turn.
    gpus: int = 0
    worker: int = 0  # the number of this worker, from 0 on
    own_stream: bool = False  # compute on a CUDA stream of this thread: it takes turns with others
    divide: bool = False  # processes that share the store share the batches of an evaluation
    # For how many one evaluation is cut, not how many there are; 1 for several records, 0 where `jobs` is 0.
    workers: int = 1
    helps: bool = False  # this process computes batches of evaluations that others hold
    unordered: bool = False
    plan: Any = None  # of a dry run (execution.dry_run.DryRun): collects what the store lacks
    clock: Clock = field(default_factory=Clock)
    progress: Callable[[str], None] = discard
    event: Callable[[dict[str, Any]], None] = discard_event
    notify: Callable[[str], None] = discard
    warn: Callable[[str], None] = discard
    check_cancelled: Callable[[], None] = _do_nothing
    after_batch: Callable[[int], None] = _count_nothing

    @property
    def has_workers(self) -> bool:
        """Whether other processes do the jobs: several of them, or one for each GPU to begin with."""
        return self.jobs != 1 or self.gpus > 0

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the callbacks, which belong to this process."""
        callbacks = {"progress": discard, "notify": discard, "warn": discard, "event": discard_event}
        return {**self.__dict__, **callbacks, "check_cancelled": _do_nothing, "after_batch": _count_nothing}
