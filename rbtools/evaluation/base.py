"""The parts of an evaluation: a task with its outputs, batches of examples, and outcomes in the store.

An output is one whole number per example, and the entries computed from all of them. Nothing here imports
torch before a batch is measured: a task whose outcomes are all stored only reads them.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from rbtools import registry
from rbtools.errors import RbError
from rbtools.lazy import nn, np, torch
from rbtools.rng.draws import Draws
from rbtools.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    Entries = Sequence[dict[str, Any]]
    # Which images (N,) are classified correctly under a corruption at a severity: 1 or 0.
    Correct = Mapping[tuple[str, int], np.ndarray]


# Examples that are attacked together, independent of the memory batch, for images of 32x32 and larger;
# smaller images allow more. The size changes results through the rounding of kernels only, so it is fixed for
# each kind of device and size of image.
BATCH = {"cpu": 128, "cuda": 2048}
# Images that go through the model at once: fewer than a batch, so that chunks stay full as examples drop out.
# On an H200 PR of 2,000 images took 1.27 s, and 1.35 with batch=512.
CHUNK = {"cpu": 64, "cuda": 1024}
# If an attack draws for the whole batch (AutoAttack's own code), batches have the same size everywhere.
REFERENCE_BATCH = 128
# The overhead of a call does not depend on the size of the images: 8x8 pixels take half the time each in
# batches of 512 (0.065 ms in float32, 0.037 in bf16 against 0.11 and 0.07 in batches of 64; a cell network on
# AMD EPYC).
_PIXELS, _MOST = 32 * 32, 4
VERSION = 2  # version of the computation of outcomes
_SECONDS_BETWEEN_WRITES = 2.0


def batch_size(device: torch.device, shape: Sequence[int]) -> int:
    """How many images (C, H, W) of this shape are attacked together."""
    return BATCH.get(device.type, BATCH["cpu"]) * min(_smaller(shape), _MOST)


def default_chunk_size(device: torch.device, shape: Sequence[int]) -> int:
    """How many images (C, H, W) of this shape go through a model at once without --batch."""
    return min(CHUNK.get(device.type, CHUNK["cpu"]) * _smaller(shape), batch_size(device, shape))


def _smaller(shape: Sequence[int]) -> int:
    """How many images of this shape have as many pixels as one of 32x32; 1 for larger images."""
    return max(_PIXELS // (shape[-2] * shape[-1]), 1)


class Batch:
    """Some examples and the models that a task evaluates on them.

    images: float32 (N, C, H, W) in [0, 1]; labels: int64 (N,); ids: int64 (N,), the examples' positions in
    their split, which key their random numbers. `model` decides; `fast_model` computes the same function,
    possibly faster and less exactly. `precomputed`: outcomes (N,) of outputs that need not be measured.
    `draw`: of a randomised model, the number of the pass that decides; None for any other model. `watch`
    takes in words how far an attack on the batch is.
    """

    draw: int | Tensor | None = None
    watch: Callable[[str], None] | None = None

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        ids: Tensor,
        *,
        seed: int,
        chunk_size: int,
        fast_model: nn.Module | None = None,
        precomputed: Mapping[Any, Tensor] | None = None,
    ) -> None:
        self.model, self.images, self.labels, self.ids = model, images, labels, ids
        self.seed, self.chunk_size = seed, chunk_size
        self.fast_model = model if fast_model is None else fast_model
        self.precomputed = precomputed or {}

    def draws(self, stream: str) -> Draws:
        """Random numbers for these examples, independent of every other stream."""
        return Draws(self.seed, stream, self.ids)

    def logits(self, images: Tensor) -> Tensor:
        """Logits (N, K) in float32, at most `chunk_size` images at a time. Raises RbError if they are not
        finite."""
        logits = self.unchecked_logits(images)
        if not torch.isfinite(logits).all():
            first = int((~torch.isfinite(logits)).any(1).nonzero()[0])
            raise RbError(
                f"The model's output for image {int(self.ids[first])} is not finite (NaN or infinity)."
                " Check its weights and its normalisation."
            )
        return logits

    def unchecked_logits(self, images: Tensor) -> Tensor:
        """As `logits`, without the check for finite values, for which a GPU would have to wait."""
        with torch.no_grad():
            parts = images.split(self.chunk_size)
            if self.draw is None:
                return torch.cat([self.model(part).float() for part in parts])
            from rbtools.rng.foreign import ExampleNumbers

            draws, results = torch.as_tensor(self.draw, device=self.ids.device).expand_as(self.ids), []
            for part, ids, passes in zip(
                parts, self.ids.split(self.chunk_size), draws.split(self.chunk_size), strict=True
            ):
                with ExampleNumbers(self.seed, "model", ids, passes):
                    results.append(self.model(part).float())
            return torch.cat(results)

    def correct(self, images: Tensor) -> Tensor:
        """Which images (N, ...) of these examples the model classifies correctly: bool (N,)."""
        return self.logits(images).argmax(1).eq(self.labels)

    def judged(self, model: nn.Module, images: Tensor) -> Tensor:
        """Which images (N, ...) another model classifies correctly: bool (N,)."""
        with torch.no_grad():
            predictions = torch.cat([model(part).argmax(1) for part in images.split(self.chunk_size)])
        return predictions.eq(self.labels)

    @cached_property
    def clean_logits(self) -> Tensor:
        """The logits (N, K) of the unchanged images."""
        return self.logits(self.images)

    @cached_property
    def clean(self) -> Tensor:
        """Which of the unchanged images are classified correctly: bool (N,)."""
        return self.clean_logits.argmax(1).eq(self.labels)

    @property
    def one_by_one(self) -> bool:
        """Whether every image goes through the model alone, because random numbers of the model belong to its
        batch."""
        return bool(getattr(self.model, "one_by_one", False))

    def right(self) -> Tensor:
        """Which of the images are classified correctly, 1 or 0: int64 (N,)."""
        return self.correct(self.images).long()

    def at_draw(self, number: int | Tensor) -> Batch:
        """The same batch in another pass of a randomised model, a number or one each (N,)."""
        batch = self.take(slice(None))
        batch.draw = number
        return batch

    def with_images(self, images: Tensor) -> Batch:
        """The same examples with other images (N, C, H, W)."""
        batch = self.take(slice(None))
        batch.images = images
        return batch

    def in_chunks(self, chunk_size: int) -> Batch:
        """The same batch with another number of images that go through a model at once."""
        batch = copy(self)
        batch.chunk_size = chunk_size
        return batch

    def take(self, rows: Tensor | slice) -> Batch:
        """The batch of some of the examples: where a mask is true, at positions, or a slice."""
        batch = Batch(
            self.model,
            self.images[rows],
            self.labels[rows],
            self.ids[rows],
            seed=self.seed,
            chunk_size=self.chunk_size,
            fast_model=self.fast_model,
        )
        batch.draw = self.draw[rows] if isinstance(self.draw, torch.Tensor) else self.draw
        batch.watch = self.watch
        return batch


class Outcome(NamedTuple):
    """Result of an output on a batch: outcomes (N,) or rows (N, R), sums over them (without "seconds", those
    of the batch are used), and the perturbed images (N, C, H, W) to save.
    """

    values: Tensor
    totals: dict[str, float]
    images: Tensor | None = None


class Output:
    """One outcome per example, a whole number, and the entries computed from all of them.

    detail: the row of an example is its label and its logits, in place of a bit.
    """

    detail: bool = False

    @property
    def random(self) -> bool:
        """Whether the outcomes depend on the seed."""
        return True

    @property
    def implicit(self) -> bool:
        """Whether this is computed along with others and was not requested."""
        return False

    @property
    def allow_fast_model(self) -> bool:
        """Whether it may run on the fast model, because the float32 model confirms its decisions."""
        return False

    @property
    def batch_dependent(self) -> bool:
        """Whether the outcome of an example depends on the other examples of its batch."""
        return False

    @property
    def whole_batch(self) -> int | None:
        """The size of a batch on which outcomes depend; None where the device chooses it."""
        return REFERENCE_BATCH if self.batch_dependent else None

    @property
    def undivided(self) -> str | None:
        """Why one process has to compute all batches, as what the task does; None if several may."""
        return "draws its random numbers for a whole batch" if self.batch_dependent else None

    @property
    def fixed_batches(self) -> bool:
        """Whether an outcome or its cost depends on the batch size, by rounding too. It does if images are
        dropped from a batch during the work: kernels round differently for few images.
        """
        return True

    @property
    def copies_together(self) -> int:
        """The factor by which batches are smaller: the number of copies of an example that go through the
        network together, or more than 1 if an example takes long by itself."""
        return 1

    @property
    def needs_other_outputs(self) -> bool:
        """Whether outcomes of other outputs are needed to measure it."""
        return False

    @property
    def metric(self) -> str | None:
        """The accuracy that the progress line shows; None for none."""
        return None

    def key_fields(self) -> dict[str, Any]:
        """Everything that determines the outcomes, apart from model, data and seed.

        The settings of `entry_template` must follow from these and `postprocess_key`: entries are stored by
        them, and found with the settings that they had.
        """
        raise NotImplementedError

    def postprocess_key(self) -> dict[str, Any]:
        """The fields that determine the entries besides the outcomes."""
        return {}

    def measure(self, batch: Batch) -> Tensor | Outcome:
        """Outcomes (N,) for the examples of a batch, or an `Outcome`."""
        raise NotImplementedError

    def correct(self, outcomes: np.ndarray) -> np.ndarray:
        """Which examples (n,) are classified correctly, from their outcomes or rows: bool."""
        correct: np.ndarray = outcomes[:, 1:].argmax(1) == outcomes[:, 0] if self.detail else outcomes > 0
        return correct

    def counted(self, outcomes: np.ndarray, entry: Mapping[str, Any]) -> np.ndarray | None:
        """Which examples (n,) count in the value of one of its entries: bool. None where it is no share of
        examples."""
        return self.correct(outcomes)

    def judged_images(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """The images (N, C, H, W) that the model judges, for an outcome that is whether it is right, and sums
        over the examples."""
        raise NotImplementedError

    def about(self, totals: Mapping[str, float], n: int) -> dict[str, Any]:
        """Further fields of the entries, from the sums over n examples."""
        return {}

    def entry_template(self) -> list[dict[str, Any]]:
        """The fields of each entry that do not depend on outcomes: its metric and its settings."""
        raise NotImplementedError

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        """The entries with value and interval, from outcomes and the sums over them."""
        raise NotImplementedError


class OutputOf(Output):
    """The base of an output that judges another one, `inner`, in its own way."""

    inner: Any

    @property
    def implicit(self) -> bool:
        return bool(self.inner.implicit)

    @property
    def metric(self) -> str | None:
        metric: str | None = self.inner.metric
        return metric


class EvalTask:
    """A set of outputs that share work.

    `save`: a folder for the adversarial images; `png`: as PNGs, too. `gaps`: metrics whose generalisation gap
    is test minus train.
    """

    save: str | None = None
    png: bool = False
    gaps: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """A few words for the progress line."""
        raise NotImplementedError

    def outputs(self) -> Sequence[Output]:
        """All outputs, in the order of their entries."""
        raise NotImplementedError

    def run(self, batch: Batch, wanted: Sequence[Output]) -> Sequence[Tensor | Outcome]:
        """The results of `measure` of each wanted output, for outputs that share work."""
        return [output.measure(batch) for output in wanted]

    def summarize(
        self, entries: Entries, implicit_entries: Entries, correct_images: Callable[[], Correct]
    ) -> Entries:
        """Entries computed from the others; `correct_images` gives the correctly classified images."""
        return []


def method_key(kind: str, word: str, method: Any) -> dict[str, Any]:
    """The key fields of an output of a registered method: its name (as `word`), version and configuration."""
    return {"kind": kind, word: method.name, "version": method.version, "config": registry.config(method)}


class TilePart(NamedTuple):
    """Outcomes of one output for some consecutive examples: the arguments of `Outcomes.extend`."""

    values: np.ndarray
    totals: Mapping[str, float]
    device: str
    fast_steps: Sequence[str] = ()
    environment: str = ""

    def encoded(self) -> bytes:
        """The part in the format of stored outcomes."""
        rows = _rows(self.values)
        return encoded(rows, self.totals, [self.device], self.fast_steps, [self.environment])

    @classmethod
    def decoded(cls, data: bytes) -> TilePart | None:
        """Decode a stored part; None for damaged data."""
        values, totals, devices, fast_steps, environments = _decoded(data)
        if values is None or len(devices) != 1 or len(environments) != 1:
            return None
        return cls(values, totals, devices[0], fast_steps, environments[0])


class Outcomes:
    """The outcomes of one output for a prefix of the examples' fixed order.

    A row is a whole number, or some float32 numbers. Every write contains all rows, so that an interrupted
    run loses at most the last seconds. `totals` are sums over the examples and over all runs that computed
    them: seconds, passes and other counts; `devices` are the devices used, `fast_steps` the steps that made
    the fast model, `environments` the values of `device.environment`, "" if unknown. With `anew`
    stored outcomes are ignored, and stay in the store unless these are of more examples. `least`: fewer
    outcomes are not kept.
    """

    def __init__(self, store: Store, key: str, *, anew: bool = False, least: int = 0) -> None:
        self._store, self.key, self._least = store, key, least
        stored = store.outcomes(key)
        self.totals: dict[str, float] = {}
        self.devices: list[str] = []
        self.fast_steps: list[str] = []
        self.environments: list[str] = []
        self._values: np.ndarray | None = None
        self._kept = 0
        if stored is not None:
            decoded = _decoded(stored)
            self._kept = 0 if decoded[0] is None else len(decoded[0])
            if not anew:
                self._values, self.totals, self.devices, self.fast_steps, self.environments = decoded
        self._written = time.monotonic()

    def __len__(self) -> int:
        return 0 if self._values is None else len(self._values)

    def extend(
        self,
        values: np.ndarray,
        totals: Mapping[str, float],
        device: str,
        fast_steps: Sequence[str] = (),
        environment: str = "",
    ) -> None:
        """Append the outcomes of the next examples in the order, and add their sums, device, steps and
        environment."""
        rows = _rows(values)
        self._values = rows if self._values is None else np.concatenate([self._values, rows])
        for name, value in totals.items():
            self.totals[name] = self.totals.get(name, 0.0) + value
        self.devices = sorted({*self.devices, device})
        self.fast_steps = sorted({*self.fast_steps, *fast_steps})
        self.environments = sorted({*self.environments, environment})
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.keep()

    def keep(self) -> None:
        """Write the outcomes to the store if there are new ones."""
        if self._values is not None and len(self) > self._kept and len(self) >= self._least:
            data = encoded(self._values, self.totals, self.devices, self.fast_steps, self.environments)
            self._store.keep_outcomes(self.key, data)
            self._kept, self._written = len(self), time.monotonic()

    def values(self, n: int) -> np.ndarray:
        """The outcomes of the first n examples."""
        return np.empty(0, np.int32) if self._values is None else self._values[:n]


def _rows(values: np.ndarray) -> np.ndarray:
    """Rows as they are stored."""
    return values.astype(np.int32 if values.ndim == 1 else np.float32)


def encoded(
    values: np.ndarray,
    totals: Mapping[str, float],
    devices: Sequence[str],
    fast_steps: Sequence[str] = (),
    environments: Sequence[str] = ("",),
) -> bytes:
    """Outcomes in the store's format: a line of JSON, then the array in numpy's .npy format."""
    buffer = io.BytesIO()
    rounded = {name: round(value, 3) for name, value in totals.items()}
    head = {"totals": rounded, "devices": list(devices), "prepared": list(fast_steps)}
    head["environments"] = list(environments)
    buffer.write(orjson.dumps(head) + b"\n")
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def _decoded(data: bytes) -> tuple[np.ndarray | None, dict[str, float], list[str], list[str], list[str]]:
    """Decode stored outcomes; damaged data decode to none."""
    try:
        line, _, body = data.partition(b"\n")
        head = orjson.loads(line)
        values: np.ndarray = np.load(io.BytesIO(body), allow_pickle=False)
        totals = {str(name): float(value) for name, value in head["totals"].items()}
        if (str(values.dtype), values.ndim) in (("int32", 1), ("float32", 2)):
            names = (head["devices"], head["prepared"], head.get("environments", [""]))
            devices, fast_steps, environments = (list(map(str, part)) for part in names)
            return values, totals, devices, fast_steps, environments
    except Exception:  # numpy and its parser of headers raise nearly any error
        pass
    return None, {}, [], [], []
