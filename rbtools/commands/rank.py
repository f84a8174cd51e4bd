"""rb-rank: sorts records, and writes a table for people or records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rbtools.cli import against, options, paired_ranking, shared
from rbtools.cli.baseline import Baseline
from rbtools.cli.rank_output import Ranking, RankOptions, write
from rbtools.cli.sink import FORMATS, Sink, compiled, counted, names, where_param
from rbtools.cli.source import model_of
from rbtools.errors import UsageError
from rbtools.records import expr, metric_name, results
from rbtools.registry import param
from rbtools.scoring import assertions, comparable, merge, rank_order, ranking, same_model, table, union
from rbtools.scoring.groups import grouped, in_order
from rbtools.scoring.ranking import Contender


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    by: tuple[str, ...] = param(
        (),
        "Metric to sort by, or an expression such as 'mean(pgd20.*)'. In a list, later items break ties.",
        metavar="EXPR[:lower|higher]",
    )
    top: int | None = param(None, "Write the first N records per group.", bounds="[1, inf)", metavar="N")
    where: str | None = where_param()
    within: str | None = param(
        None, "Rank within groups of records that have equal values in these fields.", metavar="LIST"
    )
    aggregate: str | None = param(
        None,
        "Merge records that differ only in these fields, such as seed, into one record with means and"
        " standard deviations.",
        metavar="LIST",
    )
    group: str | None = param(
        None,
        "Merge all records that have equal values in these fields, after --aggregate.",
        metavar="LIST",
        flags=("--aggregate-by",),
    )
    pareto: str | None = param(
        None, "Mark the Pareto front of these metrics: acc,pgd20.8,params:lower.", metavar="LIST"
    )
    ci: bool = param(
        False,
        "Add 95 % intervals of the ranks, and rank bands of records whose intervals overlap. Each record is"
        " compared with all others on resampled test images (and over seeds).",
        flags=("--ci",),
    )
    bootstrap: int = param(1000, "Number of resamples for --ci.", bounds="[20, inf)", metavar="N")
    seed: int = param(0, "Seed of --ci.", bounds="[0, inf)", group="Running")
    pivot: str | None = param(
        None,
        "Write a table with these fields as rows and the columns of --metric; the best values are bold.",
        metavar="LIST",
    )
    shown: str | None = param(
        None,
        "Columns of the table: metric names, globs and expressions.",
        metavar="LIST",
        flags=("--metric", "--metrics"),
    )
    percent: bool = param(False, "In a table, show shares of images in percent.", flags=("--percent",))
    digits: int | None = param(
        None, "Decimals in a table.  [default: 4 for shares, 2 in percent]", bounds="[0, 15]", metavar="N"
    )
    plus_minus: bool = param(
        False,
        "Show each interval by half of its length: 0.53 ± 0.01. An interval whose middle is far from the"
        " value stays in brackets.",
        flags=("--plus-minus",),
    )
    labels: tuple[str, ...] = param(
        (),
        "Show TEXT instead of the name of a column or the content of a cell (such as a path): pgd20.8=PGD."
        " The option can be repeated.",
        metavar="NAME=TEXT",
        flags=("--label",),
    )
    paired: str | None = param(
        None,
        "Compare each record on the same images with this record (a name, a position in the input, or a file"
        " with one record); add the differences of metrics with 95 % intervals, and McNemar's p. Implies"
        " --ci.",
        metavar="REFERENCE",
    )
    paired_raw: bool = param(
        False, "Also add p_raw, which is not corrected for the number of models.", flags=("--paired-raw",)
    )
    per_class: str | None = param(
        None,
        "Add the accuracy of each class and of the worst class, computed from the answers for single images.",
        metavar="METRIC",
    )
    asserts: tuple[str, ...] = param(
        (),
        "Exit with status 1 unless every written record meets this condition, such as 'aa.8 >= .4', at the"
        " worse end of the interval (with the prefix point:, for the value). With --paired, a condition may"
        " refer to the reference: 'aa.8 >= reference - .01'.",
        metavar="[point:]'METRIC >= X'",
        flags=("--assert",),
    )
    baseline: str | None = param(
        None,
        "Use the last accepted record as the reference of --assert; if there is none yet, conditions with"
        " 'reference' count as met. The record is kept in FILE or in the store (one record for each data set"
        " and LABEL).",
        metavar="FILE|store[:LABEL]",
    )
    update: bool = param(
        False,
        "Replace the record of --baseline by the first record of the ranking if all conditions hold.",
        flags=("--update-baseline",),
    )
    against: str | None = param(
        None,
        "Show the published values of robustbench, prbench, jung2023 or nasrobbench201 next to the values in"
        " the records. FILE is the published file, as for rb-convert; robustbench without FILE uses the"
        " values that are part of rbtools.",
        metavar="SOURCE[:FILE]",
    )
    form: str | None = param(
        None,
        "Output format; junit reports the conditions of --assert for continuous integration.  [default: table"
        " on a terminal, else jsonl]",
        choices=(*FORMATS, "junit"),
        flags=("--format",),
    )


@shared.command()
@shared.takes("options", RankingOptions)
@options.store_option
@options.merging_sink_options
@options.screen_options
def main(options: RankingOptions, store: str, source: shared.RecordSource, screen: shared.Terminal) -> int:
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
      rb-rank --by acc --top 1 --assert 'point:acc > 0' --format junit results.jsonl
      rb-rank --by pgd20.8 --paired 1 --assert 'pgd20.8 >= reference - 1' results.jsonl
      rb-rank --by acc --top 1 --baseline last.jsonl --assert 'point:acc >= reference - .1' results.jsonl
    """
    conditions = _conditions(options)
    # A condition on the values alone does not need the answers on single images.
    compares = options.paired is not None or any(one.relative and not one.point for one in conditions)
    choice = _choice(options, compares)
    baseline = None if options.baseline is None else Baseline(options.baseline, store)
    if conditions:  # without records, the conditions fail and are reported
        source = dataclasses.replace(source, allow_empty=True)
    with shared.opened_output(source, screen) as output:
        sink = Sink(source, screen, output, options.where)
        found = _ranking(sink, choice, conditions)
        if found is not None:
            if baseline is not None:
                found.reference = _last_accepted(baseline, found, screen, update=options.update)
            if found.reference is not None and compares:
                paired_ranking.compare(found, choice, raw=options.paired_raw, screen=screen)
            if options.against is not None:
                every = [entry.record.record for group in found.groups for entry in group]
                found.published = against.load(options.against, every, screen)
        if found is not None:
            _warn_of_versions(found, choice, conditions, screen)
        passed = not conditions or _passes(
            found, conditions, choice.top, sink, options.form, first=baseline is not None
        )
        if found is not None and options.form != "junit":
            write(found, choice, output, screen)
        if baseline is not None and options.update and found is not None and passed and not sink.bad:
            baseline.accept(_first_of(found), screen)
        sink.tell()
        if found is not None and found.missing:
            screen.say(f"{counted(found.missing, 'record')} without {found.keys[0].text}, ranked last.")
        return shared.FAILED if sink.bad or not passed else shared.DONE


def _conditions(options: RankingOptions) -> list[assertions.Assertion]:
    texts = options.asserts
    conditions = [
        assertions.assertion(text.removeprefix("point:"), point=text.startswith("point:")) for text in texts
    ]
    if options.form == "junit" and not conditions:
        raise UsageError("--format junit reports assertions, but none is given. Add --assert 'aa.8 >= .4'.")
    if options.update and options.baseline is None:
        raise UsageError("--update-baseline replaces the record of --baseline. Add --baseline FILE.")
    if options.baseline is not None:
        if not conditions:
            raise UsageError("--baseline needs conditions. Add --assert 'aa.8 >= reference - .01'.")
        if options.paired is not None or options.within is not None:
            other = "--paired" if options.paired is not None else "--within"
            raise UsageError(f"--baseline needs a single ranking. Leave out {other}.")
    elif options.paired is None and any(one.relative for one in conditions):
        raise UsageError(
            "--assert: 'reference' is the record of --paired. Add --paired REFERENCE, or --baseline FILE."
        )
    return conditions


def _first_of(result: Ranking) -> dict[str, Any]:
    """The best record. There is only one group, because --baseline cannot be combined with --within."""
    record: dict[str, Any] = result.groups[0][0].record.record
    return record


def _last_accepted(
    baseline: Baseline, result: Ranking, screen: shared.Terminal, *, update: bool
) -> Contender | None:
    record = baseline.accepted(_first_of(result))
    if record is None:
        hint = "" if update else " --update-baseline keeps the best record as the first."
        screen.say(f"there is no baseline in {baseline.place} yet: conditions with 'reference' hold.{hint}")
        return None
    return Contender(record, [record])


def _warn_of_versions(
    result: Ranking,
    choice: RankOptions,
    conditions: Sequence[assertions.Assertion],
    screen: shared.Terminal,
) -> None:
    """Warn if compared values come from versions of rbtools whose results differ."""
    ranked = [entry.record for group in result.groups for entry in group]
    compared = [*ranked, *([] if result.reference is None else [result.reference])]
    records = [record for one in compared for record in one.members]
    keys = [expr.Expression(key.text, any_name=True) for key in (*result.keys, *choice.front)]
    used = [name for key in keys for name in key.names]
    used += [name for one in conditions for name in one.value.names] + expr.items(choice.shown or "")
    known = metric_name.names(records)
    names = dict.fromkeys(name for text in used for name in expr.expand(text, known))
    if mixed := comparable.mixed_versions(records, names):
        screen.warn(
            f"the comparison mixes versions of rbtools whose results differ: {mixed}."
            " Measure the older results again."
        )


def _passes(
    result: Ranking | None,
    conditions: Sequence[assertions.Assertion],
    top: int | None,
    sink: Sink,
    form: str | None,
    *,
    first: bool,
) -> bool:
    """Report records that do not meet a condition, also as XML of JUnit; True if there are none. If `first`
    is true, there is no reference yet, and each record is its own reference."""
    chosen = [] if result is None else [entry.record for group in result.groups for entry in group[:top]]
    reference = result.reference.record if result is not None and result.reference is not None else None
    own = {"reference": "none yet"} if first and reference is None else None
    named = [(model_of(one.record), {**one.record, "paired": one.paired or own}) for one in chosen]
    verdicts = [
        assertions.Verdict(name, one.name, one.problem(record, reference))
        for name, record in named
        for one in conditions
    ]
    if not named:
        verdicts = [assertions.Verdict("no record", one.name, "There is no record.") for one in conditions]
    if sink.failed:
        why = f"{counted(sink.failed, 'record')} failed before and cannot be judged."
        verdicts += [assertions.Verdict("failed records", one.name, why) for one in conditions]
    if form == "junit":
        sink.output.line(assertions.to_junit(verdicts).encode())
    failures = [verdict for verdict in verdicts if verdict.problem is not None]
    for failure in failures:
        sink.screen.error(f"{failure.record}: {failure.problem}")
    return not failures


def _choice(options: RankingOptions, compares: bool) -> RankOptions:
    items = names(",".join(options.by), "--by") if options.by else []
    keys = [rank_order.key(item) for item in items]
    front = [rank_order.key(item) for item in names(options.pareto, "--pareto")]
    lists: dict[str, list[str]] = {}
    for field in ("within", "aggregate", "group", "pivot"):
        option = "--aggregate-by" if field == "group" else f"--{field}"
        lists[field] = names(getattr(options, field), option)
        for name in lists[field]:
            compiled(name, option)
    if options.against is not None:
        against.parts(options.against)  # raises an error for a wrong key before records are read
    comparisons = {"--against": options.against, "--paired": options.paired, "--baseline": options.baseline}
    for option, other in comparisons.items():
        if other is not None and (lists["pivot"] or lists["group"]):
            raise UsageError(
                f"{option} compares models, but --pivot and --aggregate-by merge them. Leave them out."
            )
    if lists["pivot"] and lists["group"]:
        raise UsageError("--pivot and --aggregate-by both define the rows. Give one of them.")
    ci = options.ci or compares
    if ci and any("class.min" in expr.Expression(key.text, any_name=True).functions for key in keys):
        raise UsageError(
            "class.min has no rank intervals. Rank by another metric, or leave out --ci and --paired."
        )
    for option, given in (("--top", options.top), ("--ci", options.ci)):
        if given and lists["pivot"] and not keys:
            raise UsageError(f"{option} needs a ranking, but --pivot keeps the order. Add --by METRIC.")
    return RankOptions(
        keys=keys,
        front=front,
        **lists,
        top=options.top,
        ci=ci,
        bootstrap=options.bootstrap,
        seed=options.seed,
        paired=options.paired,
        per_class=options.per_class,
        shown=options.shown,
        form=options.form,
        style=_style(options),
    )


def _style(options: RankingOptions) -> table.Style:
    pairs = [text.partition("=") for text in options.labels]
    if wrong := [name + sign for name, sign, text in pairs if not (name.strip() and text.strip())]:
        raise UsageError(f"--label is '{wrong[0]}'. Expected NAME=TEXT, such as pgd20.8=PGD-20.")
    labels = {name.strip(): text.strip() for name, _, text in pairs}
    return table.Style(options.percent, options.digits, options.plus_minus, labels)


def _ranking(sink: Sink, choice: RankOptions, conditions: Sequence[assertions.Assertion]) -> Ranking | None:
    ranked_by = (key.text for key in (*choice.keys, *choice.front))
    worst_cases = union.among([*ranked_by, *(condition.value.text for condition in conditions)])

    def with_unions(record: dict[str, Any]) -> dict[str, Any]:
        return union.with_entries(record, worst_cases)

    read = [with_unions(line.record) for line in sink.lines() if line.record is not None]
    models = {
        model: Contender(whole, [whole])
        for model, record in sink.models(read).items()
        for whole in [with_unions(record)]
    }
    sink.check()
    contenders = list(models.values())
    if choice.merges:
        contenders = _merged(contenders, choice, sink.screen)
    if not contenders:
        return None
    records = [one.record for one in contenders]
    keys = _keys(choice, records)
    groups = grouped(records, choice.within, "--within")
    values = ranking.values(records, keys, "--by")
    points = ranking.values(records, choice.front, "--pareto")
    for one, *of_record in zip(contenders, values, points, strict=True):
        one.values, one.points = of_record
    for name, lacking in groups.lacking.items():
        sink.screen.warn(f"{counted(lacking, 'record')} without {name}, ranked as a separate group.")
    _tell(contenders, choice, keys, sink.screen)
    higher = [key.higher for key in keys]
    top = None if choice.ci or choice.front or choice.pivot else choice.top
    ranked = []
    for key in in_order(list(groups.places)):
        group = [contenders[place] for place in groups.places[key]]
        ranked.append(
            rank_order.rank(group, lambda one: one.values, higher=higher)[:top]
            if keys
            else [rank_order.Ranked(None, None, one) for one in group]
        )
    result = Ranking(keys, ranked, sum(some[0] is None for some in values) if keys else 0)
    if choice.paired is not None:
        meant = _meant(choice.paired, contenders if choice.merges else models, read, sink)
        result.reference = paired_ranking.reference(choice.paired, meant, with_unions)
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


def _merged(contenders: list[Contender], choice: RankOptions, screen: shared.Terminal) -> list[Contender]:
    if choice.aggregate:
        contenders = ranking.averaged(contenders, choice.aggregate)
        _tell_averaged(contenders, screen)
    if fields := [*choice.group, *choice.pivot]:
        extra = [name for name in choice.within if name not in fields]
        option = "--pivot" if choice.pivot else "--aggregate-by"
        contenders, lacking = ranking.averaged_by(contenders, [*fields, *extra], option)
        _tell_averaged(contenders, screen)
        for name, number in lacking.items():
            screen.warn(f"{counted(number, 'record')} without {name}, merged as a separate group.")
    return contenders


def _tell_averaged(means: Sequence[Contender], screen: shared.Terminal) -> None:
    """Warn if a mean combines values from different numbers of images."""
    mixed: dict[str, tuple[int, int]] = {}
    for mean in means:
        mixed = merge.mixed_images(mean.parts) | mixed
    if mixed:
        name, (least, most) = next(iter(mixed.items()))
        more = f", and so for {counted(len(mixed) - 1, 'other metric')}" if len(mixed) > 1 else ""
        screen.warn(
            f"a mean of {name} is over values from {least} to {most} images{more}."
            " Evaluate all with the same --n to compare them."
        )


def _keys(choice: RankOptions, records: Sequence[dict[str, Any]]) -> list[rank_order.SortKey]:
    """The sort keys. Without --by, they depend on the records; a pivot table may have none."""
    if choice.keys or choice.pivot:
        return choice.keys
    return choice.front[:1] or [rank_order.key(metric_name.default_rank_key(records))]


def _tell(
    contenders: Sequence[Contender],
    choice: RankOptions,
    keys: Sequence[rank_order.SortKey],
    screen: shared.Terminal,
) -> None:
    if keys:
        ways = ", then ".join(f"{key.text}, {'higher' if key.higher else 'lower'} is better" for key in keys)
        screen.detail(f"ranked by {ways}.")
    if choice.group or choice.pivot or "dataset" in choice.within or not keys:
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
