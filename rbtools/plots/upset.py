"""upset: how many images exactly this set of attacks and corruptions breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rbtools.cli.source import name_of
from rbtools.errors import RbError, near
from rbtools.lazy import np
from rbtools.plots import layout, style, words
from rbtools.plots.base import Drawing, Painted, Record, Scoring
from rbtools.records import answers, expr, results
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure


MOST_PARTS, MOST_COLUMNS = 16, 20
_ROW, _HIGH = 0.2, 1.5  # inches of a row of the matrix, and of the bars above it
_CLEAN = "acc"


class BrokenImages(NamedTuple):
    """Numbers of images, summed over records.

    exactly: by the parts (places in the list) that break them, none for images that survive all. clean: those
    that are misclassified as they are; they are in no set.
    """

    exactly: Counter[tuple[int, ...]]
    clean: int
    images: int


@dataclass(frozen=True, kw_only=True)
class Upset(Drawing):
    """How many images exactly this set of attacks and corruptions breaks (an UpSet plot), of one record or
    summed over records.

    Each column is a set: the dots below name its parts. Images that are misclassified as they are have a grey
    column of their own, if acc has its answers. The bars at the left count all images that a part breaks.
    Every record needs the answers of --per-image; they are looked up in the store, too.

    Needs each image's answers to one attack or corruption or more: --per-image, or those in the store.
    """

    name: ClassVar[str] = "upset"
    per_image: ClassVar[bool] = True

    metric: str | None = param(
        None,
        "Metrics with commas, globs among them: aa.8,aa.l2.0.5,corrupt.fog.3.  [default: all of which"
        " every record has answers, without unions]",
        metavar="LIST",
    )

    def paint(self, figure: Figure, records: Sequence[Record], scoring: Scoring) -> Painted:
        parts = _parts(records, self.metric)
        broken = _summed(records, parts)
        sets = sorted(broken.exactly.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
        columns = [(members, count) for members, count in sets if members]
        if not columns and not broken.clean:
            raise RbError(f"None of {', '.join(parts)} breaks an image: there is nothing to draw.")
        room = MOST_COLUMNS - bool(broken.clean)
        shown, left_out = columns[:room], columns[room:]
        totals = [_total(columns, part) for part in range(len(parts))]
        grey = self._drawn(figure, parts, shown, broken, totals)
        legend = [(grey, "misclassified as they are, without attack or corruption")] if broken.clean else []
        title = f"{broken.exactly[()]:,} of {words.counted(broken.images, 'image')} survive all"
        if left_out:
            count = sum(count for _, count in left_out)
            title += (
                f"; {words.counted(len(left_out), 'more set')} of {words.counted(count, 'image')} left out"
            )
        if len(records) > 1:
            title += f"; summed over {words.counted(len(records))}"
        return Painted(words.titled(title, records), _HIGH + _ROW * len(parts) + 0.45, legend)

    def _drawn(
        self,
        figure: Figure,
        parts: Sequence[str],
        columns: Sequence[tuple[tuple[int, ...], int]],
        broken: BrokenImages,
        totals: Sequence[int],
    ) -> BarContainer:
        """Draw the three parts of the figure; the bars of `broken.clean`."""
        every = [*columns, *([(tuple(range(len(parts))), broken.clean)] if broken.clean else [])]
        colours = [style.BLUE] * len(columns) + [style.GREY] * bool(broken.clean)
        names = layout.apart([words.tidy(part) for part in parts], 0.3 * self.width, style.SMALL)
        side = 0.14 * self.width
        wide = self.width - side - layout.widest(names, style.SMALL) - 0.6
        grid = figure.add_gridspec(2, 2, width_ratios=(side, wide), height_ratios=(_HIGH, _ROW * len(parts)))
        above, matrix = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
        beside = figure.add_subplot(grid[1, 0], sharey=matrix)
        counts = [count for _, count in every]
        above.bar(range(len(every)), counts, 0.7, color=colours)
        _write_counts(above, counts, wide / len(every))
        above.set_xlim(-0.6, len(every) - 0.4)
        above.set_xticks([])
        above.grid(visible=False, axis="x")
        layout.whole_numbers(above.yaxis)
        layout.label(above, y="images", room=(wide, _HIGH))
        _dots(matrix, [members for members, _ in every], len(parts), colours)
        matrix.set_xlim(above.get_xlim())
        layout.name_y(matrix, names, _ROW * len(parts))
        return _beside(beside, totals, broken.clean, side)


def _dots(axes: Axes, columns: Sequence[tuple[int, ...]], rows: int, colours: Sequence[str]) -> None:
    """A dot for each part of each set, dark where it is a member, and a line through the members."""
    places = [(column, row) for column in range(len(columns)) for row in range(rows)]
    size = 4.0 if len(columns) > MOST_COLUMNS / 2 else 5.0
    axes.plot(*zip(*places, strict=True), "o", color=style.PALE, markersize=size)
    for column, (members, colour) in enumerate(zip(columns, colours, strict=True)):
        axes.plot([column] * len(members), members, "o-", color=colour, markersize=size)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def _beside(axes: Axes, totals: Sequence[int], clean: int, width: float) -> BarContainer:
    """Bars to the left: the images that each part breaks, in grey those that need no attack."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    rows = range(len(totals))
    grey = axes.barh(rows, [clean] * len(totals), 0.65, color=style.GREY)
    axes.barh(rows, totals, 0.65, left=clean, color=style.BLUE)
    axes.invert_xaxis()
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.tick_params(labelleft=False, left=False)
    axes.xaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(layout.short_number))
    layout.label(axes, x="images", room=(width, 1))
    return grey


def _write_counts(axes: Axes, counts: Sequence[int], slot: float) -> None:
    size = style.SMALL - 1.5
    texts = [f"{count:,}" for count in counts]
    if layout.widest(texts, size) > 0.95 * slot:
        return
    for column, (count, text) in enumerate(zip(counts, texts, strict=True)):
        axes.annotate(
            text, (column, count), xytext=(0, 1), textcoords="offset points", ha="center", size=size
        )
    axes.margins(y=0.12)


def _total(columns: Sequence[tuple[tuple[int, ...], int]], part: int) -> int:
    return sum(count for members, count in columns if part in members)


def _parts(records: Sequence[Record], text: str | None) -> list[str]:
    """The metrics of a list, by default all with answers. Raises RbError for none, and for too many."""
    names = _in_all(records)
    if text is not None:
        entries = [entry for record in records for entry in record.get("evals") or ()]
        measured = list(dict.fromkeys(str(entry.get("metric")) for entry in entries))
        with_answers = {str(entry.get("metric")) for entry in entries if answers.FIELD in entry}
        names = []
        for item in expr.items(text):
            matching = expr.expand(item, measured)
            if not matching:
                raise RbError(f"--metric: no record has an entry of '{item}'.{near(item, measured)}")
            # a glob also matches means and other numbers that are not of single images
            names += [name for name in matching if name in with_answers] or matching
    parts = [name for name in dict.fromkeys(names) if name != _CLEAN]
    if not parts:
        raise RbError(
            "There are no answers for single images. They come with --per-image: rb-attack aa --per-image; or"
            " later, from the store: rb-store answers. Name attacks and corruptions with --metric."
        )
    if len(parts) > MOST_PARTS:
        raise RbError(f"There are {len(parts)} parts, and {MOST_PARTS} fit. Name them with --metric.")
    return parts


def _in_all(records: Sequence[Record]) -> list[str]:
    """The metrics, other than unions, of which every record has answers."""
    first, *others = (
        dict.fromkeys(
            str(entry.get("metric"))
            for entry in record.get("evals") or ()
            if answers.FIELD in entry and "union" not in entry
        )
        for record in records
    )
    return [name for name in first if all(name in other for other in others)]


def _summed(records: Sequence[Record], parts: Sequence[str]) -> BrokenImages:
    exactly: Counter[tuple[int, ...]] = Counter()
    clean = images = 0
    for record in records:
        right = [_answers_of_part(record, part) for part in parts]
        first = right[0]
        for part, other in zip(parts, right, strict=True):
            if other.examples != first.examples or len(other.right) != len(first.right):
                raise RbError(
                    f"{name_of(record)}: {parts[0]} and {part} are of different images"
                    f" ({len(first.right):,} and {len(other.right):,}). Evaluate them with the same --n."
                )
        broken = ~np.stack([other.right for other in right], axis=1)
        unchanged = _answers(record, _CLEAN)
        if (
            unchanged is not None
            and unchanged.examples == first.examples
            and len(unchanged.right) >= len(broken)
        ):
            correct = unchanged.right[: len(broken)]
            clean += int((~correct).sum())
            broken = broken[correct]
        images += len(first.right)
        for members, count in zip(*np.unique(broken, axis=0, return_counts=True), strict=True):
            exactly[tuple(members.nonzero()[0].tolist())] += int(count)
    return BrokenImages(exactly, clean, images)


def _answers(record: Record, metric: str) -> answers.Answers | None:
    try:
        return answers.of(results.last_entry(record, metric))
    except RbError as wrong:
        raise RbError(f"{name_of(record)}: {wrong}") from None


def _answers_of_part(record: Record, metric: str) -> answers.Answers:
    found = _answers(record, metric)
    if found is None:
        tool = results.last_entry(record, metric).get("tool", "rb-attack")
        raise RbError(
            f"{name_of(record)} has no answers of {metric} for single images. They come with {tool}"
            " --per-image; or later, from the store: rb-store answers."
        )
    return found
