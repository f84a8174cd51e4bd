"""Robust accuracy at every eps from one search for the nearest adversarial examples: `rb-attack curve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.evaluation import diagnostics
from rbtools.evaluation.base import Batch, EvalTask, Outcome, Output, method_key
from rbtools.evaluation.tasks import CleanOutput, accuracy_entry, attack_settings, run_attack
from rbtools.lazy import np, torch
from rbtools.records import metric_name

if TYPE_CHECKING:
    from torch import Tensor


_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_DIGITS = 6
# Of a distance between 8-bit images: rounding must not put one of whole steps above the eps of as many.
_SLACK = 1e-5


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
        key = method_key("distance", "attack", self.method)
        del key["config"]["eps"]  # the search does not depend on eps
        return key

    def postprocess_key(self) -> dict[str, Any]:
        return {"eps": list(self.eps)}

    def counted(self, outcomes: np.ndarray, entry: Mapping[str, Any]) -> np.ndarray | None:
        """Which examples are not broken within the distance of the entry."""
        return outcomes[:, 0].astype(np.float64) > entry["eps"] if "eps" in entry else None

    def measure(self, batch: Batch) -> Outcome:
        from rbtools.attacks.minimal_norm import distances

        result = run_attack(batch, self.method)
        rows = distances(result.images, batch.images, self.method.norm)
        if self.method.grid != "none":
            rows = rows * (1 - _SLACK)
        return Outcome(torch.where(result.survived, torch.inf, rows)[:, None], result.totals)

    def entry_template(self) -> list[dict[str, Any]]:
        stem, norm = self.method.stem, self.method.norm
        settings = attack_settings(self.method, loss=self.method.loss)
        accuracies = [
            {"metric": metric_name.attack_name(stem, eps, norm), **settings, "eps": eps} for eps in self.eps
        ]
        del settings["eps"]
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
class OptimalityOutput(Output):
    """The local optimality of several attacks: a row (A,) for each example, its distance by each attack.

    Cina et al. 2024 (AttackBench, arXiv:2404.19460): 1 - (a - b) / (c - b), where a is the area under the
    attack's curve of accuracy over eps up to the largest of the smallest distances, b the area under the
    curve of the smallest distance of each example, and c that of an attack that finds nothing. An attack with
    1 is as good as all attacks together.
    """

    attacks: tuple[DistanceOutput, ...]
    needs_other_outputs = True

    @property
    def random(self) -> bool:
        return any(attack.random for attack in self.attacks)

    @property
    def allow_fast_model(self) -> bool:
        return True

    def key_fields(self) -> dict[str, Any]:
        return {"kind": "optimality", "attacks": [attack.key_fields() for attack in self.attacks]}

    def entry_template(self) -> list[dict[str, Any]]:
        best = ",".join(attack.method.name for attack in self.attacks)
        return [
            {**attack.entry_template()[-1], "metric": f"optimality.{attack.method.stem}", "best": best}
            for attack in self.attacks
        ]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        values = local_optimality(outcomes.astype(np.float64))
        entries = []
        for template, value in zip(self.entry_template(), values, strict=True):
            reason = {} if value is not None else {"reason": "no image is reached by any attack"}
            entries.append({**template, "n": len(outcomes), "value": value, **reason})
        return entries


def local_optimality(distances: np.ndarray) -> list[float | None]:
    """The local optimality of A attacks from distances (N, A), 0 for clean errors; None if undefined."""
    best = distances.min(1)
    reached = best[np.isfinite(best)]
    farthest = reached.max() if len(reached) else 0.0
    areas = np.minimum(distances, farthest).mean(0)
    least, most = np.minimum(best, farthest).mean(), (best > 0).mean() * farthest
    if most <= least:
        return [None] * distances.shape[1]
    return [float(1 - (area - least) / (most - least)) for area in areas]


@dataclass(frozen=True)
class DistanceTask(EvalTask):
    """Clean accuracy, the distances by each attack, and with several attacks their local optimality."""

    attacks: tuple[DistanceOutput, ...]

    @property
    def title(self) -> str:
        return ", ".join(attack.method.stem for attack in self.attacks)

    def outputs(self) -> Sequence[Output]:
        several = [OptimalityOutput(self.attacks)] if len(self.attacks) > 1 else []
        return [CleanOutput(), *self.attacks, *several]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor | Outcome]:
        rows: dict[Any, Any] = dict(batch.precomputed)
        outcomes: list[Tensor | Outcome] = []
        for output in wanted:
            if isinstance(output, OptimalityOutput):
                outcomes.append(torch.cat([rows[attack] for attack in output.attacks], dim=1))
                continue
            outcome = output.measure(batch)
            rows[output] = outcome.values if isinstance(outcome, Outcome) else outcome
            outcomes.append(outcome)
        return outcomes
