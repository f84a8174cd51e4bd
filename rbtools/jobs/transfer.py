"""Transfer attacks: adversarial examples of other records' models, evaluated on a record's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from rbtools.errors import RbError
from rbtools.evaluation import tasks
from rbtools.evaluation.base import Batch, EvalTask, Outcome, Output
from rbtools.evaluation.by_draws import IMAGES
from rbtools.evaluation.tasks import AttackOutput, CleanOutput
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.data import data_of
from rbtools.lazy import torch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

# the fields that loading a model needs besides the checkpoint
DESCRIBES = ("arch", "dataset", "checkpoint_file")
ENSEMBLE = "ensemble"  # stands beside the sources' checkpoints in broken_by_source
_COUNT = "broken_by_source."  # and the number of the attacked model: a sum over the images


@dataclass(frozen=True)
class TransferOutput(AttackOutput):
    """Which examples stay correctly classified when the attack runs on other checkpoints' models.

    sources: their names, in alphabetical order; source_models: what describes them, in the same order.
    """

    sources: tuple[str, ...] = ()
    source_models: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)

    @property
    def allow_fast_model(self) -> bool:
        """The attack runs on the sources in float32; the fast model would have nothing to do."""
        return False

    @property
    def metric(self) -> str:
        return f"transfer.{super().metric}"

    def key_fields(self) -> dict[str, Any]:
        return {**super().key_fields(), "source": _one_or_all(self.sources)}

    def entry_template(self) -> list[dict[str, Any]]:
        models = _one_or_all([dict(model) for model in self.source_models])
        about = {"source": _one_or_all(self.sources), "source_model": models}
        return [{**entry, **about} for entry in super().entry_template()]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        entries = super().entries(outcomes, totals)
        if len(self.sources) == 1:
            return entries
        names = (ENSEMBLE, *self.sources)
        counts = {name: int(totals.get(f"{_COUNT}{number}", 0)) for number, name in enumerate(names)}
        return [{**entry, "broken_by_source": counts} for entry in entries]


@dataclass(frozen=True)
class TransferTask(EvalTask):
    """Accuracy on the adversarial examples of sources: other records' models.

    sources: the records, as JSON. Every example that the evaluated model classifies correctly is attacked on
    the source, at each eps. With several sources it is attacked on the ensemble, whose logits are the mean of
    theirs (Liu et al. 2017, arXiv:1611.02770), then on each source alone in the order of the checkpoints'
    names, until the evaluated model misclassifies it: it survives if it survives all of these attacks.
    """

    method: Any
    eps: tuple[float, ...]
    sources: tuple[str, ...]
    context: Run

    @property
    def title(self) -> str:
        return f"transfer of {self.method.stem}"

    def outputs(self) -> Sequence[Output]:
        names, records = zip(*_by_name(self.sources, self.context), strict=True)
        models = tuple({key: record[key] for key in DESCRIBES if key in record} for record in records)
        attacked = [
            TransferOutput(replace(self.method, eps=eps), sources=names, source_models=models)
            for eps in self.eps
        ]
        return [CleanOutput(), *attacked]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> Sequence[Tensor | Outcome]:
        return [
            self._outcome(batch, output.method) if isinstance(output, TransferOutput) else batch.clean
            for output in wanted
        ]

    def _outcome(self, batch: Batch, method: Any) -> Outcome:
        """Attack on the ensemble and on each source the examples that are left."""
        models: list[Any] = _loaded(self.sources, self.context, batch)
        several = len(models) > 1
        left = batch.clean
        totals: dict[str, float] = {}
        for number, model in enumerate([_mean_logits(models), *models] if several else models):
            result = tasks.run_attack(batch, method, still_correct=left, on=model)
            sums = dict(result.totals)
            if several:
                before = int(left.sum())
                sums[f"{_COUNT}{number}"] = before - int(result.survived.sum())
                if number == 0:  # a pass through the ensemble is one through each source
                    searches = max(sums["forward"] - len(batch.ids) - before, 0)  # 0 without a search
                    sums["forward"] += (len(models) - 1) * searches
                    sums["backward"] *= len(models)
                else:
                    sums["forward"] -= len(batch.ids)  # the unchanged images are classified once
            totals = {name: totals.get(name, 0.0) + sums.get(name, 0.0) for name in {**totals, **sums}}
            left = result.survived
        return Outcome(left, totals)


def _one_or_all(items: Sequence[Any]) -> Any:
    """A field of an entry or a key: a single source is no list, as before there were several."""
    return items[0] if len(items) == 1 else list(items)


def _by_name(sources: Sequence[str], run: Run) -> list[tuple[str, dict[str, Any]]]:
    """The name of each source's checkpoint and its record, sorted: their given order decides nothing."""
    records = map(orjson.loads, sources)
    return sorted(((resolve.checkpoint_name(one, run), one) for one in records), key=lambda pair: pair[0])


def _mean_logits(models: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    """The ensemble of these models."""
    return lambda images: torch.stack([model(images).float() for model in models]).mean(0)


# The last source models and their key: they are loaded once for all records and batches.
_last: list[tuple[Any, list[nn.Module]]] = []


def _loaded(sources: Sequence[str], run: Run, batch: Batch) -> list[nn.Module]:
    """The sources' models in eval mode, their parameters frozen, in the order of their checkpoints' names.

    Raises RbError for one that cannot be loaded, or has other images or classes than the evaluated model.
    """
    from rbtools.evaluation.randomised import controlled, randomness_of

    classes, where = batch.clean_logits.shape[1], batch.images.device
    key = (
        sources,
        run.selection.dataset,
        run.selection.split,
        run.selection.data_dir,
        run.selection.class_map,
        run.store.folder,
        where,
        batch.images.shape[1:],
        classes,
    )
    if not _last or _last[0][0] != key:
        models = []
        for name, record in _by_name(sources, run):
            try:
                bare = run.changed(defend=None)
                model = resolve.load_model(record, data_of(record, run), bare, where)
                _check_fits(model, batch.images[:1], classes)
                model = controlled(model, randomness_of(model, batch.images[:IMAGES]))
            except RbError as wrong:
                which = f" {name[:19]}..." if len(sources) > 1 else ""
                raise RbError(f"The model{which} of --from cannot be attacked. {wrong}") from None
            models.append(model)
        _last[:] = [(key, models)]
    return _last[0][1]


def _check_fits(model: nn.Module, image: Tensor, classes: int) -> None:
    """Raise RbError for a model that does not take such an image (1, C, H, W), or has other classes."""
    try:
        with torch.no_grad():
            found = model(image).shape[1]
    except RuntimeError as error:
        shape = "x".join(map(str, image.shape[1:]))
        raise RbError(
            f"It does not take images of {shape}, which the evaluated model takes: {error}"
        ) from None
    if found != classes:
        raise RbError(
            f"It has {found} classes, and the evaluated model has {classes}. Expected a model of the same"
            " classes."
        )
