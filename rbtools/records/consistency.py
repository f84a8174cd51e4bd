"""Checks, without the network and the data, whether the numbers of a record agree with each other.

All results of rbtools satisfy these rules. If chance can violate a rule, a statistical test at level LEVEL
decides, so that correct records pass. Published numbers only have to satisfy the rules up to their rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rbtools import proportions
from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.records import answers, checksums, metric_name, results, schema
from rbtools.records.results import is_number
from rbtools.registry import Registry

Record = Mapping[str, Any]
Entry = Mapping[str, Any]

LEVEL = 1e-4  # p-value below which a difference is significant
_EXACT = 1e-6  # relative error of numbers that are equal up to rounding
_COUNT = 1e-3  # allowed error of value times n, in images
_FLIPPED = 0.002  # share of verdicts that may differ between two processors


class Finding(NamedTuple):
    """One inconsistency: the metric, the rule that is violated, and a sentence for the user."""

    metric: str
    rule: str
    says: str


_PLAIN = {*metric_name.SPLITS, *metric_name.OF_OTHERS}  # prefixes that do not change the kind of a result


_ByName = Mapping[str, "MeasuredEntry"]
_Problems = Iterator[tuple[str, str]]  # the rule that an entry breaks, and a sentence
_Rule = Callable[["MeasuredEntry", _ByName], _Problems]


class _Kind(NamedTuple):
    """What follows from the name of a metric and the names of its entry's fields, and not from their values.

    `is_result` is false for a difference, a loss or a measure of a result. `distance` is true for an attack
    or a certificate, whose metric names end with a distance. `share` is true for an accuracy or another share
    of images or copies, from 0 to 1, and `counts_images` if a value on `n` images counts those that are
    classified correctly. `attacked` is true for a robust accuracy that is compared with other accuracies.
    `rules` contains the rules that such an entry may break.
    """

    parts: metric_name.MetricName
    is_result: bool
    distance: bool
    share: bool
    counts_images: bool
    attacked: bool
    over: str
    family: str
    intervals: tuple[str, ...]
    rules: frozenset[_Rule]


@lru_cache(maxsize=4096)
def _kind(name: str, fields: tuple[str, ...], changes: int) -> _Kind:
    """The records of a file have few kinds of entries. `changes` is explained in `metric_name`."""
    parts = metric_name.parse(name)
    is_result = "measure" not in fields and _PLAIN.issuperset(parts.prefixes)
    distance, corrupted = "attack" in fields or "certificate" in fields, "corruption" in fields
    over = parts.attacked or parts.over == "severity"
    share = parts.stem in ("acc", "pr", "pr-all", "probacc", "probacc-all")
    share = is_result and (share or (over and (distance or corrupted)))
    counts = "severity" in fields if corrupted else parts.stem == "acc" or (distance and parts.attacked)
    estimated = not {"two_phase", "records", "draws_error"}.isdisjoint(fields)
    counts = counts and is_result and not (parts.suffix or estimated)
    attacked = share and parts.attacked and "attack" in fields
    attacked = attacked and metric_name.OF_OTHERS.isdisjoint(parts.prefixes)
    intervals = tuple(filter(schema.is_interval, fields))
    broken = not {"broken_by", "broken_by_source"}.isdisjoint(fields)
    rules = {
        _interval: bool(intervals),
        _shares: True,
        _units: distance or "eps" in fields,
        _parts: parts.is_ge or parts.suffix == "mean" or broken,
        _unions: answers.FIELD in fields or "union" in fields,
    }
    possible = frozenset(rule for rule, applies in rules.items() if applies)
    names = parts.over, parts.family
    return _Kind(parts, is_result, distance, share, counts, attacked, *names, intervals, possible)


class MeasuredEntry(NamedTuple):
    """An entry with its value and the properties that follow from its name and its fields."""

    name: str
    value: float
    entry: Entry
    kind: _Kind

    @classmethod
    def of(cls, entry: Entry) -> MeasuredEntry:
        name = str(entry.get("metric"))
        kind = _kind(name, tuple(entry), Registry.changes)
        return cls(name, entry.get("value"), entry, kind)  # type: ignore[arg-type]

    @property
    def share(self) -> bool:
        return self.kind.share

    @property
    def counts_images(self) -> bool:
        """True if the value is a count of correctly classified images divided by n."""
        return self.kind.counts_images and _is_count(self.entry.get("n")) and not is_published(self.entry)


def findings(record: Record) -> list[Finding]:
    """All inconsistencies of a record, in the order of the rules."""
    entries = record.get("evals") or ()
    measured = [MeasuredEntry.of(entry) for entry in entries if entry.get("value") is not None]
    by_name = {result.name: result for result in measured}
    found = [*_edited(record), *_present(record, measured)]
    for rule in (_interval, _shares, _units, _parts, _unions):
        found += [
            (result.name, *problem)
            for result in measured
            if rule in result.kind.rules
            for problem in rule(result, by_name)
        ]
    return [Finding(*one) for one in (*found, *_orders(measured, by_name))]


def summary(record: Record) -> dict[str, Any]:
    """Return the value of the field `verify`: the inconsistencies, and metrics without a checksum, if any."""
    unknown = without_checksum(record)
    fields = {"inconsistent": [finding._asdict() for finding in findings(record)]}
    return {**fields, **({"without_checksum": unknown} if unknown else {})}


def contradicts_name(name: str, entry: Entry) -> str | None:
    """Return why an attack's entry contradicts the metric's name (distance, steps), or None."""
    attacked = MeasuredEntry.of({"attack": None, **entry, "metric": name})
    return next((says for _, says in _units(attacked, {})), None)


def without_checksum(record: Record) -> list[str]:
    """Return the metrics of entries without a checksum, which another program or a person has written."""
    sums = checksums.known(record)
    return [entry["metric"] for entry in record.get("evals") or () if entry["metric"] not in sums]


def is_published(entry: Entry) -> bool:
    """True if the entry is a published number that rb-convert has read."""
    return entry.get("tool") == "rb-convert" or "published" in entry or "rounding" in entry


def _pair(ends: Sequence[float]) -> str:
    return f"[{ends[0]:.6g}, {ends[1]:.6g}]"


def _equal(value: float, other: float, error: float = 1e-9) -> bool:
    return math.isclose(value, other, rel_tol=_EXACT, abs_tol=error)


_Findings = Iterator[tuple[str, str, str]]  # the fields of each `Finding`


def _edited(record: Record) -> _Findings:
    """Find metrics that differ from their entries, and entries that differ from their checksums."""
    for entry in results.edited(record):
        name, here = entry["metric"], record["metrics"][entry["metric"]]
        yield name, "edited", f"{name} is {here:.6g} in metrics, but {entry['value']:.6g} in its entry."
    names, sums = set(), checksums.known(record)
    for entry in record.get("evals") or ():
        name = entry["metric"]
        names.add(name)
        if name in sums and sums[name] != checksums.of(entry):
            says = f"the entry of {name} was changed after it was written: its checksum does not match."
            yield name, "edited", says
    for name in sums:
        if name not in names:
            yield name, "edited", f"the entry of {name} was removed: its checksum is still there."


def _present(record: Record, measured: Sequence[MeasuredEntry]) -> _Findings:
    """Find metrics without entries, and entries without metrics."""
    metrics, entries = record.get("metrics") or {}, results.by_metric(record)
    for name in metrics:
        if name not in entries:
            yield name, "no entry", f"{name} has no entry in evals: it is not known how it was measured."
    for name, *_ in measured:
        if metrics.get(name) is None:
            yield name, "no metric", f"{name} has an entry in evals, but is not in metrics."


def _interval(result: MeasuredEntry, by_name: _ByName) -> _Problems:
    """Find values outside their intervals, and intervals that do not follow from the value and n. Intervals
    of other programs may differ by half of the expected width, because they may be of another kind."""
    name, value, entry, kind = result
    for field in kind.intervals:
        ends = results.interval(entry, field)
        if ends is None:
            continue
        if "estimator" not in entry and not ends[0] - _EXACT <= value <= ends[1] + _EXACT:
            yield "interval", f"{name} is {value:.6g}, which is outside its interval {_pair(ends)}."
        elif field == "ci95" and "anytime" not in entry and result.counts_images and 0 <= value <= 1:
            n = entry["n"]
            low, high = wanted = _wilson(value * n, n)
            allowed = 1e-6 if str(entry.get("tool")).startswith("rb-") else (high - low) / 2
            if max(abs(ends[0] - low), abs(ends[1] - high)) > allowed:
                says = f"{name} has the interval {_pair(ends)}, but the interval for {value:.6g} and n {n} is"
                yield "interval", f"{says} {_pair(wanted)}."


_wilson = lru_cache(maxsize=4096)(proportions.wilson)  # the values on a few hundred images repeat


def _is_count(n: object) -> bool:
    return type(n) is int and n >= 1


def _shares(result: MeasuredEntry, by_name: _ByName) -> _Problems:
    """Find shares outside [0, 1], invalid numbers of images, and counts that are not whole numbers."""
    name, value, entry, kind = result
    n = entry.get("n", 1)
    if not all(map(_is_count, n if isinstance(n, list) else [n])):
        yield "n", f"{name} has n {n}. Expected a number of images of 1 or more."
    elif kind.share and not 0 <= value <= 1:
        hint = f" {value:.6g} % would be {value / 100:.6g}." if 1 < value <= 100 else ""
        yield "share", f"{name} is {value:.6g}, which is not a share from 0 to 1.{hint}"
    elif result.counts_images and abs(value * n - round(value * n)) > _COUNT:
        yield "count", f"{name} is {value:.8g} of n {n}: {value * n:.8g} images, which is not a whole number."


def _units(result: MeasuredEntry, by_name: _ByName) -> _Problems:
    """Find distances or steps that differ from the metric's name, and distances in the wrong unit."""
    name, _, entry, kind = result
    eps, norm = entry.get("eps"), entry.get("norm", "linf")
    if is_number(eps) and norm == "linf" and not 0 <= eps <= 1:
        yield "unit", f"{name} has eps {eps:g}, but distances in evals are on the [0, 1] scale of pixels."
        return
    if not (kind.distance and kind.is_result and kind.parts.attacked) or is_published(entry):
        return
    said = _settings(kind.parts)
    if norm != said.get("norm", norm):
        yield "unit", f"{name} names the norm {said['norm']}, but its entry has {norm}."
        return
    for field, named in said.items():
        there = entry.get(field)
        alike = math.isclose(named, there, rel_tol=1e-3, abs_tol=1e-6) if is_number(there) else there == named
        if alike or there is None or field == "eot" or (field == "attack" and "steps" not in said):
            continue
        if field == "eps":
            yield (
                "unit",
                f"{name} names the distance {kind.parts.number}, but its entry has eps {there:g} ({norm}).",
            )
        elif field in ("attack", "steps"):
            yield "unit", f"{name} has an entry of {entry.get('attack')} with {entry.get('steps')} steps."
            return
        else:
            yield "unit", f"{name} names {field} {named}, but its entry has {there}."


@lru_cache(maxsize=4096)
def _settings(parts: metric_name.MetricName) -> Mapping[str, Any]:
    return parts.form.settings(parts)


def _parts(result: MeasuredEntry, by_name: _ByName) -> _Problems:
    """Find differences, means and sums that do not follow from their parts."""
    name, value, entry, kind = result
    parts, n = kind.parts, entry.get("n", 0)
    if parts.is_ge and not is_published(entry):
        test = parts.rest().build()
        train, tested = by_name.get(f"train.{test}"), by_name.get(test)
        if train and tested and _is_difference_of(entry, train.entry, tested.entry):
            says = f"train - test is {train.value:.6g} - {tested.value:.6g}."
            if not _equal(value, train.value - tested.value, 1e-6):
                yield "parts", f"{name} is {value:.6g}, but {says}"
    for field in ("broken_by", "broken_by_source"):
        broken = entry.get(field)
        if isinstance(broken, Mapping) and result.counts_images:
            total = sum(count for count in broken.values() if type(count) is int)
            if value * n + total > n + _COUNT:
                yield "parts", f"{name} is {value:.6g} of n {n}, but {field} counts {total} images."
    if parts.stem == "corrupt" and parts.of and parts.suffix == "mean" and not is_published(entry):
        names = [f"corrupt.{parts.of}.{severity}" for severity in range(1, 6)]
        five = [by_name[one] for one in names if one in by_name]
        alike = [part.entry.get("n") for part in five] == [entry.get("n")] * 5
        if alike and not _equal(value, sum(part.value for part in five) / 5, 1e-6):
            yield "parts", f"{name} is {value:.6g}, which is not the mean of its five severities."


def _unions(result: MeasuredEntry, by_name: _ByName) -> _Problems:
    """Find unions with a higher value than one of their parts, and damaged or contradictory answers."""
    name, value, entry, _ = result
    try:
        answers.check(entry)
    except RbError as wrong:
        yield "answers", str(wrong)
        return
    parts = entry.get("union")
    if not isinstance(parts, Mapping):
        return
    given = answers.of(entry)
    least = min((one for one in parts.values() if is_number(one)), default=1.0)
    if value > least + _EXACT:
        yield "parts", f"{name} is {value:.6g}, which is above its smallest part, {least:.6g}."
    rows = [row for one in parts if one in by_name and (row := _answers_of(by_name[one])) is not None]
    if given is None or len(rows) != len(parts) or any(row.examples != given.examples for row in rows):
        return
    every = np.logical_and.reduce([row.right[: len(given.right)] for row in rows])
    if len(every) == len(given.right) and (every != given.right).any():
        count = int((every != given.right).sum())
        yield "parts", f"{name} differs from the answers of its parts for {count} images."


def _answers_of(result: MeasuredEntry) -> answers.Answers | None:
    try:
        return answers.of(result.entry)
    except RbError:
        return None  # this is reported with the entry itself


def _is_difference_of(entry: Entry, train: Entry, test: Entry) -> bool:
    """False if one of the results was replaced after the generalisation error was computed."""
    apart = ("n", "split", "indices", "train_indices", "precision")
    settings = {field: value for field, value in results.protocol(entry).items() if field not in apart}
    alike = all(side.get(field) == value for side in (train, test) for field, value in settings.items())
    return alike and entry.get("n") == [train.get("n"), test.get("n")]


def _orders(measured: Sequence[MeasuredEntry], by_name: _ByName) -> _Findings:
    """Find robust accuracies above the clean accuracy or above the accuracy at a smaller distance, and
    accuracies under AutoAttack above the accuracy under another attack."""
    attacks = [result for result in measured if result.kind.attacked]
    for attacked in attacks:
        clean = by_name.get(metric_name.split_name("acc", attacked.kind.parts.split))
        if clean is None or clean.entry.get("defend") != attacked.entry.get("defend"):
            continue
        if (p := _by_chance(clean, attacked, paired=True)) < LEVEL:
            says = f"{attacked.name} is {attacked.value:.6g}, but acc is only {clean.value:.6g}{_test(p)}."
            yield attacked.name, "above clean", says
    at = [
        (result, strength) for result in attacks if is_number(strength := result.entry.get(result.kind.over))
    ]
    for low, eps in at:
        for high, farther in at:
            if high.value - low.value <= _EXACT or eps > farther * (1 + _EXACT):
                continue
            alike = low.kind.family == high.kind.family
            # Not for FGSM and noise: a single step may overshoot, so a larger distance can raise accuracy.
            closer = eps < farther and alike and low.entry["attack"] not in ("fgsm", "noise")
            weaker = _is_autoattack(high.entry) and low.entry["attack"] != "aa" and _equal(eps, farther)
            if not (closer or weaker) or not _comparable(low.entry, high.entry):
                continue
            if (p := _by_chance(low, high, paired=False)) < LEVEL:
                says = f"{high.name} is {high.value:.6g}, but {low.name} is {low.value:.6g}{_test(p)}."
                yield high.name, "distances" if closer else "AutoAttack", says


def _comparable(entry: Entry, other: Entry) -> bool:
    """True if two results have the same data and norm, and no setting explains a weaker attack."""
    data = "split dataset norm indices class_map preprocessing"
    fields = f"{data} source attacked grid eot defend backward".split()
    return all(entry.get(field) == other.get(field) for field in fields)


def _test(p: float) -> str:
    return "" if p == 0 else f" (p = {p:.2g})"


def _is_autoattack(entry: Entry) -> bool:
    """True for AutoAttack, and for a user's ensemble that contains one of AutoAttack's gradient attacks."""
    attacks = entry.get("attacks")
    return entry["attack"] == "aa" and (not attacks or "apgd" in str(attacks))


def _by_chance(low: MeasuredEntry, high: MeasuredEntry, *, paired: bool) -> float:
    """The p-value of the hypothesis that `high` is truly not larger than `low`.

    If `paired` is true, both results are on the same images, and only rounding can put `high` above `low`.
    The p-value is then 0 if more than two verdicts and more than a share _FLIPPED of the verdicts changed.
    Otherwise, the test is the two-sample test of proportions, which is conservative if the images are the
    same.
    """
    below, above, difference = low.entry, high.entry, high.value - low.value
    rounding = sum(e.get("rounding", 0) for e in (below, above) if is_number(e.get("rounding")))
    if difference <= rounding + _EXACT:
        return 1.0
    same = below.get("n") == above.get("n") and below.get("indices") == above.get("indices")
    if paired and same and "two_phase" not in above and "two_phase" not in below:
        slack = max(_FLIPPED, 2 / below.get("n", 1))
        return 1.0 if difference <= rounding + slack else 0.0
    errors = [standard_error(result.value, result.entry) for result in (low, high)]
    if errors[0] is None or errors[1] is None:
        return 1.0
    spread = math.hypot(errors[0], errors[1])
    return 0.0 if spread == 0 else math.erfc((difference - rounding) / spread / math.sqrt(2)) / 2


def standard_error(value: float, entry: Entry) -> float | None:
    """Return the standard error of a share, from its interval or from n, or None if both are missing."""
    ends, n = results.interval(entry), entry.get("n")
    if ends is None:
        if type(n) is not int or n <= 0:
            return None
        share, z2 = min(max(value, 0.0), 1.0), 1.959963984540054**2
        return math.sqrt(share * (1 - share) / n + z2 / (4 * n**2)) / (1 + z2 / n)  # Wilson's, JASA 22, 1927
    return float(ends[1] - ends[0]) / 2 / 1.96
