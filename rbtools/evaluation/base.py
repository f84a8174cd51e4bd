"""The parts of an evaluation: batches of examples, and the stored outcomes of a spec.

Torch is imported only when a batch is measured.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from rbtools.attacks.partial_results import PartialResults
from rbtools.errors import RbError
from rbtools.lazy import nn, np, torch
from rbtools.rng.draws import Draws
from rbtools.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.verdicts import Judge


# The number of examples that are attacked together, independent of the memory batch, for images of 32x32 and
# larger; it is larger for smaller images. The number changes results only through the rounding of kernels, so
# it is fixed for each kind of device and size of image.
BATCH = {"cpu": 128, "cuda": 2048}
# Images that go through the model at once. They are fewer than a batch, so chunks stay full as examples drop
# out. On an H200, the PR of 2,000 images took 1.27 s, and 1.35 s with batches of 512.
CHUNK = {"cpu": 64, "cuda": 1024}
# The batch size on all devices if an attack samples for the whole batch, as AutoAttack's own code does.
REFERENCE_BATCH = 128
# The overhead of a call is independent of the image size. An image of 8x8 pixels takes 0.11 ms (float32) or
# 0.07 ms (bf16) in batches of 64, and 0.065 or 0.037 ms in batches of 512 (AMD EPYC).
_PIXELS, _MOST = 32 * 32, 4
VERSION = 2  # version of the computation of outcomes
_SECONDS_BETWEEN_WRITES = 2.0


def batch_size(device: torch.device, shape: Sequence[int]) -> int:
    """The number of images of this shape (C, H, W) that are attacked together."""
    return BATCH.get(device.type, BATCH["cpu"]) * min(_smaller(shape), _MOST)


def default_chunk_size(device: torch.device, shape: Sequence[int]) -> int:
    """The number of images of this shape (C, H, W) that go through a model at once by default."""
    return min(CHUNK.get(device.type, CHUNK["cpu"]) * _smaller(shape), batch_size(device, shape))


def _smaller(shape: Sequence[int]) -> int:
    """The number of images of this shape that have as many pixels as one image of 32x32, at least 1."""
    return max(_PIXELS // (shape[-2] * shape[-1]), 1)


@dataclass(eq=False)
class Batch:
    """Some examples and the models that are evaluated on them.

    `images` are float32 (N, C, H, W) in [0, 1], and `labels` are int64 (N,). `ids` are the positions of the
    examples in their split, int64 (N,), which determine their random numbers. `model` is the exact model,
    which decides. `fast_model` computes the same function, possibly faster and less exactly; by default it is
    `model`. `judge`, if given, has a float32 copy of the model that decides for it unless an image is nearly
    tied. `first` are the model's logits (M, K) for the first M unchanged images, if they are known.
    `precomputed` maps each spec whose rows are already known to its rows (N, ...). `draw`, for a randomised
    model only, is the number of the random pass, or one number for each example (N,). `watch` is called with
    the progress of an attack on the batch, which is a string and the number of passes, and with an empty
    string before each pass outside an attack. `partial` are the partial results of an interrupted
    computation of these rows. `load` returns the models of some records (as JSON) that can process the
    images of a batch.
    """

    model: nn.Module
    images: Tensor
    labels: Tensor
    ids: Tensor
    seed: int = field(kw_only=True)
    chunk_size: int = field(kw_only=True)
    fast_model: nn.Module = None  # type: ignore[assignment]
    judge: Judge | None = None
    first: Tensor | None = None
    precomputed: Mapping[Any, Tensor] = field(default_factory=dict)
    draw: int | Tensor | None = None
    watch: Callable[[str, int], None] | None = None
    partial: PartialResults = field(default_factory=PartialResults)
    load: Callable[[Sequence[str], Batch], list[nn.Module]] | None = None

    def __post_init__(self) -> None:
        if self.fast_model is None:
            self.fast_model = self.model

    def draws(self, stream: str) -> Draws:
        """Random numbers for these examples, which are independent for each `stream`."""
        return Draws(self.seed, stream, self.ids)

    def logits(self, images: Tensor) -> Tensor:
        """Logits (N, K) in float32, computed for `chunk_size` images at a time. With a `judge`, they are
        valid for decisions only. Raises RbError for NaN or infinity."""
        logits = self.unchecked_logits(images)
        if not torch.isfinite(logits).all():
            first = int((~torch.isfinite(logits)).any(1).nonzero()[0])
            raise RbError(
                f"The model's output for image {int(self.ids[first])} is not finite (NaN or infinity)."
                " Check its weights and its normalisation."
            )
        return logits

    def unchecked_logits(self, images: Tensor) -> Tensor:
        """The same as `logits`, but without the check for finite values, which would wait for the GPU."""
        with torch.no_grad():
            if self.draw is None and self.judge is not None:
                return torch.cat([self.judge.logits(self.model, part) for part in self._chunks(images)])
            if self.draw is None:
                return torch.cat([self.model(part).float() for part in self._chunks(images)])
            from rbtools.rng.foreign import ExampleNumbers

            draws, results = torch.as_tensor(self.draw, device=self.ids.device).expand_as(self.ids), []
            numbers = (of.split(self.chunk_size) for of in (self.ids, draws))
            for part, ids, passes in zip(self._chunks(images), *numbers, strict=True):
                with ExampleNumbers(self.seed, "model", ids, passes):
                    results.append(self.model(part).float())
            return torch.cat(results)

    def correct(self, images: Tensor) -> Tensor:
        """Whether the model classifies each of these images (N, ...) correctly: bool (N,)."""
        return self.logits(images).argmax(1).eq(self.labels)

    def outputs(self, model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """The outputs (N, K) of another model, at most `chunk_size` images at a time."""
        with torch.no_grad():
            return torch.cat([model(part) for part in self._chunks(images)])

    def _chunks(self, images: Tensor) -> Iterator[Tensor]:
        """Yields the images (N, ...), `chunk_size` at a time. Before each pass, `watch` may stop the work."""
        for chunk in images.split(self.chunk_size):
            if self.watch is not None:
                self.watch("", 0)
            yield chunk

    @cached_property
    def clean_logits(self) -> Tensor:
        """The logits (N, K) of the unchanged images."""
        if self.first is None:
            return self.logits(self.images)
        known, others = self.first[: len(self.images)], self.take(slice(len(self.first), None))
        return torch.cat([known, others.logits(others.images)]) if len(others.ids) else known

    @cached_property
    def clean(self) -> Tensor:
        """Whether each unchanged image is classified correctly: bool (N,)."""
        return self.clean_logits.argmax(1).eq(self.labels)

    def take(self, rows: Tensor | slice) -> Batch:
        """Some of the examples, by a mask, positions, or a slice."""
        draw = self.draw[rows] if isinstance(self.draw, torch.Tensor) else self.draw
        images, labels, ids = self.images[rows], self.labels[rows], self.ids[rows]
        return replace(self, images=images, labels=labels, ids=ids, draw=draw, precomputed={}, first=None)


class Outcome(NamedTuple):
    """The result of a spec on a batch: outcomes or rows (`values`, (N,) or (N, R)), sums over the examples
    (`totals`, which may contain "seconds"), and perturbed images (N, C, H, W) to save, with their points (N,
    ...) if the points of the threat are not images."""

    values: Tensor
    totals: Mapping[str, float] = {}
    images: Tensor | None = None
    points: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The outcome without its images, in the form that is stored while its batch is unfinished."""
        totals = {name: torch.tensor(value, dtype=torch.float64) for name, value in self.totals.items()}
        return {"values": self.values, **totals}

    @classmethod
    def of_tensors(cls, found: Mapping[str, Tensor]) -> Outcome:
        totals = {name: value.item() for name, value in found.items() if name != "values"}
        return cls(found["values"], totals)

    def stored(self) -> np.ndarray:
        return self.values.cpu().numpy().astype(np.int32 if self.values.dim() == 1 else np.float32)


class OutcomeRows(NamedTuple):
    """Stored outcomes of one spec for consecutive examples.

    `values` are int32 (n,) or float32 (n, R). `totals` are sums of seconds, passes and other counts over the
    examples and over all runs that computed them. `devices` are the devices that were used. `fast_steps` are
    the steps that created the fast model. `environments` are the values of `device.environment` (or "").
    """

    values: np.ndarray
    totals: Mapping[str, float]
    devices: Sequence[str]
    fast_steps: Sequence[str] = ()
    environments: Sequence[str] = ("",)

    def followed_by(self, more: OutcomeRows) -> OutcomeRows:
        """These outcomes, followed by the outcomes of the next examples."""
        names = {**self.totals, **more.totals}
        return OutcomeRows(
            np.concatenate([self.values, more.values]) if len(self.values) else more.values,
            {name: float(self.totals.get(name, 0) + more.totals.get(name, 0)) for name in names},
            *(sorted({*mine, *others}) for mine, others in zip(self[2:], more[2:], strict=True)),
        )

    def encoded(self) -> bytes:
        """Encode for the store: a line of JSON, followed by the array in NumPy's .npy format."""
        buffer = io.BytesIO()
        head = {"totals": {name: round(value, 3) for name, value in self.totals.items()}}
        named = zip(("devices", "prepared", "environments"), map(list, self[2:]), strict=True)
        buffer.write(orjson.dumps(head | dict(named)) + b"\n")
        np.save(buffer, self.values, allow_pickle=False)
        return buffer.getvalue()

    @classmethod
    def decoded(cls, data: bytes) -> OutcomeRows | None:
        """Decode outcomes from stored bytes. Returns None if the bytes are damaged."""
        try:
            line, _, body = data.partition(b"\n")
            head = orjson.loads(line)
            values: np.ndarray = np.load(io.BytesIO(body), allow_pickle=False)
            totals = {str(name): float(value) for name, value in head["totals"].items()}
            if (str(values.dtype), values.ndim) in (("int32", 1), ("float32", 2)):
                names = (head["devices"], head["prepared"], head["environments"])
                return cls(values, totals, *(list(map(str, part)) for part in names))
        except Exception:  # numpy and its parser of headers raise nearly any error
            pass
        return None


class Outcomes:
    """The outcomes of one spec for the first examples in the fixed order. Every write to the store contains
    all rows, so an interrupted run loses at most the last seconds of work. With `anew`, stored outcomes are
    not used, and are replaced only if more examples are measured."""

    def __init__(self, store: Store, key: str, *, anew: bool = False) -> None:
        self._store, self.key = store, key
        data = store.outcomes(key)
        stored = None if data is None else OutcomeRows.decoded(data)
        self._kept = 0 if stored is None else len(stored.values)
        none = OutcomeRows(np.empty(0, np.int32), {}, (), (), ())
        self.known = none if stored is None or anew else stored
        self._written = time.monotonic()

    def __len__(self) -> int:
        return len(self.known.values)

    @property
    def totals(self) -> Mapping[str, float]:
        return self.known.totals

    def extend(self, more: OutcomeRows) -> None:
        """Append the outcomes of the next examples in the fixed order."""
        self.known = self.known.followed_by(more)
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.keep()

    def keep(self) -> None:
        """Write the outcomes to the store if any of them are new."""
        if len(self) > self._kept:
            self._store.keep_outcomes(self.key, self.known.encoded())
            self._kept, self._written = len(self), time.monotonic()

    def values(self, n: int) -> np.ndarray:
        return self.known.values[:n]
