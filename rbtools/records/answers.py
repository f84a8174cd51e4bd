"""Per-image results: an entry contains one bit for each image, in the fixed order of evaluations.

An entry whose value is a share of images has the field `answers`. The field contains the digest of the list
of examples, the number of examples, and a bit for each example in base64. The bit is 1 if the image counts in
the value (correct, robust, certified ...). The answers for 10,000 images need 1.7 KB. For accuracies of
single classes, the field `examples` of a record contains the classes of each list once.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.records import metric_name, results

FIELD = "answers"
LABELS = "examples"
MOST = 50_000  # most images of an entry with answers (8.4 KB): ImageNet's validation set
HOW = f"Evaluations of up to {MOST:,} images add them. Evaluate again, with --force if the result is stored."
_MOST = 1 << 24  # most images of a list; another person's record may contain anything


class NoAnswers(RbError):
    """The exception for an entry without per-image results."""


class Answers(NamedTuple):
    """`examples` is the digest of the list of examples; `right`, bool (N,), is true if the image counts."""

    examples: str
    right: np.ndarray


def packed(right: np.ndarray, examples: str) -> dict[str, Any]:
    """Return the value of the field `answers` of an entry for `right`, bool (N,)."""
    bits = base64.b64encode(np.packbits(right).tobytes()).decode()
    return {"examples": examples, "images": len(right), "bits": bits}


def of(entry: Mapping[str, Any]) -> Answers | None:
    """Return the answers in an entry, if any. Raises RbError if they are damaged or contradict the value."""
    data = check(entry)
    if data is None:
        return None
    field = entry[FIELD]
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=field["images"])
    return Answers(field["examples"], bits.astype(bool))


def check(entry: Mapping[str, Any]) -> bytes | None:
    """Return the bits of the answers in an entry, if any. Raises the same errors as `of`, without numpy."""
    if FIELD not in entry:
        return None
    try:
        return _checked(entry)
    except ValueError as wrong:
        raise RbError(
            f"The answers of {entry.get('metric')} are damaged: {wrong}. Evaluate again, or leave them out."
        ) from None


def _checked(entry: Mapping[str, Any]) -> bytes:
    field = entry[FIELD]
    has_examples = isinstance(field, Mapping) and isinstance(field.get("examples"), str)
    if not has_examples or not isinstance(field.get("bits"), str) or type(field.get("images")) is not int:
        raise ValueError("expected the fields examples, images and bits")
    images = field["images"]
    if not 0 < images <= _MOST:
        raise ValueError(f"the number of images is {images}")
    try:
        data = base64.b64decode(field["bits"], validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the bits are not in base64") from None
    if len(data) != -(-images // 8):
        raise ValueError(f"there are {len(data)} bytes for {images} images")
    if data[-1] & ((1 << -images % 8) - 1):
        raise ValueError(f"there are bits after image {images}")
    right = int.from_bytes(data, "big").bit_count()
    value, n = entry.get("value"), entry.get("n")
    if type(n) is not int or not 0 < n <= images or not results.is_number(value):
        raise ValueError("the entry lacks a value or a number of images to compare them with")
    if abs(right / n - value) > 1e-6:
        raise ValueError(f"{right} of {n} images count, but the value is {value}")
    return data


def needed(entry: Mapping[str, Any], metric: str) -> Answers:
    """Like `of`, but raises NoAnswers with the reason if the entry has no answers."""
    found = of(entry)
    if found is not None:
        return found
    parts = metric_name.parse(metric_name.without_split(metric))
    if "two_phase" in entry:
        why = (
            "is an estimate, because not all images were attacked. Attack all of them (with --two-phase all,"
            " or without this option)."
        )
    elif parts.stem in ("pr", "pr-all"):
        why = "is a share of noisy copies and not of images. ProbAcc (--rho) is a share of images."
    elif "records" in entry:
        why = (
            "is a mean over records, so an image has several answers. Before averaging, add the metric that"
            " needs the answers to each record, with rb-score --add."
        )
    elif "expression" in entry and "union" not in entry:
        why = f"is computed from other metrics: {entry['expression']}. Expected a measured metric."
    elif parts.is_ge or (entry and type(entry.get("n")) is not int):
        why = "is not a share of images."
    else:
        raise NoAnswers(f"The result of {metric} has no per-image results. {HOW}")
    raise NoAnswers(f"{metric} {why}")


def packed_labels(labels: np.ndarray) -> dict[str, Any]:
    """Return the value in the field `examples` for the labels (N,) of a list of images, counted from 0."""
    data = zlib.compress(labels.astype("<u2").tobytes(), 9)
    return {"images": len(labels), "labels": base64.b64encode(data).decode()}


def with_labels(record: dict[str, Any], examples: str, packed: Mapping[str, Any]) -> dict[str, Any]:
    """Add the classes of a list of examples, unless the record has the classes of more images."""
    return {**record, LABELS: all_labels(record, {LABELS: {examples: packed}})}


def all_labels(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the classes in two records; for each list of examples, keep the classes of more images."""
    both = dict(_lists(old))
    for examples, field in _lists(new).items():
        if examples not in both or _count(field) >= _count(both[examples]):
            both[examples] = field
    return both


def _lists(record: Mapping[str, Any]) -> Mapping[str, Any]:
    lists = record.get(LABELS)
    return lists if isinstance(lists, Mapping) else {}


def _count(field: object) -> int:
    images = field.get("images") if isinstance(field, Mapping) else None
    return images if type(images) is int else -1


def labels_of(record: Mapping[str, Any], answers: Answers) -> np.ndarray:
    """Return the classes (N,) of the images. Raises RbError if the classes are missing or damaged."""
    count = len(answers.right)
    field = _lists(record).get(answers.examples)
    if field is None:
        raise RbError("The record lacks the classes of its images. Evaluate again to add them.")
    try:
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(field["labels"], validate=True), 2 * _MOST)
        labels = np.frombuffer(data, "<u2")
        if packed.unconsumed_tail or len(labels) < count:
            raise ValueError
    except (ValueError, KeyError, TypeError, zlib.error):
        raise RbError(
            f"The classes of the examples {answers.examples} are damaged. Expected {count} labels. Evaluate"
            " again."
        ) from None
    return labels[:count].astype(np.int64)
