"""rb-rank: records in order, as a table for people or as records."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from rbtools.cli import against, options, paired_ranking, shared
from rbtools.cli.baseline import Baseline
from rbtools.cli.rank_output import Ranking, RankOptions, write
from rbtools.cli.sink import (
    FORMATS,
    Sink,
    compiled,
    counted,
    names,
    tell_united,
    where_option,
)
from rbtools.cli.source import name_of
from rbtools.errors import UsageError
from rbtools.records import dumps, metric_name, parse_again
from rbtools.registry import param
from rbtools.scoring import assertions, merge, rank_order, same_model, table, union
from rbtools.scoring.groups import Grouping
from rbtools.scoring.ranking import (
    Latest,
    Merged,
    RankValues,
    Read,
    Standing,
    averaged,
    grouped,
    one_of_each_model,
)

_form_option = click.option(
    "--format",
    "form",
    default=None,
    type=click.Choice((*FORMATS, "junit")),
    help="How to write; junit: the assertions, for continuous integration.  [default: table on a terminal,"
    " else jsonl]",
)


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """The options of a ranking, as typed."""

    by: tuple[str, ...] = param(
        (),
        "Metric, or an expression such as 'mean(pgd20.*)'; of several, with commas, later ones break ties.",
        metavar="EXPR[:lower|higher]",
    )
    top: int | None = param(None, "Only the first N (of each group).", bounds="[1, inf)", metavar="N")
    where: str | None
    within: str | None = param(
        None, "Rank within groups of records that agree in these fields.", metavar="LIST"
    )
    aggregate: str | None = param(
        None,
        "Merge records that differ only in these fields, such as seed: means and deviations.",
        metavar="LIST",
    )
    group: str | None = param(
        None,
        "Merge records that agree in these fields, whatever else differs; after --aggregate.",
        metavar="LIST",
        flags=("--aggregate-by",),
    )
    pareto: str | None = param(
        None, "Mark the Pareto front of these metrics: acc,pgd20.8,params:lower.", metavar="LIST"
    )
    ci: bool = param(
        False,
        "Rank bands of overlapping intervals, and 95 % intervals of ranks, by comparing each record with all"
        " others on resampled test images (and over seeds).",
        flags=("--ci",),
    )
    bootstrap: int = param(1000, "Resamples of --ci.", bounds="[20, inf)", metavar="N")
    seed: int = param(0, "Seed of --ci.", bounds="[0, inf)")
    pivot: str | None = param(
        None,
        "A table with the values of these fields as rows and --metric as columns, the best in bold.",
        metavar="LIST",
    )
    shown: str | None = param(
        None,
        "Columns of the table: names, globs and expressions.",
        metavar="LIST",
        flags=("--metric", "--metrics"),
    )
    percent: bool = param(False, "Show shares of images in percent, in a table.", flags=("--percent",))
    digits: int | None = param(
        None, "Decimals in a table.  [default: 4 for shares, 2 in percent]", bounds="[0, 15]", metavar="N"
    )
    plus_minus: bool = param(
        False, "Show an interval as its half length: 0.53 ± 0.01.", flags=("--plus-minus",)
    )
    labels: tuple[str, ...] = param(
        (),
        "TEXT in place of a column's name or of a cell, such as a path: pgd20.8=PGD. Once for each.",
        metavar="NAME=TEXT",
        flags=("--label",),
    )
    paired: str | None = param(
        None,
        "Compare each record with this one on the same images (name, position in the input, or FILE of one"
        " record): differences of metrics, their 95 % intervals and McNemar's p. Implies --ci.",
        metavar="REFERENCE",
    )
    paired_raw: bool = param(
        False,
        "Also p_raw, not corrected for the number of models.",
        flags=("--paired-raw",),
    )
    per_class: str | None = param(
        None,
        "Add the accuracy of each class, and the worst one, from answers of single images.",
        metavar="METRIC",
    )
    asserts: tuple[str, ...] = param(
        (),
        "Fail unless this holds for every record that is written: 'aa.8 >= .4'. The end of the interval that"
        " is worse counts; with point: in front, the value itself, whatever its interval. With --paired:"
        " 'aa.8 >= reference - .01'.",
        metavar="[point:]'METRIC >= X'",
        flags=("--assert",),
    )
    baseline: str | None = param(
        None,
        "The reference of --assert is the last accepted record, in this file or in the store (for each data"
        " set, and LABEL). If all conditions hold, the first record takes its place; if there is none yet,"
        " those with 'reference' hold.",
        metavar="FILE|store[:LABEL]",
    )
    against: str | None = param(
        None,
        "Put the published values of robustbench, prbench, jung2023 or nasrobbench201 beside ours; FILE as"
        " rb-convert reads it, for robustbench by default the values that rbtools has.",
        metavar="SOURCE[:FILE]",
    )
    form: str | None


@shared.command()
@options.spec(
    "options",
    RankingOptions,
    where=where_option,
    form=_form_option,
)
@options.store_option
@options.merging_sink_options
@options.screen_options
def main(options: RankingOptions, store: str, source: shared.RecordSource, screen: shared.Terminal) -> int:
    """Order records by a metric, the best first.

    Without --by: by "score" where there is one, else by the metric that was evaluated last. Equal values
    share a rank; records without the value come last. Several records of the same model are merged (unless
    --no-merge); of two values of a metric, the one of more images is kept. Reads everything before it writes.

    --against puts the published value beside each metric, with the difference (ours minus theirs) and whether
    it is within the sampling error: 1.96 standard errors, for the images of ours and of theirs. A robustbench
    model is the one that --arch robustbench:NAME named; a prbench one has the same data set, network and
    training method; in the others the cell is the same. Metric, eps and other settings agree as well.

    --paired compares each record with a reference on the same images: the difference of each metric with its
    interval, and McNemar's p by Holm's correction. Bands are then of records that these images do not tell
    apart.

    With --assert the status is 1 if a record does not meet a condition, lacks the metric or has no interval
    for it, if a record failed before, or if there is no record; each is a line on stderr.

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
    # A condition on the values themselves needs no answers of single images.
    compares = options.paired is not None or any(one.relative and not one.point for one in conditions)
    choice = _choice(options, compares)
    baseline = None if options.baseline is None else Baseline(options.baseline, store)
    if conditions:  # without records the assertions fail, and the report says so
        source = dataclasses.replace(source, allow_empty=True)
    with shared.opened_output(source, screen) as output:
        sink = Sink(source, screen, output, options.where)
        ranking = _ranking(sink, choice, conditions)
        if ranking is not None:
            if baseline is not None:
                ranking.reference = _last_accepted(baseline, ranking, screen)
            if ranking.reference is not None and compares:
                ranking.paired = paired_ranking.compared(
                    ranking, choice, raw=options.paired_raw, screen=screen
                )
            if options.against is not None:
                ranking.published = against.load(options.against, ranking.records(), screen)
        passed = not conditions or _passes(
            ranking, conditions, choice.top, sink, options.form, first=baseline is not None
        )
        if ranking is not None and options.form != "junit":
            write(ranking, choice, options.shown, options.form, output, screen)
        if baseline is not None and ranking is not None and passed and not sink.bad:
            baseline.accept(_first_of(ranking), screen)
        sink.tell()
        if ranking is not None and ranking.missing:
            screen.say(f"{counted(ranking.missing, 'record')} without {ranking.keys[0].text}, ranked last.")
        return shared.FAILED if sink.bad or not passed else shared.DONE


def _conditions(options: RankingOptions) -> list[assertions.Assertion]:
    texts = options.asserts
    conditions = [
        assertions.assertion(text.removeprefix("point:"), point=text.startswith("point:")) for text in texts
    ]
    if options.form == "junit" and not conditions:
        raise UsageError("--format junit reports assertions, but none is given. Add --assert 'aa.8 >= .4'.")
    if options.baseline is not None:
        if not conditions:
            raise UsageError("--baseline keeps what meets --assert. Add --assert 'aa.8 >= reference - .01'.")
        if options.paired is not None or options.within is not None:
            other = "--paired" if options.paired is not None else "--within"
            raise UsageError(f"--baseline is the reference of one ranking. Leave out {other}.")
    elif options.paired is None and any(one.relative for one in conditions):
        raise UsageError(
            "--assert: 'reference' is the record of --paired. Add --paired REFERENCE, or --baseline FILE."
        )
    return conditions


def _first_of(ranking: Ranking) -> dict[str, Any]:
    """The best record. The baseline refuses --within, so that there is one group."""
    return parse_again(ranking.groups[0][0].record.text)


def _last_accepted(
    baseline: Baseline, ranking: Ranking, screen: shared.Terminal
) -> paired_ranking.PairedReference | None:
    record = baseline.accepted(_first_of(ranking))
    if record is None:
        screen.say(f"there is no baseline in {baseline.place} yet: conditions with 'reference' hold.")
        return None
    return paired_ranking.PairedReference(record, None, [record])


def _passes(
    ranking: Ranking | None,
    conditions: Sequence[assertions.Assertion],
    top: int | None,
    sink: Sink,
    form: str | None,
    *,
    first: bool,
) -> bool:
    """Whether the written records meet the conditions; reports those that do not, also as JUnit's XML.
    first: where there is no reference, each record is its own."""
    entries = [] if ranking is None else [entry for group in ranking.groups for entry in group[:top]]
    paired = {} if ranking is None else ranking.paired
    reference = ranking.reference.record if ranking is not None and ranking.reference is not None else None
    own = {"reference": "none yet"} if first and reference is None else None
    named = []
    for text in (entry.record.text for entry in entries):
        record = {**parse_again(text), "paired": paired.get(text, own)}
        named.append((name_of(record), record))
    results = assertions.verdicts(named, conditions, reference)
    if not named:
        results = [assertions.Verdict("no record", one.text, "There is no record.") for one in conditions]
    if sink.failed:
        why = f"{counted(sink.failed, 'record')} failed before and cannot be judged."
        results += [assertions.Verdict("failed records", one.text, why) for one in conditions]
    if form == "junit":
        sink.output.line(assertions.to_junit(results).encode())
    failures = [result for result in results if result.problem is not None]
    for failure in failures:
        sink.screen.error(f"{failure.record}: {failure.problem}")
    return not failures


def _choice(options: RankingOptions, compares: bool) -> RankOptions:
    items = names(",".join(options.by), "--by") if options.by else []
    keys = [rank_order.key(item) for item in items]
    front = [rank_order.key(item) for item in names(options.pareto, "--pareto")]
    for option, sort_keys in (("--by", keys), ("--pareto", front)):
        for key in sort_keys:
            compiled(key.text, option)
    lists: dict[str, list[str]] = {}
    for field in ("within", "aggregate", "group", "pivot"):
        option = "--aggregate-by" if field == "group" else f"--{field}"
        lists[field] = names(getattr(options, field), option)
        for name in lists[field]:
            compiled(name, option)
    if options.against is not None:
        against.parts(options.against)  # raises an error for a wrong key before records are read
        if lists["pivot"] or lists["group"]:
            raise UsageError(
                "--against compares models, but --pivot and --aggregate-by merge them. Leave them out."
            )
    for option, reference in (("--paired", options.paired), ("--baseline", options.baseline)):
        if reference is not None and (lists["pivot"] or lists["group"]):
            raise UsageError(
                f"{option} compares models, but --pivot and --aggregate-by merge them. Leave them out."
            )
    if lists["pivot"] and lists["group"]:
        raise UsageError("--pivot and --aggregate-by both say what the rows are. Give one of them.")
    ci = options.ci or compares
    if ci and any("class.min" in compiled(key.text, "--by").functions for key in keys):
        raise UsageError(
            "--ci and --paired: class.min has no rank intervals. Rank by another metric, or without."
        )
    for option, given in (("--top", options.top), ("--ci", options.ci)):
        if given and lists["pivot"] and not keys:
            raise UsageError(f"{option} needs a ranking, but --pivot keeps the order. Say --by what to rank.")
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
        style=_style(options),
    )


def _style(options: RankingOptions) -> table.Style:
    pairs = [text.partition("=") for text in options.labels]
    if wrong := [name + sign for name, sign, text in pairs if not (name.strip() and text.strip())]:
        raise UsageError(f"--label is '{wrong[0]}'. Expected NAME=TEXT, such as pgd20.8=PGD-20.")
    labels = {name.strip(): text.strip() for name, _, text in pairs}
    return table.Style(options.percent, options.digits, options.plus_minus, labels)


def _ranking(sink: Sink, choice: RankOptions, conditions: Sequence[assertions.Assertion]) -> Ranking | None:
    """All records in their order; None if there are none."""
    records: Iterable[Read] = sink.stream()
    members: dict[bytes, list[dict[str, Any]]] = {}
    parts: dict[bytes, list[dict[str, Any]]] = {}
    unions = merge.Unions()
    datasets: dict[str, None] = {}
    if not (choice.group or choice.pivot):
        records = _looked_at(records, datasets)
    ranked_by = (key.text for key in (*choice.keys, *choice.front))
    worst_cases = union.among([*ranked_by, *(condition.value.text for condition in conditions)])

    def with_unions(record: dict[str, Any]) -> dict[str, Any]:
        return union.with_entries(record, worst_cases)

    if worst_cases:
        joined = (with_unions(record) for _, record in records)
        records = ((dumps(record), record) for record in joined)
    if choice.merges:
        records = _merged(records, choice, members, parts, unions, sink)
    keyed = _keyed(records, choice)
    if keyed is None:
        return None
    keys, records = keyed
    values, points = RankValues(keys), RankValues(choice.front)
    grouping = Grouping(choice.within)
    keep = choice.ci or choice.front or choice.pivot
    chosen: dict[int, None] = {}

    def united(old: Standing, new: Standing) -> Standing:
        record = with_unions(unions.of(parse_again(old.text), parse_again(new.text)))
        for entry in (old, new):
            values.forget(entry.values)
            points.forget(entry.points)
        return Standing(dumps(record), values.of(record), points.of(record), new.group)

    latest = Latest([key.higher for key in keys], None if keep else choice.top, united)
    for number, (text, record) in enumerate(records):
        model = number if choice.merges or not sink.source.merge else same_model.model(record)
        if choice.paired is not None and paired_ranking.is_meant(choice.paired, number + 1, record):
            chosen[model] = None
        latest.add(model, Standing(text, values.of(record), points.of(record), grouping.add(record)))
    values.check("--by")
    points.check("--pareto")
    grouping.check("--within", values.count)
    for name, lacking in grouping.lacking.items():
        sink.screen.warn(f"{counted(lacking, 'record')} without {name}, ranked as a group of their own.")
    unions.count += latest.lost
    _tell(unions, datasets, choice, keys, latest, sink.screen)
    ranking = Ranking(keys, latest.ranked(), members, values.missing, parts)
    if choice.paired is not None:
        lines = [latest.entry(model).text for model in chosen]
        ranking.reference = paired_ranking.reference(choice.paired, lines, members, with_unions)
    return ranking


def _merged(
    records: Iterable[Read],
    choice: RankOptions,
    members: dict[bytes, list[dict[str, Any]]],
    parts: dict[bytes, list[dict[str, Any]]],
    unions: merge.Unions,
    sink: Sink,
) -> Iterable[Read]:
    """The merged records. `members` and `parts` are filled: see `Ranking`."""
    merged: list[Merged] = []
    texts = one_of_each_model(records, unions) if sink.source.merge else [text for text, _ in records]
    if choice.aggregate:
        merged = averaged(texts, choice.aggregate)
        _tell_averaged(merged, sink.screen)
        texts = [dumps(group.record) for group in merged]
        members.update(zip(texts, (group.members for group in merged), strict=True))
        parts |= members
    fields = [*choice.group, *choice.pivot]
    if fields:
        extra = [name for name in choice.within if name not in fields]
        merged, lacking = grouped(texts, [*fields, *extra], "--pivot" if choice.pivot else "--aggregate-by")
        _tell_averaged(merged, sink.screen)
        for name, number in lacking.items():
            sink.screen.warn(f"{counted(number, 'record')} without {name}, in a group of their own.")
        deeper = dict(members)
        members.clear()
        for group in merged:
            parts[dumps(group.record)] = group.members
            below = [deeper.get(dumps(member), [member]) for member in group.members]
            members[dumps(group.record)] = list(itertools.chain.from_iterable(below))
    return ((dumps(group.record), group.record) for group in merged)


def _tell_averaged(merged: Iterable[Merged], screen: shared.Terminal) -> None:
    """Warn of means over values of different numbers of images."""
    mixed: dict[str, tuple[int, int]] = {}
    for group in merged:
        mixed |= {
            name: ends for name, ends in merge.averaged_images(group.members).items() if name not in mixed
        }
    if mixed:
        name, (least, most) = next(iter(mixed.items()))
        more = f", as of {counted(len(mixed) - 1, 'other metric')}" if len(mixed) > 1 else ""
        screen.warn(
            f"a mean of {name} is over values of {least} to {most} images{more}."
            " Evaluate all with the same --n to compare them."
        )


def _looked_at(records: Iterable[Read], datasets: dict[str, None]) -> Iterator[Read]:
    for text, record in records:
        if "dataset" in record:
            datasets[str(record["dataset"])] = None
        yield text, record


def _keyed(
    records: Iterable[Read], choice: RankOptions
) -> tuple[list[rank_order.SortKey], Iterable[Read]] | None:
    """The sort keys, and the records; None if there are no records. A pivot table keeps their order.

    The default key may depend on all records: they are kept as text until it is known.
    """
    if choice.keys:
        return choice.keys, records
    if choice.pivot or choice.front:
        return ([] if choice.pivot else choice.front[:1]), records
    records = iter(records)
    if (first := next(records, None)) is None:
        return None
    held: list[bytes] = []

    def holding() -> Iterator[dict[str, Any]]:
        for text, record in itertools.chain([first], records):
            held.append(text)
            yield record

    name = metric_name.default_rank_key(holding())
    again = ((text, parse_again(text)) for text in held)
    return [rank_order.key(name)], itertools.chain(again, records)


def _tell(
    unions: merge.Unions,
    datasets: dict[str, None],
    choice: RankOptions,
    keys: Sequence[rank_order.SortKey],
    latest: Latest,
    screen: shared.Terminal,
) -> None:
    if keys:
        ways = ", then ".join(f"{key.text}, {'higher' if key.higher else 'lower'} is better" for key in keys)
        screen.detail(f"ranked by {ways}.")
    tell_united(unions, screen)
    if latest.lost:
        screen.warn(
            f"for {counted(latest.lost, 'record')} of these, --top had already dropped the earlier one, which"
            " does not count. Without --top nothing is dropped."
        )
    if len(datasets) > 1 and "dataset" not in choice.within and keys and not _scaled_apart(latest, keys[0]):
        screen.warn(
            f"the ranking mixes {len(datasets)} data sets ({', '.join(datasets)}). --within dataset ranks"
            " each by itself."
        )


def _scaled_apart(latest: Latest, key: rank_order.SortKey) -> bool:
    """Whether the key is a score that was scaled within each data set, and so compares across data sets."""
    if key.text != "score":
        return False
    first = next((entries[0] for entries in latest.entries().values()), None)
    evals = parse_again(first.text).get("evals", []) if first else []
    return any("dataset" in (entry.get("within") or {}) for entry in evals if entry.get("metric") == "score")


if __name__ == "__main__":
    main()
