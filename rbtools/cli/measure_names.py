"""The measure that the name of a metric asks for: `ntk.robust.fro.pgd.8` is ntk, robust, by PGD at 8/255."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rbtools import parse_units, registry
from rbtools.cli import shared
from rbtools.errors import UsageError, unknown
from rbtools.measures import MEASURES
from rbtools.records import metric_name

if TYPE_CHECKING:
    from rbtools.evaluation.measurement import MeasureRequest

ATTACK, EPS, STEPS = "pgd", "8", 10


def request_of(metric: str, warn: Callable[[str], object]) -> MeasureRequest:
    """What rb-measure would be asked to give this metric, with its defaults where the name is silent.

    Raises UsageError for a name that begins with no measure.
    """
    from rbtools.evaluation.measurement import BY_GRADIENT, MeasureRequest, perturbing

    parts = metric_name.parse(metric)
    name, *words = parts.words
    if name not in MEASURES:
        raise unknown("measure", name, MEASURES, UsageError)
    attack, eps = ATTACK, EPS
    for place, word in enumerate(words):
        if word in BY_GRADIENT:
            after = [*words[place + 1 :], parts.number, parts.suffix]
            attack, eps = word, ".".join(filter(None, after)) or EPS
    params: dict[str, Any] = {}
    for field in registry.options(MEASURES.load(name)):
        named = [word for word in words if word in (field.metadata.get("choices") or ())]
        params |= {field.name: named[0]} if named else {}
    distances = parse_units.distances(eps, "linf", warn)
    return MeasureRequest(
        measures=(shared.build(MEASURES, name, params),),
        attacks=perturbing([attack], distances, STEPS, None),
        eps=distances,
    )
