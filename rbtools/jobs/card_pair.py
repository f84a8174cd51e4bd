"""Two checkpoints on the same images: the time goes to where it decides which is better (`rb-card A B`).

The parts and looks are those of a card, image by image: the difference of two models on the same images has a
shorter interval than theirs. A part is decided when the interval of its difference, which holds for all looks
together, excludes 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from rbtools.errors import Pending, RbError
from rbtools.evaluation.probabilistic import NoisyCopiesOutput
from rbtools.execution.run import Run
from rbtools.jobs import EvaluateJob, evaluate_record
from rbtools.jobs.card_intervals import values_of
from rbtools.jobs.model_card import Card, CardRequest, PartState, event, refined
from rbtools.lazy import np
from rbtools.probabilistic import looks
from rbtools.probabilistic.looks import AnytimeInterval
from rbtools.records import metric_name
from rbtools.report import discard

Record = dict[str, Any]
_NOT_COMPARED = ("masking",)  # tests of one model


@dataclass
class Compared:
    """One part of both models, and what is known of the difference, first - second, by metric."""

    first: PartState
    second: PartState
    differences: dict[str, dict[str, Any]]

    @property
    def states(self) -> tuple[PartState, PartState]:
        return self.first, self.second

    @property
    def open(self) -> bool:
        """Whether there is a next look, and something that it could decide."""
        undecided = not self.differences or any(row["better"] is None for row in self.differences.values())
        return undecided and all(state.next is not None for state in self.states)

    @property
    def expected_seconds(self) -> float:
        return sum(state.expected_seconds() for state in self.states)

    def row(self) -> dict[str, Any]:
        """The row of the part in the live table."""
        metric = next(iter(self.differences), self.first.part.headlines[0])
        found = self.differences.get(metric, {})
        reason = next((state.reason for state in self.states if state.reason is not None), None)
        return {
            "part": self.first.part.title,
            "metric": metric,
            "value": found.get("difference"),
            "ci95": found.get("ci95"),
            "n": self.first.n,
            "seconds": round(sum(state.seconds for state in self.states), 2),
            **({} if reason is None else {"reason": reason}),
        }

    def urgency(self) -> float:
        """The weight by the expected seconds until the next decision; what all images would hardly decide
        comes last, the shortest look first."""
        ahead = [
            (looks.half(row["ci95"]) / max(abs(row["difference"]), 1e-9)) ** 2
            for row in self.differences.values()
            if row["better"] is None
        ]
        times = min(ahead, default=math.inf)
        more = (
            self.first.n * (times - 1) / max(self.first.next.n - self.first.n, 1) if self.first.next else 0.0
        )
        reachable = self.first.n * times <= self.first.looks[-1].n
        seconds = self.expected_seconds * (max(more, 1.0) if reachable else 1e6)
        return self.first.weight / seconds


class CardPair:
    """The cards of two records, made together."""

    def __init__(self, records: tuple[Record, Record], request: CardRequest, run: Run) -> None:
        weights = {name: weight for name, weight in request.weights.items() if name not in _NOT_COMPARED}
        request = replace(request, weights=weights)
        self.cards = Card(records[0], request, run, discard), Card(records[1], request, run, discard)
        self._tell = run.report.event
        self.now: Compared | None = None
        first, second = (card.inputs.data for card in self.cards)
        if first.fingerprint != second.fingerprint or self.cards[0].n != self.cards[1].n:
            raise RbError(
                f"The two models have other images: {first.name} and {second.name}. Compare them on one data"
                " set (--dataset), with the same --n."
            )
        for card in self.cards:
            card.use_pairs()
        self.parts = [
            Compared(one, other, {}) for one, other in zip(*(card.states for card in self.cards), strict=True)
        ]

    def missing(self) -> int:
        """In a dry run: notes what is missing, and returns of how many of the two cards something is."""
        pending = 0
        for card in self.cards:
            try:
                card.made()
            except Pending:
                pending += 1
        return pending

    def made(self) -> list[Record]:
        """Both records. Raises Unfinished, with both as they stand, where it is interrupted."""
        in_time = refined(self)
        for card in self.cards:
            card.check_measured()
        return self.result("decided" if in_time and not any(part.open for part in self.parts) else "time")

    def choose(self) -> Compared | None:
        """The part that gets the next look; None where none is left, or none fits into the time."""
        left = [part for part in self.parts if part.open]
        new = [part for part in left if not part.first.done]
        if new:
            return new[0]
        fitting = [part for part in left if part.expected_seconds <= self.cards[0].left()]
        return max(fitting, key=Compared.urgency, default=None)

    def look(self, part: Compared) -> None:
        """The next look at both models, and the differences."""
        place = part.first.done
        self.now = part
        self.tell()
        for card, state in zip(self.cards, part.states, strict=True):
            if all(one.reason is None for one in part.states):
                card.look(state)
        if part.first.done == part.second.done == place + 1:
            bound = part.first.part.bounded_by if part.first.looks[place].attacked == 0 else None
            metrics = part.first.part.headlines if bound is None else (bound,)
            found = {metric: self.difference(part, metric) for metric in metrics}
            part.differences = {metric: row for metric, row in found.items() if row is not None}
            if bound in part.differences:  # the screen says nothing of the attack
                part.differences[bound]["better"] = None
        self.now = None
        self.tell()

    def tell(self) -> None:
        """Tell how the comparison stands: values are differences, first - second."""
        then = self.now or self.choose()
        running, coming = (None if part is None else part.first for part in (self.now, then))
        seconds = 0.0 if then is None else then.expected_seconds
        self._tell(event(running, coming, seconds, [part.row() for part in self.parts]))

    def difference(self, part: Compared, metric: str) -> dict[str, Any] | None:
        """The difference in one metric; None where a model has no value for each image."""
        seen, sure = part.first.n / self.cards[0].n, part.first.sure
        if metric_name.parse(metric).is_ge:
            return self._of_gaps(part, metric, seen, sure)
        values = [
            self.values(card, state, metric) for card, state in zip(self.cards, part.states, strict=True)
        ]
        if values[0] is None or values[1] is None:
            return None
        interval = looks.of_pairs(values[0], values[1], seen, sure)
        return _row(float((values[0] - values[1]).mean()), interval, part.first.n)

    def _of_gaps(self, part: Compared, metric: str, seen: float, sure: float) -> dict[str, Any] | None:
        """The difference of two generalisation gaps: of the differences on train and on test images."""
        sides = []
        for name in metric_name.sides_of_ge(metric):
            one, other = (values_of(state.entries.get(name, {}), {}) for state in part.states)
            if one is None or other is None or len(one) != len(other):
                return None
            sides.append((float((one - other).mean()), looks.of_pairs(one, other, seen, sure), len(one)))
        (train, of_train, n), (test, of_test, _) = sides
        return _row(train - test, looks.difference(train, of_train, test, of_test), n, lower=True)

    def values(self, card: Card, state: PartState, metric: str) -> np.ndarray | None:
        """The value of each image (n,), in [0, 1]."""
        entry = state.entries.get(metric, {})
        found = values_of(entry, state.entries)
        if found is not None or "gamma" not in entry:
            return found
        look = state.looks[state.done - 1]
        job = state.part.job(card.run.changed(n=look.n), look, state.sure)
        assert isinstance(job, EvaluateJob)
        inputs = card.inputs.on(card.inputs.data.split, n=look.n)
        for output, copies in evaluate_record.stored_outcomes(inputs, job.task).items():
            if isinstance(output, NoisyCopiesOutput) and output.entry_template()[0]["metric"] == metric:
                return np.asarray(copies) / output.samples
        return None

    def result(self, ended: str) -> list[Record]:
        """Both records, each with the comparison."""
        rows = {part.first.part.name: part.differences for part in self.parts}
        signs = (1, -1)
        results = []
        for card, other, sign in zip(self.cards, reversed(self.cards), signs, strict=True):
            record = card.result(ended)
            against = {"checkpoint": other.inputs.checkpoint, "parts": _seen_from(rows, sign)}
            results.append({**record, "card": {**record["card"], "against": against}})
        return results

    def answers(self, names: tuple[str, str]) -> list[str]:
        """Which model is better at what, a line for each part and metric."""
        lines = []
        for part in self.parts:
            title = part.first.part.title
            reason = next((state.reason for state in part.states if state.reason is not None), None)
            if reason is not None or not part.differences:
                looked = part.first.done and part.second.done
                none = "no image has a value." if looked else "no look at both models is finished."
                lines.append(f"{title}: cannot be told: {reason or none}")
            for metric, row in part.differences.items():
                low, high = row["ci95"]
                says = f"{metric} {row['difference']:+.4f} [{low:+.4f}, {high:+.4f}], {row['n']:,} images"
                better = row["better"]
                if better is None:
                    more = f"; one more look takes {part.expected_seconds:.0f} s" if part.open else ""
                    lines.append(f"{title}: cannot be told: {says}{more}.")
                else:
                    lines.append(f"{title}: {names[0 if better == 'this' else 1]} is better: {says}.")
        return lines


def _row(difference: float, interval: AnytimeInterval, n: int, *, lower: bool = False) -> dict[str, Any]:
    """A difference with its interval, and which model is better; lower: the smaller value is."""
    low, high = interval.of_source
    sign = 0 if low <= 0 <= high else (1 if low > 0 else -1) * (-1 if lower else 1)
    better = {0: None, 1: "this", -1: "other"}[sign]
    return {"difference": difference, "ci95": [float(low), float(high)], "n": n, "better": better}


def _seen_from(rows: dict[str, dict[str, dict[str, Any]]], sign: int) -> dict[str, Any]:
    """The differences as one of the models sees them: this - other."""
    if sign > 0:
        return rows
    turned = {"this": "other", "other": "this", None: None}
    return {
        part: {
            metric: {
                **row,
                "difference": -row["difference"],
                "ci95": [-row["ci95"][1], -row["ci95"][0]],
                "better": turned[row["better"]],
            }
            for metric, row in metrics.items()
        }
        for part, metrics in rows.items()
    }
