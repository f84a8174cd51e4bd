"""How a piece of work is run: where, with how much memory, and who is told about it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rbtools.store import Store


def discard(text: str) -> None:
    """Tell nobody."""
    return None


def _do_nothing() -> None:
    return None


def discard_event(event: dict[str, Any]) -> None:
    """Tell nobody of an event."""
    return None


class Clock:
    """Seconds by stage of the work: what -v shows."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0  # of stages within the one that runs: they count for themselves

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of what is done within, but for stages of its own."""
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inner
            self._inner = outer + spent


@dataclass
class RunContext:
    """The options that every tool shares.

    `weights` is a folder of published weights, `member` which of several in a file are meant. `allow_code`
    lets networks that are the user's own code run; no record and no file can say so.
    `progress` is told what is going on, in words, and `event` the same for programs; `notify` hears what
    people should know, a line each; `check_cancelled` is called between units of work and raises when the
    work should stop (nobody reads the output any more).
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
    precision: str = "fp32"  # of searches: fp32, bf16, or auto, which the machine decides
    prepare: bool = True  # searches may run on a model made ready for it
    compile: bool = False
    n: int | None = None
    indices: Any = None  # a file's name, or the examples themselves (datasets.indices.Indices)
    archive: str | None = None  # a folder of corrupted images, which then need no clean ones
    name_as: str | None = None
    replace: bool = False
    weights: str | None = None
    member: str | None = None
    allow_code: bool = False
    engine: str = "local"
    ray_address: str | None = None
    jobs: int = 1  # with Ray 0 means as many as the cluster carries
    jobs_per_gpu: int = 1
    worker: int = 0
    unordered: bool = False
    plan: Any = None  # of a dry run (engine.plan.Plan): it hears what the store lacks
    clock: Clock = field(default_factory=Clock)
    progress: Callable[[str], None] = discard
    event: Callable[[dict[str, Any]], None] = discard_event
    notify: Callable[[str], None] = discard
    check_cancelled: Callable[[], None] = _do_nothing

    def __getstate__(self) -> dict[str, Any]:
        """A run travels to another process without its callbacks, which belong to this one."""
        own = {"progress": discard, "notify": discard, "event": discard_event, "check_cancelled": _do_nothing}
        return {**self.__dict__, **own}
