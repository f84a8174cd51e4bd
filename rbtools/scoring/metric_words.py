"""Names of metrics in words, for tables, pages and figures: `PGD-20, ε = 8/255` for `pgd20.8`."""

from __future__ import annotations

import re

from rbtools.records import expr, metric_name
from rbtools.records.metric_name import MetricName

AXES = {  # labels of axes
    "eps": "ε [1/255]",
    "eps1": "ε in L1, on pixels in [0, 1]",
    "eps2": "ε in L2, on pixels in [0, 1]",
    "strength": "strength of the attack",
    "severity": "severity",
    "gamma": "noise radius γ, on pixels in [0, 1]",
    "rho": "tolerated failure rate ρ",
    "epoch": "epoch",
}
BALLS = {"linf": "", "l1": " (L1)", "l2": " (L2)", "any": ""}
_PROBABILISTIC = {"pr": "PR", "pr-all": "PR (all images)", "pfail": "P(fail)"}
_PROBABILISTIC |= {"probacc": "ProbAcc", "probacc-all": "ProbAcc (all images)"}
_ATTACKS = {
    "aa": "AutoAttack",
    "autoattack": "AutoAttack",
    "adv": "adv",
    "boundary": "Boundary",
    "cw-l2": "CW",
    "noise": "noise",
    "square": "Square",
    **{
        name: name.upper()
        for name in "pgd fgsm cw mi-fgsm apgd apgd-ce apgd-dlr apgd-t fab fab-t fmn ddn kl-pgd".split()
    },
}
_FIXED = {
    "acc": "clean",
    "seconds_per_epoch": "seconds per epoch",
    "corrupt.mean": "mean over corruptions",
    "corrupt.mce": "mCE",
    "corrupt.relative_mce": "relative mCE",
}


def axis_of(parts: MetricName) -> str:  # a key of AXES
    axes = {"linf": "eps", "l1": "eps1", "l2": "eps2", "any": "strength"}
    return axes[parts.ball] if parts.over == "eps" else parts.over


def distance(parts: MetricName) -> str:
    """The distance in a metric's name, such as `ε = 8/255`; in L1 and L2, for pixels in [0, 1]."""
    if parts.ball == "any":
        return f"strength {parts.number}"
    return f"ε = {parts.number}{'/255' if parts.ball == 'linf' else ''}"


def radius(text: str) -> str:
    """The radius of noise as a fraction if possible: 0.0313725 becomes 8/255, and 0.08 is unchanged."""
    of255 = float(text) * 255
    return f"{of255:.0f}/255" if len(text) > 6 and abs(of255 - round(of255)) < 1e-3 else text


def attack(parts: MetricName) -> str:
    """The attack in a metric's name with the norm, such as `PGD-20 (L2)`; unknown attacks are unchanged."""
    name = parts.stem if parts.stem in _ATTACKS else parts.stem.rstrip("0123456789")
    steps = parts.stem[len(name) :]
    if name not in _ATTACKS:
        return parts._replace(norm="").family + BALLS[parts.ball]
    means = f" (means over {parts.eot} draws)" if parts.eot else ""
    means = " (one draw)" if parts.eot == "1" else means
    return f"{_ATTACKS[name]}{f'-{steps}' if steps else ''}{means}{BALLS[parts.ball]}"


def is_share(name: str) -> bool:
    """Whether a metric, or a mean or difference of metrics, is a share of images or of noisy copies."""
    tokens = expr.tokens(name)
    of_names = [token.text for token in tokens if token.kind == "name"]
    functions = {"mean", "min", "max", "std", "union", "union.common", "class.min"} & {*of_names}
    signs = {token.text for token in tokens if token.kind != "name"}
    names = [one for one in of_names if one not in functions]
    of_globs = [re.sub(r"\*|\?|\[[^][]*\]", "1", one) for one in names]  # pgd20.* as pgd20.1
    return bool(names) and all(map(metric_name.is_share, of_globs)) and signs <= {"(", ")", ",", "+", "-"}


def heading(name: str) -> str:
    """The heading of a metric's column, such as `PR uniform, γ = 0.08`; expressions are unchanged."""
    parts = metric_name.parse(name)
    first = parts.prefixes[0] if parts.prefixes else ""
    if first in ("ge", *metric_name.SPLITS, *metric_name.OF_OTHERS):
        return f"{'GE' if first == 'ge' else f'{first}:'} {heading(parts.rest().build())}"
    if first:
        return name
    if parts.over == "gamma":
        rate = f", ρ = {parts.rho}" if parts.rho else ""
        return f"{_PROBABILISTIC[parts.stem]} {parts.of}, γ = {radius(parts.number)}{rate}"
    if name in _FIXED:
        return _FIXED[name]
    if parts.stem == "corrupt":
        words = f"{parts.of} {parts.suffix}".replace("_", " ").replace(".", " ").strip()
        return f"{words}, severity {parts.number}" if words and parts.number else words or name
    if parts.over == "eps" and parts.stem == "cert.smooth":
        return f"certified by smoothing, σ = {parts.of}, {distance(parts)}"
    if parts.number and not _ATTACKS.keys().isdisjoint((parts.stem, parts.stem.rstrip("0123456789"))):
        suffix = f" {parts.suffix}".replace("_", " ").rstrip()
        return f"{attack(parts)}{suffix}, {distance(parts)}"
    return name
