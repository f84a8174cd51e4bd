"""rb-score: combines several metrics into one number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rbtools.cli import options, shared
from rbtools.cli.sink import Inconsistent, RecordReader, counted, names, tell_united
from rbtools.cli.source import RecordSource, failed_record, name_of, stop_if_strict, where
from rbtools.errors import RbError, UsageError
from rbtools.records import Line, dumps, results
from rbtools.registry import param, rare_param
from rbtools.scoring import merge as merging
from rbtools.scoring import same_model, terms
from rbtools.scoring.composite import MISSING, Composite
from rbtools.scoring.derived import Derived, derived, explained
from rbtools.scoring.rank_order import Directions


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Directions):
    metrics: tuple[str, ...] = param(
        (),
        "Metrics of the score: names, globs (pgd20.*) and expressions (mean(pgd20.*)), separated by commas."
        "  [default: all metrics that every record has]",
        metavar="LIST",
        flags=("--metric",),
    )
    weights: tuple[str, ...] = param(
        (),
        "Add a metric to the score with this weight: pgd20.8=2. Metrics in --metric have the weight 1. The"
        " option can be repeated.",
        metavar="NAME=NUMBER",
        flags=("--weight",),
    )
    preset: str | None = param(
        None,
        "Use the metrics and directions of a published composite score; --metric and --weight add further"
        " metrics.",
        choices=tuple(terms.presets()),
    )
    within: str | None = param(
        None,
        "Scale in groups of records with equal values of these fields: dataset,arch.name.",
        metavar="LIST",
    )
    missing: str = param("refuse", "How to treat a record that lacks a metric.", choices=MISSING)
    adds: tuple[str, ...] = param(
        (),
        "Store the value of EXPR as the metric NAME, such as adv='mean(pgd20.*)'. A score is then computed"
        " only if the metrics of a score are given.",
        metavar="NAME=EXPR",
        flags=("--add",),
    )
    explains: tuple[str, ...] = param(
        (),
        "Store a union as a metric, and print three things: how many images each part breaks, how many images"
        " only this part breaks, and the smallest set of parts that breaks the same images.",
        metavar="'union(...)'",
        flags=("--explain",),
    )
    dry_run: bool = param(
        False,
        "Report the metrics that the score would have, and compute no score.",
        flags=("--dry-run",),
        group="Records and store",
    )
    force: bool = rare_param(
        False,
        "Let --add overwrite metrics of other tools or of other expressions.",
        flags=("--force",),
        group="Records and store",
    )


@shared.command()
@shared.takes("typed", ScoreOptions)
@shared.takes("merge", RecordSource, "merge", make=lambda merge: merge)
@options.stream_options
@options.screen_options
def main(typed: ScoreOptions, merge: bool, source: shared.RecordSource, screen: shared.Terminal) -> int:
    """Add a composite score between 0 and 1 to every record.

    Each metric is scaled to [0, 1] over all records, or over each group of --within. Metrics for which
    smaller is better, such as ge.* or seconds_per_epoch, are inverted, so that 1 is always best. The score is
    the weighted mean of the scaled metrics. The entry of the score contains the contribution of each metric.
    Several records of one checkpoint are merged. All records are read before the first is written, unless
    only --add is given.

    In --add, union(aa.8, corrupt.*.3) is the share of images that remain correct in all of these evaluations.
    optimality('pgd20') is AttackBench's local optimality of an attack: the attack is compared with all
    attacks that were measured on the model at several distances.

    \b
    Examples:
      rb-score --metric acc --weight pgd20.8=2 results.jsonl | rb-rank
      rb-score --metric 'acc,mean(pgd20.*),seconds_per_epoch' --missing renormalise results.jsonl
      rb-score --preset prbench-code --within dataset,arch.name leaderboard.jsonl
      rb-score --add adv.mean='mean(pgd20.*)' results.jsonl
      rb-score --explain 'union(fgsm.*,pgd20.*)' results.jsonl
    """
    asked = terms.asked(typed.metrics, typed, typed.weights, typed.preset)
    fields = names(typed.within, "--within")
    only_add = bool(typed.adds or typed.explains) and not (typed.metrics or typed.preset or typed.weights)
    if only_add and typed.within is not None:
        raise UsageError("--within only applies to a score, but --add alone computes no score. Add --metric.")
    derived_metrics = [*map(derived, typed.adds), *map(explained, typed.explains)]
    with shared.opened_output(source, screen) as output:
        reading = _ScoredLines([] if typed.dry_run else derived_metrics, typed.force, screen, source.strict)
        if only_add and not typed.dry_run:
            one_by_one = not any(metric.compares_results for metric in derived_metrics)
            for line in reading.lines(RecordReader(source, screen, output), merge=merge and not one_by_one):
                output.line(line.text)
            return shared.FAILED if reading.failed else shared.DONE
        lines = list(reading.lines(RecordReader(source, screen, output), merge=merge))
        records = [line.record for line in lines if line.record is not None]
        if records:
            composite = Composite(
                records, asked, preset=typed.preset, within=fields, missing=typed.missing, warn=screen.warn
            )
            _tell(composite.terms, len(records), screen, dry_run=typed.dry_run)
        entries = iter(composite.entries() if records and not typed.dry_run else ())
        for line in lines:
            scored = line.record is not None and not typed.dry_run
            output.line(dumps(_with_score(line.record or {}, next(entries))) if scored else line.text)
        return shared.FAILED if reading.failed else shared.DONE


def _tell(of_score: Sequence[terms.Term], count: int, screen: shared.Terminal, *, dry_run: bool) -> None:
    words = ", ".join(
        f"{term.metric} (weight {term.weight:g}, {'higher' if term.higher else 'lower'} is better)"
        for term in of_score
    )
    if dry_run:
        screen.say(f"dry run: {count} records would be scored by {words}; this takes no time.")
    else:
        screen.detail(f"scored by {words}.")


class _ScoredLines:
    """`failed` is true if a line was not a record, or if a record failed."""

    def __init__(self, adds: Sequence[Derived], force: bool, screen: shared.Terminal, strict: bool) -> None:
        self.adds, self.force, self.screen, self.strict = adds, force, screen, strict
        self.failed = False
        self.without: dict[str, int] = {}

    def lines(self, reader: RecordReader, *, merge: bool) -> Iterator[Line]:
        inconsistent = Inconsistent()
        judged = _judged(reader, inconsistent)  # each record before it is merged with others
        for line in _united(judged, self.screen) if merge else judged:
            if line.problem is not None:
                yield line._replace(text=dumps(shared.bad_line_record(self.screen.tool, line)))
            elif line.record is not None and self.adds:
                yield self._added(line, line.record)
            else:
                yield line
        self.failed = self.failed or bool(reader.bad)
        inconsistent.tell(self.screen)
        for name, count in self.without.items():
            self.screen.warn(f"{counted(count, 'record')} without {name}: the record contains the reason.")
        if not reader.came:
            self.screen.say("no records came in.")

    def _added(self, line: Line, record: dict[str, Any]) -> Line:
        """Add the metrics of --add; the record fails if another source has measured one of them."""
        record.pop("error", None)
        result = record
        try:
            for metric in self.adds:
                result = metric.added(result, replace=self.force)
                entry = result["evals"][-1]
                if entry["value"] is None:
                    self.without[metric.name] = self.without.get(metric.name, 0) + 1
                for sentence in _explanation(entry) if metric.explain else ():
                    self.screen.say(f"{name_of(record)}: {sentence}")
        except RbError as wrong:
            message = f"{where(line)} ({name_of(record)}): {wrong}"
            stop_if_strict(self.strict, message)
            self.screen.error(message)
            self.failed = True
            failed = {**record, "error": failed_record(self.screen.tool, str(wrong))["error"]}
            return line._replace(text=dumps(failed), record=None)
        return line._replace(text=dumps(result), record=result)


def _judged(reader: RecordReader, inconsistent: Inconsistent) -> Iterator[Line]:
    for line in reader.every_line():
        if line.record is not None:
            inconsistent.look(line.record)
        yield line


def _united(lines: Iterable[Line], screen: shared.Terminal) -> Iterator[Line]:
    """All lines; lines of the same checkpoint are merged into the first of these lines."""
    held: dict[tuple[bool, int], Line] = {}
    unions = merging.Unions()
    for place, line in enumerate(lines):
        record = line.record
        alone = record is None or "checkpoint" not in record
        key = (False, place) if alone else (True, same_model.model(record or {}))
        if key in held:
            record = unions.of(held[key].record or {}, record or {})
            line = held[key]._replace(text=dumps(record), record=record)
        held[key] = line
    tell_united(unions, screen)
    yield from held.values()


def _explanation(entry: dict[str, Any]) -> Iterator[str]:
    if entry["value"] is None:
        yield f"{entry['metric']}: {entry['reason']}"
        return
    low, high = entry["ci95"]
    yield f"{entry['metric']} is {entry['value']:.4g} [{low:.4g}, {high:.4g}] of {entry['n']} images."
    about = entry["explained"]
    left = entry["n"]
    for name, gain in about["gain"]:
        left -= gain
        alone = f"{about['broken'][name]} ({about['only'][name]} alone)"
        yield f"  {name} breaks {alone}, {gain} more than those above: {left} survive."
    smallest = ", ".join(about["smallest"]) or "no part"
    if about.get("proven", True):
        yield f"  The fewest parts that break the same images: {smallest}."
    else:
        yield f"  These parts break the same images, and perhaps fewer do: {smallest}."


def _with_score(record: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    record.pop("error", None)
    return results.add(record, entry, replace=True)


if __name__ == "__main__":
    main()
