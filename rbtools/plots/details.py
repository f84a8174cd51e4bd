"""The details of evaluations from `rb-attack --detail`: the confidences and the confusion for each metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import record_values
from rbtools.records import expr, results

if TYPE_CHECKING:
    from rbtools.store import Store

Record = dict[str, Any]
Details = dict[str, list[dict[str, Any]]]  # maps a metric to the details of the records that have them


def _are_shares(values: object, count: int) -> bool:
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(type(value) in (int, float) and 0 <= value < 2**53 for value in values)


def _are_square(matrix: object) -> bool:
    """Whether this is a square matrix of shares. It is checked as an array, because thousands of records have
    a dozen matrices each."""
    try:
        numbers = np.array(matrix)
    except ValueError:  # the rows are not equally long
        return False
    square = numbers.ndim == 2 and len(set(numbers.shape)) == 1 and numbers.dtype.kind in "iuf"
    return square and bool(((numbers >= 0) & (numbers < 2**53)).all())


def _has_confidence(detail: dict[str, Any]) -> bool:
    """Whether the means of correct and wrong predictions are there, with both matrices by class or none."""
    confidence, images = detail.get("confidence"), detail.get("images") or {}
    if not isinstance(confidence, dict) or not isinstance(images, dict):
        return False
    means = confidence.get("prediction")
    if not isinstance(means, list) or not _are_shares([mean or 0 for mean in means], 2):
        return False
    matrices = [confidence[scheme] for scheme in ("label", "argmax") if confidence.get(scheme)]
    whole = len(matrices) in (0, 2) and all(map(_are_square, matrices))
    return whole and all(
        _are_shares(counts, len(matrix)) for matrix in matrices for counts in images.values()
    )


_WHOLE = {"confusion": lambda detail: _are_square(detail.get("confusion")), "confidence": _has_confidence}


def fetched(record: Record, asked: str | None, key: str, store: Store) -> Record:
    """A copy of the record in which the details of these metrics (by default all) contain the part `key`.
    Large details are read from the store. Raises RbError if the store does not contain the details."""
    entries = list(record.get("evals") or ())
    names = [str(entry.get("metric")) for entry in entries]
    wanted = [one for item in expr.items("*" if asked is None else asked) for one in expr.expand(item, names)]
    for place, entry in enumerate(entries):
        detail = entry.get("detail")
        stored = results.at(detail, ("stored",))
        if entry.get("metric") not in wanted or not isinstance(stored, str):
            continue
        of_metric = [one for one in store.result(stored) or () if "detail" in one]
        if not of_metric:
            raise RbError(
                f"The details of {entry.get('metric')} are not in the store {store.folder}. Name the store of"
                " their evaluation with --store, or evaluate again with --detail."
            )
        kept = {name: of_metric[0]["detail"].get(name) for name in (key, "images")}
        entries[place] = {**entry, "detail": kept}
    return {**record, "evals": entries}


def of(records: Sequence[Record], asked: str | None, key: str) -> Details:
    """The details of the metrics in a list (by default of all metrics) from the records that have the part
    `key`. Raises RbError if no record has the part `key`, or details of a metric in the list."""
    by_metric: Details = {}
    for record in records:
        for entry in record.get("evals") or ():
            detail = entry.get("detail")
            if isinstance(detail, dict) and _WHOLE[key](detail):
                by_metric.setdefault(str(entry.get("metric")), []).append(detail)
    if not by_metric:
        raise RbError(
            f"No record has the {key} of an evaluation. Evaluate with --detail, for example rb-attack fgsm"
            " --eps 1-8 --detail."
        )
    if asked is None:
        return by_metric
    chosen = record_values.named(asked, by_metric, f"no record has the {key} of", "It exists for")
    return {name: by_metric[name] for name in chosen}
