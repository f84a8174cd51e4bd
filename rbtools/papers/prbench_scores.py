"""PRBench's composite scores, and the sampling errors of its values and scores."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from statistics import median, stdev

from rbtools.papers import sidebyside as side
from rbtools.papers.estimates import WithInterval
from rbtools.plots import weightings
from rbtools.probabilistic import intervals

# Figure 6: the parts of the composite, and whether more is better.
COMPOSITE = {
    "Acc": True,
    "PGD20": True,
    "PR .08": True,
    "ProbAcc .05": True,
    "GE PGD20": False,
    "GE PR .08": False,
    "s/epoch": False,
}
ANY_AA = "AA of any pair"
# The columns of scores with the weights of figure 6, in the order of `COMPOSITE`; `score` has equal weights.
WEIGHTINGS = {
    "score" if name == "equal" else f"score {name.replace(',', '')}": weights
    for name, weights in weightings.PRESETS["prbench"].items()
}


def composite(rows: side.Rows) -> side.Values:
    """The weighted means of the columns after min-max scaling, for rows that have values in all columns."""
    whole = {name: one for name, one in rows.items() if all(one.get(part) is not None for part in COMPOSITE)}
    scaled: dict[str, list[float]] = {name: [] for name in whole}
    for part, higher in COMPOSITE.items():
        values = {name: float(one[part] or 0.0) for name, one in whole.items()}
        low, high = min(values.values(), default=0.0), max(values.values(), default=0.0)
        for name, value in values.items():
            share = (value - low) / (high - low) if high > low else 0.5
            scaled[name].append(share if higher else 1 - share)
    return {
        name: {
            column: sum(weight * part for weight, part in zip(weights, parts, strict=True)) / sum(weights)
            for column, weights in WEIGHTINGS.items()
        }
        for name, parts in scaled.items()
    }


def with_intervals(
    row: Mapping[str, float | None], images: tuple[int, int, int], columns: Container[str]
) -> dict[str, WithInterval]:
    """The values of `columns`, which are shares of images and generalisation errors, with Clopper and
    Pearson's intervals. `images` are the numbers of test images: in total, under AutoAttack, and for the
    generalisation error of PR. For PR, whose shares of copies vary less, the interval is too long. Methods
    are tested on the same images, so differences also vary less. The variation between seeds is not known."""
    test, under_aa, of_gap = images
    correct = row.get("Acc") or 1.0

    def of_share(share: float, count: float) -> intervals.Interval:
        trials = max(round(count), 1)
        return intervals.clopper_pearson(min(max(share, 0.0), 1.0) * trials, trials)

    found: dict[str, WithInterval] = {}
    for column, value in row.items():
        of = column.replace("GE ", "")
        level = row.get(of)
        if value is None or level is None or column not in columns:
            continue
        noisy = "PR " in of or "ProbAcc" in of
        if of == column:
            count = under_aa if of in ("AA", ANY_AA) else test * correct if noisy else test
            found[column] = WithInterval(value, *of_share(value, count))
        else:  # PR is over correct images, its generalisation error over all
            level, count = (level * correct, of_gap) if noisy else (level, test)
            train = level + value
            ends = intervals.square_and_add(train, of_share(train, count), level, of_share(level, count))
            found[column] = WithInterval(value, *ends)
    return found


def medians(pairs: Sequence[side.Rows]) -> tuple[side.Values, side.Values]:
    """The medians of each method's composite scores over the pairs of a data set and a network, and half of
    their 95 % intervals for normally distributed scores; no intervals for one pair."""
    every: dict[str, dict[str, list[float]]] = {}
    for rows in pairs:
        for name, one in composite(rows).items():
            for column, score in one.items():
                every.setdefault(name, {}).setdefault(column, []).append(score or 0.0)
    middle: side.Values = {}
    spread: side.Values = {}
    for name, columns in every.items():
        middle[name] = {column: median(some) for column, some in columns.items()}
        spread[name] = {
            column: 1.96 * math.sqrt(math.pi / 2 / len(some)) * stdev(some)
            for column, some in columns.items()
            if len(some) > 1
        }
    return middle, spread
