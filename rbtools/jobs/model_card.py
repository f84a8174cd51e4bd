"""Everything about one checkpoint in the time there is: `rb-card`.

A card has parts (`card_parts`), each an evaluation of a tool at planned numbers of images. Every part gets
its first look. Then the next look is always the one that is expected to shorten the interval of a part most
per second, by its measured cost. It ends at the wanted precision, at the end of the time, by an interruption,
or when all images are evaluated. Its intervals hold at every such end (`probabilistic.looks`).
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from rbtools.errors import RbError, of_network, of_own_code
from rbtools.execution.executor import Unfinished
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.data import InMemory
from rbtools.jobs import _SplitJob
from rbtools.jobs.card_intervals import LookIntervals
from rbtools.jobs.card_parts import CardPart, PlannedLook, parts
from rbtools.lazy import special, torch
from rbtools.probabilistic import looks
from rbtools.records import answers, results
from rbtools.scoring import union
from rbtools.store import Store

Entry = dict[str, Any]
Record = dict[str, Any]
_RESULTS = ("metrics", "evals", "checksums", answers.LABELS, "card")
_CLEAN = ": clean accuracy "
_SECONDS_OF_LOOK = 0.2  # what a look takes at least, whatever it evaluates


class TimeUp(BaseException):
    """The time of the card is over in the middle of a look."""


@dataclass(frozen=True)
class CardRequest:
    """The parts with their weights, eps of the attacks on [0, 1], and when to end.

    seconds: wall-clock time, None for no limit. precision: half the length of the intervals for the values
    that all images have, at which a part is finished.
    """

    weights: Mapping[str, float]
    eps: float
    seconds: float | None
    precision: float

    def parts(self) -> list[CardPart]:
        known = parts(self.eps)
        return [known[name] for name in self.weights]


@dataclass(frozen=True)
class CardJob(_SplitJob):
    """Make the card of the record's model."""

    request: CardRequest
    run: Run

    def __call__(self, record: Record) -> Record:
        return run_card(record, self.request, self.run)


def run_card(record: Record, request: CardRequest, run: Run) -> Record:
    """The record with its card. Raises RbError where model or data are not available, and Unfinished with the
    record as it stands where it is interrupted."""
    if run.store.folder is not None or run.plan is not None:
        return Card(record, request, run).made()
    with tempfile.TemporaryDirectory() as folder:  # a look goes on from the outcomes of the one before
        store = Store(folder)
        try:
            return Card(record, request, run.changed(store=store)).made()
        finally:
            run.store.found += store.found
            run.store.computed += store.computed


@dataclass
class PartState:
    """What is known of one part.

    done: its finished looks. entries: of the last one, by metric. took: the work and the seconds of each.
    half: half the mean length of the intervals of its headlines, half_all: half that of the longest one for
    all images. half_sampled: the part of `half` that is due to the sample of an expensive attack. left: the
    share of the images that its screen leaves. reason: why it cannot run. remarks: those of its last look.
    """

    part: CardPart
    weight: float
    looks: list[PlannedLook]
    done: int = 0
    seconds: float = 0.0
    took: list[tuple[float, float]] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    half: float = math.nan
    half_sampled: float = 0.0
    half_all: float = math.nan
    left: float = 0.5
    reason: str | None = None
    remarks: dict[str, None] = field(default_factory=dict)

    @property
    def headlines(self) -> tuple[str, ...]:
        """The metrics that stand for the part: of an attack whose screen alone ran, that of the screen."""
        bound = self.part.bounded_by
        return (bound,) if bound is not None and self.done == 1 else self.part.headlines

    @property
    def sure(self) -> float:
        return looks.confidence(len(self.looks))

    @property
    def next(self) -> PlannedLook | None:
        """The next look, None where there is none."""
        return self.looks[self.done] if self.reason is None and self.done < len(self.looks) else None

    @property
    def n(self) -> int:
        """The images of the last look."""
        return self.looks[self.done - 1].n if self.done else 0

    def spend(self, seconds: float) -> None:
        """Note what the last look takes to compute."""
        self.took.append((self._new(self.done - 1), seconds))

    def expected_seconds(self) -> float:
        """What the next look takes: the last two looks tell what is the same for any work, as the passes of a
        batch are, and what grows with it."""
        if not self.took:
            return 0.0
        work, seconds = self.took[-1]
        rate = max(seconds - _SECONDS_OF_LOOK, 0.0) / work
        less, before = self.took[-2] if len(self.took) > 1 else (work, seconds)
        if less < work:
            rate = min(rate, max(seconds - before, 0.0) / (work - less))
        return max(seconds + rate * (self._new(self.done) - work), _SECONDS_OF_LOOK)

    def share_of_new(self) -> float:
        """The share of the work of the last look that the one before did not leave to it."""
        return self._new(self.done - 1) / self.part.work(self.looks[self.done - 1], self.left)

    def _new(self, place: int) -> float:
        """The work of a look beyond what the one before leaves to it: that attacked another sample, unless it
        was of the same images, or of few."""
        look, before = self.looks[place], self.looks[place - 1] if place else PlannedLook(0, 0)
        goes_on = look.n == before.n or look.attacked is None
        work = self.part.work(look, self.left)
        return max(work - self.part.work(before, self.left), 1.0) if goes_on else work

    def expected_half(self) -> float:
        """Half the length of the intervals after the next look."""
        look, before = self.looks[self.done], self.looks[self.done - 1]
        rest = math.sqrt(max(self.half**2 - self.half_sampled**2, 0.0)) * math.sqrt(before.n / look.n)
        attacked = [one.sampled(self.left) for one in (before, look)]
        shorter = math.sqrt(attacked[0] / attacked[1]) if self.half_sampled else 0.0
        return math.hypot(rest, self.half_sampled * shorter)

    def gain(self) -> float:
        """The expected shortening per second, times the weight."""
        return self.weight * (self.half - self.expected_half()) / self.expected_seconds()


class Refining(Protocol):
    """What is refined look by look: the card of one model, or those of two."""

    def choose(self) -> Any: ...

    def look(self, chosen: Any, /) -> None: ...

    def result(self, ended: str) -> Any: ...


def refined(card: Refining) -> bool:
    """Run the looks that a card chooses, until it chooses none; whether the time did not end within one.

    Raises Unfinished, with the result as it stands, where that is interrupted.
    """
    torch.nn, special.ndtri  # noqa: B018  (imported here, so that the first look does not count it)
    try:
        while (chosen := card.choose()) is not None:
            card.look(chosen)
    except TimeUp:
        return False
    except Exception:
        raise
    except BaseException as stop:
        raise Unfinished(card.result("interrupted")) from stop
    return True


def event(running: PartState | None, then: PartState | None, seconds: float, rows: list[Record]) -> Record:
    """How a card stands, for the live table and --log. then: what runs or comes next, and takes `seconds`."""
    return {
        "event": "card",
        "running": None if running is None else running.part.name,
        "next": None if then is None else then.part.name,
        "next_n": None if then is None or then.next is None else then.next.n,
        "next_seconds": None if then is None else round(seconds, 1),
        "parts": rows,
    }


class Card:
    """The card of one record while it is made."""

    def __init__(
        self,
        record: Record,
        request: CardRequest,
        run: Run,
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.record, self.request = record, request
        self._tell = tell or run.report.event
        self.begin = time.monotonic()
        self.bare = copy.copy(record)  # of a module in memory the record has its images, too
        for name in _RESULTS:
            self.bare.pop(name, None)
        self.inputs = resolve_inputs(self.bare, run)
        self.n = self.inputs.n
        self.run = run.changed(per_image=True, replace=True, name_as=None, check_cancelled=self._check(run))
        self.keeps = run.per_image, run.replace
        self.states = [
            PartState(part, weight, part.looks(self.n))
            for part, weight in zip(request.parts(), request.weights.values(), strict=True)
        ]
        for state in self.states:
            if state.part.name == "gap" and isinstance(record, InMemory):
                state.reason = "images in memory are of no split, so there are no training images."
        self.entries: dict[str, Entry] = {}
        self.about: Record = {}
        self.now: PartState | None = None

    def _check(self, run: Run) -> Callable[[], None]:
        def check() -> None:
            run.report.check_cancelled()
            if self.left() <= 0 and all(state.done or state.reason for state in self.states):
                raise TimeUp

        return check

    def left(self) -> float:
        """The seconds that are left."""
        spent = time.monotonic() - self.begin
        return math.inf if self.request.seconds is None else self.request.seconds - spent

    def made(self) -> Record:
        """Refine the card until it ends; the record with it. Raises Unfinished as `run_card` does."""
        if self.run.plan is not None:
            self.run.plan.each(
                [partial(self._job(state, state.looks[-1]), self.bare) for state in self.states]
            )
            for planned in self.states:  # nothing is missing
                planned.done = len(planned.looks) - 1
        in_time = refined(self)
        self.check_measured()
        return self.result("precision" if in_time and all(map(self.finished, self.states)) else "time")

    def check_measured(self) -> None:
        """Raise RbError where no part has an entry."""
        if not self.entries:
            raise RbError(str(self.states[0].reason))

    def use_pairs(self) -> None:
        """Evaluate every image of every look, as a comparison with another model needs it."""
        for state in self.states:
            state.part = state.part.of_pairs()
            state.looks = state.part.looks(self.n)

    def finished(self, state: PartState) -> bool:
        return state.next is None or state.half_all <= self.request.precision

    def choose(self) -> PartState | None:
        """The part that gets the next look; None where none is left, or none fits into the time.

        After the first looks it is AutoAttack, if that takes at most half of the time that is left: only its
        screen ran.
        """
        open_ = [state for state in self.states if not self.finished(state)]
        new = [state for state in open_ if not state.done]
        if new:
            return new[0]
        left = self.left()
        screened = [state for state in open_ if state.headlines != state.part.headlines]
        if screened and screened[0].expected_seconds() <= left / 2:
            return screened[0]  # the headline has no value yet
        fitting = [state for state in open_ if state.expected_seconds() <= left]
        return max(fitting, key=PartState.gain, default=None)

    def _job(self, state: PartState, look: PlannedLook) -> Any:
        def notify(text: str) -> None:
            if _CLEAN not in text:  # every part says so of its own number of images
                state.remarks[text] = None

        run = self.run.changed(n=look.n, notify=notify)
        return state.part.job(run, look, state.sure)

    def look(self, state: PartState) -> None:
        """Run the next look of a part."""
        look = state.looks[state.done]
        self.now = state
        self.tell()
        state.remarks.clear()
        start, computed = time.perf_counter(), self.run.store.computed
        try:
            result = self._job(state, look)(self.bare)
        except RbError as wrong:
            state.reason = str(wrong)
        except Exception as bug:
            state.reason = of_network(bug) or of_own_code(bug)
            if state.reason is None:
                raise
        else:
            self.take(state, look, result)
            seconds = time.perf_counter() - start
            if self.run.store.computed == computed:  # the results came from the store
                seconds = max(seconds, state.share_of_new() * _evaluation_seconds(result))
            state.spend(seconds)
        state.seconds += time.perf_counter() - start
        self.now = None
        self.tell()

    def take(self, state: PartState, look: PlannedLook, result: Record) -> None:
        """Take the entries of a look, with intervals that hold for all looks together."""
        expressions = union.among([state.part.union] if state.part.union else [])
        result = union.with_entries(result, expressions, lambda record, names: record)
        entries = LookIntervals(result, len(state.looks), look.n, self.n).entries()
        state.entries = {entry["metric"]: entry for entry in entries}
        for entry in state.entries.values():
            old = self.entries.get(entry["metric"])
            if old is None or _images(entry) >= _images(old):
                self.entries[entry["metric"]] = entry
        self.about |= {key: value for key, value in result.items() if key not in _RESULTS}
        if self.keeps[0] and answers.LABELS in result:
            self.about[answers.LABELS] = result[answers.LABELS]
        state.done += 1
        measured = [
            entry for name in state.part.headlines if "anytime" in (entry := self.entries.get(name, {}))
        ]
        sampled = [entry["two_phase"]["interval"] for entry in measured if "two_phase" in entry]
        state.half = _mean_half(entry["ci95"] for entry in measured)
        state.half_all = max((looks.half(entry["anytime"]["interval"]) for entry in measured), default=0.0)
        state.half_sampled = _mean_half(sampled)
        if not measured and look.attacked != 0:
            name = state.headlines[0]
            entry = self.entries.get(name, {})
            if state.next is None or entry.get("n") != 0:
                why = entry.get("reason")
                state.reason = f"{name} has no value{'' if why is None else f': {why}'}."
            state.half = state.half_all = 0.5  # no image counts so far: anything from 0 to 1
        if look.attacked == 0 and (bound := state.entries.get(state.part.bounded_by or "")) is not None:
            state.half = state.half_all = bound["ci95"][1] / 2  # anything from 0 to what the screen leaves
            state.half_sampled, state.left = bound["value"] / 2, bound["value"]

    def tell(self) -> None:
        """Tell how the card stands."""
        then = self.now or self.choose()
        seconds = 0.0 if then is None else then.expected_seconds()
        self._tell(event(self.now, then, seconds, [self._row(state) for state in self.states]))

    def _row(self, state: PartState) -> dict[str, Any]:
        metric = state.headlines[0]
        entry = state.entries.get(metric, {})
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
        keeps_answers, replace = self.keeps
        record = {**self.record, **self.about}
        for metric, entry in self.entries.items():
            if not keeps_answers:
                entry = {name: value for name, value in entry.items() if name != answers.FIELD}
            old = results.last_entry(record, metric)
            if old and not replace and results.difference(old, entry):
                of_tool = old.get("tool") != self.run.tool
                if of_tool or _images(old) > _images(entry):
                    why = "is not the card's" if of_tool else "is of more images"
                    self.inputs.run.report.notify(f"{metric} of the record {why}, and stays.")
                    continue
            record = results.add(record, entry, replace=True)
        for state in self.states:
            if state.reason is not None:
                more = " on more images" if state.n and state.half_all < 0.5 else ""
                self.inputs.run.report.warn(f"{state.part.title}: not measured{more}: {state.reason}")
            for remark in state.remarks:
                self.inputs.run.report.notify(remark)
        about = self._about(ended)
        former = self.record.get("card")
        if isinstance(former, dict) and isinstance(former.get("parts"), dict) and not replace:
            about["parts"] = {**former["parts"], **about["parts"]}  # those of a card of other parts stay
        return {**record, "card": about}

    def _about(self, ended: str) -> dict[str, Any]:
        """The field `card` of the record."""
        return {
            "ended": ended,
            "precision": self.request.precision,
            "seconds": round(time.monotonic() - self.begin, 1),
            "images": self.n,
            "parts": {
                state.part.name: {
                    "metrics": [name for name in state.headlines if name in self.entries],
                    "weight": state.weight,
                    "seconds": round(state.seconds, 2),
                    **({"n": state.n} if state.done else {}),
                    **({} if math.isnan(state.half_all) else {"half_width": round(state.half_all, 6)}),
                    **({} if state.reason is None else {"reason": state.reason}),
                    **({} if self.finished(state) else {"next_seconds": round(state.expected_seconds(), 1)}),
                }
                for state in self.states
            },
        }


def _evaluation_seconds(result: Record) -> float:
    """What the evaluations of a look took, whenever that was. The entries of one output all have its seconds,
    and a difference of two splits those of both."""
    entries = [entry for entry in result.get("evals") or () if not isinstance(entry.get("n"), list)]
    return sum({float(entry.get("seconds", 0.0)) for entry in entries})


def _images(entry: Mapping[str, Any]) -> int:
    n = entry.get("n")
    return sum(n) if isinstance(n, list) else int(n or 0)


def _mean_half(ends: Any) -> float:
    halves = [looks.half(interval) for interval in ends]
    return sum(halves) / len(halves) if halves else 0.0
