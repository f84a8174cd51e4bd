"""A dry run: the pending work, the part of it that the store has, and the time for the remainder.

Times are estimated from the times of stored results: seconds per image and multiply-add of an evaluation of
the same kind, seconds per epoch and multiply-add of a training by the same method on the same data, seconds
per multiply-add of a measure. Without such results there is no estimate. Evaluations of a network that is not
trained yet are counted as if the store had none of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rbtools.errors import Pending, RbError
from rbtools.plain_files import read_plain
from rbtools.store import Store, canonical, digest, listing
from rbtools.store.checksum import described

MOST = 20_000  # the most results read for an estimate; keys are hashes, so the first ones are a random sample
# Settings that hardly change the time of a piece of work.
_APART = frozenset(("eps", "ladder", "gamma", "gammas", "rho", "version", "seed", "lambda"))


class PendingWork(NamedTuple):
    """A piece of work that the store lacks: `units` of `what`, seconds, None if unknown, and the kinds of the
    files that it leaves in the store."""

    title: str
    what: str
    units: int
    seconds: float | None
    files: tuple[str, ...]


@dataclass
class DryRun:
    """The pending work of a dry run, and its estimated time.

    missing: the keys of results that are computed together. waiting: the jobs, by number, whose network is
    not trained yet.
    """

    store: Store
    jobs: int = 1
    todo: dict[str, PendingWork] = field(default_factory=dict)
    missing: set[tuple[str, ...]] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    job: int = 0
    tell: Callable[[str], None] = lambda text: None
    _speeds: _Speeds | None = None

    @property
    def speeds(self) -> _Speeds:
        """The speeds of the store's results, read on first use."""
        if self._speeds is None:
            self._speeds = _Speeds(self.store)
        return self._speeds

    def evaluation(
        self, title: str, record: Mapping[str, Any], missing: Iterable[tuple[str, Mapping[str, Any], int]]
    ) -> None:
        """Note missing outcomes: their key, the key fields of their output, and the number of images."""
        macs = _macs(record["arch"])
        every = list(missing)
        perturbed = [output for output in every if output[1]["kind"] != "clean"]
        for key, column, images in perturbed or every:  # clean accuracy is computed along with the others
            pace = self.speeds.of("evaluation", _signature(column, macs))
            seconds = None if pace is None else pace * images * (macs or 1)
            self._add(key, PendingWork(title, "images", images, seconds, ("results", "outcomes")))

    def measures(self, record: Mapping[str, Any], missing: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Note missing measures: their key and its fields."""
        macs = _macs(record["arch"])
        for key, what in missing:
            pace = self.speeds.of("measure", _measure_signature(what, macs))
            seconds = None if pace is None else pace * (macs or 1)
            self._add(key, PendingWork("measures", "results", 1, seconds, ("results",)))

    def untrained(self) -> str:
        """A name for the checkpoint that the network of this job will have; the store has none of that
        name."""
        self.waiting.add(self.job)
        return f"sha256:{digest({'untrained': self.job})}"

    def training(
        self,
        key: str,
        what: Mapping[str, Any],
        arch: Mapping[str, Any],
        epochs: int,
        files: tuple[str, ...],
        done: int = 0,
    ) -> None:
        """Note a training that is missing, of which the store has `done` epochs, and the kinds of the files
        that it leaves."""
        macs = _macs(arch)
        title, epochs = str(what["method"]["name"]), epochs - done
        title += f" after epoch {done}" if done else ""
        pace = self.speeds.of("training", _training_signature(what, macs))
        seconds = None if pace is None else pace * (macs or 1) * epochs
        self._add(key, PendingWork(title, "epochs", epochs, seconds, files))

    def _add(self, key: str, todo: PendingWork) -> None:
        if key not in self.todo:
            self.todo[key] = todo
            self.tell(f"{todo.title}: {todo.units} {todo.what} to do, {about(todo.seconds)}")

    def each(self, calls: Iterable[Callable[[], Any]]) -> None:
        """Note all missing pieces of work of one record, then raise Pending for the first of them."""
        missed = []
        for call in calls:
            try:
                call()
            except Pending as pending:
                missed.append(pending)
        if missed:
            raise missed[0]

    def event(self) -> dict[str, Any]:
        """The report for programs: how many results the store has and lacks, the seconds of one worker for
        those whose time is known, how many others there are, and the number of new files of each kind."""
        times = [work.seconds for work in self.todo.values()]
        return {
            "event": "plan",
            "store": None if self.store.folder is None else str(self.store.folder),
            "found": self.store.found,
            "missing": len(self.missing),
            "seconds": round(sum(seconds or 0.0 for seconds in times), 3),
            "unknown": times.count(None),
            "files": dict(Counter(kind for work in self.todo.values() for kind in work.files)),
        }

    def words(self, records: int, stored: int, missing: int) -> list[str]:
        """The report, as lines."""
        lines = [f"dry run, nothing was computed: of {_many(records, 'record')} {stored} found in the store"]
        lines[0] += f", {missing} to compute." if missing else "."
        titles: dict[tuple[str, str], list[PendingWork]] = defaultdict(list)
        for todo in self.todo.values():
            titles[todo.title, todo.what].append(todo)
        for (title, what), some in titles.items():
            units, seconds = sum(work.units for work in some), _sum(work.seconds for work in some)
            lines.append(f"{title}: {_many(len(some), 'piece')} of work, {units} {what}, {about(seconds)}.")
        if self.waiting:
            lines.append(
                f"{_many(len(self.waiting), 'record')} would first be trained; that is not in the time."
            )
        if self.todo:
            total = _sum(work.seconds for work in self.todo.values())
            known = sum(work.seconds or 0.0 for work in self.todo.values())
            share = f" with --jobs {self.jobs}" if self.jobs > 1 else ""
            part = f" (known: {about(known)})" if known else ""
            lines.append(
                f"time: unknown, as the store has no result of that kind{part}."
                if total is None
                else f"time: {about(total / max(self.jobs, 1))}{share}, by what"
                f" {_many(self.speeds.count, 'result')} took."
            )
        return lines


class _Speeds:
    """Seconds per unit of work and multiply-add, by kind and signature, from a store's results."""

    def __init__(self, store: Store) -> None:
        self.count = 0
        self._sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        with contextlib.suppress(RbError):  # no store yet
            for path in itertools.islice(listing.paths(store, "results"), MOST):
                with contextlib.suppress(OSError, ValueError):
                    kept = described(read_plain(path, follow=False), os.path.basename(path))
                    if kept is not None:
                        self._take(kept)

    def of(self, kind: str, signature: tuple[str, str]) -> float | None:
        """Seconds per unit and multiply-add: of the same configuration, else of its kind."""
        for part in signature:
            work, seconds = self._sums.get((kind, part), (0.0, 0.0))
            if work > 0:
                return seconds / work
        return None

    def _take(self, result: Mapping[str, Any]) -> None:
        try:
            about = result.get("about", {})
            macs = _macs(about.get("arch", {}))
            if about.get("kind") == "evaluation" and about["of"].get("kind") == "measure":
                seconds = result["value"][0]["seconds"]
                self._add("measure", _measure_signature(about["of"], macs), macs or 1, seconds)
            elif about.get("kind") == "evaluation":
                column, entry = about["of"]["column"], result["value"][0]
                work = entry["n"] * (macs or 1)
                self._add("evaluation", _signature(column, macs), work, entry["seconds"])
            elif result.get("what", {}).get("kind") == "training":
                what = result["what"]
                seconds = result["value"]["seconds_per_epoch"]
                self._add("training", _training_signature(what, macs), macs or 1, seconds)
        except (ValueError, KeyError, TypeError, IndexError):
            return  # a result without a time

    def _add(self, kind: str, signature: tuple[str, str], work: float, seconds: float) -> None:
        if seconds > 0:
            self.count += 1
            for part in signature:
                before = self._sums[kind, part]
                if part.startswith("clean ") and before[0] and seconds / work >= before[1] / before[0]:
                    continue  # its seconds include another result, which was computed at the same time
                sums = [0.0, 0.0] if part.startswith("clean ") else before
                self._sums[kind, part] = [sums[0] + work, sums[1] + seconds]


def _macs(arch: Mapping[str, Any]) -> int | None:
    """The multiply-adds of an architecture, if the record has them."""
    macs = arch.get("macs")
    return macs if type(macs) is int and 0 <= macs < 2**63 else None


def _signature(column: Mapping[str, Any], macs: int | None) -> tuple[str, str]:
    """An output's configuration without its distance, and its kind; both say whether the size is known."""
    kind = f"{column['kind']} {column.get('attack', column.get('certificate', ''))} {macs is None}"
    if column["kind"] == "clean":
        return kind, kind
    config = column.get("config", column)
    return _digest({"kind": kind, **{k: v for k, v in config.items() if k not in _APART}}), kind


def _training_signature(what: Mapping[str, Any], macs: int | None) -> tuple[str, str]:
    """A method's configuration without its distance, and its name; both on the same data."""
    method, data = what["method"], [what["data"], macs is None]
    config = {key: value for key, value in method["config"].items() if key not in _APART}
    return _digest([method["name"], config, data]), _digest([method["name"], data])


def _measure_signature(what: Mapping[str, Any], macs: int | None) -> tuple[str, str]:
    """A measure's configuration without its network, and its name."""
    own = ("checkpoint", "arch", "normalize", "init_seed", *_APART)
    kind = f"{what['measure']} {macs is None}"
    return _digest({"kind": kind, **{k: v for k, v in what.items() if k not in own}}), kind


def _digest(value: object) -> str:
    return canonical(value).decode("utf-8", "replace")


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1 and not noun.endswith('work'))}"


def about(seconds: float | None) -> str:
    """A time in words."""
    if seconds is None:
        return "time unknown"
    if seconds < 1:
        return "less than a second"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"
