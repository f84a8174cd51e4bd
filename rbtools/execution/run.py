"""A run: the options that all tools share, grouped by purpose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rbtools.execution import LOCAL
from rbtools.execution.report import Report
from rbtools.execution.settings import Settings
from rbtools.store import Store


@dataclass(frozen=True)
class Selection:
    """The images and the weights that a run uses.

    `n` is the number of examples, which are the first ones in the fixed order of the split; None means all.
    `indices` is the name of a file, or the examples themselves (`datasets.indices.Indices`). `archive` is a
    folder of corrupted images that replace the clean images. `classes` are the network's classes that the
    images show, separated by commas. `preprocessing` describes how images are scaled and cropped, as in a
    record, and `normalize` is the [mean, std] of `--transform`. `weights` is a folder of published weights,
    and `member` is the name of one of several networks in a file. `allow_code` permits running networks that
    are the user's own code; no record and no file can set this. `defend` contains the stages before the
    network (`defences.stages.Stages`).
    """

    dataset: str | None = None
    data_dir: str | None = None
    class_map: str | None = None
    classes: str | None = None
    preprocessing: str | None = None
    normalize: Any = None
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
    """The place where work runs: engine, workers and their tasks.

    `engine` is the engine's name (`execution.ENGINES`), and `address` is the address of its cluster. `jobs`
    is the number of workers; 0 means that the engine decides (`Engine.own_capacity`). `jobs_per_gpu` is the
    number of jobs that share a GPU of a cluster. `worker` is the number of this worker, counted from 0.
    `shard` is (i, N), the part of a model's tiles that this process computes first, while other processes
    with the same store compute the other parts.
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


@dataclass(frozen=True)
class Run:
    """Everything that a job needs besides its record. Fields do not change after construction.

    `pool` is the engine whose workers share the tiles of an evaluation; without it, this process measures the
    tiles. `plan` collects what the store lacks in a dry run (`execution.dry_run.DryRun`). `name_as` is the
    name of a new entry, and `replace` is true if it replaces other entries with this name. `command` is the
    command line, without paths of this machine. `kept` contains what this process keeps from one call to the
    next, such as loaded networks, which all changed copies of the run share.
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
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the run without the engine, so that a worker measures its tiles itself."""
        return {**self.__dict__, "pool": None, "kept": {}}

    @property
    def labels(self) -> dict[str, str]:
        return {"tool": self.tool, **({} if self.command is None else {"command": self.command})}

    @classmethod
    def of(cls, tool: str = "rbtools", store: Store | None = None, **options: Any) -> Run:
        """A run with these options, named like the fields. Raises TypeError for an unknown option."""
        return cls(tool, Store(None) if store is None else store).changed(**options)

    def changed(self, **options: Any) -> Run:
        """A copy of the run with other values of some options, which may be fields of any part."""
        own = {name: value for name, value in options.items() if name in _OWN}
        parts: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            if name not in own:
                parts.setdefault(_part_of(name), {})[name] = value
        changed = {part: replace(getattr(self, part), **values) for part, values in parts.items()}
        return replace(self, **own, **changed)

    def options(self, names: Iterable[str]) -> dict[str, Any]:
        """The values of these options, if they are not empty. Raises TypeError for an unknown option."""
        parts = {name: self if name in _OWN else getattr(self, _part_of(name)) for name in names}
        values = {name: getattr(part, name) for name, part in parts.items()}
        return {name: value for name, value in values.items() if value}


_OWN = {part.name for part in fields(Run)}
_PARTS = (("settings", Settings), ("selection", Selection), ("placement", Placement), ("report", Report))
_PART_OF = {option.name: part for part, kind in _PARTS for option in fields(kind)}
OPTIONS = frozenset(_OWN | _PART_OF.keys())  # the names of options that `Run.of` accepts


def _part_of(name: str) -> str:
    if name not in _PART_OF:
        raise TypeError(f"A run has no option {name!r}.")
    return _PART_OF[name]
