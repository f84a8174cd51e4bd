"""Names of metrics in words, for tables, pages and figures: `PGD-20, ε = 8/255` for `pgd20.8`."""

from __future__ import annotations

import re

from rbtools.records import expr, metric_name

AXES = {"rho": "tolerated failure rate ρ", "epoch": "epoch"}  # labels of axes


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
    return "seconds per epoch" if name == "seconds_per_epoch" else parts.form.heading(parts)
