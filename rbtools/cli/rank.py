"""rb-rank: records in order, as a table for people or as records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import click

from rbtools.cli import shared
from rbtools.cli.output import Output
from rbtools.cli.sink import Sink, compiled, counted
from rbtools.errors import RbError, UsageError
from rbtools.records import dumps, expr, metrics, parse_again
from rbtools.scoring import rank, render, table

_Read = tuple[bytes, dict[str, Any]]
FORMATS = ("jsonl", "table", *render.RENDERERS)


@shared.command()
@click.option("--by", default=None, metavar="EXPR", help="Metric, or an expression such as 'mean(pgd20.*)'.")
@click.option("--top", default=None, type=click.IntRange(1), metavar="N", help="Only the first N.")
@click.option(
    "--lower/--higher", default=None, help="Which is better.  [default: the metric's own direction]"
)
@click.option(
    "--metrics", "shown", default=None, metavar="LIST", help="Columns of the table: names and globs."
)
@click.option(
    "--format",
    "form",
    default=None,
    type=click.Choice(FORMATS),
    help="How to write.  [default: table on a terminal, else jsonl]",
)
@shared.stream_options
@shared.screen_options
def main(
    by: str | None,
    top: int | None,
    lower: bool | None,
    shown: str | None,
    form: str | None,
    source: shared.Source,
    screen: shared.Screen,
) -> int:
    """Order records by a metric, the best first.

    Without --by: by "score" where there is one, else by the metric that was evaluated last. Equal
    values share a rank; records without the value come last. Reads everything before it writes.

    \b
    Examples:
      rb-rank --by pgd20.8 --top 10 results.jsonl
      rb-rank --by 'mean(fgsm.*, pgd20.*)' --format md results.jsonl
    """
    if source.in_place:
        raise UsageError("--in-place would lose what a ranking leaves out. Write to another file.")
    with shared.opened_output(source, screen) as output:
        stream = _Stream(source, screen, output)
        ranking = stream.ranking(by)
        if ranking is not None:
            higher = metrics.higher_is_better(ranking.key) if lower is None else not lower
            ranked = rank.rank(ranking, lambda entry: entry.value, higher=higher, top=top)
            ranking.check()
            screen.detail(f"ranked by {ranking.key}, {'higher' if higher else 'lower'} is better.")
            _write(ranked, ranking.key, shown, form, output)
        stream.tell_all(ranking)
        return shared.FAILED if stream.bad else shared.DONE


class _Stream(Sink):
    """The records that can be ranked."""

    def ranking(self, by: str | None) -> _Ranking | None:
        """The records and what to rank them by; None where there are none.

        To find out what nobody says may take all records: they are held, as text, until it is known.
        """
        records = self.records()
        if by is not None:
            return _Ranking(records, by, compiled(by, "--by"))
        if (first := next(records, None)) is None:
            return None
        held: list[bytes] = []

        def holding() -> Iterator[dict[str, Any]]:
            for text, record in itertools.chain([first], records):
                held.append(text)
                yield record

        key = metrics.default_rank_key(holding())
        again = ((text, parse_again(text)) for text in held)
        return _Ranking(itertools.chain(again, records), key, lambda record: record["metrics"].get(key))

    def tell_all(self, ranking: _Ranking | None) -> None:
        self.tell()
        if ranking is not None and ranking.missing:
            self.screen.say(f"{counted(ranking.missing, 'record')} without {ranking.key}, ranked last.")


class _Entry(NamedTuple):
    """A line, which takes a fifth of its record's memory, and the value that it is ranked by."""

    text: bytes
    value: Any


class _Ranking:
    """Entries to rank, made as they are asked for; those without a value are counted."""

    def __init__(self, records: Iterable[_Read], key: str, value: Callable[[Any], Any]) -> None:
        self.records, self.key, self.value = records, key, value
        self.missing = self.count = 0
        self.names: dict[str, None] = {}
        self.reason: RbError | None = None
        self.without: dict[str, Any] = {}

    def __iter__(self) -> Iterator[_Entry]:
        for text, record in self.records:
            self.count += 1
            try:
                value = self.value(record)
            except RbError as reason:
                value = None
                if self.reason is None:
                    self.reason, self.without = reason, record
            if value is None:
                self.missing += 1
                self.names.update(dict.fromkeys(record.get("metrics", {})))
            yield _Entry(text, value)

    def check(self) -> None:
        """Raise UsageError where no record had the value: that is a wrong name, not a missing result."""
        if self.reason is None or self.missing < self.count:
            return
        if isinstance(self.reason, expr.MissingName):
            raise UsageError(str(expr.MissingName(self.reason.name, {**self.without, "metrics": self.names})))
        raise UsageError(f"--by: {self.reason}")


def _write(ranked: list[rank.Ranked], key: str, shown: str | None, form: str | None, output: Output) -> None:
    form = form or ("table" if output.is_terminal() else "jsonl")
    if form == "jsonl":
        for entry in ranked:
            output.line(dumps({**parse_again(entry.record.text), "rank": entry.rank}))
        return
    ranked = [entry._replace(record=parse_again(entry.record.text)) for entry in ranked]
    chosen = None if shown is None else _chosen(shown, metrics.names(entry.record for entry in ranked))
    built = table.build(ranked, key, metrics=chosen)
    if not ranked:
        return
    if form == "table":
        from rbtools.cli.drawing import draw

        text = draw(built, key, output.width(), terminal=output.is_terminal())
    else:
        text = render.RENDERERS[form](built)
    output.line(text.rstrip("\n").encode())


def _chosen(text: str, known: list[str]) -> list[str]:
    try:
        return expr.select(known, text)
    except RbError as wrong:
        raise UsageError(f"--metrics: {wrong}") from None


if __name__ == "__main__":
    main()
