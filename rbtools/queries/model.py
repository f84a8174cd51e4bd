"""Uses a model that can only be queried as a torch module, stores its answers, and identifies the model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import torch

from rbtools.errors import RbError
from rbtools.models.answering import AnsweringModel
from rbtools.queries.base import BatchAnswers, KindOfModel, ModelFailure, Service
from rbtools.store import digest
from rbtools.store.kept_answers import KeptAnswers

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.execution.run import Run

_PROBES = 32  # images whose answers identify a model without a declared version
_SAME = 1e-3  # scores that differ by less than this share of their range are equal


class Paid:
    """The number of images for which this run has queried models, and the maximum of this number."""

    def __init__(self, budget: int | None, tell: Callable[[str], None]) -> None:
        self.budget, self.tell, self.images = budget, tell, 0

    def allowed(self, count: int) -> int:
        return count if self.budget is None else max(min(self.budget - self.images, count), 0)

    def close(self) -> None:
        self.tell(f"The model was asked about {self.images:,} images; other answers came from the store.")


class Questions:
    """The function of an `AnsweringModel`: images (N, C, H, W) in [0, 1] to labels (N,) or scores (N, K).

    With pixels "uint8", the model receives the nearest 8-bit images. Equal images are sent once, and images
    whose answers are already stored are not sent. Raises RbError if the budget is too small for all images;
    the answers for the images within the budget are stored first.
    """

    def __init__(self, service: Service, form: str, pixels: str, kept: KeptAnswers, paid: Paid) -> None:
        self.service, self.form, self.pixels, self.kept, self.paid = service, form, pixels, kept, paid

    def __call__(self, images: Tensor) -> np.ndarray:
        pixels = sent(images, self.pixels)
        names = [hashlib.blake2b(one.tobytes(), digest_size=16).digest() for one in pixels]
        place = {name: number for number, name in enumerate(names)}
        known = self.kept.of([*place])
        missing = [name for name in place if name not in known]
        if allowed := self.paid.allowed(len(missing)):
            known |= self._answers({name: pixels[place[name]] for name in missing[:allowed]})
        if allowed < len(missing):
            raise RbError(
                f"The budget of {self.paid.budget} queries is used up, but more are needed. The answers so"
                " far are stored. To continue, repeat the command with a larger --budget."
            )
        kind = np.int64 if self.form == "label" else np.float32
        rows = np.stack([np.frombuffer(known[name], kind) for name in names])
        return rows[:, 0] if self.form == "label" else rows

    def close(self) -> None:
        self.kept.close()

    def _answers(self, images: Mapping[bytes, np.ndarray]) -> dict[bytes, bytes]:
        """Query the model, and store and return its answers by the names of the images."""
        answers = self.service.ask(np.stack([*images.values()]))
        if answers.form != self.form:
            raise ModelFailure(
                f"The model answered with {answers.form}. Expected {self.form}, as in its first answers."
            )
        found = {name: value.tobytes() for name, value in zip(images, answers.values, strict=True)}
        self.paid.images += len(found)
        self.kept.keep(found)
        return found


def sent(images: Tensor, pixels: str) -> np.ndarray:
    """Convert images (N, C, H, W) in [0, 1] to the form (N, H, W, C) that the model receives."""
    last = images.detach().permute(0, 2, 3, 1)
    if pixels == "uint8":
        return last.mul(255).round().clamp(0, 255).to(torch.uint8).cpu().contiguous().numpy()
    return last.float().cpu().contiguous().numpy()


def loaded(kind: KindOfModel, name: str, form: str, classes: int, run: Run) -> AnsweringModel:
    """The model with this name, which gives answers of this form."""
    key = f"questions to {name}"
    if key not in run.kept:
        kept = KeptAnswers(run.store.answers_file(name.removeprefix("sha256:")), kind.fields())
        run.kept[key] = Questions(_service(kind, run), form, kind.model_pixels, kept, _paid(run))
    answers = "labels" if form == "label" else "logits"
    return AnsweringModel(run.kept[key], answers, classes, probabilities=form == "probs")


def identified(kind: KindOfModel, shape: tuple[int, int, int], run: Run) -> tuple[str, dict[str, Any]]:
    """The name ("sha256:...") of a model, with the form of its answers and the number of its scores.

    If the user declares a version, it identifies the model. Otherwise its answers on 32 fixed images (C, H,
    W) do. A model counts as one in the store if their scores are nearly equal. If all models in the store
    with the same command or address differ from this one, a message says so.
    """
    fields = {**kind.fields(), "shape": list(shape)}
    key = f"models:{digest(fields)}"
    known = orjson.loads(run.store.get(key) or "[]")
    if known and (kind.model_version is not None or run.plan is not None):
        return known[-1]["name"], known[-1]["facts"]
    answers = _service(kind, run).ask(sent(probes(shape), kind.model_pixels))
    _paid(run).images += _PROBES
    facts = {"form": answers.form}
    if answers.form != "label":
        facts["scores"] = answers.values.shape[1]
    for one in known:
        if one["facts"] == facts and _are_equal(answers, np.asarray(one["answers"])):
            return one["name"], facts
    if known:
        run.report.notify(
            f"{kind.text} answers differently than before for the {_PROBES} fixed images. It counts as a new"
            " model, and its earlier answers are not used."
        )
    values = answers.values.astype(np.float64).round(4).tolist()
    name = f"sha256:{hashlib.sha256(orjson.dumps([fields, facts, values])).hexdigest()}"
    if kind.model_version is not None:
        name = f"sha256:{hashlib.sha256(orjson.dumps(fields)).hexdigest()}"
    elif answers.form == "label":
        run.report.notify(
            f"{kind.text} answers with labels, and its labels for {_PROBES} fixed images identify it only"
            " roughly. Give a new --model-version whenever its weights change."
        )
    run.store.put(key, orjson.dumps([*known, {"name": name, "facts": facts, "answers": values}]).decode())
    return name, facts


def _are_equal(answers: BatchAnswers, before: np.ndarray) -> bool:
    if answers.form == "label" or before.shape != answers.values.shape:
        return np.array_equal(answers.values, before)
    return bool(np.abs(answers.values - before).max() <= _SAME * np.ptp(before) + 1e-6)


def probes(shape: tuple[int, int, int]) -> Tensor:
    """32 fixed images (C, H, W) of random patterns, for which labels differ more than for pixel noise."""
    channels, height, width = shape
    generator = torch.Generator().manual_seed(0)
    images = []
    for number in range(_PROBES):
        cells = (2, 3, 5, 8)[number % 4]
        pattern = torch.rand(1, channels, cells, cells, generator=generator)
        image = torch.nn.functional.interpolate(pattern, (height, width), mode="bilinear", align_corners=True)
        low, high = image.amin(), image.amax()
        images.append((image - low) / (high - low))
    return torch.cat(images)


def _paid(run: Run) -> Paid:
    paid: Paid = run.kept.setdefault("queries", Paid(run.access.budget, run.report.notify))
    return paid


def _service(kind: KindOfModel, run: Run) -> Service:
    """The service of a model. Each process connects to a model only once."""
    key = f"service of {digest(kind.fields())}"
    if key not in run.kept:
        run.kept[key] = kind.open(run.access)
    service: Service = run.kept[key]
    return service
