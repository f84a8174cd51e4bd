"""Whether the numbers of a record agree with each other. No network and no data are needed.

Every rule holds for whatever rbtools measures; what only happens by chance is judged by a test at the level
LEVEL, so that an honest record is not accused. Published numbers are judged up to their rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rbtools.records import checksums, metric_name, results, schema

Record = Mapping[str, Any]
Entry = Mapping[str, Any]

LEVEL = 1e-4  # p-value below which a difference is no chance
_EXACT = 1e-6  # relative error of numbers that are equal but for rounding
_COUNT = 1e-3  # of an image: error of value times n
_FLIPPED = 0.002  # share of verdicts that may differ between two processors


class Finding(NamedTuple):
    """One inconsistency: the metric, the rule that it breaks, and a sentence."""

    metric: str
    rule: str
    says: str


class _Kind(NamedTuple):
    """What a metric's name and the fields of its entry say, whatever the values of the fields.

    plain: a result itself, no difference, loss or measure of one. share: from 0 to 1. counted: a count of
    images divided by n, if n is one. published: not measured by rbtools. distance: of an attack or a
    certificate, whose names end with a distance. intervals: the fields that are intervals of the value.
    """

    parts: metric_name.MetricName
    plain: bool
    share: bool
    counted: bool
    published: bool
    distance: bool
    intervals: tuple[str, ...]


class _Measured(NamedTuple):
    """An entry that has a value."""

    name: str
    value: float
    entry: Entry
    kind: _Kind


def findings(record: Record) -> list[Finding]:
    """All inconsistencies of a record, in the order of the rules."""
    measured = _measured(record)
    return [finding for rule in RULES for finding in rule(record, measured)]


def _measured(record: Record) -> list[_Measured]:
    """The entries that have a value."""
    return [
        _Measured(entry["metric"], entry["value"], entry, _kind(entry["metric"], entry))
        for entry in _entries(record)
        if entry.get("value") is not None
    ]


def summary(record: Record) -> dict[str, Any]:
    """The findings as a record's `verify` has them, and the metrics without a checksum if there are any."""
    unknown = without_checksum(record)
    fields = {"inconsistent": [finding._asdict() for finding in findings(record)]}
    return {**fields, **({"without_checksum": unknown} if unknown else {})}


def contradicts_name(name: str, entry: Entry) -> str | None:
    """Why an attack's entry is not what its metric's name says (distance, steps); None if it is."""
    alone = {"metrics": {name: entry.get("value")}, "evals": [{"attack": None, **entry, "metric": name}]}
    return next((finding.says for finding in _units(alone, _measured(alone))), None)


def without_checksum(record: Record) -> list[str]:
    """The metrics of entries that have no checksum: an rbtools before it had them, another program, or a hand
    wrote them, which cannot be told apart."""
    sums = checksums.known(record)
    return [entry["metric"] for entry in _entries(record) if entry["metric"] not in sums]


def first_contradiction(record: Record) -> str | None:
    """The first inconsistency that a glance at each entry shows, for tools that read many records."""
    metrics = record.get("metrics") or {}
    certified = False
    for entry in record.get("evals") or ():
        certified |= "certificate" in entry
        value = entry.get("value")
        if value is None:
            continue
        here = metrics.get(entry["metric"])
        if here is None:
            return f"{entry['metric']} has an entry in evals, but is not in metrics"
        if here != value and not _equal(here, value):
            return f"{entry['metric']} is {here:.6g} in metrics, but {value:.6g} in its entry"
        ends = entry.get("ci95")
        if ends is None or ends[0] <= value <= ends[1] or "estimator" in entry:
            continue
        if not ends[0] - _EXACT <= value <= ends[1] + _EXACT:
            return f"{entry['metric']} is {value:.6g}, outside its own interval {_pair(ends)}"
    broken = next(_certificates(record, _measured(record)), None) if certified else None
    return None if broken is None else broken.says.removesuffix(".")


def _entries(record: Record) -> Sequence[Entry]:
    entries: Sequence[Entry] = record.get("evals") or ()
    return entries


def _kind(name: str, entry: Entry) -> _Kind:
    return _cached_kind(name, tuple(entry), entry.get("tool") == "rb-convert")


@lru_cache(maxsize=8192)
def _cached_kind(name: str, fields: tuple[str, ...], converted: bool) -> _Kind:
    parts = metric_name.parse(name)
    plain = "measure" not in fields and {*parts.prefixes} <= {*metric_name.SPLITS, "transfer"}
    published = converted or "published" in fields or "rounding" in fields
    distance = "attack" in fields or "certificate" in fields
    share = plain and (
        parts.stem in ("acc", "pr", "pr-all", "probacc", "probacc-all")
        or (parts.over in ("eps", "severity") and (distance or "corruption" in fields) and not parts.suffix)
    )
    own = plain and not (published or parts.suffix or "two_phase" in fields or "records" in fields)
    if "corruption" in fields:
        own = own and "severity" in fields
    else:
        own = own and (parts.stem == "acc" or (distance and parts.over == "eps"))
    intervals = tuple(field for field in fields if schema.is_interval(field))
    return _Kind(parts, plain, share, own, published, distance, intervals)


def _pair(ends: Sequence[float]) -> str:
    return f"[{ends[0]:.6g}, {ends[1]:.6g}]"


def _equal(one: float, other: float, error: float = 0.0) -> bool:
    return math.isclose(one, other, rel_tol=_EXACT, abs_tol=max(error, 1e-9))


def _edited(record: Record, measured: Sequence[_Measured]) -> Iterator[Finding]:
    """Metrics that differ from their entries, and entries that differ from their checksums."""
    metrics, sums = record.get("metrics") or {}, checksums.known(record)
    for name, value, _, _ in measured:
        here = metrics.get(name)
        if here is not None and here != value and not _equal(here, value):
            yield Finding(name, "edited", f"{name} is {here:.6g} in metrics, but {value:.6g} in its entry.")
    names = set()
    for entry in _entries(record):
        name = entry["metric"]
        names.add(name)
        if name in sums and not checksums.fits(sums[name], entry):
            says = f"the entry of {name} was changed after it was written: its checksum is of another."
            yield Finding(name, "edited", says)
    for name in sums:
        if name not in names:
            yield Finding(name, "edited", f"the entry of {name} was removed: its checksum is still there.")


def _present(record: Record, measured: Sequence[_Measured]) -> Iterator[Finding]:
    """Metrics without entries and entries without metrics."""
    metrics = record.get("metrics") or {}
    names = {entry["metric"] for entry in _entries(record)}
    for name in metrics:
        if name not in names:
            says = f"{name} has no entry in evals: nothing says how it was measured."
            yield Finding(name, "no entry", says)
    for name, _, _, _ in measured:
        if metrics.get(name) is None:
            yield Finding(name, "no metric", f"{name} has an entry in evals, but is not in metrics.")


def _interval(record: Record, measured: Sequence[_Measured]) -> Iterator[Finding]:
    """Values outside their intervals, and intervals that are not those of value and n: of rbtools up to
    rounding, of other programs, which may have another kind, up to half their width."""
    for name, value, entry, kind in measured:
        for field in kind.intervals:
            ends = entry[field]
            if not _is_pair(ends):
                continue
            if "estimator" not in entry and not ends[0] - _EXACT <= value <= ends[1] + _EXACT:
                says = f"{name} is {value:.6g}, outside its own interval {_pair(ends)}."
                yield Finding(name, "interval", says)
            elif field == "ci95" and is_count(name, entry) and 0 <= value <= 1:
                plain = wilson(value, entry["n"])
                # Earlier versions gave Wilson's interval without the correction.
                wanted = corrected(value, entry["n"])
                allowed = 1e-6 if str(entry.get("tool")).startswith("rb-") else (plain[1] - plain[0]) / 2
                if not (_near(ends, wanted, allowed) or _near(ends, plain, allowed)):
                    says = (
                        f"{name} has the interval {_pair(ends)}, but that of {value:.6g} with n"
                        f" {entry['n']} is {_pair(wanted)}."
                    )
                    yield Finding(name, "interval", says)


def _is_pair(ends: object) -> bool:
    return isinstance(ends, list) and len(ends) == 2 and all(map(_is_number, ends))


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval of 95 % for a share of n (JASA 22, 1927)."""
    z2 = 1.959963984540054**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def corrected(share: float, n: int) -> tuple[float, float]:
    """The same with the continuity correction (Newcombe 1998, method 4), which the entries have."""
    z2 = 1.959963984540054**2

    def end(share: float) -> float:
        root = math.sqrt(z2 - 2 - 1 / n + 4 * share * (n * (1 - share) + 1))
        return (2 * n * share + z2 - 1 - math.sqrt(z2) * root) / (2 * (n + z2))

    low = 0.0 if share <= 0 else max(0.0, end(share))
    return low, 1.0 if share >= 1 else min(1.0, 1 - end(1 - share))


def _near(ends: Sequence[float], wanted: Sequence[float], allowed: float) -> bool:
    return all(abs(end - want) <= allowed for end, want in zip(ends, wanted, strict=True))


def is_count(name: str, entry: Entry) -> bool:
    """Whether the value is a count of correctly classified images divided by n, as rbtools measures it."""
    return _is_number_of_images(entry.get("n")) and _kind(name, entry).counted


def _is_number_of_images(n: object) -> bool:
    return type(n) is int and n >= 1


def is_published(entry: Entry) -> bool:
    """Whether it is a number that others published, as rb-convert read it."""
    return entry.get("tool") == "rb-convert" or "published" in entry or "rounding" in entry


def is_share(name: str, entry: Entry) -> bool:
    """Whether the value is an accuracy or another share of images or copies, from 0 to 1."""
    return _kind(name, entry).share


def _whole(record: Record, measured: Sequence[_Measured]) -> Iterator[Finding]:
    """Shares outside [0, 1], numbers of images that are none, and counts that are not whole."""
    for name, value, entry, kind in measured:
        n = entry.get("n", 1)
        if not (all(map(_is_number_of_images, n)) if isinstance(n, list) else _is_number_of_images(n)):
            yield Finding(name, "n", f"{name} has n {entry['n']}. A number of images is 1 or more.")
        elif kind.share and not 0 <= value <= 1:
            hint = f" {value:.6g} % would be {value / 100:.6g}." if 1 < value <= 100 else ""
            yield Finding(name, "share", f"{name} is {value:.6g}, which is no share from 0 to 1.{hint}")
        elif kind.counted and type(n) is int and "n" in entry:
            right = value * n
            if abs(right - round(right)) > _COUNT:
                says = f"{name} is {value:.8g} of n {n}: {right:.8g} images, which is no whole number."
                yield Finding(name, "count", says)


def _units(record: Record, measured: Sequence[_Measured]) -> Iterator[Finding]:
    """Distances and steps that differ from the metric's name, and distances in the wrong unit."""
    for name, _, entry, kind in measured:
        eps, norm = entry.get("eps"), entry.get("norm", "linf")
        if not isinstance(eps, float | int) or isinstance(eps, bool):
            continue
        if norm == "linf" and not 0 <= eps <= 1:
            says = f"{name} has eps {eps:g}, but distances in evals are on the [0, 1] scale of pixels."
            yield Finding(name, "unit", says)
            continue
        parts = kind.parts
        if parts.over != "eps" or not kind.distance or kind.published or not kind.plain:
            continue
        always_l2 = parts.stem == "cert.smooth" or parts.stem.endswith("-l2")
        said = parts.norm or ("l2" if always_l2 else "linf")
        if norm != said:
            yield Finding(name, "unit", f"{name} is of {said} by its name, and of {norm} by its entry.")
            continue
        typed = float(parts.number)
        if not math.isclose(typed, eps * 255 if norm == "linf" else eps, rel_tol=1e-3, abs_tol=1e-6):
            says = f"{name} names the distance {typed:g}, but its entry has eps {eps:g} ({norm})."
            yield Finding(name, "unit", says)
        steps = entry.get("steps")
        stem = parts.stem.split(".")[-1]
        attack = entry.get("attack")
        if attack in ("pgd", "cw") and type(steps) is int and stem != f"{attack}{steps}":
            yield Finding(name, "unit", f"{name} is of {attack} with {steps} steps by its entry.")


def _parts(record: Record, measured: Sequence[_Measured]) -> Iterator[Finding]:
    """Differences, means and sums that are not those of their parts."""
    values = {one.name: (one.value, one.entry) for one in measured}
    for name, value, entry, kind in measured:
        parts = kind.parts
        if parts.is_ge and not kind.published:
            test = parts.rest().build()
            sides = values.get(f"train.{test}"), values.get(test)
            yield from _difference(name, value, entry, sides)
        broken = entry.get("broken_by")
        if isinstance(broken, Mapping) and kind.counted and _is_number_of_images(entry.get("n")):
            total = sum(count for count in broken.values() if type(count) is int)
            if value * entry["n"] + total > entry["n"] + _COUNT:
                says = f"{name} is {value:.6g} of n {entry['n']}, but broken_by counts {total} images."
                yield Finding(name, "parts", says)
        if parts.stem == "corrupt" and parts.of and parts.suffix == "mean" and not kind.published:
            five = [values.get(f"corrupt.{parts.of}.{severity}") for severity in range(1, 6)]
            known = [part for part in five if part is not None]
            same = [part[1].get("n") for part in known] == [entry.get("n")] * 5
            if same and not _equal(value, sum(part[0] for part in known) / 5, 1e-6):
                yield Finding(name, "parts", f"{name} is {value:.6g}, not the mean of its five severities.")


def _difference(
    name: str, value: float, entry: Entry, sides: Sequence[tuple[float, Entry] | None]
) -> Iterator[Finding]:
    (train, test) = sides
    if train is None or test is None or entry.get("n") != [train[1].get("n"), test[1].get("n")]:
        return
    own = ("n", "split", "indices", "train_indices", "precision")
    settings = {field: value for field, value in results.protocol(entry).items() if field not in own}
    if any(side[1].get(field) != value for side in (train, test) for field, value in settings.items()):
        return  # a side was measured again since, in another way
    if not _equal(value, train[0] - test[0], 1e-6):
        yield Finding(
            name, "parts", f"{name} is {value:.6g}, but train - test is {train[0]:.6g} - {test[0]:.6g}."
        )


def _orders(record: Record, measured: Sequence[_Measured]) -> Iterator[Finding]:
    """Robust above clean, a smaller distance worse than a larger, AutoAttack above another attack."""
    attacks = [
        one
        for one in measured
        if one.kind.share and one.kind.parts.over == "eps" and "attack" in one.entry
        if "transfer" not in one.kind.parts.prefixes
    ]
    values = {one.name: (one.value, one.entry) for one in measured if one.kind.parts.stem == "acc"}
    for name, value, entry, kind in attacks:
        clean = values.get(metric_name.split_name("acc", kind.parts.split))
        if clean is not None and (p := _by_chance(clean, (value, entry), paired=True)) < LEVEL:
            says = f"{name} is {value:.6g}, but acc is only {clean[0]:.6g}{_test(p)}."
            yield Finding(name, "above clean", says)
    at = [(one, one.entry["eps"]) for one in attacks if type(one.entry.get("eps")) in (int, float)]
    for first, eps in at:
        for second, its in at:
            if second.value - first.value <= _EXACT or eps > its * (1 + _EXACT):
                continue
            alike = first.kind.parts.family == second.kind.parts.family
            closer = eps < its and alike and _has_steps(first.entry)
            weaker = _is_autoattack(second.entry) and first.entry["attack"] != "aa" and _equal(eps, its)
            if not (closer or weaker) or not _comparable(first.entry, second.entry):
                continue
            low, high = (first.value, first.entry), (second.value, second.entry)
            if (p := _by_chance(low, high, paired=False)) < LEVEL:
                says = f"{second.name} is {high[0]:.6g}, but {first.name} is {low[0]:.6g}{_test(p)}."
                yield Finding(second.name, "distances" if closer else "AutoAttack", says)


def _certificates(record: Record, measured: Sequence[_Measured]) -> Iterator[Finding]:
    """Certified above attacked: at its distance and all smaller ones no attack can break a certified image.

    On the same images one image is too much: a certificate covers the rounding of the network. A certificate
    of the smoothed classifier says nothing of the network, which the attacks are on.
    """
    if not any("certificate" in one.entry for one in measured):
        return
    bounds = [
        one
        for one in measured
        if one.kind.share and one.kind.parts.over == "eps" and type(one.entry.get("eps")) in (int, float)
    ]
    for name, value, entry, _ in bounds:
        if "certificate" not in entry or "classifier" in entry:
            continue
        for attacked, other, its, _ in bounds:
            if "attack" not in its or not _same_data(entry, its) or its["eps"] > entry["eps"] * (1 + _EXACT):
                continue
            p = _by_chance((other, its), (value, entry), paired=True, flipped=0.0)
            if p < LEVEL:
                says = f"{name} is certified to be {value:.6g}, but {attacked} is only {other:.6g}{_test(p)}."
                yield Finding(name, "certified above attacked", says)


def _same_data(entry: Entry, its: Entry) -> bool:
    """Whether two results are on the same split of the same data, in one norm."""
    same = ("split", "dataset", "norm", "indices", "class_map")
    return all(entry.get(field) == its.get(field) for field in same)


def _test(p: float) -> str:
    return "" if p == 0 else f" (p = {p:.2g})"


def _has_steps(entry: Entry) -> bool:
    """Whether more distance can only help the attack: a single step may be too long (FGSM)."""
    return entry["attack"] not in ("fgsm", "noise")


def _is_autoattack(entry: Entry) -> bool:
    """Whether it is AutoAttack, or a set of the user's that has one of its attacks by gradients."""
    attacks = entry.get("attacks")
    return entry["attack"] == "aa" and (not attacks or "apgd" in str(attacks))


def _comparable(entry: Entry, its: Entry) -> bool:
    """Whether two attacks are of the same model, on the same split of the same data, in one norm."""
    alike = all(entry.get(field) == its.get(field) for field in ("source", "attacked"))
    return alike and _same_data(entry, its)


def _by_chance(
    low: tuple[float, Entry], high: tuple[float, Entry], *, paired: bool, flipped: float = _FLIPPED
) -> float:
    """The p-value of `high` being above `low`, although it is truly no larger; 1 where it is not above.

    `paired`: on the same images it cannot be above at all, beyond the rounding of processors: 0. That turns a
    share of `flipped`, or two images; none if it is 0. Otherwise the two-sample test of proportions, which is
    conservative where the images are the same.
    """
    difference = high[0] - low[0]
    if difference <= _EXACT:
        return 1.0
    rounding = sum(entry.get("rounding", 0) for _, entry in (low, high) if _is_number(entry.get("rounding")))
    if difference <= rounding + _EXACT:
        return 1.0
    errors = [standard_error(value, entry) for value, entry in (low, high)]
    same = low[1].get("n") == high[1].get("n") and low[1].get("indices") == high[1].get("indices")
    if paired and same and "two_phase" not in high[1] and "two_phase" not in low[1]:
        slack = max(flipped, 2 / low[1].get("n", 1)) if flipped else 0.0
        return 1.0 if difference <= rounding + slack else 0.0
    known = [error for error in errors if error is not None]
    if len(known) < 2:
        return 1.0
    spread = math.hypot(*known)
    return 0.0 if spread == 0 else math.erfc((difference - rounding) / spread / math.sqrt(2)) / 2


def standard_error(value: float, entry: Entry) -> float | None:
    """The standard error of a share, by its interval or its n; None if both are missing."""
    ends, n = entry.get("ci95"), entry.get("n")
    if isinstance(ends, list) and len(ends) == 2:
        return float(ends[1] - ends[0]) / 2 / 1.96
    if type(n) is int and n > 0:
        low, high = wilson(min(max(value, 0.0), 1.0), n)
        return (high - low) / 2 / 1.96
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


RULES: tuple[Callable[[Record, Sequence[_Measured]], Iterator[Finding]], ...] = (
    _edited,
    _present,
    _interval,
    _whole,
    _units,
    _parts,
    _orders,
    _certificates,
)
