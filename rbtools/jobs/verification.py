"""Measure a record's entries again, without stored results, and compare."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rbtools.datasets import indices
from rbtools.errors import RbError
from rbtools.execution.engine import JobFunction
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints, OtherCheckpoint, resolve_inputs, with_file
from rbtools.inputs.resolve import checkpoint_of
from rbtools.jobs.questions import Question, Unsayable, joined, question_of
from rbtools.records import consistency, expr, metric_name
from rbtools.report import discard
from rbtools.scoring import composite, published_difference, remeasured
from rbtools.scoring.terms import Term
from rbtools.store import Store

Record = dict[str, Any]
Entry = Mapping[str, Any]
FIELD = "verify"
_APART = ("metrics", "evals", "checksums", FIELD, "error")  # fields of results


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

    def __call__(self, record: Record, run: Run) -> Record:
        entries = self._chosen(record)
        plain, verdicts = _without_network(record, entries, self.file is not None)
        given, verdict, reason = self._given(record, run)
        if given is None:
            weights = [entry for entry in plain if not _of_architecture(entry)]
            plain = [entry for entry in plain if _of_architecture(entry)]
            verdicts |= {
                entry["metric"]: {"verdict": verdict, "claimed": entry.get("value"), "reason": reason}
                for entry in weights
            }
        verdicts |= _Measurement(given or record, plain, self, record, run).verdicts() if plain else {}
        ordered = {entry["metric"]: verdicts[entry["metric"]] for entry in entries}
        return {**record, FIELD: {**consistency.summary(record), "entries": ordered}}

    def _given(self, record: Record, run: Run) -> tuple[Record | None, str, str]:
        """The record with a file of its weights; None where there is none, the verdict then, and why."""
        try:
            if self.file is not None:
                return with_file(record, self.file, run, self.hints), "", ""
            if "checkpoint" in record and run.selection.weights is None:
                checkpoint_of(record, run)
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
        how = "worst" if entry.get("missing") == "worst" else "renormalise"
        score = composite.scores([[value] for value in values], of_score, how, ends)[0].score
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

    def __init__(
        self, record: Record, entries: Sequence[Entry], job: VerifyJob, came: Record, run: Run
    ) -> None:
        self.record, self.entries, self.job = record, entries, job
        self.assumed = [] if "checkpoint" in came else [f"checkpoint {job.file}"]
        self.bare = {name: value for name, value in record.items() if name not in _APART}
        store = Store(run.store.folder, force=True)  # it gives checkpoints, and no results
        alone = {"n": None, "split": "test", "seed": 0, "shard": (1, 1)}
        self.run = run.changed(store=store, **alone, notify=discard, warn=discard)
        self.asked: dict[str, Question] = {}
        self.measured: dict[str, Entry] = {}  # by the metric of the claim
        self.along: dict[str, Entry] = {}  # what was measured with other claims
        self.parts: dict[str, int] = {}  # the claim's images, a random part of which was measured
        self.failed: dict[str, str] = {}

    def verdicts(self) -> dict[str, Record]:
        """The verdict on each entry."""
        every = {entry["metric"]: entry for entry in self.record.get("evals") or ()}
        chosen = {entry["metric"]: entry for entry in self.entries}
        verdicts: dict[str, Record] = {}
        for metric, entry in chosen.items():
            try:
                question = question_of(entry, every, lenient=consistency.is_published(entry))
            except Unsayable as wrong:
                verdicts[metric] = _unknown(entry, str(wrong))
            else:
                if not _comes_along(entry, chosen):
                    self.asked[metric] = question
        for question, metrics in joined(self.asked):
            problem = self._measure(question, metrics)
            for metric in metrics if problem is not None else ():
                alone = problem if len(metrics) == 1 else self._measure(self.asked[metric], [metric])
                if alone is not None:
                    self.failed[metric] = alone
        return {metric: verdicts.get(metric) or self._verdict(entry) for metric, entry in chosen.items()}

    def _measure(self, question: Question, metrics: Sequence[str]) -> str | None:
        """Measure what a question asks for, the answers to claims of these metrics; the reason where that
        fails."""
        try:
            part = self._images(question)
            if part is not None:
                question = replace(question, under={**question.under, "n": None, "indices": part[0]})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = question.measure(self.bare, self.run)
        except RbError as wrong:
            return str(wrong)
        found = {entry["metric"]: entry for entry in result.get("evals") or ()}
        for metric in metrics:
            name = self.asked[metric].name() or metric
            if name in found:
                self.measured[metric] = found[name]
                self.parts |= {} if part is None else {metric: part[1]}
        self.along = found | self.along
        return None

    def _images(self, question: Question) -> tuple[Any, int] | None:
        """The random part of the question's images, and how many it has; None for all of them."""
        wanted = self.job.n
        if wanted is None or not question.of_part:
            return None
        inputs = resolve_inputs(self.bare, question.placed(self.run))
        order = inputs.data.order(inputs.data.load().labels)[: inputs.n].tolist()
        if wanted >= len(order):
            return None
        return indices.of(sorted(self.job.draws(self.record, "images").sample(order, wanted))), len(order)

    def _verdict(self, entry: Entry) -> Record:
        metric = entry["metric"]
        measured = self.measured.get(metric) or self.along.get(metric)
        if measured is None:
            return _unknown(entry, self.failed.get(metric, "no tool measures a metric of that name"))
        if consistency.is_published(entry):
            return self._published(entry, measured)
        if metric not in self.parts and entry.get("indices") != measured.get("indices"):
            return _unknown(entry, "it is of chosen images (--indices), of which the record has only a hash")
        if words := remeasured.different(entry, measured):
            return _unknown(entry, f"it was measured differently: {words}")
        return remeasured.judged(entry, measured, self.parts.get(metric))

    def _published(self, entry: Entry, measured: Entry) -> Record:
        """The verdict on a published number, which names only some of its settings."""
        if words := published_difference.difference(measured, entry):
            return _unknown(entry, f"it was measured differently: {words}")
        verdict = remeasured.published(entry, measured, self.parts.get(entry["metric"]))
        assumed = [*self.assumed, *remeasured.assumed(entry, measured, self.parts.get(entry["metric"]))]
        return {**verdict, **({"assumed": ", ".join(assumed)} if assumed else {})}


def _comes_along(entry: Entry, entries: Mapping[str, Entry]) -> bool:
    """Whether it is measured with a difference, which knows its images."""
    name, unsplit = entry["metric"], metric_name.without_split(entry["metric"])
    if unsplit == "acc" and "indices" in entry:
        return any(metric_name.parse(one).is_ge or metric_name.parse(one).is_gap for one in entries)
    if metric_name.gap_name(unsplit) in entries:
        return True
    return metric_name.ge_name(unsplit) in entries and (name != unsplit or entry.get("tool") == "rb-ge")
