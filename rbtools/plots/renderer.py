"""The renderer of all figures: panels in a grid, labels at the edges, one legend, and all sizes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rbtools.errors import RbError
from rbtools.plots import style
from rbtools.plots.layout import apart, line_height, name_places, round_steps, text_width, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend


MOST_PANELS = 48
_SIDE = 0.65  # inches for the label and the numbers on the left
_EDGE = 0.06  # inches below the panels
_LEGEND = 5.4  # font sizes of the line of a legend entry and of the gap after its name


class Panel(NamedTuple):
    """A pair of axes, with a function `draw` that draws on the axes, and the texts around the axes. `columns`
    and `rows` are names for the positions 0, 1, ... along x and y, if the axes do not show numbers. The
    figure has one legend for everything that `draw` draws with a `label`."""

    draw: Callable[[Axes], object]
    title: str = ""
    x: str = ""
    y: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[str] = ()


def shaped(share: float, most: float) -> Callable[[float], float]:
    """A map from the width of axes to their height: `share` of the width, but at most `most` inches."""
    return lambda width: min(max(1.15, share * width), most)


class FigureSpec(NamedTuple):
    """A figure that consists of panels.

    `height` maps the width of a panel's axes to their height, in inches. `least` is the smallest width of a
    panel. `alike` is true if all vertical axes have the same scale, unless this would squeeze a panel. `bar`
    is the label of a colour bar for the image or the points in the last panel, and `bar_at` is its side.
    `note` is a text above the legend, which explains bands and error bars.
    """

    panels: Sequence[Panel]
    height: Callable[[float], float] = shaped(0.62, 2.8)
    least: float = 1.9
    alike: bool = True
    bar: str | None = None
    bar_at: Literal["right", "top"] = "right"
    note: str = ""


def blank(width: float) -> Figure:
    """An empty Figure, `width` inches wide, on the Agg canvas. Call this only inside `style.applied`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 3))
    FigureCanvasAgg(figure)
    return figure


Limits = Mapping[str, tuple[float, float]]  # the ends of the axes x and y, if they are chosen


def render(spec: FigureSpec, width: float, title: str = "", limits: Limits = MappingProxyType({})) -> Figure:
    """Draw the Figure of a specification, `width` inches wide. Call this only inside `style.applied`. Raises
    RbError if axes with `limits` have no numbers."""
    count = len(spec.panels)
    if count > MOST_PANELS:
        raise RbError(f"There would be {count} panels, but only {MOST_PANELS} fit. Name fewer with --metric.")
    figure = blank(width)
    rows = math.ceil(count / max(1, int((width - _SIDE) / spec.least)))
    columns = math.ceil(count / rows)
    grid = figure.add_gridspec(rows, columns)
    drawn: list[Axes] = []
    for place, panel in enumerate(spec.panels):
        of = {"sharey": drawn[0]} if drawn and spec.alike else {}
        drawn.append(figure.add_subplot(grid[divmod(place, columns)], **of))
        panel.draw(drawn[-1])
    if spec.alike and "y" not in limits and _squeezed(drawn):
        return render(spec._replace(alike=False), width, title, limits)
    for axes, panel in zip(drawn, spec.panels, strict=True):
        _limit(axes, panel, limits)
    for place, (axes, panel) in enumerate(zip(drawn, spec.panels, strict=True)):
        axes.set(xlabel=panel.x, ylabel=panel.y)
        left, below = place - 1, place + columns
        if below < count and spec.panels[below].x == panel.x:
            alike = drawn[below].get_xlim() == axes.get_xlim()
            axes.set_xlabel("")
            axes.tick_params(labelbottom=not (alike and spec.panels[below].columns == panel.columns))
        if place % columns and spec.panels[left].y == panel.y:
            axes.set_ylabel("")
            axes.tick_params(labelleft=not spec.alike)
    if spec.bar is not None:
        _bar(figure, drawn, spec.bar, rows * spec.height((width - _SIDE) / columns), spec.bar_at)
    for axes in figure.axes:
        axes.tick_params(labelsize=style.small())
        round_steps(axes.xaxis)
        round_steps(axes.yaxis)
    if title:
        figure.suptitle(wrapped(title, width - 0.3, style.title()))
    figure.align_ylabels(drawn)
    _legend(figure, spec, rows, columns)
    _fit(figure, drawn, spec, rows, columns)
    _settle(figure, drawn, columns)
    return figure


def _limit(axes: Axes, panel: Panel, limits: Limits) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    for which, ends in limits.items():
        axis = axes.xaxis if which == "x" else axes.yaxis
        named = panel.columns if which == "x" else panel.rows
        if named or isinstance(axis.get_major_locator(), FixedLocator | NullLocator):
            raise RbError(f"--{which}lim: this axis of the figure has no numbers. Leave --{which}lim out.")
        if axis.get_scale() == "log" and ends[0] <= 0:
            raise RbError(f"--{which}lim begins at {ends[0]:g}. A logarithmic axis needs limits above 0.")
        axes.set(**{f"{which}lim": ends[::-1] if axis.get_inverted() else ends})


def _squeezed(drawn: Sequence[Axes]) -> bool:
    """Whether what a panel shows takes less than a quarter of the height that all panels need together."""
    spans = [axes.dataLim.intervaly for axes in drawn if axes.get_autoscaley_on()]
    spans = [span for span in spans if math.isfinite(span[0]) and span[1] > span[0]]
    if not spans:
        return False
    lows, highs = zip(*spans, strict=True)
    return bool(min(high - low for low, high in spans) < (max(highs) - min(lows)) / 4)


def _bar(figure: Figure, drawn: Sequence[Axes], label: str, high: float, side: str) -> None:
    """A colour bar beside panels that are `high` inches high together."""
    colours = [*drawn[-1].images, *drawn[-1].collections][-1]
    size: dict[str, Any] = {"pad": 0.02, "aspect": 28.0}
    if side == "top":  # as thick for low panels as for high ones
        size = {"pad": 0.08 / high, "aspect": 7 * figure.get_figwidth(), "fraction": 0.15 / high}
    bar = figure.colorbar(colours, ax=drawn, location=side, **size)
    bar.outline.set_visible(False)
    bar.set_label(wrapped(label, 1.3 if side == "right" else 0.4 * figure.get_figwidth(), style.size()))


def _legend(figure: Figure, spec: FigureSpec, rows: int, columns: int) -> None:
    """One legend for all panels, in the free cells of the last row if it fits, or at the lower edge."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    if entries or spec.note:
        wide = (figure.get_figwidth() - 0.15 - _SIDE) / columns
        free = (rows * columns - len(spec.panels)) * wide
        _add_legend(figure, entries, "outside lower center", spec.note, free, spec.height(wide))


def _add_legend(
    figure: Figure,
    entries: Mapping[str, Any],
    where: str,
    note: str,
    free: float = 0.0,
    height: float = 0.0,
) -> Legend:
    """A legend in the free space of `free` x `height` inches if it fits, and otherwise at `where`."""
    room = figure.get_figwidth() - 0.15
    # Many names in one column would be too high, so they are shortened until two columns fit.
    most = room / (2 if len(entries) > 6 else 1) - _LEGEND * style.small() / 72
    names = apart([*entries], most, style.small())
    across, said = _columns(names, free), wrapped(note, max(free - 0.1, 0.1), style.small())
    lines = len(said.splitlines()) + (math.ceil(len(names) / across) if across else math.inf)
    inside = lines * line_height(style.small()) < height
    if not inside:
        across, said = _columns(names, room), wrapped(note, room, style.small())
    where, title = "center" if inside else where, said or None
    how: dict[str, Any] = {"title": title, "title_fontsize": style.small(), "columnspacing": 1.4}
    legend = figure.legend([*entries.values()], names, loc=where, ncols=across, **how)
    legend.get_title().set_multialignment("center")
    legend.set_in_layout(not inside)
    return legend


def note(text: str, width: float) -> Figure:
    """A figure that contains only text. Call this only inside `style.applied`."""
    figure = blank(width)
    lines = wrapped(text, width - 0.5, style.small())
    figure.set_figheight(0.4 + line_height(style.small()) * len(lines.splitlines()))
    figure.text(0.5, 0.5, lines, ha="center", va="center", size=style.small(), color=style.GREY)
    return figure


def level(figures: Sequence[Figure]) -> None:
    """Make the axes of the figures equally high. Figures with several rows of axes are left out."""
    from matplotlib.transforms import Bbox

    single = []
    for figure in figures:
        spans = {
            tuple(axes.get_position(original=True).intervaly)
            for axes in figure.axes
            if axes.get_subplotspec() is not None  # colour bars have none
        }
        if len(spans) == 1:
            low, high = spans.pop()
            single.append((figure, high, (high - low) * figure.get_figheight()))
    most = max((height for *_, height in single), default=0.0)
    for figure, high, height in single:
        before, more = figure.get_figheight(), most - height
        figure.set_figheight(before + more)
        boxes = [axes.get_position(original=True) for axes in figure.axes]
        for axes, box in zip(figure.axes, boxes, strict=True):
            ends = (at * before + (more if at > high - 1e-3 else 0.0) for at in box.intervaly)
            low, top = (end / (before + more) for end in ends)
            axes.set_position(Bbox([[box.x0, low], [box.x1, top]]))


def share_legend(whole: Figure, parts: Sequence[Figure]) -> tuple[Legend | None, list[Figure]]:
    """A common legend for those parts of a figure that explain a colour in the same way as another part, and
    the list of these parts. The parts lose their own legends, and their content moves to the lower edge of
    their box. Call this only inside `style.applied`."""
    explained = [(part, _explained(part.legends[0])) for part in parts if part.legends]
    met = Counter(key for _, entries in explained for key in entries)
    sharing = [(part, entries) for part, entries in explained if any(met[key] > 1 for key in entries)]
    said = {part: part.legends[0].get_title().get_text() for part, _ in sharing}
    for part, _ in sharing:
        part.legends[0].remove()
        below = part.get_tightbbox().y0 - _EDGE
        part.bbox_inches.set(part.bbox_inches.translated(0, -below))
    shared = {name: handle for _, entries in sharing for (name, _), handle in entries.items()}
    notes = dict.fromkeys(title for part, _ in sharing if (title := said[part]))
    legend = _add_legend(whole, shared, "center", " ".join(notes)) if shared else None
    return legend, [part for part, _ in sharing]


def _explained(legend: Legend) -> dict[tuple[str, Any], Any]:
    from matplotlib.colors import to_rgba_array

    entries = {}
    handles: list[Any] = legend.legend_handles
    for text, handle in zip(legend.get_texts(), handles, strict=True):
        named = ("color", "facecolor", "edgecolor")  # an outline has no colour inside
        colours = [to_rgba_array(getattr(handle, f"get_{name}", list)()) for name in named]
        colour = next(found[0, :3] for found in colours if len(found))
        entries[text.get_text(), tuple(colour)] = handle
    return entries


def _columns(names: Sequence[str], room: float) -> int:
    """The most columns with which a legend fits into a width in inches; 0 if the names never fit."""
    widths = [text_width(name, style.small()) + _LEGEND * style.small() / 72 for name in names]
    tables = (
        [widths[at : at + rows] for at in range(0, len(widths), rows)] for rows in range(1, len(widths) + 1)
    )
    return next((len(table) for table in tables if sum(map(max, table)) <= room), 0)


def _fit(figure: Figure, drawn: Sequence[Axes], spec: FigureSpec, rows: int, columns: int) -> None:
    """Breaks texts into lines and chooses the height of the figure. These steps are repeated, because the
    texts, the height and the size of the axes depend on each other."""
    engine = figure.get_layout_engine()
    assert engine is not None  # the style sets a layout engine
    widths = [(figure.get_figwidth() - _SIDE) / columns - 0.15] * len(drawn)
    figure.set_figheight(rows * (spec.height(widths[0]) + 2.0) + 1.0)
    for attempt in range(5):
        high = spec.height(widths[0])
        for axes, panel, wide in zip(drawn, spec.panels, widths, strict=True):
            title = panel.title if panel.title != panel.y else ""
            axes.set_title(wrapped(title, wide, style.small()), size=style.small())
            axes.set_xlabel(axes.get_xlabel() and wrapped(panel.x, wide, style.size()))
            axes.set_ylabel(axes.get_ylabel() and wrapped(panel.y, high - 0.1, style.size()))
            if panel.columns:
                name_places(axes, "x", panel.columns, wide)
            if panel.rows:
                name_places(axes, "y", panel.rows, high, min(0.38 * figure.get_figwidth(), 1.8))
        engine.execute(figure)
        full = figure.get_size_inches()
        widths = [float(axes.get_position(original=True).width * full[0]) for axes in drawn]
        lacking = spec.height(widths[0]) - float(drawn[0].get_position(original=True).height * full[1])
        if abs(lacking) < 0.02 or attempt == 4:
            break
        if attempt < 2 and any(panel.columns or panel.rows for panel in spec.panels):
            continue  # wider axes allow longer names, which reduce the height
        figure.set_figheight(float(full[1]) + rows * lacking)


def _settle(figure: Figure, drawn: Sequence[Axes], columns: int) -> None:
    """Fixes the layout, and places the legend in the last row and the names beside points. Positions are
    rounded so that the same records give the same bytes: matplotlib's solver orders its constraints by memory
    address, so the last digits of its solution differ between runs."""
    from matplotlib.transforms import Bbox

    figure.set_figheight(round(figure.get_figheight(), 3))
    figure.set_layout_engine("none")
    for axes in figure.axes:
        box = axes.get_position(original=True)
        axes.set_position(Bbox([[round(at, 4) for at in corner] for corner in box.get_points()]))
    for title in figure.texts:
        x, y = title.get_position()
        title.set_position((round(x, 4), round(y, 4)))
    for legend in figure.legends:
        if not legend.get_in_layout():
            last, right = drawn[-1].get_position(), drawn[columns - 1].get_position()
            free = Bbox([[last.x1, last.y0], [right.x1, last.y1]])
            legend.set_bbox_to_anchor(free, figure.transFigure)
    named = [axes for axes in figure.axes if any(text.get_label() == _NAME for text in axes.texts)]
    if named:
        figure.draw_without_rendering()
    for axes in named:
        _place_names(axes)


# Possible places of a name beside its point, in points: right or left of it, at its height, above or below.
_BESIDE = tuple(itertools.product((0, 8.5, -8.5), (("left", 4), ("right", -4))))
_NAME = "_beside"  # legends omit labels that begin with _


def write_names(axes: Axes, points: Iterable[tuple[float, float]], names: Sequence[str]) -> None:
    """Write names beside points. When the size of the figure is fixed, names that lack space are hidden."""
    from matplotlib import patheffects

    for point, name in zip(points, names, strict=True):
        text = axes.annotate(
            name, point, (0, 0), textcoords="offset points", size=style.small() - 0.5, va="center", zorder=6
        )
        text.set_label(_NAME)
        text.set_in_layout(False)
        text.set_path_effects([patheffects.withStroke(linewidth=1.6, foreground="white")])


def _place_names(axes: Axes) -> None:
    """Place each name at the first position beside its point that is inside the axes and free."""
    taken: list[Any] = []
    frame = axes.get_window_extent()
    for text in (text for text in axes.texts if text.get_label() == _NAME):
        for up, (side, right) in _BESIDE:
            text.set(horizontalalignment=side)
            text.set_position((right, up))
            box = text.get_window_extent()
            inside = all(frame.contains(x, y) for x, y in (box.min, box.max))
            if inside and not box.count_overlaps(taken):
                taken.append(box)
                break
        else:
            text.set_visible(False)
