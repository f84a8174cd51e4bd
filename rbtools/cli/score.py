"""rb-score: one composite number from several metrics."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from math import isnan
from typing import Any

import click

from rbtools.cli import shared
from rbtools.cli.output import Output
from rbtools.errors import RbError, near
from rbtools.records import dumps, expr, parse_again, results
from rbtools.scoring import minmax

ABSENT = float("nan")


@shared.command()
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME[:WEIGHT][:lower|higher]",
    help="A metric or glob (pgd20.*) of the score, several with commas, and its weight; lower: less is"
    " better.  [default: all that every record has]",
)
@click.option(
    "--missing",
    default="refuse",
    type=click.Choice(minmax.MISSING),
    help="What becomes of a record that lacks a metric.",
)
@shared.stream_options
@shared.screen_options
def main(metrics: tuple[str, ...], missing: str, source: shared.Source, screen: shared.Screen) -> int:
    """Give every record a composite score between 0 and 1.

    Each metric is scaled to [0, 1] over all records (1 is best: metrics where less is better, such as
    ge.* or seconds_per_epoch, are turned round), and the score is their weighted mean. Needs all
    records before it writes the first.

    \b
    Examples:
      rb-score --metric acc --metric pgd20.8:2 results.jsonl | rb-rank
      rb-score --metric 'acc,pgd20.*,seconds_per_epoch' --missing renormalise results.jsonl
    """
    asked = [part.strip() for text in metrics for part in text.split(",") if part.strip()]
    if metrics:
        minmax.check_terms([minmax.term(text) for text in asked])
    with shared.opened_output(source, screen) as output:
        held = _Held(asked)
        failed = held.read(source, screen, output)
        if not held.texts:
            screen.say("no records came in.")
        for line in held.scored(missing, screen):
            output.line(line)
        return shared.FAILED if failed else shared.DONE


class _Held:
    """All records as they came, and a column of numbers for each metric: a million fit in memory."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked
        self.texts: list[bytes] = []
        self.working: list[bool] = []
        self.count = 0  # of those that are worked on
        self.columns: dict[str, array[float]] = {}

    def read(self, source: shared.Source, screen: shared.Screen, output: Output) -> bool:
        """Take all lines in; True if some were no records."""
        failed = False
        for line in shared.read_all(source, screen, output):
            record = line.record
            if record is None:
                failed = True
                self._hold(dumps(shared.bad_line_record(screen.tool, line)), None)
            elif source.passes(record):
                self._hold(line.text, None)
            else:
                self._hold(line.text, record)
        return failed

    def _hold(self, text: bytes, record: dict[str, Any] | None) -> None:
        self.texts.append(text)
        self.working.append(record is not None)
        if record is None:
            return
        for name, value in record.get("metrics", {}).items():
            if value is not None:
                column = self.columns.get(name)
                if column is None or len(column) != self.count:
                    column = self._column(name)
                column.append(value)
        self.count += 1

    def _column(self, name: str) -> array[float]:
        """A metric's numbers, with a gap for each record so far that lacks it."""
        column = self.columns.setdefault(name, array("d"))
        column.extend(array("d", [ABSENT]) * (self.count - len(column)))
        return column

    def scored(self, missing: str, screen: shared.Screen) -> Iterator[bytes]:
        """The lines with their scores, in the order they came."""
        if not self.count:
            yield from self.texts
            return
        terms = self._named() if self.asked else self._common()
        screen.detail("scored by " + ", ".join(map(_in_words, terms)) + ".")
        scores = minmax.composite([self._column(term.metric) for term in terms], terms, missing)
        listed = [{"metric": one.metric, "weight": one.weight, "higher": one.higher} for one in terms]
        for text, works in zip(self.texts, self.working, strict=True):
            yield dumps(_with_score(parse_again(text), listed, next(scores))) if works else text

    def _named(self) -> list[minmax.Term]:
        """What was asked for, with the metrics that a glob matches in its place."""
        names = [text.partition(":")[0] for text in self.asked]
        terms = []
        for name, text in zip(names, self.asked, strict=True):
            found = expr.expand(name, self.columns)
            if not found:
                raise unknown_metric(name, self.columns)
            if expr.is_glob(name):  # what is named by itself has its own weight
                found = [one for one in found if one not in names and one != "score"]
            terms += [minmax.term(one + text[len(name) :]) for one in found]
        return terms

    def _common(self) -> list[minmax.Term]:
        found = [name for name in self.columns if name != "score" and not any(map(isnan, self._column(name)))]
        if not found:
            listed = ", ".join(list(self.columns)[:12]) or "none at all"
            raise RbError(
                f"There is no metric that all {self.count} records have (they have: {listed})."
                " Evaluate them alike, or name metrics with --metric and say --missing renormalise."
            )
        return [minmax.term(name) for name in found]


def _in_words(term: minmax.Term) -> str:
    return f"{term.metric} (weight {term.weight:g}, {'higher' if term.higher else 'lower'} is better)"


def unknown_metric(name: str, known: Iterable[str]) -> RbError:
    """The error for a metric that no record has."""
    known = list(known)
    listed = ", ".join(known[:40]) or "no metrics at all: evaluate them first, with rb-attack say"
    return RbError(f"No record has the metric '{name}'.{near(name, known)} They have: {listed}.")


def _with_score(record: dict[str, Any], terms: list[dict[str, Any]], scored: minmax.Scored) -> dict[str, Any]:
    record.pop("error", None)
    entry = {
        "tool": "rb-score",
        "metric": "score",
        "value": scored.score,
        "terms": terms,
        "contributions": dict(zip((one["metric"] for one in terms), scored.contributions, strict=True)),
    }
    if scored.score is None:
        entry["reason"] = "the record has none of the metrics"
    return results.add(record, entry, replace=True)


if __name__ == "__main__":
    main()
