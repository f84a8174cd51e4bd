"""Tests whether chance and rounding explain the difference between a claimed and a new measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rbtools.records import consistency, metric_name, results
from rbtools.records.consistency import MeasuredEntry

Entry = Mapping[str, Any]

LEVEL = 1e-3
"""If the p-value is smaller, the values differ."""
_NORMAL_AT_LEVEL = 3.29  # standard errors from the mean, two-sided
MATCH, DIFFERS, UNKNOWN = "match", "differs", "cannot be told"
# Shares of images whose outcome may differ between two processors, with and without a search. The iterates of
# a search differ in bfloat16 and between devices; without a search, only near-ties in float32 differ.
_SEARCHED, _JUDGED = 0.01, 0.002
_RELATIVE = 0.01  # relative error of numbers that are not shares
# Factor for results with the same arithmetic, where threads and batch sizes still change rounding.
_ALIKE = 0.1
_ALIKE_RELATIVE = 1e-4


def judged(claim: Entry, measured: Entry, images: int | None = None) -> dict[str, Any]:
    """Returns the verdict on a claimed entry. If a random part of the claim's images was measured, `images`
    is the number of images of the claim; otherwise, `images` is None.

    An accuracy on all images must be equal, except for a small share of images whose outcome rounding may
    change. This share is ten times smaller if device, precision and environment are the same as in the claim.
    On a random part, the number of correct images follows the hypergeometric distribution if the claim is
    true. Other values are tested with their standard errors.
    """
    base = {"claimed": claim.get("value"), "measured": measured.get("value"), "n": measured.get("n")}
    if claim.get("value") is None or measured.get("value") is None:
        if claim.get("value") == measured.get("value"):
            return {"verdict": MATCH, **base}
        return {"verdict": DIFFERS, **base, "reason": "only one of the claim and the measurement has a value"}
    base["difference"] = measured["value"] - claim["value"]
    if images is None and (short := _too_few(claim, measured)):
        return {"verdict": DIFFERS, **base, "reason": short}
    if _has_tests(claim) and _has_tests(measured):
        return _checklist(claim, measured, base)
    if "two_phase" in claim or "two_phase" in measured:
        return _sampled(claim, measured, base)
    if MeasuredEntry.of(claim).counts_images and type(measured.get("n")) is int:
        return _counts(claim, measured, base)
    return _numbers(claim, measured, base, images)


def published(claim: Entry, measured: Entry, images: int | None = None) -> dict[str, Any]:
    """The verdict on a published number, whose images and some settings are unknown. The measurement must
    agree within the number's rounding and the sampling error of both values. `images` is as in `judged`."""
    base = {"claimed": claim["value"], "measured": measured.get("value"), "n": measured.get("n")}
    if measured.get("value") is None:
        return {"verdict": UNKNOWN, **base, "reason": "the measurement has no value"}
    base["difference"] = measured["value"] - claim["value"]
    rounding = claim["rounding"] / 2 if isinstance(claim.get("rounding"), float) else 0.0
    allowed = _explained({**measured, "value": claim["value"]}) + rounding
    size = claim["n"] if type(claim.get("n")) is int else images or measured.get("n")
    share = MeasuredEntry.of(measured).share
    sides = ((claim["value"], {**claim, "n": size}), (measured["value"], measured))
    errors = [consistency.standard_error(*side) for side in sides] if share else [None]
    standard_errors = [error for error in errors if error is not None]
    if len(standard_errors) == 2:
        p = _p_value(base, allowed, *standard_errors)
        words = f"z-test, standard errors {standard_errors[0]:.3g} and {standard_errors[1]:.3g}"
    elif images is not None:
        return {"verdict": UNKNOWN, **base, "reason": _PART}
    else:
        p, words = float(abs(base["difference"]) - allowed <= 1e-9), "on the same images"
    words += f"; the rounding of the claim explains {rounding:.3g}, rounding errors {allowed - rounding:.3g}"
    return _tested(base, words, p)


def assumed(claim: Entry, measured: Entry, images: int | None = None) -> list[str]:
    """The settings of a measurement that the published claim does not name, such as `steps 20`."""
    parts = metric_name.parse(str(claim["metric"]))
    said = {"steps"} if parts.stem[-1:].isdigit() else set()
    words = [] if "n" in claim else [f"n {images or measured.get('n')}"]
    for key, value in results.protocol(measured).items():
        if key not in claim and key not in _IN_NAMES | said and value not in (None, ""):
            words.append(f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}")
    return words


# Settings that the metric's name contains, and settings that change results only by chance.
_IN_NAMES = {"metric", "n", "attack", "eps", "norm", "split", "noise", "gamma", "rho", "denominator"}
_IN_NAMES |= {"corruption", "severity", "seed", "draws", "precision", "indices", "measure", "certificate"}
_IN_NAMES |= {"definition"}


def is_duration(metric: str) -> bool:
    """Whether the metric is a measured time, which differs between runs."""
    return metric == "seconds_per_epoch"


def unknown_by_reason(verdicts: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Map each reason why results cannot be tested to the metrics of these results."""
    reasons: dict[str, list[str]] = {}
    for metric, verdict in verdicts.items():
        if verdict["verdict"] == UNKNOWN:
            reasons.setdefault(str(verdict.get("reason")), []).append(metric)
    return reasons


def different(claim: Entry, measured: Entry) -> str:
    """The fields of the protocol in which two entries differ, except the chosen images; "" if none differ."""
    apart = ("n", "indices", "train_indices")
    ours, theirs = ({k: v for k, v in one.items() if k not in apart} for one in (claim, measured))
    return results.difference(ours, theirs)


def _too_few(claim: Entry, measured: Entry) -> str | None:
    """Whether rounding cannot explain the difference between the numbers of images; returns the reason."""
    for said, found in zip(results.counts(claim), results.counts(measured), strict=False):
        if abs(said - found) > _allowed(_JUDGED, said):
            return f"n is {said} in the claim, but {found} in the measurement"
    return None


def _rate(claim: Entry) -> float:
    return _SEARCHED if "attack" in claim or "noise" in claim else _JUDGED


def _same_arithmetic(claim: Entry, measured: Entry) -> bool:
    facts = ("environment", "device", "precision", "prepared")
    return "environment" in claim and all(claim.get(fact) == measured.get(fact) for fact in facts)


def _allowed(rate: float, n: int) -> int:
    """The number of images whose outcome may differ; 0 for fewer than ten images."""
    return math.ceil(rate * n) if n >= 10 else 0


def _counts(claim: Entry, measured: Entry, base: dict[str, Any]) -> dict[str, Any]:
    size, part = claim["n"], measured["n"]
    right, seen = round(claim["value"] * size), round(measured["value"] * part)
    allowed = _allowed(_rate(claim), part)
    if part >= size:
        off = abs(seen - round(claim["value"] * part))
        words = f"{off} of {part} images differ, and rounding errors explain {allowed}"
        if _same_arithmetic(claim, measured):
            allowed = _allowed(_ALIKE * _rate(claim), part) if part >= 100 else 0
            words = f"{off} of {part} images differ; {allowed} may if device and environment are the same"
        return _tested(base, words, float(off <= allowed))
    p = hypergeometric(seen, part, right, size, allowed)
    error = math.sqrt(right / size * (1 - right / size) / part * (size - part) / max(size - 1, 1))
    hidden = _NORMAL_AT_LEVEL * error + allowed / part
    words = f"hypergeometric, {part} of {size} images, {allowed} explained by rounding errors; does not show"
    return _tested(base, f"{words} differences below about {hidden:.2g}", p)


def hypergeometric(seen: int, part: int, right: int, size: int, allowed: int = 0) -> float:
    """The p-value of `seen` correct images in a random `part` of `size` images, of which `right` are correct.
    It is the probability of a count at least as far from the expectation as `seen`, after `seen` is moved
    towards the expectation by up to `allowed` images."""
    expected = part * right / size
    off = max(abs(seen - expected) - allowed, 0.0)
    every = _log_choose(size, part)
    total = math.fsum(
        math.exp(_log_choose(right, count) + _log_choose(size - right, part - count) - every)
        for count in range(max(0, part - (size - right)), min(part, right) + 1)
        if abs(count - expected) >= off - 1e-9
    )
    return min(1.0, total)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _has_tests(entry: Entry) -> bool:
    tests = entry.get("tests")
    kinds: dict[str, Any] = {"test": str, "holds": bool, "by": (int, float)}
    return isinstance(tests, list) and all(
        isinstance(test, Mapping) and all(isinstance(test.get(key), kind) for key, kind in kinds.items())
        for test in tests
    )


def _checklist(claim: Entry, measured: Entry, base: dict[str, Any]) -> dict[str, Any]:
    """Each test of rb-attack check must hold or fail as in the claim, unless its margin is so small that
    rounding may change the outcome."""
    allowed = _SEARCHED * (_ALIKE if _same_arithmetic(claim, measured) else 1)
    before, now = ({t["test"]: (t["holds"], t["by"]) for t in one["tests"]} for one in (claim, measured))
    turned = [
        name
        for name in {**before, **now}
        if name not in before
        or name not in now
        or (before[name][0] != now[name][0] and max(abs(before[name][1]), abs(now[name][1])) > allowed)
    ]
    counted = claim["value"] == sum(not holds for holds, _ in before.values())
    words = f"test {', '.join(turned)} turned" if turned else "each test holds or fails as before"
    words = words if counted else "the claimed value is not the number of tests that fail in the claim"
    return _tested(base, words, float(counted and not turned))


def _sampled(claim: Entry, measured: Entry, base: dict[str, Any]) -> dict[str, Any]:
    """Estimates of rb-attack --two-phase from the same sample must be equal up to rounding. Estimates from
    different samples are tested with their standard errors."""
    (survivors, sampled), again = map(_sample, (claim, measured))
    if (survivors, sampled) == again and sampled:
        weight = survivors / sampled  # number of images that one image of the sample represents
        allowed = weight * _allowed(_rate(claim), claim["n"]) / claim["n"]
        words = f"on the same sample; rounding errors explain {allowed:.3g}"
        return _tested(base, words, float(abs(base["difference"]) <= allowed + 1e-9))
    errors = [_sampling_error(entry) for entry in (claim, measured)]
    rate = _rate(claim)
    words = f"z-test, standard errors {errors[0]:.3g} and {errors[1]:.3g} of the samples, {rate:.3g}"
    return _tested(base, f"{words} explained by rounding errors", _p_value(base, rate, *errors))


def _sample(entry: Entry) -> tuple[int, int]:
    """The numbers of images that the first phase did not break and that the second phase attacked."""
    survivors, sampled = (results.at(entry, ("two_phase", name)) for name in ("survivors", "sampled"))
    return survivors if type(survivors) is int else 0, sampled if type(sampled) is int else 0


def _sampling_error(entry: Entry) -> float:
    low, high = results.interval(entry.get("two_phase"), "interval") or (0.0, 0.0)
    return (high - low) / 2 / 1.96


_PART = "a value without an interval cannot be tested on a random part of the images; leave out --n"


def _explained(claim: Entry, alike: bool = False) -> float:
    """The largest change of a value that rounding can explain. If `alike` is true, the arithmetic is the
    same; for a share of 100 images or more, at least one image may then change."""
    name, n = str(claim["metric"]), claim.get("n")
    share, is_ge = MeasuredEntry.of(claim).share, metric_name.parse(name).is_ge
    explained = _RELATIVE * abs(float(claim["value"]))
    if share or is_ge:
        explained = _rate(claim) * (2 if is_ge else 1)
    if not alike:
        return explained
    if not share:
        return _ALIKE_RELATIVE * abs(float(claim["value"]))
    return max(_ALIKE * explained, 1 / n) if type(n) is int and n >= 100 else 0.0


def _numbers(claim: Entry, measured: Entry, base: dict[str, Any], images: int | None) -> dict[str, Any]:
    """Values on all images must be equal up to rounding; others are tested with standard errors."""
    allowed = _explained(claim, alike=images is None and _same_arithmetic(claim, measured))
    if images is None:
        words = f"on the same images; rounding errors explain {allowed:.3g}"
        return _tested(base, words, float(abs(base["difference"]) <= allowed + 1e-9))
    error = consistency.standard_error(measured["value"], measured)
    if error is None:
        return {"verdict": UNKNOWN, **base, "reason": _PART}
    words = f"z-test, standard error {error:.3g}, {allowed:.3g} explained by rounding errors"
    return _tested(base, words, _p_value(base, allowed, error))


def _p_value(base: Mapping[str, Any], allowed: float, *errors: float) -> float:
    off = max(abs(base["difference"]) - allowed, 0.0)
    return math.erfc(off / max(math.hypot(*errors), 1e-12) / math.sqrt(2))


def _tested(base: Mapping[str, Any], words: str, p: float) -> dict[str, Any]:
    return {"verdict": MATCH if p >= LEVEL else DIFFERS, **base, "test": words, "p": p}
