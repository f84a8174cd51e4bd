"""Measure a record's entries again, by the commands that they describe, in this process, and compare."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rbtools.cli import entry_commands, keywords
from rbtools.cli.entry_commands import EntryCommand, Unsayable, distance, listed
from rbtools.cli.streams import MemoryStreams
from rbtools.errors import RbError
from rbtools.execution.engine import JobFunction
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints, OtherCheckpoint, resolve_inputs, with_file
from rbtools.inputs.resolve import checkpoint_of
from rbtools.records import consistency, expr, metric_name
from rbtools.records.results import is_number
from rbtools.scoring import composite, published_difference, remeasured
from rbtools.scoring.terms import Term

Record = dict[str, Any]
Entry = Mapping[str, Any]
FIELD = "verify"
_APART = ("metrics", "evals", "checksums", FIELD, "error")  # fields of results
_OF_ALL = ("ge", "measure")  # tools whose results no part of the images tells
CHECKLIST = "obfuscation.failed"  # of rb-attack check
_OPTIONS = tuple("store data_dir device threads batch download class_map allow_code dataset".split())


@dataclass(frozen=True)
class ConsistencyJob(JobFunction):
    """Judge whether a record's numbers agree with each other."""

    def __call__(self, record: Record, run: Run) -> Record:
        return {**record, FIELD: consistency.summary(record)}


@dataclass(frozen=True)
class VerifyJob(JobFunction):
    """Measure a record's entries again.

    n: on so many random images of each. sample: only so many random entries. file: with these weights, whose
    hash must be the record's where it names a checkpoint; hints describe the file where it names none.
    """

    n: int | None
    sample: int | None
    seed: int
    file: str | None = None
    hints: CheckpointHints | None = None
    run: Any = None  # of the process that does the work

    def __call__(self, record: Record, run: Run) -> Record:
        return dataclasses.replace(self, run=run)._judged(record)

    def _judged(self, record: Record) -> Record:
        entries = self._chosen(record)
        plain, verdicts = _without_network(record, entries, self.file is not None)
        given, verdict, reason = self._given(record)
        if given is None:
            weights = [entry for entry in plain if not _of_architecture(entry)]
            plain = [entry for entry in plain if _of_architecture(entry)]
            verdicts |= {
                entry["metric"]: {"verdict": verdict, "claimed": entry.get("value"), "reason": reason}
                for entry in weights
            }
        verdicts |= _Measurement(given or record, plain, self, record).verdicts() if plain else {}
        ordered = {entry["metric"]: verdicts[entry["metric"]] for entry in entries}
        return {**record, FIELD: {**consistency.summary(record), "entries": ordered}}

    def _given(self, record: Record) -> tuple[Record | None, str, str]:
        """The record with a file of its weights; None where there is none, the verdict then, and why."""
        try:
            if self.file is not None:
                return with_file(record, self.file, self.run, self.hints), "", ""
            if "checkpoint" in record and self.run.selection.weights is None:
                checkpoint_of(record, self.run)
            return record, "", ""
        except OtherCheckpoint as other:
            return None, remeasured.DIFFERS, str(other)
        except RbError as missing:
            hint = "" if self.file is not None else " Or name its file with --checkpoint FILE."
            return None, remeasured.UNKNOWN, f"{missing}{hint}"

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


def _unknown(entry: Entry, reason: str) -> Record:
    return {"verdict": remeasured.UNKNOWN, "claimed": entry.get("value"), "reason": reason}


def _without_network(
    record: Record, entries: Sequence[Entry], has_file: bool
) -> tuple[list[Entry], dict[str, Record]]:
    """The entries that take measurements, and the verdicts on the others."""
    left, verdicts = [], {}
    for entry in entries:
        name = entry["metric"]
        if isinstance(entry.get("expression"), str):
            verdicts[name] = _expression(record, entry)
        elif remeasured.is_duration(name):
            verdicts[name] = _unknown(entry, "a duration is not the same twice")
        elif name == "score":
            verdicts[name] = _score(record, entry)
        elif "records" in entry:
            verdicts[name] = _unknown(entry, "a mean over records, whose members are not in this record")
        elif entry.get("value") is None and consistency.is_published(entry):
            verdicts[name] = _unknown(entry, "no number was published")
        elif "checkpoint" not in record and not has_file and not _of_architecture(entry):
            verdicts[name] = _unknown(
                entry, "the record has no checkpoint: name its file with --checkpoint FILE"
            )
        else:
            left.append(entry)
    return left, verdicts


def _of_architecture(entry: Entry) -> bool:
    """Whether it is a measure of fresh weights, or of no weights."""
    return "measure" in entry and entry.get("on", "init") == "init"


def _score(record: Record, entry: Entry) -> Record:
    """The verdict on a composite score: from the record's metrics and the ranges that they were scaled by."""
    terms, ranges = entry.get("terms"), entry.get("ranges")
    if not isinstance(terms, list) or not isinstance(ranges, Mapping):
        return _unknown(entry, "the entry lacks the ranges of its terms, by which a score is scaled")
    try:
        of_score = [Term(term["metric"], term["weight"], term["higher"]) for term in terms]
        metrics = record.get("metrics") or {}
        values = [_value(term.metric, {**record, "metrics": metrics}) for term in of_score]
        ends = [ranges[term.metric] for term in of_score]
        score = composite.rescored(values, of_score, ends, str(entry.get("missing")))
    except (RbError, KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return _unknown(entry, "the entry's terms and ranges do not fit together")
    return remeasured.judged(entry, {**entry, "value": score})


def _value(metric: str, record: Record) -> float | None:
    """The value of a term; None where the record lacks it."""
    if metric in record["metrics"]:
        return float(record["metrics"][metric])
    try:
        return expr.compile(metric).number(record)
    except RbError:
        return None


def _expression(record: Record, entry: Entry) -> Record:
    """The verdict on a metric that rb-score computed from others."""
    try:
        value = expr.compile(entry["expression"]).number(record)
    except RbError as wrong:
        return _unknown(entry, str(wrong))
    return remeasured.judged(entry, {**entry, "value": value})


class _Measurement:
    """The measurement of a record's entries. `came`: the record before it was given a file."""

    def __init__(self, record: Record, entries: Sequence[Entry], job: VerifyJob, came: Record) -> None:
        self.record, self.entries, self.job = record, entries, job
        self.assumed = [] if "checkpoint" in came else [f"checkpoint {job.file}"]
        self.bare = {name: value for name, value in record.items() if name not in _APART}
        self.parts: dict[str, int] = {}  # by metric: the claim's images, a random part of which was measured
        self.measured: dict[str, Entry] = {}
        self.failed: dict[str, str] = {}

    def verdicts(self) -> dict[str, Record]:
        """The verdict on each entry."""
        reasons = {entry["metric"]: self._unsayable(entry) for entry in self.entries}
        verdicts = {
            entry["metric"]: _unknown(entry, reason)
            for entry in self.entries
            if (reason := reasons[entry["metric"]]) is not None
        }
        sayable = [entry for entry in self.entries if entry["metric"] not in verdicts]
        checked = [entry for entry in sayable if _is_checklist(entry)]
        for entry in checked:
            if (command := self._check(entry)) is not None:
                self._run_check(command, entry)
        sayable = [entry for entry in sayable if not _is_checklist(entry)]
        clean = [entry for entry in sayable if _bare(entry) == "acc"]
        for entry in clean:
            if "indices" not in entry:  # otherwise a difference may measure it too
                self._run(_clean(entry), [entry])
        context = {entry["metric"]: entry for entry in (*sayable, *self._clean_entries())}
        others = {} if len(clean) == len(sayable) else context
        for command in entry_commands.commands(others, consistency.is_published):
            if "from_" in command.options:
                sources = [self._source(name) for name in command.options["from_"].split(",")]
                options = {**command.options, "from_": sources}
                command = command._replace(options=options)
            self._run(command, sayable)
        for entry in [*sayable, *checked]:
            verdicts[entry["metric"]] = self._verdict(entry)
        return verdicts

    def _run_check(self, command: EntryCommand, entry: Entry) -> None:
        """Run a command that measures this entry beside others."""
        try:
            result = self._results(command)
        except RbError as wrong:
            self.failed[entry["metric"]] = str(wrong)
        else:
            same = [one for one in result["evals"] if one["metric"] == entry["metric"]]
            self.measured |= {one["metric"]: one for one in same}

    def _check(self, entry: Entry) -> EntryCommand | None:
        """rb-attack check for a checklist; None where the record lacks an attack that it compared."""
        about = {name: entry.get(name) for name in ("eps", "split", "n", "seed")}
        options = {**about, "eps": distance(float(entry["eps"]))}
        for attack, option in (("pgd", "steps"), ("square", "queries"), ("noise", "samples")):
            values = [
                one[option]
                for one in self.record.get("evals") or ()
                if one.get("attack") == attack and option in one
                if all(one.get(name) == value for name, value in about.items())
            ]
            if not values:
                return None
            options[option] = values[0]
        options |= entry_commands.defended(entry)
        return EntryCommand(("attack", "check"), options)

    def _source(self, name: str) -> Record | None:
        """The attacked model whose checkpoint has that name; None if the record does not have it."""
        if name == self.record.get("checkpoint"):
            return self.bare
        for entry in self.entries:
            models = zip(listed(entry.get("source")), listed(entry.get("source_model")), strict=False)
            for source, model in models:
                if source == name and isinstance(model, Mapping):
                    return {**model, "checkpoint": name}
        return None

    def _clean_entries(self) -> list[Entry]:
        """Clean accuracies, which say how many images rb-pr was given."""
        entries = self.record.get("evals") or ()
        return [entry for entry in entries if _bare(entry) == "acc"]

    def _unsayable(self, entry: Entry) -> str | None:
        """Why the entry cannot be measured again; None where it can."""
        if _is_checklist(entry):
            return None if self._check(entry) else "the record lacks attacks that it compared"
        context = {one["metric"]: one for one in (entry, *self._clean_entries())}
        try:
            entry_commands.command(entry, context, lenient=consistency.is_published(entry))
        except Unsayable as wrong:
            return str(wrong)
        if entry_commands.is_transfer(entry) and None in map(self._source, listed(entry["source"])):
            return "the record does not have the attacked model, which rb-attack transfer names with --from"
        return None

    def _run(self, command: EntryCommand, entries: Sequence[Entry]) -> None:
        """Run a command; its results, or its error, are those of the entries that it gives."""
        part = None
        try:
            part = self._images(command)
            result = self._results(command if part is None else command.on_images(part[0]))
        except RbError as wrong:
            for entry in entries:
                self.failed.setdefault(entry["metric"], str(wrong))
            return
        for entry in result.get("evals") or ():
            if entry["metric"] not in self.measured:
                self.measured[entry["metric"]] = entry
                if part is not None:
                    self.parts[entry["metric"]] = part[1]

    def _images(self, command: EntryCommand) -> tuple[list[int], int] | None:
        """The random part of the command's images with their number; None for all of them."""
        wanted = self.job.n
        if (
            wanted is None
            or command.words[0] in _OF_ALL
            or {"two_phase", "precision_goal", "batch"} & command.options.keys()
        ):
            return None
        inputs = resolve_inputs(self.bare, self.job.run, command.options.get("split", "test"))
        n = command.options.get("n")
        order = inputs.data.order(inputs.data.load().labels)[: None if n is None else int(n)].tolist()
        if wanted >= len(order):
            return None
        return sorted(self.job.draws(self.record, "images").sample(order, wanted)), len(order)

    def _results(self, command: EntryCommand) -> Record:
        """What a command gives."""
        lists = dict(command.lists)
        tool, *words = (*command.words, *([",".join(lists.pop(""))] if "" in lists else []))
        options = {**self.job.run.options(_OPTIONS), **command.options, **lists, "force": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (result,) = keywords.call(tool, words, options, MemoryStreams([self.bare]))
        return {**result}

    def _verdict(self, entry: Entry) -> Record:
        measured = self.measured.get(entry["metric"]) or self._under_another_name(entry)
        if measured is not None and consistency.is_published(entry):
            return self._published(entry, measured)
        if measured is None:
            return _unknown(entry, self.failed.get(entry["metric"], "no tool measures a metric of that name"))
        if entry["metric"] not in self.parts and entry.get("indices") != measured.get("indices"):
            return _unknown(entry, "it is of chosen images (--indices), of which the record has only a hash")
        if words := remeasured.different(entry, measured):
            return _unknown(entry, f"it was measured differently: {words}")
        return remeasured.judged(entry, measured, self.parts.get(entry["metric"]))

    def _under_another_name(self, entry: Entry) -> Entry | None:
        """The measurement of a published attack whose name has a rounded distance (aa.8 of eps 0.031), or of
        an ensemble that was once called aa."""
        if not (consistency.is_published(entry) and "attack" in entry) and not entry.get("attacks"):
            return None
        same = ("attack", "attacks", "eps", "split")
        alike = [one for one in self.measured.values() if all(one.get(k) == entry.get(k) for k in same)]
        return alike[0] if len(alike) == 1 else None

    def _published(self, entry: Entry, measured: Entry) -> Record:
        """The verdict on a published number, which names only some of its settings."""
        if words := published_difference.difference(measured, entry):
            return _unknown(entry, f"it was measured differently: {words}")
        verdict = remeasured.published(entry, measured, self.parts.get(measured["metric"]))
        assumed = [*self.assumed, *remeasured.assumed(entry, measured, self.parts.get(measured["metric"]))]
        return {**verdict, **({"assumed": ", ".join(assumed)} if assumed else {})}


def _is_checklist(entry: Entry) -> bool:
    """Whether it is the number of failing tests, with the entries of these tests."""
    named = metric_name.without_split(entry["metric"]) == CHECKLIST
    return named and is_number(entry.get("eps")) and type(entry.get("n")) is int


def _bare(entry: Entry) -> str:
    """The metric without its split."""
    return metric_name.without_split(entry["metric"])


def _clean(entry: Entry) -> EntryCommand:
    """The command of a clean accuracy."""
    options = {"split": entry.get("split", "test"), "n": entry.get("n")}
    options |= entry_commands.defended(entry)
    return EntryCommand(("attack", "none"), options).adding(
        draws=entry.get("verdict_draws"), seed=entry.get("seed")
    )
