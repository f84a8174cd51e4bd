"""The base class of measures, their batch, and the combination of the numbers of several batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rbtools import registry
from rbtools.lazy import Tensor, nn
from rbtools.rng.draws import Draws

BatchResult = dict[str, Any]
"""The result of one batch: maps names to numbers or lists of numbers, as in JSON."""


@dataclass(frozen=True)
class MeasureBatch:
    """Some examples with their random numbers and adversarial images.

    `images` are float32 (N, C, H, W) in [0, 1], and `labels` are int64 (N,). `perturbed` are the attacked
    images, and `twice` are the attacked images after a second attack; their shape is that of `images`. If
    `together` is true, the model's BatchNorm uses the statistics of the batch. All images then go through the
    model at once, and the perturbed images are a separate batch.
    """

    images: Tensor
    labels: Tensor
    draws: Draws  # the random numbers of these N examples
    probes: Draws  # the random numbers of the batch, for directions in weight space
    perturbed: Tensor | None = None
    twice: Tensor | None = None
    chunk: int = 64  # images that go through the model at once; affects memory, not results
    together: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def attacked(self) -> Tensor:
        """The attacked images. Raises ValueError if there are none."""
        if self.perturbed is None:
            raise ValueError("this measure needs a perturbed batch")
        return self.perturbed

    @property
    def attacked_twice(self) -> Tensor:
        """The images attacked twice. Raises ValueError if there are none."""
        if self.twice is None:
            raise ValueError("this measure needs a batch that is perturbed twice")
        return self.twice


@dataclass(frozen=True)
class Value:
    """One number that a measure returns."""

    name: str  # "weight.trace"; "" if the measure has one number
    value: float | None
    se: float | None = None  # the standard error
    over: str | None = None  # the units of the standard error: "batches", "probes" or "examples"
    more: Mapping[str, Any] = field(default_factory=dict)  # "reason", if the value is None
    clean: bool = False  # whether it is the same without an attack
    numbers: Sequence[float] = ()  # per image, if the interval is computed from these and not from se


class Measure(registry.Registered):
    """The base class of measures. Each measure is a frozen, keyword-only dataclass."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    # Defined for these weights: "init" (freshly initialised), "trained" (needs a checkpoint), "any", or
    # "none" (independent of the weights).
    weights: ClassVar[str] = "any"
    split: ClassVar[str] = "train"  # the default split
    size: ClassVar[tuple[int, int]] = (1, 256)  # the default number of batches, and of images per batch
    data: ClassVar[bool] = True  # whether it uses images, and not only their shape
    placed: ClassVar[bool] = False  # whether the names of its metrics always contain weights and split
    plain: ClassVar[bool] = False  # whether the metric's name leaves out the attack if it is PGD at 8/255
    random: ClassVar[bool] = False  # whether it depends on the seed
    # The statistics that BatchNorm uses by default on fresh weights: "batch", "image" or "running"; None if
    # the measure is defined only with running statistics.
    batchnorm: ClassVar[str | None] = None
    less_is_better: ClassVar[bool] = False
    own_eps: ClassVar[bool] = False  # whether its fields `eps` and `norm` are the ball for its maximum
    needs_record: ClassVar[bool] = False  # whether `filled` takes settings from the record
    # The reason why there is no value if a batch has none.
    missing: ClassVar[str] = "it could not be computed on every batch"

    @property
    def attacks(self) -> int:
        """The number of attacks in sequence that produce the perturbed images."""
        return 0

    @property
    def of_images(self) -> bool:
        """Whether each image has separate numbers, so that a batch may be measured in pieces (`joined`)."""
        return False

    def filled(self, record: Mapping[str, Any], images: int) -> Measure:
        """A copy with missing settings read from the record of a network that was trained on `images`
        images."""
        return self

    @classmethod
    def asked(cls, words: Collection[str]) -> dict[str, Any]:
        """The fields that follow from parts of the requested names, such as "weight" in "weight.trace"."""
        return {}

    def settings(self, value: str) -> dict[str, Any]:
        """The part of the configuration on which the number called `value` depends."""
        return registry.config(self)

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        """Measure one batch. `model` is in eval mode and maps images to logits (N, K)."""
        raise NotImplementedError

    def joined(self, pieces: Sequence[BatchResult]) -> BatchResult:
        """The result of a batch, joined from the results of its pieces: lists with one number per image."""
        if len(pieces) == 1:
            return pieces[0]
        return {name: [number for piece in pieces for number in piece[name]] for name in pieces[0]}

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        """The numbers for all batches, computed from each batch's result and number of examples."""
        numbers = {name: [result[name] for result in results] for name in results[0]}
        return [over_batches(name, each, sizes, self.missing) for name, each in numbers.items()]


@contextmanager
def watching(modules: Iterable[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Call `hook` with the module, its inputs and its output after each call of one of these modules."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def measured(measure: Measure, model: nn.Module, batches: Iterable[MeasureBatch]) -> list[Value]:
    results, sizes = zip(*((measure(model, batch), len(batch)) for batch in batches), strict=True)
    return measure.values(results, sizes)


def over_batches(
    name: str,
    numbers: Sequence[float | None],
    sizes: Sequence[int],
    missing: str = Measure.missing,
) -> Value:
    """The mean of a number over batches, weighted by their sizes, and its standard error over batches. If the
    number is missing for a batch, the result is None with the reason `missing`."""
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return Value(name, None, more={"reason": missing})
    if len(known) == 1:
        return Value(name, known[0])
    count, total = len(known), sum(sizes)
    mean = math.fsum(n * x for n, x in zip(sizes, known, strict=True)) / total
    spread = math.fsum((n / total * (x - mean)) ** 2 for n, x in zip(sizes, known, strict=True))
    return Value(name, mean, math.sqrt(spread * count / (count - 1)), "batches")


def over_images(name: str, numbers: Sequence[float], clean: bool = False) -> Value:
    """The mean of a number over images, and its standard error over images."""
    error = standard_error(numbers)
    over = None if error is None else "examples"
    return Value(name, math.fsum(numbers) / len(numbers), error, over, clean=clean, numbers=numbers)


def standard_error(numbers: Sequence[float]) -> float | None:
    """The standard error of the mean of independent numbers; None for a single number."""
    count = len(numbers)
    if count < 2:
        return None
    mean = math.fsum(numbers) / count
    return math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / (count - 1) / count)
