"""rb-corr: computes rank correlations between metrics, or between result sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbtools.cli import options, shared, tables
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import Sink, counted, form_param, names, where_param
from rbtools.errors import RbError, UsageError
from rbtools.records import dumps, metric_name
from rbtools.registry import param
from rbtools.scoring import correlate, table, table_style
from rbtools.scoring.groups import field
from rbtools.scoring.ranking import Contender, averaged


@dataclass(frozen=True, kw_only=True)
class CorrelationOptions:
    metrics: str = param(
        "*",
        "Metrics to correlate: names, globs and expressions; with several sets also SET:NAME.",
        metavar="LIST",
        flags=("--metric", "--metrics"),
    )
    rows: str | None = param(None, "Metrics in the rows.  [default: --metric]", metavar="LIST")
    cols: str | None = param(None, "Metrics in the columns.  [default: --metric]", metavar="LIST")
    kind: str = param(
        "spearman", "Correlation: spearman (rho), kendall (tau-b), or spearman,kendall.", metavar="LIST"
    )
    on: str | None = param(
        None,
        "Join result sets by these fields, such as arch.index; each FILE is a set, named after the file.",
        metavar="LIST",
        flags=("--on", "--join"),
    )
    by: str | None = param(None, "With --on, create a set for each value of FIELD.", metavar="FIELD")
    aggregate: str | None = param(
        None, "First average the records that differ only in these fields, such as seed.", metavar="LIST"
    )
    where: str | None = where_param()
    bootstrap: int = param(
        0, "Add 95 % intervals from N bootstrap samples of the records.", bounds="[0, inf)", metavar="N"
    )
    seed: int = param(0, "Seed of --bootstrap.", bounds="[0, inf)", group="Running")
    form: str | None = form_param()


@shared.command()
@shared.takes("typed", CorrelationOptions)
@options.merging_sink_options
@options.screen_options
def main(typed: CorrelationOptions, source: shared.RecordSource, screen: shared.Terminal) -> int:
    """Compute rank correlations of metrics over records.

    The tool writes one JSON object for each pair of metrics, with the fields "kind", "row", "col", "value",
    "n" (the number of records that have both metrics) and, if --bootstrap is given, "ci95". If there is no
    correlation, "value" is null and "reason" contains the reason. With --on, result sets are joined by fields
    of the records, and metrics are called SET:NAME. Several records of the same model are merged. All records
    are read before any result is written.

    \b
    Examples:
      rb-corr --metric 'acc,pgd20.*,mean(pr.*)' --format table leaderboard.jsonl
      rb-corr --rows 'ge.*' --cols 'acc,pgd*' --kind kendall,spearman --bootstrap 1000 leaderboard.jsonl
      rb-corr --on arch.name,train.method --metric 'acc,pgd*' leaderboard.jsonl others.jsonl
      rb-corr --join train.method --by arch.name --metric acc leaderboard.jsonl
    """
    kinds = _kinds(typed.kind)
    left = names(typed.metrics, "--metric") if typed.rows is None else names(typed.rows, "--rows")
    right = names(typed.metrics, "--metric") if typed.cols is None else names(typed.cols, "--cols")
    with shared.opened_output(source, screen) as output:
        sink = Sink(source, screen, output, typed.where)
        joined_by, aggregate = names(typed.on, "--on"), names(typed.aggregate, "--aggregate")
        sets = correlate.JoinedSets(_read(sink, joined_by, typed.by, aggregate), joined_by)
        _tell(sink, sets, typed.by)
        sink.tell()
        if sink.good:
            _check(sets, sink.good)
            for one_kind in kinds:
                matrix = _matrix(one_kind, sets, (left, right), typed.bootstrap, typed.seed, screen)
                _write(matrix, typed.form, (typed.bootstrap, typed.seed), output)
        return shared.FAILED if sink.bad else shared.DONE


def _kinds(text: str) -> list[str]:
    kinds = names(text, "--kind")
    for kind in kinds:
        if kind not in correlate.KINDS:
            raise UsageError(f"--kind is '{kind}'. Choose from: {', '.join(correlate.KINDS)}.")
    return kinds


def _read(
    sink: Sink, on: Sequence[str], by: str | None, aggregate: Sequence[str]
) -> dict[str, list[Mapping[str, Any]]]:
    files = sink.source.files
    if by is not None and not on:
        raise UsageError("--by splits records into sets, but nothing joins them. Add --join arch.name.")
    if on and by is None and len(files) < 2:
        raise UsageError(
            "--on joins result sets, but there is only one. Name one file for each set, or add --by dataset."
        )
    label_of = field(by) if by is not None else None
    labels = _labels(files) if on else {}
    sets: dict[str, list[Mapping[str, Any]]] = {}
    without: list[RbError] = []
    for line in sink.lines():
        assert line.record is not None
        try:
            label = str(label_of(line.record)) if label_of else labels.get(line.source, "")
        except RbError as reason:
            without.append(reason)
        else:
            # A correlation needs a few numbers of each record, and means all its parts.
            sets.setdefault(label, []).append(line.record if aggregate else sink.held(line))
    if without and not sets:
        raise UsageError(f"--by: {without[0]}")
    if without:
        sink.screen.warn(f"{counted(len(without), 'record')} without {by} left out: they belong to no set.")
    for label, records in sets.items():
        models = list(sink.models(records).values())
        if aggregate:
            means = averaged([Contender(record, [record]) for record in models], aggregate)
            models = [mean.record for mean in means]
        sets[label] = models
    sink.check()
    return sets


def _tell(sink: Sink, sets: correlate.JoinedSets, by: str | None) -> None:
    """Warn if records are left out, or if they come from several data sets."""
    on, warn = ",".join(sets.on), sink.screen.warn
    if sets.without:
        if sets.without == sink.good:
            raise UsageError(f"--on: {sets.reason}")
        warn(f"{counted(sets.without, 'record')} without {on} left out, which cannot be joined.")
    if sets.duplicates:
        warn(
            f"{counted(sets.duplicates, 'record')} with the same {on} as another record of the set: only the"
            " last one counts. --aggregate seed takes the mean over seeds."
        )
    if sets.datasets and by != "dataset" and "dataset" not in sets.on:
        warn(
            f"records of {len(sets.datasets)} data sets ({', '.join(sets.datasets)}) are correlated"
            " together. --join arch.name --by dataset keeps them apart."
        )


def _labels(files: Sequence[str]) -> dict[str, str]:
    """Map files to names of result sets: the names of the files, or paths if these names are equal."""
    stems = ["stdin" if name == "-" else Path(name).stem for name in files]
    clear = len(set(stems)) == len(stems)
    sources = ["standard input" if name == "-" else name for name in files]
    return dict(zip(sources, stems if clear else files, strict=True))


def _check(sets: correlate.JoinedSets, good: int) -> None:
    if sets.on and len(sets.labels) < 2:
        raise UsageError(
            f"There is only one result set ({sets.labels[0]}). To correlate sets, give two or more."
        )
    if good < correlate.FEWEST:
        raise UsageError(
            f"{counted(good, 'record')} came in. A correlation needs {correlate.FEWEST} or more."
        )


def _matrix(
    kind: str,
    sets: correlate.JoinedSets,
    axes: tuple[list[str], list[str]],
    bootstrap: int,
    seed: int,
    screen: shared.Terminal,
) -> correlate.Matrix:
    rows, cols = (sets.resolve(items) for items in axes)
    every = list(dict.fromkeys([*rows, *cols]))
    numbers = sets.numbers(every)

    def progress(done: int) -> None:
        screen.status(f"{kind}  {done}/{bootstrap} resamples")

    matrix = correlate.matrix(
        kind,
        every,
        numbers,
        rows,
        cols,
        bootstrap=bootstrap,
        seed=seed,
        progress=progress if bootstrap else None,
    )
    flat = {row for i, row in enumerate(rows) if matrix.flat_rows[i].all()}
    flat |= {col for j, col in enumerate(cols) if matrix.flat_cols[:, j].all()}
    if flat:
        listed = ", ".join(sorted(flat)[:8]) + (", ..." if len(flat) > 8 else "")
        screen.once(
            f"warning: no correlations with metrics that have fewer than two distinct values: {listed}."
        )
    few = int((matrix.n < correlate.FEWEST).sum())
    if few:
        screen.once(
            f"warning: no correlation for {counted(few, 'pair')} of metrics with fewer than"
            f" {correlate.FEWEST} records in common."
        )
    return matrix


def _write(matrix: correlate.Matrix, form: str | None, drawn: tuple[int, int], output: RecordWriter) -> None:
    form = form or ("table" if output.is_terminal() else "jsonl")
    if form == "jsonl":
        for line in correlate.lines(matrix, *drawn):
            output.line(dumps(line))
        return
    headings = [table.Heading(matrix.kind, False), *(table.Heading(col, True) for col in matrix.cols)]
    rows: dict[str, list[table.TableCell]] = {row: [table.TableCell(row)] for row in matrix.rows}
    for line in correlate.lines(matrix):
        interval: Any = line.get("ci95")
        rows[line["row"]].append(table.TableCell(line["value"], tuple(interval) if interval else None))
    built = table.Table(headings, list(rows.values()))
    if not form.startswith("csv"):
        words = {name: metric_name.heading(name) for name in (*matrix.rows, *matrix.cols)}
        built = table_style.styled(built, table_style.Style(labels=words))
    tables.write(built, matrix.cols[0], form, output, fixed=1)


if __name__ == "__main__":
    main()
