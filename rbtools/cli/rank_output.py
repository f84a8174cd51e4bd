"""The output of rb-rank: records, tables, rank bands, rank intervals and pivot tables."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
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
    """Groups of contenders in order; `missing` is the number of records that lack the first sort key."""

    keys: list[rank_order.SortKey]
    groups: list[list[rank_order.Ranked]]
    missing: int
    published: against.PublishedResults | None = None
    reference: Contender | None = None


def write(result: Ranking, options: RankOptions, output: RecordWriter, screen: Terminal) -> None:
    """Write the ranking; the default format is a table on a terminal, and JSON Lines otherwise."""
    form = options.form or ("table" if output.is_terminal() else "jsonl")
    if form not in _FOR_PEOPLE and options.style != table_style.PLAIN:
        raise UsageError(
            f"--percent, --digits, --plus-minus and --label are for tables that people read, but {form} keeps"
            " numbers and names. Leave them out, or add --format table, md or latex."
        )
    _mark(result, options, screen)
    groups = [group[: options.top] for group in result.groups]
    if result.published is not None:
        _mark_published([entry.record for group in groups for entry in group], result.published, screen)
    with_rank = not options.pivot or bool(options.keys)
    if form == "jsonl":
        for entry in itertools.chain.from_iterable(groups):
            output.line(dumps(_marked(entry, result, with_rank)))
        return
    ranked = [
        [entry._replace(record=_marked(entry, result, with_rank)) for entry in group] for group in groups
    ]
    for entry, contender in zip(itertools.chain(*ranked), itertools.chain(*groups), strict=True):
        deviations = _deviations(contender.record, result.keys, options.shown)
        entry.record["evals"] = [*entry.record.get("evals", []), *deviations]
    if options.pivot:
        _write_pivot(ranked, options, form, output, screen)
    elif any(ranked):
        every = [entry for group in ranked for entry in group]
        _write_table(every, result.keys, options, form, output, screen)


def _marked(entry: rank_order.Ranked, result: Ranking, with_rank: bool) -> Record:
    """The record with its rank and other new fields; new comparisons replace earlier comparisons."""
    old = {"published": result.published, "paired": result.reference}
    kept = {name: value for name, value in entry.record.record.items() if old.get(name) is None}
    return {**kept, **({"rank": entry.rank} if with_rank else {}), **entry.record.marks}


def _deviations(one: Contender, keys: Sequence[rank_order.SortKey], shown: str | None) -> Iterator[Record]:
    """Entries for the averaged records, with the standard deviation of each expression that is shown."""
    for name in (*expr.items(shown or ""), *(key.text for key in keys)) if len(one.parts) > 1 else ():
        if expr.is_bare(name):
            continue
        with contextlib.suppress(RbError):
            number = expr.Expression(name, any_name=True).number
            values = [value for value in map(number, one.parts) if value is not None]
            if len(values) > 1:
                yield {"metric": name, "std": stdev(values)}


def _write_table(
    ranked: list[rank_order.Ranked],
    keys: Sequence[rank_order.SortKey],
    options: RankOptions,
    form: str,
    output: RecordWriter,
    screen: Terminal,
) -> None:
    key, *others = [sort_key.text for sort_key in keys]
    records, shown = [entry.record for entry in ranked], options.shown
    points = [sort_key.text for sort_key in options.front if sort_key.text != key]
    first = list(dict.fromkeys([*others, *points]))
    every_metric = metric_name.names(records)
    chosen_metrics = (
        [name for name in every_metric if name not in first] if shown is None else chosen(shown, records)
    )
    built = table.build(
        ranked,
        key,
        metrics=None if shown is None and not first else [*first, *chosen_metrics],
        fields=options.group or None,
        also=options.within,
        paired=[key, *others, *([] if shown is None else chosen_metrics)],
    )
    metrics = [key, *(name for name in every_metric if name in [one.title for one in built.headings])]
    _warn_of_n(metrics, records, screen)
    table_style.check_labels([built], options.style.labels)
    styled = table_style.styled(built, options.style)
    tables.write(styled, key, form, output, below=render.caption(styled, form))


def _warn_of_n(metrics: Sequence[str], records: Sequence[Record], screen: Terminal) -> None:
    """Warn if the values in a column are measured on different numbers of images."""
    counts = merge.mixed_images(records)
    mixed = [name for name in dict.fromkeys(metrics) if name in counts]
    if mixed:
        name, (least, most) = mixed[0], counts[mixed[0]]
        more = f", and so in {counted(len(mixed) - 1, 'other column')}" if len(mixed) > 1 else ""
        screen.warn(
            f"the values of {name} are from different numbers of images, {least} to {most}{more}."
            " Evaluate all with the same --n to compare them."
        )


def _write_pivot(
    groups: Sequence[Sequence[rank_order.Ranked]],
    options: RankOptions,
    form: str,
    output: RecordWriter,
    screen: Terminal,
) -> None:
    """Write one table for each group of --within; in CSV, the groups are columns of one table."""
    every = [entry.record for group in groups for entry in group]
    every_metric = metric_name.names(every)
    wanted = every_metric if options.shown is None else chosen(options.shown, every)
    if not wanted:
        raise UsageError(
            "No record has a metric to show. Evaluate the models first, for example with rb-attack pgd"
            " --eps 8."
        )
    _warn_of_n(wanted, every, screen)
    if form in ("csv", "csv-raw"):
        built = table.pivot(every, [*options.within, *options.pivot], wanted)
        tables.write(built, wanted[0], form, output)
        return
    plain = [table.pivot([entry.record for entry in group], options.pivot, wanted) for group in groups]
    table_style.check_labels(plain, options.style.labels)
    for number, (group, one) in enumerate(zip(groups, plain, strict=True)):
        built = table_style.with_best(table_style.styled(one, options.style), wanted)
        if number:
            output.line(b"")
        if options.within and group:
            values = group[0].record["aggregated"]["group"]
            title = ", ".join(f"{name}: {values[name]}" for name in options.within)
            output.line(render.heading(title, form).encode())
        below = render.caption(built, form)
        tables.write(built, wanted[0], form, output, len(options.pivot), below)


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
            f"{counted(len(lacking), 'record')} without answers of single images for {metric}. {answers.HOW}"
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
    exact = "taken as exact, all or some values, for"
    why = "they have no interval and are not a share of n images"
    parts += [f"{exact} {counted(nothing, 'record')} ({why})"] if nothing else []
    if groups:
        parts.append("members of groups resampled")
    if parts:
        screen.say(f"rank intervals from {draws.size} draws: {'; '.join(parts)}.")
