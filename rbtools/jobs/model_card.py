"""`rb-card` evaluates everything about one checkpoint in the available time.

A card has several parts (`card_parts`), each of which is an evaluation by one of the tools. All parts are
evaluated on 16 images, then on 32, 64 ... until the time is over or all images are evaluated. The intervals
of all intermediate results hold together (`card_intervals`). For two checkpoints, two cards are made one
after the other and then compared image by image.
"""

from __future__ import annotations

import contextlib
import copy
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rbtools.errors import Pending, RbError, of_network, of_own_code
from rbtools.execution.dry_run import USUAL_SHARE
from rbtools.execution.engine import Unfinished
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.data import InMemory
from rbtools.jobs import SplitJob, stored_results, tile_calls
from rbtools.jobs.card_intervals import LookIntervals, confidence, sizes, values_of
from rbtools.jobs.card_parts import CardPart, parts
from rbtools.jobs.evaluate_record import EvaluateJob
from rbtools.lazy import np, special, torch
from rbtools.probabilistic import intervals
from rbtools.proportions import Interval
from rbtools.records import answers, metric_name, results
from rbtools.scoring import union
from rbtools.store import Store

Entry = dict[str, Any]
Record = dict[str, Any]
_RESULTS = ("metrics", "evals", "checksums", answers.LABELS, "card")
_CLEAN = ": clean accuracy "


class TimeUp(BaseException):
    """Raised if the time of the card is over while a part is evaluated."""


@dataclass(frozen=True)
class CardRequest:
    """The names of the parts, the eps of the attacks on [0, 1], and the time limit in seconds or None."""

    parts: tuple[str, ...]
    eps: float
    seconds: float | None


@dataclass(frozen=True)
class CardJob(SplitJob):
    request: CardRequest

    def __call__(self, record: Record, run: Run) -> Record:
        return run_card(record, self.request, run)


def run_card(record: Record, request: CardRequest, run: Run) -> Record:
    """The record with its card. Raises RbError if the model or the data are not available, and Unfinished
    with the record so far if the card is interrupted."""
    with _with_store(run) as stored:
        return Card(record, request, stored).made()


def run_pair(records: tuple[Record, Record], request: CardRequest, run: Run) -> list[Record]:
    """Both records with their cards, each made in half of the time, and with the paired differences."""
    if request.seconds is not None:
        request = replace(request, seconds=request.seconds / 2)
    with _with_store(run) as stored:
        first, second = cards = [Card(record, request, stored) for record in records]
        one, other = (card.inputs.data for card in cards)
        if one.fingerprint != other.fingerprint or first.n != second.n:
            raise RbError(
                f"The two models were evaluated on different images: {one.name} and {other.name}. Compare"
                " them on one data set (--dataset), with the same --n."
            )
        made: list[Record] = []
        try:
            for card in cards:
                made.append(card.made())
        except Unfinished as stop:
            raise Unfinished([*made, stop.result]) from stop.__cause__
        for record, this, that in ((made[0], first, second), (made[1], second, first)):
            differences = {state.part.name: _differences(this, that, state) for state in this.states}
            against = {"checkpoint": that.inputs.checkpoint, "parts": differences}
            record["card"] = {**record["card"], "against": against}
        return made


@contextlib.contextmanager
def _with_store(run: Run) -> Iterator[Run]:
    """Yields the run with a store, because each look continues from the results of earlier looks. The store
    is temporary if the run has none."""
    if run.store.folder is not None or run.plan is not None:
        yield run
        return
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        try:
            yield run.changed(store=store)
        finally:
            run.store.found += store.found
            run.store.computed += store.computed


@dataclass
class PartState:
    """The state of one part: the number `n` of images in its last evaluation, the `seconds` that it took, the
    `reason` why it cannot be evaluated further (or None), and the `remarks` of its last evaluation. `fits` is
    false if the time that is left is too short for its next evaluation."""

    part: CardPart
    n: int = 0
    seconds: float = 0.0
    reason: str | None = None
    fits: bool = True
    remarks: dict[str, None] = field(default_factory=dict)


class Card:
    def __init__(self, record: Record, request: CardRequest, run: Run) -> None:
        self.record, self.request = record, request
        self.begin = time.monotonic()
        self.bare = copy.copy(record)  # a copy also keeps the images of a module in memory
        for name in _RESULTS:
            self.bare.pop(name, None)
        self.inputs = resolve_inputs(self.bare, run)
        self.n = self.inputs.n
        self.sizes = sizes(self.n)
        self.run = run.changed(replace=True, name_as=None, check_cancelled=self._check)
        self.asked = run
        known = parts(request.eps, confidence(len(self.sizes)))
        self.states = [PartState(known[name]) for name in request.parts]
        for state in self.states:
            if state.part.name == "gap" and isinstance(record, InMemory):
                state.reason = "images in memory have no split, so there are no training images."
        self.entries: dict[str, Entry] = {}
        self.about: Record = {}
        self.pass_seconds: float | None = None

    def _check(self) -> None:
        self.asked.report.check_cancelled()
        if self.left() <= 0 and self.entries:  # the first part always has a result
            raise TimeUp

    def left(self) -> float:
        """The remaining seconds, or infinity if there is no time limit."""
        spent = time.monotonic() - self.begin
        return math.inf if self.request.seconds is None else self.request.seconds - spent

    def made(self) -> Record:
        """The record with the card. Raises Unfinished in the same cases as `run_card`."""
        torch.nn, special.ndtri  # noqa: B018  (imported here, so that the first look does not count it)
        self.begin = time.monotonic()
        looks = self.sizes
        if self.run.plan is not None:
            looks = looks[-1:]
            possible = (state for state in self.states if not state.reason)
            self.run.plan.each([partial(self.look, state, looks[0]) for state in possible])
        cheap_first = sorted(self.states, key=lambda state: state.part.most_passes)
        try:
            for size in looks:
                for state in cheap_first:
                    if state.reason is None and self._fits(state, size):
                        self._check()
                        self.look(state, size)
            ended = "images" if all(state.fits for state in self.states) else "time"
        except TimeUp:
            ended = "time"
            for state in self.states:
                if not state.n and state.reason is None:
                    state.reason = f"the limit of {self.request.seconds:g} s ended before its first result."
        except Exception:
            raise
        except BaseException as stop:
            raise Unfinished(self.result("interrupted")) from stop
        if not self.entries:
            raise RbError(str(self.states[0].reason))
        return self.result(ended)

    def _fits(self, state: PartState, size: int) -> bool:
        """Whether a look at a part can end within the time limit. If its first look cannot, the part is left
        out with the reason. The first look is estimated by the passes of its evaluations and the measured
        time of a pass; later looks by the time of the former ones. Attacks leave out images that they have
        broken, so their first look may take only a part of the largest time."""
        left = self.left()
        if left == math.inf or self.run.plan is not None or not self.entries:
            return True
        if state.n:
            needed = state.seconds / state.n * (size - state.n)
            state.fits = state.n == size or needed <= left
            return state.fits
        if self.pass_seconds is None:
            self.pass_seconds = tile_calls.seconds_per_pass(self.inputs.on(self.inputs.data.split, n=size))
            left = self.left()
        share = USUAL_SHARE if state.part.leaves_out else 1
        needed = self.pass_seconds * state.part.most_passes * size * share
        state.fits = needed <= left
        if not state.fits:
            state.reason = (
                f"{size} images take about {needed:.0f} s, and {max(left, 0):.0f} s of the limit are left."
            )
        return state.fits

    def measured(self, state: PartState, size: int) -> Record:
        """The record with only the results of one part on `size` images."""

        def notify(text: str) -> None:
            if _CLEAN not in text:  # every part reports it for its own number of images
                state.remarks[text] = None

        return state.part.job(self.bare, self.run.changed(n=size, notify=notify))

    def look(self, state: PartState, size: int) -> None:
        """Evaluate a part on `size` images."""
        self._tell(state, size)
        state.remarks.clear()
        start = time.perf_counter()
        try:
            result = self.measured(state, size)
        except Pending:
            raise
        except RbError as wrong:
            state.reason = str(wrong)
        except Exception as bug:
            state.reason = of_network(bug) or of_own_code(bug)
            if state.reason is None:
                raise
        else:
            self._take(state, size, result)
        finally:
            state.seconds += time.perf_counter() - start
        self._tell(None, size)

    def _take(self, state: PartState, size: int, result: Record) -> None:
        """Add the entries of a look, with intervals that hold for all looks together."""
        result = union.with_entries(result, union.among(state.part.headlines))
        self.entries |= {entry["metric"]: entry for entry in LookIntervals(result, len(self.sizes)).entries()}
        self.about |= {key: value for key, value in result.items() if key not in _RESULTS}
        if answers.LABELS in result:
            self.about[answers.LABELS] = result[answers.LABELS]
        state.n = size

    def _tell(self, running: PartState | None, size: int) -> None:
        """Report the state of the card to the live table and to --log."""
        rows = [self._row(state) for state in self.states]
        name = None if running is None else running.part.name
        self.asked.report.event({"event": "card", "running": name, "n": size, "parts": rows})

    def _row(self, state: PartState) -> dict[str, Any]:
        metric = state.part.headlines[0]
        entry = self.entries.get(metric, {})
        return {
            "part": state.part.title,
            "metric": metric,
            "value": entry.get("value"),
            "ci95": entry.get("ci95"),
            "n": state.n,
            "seconds": round(state.seconds, 2),
            **({} if state.reason is None else {"reason": state.reason}),
        }

    def result(self, ended: str) -> Record:
        """The record with the entries of the card."""
        report, keep = self.inputs.run.report, not self.asked.replace
        record = {**self.record, **self.about}
        for metric, entry in self.entries.items():
            old = results.last_entry(record, metric)
            if old and keep and results.difference(old, entry):
                of_tool = old.get("tool") != self.run.tool
                if of_tool or _images(old) > _images(entry):
                    why = "another tool measured" if of_tool else "was measured on more images"
                    report.notify(f"the record keeps its {metric}, which {why}.")
                    continue
            record = results.add(record, entry, replace=True)
        for state in self.states:
            head = self.entries.get(state.part.headlines[0], {})
            if state.n and state.reason is None and head.get("value") is None:
                why = f": {head['reason']}" if "reason" in head else ""
                state.reason = f"{state.part.headlines[0]} has no value{why}."
            if state.reason is not None:
                more = f" beyond {state.n} images" if head.get("value") is not None else ""
                report.warn(f"{state.part.title}: not measured{more}: {state.reason}")
            for remark in state.remarks:
                report.notify(remark)
        about = self._about(ended)
        former = self.record.get("card")
        if isinstance(former, dict) and isinstance(former.get("parts"), dict) and keep:
            about["parts"] = {**former["parts"], **about["parts"]}  # a former card's other parts stay
        return {**record, "card": about}

    def _about(self, ended: str) -> dict[str, Any]:
        """The field `card` of the record."""
        return {
            "ended": ended,
            "seconds": round(time.monotonic() - self.begin, 1),
            "images": self.n,
            "parts": {
                state.part.name: {
                    "metrics": [name for name in state.part.headlines if name in self.entries],
                    "seconds": round(state.seconds, 2),
                    **({"n": state.n} if state.n else {}),
                    **({} if state.reason is None else {"reason": state.reason}),
                }
                for state in self.states
            },
        }


def _images(entry: Mapping[str, Any]) -> int:
    n = entry.get("n")
    return sum(n) if isinstance(n, list) else int(n or 0)


# --- two models -----------------------------------------------------------------------------------


def _differences(this: Card, other: Card, state: PartState) -> dict[str, Record]:
    """Maps each metric of a part to the difference between two cards, this - other, on the same images."""
    rows = {}
    for metric in state.part.paired or state.part.headlines:
        if metric_name.parse(metric).is_ge:
            sides = [_difference(this, other, state, name) for name in metric_name.sides_of_ge(metric)]
            if sides[0] is not None and sides[1] is not None:
                (train, of_train, n), (test, of_test, _) = sides  # type: ignore[misc]
                interval = intervals.square_and_add(train, of_train, test, of_test)
                rows[metric] = _row(train - test, interval, n, lower=True)
        elif (found := _difference(this, other, state, metric)) is not None:
            rows[metric] = _row(*found)
    return rows


def _difference(this: Card, other: Card, state: PartState, metric: str) -> tuple[float, Interval, int] | None:
    """The mean difference in one metric, its interval, and the number of images, or None."""
    one, two = (_values(card, state.part, metric) for card in (this, other))
    if one is None or two is None:
        return None
    n = min(len(one), len(two))
    changes = one[:n] - two[:n]
    low, high = intervals.mean_interval((1 + changes) / 2, confidence=confidence(len(this.sizes)))
    return float(np.mean(changes)), (2 * low - 1, 2 * high - 1), n


def _values(card: Card, part: CardPart, metric: str) -> np.ndarray | None:
    """The value of each image (n,), in [0, 1], or None; for random copies, the share of correct copies."""
    entry = card.entries.get(metric, {})
    found = values_of(entry, card.entries)
    if found is not None or "gamma" not in entry:
        return found
    (n,) = (state.n for state in card.states if state.part.name == part.name)
    inputs = card.inputs.on(card.inputs.data.split, n=n)
    assert isinstance(part.job, EvaluateJob)
    (noise,) = part.job.evaluations
    (spec,) = (spec for spec in noise.specs if spec.name() == metric)
    return stored_results.task_entries(inputs, noise).rows(spec, again=True) / spec.samples


def _row(difference: float, interval: Interval, n: int, *, lower: bool = False) -> Record:
    """A difference with its interval and the better model. `lower` is true if smaller values are better."""
    low, high = (float(end) for end in interval)
    better = None if low <= 0 <= high else "this" if (low > 0) != lower else "other"
    return {"difference": difference, "ci95": [low, high], "n": n, "better": better}


def answer_lines(record: Record, names: tuple[str, str]) -> list[str]:
    """The comparison of two models, one line for each part and metric. `record` is the first model's."""
    lines = []
    for part, rows in record["card"].get("against", {"parts": {}})["parts"].items():
        if not rows:
            lines.append(f"{part}: cannot be told: not both models have values for single images.")
        for metric, row in rows.items():
            low, high = row["ci95"]
            says = f"{metric} {row['difference']:+.4f} [{low:+.4f}, {high:+.4f}], {row['n']:,} images"
            better = row["better"]
            which = "cannot be told" if better is None else f"{names[better == 'other']} is better"
            lines.append(f"{part}: {which}: {says}.")
    return lines
