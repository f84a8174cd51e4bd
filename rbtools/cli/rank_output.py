"""The output of rb-rank: records, tables, rank bands, rank intervals and pivot tables."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from rbtools.cli import against, tables
from rbtools.cli.image_answers import ImageAnswers
from rbtools.cli.output import RecordWriter
from rbtools.cli.rank_options import RankOptions
from rbtools.cli.sink import counted
from rbtools.cli.source import name_of
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.records import answers, dumps, expr, metric_name, results
from rbtools.scoring import bootstrap, merge, per_class, rank_order, ranking, render, table, table_style
from rbtools.scoring.ranking import Contender

Record = dict[str, Any]
_FOR_PEOPLE = ("table", "md", "latex")


@dataclass
class Ranking:
    """Groups of contenders in order; `missing` is the number of records that lack the first sort key.
    `mixed_means` maps each metric with means over different numbers of images to the least and most."""

    keys: list[rank_order.SortKey]
    groups: list[list[rank_order.Ranked]]
    missing: int
    mixed_means: dict[str, tuple[int, int]]
    published: against.PublishedResults | None = None
    reference: Contender | None = None


def write(
    result: Ranking, options: RankOptions, output: RecordWriter, screen: Terminal
) -> Collection[str] | None:
    """Write the ranking; the default format is a table on a terminal, and JSON Lines otherwise. Returns the
    columns of the table."""
    form = options.form or ("table" if output.is_terminal() else "jsonl")
    if form == "jsonl" and options.columns:
        raise UsageError("--columns only applies to tables, but the format is jsonl. Add --format table.")
    if form not in _FOR_PEOPLE and options.style != table_style.PLAIN:
        raise UsageError(
            "--percent, --digits, --plus-minus and --label only apply to tables for people, but the format is"
            f" {form}. Leave them out, or add --format table, md or latex."
        )
    _mark(result, options, screen)
    groups = [group[: options.top] for group in result.groups]
    if result.published is not None:
        _mark_published([entry.record for group in groups for entry in group], result.published, screen)
    with_rank = not options.pivot or bool(options.keys)
    if form == "jsonl":
        for entry in itertools.chain.from_iterable(groups):
            output.line(dumps(_marked(entry, result, with_rank)))
        _warn_of_n([], result.mixed_means, None, screen)
        return None
    ranked = [
        [entry._replace(record=_marked(entry, result, with_rank)) for entry in group] for group in groups
    ]
    alone = all(len(one.record.members) == 1 for group in groups for one in group)
    for entry, contender in zip(itertools.chain(*ranked), itertools.chain(*groups), strict=True):
        more = _of_member(contender.record) if alone else _deviations(contender.record, result, options)
        entry.record["evals"] = [*entry.record.get("evals", []), *more]
    titles = _write_tables(result, ranked, options, form, output)
    records = [entry.record for group in ranked for entry in group]
    _warn_of_n(records, result.mixed_means, titles, screen)
    return titles


def _marked(entry: rank_order.Ranked, result: Ranking, with_rank: bool) -> Record:
    """The record with its rank and other new fields; new comparisons replace earlier comparisons."""
    old = {"published": result.published, "paired": result.reference}
    kept = {name: value for name, value in entry.record.record.items() if old.get(name) is None}
    return {**kept, **({"rank": entry.rank} if with_rank else {}), **entry.record.marks}


def _of_member(one: Contender) -> Iterable[Record]:
    """The entries of the record that is a row by itself, with the intervals that means do not have."""
    return one.members[0].get("evals") or () if one.parts else ()


def _deviations(one: Contender, result: Ranking, options: RankOptions) -> Iterator[Record]:
    """Entries for the averaged records, with the standard deviation of each expression that is shown."""
    shown = [*expr.items(options.shown or ""), *(key.text for key in result.keys)]
    for name in shown if len(one.parts) > 1 else ():
        if expr.is_bare(name):
            continue
        with contextlib.suppress(RbError):
            number = expr.Expression(name, any_name=True).number
            values = [value for value in map(number, one.parts) if value is not None]
            if len(values) > 1:
                yield {"metric": name, "std": stdev(values)}


def _write_tables(
    result: Ranking,
    groups: list[list[rank_order.Ranked]],
    options: RankOptions,
    form: str,
    output: RecordWriter,
) -> set[str]:
    """Write a table; a pivot table for people is one table for each group of --within."""
    every = [entry for group in groups for entry in group]
    records = [entry.record for entry in every]
    metrics = _metrics(result, records, options)
    apart = bool(options.pivot) and form in _FOR_PEOPLE
    leading = _leading(records, options, apart)
    key = None if options.pivot else result.keys[0].text
    plain = [
        table.build(
            group,
            key,
            metrics=metrics,
            fields=leading or None,
            also=() if options.pivot or options.columns else options.within,
            paired=metrics if options.shown else [one.text for one in result.keys],
        )
        for group in (groups if apart else [every])
    ]
    table_style.check_labels(plain, options.style.labels)
    higher = {name: metric_name.higher_is_better(name) for name in metrics}
    higher |= {one.text: one.higher for one in (*result.keys, *options.front)}
    titles: set[str] = set()
    for number, (group, one) in enumerate(zip(groups, plain, strict=False)):
        built = table_style.styled(one, options.style)
        if options.pivot or form in ("md", "latex"):
            built = table_style.with_best(built, higher)
        if number:
            output.line(b"")
        if apart and options.within and group:
            values = group[0].record["aggregated"]["group"]
            title = ", ".join(f"{name}: {values[name]}" for name in options.within)
            output.line(render.heading(title, form).encode())
        shown = tables.write(built, metrics[0], form, output, fixed=len(leading[:2]) or 2)
        titles |= {heading.title for heading in shown.headings}
    return titles


def _metrics(result: Ranking, records: Sequence[Record], options: RankOptions) -> list[str]:
    """The metrics of the table in their order. Without --metric, those of --by and --pareto come first; with
    --metric, they come first if the list does not contain them."""
    every = sorted(metric_name.names(records), key="seconds_per_epoch".__eq__)  # last: no result of a test
    wanted = every if options.shown is None else chosen(options.shown, records)
    keys = () if options.pivot else (*result.keys, *options.front)
    sorted_by = list(dict.fromkeys(one.text for one in keys))
    first = sorted_by if options.shown is None else [name for name in sorted_by if name not in wanted]
    metrics = [*first, *(name for name in wanted if name not in first)]
    if not metrics:
        raise UsageError(
            "No record has a metric to show. Evaluate the models first, for example with rb-attack pgd"
            " --eps 8."
        )
    return metrics


def _leading(records: Sequence[Record], options: RankOptions, apart: bool) -> list[str]:
    """The columns before the metrics, or [] for the usual ones. Raises UsageError if no record has a field of
    --columns."""
    for name in options.columns:
        if name not in ("rank", "records", *table.IDENTITY) and not _has(records, name):
            missing = expr.MissingName(name, records[0]) if records else ""
            raise UsageError(f"--columns: {missing}")
    if options.columns:
        return [*options.columns]
    if options.pivot:
        merged = ["records"] if table.averaged(records) else []
        return [*(() if apart else options.within), *options.pivot, *merged]
    return ["rank", *options.group, "records"] if options.group else []


def _warn_of_n(
    records: Sequence[Record],
    mixed_means: Mapping[str, tuple[int, int]],
    titles: Collection[str] | None,
    screen: Terminal,
) -> None:
    """Warn if values in the columns of a table are measured on different numbers of images, and if means that
    are shown (None for all) are over such values."""
    columns = {} if titles is None else merge.mixed_images(records)
    _warn_of_mixed(mixed_means, titles, "{} has means of values measured on {} to {} images{}", screen)
    _warn_of_mixed(columns, titles, "{} has values measured on {} to {} images{}", screen)


def _warn_of_mixed(
    counts: Mapping[str, tuple[int, int]], titles: Collection[str] | None, words: str, screen: Terminal
) -> None:
    names = [*counts] if titles is None else metrics_behind(titles, counts)
    if names:
        have = "has" if len(names) == 2 else "have"
        more = f", and so {have} {counted(len(names) - 1, 'other metric')}" if len(names) > 1 else ""
        said = words.format(f"'{metric_name.heading(names[0])}'", *counts[names[0]], more)
        screen.warn(f"{said}. Evaluate all with the same --n to compare them.")


def metrics_behind(titles: Collection[str], known: Collection[str]) -> list[str]:
    """The known metrics that are columns, or are in an expression that is a column."""
    names = set(titles)
    for title in titles:
        with contextlib.suppress(RbError):
            for name in expr.Expression(title, any_name=True).names:
                names |= {*expr.expand(name, known)}
    return [name for name in known if name in names]


def chosen(text: str, records: Sequence[Record]) -> list[str]:
    """The metrics, fields and expressions in --metric. Raises UsageError if no record has one of them."""
    known = metric_name.names(records)
    items = [text] if text in known else expr.items(text)
    if not items:
        raise UsageError(
            "--metric: The list of metrics is empty. Expected names or globs with commas, such as acc,fgsm.*"
        )
    names: dict[str, None] = {}
    for item in items:
        found = expr.expand(item, known) if expr.is_bare(item) or item in known else []
        try:
            if not found and expr.is_bare(item) and not _has(records, item):
                raise expr.MissingName(item, {**records[0], "metrics": dict.fromkeys(known)})
            if not found and not _has(records, item):
                expr.compile(item)  # raises an error for a text that is no expression
            names |= dict.fromkeys(found or [item])
        except RbError as wrong:
            raise UsageError(f"--metric: {wrong}") from None
    return list(names)


def _has(records: Sequence[Record], item: str) -> bool:
    """True if a record has a field with that name, written as in `--by`."""
    if expr.is_glob(item):
        return False
    field = expr.Expression(item, any_name=True)
    for record in records:
        with contextlib.suppress(RbError):
            if isinstance(field(record), int | float | str):
                return True
    return False


def _mark_published(
    contenders: Sequence[Contender], results: against.PublishedResults, screen: Terminal
) -> None:
    beside = [results.beside(one.record) for one in contenders]
    for one, published in zip(contenders, beside, strict=True):
        one.marks |= {} if published is None else {"published": published}
    against.tell(beside, results.name, screen)


def _mark(result: Ranking, options: RankOptions, screen: Terminal) -> None:
    """Set the fields that depend on the rank: Pareto front, band, rank interval, comparison and classes."""
    for group in result.groups if options.front else ():
        on = rank_order.front([entry.record.points for entry in group], [key.higher for key in options.front])
        for entry, is_on in zip(group, on, strict=True):
            entry.record.marks["pareto"] = is_on
    if options.intervals:
        _mark_bands(result, options, screen)
    every = [entry.record for group in result.groups for entry in group]
    for one in every:
        one.marks |= {} if one.paired is None else {"paired": one.paired}
    if options.per_class is not None:
        _mark_classes(every, options.per_class, screen)


def _mark_classes(contenders: Sequence[Contender], metric: str, screen: Terminal) -> None:
    """Add the accuracy of each class. Raises UsageError if no record has accuracies of classes."""
    lacking: list[RbError] = []
    for one in contenders:
        try:
            one.marks["per_class"] = per_class.described(one.record, metric)
        except (expr.MissingName, answers.NoAnswers) as reason:
            lacking.append(reason)
        except RbError as reason:
            screen.warn(f"{name_of(one.record)}: {reason}")
    if lacking and not any("per_class" in one.marks for one in contenders):
        raise UsageError(f"--per-class: {lacking[0]}")
    if lacking:
        screen.warn(
            f"{counted(len(lacking), 'record')} without per-image results for {metric}. {answers.HOW}"
        )


def _mark_bands(result: Ranking, options: RankOptions, screen: Terminal) -> None:
    key = result.keys[0]
    draws = bootstrap.BootstrapDraws(options.bootstrap, options.seed, ImageAnswers(screen).shares)
    averages = False
    for group in result.groups:
        contenders = [entry.record for entry in group]
        averages = averages or any(len(one.members) > 1 for one in contenders)
        intervals = bootstrap.of_ranking(draws, key, [one.members for one in contenders])
        ends = [
            results.interval(results.last_entry(one.record, key.text)) or interval.value
            for one, interval in zip(contenders, intervals, strict=True)
        ]
        if options.paired is None and not any(one.paired for one in contenders):
            bands = ranking.marked_bands(group, ends, key.higher)
        else:  # two models may differ for certain although their intervals overlap
            ranks = [
                interval.rank or (entry.rank or 0,) * 2
                for interval, entry in zip(intervals, group, strict=True)
            ]
            bands = ranking.marked_bands(group, ranks, higher=False)
        for one, band, end, interval in zip(contenders, bands, ends, intervals, strict=True):
            about = {"by": key.text, "ci95": end, "bootstrap": options.bootstrap, "seed": options.seed}
            one.marks |= {"band": band, "rank_ci95": interval.rank, "ranking": about}
    _tell_sources(draws, screen, averages)


def _tell_sources(draws: bootstrap.BootstrapDraws, screen: Terminal, groups: bool) -> None:
    counts = [list(draws.sources.values()).count(source) for source in range(len(bootstrap.SOURCES))]
    images, binomial, normal, nothing = counts
    parts = [f"test images resampled for {counted(images, 'record')}"] if images else []
    parts += [f"drawn from value and n for {counted(binomial, 'record')}"] if binomial else []
    parts += [f"drawn from the interval for {counted(normal, 'record')}"] if normal else []
    exact = "all or some values taken as exact for"
    why = "they have no interval and are not a share of n images"
    parts += [f"{exact} {counted(nothing, 'record')} ({why})"] if nothing else []
    if groups:
        parts.append("members of groups resampled")
    if parts and len(draws.sources) > 1:  # a single record has the rank 1
        screen.say(f"rank intervals from {draws.size} draws: {'; '.join(parts)}.")
