"""The plot `search`: the best value that searches have found after each query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.plots import layout, marks, style, words
from rbtools.plots.base import Drawing, Record
from rbtools.plots.renderer import FigureSpec, Panel
from rbtools.records import results
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_LINES = 8


@dataclass(frozen=True, kw_only=True)
class SearchPlot(Drawing):
    """The best value that searches (rb-search) have found after each query, with a line for each algorithm.

    Lines are means over the runs, and bands are their 95 % intervals. A dotted line shows the optimum in the
    table of results.

    Needs the field search, which rb-search writes for a search with one objective.
    """

    name: ClassVar[str] = "search"

    log_x: bool = param(False, "Use a logarithmic horizontal axis, which stretches the first queries.")

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        written = ("search", "trajectory", "mean")
        searches = [record["search"] for record in records if results.at(record, written)]
        if not searches:
            raise RbError(
                "No record has the trajectory of a search. Run rb-search, for example rb-search local"
                " --objective pgd20.8 --table FILE."
            )
        if len(searches) > MOST_LINES:
            raise RbError(f"There are {len(searches)} searches, but only {MOST_LINES} lines fit.")
        wanted = list(dict.fromkeys(_objective(search) for search in searches))
        if len(wanted) > 1:
            raise RbError(
                f"The searches optimise {' and '.join(wanted)}. Choose searches for one of them with --where."
            )
        names = _names(searches)
        looks = style.look(names)
        optima = {search["optimum"]["value"] for search in searches if search.get("optimum")}

        def draw(axes: Axes) -> None:
            for search, name in zip(searches, names, strict=True):
                trajectory = search["trajectory"]
                ends = zip(trajectory.get("low") or (), trajectory.get("high") or (), strict=True)
                points = list(enumerate(trajectory["mean"], start=1))
                marks.line(axes, points, looks[name], name, list(ends))
            if len(optima) == 1:
                look: dict[str, Any] = {"color": style.BLACK, "linestyle": style.DASHES[2], "linewidth": 1}
                axes.axhline(next(iter(optima)), label="optimum", **look)
            layout.plain_numbers(axes.yaxis)
            layout.whole_numbers(axes.xaxis)
            if self.log_x:
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter(layout.short_number)

        label = wanted[0] if wanted[0] == "hypervolume" else words.axis([wanted[0]])
        banded = any(search["trajectory"].get("low") for search in searches)
        over = words.span([search.get("runs", 1) for search in searches])
        note = f"Lines: means over {over} runs. Bands: their 95 % intervals." if banded else ""
        return FigureSpec([Panel(draw, x="queries", y=f"best {label}")], note=note)


def _objective(search: dict[str, Any]) -> str:
    listed = search.get("objectives") or []
    return str(listed[0]["objective"]) if len(listed) == 1 else "hypervolume"


def _names(searches: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the algorithms; if names are equal, the settings that differ are added."""
    names = [str(search.get("algorithm")) for search in searches]
    if len(set(names)) == len(names):
        return names
    configs = [search.get("config") or {} for search in searches]
    differ = [key for key in configs[0] if len({str(config.get(key)) for config in configs}) > 1]
    return [
        " ".join([name, *(f"{key} {config[key]}" for key in differ if key in config)])
        for name, config in zip(names, configs, strict=True)
    ]
