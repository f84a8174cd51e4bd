"""Confidence and confusion of an evaluation, from its examples' labels and logits."""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_CLASSES = 100
_DIGITS = 5


def of_rows(rows: np.ndarray) -> dict[str, Any]:
    """What `--detail` adds to an entry, as in the robustness dataset (Jung et al. 2023).

    rows: float32 (N, 1 + K), the label and the logits of each example. Confidences are probabilities after
    softmax, means over images: `label` (K x K) by true class, `argmax` (K x K) by predicted class,
    `prediction` the largest one where it is right and where it is wrong. `confusion` (K x K) counts images,
    rows are true classes. Rows without images are 0; `images` counts them, by true and predicted class.
    Above 100 classes the matrices would be larger than all else: only `prediction` is there.
    """
    labels, logits = rows[:, 0].astype(int), rows[:, 1:].astype(np.float64)
    classes = logits.shape[1]
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = shifted / shifted.sum(1, keepdims=True)
    predicted = logits.argmax(1)
    right = predicted == labels
    largest = probabilities.max(1)
    confidence: dict[str, Any] = {"prediction": [_mean(largest[right]), _mean(largest[~right])]}
    if classes > MOST_CLASSES:
        return {"confidence": confidence}
    confusion = np.zeros((classes, classes), int)
    np.add.at(confusion, (labels, predicted), 1)
    confidence["label"] = _by(labels, probabilities)
    confidence["argmax"] = _by(predicted, probabilities)
    images = {"label": confusion.sum(1).tolist(), "argmax": confusion.sum(0).tolist()}
    return {"confidence": confidence, "confusion": confusion.tolist(), "images": images}


def _mean(values: np.ndarray) -> float:
    return round(float(values.mean()), _DIGITS) if len(values) else 0.0


def _by(classes: np.ndarray, probabilities: np.ndarray) -> list[list[float]]:
    """Mean probabilities (K, K), a row for each class that examples may belong to."""
    count = probabilities.shape[1]
    sums = np.zeros((count, count))
    np.add.at(sums, classes, probabilities)
    means = sums / np.maximum(np.bincount(classes, minlength=count), 1)[:, None]
    found: list[list[float]] = np.round(means, _DIGITS).tolist()
    return found
