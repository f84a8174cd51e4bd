"""A run: the options that all tools share, in parts by their purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from rbtools.execution import LOCAL
from rbtools.report import Report
from rbtools.settings import Settings
from rbtools.store import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Selection:
    """Which images and which weights.

    n: the number of examples, the first ones in the split's fixed order; None for all. indices: the name of a
    file, or the examples themselves (datasets.indices.Indices). archive: a folder of corrupted images, used
    in place of clean ones. classes: the network's classes that the images show, separated by commas. weights:
    a folder of published weights; member: the name of one of several networks in a file. allow_code: whether
    networks that are the user's own code may run; no record and no file can set this. defend: the stages
    before the network (defences.stages.Stages).
    """

    dataset: str | None = None
    data_dir: str | None = None
    class_map: str | None = None
    classes: str | None = None
    download: bool = False
    split: str = "test"
    n: int | None = None
    indices: Any = None
    archive: str | None = None
    weights: str | None = None
    member: str | None = None
    allow_code: bool = False
    defend: Any = None


@dataclass(frozen=True)
class Placement:
    """The placement of work: engine, workers and their tasks.

    engine: its name (execution.ENGINES); address: the address of its cluster. jobs: the number of workers; 0
    for as many as the engine has room for (`Engine.own_capacity`). jobs_per_gpu: the number of jobs that
    share a GPU of a cluster. worker: the number of this worker, from 0 on. shard: (i, N), the part of a
    model's tiles that this process computes first; other processes compute their parts into the same store.
    """

    device: str = "auto"
    threads: int | None = None
    engine: str = LOCAL
    address: str | None = None
    jobs: int = 1
    jobs_per_gpu: int = 1
    worker: int = 0
    shard: tuple[int, int] = (1, 1)
    unordered: bool = False

    @property
    def has_workers(self) -> bool:
        """Whether other processes do the jobs."""
        return self.jobs != 1


@dataclass(frozen=True)
class Run:
    """What a job gets besides its record. No field changes after construction.

    pool: the engine whose workers share the tiles of an evaluation; without it, this process measures them.
    plan: for a dry run (execution.dry_run.DryRun), collects what the store lacks. name_as, replace: the name
    of a new entry, and whether it replaces others of this name. command: the command line, without paths of
    this machine.
    """

    tool: str = "rbtools"
    store: Store = field(default_factory=lambda: Store(None))
    settings: Settings = field(default_factory=Settings)
    selection: Selection = field(default_factory=Selection)
    placement: Placement = field(default_factory=Placement)
    report: Report = field(default_factory=Report)
    pool: Any = None
    plan: Any = None
    name_as: str | None = None
    replace: bool = False
    command: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the engine: a worker measures its tiles itself."""
        return {**self.__dict__, "pool": None}

    def each(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """The results of calls; a dry run notes what any of them lacks (`DryRun.each`)."""
        if self.plan is None:
            return [call() for call in calls]
        results: list[T] = self.plan.each(calls)
        return results

    @property
    def labels(self) -> dict[str, str]:
        """The labels of this run's entries: its tool, and its command line if it has one."""
        return {"tool": self.tool, **({} if self.command is None else {"command": self.command})}

    @classmethod
    def of(cls, tool: str = "rbtools", store: Store | None = None, **options: Any) -> Run:
        """A run with these options, which have the names of the fields in the parts.

        Raises TypeError for an unknown option.
        """
        return cls(tool, Store(None) if store is None else store).changed(**options)

    def changed(self, **options: Any) -> Run:
        """The run with other values of some options, of any part."""
        own = {name: value for name, value in options.items() if name in _OWN}
        parts: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            if name not in own:
                parts.setdefault(_part_of(name), {})[name] = value
        changed = {part: replace(getattr(self, part), **values) for part, values in parts.items()}
        return replace(self, **own, **changed)

    def options(self, names: Iterable[str]) -> dict[str, Any]:
        """Maps those of these options that have a value to it. Raises TypeError as `of` does."""
        parts = {name: self if name in _OWN else getattr(self, _part_of(name)) for name in names}
        values = {name: getattr(part, name) for name, part in parts.items()}
        return {name: value for name, value in values.items() if value}


_OWN = {part.name for part in fields(Run)}
_PART_OF: Mapping[str, str] = {
    option.name: part
    for part, kind in (
        ("settings", Settings),
        ("selection", Selection),
        ("placement", Placement),
        ("report", Report),
    )
    for option in fields(kind)
}


OPTIONS = frozenset(_OWN | _PART_OF.keys())  # the names of options that `Run.of` accepts


def _part_of(name: str) -> str:
    if name not in _PART_OF:
        raise TypeError(f"A run has no option {name!r}.")
    return _PART_OF[name]
