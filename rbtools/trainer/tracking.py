"""Measurements during a training run: robust loss and error on train and test, and measures such as WCI."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools import datasets, registry
from rbtools.datasets import streaming
from rbtools.datasets.indices import ORDER
from rbtools.execution.run import Run
from rbtools.inputs.data import Data, data_of
from rbtools.lazy import torch
from rbtools.measures import MEASURES, base
from rbtools.rng.draws import Draws
from rbtools.trainer import distributed, validation
from rbtools.trainer.augment import pixels
from rbtools.trainer.recipe import Recipe
from rbtools.training.base import Method, cross_entropy, mode

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rbtools.execution.report import Report
    from rbtools.measures.base import Measure
    from rbtools.trainer.begin import TrainExamples
    from rbtools.trainer.state import TrainState

VERSION = 1
ROBUST = "robust"
_TILE = 500


@dataclass(frozen=True)
class Tracking:
    """The measured quantities, the number of epochs between measurements, and the number of images. `test` is
    None if the test split is not needed."""

    names: tuple[str, ...]
    every: int
    n: int
    test: Data | None

    def measures(self) -> dict[str, Any]:
        return {name: MEASURES.build(name) for name in self.names if name != ROBUST}

    def fields(self) -> dict[str, Any]:
        """Everything that determines the result for the same weights."""
        measures = {
            name: {"version": one.version, "config": registry.config(one)}
            for name, one in self.measures().items()
        }
        fields = {"version": VERSION, "every": self.every, "measures": measures}
        if self.test is not None:
            fields["robust"] = {"n": self.n, "order": ORDER, "test": self.test.fingerprint}
        return fields


def wanted(recipe: Recipe, record: dict[str, Any], run: Run) -> Tracking | None:
    """Return the tracking that a recipe requests. Raises RbError if the data set lacks a split."""
    if not recipe.track:
        return None
    test = data_of(record, run, "test") if ROBUST in recipe.track else None
    return Tracking(tuple(sorted(recipe.track)), recipe.every, recipe.track_n, test)


def stops(recipe: Recipe, state: TrainState, device: torch.device) -> bool:
    """True if the --stop-on measure has risen often enough to stop; process 0 computes it and decides."""
    assert recipe.stop_on is not None
    count = recipe.stop_patience
    last = [value for value in state.tracked.get(recipe.stop_on, ()) if value is not None][-count - 1 :]
    risen = len(last) > count and all(before < after for before, after in itertools.pairwise(last))
    return bool(distributed.sum_of(torch.tensor(int(risen), device=device)))


class Tracker:
    """Measures a model in eval mode, in float32, and restores its state.

    The random numbers depend on the examples and do not change those of the training, so the weights are the
    same with and without a tracker. Images are not augmented. The attack is the one that the validation uses.
    """

    def __init__(
        self, tracking: Tracking, examples: TrainExamples, method: Method, seed: int, report: Report
    ) -> None:
        self.tracking, self.measures = tracking, tracking.measures()
        self.seed, self.check_cancelled = seed, report.check_cancelled
        self.method, self.attack = method, validation.attack_of(method)
        device, ids = examples.labels.device, examples.ids
        needed = [int(math.prod(one.size)) for one in self.measures.values()]
        needed += [] if tracking.test is None else [tracking.n]
        order = datasets.subset(examples.labels.cpu()[ids], min(len(ids), max(needed)), seed=0)
        self.splits = {"train": (examples.images, examples.labels, ids[order].to(device))}
        if tracking.test is not None:
            test = tracking.test.load()
            chosen = datasets.subset(test.labels, min(tracking.n, len(test.labels)), seed=0)
            self.splits["test"] = (
                streaming.placed(test.images, device),
                test.labels.to(device),
                chosen.to(device),
            )

    def settings(self) -> dict[str, Any]:
        description: dict[str, Any] = {"every": self.tracking.every, **validation.settings(self.method)}
        if "test" in self.splits:
            most = len(self.splits["train"][2])
            description[ROBUST] = {"n_train": min(self.tracking.n, most), "n": len(self.splits["test"][2])}
        for name, one in self.measures.items():
            images = min(math.prod(one.size), len(self.splits["train"][2]))
            description[name] = {"n_train": images, **registry.config(one)}
        return description

    def after(self, state: TrainState, *, last: bool) -> None:
        """Measure after every `every`-th epoch (counted from 1) and the last; extend `state.tracked`."""
        due = last or state.epoch % self.tracking.every == 0
        numbers = self.measure(state.kept) if due else {}
        for name in dict.fromkeys((*state.tracked, *numbers)):
            state.tracked.setdefault(name, [None] * (state.epoch - 1)).append(numbers.get(name))

    def measure(self, model: nn.Module) -> dict[str, float | None]:
        """Return the current values by name. A value that is not finite is None."""
        start = time.perf_counter()
        with mode(model, train=False):
            attacked = {}
            for split in self.splits:
                parts = []
                images, labels, ids = self.splits[split]
                for part in ids.split(_TILE):
                    draws = self._draws(split, part)
                    parts.append(self.attack.perturb(model, pixels(images[part]), labels[part], draws))
                    self.check_cancelled()
                attacked[split] = torch.cat(parts)
            numbers = self._robust(model, attacked) if self.tracking.test is not None else {}
            for name, one in self.measures.items():
                batches = self._batches(model, name, one, attacked["train"])
                for value in base.measured(one, model, batches):
                    called = f"{name}.{value.name}" if value.name else name
                    numbers[called] = value.value
                    if value.se is not None:
                        numbers[f"{called}.se"] = value.se
        numbers["seconds_tracking"] = time.perf_counter() - start
        return {
            k: None if v is None or not math.isfinite(v) else float(f"{v:.6g}") for k, v in numbers.items()
        }

    def _robust(self, model: nn.Module, attacked: Mapping[str, Tensor]) -> dict[str, float | None]:
        numbers: dict[str, float | None] = {}
        for split, perturbed in attacked.items():
            loss = wrong = 0.0
            _, labels, ids = self.splits[split]
            ids = ids[: self.tracking.n]
            for part, images in zip(ids.split(_TILE), perturbed[: len(ids)].split(_TILE), strict=True):
                with torch.no_grad():
                    logits = model(images)
                loss += float(cross_entropy(logits, labels[part]).double().sum())
                wrong += float((logits.argmax(1) != labels[part]).sum())
            numbers[f"{split}_robust_loss"] = loss / len(ids)
            numbers[f"{split}_robust_error"] = wrong / len(ids)
        for what in ("loss", "error"):
            train, test = (numbers[f"{split}_robust_{what}"] for split in ("train", "test"))
            assert train is not None and test is not None
            numbers[f"robust_{what}_gap"] = test - train  # test - train, as in rb-ge
        return numbers

    def _batches(self, model: nn.Module, name: str, one: Measure, perturbed: Tensor) -> Iterator[Any]:
        """The batches of a measure: the first training images, in pieces of the measure's batch size."""
        images, labels, ids = self.splits["train"]
        count, size = one.size
        for number, part in enumerate(ids[: count * size].split(size)):
            clean = pixels(images[part])
            once = perturbed[number * size :][: len(part)]
            twice = None
            if one.attacks > 1:
                draws = self._draws("train", part).child("twice")
                twice = self.attack.perturb(model, once, labels[part], draws)
            place = torch.tensor([number], device=ids.device)
            draws = self._draws(name, part)
            yield base.MeasureBatch(
                clean, labels[part], draws, self._draws(f"{name}/probes", place), once, twice
            )
            self.check_cancelled()

    def _draws(self, stream: str, ids: torch.Tensor) -> Any:
        return Draws(self.seed, f"tracking/{stream}", ids)
