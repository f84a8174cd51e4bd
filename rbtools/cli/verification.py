"""Measures a record's entries again, by the commands that they describe, in this process, and compares."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rbtools.cli.python_call import PythonCall
from rbtools.errors import RbError
from rbtools.execution.context import RunContext
from rbtools.execution.job import JobFunction
from rbtools.lazy import torch
from rbtools.plots.board.evaluation_commands import evaluations
from rbtools.records import consistency, expr, metric_name
from rbtools.scoring import remeasured

Record = dict[str, Any]
Entry = Mapping[str, Any]
FIELD = "verify"
_APART = ("metrics", "evals", "checksums", FIELD, "error")  # fields of results
_OPTIONS = (
    "store",
    "data_dir",
    "device",
    "threads",
    "batch",
    "download",
    "class_map",
    "allow_code",
    "dataset",
)


@dataclass(frozen=True)
class ConsistencyJob(JobFunction):
    """Judge whether a record's numbers agree with each other."""

    def __call__(self, record: Record) -> Record:
        return {**record, FIELD: inconsistencies(record)}


@dataclass(frozen=True)
class VerifyJob(JobFunction):
    """Measure a record's entries again.

    n: on so many random images of each. sample: only so many random entries.
    """

    n: int | None
    sample: int | None
    seed: int
    run: RunContext

    def with_run(self, run: RunContext) -> JobFunction:
        return dataclasses.replace(self, run=run)

    def preload(self) -> None:
        torch.nn  # noqa: B018  (reading it imports torch)

    def __call__(self, record: Record) -> Record:
        entries = self._chosen(record)
        plain, verdicts = _without_network(record, entries)
        verdicts |= _Measurement(record, plain, self).verdicts() if plain else {}
        ordered = {entry["metric"]: verdicts[entry["metric"]] for entry in entries}
        return {**record, FIELD: {**inconsistencies(record), "entries": ordered}}

    def _chosen(self, record: Record) -> list[Entry]:
        entries: list[Entry] = list({entry["metric"]: entry for entry in record.get("evals") or ()}.values())
        if self.sample is None or self.sample >= len(entries):
            return entries
        places = sorted(self.draws(record, "entries").sample(range(len(entries)), self.sample))
        return [entries[place] for place in places]

    def draws(self, record: Record, purpose: str) -> random.Random:
        """Random choices that depend on the seed and the record alone."""
        text = f"{self.seed} {purpose} {record.get('checkpoint')} {record.get('arch')}"
        return random.Random(hashlib.sha256(text.encode()).digest())


def inconsistencies(record: Record) -> Record:
    """What `consistency` finds in a record, as fields of its `verify`."""
    findings = [finding._asdict() for finding in consistency.findings(record)]
    unknown = consistency.without_checksum(record)
    return {"inconsistent": findings, **({"without_checksum": unknown} if unknown else {})}


def _unknown(entry: Entry, reason: str) -> Record:
    return {"verdict": remeasured.UNKNOWN, "claimed": entry.get("value"), "reason": reason}


def _without_network(record: Record, entries: Sequence[Entry]) -> tuple[list[Entry], dict[str, Record]]:
    """The entries that take measurements, and the verdicts on the others."""
    left, verdicts = [], {}
    for entry in entries:
        name = entry["metric"]
        if isinstance(entry.get("expression"), str):
            verdicts[name] = _expression(record, entry)
        elif name == "seconds_per_epoch":
            verdicts[name] = _unknown(entry, "a duration is not the same twice")
        elif name == "score":
            verdicts[name] = _unknown(entry, "a score compares all records of one run of rb-score")
        elif "records" in entry:
            verdicts[name] = _unknown(entry, "a mean over records, whose members are not in this record")
        elif "checkpoint" not in record:
            verdicts[name] = _unknown(entry, "the record has no checkpoint")
        else:
            left.append(entry)
    return left, verdicts


def _expression(record: Record, entry: Entry) -> Record:
    """The verdict on a metric that rb-score computed from others."""
    try:
        value = expr.compile(entry["expression"]).number(record)
    except RbError as wrong:
        return _unknown(entry, str(wrong))
    return remeasured.judged(entry, {**entry, "value": value})


class _Command(NamedTuple):
    """A command line after `rb-`, as words."""

    words: list[str]

    @property
    def n(self) -> int | None:
        return int(self.words[self.words.index("--n") + 1]) if "--n" in self.words else None

    @property
    def split(self) -> str:
        return self.words[self.words.index("--split") + 1] if "--split" in self.words else "test"

    def on(self, images: Sequence[int]) -> _Command:
        """The command on chosen images."""
        words = list(self.words)
        if "--n" in words:
            place = words.index("--n")
            del words[place : place + 2]
        return _Command([*words, "--indices", ",".join(map(str, images))])


class _Measurement:
    """The measurement of a record's entries."""

    def __init__(self, record: Record, entries: Sequence[Entry], job: VerifyJob) -> None:
        self.record, self.entries, self.job = record, entries, job
        self.bare = {name: value for name, value in record.items() if name not in _APART}
        self.parts: dict[str, int] = {}  # the claim's images, of which a random part was measured, by metric
        self.measured: dict[str, Entry] = {}
        self.failed: dict[str, str] = {}

    def verdicts(self) -> dict[str, Record]:
        """The verdict on each entry."""
        sayable, verdicts = self._sayable()
        clean = [entry for entry in sayable if metric_name.without_split(entry["metric"]) == "acc"]
        for entry in clean:
            if "indices" not in entry:  # else it may come along with a difference
                self._run(_clean(entry), [entry])
        context = {"evals": [*sayable, *self._clean_entries()]}
        for line in evaluations(context, {}) if len(clean) < len(sayable) else []:
            self._run(_Command(shlex.split(line)), sayable)
        for entry in sayable:
            verdicts[entry["metric"]] = self._verdict(entry)
        return verdicts

    def _clean_entries(self) -> list[Entry]:
        """Clean accuracies, which say how many images rb-pr was given."""
        entries = self.record.get("evals") or ()
        return [entry for entry in entries if metric_name.without_split(entry["metric"]) == "acc"]

    def _sayable(self) -> tuple[list[Entry], dict[str, Record]]:
        """The entries that say how they were measured, and the verdicts on the others."""
        sayable, verdicts = [], {}
        for entry in self.entries:
            lacking: dict[str, None] = {}
            evaluations({"evals": [entry, *self._clean_entries()]}, lacking)
            if lacking:
                verdicts[entry["metric"]] = _unknown(entry, " ".join(lacking))
            else:
                sayable.append(entry)
        return sayable, verdicts

    def _run(self, command: _Command, entries: Sequence[Entry]) -> None:
        """Run a command; its results, or its error, are those of the entries that it gives."""
        part = None
        try:
            part = self._images(command)
            result = self._results(command if part is None else command.on(part[0]))
        except RbError as wrong:
            for entry in entries:
                self.failed.setdefault(entry["metric"], str(wrong))
            return
        for entry in result.get("evals") or ():
            if entry["metric"] not in self.measured:
                self.measured[entry["metric"]] = entry
                if part is not None:
                    self.parts[entry["metric"]] = part[1]

    def _images(self, command: _Command) -> tuple[list[int], int] | None:
        """The random part of the command's images with their number; None for all of them."""
        wanted = self.job.n
        if wanted is None or command.words[0] == "rb-ge" or "--two-phase" in command.words:
            return None
        from rbtools.inputs.checkpoints import resolve_inputs

        inputs = resolve_inputs(self.bare, self.job.run, command.split)
        order = inputs.data.order(inputs.data.load().labels)[: command.n].tolist()
        if wanted >= len(order):
            return None
        return sorted(self.job.draws(self.record, "images").sample(order, wanted)), len(order)

    def _results(self, command: _Command) -> Record:
        run = self.job.run
        options: Record = {name: getattr(run, name) for name in _OPTIONS if getattr(run, name, None)}
        tool, *words = command.words
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call = PythonCall([self.bare])
            (result,) = call.run(tool.removeprefix("rb-"), words, {**options, "force": True})
        return result

    def _verdict(self, entry: Entry) -> Record:
        measured = self.measured.get(entry["metric"])
        if measured is None:
            return _unknown(entry, self.failed.get(entry["metric"], "no tool measures a metric of that name"))
        if entry["metric"] not in self.parts and entry.get("indices") != measured.get("indices"):
            return _unknown(entry, "it is of chosen images (--indices), of which the record has only a hash")
        if words := remeasured.different(entry, measured):
            return _unknown(entry, f"it was measured differently: {words}")
        return remeasured.judged(entry, measured, self.parts.get(entry["metric"]))


def _clean(entry: Entry) -> _Command:
    """The command of a clean accuracy."""
    words = ["rb-attack", "none", "--split", str(entry.get("split", "test"))]
    return _Command([*words, *(["--n", str(entry["n"])] if "n" in entry else [])])
