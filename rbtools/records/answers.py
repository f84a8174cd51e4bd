"""What a model did on each image: a bit an image in an entry, in the fixed order of the evaluation.

An entry whose value is a share of images has `answers`: the digest of its list of examples, how many there
are, and a bit for each, 1 where the image counts in the value (correct, robust, certified ...), in base64:
1.7 KB for 10,000 images. A record has the classes of each list once, in `examples`, for accuracies of single
classes.
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
MOST = 50_000  # images of an entry with answers, as ImageNet's validation set has: 8.4 KB
HOW = f"Evaluations of up to {MOST:,} images have them: evaluate again, with --force if they are stored."
_MOST = 1 << 24  # images of a list; a record of somebody else may say anything


class NoAnswers(RbError):
    """An entry says nothing of single images."""


class Answers(NamedTuple):
    """examples: the digest of the list; right: bool (N,), whether each image counts in the value."""

    examples: str
    right: np.ndarray


def packed(right: np.ndarray, examples: str) -> dict[str, Any]:
    """The field of an entry. right: bool (N,)."""
    bits = base64.b64encode(np.packbits(right).tobytes()).decode()
    return {"examples": examples, "images": len(right), "bits": bits}


def of(entry: Mapping[str, Any]) -> Answers | None:
    """The answers that an entry holds; None if it has none.

    Raises RbError, which names the metric, where they are cut off, of another length, or contradict the
    value.
    """
    if FIELD not in entry:
        return None
    try:
        return _unpacked(entry)
    except ValueError as wrong:
        raise RbError(
            f"The answers of {entry.get('metric')} are damaged: {wrong}. Evaluate again, or leave them out."
        ) from None


def _unpacked(entry: Mapping[str, Any]) -> Answers:
    field = entry[FIELD]
    has_examples = isinstance(field, Mapping) and isinstance(field.get("examples"), str)
    if not has_examples or not isinstance(field.get("bits"), str) or type(field.get("images")) is not int:
        raise ValueError("expected the fields examples, images and bits")
    images = field["images"]
    if not 0 < images <= _MOST:
        raise ValueError(f"they are of {images} images")
    try:
        data = base64.b64decode(field["bits"], validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the bits are not in base64") from None
    if len(data) != -(-images // 8):
        raise ValueError(f"{len(data)} bytes for {images} images")
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    if bits[images:].any():
        raise ValueError(f"there are bits after image {images}")
    right = bits[:images].astype(bool)
    value, n = entry.get("value"), entry.get("n")
    if type(n) is not int or not 0 < n <= images or not results.is_number(value):
        raise ValueError("the entry has no value and number of images to compare them with")
    if abs(int(right.sum()) / n - value) > 1e-6:
        raise ValueError(f"{int(right.sum())} of {n} images count, but the value is {value}")
    return Answers(field["examples"], right)


def needed(entry: Mapping[str, Any], metric: str) -> Answers:
    """The answers that an entry of this metric holds.

    Raises NoAnswers, which says why, if it has none, and RbError as `of` does.
    """
    found = of(entry)
    if found is not None:
        return found
    parts = metric_name.parse(metric_name.without_split(metric))
    if "two_phase" in entry:
        why = (
            "is an estimate: not all images were attacked. Attack all of them (--two-phase all, or without"
            " it)."
        )
    elif parts.stem in ("pr", "pr-all"):
        why = "is a share of noisy copies, so no image counts or not. ProbAcc (--rho) does."
    elif "records" in entry:
        why = (
            "is a mean over records, so no image has one answer. Add what needs them to each record before,"
            " by rb-score --add."
        )
    elif "expression" in entry and "union" not in entry:
        why = f"is computed: {entry['expression']}. Expected a metric that was measured."
    elif parts.is_ge or (entry and type(entry.get("n")) is not int):
        why = "is no share of images that count."
    else:
        raise NoAnswers(f"There are no answers of single images for {metric}. {HOW}")
    raise NoAnswers(f"{metric} {why}")


def packed_labels(labels: np.ndarray) -> dict[str, Any]:
    """The labels of a list of examples, for `examples` of a record. labels: (N,), classes from 0 on."""
    data = zlib.compress(labels.astype("<u2").tobytes(), 9)
    return {"images": len(labels), "labels": base64.b64encode(data).decode()}


def with_labels(record: dict[str, Any], examples: str, packed: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the classes of a list of examples (`packed_labels`), if it does not know more of them
    already."""
    return {**record, LABELS: all_labels(record, {LABELS: {examples: packed}})}


def all_labels(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The classes that two records know; of a list of examples those of more images."""
    both = dict(_lists(old))
    for examples, field in _lists(new).items():
        if examples not in both or _count(field) >= _count(both[examples]):
            both[examples] = field
    return both


def _lists(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The classes that a record has by list; a record of somebody else may have something else there."""
    lists = record.get(LABELS)
    return lists if isinstance(lists, Mapping) else {}


def _count(field: object) -> int:
    images = field.get("images") if isinstance(field, Mapping) else None
    return images if type(images) is int else -1


def labels_of(record: Mapping[str, Any], answers: Answers) -> np.ndarray:
    """The classes (N,) of the images of these answers.

    Raises RbError if the record lacks them, or they are damaged.
    """
    count = len(answers.right)
    field = _lists(record).get(answers.examples)
    if field is None:
        raise RbError(
            "The record lacks the classes of its images. Evaluate again: they come with the answers."
        )
    try:
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(field["labels"], validate=True), 2 * _MOST)
        labels = np.frombuffer(data, "<u2")
        if packed.unconsumed_tail or len(labels) < count:
            raise ValueError
    except (ValueError, KeyError, TypeError, zlib.error):
        raise RbError(
            f"The classes of the examples {answers.examples} are damaged: expected {count} labels. Evaluate"
            " again."
        ) from None
    return labels[:count].astype(np.int64)
