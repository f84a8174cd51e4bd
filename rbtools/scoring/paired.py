"""Comparison of two models on the same n images (`rb-rank --paired`). The difference of the models' shares is
(gained - lost) / n, where `gained` images count only for the first model and `lost` images only for the
second model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.lazy import np, special
from rbtools.records import answers, metric_name, results, schema
from rbtools.scoring import bootstrap, comparable, same_model

_HALVINGS = 60
_TAIL = 0.025
_MOST_IMAGES = 10**7


class Comparison(NamedTuple):
    """A difference, its 95 % interval, and the p-value of the hypothesis that there is no difference."""

    difference: float
    ci95: tuple[float, float]
    p: float


def changed(first: np.ndarray, second: np.ndarray) -> tuple[int, int]:
    """How many images count only for the first and only for the second model, from bool (N,)."""
    return int((first & ~second).sum()), int((second & ~first).sum())


def interval(gained: np.ndarray, lost: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the 95 % intervals of differences; all arguments are counts (G,).

    The interval combines the mid-P intervals of the two shares (Zou, Psychol. Methods 12, 2007, for dependent
    estimates). If l and u are the ends for a and b, and r is their correlation, the lower end is a - b -
    sqrt(x^2 + y^2 - 2 r x y), with x = a - l_a and y = u_b - b. If the answers are equal for all images, the
    interval is -3 / n to 3 / n. `bench/paired_intervals.py` measures a coverage of .951 to .976 if the
    answers for five images differ on average; Tango's interval covers .931, Wald's .870, and Bonett and
    Price's .991.
    """
    first, second = gained / images, lost / images
    (low, high), (least, most) = (_mid_p(count, images) for count in (gained, lost))
    odds = first * second / np.maximum((1 - first) * (1 - second), 1e-300)
    correlation = -np.sqrt(np.minimum(odds, 1))
    below = _joined(first - low, most - second, correlation)
    above = _joined(high - first, second - least, correlation)
    return np.maximum(first - second - below, -1), np.minimum(first - second + above, 1)


def _joined(one: np.ndarray, other: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    squared = one**2 + other**2 - 2 * correlation * one * other
    length: np.ndarray = np.sqrt(np.maximum(squared, 0))
    return length


def images_needed(gained: int, lost: int, images: int, limit: float) -> int | None:
    """Estimate how many images suffice for an interval above `limit`, if the same shares of the answers
    change as on these images; None for more than 10 million, or if the difference is not above the limit.

    For many changes, the number is close to the one for Wald's interval, z^2 (a + b - (a - b)^2) / (a - b -
    limit)^2 for shares a and b (Connor, Biometrics 43, 1987, without its term for the power). Without changes
    it is near the rule of three, -3 / limit.
    """
    if (gained - lost) / images <= limit:
        return None
    few, many = images, _MOST_IMAGES
    while many / few > 1.01:
        middle = int(np.sqrt(few * many))
        changes = [round(count / images * middle) for count in (gained, lost)]
        (low,), _ = interval(*np.array([*changes, middle]).reshape(3, 1))
        few, many = (few, middle) if low > limit else (middle, many)
    return None if many == _MOST_IMAGES else _rounded_up(many)


def _rounded_up(count: int) -> int:
    """To two digits, since the shares are only known from a sample."""
    unit: int = 10 ** max(len(str(count)) - 2, 0)
    return -(-count // unit) * unit


def _mid_p(count: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of mid-P intervals of shares (Berry and Armitage, The Statistician 44, 1995)."""
    different, places = np.unique(np.stack([count, images]), axis=1, return_inverse=True)
    low, high = _different_mid_p(*different)
    return low[places.ravel()], high[places.ravel()]


def _different_mid_p(count: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    def more(share: np.ndarray) -> np.ndarray:
        """The probability of more than `count`, plus half of the probability of exactly `count`."""
        at_least = np.where(count > 0, special.bdtrc(count - 1, images, share), 1)
        above = np.where(count < images, special.bdtrc(count, images, share), 0)
        total: np.ndarray = (at_least + above) / 2
        return total

    def end(tail: float) -> np.ndarray:
        low, high = np.zeros(count.shape), np.ones(count.shape)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = np.where(more(middle) < tail, [middle, high], [low, middle])
        return high

    return np.where(count > 0, end(_TAIL), 0), np.where(count < images, end(1 - _TAIL), 1)


def mcnemar(gained: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """McNemar's exact two-sided p-values (G,) of the hypothesis that there is no difference (Psychometrika
    12, 1947). Under this hypothesis, the number of images gained follows Binomial(changed, 1/2)."""
    total = gained + lost
    below = special.bdtr(np.minimum(gained, lost), np.maximum(total, 1), 0.5)
    return np.where(total > 0, np.minimum(2 * below, 1), 1.0)


def holm(p: np.ndarray) -> np.ndarray:
    """Adjusts p-values (G,), so that with probability 95 % no difference is wrongly declared significant at
    .05 (Holm, Scand. J. Stat. 6, 1979)."""
    order = np.argsort(p, kind="stable")
    scaled = np.minimum(p[order] * np.arange(len(p), 0, -1), 1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(scaled)
    return adjusted


def of_means(difference: float, draws: np.ndarray, between: np.ndarray, freedom: np.ndarray) -> Comparison:
    """Compares two means over seeds.

    `draws` (B,) contains samples of the difference of the means, as if other test images had been used.
    `between` (2,) is the variance of each mean between its members, with `freedom` degrees of freedom. The
    p-value is from Student's distribution, with the degrees of freedom that `rank_sets` uses. The interval
    combines percentiles of the samples with Student's interval between members (Zou and Donner, Stat. Med.
    27, 2008).
    """
    seeds, images = float(between.sum()), float(draws.var(ddof=1))
    inverse = float((between / freedom).sum())
    half = special.stdtrit(seeds / inverse, 1 - _TAIL) * np.sqrt(seeds) if seeds else 0.0
    low, high = np.percentile(draws, [100 * _TAIL, 100 * (1 - _TAIL)]) - draws.mean()
    below, above = float(np.hypot(low, half)), float(np.hypot(high, half))
    ends = max(difference - below, -1.0), min(difference + above, 1.0)
    total = seeds + images
    if not total:
        return Comparison(difference, ends, float(difference == 0))
    degrees = total / (inverse + images / (len(draws) - 1))
    p = 2 * special.stdtr(degrees, -abs(difference) / np.sqrt(total))
    return Comparison(difference, ends, float(p))


Record = Mapping[str, Any]
Counted = Callable[[Record, Mapping[str, Any]], answers.Answers | None]


class _MemberAnswers(NamedTuple):
    """The answers for a metric of a record, or of all members of a mean. `right` is bool (M, N), true if an
    image counts for a member. `examples` contains the digests of the lists of images, if known."""

    members: Sequence[Record]
    right: np.ndarray
    images: dict[str, Any]
    examples: set[str]

    @property
    def value(self) -> float:
        return float(self.right.mean())


def compare(
    reference: Sequence[Record],
    others: Sequence[tuple[str, Sequence[Record]]],
    counted: Counted,
    draws: bootstrap.BootstrapDraws,
    needed: Sequence[str] = (),
    *,
    raw: bool = False,
    warn: Callable[[str], None] = lambda message: None,
) -> tuple[list[dict[str, dict[str, Any]]], int]:
    """Compare records, or means of several members, with a reference (the members of the mean, or one
    record).

    `others` contains names and members. `counted` returns which images count in the value of an entry.
    `draws` is used for means of several members. `needed` contains the metrics whose answers must be for the
    reference's images; if they are for other images, `warn` is called, and the record has no comparison.
    Returns the comparisons of each record by metric, and the number of records without answers of the needed
    metrics. A comparison contains p after Holm's correction and, with `raw`, also the uncorrected p_raw.
    Raises RbError if the reference lacks answers of the needed metrics.
    """
    measure = partial(_measured, counted=counted)
    found = {name: measure(reference, name) for name in reference[0].get("metrics") or {}}
    known = {name: one for name, one in found.items() if one is not None}
    needed = [name for name in needed if metric_name.is_share(name) or name in known]
    for name in [*needed, *([] if known else ["any metric"])]:
        if name not in known:
            raise RbError(_why_not_comparable(name, results.last_entry(reference[0], name)))
    measured: list[dict[str, _MemberAnswers]] = []
    lacking = 0
    for name, members in others:
        row = {metric: one for metric in known if (one := measure(members, metric)) is not None}
        differ = {metric: why for metric, one in row.items() if (why := _difference(one, known[metric]))}
        if wrong := next((metric for metric in differ if metric in needed), None):
            warn(f"{wrong} of {name} and of the reference are on different images: {differ[wrong]}.")
            row = {}
        row = {metric: one for metric, one in row.items() if metric not in differ}
        lacking += not wrong and not (row and all(metric in row for metric in needed))
        measured.append(row)
    rows: list[dict[str, dict[str, Any]]] = [{} for _ in measured]
    for metric, theirs in known.items():
        places = [place for place, row in enumerate(measured) if metric in row]
        ours = [measured[place][metric] for place in places]
        compared = _comparisons(metric, ours, theirs, draws)
        corrected = holm(np.array([one["p"] for one in compared])).tolist()
        for place, fields, p in zip(places, compared, corrected, strict=True):
            rows[place][metric] = {**fields, "p": p, **({"p_raw": fields["p"]} if raw else {})}
    return rows, lacking


def _measured(members: Sequence[Record], name: str, counted: Counted) -> _MemberAnswers | None:
    """The answers of all members for a metric; None if a member has no answers or other images."""
    every, about, examples = [], [], set()
    for member in members:
        entry = results.last_entry(member, name)
        known = counted(member, entry) if entry.get("value") is not None else None
        if known is None:
            return None
        every.append(known.right)
        fields = {key: entry[key] for key in schema.of_images() if key in entry}
        about.append({"dataset": member.get("dataset")} | fields)
        examples |= {known.examples} - {""}
    if len(examples) > 1 or any(one != about[0] for one in about):
        return None
    return _MemberAnswers(members, np.stack(every), about[0], examples)


def _comparisons(
    metric: str, every: Sequence[_MemberAnswers], reference: _MemberAnswers, draws: bootstrap.BootstrapDraws
) -> list[dict[str, Any]]:
    """Single records are compared on the images whose answers differ, and means are compared by samples."""

    def drawn(one: _MemberAnswers, whose: str) -> np.ndarray:
        """Samples (M, B) of the members, as if all of them had used the same other test images."""
        return np.stack([draws.number(member, metric, whose) for member in one.members])

    single = [len(ours.right) == len(reference.right) == 1 for ours in every]
    counts = [changed(ours.right[0], reference.right[0]) for ours in every]
    images = [ours.right.shape[1] for ours in every]
    gained, lost, of = np.array([*zip(*counts, strict=True), images]).reshape(3, len(every))
    low, high = interval(gained, lost, of) if any(single) else (of, of)
    p = mcnemar(gained, lost)
    theirs = None if all(single) else drawn(reference, "reference")
    found = []
    for at, ours in enumerate(every):
        if theirs is None or single[at]:
            difference, ends = (gained[at] - lost[at]) / of[at], (low[at].item(), high[at].item())
            if counts[at] == (0, 0) and _is_one_network(ours.members[0], reference.members[0], metric):
                ends = (0.0, 0.0)  # they would agree on any images
            one = Comparison(difference.item(), ends, p[at].item())
            found.append({**one._asdict(), "images": images[at], "changed": list(counts[at])})
            continue
        both = np.concatenate([drawn(ours, "members"), theirs])
        rows = [range(len(ours.right)), range(len(ours.right), len(both))]
        means, between, freedom = bootstrap.over_members(both, rows, np.zeros(len(both), bool), 0)
        one = of_means(ours.value - reference.value, means[0] - means[1], between, freedom)
        found.append({**one._asdict(), "images": images[at]})
    return found


def _is_one_network(ours: Record, theirs: Record, metric: str) -> bool:
    """Whether both records measured the same weights with the same settings. A queried model may
    change behind its address."""
    archs = [same_model.described(record).get("arch") or {} for record in (ours, theirs)]
    return (
        isinstance(ours.get("checkpoint"), str)
        and ours["checkpoint"] == theirs.get("checkpoint")
        and archs[0] == archs[1]
        and archs[0].get("space") != "answers"
        and not comparable.difference(ours, theirs, metric)
        and not comparable.mixed_versions([ours, theirs], [metric])
    )


def _why_not_comparable(name: str, entry: Mapping[str, Any]) -> str:
    try:
        answers.needed(entry, name)
    except answers.NoAnswers as why:
        return str(why)
    return (
        f"{name} has no paired comparison: each model is measured on the images that it classifies correctly"
        " without noise, or the members of the reference have different images."
    )


def _difference(ours: _MemberAnswers, reference: _MemberAnswers) -> str:
    """The difference between the images of two metrics in words; "" if the images are the same."""
    for key in sorted(ours.images.keys() | reference.images.keys()):
        one, other = ours.images.get(key), reference.images.get(key)
        in_files = all(":" in str(name) for name in (one, other))
        if key == "dataset" and in_files and len(ours.examples | reference.examples) == 1:
            continue  # the same images in another folder
        if one != other:
            return f"{key} is {one} and {other}"
    if len(ours.examples | reference.examples) > 1:
        return "their lists of examples differ"
    return ""
