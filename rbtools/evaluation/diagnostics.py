"""Diagnostics of an attack run: warnings, and confidence and confusion matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rbtools.lazy import np

if TYPE_CHECKING:
    from rbtools.attacks.base import Attack

# A warning is given if more than this share of examples has a zero gradient, or is broken only by Square.
_MOST_ZERO_GRADIENTS = 0.01
_MOST_BROKEN_BY_SQUARE = 0.002
_DIGITS = 5


def of_attack(method: Attack, totals: Mapping[str, float], n: int) -> dict[str, Any]:
    """The fields of an entry that describe the attack run.

    `loss` is the loss that was used. `broken_by`, for an ensemble, contains the number of examples, out of n,
    that each attack broke. `distance`, for a minimum-norm attack, is the mean over the examples that the
    attack broke. `warnings` is a list of sentences.
    """
    fields: dict[str, Any] = {}
    if broken_by := _broken_by(method, totals):
        fields["broken_by"] = broken_by
    losses = [name.partition(".")[2] for name in totals if name.startswith("loss.")]
    if losses:
        fields["loss"] = losses[0]
    if count := totals.get("distances", 0.0):
        fields["distance"] = {"mean": round(totals["distance"] / count, 6), "n": int(count)}
    warnings = [*_other_loss(method, losses), *_vanishing(totals), *_square(method, broken_by, n)]
    warnings += _outside(method, totals)
    return {**fields, **({"warnings": warnings} if warnings else {})}


def _outside(method: Attack, totals: Mapping[str, float]) -> list[str]:
    if not (count := int(totals.get("outside", 0))):
        return []
    if not method.in_ball:
        return [
            f"{count} points of the attack {method.name} were outside the threat {method.within.name} and"
            " were projected onto it."
        ]
    return [
        f"{count} images of the attack {method.name} were outside the ball of norm {method.norm} and were"
        ' projected onto it. If the attack has no ball, give its class the field norm: str = "any".'
    ]


def _other_loss(method: Attack, losses: list[str]) -> list[str]:
    if not losses or losses[0] == method.loss:
        return []
    return [f"The model has too few classes for the loss {method.loss}, so {losses[0]} is used instead."]


def _vanishing(totals: Mapping[str, float]) -> list[str]:
    started, zero = totals.get("started", 0.0), totals.get("zero_gradient", 0.0)
    if not started or zero / started <= _MOST_ZERO_GRADIENTS:
        return []
    return [
        f"The gradient is zero at the start for {zero / started:.1%} of the attacked images, which may only"
        " look robust because the model is saturated. Compare with square and apgd-dlr."
    ]


def _broken_by(method: Attack, totals: Mapping[str, float]) -> dict[str, int]:
    counts = {name: value for name, value in totals.items() if name.startswith("broken_by.")}
    names = [part.name for part in method.parts] if counts else []
    broken_by = dict.fromkeys(names, 0)
    for name, value in counts.items():
        number = int(name.partition(".")[2])
        if number >= 0:
            broken_by[names[number]] += int(value)
    return broken_by


def _square(method: Attack, broken_by: Mapping[str, int], n: int) -> list[str]:
    broken = broken_by.get("square", 0)
    by_gradients = any(part.uses_gradients for part in method.parts)
    if not by_gradients or broken <= _MOST_BROKEN_BY_SQUARE * n:
        return []
    return [
        f"Square broke {broken} of {n} images that no gradient attack broke, so the model's gradients may be"
        " masked. Check with rb-attack check."
    ]


def of_rows(rows: np.ndarray) -> dict[str, Any]:
    """Confidence and confusion matrices (`--detail`), as in the robustness dataset (Jung et al. 2023).

    `rows` is float32 (N, 1 + K), the label and the logits of each example. Confidences are softmax
    probabilities, averaged over images. `label` (K x K) groups the images by true class, and `argmax` (K x K)
    by predicted class. `prediction` contains the mean largest probability of correct and of incorrect
    predictions. `confusion` (K x K) counts images; its rows are true classes. Rows without images are 0.
    `images` contains the number of images of each true and of each predicted class.
    """
    labels, logits = rows[:, 0].astype(int), rows[:, 1:].astype(np.float64)
    classes = logits.shape[1]
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = shifted / shifted.sum(1, keepdims=True)
    predicted = logits.argmax(1)
    right = predicted == labels
    largest = probabilities.max(1)
    confusion = np.zeros((classes, classes), int)
    np.add.at(confusion, (labels, predicted), 1)
    confidence = {
        "prediction": [_mean(largest[right]), _mean(largest[~right])],
        "label": _by(labels, probabilities),
        "argmax": _by(predicted, probabilities),
    }
    images = {"label": confusion.sum(1).tolist(), "argmax": confusion.sum(0).tolist()}
    return {"confidence": confidence, "confusion": confusion.tolist(), "images": images}


def _mean(values: np.ndarray) -> float:
    return round(float(values.mean()), _DIGITS) if len(values) else 0.0


def _by(classes: np.ndarray, probabilities: np.ndarray) -> list[list[float]]:
    """Mean probabilities (K, K), with a row for each class in `classes` (N,)."""
    count = probabilities.shape[1]
    sums = np.zeros((count, count))
    np.add.at(sums, classes, probabilities)
    means = sums / np.maximum(np.bincount(classes, minlength=count), 1)[:, None]
    return np.round(means, _DIGITS).tolist()
