"""Checks, without the network and the data, whether the numbers of a record agree with each other.

All results of rbtools satisfy these rules. If chance can violate a rule, a statistical test at level LEVEL
decides, so that correct records pass. Published numbers only have to satisfy the rules up to their rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools import proportions
from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.records import answers, checksums, metric_name, results, schema
from rbtools.records.results import is_number

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


class MeasuredEntry(NamedTuple):
    """An entry with its value and the properties that follow from its name and its fields."""

    name: str
    value: float
    entry: Entry

    @classmethod
    def of(cls, entry: Entry) -> MeasuredEntry:
        return cls(str(entry.get("metric")), entry.get("value"), entry)  # type: ignore[arg-type]

    @property
    def parts(self) -> metric_name.MetricName:
        return metric_name.parse(self.name)

    @property
    def is_result(self) -> bool:
        """True if the entry is a result, and not a difference, a loss or a measure of a result."""
        return "measure" not in self.entry and _PLAIN.issuperset(self.parts.prefixes)

    @property
    def distance(self) -> bool:
        """True if the entry belongs to an attack or a certificate, whose metric names end with a distance."""
        return "attack" in self.entry or "certificate" in self.entry

    @property
    def share(self) -> bool:
        """True if the value is an accuracy or another share of images or copies, from 0 to 1."""
        parts = self.parts
        over = parts.attacked or parts.over == "severity"
        named = parts.stem in ("acc", "pr", "pr-all", "probacc", "probacc-all")
        return self.is_result and (named or (over and (self.distance or "corruption" in self.entry)))

    @property
    def counts_images(self) -> bool:
        """True if the value is a count of correctly classified images divided by n."""
        parts, entry = self.parts, self.entry
        estimated = not entry.keys().isdisjoint(("two_phase", "records", "draws_error"))
        if not self.is_result or parts.suffix or estimated or is_published(entry):
            return False
        if not _is_count(entry.get("n")):
            return False
        if "corruption" in entry:
            return "severity" in entry
        return parts.stem == "acc" or (self.distance and parts.attacked)


def findings(record: Record) -> list[Finding]:
    """All inconsistencies of a record, in the order of the rules."""
    entries = record.get("evals") or ()
    measured = [MeasuredEntry.of(entry) for entry in entries if entry.get("value") is not None]
    by_name = {result.name: result for result in measured}
    found = [*_edited(record), *_present(record, measured)]
    for rule in (_interval, _shares, _units, _parts, _unions):
        found += [(result.name, *problem) for result in measured for problem in rule(result, by_name)]
    return [Finding(*one) for one in (*found, *_orders(measured, by_name))]


def summary(record: Record) -> dict[str, Any]:
    """The inconsistencies in the form of the field `verify`, and the metrics without a checksum, if any."""
    unknown = without_checksum(record)
    fields = {"inconsistent": [finding._asdict() for finding in findings(record)]}
    return {**fields, **({"without_checksum": unknown} if unknown else {})}


def contradicts_name(name: str, entry: Entry) -> str | None:
    """Why an attack's entry contradicts the metric's name (distance, steps); None if they agree."""
    attacked = MeasuredEntry(name, math.nan, {"attack": None, **entry})
    return next((says for _, says in _units(attacked, {})), None)


def without_checksum(record: Record) -> list[str]:
    """The metrics of entries without a checksum, which another program or a person has written."""
    sums = checksums.known(record)
    return [entry["metric"] for entry in record.get("evals") or () if entry["metric"] not in sums]


def is_published(entry: Entry) -> bool:
    """True if the entry is a published number that rb-convert has read."""
    return entry.get("tool") == "rb-convert" or "published" in entry or "rounding" in entry


def _pair(ends: Sequence[float]) -> str:
    return f"[{ends[0]:.6g}, {ends[1]:.6g}]"


def _equal(value: float, other: float, error: float = 1e-9) -> bool:
    return math.isclose(value, other, rel_tol=_EXACT, abs_tol=error)


_ByName = Mapping[str, MeasuredEntry]
_Problems = Iterator[tuple[str, str]]  # the rule that an entry breaks, and a sentence
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
    for name, _, _ in measured:
        if metrics.get(name) is None:
            yield name, "no metric", f"{name} has an entry in evals, but is not in metrics."


def _interval(result: MeasuredEntry, by_name: _ByName) -> _Problems:
    """Find values outside their intervals, and intervals that do not follow from the value and n. Intervals
    of other programs may differ by half of the expected width, because they may be of another kind."""
    name, value, entry = result
    for field in filter(schema.is_interval, entry):
        ends = results.interval(entry, field)
        if ends is None:
            continue
        if "estimator" not in entry and not ends[0] - _EXACT <= value <= ends[1] + _EXACT:
            yield "interval", f"{name} is {value:.6g}, outside its own interval {_pair(ends)}."
        elif field == "ci95" and "anytime" not in entry and result.counts_images and 0 <= value <= 1:
            n = entry["n"]
            low, high = wanted = proportions.wilson(value * n, n)
            allowed = 1e-6 if str(entry.get("tool")).startswith("rb-") else (high - low) / 2
            if max(abs(ends[0] - low), abs(ends[1] - high)) > allowed:
                says = f"{name} has the interval {_pair(ends)}, but that of {value:.6g} with n {n} is"
                yield "interval", f"{says} {_pair(wanted)}."


def _is_count(n: object) -> bool:
    return type(n) is int and n >= 1


def _shares(result: MeasuredEntry, by_name: _ByName) -> _Problems:
    """Find shares outside [0, 1], invalid numbers of images, and counts that are not whole numbers."""
    name, value, entry = result
    n = entry.get("n", 1)
    if not all(map(_is_count, n if isinstance(n, list) else [n])):
        yield "n", f"{name} has n {n}. A number of images is 1 or more."
    elif result.share and not 0 <= value <= 1:
        hint = f" {value:.6g} % would be {value / 100:.6g}." if 1 < value <= 100 else ""
        yield "share", f"{name} is {value:.6g}, which is not a share from 0 to 1.{hint}"
    elif result.counts_images and abs(value * n - round(value * n)) > _COUNT:
        yield "count", f"{name} is {value:.8g} of n {n}: {value * n:.8g} images, which is not a whole number."


def _units(result: MeasuredEntry, by_name: _ByName) -> _Problems:
    """Find distances or steps that differ from the metric's name, and distances in the wrong unit."""
    name, _, entry = result
    eps, norm, parts = entry.get("eps"), entry.get("norm", "linf"), result.parts
    if is_number(eps) and norm == "linf" and not 0 <= eps <= 1:
        yield "unit", f"{name} has eps {eps:g}, but distances in evals are on the [0, 1] scale of pixels."
        return
    if not parts.attacked or not result.distance or is_published(entry) or not result.is_result:
        return
    said = parts.form.settings(parts)
    if norm != said.get("norm", norm):
        yield "unit", f"{name} is in {said['norm']} by its name, but in {norm} by its entry."
        return
    for field, named in said.items():
        there = entry.get(field)
        alike = math.isclose(named, there, rel_tol=1e-3, abs_tol=1e-6) if is_number(there) else there == named
        if alike or there is None or field == "eot" or (field == "attack" and "steps" not in said):
            continue
        if field == "eps":
            yield (
                "unit",
                f"{name} names the distance {parts.number}, but its entry has eps {there:g} ({norm}).",
            )
        elif field in ("attack", "steps"):
            yield "unit", f"{name} is {entry.get('attack')} with {entry.get('steps')} steps by its entry."
            return
        else:
            yield "unit", f"{name} names {field} {named}, but its entry has {there}."


def _parts(result: MeasuredEntry, by_name: _ByName) -> _Problems:
    """Find differences, means and sums that do not follow from their parts."""
    name, value, entry = result
    parts, n = result.parts, entry.get("n", 0)
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
            yield "parts", f"{name} is {value:.6g}, not the mean of its five severities."


def _unions(result: MeasuredEntry, by_name: _ByName) -> _Problems:
    """Find unions with a higher value than one of their parts, and damaged or contradictory answers."""
    name, value, entry = result
    try:
        given = answers.of(entry)
    except RbError as wrong:
        yield "answers", str(wrong)
        return
    parts = entry.get("union")
    if not isinstance(parts, Mapping):
        return
    least = min((one for one in parts.values() if is_number(one)), default=1.0)
    if value > least + _EXACT:
        yield "parts", f"{name} is {value:.6g}, above its least part, which is {least:.6g}."
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
    attacks = [
        result
        for result in measured
        if result.share and result.parts.attacked and "attack" in result.entry
        if metric_name.OF_OTHERS.isdisjoint(result.parts.prefixes)
    ]
    for attacked in attacks:
        clean = by_name.get(metric_name.split_name("acc", attacked.parts.split))
        if clean is None or clean.entry.get("defend") != attacked.entry.get("defend"):
            continue
        if (p := _by_chance(clean, attacked, paired=True)) < LEVEL:
            says = f"{attacked.name} is {attacked.value:.6g}, but acc is only {clean.value:.6g}{_test(p)}."
            yield attacked.name, "above clean", says
    at = [
        (result, strength) for result in attacks if is_number(strength := result.entry.get(result.parts.over))
    ]
    for low, eps in at:
        for high, farther in at:
            if high.value - low.value <= _EXACT or eps > farther * (1 + _EXACT):
                continue
            alike = low.parts.family == high.parts.family
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
    """The standard error of a share, computed from its interval or from n; None if both are missing."""
    ends, n = results.interval(entry), entry.get("n")
    if ends is None:
        if type(n) is not int or n <= 0:
            return None
        share, z2 = min(max(value, 0.0), 1.0), 1.959963984540054**2
        return math.sqrt(share * (1 - share) / n + z2 / (4 * n**2)) / (1 + z2 / n)  # Wilson's, JASA 22, 1927
    return float(ends[1] - ends[0]) / 2 / 1.96
