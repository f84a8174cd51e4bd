"""Checks if two values of a metric are comparable: their images, settings and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rbtools.errors import shown
from rbtools.records import answers, consistency, expr, results, schema

Record = Mapping[str, Any]

# Fields that follow from the network, the processor or the other records, and not from the question.
NO_QUESTION = frozenset({"precision", "threads", "note", "vacuous", "inputs", "estimated", "compared"})


def difference(record: Record, reference: Record, name: str) -> str:
    """Describe the first difference between the images or the settings of a metric (or of the metrics that a
    glob matches) in two records. Returns "" if there is none, or if an entry is missing."""
    known = results.by_metric(record)
    for metric in expr.expand(name, known) if expr.is_glob(name) else [name]:
        ours, theirs = known.get(metric, {}), results.last_entry(reference, metric)
        if ours and theirs and (why := _difference((record, ours), (reference, theirs))):
            return f"{metric} was measured differently: {why}"
    return ""


def _difference(*sides: tuple[Record, Record]) -> str:
    ours, theirs = (_question(*side) for side in sides)
    one, other = (_image_list(entry) for _, entry in sides)
    if one and other:
        # The digest of the images' content decides, not the name of their folder.
        for fields in (ours, theirs):
            for key in schema.of_images() - {"split"}:
                fields.pop(key, None)
        if (counts := [part.get("images") for part in one]) != (
            others := [part.get("images") for part in other]
        ):
            return f"n is {_counted(counts)}, but {_counted(others)} in the reference"
        if [part.get("digest") for part in one] != [part.get("digest") for part in other]:
            names = dict.fromkeys(str(entry.get("dataset", record.get("dataset"))) for record, entry in sides)
            return f"the images differ from those of the reference ({shown(' and '.join(names), 200)})"
    published = any(consistency.is_published(entry) for _, entry in sides)
    for key in {**ours, **theirs}:
        if published and not (key in ours and key in theirs):
            continue  # a publication names only some of its settings
        if ours.get(key) != theirs.get(key):
            return f"{key} is {_said(ours.get(key))}, but {_said(theirs.get(key))} in the reference"
    return ""


def _image_list(entry: Record) -> list[Record]:
    """The images of an entry, or of both sides of a difference; empty if they are not known."""
    found = entry.get("image_list")
    if found is None and isinstance(bits := entry.get(answers.FIELD), Mapping):
        found = {"digest": bits.get("examples"), "images": bits.get("images")}
    listed: list[Any] = found if isinstance(found, list) else [found]
    return listed if all(isinstance(one, Mapping) for one in listed) else []


def _question(record: Record, entry: Record) -> dict[str, Any]:
    """The fields of an entry that decide what was asked, first those of its images."""
    fields = {key: value for key, value in results.protocol(entry).items() if key not in NO_QUESTION}
    if fields.get("denominator") == "correct":
        fields.pop("n", None)  # the number of images that this network classifies correctly
    images = {"n": fields.pop("n", None), "dataset": entry.get("dataset", record.get("dataset"))}
    return {**images, **fields}


def _counted(images: Sequence[Any]) -> str:
    return " and ".join(map(str, images))


def _said(value: object) -> str:
    return "not given" if value is None else shown(str(value), 80)


def mixed_versions(records: Sequence[Record], names: Iterable[str]) -> str:
    """Describe the first metric whose values come from versions of rbtools with different results. Returns ""
    if there is none. A result without `versions` is older than this field."""
    names = list(names)
    first: dict[str, Record] = {}
    mixed: dict[str, str] = {}
    for record in records:
        entries = results.by_metric(record)
        for name in names:
            entry = entries.get(name, {})
            if "environment" not in entry or name in mixed:  # without it, not measured by rbtools
                continue
            other = first.setdefault(name, entry)
            ours, theirs = (one.get("versions") for one in (entry, other))
            if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
                both = ours.keys() & theirs.keys()
                differ = [key for key in sorted(both) if ours[key] != theirs[key]]
            else:
                differ = ["older"] if isinstance(ours, Mapping) != isinstance(theirs, Mapping) else []
            if differ:
                mixed[name] = f"{name} ({_of_version(other, differ)}, {_of_version(entry, differ)})"
    return next((mixed[name] for name in names if name in mixed), "")


def _of_version(entry: Record, differ: Sequence[str]) -> str:
    """`rbtools 0.1.0 with order 2`"""
    release, versions = str(entry["environment"]).partition(",")[0], entry.get("versions")
    if not isinstance(versions, Mapping):
        return "an older version"
    own = ", ".join(f"{key} {versions[key]}" for key in differ if key in versions)
    return f"{release} with {own}" if own else release
