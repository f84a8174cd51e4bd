"""The terms of a composite score: presets, a file of weights, metrics on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rbtools.errors import UsageError
from rbtools.records import expr
from rbtools.registry import gathered
from rbtools.scoring import minmax


class TermSpec(NamedTuple):
    """A metric, a glob or an expression, and `:WEIGHT:DIRECTION` as it was written, or nothing."""

    item: str
    how: str

    @property
    def text(self) -> str:
        return self.item + self.how


@dataclass(frozen=True)
class ScorePreset:
    """A published composite. `on` has other names of its metrics on some data sets."""

    asked: tuple[TermSpec, ...]
    on: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def presets() -> dict[str, ScorePreset]:
    """The registered presets by name."""
    return gathered("score-presets")


def asked(text: str) -> list[TermSpec]:
    """The metrics of a list such as `acc, pgd20.8:2, mean(ge.*):lower`.

    Raises UsageError for an invalid weight or direction, and for a duplicate metric.
    """
    specs = [split(item) for item in expr.items(text)]
    minmax.check_terms([minmax.term(spec.text) for spec in specs])
    return specs


def split(text: str) -> TermSpec:
    """`acc:2:lower` as ("acc", ":2:lower")."""
    item, colon, settings = text.partition(":")
    return TermSpec(item.strip(), colon + settings)


def weighted(content: object, source: str) -> list[TermSpec]:
    """The terms of a file of weights: metric or expression -> weight, `lower`, `higher` or both (`2:lower`).

    content: as YAML or JSON reads it. Raises UsageError, naming the file, for anything else.
    """
    if not isinstance(content, Mapping) or not content:
        raise UsageError(
            f"{source} holds no weights. Expected a mapping of metrics to weights, such as 'acc: 2'."
        )
    specs = []
    for item, weight in content.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float | str) or not isinstance(item, str):
            raise UsageError(
                f"{source} gives '{item}' the weight {weight!r}. Expected a number, lower, higher, or both as"
                " in 2:lower."
            )
        if isinstance(weight, float):
            weight = repr(weight)
        spec = TermSpec(item.strip(), f":{weight}")
        try:
            minmax.term(spec.text)
        except UsageError as wrong:
            raise UsageError(f"{source}: {wrong}") from None
        specs.append(spec)
    return specs


def together(*lists: Sequence[TermSpec]) -> list[TermSpec]:
    """The terms of several lists; of equal items, the last one counts."""
    specs: dict[str, TermSpec] = {}
    for some in lists:
        for spec in some:
            specs[spec.item] = spec
    return list(specs.values())
