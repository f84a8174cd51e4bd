"""A bit an image in an entry: what is written is read, and what is damaged is refused by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rbtools.errors import RbError
from rbtools.records import answers


def entry(right: np.ndarray, **more: Any) -> dict[str, Any]:
    value = {"n": len(right), "value": float(right.mean())}
    return {"metric": "pgd20.8", **value, answers.FIELD: answers.packed(right, "abc"), **more}


@pytest.mark.parametrize("images", [1, 7, 8, 9, 1000])
def test_what_is_written_is_read(images: int) -> None:
    right = np.random.default_rng(images).random(images) < 0.7
    read = answers.of(entry(right))
    assert read is not None and read.examples == "abc" and np.array_equal(read.right, right)
    assert answers.of({"metric": "acc", "value": 1.0}) is None
    assert len(str(answers.packed(np.ones(10_000, bool), "0" * 16))) < 1800


@pytest.mark.parametrize(
    "damage",
    [
        *({"bits": bits} for bits in ("!!", "AAAA", None, "/w==")),  # the last: eight images, and not six
        *({"images": images} for images in (9, 0, 1 << 40, True)),
        {"examples": None},
    ],
)
def test_damaged_answers_name_their_metric(damage: dict[str, Any]) -> None:
    whole = entry(np.arange(8) < 6)
    with pytest.raises(RbError, match=r"The answers of pgd20\.8 are damaged: .+ Evaluate again"):
        answers.of({**whole, answers.FIELD: {**whole[answers.FIELD], **damage}})
    with pytest.raises(RbError, match="damaged"):
        answers.of({**whole, "value": 0.5})
    with pytest.raises(RbError, match="damaged"):
        answers.of({**whole, answers.FIELD: "bits"})


def test_classes_of_images_are_read_for_the_first_of_a_list() -> None:
    labels = np.arange(600) % 300
    packed = answers.packed_labels(labels)
    record = answers.with_labels({"arch": {}}, "abc", packed)
    few = answers.of(entry(np.ones(5, bool)))
    assert few is not None and answers.labels_of(record, few).tolist() == [0, 1, 2, 3, 4]
    shorter = answers.with_labels(record, "abc", answers.packed_labels(labels[:10]))
    assert shorter == record  # the longer list stays
    for lacking in ({}, {answers.LABELS: "text"}):
        with pytest.raises(RbError, match="lacks the classes"):
            answers.labels_of(lacking, few)
        assert answers.with_labels(lacking, "abc", packed) == {answers.LABELS: record[answers.LABELS]}
    for field in ({}, {"labels": "AAAA"}, {"labels": 3}, "text", answers.packed_labels(labels[:3])):
        with pytest.raises(RbError, match="damaged: expected 5 labels"):
            answers.labels_of({answers.LABELS: {"abc": field}}, few)
