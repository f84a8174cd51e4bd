"""Converts the accepted inputs of `evaluate` (images, labels, model, task), and defines its result."""

from __future__ import annotations

import contextlib
import html
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from rbtools import check_input, units
from rbtools.attacks.base import Attack
from rbtools.certification.smooth import Smooth
from rbtools.corruptions.base import Corruption
from rbtools.datasets import preprocessing
from rbtools.datasets.given import pair
from rbtools.datasets.indices import ORDER
from rbtools.errors import RbError, as_arguments
from rbtools.evaluation import accuracy, attacking, model_checks, under_corruption
from rbtools.evaluation.base import VERSION, Outcome, Outcomes
from rbtools.evaluation.randomised import LOOKED, Randomness, batch_of_look, logits_of, look
from rbtools.evaluation.spec import Evaluation, Spec
from rbtools.execution import precision as precisions
from rbtools.execution.device import named
from rbtools.execution.settings import Settings
from rbtools.inputs.data import images_hash, weights_hash
from rbtools.lazy import nn, torch
from rbtools.probabilistic.distributions import Noise
from rbtools.rng import seed_fields
from rbtools.store import Store, digest
from rbtools.training.base import mode

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.datasets.streaming import Streamed

_TASKS = (
    "an attack such as PGD(eps=8 / 255), a corruption with its severity such as (Fog(), 3), a noise with its"
    " radius such as (Uniform(), 0.1), (Smooth(), 0.5), or 'acc'"
)


class GivenData(NamedTuple):
    """Images (N, C, H, W), uint8 or floats in [0, 1]; labels int64 (N,); and named data's fingerprint."""

    images: Tensor | Streamed
    labels: Tensor
    fingerprint: str | None = None


def data_of(given: Any, *, kept: bool, **options: Any) -> GivenData:
    """The images and labels of (images, labels), of a Dataset or DataLoader of such pairs, or of a named data
    set.

    If results are stored (`kept`), the images must have the same order every time. `options` scale
    and crop the images of a named data set (`datasets.source`). Raises RbError if the images or labels have
    another form.
    """
    scaled = preprocessing.of_arguments(given, options)
    if isinstance(given, str):
        from rbtools.execution.run import Run
        from rbtools.inputs import data

        named = data.data_of({}, Run.of(dataset=given, preprocessing=None if scaled is None else str(scaled)))
        dataset = named.load()
        return GivenData(dataset.images, dataset.labels, named.fingerprint)
    return GivenData(*pair(given, in_order=kept))


def task_of(given: Any) -> Evaluation:
    """The evaluation for an attack, corruption, noise or other task. Raises RbError for any other object."""
    method, strength = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if isinstance(given, Evaluation):
        return given
    if given == "acc":
        return accuracy.clean()
    if isinstance(method, Attack) and strength is None:
        method.check_distance()
        if (
            method.in_ball
            and method.norm == "l2"
            and (slip := units.eps_slip(method.eps, "l2"))
            and not method.minimal
        ):
            warnings.warn(f"eps={method.eps:g} {as_arguments(slip)}", stacklevel=4)
        return accuracy.attacked(method, (method.strength,))
    if isinstance(method, Corruption) and strength is not None:
        if strength not in units.SEVERITIES:
            raise RbError(f"The severity is {strength}. Expected 1, 2, 3, 4 or 5.")
        return under_corruption.corrupted((method,), (int(strength),))
    if isinstance(strength, int | float):
        _check_radius(method, strength)
    if isinstance(method, Noise) and isinstance(strength, int | float):
        from rbtools.evaluation.probabilistic import noisy
        from rbtools.probabilistic.estimate import Estimator

        return noisy(method, (float(strength),), Estimator(rho=()), samples=100)
    if isinstance(method, Smooth) and isinstance(strength, int | float):
        from rbtools.evaluation import certified

        return certified.certified(method, (float(strength),), warnings.warn)
    raise RbError(f"The task is {given!r}. Expected {_TASKS}.")


def able(evaluation: Evaluation, model: nn.Module) -> Evaluation:
    """The evaluation, or the part of it that can run if the model can only be queried."""
    answers = attacking.answers_of(model)
    return evaluation.for_answers(answers, eight_bit=False) if answers in ("labels", "logits") else evaluation


def _check_radius(method: Any, radius: float) -> None:
    """Raise RbError if the command of the method would not accept the radius."""
    linf, positive = getattr(method, "norm", "linf") == "linf", isinstance(method, Noise)
    if not math.isfinite(radius) or radius < 0 or (linf and radius > 1) or (positive and radius == 0):
        expected = f"{'above 0' if positive else '0 or more'}{' and at most 1' if linf else ''}"
        hint = f"; {radius:g}/255 is {radius:g} / 255" if linf and 1 < radius <= 255 else ""
        raise RbError(f"The radius is {radius:g}. Expected {expected} (pixels are in [0, 1]){hint}.")


def model_of(given: Any, data: GivenData, device: str) -> tuple[nn.Module, torch.device]:
    """The model as a module, and its device. Raises RbError if `given` is not a usable model."""
    with in_eval_mode(given, warn=True):
        check_input.check_model(given)
        network = given if isinstance(given, nn.Module) else _of_function(given, data)
        first = next(network.parameters(), None)
        place = torch.device("cpu") if first is None else first.device
        if device != "auto":
            place = named(str(device), 'device="cpu" or "auto"')
            if first is not None:
                check_input.check_device(network, place, "The evaluation is")
        images, labels = (part[: check_input.PROBED] for part in data[:2])
        network, _, _ = check_input.checked(
            network, images.to(place), labels, every=data.labels, probabilities=True
        )
        return network, place


@contextlib.contextmanager
def in_eval_mode(given: Any, warn: bool = False) -> Iterator[None]:
    """Put a module that is in train mode into eval mode inside the `with` block."""
    layer = check_input.layer_in_train_mode(given)
    if layer is None:
        yield
        return
    if warn:
        warnings.warn(
            f"The model is in training mode, in which its {layer} depends on the batch or on chance. It will"
            " be evaluated in eval mode. To avoid this warning, call model.eval() first.",
            stacklevel=6,
        )
    with mode(given, train=False):
        yield


def looked_at(
    network: nn.Module, data: GivenData, order: Tensor, place: torch.device, cache: Cache
) -> tuple[Randomness, Tensor | None]:
    """The randomness of a network, and its logits for the first images in the order if they were computed.

    Warns if the outputs or the normalisation look wrong. Raises RbError for the same models as
    `Randomness.checked`.
    """
    ids = order[: model_checks.FIRST]
    batch, passed = batch_of_look(data.images, len(data.labels)), list["Tensor | None"]()
    more = torch.arange(len(data.labels))[: batch + len(ids)]  # with few images, others fill the batch
    filled = torch.cat([ids, more[~torch.isin(more, ids)][: max(batch - len(ids), 0)]])
    images = check_input.floats(data.images[filled].to(place))

    def logits() -> Tensor | None:
        passed.extend([] if passed else [logits_of(network, images, batch)])
        return passed[0]

    def find() -> dict[str, Any]:
        some = logits()
        return look(network, images[:batch], None if some is None else some[:batch])._asdict()

    randomness = Randomness(**cache.found("randomness", {}, find)).checked()
    if randomness.randomised:
        passed[:] = [None]  # the next pass has other numbers

    def judge() -> dict[str, Any]:
        known, labels = logits(), data.labels[ids].to(place)
        known = None if known is None else known[: len(ids)]
        return {"warnings": model_checks.in_memory(network, images[: len(ids)], labels, known)}

    texts: list[str] = []
    with contextlib.suppress(Exception):  # whatever the network raises
        texts = cache.found("looks", {"n": len(ids)}, judge)["warnings"]
    for text in texts:
        warnings.warn(text, stacklevel=4)
    first = logits() if passed else None
    return randomness, None if first is None else first[: len(ids)]


def _of_function(given: Any, data: GivenData) -> nn.Module:
    from rbtools.models.answering import answering

    images = check_input.floats(data.images[: check_input.PROBED])
    return answering(given, images, int(data.labels.max()) + 1) or _Function(given)


class _Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images)


class Cache:
    """Stores results about a model and its data under a hash of both. Without a store, nothing is kept."""

    def __init__(self, store: Any, model: Any, data: GivenData) -> None:
        self.store = store if isinstance(store, Store) else Store(store)
        self.fields: dict[str, Any] = {"kind": "outcomes", "version": VERSION, "order": ORDER}
        if store is not None:
            content = data.fingerprint or images_hash(data.images, data.labels)
            self.fields |= {"model": weights_hash(model), "data": content}

    def outcomes(self, spec: Spec, settings: Settings, n: int, *, anew: bool) -> Outcomes:
        named = settings.precision if spec.searches and not spec.precise else "fp32"
        arithmetic = {"precision": named, **({"prepared": precisions.PREPARED} if spec.searches else {})}
        seed = seed_fields(settings.seed) if spec.random else {}
        whole = {"n": n} if spec.batch_dependent else {}
        key = digest({**self.fields, **arithmetic, **seed, **whole, "column": spec.column()})
        return Outcomes(self.store, key, anew=anew)

    def found(self, kind: str, fields: dict[str, Any], find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The fields that `find` returns, or the stored ones if they were stored before."""
        key = f"{kind}:{digest({**self.fields, **fields, 'version': LOOKED})}"
        stored = self.store.get(key)
        if stored is None:
            stored = orjson.dumps(find()).decode()
            self.store.put(key, stored)
        return dict(orjson.loads(stored))


class KeptImages:
    """The perturbed images of an evaluation, by spec."""

    def __init__(self) -> None:
        self.parts: dict[Any, list[tuple[Tensor, Tensor]]] = {}

    def __call__(self, spec: Any, ids: Tensor, outcome: Outcome) -> None:
        assert outcome.images is not None
        self.parts.setdefault(spec, []).append((ids.cpu(), outcome.images.cpu()))

    def of(self, spec: Any) -> Tensor | None:
        """The images (n, C, H, W), ordered by their position in the data, or None."""
        if spec not in self.parts:
            return None
        ids, images = zip(*self.parts[spec], strict=True)
        return torch.cat(images)[torch.cat(ids).argsort()]


@dataclass(frozen=True, repr=False)
class Result:
    """The result of `rbtools.evaluate` for one task.

    `metric` is its name in records ("pgd20.8"), `value` is a share of the images in [0, 1], `ci95` is the 95
    % interval, and `n` is the number of images. `ids` are the positions of the images in the data, int64
    (n,), ascending. `correct`, bool (n,), is true if an image is classified correctly under the task (for a
    noise, in every noisy copy). `outcomes` contains the stored number or row of each image, (n,) or (n, R).
    `images` are the perturbed images (n, C, H, W), or None if they were not kept. `seconds` is the computing
    time. `entry` is the entry that a record would contain.
    """

    metric: str
    value: float
    ci95: tuple[float, float]
    n: int
    ids: Tensor
    correct: Tensor
    outcomes: Tensor
    images: Tensor | None
    seconds: float
    entry: dict[str, Any]

    def __repr__(self) -> str:
        low, high = self.ci95
        return (
            f"{self.metric} {self.value:.4f} (95 % interval {low:.4f} to {high:.4f}, {self.n:,} images,"
            f" {self.seconds:.1f} s)"
        )

    def _repr_html_(self) -> str:
        return ResultList([self])._repr_html_()


class ResultList(list[Result]):
    """The results of several tasks, which a notebook shows as one table."""

    def _repr_html_(self) -> str:
        rows = [["metric", "value", "95 % interval", "images", "seconds"]]
        for one in self:
            low, high = one.ci95
            measured = [f"{one.value:.4f}", f"{low:.4f} to {high:.4f}", f"{one.n:,}", f"{one.seconds:.1f}"]
            rows.append([html.escape(one.metric), *measured])
        head, *lines = ("<td>" + "</td><td>".join(row) + "</td>" for row in rows)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><thead><tr>{head.replace('td>', 'th>')}</tr></thead><tbody>{body}</tbody></table>"


def results_of(
    evaluation: Evaluation,
    columns: Sequence[Sequence[Spec]],
    outcomes: Sequence[Outcomes],
    order: Tensor,
    settings: Settings,
    images: KeptImages | None,
) -> list[Result]:
    """The results of the requested specs. Specs with the same column share their outcomes. Warns if an attack
    left its ball, because its results may then mislead."""
    results = []
    for column, known in zip(columns, outcomes, strict=True):
        for spec in column:
            if spec in evaluation.specs:
                results.append(_result_of(spec, known, order, settings, images))
                for text in results[-1].entry.get("warnings", ()) if known.totals.get("outside") else ():
                    warnings.warn(f"{results[-1].metric}: {text}", stacklevel=5)
    return results


def _result_of(
    spec: Spec, known: Outcomes, order: Tensor, settings: Settings, images: KeptImages | None
) -> Result:
    """The result of a spec, computed from the outcomes of the examples in `order` (n,)."""
    outcomes = known.values(len(order))
    seed = seed_fields(settings.seed) if spec.random else {}
    seconds = round(known.totals.get("seconds", 0.0), 3)
    entry: Any = {**spec.entry(outcomes, known.totals), **seed, "seconds": seconds}
    back = order.argsort().numpy()
    low, high = entry["ci95"]
    return Result(
        metric=entry["metric"],
        value=entry["value"],
        ci95=(low, high),
        n=len(order),
        ids=order.sort().values,
        correct=torch.from_numpy(spec.correct(outcomes)[back]),
        outcomes=torch.from_numpy(outcomes[back]),
        images=None if images is None else images.of(spec),
        seconds=seconds,
        entry=entry,
    )
