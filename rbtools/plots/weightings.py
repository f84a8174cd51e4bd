"""Composite scores under several weightings, for each record or group of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rbtools.errors import RbError, near, unknown
from rbtools.lazy import np
from rbtools.plots import record_values, words
from rbtools.plots.base import Drawing, Record
from rbtools.records import expr, results
from rbtools.registry import param
from rbtools.scoring import terms
from rbtools.scoring.composite import MISSING, Composite
from rbtools.scoring.rank_order import Directions

# The weights of each panel of PRBench's figure 6, for clean accuracy, PGD-20, PR, ProbAcc, the two
# generalisation errors and the time, in the order of rb-score's preset. Source: wellzline/PRbenchwebsite.
PRESETS: dict[str, dict[str, tuple[float, ...]]] = {
    "prbench": {
        "equal": (1, 1, 1, 1, 1, 1, 1),
        "acc .8, GE .8, time .4": (0.8, 1, 1, 1, 0.8, 0.8, 0.4),
        "time .4": (1, 1, 1, 1, 1, 1, 0.4),
        "GE .8, time .4": (1, 1, 1, 1, 0.8, 0.8, 0.4),
        "acc .8, AR .8, GE .8, time .4": (0.8, 0.8, 1, 1, 0.8, 0.8, 0.4),
        "AR .8, GE .8, time .4": (1, 0.8, 1, 1, 0.8, 0.8, 0.4),
    }
}


class Rows(NamedTuple):
    """Named rows of numbers (rows, columns): the means over the records of each group and the sample standard
    deviations. Means over no records and deviations over fewer than two records are NaN."""

    names: list[str]
    means: np.ndarray
    deviations: np.ndarray


# Remarks for one or two records, whose minimum and maximum are unreliable.
_OF_FEW = {
    1: ": a single record has .5 in each metric",
    2: ": in each metric, the better is 1 and the other 0, however close they are",
}


@dataclass(frozen=True)
class Own:
    """The scores that the records contain, which are used instead of scores computed over the drawn records.
    `scaled` (records, terms) contains the metrics on the scale of the score; NaN if a metric is missing."""

    terms: list[terms.Term]
    scaled: np.ndarray

    @staticmethod
    def of(records: Sequence[Record]) -> Own | None:
        """The scores if rb-score computed all of them with the same metrics and weights; otherwise None."""
        entries = [results.last_entry(record, "score") for record in records]
        found = [terms.of_entry(entry) if entry.get("tool") == "rb-score" else [] for entry in entries]
        if not found[0] or any(own != found[0] for own in found):
            return None
        parts = [results.at(entry, ("contributions",)) or {} for entry in entries]
        shares = np.array([[part.get(term.metric) for term in found[0]] for part in parts], float)
        weights = np.array([term.weight for term in found[0]])
        total = (weights * ~np.isnan(shares)).sum(1, keepdims=True)
        return Own(found[0], shares * total / np.where(weights > 0, weights, np.nan))

    def weighed(self, weights: Sequence[float]) -> list[float | None]:
        """The scores with these weights of `terms`, each computed over the metrics that the record has."""
        total = (~np.isnan(self.scaled) * np.array(weights)).sum(1)
        scores = np.nansum(self.scaled * weights, 1) / np.where(total > 0, total, np.nan)
        return [None if np.isnan(score) else float(score) for score in scores]


@dataclass(frozen=True, kw_only=True)
class Composed(Drawing, Directions):
    """The options for a composite score, which are the same as in rb-score."""

    metric: str | None = param(
        None,
        "Metrics of the score, as for rb-score: names, globs and expressions, separated by commas."
        "  [default: all metrics that every record has]",
        metavar="LIST",
    )
    preset: str | None = param(
        None, "Use the metrics of a preset of rb-score, such as prbench.", metavar="NAME"
    )
    weightings: tuple[str, ...] = param(
        (),
        "The name of a weighting and the weights of metrics, such as robust=pgd20.8=3,pr.*=2. Other metrics"
        " have their weight in the score, usually 1. The name prbench selects the six weightings of PRBench's"
        " figure 6. The option can be repeated.  [default: equal]",
        metavar="NAME=LIST",
        flags=("--weighting",),
    )
    group: str | None = param(
        None,
        "Draw means over groups of records with the same value of this field, such as train.method.",
        metavar="EXPR",
    )
    within: str | None = param(
        None,
        "Scale metrics within groups of records with the same values of these fields, such as"
        " dataset,arch.name.  [default: over all]",
        metavar="LIST",
    )
    missing: str = param("refuse", "What to do with a record that lacks a metric.", choices=MISSING)

    def scored(self, records: Sequence[Record]) -> Composite | Own:
        """The composite score. Without options, the scores of rb-score are used if all records have them with
        the same metrics and weights (`Own`)."""
        options = (self.metric, self.preset, self.within, self.lower, self.higher, self.missing)
        if options == (None, None, None, None, None, "refuse") and (own := Own.of(records)) is not None:
            return own
        if self.preset is not None and self.preset not in terms.presets():
            raise unknown("preset", self.preset, terms.presets())
        metrics = [] if self.metric is None else [self.metric]
        asked = terms.asked(metrics, self, preset=self.preset)
        within = expr.items(self.within or "")
        # Warnings of the score are in the label of the axis.
        return Composite(records, asked, preset=self.preset, within=within, missing=self.missing)


def weightings(texts: Sequence[str], usual: dict[str, float]) -> dict[str, list[float]]:
    """Parse weightings such as `equal` and `robust=pgd20.8=3,pr.*=2`. A metric without a weight has its
    weight in `usual`. A name in `PRESETS` selects several weightings, which require the same number of
    metrics in the same order. Raises RbError if a weight is not a number or is below 0, or if a metric is not
    in `usual`."""
    names = list(usual)
    named: dict[str, list[float]] = {}
    for text in texts or ["equal"]:
        title, equals, body = text.partition("=")
        if not equals and title in PRESETS:
            some = PRESETS[title]
            if wrong := [count for count in map(len, some.values()) if count != len(names)]:
                raise RbError(
                    f"--weighting {title} has weights for {wrong[0]} metrics, but the score has {len(names)}"
                    f" ({', '.join(names)}). Use --preset {title}, or name as many metrics in the same order."
                )
            named |= {title: [*map(float, weights)] for title, weights in some.items()}
            continue
        if ":" in title or not title.strip() or (equals and not body.strip()):
            raise RbError(f"--weighting is '{text}'. Expected NAME=LIST, such as robust=pgd20.8=3,pr.*=2.")
        weights = dict(usual)
        for item in expr.items(body):
            name, equals, number = item.rpartition("=")
            matching = expr.expand(name.strip(), names)
            if not equals or not matching:
                raise RbError(
                    f"--weighting: '{item}' is not METRIC=WEIGHT.{near(name.strip(), names)} The metrics"
                    f" are: {', '.join(names)}."
                )
            weights.update(dict.fromkeys(matching, _weight(number, item)))
        if not any(weights.values()):
            raise RbError(f"--weighting: all weights of '{title.strip()}' are 0. Expected one above 0.")
        named[words.tidy(title)] = list(weights.values())
    return named


def _weight(text: str, item: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise RbError(
            f"--weighting: the weight in '{item}' is '{text.strip()}'. Expected a number of at least 0."
        )
    return weight


def together(records: Sequence[Record], within: str | None, score: Composite | Own) -> str:
    """A remark for the axis label if several data sets or too few records were scaled together, else ""."""
    if within is not None:
        return ""
    sets = {str(record.get("dataset")) for record in records}
    remark = f", scaled over {len(sets)} data sets together" if len(sets) > 1 else ""
    return remark + ("" if isinstance(score, Own) else _OF_FEW.get(len(records), ""))


def grouped(records: Sequence[Record], columns: Sequence[Sequence[float | None]], group: str | None) -> Rows:
    """Average the columns over records with the same value of `group`; without it, each record is a row."""
    import pandas

    names = words.tags(records)
    at: Mapping[str, Sequence[int]] = {name: [place] for place, name in enumerate(names)}
    if group is not None:
        at = record_values.groups(records, group, "--group")
    of = {place: name for name, places in at.items() for place in places}
    by = pandas.DataFrame(np.array(columns, float).T).groupby([of[place] for place in range(len(records))])
    return Rows([*at], by.mean().loc[[*at]].to_numpy(), by.std().loc[[*at]].to_numpy())


def best(rows: Rows, top: int, *, higher: bool = True) -> Rows:
    """The `top` rows whose first column is highest (or lowest). Rows with missing numbers are last, because a
    score over some of the metrics is not comparable with a score over all metrics."""
    first = -rows.means[:, 0] if higher else rows.means[:, 0]
    order = np.lexsort((first, np.isnan(rows.means).sum(1)))[:top]
    return Rows([rows.names[row] for row in order], rows.means[order], rows.deviations[order])
