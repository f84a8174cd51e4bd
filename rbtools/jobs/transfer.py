"""Transfer attacks, which evaluate a record's model on adversarial examples of other records' models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from rbtools.attacks import ATTACKS
from rbtools.errors import RbError
from rbtools.evaluation import attacking
from rbtools.evaluation.accuracy import Attacked, Clean, kept_of
from rbtools.evaluation.base import Batch, Outcome
from rbtools.evaluation.randomised import IMAGES, controlled, look
from rbtools.evaluation.spec import Entry, Evaluation, rebuilt
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.data import data_of
from rbtools.lazy import torch
from rbtools.records import dumps, metric_name

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn
    from typing_extensions import Self

# the fields that are needed to load a model, besides the checkpoint
DESCRIBES = ("arch", "dataset", "preprocessing", "checkpoint_file")
ENSEMBLE = "ensemble"  # a key of broken_by_source, beside the sources' checkpoints
_SOURCES = "sources of transfer"  # the key of the loaded models in `Run.kept`
_COUNT = "broken_by_source."  # followed by the number of the attacked model: a sum over images


@dataclass(frozen=True, kw_only=True)
class Transferred(Attacked):
    """Accuracy under an attack that runs on other checkpoints' models.

    Every example that the evaluated model classifies correctly is attacked on the source model. If there are
    several sources, the example is first attacked on their ensemble, which averages the logits (Liu et al.
    2017, arXiv:1611.02770). The example is then attacked on each source in the order of the checkpoints'
    names, until the evaluated model misclassifies it. An example survives if it survives all of these
    attacks.

    `sources` contains the names of the checkpoints in alphabetical order, and `models` their descriptions in
    the same order. `records` (the records of the sources as JSON) are needed only for the measurement.
    """

    sources: tuple[str, ...] = ()
    models: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    records: tuple[str, ...] = field(default=(), compare=False)

    @property
    def most_passes(self) -> int:
        return super().most_passes * (len(self.sources) + (len(self.sources) > 1))

    searches = False  # the attack runs on the sources in float32

    def by_draws(self, draws: int) -> None:
        return None

    def without_grid(self) -> None:
        return None

    def name(self) -> str:
        return f"transfer.{super().name()}"

    def column(self) -> Entry:
        return {**super().column(), "source": _one_or_all(self.sources)}

    def about(self) -> Entry:
        models = _one_or_all([dict(model) for model in self.models])
        return {**super().about(), "source": _one_or_all(self.sources), "source_model": models}

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        found = super().findings(rows, totals)
        if len(self.sources) == 1:
            return found
        names = (ENSEMBLE, *self.sources)
        counts = {name: int(totals.get(f"{_COUNT}{number}", 0)) for number, name in enumerate(names)}
        return {**found, "broken_by_source": counts}

    @classmethod
    def rows_together(cls, specs: Sequence[Self], batch: Batch) -> list[Outcome]:
        return [spec.rows(batch) for spec in specs]

    def rows(self, batch: Batch) -> Outcome:
        """Attack the examples that are still correct, first on the ensemble and then on each source."""
        assert batch.load is not None
        models: list[Any] = batch.load(self.records, batch)
        for model in models:
            attacking.check_answers(model, self.method)
        several = len(models) > 1
        left = batch.clean
        totals: dict[str, float] = {}
        for number, model in enumerate([_mean_logits(models), *models] if several else models):
            result = attacking.run_attack(batch, self.method, still_correct=left, on=model)
            sums = dict(result.totals)
            if several:
                before = int(left.sum())
                sums[f"{_COUNT}{number}"] = before - int(result.survived.sum())
                if number == 0:  # a pass through the ensemble passes through each source
                    searches = max(sums["forward"] - len(batch.ids) - before, 0)  # 0 without a search
                    sums["forward"] += (len(models) - 1) * searches
                    sums["backward"] *= len(models)
                else:
                    sums["forward"] -= len(batch.ids)  # the unchanged images are classified once
            totals = {name: totals.get(name, 0.0) + sums.get(name, 0.0) for name in {**totals, **sums}}
            left = result.survived
        return Outcome(left, totals)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Self | None:
        sources, models = (_listed(entry.get(name)) for name in ("source", "source_model"))
        if len(models) != len(sources) or not all(isinstance(model, Mapping) for model in models):
            return None
        if not all(isinstance(source, str) for source in sources):
            return None
        method = rebuilt(ATTACKS, entry.get("attack"), entry)
        if method is None or not metric_name.of_other_network(entry["metric"]):
            return None
        named = zip(sources, models, strict=True)
        records = tuple(dumps({**model, "checkpoint": name}).decode() for name, model in named)
        about = {"sources": tuple(sources), "models": tuple(models), **kept_of(entry)}
        return cls(method=method, records=records, **about)


def transferred(method: Any, eps: Sequence[float], records: tuple[str, ...], run: Run) -> Evaluation:
    """Clean accuracy, and accuracy under transfer from the models in `records`."""
    names, models = zip(*_by_name(records, run), strict=True)
    described = tuple({key: model[key] for key in DESCRIBES if key in model} for model in models)
    given: dict[str, Any] = {"sources": names, "models": described, "records": records}
    specs = tuple(Transferred(method=method.at(one), **given) for one in eps)
    return Evaluation(title=f"transfer of {method.stem}", specs=specs, along=(Clean(),))


def _one_or_all(items: Sequence[Any]) -> Any:
    """A field of an entry or key: a list, or the item itself if there is only one source."""
    return items[0] if len(items) == 1 else list(items)


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _by_name(sources: Sequence[str], run: Run) -> list[tuple[str, dict[str, Any]]]:
    """The checkpoint name and the record of each source, sorted by checkpoint name."""
    records = map(orjson.loads, sources)
    return sorted(((resolve.checkpoint_name(one, run), one) for one in records), key=lambda pair: pair[0])


def _mean_logits(models: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    return lambda images: torch.stack([model(images).float() for model in models]).mean(0)


def loaded(run: Run, sources: Sequence[str], batch: Batch) -> list[nn.Module]:
    """The sources' models in the order of the checkpoints' names, in eval mode with frozen parameters. They
    are loaded once for all records and batches of the run, which evaluates the other models. Raises RbError
    if a model cannot be loaded, or if images or classes differ from the evaluated model's."""
    classes, where = batch.clean_logits.shape[1], batch.images.device
    chosen = run.selection
    images = (chosen.dataset, chosen.split, chosen.data_dir, chosen.class_map, chosen.preprocessing)
    named = (tuple(sources), *images, run.store.folder)
    key = (*named, where, batch.images.shape[1:], classes)
    last, models = run.kept.get(_SOURCES, (None, []))
    if last != key:
        models = []
        bare = run.changed(defend=None, indices=None)  # defences and indices are the evaluated model's
        for name, record in _by_name(sources, bare):
            try:
                model = resolve.load_model(record, data_of(record, bare), bare, where)
                _check_fits(model, batch.images[:1], classes)
                model = controlled(model, look(model, batch.images[:IMAGES]))
            except RbError as wrong:
                which = f" {name[:19]}..." if len(sources) > 1 else ""
                raise RbError(f"The model{which} of --from cannot be attacked. {wrong}") from None
            models.append(model)
        run.kept[_SOURCES] = key, models
    return models


def _check_fits(model: nn.Module, image: Tensor, classes: int) -> None:
    """Raise RbError if the model cannot process `image` (1, C, H, W) or has other classes."""
    try:
        with torch.no_grad():
            found = model(image).shape[1]
    except RuntimeError as error:
        shape = "x".join(map(str, image.shape[1:]))
        raise RbError(
            f"It does not take images of shape {shape}, as the evaluated model does: {error}"
        ) from None
    if found != classes:
        raise RbError(
            f"It has {found} classes, but the evaluated model has {classes}. Expected a model with the same"
            " classes."
        )
