"""rb-score: one composite number from several metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from rbtools.cli import config, options, shared, streams
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import Inconsistent, RecordReader, counted, names, tell_united
from rbtools.cli.source import name_of, stop_if_strict, where
from rbtools.errors import RbError, UsageError
from rbtools.plain_files import read_settings
from rbtools.records import Line, dumps, parse_again, results
from rbtools.scoring import merge, minmax, plan, same_model
from rbtools.scoring.composite import Composite
from rbtools.scoring.derived import Derived, derived, explained


@shared.command()
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME[:WEIGHT][:lower|higher]",
    help="Metrics of the score: names, globs (pgd20.*) and expressions (mean(pgd20.*)) with commas, and their"
    " weight; lower: less is better.  [default: all that every record has]",
)
@click.option(
    "--preset",
    default=None,
    type=click.Choice(list(plan.presets())),
    help="The metrics and directions of a published composite; --weights and --metric add to it.",
)
@click.option(
    "--weights",
    "weights",
    default=None,
    metavar="FILE",
    help="A YAML file of metrics and their weights: 'acc: 2', 'ge.acc: 1:lower'.",
)
@click.option(
    "--within",
    default=None,
    metavar="LIST",
    help="Scale within groups of records that agree in these fields: dataset,arch.name.",
)
@click.option(
    "--missing",
    default="refuse",
    type=click.Choice(minmax.MISSING),
    help="What to do with a record that lacks a metric.",
)
@click.option(
    "--add",
    "adds",
    multiple=True,
    metavar="NAME=EXPR",
    help="Store the value of EXPR as the metric NAME, for instance adv='mean(pgd20.*)'; without metrics of a"
    " score, none is computed.",
)
@click.option(
    "--explain",
    "explains",
    multiple=True,
    metavar="'union(...)'",
    help="Store a union as a metric, and say which part breaks how many images, how many alone, and which"
    " fewest parts break the same.",
)
@click.option(
    "--dry-run", is_flag=True, help="Compute no score; report what would be scored, by which metrics."
)
@click.option("--force", is_flag=True, help="Let --add overwrite a metric of another origin.")
@options.merge_option
@options.stream_options
@options.screen_options
def main(
    metrics: tuple[str, ...],
    preset: str | None,
    weights: str | None,
    within: str | None,
    missing: str,
    adds: tuple[str, ...],
    explains: tuple[str, ...],
    force: bool,
    dry_run: bool,
    merge: bool,
    source: shared.RecordSource,
    screen: shared.Terminal,
) -> int:
    """Give every record a composite score between 0 and 1.

    Each metric is scaled to [0, 1] over all records, or over each group of --within (1 is best: metrics where
    less is better, such as ge.* or seconds_per_epoch, are inverted), and the score is their weighted mean.
    The record keeps the contribution of each metric. Several records of one checkpoint are merged. Reads all
    records before it writes the first, except with --add alone. optimality('pgd20') in --add is AttackBench's
    local optimality of an attack among all of the model that have several distances. union(aa.8,
    corrupt.*.3) is the accuracy on the images that survive all of these.

    \b
    Examples:
      rb-score --metric acc --metric pgd20.8:2 results.jsonl | rb-rank
      rb-score --metric 'acc,mean(pgd20.*),seconds_per_epoch' --missing renormalise results.jsonl
      rb-score --preset prbench --within dataset,arch.name leaderboard.jsonl
      rb-score --add adv.mean='mean(pgd20.*)' results.jsonl
      rb-score --explain 'union(fgsm.*,pgd20.*)' results.jsonl
    """
    composite = Composite(
        _asked(metrics, weights), preset=preset, within=names(within, "--within"), missing=missing
    )
    only_add = bool(adds or explains) and not (metrics or preset or weights)
    if only_add and within is not None:
        raise UsageError(
            "--within is for a score, but --add alone computes none. Name its metrics with --metric."
        )
    derived_metrics = [*map(derived, adds), *map(explained, explains)]
    with shared.opened_output(source, screen) as output:
        adding = [] if dry_run else derived_metrics
        held = _Held(composite, adding, force, screen, source.strict)
        failed = held.read(dataclasses.replace(source, merge=merge), output, stream=only_add and not dry_run)
        if not held.count:
            screen.say("no records came in.")
        for line in held.unscored() if dry_run else held.scored():
            output.line(line)
        return shared.FAILED if failed else shared.DONE


def _asked(metrics: Sequence[str], file: str | None) -> list[plan.TermSpec]:
    """The terms of --weights and --metric; --metric overrides."""
    listed = plan.asked(",".join(metrics)) if metrics else []
    return plan.together(_of_file(file) if file else [], listed)


def _of_file(path: str) -> list[plan.TermSpec]:
    if (given := streams.of_command().file(path)) is not None:
        return plan.weighted(given, path)
    import yaml

    try:
        content = config.parse_yaml(read_settings(path))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}. Expected a YAML file of weights.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path} is not YAML: {reason}. Expected lines such as 'acc: 2'.") from None
    return plan.weighted(content, path)


class _Held:
    """All records as they were read, as text, and the values that their scores are computed from."""

    def __init__(
        self,
        composite: Composite,
        adds: Sequence[Derived],
        force: bool,
        screen: shared.Terminal,
        strict: bool,
    ) -> None:
        self.composite, self.adds, self.replace = composite, adds, force
        self.screen, self.strict = screen, strict
        self.texts: list[bytes] = []
        self.working: list[bool] = []
        self.count = 0
        self.without: dict[str, int] = {}
        self.inconsistent = Inconsistent()

    def read(self, source: shared.RecordSource, output: RecordWriter, *, stream: bool) -> bool:
        """Read all lines; True if some were no records or failed. `stream`: write them at once."""
        reader, failed = RecordReader(source, self.screen, output), False
        lines = self._judged(reader)
        one_by_one = stream and not any(metric.compares_results for metric in self.adds)
        for line in self._united(lines) if source.merge and not one_by_one else lines:
            self.count += 1
            text, record = line.text, line.record
            if line.problem is not None:
                text = dumps(shared.bad_line_record(self.screen.tool, line))
            elif record is not None and self.adds:
                text, record = self._added(line, record)
                failed = failed or record is None
            if stream:
                output.line(text)
            else:
                self.texts.append(text)
                self.working.append(record is not None)
                if record is not None:
                    self.composite.add(record)
        self.inconsistent.tell(self.screen)
        for name, count in self.without.items():
            self.screen.warn(f"{counted(count, 'record')} without {name}: the record says why.")
        return failed or bool(reader.bad)

    def _judged(self, reader: RecordReader) -> Iterator[Line]:
        """All lines; each record is judged as it came, before it is merged with others."""
        for line in reader.every_line():
            if line.record is not None:
                self.inconsistent.look(line.record)
            yield line

    def _united(self, lines: Iterable[Line]) -> Iterator[Line]:
        """All lines; those of one checkpoint are merged into the first of them."""
        held: dict[tuple[bool, int], Line] = {}
        unions = merge.Unions()
        for place, line in enumerate(lines):
            record = line.record
            if record is None or "checkpoint" not in record:
                held[False, place] = line
                continue
            model = True, same_model.model(record)
            if model in held:
                record = unions.of(parse_again(held[model].text), record)
                line = held[model]._replace(text=dumps(record))
            held[model] = line._replace(record=None)
        tell_united(unions, self.screen)
        for (of_model, _), line in held.items():
            yield line._replace(record=parse_again(line.text)) if of_model else line

    def _added(self, line: Line, record: dict[str, Any]) -> tuple[bytes, dict[str, Any] | None]:
        """The record with the metrics of --add; it fails if it has one of them with another origin."""
        record.pop("error", None)
        result = record
        try:
            for metric in self.adds:
                result = metric.added(result, replace=self.replace)
                entry = result["evals"][-1]
                if entry["value"] is None:
                    self.without[metric.name] = self.without.get(metric.name, 0) + 1
                for sentence in _explanation(entry) if metric.explain else ():
                    self.screen.say(f"{name_of(record)}: {sentence}")
        except RbError as wrong:
            message = f"{where(line)} ({name_of(record)}): {wrong}"
            stop_if_strict(self.strict, message)
            self.screen.error(message)
            return dumps({**record, "error": {"tool": self.screen.tool, "message": str(wrong)}}), None
        return dumps(result), result

    def unscored(self) -> list[bytes]:
        """The unchanged lines; a message reports what would be scored."""
        if self.composite.count:
            self.composite.settle(self.screen.warn)
            terms = ", ".join(map(_in_words, self.composite.terms))
            self.screen.say(
                f"dry run: {self.composite.count} records would be scored by {terms}; it takes no time."
            )
        return self.texts

    def scored(self) -> Iterator[bytes]:
        """The lines with their scores, in input order."""
        if not self.composite.count:
            yield from self.texts
            return
        self.composite.settle(self.screen.warn)
        self.screen.detail("scored by " + ", ".join(map(_in_words, self.composite.terms)) + ".")
        entries = self.composite.entries()
        for text, works in zip(self.texts, self.working, strict=True):
            yield dumps(_with_score(parse_again(text), next(entries))) if works else text


def _explanation(entry: dict[str, Any]) -> Iterator[str]:
    """Lines about who broke what in a union."""
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


def _in_words(term: minmax.Term) -> str:
    return f"{term.metric} (weight {term.weight:g}, {'higher' if term.higher else 'lower'} is better)"


def _with_score(record: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    record.pop("error", None)
    return results.add(record, entry, replace=True)


if __name__ == "__main__":
    main()
