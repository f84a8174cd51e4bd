"""The forms of metric names. Each kind of result has a class that lists its forms (`Spec.names`). This module
finds these classes in rbtools and in other installed packages (group rbtools.specs)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from rbtools.errors import RbError
from rbtools.registry import Registry

if TYPE_CHECKING:
    from rbtools.records.metric_name import MetricName

SPECS = Registry("kind of result", {}, group="specs", closed=True)
# A number as `%g` writes it: without zeros at the end, so that 1.0.5 is 1 and 0.5, and not 1.0 and 5.
NUMBER = r"(?:0|[1-9]\d*)(?:\.\d*[1-9])?(?:e[-+]?\d+)?"
RATE = r"0(?:\.\d+)?|\d(?:\.\d+)?e-\d+|1"


@dataclass(frozen=True, eq=False)
class NameForm:
    """One form of metric names, and what such a name says about the result.

    `pattern` is a regular expression whose groups are fields of `MetricName`. `share` says what the value is
    a share of. `axes` maps the quantities that can vary to the labels of their axes; the quantity whose value
    is `number` comes first. `title` is the heading without the quantities.
    """

    pattern: str
    share: Literal["", "images", "copies"] = ""
    axes: Mapping[str, str] = field(default_factory=dict)
    title: Callable[[MetricName], str] | None = None

    def parsed(self, name: str) -> MetricName | None:
        """Return the parts of a name, or None if the name belongs to no result of this kind."""
        from rbtools.records.metric_name import MetricName

        match = _compiled(self.pattern).fullmatch(name)
        if match is None:
            return None
        parts = {key: text or "" for key, text in match.groupdict().items()}
        return MetricName(prefixes=tuple(parts.pop("prefixes").split(".")[:-1]), form=self, **parts)

    def attacked(self, parts: MetricName) -> bool:
        """Whether the name ends with a strength of an attack or with the radius of a certificate."""
        return False

    def is_share(self, parts: MetricName) -> bool:
        """Whether the value is a share, and not another quantity that a suffix names (`loss`)."""
        return not parts.suffix and bool(self.share) and (bool(parts.number) or not self.axes_of(parts))

    def settings(self, parts: MetricName) -> dict[str, Any]:
        """The settings that the name contains, as fields of an entry."""
        return {}

    def axes_of(self, parts: MetricName) -> Mapping[str, str]:
        return self.axes

    def quantities(self, parts: MetricName) -> Mapping[str, str]:
        """Return the quantities of the name with their values, as written in headings (`γ = 0.08`)."""
        return {over: f"{over} {parts.number}" for over in self.axes if parts.number}

    def heading(self, parts: MetricName, without: str | None = None) -> str:
        """Return the name in words, such as `PGD-20, ε = 8/255`, without the quantity `without`."""
        title = parts.build() if self.title is None else self.title(parts)
        kept = [text for name, text in self.quantities(parts).items() if name != without]
        return ", ".join(filter(None, [title, *kept]))


UNKNOWN = NameForm("")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, after any words (`train.`, `ge.`)."""
    return re.compile(r"(?P<prefixes>(?:[a-z_]+\d*\.)*)" + pattern)


@cache
def forms() -> tuple[NameForm, ...]:
    """The forms of all kinds of results."""
    found: list[NameForm] = []
    for name in (*SPECS, *SPECS.plugins):
        with contextlib.suppress(*((RbError,) if name in SPECS.plugins else ())):  # it fails where it is used
            found += SPECS.load(name).names
    return tuple(found)
