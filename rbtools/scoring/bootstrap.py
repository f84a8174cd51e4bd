"""Uncertainty of a ranking: the ranking is repeated with metric values redrawn as for other test images.

A record's accuracy is resampled from its own images if their outcomes are stored: records of one data set get
the same image weights, so that two networks which fail on the same images stay close. Otherwise it is drawn
from the distribution given by its value and n, or from a normal one as wide as its interval.

Images are weighted as in the Bayesian bootstrap (Rubin, Ann. Stat. 9, 1981), and every record gets one more
image, correct with probability 1/2: without it a network that is correct on all images would have no
uncertainty. With k of n right that draws from Beta(k + 1, n - k) or Beta(k, n - k + 1), whose middle 95 % are
the mid-P interval of a proportion (Berry and Armitage, The Statistician 44, 1995).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from rbtools.lazy import np
from rbtools.records import expr, metric_name
from rbtools.scoring.rank_order import SortKey

Record = Mapping[str, Any]
Shares = Callable[[Record, Mapping[str, Any]], "tuple[np.ndarray, np.ndarray] | None"]
# What a record's values were drawn from, in order of precedence: one exact number makes it "nothing".
SOURCES = ("images", "value and n", "the interval", "nothing")
_Z95 = 1.959963984540054
_MOST = 2**53  # of a count of images, or a weight


class Interval(NamedTuple):
    """The 95 % interval of a number's draws, and of the rank that it gives."""

    value: tuple[float, float] | None
    rank: tuple[int, int] | None


class BootstrapDraws:
    """`size` draws of the numbers of records, as for other test images.

    shares: the contribution of single images to a value, see `rbtools.evaluation.bootstrap_inputs`. `sources`
    says for each record what its numbers were drawn from. The draws of a record depend on `seed` and the
    record, not on other records.
    """

    def __init__(self, size: int, seed: int, shares: Shares) -> None:
        self.size, self.seed, self._shares = size, seed, shares
        self.sources: dict[int, int] = {}
        self._samples: dict[str, np.ndarray] = {}

    def number(self, record: Record, text: str) -> np.ndarray:
        """Draws (size,) of a metric or an expression, NaN if the record has no such number."""
        metrics = record.get("metrics") or {}
        if text in metrics:
            return self._metric(record, text)
        compiled = expr.compile(text)
        used = dict.fromkeys(name for item in compiled.names for name in expr.expand(item, metrics))
        every = {name: self._metric(record, name) for name in used if metrics[name] is not None}
        if every and compiled.is_mean:  # takes seconds, not minutes, for 6,466 records
            mean: np.ndarray = np.stack(list(every.values())).mean(0)
            return mean
        listed = {name: values.tolist() for name, values in every.items()}
        draws = np.full(self.size, np.nan)
        for at in range(self.size if listed else 1):
            moment = {**metrics, **{name: values[at] for name, values in listed.items()}}
            value = compiled.number({**record, "metrics": moment})
            draws[at if listed else slice(None)] = np.nan if value is None else value
        return draws

    def _metric(self, record: Record, name: str) -> np.ndarray:
        value = record["metrics"][name]
        if value is None:
            return np.full(self.size, np.nan)
        entries = [candidate for candidate in record.get("evals") or [] if candidate.get("metric") == name]
        entry: dict[str, Any] = entries[-1] if entries else {}
        shares = self._shares(record, entry)
        rng = self._generator(
            json.dumps([record.get("checkpoint"), record.get("arch"), entry], sort_keys=True)
        )
        if shares is not None:
            self._note(record, 0)
            weights = self._weights(record, entry, len(shares[0]))
            right, every = (weights @ np.stack(shares, axis=1)).T.astype(float)
            return _with_one_more(rng, right, every - right)
        n, interval = entry.get("n"), entry.get("ci95")
        counted = type(n) is int and 0 < n < _MOST and 0 <= value <= 1
        whole = counted and abs(value * n - round(value * n)) < 1e-6
        # A published share is rounded, and need be no whole number of n images.
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

    def _weights(self, record: Record, entry: Mapping[str, Any], n: int) -> np.ndarray:
        """The weight of each image: float32 (size, n), the same for all records with these images."""
        about = {key: entry.get(key) for key in ("dataset", "split", "indices", "class_map")}
        images = json.dumps({"dataset": record.get("dataset"), **about, "n": n}, sort_keys=True, default=str)
        if images not in self._samples:
            self._samples[images] = self._generator(images).standard_exponential((self.size, n), np.float32)
        return self._samples[images]

    def _generator(self, whose: str) -> np.random.Generator:
        name = hashlib.blake2b(f"{self.seed} {whose}".encode(), digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(name, "big")))

    def composite(self, records: Sequence[Record]) -> np.ndarray:
        """Draws (N, size) of the score that rb-score gave: its metrics are drawn, then scaled and weighted.

        NaN for a record without an entry of it.
        """
        draws = np.full((len(records), self.size), np.nan)
        groups: dict[str, list[int]] = {}
        entries = [_score_entry(record) for record in records]
        for place, entry in enumerate(entries):
            if entry is not None:
                weights = [(term["weight"], term["higher"]) for term in entry["terms"]]
                settings = [weights, entry.get("within"), entry.get("missing")]
                groups.setdefault(json.dumps(settings), []).append(place)
        for places in groups.values():
            draws[places] = self._composite(
                [records[place] for place in places], [entries[p] for p in places]
            )
        return draws

    def _composite(self, records: Sequence[Record], entries: Sequence[Any]) -> np.ndarray:
        total, weight = np.zeros((2, len(records), self.size))
        for number, term in enumerate(entries[0]["terms"]):
            names = [entry["terms"][number]["metric"] for entry in entries]
            drawn = np.stack([self.number(*pair) for pair in zip(records, names, strict=True)])
            known = ~np.isnan(drawn)
            least = np.where(known, drawn, np.inf).min(0)
            most = np.where(known, drawn, -np.inf).max(0)
            span = np.where(most > least, most - least, 1)
            scaled = (drawn - least if term["higher"] else most - drawn) / span
            scaled = np.where(most > least, scaled, 0.5)
            total += np.where(known, scaled, 0) * term["weight"]
            weight += term["weight"] * (known | (entries[0].get("missing") == "worst"))
        scores: np.ndarray = np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight > 0)
        return scores


def _with_one_more(rng: np.random.Generator, right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """The weighted share (B,) of correct images, with one more image that is correct or wrong."""
    weight = rng.standard_exponential(len(right))
    share: np.ndarray = (right + weight * rng.integers(2, size=len(right))) / (right + wrong + weight)
    return share


def _score_entry(record: Record) -> Any:
    entries = [entry for entry in record.get("evals") or [] if entry.get("metric") == "score"]
    return entries[-1] if entries and _are_terms(entries[-1].get("terms")) else None


def _are_terms(terms: object) -> bool:
    """Whether these are metrics with weights and directions, as rb-score writes them."""
    if not isinstance(terms, list) or not all(isinstance(term, dict) for term in terms):
        return False
    return bool(terms) and all(
        isinstance(term.get("metric"), str)
        and isinstance(term.get("higher"), bool)
        and type(term.get("weight")) in (int, float)
        and 0 < term["weight"] < _MOST
        for term in terms
    )


def over_members(drawn: np.ndarray, members: Sequence[Sequence[int]], seed: int) -> np.ndarray:
    """Draws (G, B) of the means of groups from those (N, B) of records; members are resampled as well.

    members: the rows of each group. A group of one keeps its draws.
    """
    means = np.full((len(members), drawn.shape[1]), np.nan)
    every = np.arange(drawn.shape[1])[:, None]
    for group, places in enumerate(members):
        some = drawn[list(places)]
        if len(places) > 1:
            rng = np.random.Generator(np.random.Philox([seed, group]))
            picked = some[rng.integers(len(places), size=(drawn.shape[1], len(places))), every]
            known = ~np.isnan(picked)
            count = known.sum(1)
            total = np.where(known, picked, 0).sum(1)
            means[group] = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
        else:
            means[group] = some[0]
    return means


def intervals(drawn: np.ndarray, higher: bool) -> list[Interval]:
    """The 95 % intervals of numbers and of their ranks among each other, from draws (G, B).

    A row without numbers has none, and the others are ranked without it.
    """
    result = [Interval(None, None)] * len(drawn)
    whole = [row for row in range(len(drawn)) if not np.isnan(drawn[row]).any()]
    if not whole:
        return result
    values = drawn[whole]
    costs = np.sort(-values if higher else values, axis=0)
    ranks = np.empty(values.shape, int)
    for at in range(values.shape[1]):
        ranks[:, at] = np.searchsorted(costs[:, at], -values[:, at] if higher else values[:, at]) + 1
    ends = np.percentile(values, [2.5, 97.5], axis=1)
    places = np.percentile(ranks, [2.5, 97.5], axis=1, method="inverted_cdf")
    for number, row in enumerate(whole):
        low, high = ends[:, number].tolist()
        best, worst = places[:, number].tolist()
        result[row] = Interval((low, high), (int(best), int(worst)))
    return result


def of_ranking(draws: BootstrapDraws, key: SortKey, members: Sequence[Sequence[Record]]) -> list[Interval]:
    """The intervals of ranked records by a key; members: for each, the records that it averages."""
    every = [record for some in members for record in some]
    if not every:
        return []
    if key.text == "score" and any(_score_entry(record) for record in every):
        drawn = draws.composite(every)
    else:
        drawn = np.stack([draws.number(record, key.text) for record in every])
    ends = list(accumulate(map(len, members), initial=0))
    rows = [range(start, stop) for start, stop in pairwise(ends)]
    return intervals(over_members(drawn, rows, draws.seed), key.higher)


def own_interval(record: Record, metric: str) -> tuple[float, float] | None:
    """The interval that a metric was measured with."""
    entries = [
        entry for entry in record.get("evals") or [] if entry.get("metric") == metric and entry.get("ci95")
    ]
    return (entries[-1]["ci95"][0], entries[-1]["ci95"][1]) if entries else None
