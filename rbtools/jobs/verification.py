"""Measures a record's entries again, without stored results, and compares the numbers."""

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
from rbtools.execution.report import discard
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints, OtherCheckpoint, resolve_inputs, with_file
from rbtools.inputs.resolve import checkpoint_of
from rbtools.jobs.questions import Question, Unsayable, joined, question_of
from rbtools.records import consistency, expr, metric_name
from rbtools.scoring import composite, published_difference, remeasured
from rbtools.scoring.terms import Term
from rbtools.store import Store

Record = dict[str, Any]
Entry = Mapping[str, Any]
FIELD = "verify"
_APART = ("metrics", "evals", "checksums", FIELD, "error")  # fields that contain results


@dataclass(frozen=True)
class ConsistencyJob(JobFunction):
    """Check whether a record's numbers agree with each other."""

    def __call__(self, record: Record, run: Run) -> Record:
        return {**record, FIELD: consistency.summary(record)}


@dataclass(frozen=True)
class VerifyJob(JobFunction):
    """Measure a record's entries again.

    `n` is the number of random images for each entry. `sample` is the number of random entries to measure.
    `file` contains the weights, and its hash must match the record's checkpoint. If the record names no
    checkpoint, `hints` describes the file.
    """

    n: int | None
    sample: int | None
    seed: int
    file: str | None = None
    hints: CheckpointHints | None = None

    def __call__(self, record: Record, run: Run) -> Record:
        given, missing = self._given(record, run)
        verdicts: dict[str, Record] = {}
        left: list[Entry] = []
        for entry in self._chosen(record):
            verdict = _without_network(record, entry, self.file is not None)
            if verdict is None and missing is not None and not _of_architecture(entry):
                verdict = _unmeasured(entry, *missing)
            verdicts[entry["metric"]] = verdict or {}
            left += [] if verdict else [entry]
        if left:
            verdicts |= _Measurement(given, left, self, record, run).verdicts()
        return {**record, FIELD: {**consistency.summary(record), "entries": verdicts}}

    def _given(self, record: Record, run: Run) -> tuple[Record, tuple[str, str] | None]:
        """The record with the file of its weights or, without this file, the reason and the verdict."""
        try:
            if self.file is not None:
                return with_file(record, self.file, run, self.hints), None
            if "checkpoint" in record and run.selection.weights is None:
                checkpoint_of(record, run)
            return record, None
        except OtherCheckpoint as other:
            return record, (str(other), remeasured.DIFFERS)
        except RbError as missing:
            hint = "" if self.file is not None else " Or name its file with --checkpoint FILE."
            return record, (f"{missing}{hint}", remeasured.UNKNOWN)

    def _chosen(self, record: Record) -> list[Entry]:
        entries: list[Entry] = list({entry["metric"]: entry for entry in record.get("evals") or ()}.values())
        if self.sample is None or self.sample >= len(entries):
            return entries
        places = sorted(self.draws(record, "entries").sample(range(len(entries)), self.sample))
        return [entries[place] for place in places]

    def draws(self, record: Record, purpose: str) -> random.Random:
        """A generator of random choices that depend only on the seed, the record and the purpose."""
        text = f"{self.seed} {purpose} {record.get('checkpoint')} {record.get('arch')}"
        return random.Random(hashlib.sha256(text.encode()).digest())


def _unmeasured(entry: Entry, reason: str, verdict: str = remeasured.UNKNOWN) -> Record:
    return {"verdict": verdict, "claimed": entry.get("value"), "reason": reason}


def _without_network(record: Record, entry: Entry, has_file: bool) -> Record | None:
    """The verdict on an entry that can be judged without a measurement, or None for other entries."""
    if isinstance(entry.get("expression"), str):
        return _expression(record, entry)
    if entry["metric"] == "score":
        return _score(record, entry)
    reason = None
    if remeasured.is_duration(entry["metric"]):
        reason = "durations differ from run to run"
    elif "records" in entry:
        reason = "it is a mean over several records, which this record does not contain"
    elif entry.get("value") is None and consistency.is_published(entry):
        reason = "no number was published"
    elif "checkpoint" not in record and not has_file and not _of_architecture(entry):
        reason = "the record has no checkpoint: name its file with --checkpoint FILE"
    return None if reason is None else _unmeasured(entry, reason)


def _of_architecture(entry: Entry) -> bool:
    """True if the entry is a measure of fresh weights or of an architecture without weights."""
    return "measure" in entry and entry.get("on", "init") == "init"


def _score(record: Record, entry: Entry) -> Record:
    """The verdict on a composite score, recomputed from the record's metrics and the ranges of the terms."""
    terms, ranges = entry.get("terms"), entry.get("ranges")
    if not isinstance(terms, list) or not isinstance(ranges, Mapping):
        return _unmeasured(entry, "the entry lacks the ranges of its terms, which are needed for scaling")
    try:
        of_score = [Term(term["metric"], term["weight"], term["higher"]) for term in terms]
        metrics = record.get("metrics") or {}
        values = [_value(term.metric, {**record, "metrics": metrics}) for term in of_score]
        ends = [ranges[term.metric] for term in of_score]
        how = "worst" if entry.get("missing") == "worst" else "renormalise"
        score = composite.scores([[value] for value in values], of_score, how, ends)[0].score
    except (RbError, KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return _unmeasured(entry, "the entry's terms and ranges do not fit together")
    return remeasured.judged(entry, {**entry, "value": score})


def _value(metric: str, record: Record) -> float | None:
    """The value of a term, or None if the record lacks the term."""
    if metric in record["metrics"]:
        return float(record["metrics"][metric])
    try:
        return expr.compile(metric).number(record)
    except RbError:
        return None


def _expression(record: Record, entry: Entry) -> Record:
    """The verdict on a metric that rb-score computed from other metrics."""
    try:
        value = expr.compile(entry["expression"]).number(record)
    except RbError as wrong:
        return _unmeasured(entry, str(wrong))
    return remeasured.judged(entry, {**entry, "value": value})


class _Measurement:
    """The measurement of a record's entries. `came` is the record without the file of weights."""

    def __init__(
        self, record: Record, entries: Sequence[Entry], job: VerifyJob, came: Record, run: Run
    ) -> None:
        self.record, self.job = record, job
        self.claims = {entry["metric"]: entry for entry in entries}
        self.assumed = [] if "checkpoint" in came else [f"checkpoint {job.file}"]
        self.bare = {name: value for name, value in record.items() if name not in _APART}
        store = Store(run.store.folder, force=True)  # provides checkpoints, but no results
        alone = {"n": None, "split": "test", "seed": 0, "shard": (1, 1)}
        self.run = run.changed(store=store, **alone, notify=discard, warn=discard)
        self.asked: dict[str, Question] = {}
        # By the metric of the claim: the measured entry and, for a random part, the number of all images.
        self.measured: dict[str, tuple[Entry, int | None]] = {}
        self.along: dict[str, Entry] = {}  # entries that were measured with other claims
        self.failed: dict[str, str] = {}

    def verdicts(self) -> dict[str, Record]:
        every = {entry["metric"]: entry for entry in self.record.get("evals") or ()}
        for metric, entry in self.claims.items():
            try:
                question = question_of(entry, every)
            except Unsayable as wrong:
                self.failed[metric] = str(wrong)
            else:
                if not _comes_along(entry, self.claims):
                    self.asked[metric] = question
        unsayable = {metric: _unmeasured(self.claims[metric], why) for metric, why in self.failed.items()}
        for question, metrics in joined(self.asked):
            if not self._measure(question, metrics) and len(metrics) > 1:
                for metric in metrics:
                    self._measure(self.asked[metric], [metric])
        return {
            metric: unsayable.get(metric) or self._verdict(entry) for metric, entry in self.claims.items()
        }

    def _measure(self, question: Question, metrics: Sequence[str]) -> bool:
        """Measure the answer to a question about claims of these metrics. Returns True if this succeeds."""
        try:
            chosen, images = self._part(question)
            if images is not None:
                question = replace(question, under={**question.under, "n": None, "indices": chosen})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = question.measure(self.bare, self.run)
        except RbError as wrong:
            self.failed |= dict.fromkeys(metrics, str(wrong))
            return False
        found = {entry["metric"]: entry for entry in result.get("evals") or ()}
        for metric in metrics:
            self.failed.pop(metric, None)  # a joined question had failed
            name = self.asked[metric].name() or metric
            if name in found:
                self.measured[metric] = found[name], images
        self.along = found | self.along
        return True

    def _part(self, question: Question) -> tuple[Any, int | None]:
        """A random part of the question's images and the number of all; (None, None) for all images."""
        wanted = self.job.n
        if wanted is None or not question.of_part:
            return None, None
        inputs = resolve_inputs(self.bare, question.with_options(self.run))
        order = inputs.data.order(inputs.data.load().labels)[: inputs.n].tolist()
        if wanted >= len(order):
            return None, None
        return indices.of(sorted(self.job.draws(self.record, "images").sample(order, wanted))), len(order)

    def _verdict(self, claim: Entry) -> Record:
        metric = claim["metric"]
        measured, images = self.measured.get(metric) or (self.along.get(metric), None)
        if measured is None:
            return _unmeasured(claim, self.failed.get(metric, "no tool measures a metric of that name"))
        published = consistency.is_published(claim)  # such a claim names only some of its settings
        if not published and images is None and claim.get("indices") != measured.get("indices"):
            reason = "its images were selected by --indices, of which the record has only a hash"
            return _unmeasured(claim, reason)
        if published:
            words = published_difference.difference(measured, claim)
        else:
            words = remeasured.different(claim, measured)
        if words:
            return _unmeasured(claim, f"it was measured differently: {words}")
        if not published:
            return remeasured.judged(claim, measured, images)
        verdict = remeasured.published(claim, measured, images)
        assumed = ", ".join([*self.assumed, *remeasured.assumed(claim, measured, images)])
        return {**verdict, **({"assumed": assumed} if assumed else {})}


def _comes_along(entry: Entry, entries: Mapping[str, Entry]) -> bool:
    """True if the entry is measured together with a difference, which determines the entry's images."""
    name, unsplit = entry["metric"], metric_name.without_split(entry["metric"])
    if unsplit == "acc" and "indices" in entry:
        return any(metric_name.parse(one).is_ge or metric_name.parse(one).is_gap for one in entries)
    if metric_name.gap_name(unsplit) in entries:
        return True
    return metric_name.ge_name(unsplit) in entries and (name != unsplit or entry.get("tool") == "rb-ge")
