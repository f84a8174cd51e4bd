"""The probability that noise breaks an example, estimated by multilevel splitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rbtools.attacks import losses
from rbtools.evaluation import noise_names
from rbtools.evaluation.accuracy import Clean
from rbtools.evaluation.base import Batch, Outcome
from rbtools.evaluation.spec import Entry, Evaluation, Spec, confidence_of, method_key, rebuilt
from rbtools.lazy import np, torch
from rbtools.probabilistic import NOISES, estimate, splitting
from rbtools.records import metric_name
from rbtools.records.results import is_number
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from rbtools.probabilistic.distributions import Noise


@dataclass(frozen=True, kw_only=True)
class RareFailure(Spec):
    """The mean failure probability at one radius. A row contains the index of the example and, for each run,
    the logarithm of its failure probability."""

    names = (noise_names.PFAIL,)

    noise: Noise
    gamma: float = param(0.1, "The radius, for pixels in [0, 1].", check="positive")
    split: splitting.Splitting
    confidence: float = 0.95

    @property
    def most_passes(self) -> int:
        return int(self.split.particles * self.split.runs * self.split.moves)

    def name(self) -> str:
        return metric_name.pfail_name(self.noise.stem, self.gamma)

    def column(self) -> Entry:
        return {
            **method_key("pr-rare", "noise", self.noise),
            "gamma": self.gamma,
            "splitting_version": self.split.version,
            **({"shaped": self.noise.shaped_version} if self.noise.shaped_version > 1 else {}),
            **self.split.config(),
        }

    @classmethod
    def reading(cls, specs: Sequence[Self]) -> Entry:
        return {"confidence": specs[0].confidence, "intervals": estimate.INTERVALS}

    def settings(self) -> Entry:
        about = {**self.noise.settings, **self.split.config(), "denominator": "correct"}
        return {"gamma": self.gamma, **about}

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        return splitting.findings(rows, self.confidence)

    def correct(self, rows: np.ndarray) -> np.ndarray:
        return np.all(np.isneginf(rows[:, 1:]), axis=1)

    def counts(self, rows: np.ndarray) -> np.ndarray | None:
        return None

    def rows(self, batch: Batch) -> Outcome:
        rows = torch.full((len(batch.ids), 1 + self.split.runs), float("nan"), device=batch.ids.device)
        rows[:, 0] = batch.ids
        passes = 0.0
        for row in batch.clean.nonzero()[:, 0]:
            rows[row, 1:], seen = self._example(batch.take(row[None]))
            passes += seen
        return Outcome(rows, {"forward": passes + len(batch.ids), "backward": 0.0})

    def _example(self, batch: Batch) -> tuple[Tensor, int]:
        """The logarithms (runs,) of one example's failure probability, and the number of forward passes."""
        shape = tuple(batch.images.shape[1:])
        seen = 0

        def score(normals: Tensor) -> Tensor:
            """The largest logit of another class minus the logit of the label: float32 (M,)."""
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

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Self | None:
        noise = rebuilt(NOISES, entry.get("noise"), entry)
        named = {f.name: entry[f.name] for f in fields(splitting.Splitting) if f.name in entry}
        whole = "particles" in named and "gamma" in entry and all(map(is_number, named.values()))
        if noise is None or not whole:
            return None
        split, confidence = splitting.Splitting(**named), confidence_of(entry)
        return cls(noise=noise, gamma=entry["gamma"], split=split, confidence=confidence)


def rare_failures(
    noise: Noise, gammas: Sequence[float], split: splitting.Splitting, confidence: float = 0.95
) -> Evaluation:
    """The failure probability of each example at some radii, and clean accuracy."""
    specs = [RareFailure(noise=noise, gamma=one, split=split, confidence=confidence) for one in gammas]
    return Evaluation(title=f"rare failures under {noise.name} noise", specs=tuple(specs), along=(Clean(),))
