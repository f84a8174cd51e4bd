"""Names in an expression: look-up in a record, globs, and the error for a missing name."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rbtools.errors import RbError, near
from rbtools.records import metric_name
from rbtools.records.expr.syntax import NAMES_RULE, items

Record = Mapping[str, Any]
ABSENT = object()


class MissingName(RbError):
    """The exception for a name that the record lacks, or for a glob that matches no metric.

    The message is created only when it is read, because a filter over many records discards most messages.
    """

    def __init__(self, name: str, record: Record) -> None:
        super().__init__(name, record)
        self.name, self.record = name, record
        self.beside_text = False  # compared with a text, so it may be meant as a text

    def __str__(self) -> str:
        metrics, fields = list(metrics_of(self.record)), list(_fields(self.record))
        if is_glob(self.name):
            message = f"No metric matches '{self.name}'."
        else:
            message = f"There is no metric or field '{self.name}'.{self.hint}"
        message += f" Metrics: {nearest(self.name, metrics)}."
        of_glob = is_glob(self.name) or not fields
        return message if of_glob else f"{message} Fields: {nearest(self.name, fields)}."

    @property
    def hint(self) -> str:
        """A suggestion of a similar name, as a sentence after a space; empty if there is none."""
        names = [*metrics_of(self.record), *_fields(self.record)]
        if self.beside_text:
            return f" Strings need quotes: '{self.name}'."
        parts = self.name.split("-")
        if any("-".join(parts[:end]) in names for end in range(1, len(parts))):
            return f" {NAMES_RULE}."
        if there := _mean_of_corruptions(self.name, metrics_of(self.record)):
            return f" It needs all severities (rb-corrupt all --severity 1-5). The record has '{there}'."
        # "none" is here the count of an operation; it does not mean clean accuracy
        return near(self.name, names, not_for=("none",))


def nearest(name: str, names: Iterable[str], most: int = 5) -> str:
    """Return the names that are nearest to `name` (at most `most`), and the number of all other names."""
    names = list(names)
    near_ones = difflib.get_close_matches(name, names, most, 0.0) if len(names) > most else names
    more = f" and {len(names) - len(near_ones)} more" if len(names) > most else ""
    return ", ".join(near_ones) + more if names else "none"


def _mean_of_corruptions(name: str, metrics: Iterable[str]) -> str | None:
    """The name or mean of the measured severities, if `name` needs all severities."""
    asked = metric_name.parse(name)
    if asked.stem != "corrupt" or asked.suffix not in ("mean", "mce", "relative_mce"):
        return None
    parts = [part for part in map(metric_name.parse, metrics) if part.over == "severity"]
    alike = [part for part in parts if part.prefixes == asked.prefixes and asked.of in ("", part.of)]
    levels = "".join(sorted({part.number for part in alike}))
    if not alike:
        return None
    number = levels if len(levels) == 1 else f"[{levels}]"
    one = asked._replace(of=asked.of or "*", number=number, suffix="").build()
    return f"mean({one})" if is_glob(one) else one


def metrics_of(record: Record) -> Record:
    metrics = record.get("metrics")
    return metrics if isinstance(metrics, Mapping) else {}


def _fields(record: Record, before: str = "") -> Iterable[str]:
    """The names that a user would write: paths, without `arch.` for fields of the architecture."""
    for key, value in record.items():
        if not before and key in ("metrics", "evals", "checksums", "examples"):
            continue
        if isinstance(value, Mapping) and value:
            yield from _fields(value, "" if key == "arch" else f"{before}{key}.")
        else:
            yield f"{before}{key}"


def lookup(record: Record, name: str) -> Any:
    """Return the metric, or the value at a dotted path in the record or in `arch`. Raises MissingName."""
    for place in (record.get("metrics"), record, record.get("arch")):
        value = _walk(place, name)
        if value is not ABSENT:
            return value
    raise MissingName(name, record)


def _walk(place: object, name: str) -> Any:
    while isinstance(place, Mapping):
        if name in place:
            return place[name]
        head, _, name = name.partition(".")
        place = place.get(head) if name else ABSENT
    return ABSENT


def is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def expand(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a glob or a plain name matches. A pattern that is itself one of the names matches
    only itself. `*` also matches dots, and `[13]` is one character."""
    names = names if isinstance(names, Collection) else list(names)
    return [pattern] if pattern in names else [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def select(metrics: Iterable[str], text: str) -> list[str]:
    """Return the metrics that a list such as `acc, fgsm.*` selects, each once, in the order of the list.
    Raises MissingName for an item that matches no metric, and RbError for an empty list."""
    metrics = list(metrics)
    listed = [text] if text in metrics else items(text)
    if not listed:
        raise RbError("The list of metrics is empty. Expected names or globs, such as acc,fgsm.*")
    chosen: dict[str, None] = {}
    for item in listed:
        names = expand(item, metrics)
        if not names:
            raise MissingName(item, {"metrics": dict.fromkeys(metrics)})
        chosen.update(dict.fromkeys(names))
    return list(chosen)
