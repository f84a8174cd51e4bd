"""ranks: metrics over ordered records, and how ranks change between metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import layout, record_values, style, words
from rbtools.plots.base import Drawing, Painted, Record
from rbtools.records import metric_name
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


MOST_CURVES, MOST_LINES = 8, 30
_MARKED = 40  # the most records whose points are joined by a line


@dataclass(frozen=True, kw_only=True)
class Ranks(Drawing):
    """Metrics over records in order.

    `view=shared`: all in the order of --by, which shows which metrics agree with it; over many records
    points, with their running median. `view=own`: each metric in its own order. `view=changes`: the ranks
    themselves, a line for each record from metric to metric.

    With --join the sets of records are compared in one metric, such as the same architectures on several data
    sets: the rank of each in a set is drawn over its rank in the first.

    Needs one metric or more, and several records; with --join two sets of them.
    """

    name: ClassVar[str] = "ranks"

    metric: str | None = param(
        None,
        "Metrics and expressions with commas, globs among them.  [default: acc, and of the accuracies"
        " that most records have the one evaluated last]",
        metavar="EXPR",
    )
    by: str | None = param(
        None, "What orders the records in view shared.  [default: the first of --metric]", metavar="EXPR"
    )
    view: str = param("shared", "Whose order, or how it changes.", choices=("shared", "own", "changes"))

    join: str | None = param(
        None, "Join sets of records by this, such as arch.index, and rank them in each set.", metavar="EXPR"
    )
    sets: str = param("dataset", "With --join: what the sets differ in.", metavar="EXPR")

    def paint(self, figure: Figure, records: Sequence[Record]) -> Painted:
        names = self._names(records)
        if self.join is not None:
            return self._joined(figure, records, names)
        if self.view == "changes":
            return self._changes(figure, records, names)
        if len(names) > MOST_CURVES:
            raise RbError(
                f"--metric names {len(names)} metrics. More than {MOST_CURVES} curves cannot be told apart:"
                " name fewer."
            )
        axes = figure.add_subplot()
        by = self.by or names[0]
        order = self._order(records, by) if self.view == "shared" else []
        entries = []
        for number, name in enumerate(names):
            column = record_values.column(records, name, "--metric")
            if order:
                column = [column[place] for place in order]
            else:
                known = [value for value in column if value is not None]
                column = [*sorted(known, reverse=metric_name.higher_is_better(name))]
            entries.append(
                (_curve(axes, column, number, smooth=bool(order) and name != by), words.tidy(name))
            )
        height = max(2.0, 0.5 * self.width)
        whose = f"in the order of {words.tidy(by)}" if order else "each metric in its own order"
        room = (self.width - 0.8, height - 0.4)
        layout.label(axes, x=f"records, best first, {whose}", y=words.axis(names), room=room)
        layout.whole_numbers(axes.xaxis)
        return Painted(words.titled(words.counted(len(records)), records), height, entries)

    def _names(self, records: Sequence[Record]) -> list[str]:
        if self.metric is not None:
            return record_values.chosen(records, self.metric, "--metric")
        having = Counter(name for record in records for name in record.get("metrics") or ())
        accuracies = [name for name in metric_name.names(records) if words.is_share([name])]
        if not accuracies:
            return [metric_name.default_rank_key(records)]
        others = [name for name in accuracies if name != "acc"]
        most = max((having[name] for name in others), default=0)
        last = [name for name in others if having[name] == most][-1:]
        return [*(["acc"] if "acc" in accuracies else []), *last]

    def _joined(self, figure: Figure, records: Sequence[Record], names: Sequence[str]) -> Painted:
        """Each record's rank in the other sets over its rank in the first, of those that all sets have."""
        name = names[0] if self.metric is None else names[-1]
        if self.metric is not None and len(names) > 1:
            raise RbError(f"--join compares sets in one metric, and --metric names {len(names)}. Name one.")
        at: dict[str, dict[str, float]] = {}
        column = record_values.column(records, name, "--metric")
        labels = record_values.keys(records, self.sets, "--sets")
        for key, label, value in zip(
            record_values.keys(records, str(self.join), "--join"), labels, column, strict=True
        ):
            if value is not None:
                at.setdefault(label, {})[key] = value
        if len(at) < 2:
            raise RbError(
                f"--join compares sets, and {self.sets} is {next(iter(at), 'nothing')} for all records. Name"
                " what they differ in with --sets."
            )
        if len(at) > MOST_CURVES:
            raise RbError(
                f"{self.sets} has {len(at)} values, and {MOST_CURVES} sets can be told apart (--where)."
            )
        shared = [key for key in next(iter(at.values())) if all(key in other for other in at.values())]
        if not shared:
            raise RbError(f"No {self.join} is in all of {', '.join(at)}: there is nothing to compare.")
        ranks = {label: _ranks([values[key] for key in shared], name) for label, values in at.items()}
        first = next(iter(ranks))
        order = sorted(range(len(shared)), key=lambda place: ranks[first][place])
        axes = figure.add_subplot()
        entries = []
        for number, label in enumerate(ranks):
            line = _curve(axes, [ranks[label][place] for place in order], number, smooth=label != first)
            entries.append((line, label))
        axes.invert_yaxis()
        height = max(2.0, 0.62 * self.width)
        room = (self.width - 0.8, height - 0.4)
        layout.label(axes, x=f"rank on {first} (1 is best)", y="rank on each", room=room)
        for axis in (axes.xaxis, axes.yaxis):
            layout.whole_numbers(axis)
        return Painted(f"{words.axis([name])}: {len(shared):,} joined by {self.join}", height, entries)

    def _order(self, records: Sequence[Record], by: str) -> list[int]:
        """The places of the records that have a value of `by`, the best first."""
        column = record_values.column(records, by, "--by")
        pairs = [(value, place) for place, value in enumerate(column) if value is not None]
        sign = -1 if metric_name.higher_is_better(by) else 1
        return [place for _, place in sorted(pairs, key=lambda pair: sign * pair[0])]

    def _changes(self, figure: Figure, records: Sequence[Record], names: Sequence[str]) -> Painted:
        if len(records) > MOST_LINES:
            raise RbError(
                f"There are {len(records):,} records, and {MOST_LINES} lines of ranks fit. Choose some, for"
                f" example with rb-rank --top {MOST_LINES}."
            )
        if len(names) < 2:
            raise RbError("Ranks change between metrics. Name two or more with --metric.")
        axes = figure.add_subplot()
        ranks = [_ranks(record_values.column(records, name, "--metric"), name) for name in names]
        tags, looks = words.tags(records), style.looks(words.differing(records))
        for place in range(len(records)):
            line = [column[place] for column in ranks]
            axes.plot(range(len(names)), line, marker="o", markersize=3.5, clip_on=False, **looks[place])
        worst = max((rank for column in ranks for rank in column if rank == rank), default=1.0)
        axes.set_xlim(-0.05, len(names) - 0.95)
        axes.set_ylim(worst + 0.5, 0.5)
        most = 0.36 * self.width
        wide = _name_ends(axes, ranks[-1], tags, most)
        high = layout.name_x(axes, [words.tidy(name) for name in names], self.width - wide - 0.6)
        layout.label(axes, y="rank", room=(self.width, 2))
        layout.whole_numbers(axes.yaxis, [1, 2, 5, 10])
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        title = words.titled(f"Ranks (1 is best), {words.counted(len(records))}", records)
        return Painted(title, max(1.2, 0.17 * worst + 0.35) + high)


def _curve(axes: Axes, column: Sequence[float | None], number: int, *, smooth: bool) -> Line2D:
    look = style.line(number)
    known = [(rank, value) for rank, value in enumerate(column, start=1) if value is not None]
    ranks, numbers = (np.array(part) for part in zip(*known, strict=True))
    if len(known) <= _MARKED:
        (line,) = axes.plot(ranks, numbers, marker=style.MARKERS[number], markersize=3, **look)
        return line
    if smooth:
        axes.plot(
            ranks,
            numbers,
            linestyle="",
            marker=".",
            markersize=2 if len(known) < 1000 else 1,
            alpha=0.35,
            markeredgewidth=0,
            color=look["color"],
            rasterized=True,
        )
        # The median of each window of a fiftieth of the records (five at least).
        width = max(5, len(numbers) // 50)
        ranks, numbers = (
            np.median(np.lib.stride_tricks.sliding_window_view(part, width)[:: max(1, width // 10)], axis=1)
            for part in (ranks, numbers)
        )
    (line,) = axes.plot(ranks, numbers, linewidth=1.6, **look)
    return line


def _ranks(column: Sequence[float | None], name: str) -> list[float]:
    """Ranks from 1, the best; equal values share a rank, as in rb-rank; NaN without a value."""
    sign = -1 if metric_name.higher_is_better(name) else 1
    costs = sorted(sign * value for value in column if value is not None)
    first: dict[float, int] = {}
    for rank, cost in enumerate(costs, start=1):
        first.setdefault(cost, rank)
    return [float("nan") if value is None else float(first[sign * value]) for value in column]


def _name_ends(axes: Axes, last: Sequence[float], tags: Sequence[str], most: float) -> float:
    """The names of the records at the ends of their lines; those that share a rank share a line of text.
    Returns their width in inches, at most `most`.
    """
    at: dict[float, list[str]] = {}
    for rank, tag in zip(last, tags, strict=True):
        if rank == rank:
            at.setdefault(rank, []).append(tag)
    texts = [layout.fitted(", ".join(names), most, style.SMALL) for names in at.values()]
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    right.set_yticks(list(at), texts)
    right.tick_params(axis="y", length=0, pad=6, labelsize=style.SMALL)
    right.grid(visible=False)
    right.spines["bottom"].set_visible(False)
    return layout.widest(texts, style.SMALL)
