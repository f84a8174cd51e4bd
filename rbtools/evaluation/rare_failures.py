"""Task of rare failures: for each example the probability that noise breaks it, by multilevel splitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.attacks import losses
from rbtools.evaluation.base import Batch, EvalTask, Outcome, Output, method_key
from rbtools.evaluation.tasks import CleanOutput
from rbtools.lazy import np, torch
from rbtools.probabilistic import estimate, splitting
from rbtools.records import metric_name

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.probabilistic.distributions import Noise


@dataclass(frozen=True)
class RareOutput(Output):
    """A row for each example: its number, and the logarithm of its failure probability in each run."""

    noise: Noise
    gamma: float
    split: splitting.Splitting
    confidence: float

    def key_fields(self) -> dict[str, Any]:
        return {
            **method_key("pr-rare", "noise", self.noise),
            "gamma": self.gamma,
            "splitting_version": self.split.version,
            **({"shaped": self.noise.shaped_version} if self.noise.shaped_version > 1 else {}),
            **self.split.config(),
        }

    def postprocess_key(self) -> dict[str, Any]:
        return {"confidence": self.confidence, "intervals": estimate.INTERVALS}

    def measure(self, batch: Batch) -> Outcome:
        rows = torch.full((len(batch.ids), 1 + self.split.runs), float("nan"), device=batch.ids.device)
        rows[:, 0] = batch.ids
        passes = 0.0
        for row in batch.clean.nonzero()[:, 0]:
            rows[row, 1:], seen = self._example(batch.take(row[None]))
            passes += seen
        return Outcome(rows, {"forward": passes + len(batch.ids), "backward": 0.0})

    def _example(self, batch: Batch) -> tuple[Tensor, int]:
        """The logarithms of one example's failure probability (runs,), and the number of forward passes."""
        shape = tuple(batch.images.shape[1:])
        seen = 0

        def score(normals: Tensor) -> Tensor:
            """The largest logit of another class minus that of the label: float32 (M,)."""
            nonlocal seen
            seen += len(normals)
            margins = []
            for part in normals.split(batch.chunk_size):
                noisy = self.noise.apply(batch.images, self.noise.shaped(part, shape), self.gamma).float()
                with torch.no_grad():
                    logits = batch.model(noisy).float()
                labels = batch.labels.expand(len(part))
                margins.append(losses.margin(logits, labels, labels))
            return torch.cat(margins)

        draws = batch.draws(f"rare.{self.noise.stem}")
        logarithms = self.split.log_probabilities(score, self.noise.width(shape), draws)
        return logarithms.float(), seen

    def entry_template(self) -> list[dict[str, Any]]:
        settings = {**self.noise.settings, **self.split.config(), "denominator": "correct"}
        name = metric_name.pfail_name(self.noise.stem, self.gamma)
        return [{"metric": name, "gamma": self.gamma, **settings}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        return [
            template | splitting.findings(outcomes, self.confidence) for template in self.entry_template()
        ]


@dataclass(frozen=True)
class RareFailureTask(EvalTask):
    """The failure probability of each example at some radii, one example after the other."""

    noise: Noise
    gammas: tuple[float, ...]
    split: splitting.Splitting
    confidence: float = 0.95

    @property
    def title(self) -> str:
        return f"rare failures under {self.noise.name} noise"

    def outputs(self) -> Sequence[Output]:
        return [
            CleanOutput(),
            *(RareOutput(self.noise, gamma, self.split, self.confidence) for gamma in self.gammas),
        ]
