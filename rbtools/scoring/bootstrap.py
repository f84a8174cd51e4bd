"""Estimates the uncertainty of a ranking by sampling the values as if other test images had been used.

If the outcome of each image is stored, a record's accuracy is resampled from the record's own images. Records
of the same data set use the same image weights, so networks that fail on the same images have correlated
samples. Otherwise, the accuracy is sampled from the distribution given by its value and n, or from a normal
distribution as wide as its interval. In this case, the metrics of a record, or of the members of a group, are
sampled with full correlation, as if they were measured on the same images. The interval of a mean is then
never too narrow.

Images are weighted as in the Bayesian bootstrap (Rubin, Ann. Stat. 9, 1981). One more image, which is correct
with probability 1/2, is added to every record; without this image, a network that is correct on all images
would have no uncertainty. If k of n images are correct, the samples have the distribution Beta(k + 1, n - k)
or Beta(k, n - k + 1), whose middle 95 % are the mid-P interval of a proportion (Berry and Armitage, The
Statistician 44, 1995).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from rbtools.lazy import np, special
from rbtools.records import expr, metric_name, results
from rbtools.scoring.rank_order import SortKey
from rbtools.scoring.rank_sets import Drawn, rank_sets
from rbtools.scoring.terms import Term, of_entry

Record = Mapping[str, Any]
Shares = Callable[[Record, Mapping[str, Any]], "tuple[np.ndarray, np.ndarray] | None"]
# The sources of samples. If a record has several sources, the last one in this order is reported.
SOURCES = ("images", "value and n", "the interval", "nothing")
_Z95 = 1.959963984540054
_ROWS = 256  # rows of samples that are processed together
_MOST = 2**53  # larger numbers of images or weights are not exact as floats


class Interval(NamedTuple):
    """The 95 % interval of a number, and the 95 % interval of the number's rank."""

    value: tuple[float, float] | None
    rank: tuple[int, int] | None


class BootstrapDraws:
    """Samples the numbers of records `size` times, as if other test images had been used.

    `shares` returns the contribution of each image to a value, and whether the image counts, float32 (N,)
    each; None if unknown. `sources` contains the source of each record's samples, and `images` the smallest
    number of images that the samples of a record depend on, if known. The samples of a record depend on
    `seed` and on the record, and not on other records.
    """

    def __init__(self, size: int, seed: int, shares: Shares) -> None:
        self.size, self.seed, self._shares = size, seed, shares
        self.sources: dict[int, int] = {}
        self.images: dict[int, int] = {}
        self._samples: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def number(self, record: Record, text: str, whose: str | None = None) -> np.ndarray:
        """Samples (size,) of a metric or an expression; NaN if the record has no such number. `whose` names
        the mean to which the number contributes. All numbers of a mean share one additional image; without
        `whose`, each number has its own additional image."""
        metrics = record.get("metrics") or {}
        if text in metrics:
            return self._metric(record, text, whose)
        compiled = expr.Expression(text, any_name=True)
        used = dict.fromkeys(name for item in compiled.names for name in expr.expand(item, metrics))
        names = [name for name in used if metrics[name] is not None]
        common = whose or f"record {_model(record)}"
        alike = {name: self._alike(record, self._metric(record, name, common)) for name in names}
        if names and compiled.is_mean:  # for 6,466 records, this takes seconds instead of minutes
            mean: np.ndarray = np.stack(list(alike.values())).mean(0)
            return mean
        draws = self._evaluated(compiled, record, {name: self._metric(record, name, whose) for name in names})
        if len(names) < 2:
            return draws
        other = self._evaluated(compiled, record, alike)  # correlated: sums vary more, and differences less
        return other if other.std() > draws.std() else draws

    def _evaluated(
        self, compiled: expr.Expression, record: Record, every: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        listed = {name: values.tolist() for name, values in every.items()}
        draws = np.full(self.size, np.nan)
        for at in range(self.size if listed else 1):
            moment = {name: values[at] for name, values in listed.items()}
            value = compiled.number({**record, "metrics": {**(record.get("metrics") or {}), **moment}})
            draws[at if listed else slice(None)] = np.nan if value is None else value
        return draws

    def _alike(self, record: Record, draws: np.ndarray) -> np.ndarray:
        """Gives all metrics of a record the same order of samples, which samples from images already have."""
        if not self.sources.get(id(record)):
            return draws
        order = self._generator(f"order {_model(record)}").permutation(self.size)
        ordered: np.ndarray = np.sort(draws)[order]
        return ordered

    def _metric(self, record: Record, name: str, whose: str | None) -> np.ndarray:
        value = record["metrics"][name]
        if value is None:
            return np.full(self.size, np.nan)
        entry = results.last_entry(record, name)
        shares = self._shares(record, entry)
        n, interval = entry.get("n"), entry.get("ci95")
        counts = [count for count in (n if isinstance(n, list) else [n]) if type(count) is int and count > 0]
        if counts:
            self.images[id(record)] = min(*counts, self.images.get(id(record), counts[0]))
        rng = self._generator(
            json.dumps([record.get("checkpoint"), record.get("arch"), entry], sort_keys=True)
        )
        if shares is not None:
            self._note(record, 0)
            weights, total = self._weights(record, entry, len(shares[0]))
            gives, included = shares
            right = (weights @ gives).astype(float)
            every = total if (included == 1).all() else (weights @ included).astype(float)
            rng = rng if whose is None else self._generator(whose)
            return _with_one_more(rng, right, every - right)
        counted = type(n) is int and 0 < n < _MOST and 0 <= value <= 1
        whole = counted and abs(value * n - round(value * n)) < 1e-6
        # A published share is rounded, so n times the share may not be a whole number.
        share = metric_name.is_share(name) and not metric_name.parse(name).is_ge
        if whole or (counted and share and not interval):
            self._note(record, 1)
            right = round(value * n) if whole else value * n
            drawn = rng.standard_gamma([[right], [n - right]], (2, self.size))
            return _with_one_more(rng, *drawn)
        if interval:
            self._note(record, 2)
            return rng.normal(value, (interval[1] - interval[0]) / 2 / _Z95, self.size)
        self._note(record, 3)
        return np.full(self.size, float(value))

    def _note(self, record: Record, source: int) -> None:
        self.sources[id(record)] = max(self.sources.get(id(record), 0), source)

    def _weights(self, record: Record, entry: Mapping[str, Any], n: int) -> tuple[np.ndarray, np.ndarray]:
        """Weights of images, float32 (size, n), equal for all records with these images, and their sums."""
        fields = ("dataset", "split", "indices", "class_map", "preprocessing")
        about = {key: entry.get(key, record.get(key)) for key in fields}
        images = json.dumps({**about, "n": n}, sort_keys=True, default=str)
        if images not in self._samples:
            weights = self._generator(images).standard_exponential((self.size, n), np.float32)
            self._samples[images] = weights, (weights @ np.ones(n, np.float32)).astype(float)
        return self._samples[images]

    def _generator(self, whose: str) -> np.random.Generator:
        name = hashlib.blake2b(f"{self.seed} {whose}".encode(), digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(name, "big")))

    def composite(self, records: Sequence[Record], whose: Sequence[str | None]) -> np.ndarray:
        """Samples (N, size) of the score from rb-score; NaN if a record has no score. The metrics are
        sampled, then scaled and weighted. `whose` contains one name for each record (see `number`)."""
        draws = np.full((len(records), self.size), np.nan)
        groups: dict[str, list[int]] = {}
        terms = [_terms(record) for record in records]
        entries = [results.last_entry(record, "score") for record in records]
        for place, (some, entry) in enumerate(zip(terms, entries, strict=True)):
            if some:
                settings = [[term[1:] for term in some], entry.get("within"), entry.get("missing")]
                groups.setdefault(json.dumps(settings), []).append(place)
        for places in groups.values():
            members = [
                (records[place], terms[place], whose[place] or f"record {_model(records[place])}")
                for place in places
            ]
            worst = entries[places[0]].get("missing") == "worst"
            draws[places] = self._composite(members, worst=worst)
        return draws

    def _composite(self, members: Sequence[tuple[Record, list[Term], str]], *, worst: bool) -> np.ndarray:
        """Samples (G, size) of a group's scores, from records, their terms and `whose` (see `number`)."""
        total, weight = np.zeros((2, len(members), self.size))
        for number, term in enumerate(members[0][1]):
            sign = 1 if term.higher else -1
            drawn = np.empty(total.shape)
            for row, (record, terms, name) in enumerate(members):
                values = self.number(record, terms[number].metric, name)
                # the terms of a record are sampled with full correlation
                drawn[row] = sign * self._alike(record, sign * values)
            finite = ~np.isnan(drawn)
            least = np.where(finite, drawn, np.inf).min(0)
            most = np.where(finite, drawn, -np.inf).max(0)
            span = np.where(most > least, most - least, 1)
            scaled = (drawn - least if term.higher else most - drawn) / span
            scaled = np.where(most > least, scaled, 0.5)
            total += np.where(finite, scaled, 0) * term.weight
            weight += term.weight * (finite | worst)
        scores: np.ndarray = np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight > 0)
        return scores


def _model(record: Record) -> str:
    return json.dumps([record.get("checkpoint"), record.get("arch")], sort_keys=True)


def _with_one_more(rng: np.random.Generator, right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """The weighted share (B,) of correct images, with one more image that is correct or wrong at random."""
    weight = rng.standard_exponential(len(right))
    share: np.ndarray = (right + weight * rng.integers(2, size=len(right))) / (right + wrong + weight)
    return share


def _terms(record: Record) -> list[Term]:
    """The terms of the record's score; empty if the record has no score that can be sampled."""
    terms = of_entry(results.last_entry(record, "score"))
    return terms if all(0 < term.weight < _MOST for term in terms) else []


def over_members(
    drawn: np.ndarray, members: Sequence[Sequence[int]], alone: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns samples (G, B) of the means of groups, the variance (G,) of each mean between its members, and
    the degrees of freedom (G,) of this variance.

    `drawn` (N, B) contains the samples of records, and `members` the rows of each group. `alone` is bool
    (N,), true if a record's samples do not depend on images that other records share. The samples do not
    contain the variance between members, because resampling three members would underestimate it by a third.
    """
    size = drawn.shape[1]
    between, freedom = np.zeros(len(members)), np.ones(len(members))
    if [*members] == [range(row, row + 1) for row in range(len(drawn))]:
        return drawn, between, freedom  # not copied, because 10,000 rows of 1,000 samples are 80 MB
    means = np.full((len(members), size), np.nan)
    for group, places in enumerate(members):
        rows = [place for place in places if not np.isnan(drawn[place]).all()]
        if not rows:
            continue
        some = drawn[rows]
        if len(rows) > 1:
            order = np.random.Generator(np.random.Philox([seed, group])).permutation(size)
            some[alone[rows]] = np.sort(some[alone[rows]], axis=1)[:, order]
            between[group] = np.nanmean(some, axis=1).var(ddof=1) / len(rows)
            freedom[group] = len(rows) - 1
        means[group] = some.mean(0)
    return means, between, freedom


def intervals(drawn: Drawn, higher: bool) -> list[Interval]:
    """The 95 % intervals of numbers and of their ranks. A row with missing samples has no intervals and is
    ignored in the ranks of other rows."""
    result = [Interval(None, None)] * len(drawn.draws)
    whole = np.flatnonzero(~np.isnan(drawn.draws).any(1))
    if not len(whole):
        return result
    combined = drawn
    if len(whole) < len(drawn.draws):  # only then, because a copy of 10,000 rows takes 80 MB
        draws, between, freedom, rarity = (part[whole] for part in drawn[:4])
        combined = Drawn(draws, between, freedom, rarity, drawn.joint)
    best, worst = rank_sets(combined, higher)
    blocks = np.array_split(combined.draws, -(-len(combined.draws) // _ROWS))  # because np.percentile copies
    ends = np.concatenate([np.percentile(block, [2.5, 97.5], axis=1) for block in blocks], axis=1)
    centre = combined.draws.mean(1)
    # For independent parts, squared distances to the ends add up (Zou and Donner, Stat. Med. 27, 2008).
    members = special.stdtrit(combined.freedom, 0.975) * np.sqrt(combined.between)
    several = combined.between > 0
    low = np.where(several, centre - np.hypot(centre - ends[0], members), ends[0])
    high = np.where(several, centre + np.hypot(ends[1] - centre, members), ends[1])
    for row, *of_row in zip(*(part.tolist() for part in (whole, low, high, best, worst)), strict=True):
        result[row] = Interval((of_row[0], of_row[1]), (of_row[2], of_row[3]))
    return result


def of_ranking(draws: BootstrapDraws, key: SortKey, members: Sequence[Sequence[Record]]) -> list[Interval]:
    """The intervals of ranked entries; `members` lists the records that are averaged in each entry."""
    every = [record for some in members for record in some]
    if not every:
        return []
    composite = key.text == "score" and any(map(_terms, every))
    whose = [f"group {at}" if len(some) > 1 else None for at, some in enumerate(members) for _ in some]
    if composite:
        drawn = draws.composite(every, whose)
    else:
        drawn = np.empty((len(every), draws.size))
        for row, (record, name) in enumerate(zip(every, whose, strict=True)):
            drawn[row] = draws.number(record, key.text, name)
    ends = list(accumulate(map(len, members), initial=0))
    rows = [range(start, stop) for start, stop in pairwise(ends)]
    alone = np.array([draws.sources.get(id(record), 0) > 0 for record in every])
    joint = composite or not alone.all()
    images = [min(draws.images.get(id(record), math.inf) for record in some) for some in members]
    groups = over_members(drawn, rows, alone, draws.seed)
    return intervals(Drawn(*groups, 1 / np.array(images), joint), key.higher)
