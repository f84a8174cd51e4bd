"""rb-rank: sorts records, and writes a table for people or records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rbtools.cli import against, options, paired_ranking, shared
from rbtools.cli.baseline import Baseline
from rbtools.cli.rank_options import RankOptions
from rbtools.cli.rank_output import Ranking, write
from rbtools.cli.sink import Sink, counted
from rbtools.cli.source import model_of
from rbtools.records import Line, expr, metric_name, results
from rbtools.scoring import assertions, comparable, merge, rank_order, ranking, same_model, union
from rbtools.scoring.groups import grouped, in_order
from rbtools.scoring.ranking import Contender


@shared.command()
@shared.takes("options", RankOptions)
@options.store_option
@options.merging_sink_options
@options.screen_options
def main(options: RankOptions, store: str, source: shared.RecordSource, screen: shared.Terminal) -> int:
    """Order records by a metric, starting with the best.

    Without --by, the metric is "score" if the records have it, else the metric that was evaluated last.
    Records with equal values have the same rank. Records without the metric come last. Several records of the
    same model are merged (unless --no-merge is given); if two records contain the same metric, the value from
    more images is kept. All records are read before the first is written.

    --against adds the published value of each metric, the difference (ours minus theirs), and whether the
    difference is within 1.96 standard errors. The standard error depends on the number of images of both
    values. A record is matched with a row of robustbench by the name in --arch robustbench:NAME, with a row
    of prbench by data set, network and training method, and with any other row by the cell. The metric, eps
    and other settings must also be equal.

    --paired compares each record with a reference on the same images, and adds the difference of each metric
    with its interval, and McNemar's p with Holm's correction. With --paired, a rank band contains records
    that cannot be distinguished on these images.

    With --assert, the exit status is 1 if a record does not meet a condition, lacks the metric or its
    interval, or has failed, and also if there are no records. Standard error lists each case in one line.

    \b
    Examples:
      rb-rank --by pgd20.8 --top 10 results.jsonl
      rb-rank --by 'mean(fgsm.*, pgd20.*)' --format md results.jsonl
      rb-rank --by pgd20.8 --where 'acc > 0.5' --within arch.name --top 1 leaderboard.jsonl
      rb-rank --by pgd20.8 --aggregate seed --ci results.jsonl
      rb-rank --pareto acc,pgd20.8 --aggregate-by train.method leaderboard.jsonl
      rb-rank --pivot train.method --metric acc,pgd20.8 --format latex leaderboard.jsonl
      rb-rank --by acc --against robustbench --format table results.jsonl
      rb-rank --by acc --top 1 --assert-point 'acc > 0' --format junit results.jsonl
      rb-rank --by pgd20.8 --paired 1 --assert 'pgd20.8 >= reference - 1' results.jsonl
      rb-rank --by acc --top 1 --baseline last.jsonl --assert-point 'acc >= reference - .1' results.jsonl
    """
    baseline = None
    if options.baseline is not None:
        baseline = Baseline(options.baseline, options.baseline_label, store)
    if options.conditions:  # without records, the conditions fail and are reported
        source = dataclasses.replace(source, allow_empty=True)
    with shared.opened_output(source, screen) as output:
        sink = Sink(source, screen, output, options.where)
        found = _ranking(sink, options)
        if found is not None:
            if baseline is not None:
                found.reference = _last_accepted(baseline, found, screen, options)
            if found.reference is not None and options.compares:
                paired_ranking.compare(found, options, screen)
            if options.against is not None:
                every = [entry.record.record for group in found.groups for entry in group]
                found.published = against.load(options.against, options.against_file, every, screen)
            _warn_of_versions(found, options, screen)
        passed = not options.conditions or _passes(found, options, sink)
        if found is not None and options.form != "junit":
            sink.columns = write(found, options, output, screen)
        if baseline is not None and options.update and found is not None and passed and not sink.bad:
            baseline.accept(_first_of(found), screen)
        sink.tell()
        if found is not None and found.missing:
            name = metric_name.heading(found.keys[0].text)
            screen.say(f"{counted(found.missing, 'record')} without {name}, ranked last.")
        return shared.FAILED if sink.bad or not passed else shared.DONE


def _first_of(result: Ranking) -> dict[str, Any]:
    """The best record. There is only one group, because --baseline cannot be combined with --within."""
    return dict(result.groups[0][0].record.record)


def _last_accepted(
    baseline: Baseline, result: Ranking, screen: shared.Terminal, options: RankOptions
) -> Contender | None:
    record = baseline.accepted(_first_of(result))
    if record is None:
        hint = "" if options.update else " --update-baseline stores the best record as the baseline."
        screen.say(f"{baseline.place} has no baseline yet, so conditions with 'reference' are met.{hint}")
        return None
    metrics = record.get("metrics") or {}
    used = dict.fromkeys(one.value.text for one in options.conditions if one.relative)
    values = [f", {name} {metrics[name]:.6g}" for name in used if results.is_number(metrics.get(name))]
    screen.say(f"the baseline in {baseline.place} is {model_of(record)}{''.join(values)}.")
    return Contender(record, [record])


def _warn_of_versions(result: Ranking, options: RankOptions, screen: shared.Terminal) -> None:
    """Warn if compared values come from versions of rbtools whose results differ."""
    ranked = [entry.record for group in result.groups for entry in group]
    compared = [*ranked, *([] if result.reference is None else [result.reference])]
    records = [record for one in compared for record in one.members]
    keys = [expr.Expression(key.text, any_name=True) for key in (*result.keys, *options.front)]
    used = [name for key in keys for name in key.names]
    used += [name for one in options.conditions for name in one.value.names]
    used += expr.items(options.shown or "")
    known = metric_name.names(records)
    names = dict.fromkeys(name for text in used for name in expr.expand(text, known))
    if mixed := comparable.mixed_versions(records, names):
        screen.warn(
            f"the comparison mixes versions of rbtools whose results differ: {mixed}."
            " Measure the older results again."
        )


def _passes(result: Ranking | None, options: RankOptions, sink: Sink) -> bool:
    """Report records that do not meet a condition, also as JUnit XML; True if there are none. If
    --baseline has no record yet, each record is its own reference."""
    conditions, top = options.conditions, options.top
    chosen = [] if result is None else [entry.record for group in result.groups for entry in group[:top]]
    reference = result.reference.record if result is not None and result.reference is not None else None
    own = {"reference": "none yet"} if options.baseline is not None and reference is None else None
    named = [(model_of(one.record), {**one.record, "paired": one.paired or own}) for one in chosen]
    verdicts = [
        assertions.Verdict(name, one.name, one.problem(record, reference))
        for name, record in named
        for one in conditions
    ]
    if not named:
        verdicts = [assertions.Verdict("no record", one.name, "There are no records.") for one in conditions]
    if sink.failed:
        why = f"{counted(sink.failed, 'record')} failed in an earlier tool and cannot be checked."
        verdicts += [assertions.Verdict("failed records", one.name, why) for one in conditions]
    if options.form == "junit":
        sink.output.line(assertions.to_junit(verdicts).encode())
    failures = [verdict for verdict in verdicts if verdict.problem is not None]
    for failure in failures:
        sink.screen.error(f"{failure.record}: {failure.problem}")
    return not failures


def _ranking(sink: Sink, options: RankOptions) -> Ranking | None:
    ranked_by = (key.text for key in (*options.keys, *options.front))
    worst_cases = union.among([*ranked_by, *(one.value.text for one in options.conditions)])

    def with_unions(record: Any) -> Any:
        return union.with_entries(record, worst_cases)

    # Means and resamples need all parts of the records, again and again; a ranking needs a few numbers.
    whole_records = options.merges or options.intervals

    def kept(line: Line) -> Any:
        record = with_unions(line.record)
        return record if whole_records else sink.held(line, record)

    read = [kept(line) for line in sink.lines()]
    models = {
        model: Contender(whole, [whole])
        for model, record in sink.models(read).items()
        for whole in [with_unions(record)]
    }
    sink.check()
    contenders = list(models.values())
    mixed: dict[str, tuple[int, int]] = {}
    if options.merges:
        contenders, mixed = _merged(contenders, options, sink.screen)
    if not contenders:
        return None
    records = [one.record for one in contenders]
    keys = _keys(options, records)
    groups = grouped(records, options.within, "--within")
    values = ranking.values(records, keys, "--by")
    points = ranking.values(records, options.front, "--pareto")
    for one, *of_record in zip(contenders, values, points, strict=True):
        one.values, one.points = of_record
    for name, lacking in groups.lacking.items():
        sink.screen.warn(f"{counted(lacking, 'record')} without {name}, ranked as a separate group.")
    _tell(contenders, options, keys, sink.screen)
    higher = [key.higher for key in keys]
    top = None if options.intervals or options.front or options.pivot else options.top
    ranked = []
    for key in in_order(list(groups.places)):
        group = [contenders[place] for place in groups.places[key]]
        ranked.append(
            rank_order.rank(group, lambda one: one.values, higher=higher)[:top]
            if keys
            else [rank_order.Ranked(None, None, one) for one in group]
        )
    result = Ranking(keys, ranked, sum(some[0] is None for some in values) if keys else 0, mixed)
    if options.paired is not None:
        meant = _meant(options.paired, contenders if options.merges else models, read, sink)
        result.reference = paired_ranking.reference(options.paired, meant, with_unions)
    return result


def _meant(
    text: str, contenders: dict[int, Contender] | list[Contender], read: list[dict[str, Any]], sink: Sink
) -> list[Contender]:
    """The ranked records that --paired may refer to, by name or by position."""
    if isinstance(contenders, list):
        return [
            one
            for position, one in enumerate(contenders, start=1)
            if paired_ranking.is_meant(text, position, one.record)
        ]
    meant = [
        same_model.model(record) if sink.source.merge else place
        for place, record in enumerate(read)
        if paired_ranking.is_meant(text, place + 1, record)
    ]
    return [contenders[model] for model in dict.fromkeys(meant) if model in contenders]


def _merged(
    contenders: list[Contender], options: RankOptions, screen: shared.Terminal
) -> tuple[list[Contender], dict[str, tuple[int, int]]]:
    """The means, and the metrics whose means combine values from different numbers of images."""
    mixed: dict[str, tuple[int, int]] = {}
    if options.aggregate:
        contenders = ranking.averaged(contenders, options.aggregate)
        mixed |= _mixed(contenders)
    if fields := [*options.group, *options.pivot]:
        extra = [name for name in options.within if name not in fields]
        option = "--pivot" if options.pivot else "--aggregate-by"
        contenders, lacking = ranking.averaged_by(contenders, [*fields, *extra], option)
        mixed = _mixed(contenders) | mixed
        for name, number in lacking.items():
            screen.warn(f"{counted(number, 'record')} without {name}, merged as a separate group.")
    return contenders, mixed


def _mixed(means: Sequence[Contender]) -> dict[str, tuple[int, int]]:
    found = [merge.mixed_images(mean.parts) for mean in reversed(means)]
    return {name: counts for one in found for name, counts in one.items()}


def _keys(options: RankOptions, records: Sequence[Mapping[str, Any]]) -> list[rank_order.SortKey]:
    """The sort keys. Without --by, they depend on the records; a pivot table may have none."""
    if options.keys or options.pivot:
        return options.keys
    return options.front[:1] or options.sort_keys([metric_name.default_rank_key(records)], "--by")


def _tell(
    contenders: Sequence[Contender],
    options: RankOptions,
    keys: Sequence[rank_order.SortKey],
    screen: shared.Terminal,
) -> None:
    if keys:
        ways = ", then ".join(
            f"{metric_name.heading(key.text)} ({'higher' if key.higher else 'lower'} is better)"
            for key in keys
        )
        screen.detail(f"ranked by {ways}.")
    if options.group or options.pivot or "dataset" in options.within or not keys:
        return
    members = [record for one in contenders for record in one.members]
    datasets = dict.fromkeys(str(record["dataset"]) for record in members if "dataset" in record)
    # A score that was scaled within each data set can be compared across data sets.
    scaled = results.last_entry(contenders[0].record, keys[0].text).get("within") or {}
    if len(datasets) > 1 and "dataset" not in scaled:
        screen.warn(
            f"the ranking mixes {len(datasets)} data sets ({', '.join(datasets)}). --within dataset ranks"
            " each by itself."
        )


if __name__ == "__main__":
    main()
