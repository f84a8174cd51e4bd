"""The plot `ranks`: metrics over ordered records, and how ranks change between metrics."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import layout, marks, record_values, style, words
from rbtools.plots.base import Drawing, Record
from rbtools.plots.renderer import FigureSpec, Panel
from rbtools.records import metric_name
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Ends = Mapping[str, Sequence[tuple[float, float]]]
MOST_CURVES, MOST_LINES = 8, 30
_MARKED = 40  # the points of more records are not joined by a line
_MEDIANS = "Points: models. Lines through them: running medians."


@dataclass(frozen=True, kw_only=True)
class Ranks(Drawing):
    """Values of metrics over the records, in sorted order.

    With `view=shared`, all metrics are drawn in the order of the metric in --by; many records are drawn as
    points with a running median. With `view=own`, each metric is drawn in its own order. With `view=changes`,
    the ranks are drawn, with a line for each record from metric to metric.

    With --join, sets of records are compared in one metric, such as the same architectures on several data
    sets. Then the rank of each record in the other sets is drawn over the record's rank in the first set.

    Needs at least one metric and several records; with --join, two sets of records.
    """

    name: ClassVar[str] = "ranks"

    metric: str | None = param(
        None,
        "Metrics, globs and expressions, separated by commas.  [default: acc, and the other accuracy that"
        " most records have; of several, the last evaluated]",
        metavar="EXPR",
    )
    by: str | None = param(
        None,
        "With --view shared, the metric that determines the order.  [default: the first of --metric]",
        metavar="EXPR",
    )
    view: str = param(
        "shared",
        "One order for all metrics, a separate order for each metric, or changes of ranks between metrics.",
        choices=("shared", "own", "changes"),
    )

    join: str | None = param(
        None,
        "Join sets of records by this field (such as arch.index), and rank the records in each set.",
        metavar="EXPR",
    )
    sets: str = param("dataset", "With --join, the field that distinguishes the sets.", metavar="EXPR")

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        names = self._names(records)
        if self.join is not None:
            return self._joined(records, names)
        if self.view == "changes":
            return self._changes(records, names)
        if len(names) > MOST_CURVES:
            raise RbError(f"--metric names {len(names)} metrics. Expected at most {MOST_CURVES}.")
        by = self.by or names[0]
        order = record_values.ordered(records, by) if self.view == "shared" else []
        lines: dict[str, list[float | None]] = {}
        for name in names:
            column = record_values.column(records, name, "--metric")
            if order:
                lines[name] = [column[place] for place in order]
            else:
                known = record_values.present(column)
                lines[name] = [*sorted(known, reverse=metric_name.higher_is_better(name))]
        whose = f"in the order of {words.axis([by])}" if order else "each metric in its own order"
        smooth = [name for name in names if order and name != by]
        ends = _ends([records[place] for place in order], lines) if 0 < len(order) <= _MARKED else {}
        draw = partial(_curves, lines=lines, smooth=smooth, ends=ends)
        panel = Panel(draw, x=f"models, best first, {whose}", y=words.axis(names))
        note = record_values.interval_note("Error bars", records, names) if ends else ""
        return FigureSpec([panel], note=_MEDIANS if smooth and len(order) > _MARKED else note)

    def _names(self, records: Sequence[Record]) -> list[str]:
        if self.metric is not None:
            return record_values.chosen(records, self.metric, "--metric")
        having = Counter(name for record in records for name in record.get("metrics") or ())
        accuracies = [name for name in metric_name.names(records) if words.are_accuracies([name])]
        if not accuracies:
            return [metric_name.default_rank_key(records)]
        others = [name for name in accuracies if name != "acc"]
        most = max((having[name] for name in others), default=0)
        last = [name for name in others if having[name] == most][-1:]
        return [*(["acc"] if "acc" in accuracies else []), *last]

    def _joined(self, records: Sequence[Record], names: Sequence[str]) -> FigureSpec:
        """Draws the rank in the other sets over the rank in the first set, for records in all sets."""
        name = names[0] if self.metric is None else names[-1]
        if self.metric is not None and len(names) > 1:
            raise RbError(f"--join compares sets in one metric, but --metric names {len(names)}. Name one.")
        import pandas

        found = pandas.DataFrame(
            {
                "key": record_values.keys(records, str(self.join), "--join"),
                "set": record_values.keys(records, self.sets, "--sets"),
                "value": np.array(record_values.column(records, name, "--metric"), float),
            }
        ).dropna()
        sets = list(dict.fromkeys(found["set"]))
        if len(sets) < 2:
            raise RbError(
                f"--join compares sets of records, but {self.sets} is {sets[0] if sets else 'nothing'} for"
                " all of them. Name a field whose value differs between the sets with --sets."
            )
        if len(sets) > MOST_CURVES:
            raise RbError(f"{self.sets} has {len(sets)} values, but at most {MOST_CURVES} fit. Use --where.")
        table = found.pivot_table(index="key", columns="set", values="value", aggfunc="last", sort=False)
        shared = table[sets].dropna()
        if shared.empty:
            raise RbError(f"No {self.join} is in all of the sets {', '.join(sets)}. Choose other sets.")
        first = sets[0]
        ranks = _ranks(shared, name).sort_values(first, kind="stable")
        lines = {label: ranks[label].tolist() for label in sets}

        def draw(axes: Axes) -> None:
            _curves(axes, lines, [label for label in lines if label != first])
            axes.invert_yaxis()
            layout.whole_numbers(axes.yaxis)

        x = f"rank on {words.label(first)} (1 is best)"
        note = _MEDIANS if len(shared) > _MARKED else ""
        return FigureSpec([Panel(draw, x=x, y=f"rank on each in {words.axis([name])}")], note=note)

    def _changes(self, records: Sequence[Record], names: Sequence[str]) -> FigureSpec:
        if len(records) > MOST_LINES:
            raise RbError(
                f"There are {len(records):,} records, but only {MOST_LINES} lines of ranks fit. Choose some,"
                f" for example with rb-rank --top {MOST_LINES}."
            )
        if len(names) < 2:
            raise RbError("--view changes compares metrics. Name two or more with --metric.")
        ranks = [_ranks(record_values.column(records, name, "--metric"), name).tolist() for name in names]
        parts, tags = zip(*words.told_apart(records), strict=True)
        looks = style.looks(parts)
        worst = max((rank for column in ranks for rank in column if rank == rank), default=1.0)

        def draw(axes: Axes) -> None:
            for place, look in enumerate(looks):
                line = [column[place] for column in ranks]
                axes.plot(range(len(names)), line, markersize=3.5, clip_on=False, **look)
            axes.set_xlim(-0.05, len(names) - 0.95)
            axes.set_ylim(worst + 0.5, 0.5)
            layout.whole_numbers(axes.yaxis)
            axes.grid(visible=False)
            axes.spines["bottom"].set_visible(False)
            _name_ends(axes, ranks[-1], tags, 0.36 * self.width)

        panel = Panel(draw, y="rank", columns=[words.label(name) for name in names])
        return FigureSpec([panel], lambda _: max(1.0, 0.17 * worst))


def _ends(records: Sequence[Record], lines: Mapping[str, Sequence[float | None]]) -> Ends:
    """The lengths of the intervals below and above the values, for the metrics that have intervals."""
    known = [record_values.intervals(record) for record in records]
    pairs = {
        name: [
            (0.0, 0.0) if value is None or name not in own else (value - own[name][0], own[name][1] - value)
            for value, own in zip(values, known, strict=True)
        ]
        for name, values in lines.items()
    }
    return {name: found for name, found in pairs.items() if any(map(any, found))}


def _curves(
    axes: Axes,
    lines: Mapping[str, Sequence[float | None]],
    smooth: Sequence[str],
    ends: Ends = MappingProxyType({}),
) -> None:
    """Draws numbers over the ranks 1, 2, ...; many points of `smooth` lines get a running median. Few points
    of such lines are not joined: the line between two networks means nothing."""
    for name, look in style.look([*lines]).items():
        known = [(rank, value) for rank, value in enumerate(lines[name], start=1) if value is not None]
        if len(known) > _MARKED and name in smooth:
            axes.plot(
                *zip(*known, strict=True),
                linestyle="",
                marker=".",
                markersize=3 if len(known) < 1000 else 1.8,
                alpha=0.5,
                markeredgewidth=0,
                color=look["color"],
                rasterized=True,
            )
            # A window of the running median has a fiftieth of the records, and at least five.
            width = max(5, len(known) // 50)
            windows = np.lib.stride_tricks.sliding_window_view(np.array(known), width, axis=0)
            known = [tuple(point) for point in np.median(windows[:: max(1, width // 10)], axis=-1)]
            look = {**look, "linewidth": 0.7}  # thin, because the points show how much the order differs
        elif name in smooth:
            look = {**look, "linestyle": ""}
        if name in ends:
            x, y, lengths = zip(*[(rank, value, ends[name][rank - 1]) for rank, value in known], strict=True)
            how: dict[str, Any] = {"color": look["color"], "alpha": 0.5, "linewidth": 0.8, "linestyle": ""}
            axes.errorbar(x, y, np.array(lengths).T.clip(0), **how)
        marks.line(axes, known, look, words.label(name))
    layout.whole_numbers(axes.xaxis)


def _ranks(values: Any, name: str) -> Any:
    """The rank of each number in its column, as in rb-rank: 1 is the best, and equal values share a rank."""
    import pandas

    table = values if isinstance(values, pandas.DataFrame) else pandas.Series(values, dtype=float)
    return table.rank(method="min", ascending=not metric_name.higher_is_better(name))


def _name_ends(axes: Axes, last: Sequence[float], tags: Sequence[str], most: float) -> None:
    """Write names at the ends of lines. The names of equal ranks are below each other, because the next ranks
    are free."""
    at: dict[float, str] = {}
    for rank, tag in zip(last, tags, strict=True):
        if rank == rank:
            at[next(place for place in itertools.count(rank) if place not in at)] = tag
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    axes.callbacks.connect("ylim_changed", lambda left: right.set_ylim(left.get_ylim()))
    right.set_yticks(list(at), [layout.fitted(tag, most, style.small()) for tag in at.values()])
    right.tick_params(axis="y", length=0, pad=6)
    right.grid(visible=False)
    right.spines["bottom"].set_visible(False)
