"""Robust accuracy at every eps from one search for the nearest adversarial examples: `rb-attack curve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.evaluation import adversarial, diagnostics
from rbtools.evaluation.base import EvalTask, Outcome, Output
from rbtools.evaluation.tasks import CleanOutput, accuracy_entry
from rbtools.lazy import np, torch
from rbtools.records import metric_name

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.evaluation.base import Batch

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_DIGITS = 6


@dataclass(frozen=True)
class DistanceOutput(Output):
    """A row (1,) for each example: the distance of its nearest adversarial example.

    It is 0 for an example that is misclassified without an attack, and infinite where the attack finds none.
    The point at that distance is misclassified by the model in float32, and lies in every larger ball: the
    accuracy at eps is the share of distances above eps. eps: in pixel units of [0, 1].
    """

    method: Any
    eps: tuple[float, ...]

    @property
    def random(self) -> bool:
        return bool(self.method.random)

    @property
    def allow_fast_model(self) -> bool:
        return True

    def key_fields(self) -> dict[str, Any]:
        return {
            "kind": "distance",
            "attack": self.method.name,
            "version": self.method.version,
            "config": self._settings(),
        }

    def postprocess_key(self) -> dict[str, Any]:
        return {"eps": list(self.eps)}

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in registry.config(self.method).items() if name != "eps"}

    def entry_template(self) -> list[dict[str, Any]]:
        settings = {"attack": self.method.name, "loss": self.method.loss, **self._settings()}
        stem, norm = self.method.stem, self.method.norm
        accuracies = [
            {"metric": metric_name.attack_name(stem, eps, norm), **settings, "eps": eps} for eps in self.eps
        ]
        return [*accuracies, {"metric": f"{stem}.distance", **settings}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        *accuracies, summary = self.entry_template()
        distances = outcomes[:, 0].astype(np.float64)
        fields = diagnostics.of_attack(self.method, totals, len(distances))
        fields.pop("distance", None)
        entries = [accuracy_entry(entry, distances > entry["eps"]) | fields for entry in accuracies]
        return [*entries, summary | fields | _summary(distances, max(self.eps))]


def _summary(distances: np.ndarray, farthest: float) -> dict[str, Any]:
    """The median and other quantiles of the distances, and the area under the curve up to the largest eps."""
    sizes = np.quantile(distances, _QUANTILES, method="inverted_cdf")
    quantiles = {
        f"{share:g}": round(float(size), _DIGITS) if np.isfinite(size) else None
        for share, size in zip(_QUANTILES, sizes, strict=True)
    }
    area = float(np.minimum(distances, farthest).mean() / farthest) if farthest else None
    summary: dict[str, Any] = {"n": len(distances), "value": quantiles["0.5"], "quantiles": quantiles}
    if quantiles["0.5"] is None:
        summary["reason"] = "no adversarial example was reached for half of the images or more"
    return summary | {"area": area, "unreached": int(np.isinf(distances).sum())}


@dataclass(frozen=True)
class DistanceTask(EvalTask):
    """Clean accuracy, and the distances of the nearest adversarial examples."""

    output: DistanceOutput

    @property
    def title(self) -> str:
        return str(self.output.method.stem)

    def outputs(self) -> Sequence[Output]:
        return [CleanOutput(), self.output]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor | Outcome]:
        return [
            self._distances(batch) if isinstance(output, DistanceOutput) else batch.clean.int()
            for output in wanted
        ]

    def _distances(self, batch: Batch) -> Outcome:
        result = adversarial.run_attack(batch, self.output.method)
        from rbtools.attacks.minimal_norm import distances

        rows = distances(result.images, batch.images, self.output.method.norm)
        rows = torch.where(result.survived, torch.inf, rows)
        return Outcome(rows[:, None], result.totals)
